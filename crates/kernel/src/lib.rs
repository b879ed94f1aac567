//! Reads the node: its sockets, settings, addresses and proxy. Each unread fact has its own reason.
//!
//! The crate only reads facts: it does not judge them, and does not write to the host. If one fact cannot be read, the
//! others are still read.

#![allow(clippy::disallowed_methods, reason = "reads the node's files, its kernel and its proxy")]

pub mod cgroup;
mod connections;
pub mod conntrack;
mod ephemeral;
pub mod health;
pub mod http;
pub mod ip_vs;
mod known;
pub mod netfilter;
pub mod netlink;
mod owner;
mod pod_sockets;
mod pods;
mod privileges;
pub mod proc_net;
pub mod proc_sctp;
pub mod process;
pub mod proxy;
pub mod record;
pub mod resolv;
mod root;
pub mod route;
pub mod sock_diag;
mod sockets;
pub mod sockstat;
mod stopwatch;
mod sysctl;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

pub use self::{
    cgroup::Cgroups,
    connections::Connections,
    ephemeral::{Counted, Counting},
    known::Known,
    owner::{Claim, Owners},
    pods::pod_namespaces,
    process::fds_of,
    sockets::{Listeners, Sockets},
    stopwatch::{Spent, Took, thread_cpu_time},
};
use self::{proxy::Answers, root::Root, stopwatch::Stopwatch};
use portreeve_facts::{
    Clients, EphemeralUse, Gap, HealthCheckAnswer, Holder, Interfaces, KernelFacts, Masquerade, MasqueradePool,
    NodeQuery, Owner, PROXY_HEALTH, PROXY_METRICS, PortRange, Reading, SockStat, Socket, Source, Sysctls, Unread,
    VirtualServer, Why, lists_bound, text,
};

/// The addresses at which kube-proxy serves metrics by default. `bindAddress` selects the IPv4 or the IPv6 address.
/// `metricsBindAddress` can set another address.
const PROXY_PLACES: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PROXY_METRICS),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), PROXY_METRICS),
];

/// If the host has at most this number of connections, every scan walks over all of them. The walk takes one or two
/// milliseconds.
const FEW_CONNECTIONS: u32 = 16_384;

/// A host to read: the running host, or a recorded tree of files.
#[derive(Clone, Debug)]
pub struct Host {
    root: Root,
    proxy_places: Vec<SocketAddr>,
}

