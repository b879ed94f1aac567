//! Who answers a new connection to a NodePort on one of this node's addresses: the table behind the verdicts.
//!
//! Measured with kube-proxy 1.36.3 in each mode; `docs/how-nodeports-work.md` shows it as a table.

use std::net::IpAddr;

use super::{
    endpoints::Backing,
    setup::{Local, Setup, is_link_local},
};
use crate::{
    facts::{Family, Mode, Protocol},
    findings::Vantage,
};

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    /// The process that listens there.
    Listener,
    /// A pod of the Service.
    Pod,
    /// Nobody: connection refused. The kernel rate-limits the ICMP error, so some clients see a time-out.
    Refused,
    /// Nobody: no answer at all.
    TimedOut,
    /// Nobody: a packet between link-local addresses is not forwarded, so one that was translated leads nowhere. Some
    /// programs say *no route to host*, some time out.
    Nowhere,
}

/// Whose word counts where several claim one address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// The Service that has the address as external IP.
    ExternalIp,
    /// The Service that has the port as nodePort.
    NodePort,
    /// The pod that has it as hostPort.
    HostPort,
}

impl Fate {
    /// For evidence: "... are answered by".
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Listener => "reach the listener",
            Self::Pod => "are answered by a pod of the Service",
            Self::Refused => "are refused",
            Self::TimedOut => "time out",
            Self::Nowhere => "lead nowhere, as nothing forwards link-local addresses",
        }
    }

    /// What becomes of it over a protocol: proxies refuse with an ICMP error, which an association of SCTP outlasts, asking
    /// again until it gives up (docs/how-nodeports-work.md: seen in ipvs mode).
    pub(super) fn over(self, protocol: Protocol) -> Self {
        match (self, protocol) {
            (Self::Refused, Protocol::Sctp) => Self::TimedOut,
            (fate, _) => fate,
        }
    }
}

impl Setup {
    /// Whether some Service, whatever its endpoints, would take an address's new connections.
    pub(super) fn may_take(&self, address: Local) -> bool {
        Backing::ALL.into_iter().any(|backing| self.fate(address, Vantage::Remote, backing) != Fate::Listener)
    }

    /// Who answers a client at `vantage` that connects to `address` and the NodePort.
    pub(super) fn fate(&self, address: Local, vantage: Vantage, backing: Backing) -> Fate {
        match (self.fate_of_routable(address, vantage, backing), vantage) {
            (Fate::Pod, _) | (Fate::Refused | Fate::TimedOut, Vantage::Node) if is_link_local(address.ip) => {
                Fate::Nowhere
            }
            (fate, _) => fate,
        }
    }

    /// The same for an address that a Service claims for itself: it is taken whatever `nodePortAddresses` says.
    pub(super) fn fate_of_claimed(&self, address: Local, vantage: Vantage, backing: Backing) -> Fate {
        self.fate_where(true, address, vantage, backing)
    }

    /// Whose word counts where an external IP and a NodePort claim the same address and port: the one who redirects
    /// the connection, or refuses what nobody redirects. Nothing where it may be either.
    pub(super) fn external_ip_or_node_port(&self, external_ip: Fate, node_port: Fate) -> Option<First> {
        match (self.mode, external_ip, node_port) {
            // One virtual server, which has the endpoints of whoever was programmed last.
            (Mode::Ipvs | Mode::Cilium, ..) => None,
            (_, Fate::Pod, _) => Some(First::ExternalIp),
            // A verdict map sends it to a chain that it does not come back from.
            (Mode::Nftables, Fate::TimedOut, Fate::Pod | Fate::Nowhere) => Some(First::ExternalIp),
            (_, _, Fate::Pod | Fate::Nowhere) => Some(First::NodePort),
            (_, _, Fate::Listener) => Some(First::ExternalIp),
            // kube-proxy writes the rules that refuse and those that drop in no order.
            (Mode::Iptables, ..) if external_ip != node_port => None,
            _ => Some(First::NodePort),
        }
    }

    /// The same of a NodePort and a hostPort. portmap appends its rules and kube-proxy prepends, IPVS comes after both;
    /// of nftables chains with one priority the one that was made last is asked first.
    pub(super) fn node_port_or_host_port(&self, node_port: Fate) -> Option<First> {
        match (self.mode, node_port) {
            // Cilium ignores a hostPort in the NodePort range.
            (Mode::Cilium, _) => Some(First::NodePort),
            (Mode::Ipvs, _) | (_, Fate::Listener | Fate::Refused | Fate::TimedOut) => Some(First::HostPort),
            (Mode::Iptables, _) => Some(First::NodePort),
            (Mode::Nftables, _) => None,
        }
    }

