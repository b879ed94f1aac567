//! The ports that a node needs, each with its reason.

use std::{collections::BTreeMap, fmt};

use portreeve_dataplane::{Need, Role, Round, usual_ports};
use portreeve_facts::{Gap, Pod, PortSet, Source, Unread};

/// The kinds of reasons, the most important first. If not all ports fit, the guard reserves ports with the more
/// important reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A NodePort of a Service.
    NodePort,
    /// The healthCheckNodePort of a Service.
    HealthCheck,
    /// A port of a pod in the host network: a container declares it, or the kubelet probes it.
    HostNetworkPod,
    /// A hostPort of a pod.
    HostPort,
    /// A port of a daemon or a tunnel of the node.
    Daemon,
}

impl Class {
    /// All kinds, the most important first.
    pub const ALL: [Self; 5] = [Self::NodePort, Self::HealthCheck, Self::HostNetworkPod, Self::HostPort, Self::Daemon];

    /// The name of the kind in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::NodePort => "node_port",
            Self::HealthCheck => "health_check_node_port",
            Self::HostNetworkPod => "host_network_pod",
            Self::HostPort => "host_port",
            Self::Daemon => "daemon",
        }
    }
}

/// The reason why a port is reserved.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reason {
    /// The kind of the reason.
    pub class: Class,
    /// `namespace/name` of the Service or the pod, or the name of the daemon or tunnel.
    pub whose: String,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { class, whose } = self;
        match class {
            Class::NodePort => write!(f, "NodePort of Service {whose}"),
            Class::HealthCheck => write!(f, "healthCheckNodePort of Service {whose}"),
            Class::HostNetworkPod => write!(f, "port of hostNetwork pod {whose}"),
            Class::HostPort => write!(f, "hostPort of pod {whose}"),
            Class::Daemon => write!(f, "port of {whose}"),
        }
    }
}

impl Reason {
    /// The reason for a port of a daemon or a tunnel that the guard read from the record. The record does not contain
    /// names.
    pub(super) fn daemon_of_the_record() -> Self {
        Self { class: Class::Daemon, whose: "a daemon or tunnel that had this port".to_owned() }
    }
}

/// The ports that a node needs, inside and outside the ephemeral port range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Each port with its most important reason.
    pub ports: BTreeMap<u16, Reason>,
    /// Inputs that were not read. An unread input may contain more ports that the node needs.
    pub unread: Vec<Gap>,
}

impl Wanted {
    /// The ports that the node needs, according to a scan.
    pub fn of(round: &Round<'_>) -> Self {
        let (mut all, mut unread) = (Vec::new(), Vec::new());
        match round.allocated().get() {
            Ok(allocated) => all.extend(allocated.ports().flat_map(|(number, holders)| {
                holders.iter().map(move |(service, port)| {
                    let class = if port.is_some() { Class::NodePort } else { Class::HealthCheck };
                    (number, class, format!("{}/{}", service.namespace, service.name))
                })
            })),
            Err(gap) => unread.push(gap),
        }
        // All hostPorts are included, even if no socket has the port. Some runtimes bind a socket to the hostPort when
        // the pod starts, so the port must be free at that time.
        match round.host_ports().get() {
            Ok(host_ports) => all.extend(host_ports.ports().flat_map(|((_, number), pods)| {
                pods.iter().map(move |(pod, _)| (number, Class::HostPort, format!("{}/{}", pod.namespace, pod.name)))
            })),
            Err(gap) => unread.push(gap),
        }
        all.extend(round.now.cluster.unplaced_ports().map(|(number, pod, _)| {
            let class = if pod.host_network { Class::HostNetworkPod } else { Class::HostPort };
            (number, class, format!("{}/{}", pod.namespace, pod.name))
        }));
        for ((_, number), needs) in round.needs().known(Unread::Reported("Wanted::unread")).ports() {
            let needs = needs.iter().filter(|need| need.is_to_reserve(number));
            all.extend(needs.filter_map(|need| of_need(number, *need)));
        }
        unread.extend(round.needs().with(&[Source::Listeners, Source::ProxyConfig, Source::Addresses]).err());
        unread.extend(round.now.kernel.no_udp.clone());
        unread.extend(round.now.cluster.rejected.iter().filter(|gap| gap.hides_ports()).cloned());
        let mut ports: BTreeMap<u16, Reason> = BTreeMap::new();
        for (number, class, whose) in all {
            let reason = Reason { class, whose };
            // The map keeps the smallest `Reason` of each port, so that the result does not depend on the order of the
            // objects.
            let known = ports.entry(number).or_insert_with(|| reason.clone());
            if reason < *known {
                *known = reason;
            }
        }
        Self { ports, unread }
    }

