//! kube-proxy opens a socket for each NodePort, and needs nearly as many file descriptors as its limit allows.

use std::{collections::HashSet, sync::Arc};

use ipnet::IpNet;

use super::{
    Limits, Round, Rule, ids,
    node_ports::most_ports_in_words,
    remedies::give_node_ports_back,
    socket_needs::{Ports, SocketNeed},
};
use crate::findings::{Evidence, Judgement, Judgements, Remedy, Severity, Step, Subject, Vantage, Verdict};
use portreeve_dataplane::{Own, Proxy, holds_ports, local_addresses, mode_in_words, owner_name, served_node_ports};
use portreeve_facts::{Family, Gap, Mode, Protocol, Reading, Service, Snapshot, Socket, Source, Unread, Why};

pub(super) static RULE: Rule = Rule::of(&ids::PROXY_NEAR_FD_LIMIT, &["near"], &[Source::Services], check)
    .sockets(&[SocketNeed::Owners(Ports::NodePorts), SocketNeed::Owners(Ports::Proxy)]);

fn check(round: &Round<'_>, limits: &Limits) -> Judgements {
    let snapshot = round.now;
    let services = snapshot.cluster.services.get()?;
    let ports = node_ports(snapshot, services);
    if ports.is_empty() {
        return Ok(Vec::new());
    }
    let found = judge(round, services, &ports, limits).transpose();
    let verdict = found.map(|found| found.map_or_else(Verdict::Unknown, Verdict::Problem));
    Ok(Judgement::each(&Subject::this_node(snapshot), verdict))
}

/// The NodePorts for which kube-proxy may open a socket. No version of kube-proxy opens a socket for SCTP.
fn node_ports(snapshot: &Snapshot, services: &[Arc<Service>]) -> HashSet<(Protocol, u16)> {
    served_node_ports(snapshot, services)
        .filter(|(_, port, _)| port.protocol != Protocol::Sctp)
        .map(|(_, port, number)| (port.protocol, number))
        .collect()
}

fn judge(
    round: &Round<'_>,
    services: &[Arc<Service>],
    ports: &HashSet<(Protocol, u16)>,
    limits: &Limits,
) -> Result<Option<Evidence>, Gap> {
    let snapshot = round.now;
    if snapshot.proxy_mode().is_ok_and(|mode| !Mode::KUBE_PROXY.contains(&mode.value)) {
        return Ok(None);
    }
    let proxy = round.proxy();
    let descriptors = Descriptors::of(snapshot, proxy)?;
    let holding = Holding::of(snapshot, proxy, ports);
    let mut demand = Demand::of(snapshot, services, &descriptors, &holding)?;
    if let Some(before) = round.before.and_then(|before| otherwise(before, ports)) {
        // Portreeve reads the sockets first, then the number of open files. Sockets that the proxy opens between the
        // two reads must not be counted as other files.
        demand.otherwise = demand.otherwise.min(before);
    }
    let at = |percent: u64| u128::from(demand.all()) * 100 >= u128::from(descriptors.limit) * u128::from(percent);
    let severity = match (at(limits.fds_critical_percent), at(limits.fds_warning_percent), &demand.assumed) {
        (true, _, None) => Severity::Critical,
        (true, _, Some(_)) | (_, true, _) => Severity::Warning,
        (false, false, _) => {
            return match (demand.assumed, holding.answer) {
                (None, _) | (_, Ok(false)) => Ok(None),
                (Some(gap), _) => Err(gap),
            };
        }
    };
    Ok(holding.answer.clone()?.then(|| evidence(snapshot, services, &descriptors, &holding, &demand, severity)))
}

/// The number of the proxy's open files that are not sockets of NodePorts, if known.
fn otherwise(snapshot: &Snapshot, ports: &HashSet<(Protocol, u16)>) -> Option<u64> {
    let proxy = Proxy::of(snapshot);
    let open = Descriptors::of(snapshot, &proxy).ok()?.open?;
    Some(open.saturating_sub(Holding::of(snapshot, &proxy, ports).sockets))
}

/// The file descriptors of the process that answers for the proxy.
struct Descriptors {
    limit: u64,
    place: &'static str,
    open: Option<u64>,
}

