//! A small API server for tests. The path of a request determines the answer, and the server records the requests.

use std::{
    fs,
    io::{BufRead, BufReader, Read as _, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use portreeve_cluster::{self as cluster, Access, ClusterSource, Credentials};
use portreeve_facts::ClusterFacts;
use tempfile::TempDir;

use crate::said;

pub(crate) enum Reply {
    Json(String),
    Html(&'static str),
    Text(&'static str),
    Status(u16, &'static str),
    /// A refusal with the text of a real API server.
    Refused(u16),
    /// 429 with a `Retry-After` of this number of seconds.
    Busy(u32),
    /// A body that ends before the length in its header.
    Torn(&'static str),
    /// The body in pieces, with a pause after each piece.
    Slow(Vec<String>, Duration),
    /// A beginning, and then the same text again and again until the client closes the connection.
    Endless(&'static str, String),
    /// No answer, and the connection stays open.
    Silence,
    /// No answer, and the connection is closed.
    Hangup,
    /// Lines of a watch. After the lines, the watch ends, or stays open without more lines (`Goes`).
    Watch(Vec<String>, After),
}

pub(crate) struct Sent<'a> {
    pub(crate) method: &'a str,
    /// The path, with its query.
    pub(crate) path: &'a str,
    /// The content type of the request's body.
    pub(crate) kind: &'a str,
    pub(crate) body: &'a [u8],
}

pub(crate) enum After {
    Ends,
    Goes,
}

/// Each entry is the path of a request, with its query.
pub(crate) type RequestLog = Arc<Mutex<Vec<String>>>;

#[derive(Clone, Copy, Default)]
struct Manner {
    /// The server can begin a watch with the present objects.
    streams: bool,
    /// The server keeps a connection open after a complete answer.
    keeps: bool,
}

pub(crate) struct Fake {
    address: String,
    requests: RequestLog,
    directory: TempDir,
}

impl Fake {
    /// `answer` gets the path with its query, and the number of earlier requests for this path.
    pub(crate) fn new(answer: impl Fn(&str, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0", answer)
    }

    pub(crate) fn at(address: &str, answer: impl Fn(&str, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::guarded(address, Arc::new(Mutex::new("t".to_owned())), answer)
    }

    /// A server that can begin a watch with the present objects. A server without this feature refuses such a watch.
    pub(crate) fn streaming(answer: impl Fn(&str, usize) -> Reply + Send + Sync + 'static) -> Self {
        let manner = Manner { streams: true, ..Manner::default() };
        Self::of("127.0.0.1:0", Arc::new(Mutex::new("t".to_owned())), manner, answer)
    }

    /// A server that answers several requests on one connection, as a real API server does.
    pub(crate) fn patient(answer: impl Fn(&str, usize) -> Reply + Send + Sync + 'static) -> Self {
        let manner = Manner { keeps: true, ..Manner::default() };
        Self::of("127.0.0.1:0", Arc::new(Mutex::new("t".to_owned())), manner, answer)
    }

    /// `answer` gets the whole request.
    pub(crate) fn writable(answer: impl Fn(&Sent<'_>, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::of_whole("127.0.0.1:0", Arc::new(Mutex::new("t".to_owned())), Manner::default(), answer)
    }

    /// A server at this address that accepts `token`. A test can change the token while the server runs.
    pub(crate) fn guarded(
        address: &str,
        token: Arc<Mutex<String>>,
        answer: impl Fn(&str, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::of(address, token, Manner::default(), answer)
    }

    fn of(
        address: &str,
        token: Arc<Mutex<String>>,
        manner: Manner,
        answer: impl Fn(&str, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::of_whole(address, token, manner, move |sent, before| answer(sent.path, before))
    }

    fn of_whole(
        address: &str,
        token: Arc<Mutex<String>>,
        manner: Manner,
        answer: impl Fn(&Sent<'_>, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let requests = RequestLog::default();
        let (answer, log) = (Arc::new(answer), Arc::clone(&requests));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (answer, log, token) = (Arc::clone(&answer), Arc::clone(&log), Arc::clone(&token));
                thread::spawn(move || {
                    let stream = stream.expect("a connection");
                    let mut lines = BufReader::new(stream.try_clone().expect("a stream"));
                    while serve(&stream, &mut lines, answer.as_ref(), &log, &token, manner) {}
                });
            }
        });
        Self { address, requests, directory: TempDir::new().expect("a directory") }
    }

    /// Reads the facts from this server, on a host with the name `n1`.
    pub(crate) fn facts(&self) -> ClusterFacts {
        self.facts_within(Duration::from_secs(20))
    }

    pub(crate) fn facts_within(&self, request_timeout: Duration) -> ClusterFacts {
        facts_at(&self.address, &self.directory, request_timeout)
    }

    /// A second call writes another token into the same file.
    pub(crate) fn access(&self, token: &str, request_timeout: Duration) -> Access {
        access(&self.address, &self.directory, token, request_timeout)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.access("t", Duration::from_secs(20));
        self.directory.path().join("kubeconfig")
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("the log").clone()
    }
}

pub(crate) fn facts_at(address: &str, directory: &TempDir, request_timeout: Duration) -> ClusterFacts {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let source = ClusterSource::Api(access(address, directory, "t", request_timeout));
    runtime.block_on(cluster::read(&source, None, "n1"))
}

pub(crate) fn access(address: &str, directory: &TempDir, token: &str, request_timeout: Duration) -> Access {
    let kubeconfig = directory.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nclusters: [{{name: k, cluster: {{server: \"{address}\"}}}}]\nusers: [{{name: u, user: {{token: {token}}}}}]\n"
    );
    fs::write(&kubeconfig, text).expect("a kubeconfig");
    let credentials = Credentials::Kubeconfig { paths: vec![kubeconfig], context: None };
    Access { credentials, api_server: None, request_timeout }
}

/// The head of an answer without a length: the answer ends when the connection ends.
const OPEN_END: &str = "HTTP/1.1 200 X\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";

/// Answers one request, and returns whether another request may follow.
fn serve(
    mut stream: &TcpStream,
    lines: &mut BufReader<TcpStream>,
    answer: &dyn Fn(&Sent<'_>, usize) -> Reply,
    log: &RequestLog,
    token: &Mutex<String>,
    Manner { streams, keeps }: Manner,
) -> bool {
    let Some(Ok(request)) = lines.by_ref().lines().next() else { return false };
    let expected = format!("authorization: Bearer {}", token.lock().expect("the token"));
    let head: Vec<_> = lines.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let known = head.iter().any(|line| line.eq_ignore_ascii_case(&expected));
    let length = head.iter().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    // If the server closed the connection with unread bytes, the client would lose the answer.
    let mut body = vec![0; length.unwrap_or(0)];
    if lines.read_exact(&mut body).is_err() {
        return false;
    }
    let kind = head.iter().find_map(|line| line.strip_prefix("content-type: ")).unwrap_or_default();
    let mut words = request.split(' ');
    let (method, path) = (words.next().expect("a method"), words.next().expect("a path").to_owned());
    let before = {
        let mut log = log.lock().expect("the log");
        log.push(path.clone());
        log.iter().filter(|known| **known == path).count() - 1
    };
    let json = "application/json";
    let reply = match path.contains("sendInitialEvents") {
        _ if !known => Reply::Status(401, "Unauthorized"),
        true if !streams => Reply::Refused(422),
        _ => answer(&Sent { method, path: &path, kind, body: &body }, before),
    };
    let (status, kind, extra, body, missing) = match reply {
        Reply::Json(body) => (200, json, String::new(), body, 0),
        Reply::Html(body) => (200, "text/html", String::new(), body.to_owned(), 0),
        Reply::Text(body) => (200, "text/plain", String::new(), body.to_owned(), 0),
        Reply::Torn(body) => (200, json, String::new(), body.to_owned(), 100),
        Reply::Refused(code) => (code, json, String::new(), said::refusal(code).to_string(), 0),
        Reply::Busy(wait) => (429, json, format!("Retry-After: {wait}\r\n"), "{}".to_owned(), 0),
        Reply::Hangup => return false,
        Reply::Watch(events, after) => {
            // The client may have closed the connection. The test checks how the client reacts.
            drop(stream.write_all(format!("{OPEN_END}{}", events.concat()).as_bytes()));
            if matches!(after, After::Goes) {
                thread::sleep(Duration::from_secs(30));
            }
            return false;
        }
        Reply::Slow(pieces, pause) => {
            drop(stream.write_all(OPEN_END.as_bytes()));
            for piece in pieces {
                thread::sleep(pause);
                drop(stream.write_all(piece.as_bytes()));
            }
            return false;
        }
        Reply::Endless(beginning, again) => {
            let again = again.repeat((64 << 10) / again.len() + 1);
            let mut sent = stream.write_all(format!("{OPEN_END}{beginning}").as_bytes());
            while sent.is_ok() {
                sent = stream.write_all(again.as_bytes());
            }
            return false;
        }
        Reply::Status(code, message) => {
            let body = format!(r#"{{"kind":"Status","status":"Failure","message":"{message}","code":{code}}}"#);
            (code, json, String::new(), body, 0)
        }
        Reply::Silence => {
            thread::sleep(Duration::from_secs(30));
            return false;
        }
    };
    let length = body.len() + missing;
    let keeps = keeps && missing == 0;
    let connection = if keeps { "" } else { "Connection: close\r\n" };
    let head =
        format!("HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{extra}Content-Length: {length}\r\n{connection}\r\n");
    let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    sent.is_ok() && keeps
}
