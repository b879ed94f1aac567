//! Makes the node and the cluster of a public thread, and runs the program on them.

use crate::named::{is_of, name};
use std::{net::SocketAddr, sync::Arc};

use portreeve_facts::{
    Address, Cgroup, Family, Gap, Holder, Learned, Link, Mode, Owner, PodContainer, Process, Protocol, Reading,
    Snapshot, Socket, Source, State, Tunnel, Why,
};
use serde_json::Value;
use tempfile::NamedTempFile;

use super::served::{Answer, Named};
use crate::{
    cli::{binary, ended, healthy},
    every_node,
    manifests::facts_of,
};

/// The Service of the API server, and the Nodes. The snapshot of `n1` also has the address 192.0.2.2.
const BASE: &str = "kind: Service\nmetadata: {name: kubernetes, namespace: default}\n\
    spec: {type: ClusterIP, clusterIP: 10.96.0.1, ports: [{name: p0, port: 443, protocol: TCP}]}\n---\n\
    kind: Node\nmetadata: {name: n1, uid: uid-n1}\n\
    status: {addresses: [{type: InternalIP, address: 192.0.2.1}], nodeInfo: {kubeletVersion: v1.36.3}}\n---\n\
    kind: Node\nmetadata: {name: n2, uid: uid-n2}\n\
    status: {addresses: [{type: InternalIP, address: 192.0.2.9}], nodeInfo: {kubeletVersion: v1.36.3}}\n---\n";

#[derive(Clone)]
pub(super) struct World(Snapshot);

impl World {
    /// Makes a node from manifests. Without an API server in the manifests, the node has the default NodePort range.
    #[track_caller]
    pub(super) fn of(manifests: &[String]) -> Self {
        let mut all = vec![BASE.to_owned(), super::objects::endpoints("default/kubernetes", 1, &["192.0.2.9@n2"])];
        if !manifests.iter().any(|text| text.contains("kube-apiserver")) {
            all.push(super::objects::api_server("30000-32767"));
        }
        all.extend_from_slice(manifests);
        let mut world = healthy();
        world.cluster = facts_of(&[all.concat()]);
        assert_eq!(world.cluster.rejected, []);
        Self(world)
    }

    pub(super) fn mode(mut self, mode: Mode) -> Self {
        let proxy = &mut self.0.kernel.proxy;
        if let (Reading::Seen(known), Reading::Seen(config)) = (&mut proxy.mode, &mut proxy.config) {
            known.value = mode;
            config.mode = Some(mode.name().to_owned());
            config.node_port_addresses = (mode == Mode::Nftables).then(|| "primary".to_owned()).into_iter().collect();
        }
        self
    }

    pub(super) fn without_kube_proxy(mut self) -> Self {
        let proxy = &mut self.0.kernel.proxy;
        proxy.mode = gap(Source::ProxyMode);
        proxy.config = gap(Source::ProxyConfig);
        proxy.metrics = gap(Source::ProxyMetrics);
        proxy.cgroup = gap(Source::ProxyProcess);
        proxy.process = gap(Source::ProxyProcess);
        proxy.fds = gap(Source::ProxyProcess);
        self.listening(|socket| !matches!(socket.local_port, 10249 | 10256))
    }

    pub(super) fn said(mut self, mode: Mode) -> Self {
        self.0.overrides.proxy_mode = Some(Learned { value: mode, place: "--proxy-mode".to_owned() });
        self
    }

    pub(super) fn ephemeral(mut self, range: &str, reserved: &str) -> Self {
        self.0.kernel.sysctls.ip_local_port_range = Reading::Seen(range.parse().expect("a range"));
        self.0.kernel.sysctls.ip_local_reserved_ports = Reading::Seen(reserved.parse().expect("a list"));
        self
    }

    pub(super) fn listens(mut self, local: &str, owner: Owner) -> Self {
        let socket = socket(State::Listen, local, "0.0.0.0:0", owner);
        seen(&mut self.0.kernel.listeners).push(socket);
        self
    }

    pub(super) fn listening(mut self, keep: impl Fn(&Socket) -> bool) -> Self {
        seen(&mut self.0.kernel.listeners).retain(keep);
        self
    }

    /// Adds a process that connects and gets no answer: the kernel has sent the SYN again.
    pub(super) fn hangs(mut self, local: &str, remote: &str, owner: Owner) -> Self {
        let clients = seen(&mut self.0.kernel.clients);
        clients.sockets.push(Socket { retransmits: 3, ..socket(State::SynSent, local, remote, owner) });
        clients.outgoing += 1;
        self
    }