impl Descriptors {
    fn of(snapshot: &Snapshot, proxy: &Proxy<'_>) -> Result<Self, Gap> {
        let facts = &snapshot.kernel.proxy;
        let metrics = facts.metrics.known(Unread::Doubted);
        let seen = facts.fds.known(Unread::Doubted);
        let open = metrics.and_then(|it| it.open_fds).or(seen.map(|it| it.open));
        if let Some(limit) = metrics.and_then(|it| it.max_fds) {
            return Ok(Self { limit, place: "process_max_fds of the proxy's /metrics", open });
        }
        if let Some(fds) = seen {
            return Ok(Self { limit: fds.limit, place: "the limits of its process in /proc", open });
        }
        Err(match (&facts.metrics, proxy.owner_of_node_ports()) {
            (Reading::Gap(_), Some(socket)) => {
                let owner = owner_name(snapshot, &socket.owner);
                let detail = format!("{owner} listens on NodePorts, but its limit of file descriptors is not known");
                Gap::new(Source::ProxyProcess, Why::NotSupported, detail)
            }
            (Reading::Gap(gap), None) => gap.clone(),
            (Reading::Seen(_), _) => {
                Gap::new(Source::ProxyMetrics, Why::Malformed, "the proxy's /metrics do not contain process_max_fds")
            }
        })
    }
}

/// Whether the proxy opens a socket for each NodePort.
struct Holding<'a> {
    answer: Result<bool, Gap>,
    version: Option<&'a str>,
    /// The number of the proxy's sockets on NodePorts. If the owner of a socket is not known, the socket is included.
    sockets: u64,
}

impl<'a> Holding<'a> {
    fn of(snapshot: &'a Snapshot, proxy: &Proxy<'_>, ports: &HashSet<(Protocol, u16)>) -> Self {
        let version =
            snapshot.kernel.proxy.metrics.known(Unread::Doubted).and_then(|metrics| metrics.version.as_deref());
        let by_version = version.and_then(holds_ports);
        let listeners = snapshot.kernel.listeners.get();
        let on_ports: Vec<&Socket> = listeners
            .iter()
            .flat_map(|all| all.iter())
            .filter(|socket| ports.contains(&(socket.protocol, socket.local_port)))
            .collect();
        let own = on_ports.iter().filter(|socket| proxy.owns(socket) == Own::Yes).count();
        let perhaps =
            on_ports.iter().filter(|socket| proxy.owns(socket) != Own::Yes && !proxy.certainly_lacks(socket)).count();
        let answer = match (by_version, listeners) {
            (Some(true), _) => Ok(true),
            (_, Ok(_)) if own > 0 => Ok(true),
            (_, Err(gap)) => Err(gap),
            (Some(false), Ok(_)) => Ok(false),
            // A proxy without free file descriptors closes all its sockets on NodePorts. So a proxy that has no socket
            // on a NodePort now may still be a proxy that opens a socket for each NodePort.
            (None, Ok(_)) => Err(Gap::new(
                Source::ProxyMetrics,
                Why::Ambiguous,
                "the proxy does not report its version, so it is not known whether the proxy opens a socket for each NodePort",
            )),
        };
        Self { answer, version, sockets: (own + perhaps) as u64 }
    }
}

struct Demand {
    /// File descriptors for NodePorts.
    sockets: u64,
    otherwise: u64,
    /// The reason why `nodePortAddresses` is assumed to be the default: the proxy's settings were not read.
    assumed: Option<Gap>,
}

impl Demand {
    fn of(
        snapshot: &Snapshot,
        services: &[Arc<Service>],
        descriptors: &Descriptors,
        holding: &Holding<'_>,
    ) -> Result<Self, Gap> {
        // A proxy of this version opens no sockets for NodePorts, except in nftables mode on loopback, for TCP
        // (KEP-6032).
        let localhost_only = holding.version.and_then(holds_ports) == Some(false);
        let (per_family, assumed) = match snapshot.proxy_config() {
            _ if localhost_only => ([1, 1], None),
            Ok(config) => (addresses(snapshot, &config.node_port_addresses)?, None),
            Err(gap) => ([1, 1], Some(gap)),
        };
        let sockets = served_node_ports(snapshot, services)
            .filter(|(_, port, _)| match port.protocol {
                Protocol::Tcp => true,
                Protocol::Udp => !localhost_only,
                Protocol::Sctp => false,
            })
            .flat_map(|(service, ..)| service.families)
            .map(|family| per_family[usize::from(*family == Family::V6)])
            .sum();
        let otherwise = descriptors.open.unwrap_or(0).saturating_sub(holding.sockets);
        Ok(Self { sockets, otherwise, assumed })
    }

