//! The processes of a stage. Each process runs this program, and keeps the given sockets until standard input ends.

use std::{
    ffi::CString,
    fs,
    io::{BufRead, BufReader, Read, Write, stdin, stdout},
    net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        resource::{Resource, getrlimit, setrlimit},
        socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt},
    },
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use portreeve_facts::Mode;

/// The version of a kube-proxy that opens no sockets for NodePorts.
pub(super) const CURRENT: &str = "v1.36.3";
/// The address at which kube-proxy answers by default.
const PROXY_DOOR: &str = "127.0.0.1:10249";
/// The number of polls until the first retransmission must appear. The kernel retransmits after a second.
const RETRANSMISSION_PATIENCE: u32 = 50;
const RETRANSMISSION_POLL: Duration = Duration::from_millis(100);

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Part {
    /// The name of the process, at most 15 bytes.
    pub(super) name: String,
    pub(super) descriptor_limit: Option<u64>,
    /// Addresses on which the process listens. The process never accepts a connection.
    pub(super) listens: Vec<SocketAddr>,
    pub(super) connects: Option<(SocketAddrV4, SocketAddrV4)>,
    /// The mode and the version that the simulated kube-proxy reports. The reported number of open files is the real
    /// number of this process.
    pub(super) answers: Option<(Mode, String)>,
}

impl Part {
    pub(super) fn named(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    pub(super) fn proxy(mode: Mode, version: &str) -> Self {
        Self { answers: Some((mode, version.to_owned())), ..Self::named("kube-proxy") }
    }
}

/// A process that keeps its sockets until this value is dropped.
pub(super) struct Player {
    child: Child,
}

impl Player {
    /// Starts a process and waits until its sockets are ready.
    pub(super) fn start(part: &Part) -> anyhow::Result<Self> {
        let child = Command::new("/proc/self/exe")
            .arg0(&part.name)
            .args(["demo", "--part"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", part.name))?;
        let mut player = Self { child };
        let mut input = player.child.stdin.as_ref().context("a pipe to its input")?;
        writeln!(input, "{}", serde_json::to_string(part)?).with_context(|| format!("instructing {}", part.name))?;
        let mut ready = String::new();
        let output = player.child.stdout.take().context("a pipe from its output")?;
        BufReader::new(output).read_line(&mut ready).with_context(|| format!("waiting for {}", part.name))?;
        match ready.as_str() {
            READY => Ok(player),
            _ => bail!("{} could not set up its part", part.name),
        }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if let Err(error) = self.child.wait() {
            tracing::warn!(%error, "a process of the stage could not be waited for");
        }
    }
}

const READY: &str = "ready\n";

/// Reads the role of this process from standard input, and keeps the sockets until standard input ends.
pub(super) fn play() -> anyhow::Result<()> {
    let mut line = String::new();
    stdin().lock().read_line(&mut line).context("reading a part")?;
    let Part { name, descriptor_limit, listens, connects, answers } =
        serde_json::from_str(&line).context("reading a part")?;

    prctl::set_name(&CString::new(name)?).context("taking a name")?;
    if let Some(limit) = descriptor_limit {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("reading RLIMIT_NOFILE")?;
        setrlimit(Resource::RLIMIT_NOFILE, limit, hard).context("lowering RLIMIT_NOFILE")?;
    }
    let _held = listens.into_iter().map(listen).collect::<Result<Vec<_>, _>>()?;
    let _connecting = connects.map(|(from, to)| connect_in_vain(from, to)).transpose()?;
    let door = answers.as_ref().map(|_| listen(PROXY_DOOR.parse().expect("an address"))).transpose()?;

    let mut output = stdout().lock();
    output.write_all(READY.as_bytes()).and_then(|()| output.flush()).context("reporting that the setup is complete")?;

    match (door, answers) {
        (Some(door), Some(answers)) => answer_until_the_end(&door, &answers),
        _ => stdin().lock().read_to_end(&mut Vec::new()).map(drop).context("waiting for the end"),
    }
}

fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).with_context(|| format!("listening on {address}"))
}

/// Tries to connect, gets no answer, and returns after the kernel's first retransmission.
fn connect_in_vain(from: SocketAddrV4, to: SocketAddrV4) -> anyhow::Result<OwnedFd> {
    let connecting = || -> Result<OwnedFd, Errno> {
        let client = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_NONBLOCK, None)?;
        setsockopt(&client, sockopt::ReuseAddr, &true)?;
        bind(client.as_raw_fd(), &SockaddrIn::from(from))?;
        match connect(client.as_raw_fd(), &SockaddrIn::from(to)) {
            Ok(()) | Err(Errno::EINPROGRESS) => Ok(client),
            Err(error) => Err(error),
        }
    };
    let client = connecting().with_context(|| format!("connecting from {from} to {to}"))?;
    for _ in 0..RETRANSMISSION_PATIENCE {
        let table = fs::read_to_string("/proc/thread-self/net/tcp").context("reading /proc/net/tcp")?;
        if table.lines().any(|line| retransmits(line, from.port())) {
            return Ok(client);
        }
        thread::sleep(RETRANSMISSION_POLL);
    }
    bail!("no retransmission from {from} to {to}: a program answered or refused the connection")
}

