//! Who has a port in a pod's own network namespace.

use super::{
    super::{
        by_port::Port,
        claim::ClaimKind,
        owners::owner_name,
        round::Round,
        sockets::{place, socket_in_words, workers},
    },
    Beside, BesideKind, Claimant, Ownership,
    beside::connection,
};
use portreeve_facts::{Gap, Pod, Protocol, Reading, Snapshot, Socket, Source, State, Why};

/// Who has a port in the network of the pod `namespace/name`: the listeners as claimants; beside them what needs the port, and, where nobody
/// listens, the connections that have it. Nothing is told of who answers. `was_asked` says that the look was for this port; else it shows the
/// ports of servers of a pod that fails.
///
/// # Errors
/// When it is not known: the pod is not on this node, has no network of its own, or its sockets on the port were not read.
pub fn owner_in_pod(round: &Round<'_>, pod: &str, (protocol, port): Port, was_asked: bool) -> Result<Ownership, Gap> {
    let snapshot = round.now;
    let pod = pod_of_name(snapshot, pod)?;
    let is_needed = pod.own_ports.iter().any(|it| (it.protocol, it.port) == (protocol, port));
    let sockets = sockets(snapshot, pod, was_asked || pod.own_ports.iter().any(|it| it.port == port))?;
    let on_port: Vec<&Socket> = sockets.iter().filter(|it| (it.protocol, it.local_port) == (protocol, port)).collect();
    let (listeners, connections): (Vec<&Socket>, Vec<&Socket>) = on_port.into_iter().partition(|it| is_listener(it));
    let claimant = |(socket, count): (&Socket, usize)| {
        let workers = if count > 1 { format!(", {count} workers") } else { String::new() };
        Claimant {
            claim: ClaimKind::Listener,
            name: format!("{} on {}", owner_name(snapshot, &socket.owner), place(socket)),
            detail: format!("{}{workers}", socket_in_words(socket)),
        }
    };
    let claimants: Vec<Claimant> = workers(&listeners).into_iter().map(claimant).collect();
    let need = is_needed.then(|| Beside {
        kind: BesideKind::Need,
        name: format!("a server of pod {}/{}", pod.namespace, pod.name),
        detail: match claimants.is_empty() {
            true => "one of its containers declares the port, or a probe asks it, and nobody listens there".to_owned(),
            false => "one of its containers declares the port, or a probe asks it".to_owned(),
        },
    });
    // A listener may have accepted them, and another one still could listen beside them.
    let connections = connections.into_iter().filter(|_| claimants.is_empty()).map(|it| connection(snapshot, it));
    let beside = need.into_iter().chain(connections).collect();
    let (answers, unread) = (Vec::new(), Vec::new());
    let (proxy_mode, mode, redirections) = (None, String::new(), None);
    Ok(Ownership { protocol, port, proxy_mode, claimants, beside, answers, mode, unread, redirections })
}

/// The pod of this node with this name, if it has a network of its own.
///
/// # Errors
/// When it is not known, or its network is the node's.
pub fn pod_of_name<'a>(snapshot: &'a Snapshot, pod: &str) -> Result<&'a Pod, Gap> {
    let missing = |why, detail: &str| Gap::new(Source::Pods, why, format!("pod {pod} {detail}"));
    let pods = snapshot.cluster.pods.get()?;
    let has_name = |it: &&Pod| pod.split_once('/') == Some((&it.namespace, &it.name));
    let found = pods.iter().map(AsRef::as_ref).filter(|it| it.may_be_on(snapshot.node_name())).find(has_name);
    match found {
        None => Err(missing(Why::Absent, &format!("is not on node {}", snapshot.node_name()))),
        Some(found) if found.host_network => {
            Err(missing(Why::NotSupported, "is on the host's network: ask without --pod"))
        }
        Some(found) if found.uid.is_none() => Err(missing(Why::Absent, "has no uid, by which its processes are found")),
        Some(found) => Ok(found),
    }
}

/// The sockets of a pod on the ports that were asked for.
fn sockets<'a>(snapshot: &'a Snapshot, pod: &Pod, was_asked: bool) -> Result<&'a [Socket], Gap> {
    let Pod { namespace, name, .. } = pod;
    let unread = |why, detail: &str| Gap::new(Source::PodNamespaces, why, format!("of pod {namespace}/{name}, {detail}"));
    let namespaces = snapshot.kernel.pod_namespaces.get()?;
    let Some(own) = namespaces.iter().find(|it| pod.uids_of_cgroups().any(|uid| uid == it.pod_uid)) else {
        return Err(unread(Why::Absent, "no process was found: it has no network yet, or no more"));
    };
    match &own.needed {
        Reading::Seen(sockets) if was_asked => Ok(sockets),
        Reading::Gap(gap) if gap.why != Why::NotAsked => Err(gap.clone()),
        _ => Err(unread(Why::NotAsked, "this look did not ask for sockets on the port: `owner PORT --pod` on its node does")),
    }
}

/// Whether a socket waits for clients.
fn is_listener(socket: &Socket) -> bool {
    socket.state == State::Listen || socket.protocol == Protocol::Udp && socket.state == State::Close
}
