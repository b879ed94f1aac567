//! A Service claims an address of a Node as external IP or load balancer's address.

use std::{
    cell::LazyCell,
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use super::{
    Limits, Round, Rule,
    assumed::{assuming, at_least},
    capped::{in_order, of_sockets},
    ephemeral::EphemeralPorts,
    external_address_claimed_twice::typed_in,
    host_port_takes_listener::{has_name_of_runtime, keeps_host_port},
    ids,
    node_addresses::{OnLinks, is_main, kind_in_words, nodes_by_address},
    node_ports::if_served,
    remedies::{keep_external_ips_out, move_off, release_all, release_to},
    socket_needs::{Ports, SocketNeed},
    wording::{MOST_LISTED, listed, service_in_words, with_socket},
};
use crate::findings::{Evidence, Judgement, Judgements, Remedy, Severity, Step, Subject, Vantage, Verdict};
use portreeve_dataplane::{
    Assumption, ByPort, Case, Claim, Contest, ExternalAddress, Field, Judged, Lost, Port, covers, may_have,
    mode_in_words, owner_name,
};
use portreeve_facts::{
    ContainerPort, Family, Gap, Learned, Mode, Node, NodeAddressKind, Pod, Protocol, Service, ServicePort, Snapshot,
    Socket, Source, Unread, Why, if_requested,
};

pub(super) static RULE: Rule =
    Rule::of(&ids::EXTERNAL_IP_CONFLICT, &["node-address", "takes-listener"], &[Source::Services], check)
        .sockets(&[
            SocketNeed::Owners(Ports::ExternalIps),
            SocketNeed::Owners(Ports::HostPorts),
            SocketNeed::Owners(Ports::Proxy),
        ])
        .at_once();

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let services = snapshot.cluster.services.get()?;
    let mode = snapshot.proxy_mode().ok().map(|mode| mode.value);
    let all = || services.iter().flat_map(move |service| ExternalAddress::served(snapshot, service, mode));
    if all().next().is_none() {
        return Ok(Vec::new());
    }
    let nodes = snapshot.cluster.nodes.get()?;
    if snapshot.own_node().is_none()
        && let Some(gap) = snapshot.kernel.interfaces.gap().filter(|gap| gap.why != Why::NotRequested)
    {
        // Without its Node object, this node knows its own addresses only from the links. If the links were not read
        // either, the rule would treat this node as another node.
        return Err(gap.clone());
    }
    let owners = nodes_by_address(nodes);
    // The links show whether this node has an address that no Node object lists.
    let unread = snapshot.kernel.interfaces.gap().into_iter().flat_map(|gap| {
        let of_no_node = all().filter(|claim| !owners.contains_key(&claim.ip));
        let services: BTreeSet<Subject> = of_no_node.map(|claim| Subject::service(claim.service)).collect();
        services.into_iter().map(|subject| Judgement::of(subject, Verdict::Unknown(gap.clone())))
    });
    let unread: Vec<_> = unread.collect();
    let on_links = OnLinks::of(snapshot);
    let claims: Vec<_> = all()
        .map(|claim| (claim, owners.get(&claim.ip).map_or(&[][..], Vec::as_slice)))
        .filter(|(claim, owners)| !owners.is_empty() || on_links.link(claim.ip).is_some())
        .collect();
    if claims.is_empty() {
        return Ok(unread);
    }
    let (claims, left_out) = most_of_each_service(&on_links, claims);
    let mut by_service: HashMap<*const Service, Vec<&ExternalAddress<'_>>> = HashMap::new();
    for (claim, _) in &claims {
        by_service.entry(std::ptr::from_ref(claim.service)).or_default().push(claim);
    }
    let here = Here {
        round,
        snapshot,
        alone: nodes.len() == 1,
        mode: snapshot.proxy_mode(),
        links: snapshot.kernel.interfaces.get().map(|interfaces| {
            interfaces.addresses.iter().map(|it| (it.ip, it.is_ipvs().then_some(&*it.link))).collect()
        }),
        own: snapshot.own_node().map(|node| node.name.as_str()),
        listeners: round.listeners().get(),
        ephemeral: EphemeralPorts::of(snapshot),
        on_links,
        releases: by_service.into_iter().map(|(service, claims)| (service, releases(claims))).collect(),
        left_out,
    };
    Ok(claims.iter().flat_map(|(claim, owners)| here.judge(claim, owners)).chain(unread).collect())
}