/// Whether a line of `/proc/net/tcp` has this local port, the state SYN-SENT (02) and a retransmission.
fn retransmits(line: &str, port: u16) -> bool {
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    let [_, local, _, "02", _, _, retransmits, ..] = fields[..] else { return false };
    local.ends_with(&format!(":{port:04X}")) && retransmits.bytes().any(|digit| digit != b'0')
}

fn answer_until_the_end(door: &TcpListener, answers: &(Mode, String)) -> anyhow::Result<()> {
    let input = stdin();
    loop {
        let mut waiting = [PollFd::new(input.as_fd(), PollFlags::POLLIN), PollFd::new(door.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waiting, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("waiting for a request"),
        }
        let [ended, requested] = waiting.map(|it| it.any().unwrap_or(false));
        if ended {
            return Ok(());
        }
        if requested {
            let (client, _) = door.accept().context("accepting a request")?;
            if let Err(error) = answer(client, answers) {
                tracing::debug!(%error, "a request got no answer");
            }
        }
    }
}

fn answer(mut client: TcpStream, (mode, version): &(Mode, String)) -> anyhow::Result<()> {
    client.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut request = Vec::new();
    let mut chunk = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < 16 * chunk.len() {
        match client.read(&mut chunk)? {
            0 => break,
            read => request.extend_from_slice(&chunk[..read]),
        }
    }
    let request = String::from_utf8_lossy(&request);
    let (status, body) = match request.split_ascii_whitespace().nth(1) {
        Some("/proxyMode") => ("200 OK", mode.to_string()),
        Some("/configz") => ("200 OK", configuration(*mode)),
        Some("/metrics") => ("200 OK", metrics(version)?),
        _ => ("404 Not Found", "404 page not found\n".to_owned()),
    };
    write!(client, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())?;
    Ok(())
}

fn configuration(mode: Mode) -> String {
    json!({ "kubeproxy.config.k8s.io": {
        "bindAddress": "0.0.0.0",
        "clusterCIDR": "10.244.0.0/16",
        "detectLocalMode": "ClusterCIDR",
        "iptables": { "localhostNodePorts": true },
        "metricsBindAddress": PROXY_DOOR,
        "mode": mode.name(),
        "nodePortAddresses": if mode == Mode::Nftables { vec!["primary"] } else { Vec::new() },
    } })
    .to_string()
}

fn metrics(version: &str) -> anyhow::Result<String> {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let open = fs::read_dir("/proc/self/fd")?.count();
    Ok(format!(
        "# TYPE kubernetes_build_info gauge\n\
         kubernetes_build_info{{git_version=\"{version}\"}} 1\n\
         # TYPE process_max_fds gauge\n\
         process_max_fds {limit}\n\
         # TYPE process_open_fds gauge\n\
         process_open_fds {open}\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_syn_sent_socket_that_asked_again_retransmits() {
        // Linux 6.18, /proc/net/tcp in a namespace of the demo.
        let line = "   0: 0B0200C0:758A 0C0200C0:192B 02 00000001:00000000 01:0000012C 00000001     0        0 3177 2";
        assert!(retransmits(line, 30090));
        assert!(!retransmits(line, 30091));
        assert!(!retransmits(&line.replace(" 00000001     0", " 00000000     0"), 30090));
        assert!(!retransmits(&line.replace(" 02 ", " 01 "), 30090));
        assert!(!retransmits("  sl  local_address rem_address   st tx_queue", 30090));
    }
}
