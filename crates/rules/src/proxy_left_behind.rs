//! Rules or addresses of another proxy mode remain on this node.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
};

use super::{
    Limits, Round, Rule, ids,
    remedies::{clean_up, delete_address, remove_ipvs, remove_nftables},
    wording::{MOST_LISTED, listed},
};
use crate::findings::{Evidence, Judgement, Judgements, Severity, Step, Subject, Verdict};
use portreeve_dataplane::{ExternalAddress, is_link_local, mode_in_words};
use portreeve_facts::{
    Address, Gap, IPVS_LINKS, Interfaces, Mode, Netfilter, Reading, Service, Snapshot, Source, Unread, VirtualServer,
    Why,
};

pub(super) static RULE: Rule =
    Rule::of(&ids::STALE_REDIRECTION, &["proxy"], &[Source::Addresses], check).uses(&[Source::IpVs, Source::Netfilter]);

/// Chains that only kube-proxy in iptables mode makes (kubernetes pkg/proxy/iptables/proxier.go).
const IPTABLES_CHAINS: [&str; 2] = ["KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES"];
/// Chains that only kube-proxy in ipvs mode makes (kubernetes pkg/proxy/ipvs/proxier.go).
const IPVS_CHAINS: [&str; 4] = ["KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER"];
/// The table of kube-proxy in nftables mode (kubernetes pkg/proxy/nftables/proxier.go).
const NFTABLES_TABLE: &str = "kube-proxy";

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let interfaces = snapshot.kernel.interfaces.get()?;
    let mode = snapshot.proxy_mode();
    let servers = servers_of_services(snapshot, interfaces);
    let traces = traces(snapshot, interfaces, &servers);

    let mut problems = Vec::new();
    let mut gaps: Vec<Gap> = Vec::new();
    // Unread Services do not matter in ipvs mode, because the proxy itself then uses the virtual servers.
    gaps.extend(servers.unread.clone().filter(|_| !snapshot.is_in(Mode::Ipvs)));
    match &mode {
        Ok(mode) => {
            problems.extend(left_behind(
                interfaces,
                &traces,
                mode.value,
                serves_others(snapshot, interfaces, &servers),
            ));
        }
        Err(_) if traces.len() > 1 => problems.push(several(&traces, serves_others(snapshot, interfaces, &servers))),
        Err(gap) if traces.len() == 1 => gaps.push(gap.clone()),
        Err(_) => {}
    }
    match stale(snapshot, interfaces) {
        Ok(stale) if stale.is_empty() => {}
        Ok(stale) => problems.push(stale_addresses(&stale)),
        Err(gap) => gaps.push(gap),
    }
    match programs_nothing(snapshot) {
        Ok(problem) => problems.extend(problem),
        Err(gap) => gaps.push(gap),
    }
    match &snapshot.kernel.netfilter {
        Reading::Gap(gap) => gaps.push(gap.clone()),
        Reading::Seen(netfilter) => gaps.extend(unlisted(netfilter, &traces)),
    }

    // A kernel without IPVS has no leftovers of ipvs mode. If IPVS could not be read, there may be leftovers.
    gaps.extend(snapshot.kernel.ip_vs.gap().filter(|gap| gap.why != Why::NotSupported).cloned());

    let words = mode_in_words(&mode);
    let merged = problems.into_iter().reduce(Evidence::merge).map(|it| Verdict::Problem(it.value("proxy mode", words)));
    let verdicts = merged.into_iter().chain(gaps.into_iter().map(Verdict::Unknown));
    Ok(Judgement::each(&Subject::this_node(snapshot), verdicts))
}

const CHAINS: &str = "iptables chains";

