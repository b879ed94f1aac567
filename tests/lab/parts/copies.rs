//! Simulates many copies of one agent. Each copy reports under the name of another node.

use std::{
    collections::BTreeMap,
    io::{self, BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

use nix::sys::socket::{Shutdown, shutdown};

/// The report of each node whose report differs from the usual report.
type Others = Arc<Mutex<BTreeMap<String, Arc<str>>>>;

/// The path of a node's metrics is the node's name.
pub struct Copies {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
    others: Others,
}

impl Copies {
    pub const PLACE: &str = "127.0.0.1:29600";

    /// The usual report contains the name `original`. In each answer, the name of the node replaces `original`.
    #[track_caller]
    pub fn start(original: &str, usual: String) -> Self {
        let listener = TcpListener::bind(Self::PLACE).expect("a free port");
        let others = Others::default();
        let (accepting, asked) = (listener.try_clone().expect("a second handle"), Arc::clone(&others));
        let name = format!("\"{original}\"");
        let thread = thread::spawn(move || {
            while let Ok((stream, _)) = accepting.accept() {
                // An error means that the client has closed the connection.
                if answer(stream, &name, &usual, &asked).is_err() {
                    continue;
                }
            }
        });
        Self { listener, thread: Some(thread), others }
    }

    pub fn say(&self, nodes: &[String], text: &str) {
        let text: Arc<str> = text.into();
        self.others.lock().expect("the texts").extend(nodes.iter().map(|node| (node.clone(), Arc::clone(&text))));
    }
}

impl Drop for Copies {
    /// On Linux, the shutdown of the listener wakes the thread that waits for a connection.
    fn drop(&mut self) {
        shutdown(self.listener.as_raw_fd(), Shutdown::Both).expect("a listener can be shut down");
        self.thread.take().expect("it is taken only here").join().expect("a server that does not panic");
    }
}

fn answer(stream: TcpStream, name: &str, usual: &str, others: &Others) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let node = head.split(' ').nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
    let other = others.lock().expect("the texts").get(&node).cloned();
    let text = other.as_deref().unwrap_or(usual).replace(name, &format!("\"{node}\""));
    let length = text.len();
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    reader.get_mut().write_all((head + &text).as_bytes())
}
