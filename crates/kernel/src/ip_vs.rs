//! `/proc/net/ip_vs` and `/proc/net/ip_vs_conn`: the kernel's own load balancer
//! (net/netfilter/ipvs/ip_vs_ctl.c `ip_vs_info_seq_show`, ip_vs_conn.c `ip_vs_conn_seq_show`).

use std::{io::BufRead, net::IpAddr, path::Path};

use super::root::{Root, each_line, open};
use portreeve_facts::{Gap, IpVsConnection, MasqueradedFlow, PortSet, Protocol, Source, VirtualServer, text};

const CONNECTIONS: usize = 4096;

/// Reads every virtual server.
///
/// # Errors
/// A `Gap`. [`portreeve_facts::Why::NotSupported`] if the file is absent, because the kernel has not loaded IPVS.
pub(crate) fn servers(root: &Root) -> Result<Vec<VirtualServer>, Gap> {
    let path = root.net("ip_vs");
    parse_servers(&path, open(Source::IpVs, &path)?)
}

/// Reads connections whose virtual server has one of `ports`. Keeps the first 4,096 connections. Also keeps a
/// connection if IPVS treated the answer of a flow as a new connection. `unanswered` has the flow, and the flow's
/// server is the client of the connection.
///
/// # Errors
/// As [`servers`].
pub(crate) fn connections(
    root: &Root,
    ports: &PortSet,
    unanswered: &[MasqueradedFlow],
) -> Result<Vec<IpVsConnection>, Gap> {
    let path = root.net("ip_vs_conn");
    parse_connections(&path, open(Source::IpVsConn, &path)?, ports, unanswered)
}

/// `/proc/net/ip_vs` (net/netfilter/ipvs/ip_vs_ctl.c): the virtual servers.
///
/// # Errors
/// A `Gap` with the number of the first line that has a wrong form.
pub fn parse_servers(name: &Path, reader: impl BufRead) -> Result<Vec<VirtualServer>, Gap> {
    let mut servers: Vec<VirtualServer> = Vec::new();
    // Whether the current entry is a virtual server. Firewall marks and protocols without ports are left out, and also
    // the lines of their real servers.
    let mut counted = false;
    each_line(Source::IpVs, name, "PROTOCOL ADDRESS:PORT SCHEDULER", reader, |line| {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            None | Some("IP" | "Prot") => {}
            Some("->") => {
                if let Some(server) = servers.last_mut().filter(|_| counted) {
                    server.real_servers += 1;
                }
            }
            Some(word) => {
                let protocol = protocol(word);
                counted = protocol.is_some();
                if let Some(protocol) = protocol {
                    let (ip, port) = words.next()?.rsplit_once(':')?;
                    let (ip, port) = (address(ip)?, self::port(port)?);
                    servers.push(VirtualServer { protocol, ip, port, real_servers: 0 });
                }
            }
        }
        Some(())
    })?;
    Ok(servers)
}

/// `/proc/net/ip_vs_conn` (net/netfilter/ipvs/ip_vs_conn.c): the connections at these ports.
///
/// # Errors
/// A `Gap` with the number of the first line that has a wrong form.
pub fn parse_connections(
    name: &Path,
    reader: impl BufRead,
    ports: &PortSet,
    unanswered: &[MasqueradedFlow],
) -> Result<Vec<IpVsConnection>, Gap> {
    let mut connections = Vec::new();
    let wanted = "PROTOCOL FROM PORT TO PORT DESTINATION PORT STATE EXPIRES";
    each_line(Source::IpVsConn, name, wanted, reader, |line| {
        let mut words = line.split_ascii_whitespace();
        let Some(protocol) = words.next().and_then(protocol) else { return Some(()) };
        let mut end = || Some((address(words.next()?)?, port(words.next()?)?));
        let (from, to, destination) = (end()?, end()?, end()?);
        let state = words.next()?;
        let took = || unanswered.iter().any(|it| (it.protocol, it.server, it.translated) == (protocol, from, to));
        if ports.contains(to.1) && (connections.len() < CONNECTIONS || took()) {
            connections.push(IpVsConnection { protocol, from, to, destination, state: text::clean(state, 16) });
        }
        Some(())
    })?;
    Ok(connections)
}

/// `None` for firewall marks (`FWM`), `AH` and `ESP`, and for connection templates, which have the protocol `IP`.
fn protocol(word: &str) -> Option<Protocol> {
    [("TCP", Protocol::Tcp), ("UDP", Protocol::Udp), ("SCTP", Protocol::Sctp)]
        .into_iter()
        .find_map(|(name, protocol)| (name == word).then_some(protocol))
}

/// An address as IPVS writes it: `0AF40001`, or `2001:0db8:...:0001` with or without brackets.
fn address(word: &str) -> Option<IpAddr> {
    if word.contains(':') {
        let bare = word.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(word);
        bare.parse().ok().filter(IpAddr::is_ipv6)
    } else {
        hexadecimal(word, 8).map(|bits| IpAddr::V4(bits.into()))
    }
}

fn port(word: &str) -> Option<u16> {
    hexadecimal(word, 4).and_then(|number| u16::try_from(number).ok())
}

