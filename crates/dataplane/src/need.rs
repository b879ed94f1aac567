//! Servers and tunnels that need a port of this node, even if they have no socket now. A server can listen only if
//! `bind` succeeds, and a tunnel can come up only if the kernel can open its port.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use super::{
    by_port::{ByPort, Port},
    kept_off::serves,
    local_address::vrf_of,
    owners::owner_name,
    part::Part,
    round::Round,
    usual_ports::{Role, is_usual},
};
use portreeve_facts::{
    ContainerPort, Family, Gap, Link, Mode, OwnPort, PROXY_HEALTH, PROXY_METRICS, Pod, PortRange, Protocol, Reading,
    Service, ServiceKind, Snapshot, Socket, Source, Unread, WaitingPod, Why, if_requested, lists_bound,
};

/// The need of a server or a tunnel for one port and protocol. The variant is the reason.
#[derive(Clone, Copy, Debug)]
pub enum Need<'a> {
    /// A hostNetwork pod of this node declares the port.
    Declared(&'a Pod, &'a ContainerPort),
    /// A probe connects to a port of a hostNetwork pod of this node, and no container declares the port. Another
    /// program may answer the probe.
    Probe(&'a Pod, &'a ContainerPort),
    /// A container of a hostNetwork pod of this node ended with the message that the address is in use. The message is
    /// a hint, not a claim.
    Reported(&'a Pod, &'a ContainerPort),
    /// A pod's hostPort that has a listener. Some container runtimes open a socket to hold the port. If no listener
    /// exists, the hostPort is a redirection, which does not need `bind`.
    HostPort(&'a Pod, &'a ContainerPort),
    /// A pod without a Node wants this hostPort, and the scheduler may choose this node. The scheduler compares the
    /// port with ports of pods, not with sockets.
    Waiting(&'a WaitingPod, &'a ContainerPort),
    /// On this port, the proxy answers health checks of a Service.
    HealthCheck(&'a Service),
    /// On this port, kube-proxy reports its mode and its metrics.
    ProxyMetrics,
    /// On this port, kube-proxy reports its own health.
    ProxyHealth(SocketAddr),
    /// The agent answers on this port.
    Agent(&'a OwnPort),
    /// A daemon listens on its usual port now. After a restart, the daemon needs the port again.
    Daemon(&'a Socket),
    /// The kernel opens the port when the tunnel comes up.
    Tunnel(&'a Link),
}

impl<'a> Need<'a> {
    /// The hostNetwork pod of this node that needs the port.
    pub fn pod(self) -> Option<&'a Pod> {
        match self {
            Self::Declared(pod, _) | Self::Probe(pod, _) | Self::Reported(pod, _) => Some(pod),
            _ => None,
        }
    }

    /// The pod that needs the port, if the pod still runs and is not ready.
    pub fn unready_pod(self) -> Option<&'a Pod> {
        self.pod().filter(|pod| !pod.ready && pod.ends.is_none())
    }

    /// Whether a program on this node needs the port.
    ///
    /// # Errors
    ///
    /// Fails if it is unknown whether Cilium serves the Service's health checks on this node, whether kube-proxy runs,
    /// or which health port kube-proxy has.
    pub fn is_there(self, round: &Round<'_>) -> Result<bool, Gap> {
        let snapshot = round.now;
        match self {
            Self::HealthCheck(service) => serves(round, service, Part::HealthCheck),
            Self::ProxyMetrics => snapshot.proxy_mode().map(|_| true),
            Self::ProxyHealth(_) => {
                snapshot.proxy_mode().and_then(|_| if_requested(snapshot.proxy_config())).map(|_| true)
            }
            _ => Ok(true),
        }
    }

    /// Whether a claim names the port. A message of a container is only a hint: a tenant's container can write any
    /// message, and must not be able to take a port with a message.
    pub fn is_claimed(self) -> bool {
        !matches!(self, Self::Reported(..))
    }

    /// Whether this port must be reserved, so that the kernel does not give the port to an outgoing connection. If the
    /// result is true, `guard` reserves the port, `reserve` prints the port, and a rule reports the port if the port is
    /// not reserved. NodePorts and hostPorts are always reserved.
    pub fn is_to_reserve(self, number: u16) -> bool {
        match self {
            Self::Declared(..) | Self::HostPort(..) => true,
            // A probe expects that some program answers on the port.
            Self::Probe(..) => true,
            // kube-proxy starts later than the node's first connections, so kube-proxy's ports are reserved before
            // kube-proxy listens.
            Self::ProxyMetrics | Self::ProxyHealth(_) => true,
            // Daemons often let the kernel choose a port of this range, and get another port after a restart.
            Self::Daemon(_) => !PortRange::DEFAULT_EPHEMERAL.contains(number),
            // A tunnel has the same port each time. If a connection has the port, the tunnel cannot come up.
            Self::Tunnel(_) => true,
            // The message is no claim: a tenant's container can write any message.
            Self::Reported(..) => false,
            // The scheduler may choose another node for the pod.
            Self::Waiting(..) => false,
            // A healthCheckNodePort is reserved with the NodePorts.
            Self::HealthCheck(_) => false,
            // The agent tries to listen on its port, and reports the result itself.
            Self::Agent(_) => false,
        }
    }

    /// The addresses at which the server wants to listen.
    pub fn at(self) -> Addresses<'a> {
        match self {
            Self::Declared(_, port)
            | Self::Probe(_, port)
            | Self::Reported(_, port)
            | Self::HostPort(_, port)
            | Self::Waiting(_, port) => Addresses::of_pod(port),
            Self::HealthCheck(service) => Addresses::Families(service.families),
            Self::ProxyMetrics => Addresses::Every,
            Self::ProxyHealth(address) => Addresses::of_server(address.ip()),
            Self::Agent(own) => Addresses::of_server(own.address.ip()),
            Self::Daemon(socket) => Addresses::of_server(socket.local),
            Self::Tunnel(link) => {
                link.tunnel.as_ref().map_or(Addresses::Every, |tunnel| Addresses::Families(&tunnel.families))
            }
        }
    }
}

