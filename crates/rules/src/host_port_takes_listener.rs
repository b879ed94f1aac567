//! A pod's hostPort is the port of a process. Either the pod gets the connections of the process, or the pod gets no
//! network.

use std::{cell::Cell, collections::HashMap, iter};

use super::{
    Limits, Round, Rule,
    assumed::assuming,
    capped::{Capped, in_order},
    ephemeral::EphemeralPorts,
    ids,
    pods::{PortOf, next_pod, pods_before, to_come, unread_pod},
    remedies::{move_off, move_off_unless},
    socket_needs::{Ports, SocketNeed},
    wording::{capital, with_socket},
};
use crate::findings::{Affected, Evidence, Judgement, Judgements, Remedy, Severity, Step, Subject, Verdict};
use portreeve_dataplane::{
    Addressed, Addresses, ByPort, Claim, Contest, Group, Judged, LocalAddress, Need, Outcome, Port, group,
    is_everywhere, owner_name, place, unsettled,
};
use portreeve_facts::{
    ContainerPort, Gap, Owner, Pod, Protocol, Snapshot, Socket, Source, Unread, Why, if_requested, kubernetes_version,
};

pub(super) static RULE: Rule = Rule::of(
    &ids::HOST_PORT_CONFLICT,
    &["takes-listener", "no-network"],
    &[Source::Listeners, Source::Pods, Source::Services, Source::Addresses],
    check,
)
.uses(&[Source::Nodes, Source::Netfilter])
.sockets(&[SocketNeed::Owners(Ports::HostPorts), SocketNeed::Owners(Ports::Proxy)]);

/// A pod usually has its network within this number of seconds after it was scheduled.
const LONGEST_START: i64 = 120;

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let listening = round.listeners().get()?;
    let host_ports = pods_before(snapshot).and_then(|_| if_requested(round.host_ports().get()))?;
    let node_ports = round.node_ports().get()?;
    let addressed = round.addressed().get()?;

    let of_pods = host_ports.into_iter().flat_map(ByPort::ports);
    let of_pods = of_pods.flat_map(|(port, pods)| pods.iter().map(move |(pod, host)| (*pod, *host, port)));
    let runtime = runtime_of(snapshot);
    let ephemeral = EphemeralPorts::of(snapshot);
    let node = Node { round, snapshot, addressed, ephemeral, listening, runtime };
    let sockets_at = |number: Port| in_order(listening.at(number), |_| ()).into_iter().map(|(socket, _)| socket);
    let of_services = |number: Port| round.claims_of_services(number, |ip| addressed.local(ip).is_some());
    let mut services: HashMap<Port, Vec<Claim<'_>>> = HashMap::new();
    let mut capped = Capped::of(snapshot, Source::Pods);
    for (pod, port, number) in of_pods {
        let is_here = snapshot.cluster.unknown_node().is_none();
        let starts = is_here && !pod.has_begun() && node_ports.at(number).is_empty();
        let stuck = starts.then(|| node.judge_start(pod, port, number.1)).flatten();
        // If the runtime has to open the port, a stuck pod has no redirection.
        let has_none = stuck.is_some() && holds_host_ports(runtime) == Some(true);
        let sockets = sockets_at(number).filter(|_| !has_none);
        let services = &*services.entry(number).or_insert_with(|| of_services(number));
        let taken = sockets.filter_map(|socket| node.judge(PortOf::Pod(pod), (pod, port), socket, services));
        stuck.into_iter().chain(taken).for_each(|judgement| capped.push(judgement));
    }
    unread_pod(snapshot).into_iter().for_each(|judgement| capped.push(judgement));
    let mut judgements = capped.all();
    for workload in to_come(snapshot).filter(|workload| !workload.host_network) {
        let pod = next_pod(snapshot, workload);
        for (number, port) in
            pod.node_ports().filter(|(number, port)| node_ports.at((port.protocol, *number)).is_empty())
        {
            let (of, number) = (PortOf::Workload(workload), (port.protocol, number));
            let services = &*services.entry(number).or_insert_with(|| of_services(number));
            judgements.extend(sockets_at(number).filter_map(|socket| node.judge(of, (&pod, port), socket, services)));
        }
    }
    Ok(judgements)
}