    /// Whether an input that may have ports of `class` was not read. If `class` is `None`, the function returns whether
    /// any input was not read.
    pub fn is_unread(&self, class: Option<Class>) -> bool {
        self.unread.iter().any(|gap| {
            class.is_none_or(|class| match gap.source {
                Source::Services => matches!(class, Class::NodePort | Class::HealthCheck),
                Source::Pods | Source::Nodes => matches!(class, Class::HostNetworkPod | Class::HostPort),
                Source::Listeners | Source::ProxyConfig | Source::Addresses => class == Class::Daemon,
                _ => true,
            })
        })
    }

    /// Adds the ports of daemons from a record. A daemon that does not listen now may start again.
    #[must_use]
    pub fn with_daemons(mut self, recorded: &PortSet) -> Self {
        for number in recorded.iter() {
            self.ports.entry(number).or_insert_with(Reason::daemon_of_the_record);
        }
        self
    }

    /// Adds ports of the last run whose input was not read now, because the node may still need them.
    #[must_use]
    pub fn after(mut self, last: &Self) -> Self {
        for (number, reason) in &last.ports {
            if self.is_unread(Some(reason.class)) {
                self.ports.entry(*number).or_insert_with(|| reason.clone());
            }
        }
        self
    }
}

/// The class and the owner of a needed port. `None` for needs that the guard does not reserve.
fn of_need(number: u16, need: Need<'_>) -> Option<(u16, Class, String)> {
    let of = |class, pod: &Pod| (class, format!("{}/{}", pod.namespace, pod.name));
    let (class, owner) = match need {
        Need::Declared(pod, _) | Need::Probe(pod, _) => of(Class::HostNetworkPod, pod),
        Need::HostPort(pod, _) => of(Class::HostPort, pod),
        Need::ProxyMetrics | Need::ProxyHealth(_) => (Class::Daemon, "kube-proxy".to_owned()),
        Need::Daemon(_) => (Class::Daemon, daemon_on(number).to_owned()),
        Need::Tunnel(link) => (Class::Daemon, format!("tunnel {}", link.name)),
        Need::Reported(..) | Need::Waiting(..) | Need::HealthCheck(_) | Need::Agent(_) => return None,
    };
    Some((number, class, owner))
}