    fn fate_of_routable(&self, address: Local, vantage: Vantage, backing: Backing) -> Fate {
        self.fate_where(self.captures(address), address, vantage, backing)
    }

    fn fate_where(&self, captured: bool, address: Local, vantage: Vantage, backing: Backing) -> Fate {
        match self.fate_of_forwarded(captured, address, vantage, backing) {
            Fate::Pod if self.mode == Mode::Iptables && self.is_stuck(address.ip) => Fate::TimedOut,
            fate => fate,
        }
    }

    /// Whether nothing that leaves an address can be sent to a pod: `::1`, and 127.0.0.1 unless `route_localnet` is on.
    fn is_stuck(&self, address: IpAddr) -> bool {
        address.is_loopback() && (address.is_ipv6() || !self.localnet)
    }

    fn fate_of_forwarded(&self, captured: bool, address: Local, vantage: Vantage, backing: Backing) -> Fate {
        match (self.mode, backing, captured) {
            (_, Backing::Ready, true) => Fate::Pod,
            (_, Backing::Ready, false) => Fate::Listener,
            // The filter rules of iptables mode look at neither nodePortAddresses nor localhostNodePorts
            // (kubernetes pkg/proxy/iptables/proxier.go, KUBE-EXTERNAL-SERVICES).
            (Mode::Iptables, Backing::Empty, _) => Fate::Refused,
            (Mode::Iptables, Backing::Elsewhere, false) => Fate::TimedOut,
            (_, _, false) => Fate::Listener,
            (_, Backing::Empty, true) => Fate::Refused,
            // ipvs falls back to the endpoints of other nodes (kubernetes pkg/proxy/ipvs/proxier.go, syncEndpoint).
            (Mode::Ipvs, Backing::Elsewhere, true) => Fate::Pod,
            (_, Backing::Elsewhere, true) => match vantage {
                Vantage::Remote => Fate::TimedOut,
                Vantage::Pods if !self.detects_pods(Family::of(address.ip)) => Fate::TimedOut,
                Vantage::Node | Vantage::Loopback | Vantage::Pods => Fate::Pod,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        facts::{
            Reading, Snapshot,
            healthy::{PRIMARY, SECOND, ip, seen},
        },
        rules::{Limits, setup::Setups},
    };

    /// The rows of the behaviour matrix: mode, `nodePortAddresses`, `localhostNodePorts`; then who answers on the
    /// primary, the second and both loopback addresses with usable, no, and only remote endpoints:
    /// L the listener, P a pod, R refused, T timed out; remote and node for the non-loopback ones.
    const MATRIX: &[(Mode, &[&str], bool, [&str; 3])] = &[
        (Mode::Iptables, &[], true, ["PP PP P L", "RR RR R R", "TP TP P T"]),
        (Mode::Iptables, &[], false, ["PP PP L L", "RR RR R R", "TP TP T T"]),
        (Mode::Iptables, &["primary"], true, ["PP LL L L", "RR RR R R", "TP TT T T"]),
        (Mode::Nftables, &[], true, ["PP LL L L", "RR LL L L", "TP LL L L"]),
        (Mode::Nftables, &["0.0.0.0/0", "::/0"], true, ["PP PP L L", "RR RR L L", "TP TP L L"]),
        (Mode::Ipvs, &[], true, ["PP PP L L", "RR RR L L", "PP PP L L"]),
        (Mode::Ipvs, &["192.0.2.2/32", "2001:db8::2/128"], true, ["LL PP L L", "LL RR L L", "LL PP L L"]),
    ];

    #[test]
    fn the_matrix_holds_in_both_families() {
        for (mode, addresses, localhost, rows) in MATRIX {
            let world = Snapshot::healthy().with_mode(*mode).with_config(|config| {
                config.node_port_addresses = addresses.iter().map(|it| (*it).to_owned()).collect();
                config.localhost_node_ports = Some(*localhost);
            });
            let setups = Setups::of(&world, world.kernel.interfaces.seen().expect("interfaces"), &Limits::default());
            let [setup] = &setups.candidates[..] else { panic!("one candidate, not {:?}", setups.candidates) };
            for (row, backing) in rows.iter().zip(Backing::ALL) {
                for family in [0, 1] {
                    let ask = |address: &str, vantage| {
                        let fate = setup.fate(Local { ip: ip(address), vrf: false }, vantage, backing);
                        ["L", "P", "R", "T", "N"][fate as usize]
                    };
                    let pair = |address| [Vantage::Remote, Vantage::Node].map(|vantage| ask(address, vantage)).concat();
                    let told = format!(
                        "{} {} {} {}",
                        pair(PRIMARY[family]),
                        pair(SECOND[family]),
                        ask("127.0.0.1", Vantage::Loopback),
                        ask("::1", Vantage::Loopback),
                    );
                    assert_eq!(&told, row, "{mode} {addresses:?} localhost={localhost} {backing:?}");
                }
            }
        }
    }

    #[test]
    fn what_leaves_loopback_for_a_pod_needs_route_localnet_and_ipv4() {
        let mut world = Snapshot::healthy();
        let fates = |world: &Snapshot| {
            let interfaces = world.kernel.interfaces.seen().expect("interfaces");
            let setup = &Setups::of(world, interfaces, &Limits::default()).candidates[0];
            ["127.0.0.1", "::1", PRIMARY[0]]
                .map(|address| setup.fate(Local { ip: ip(address), vrf: false }, Vantage::Loopback, Backing::Ready))
        };
        assert_eq!(fates(&world), [Fate::Pod, Fate::Listener, Fate::Pod]);
        world.kernel.sysctls.route_localnet = Reading::Seen(false);
        assert_eq!(fates(&world), [Fate::TimedOut, Fate::Listener, Fate::Pod]);
        for (version, of_six) in [("v1.25.16", Fate::TimedOut), ("v1.26.0", Fate::Listener), ("v2.0.0", Fate::Listener)]
        {
            seen(&mut world.kernel.proxy.metrics).version = Some(version.to_owned());
            assert_eq!(fates(&world)[1], of_six, "{version}");
        }
        assert_eq!(fates(&world.with_mode(Mode::Nftables))[..2], [Fate::Listener; 2]);
    }

    #[test]
    fn rules_that_refuse_and_rules_that_drop_are_written_in_no_order_by_iptables_mode_alone() {
        let first = |mode, external_ip| {
            let world = Snapshot::healthy().with_mode(mode);
            let interfaces = world.kernel.interfaces.seen().expect("interfaces");
            let setup = &Setups::of(&world, interfaces, &Limits::default()).candidates[0];
            setup.external_ip_or_node_port(external_ip, Fate::Refused)
        };
        assert_eq!(first(Mode::Iptables, Fate::Refused), Some(First::NodePort));
        assert_eq!(first(Mode::Iptables, Fate::TimedOut), None);
        assert_eq!(first(Mode::Nftables, Fate::TimedOut), Some(First::NodePort));
    }

    #[test]
    fn an_association_does_not_heed_that_it_is_refused() {
        assert_eq!(Fate::Refused.over(Protocol::Sctp), Fate::TimedOut);
        assert_eq!(Fate::Refused.over(Protocol::Udp), Fate::Refused);
        assert_eq!(Fate::Pod.over(Protocol::Sctp), Fate::Pod);
    }

    #[test]
    fn what_is_translated_at_a_link_local_address_leads_nowhere() {
        let world = Snapshot::healthy();
        let interfaces = world.kernel.interfaces.seen().expect("interfaces");
        let setup = &Setups::of(&world, interfaces, &Limits::default()).candidates[0];
        let address = Local { ip: ip("fe80::1"), vrf: false };
        assert_eq!(setup.fate(address, Vantage::Remote, Backing::Ready), Fate::Nowhere);
        assert_eq!(setup.fate(address, Vantage::Remote, Backing::Empty), Fate::Refused);
        assert_eq!(setup.fate(address, Vantage::Node, Backing::Empty), Fate::Nowhere);
    }

    #[test]
    fn without_a_local_detector_pods_time_out_like_outsiders() {
        let world = Snapshot::healthy().with_config(|config| config.cluster_cidr = None);
        let setups = Setups::of(&world, world.kernel.interfaces.seen().expect("interfaces"), &Limits::default());
        let address = Local { ip: ip(PRIMARY[0]), vrf: false };
        assert_eq!(setups.candidates[0].fate(address, Vantage::Pods, Backing::Elsewhere), Fate::TimedOut);
        assert_eq!(setups.candidates[0].fate(address, Vantage::Node, Backing::Elsewhere), Fate::Pod);
    }
}