struct Node<'r, 'a> {
    round: &'r Round<'a>,
    snapshot: &'a Snapshot,
    addressed: &'r Addressed<'a>,
    ephemeral: EphemeralPorts,
    listening: &'r ByPort<&'a Socket>,
    /// The container runtime and its version, if the Node object was read.
    runtime: Option<&'a str>,
}

impl Node<'_, '_> {
    /// `services` are the claims of Services that may get the connections to the hostPort.
    fn judge(
        &self,
        of: PortOf<'_>,
        (pod, port): (&Pod, &ContainerPort),
        socket: &Socket,
        services: &[Claim<'_>],
    ) -> Option<Judgement> {
        let number = (port.protocol, socket.local_port);
        let is_node_port = services.iter().any(|it| matches!(it, Claim::NodePort(..)));
        let claims = iter::once(Claim::HostPort(pod, port)).chain(services.iter().copied());
        let claims = claims.chain([Claim::Listener(socket, 1)]);
        let contest = Contest::of(self.round, self.addressed, number, claims);
        let excuse = self.excuse(number, socket, is_node_port);
        let everywhere = is_everywhere(socket);
        let (is_undefined, is_left_out) = (Cell::new(false), Cell::new(false));
        // If the connection may reach the pod or the NodePort, another rule reports the loss.
        let counts = |to: LocalAddress, outcome: Option<Outcome>| {
            let is_external = |it: &Claim<'_>| matches!(it, Claim::External(address, _) if address.ip == to.ip);
            let counts = outcome.is_some() || services.iter().any(is_external);
            is_undefined.set(is_undefined.get() || counts && outcome.is_none());
            is_left_out.set(is_left_out.get() || !counts);
            counts
        };
        let (judged, stratum) = self.addressed.over(everywhere, |assumption, case| {
            let lost = contest.lost((assumption, case), &excuse, counts);
            Ok(lost?.map(|it| it.affected()))
        });
        let opens = || {
            let keeps = || keeps_host_port(self.round, socket, is_node_port) == Ok(true);
            !pod.has_begun() && has_name_of_runtime(socket) && keeps()
        };
        let verdict = match judged {
            Judged::Never => return None,
            // `listener-on-node-port` reports the process, because the process loses the connections to the NodePort or
            // to the pod.
            Judged::Depends { .. } if is_left_out.get() && excuse.is_ok() => return None,
            // The socket is the runtime's: the runtime opens the hostPort while the pod starts.
            Judged::Certain(..) if opens() => return None,
            Judged::Depends { on, .. } if unsettled(self.snapshot, pod).as_ref() == Some(&on) && opens() => {
                return None;
            }
            Judged::Depends { on, .. } => Verdict::Unknown(on),
            Judged::Certain(affected, _) => match keeps_host_port(self.round, socket, is_node_port) {
                Ok(true) if is_node_port => return None,
                Ok(is) => {
                    let taker = match is_undefined.get() {
                        true => "the pod or to a Service",
                        false if self.may_have_left(number) => "the pod or to the target of another redirection",
                        false => "the pod",
                    };
                    Verdict::Problem(self.evidence(of, port, socket, (&affected, taker), is))
                }
                Err(gap) => Verdict::Unknown(gap),
            },
        };
        Some(Judgement::on_port(
            of.subject_or(Subject::this_node(self.snapshot)),
            (socket.protocol, socket.local_port),
            assuming(stratum, everywhere, verdict),
        ))
    }

    /// Whether a redirection of a deleted pod may come before the redirection of the pod.
    fn may_have_left(&self, number: Port) -> bool {
        let redirections = self.round.redirections().known(Unread::Reported("the gap of the redirections"));
        let missed = self.round.unread_redirections();
        missed.is_some_and(|gap| !matches!(gap.why, Why::NotPermitted | Why::NotSupported))
            || redirections.is_some_and(|all| !all.left_behind(number).is_empty())
    }

    /// Whether the socket may belong to a client, or belongs to the proxy. If the hostPort is also a Service's port,
    /// other variants report the conflict.
    fn excuse(&self, number: Port, socket: &Socket, is_node_port: bool) -> Result<bool, Gap> {
        let mut needs = self.round.needs().known(Unread::Reported("the gap of Services")).at(number).iter();
        let is_of_proxy = is_node_port || needs.any(|need| matches!(need, Need::HealthCheck(_)));
        match self.ephemeral.may_be_client(socket) {
            Ok(false) if is_of_proxy => self.round.proxy().is_own(socket),
            may_be => may_be,
        }
    }

    /// The judgement about a pod that has no network yet: a process may have the port that the container runtime must
    /// open.
    fn judge_start(&self, pod: &Pod, port: &ContainerPort, number: u16) -> Option<Judgement> {
        let waits = pod.scheduled.map(|since| self.snapshot.at.as_second() - since.as_second());
        let is_stuck = pod.running != Some(true) && waits.is_some_and(|seconds| seconds > LONGEST_START);
        let (severity, end) = match holds_host_ports(self.runtime) {
            Some(true) => (Severity::Warning, "gets no network, because the container runtime cannot open the port"),
            None => (Severity::Info, "gets no network if the container runtime has to open the port"),
            Some(false) => return None,
        };
        if !is_stuck || !is_held(port.protocol) {
            return None;
        }
        let is_in_the_way = |it: &&&Socket| Addresses::of_pod(port).meets(it) != Some(false);
        let socket = self.listening.at((port.protocol, number)).iter().find(is_in_the_way)?;
        let summary = format!(
            "{} listens on {}, the hostPort of pod {}/{}: the pod {end}.",
            capital(&owner_name(self.snapshot, &socket.owner)),
            place(socket),
            pod.namespace,
            pod.name
        );
        let runtime = self.runtime.unwrap_or("not known: CRI-O up to 1.30 opens the port, containerd does not");
        let evidence = self.about(Evidence::new(severity, summary), port, socket);
        let evidence = evidence.value("container runtime", runtime).variant("no-network");
        let look = Step::advice(format!(
            "check whether the Events of pod {}/{} contain *address already in use*",
            pod.namespace, pod.name
        ));
        let moved = move_off(self.snapshot, socket);
        let evidence = evidence.remedy(Remedy { steps: [look].into_iter().chain(moved.steps).collect() });
        let problem = || Verdict::Problem(evidence.remedy(another_host_port(PortOf::Pod(pod))));
        let verdict = self.round.in_vrfs(&[*socket]).map_or_else(problem, Verdict::Unknown);
        Some(Judgement::on_port(Subject::pod(pod), (port.protocol, number), verdict))
    }

    fn about(&self, evidence: Evidence, port: &ContainerPort, socket: &Socket) -> Evidence {
        let evidence = with_socket(evidence, "listener", self.snapshot, socket);
        let address = port.host_ip.map_or("every address".to_owned(), |ip| ip.to_string());
        let (number, protocol) = (socket.local_port, socket.protocol);
        evidence.value("hostPort", format!("{number}/{protocol} on {address} to container port {}", port.port))
    }

    fn evidence(
        &self,
        of: PortOf<'_>,
        port: &ContainerPort,
        socket: &Socket,
        (affected, taker): (&Affected, &str),
        is_runtimes: bool,
    ) -> Evidence {
        let severity = if is_runtimes { Severity::Info } else { Severity::Warning };
        let owner = owner_name(self.snapshot, &socket.owner);
        let sentence = format!(
            "{} listens on {}, the hostPort of {of}: new connections go to {taker} instead.",
            capital(&owner),
            place(socket),
        );
        let mut evidence = self.about(Evidence::new(severity, sentence), port, socket);
        if is_runtimes {
            let runtime = self.runtime.unwrap_or("not known, but the listening process has a socket on each hostPort");
            evidence = evidence.value("container runtime", format!("{runtime}: it may keep the port for the pod"));
        }
        let moved = match is_runtimes {
            true => {
                move_off_unless(self.snapshot, socket, "the container runtime listens, and keeps the port for the pod")
            }
            false => move_off(self.snapshot, socket),
        };
        evidence
            .about(of.field(socket.local_port, socket.protocol))
            .each("assumed", self.ephemeral.assumed_of(socket))
            .value("established connections", "continue; only new connections are lost")
            .affects(affected.iter().copied())
            .remedy(moved)
            .remedy(another_host_port(of))
    }
}

/// Whether a container runtime may have opened this socket to hold a hostPort. A process in a pod is not a container
/// runtime. A runtime opens the socket on every address, or on the `hostIP` of the hostPort. If the runtime is unknown,
/// a process with a socket on each hostPort may be the runtime. On a NodePort, a socket on each hostPort does not prove
/// that the process is the runtime. The node may have only one hostPort.
///
/// # Errors
/// Fails if the result depends on the socket's owner, and the owner was not read. If the port is a NodePort, the
/// runtime is unknown, and the process may be the runtime.
pub(super) fn keeps_host_port(round: &Round<'_>, socket: &Socket, is_node_port: bool) -> Result<bool, Gap> {
    let of_runtime = holds_host_ports(runtime_of(round.now));
    let holds = match of_runtime {
        _ if !is_held(socket.protocol) || !is_where_runtimes_listen(round, socket) => false,
        Some(holds) => holds,
        None => has_them_all(round, socket)?,
    };
    let keeps = match &socket.owner {
        _ if !holds => false,
        Owner::Held(holder) => if_requested(holder.cgroup.get())?.is_none_or(|it| it.pod.is_none()),
        _ => true,
    };
    if !keeps || !is_node_port || of_runtime.is_some() || has_name_of_runtime(socket) {
        return Ok(keeps);
    }
    if_requested(round.now.cluster.nodes.get())?;
    let detail = "the process may be the container runtime: it has a socket on each hostPort, and it is not known whether the runtime of this node opens them";
    Err(Gap::new(Source::Nodes, Why::Ambiguous, detail))
}

/// Whether a container runtime would open a socket for a hostPort on this address (cri-o internal/hostport/hostport.go,
/// `openLocalPort`). An unread pod may have this address as `hostIP`.
fn is_where_runtimes_listen(round: &Round<'_>, socket: &Socket) -> bool {
    let has_address = |(_, port): &(&Pod, &ContainerPort)| port.host_ip == Some(socket.local);
    let host_ports = round.host_ports().known(Unread::Doubted);
    socket.local.is_unspecified()
        || host_ports.is_none_or(|all| all.at((socket.protocol, socket.local_port)).iter().any(has_address))
}

/// Whether root owns the socket, and the process of the socket has the name of a program that opens sockets for
/// hostPorts.
pub(super) fn has_name_of_runtime(socket: &Socket) -> bool {
    let Owner::Held(holder) = &socket.owner else { return false };
    let process = holder.process.known(Unread::Doubted);
    socket.is_of_root() && process.is_some_and(|it| ["crio", "cri-dockerd", "kubelet"].contains(&&*it.command))
}

/// Whether the owner of this socket has a socket on the hostPort of each pod with a network.
fn has_them_all(round: &Round<'_>, socket: &Socket) -> Result<bool, Gap> {
    let owner = group(socket);
    if owner == Group::Unknown {
        let Owner::Held(holder) = &socket.owner else { return Ok(false) };
        return if_requested(holder.process.get()).map(|_| false);
    }
    let listening = round.listeners().get()?;
    let mut host_ports = round.host_ports().known(Unread::Doubted).into_iter().flat_map(ByPort::ports);
    Ok(host_ports.all(|((protocol, number), pods)| {
        !is_held(protocol)
            || !pods.iter().any(|(pod, _)| pod.has_begun())
            || listening.at((protocol, number)).iter().any(|it| group(it) == owner)
    }))
}

fn runtime_of(snapshot: &Snapshot) -> Option<&str> {
    snapshot.own_node()?.container_runtime.as_deref()
}

/// Whether the container runtime opens a socket for every hostPort. CRI-O opens such sockets up to 1.30 (cri-o
/// internal/hostport/hostport_manager.go). Docker's runtimes open such sockets if kubenet is the network plugin
/// (kubernetes pkg/kubelet/dockershim, Mirantis/cri-dockerd network/hostport).
fn holds_host_ports(runtime: Option<&str>) -> Option<bool> {
    match runtime?.split_once("://")? {
        ("cri-o", version) => kubernetes_version(version).map(|(major, minor, _)| (major, minor) <= (1, 30)),
        (name, _) => (name != "docker").then_some(false),
    }
}

fn another_host_port(of: PortOf<'_>) -> Step {
    Step::advice(format!("give {of} another hostPort, in the object that declares its containers"))
}

/// Whether container runtimes open sockets for a protocol.
fn is_held(protocol: Protocol) -> bool {
    protocol != Protocol::Sctp
}

#[cfg(test)]
mod tests;