    pub(super) fn connects(mut self, local: &str, remote: &str, owner: Owner) -> Self {
        let clients = seen(&mut self.0.kernel.clients);
        clients.sockets.push(socket(State::Established, local, remote, owner));
        clients.outgoing += 1;
        self
    }

    /// Adds an address to a link. If the link does not exist, adds the link first.
    pub(super) fn address(mut self, link: &str, address: &str) -> Self {
        let interfaces = Arc::make_mut(seen(&mut self.0.kernel.interfaces));
        if interfaces.links.iter().all(|other| other.name != link) {
            let index = interfaces.links.len() as u32 + 1;
            let (name, kind) = (link.to_owned(), Some("dummy".to_owned()));
            interfaces.links.push(Link { index, name, kind, udp_port: None, tunnel: None, master: None, up: true });
        }
        let ip = address.parse().expect("an address");
        interfaces.addresses.push(Address { ip, prefix: 32, link: link.into() });
        self
    }

    /// Adds a VXLAN device. While the device is up, the kernel has the device's UDP port open. With the option
    /// `external`, the kernel opens the port for both families.
    pub(super) fn vxlan(mut self, name: &str, port: u16, external: bool, up: bool) -> Self {
        let interfaces = Arc::make_mut(seen(&mut self.0.kernel.interfaces));
        let index = interfaces.links.len() as u32 + 1;
        let families = if external { Family::BOTH.to_vec() } else { vec![Family::V4] };
        let listeners = families.iter().filter(|_| up).map(|family| {
            let (local, peer) = match family {
                Family::V4 => (format!("0.0.0.0:{port}"), "0.0.0.0:0"),
                Family::V6 => (format!("[::]:{port}"), "[::]:0"),
            };
            let socket = socket(State::Close, &local, peer, Owner::Kernel { link: name.to_owned() });
            Socket { protocol: Protocol::Udp, v6only: (*family == Family::V6).then_some(true), ..socket }
        });
        seen(&mut self.0.kernel.listeners).extend(listeners);
        interfaces.links.push(Link {
            index,
            name: name.to_owned(),
            kind: Some("vxlan".to_owned()),
            udp_port: Some(port),
            tunnel: Some(Tunnel { id: (!external).then_some(index), external, families, ..Tunnel::default() }),
            master: None,
            up,
        });
        self
    }

    pub(super) fn with(mut self, change: impl FnOnce(&mut Snapshot)) -> Self {
        change(&mut self.0);
        self
    }

    #[track_caller]
    pub(super) fn reports(&self, rule: &str, severity: &str, subject: &str, owner: &str) -> Named {
        let all = self.findings();
        let of_rule = all.iter().filter(|it| is_of(it, rule) && it["severity"] == severity);
        let about: Vec<&Value> = of_rule.filter(|it| self::subject(it) == subject).collect();
        let Some(reported) = about.first() else {
            let all: Vec<String> = all.iter().map(in_short).collect();
            panic!("no {severity} {rule} of {subject}:\n{}", all.join("\n"))
        };
        Named::of_finding(reported, owner, &self.somebody()).unwrap_or_else(|why| panic!("{why}"))
    }

