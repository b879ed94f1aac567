//! Serves HTTP connections within a bounded number of file descriptors and bounded memory, whatever clients do.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::Router;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream},
    task::{AbortHandle, yield_now},
    time::{sleep, timeout},
};
use tracing::warn;

use super::request_budget::RequestBudget;

/// How many connections there may be at a time. One more ends the oldest, which has had its chance: an answer takes
/// milliseconds.
const MAX_CONNECTIONS: usize = 32;
/// How long connections may take.
const LIMITS: Limits = Limits { request: Duration::from_secs(30), document: Duration::from_secs(90) };
/// The longest head of a request, in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// What the kernel may hold for a connection that does not read, or is not read, in bytes each. It takes twice as much.
const SOCKET_BUFFER: u32 = 64 << 10;
/// How many connections may wait to be accepted.
const BACKLOG: u32 = 128;
/// The longest that the next connection waits while requests owe processor time. So a flood gets as many answers as the
/// budget pays for, and a scrape still has its turn.
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// How long to wait where no connection can be accepted, for want of descriptors.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How long a connection may take.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// For its one request and the answer.
    request: Duration,
    /// How much longer if it reads a document.
    document: Duration,
}

/// Who has connected, as an extension of each request.
#[derive(Clone, Debug)]
pub(super) struct Client {
    /// The client's address; unspecified where it came through a socket of this node's file tree.
    pub(super) address: IpAddr,
    wants_document: Arc<AtomicBool>,
}

impl Client {
    /// This client wants a document: newer connections do not end its own, and it has more time. There are few: who may not
    /// read is refused at once, and so is one more than are read at a time.
    pub(super) fn wants_document(&self) {
        self.wants_document.store(true, Ordering::Relaxed);
    }
}

/// Where connections come from.
pub(super) trait Listener {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection, and the address of the client.
    async fn accept(&self) -> io::Result<(Self::Stream, IpAddr)>;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, IpAddr)> {
        Self::accept(self).await.map(|(stream, client)| (stream, client.ip()))
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, IpAddr)> {
        Self::accept(self).await.map(|(stream, _)| (stream, IpAddr::from([0, 0, 0, 0])))
    }
}

/// A socket that listens at `address`, whose connections hold little in the kernel, for any runtime.
///
/// # Errors
/// When it cannot listen there.
pub(super) fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // As the standard library has it.
    socket.set_reuseaddr(true)?;
    // Connections have the sizes of their listener.
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)?.into_std()
}

/// Answers one request on each connection, charges what that costs, and never ends.
pub(super) async fn serve(listener: impl Listener, router: Router, budget: Arc<RequestBudget>) -> Infallible {
    let mut open: VecDeque<(AbortHandle, Client)> = VecDeque::with_capacity(MAX_CONNECTIONS);
    let mut failing = false;
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                failing = false;
                let debt = budget.debt();
                if !debt.is_zero() {
                    sleep(debt.min(LONGEST_WAIT)).await;
                }
                open.retain(|(connection, _)| !connection.is_finished());
                if open.len() == MAX_CONNECTIONS
                    && let Some(oldest) = oldest(&open)
                    && let Some((connection, _)) = open.remove(oldest)
                {
                    connection.abort();
                }
                let client = Client { address, wants_document: Arc::default() };
                let connection = answer(stream, client.clone(), router.clone(), LIMITS);
                let connection = tokio::spawn(Metered::new(connection, Arc::clone(&budget)));
                open.push_back((connection.abort_handle(), client));
                // It is read from before the next one can push it out.
                yield_now().await;
            }
            Err(error) if is_client_error(error.kind()) => {}
            Err(error) => {
                if !failing {
                    warn!(%error, "no connection can be accepted");
                }
                failing = true;
                sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// The oldest connection, documents apart: of these there are few.
fn oldest(open: &VecDeque<(AbortHandle, Client)>) -> Option<usize> {
    let ends = open.iter().position(|(_, client)| !client.wants_document.load(Ordering::Relaxed));
    ends.or_else(|| (!open.is_empty()).then_some(0))
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    client: Client,
    router: Router,
    limits: Limits,
) {
    let mut server = http1::Builder::new();
    server.keep_alive(false).max_header_size(MAX_HEAD).max_buf_size(MAX_HEAD);
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(client.clone());
        hyper::service::Service::call(&router, request)
    });
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    // A client that sends nonsense, hangs up or takes too long is no error of the agent.
    if timeout(limits.request, &mut connection).await.is_err() && client.wants_document.load(Ordering::Relaxed) {
        drop(timeout(limits.document, connection).await);
    }
}