/// The addresses of the node at which a server wants to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses<'a> {
    /// Every address, with one socket for both families.
    Every,
    /// Every address of these families, with one socket for each family.
    Families(&'a [Family]),
    /// This address.
    One(IpAddr),
}

impl Addresses<'_> {
    /// The addresses of a server with a configured address. For a server in Go, 0.0.0.0 means all addresses of both
    /// families (net/ipsock_posix.go, `favoriteAddrFamily`).
    fn of_server(ip: IpAddr) -> Self {
        if ip.is_unspecified() { Self::Every } else { Self::One(ip) }
    }

    /// The addresses of a container's listener, according to the `hostIP` of its port.
    pub fn of_pod(port: &ContainerPort) -> Self {
        match port.host_ip {
            None => Self::Every,
            Some(ip) if !ip.is_unspecified() => Self::One(ip),
            Some(IpAddr::V4(_)) => Self::Families(&[Family::V4]),
            Some(IpAddr::V6(_)) => Self::Families(&[Family::V6]),
        }
    }

    /// One value for each socket that the server needs.
    pub fn each(self) -> impl Iterator<Item = Self> {
        let (one, families) = match self {
            Self::Families(families) => (None, families),
            Self::Every | Self::One(_) => (Some(self), &[][..]),
        };
        one.into_iter().chain(families.chunks(1).map(Self::Families))
    }

    /// Whether a socket on the same port makes `bind` fail (Linux net/ipv4/inet_connection_sock.c,
    /// `inet_bind_conflict`). `bind` fails if the socket is on the same address, or on every address of the family.
    /// Sockets that are bound to an interface are included: see [`Round::in_vrfs`] for VRFs. `None` if it is unknown
    /// whether an IPv6 socket also serves IPv4.
    pub fn meets(self, socket: &Socket) -> Option<bool> {
        match self {
            Self::Every => Some(true),
            Self::Families(families) => {
                let some = |answer| families.iter().any(|family| socket.serves(*family) == answer);
                [Some(true), None].into_iter().find(|answer| some(*answer)).unwrap_or(Some(false))
            }
            Self::One(ip) if socket.local.is_unspecified() => socket.serves(Family::of(ip)),
            Self::One(ip) => Some(socket.local.to_canonical() == ip.to_canonical()),
        }
    }
}

