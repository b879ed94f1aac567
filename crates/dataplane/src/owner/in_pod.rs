//! The owner of a port in a pod's own network namespace.

use super::{
    super::{
        by_port::Port,
        claim::ClaimKind,
        owners::process_in_words,
        round::Round,
        sockets::{place, socket_in_words, workers, workers_in_words},
    },
    Beside, BesideKind, Claimant, Ownership,
    beside::connection,
};
use portreeve_facts::{Gap, Pod, Reading, Snapshot, Socket, Source, Why};

/// The owner of a port in the network of the pod `namespace/name`. The claimants are the listeners. If a server of the
/// pod needs the port, this server is in `beside`. If the port has no listener, the connections on the port are in
/// `beside` too. `was_scanned_for` is true if the scan searched this port. Every other scan has only the declared and
/// probed ports of failing pods.
///
/// # Errors
/// Returns a `Gap` if the pod is not on this node, or has no network of its own. Also returns a `Gap` if the pod's
/// sockets on the port were not read.
pub fn owner_in_pod(
    round: &Round<'_>,
    pod: &str,
    (protocol, port): Port,
    was_scanned_for: bool,
) -> Result<Ownership, Gap> {
    let snapshot = round.now;
    let pod = pod_of_name(snapshot, pod)?;
    let is_needed = pod.own_ports.iter().any(|it| (it.protocol, it.port) == (protocol, port));
    let sockets = sockets(snapshot, pod, was_scanned_for || pod.own_ports.iter().any(|it| it.port == port))?;
    let on_port: Vec<&Socket> = sockets.iter().filter(|it| (it.protocol, it.local_port) == (protocol, port)).collect();
    let (listeners, connections): (Vec<&Socket>, Vec<&Socket>) = on_port.into_iter().partition(|it| it.is_listener());
    let claimant = |(socket, count): (&Socket, usize)| Claimant {
        claim: ClaimKind::Listener,
        name: format!("{} on {}", process_in_words(&socket.owner), place(socket)),
        detail: format!("{}{}", socket_in_words(socket), workers_in_words(socket, count)),
    };
    let claimants: Vec<Claimant> = workers(&listeners).into_iter().map(claimant).collect();
    let end = if claimants.is_empty() { ", and no process listens on this port" } else { "" };
    let need = is_needed.then(|| Beside {
        kind: BesideKind::Need,
        name: format!("a server of pod {}/{}", pod.namespace, pod.name),
        detail: format!("one of its containers declares the port, or a probe uses it{end}"),
    });
    // Connections are left out if the port has a listener, because connections that the listener accepted do not block
    // another server.
    let connections =
        connections.into_iter().filter(|_| claimants.is_empty()).map(|it| connection(&process_in_words(&it.owner), it));
    let beside = need.into_iter().chain(connections).collect();
    let (answers, unread) = (Vec::new(), Vec::new());
    let (proxy_mode, mode, redirections, no_proxy) = (None, String::new(), None, None);
    Ok(Ownership { protocol, port, claimants, beside, answers, proxy_mode, mode, unread, redirections, no_proxy })
}

/// The pod of this node with this name, if the pod has a network of its own.
///
/// # Errors
/// Returns a `Gap` if the pod is not known, is on the node's network, or has no uid.
pub fn pod_of_name<'a>(snapshot: &'a Snapshot, pod: &str) -> Result<&'a Pod, Gap> {
    let missing = |why, detail: &str| Gap::new(Source::Pods, why, format!("pod {pod} {detail}"));
    let pods = snapshot.cluster.pods.get()?;
    let found =
        pods.iter().map(AsRef::as_ref).filter(|it| it.may_be_on(snapshot.node_name())).find(|it| it.is_named(pod));
    match found {
        None => {
            let elsewhere = || missing(Why::NotSupported, &format!("is not on node {}", snapshot.node_name()));
            Err(snapshot.cluster.unplaced_pod().cloned().unwrap_or_else(elsewhere))
        }
        Some(found) if found.host_network => {
            Err(missing(Why::NotSupported, "is on the host's network: leave out --pod"))
        }
        Some(found) if found.uid.is_none() => {
            Err(missing(Why::NotSupported, "has no uid: Portreeve finds its processes by the uid"))
        }
        Some(found) => Ok(found),
    }
}