struct Here<'r, 'a> {
    round: &'r Round<'a>,
    snapshot: &'a Snapshot,
    /// Whether the cluster has only one Node.
    alone: bool,
    mode: Result<Learned<Mode>, Gap>,
    /// Each address of this node, with the link on which an ipvs proxy bound the address. The link is `None` for an
    /// address that an ipvs proxy did not bind.
    links: Result<HashMap<IpAddr, Option<&'a str>>, Gap>,
    /// The name of this node, if its Node object was read.
    own: Option<&'a str>,
    listeners: Result<&'r ByPort<&'a Socket>, Gap>,
    ephemeral: EphemeralPorts,
    on_links: OnLinks<'a>,
    /// For each Service, the steps that remove all Node addresses. One report has all problems of the Service.
    releases: HashMap<*const Service, Vec<Step>>,
    /// For each Service, how many addresses of other Nodes have no finding of their own.
    left_out: HashMap<*const Service, usize>,
}

type Owners<'a> = [(&'a Node, NodeAddressKind)];
type Owned<'a, 'b> = (ExternalAddress<'a>, &'b Owners<'a>);

impl Here<'_, '_> {
    fn judge(&self, claim: &ExternalAddress<'_>, owners: &Owners<'_>) -> Vec<Judgement> {
        let judgement = |port: Option<&ServicePort>, verdict| Judgement {
            subject: Subject::service(claim.service),
            port: port.map(|port| port.port),
            protocol: port.map(|port| port.protocol),
            verdict: if_served(self.round, claim.service, claim.part(), verdict),
        };
        // If an ipvs proxy bound the address to a link, the kernel treats all ports of the address as local, in every
        // mode.
        let whole = match (&self.mode, self.held(claim.ip)) {
            (_, Ok(Some(_))) | (Ok(Learned { value: Mode::Ipvs, .. }), _) => Ok(true),
            (Err(gap), _) | (Ok(_), Err(gap)) => Err(gap.clone()),
            (Ok(_), Ok(None)) => Ok(false),
        };
        let mut judgements = Vec::new();
        // An address of this node is judged here, even if no Node or only another Node lists the address.
        if self.on_links.link(claim.ip).is_some() || self.is_listed_here(claim, owners) {
            for port in &claim.service.ports {
                let (problem, unknown) = self.losses(claim, owners, port);
                judgements.extend(problem.map(|it| judgement(Some(port), Verdict::Problem(it))));
                judgements.extend(unknown.into_iter().map(|gap| judgement(Some(port), Verdict::Unknown(gap))));
            }
        }
        let severity = self.severity(claim.ip, owners);
        if whole != Ok(true) {
            let announced = self.announced(claim, owners);
            judgements.extend(announced.map(|evidence| judgement(None, Verdict::Problem(evidence))));
        }
        match whole {
            Ok(false) if claim.field == Field::LoadBalancer => {}
            Err(gap) if claim.field == Field::LoadBalancer => judgements.push(judgement(None, Verdict::Unknown(gap))),
            Ok(true) => {
                judgements.push(judgement(None, Verdict::Problem(self.bound(claim, owners, severity))));
                if let (Severity::Info, false, Err(gap)) = (severity, self.alone, &self.links) {
                    judgements.push(judgement(None, Verdict::Unknown(gap.clone())));
                }
            }
            Ok(false) => judgements.push(judgement(None, Verdict::Problem(self.shared(claim, owners)))),
            Err(gap) => {
                judgements.push(judgement(None, Verdict::Problem(self.shared(claim, owners))));
                if severity > Severity::Info {
                    judgements.push(judgement(None, Verdict::Unknown(gap)));
                }
            }
        }
        judgements
    }

    /// The severity if other nodes treat the whole address as local.
    fn severity(&self, ip: IpAddr, owners: &Owners<'_>) -> Severity {
        let others = owners.iter().filter(|(node, _)| !self.is_own(node, ip)).map(|(_, kind)| match kind {
            NodeAddressKind::InternalIp => Severity::Critical,
            NodeAddressKind::ExternalIp | NodeAddressKind::Hostname => Severity::Warning,
        });
        match others.max() {
            Some(severity) => severity,
            None if self.alone => Severity::Info,
            // kube-proxy does not bind an address that another link of the node already has. An address behind NAT is
            // on no link.
            None if self.links.as_ref().is_ok_and(|links| links.get(&ip).copied() != Some(None)) => Severity::Warning,
            None => Severity::Info,
        }
    }

    /// Whether `node` is this node. Without this node's Node object, a link of this node must have the address.
    fn is_own(&self, node: &Node, ip: IpAddr) -> bool {
        match self.own {
            Some(own) => own == node.name,
            None => self.links.as_ref().is_ok_and(|links| links.get(&ip) == Some(&None)),
        }
    }

    fn is_listed_here(&self, claim: &ExternalAddress<'_>, owners: &Owners<'_>) -> bool {
        owners.iter().any(|(node, _)| self.is_own(node, claim.ip))
    }

    /// Whether the address is additional: this node's Node object does not list the address, and the address is not the
    /// first InternalIP of any Node. The status of another Node may still list a virtual address that moved here.
    fn is_beside(&self, claim: &ExternalAddress<'_>, owners: &Owners<'_>) -> bool {
        !self.is_listed_here(claim, owners) && !owners.iter().any(|(node, _)| is_main(node, claim.ip))
    }

    fn held(&self, ip: IpAddr) -> Result<Option<&str>, &Gap> {
        self.links.as_ref().map(|links| links.get(&ip).copied().flatten())
    }

    /// The losses of the listeners on a port of the Service, and the reasons why a loss is unknown.
    fn losses(
        &self,
        claim: &ExternalAddress<'_>,
        owners: &Owners<'_>,
        port: &ServicePort,
    ) -> (Option<Evidence>, Vec<Gap>) {
        let number = (port.protocol, port.port);
        let listeners = match &self.listeners {
            Ok(listeners) => listeners.at(number),
            Err(gap) => return (None, vec![gap.clone()]),
        };
        // If NAT translates the destination, packets arrive at another address.
        let arrives_here = || self.links.as_ref().map(|links| links.get(&claim.ip) == Some(&None));
        let takes_part = |socket: &Socket| {
            (socket.local.is_unspecified() && arrives_here() != Ok(false) || socket.local == claim.ip)
                && socket.serves(Family::of(claim.ip)) != Some(false)
        };
        let claims = LazyCell::new(|| {
            let of_services = self.round.claims_of_services(number, |ip| ip == claim.ip);
            let assumed = Unread::Assumed("that no unread pod has this hostPort");
            let pods = self.round.host_ports().known(assumed).into_iter().flat_map(|all| all.at(number));
            let pods = pods.map(|(pod, port)| Claim::HostPort(pod, port));
            Claim::External(*claim, port).first_of(of_services.into_iter().chain(pods))
        });
        let lost = |socket: &Socket| -> Result<Option<Evidence>, Gap> {
            let is_endpoint = |it| self.round.is_endpoint(it, (claim.service, port), Family::of(claim.ip), socket);
            let is_endpoint = self.round.addressed().get().and_then(is_endpoint);
            let is_excused = is_endpoint == Ok(true)
                // An old kube-proxy opens a socket of its own on each external IP of the node.
                || (socket.local == claim.ip && self.round.proxy().shares_owner(socket))
                || (socket.local.is_unspecified() && self.is_for_the_service(claim, owners));
            if is_excused || self.round.proxy().is_own(socket)? || self.ephemeral.may_be_client(socket)? || is_endpoint?
            {
                return Ok(None);
            }
            if socket.local.is_unspecified() {
                arrives_here().map_err(Clone::clone)?;
            }
            self.captured(claim, owners, port, (socket, claims.as_slice(), &self.is_kept(number, socket)))
        };
        let mut sockets = in_order(listeners, |socket| socket.local.is_unspecified());
        sockets.retain(|(socket, _)| takes_part(socket));
        let (problem, mut unknown) = of_sockets(number, &sockets, |(socket, _)| lost(socket).transpose());
        unknown.extend(self.snapshot.kernel.no_udp.clone().filter(|_| port.protocol == Protocol::Udp));
        (problem, unknown)
    }

    /// Whether a container runtime keeps a pod's hostPort with this socket, so that no server loses connections. While
    /// a pod starts, its hostPort may still be the port of another process.
    fn is_kept(&self, number: Port, socket: &Socket) -> Result<bool, Gap> {
        let keeps = || keeps_host_port(self.round, socket, true);
        let is_its = |(pod, port): &(&Pod, &ContainerPort)| {
            let mut families = Family::BOTH.into_iter().filter(|it| socket.serves(*it) != Some(false));
            let is_of_runtime = || pod.has_begun() || has_name_of_runtime(socket);
            covers(port, socket.local) && families.any(|it| may_have(pod, it)) && is_of_runtime()
        };
        match if_requested(self.round.host_ports().get()) {
            Ok(all) => Ok(all.into_iter().flat_map(|all| all.at(number)).any(is_its) && keeps()?),
            Err(_) if keeps() == Ok(false) => Ok(false),
            Err(gap) => Err(gap),
        }
    }

    /// Whether a controller added the address to this node for the Service.
    fn is_for_the_service(&self, claim: &ExternalAddress<'_>, owners: &Owners<'_>) -> bool {
        claim.field == Field::LoadBalancer && self.is_beside(claim, owners)
    }

    /// Evidence for ipvs mode: all other nodes treat the whole address as local.
    fn bound(&self, claim: &ExternalAddress<'_>, owners: &Owners<'_>, severity: Severity) -> Evidence {
        let end = match severity {
            Severity::Info if self.alone => "the cluster has no other Node, so no Node loses its address",
            Severity::Info => "every other node in ipvs mode treats the address as local and cannot reach this node",
            Severity::Warning => "nodes in ipvs mode treat the address as local and cannot reach its owner",
            Severity::Critical => {
                "every other node in ipvs mode treats the address as local and cannot reach that Node"
            }
        };
        let evidence = Evidence::new(severity, format!("{}: {end}.", self.opening(claim, owners)));
        let evidence = match severity {
            Severity::Info => evidence,
            _ => evidence.affects([Vantage::Remote, Vantage::Node, Vantage::Pods]),
        };
        // In another mode, an earlier ipvs proxy left the address on this node. Other nodes may not have the address,
        // so the evidence is only about this node.
        let evidence = if self.snapshot.is_in(Mode::Ipvs) { about_the_cluster(evidence, owners) } else { evidence };
        let evidence = self.with_facts(evidence, claim, owners);
        let Some((_, by, pool)) = self.announcer(claim, owners) else { return evidence };
        let mut evidence = evidence.value("announced by", by);
        evidence.remedies.iter_mut().for_each(|it| it.steps.insert(0, pool.clone()));
        evidence
    }

    fn shared(&self, claim: &ExternalAddress<'_>, owners: &Owners<'_>) -> Evidence {
        let end = match (&self.mode, &self.links) {
            (Ok(_), Ok(_)) => "every node redirects only the Service's ports of that address",
            _ => "every node redirects at least the Service's ports of that address",
        };
        let evidence = Evidence::new(Severity::Info, format!("{}: {end}.", self.opening(claim, owners)));
        self.with_facts(about_the_cluster(evidence, owners), claim, owners)
    }

    /// Returns the controller that announces a Node's address, the address pool or announcing node, and the step that
    /// ends the announcement. Only the address that the kubelet and the API server use for the Node is checked. `None`
    /// if no controller announces the address, for example with ServiceLB of k3s.
    fn announcer(&self, claim: &ExternalAddress<'_>, owners: &Owners<'_>) -> Option<(&'static str, String, Step)> {
        let is_main = owners.iter().any(|(node, _)| is_main(node, claim.ip));
        let is_requested = claim.field == Field::LoadBalancer && is_main && !self.alone;
        let announced = claim.service.announced.as_ref().filter(|_| is_requested)?;
        let (controller, by, pool) = match (&announced.pool, &announced.host) {
            (Some(pool), _) => ("MetalLB", format!("MetalLB, from pool {pool}"), format!("MetalLB's pool {pool}")),
            (None, Some(host)) => ("kube-vip", format!("kube-vip, on {host}"), "kube-vip's address range".to_owned()),
            (None, None) => return None,
        };
        Some((controller, by, Step::advice(format!("remove the addresses of Nodes from {pool}"))))
    }

    fn announced(&self, claim: &ExternalAddress<'_>, owners: &Owners<'_>) -> Option<Evidence> {
        let (controller, by, pool) = self.announcer(claim, owners)?;
        let opening = self.opening(claim, owners);
        let sentence =
            format!("{opening}, and {controller} announces the address: traffic to that Node may reach another node.");
        let mut evidence = Evidence::new(Severity::Warning, sentence)
            .affects([Vantage::Remote, Vantage::Node, Vantage::Pods])
            .value("announced by", by);
        if controller == "MetalLB" {
            evidence =
                evidence.value("not known", "which node announces it: MetalLB does not write the node on the Service");
        }
        let mut evidence = self.with_facts(about_the_cluster(evidence, owners), claim, owners);
        evidence.remedies =
            vec![Remedy::from(pool).then(release_to(claim, "a load balancer address that no Node has"))];
        Some(evidence)
    }

    fn captured(
        &self,
        claim: &ExternalAddress<'_>,
        owners: &Owners<'_>,
        port: &ServicePort,
        (socket, claims, kept): (&Socket, &[Claim<'_>], &Result<bool, Gap>),
    ) -> Result<Option<Evidence>, Gap> {
        let addressed = self.round.addressed().get()?;
        let claims = claims.iter().copied().chain([Claim::Listener(socket, 1)]);
        let contest = Contest::of(self.round, addressed, (port.protocol, port.port), claims).at(claim.ip);
        let lost = |assumption: &Assumption, case: &mut Case| contest.lost((assumption, case), kept, |_, _| true);
        let (judged, stratum) = addressed.over(false, lost);
        match judged {
            Judged::Never => Ok(None),
            Judged::Depends { on, .. } => Err(on),
            Judged::Certain(lost, more) => {
                let takes = at_least(self.takes(claim, owners, port, (socket, &lost)), more.as_ref());
                Ok(assuming(stratum, false, Verdict::Problem(takes)).into_problem())
            }
        }
    }

    fn takes(
        &self,
        claim: &ExternalAddress<'_>,
        owners: &Owners<'_>,
        port: &ServicePort,
        (socket, lost): (&Socket, &Lost),
    ) -> Evidence {
        let (owner, affected) = (owner_name(self.snapshot, &socket.owner), lost.affected());
        let is_undecided = lost.0.values().flatten().any(Option::is_none);
        let taker = if is_undecided { "this Service or another claim" } else { "the Service" };
        let sentence = format!(
            "{}: new connections to its port {}/{} go to {taker}, and not to {owner}, which listens on this node.",
            self.opening(claim, owners),
            port.port,
            port.protocol,
        );
        let is_alone = || self.on_links.stands_alone(claim.ip);
        let beside = self.is_beside(claim, owners) && socket.local.is_unspecified() && is_alone();
        let worst = if affected.contains(&Vantage::Remote) { Severity::Critical } else { Severity::Warning };
        let severity = if beside { Severity::Info } else { worst };
        let evidence = Evidence::new(severity, sentence).variant("takes-listener").affects(affected);
        let evidence = with_socket(evidence, "listener", self.snapshot, socket);
        let rejected = self.snapshot.cluster.unread_pod().filter(|gap| gap.source == Source::Pods);
        let unread = self.round.host_ports().get().err().or_else(|| rejected.cloned());
        let no_pod = |gap: Gap| format!("no unread pod has this hostPort: {}", gap.detail);
        let evidence = evidence.each("assumed", self.ephemeral.assumed_of(socket)).each("assumed", unread.map(no_pod));
        self.with_facts(evidence, claim, owners).remedy(move_off(self.snapshot, socket))
    }

    /// If several Nodes have the address, the Node with the worst result is named.
    fn opening(&self, claim: &ExternalAddress<'_>, owners: &Owners<'_>) -> String {
        let worst = owners.iter().min_by_key(|(node, kind)| {
            (self.is_own(node, claim.ip), *kind != NodeAddressKind::InternalIp, node.name.as_str())
        });
        let whose = worst.map_or_else(
            || "an address of this node".to_owned(),
            |(node, kind)| format!("the {} of Node {}", kind_in_words(*kind), node.name),
        );
        let Service { namespace, name, .. } = claim.service;
        format!("Service {namespace}/{name} claims {}, {whose}, as {}", claim.ip, claim.field)
    }

    fn with_facts(&self, evidence: Evidence, claim: &ExternalAddress<'_>, owners: &Owners<'_>) -> Evidence {
        let link = self.on_links.link(claim.ip).filter(|_| !self.is_listed_here(claim, owners));
        let held = match self.held(claim.ip).map(|held| held.or(link)) {
            Err(gap) => format!("unknown: {}", gap.detail),
            Ok(Some(link)) => format!("yes, {} is on {link}", claim.ip),
            Ok(None) => "no".to_owned(),
        };
        let owner = match owners {
            [] => format!("this node ({})", self.snapshot.node_name()),
            _ => {
                let owners = owners.iter().map(|(node, kind)| format!("{} ({})", node.name, kind_in_words(*kind)));
                format!("Node {}", listed(owners))
            }
        };
        evidence
            .about(typed_in(claim))
            .value("service", service_in_words(claim.service))
            .value("address", format!("{} ({})", claim.ip, claim.field))
            .value("owner", owner)
            .value("held on this node", held)
            .and_more("address", self.left_out.get(&std::ptr::from_ref(claim.service)).copied().unwrap_or_default(), 0)
            .value("proxy mode", mode_in_words(&self.mode))
            .remedy(self.releases.get(&std::ptr::from_ref(claim.service)).cloned().unwrap_or_default())
    }
}

fn releases(claims: Vec<&ExternalAddress<'_>>) -> Vec<Step> {
    let keeps_out = claims.iter().any(|it| matches!(it.field, Field::ExternalIps(_))).then(keep_external_ips_out);
    release_all(claims).into_iter().chain(keeps_out).collect()
}

/// Marks the problem as a problem of the cluster. If no Node lists the address, the problem remains a problem of this
/// node, because other nodes do not know the address.
fn about_the_cluster(evidence: Evidence, owners: &Owners<'_>) -> Evidence {
    if owners.is_empty() { evidence } else { evidence.in_cluster() }
}

/// The claims to judge. All claims to addresses of this node are judged, because a process may listen on these
/// addresses. A Service may claim any number of other Nodes' addresses. Only the first claims to addresses of other
/// Nodes are judged, and claims to InternalIPs come first. The remedies cover only the judged addresses, so the evidence
/// has the number of the others, for each Service.
fn most_of_each_service<'a, 'b>(
    on_links: &OnLinks<'_>,
    claims: Vec<Owned<'a, 'b>>,
) -> (Vec<Owned<'a, 'b>>, HashMap<*const Service, usize>) {
    let is_internal = |owners: &Owners<'_>| owners.iter().any(|(_, kind)| *kind == NodeAddressKind::InternalIp);
    let mut claims: Vec<_> = claims.into_iter().map(|owned| (on_links.link(owned.0.ip).is_some(), owned)).collect();
    claims.sort_by_key(|(is_here, (_, owners))| (!is_here, !is_internal(owners)));
    let mut reported: HashMap<*const Service, usize> = HashMap::new();
    claims.retain(|(is_here, (claim, _))| {
        *is_here || {
            let reported = reported.entry(std::ptr::from_ref(claim.service)).or_default();
            *reported += 1;
            *reported <= MOST_LISTED
        }
    });
    let left_out = reported.into_iter().map(|(service, all)| (service, all.saturating_sub(MOST_LISTED))).collect();
    (claims.into_iter().map(|(_, owned)| owned).collect(), left_out)
}

#[cfg(test)]
mod tests;
