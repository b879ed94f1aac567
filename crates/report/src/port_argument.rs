//! The port argument of `owner`.

use std::{fmt, str::FromStr};

use crate::PortOwner;
use portreeve_dataplane::{Beside, BesideKind, Ownership, owner, owner_in_pod, pod_of_name};
use portreeve_facts::{Gap, Protocol, Snapshot, Source, Why};
use portreeve_rules::{FreePort, Limits, pod_port_advice, port_advice};

/// A port, with or without a protocol: `30080/udp`, or `30080` for all protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortArgument {
    /// The port.
    pub number: u16,
    protocol: Option<Protocol>,
}

impl FromStr for PortArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (port, protocol) = text.split_once('/').map_or((text, None), |(port, protocol)| (port, Some(protocol)));
        let wanted = || format!("{text:?} is not a port from 1 to 65535, like 30080 or 30080/udp");
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(wanted)?;
        let protocol = match protocol {
            None => None,
            Some(name) => {
                let found = Protocol::ALL.into_iter().find(|it| it.to_string().eq_ignore_ascii_case(name));
                Some(found.ok_or_else(wanted)?)
            }
        };
        Ok(Self { number: port, protocol })
    }
}

impl fmt::Display for PortArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            Some(protocol) => write!(f, "{}/{protocol}", self.number),
            None => write!(f, "{}", self.number),
        }
    }
}

impl PortArgument {
    /// Whether the user wants to know about this protocol.
    pub fn is_about(self, protocol: Protocol) -> bool {
        self.protocol.is_none_or(|requested| requested == protocol)
    }

    /// The owners of the port in a snapshot, and the advice. `refused` is true if the API server refused this port for
    /// a Service. `free` is a free port. A protocol is left out if the port has no claimants and no other users with
    /// this protocol. A possible user does not count if the list of an earlier protocol has the same user. If all
    /// protocols would be left out, the first protocol is listed. If the answer for a protocol is unknown, the missing
    /// input is listed as unread.
    ///
    /// # Errors
    /// Fails if the answer is unknown for every protocol, because a fact is missing.
    pub fn owner(self, snapshot: &Snapshot, refused: bool, free: Option<&FreePort>) -> Result<PortOwner, Gap> {
        let protocols = self.protocol.map_or(Protocol::ALL.to_vec(), |it| vec![it]);
        let limits = Limits::default();
        let round = limits.round(snapshot, None);
        let all = protocols.into_iter().map(|protocol| owner(&round, protocol, self.number));
        let (known, unknown): (Vec<_>, Vec<_>) = all.partition(Result::is_ok);
        let mut all: Vec<Ownership> = known.into_iter().flatten().collect();
        let unknown: Vec<Gap> = unknown.into_iter().filter_map(Result::err).collect();
        if let (true, Some(gap)) = (all.is_empty(), unknown.first()) {
            return Err(gap.clone());
        }
        all.iter_mut().for_each(|it| it.unread.extend_from_slice(&unknown));
        let mut claimed: Vec<Ownership> = Vec::new();
        for one in &all {
            // Possible users are often equal for all protocols, so the report lists each possible user once.
            let is_said =
                |it: &Beside| it.kind == BesideKind::Possible && claimed.iter().any(|other| other.beside.contains(it));
            if !one.claimants.is_empty() || !one.beside.iter().all(is_said) {
                claimed.push(one.clone());
            }
        }
        let owned = if claimed.is_empty() { all.into_iter().take(1).collect() } else { claimed };
        let advice = port_advice(snapshot, &owned, &limits, (refused, free));
        Ok(PortOwner { looked_at: snapshot.at, version: snapshot.version.clone(), owned, advice, pod: None })
    }