    #[track_caller]
    pub(super) fn is_silent(&self, rule: &str) {
        let found: Vec<String> = self.findings().iter().filter(|it| is_of(it, rule)).map(in_short).collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[track_caller]
    fn findings(&self) -> Vec<Value> {
        every_node::keeps_what_has_to_hold(&self.0);
        let file = self.file();
        let (code, stdout, stderr) =
            ended(binary().args(["check", "--snapshot"]).arg(file.path()).args(["-o", "json"]));
        assert!(code < 2, "{code}: {stderr}{stdout}");
        let mut document: Value = serde_json::from_str(&stdout).expect("JSON");
        document["findings"].as_array_mut().expect("findings").drain(..).collect()
    }

    #[track_caller]
    pub(super) fn owner(&self, port: &str) -> Answer {
        let file = self.file();
        let ask = |form: &str| {
            let (code, stdout, stderr) =
                ended(binary().arg("owner").args(port.split(' ')).args(["-o", form, "--snapshot"]).arg(file.path()));
            assert!(code < 2, "{code}: {stderr}{stdout}");
            stdout
        };
        let said = ask("text").split_whitespace().collect::<Vec<_>>().join(" ");
        Answer::new(said, serde_json::from_str(&ask("json")).expect("JSON"))
    }

    /// Every possible owner of a port, an address or a nodePort in this snapshot: objects, processes, links, rules, and
    /// proxy modes.
    fn somebody(&self) -> Vec<String> {
        let Snapshot { kernel, cluster, .. } = &self.0;
        let mut names = vec!["Cilium".to_owned()];
        names.extend(Mode::ALL.map(|mode| mode.name().to_owned()));
        let named = |namespace: &str, name: &str| format!("{namespace}/{name}");
        names.extend(cluster.services.seen().into_iter().flatten().map(|it| named(&it.namespace, &it.name)));
        names.extend(cluster.pods.seen().into_iter().flatten().map(|it| named(&it.namespace, &it.name)));
        names.extend(cluster.nodes.seen().into_iter().flatten().map(|it| format!("Node {}", it.name)));
        names.extend(kernel.interfaces.seen().into_iter().flat_map(|it| &it.links).map(|it| it.name.clone()));
        let redirections = kernel.netfilter.seen().and_then(|it| it.redirections.seen());
        names.extend(redirections.into_iter().flatten().map(|it| it.chain.clone()));
        let clients = kernel.clients.seen().into_iter().flat_map(|it| &it.sockets);
        let pods = kernel.pod_namespaces.seen().into_iter().flatten().filter_map(|it| it.needed.seen()).flatten();
        let sockets = kernel.listeners.seen().into_iter().flatten().chain(clients).chain(pods);
        for socket in sockets {
            let Owner::Held(holder) = &socket.owner else { continue };
            names.extend(holder.process.seen().map(|it| it.command.clone()));
            names.extend(portreeve_dataplane::unit_of(&socket.owner).map(|it| it.name.to_owned()));
        }
        names
    }

    fn file(&self) -> NamedTempFile {
        let file = NamedTempFile::new().expect("a file");
        serde_json::to_writer(&file, &self.0).expect("a snapshot is JSON");
        file
    }
}

fn in_short(finding: &Value) -> String {
    format!(
        "{} {} of {}: {} {}",
        finding["severity"],
        name(finding),
        subject(finding),
        finding["summary"],
        finding["remedy"]
    )
}

/// The subject of a finding, for example `Service default/web`, `Node n1`, `Cluster cluster`.
fn subject(finding: &Value) -> String {
    let word = |name: &str| finding["subject"][name].as_str();
    let namespace = word("namespace").map(|it| format!("{it}/")).unwrap_or_default();
    format!("{} {namespace}{}", word("kind").unwrap_or_default(), word("name").unwrap_or_default())
}

pub(super) fn proxy() -> Owner {
    held("/kubepods/burstable/poduid-kube-proxy/p1", Some("uid-kube-proxy"), "kube-proxy", 900)
}

pub(super) fn daemon(command: &str) -> Owner {
    held(&format!("/system.slice/{command}.service"), None, command, 4242)
}

/// The owner of a socket: a process in a systemd unit. `path` is the path of the unit's control group.
pub(super) fn in_unit(path: &str, command: &str) -> Owner {
    held(path, None, command, 1)
}

pub(super) fn in_pod(uid: &str, command: &str) -> Owner {
    held(&format!("/kubepods/besteffort/pod{uid}/c1"), Some(uid), command, 4242)
}

fn held(path: &str, pod_uid: Option<&str>, command: &str, pid: u32) -> Owner {
    let pod = pod_uid.map(|uid| PodContainer { pod_uid: uid.to_owned(), container: None });
    Owner::Held(Holder {
        cgroup: Reading::Seen(Cgroup { path: path.to_owned(), pod }),
        process: Reading::Seen(Process { pid, command: command.to_owned(), command_line: None, started: 1 }),
    })
}

pub(super) fn socket(state: State, local: &str, remote: &str, owner: Owner) -> Socket {
    let address = |text: &str| text.parse::<SocketAddr>().expect("an address and port");
    let (local, remote) = (address(local), address(remote));
    let family = Family::of(local.ip());
    Socket {
        protocol: Protocol::Tcp,
        state,
        family,
        local: local.ip(),
        local_port: local.port(),
        remote: remote.ip(),
        remote_port: remote.port(),
        v6only: (state == State::Listen && family == Family::V6).then_some(false),
        uid: 0,
        inode: 4000 + u64::from(local.port()),
        cgroup: Some(77),
        device: 0,
        retransmits: 0,
        owner,
    }
}

fn gap<T>(source: Source) -> Reading<T> {
    Reading::Gap(Gap::new(source, Why::Unreachable, "nothing answers"))
}

#[track_caller]
fn seen<T: std::fmt::Debug>(reading: &mut Reading<T>) -> &mut T {
    match reading {
        Reading::Seen(fact) => fact,
        Reading::Gap(gap) => panic!("a gap: {gap:?}"),
    }
}