/// Every known need, and the unread sources that may contain more needs.
#[derive(Debug)]
pub struct Needs<'a> {
    known: ByPort<Need<'a>>,
    unread: Vec<Gap>,
}

impl<'a> Needs<'a> {
    pub(super) fn of(round: &Round<'a>) -> Self {
        let parts = [
            of_pods(round),
            held_host_ports(round),
            waiting(round),
            health_checks(round),
            Ok(proxy_metrics(round.now)),
            proxy_health(round.now),
            agent(round.now),
            daemons(round),
            tunnels(round),
        ];
        let (mut all, mut unread) = (Vec::new(), Vec::new());
        for part in parts {
            match part {
                Ok(part) => all.extend(part),
                Err(gap) => unread.push(gap),
            }
        }
        Self { known: ByPort::of(all), unread }
    }

    /// The known needs, even if some inputs were not read. The argument states why incomplete needs are enough for the
    /// caller.
    pub fn known(&self, _: Unread) -> &ByPort<Need<'a>> {
        &self.known
    }

    /// The known needs, if each source in `sources` was read completely.
    ///
    /// # Errors
    ///
    /// Fails if a source was not read completely, because the source may contain more needs.
    pub fn with(&self, sources: &[Source]) -> Result<&ByPort<Need<'a>>, Gap> {
        let lacks = |source: &Source| self.unread.iter().find(|gap| gap.source == *source);
        match sources.iter().find_map(lacks) {
            Some(gap) => Err(gap.clone()),
            None => Ok(&self.known),
        }
    }

    /// The unread inputs that may contain more needs. Inputs that were not requested are left out. Pods, Services and
    /// listeners are left out too, because each caller names them anyway.
    pub fn unread(&self) -> impl Iterator<Item = &Gap> {
        const OF_NEEDS: [Source; 4] = [Source::WaitingPods, Source::ProxyConfig, Source::OwnPort, Source::Addresses];
        self.unread.iter().filter(|gap| OF_NEEDS.contains(&gap.source) && gap.why != Why::NotRequested)
    }
}

impl Round<'_> {
    /// The words of an assumption: no socket is bound to this TCP port without listening. Portreeve makes the
    /// assumption if a server of the port does not listen, and the scan may lack sockets that only bind.
    pub fn assumed_unbound(&self, (protocol, number): Port) -> Option<String> {
        let why = self.bound_unlisted()?;
        let at = (protocol, number);
        let is_absent = |need: &Need<'_>| matches!(need, Need::HealthCheck(_)) || need.unready_pod().is_some();
        let is_assumed = protocol == Protocol::Tcp
            && self.listeners().known(Unread::Doubted).is_some_and(|all| all.at(at).is_empty())
            && self.needs().known(Unread::Adds).at(at).iter().any(is_absent);
        is_assumed.then(|| format!("no socket is bound to {number}/{protocol} without listening; {why}"))
    }

    /// The unread input that decides whether a server can listen beside these sockets, if each of the sockets is in a
    /// VRF. Each VRF has its own TCP ports if the sysctl `tcp_l3mdev_accept` is off (Linux
    /// include/net/inet_hashtables.h, `inet_bind_bucket_match`).
    pub fn in_vrfs(&self, sockets: &[&Socket]) -> Option<Gap> {
        let in_vrf = |socket: &&Socket| {
            if socket.protocol != Protocol::Tcp || socket.device == 0 {
                return None;
            }
            let interfaces = match self.now.kernel.interfaces.get() {
                Ok(interfaces) => interfaces,
                Err(gap) => return Some(gap),
            };
            vrf_of(interfaces, interfaces.links.iter().find(|it| it.index == socket.device)?)?;
            let detail = format!(
                "{} has the port in a VRF: whether another server can listen depends on the sysctl net.ipv4.tcp_l3mdev_accept, which Portreeve does not read",
                owner_name(self.now, &socket.owner)
            );
            Some(Gap::new(Source::Sysctls, Why::Ambiguous, detail))
        };
        sockets.iter().map(in_vrf).collect::<Option<Vec<Gap>>>()?.into_iter().next()
    }

    /// The reason why the scan may lack sockets that are bound and do not listen.
    pub fn bound_unlisted(&self) -> Option<String> {
        let kernel = &self.now.kernel;
        match kernel.clients.get() {
            _ if !lists_bound(&kernel.release) => {
                Some(format!("Linux lists such sockets since 6.8, and this node has {}", kernel.release))
            }
            Err(gap) => Some(format!("such sockets were not read: {}", gap.detail)),
            Ok(clients) if clients.passed_over => {
                Some("the scan did not search such sockets, because the node has many connections".to_owned())
            }
            Ok(clients) if clients.bound_unlisted => Some("the scan could not list all such sockets".to_owned()),
            Ok(_) => None,
        }
    }
}