fn sockets<'a>(snapshot: &'a Snapshot, pod: &Pod, was_scanned_for: bool) -> Result<&'a [Socket], Gap> {
    let Pod { namespace, name, .. } = pod;
    let unread =
        |why, detail: &str| Gap::new(Source::PodNamespaces, why, format!("of pod {namespace}/{name}, {detail}"));
    let namespaces = snapshot.kernel.pod_namespaces.get()?;
    let Some(own) = namespaces.iter().find(|it| pod.uids_of_cgroups().any(|uid| uid == it.pod_uid)) else {
        return Err(unread(Why::NotSupported, "no process was found: the pod does not run yet, or has ended"));
    };
    match &own.needed {
        Reading::Seen(sockets) if was_scanned_for => Ok(sockets),
        Reading::Gap(gap) if gap.why != Why::NotRequested => Err(gap.clone()),
        _ => Err(unread(
            Why::NotRequested,
            "this scan did not read the sockets on the port: `owner PORT --pod` on the pod's node reads them",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{
        ContainerPort, PodNamespace, Protocol, State,
        healthy::{gap, held, objects, seen},
    };

    fn socket(protocol: Protocol, state: State, local: &str, remote: &str, command: &str) -> Socket {
        let owner = held("/kubepods/besteffort/poduid-cart/app", Some("uid-cart"), command, 4243);
        let world = Snapshot::healthy().socket(protocol, state, local, remote, |it| it.owner = owner.clone());
        let clients = world.kernel.clients.seen().into_iter().flat_map(|it| &it.sockets);
        let mut all = world.kernel.listeners.seen().into_iter().flatten().chain(clients);
        all.rfind(|it| it.owner == owner).expect("it is there").clone()
    }

    fn world(sockets: Vec<Socket>) -> Snapshot {
        let declared = ContainerPort { port: 8000, host_port: None, host_ip: None, protocol: Protocol::Tcp };
        let mut world = Snapshot::healthy().pod("cart", |pod| pod.own_ports = vec![declared]);
        let own = PodNamespace::with_use("uid-cart", Err(Gap::new(Source::PodNamespaces, Why::Torn, "of no interest")));
        seen(&mut world.kernel.pod_namespaces).push(PodNamespace { needed: Reading::Seen(sockets), ..own });
        world
    }

    fn tcp(state: State, local: &str, remote: &str, command: &str) -> Socket {
        socket(Protocol::Tcp, state, local, remote, command)
    }

    fn ask(world: &Snapshot, port: Port, was_scanned_for: bool) -> Result<Ownership, Gap> {
        owner_in_pod(&Round::of(world, None, 60), "default/cart", port, was_scanned_for)
    }

    const PORT: Port = (Protocol::Tcp, 8000);

    fn kinds(ownership: &Ownership) -> Vec<BesideKind> {
        ownership.beside.iter().map(|it| it.kind).collect()
    }

    #[test]
    fn a_connection_on_the_port_of_a_server_is_named_with_the_need_and_one_on_another_port_is_not() {
        let sidecars = tcp(State::Established, "10.1.0.9:8000", "198.51.100.7:443", "envoy");
        let other = tcp(State::Established, "10.1.0.9:8001", "198.51.100.7:443", "envoy");
        let found = ask(&world(vec![sidecars, other]), PORT, true).expect("it is known");
        assert!(found.claimants.is_empty() && found.answers.is_empty());
        assert_eq!(kinds(&found), [BesideKind::Need, BesideKind::Connection]);
        assert!(found.beside[0].detail.ends_with("no process listens on this port"), "{:?}", found.beside);
        assert!(found.beside[1].name.starts_with("process envoy"), "{:?}", found.beside);
        assert_eq!(kinds(&ask(&world(Vec::new()), (Protocol::Tcp, 8002), true).expect("it is known")), []);
    }

    #[test]
    fn a_listener_is_the_claimant_and_what_it_may_have_accepted_is_not_told() {
        let listens = tcp(State::Listen, "0.0.0.0:8000", "0.0.0.0:0", "uvicorn");
        let accepted = tcp(State::Established, "10.1.0.9:8000", "198.51.100.7:51000", "uvicorn");
        let found = ask(&world(vec![listens, accepted]), PORT, true).expect("it is known");
        assert!(found.claimants[0].name.starts_with("process uvicorn"), "{:?}", found.claimants);
        assert_eq!(kinds(&found), [BesideKind::Need]);
        let datagrams = socket(Protocol::Udp, State::Close, "0.0.0.0:8000", "0.0.0.0:0", "dns");
        let found = ask(&world(vec![datagrams]), (Protocol::Udp, 8000), true).expect("it is known");
        assert_eq!((found.claimants.len(), kinds(&found)), (1, vec![]), "TCP is declared");
    }

    #[test]
    fn what_was_not_looked_for_or_may_not_be_seen_is_not_known() {
        let why = |world: &Snapshot, port, was_scanned_for| {
            ask(world, port, was_scanned_for).map_err(|gap| (gap.source, gap.why)).err()
        };
        let namespaces = |why| Some((Source::PodNamespaces, why));
        let empty = world(Vec::new());
        assert_eq!(why(&empty, PORT, false), None, "an agent asks for what a failing pod declares");
        assert_eq!(why(&empty, (Protocol::Tcp, 8001), false), namespaces(Why::NotRequested));
        let mut closed = empty.clone();
        closed.kernel.pod_namespaces = gap(Source::PodNamespaces, Why::NotPermitted);
        assert_eq!(why(&closed, PORT, true), namespaces(Why::NotPermitted));
        let mut ended = empty.clone();
        seen(&mut ended.kernel.pod_namespaces).clear();
        assert_eq!(why(&ended, PORT, true), namespaces(Why::NotSupported));
        let mut torn = empty.clone();
        seen(&mut torn.kernel.pod_namespaces)[0].needed = gap(Source::PodNamespaces, Why::TooMuch);
        assert_eq!(why(&torn, PORT, true), namespaces(Why::TooMuch));
    }

    #[test]
    fn a_pod_without_a_network_of_its_own_here_is_named_as_such() {
        let detail = |change: fn(&mut Pod)| {
            let mut world = world(Vec::new());
            objects(&mut world.cluster.pods).into_iter().for_each(change);
            ask(&world, PORT, true).expect_err("it is not known").detail
        };
        assert_eq!(detail(|pod| pod.name = "other".to_owned()), "pod default/cart is not on node n1");
        assert!(detail(|pod| pod.node = Some("n2".to_owned())).contains("not on node n1"));
        assert!(detail(|pod| pod.host_network = true).ends_with("leave out --pod"));
        assert!(detail(|pod| pod.uid = None).contains("has no uid"));
        let unnamed = world(Vec::new()).unnamed();
        assert_eq!(ask(&unnamed, PORT, true).expect_err("it may be here").source, Source::Nodes);
    }
}