impl Host {
    /// The host whose `/` is at `root`. The host is live if `root` is `/`, or a mount of the running host's `/` (the
    /// boot ids are equal). On a live host, the kernel and the proxy are also read. In a recorded tree, only files are
    /// read, and all other facts are unread.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: Root::at(root.into()), proxy_places: PROXY_PLACES.to_vec() }
    }

    /// Replaces the addresses at which kube-proxy is queried, in this order. The default is the two loopback addresses
    /// with port 10249. Each address must be an address of this host.
    #[must_use]
    pub fn with_proxy_places(self, proxy_places: Vec<SocketAddr>) -> Self {
        Self { proxy_places, ..self }
    }

    /// Whether the host is the running host. Only the kernel of the running host can be queried.
    pub fn is_live(&self) -> bool {
        self.root.is_live()
    }

    /// The name of the host from `/proc/sys/kernel/hostname`, or `unknown` if the file cannot be read.
    pub fn hostname(&self) -> String {
        self.name("hostname")
    }

    /// Reads every fact once, in the network namespace of the calling thread. If a proxy hangs, the call blocks for
    /// some seconds. So call this function on a thread of its own, outside of an async runtime.
    ///
    /// Sockets are read before the proxy, so that Portreeve's own connections are not among the sockets.
    pub fn read(&self, wanted: &NodeQuery) -> KernelFacts {
        self.read_again(wanted, &mut Known::default()).0
    }

    /// Reads every fact as [`Self::read`] does, and uses the facts that earlier scans left in `known`. Also returns the
    /// time that each reader took.
    pub fn read_again(&self, wanted: &NodeQuery, known: &mut Known) -> (KernelFacts, Took) {
        let watch = Stopwatch::default();
        let proc = self.root.path().join("proc");
        let interfaces =
            watch.on(Source::Addresses, || self.if_live(Source::Addresses, || known.interfaces.read())).into();
        let sysctls = watch.on(Source::Sysctls, || sysctl::read(&self.root));
        let sockstat = unless_skipped(wanted, &watch, Source::Sockstat, || sockstat::read(&self.root)).into();
        let sockets = self.sockets(wanted, &interfaces, &sysctls, &sockstat, &mut known.sockets, &watch);
        let own = interfaces.known(Unread::Doubted).map(Arc::as_ref);
        let (answers, health_checks) = self.query_proxies(wanted, own, &sockets.listeners, &watch);
        let ip_vs = unless_skipped(wanted, &watch, Source::IpVs, || ip_vs::servers(&self.root)).into();
        let requested = wanted.masquerade_pools && !wanted.skipped.contains(&Source::Conntrack);
        let may_lack_ports = requested && conntrack::may_lack_ports(&self.root);
        let masquerade = unless_skipped(wanted, &watch, Source::Conntrack, || {
            self.masquerade(wanted, &interfaces, (&ip_vs, may_lack_ports), &mut known.flows)
        });
        let (masquerade, masquerade_pools): (Reading<Masquerade>, _) = match masquerade {
            Ok((masquerade, pools)) => (Reading::Seen(masquerade), pools),
            // If source ports may be scarce, the pools count as unread. If no sign shows that source ports are scarce,
            // rules do not need the pools.
            Err(gap) if may_lack_ports && gap.why != Why::NotRequested => {
                (Reading::Gap(gap.clone()), Reading::Gap(gap))
            }
            Err(gap) => (Reading::Gap(gap), Masquerade::pools_not_requested()),
        };
        let unanswered = masquerade.known(Unread::Chooses).map_or(&[][..], |it| &it.unanswered);
        let ip_vs_connections = unless_skipped(wanted, &watch, Source::IpVsConn, || {
            ip_vs::connections(&self.root, &wanted.client_ports, unanswered)
        });
        let pod_namespaces = unless_skipped(wanted, &watch, Source::PodNamespaces, || {
            self.if_live(Source::PodNamespaces, || {
                pod_namespaces(&proc, PortRange::DEFAULT_EPHEMERAL.size() / 2, &wanted.pods, known)
            })
        });
        let nameservers = unless_skipped(wanted, &watch, Source::ResolvConf, || resolv::read(&self.root));
        let netfilter = unless_skipped(wanted, &watch, Source::Netfilter, || {
            self.if_live(Source::Netfilter, || netfilter::read(&self.root))
        });
        let facts = KernelFacts {
            hostname: self.hostname(),
            release: self.name("osrelease"),
            booted: if self.is_live() { process::booted() } else { None },
            capabilities: if self.is_live() { privileges::read() } else { Vec::new() },
            proxy: watch.on(Source::ProxyProcess, || proxy::facts(answers, &sockets.listeners, &proc)),
            listeners: sockets.listeners,
            no_udp: sockets.no_udp,
            socket_source: sockets.read_from,
            clients: sockets.clients,
            ephemeral: sockets.ephemeral,
            pod_namespaces: pod_namespaces.into(),
            sysctls,
            sockstat,
            interfaces,
            nameservers: nameservers.into(),
            ip_vs,
            ip_vs_connections: ip_vs_connections.into(),
            masquerade,
            masquerade_pools,
            netfilter: netfilter.into(),
            health_checks,
        };
        (facts, watch.stop())
    }

    fn if_live<T>(&self, source: Source, reader: impl FnOnce() -> Result<T, Gap>) -> Result<T, Gap> {
        if self.is_live() { reader() } else { Err(root::recorded(source)) }
    }

    /// Reads masqueraded flows in three cases: IPVS may take the answers of flows, the number of flows is requested, or
    /// source ports may be scarce.
    fn masquerade(
        &self,
        wanted: &NodeQuery,
        interfaces: &Reading<Arc<Interfaces>>,
        (ip_vs, may_lack_ports): (&Reading<Vec<VirtualServer>>, bool),
        counted: &mut conntrack::FlowCounts,
    ) -> Result<(Masquerade, Reading<Vec<MasqueradePool>>), Gap> {
        let serves = !ip_vs.known_part(Unread::Chooses).is_empty();
        if !serves && !may_lack_ports && wanted.masquerade_ports.is_empty() {
            let unread =
                ip_vs.gap().map(|gap| format!("it is not known whether IPVS has virtual servers: {}", gap.detail));
            let detail = unread.unwrap_or_else(|| "IPVS has no virtual servers on this node".to_owned());
            return Err(Gap::new(Source::Conntrack, Why::NotRequested, detail));
        }
        self.if_live(Source::Conntrack, || match interfaces {
            Reading::Seen(own) => conntrack::read(&self.root, wanted, own, (serves, may_lack_ports), counted),
            Reading::Gap(gap) => Err(Gap { source: Source::Conntrack, ..gap.clone() }),
        })
    }

    fn sockets(
        &self,
        wanted: &NodeQuery,
        interfaces: &Reading<Arc<Interfaces>>,
        sysctls: &Sysctls,
        sockstat: &Reading<SockStat>,
        known: &mut Option<Sockets>,
        watch: &Stopwatch,
    ) -> HostSockets {
        let reader = known.get_or_insert_with(|| {
            let proc = self.root.path().join("proc");
            if self.is_live() { Sockets::live(&proc) } else { Sockets::recorded(&self.root.net("")) }
        });
        let (mut listeners, no_udp, read_from) = match watch.on(Source::Listeners, || reader.listeners()) {
            Ok(Listeners { sockets, read_from, no_udp }) => (Ok(sockets), no_udp, read_from),
            Err(gap) => (Err(gap), None, "nothing".to_owned()),
        };
        let Connections { mut clients, mut counted } =
            connections(reader, wanted, &listeners, sysctls, sockstat, watch);
        if let (Ok(found), Ok(listeners)) = (&mut clients, &listeners)
            && !wanted.contested.is_empty()
            && !found.passed_over
        {
            let lists_bound = self.is_live() && lists_bound(&self.name("osrelease"));
            let found = std::mem::take(found);
            clients = watch.on(Source::Clients, || reader.walk_again(found, &wanted.contested, listeners, lists_bound));
        }

        let mut unnamed: Vec<(Claim, &mut Owner)> = Vec::new();
        // Portreeve does not read kube-proxy's health port, but it names the owner of this port.
        let always = self.proxy_places.iter().map(SocketAddr::port).chain([PROXY_HEALTH]);
        let interfaces = interfaces.known(Unread::Adds).map(Arc::as_ref);
        let down = interfaces.into_iter().flat_map(Interfaces::tunnels_down).map(|(port, _)| port);
        let wanted_ports = wanted.owner_ports.union(&always.chain(down).collect());
        let of_interest = listeners.iter_mut().flatten().filter(|socket| wanted_ports.contains(socket.local_port));
        for socket in of_interest.chain(clients.iter_mut().flat_map(|clients| &mut clients.sockets)) {
            unnamed.push((Claim::from(&*socket), &mut socket.owner));
        }
        if let Ok(Counted { ephemeral, examples }) = &mut counted {
            unnamed.extend(examples.drain(..).zip(ephemeral.busiest.iter_mut().map(|busy| &mut busy.owner)));
        }
        watch.on(Source::Processes, || {
            self.name_owners(unnamed, interfaces, wanted.command_lines);
        });

        let ephemeral = counted.map(|counted| counted.ephemeral).into();
        HostSockets { listeners: listeners.into(), no_udp, read_from, clients: clients.into(), ephemeral }
    }

    fn name_owners(&self, unnamed: Vec<(Claim, &mut Owner)>, interfaces: Option<&Interfaces>, command_lines: bool) {
        let (claims, owners): (Vec<_>, Vec<_>) = unnamed.into_iter().unzip();
        let found = if self.is_live() {
            let links = interfaces.into_iter().flat_map(|interfaces| &interfaces.links);
            let up = links.filter(|link| link.up);
            let tunnels = up.filter_map(|link| Some((link.udp_port?, link.name.clone()))).collect();
            Owners::live(self.root.path(), tunnels, command_lines).of(&claims)
        } else {
            let unread = |_: &Claim| {
                let [cgroup, process] = [Source::Cgroups, Source::Processes].map(root::recorded);
                Owner::Held(Holder { cgroup: Reading::Gap(cgroup), process: Reading::Gap(process) })
            };
            claims.iter().map(unread).collect()
        };
        for (owner, found) in owners.into_iter().zip(found) {
            *owner = found;
        }
    }

    fn query_proxies(
        &self,
        wanted: &NodeQuery,
        interfaces: Option<&Interfaces>,
        listeners: &Reading<Vec<Socket>>,
        watch: &Stopwatch,
    ) -> (Answers, Reading<Vec<HealthCheckAnswer>>) {
        let places = proxy::believed(&self.proxy_places, listeners);
        let read = match &places {
            _ if !self.is_live() => Err(root::recorded(Source::ProxyMode)),
            Err(gap) if wanted.health_check_ports.is_empty() => Ok((Answers::none(gap), Vec::new())),
            places => http::run(async {
                let addresses = health::addresses(interfaces);
                let health_checks = health::read(&wanted.health_check_ports, &addresses);
                let proxies = async {
                    match places {
                        Ok(places) => proxy::read(places, watch).await,
                        Err(gap) => Answers::none(gap),
                    }
                };
                tokio::join!(proxies, watch.awaiting(Source::HealthChecks, health_checks))
            }),
        };
        match read {
            Ok((answers, health_checks)) => (answers, Reading::Seen(health_checks)),
            Err(gap) => (Answers::none(&gap), Reading::Gap(Gap { source: Source::HealthChecks, ..gap })),
        }
    }

    /// The text of a one-line file below `/proc/sys/kernel`, or `unknown` if the file cannot be read.
    fn name(&self, file: &str) -> String {
        let path = self.root.file(&format!("proc/sys/kernel/{file}"));
        root::read_text(Source::Sysctls, &path, 1024)
            .map_or_else(|_| "unknown".to_owned(), |line| text::clean(&line, text::NAME))
    }
}