type Read<'a> = Result<Vec<(Port, Need<'a>)>, Gap>;

/// Each port of a pod is one need, even if a message repeats a declared or probed port.
fn of_pods<'a>(round: &Round<'a>) -> Read<'a> {
    let here = round.now.cluster.pods.get()?.iter().map(AsRef::as_ref);
    let here = here.filter(|pod: &&Pod| pod.may_be_on(round.now.node_name()) && pod.host_network && !pod.finished);
    let needs = here.flat_map(|pod| {
        let mut seen = BTreeSet::new();
        let declared = pod.ports.iter().map(move |port| (port, Need::Declared(pod, port)));
        let probed = pod.probed.iter().map(move |port| (port, Need::Probe(pod, port)));
        let is_known = |it: &&ContainerPort| {
            let mut known = pod.ports.iter().chain(&pod.probed);
            known.any(|known| (known.protocol, known.port) == (it.protocol, it.port))
        };
        let reported = pod
            .reported_in_use
            .iter()
            .filter(move |it| !is_known(it))
            .map(move |port| (port, Need::Reported(pod, port)));
        let all = declared.chain(probed).chain(reported);
        all.filter(move |(port, _)| seen.insert((port.protocol, port.port, port.host_ip)))
    });
    Ok(needs.map(|(port, need)| ((port.protocol, port.port), need)).collect())
}

fn held_host_ports<'a>(round: &Round<'a>) -> Read<'a> {
    let host_ports = round.host_ports().get()?;
    if host_ports.is_empty() {
        return Ok(Vec::new());
    }
    let listeners = round.listeners().get()?;
    let held = host_ports.ports().filter(|(port, _)| !listeners.at(*port).is_empty());
    Ok(held.flat_map(|(at, all)| all.iter().map(move |(pod, port)| (at, Need::HostPort(pod, port)))).collect())
}

fn waiting<'a>(round: &Round<'a>) -> Read<'a> {
    let all = round.now.cluster.waiting_pods.get()?.iter().map(AsRef::as_ref);
    let here = all.filter(|pod: &&WaitingPod| !pod.rejected && pod.may_be_on(round.now.node_name()));
    let of = |pod: &'a WaitingPod, port: &'a ContainerPort| {
        Some(((port.protocol, port.host_port?), Need::Waiting(pod, port)))
    };
    Ok(here.flat_map(|pod| pod.ports.iter().filter_map(move |port| of(pod, port))).collect())
}

fn health_checks<'a>(round: &Round<'a>) -> Read<'a> {
    let services = round.now.cluster.services.get()?.iter().map(AsRef::as_ref);
    let local = services.filter(|it: &&Service| it.kind == ServiceKind::LoadBalancer && it.external_local);
    let served = local.filter(|it| round.now.proxy_serves(it));
    Ok(served.filter_map(|it| Some(((Protocol::Tcp, it.health_check_node_port?), Need::HealthCheck(it)))).collect())
}

fn proxy_metrics<'a>(snapshot: &Snapshot) -> Vec<(Port, Need<'a>)> {
    let port = may_be_kube_proxy(snapshot).then_some((Protocol::Tcp, PROXY_METRICS));
    port.map(|port| (port, Need::ProxyMetrics)).into_iter().collect()
}

/// Returns the need for kube-proxy's health port. If no source names the port, the result has the default port. The
/// result is empty if the health server is turned off.
fn proxy_health<'a>(snapshot: &Snapshot) -> Read<'a> {
    let configured = snapshot.proxy_config().ok().and_then(|config| config.healthz_bind_address.as_deref());
    let address = match configured {
        _ if !may_be_kube_proxy(snapshot) => return Ok(Vec::new()),
        None => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PROXY_HEALTH),
        Some("") => return Ok(Vec::new()),
        Some(text) => health_address(text).ok_or_else(|| {
            let detail = format!("healthzBindAddress of kube-proxy is not an address with a port: {text:?}");
            Gap::new(Source::ProxyConfig, Why::Malformed, detail)
        })?,
    };
    let answers = address.port() != 0;
    Ok(answers.then_some(((Protocol::Tcp, address.port()), Need::ProxyHealth(address))).into_iter().collect())
}

