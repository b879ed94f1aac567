//! The Alertmanager of Debian, and receivers for its messages.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

use nix::sys::socket::{Shutdown, shutdown};
use serde_json::{Value, json};

use super::{directory::Directory, process::Process, talk::http_get};

const DESK: &str = "127.0.0.1:9099";

/// The path and the body of each message, in the order in which they came.
type Messages = Arc<Mutex<Vec<(String, Value)>>>;

/// An Alertmanager, and the server of its receivers. The Alertmanager routes alerts by severity, and groups alerts as
/// `docs/runbooks/README.md` advises.
pub struct Alertmanager {
    _process: Process,
    desk: TcpListener,
    thread: Option<JoinHandle<()>>,
    messages: Messages,
    _directory: Directory,
}

impl Alertmanager {
    pub const PLACE: &str = "127.0.0.1:9093";

    #[track_caller]
    pub fn start() -> Self {
        let desk = TcpListener::bind(DESK).expect("a free port");
        let messages = Messages::default();
        let (accepting, writing) = (desk.try_clone().expect("a second handle"), Arc::clone(&messages));
        let thread = thread::spawn(move || {
            while let Ok((stream, _)) = accepting.accept() {
                let message = received(stream).expect("a whole message");
                writing.lock().expect("the messages").push(message);
            }
        });
        let directory = Directory::new();
        let config = directory.write("alertmanager.yaml", &config().to_string());
        let storage = directory.path().display();
        let arguments = [
            format!("--config.file={config}"),
            format!("--storage.path={storage}"),
            format!("--web.listen-address={}", Self::PLACE),
            "--cluster.listen-address=".to_owned(),
        ];
        let mut process = Process::start("/usr/bin/prometheus-alertmanager", &arguments, directory.path());
        process.wait_for("Alertmanager", || http_get(Self::PLACE, "/-/ready"));
        Self { _process: process, desk, thread: Some(thread), messages, _directory: directory }
    }

    pub fn told(&self, severity: &str) -> Vec<Value> {
        let messages = self.messages.lock().expect("the messages");
        messages
            .iter()
            .filter(|(path, _)| path.strip_prefix('/') == Some(severity))
            .map(|(_, body)| body.clone())
            .collect()
    }
}

impl Drop for Alertmanager {
    /// On Linux, the shutdown of the listener wakes the thread that waits for a connection.
    fn drop(&mut self) {
        shutdown(self.desk.as_raw_fd(), Shutdown::Both).expect("a listener can be shut down");
        self.thread.take().expect("it is taken only here").join().expect("a desk that does not panic");
    }
}

fn config() -> Value {
    let severities = ["critical", "warning", "info"];
    let route = |severity: &str| json!({"receiver": severity, "matchers": [format!("severity=\"{severity}\"")]});
    let receiver =
        |severity: &str| json!({"name": severity, "webhook_configs": [{"url": format!("http://{DESK}/{severity}")}]});
    let receivers: Vec<Value> = [json!({"name": "others"})].into_iter().chain(severities.map(receiver)).collect();
    json!({
        "route": {
            "receiver": "others",
            "group_by": ["cluster", "rule"],
            "group_wait": "1s",
            "group_interval": "1s",
            "routes": severities.map(route),
        },
        "receivers": receivers,
    })
}

fn received(stream: TcpStream) -> io::Result<(String, Value)> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head)?;
    }
    let lower = head.to_ascii_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.ok_or(io::ErrorKind::InvalidData)?];
    reader.read_exact(&mut body)?;
    reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    Ok((path, serde_json::from_slice(&body)?))
}