    /// The owners of the port in the network of the pod `namespace/name`, for TCP and UDP, and the advice.
    /// `was_scanned_for` is true if the scan read this port of this pod.
    ///
    /// # Errors
    /// The errors of [`owner_in_pod`]. Also when the protocol is SCTP, which is not read in pods.
    pub fn owner_in_pod(self, snapshot: &Snapshot, pod: &str, was_scanned_for: bool) -> Result<PortOwner, Gap> {
        let protocols = [Protocol::Tcp, Protocol::Udp].into_iter().filter(|it| self.is_about(*it));
        let limits = Limits::default();
        let round = limits.round(snapshot, None);
        let all = protocols.map(|protocol| owner_in_pod(&round, pod, (protocol, self.number), was_scanned_for));
        let all: Vec<Ownership> = all.collect::<Result<_, _>>()?;
        if all.is_empty() {
            let detail = "SCTP sockets are not read in a pod's network";
            return Err(Gap::new(Source::PodNamespaces, Why::NotSupported, detail));
        }
        let claimed: Vec<Ownership> =
            all.iter().filter(|it| !it.claimants.is_empty() || !it.beside.is_empty()).cloned().collect();
        let owned = if claimed.is_empty() { all } else { claimed };
        let advice = pod_port_advice(snapshot, pod_of_name(snapshot, pod)?, &owned, &limits);
        let (looked_at, version) = (snapshot.at, snapshot.version.clone());
        Ok(PortOwner { looked_at, version, owned, advice, pod: Some(pod.to_owned()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CheckResult, NodeOwner, Style, write_owner, write_owner_json};
    use portreeve_facts::{
        ContainerPort, Netfilter, PodNamespace, Reading, Socket,
        healthy::{gap, seen},
    };

    #[test]
    fn a_port_may_name_its_protocol() {
        assert_eq!("30080".parse(), Ok(PortArgument { number: 30080, protocol: None }));
        assert_eq!("53/UDP".parse(), Ok(PortArgument { number: 53, protocol: Some(Protocol::Udp) }));
        for wrong in ["", "0", "65536", "http", "80/quic", "80/"] {
            assert!(wrong.parse::<PortArgument>().is_err(), "{wrong:?}");
        }
    }

    fn printed(owner: &PortOwner) -> String {
        let style = Style { width: usize::from(u16::MAX), colour: false, program: String::new() };
        let mut text = Vec::new();
        write_owner(owner, &style, &mut text).expect("memory");
        String::from_utf8(text).expect("UTF-8")
    }

    const PORT: PortArgument = PortArgument { number: 30080, protocol: None };

    #[test]
    fn redirections_that_were_not_read_are_one_line_and_only_a_failure_makes_the_result_unknown() {
        let note = |world: &Snapshot| {
            let owner = PORT.owner(world, false, None).expect("it is known");
            let text = printed(&owner);
            let lines = text.lines().filter(|it| it.contains("redirections of hostPorts were not read")).count();
            let result = owner.result();
            let is_assumed = text.contains("assumes no leftover redirection");
            assert_eq!(is_assumed, lines == 1 && result == CheckResult::Clear, "{text}");
            let node = NodeOwner { node: "n1".to_owned(), owner: Ok(owner) };
            let mut document = Vec::new();
            write_owner_json(30080, &[node], &mut document).expect("memory");
            let document = String::from_utf8(document).expect("UTF-8");
            assert_eq!(document.contains(r#""source": "netfilter""#), lines == 1, "{document}");
            (lines, text.contains("connections are refused"), result)
        };
        for mut world in [Snapshot::healthy(), Snapshot::healthy().pod("edge", |pod| pod.host_port(80, 8080))] {
            world.kernel.netfilter = Reading::Seen(Netfilter::default());
            assert_eq!(note(&world), (0, true, CheckResult::Clear));
            for why in [Why::NotPermitted, Why::NotSupported] {
                world.kernel.netfilter = gap(Source::Netfilter, why);
                assert_eq!(note(&world), (1, true, CheckResult::Clear), "{why:?}");
            }
            for why in [Why::Unreachable, Why::TimedOut, Why::Torn, Why::Stale, Why::Malformed, Why::TooMuch] {
                world.kernel.netfilter = gap(Source::Netfilter, why);
                assert_eq!(note(&world), (1, false, CheckResult::NotChecked), "{why:?}");
            }
        }
    }

    #[test]
    fn if_no_proxy_answers_the_text_and_the_document_name_the_assumption() {
        let note = "no kube-proxy answered, so Portreeve assumes that a proxy serves Services on this node: ";
        let of = |world: &Snapshot| {
            let owner = PORT.owner(world, false, None).expect("it is known");
            let text = printed(&owner);
            let node = NodeOwner { node: "n1".to_owned(), owner: Ok(owner) };
            let mut document = Vec::new();
            write_owner_json(30080, &[node], &mut document).expect("memory");
            let document = String::from_utf8(document).expect("UTF-8");
            assert_eq!(document.contains(r#""source": "proxy-mode""#), text.contains(note), "{text}{document}");
            text
        };
        let web = || Snapshot::healthy().service("web", |it| it.node_port(30080));
        assert!(!of(&web()).contains(note));
        let silent = of(&web().without_proxy());
        assert_eq!(silent.matches(note).count(), 1, "{silent}");
        assert!(silent.contains("not known: the proxy mode was not read: "), "{silent}");
        let unclaimed = of(&Snapshot::healthy().listens("0.0.0.0:30080").without_proxy());
        assert!(!unclaimed.contains(note), "no Service has the port: {unclaimed}");
    }

    #[test]
    fn link_local_addresses_are_counted_in_the_text() {
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080)).address("veth1", "fe80::1");
        let text = |world: &Snapshot| printed(&PORT.owner(world, false, None).expect("it is known"));
        let one = text(&world);
        assert!(one.contains("to fe80::1: ") && !one.contains("link-local addresses"), "{one}");
        let two = text(&world.address("veth2", "fe80::2"));
        assert!(two.contains("to 2 link-local addresses: ") && !two.contains("to fe80::"), "{two}");
    }

    #[test]
    fn a_service_of_another_proxy_has_the_port_and_is_not_served_here() {
        let other = |service: &mut portreeve_facts::Service| service.proxy_name = Some("other".to_owned());
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080).with(other));
        let text = printed(&PORT.owner(&world, false, None).expect("it is known"));
        assert!(!text.contains("no Service, pod or process has it"), "{text}");
        assert!(
            text.contains("-  Service default/web at its nodePort") && text.contains("does not serve the Service"),
            "{text}"
        );
    }

    #[test]
    fn a_port_that_was_not_searched_is_said_once_and_a_port_that_is_needed_is_not_called_unused() {
        let unsearched = |mut world: Snapshot| {
            let clients = seen(&mut world.kernel.clients);
            (clients.searched, clients.bound_searched) = Default::default();
            let text = printed(&PORT.owner(&world, false, None).expect("it is known"));
            assert_eq!(text.matches("perhaps an outgoing connection").count(), 1, "{text}");
            text
        };
        let free = unsearched(Snapshot::healthy());
        let unless = "are refused, unless another program redirects them";
        assert!(free.contains(&format!("no server has it: new connections {unless}")), "{free}");
        assert!(!free.contains("30080/udp") && !free.contains("30080/sctp"), "{free}");
        let taken = unsearched(Snapshot::healthy().listens("0.0.0.0:30080"));
        assert!(taken.contains("30080/udp") && !taken.contains("30080/sctp"), "{taken}");
        let port = ContainerPort { port: 30080, host_port: None, host_ip: None, protocol: Protocol::Tcp };
        let needed = Snapshot::healthy().pod("edge", |pod| (pod.host_network, pod.ports) = (true, vec![port]));
        let needed = printed(&PORT.owner(&needed, false, None).expect("it is known"));
        assert!(needed.contains("no server has it") && needed.contains("-  hostNetwork pod default/edge"), "{needed}");
        let unused = printed(&PORT.owner(&Snapshot::healthy(), false, None).expect("it is known"));
        assert!(unused.contains(&format!("process has it: connections {unless}")), "{unused}");
    }

    #[test]
    fn without_the_sockets_of_udp_the_owner_over_tcp_is_known_and_udp_is_in_doubt() {
        let owner = |mut world: Snapshot, port: &str| {
            world.kernel.no_udp = Some(Gap::new(Source::Listeners, Why::Torn, "changed at every try"));
            port.parse::<PortArgument>().expect("a port").owner(&world, false, None)
        };
        let web = || Snapshot::healthy().service("web", |it| it.node_port(30080));
        let known = owner(web(), "30080").expect("TCP is known");
        let text = printed(&known);
        assert!(text.contains("1  node-port, Service default/web"), "{text}");
        assert!(text.contains("so the owner of 30080/udp is not known: changed at every try"), "{text}");
        assert_eq!(known.result(), CheckResult::NotChecked);
        assert!(!printed(&owner(Snapshot::healthy(), "30080").expect("TCP is known")).contains("are refused"));
        assert_eq!(owner(web(), "30080/tcp").expect("it is known").result(), CheckResult::Clear);
        assert_eq!(owner(web(), "30080/udp").map(|_| ()).map_err(|gap| gap.why), Err(Why::Torn));
    }

    #[test]
    fn in_a_pod_a_port_has_listeners_or_connections_and_no_answers_and_sctp_is_not_looked_for() {
        let mut world = Snapshot::healthy().listens("0.0.0.0:30080").pod("edge", |_| ());
        let socket = seen(&mut world.kernel.listeners).pop().expect("a listener");
        let own = PodNamespace::with_use("uid-edge", Err(Gap::new(Source::PodNamespaces, Why::Torn, "of no interest")));
        let with = |sockets: Vec<Socket>| {
            let mut world = world.clone();
            let own = PodNamespace { needed: Reading::Seen(sockets), ..own.clone() };
            seen(&mut world.kernel.pod_namespaces).push(own);
            PORT.owner_in_pod(&world, "default/edge", true).map(|owner| printed(&owner))
        };
        let nobody = with(Vec::new()).expect("it is known");
        assert_eq!(nobody.matches("no process listens on this port").count(), 2, "over TCP and UDP: {nobody}");
        let text = with(vec![socket]).expect("it is known");
        assert!(text.starts_with("30080/tcp in the network of pod default/edge\n"), "{text}");
        assert!(text.contains("1  listener, process nginx") && !text.contains("who answers"), "{text}");
        let sctp = "30080/sctp".parse::<PortArgument>().expect("a port");
        assert_eq!(sctp.owner_in_pod(&world, "default/edge", true).expect_err("not read").why, Why::NotSupported);
    }
}
