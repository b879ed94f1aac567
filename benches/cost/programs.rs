//! Other programs with which people find sockets, and parsers for their output.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    process::{Command, Output},
};

use serde_json::Value;

const RANGE: &str = "sport >= :30000 and sport <= :32767";

/// Lists the listeners in `RANGE`. The kernel applies this filter.
pub fn ss_listeners() -> Command {
    command("ss", &["-Htln", RANGE])
}

pub fn ss_all() -> Command {
    command("ss", &["-Htan", RANGE])
}

/// Without a filter, `ss` reads the same facts about each socket as a scan that reads connections.
pub fn ss_every() -> Command {
    command("ss", &["-Htan"])
}

pub fn ss_holders() -> Command {
    command("ss", &["-Htlnp", RANGE])
}

/// Lists all listeners, because `netstat` of net-tools has no filter for ports.
pub fn netstat_listeners() -> Command {
    command("netstat", &["-tln"])
}

pub fn lsof_holders() -> Command {
    command("lsof", &["-nP", "-iTCP:30000-32767", "-sTCP:LISTEN", "-Fp"])
}

pub fn ss_in(pid: u32) -> Command {
    command("nsenter", &["--net", "--target", &pid.to_string(), "ss", "-Htan"])
}

fn command(program: &str, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words);
    command
}

pub fn is_node_port(socket: &Value) -> bool {
    socket["local_port"].as_u64().is_some_and(|port| (30_000..=32_767).contains(&port))
}

/// In each line, the local address is the first word with the form of an address and port.
pub fn by_ss(output: &Output, listening: bool) -> BTreeSet<SocketAddr> {
    ends(output, |line| (line.starts_with("LISTEN") == listening).then(|| line.split_whitespace().find_map(end))?)
}

/// The listeners on NodePorts in the output of `ss`, each with its first process: `users:(("web",pid=7,fd=3))`.
pub fn holders_by_ss(output: &Output) -> BTreeSet<(SocketAddr, u64)> {
    let text = String::from_utf8_lossy(&output.stdout);
    let holder = |line: &str| {
        let (_, behind) = line.split_once("pid=")?;
        let pid = behind.split(|it: char| !it.is_ascii_digit()).next()?.parse().ok()?;
        Some((line.split_whitespace().find_map(end)?, pid))
    };
    text.lines().filter_map(holder).collect()
}

pub fn pids_by_lsof(output: &Output) -> BTreeSet<u64> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter_map(|line| line.strip_prefix('p')?.parse().ok()).collect()
}

pub fn by_netstat(output: &Output) -> BTreeSet<SocketAddr> {
    let of_range = |end: &SocketAddr| (30_000..=32_767).contains(&end.port());
    ends(output, |line| line.split_whitespace().nth(3).and_then(end).filter(of_range))
}

fn ends(output: &Output, end: impl Fn(&str) -> Option<SocketAddr>) -> BTreeSet<SocketAddr> {
    String::from_utf8_lossy(&output.stdout).lines().filter_map(end).collect()
}

/// Parses `127.0.0.1:80`, `[::]:80`, `*:80` or `:::80`.
fn end(word: &str) -> Option<SocketAddr> {
    let (ip, port) = word.rsplit_once(':')?;
    let ip = match ip.trim_matches(['[', ']']) {
        "*" => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        ip => ip.parse().ok()?,
    };
    Some(SocketAddr::new(ip, port.parse().ok()?))
}