/// Whether only the connection that was about to be accepted failed.
fn is_client_error(error: ErrorKind) -> bool {
    matches!(error, ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused)
}

/// A future on a thread that answers requests. After each poll the thread settles its account: a flood of requests leaves
/// it no time to rest, which it does otherwise.
struct Metered<F> {
    future: Pin<Box<F>>,
    budget: Arc<RequestBudget>,
}

impl<F: Future> Metered<F> {
    fn new(future: F, budget: Arc<RequestBudget>) -> Self {
        Self { future: Box::pin(future), budget }
    }
}

impl<F: Future> Future for Metered<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let polled = self.future.as_mut().poll(context);
        self.budget.settle();
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use axum::{Extension, routing::get};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;
    use crate::scanner::thread_cpu_time;

    const LIMITS: Limits = Limits { request: Duration::from_millis(100), document: Duration::from_millis(400) };

    /// Longer than a reader takes in its turn, and than any socket holds.
    fn router(document: bool) -> Router {
        let answer = move |Extension(client): Extension<Client>| async move {
            if document {
                client.wants_document();
            }
            "x".repeat(1 << 20)
        };
        Router::new().route("/", get(answer))
    }

    /// Reads a byte after each pause; whether the answer came to its end, or was cut.
    async fn is_cut(document: bool, request: &str, pause: Duration, limits: Limits) -> bool {
        let (mut reader, server) = duplex(1024);
        let client = Client { address: IpAddr::from([192, 0, 2, 1]), wants_document: Arc::default() };
        reader.write_all(request.as_bytes()).await.expect("a request");
        let reading = async {
            let (mut bytes, mut read) = (vec![0; 64 << 10], 0);
            loop {
                sleep(pause).await;
                match reader.read(&mut bytes).await {
                    Ok(0) | Err(_) => return read < 1 << 20,
                    Ok(more) => read += more,
                }
            }
        };
        let answered = async {
            answer(server, client, router(document), limits).await;
        };
        // Far longer than both limits: who waits for ever is not cut.
        let both = async { tokio::join!(reading, answered).0 };
        timeout(Duration::from_secs(60), both).await.expect("a connection has an end")
    }

    #[tokio::test]
    async fn who_sends_nothing_or_reads_slowly_is_cut_off_and_a_document_has_longer() {
        const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let slow = Duration::from_secs(1);
        assert!(is_cut(false, "GET / HT", slow, LIMITS).await, "half a request");
        assert!(is_cut(false, GET, slow, LIMITS).await, "a slow reader");
        assert!(is_cut(true, GET, slow, LIMITS).await, "a slow reader of a document");
        let patient = Limits { document: Duration::from_secs(50), ..LIMITS };
        assert!(!is_cut(true, GET, Duration::from_millis(1), patient).await, "a reader of a document in its time");
    }

    #[tokio::test]
    async fn what_a_future_does_is_charged_and_what_it_waits_for_is_not() {
        let budget = Arc::new(RequestBudget::public(100.0, Instant::now()));
        budget.settle();
        let before = budget.spent();
        let toil = Duration::from_millis(20);
        let work = async {
            tokio::time::sleep(10 * toil).await;
            let begun = thread_cpu_time();
            while thread_cpu_time() - begun < toil {
                std::hint::spin_loop();
            }
        };
        Metered::new(work, Arc::clone(&budget)).await;
        let cost = budget.spent() - before;
        assert!((toil..5 * toil).contains(&cost), "{cost:?}");
    }
}
