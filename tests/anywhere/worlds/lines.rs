//! Reads the lines of an example node: sockets in the form of `ss`, Services in the form of `kubectl get`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use portreeve_facts::{
    Cgroup, ContainerPort, Controller, DestinationUse, Endpoint, EndpointPort, EndpointSlice, Family, ForCilium, Gap,
    Holder, MasqueradePool, Node, NodeAddress, NodeAddressKind, Owner, Pod, PodContainer, Process, Protocol, Reading,
    Redirection, Service, ServiceKind, ServicePort, Socket, Source, State, Why,
};

pub(super) struct Words<'a> {
    line: &'a str,
    rest: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
}

impl<'a> Words<'a> {
    pub(super) fn of(line: &'a str) -> Self {
        Self { line, rest: line.split_whitespace().peekable() }
    }

    #[track_caller]
    pub(super) fn word(&mut self) -> &'a str {
        self.rest.next().unwrap_or_else(|| panic!("a word is missing: {}", self.line))
    }

    #[track_caller]
    pub(super) fn parsed<T: std::str::FromStr>(&mut self) -> T {
        let (line, word) = (self.line, self.word());
        parsed(word, line)
    }

    pub(super) fn next(&mut self) -> Option<&'a str> {
        self.rest.next()
    }

    pub(super) fn takes(&mut self, word: &str) -> bool {
        self.rest.next_if_eq(&word).is_some()
    }

    #[track_caller]
    pub(super) fn expect(&mut self, wanted: &str) {
        let word = self.word();
        assert_eq!(word, wanted, "in the line: {}", self.line);
    }

    #[track_caller]
    pub(super) fn end(mut self) {
        assert_eq!(self.rest.next(), None, "one word too many: {}", self.line);
    }
}

#[track_caller]
fn parsed<T: std::str::FromStr>(word: &str, line: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is not what it has to be: {line}"))
}

#[track_caller]
pub(super) fn protocol(word: &str) -> Protocol {
    let found = Protocol::ALL.into_iter().find(|protocol| protocol.to_string() == word);
    found.unwrap_or_else(|| panic!("no protocol: {word}"))
}

/// Reads a socket, `tcp LISTEN *:10250 kubelet`: protocol, state, address, the peer's address if there is a peer, and
/// owner. Then `uid=1001` or `retransmits=2`.
#[track_caller]
pub(super) fn socket(line: &str) -> Socket {
    let mut words = Words::of(line);
    let protocol = protocol(words.word());
    let word = words.word();
    let state = State::ALL.into_iter().find(|state| state.name() == word);
    let state = state.unwrap_or_else(|| panic!("no state: {line}"));
    let local = words.word();
    // As in `ss`, an asterisk means a socket for both families, and 0.0.0.0 means a socket for IPv4.
    let (local, both): (SocketAddr, bool) = match local.strip_prefix("*:") {
        Some(port) => (SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), parsed(port, line)), true),
        None => (parsed(local, line), false),
    };
    let listens = matches!((protocol, state), (_, State::Listen) | (Protocol::Udp, State::Close));
    let family = Family::of(local.ip());
    let nobody = match family {
        Family::V4 => "0.0.0.0:0",
        Family::V6 => "[::]:0",
    };
    let remote: SocketAddr = if listens { parsed(nobody, line) } else { words.parsed() };
    let owner = owner(words.word(), state);
    let (mut uid, mut retransmits) = (0, 0);
    while let Some(word) = words.next() {
        match word.split_once('=') {
            Some(("uid", value)) => uid = parsed(value, line),
            Some(("retransmits", value)) => retransmits = parsed(value, line),
            _ => panic!("neither uid nor retransmits: {line}"),
        }
    }
    let has_inode = matches!(owner, Owner::Held(_)) && state != State::TimeWait;
    Socket {
        protocol,
        state,
        family,
        local: local.ip(),
        local_port: local.port(),
        remote: remote.ip(),
        remote_port: remote.port(),
        v6only: (listens && family == Family::V6).then_some(!both),
        uid,
        inode: if has_inode { 4000 + number(line) } else { 0 },
        cgroup: has_inode.then(|| 70 + number(line)),
        device: 0,
        retransmits,
        owner,
    }
}