fn daemon_on(number: u16) -> &'static str {
    let mut usual = [Role::Daemon, Role::MicroK8s].into_iter().flat_map(usual_ports);
    usual.find(|port| port.number == number).map_or("a daemon that listens on this port", |port| port.of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{
        ContainerPort, Protocol, Reading, ServiceKind, Snapshot, Why,
        healthy::{daemon, gap},
    };

    const PORT: ContainerPort = ContainerPort { port: 7000, host_port: None, host_ip: None, protocol: Protocol::Tcp };

    fn wanted(world: &Snapshot) -> Wanted {
        Wanted::of(&Round::of(world, None, 60))
    }

    fn lines(world: &Snapshot) -> Vec<String> {
        wanted(world).ports.iter().map(|(number, reason)| format!("{number} {reason}")).collect()
    }

    fn world(change: impl FnOnce(&mut Pod)) -> Snapshot {
        Snapshot::healthy()
            .service("lb", |it| {
                it.node_port(30080).local().with(|service| {
                    service.kind = ServiceKind::LoadBalancer;
                    service.health_check_node_port = Some(30999);
                })
            })
            .pod("edge", |pod| pod.host_port(80, 8080))
            .listens_as("0.0.0.0:16443", daemon("kubelite", 9))
            .pod("storage", |pod| {
                pod.host_network = true;
                pod.ports = vec![PORT];
                pod.probed = vec![ContainerPort { port: 7001, ..PORT }];
                pod.reported_in_use = vec![ContainerPort { port: 7002, ..PORT }];
                change(pod);
            })
    }

    #[test]
    fn each_port_has_its_reason() {
        let all = lines(&world(|_| ()));
        for line in [
            "7000 port of hostNetwork pod default/storage",
            "7001 port of hostNetwork pod default/storage",
            "8080 hostPort of pod default/edge",
            "10249 port of kube-proxy",
            "16443 port of the API server of MicroK8s",
            "30080 NodePort of Service default/lb",
            "30999 healthCheckNodePort of Service default/lb",
        ] {
            assert!(all.contains(&line.to_owned()), "{line} in {all:#?}");
        }
        assert!(!all.iter().any(|line| line.starts_with("7002")), "the last words of a container reserve nothing");
        assert_eq!(wanted(&world(|_| ())).unread, []);
    }

    #[test]
    fn pods_of_other_nodes_and_finished_pods_need_nothing() {
        for change in [
            (|pod: &mut Pod| pod.finished = true) as fn(&mut Pod),
            |pod| pod.node = Some("n2".to_owned()),
            |pod| pod.host_network = false,
        ] {
            assert!(!wanted(&world(change)).ports.contains_key(&7000));
        }
    }

    #[test]
    fn the_ports_of_pods_that_may_be_on_a_node_without_a_name_are_wanted() {
        let elsewhere = world(|pod| pod.node = Some("n2".to_owned())).pod("web", |pod| {
            pod.node = Some("n2".to_owned());
            pod.host_port(80, 8081);
        });
        assert!(!wanted(&elsewhere).ports.contains_key(&7000));
        let all = lines(&elsewhere.unnamed());
        for line in [
            "7000 port of hostNetwork pod default/storage",
            "7001 port of hostNetwork pod default/storage",
            "8081 hostPort of pod default/web",
        ] {
            assert!(all.contains(&line.to_owned()), "{line} in {all:#?}");
        }
    }

    #[test]
    fn a_daemon_in_the_default_range_may_have_its_port_by_chance_and_reserves_nothing() {
        let listening = Snapshot::healthy().listens_udp("0.0.0.0:51871");
        let wanted = wanted(&listening.listens_as("0.0.0.0:61678", daemon("aws-k8s-agent", 9)));
        assert!(!wanted.ports.contains_key(&51871) && wanted.ports.contains_key(&61678), "{:?}", wanted.ports);
    }

    #[test]
    fn the_port_of_a_tunnel_is_wanted_whether_the_tunnel_is_up_or_down() {
        for up in [true, false] {
            let own_port = Snapshot::healthy().tunnel("vxlan.own", "vxlan", 40789, |link| link.up = up);
            assert!(lines(&own_port).contains(&"40789 port of tunnel vxlan.own".to_owned()), "{up}");
            let wireguard = Snapshot::healthy().listens_udp("0.0.0.0:51871");
            let wireguard = wireguard.tunnel("cilium_wg0", "wireguard", 1, |it| (it.up, it.udp_port) = (up, None));
            assert!(lines(&wireguard).contains(&"51871 port of tunnel cilium_wg0".to_owned()), "{up}");
        }
    }

    #[test]
    fn the_most_important_reason_counts_whatever_the_order() {
        let both = world(|pod| pod.ports.push(ContainerPort { port: 30080, ..PORT }));
        assert_eq!(wanted(&both).ports[&30080].class, Class::NodePort);
    }

    #[test]
    fn ports_of_the_last_run_are_needed_until_all_input_is_read_again() {
        let (last, mut lost) = (wanted(&world(|_| ())), world(|pod| pod.finished = true));
        assert!(!wanted(&lost).after(&last).ports.contains_key(&7000), "the pod is finished");
        lost.cluster.services = gap(Source::Services, Why::Unreachable);
        let after = wanted(&lost).after(&last);
        assert_eq!(after.ports[&30080].class, Class::NodePort);
        assert!(!after.ports.contains_key(&7000), "all pods were read");
    }

    #[test]
    fn unread_input_is_reported_and_what_is_known_stays() {
        type Lose = fn(&mut Snapshot);
        let sources: [(Source, Lose); 6] = [
            (Source::Services, |world| world.cluster.services = gap(Source::Services, Why::Unreachable)),
            (Source::Pods, |world| world.cluster.pods = gap(Source::Pods, Why::NotRequested)),
            (Source::Listeners, |world| world.kernel.listeners = gap(Source::Listeners, Why::Torn)),
            (Source::Addresses, |world| world.kernel.interfaces = gap(Source::Addresses, Why::Torn)),
            (Source::Nodes, |world| world.cluster.rejected.push(Gap::new(Source::Nodes, Why::Ambiguous, ""))),
            (Source::ProxyConfig, |world| {
                *world = world.clone().with_config(|it| it.healthz_bind_address = Some("nowhere".to_owned()));
            }),
        ];
        for (source, lose) in sources {
            let mut world = world(|_| ());
            lose(&mut world);
            let wanted = wanted(&world);
            assert!(wanted.unread.iter().any(|gap| gap.source == source), "{source:?}: {:?}", wanted.unread);
            assert!(!wanted.ports.is_empty());
        }
        let malformed = wanted(&world(|_| ()).rejects(Source::Services));
        assert_eq!(malformed.unread.len(), 1);
        let mut sysctl = world(|_| ());
        let detail = "pods: Pod default/x: spec.securityContext.sysctls[0].value: \"zzz\"";
        sysctl.cluster.rejected.push(Gap::new(Source::Pods, Why::Malformed, detail));
        assert_eq!(wanted(&sysctl).unread, [], "this field has no port");
        let mut empty = world(|_| ());
        empty.cluster.services = Reading::Seen(Vec::new());
        assert_eq!(wanted(&empty).unread, [], "no Service is not unread");
    }
}
