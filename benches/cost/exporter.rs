//! node_exporter with only the collector `tcpstat`. At each scrape, node_exporter counts the TCP sockets of the node by
//! state.

use std::{net::TcpStream, process::Command};

use crate::{
    parts::{directory::Directory, process::Process},
    world::{number, run},
};

const PLACE: &str = "127.0.0.1:29518";

pub struct Exporter {
    _process: Process,
    _directory: Directory,
}

impl Exporter {
    pub fn start() -> Self {
        let directory = Directory::new();
        let arguments =
            ["--collector.disable-defaults", "--collector.tcpstat", &format!("--web.listen-address={PLACE}")]
                .map(str::to_owned);
        let mut process = Process::start("prometheus-node-exporter", &arguments, directory.path());
        process.wait_for("node_exporter", || TcpStream::connect(PLACE).ok());
        Self { _process: process, _directory: directory }
    }

    /// Returns the number of TCP listeners. With very many sockets, a scrape takes seconds.
    pub fn scrape(&self) -> f64 {
        let output = run(Command::new("curl").args(["--silent", "--fail", &format!("http://{PLACE}/metrics")]));
        number(&String::from_utf8_lossy(&output.stdout), "node_tcp_connection_states{state=\"listen\"}")
    }
}