/// Parses a `healthzBindAddress` in the same way as kube-proxy. An address without a port gets the default port
/// (kubernetes pkg/proxy/apis/config/v1alpha1/defaults.go).
pub fn health_address(text: &str) -> Option<SocketAddr> {
    let of_port = text.strip_prefix(':').and_then(|port| port.parse().ok());
    of_port
        .map(|port| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))
        .or_else(|| text.parse().ok())
        .or_else(|| Some(SocketAddr::new(text.parse().ok()?, PROXY_HEALTH)))
}

fn may_be_kube_proxy(snapshot: &Snapshot) -> bool {
    snapshot.proxy_mode().map_or(true, |mode| Mode::KUBE_PROXY.contains(&mode.value))
}

fn agent<'a>(snapshot: &'a Snapshot) -> Read<'a> {
    match &snapshot.own_port {
        // The agent listens on a port of its own. `check` does not listen.
        Reading::Gap(gap) if gap.why == Why::NotRequested => Ok(Vec::new()),
        own => own.get().map(|own| vec![((Protocol::Tcp, own.address.port()), Need::Agent(own))]),
    }
}

fn daemons<'a>(round: &Round<'a>) -> Read<'a> {
    let is_usual = |number| is_usual(number, Role::Daemon) || is_usual(number, Role::MicroK8s);
    let usual = round.listeners().get()?.ports().filter(|((_, number), _)| is_usual(*number));
    Ok(usual.filter_map(|(port, sockets)| Some((port, Need::Daemon(sockets.first()?)))).collect())
}