/// Reads an owner: `-` is no owner, `kernel:flannel.1` is a device, `sshd` is a daemon of the node, and
/// `namespace/pod:nginx` is a pod's process.
#[track_caller]
pub(super) fn owner(word: &str, state: State) -> Owner {
    let unknown = |source| Gap::new(source, Why::NotSupported, "the socket has no process any more");
    match word.split_once(':') {
        None if word == "-" && matches!(state, State::TimeWait | State::FinWait2) => Owner::TimeWait,
        None if word == "-" => Owner::Held(Holder {
            cgroup: Reading::Gap(unknown(Source::Cgroups)),
            process: Reading::Gap(unknown(Source::Processes)),
        }),
        Some(("kernel", link)) => Owner::Kernel { link: link.to_owned() },
        None => held(format!("/system.slice/{word}.service"), None, word),
        Some((pod, command)) => {
            let name = pod.split('/').next_back().unwrap_or(pod);
            let pod = PodContainer { pod_uid: format!("uid-{name}"), container: None };
            held(format!("/kubepods.slice/poduid-{name}/{command}"), Some(pod), command)
        }
    }
}

fn held(path: String, pod: Option<PodContainer>, command: &str) -> Owner {
    let pid = 300 + number(&path) as u32;
    let process = Process { pid, command: command.to_owned(), command_line: None, started: 1 + number(&path) };
    Owner::Held(Holder { cgroup: Reading::Seen(Cgroup { path, pod }), process: Reading::Seen(process) })
}

fn number(text: &str) -> u64 {
    text.bytes().fold(7, |sum: u64, byte| (sum * 31 + u64::from(byte)) % 30_011)
}

/// Reads the use of a destination, `tcp 192.0.2.1 -> 198.51.100.7:443 used 27500 waiting 27400 haproxy`, and the pod in
/// whose network the connections are.
#[track_caller]
pub(super) fn busy(line: &str) -> (Option<String>, DestinationUse) {
    let mut words = Words::of(line);
    let protocol = protocol(words.word());
    let source = words.parsed();
    words.expect("->");
    let to: SocketAddr = words.parsed();
    words.expect("used");
    let used = words.parsed();
    words.expect("waiting");
    let time_wait = words.parsed();
    let owner = owner(words.word(), State::Established);
    let pod = words.takes("in").then(|| words.word().to_owned());
    words.end();
    let destination =
        DestinationUse { protocol, source, destination: to.ip(), port: to.port(), used, time_wait, owner };
    (pod, destination)
}

/// Reads the source ports that masquerade uses: `tcp 192.0.2.1 -> 198.51.100.7:443 used 32000 moved 20 ports 1024-65535
/// from 10.244.1.7`.
#[track_caller]
pub(super) fn pool(line: &str) -> MasqueradePool {
    let mut words = Words::of(line);
    let (protocol, translated) = (protocol(words.word()), words.parsed());
    words.expect("->");
    let server: SocketAddr = words.parsed();
    words.expect("used");
    let used = words.parsed();
    words.expect("moved");
    let moved = words.parsed();
    words.expect("ports");
    let ports = words.parsed();
    words.expect("from");
    let senders = vec![(words.parsed(), used)];
    words.end();
    MasqueradePool { protocol, translated, server: (server.ip(), server.port()), used, ports, moved, senders }
}

/// Reads a redirection, `tcp 80 10.244.1.5:8080`. `place` is the position of the rule.
#[track_caller]
pub(super) fn redirection(line: &str, place: u64) -> Redirection {
    let mut words = Words::of(line);
    let (protocol, port) = (protocol(words.word()), words.parsed());
    let to: SocketAddr = words.parsed();
    words.end();
    let chain = format!("ip nat CNI-DN-{place}");
    Redirection { protocol, port, ip: None, to: to.ip(), to_port: to.port(), chain, handle: 5 + place }
}

