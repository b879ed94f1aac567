//! Ports that servers of this node need, except NodePorts: ports that pods declare, ports of the node's daemons, and
//! ports of tunnels.

use std::collections::BTreeMap;

use super::{Round, node_ports::counted};
use crate::findings::Evidence;
use portreeve_dataplane::{ByPort, Need, Role, usual_ports};
use portreeve_facts::{Gap, PortRange, PortSet, Protocol, Source, Unread, Why};

#[derive(Debug, Default)]
pub(super) struct NeededPorts {
    /// Ports that pods of this node declare, each with the name of one such pod.
    declared: BTreeMap<(u16, Protocol), String>,
    /// Usual ports on which daemons listen now, the ports of kube-proxy, and ports of tunnels.
    daemons: PortSet,
    /// Ports of WireGuard devices in the default ephemeral port range. No finding reports these ports: they are the
    /// default ports of network plugins, so a finding would be about every node of such a plugin.
    wireguard: PortSet,
    /// Ports of pods that may be on this node, because this node's name is unknown.
    perhaps: PortSet,
    /// An unread input that may need ports that findings report.
    unread: Option<Gap>,
    /// An unread input that may need only ports of `wireguard`.
    unread_wireguard: Option<Gap>,
}

impl NeededPorts {
    /// The ports that servers need, among `choosable`: the ports that the kernel may give to outgoing connections.
    pub(super) fn among(choosable: &PortSet, round: &Round<'_>) -> Self {
        let (mut needed, mut daemons, mut wireguard) = (Self::default(), Vec::new(), Vec::new());
        let known = round.needs().known(Unread::Reported("NeededPorts::unread"));
        let all = known.ports().flat_map(|(port, all)| all.iter().map(move |need| (port, need)));
        // If the proxy is unknown, kube-proxy's ports are left out, because the node may have no kube-proxy
        // (kube-router, Antrea, OVN-Kubernetes). The guard reserves kube-proxy's ports in this case too, because the
        // guard starts before kube-proxy answers.
        let is_proxy_known = round.now.proxy_mode().is_ok();
        let is_there = |need: &Need<'_>| is_proxy_known || !matches!(need, Need::ProxyMetrics | Need::ProxyHealth(_));
        let all =
            all.filter(|((_, port), need)| choosable.contains(*port) && need.is_to_reserve(*port) && is_there(need));
        for ((protocol, port), need) in all {
            let (pod, how) = match need {
                Need::Declared(pod, _) => (pod, ""),
                Need::Probe(pod, _) => (pod, ", used by its probe"),
                Need::HostPort(pod, _) => (pod, ", a hostPort"),
                Need::Tunnel(link) if link.udp_port.is_none() && PortRange::DEFAULT_EPHEMERAL.contains(port) => {
                    wireguard.push(port);
                    continue;
                }
                _ => {
                    daemons.push(port);
                    continue;
                }
            };
            let who = format!("pod {}/{}{how}", pod.namespace, pod.name);
            let known: &mut String = needed.declared.entry((port, protocol)).or_insert_with(|| who.clone());
            // If several pods declare a port, the first pod by name is kept, so that each scan names the same pod.
            if who < *known {
                *known = who;
            }
        }
        (needed.daemons, needed.wireguard) = (daemons.into_iter().collect(), wireguard.into_iter().collect());
        let perhaps = round.now.cluster.unplaced_ports().map(|(port, ..)| port);
        needed.perhaps = perhaps.filter(|port| choosable.contains(*port)).collect::<PortSet>().minus(&needed.ports());
        let lacks = |source| round.needs().with(&[source]).err();
        let unread_pod = || round.now.cluster.unread_pod().cloned();
        let pods = lacks(Source::Pods).filter(|gap| gap.why != Why::NotRequested).or_else(unread_pod);
        needed.unread = pods.or_else(|| lacks(Source::ProxyConfig));
        let widened = choosable.minus(&PortRange::DEFAULT_EPHEMERAL.into());
        let mut usual = usual_ports(Role::Daemon).chain(usual_ports(Role::MicroK8s));
        let is_usual = usual.any(|it| widened.contains(it.number));
        // A hostPort needs `bind` only if a socket has the hostPort.
        let is_host_port = |of: &[Protocol]| {
            let all = round.host_ports().known(Unread::Reported("NeededPorts::unread"));
            let mut all = all.into_iter().flat_map(ByPort::ports);
            all.any(|((protocol, number), _)| of.contains(&protocol) && choosable.contains(number))
        };
        // The socket shows which of these ports a WireGuard device that is up has.
        let interfaces = round.now.kernel.interfaces.known(Unread::Reported("NeededPorts::unread"));
        let has_wireguard = interfaces.is_some_and(|it| {
            let mut up = it.links.iter().filter(|link| link.up && link.udp_port.is_none());
            up.any(|link| !link.wireguard_ports().intersection(choosable).is_empty())
        });
        let (unread_listeners, no_udp) = (lacks(Source::Listeners), round.now.kernel.no_udp.clone());
        needed.unread_wireguard = unread_listeners.clone().or_else(|| no_udp.clone()).filter(|_| has_wireguard);
        let listeners = || unread_listeners.filter(|_| is_usual || is_host_port(&Protocol::ALL));
        let udp = || no_udp.filter(|_| is_usual || is_host_port(&[Protocol::Udp]));
        needed.unread = needed.unread.or_else(listeners).or_else(udp).or_else(|| lacks(Source::Addresses));
        needed
    }