/// A sign or a missing digit means that the line is torn.
fn hexadecimal(word: &str, digits: usize) -> Option<u32> {
    (word.len() == digits && !word.starts_with('+')).then(|| u32::from_str_radix(word, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{PortRange, Why};
    use proptest::prelude::*;

    // Linux 6.1 with kube-proxy 1.36.3 in ipvs mode: `cat /proc/net/ip_vs`. The last two entries, a firewall mark and
    // an IPv6 server, are written by hand in the format of ip_vs_ctl.c.
    const SERVERS: &str = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0AF40001:7580 rr 
  -> 0AF40002:1F90      Masq    1      0          1
  -> 0AF40003:1F90      Masq    1      0          0
UDP  0A600A0A:0035 rr 
FWM  00000001 rr 
  -> 0AF40003:0000      Masq    1      0          0
TCP  [2001:0db8:0000:0000:0000:0000:0000:0001]:7580 rr
  -> [2001:0db8:0000:0000:0000:0000:0000:0002]:1F90      Masq    1      0          0
";

    // Linux 6.1: `cat /proc/net/ip_vs_conn` during a hanging connection of the node itself, from 10.244.0.1:30080. The
    // last line is written by hand in the format of ip_vs_conn.c.
    const CONNECTIONS_SEEN: &str = "\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP 0AF40002 1F90 0AF40001 7580 0AF40002 1F90 SYN_RECV         55
UDP 0AF40002 A2C1 0A600A0A 0035 0AF40005 0035 UDP             298
IP  0AF40002 0000 0AF40001 7580 0AF40002 1F90 NONE            100
TCP 2001:0db8:0000:0000:0000:0000:0000:0009 C350 2001:0db8:0000:0000:0000:0000:0000:0001 7580 \
2001:0db8:0000:0000:0000:0000:0000:0002 1F90 ESTABLISHED     899
";

    fn server(protocol: Protocol, ip: &str, port: u16, real_servers: u32) -> VirtualServer {
        VirtualServer { protocol, ip: ip.parse().unwrap(), port, real_servers }
    }

    #[test]
    fn virtual_servers_of_both_families_are_read_and_firewall_marks_are_not_ports() {
        assert_eq!(
            parse_servers(Path::new("ip_vs"), SERVERS.as_bytes()).unwrap(),
            [
                server(Protocol::Tcp, "10.244.0.1", 30080, 2),
                server(Protocol::Udp, "10.96.10.10", 53, 0),
                server(Protocol::Tcp, "2001:db8::1", 30080, 1),
            ]
        );
    }

    #[test]
    fn only_connections_to_wanted_ports_are_read() {
        let wanted = PortRange::DEFAULT_NODE_PORTS.into();
        let seen = parse_connections(Path::new("ip_vs_conn"), CONNECTIONS_SEEN.as_bytes(), &wanted, &[]).unwrap();
        assert_eq!(seen.len(), 2);
        assert_eq!(
            seen[0],
            IpVsConnection {
                protocol: Protocol::Tcp,
                from: ("10.244.0.2".parse().unwrap(), 8080),
                to: ("10.244.0.1".parse().unwrap(), 30080),
                destination: ("10.244.0.2".parse().unwrap(), 8080),
                state: "SYN_RECV".to_owned(),
            }
        );
        assert_eq!(seen[1].from, ("2001:db8::9".parse().unwrap(), 50000));
    }

    #[test]
    fn at_most_4096_connections_are_kept_and_all_that_took_an_answer() {
        let mut lines = "TCP 0AF40002 1F90 0AF40001 7580 0AF40002 1F90 SYN_RECV         55\n".repeat(100_000);
        lines.push_str("TCP C6336401 01BB 0AF40001 7580 0AF40002 1F90 SYN_RECV         55\n");
        let wanted = PortRange::DEFAULT_NODE_PORTS.into();
        let read = |unanswered: &[MasqueradedFlow]| {
            parse_connections(Path::new("c"), lines.as_bytes(), &wanted, unanswered).unwrap()
        };
        assert_eq!(read(&[]).len(), CONNECTIONS);
        let server = ("198.51.100.1".parse().unwrap(), 443);
        let unanswered = MasqueradedFlow {
            protocol: Protocol::Tcp,
            source: ("10.244.0.5".parse().unwrap(), 1024),
            translated: ("10.244.0.1".parse().unwrap(), 30080),
            server,
        };
        let read = read(&[unanswered]);
        assert_eq!((read.len(), read[CONNECTIONS].from), (CONNECTIONS + 1, server));
    }

    #[test]
    fn a_torn_line_names_its_file_and_number() {
        let torn = &SERVERS[..SERVERS.find("7580").unwrap() + 2];
        let gap = parse_servers(Path::new("/proc/net/ip_vs"), torn.as_bytes()).unwrap_err();
        assert_eq!(gap.why, Why::Malformed);
        assert!(gap.detail.starts_with("/proc/net/ip_vs line 4: wanted"), "{}", gap.detail);
    }

    #[test]
    fn without_the_module_ipvs_is_not_supported_and_not_empty() {
        let tree = tempfile::tempdir().unwrap();
        let root = Root::at(tree.path().into());
        assert_eq!(servers(&root).unwrap_err().why, Why::NotSupported);
        assert_eq!(connections(&root, &PortSet::default(), &[]).unwrap_err().why, Why::NotSupported);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "((TCP|UDP|->|FWM|[0-9A-Fx\\[\\]:]{0,12}| ){0,9}\n){0,4}") {
            let name = Path::new("ip_vs");
            let ports = PortRange { first: 0, last: u16::MAX }.into();
            if let Ok(servers) = parse_servers(name, text.as_bytes()) {
                prop_assert!(servers.len() <= text.lines().count());
            }
            if let Ok(connections) = parse_connections(name, text.as_bytes(), &ports, &[]) {
                prop_assert!(connections.len() <= text.lines().count());
            }
        }
    }
}