/// The kernel objects of each proxy mode, as names and values.
type Traces = BTreeMap<Mode, Vec<(&'static str, String)>>;

fn traces(snapshot: &Snapshot, interfaces: &Interfaces, servers: &OfServices<'_>) -> Traces {
    let mut traces = Traces::new();
    for name in links_of_ipvs(interfaces) {
        let addresses: BTreeSet<_> = interfaces.of(name).map(|address| address.ip).collect();
        let held = if addresses.is_empty() { "no address".to_owned() } else { listed(addresses) };
        traces.entry(Mode::Ipvs).or_default().push(("device", format!("{name} with {held}")));
    }
    if !servers.known.is_empty() {
        let words = servers.known.iter().map(|it| format!("{}/{}", SocketAddr::new(it.ip, it.port), it.protocol));
        traces.entry(Mode::Ipvs).or_default().push(("virtual servers", listed(words)));
    }
    let reported = Unread::Reported("check");
    let Some(netfilter) = snapshot.kernel.netfilter.known(reported) else { return traces };
    let of_chains = |names: &[&str]| {
        let ours =
            netfilter.chains.iter().filter(|chain| chain.rsplit(' ').next().is_some_and(|it| names.contains(&it)));
        ours.cloned().collect::<BTreeSet<_>>()
    };
    let tables = netfilter.tables.iter().filter(|table| table.rsplit(' ').next() == Some(NFTABLES_TABLE));
    for (mode, name, found) in [
        (Mode::Ipvs, CHAINS, of_chains(&IPVS_CHAINS)),
        (Mode::Iptables, CHAINS, of_chains(&IPTABLES_CHAINS)),
        (Mode::Nftables, "nft tables", tables.cloned().collect()),
    ] {
        if !found.is_empty() {
            traces.entry(mode).or_default().push((name, listed(found)));
        }
    }
    traces
}

fn links_of_ipvs(interfaces: &Interfaces) -> impl Iterator<Item = &'static str> {
    IPVS_LINKS.into_iter().filter(|name| interfaces.links.iter().any(|link| link.name == *name))
}

/// Whether IPVS has, or may have, virtual servers of other programs.
fn serves_others(snapshot: &Snapshot, interfaces: &Interfaces, ours: &OfServices<'_>) -> bool {
    let all = match &snapshot.kernel.ip_vs {
        Reading::Seen(servers) => servers.len(),
        Reading::Gap(gap) => return gap.why != Why::NotSupported,
    };
    // The first link in `IPVS_LINKS` belongs to kube-proxy, and the other links belong to kube-router. kube-router uses
    // its virtual servers, even if kube-proxy left some virtual servers behind.
    all > ours.known.len() || links_of_ipvs(interfaces).any(|link| link != IPVS_LINKS[0])
}

struct OfServices<'a> {
    known: Vec<&'a VirtualServer>,
    unread: Option<Gap>,
}

/// The virtual servers that certainly belong to Services: their address is a cluster IP, or is on the proxy's device.
fn servers_of_services<'a>(snapshot: &'a Snapshot, interfaces: &Interfaces) -> OfServices<'a> {
    let servers = snapshot.kernel.ip_vs.known_part(Unread::Reported("check"));
    let bound = interfaces.addresses.iter().filter(|address| address.is_ipvs()).map(|address| address.ip);
    let services = snapshot.cluster.services.known_part(Unread::Reported("OfServices::unread")).iter();
    let served: HashSet<IpAddr> = servers.iter().map(|server| server.ip).collect();
    let ours = bound.chain(services.flat_map(|service| service.cluster_ips.iter().copied()));
    let ours: HashSet<IpAddr> = ours.filter(|ip| served.contains(ip)).collect();
    let mut known: Vec<&VirtualServer> = servers.iter().filter(|server| ours.contains(&server.ip)).collect();
    known.sort_by_key(|server| (server.ip, server.port, server.protocol));
    let unread = snapshot.cluster.services.gap().filter(|_| known.len() < servers.len()).cloned();
    OfServices { known, unread }
}

fn left_behind(
    interfaces: &Interfaces,
    traces: &Traces,
    present: Mode,
    serves_others: bool,
) -> impl Iterator<Item = Evidence> {
    traces.iter().filter(move |(mode, _)| **mode != present).map(move |(mode, found)| {
        let summary = format!("The proxy runs in {present} mode, but the kernel still has rules of {mode} mode.");
        let mut evidence = Evidence::new(Severity::Warning, summary);
        evidence.values.extend(found.iter().cloned());
        let evidence = evidence.remedy(clean_up(Some(present), serves_others));
        match mode {
            // This remedy does not delete iptables chains, so the remedy is only for leftovers without chains.
            Mode::Ipvs if found.iter().all(|(name, _)| *name != CHAINS) => {
                evidence.remedy(remove_ipvs(&links_of_ipvs(interfaces).collect::<Vec<_>>()))
            }
            Mode::Nftables => evidence.remedy(remove_nftables()),
            Mode::Ipvs | Mode::Iptables | Mode::Cilium => evidence,
        }
    })
}