    /// The needed ports that findings report.
    pub(super) fn ports(&self) -> PortSet {
        self.declared.keys().map(|(port, _)| *port).collect::<PortSet>().union(&self.daemons)
    }

    /// The needed ports, the ports of WireGuard devices, and the ports that may be needed. An unnecessary port in the
    /// list harms no server.
    pub(super) fn to_reserve(&self) -> PortSet {
        self.ports().union(&self.wireguard).union(&self.perhaps)
    }

    /// An unread input that may need more ports of [`Self::ports`].
    pub(super) fn unread(&self) -> Option<&Gap> {
        self.unread.as_ref()
    }

    /// An unread input that may need more ports of [`Self::to_reserve`].
    pub(super) fn unread_to_reserve(&self) -> Option<&Gap> {
        self.unread().or(self.unread_wireguard.as_ref())
    }

    pub(super) fn add_to(&self, evidence: Evidence) -> Evidence {
        let declared = self.declared.iter().map(|((port, protocol), who)| format!("{port}/{protocol} of {who}"));
        let daemons = (!self.daemons.is_empty()).then(|| counted(&self.daemons));
        let perhaps = (!self.perhaps.is_empty()).then(|| counted(&self.perhaps));
        let evidence = evidence.list("needed by a pod", declared).each("needed by daemons", daemons);
        evidence.each("perhaps needed by a pod", perhaps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;
    use portreeve_facts::{
        ContainerPort, Pod, Snapshot,
        healthy::{daemon, gap},
    };

    const PORT: ContainerPort = ContainerPort { port: 7000, host_port: None, host_ip: None, protocol: Protocol::Tcp };

    fn needed(world: &Snapshot, choosable: &str) -> NeededPorts {
        NeededPorts::among(&choosable.parse().expect("ports"), &Limits::default().round(world, None))
    }

    fn ports(world: &Snapshot, choosable: &str) -> String {
        needed(world, choosable).ports().to_string()
    }

    fn storage(change: fn(&mut Pod)) -> Snapshot {
        Snapshot::healthy().pod("storage", |pod| {
            pod.host_network = true;
            pod.ports.push(PORT);
            change(pod);
        })
    }

    #[test]
    fn a_pod_needs_what_it_declares_on_the_host_while_it_is_here() {
        assert_eq!(ports(&storage(|_| ()), "6000-8000"), "7000");
        assert_eq!(ports(&storage(|_| ()), "7001-8000"), "", "the kernel does not choose it");
        assert_eq!(ports(&storage(|pod| pod.host_network = false), "6000-8000"), "");
        assert_eq!(ports(&storage(|pod| pod.finished = true), "6000-8000"), "");
        assert_eq!(ports(&storage(|pod| pod.node = Some("n2".to_owned())), "6000-8000"), "");
        assert_eq!(ports(&storage(|pod| pod.node = None), "6000-8000"), "", "it waits for a node");
        assert_eq!(ports(&storage(|pod| (pod.node, pod.uid) = (None, None)), "6000-8000"), "7000", "a person's file");
        assert_eq!(ports(&storage(|pod| pod.ready = false), "6000-8000"), "7000", "it will listen again");
    }

    #[test]
    fn the_port_of_a_pod_that_may_be_here_is_reserved_and_not_called_needed() {
        let elsewhere = storage(|pod| pod.node = Some("n2".to_owned()));
        let reserved = |world: &Snapshot| needed(world, "6000-8000").to_reserve().to_string();
        assert_eq!(reserved(&elsewhere), "");
        let unnamed = elsewhere.unnamed();
        assert_eq!((reserved(&unnamed), ports(&unnamed, "6000-8000")), ("7000".to_owned(), String::new()));
        assert_eq!(reserved(&storage(|pod| pod.finished = true).unnamed()), "");
        let evidence = Evidence::new(crate::findings::Severity::Info, "It is so.");
        let [(name, value)] = &needed(&unnamed, "6000-8000").add_to(evidence).values[..] else { panic!("one value") };
        assert!(*name == "perhaps needed by a pod" && value.starts_with("7000"), "{name} {value}");
    }

    #[test]
    fn what_a_probe_asks_is_needed_though_nobody_declares_it() {
        let probed = |change: fn(&mut Pod)| {
            Snapshot::healthy().pod("storage", |pod| {
                pod.host_network = true;
                pod.probed.push(PORT);
                change(pod);
            })
        };
        assert_eq!(ports(&probed(|_| ()), "6000-8000"), "7000");
        assert_eq!(ports(&probed(|_| ()), "7001-8000"), "", "the kernel does not choose it");
        assert_eq!(ports(&probed(|pod| pod.node = Some("n2".to_owned())), "6000-8000"), "");
        let words = |world| {
            needed(&world, "6000-8000").add_to(Evidence::new(crate::findings::Severity::Info, "It is so.")).values
        };
        let asked = "7000/tcp of pod default/storage, used by its probe".to_owned();
        assert_eq!(words(probed(|_| ())), [("needed by a pod", asked)]);
        let declared = "7000/tcp of pod default/storage".to_owned();
        assert_eq!(words(probed(|pod| pod.ports.push(PORT))), [("needed by a pod", declared)]);
    }

    #[test]
    fn sockets_of_udp_that_were_not_read_are_missed_only_where_a_daemon_could_need_one() {
        let mut world = Snapshot::healthy();
        world.kernel.no_udp = Some(Gap::new(Source::Listeners, Why::TooMuch, ""));
        assert_eq!(needed(&world, "1024-65535").unread().map(|gap| gap.why), Some(Why::TooMuch));
        assert_eq!(needed(&world, "32768-60999").unread(), None);
    }

    #[test]
    fn a_listener_that_was_not_read_may_hold_a_host_port() {
        let mut world = Snapshot::healthy().pod("edge", |pod| pod.host_port(8080, 7443));
        let unread = |world: &Snapshot, choosable: &str| needed(world, choosable).unread().map(|gap| gap.source);
        assert_eq!(unread(&world, "7000-8000"), None);
        world.kernel.no_udp = Some(Gap::new(Source::Listeners, Why::TooMuch, ""));
        assert_eq!(unread(&world, "7000-8000"), None, "the hostPort is of TCP");
        world.kernel.listeners = gap(Source::Listeners, Why::TimedOut);
        assert_eq!([unread(&world, "7000-7442"), unread(&world, "7000-8000")], [None, Some(Source::Listeners)]);
    }

    #[test]
    fn ports_of_microk8s_are_needed_where_somebody_listens() {
        let world = Snapshot::healthy();
        assert_eq!(ports(&world, "16000-26000"), "");
        assert_eq!(ports(&world.listens_as("[::]:16443", daemon("kubelite", 9)), "16000-26000"), "16443");
    }

    #[test]
    fn a_host_port_is_needed_where_a_socket_holds_it_and_its_container_port_is_not() {
        let edge = |change: fn(&mut Pod)| {
            Snapshot::healthy().pod("edge", |pod| {
                pod.host_port(8080, 7443);
                change(pod);
            })
        };
        let held = |world: Snapshot| world.listens_as("0.0.0.0:7443", daemon("crio", 9));
        assert_eq!(ports(&held(edge(|_| ())), "7000-9000"), "7443");
        assert_eq!(ports(&edge(|_| ()), "7000-9000"), "", "it is redirected before a socket is looked for");
        assert_eq!(ports(&edge(|_| ()).listens_udp("0.0.0.0:7443"), "7000-9000"), "");
        assert_eq!(ports(&held(edge(|pod| pod.node = None)), "7000-9000"), "");
    }

    #[test]
    fn a_daemon_needs_its_well_known_port_outside_the_default_range_while_it_listens() {
        let world = Snapshot::healthy().listens_as("0.0.0.0:9100", daemon("node_exporter", 9));
        assert_eq!(ports(&world, "1024-65535"), "9100,10249-10250,10256");
        assert_eq!(ports(&world, "1024-10249"), "9100,10249");
        let chance = world.listens_as("127.0.0.1:9777", daemon("containerd", 10));
        assert_eq!(ports(&chance, "9700-9800"), "", "the kernel may have chosen it");
        let unknown = Snapshot::healthy().listens_udp("0.0.0.0:51871");
        assert_eq!(needed(&unknown, "32768-60999").to_reserve().to_string(), "");
    }

    #[test]
    fn the_port_of_a_tunnel_is_reserved_and_no_finding_reports_the_default_port_of_wireguard() {
        for up in [true, false] {
            let own_port = Snapshot::healthy().tunnel("vxlan.own", "vxlan", 40789, |link| link.up = up);
            assert_eq!(ports(&own_port, "32768-60999"), "40789", "{up}");
            assert_eq!(ports(&own_port, "6000-8000"), "", "the kernel does not choose the port");
            let wireguard = Snapshot::healthy().listens_udp("0.0.0.0:51871");
            let wireguard = wireguard.tunnel("cilium_wg0", "wireguard", 1, |it| (it.up, it.udp_port) = (up, None));
            let needed = needed(&wireguard, "32768-60999");
            assert!(needed.ports().is_empty(), "{up}");
            assert_eq!(needed.to_reserve().to_string(), "51871", "{up}");
        }
        let mut unread = Snapshot::healthy().tunnel("cilium_wg0", "wireguard", 1, |it| it.udp_port = None);
        unread.kernel.no_udp = Some(Gap::new(Source::Listeners, Why::TooMuch, ""));
        let of = |world: &Snapshot| {
            let needed = needed(world, "32768-60999");
            assert_eq!(needed.unread(), None, "no finding reports the port");
            needed.unread_to_reserve().map(|gap| (gap.source, gap.why))
        };
        assert_eq!(of(&unread), Some((Source::Listeners, Why::TooMuch)));
        unread.kernel.listeners = gap(Source::Listeners, Why::TimedOut);
        assert_eq!(of(&unread), Some((Source::Listeners, Why::TimedOut)));
        unread.kernel.interfaces = gap(Source::Addresses, Why::Torn);
        assert_eq!(needed(&unread, "32768-60999").unread().map(|gap| gap.source), Some(Source::Addresses));
    }

    #[test]
    fn what_was_not_read_may_need_more() {
        let mut world = storage(|_| ());
        let unused = needed(&world.clone().rejects(Source::Pods), "7000-8000");
        assert_eq!(
            (unused.ports().to_string(), unused.unread().map(|gap| gap.why)),
            ("7000".to_owned(), Some(Why::Malformed))
        );
        world.cluster.pods = gap(Source::Pods, Why::Unreachable);
        assert_eq!(needed(&world, "7000-8000").unread().map(|gap| gap.source), Some(Source::Pods));
        world.cluster.pods = gap(Source::Pods, Why::NotRequested);
        assert!(needed(&world, "7000-8000").unread().is_none(), "no Pods were given");
        world.kernel.listeners = gap(Source::Listeners, Why::Torn);
        assert!(needed(&world, "7000-8000").unread().is_none(), "no daemon has a port there");
        assert_eq!(needed(&world, "7000-10250").unread().map(|gap| gap.source), Some(Source::Listeners));
        world.cluster.pods = gap(Source::Pods, Why::Unreachable);
        assert_eq!(needed(&world, "7000-10250").unread().map(|gap| gap.source), Some(Source::Pods), "the first one");
        let malformed = Snapshot::healthy().with_config(|it| it.healthz_bind_address = Some("nowhere".to_owned()));
        assert_eq!(needed(&malformed, "7000-8000").unread().map(|gap| gap.source), Some(Source::ProxyConfig));
    }

    #[test]
    fn who_needs_a_port_is_said_and_does_not_depend_on_an_order() {
        let pod = |world: Snapshot, name: &str| {
            world.pod(name, |pod| {
                pod.host_network = true;
                pod.ports.push(PORT);
            })
        };
        let words = |world: &Snapshot| {
            needed(world, "6000-20000").add_to(Evidence::new(crate::findings::Severity::Info, "It is so.")).values
        };
        let one = words(&pod(pod(Snapshot::healthy(), "a"), "b"));
        assert_eq!(one, words(&pod(pod(Snapshot::healthy(), "b"), "a")));
        assert_eq!(one[0], ("needed by a pod", "7000/tcp of pod default/a".to_owned()));
        assert_eq!(one[1], ("needed by daemons", "10249-10250,10256 (3 ports)".to_owned()));
        let many = Snapshot::healthy().pod("many", |pod| {
            pod.host_network = true;
            pod.ports.extend((7000..7020).map(|port| ContainerPort { port, ..PORT }));
        });
        assert!(words(&many).contains(&("needed by a pod", "and 4 more".to_owned())));
        let quiet = needed(&many, "1-2").add_to(Evidence::new(crate::findings::Severity::Info, "It is so."));
        assert!(quiet.values.is_empty());
    }
}