struct HostSockets {
    listeners: Reading<Vec<Socket>>,
    no_udp: Option<Gap>,
    read_from: String,
    clients: Reading<Clients>,
    ephemeral: Reading<EphemeralUse>,
}

/// Whether to skip the expensive walk over all connections for client sockets. The walk is skipped if the kernel never
/// chooses the wanted ports: only a program that binds a port by number can then have a wanted port.
fn can_pass_over(wanted: &NodeQuery, sysctls: &Sysctls, sockstat: &Reading<SockStat>) -> bool {
    let (Reading::Seen(stat), Ok(chosen)) = (sockstat, sysctls.ephemeral_ports()) else { return false };
    let many = stat.tcp_everywhere.saturating_add(stat.tcp_time_wait) > FEW_CONNECTIONS;
    many && !wanted.bound_on_purpose && chosen.minus(&wanted.client_ports).len() == chosen.len()
}

fn unless_skipped<T>(
    wanted: &NodeQuery,
    watch: &Stopwatch,
    source: Source,
    reader: impl FnOnce() -> Result<T, Gap>,
) -> Result<T, Gap> {
    if wanted.skipped.contains(&source) { Err(not_needed(source)) } else { watch.on(source, reader) }
}

fn not_needed(source: Source) -> Gap {
    Gap::new(source, Why::NotRequested, "no rule of this scan needs it")
}