/// Reads a Node: `n1 InternalIP 192.0.2.1 ExternalIP 203.0.113.1 excluded`.
#[track_caller]
pub(super) fn node(line: &str, version: &str, pod_families: &[Family]) -> Node {
    let mut words = Words::of(line);
    let name = words.word().to_owned();
    let (mut addresses, mut excluded) = (Vec::new(), false);
    while let Some(word) = words.next() {
        let kind = match word {
            "InternalIP" => NodeAddressKind::InternalIp,
            "ExternalIP" => NodeAddressKind::ExternalIp,
            "excluded" => {
                excluded = true;
                continue;
            }
            _ => panic!("no type of address: {word} in {line}"),
        };
        addresses.push(NodeAddress { kind, ip: words.parsed() });
    }
    Node {
        uid: Some(format!("uid-{name}")),
        name,
        addresses,
        excluded_from_load_balancers: excluded,
        kubelet_version: Some(version.to_owned()),
        container_runtime: None,
        pod_families: pod_families.to_vec(),
    }
}

/// Reads pods, `default/edge 80>8080/tcp`: the pod's name, properties such as `hostNetwork`, and the pod's ports as
/// `[hostIP@]hostPort>containerPort/protocol`.
#[track_caller]
pub(super) fn pods(line: &str) -> Vec<Pod> {
    let mut words = Words::of(line);
    let (namespace, name) = parted(words.word(), '/', line);
    let mut pod = Pod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        node: Some("n1".to_owned()),
        ready: true,
        running: Some(true),
        ..Pod::default()
    };
    let mut count = None;
    while let Some(word) = words.next() {
        match word {
            "hostNetwork" => pod.host_network = true,
            "not-ready" => pod.ready = false,
            "failing" => (pod.ready, pod.failing) = (false, true),
            "wants" => {
                let (port, word) = parted(words.word(), '/', line);
                let (port, protocol) = (parsed(port, line), protocol(word));
                pod.own_ports.push(ContainerPort { port, host_port: None, host_ip: None, protocol });
            }
            "of-daemonset" => {
                pod.controller = Some(Controller { kind: "DaemonSet".to_owned(), name: name.to_owned() });
            }
            "finished" => (pod.finished, pod.ready) = (true, false),
            "pending" => (pod.node, pod.ready) = (None, false),
            "range" => pod.ip_local_port_range = Some(words.parsed()),
            "ip" => pod.ips.push(words.parsed()),
            many if many.starts_with('x') => count = Some(parsed::<usize>(&many[1..], line)),
            port => pod.ports.push(container_port(port, line)),
        }
    }
    let named = |name: String| Pod { uid: Some(format!("uid-{name}")), name, ..pod.clone() };
    match count {
        None => vec![named(pod.name.clone())],
        Some(count) => (1..=count).map(|number| named(format!("{}-{number}", pod.name))).collect(),
    }
}

#[track_caller]
fn container_port(word: &str, line: &str) -> ContainerPort {
    let (ports, word) = parted(word, '/', line);
    let (host_ip, ports) = match ports.split_once('@') {
        Some((ip, ports)) => (Some(parsed(ip, line)), ports),
        None => (None, ports),
    };
    let (host_port, port) = parted(ports, '>', line);
    ContainerPort {
        port: parsed(port, line),
        host_port: Some(parsed(host_port, line)),
        host_ip,
        protocol: protocol(word),
    }
}

#[track_caller]
fn parted<'a>(word: &'a str, at: char, line: &str) -> (&'a str, &'a str) {
    word.split_once(at).unwrap_or_else(|| panic!("{word:?} has no {at}: {line}"))
}