fn several(traces: &Traces, serves_others: bool) -> Evidence {
    let modes: Vec<&str> = traces.keys().map(|mode| mode.name()).collect();
    let summary = format!("The kernel has rules of {} mode: only one of these modes is in use.", modes.join(" and "));
    let mut evidence = Evidence::new(Severity::Warning, summary);
    evidence.values.extend(traces.values().flatten().cloned());
    evidence.remedy(clean_up(None, serves_others))
}

fn stale<'a>(snapshot: &Snapshot, interfaces: &'a Interfaces) -> Result<Vec<&'a Address>, Gap> {
    let mut held: Vec<&Address> =
        interfaces.addresses.iter().filter(|address| address.is_ipvs() && !is_link_local(address.ip)).collect();
    if held.is_empty() {
        return Ok(held);
    }
    let explained: HashSet<IpAddr> =
        snapshot.cluster.services.get()?.iter().flat_map(|service| addresses_of(snapshot, service)).collect();
    held.retain(|address| !explained.contains(&address.ip));
    // An unread Service may need the address. Without the address, the Service would not work on this node.
    if let Some(gap) = snapshot.cluster.unread_service().filter(|_| !held.is_empty()) {
        return Err(gap.clone());
    }
    held.sort_by_key(|address| (address.ip, &*address.link));
    Ok(held)
}

fn addresses_of(snapshot: &Snapshot, service: &Service) -> impl Iterator<Item = IpAddr> {
    service.cluster_ips.iter().copied().chain(ExternalAddress::of(snapshot, service).map(|claim| claim.ip))
}

fn stale_addresses(stale: &[&Address]) -> Evidence {
    let addresses = listed(stale.iter().map(|address| address.ip));
    let summary = format!("{} has {addresses}, which no Service has.", stale[0].link);
    let first = || stale.iter().take(MOST_LISTED);
    Evidence::new(Severity::Warning, summary)
        .each("address", first().map(|it| format!("{}/{} on {}, of no Service", it.ip, it.prefix, it.link)))
        .remedy(first().map(|address| delete_address(address)).collect::<Vec<_>>())
}

/// The finding if the proxy reports ipvs mode and Services exist, but the kernel has no virtual server.
///
/// # Errors
/// Fails if the result depends on the unread mode or on unread Services.
fn programs_nothing(snapshot: &Snapshot) -> Result<Option<Evidence>, Gap> {
    let none = snapshot.kernel.ip_vs.known(Unread::Reported("check")).is_some_and(Vec::is_empty);
    // A proxy that reports its settings runs, even if the proxy does not report its mode.
    let runs = snapshot.kernel.proxy.config.gap().is_none();
    let says = match &snapshot.kernel.proxy.mode {
        // Without a proxy, no virtual server is expected.
        Reading::Gap(gap) if matches!(gap.why, Why::Unreachable | Why::NotRequested) && !runs => return Ok(None),
        Reading::Gap(_) if snapshot.proxy_mode().is_ok_and(|mode| mode.value != Mode::Ipvs) => return Ok(None),
        mode => mode.get(),
    };
    let may_be = says.as_ref().map_or(true, |mode| mode.value == Mode::Ipvs);
    if !none || !may_be || snapshot.overrides.mode().is_some() {
        return Ok(None);
    }
    let wanted = snapshot.cluster.services.get()?.iter().any(|service| snapshot.proxy_serves(service));
    says.map(|_| {
        wanted.then(|| {
            let summary = "The proxy reports ipvs mode, but IPVS has no virtual server: the proxy does not serve any Service.";
            Evidence::new(Severity::Warning, summary).value("virtual servers", "none in /proc/net/ip_vs").remedy(
                Step::advice("read kube-proxy's log for the cause: without a kernel module such as ip_set_hash_ip, kube-proxy runs and adds no virtual servers"),
            )
        })
    })
}

/// The unknown result if more leftovers may exist: Portreeve cannot list the chains of legacy iptables.
fn unlisted(netfilter: &Netfilter, traces: &Traces) -> Option<Gap> {
    let nat = netfilter.legacy_tables.iter().any(|table| table.rsplit(' ').next() == Some("nat"));
    (nat && !traces.contains_key(&Mode::Iptables)).then(|| {
        let detail = "the chains of the legacy iptables cannot be listed: `iptables-legacy-save | grep KUBE-NODEPORTS`";
        Gap::new(Source::Netfilter, Why::NotSupported, detail)
    })
}

#[cfg(test)]
mod tests;