/// Reads client sockets. Counts ephemeral ports if half of the range may be in use. If less than half of the range is
/// in use, rules do not warn.
fn connections(
    reader: &Sockets,
    wanted: &NodeQuery,
    listeners: &Result<Vec<Socket>, Gap>,
    sysctls: &Sysctls,
    sockstat: &Reading<SockStat>,
    watch: &Stopwatch,
) -> Connections {
    let is_wanted = |source| !wanted.skipped.contains(&source);
    let passed_over = can_pass_over(wanted, sysctls, sockstat);
    // Without the listeners, accepted connections look like outgoing connections.
    let ports = sysctls.ephemeral_ports().and_then(|ports| listeners.as_ref().map(|_| ports).map_err(Gap::clone));
    let ports = ports.map_err(|gap| Gap { source: Source::EphemeralUse, ..gap });
    let counting = ports.as_ref().ok().filter(|_| is_wanted(Source::EphemeralUse)).map(|ports| Counting {
        ports,
        at_most: sockstat.known(Unread::Doubted).map(SockStat::of_one_protocol),
        worth_walking: ports.len() / 2,
        tcp_tw_reuse: sysctls.tcp_tw_reuse.known(Unread::Doubted).copied(),
    });
    let clients = (is_wanted(Source::Clients) && !passed_over).then_some(&wanted.client_ports);
    let readers = [clients.map(|_| Source::Clients), counting.map(|_| Source::EphemeralUse)];
    let readers: Vec<Source> = readers.into_iter().flatten().collect();
    // If listeners were not read, the reader cannot recognize accepted connections. Only the order of the clients is
    // then different.
    let known = listeners.as_deref().unwrap_or_default();
    let found = watch.on_each(&readers, || reader.connections(clients, counting.as_ref(), known));
    Connections {
        clients: match is_wanted(Source::Clients) {
            false => Err(not_needed(Source::Clients)),
            true if passed_over => Ok(Clients { passed_over, ..Clients::default() }),
            true => found.clients.map(|clients| Clients { searched: wanted.client_ports.clone(), ..clients }),
        },
        counted: match is_wanted(Source::EphemeralUse) {
            false => Err(not_needed(Source::EphemeralUse)),
            true => ports.and(found.counted),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::Snapshot;

    #[test]
    fn clients_are_not_walked_if_connections_are_many_and_the_kernel_chooses_no_port_that_matters() {
        let KernelFacts { mut sysctls, .. } = Snapshot::healthy().kernel;
        let stat = |tcp_everywhere| Reading::Seen(SockStat { tcp: 9, tcp_time_wait: 1, udp: 0, tcp_everywhere });
        let many = stat(FEW_CONNECTIONS);
        let node_ports = NodeQuery { client_ports: PortRange::DEFAULT_NODE_PORTS.into(), ..NodeQuery::default() };
        assert!(can_pass_over(&node_ports, &sysctls, &many));
        assert!(!can_pass_over(&node_ports, &sysctls, &stat(FEW_CONNECTIONS - 1)), "there are few connections");
        let unknown = Reading::Gap(not_needed(Source::Sockstat));
        assert!(!can_pass_over(&node_ports, &sysctls, &unknown), "their number is unknown");
        let every = NodeQuery { bound_on_purpose: true, ..node_ports.clone() };
        assert!(!can_pass_over(&every, &sysctls, &many), "bound ports are wanted at any cost");
        sysctls.ip_local_port_range = Reading::Seen(PortRange { first: 1024, last: 65535 });
        assert!(!can_pass_over(&node_ports, &sysctls, &many), "the kernel gives NodePorts to connections");
        sysctls.ip_local_reserved_ports = Reading::Seen(PortRange::DEFAULT_NODE_PORTS.into());
        assert!(can_pass_over(&node_ports, &sysctls, &many), "NodePorts are reserved");
    }
}