    fn all(&self) -> u64 {
        self.sockets.saturating_add(self.otherwise)
    }
}

/// The number of addresses of each family on which the proxy opens each NodePort. The proxy opens one wildcard socket,
/// or one socket for each address inside the CIDRs of `nodePortAddresses` (kubernetes 1.23 pkg/proxy/util/utils.go
/// `GetNodeAddresses`).
fn addresses(snapshot: &Snapshot, configured: &[String]) -> Result<[u64; 2], Gap> {
    let cidrs: Vec<IpNet> = configured.iter().filter_map(|cidr| cidr.parse().ok()).collect();
    let mut counts = [1, 1];
    for (family, count) in Family::BOTH.into_iter().zip(&mut counts) {
        let of_family: Vec<&IpNet> = cidrs.iter().filter(|cidr| Family::of(cidr.addr()) == family).collect();
        if of_family.is_empty() || of_family.iter().any(|cidr| cidr.prefix_len() == 0) {
            continue;
        }
        let locals = local_addresses(snapshot.kernel.interfaces.get()?);
        let inside = locals.iter().filter(|local| of_family.iter().any(|cidr| cidr.contains(&local.ip)));
        *count = inside.count() as u64;
    }
    Ok(counts)
}

fn evidence(
    snapshot: &Snapshot,
    services: &[Arc<Service>],
    descriptors: &Descriptors,
    holding: &Holding<'_>,
    demand: &Demand,
    severity: Severity,
) -> Evidence {
    let over = demand.all() > descriptors.limit;
    let summary = match over {
        true => {
            "The proxy opens a socket for every NodePort, and needs more file descriptors than allowed: in at least one family, it no longer updates Services."
        }
        false => {
            "The proxy opens a socket for every NodePort, and needs most of its file descriptors: at the limit, it no longer updates Services on this node."
        }
    };
    let lost: &[Vantage] = if over { &[Vantage::Remote, Vantage::Node, Vantage::Pods] } else { &[] };
    let proxy = match (&snapshot.kernel.proxy.process, holding.version) {
        (Reading::Seen(process), Some(version)) => format!("{} (pid {}), {version}", process.command, process.pid),
        (Reading::Seen(process), None) => format!("{} (pid {}), version unknown", process.command, process.pid),
        (Reading::Gap(_), version) => format!("version {}", version.unwrap_or("unknown")),
    };
    let addresses = match (snapshot.proxy_config(), &demand.assumed) {
        (_, Some(_)) => "assumed: the default, one socket a family".to_owned(),
        (Ok(config), None) if config.node_port_addresses.is_empty() => {
            format!("the default, one socket a family (from {})", config.place)
        }
        (Ok(config), None) => format!("{} (from {})", config.node_port_addresses.join(","), config.place),
        (Err(_), None) => "not used".to_owned(),
    };
    Evidence::new(severity, summary)
        .affects(lost.iter().copied())
        .value("proxy", proxy)
        .value(
            "demand",
            format!(
                "{} file descriptors: {} for NodePorts, {} otherwise",
                demand.all(),
                demand.sockets,
                demand.otherwise
            ),
        )
        .value("limit", format!("{} ({})", descriptors.limit, descriptors.place))
        .value("open now", descriptors.open.map_or_else(|| "unknown".to_owned(), |open| open.to_string()))
        .value("held now", format!("{} sockets on NodePorts", holding.sockets))
        .value("most nodePorts", most_ports_in_words(services))
        .value("nodePortAddresses", addresses)
        .value("proxy mode", mode_in_words(&snapshot.proxy_mode()))
        .remedy(
            Remedy::from(Step::advice(
                "raise the limit: LimitNOFILE=1048576 in the systemd unit that starts the proxy or its container runtime",
            ))
            .then(Step::advice("restart this unit; if it starts a container runtime, then delete the proxy's pod")),
        )
        .remedy(Step::advice("upgrade kube-proxy to 1.24 or newer (or 1.23.7, 1.22.10, 1.21.13), which opens no sockets for NodePorts"))
        .remedy(Step::advice("change Services that need no NodePort to type ClusterIP"))
        .remedy(give_node_ports_back())
}

#[cfg(test)]
mod tests;
