//! HTTP GET, only to addresses of this host.

use std::{error::Error, future::Future, io, net::SocketAddr, time::Duration};

use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::{
    Request, StatusCode,
    body::Bytes,
    client::conn::http1,
    header::{ACCEPT, CONNECTION, HOST, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

use portreeve_facts::{Gap, Source, Why, text};

/// The longest wait for an answer. A proxy usually answers on loopback in a millisecond. If a proxy needs longer than
/// `PATIENCE`, the proxy hangs.
const PATIENCE: Duration = Duration::from_secs(1);

/// The greatest length of headers that are read, in bytes. Components of Kubernetes send less.
const LONGEST_HEAD: usize = 16 * 1024;

/// An HTTP answer, with any status.
pub struct Answer {
    /// `address/path`, for messages.
    pub place: String,
    /// The HTTP status.
    pub status: StatusCode,
    /// The body as text. Bytes that are not UTF-8 are replaced.
    pub body: String,
}

impl Answer {
    /// Returns the answer if its status is a success.
    ///
    /// # Errors
    /// A `Gap` with the status.
    pub fn success(self, source: Source) -> Result<Self, Gap> {
        let why = match self.status {
            status if status.is_success() => return Ok(self),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Why::NotPermitted,
            StatusCode::NOT_FOUND => Why::NotSupported,
            _ => Why::Malformed,
        };
        Err(Gap::new(source, why, format!("{} answered {}", self.place, self.status)))
    }

    /// A `Gap` for a body of the wrong form. The `Gap` quotes the beginning of the body.
    pub fn malformed(&self, source: Source, wanted: &str) -> Gap {
        let beginning = text::clean(&self.body, 48);
        Gap::new(source, Why::Malformed, format!("{} answered {beginning:?}, wanted {wanted}", self.place))
    }
}

/// Runs requests on the calling thread, so the requests are in the network namespace of this thread. The caller must
/// not be in an async runtime.
///
/// # Errors
/// A `Gap` of `/proxyMode` if the process has no file descriptors left for a runtime.
pub fn run<T>(requests: impl Future<Output = T>) -> Result<T, Gap> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Gap::new(Source::ProxyMode, Why::Unreachable, format!("start of the reader's own event loop: {error}"))
    })?;
    Ok(runtime.block_on(requests))
}

/// Requests `path` from `place`, and reads at most `limit` bytes of the body.
///
/// # Errors
/// `Unreachable` if no process listens, `TimedOut` after a second, `Malformed` if the answer is not HTTP, `TooMuch` if
/// the answer is too long.
pub async fn get(source: Source, place: SocketAddr, path: &str, limit: usize) -> Result<Answer, Gap> {
    let url = format!("{place}{path}");
    match timeout(PATIENCE, exchange(place, path, limit)).await {
        Ok(Ok((status, body))) => Ok(Answer { place: url, status, body }),
        Ok(Err((why, detail))) => Err(Gap::new(source, why, format!("GET {url}: {detail}"))),
        Err(_) => Err(Gap::new(source, Why::TimedOut, format!("GET {url}: no answer within {PATIENCE:?}"))),
    }
}

type Failure = (Why, String);

async fn exchange(place: SocketAddr, path: &str, limit: usize) -> Result<(StatusCode, String), Failure> {
    let stream = TcpStream::connect(place).await.map_err(|error| not_connected(&error))?;
    // The connection is closed with a reset, so this side keeps no TIME_WAIT. Otherwise, scans would leave client
    // sockets on NodePorts.
    stream.set_zero_linger().map_err(|error| not_connected(&error))?;
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(LONGEST_HEAD)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| not_http(&error))?;
    let connection = connection.without_shutdown();
    let request = Request::get(path)
        .header(HOST, place.to_string())
        .header(USER_AGENT, concat!("portreeve/", env!("CARGO_PKG_VERSION")))
        .header(ACCEPT, "*/*")
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| (Why::Malformed, error.to_string()))?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|error| not_http(&error))?;
        let status = response.status();
        let body =
            Limited::new(response.into_body(), limit).collect().await.map_err(|error| not_read(&*error, limit))?;
        Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
    };
    tokio::pin!(answer, connection);
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        // The connection ended before the answer was read. If the connection ended with an error, the answer contains
        // the error, too.
        _ = &mut connection => answer.await,
    }
}

fn not_connected(error: &io::Error) -> Failure {
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied => Why::NotPermitted,
        _ => Why::Unreachable,
    };
    (why, error.to_string())
}

fn not_http(error: &hyper::Error) -> Failure {
    (Why::Malformed, format!("not an HTTP answer: {error}"))
}

fn not_read(error: &(dyn Error + Send + Sync + 'static), limit: usize) -> Failure {
    match error.is::<LengthLimitError>() {
        true => (Why::TooMuch, format!("longer than {limit} bytes")),
        false => (Why::Malformed, error.to_string()),
    }
}