/// Reads a Service and its endpoints: `default/web NodePort 10.96.0.20 http=80:30080>8080/tcp local health 31000 lb
/// 198.51.100.7 to 10.244.0.5@n1`.
#[track_caller]
pub(super) fn service(line: &str) -> (Service, Vec<EndpointSlice>) {
    let mut words = Words::of(line);
    let (namespace, name) = parted(words.word(), '/', line);
    let word = words.word();
    let kinds = [ServiceKind::ClusterIp, ServiceKind::NodePort, ServiceKind::LoadBalancer];
    let kind = kinds.into_iter().find(|kind| kind.name() == word).unwrap_or_else(|| panic!("no type: {line}"));
    let cluster_ips: Vec<IpAddr> = words.word().split(',').map(|ip| parsed(ip, line)).collect();
    let families: Vec<Family> = cluster_ips.iter().map(|ip| Family::of(*ip)).collect();
    let mut service = Service {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: Some(format!("uid-{name}").into()),
        kind,
        cluster_ips,
        families: Family::each_once(families.iter().copied()),
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        source_ranges: &[],
        external_local: false,
        internal_local: false,
        health_check_node_port: None,
        health_check_kept: false,
        proxy_name: None,
        for_cilium: ForCilium::default(),
        announced: None,
        ports: Vec::new(),
    };
    let (mut targets, mut endpoints) = (Vec::new(), Vec::new());
    while let Some(word) = words.next() {
        match word {
            "local" => service.external_local = true,
            "health" => service.health_check_node_port = Some(words.parsed()),
            "external" => service.external_ips.push(words.parsed()),
            "lb" => service.load_balancer_ips.push(words.parsed()),
            "vip-host" => service.announced.get_or_insert_default().host = Some(words.word().to_owned()),
            "pool" => service.announced.get_or_insert_default().pool = Some(words.word().to_owned()),
            "other-proxy" => service.proxy_name = Some(words.word().to_owned()),
            "to" => {
                while let Some(word) = words.next() {
                    endpoints.push(endpoint(word, line));
                }
            }
            port => {
                let (port, target) = service_port(port, line);
                service.ports.push(port);
                targets.push(target);
            }
        }
    }
    let slice = |family: &Family| EndpointSlice {
        namespace: namespace.to_owned(),
        service: name.to_owned(),
        family: *family,
        ports: targets.clone(),
        endpoints: endpoints.iter().filter(|it: &&Endpoint| Family::of(it.addresses[0]) == *family).cloned().collect(),
    };
    let slices = families.iter().map(slice).collect();
    (service, slices)
}

/// Reads a port of a Service, `http=80:30080>8080/tcp`: name, port, nodePort, and the endpoints' port. Only the port
/// and the protocol are necessary.
#[track_caller]
fn service_port(word: &str, line: &str) -> (ServicePort, EndpointPort) {
    let (ports, word) = parted(word, '/', line);
    let protocol = protocol(word);
    let (name, ports) = ports.split_once('=').unwrap_or(("", ports));
    let (ports, target) = ports.split_once('>').map_or((ports, None), |(ports, target)| (ports, Some(target)));
    let (port, node_port) = ports.split_once(':').map_or((ports, None), |(port, node)| (port, Some(node)));
    let port = parsed(port, line);
    let node_port = node_port.map(|node_port| parsed(node_port, line));
    let target = target.map_or(port, |target| parsed(target, line));
    (
        ServicePort { name: name.to_owned(), protocol, port, target: None, node_port, fixed: Some(false) },
        EndpointPort { name: name.to_owned(), protocol, port: Some(target) },
    )
}

/// Reads an endpoint: `10.244.0.5@n1`, with `!` at the end if the endpoint terminates.
#[track_caller]
fn endpoint(word: &str, line: &str) -> Endpoint {
    let (word, terminating) = word.strip_suffix('!').map_or((word, false), |word| (word, true));
    let (address, node) = parted(word, '@', line);
    Endpoint {
        addresses: vec![parsed(address, line)],
        ready: !terminating,
        serving: true,
        terminating,
        node: Some(node.to_owned()),
    }
}