/// Portreeve does not read the port of a WireGuard device. If the device is up and no socket is on a port, the device
/// does not have this port.
fn tunnels<'a>(round: &Round<'a>) -> Read<'a> {
    let links = &round.now.kernel.interfaces.get()?.links;
    let listeners = || round.listeners().known(Unread::Reported("NeededPorts::unread_to_reserve, Wanted::unread"));
    let is_open = |number: &u16| listeners().is_some_and(|all| !all.at((Protocol::Udp, *number)).is_empty());
    let ports = |link: &Link| -> Vec<u16> {
        match link.udp_port {
            Some(number) => vec![number],
            None if link.up => link.wireguard_ports().iter().filter(is_open).collect(),
            None => link.wireguard().map(|it| it.port).into_iter().collect(),
        }
    };
    let of = |link: &'a Link| ports(link).into_iter().map(move |number| ((Protocol::Udp, number), Need::Tunnel(link)));
    Ok(links.iter().flat_map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::healthy::{PRIMARY, SECOND, World, daemon, gap, ip};

    const PORT: ContainerPort = ContainerPort { port: 7000, host_port: None, host_ip: None, protocol: Protocol::Tcp };

    /// A hostNetwork pod that declares 7000 and has a probe on 7001, a pod with a hostPort, and a Service with a health check.
    fn world(change: impl FnOnce(&mut Pod)) -> Snapshot {
        let checked = |it: World| {
            it.node_port(30080).local().with(|service| {
                service.kind = ServiceKind::LoadBalancer;
                service.health_check_node_port = Some(30999);
            })
        };
        let world = Snapshot::healthy().service("lb", checked).pod("edge", |pod| pod.host_port(80, 8080));
        world.listens_as("0.0.0.0:8080", daemon("crio", 9)).listens("0.0.0.0:16443").pod("storage", |pod| {
            pod.host_network = true;
            pod.ports = vec![PORT, PORT];
            pod.probed = vec![PORT, ContainerPort { port: 7001, ..PORT }];
            change(pod);
        })
    }

    fn known(world: &Snapshot) -> Vec<String> {
        let round = Round::of(world, None, 60);
        let kind = |need: &Need<'_>| format!("{need:?}").split(['(', ' ']).next().unwrap_or_default().to_owned();
        let of_port = |((_, port), needs): (Port, &[Need<'_>])| {
            needs.iter().map(|need| format!("{port} {}", kind(need))).collect::<Vec<_>>()
        };
        round.needs().known(Unread::Adds).ports().flat_map(of_port).collect()
    }

    #[test]
    fn each_kind_of_need_is_listed_once() {
        let all = [
            "7000 Declared",
            "7001 Probe",
            "8080 HostPort",
            "10249 ProxyMetrics",
            "10249 Daemon",
            "10250 Daemon",
            "10256 ProxyHealth",
            "10256 Daemon",
            "16443 Daemon",
            "29517 Agent",
            "30999 HealthCheck",
        ];
        assert_eq!(known(&world(|_| ())), all);
        let rest = &all[2..];
        for change in [
            |pod: &mut Pod| pod.host_network = false,
            |pod: &mut Pod| pod.finished = true,
            |pod: &mut Pod| pod.node = Some("n2".to_owned()),
        ] {
            assert_eq!(known(&world(change)), rest);
        }
        assert_eq!(known(&world(|pod| pod.ready = false)), all, "it ought to listen");
    }

    #[test]
    fn what_a_container_said_is_a_need_of_its_own_where_nothing_else_names_the_port() {
        let said = |port| {
            world(|pod| pod.reported_in_use = vec![ContainerPort { port, host_ip: Some(ip("127.0.0.1")), ..PORT }])
        };
        let of = |port: u16| known(&said(port)).into_iter().filter(|it| it.ends_with("Reported")).collect::<Vec<_>>();
        assert_eq!(of(7002), ["7002 Reported"]);
        assert_eq!([of(7000), of(7001)], [Vec::<String>::new(), Vec::new()], "it is declared, or probed");
    }

    #[test]
    fn a_pod_that_waits_for_a_node_needs_its_host_port_where_it_may_come() {
        let of = |change: fn(&mut WaitingPod)| {
            let mut waits = WaitingPod {
                namespace: "default".to_owned(),
                name: "edge".to_owned(),
                ports: vec![ContainerPort { host_port: Some(7100), ..PORT }],
                ..WaitingPod::default()
            };
            change(&mut waits);
            let mut world = Snapshot::healthy();
            world.cluster.waiting_pods = Reading::Seen(vec![waits.into()]);
            known(&world).into_iter().filter(|it| it.ends_with("Waiting")).collect::<Vec<_>>()
        };
        assert_eq!(of(|_| ()), ["7100 Waiting"]);
        assert_eq!(of(|it| it.meant_for = Some("n1".to_owned())), ["7100 Waiting"]);
        assert_eq!(of(|it| it.meant_for = Some("n2".to_owned())), Vec::<String>::new());
        assert_eq!(of(|it| it.rejected = true), Vec::<String>::new(), "it is not tried again");
        let mut unread = Snapshot::healthy();
        unread.cluster.waiting_pods = gap(Source::WaitingPods, Why::NotPermitted);
        assert!(Round::of(&unread, None, 60).needs().with(&[Source::WaitingPods]).is_err());
    }

    #[test]
    fn what_is_not_meant_for_this_node_needs_nothing() {
        let without = |world: &Snapshot, kind: &str| !known(world).iter().any(|it| it.ends_with(kind));
        let cilium = world(|_| ()).with_mode(Mode::Cilium);
        assert!(without(&cilium, "ProxyMetrics") && without(&cilium, "ProxyHealth"));
        assert!(!without(&world(|_| ()).without_proxy(), "ProxyHealth"), "it may be there");
        let health = |address: &str| world(|_| ()).with_config(|it| it.healthz_bind_address = Some(address.to_owned()));
        assert!(without(&health(""), "ProxyHealth") && without(&health("0.0.0.0:0"), "ProxyHealth"));
        assert!(known(&health(":10300")).contains(&"10300 ProxyHealth".to_owned()));
        let mut unread = world(|_| ());
        let health = Need::ProxyHealth(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PROXY_HEALTH));
        for (why, is_there) in [(Why::TimedOut, Err(Source::ProxyConfig)), (Why::NotRequested, Ok(true))] {
            unread.kernel.proxy.config = gap(Source::ProxyConfig, why);
            let unread = Round::of(&unread, None, 60);
            assert_eq!(health.is_there(&unread).map_err(|gap| gap.source), is_there, "it may be told another port");
            assert_eq!(Need::ProxyMetrics.is_there(&unread), Ok(true));
        }
        let mut world = world(|_| ());
        world.own_port = OwnPort::not_requested();
        assert!(without(&world, "Agent"));
        assert!(Round::of(&world, None, 60).needs().with(&[Source::OwnPort]).is_ok());
        let elsewhere = Snapshot::healthy().service("lb", |it| {
            it.with(|service| {
                service.kind = ServiceKind::LoadBalancer;
                service.health_check_node_port = Some(30999);
            })
        });
        assert!(without(&elsewhere, "HealthCheck"), "externalTrafficPolicy is Cluster");
    }

    #[test]
    fn a_tunnel_needs_its_port_up_and_down_and_a_wireguard_device_that_is_up_needs_an_open_port() {
        let tunnels = |world: &Snapshot| {
            known(world).into_iter().filter_map(|it| Some(it.strip_suffix(" Tunnel")?.to_owned())).collect::<Vec<_>>()
        };
        let wireguard = |name: &str, up: bool| {
            Snapshot::healthy().tunnel(name, "wireguard", 1, |link| (link.up, link.udp_port) = (up, None))
        };
        for up in [true, false] {
            let own_port = Snapshot::healthy().tunnel("vxlan.own", "vxlan", 40789, |link| link.up = up);
            assert_eq!(tunnels(&own_port), ["40789"], "{up}");
        }
        assert_eq!(tunnels(&wireguard("wg-v6.cali", false)), ["51821"], "the default port of Calico");
        assert_eq!(tunnels(&wireguard("wg-v6.cali", true)), [""; 0], "the device has another port");
        assert_eq!(tunnels(&wireguard("wg-v6.cali", true).listens_udp("[::]:51821")), ["51821"]);
        assert_eq!(tunnels(&wireguard("wg-v6.cali", true).listens_udp("[::]:51820")), [""; 0], "a port of others");
        assert_eq!(tunnels(&wireguard("kubespan", false)), [""; 0], "the port is not known");
        assert_eq!(tunnels(&wireguard("kubespan", true).listens_udp("0.0.0.0:51820")), ["51820"]);
        assert_eq!(tunnels(&wireguard("kubespan", true).listens("0.0.0.0:51820")), [""; 0], "another protocol");
        assert_eq!(tunnels(&Snapshot::healthy().listens_udp("0.0.0.0:51820")), [""; 0], "no tunnel");
    }

    #[test]
    fn the_addresses_of_a_tunnel_are_those_of_its_families() {
        let world = Snapshot::healthy().tunnel("flannel.1", "vxlan", 8472, |link| link.up = false);
        let round = Round::of(&world, None, 60);
        let [need] = round.needs().known(Unread::Adds).at((Protocol::Udp, 8472)) else { panic!("one need") };
        assert_eq!(need.at(), Addresses::Families(&[Family::V4]));
    }

    #[test]
    fn what_was_not_read_is_a_gap_of_its_part_alone() {
        let sources = [
            Source::Pods,
            Source::WaitingPods,
            Source::Services,
            Source::Listeners,
            Source::ProxyConfig,
            Source::OwnPort,
            Source::Addresses,
        ];
        let lacks = |change: fn(&mut Snapshot)| {
            let mut world = world(|_| ());
            change(&mut world);
            let round = Round::of(&world, None, 60);
            assert!(!round.needs().known(Unread::Adds).is_empty());
            sources.into_iter().filter(|source| round.needs().with(&[*source]).is_err()).collect::<Vec<_>>()
        };
        assert_eq!(lacks(|_| ()), []);
        assert_eq!(lacks(|world| world.cluster.pods = gap(Source::Pods, Why::Unreachable)), [Source::Pods]);
        assert_eq!(lacks(|world| world.cluster.services = gap(Source::Services, Why::TimedOut)), [Source::Services]);
        assert_eq!(lacks(|world| world.kernel.listeners = gap(Source::Listeners, Why::Torn)), [Source::Listeners]);
        let waiting = |world: &mut Snapshot| world.cluster.waiting_pods = gap(Source::WaitingPods, Why::NotPermitted);
        assert_eq!(lacks(waiting), [Source::WaitingPods]);
        assert_eq!(lacks(|world| world.own_port = gap(Source::OwnPort, Why::Unreachable)), [Source::OwnPort]);
        assert_eq!(lacks(|world| world.kernel.interfaces = gap(Source::Addresses, Why::Torn)), [Source::Addresses]);
        let malformed = |world: &mut Snapshot| {
            *world = world.clone().with_config(|config| config.healthz_bind_address = Some("here".to_owned()));
        };
        assert_eq!(lacks(malformed), [Source::ProxyConfig]);
        let mut world = world(|_| ());
        world.cluster.pods = gap(Source::Pods, Why::Unreachable);
        world.cluster.services = gap(Source::Services, Why::Unreachable);
        let round = Round::of(&world, None, 60);
        let first = round.needs().with(&[Source::Services, Source::Pods]).map(|_| ()).expect_err("two gaps");
        assert_eq!(first.source, Source::Services);
    }

    #[test]
    fn a_socket_is_in_the_way_of_its_own_address_and_on_every_address_of_all() {
        let world = |local: &str, v6only: Option<bool>| {
            let mut socket =
                Snapshot::healthy().listens(local).kernel.listeners.seen().expect("listeners").last().cloned();
            socket.as_mut().expect("one").v6only = v6only;
            socket.expect("one")
        };
        let own = format!("{}:80", PRIMARY[0]);
        let (v4, v6) = (Addresses::Families(&[Family::V4]), Addresses::Families(&[Family::V6]));
        let both = Addresses::Families(&Family::BOTH);
        let one = |text: &str| Addresses::One(ip(text));
        for (local, v6only, met, free) in [
            ("0.0.0.0:80", None, &[Addresses::Every, v4, both, one(PRIMARY[0])][..], &[v6, one(PRIMARY[1])][..]),
            ("[::]:80", Some(false), &[Addresses::Every, v4, v6, both, one(PRIMARY[0]), one(PRIMARY[1])], &[]),
            ("[::]:80", Some(true), &[Addresses::Every, v6, both, one(PRIMARY[1])], &[v4, one(PRIMARY[0])]),
            (&own, None, &[Addresses::Every, v4, both, one(PRIMARY[0])], &[v6, one(SECOND[0]), one("127.0.0.1")]),
            ("[::1]:80", None, &[Addresses::Every, v6, both, one("::1")], &[v4, one(PRIMARY[1])]),
        ] {
            let mut socket = world(local, v6only);
            for device in [0, 7] {
                socket.device = device;
                met.iter().for_each(|at| assert_eq!(at.meets(&socket), Some(true), "{local} {at:?}"));
                free.iter().for_each(|at| assert_eq!(at.meets(&socket), Some(false), "{local} {at:?}"));
            }
        }
        let unread = world("[::]:80", None);
        assert_eq!([v4.meets(&unread), one(PRIMARY[0]).meets(&unread)], [None, None]);
        assert_eq!([v6.meets(&unread), both.meets(&unread)], [Some(true); 2]);
        assert_eq!(one("::ffff:192.0.2.1").meets(&world(&own, None)), Some(true), "an address of IPv4 in IPv6's form");
    }

    #[test]
    fn a_need_has_a_socket_for_each_family_or_one_for_all() {
        let families = Addresses::Families(&Family::BOTH).each().collect::<Vec<_>>();
        assert_eq!(families, [Addresses::Families(&[Family::V4]), Addresses::Families(&[Family::V6])]);
        assert_eq!(Addresses::Every.each().collect::<Vec<_>>(), [Addresses::Every]);
        let at = |host_ip: Option<&str>| Addresses::of_pod(&ContainerPort { host_ip: host_ip.map(ip), ..PORT });
        assert_eq!(at(None), Addresses::Every);
        assert_eq!(at(Some("0.0.0.0")), Addresses::Families(&[Family::V4]));
        assert_eq!(at(Some("::")), Addresses::Families(&[Family::V6]));
        assert_eq!(at(Some("127.0.0.1")), Addresses::One(ip("127.0.0.1")));
        assert_eq!(Addresses::of_server(ip("0.0.0.0")), Addresses::Every);
    }
}
