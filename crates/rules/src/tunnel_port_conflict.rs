//! A tunnel cannot be set up, because another tunnel or a program has its UDP port.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Limits, Round, Rule, ids,
    remedies::move_off,
    wording::{capital, listed, with_sockets},
};
use crate::findings::{Evidence, Judgement, Judgements, Remedy, Severity, Step, Subject, Verdict};
use portreeve_dataplane::{Addresses, owner_name, place, v6only_unknown};
use portreeve_facts::{Gap, Link, Pod, Protocol, Reading, Snapshot, Socket, Source, Why};

/// The rule requests no ports: the kernel shows the ports of tunnels that are down. The port of a network plugin's
/// WireGuard device is assumed to be the plugin's default port.
pub(super) static RULE: Rule =
    Rule::of(&ids::TUNNEL_PORT_CONFLICT, &["devices", "listener"], &[Source::Addresses], check);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let links = &snapshot.kernel.interfaces.get()?.links;
    let mut by_port: BTreeMap<u16, Contested<'_>> = BTreeMap::new();
    for (port, link) in snapshot.kernel.interfaces.get()?.tunnels_down() {
        let up = || links.iter().filter(|link| link.up && link.udp_port == Some(port)).collect();
        by_port.entry(port).or_insert_with(|| Contested { port, down: Vec::new(), up: up() }).down.push(link);
    }
    for contested in by_port.values_mut() {
        contested.down.sort_by_key(|link| &link.name);
        contested.up.sort_by_key(|link| &link.name);
    }
    let judgement = |(port, contested): (u16, Contested<'_>)| {
        Judgement::on_port(
            Subject::this_node(snapshot),
            (Protocol::Udp, port),
            contested.verdict(round).unwrap_or_else(Verdict::Unknown),
        )
    };
    Ok(by_port.into_iter().map(judgement).collect())
}

struct Contested<'a> {
    port: u16,
    down: Vec<&'a Link>,
    up: Vec<&'a Link>,
}

impl Contested<'_> {
    fn verdict(&self, round: &Round<'_>) -> Result<Verdict, Gap> {
        let snapshot = round.now;
        let mut pairs = Vec::new();
        for one in &self.down {
            for other in &self.up {
                if one.excludes(other).ok_or_else(|| not_read(one))? {
                    pairs.push((*one, *other));
                }
            }
        }
        if !pairs.is_empty() {
            return Ok(Verdict::Problem(self.devices(snapshot, &pairs)));
        }
        if let Some(gap) = &snapshot.kernel.no_udp {
            return Err(gap.clone());
        }
        let of_a_tunnel = |socket: &&Socket| {
            let mut tunnels = self.up.iter().filter_map(|link| link.tunnel.as_ref());
            tunnels.any(|tunnel| tunnel.families.contains(&socket.family))
        };
        let mut sockets = round.listeners().get()?.at((Protocol::Udp, self.port)).to_vec();
        sockets.retain(|socket| !of_a_tunnel(socket));
        let mut kept_down: Vec<(&Link, &Socket)> = Vec::new();
        let mut unknown = None;
        for link in &self.down {
            for socket in &sockets {
                let families = &link.tunnel.as_ref().ok_or_else(|| not_read(link))?.families;
                match Addresses::Families(families).meets(socket) {
                    Some(true) => kept_down.push((link, socket)),
                    Some(false) => {}
                    None => unknown = Some(v6only_unknown(socket)),
                }
            }
        }
        match (kept_down.is_empty(), unknown) {
            (false, _) => Ok(Verdict::Problem(self.listener(snapshot, &kept_down))),
            (true, Some(gap)) => Err(gap),
            (true, None) => Ok(Verdict::Healthy),
        }
    }

    fn devices(&self, snapshot: &Snapshot, pairs: &[(&Link, &Link)]) -> Evidence {
        let port = self.port;
        let down = names(pairs.iter().map(|(down, _)| *down));
        let up = names(pairs.iter().map(|(_, up)| *up));
        let sentence = format!(
            "{}: {} {port}/udp, and the kernel does not let them share the port.",
            self.cannot_come_up(&down),
            plural(&up, "has", "have")
        );
        let reason = pairs.first().map(|(down, up)| ("not shared", difference(down, up)));
        let values = self.up.iter().map(|link| ("up", in_words(link))).chain(reason);
        let evidence = self.evidence(snapshot, &sentence, values).variant("devices");
        evidence.remedy(another_port("one of the networks", &self.settings(true))).remedy(Step::advice(format!(
            "if one of the links ({}) is a leftover of a deleted network, delete that link",
            listed(down.iter().chain(&up))
        )))
    }

    /// Evidence that a socket has the port, and belongs to no tunnel of this network namespace.
    fn listener(&self, snapshot: &Snapshot, pairs: &[(&Link, &Socket)]) -> Evidence {
        let down = names(pairs.iter().map(|(down, _)| *down));
        let mut sockets: Vec<&Socket> = Vec::new();
        for (_, socket) in pairs {
            if !sockets.iter().any(|it| std::ptr::eq(*it, *socket)) {
                sockets.push(socket);
            }
        }
        let first = sockets[0];
        let owner = owner_name(snapshot, &first.owner);
        let sentence = format!("{}: {owner} listens on {}.", self.cannot_come_up(&down), place(first));
        let settings = self.settings(false);
        let moved = (!settings.is_empty()).then(|| another_port(&plural(&down, "", ""), &settings));
        let evidence = self.evidence(snapshot, &sentence, []).variant("listener");
        let mut evidence = with_sockets(evidence, "listener", snapshot, &sockets).remedy(move_off(snapshot, first));
        evidence.remedies.extend(moved);
        evidence.remedy(Step::advice(format!(
            "if the link ({}) is a leftover of a deleted network, delete the link",
            listed(&down)
        )))
    }

    /// `values` come after the tunnels that are down and the assumed ports.
    fn evidence(
        &self,
        snapshot: &Snapshot,
        sentence: &str,
        values: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Evidence {
        let (severity, pods) = severity(snapshot);
        let mut evidence = Evidence::new(severity, capital(sentence));
        let down = self.down.iter().map(|link| ("down", in_words(link)));
        let assumed = self.plugins().into_iter().map(|plugin| {
            ("assumed", format!("{}/udp is the default port of {plugin}; the device's own port is not read", self.port))
        });
        evidence.values.extend(down.chain(assumed).chain(values).chain(pods.map(|pods| ("not ready", pods))));
        evidence
    }

    fn cannot_come_up(&self, down: &[&str]) -> String {
        let plugins = self.plugins();
        let assumed = match plugins.is_empty() {
            true => String::new(),
            false => format!(", with the default port of {},", listed(plugins)),
        };
        format!("{} down and{assumed} cannot come up", plural(down, "is", "are"))
    }

    fn plugins(&self) -> BTreeSet<&'static str> {
        self.down.iter().filter_map(|link| link.wireguard()).map(|it| it.plugin).collect()
    }

    /// The settings that change the ports of the tunnels that are down. If `others` is true, the result also has the
    /// settings for overlay tunnels. Cilium's WireGuard device has no setting for its port.
    fn settings(&self, others: bool) -> Vec<&'static str> {
        let others = others || self.down.iter().any(|link| link.wireguard().is_none());
        let overlays = [
            "`vxlanPort` in Calico's FelixConfiguration",
            "`tunnelPort` of Cilium's chart",
            "`Port` in flannel's net-conf.json",
            "`--data-path-port` of Docker Swarm",
        ];
        let wireguard = self.down.iter().filter_map(|link| link.wireguard()?.setting);
        overlays.into_iter().filter(|_| others).chain(wireguard).collect()
    }
}

/// The severity, and the unready pods that suggest the severity, because it is not known which program needs a tunnel.
/// A pod that makes tunnels belongs to a DaemonSet, uses the host's network, and is not ready while its tunnel is down.
fn severity(snapshot: &Snapshot) -> (Severity, Option<String>) {
    let pods = match &snapshot.cluster.pods {
        Reading::Seen(pods) => pods,
        Reading::Gap(gap) => return (Severity::Info, Some(format!("not known: {}", gap.detail))),
    };
    let is_of_all_nodes = |pod: &&Pod| pod.controller.as_ref().is_some_and(|it| it.kind == "DaemonSet");
    let here = pods.iter().map(AsRef::as_ref).filter(|pod: &&Pod| pod.may_be_on(snapshot.node_name()));
    let mut waiting: Vec<_> = here
        .filter(|pod| pod.host_network && !pod.ready && !pod.finished && pod.ends.is_none())
        .filter(is_of_all_nodes)
        .map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .collect();
    waiting.sort();
    match waiting.is_empty() {
        true => (Severity::Info, None),
        false => (Severity::Warning, Some(format!("hostNetwork pods of DaemonSets: {}", listed(waiting)))),
    }
}

fn names<'a>(links: impl Iterator<Item = &'a Link>) -> Vec<&'a str> {
    let mut names: Vec<&str> = links.map(|link| link.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn plural(names: &[&str], one: &str, several: &str) -> String {
    let (noun, verb) = if names.len() == 1 { ("tunnel", one) } else { ("tunnels", several) };
    format!("{noun} {} {verb}", listed(names)).trim_end().to_owned()
}

/// A tunnel as text: `flannel.1: vxlan, id 1`.
fn in_words(link: &Link) -> String {
    let mut words = vec![link.kind.clone().unwrap_or_default()];
    if let Some(tunnel) = &link.tunnel {
        words.extend(tunnel.external.then(|| "external".to_owned()));
        words.extend(tunnel.id.map(|id| format!("id {id}")));
        words.extend(tunnel.options.iter().cloned());
        words.extend(tunnel.families.iter().map(ToString::to_string));
    }
    format!("{}: {}", link.name, words.join(", "))
}

fn difference(one: &Link, other: &Link) -> String {
    let kind = |link: &Link| link.kind.clone().unwrap_or_default();
    let is_external = |link: &Link| link.tunnel.as_ref().is_some_and(|tunnel| tunnel.external);
    if one.kind != other.kind {
        return format!("{} is {}, {} is {}", one.name, kind(one), other.name, kind(other));
    }
    let (external, other) = match (is_external(one), is_external(other)) {
        (true, false) => (one, other),
        (false, true) => (other, one),
        _ => return "their receive options differ".to_owned(),
    };
    format!(
        "{} has the option `external`, and gets the packets of every VNI; {} has no such option",
        external.name, other.name
    )
}

fn another_port(whose: &str, settings: &[&str]) -> Remedy {
    Step::advice(format!("give {whose} another UDP port, on all nodes alike: {}", settings.join(", "))).into()
}

fn not_read(link: &Link) -> Gap {
    let detail =
        format!("how tunnel {} opens its port was not read: the snapshot is from an earlier version", link.name);
    Gap::new(Source::Addresses, Why::NotSupported, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expectations::{expect_healthy, expect_problem, expect_unknown};
    use portreeve_facts::{
        Controller, Family, Owner, State, Tunnel,
        healthy::{daemon, gap, interfaces_of},
    };

    fn two() -> Snapshot {
        let world = Snapshot::healthy().tunnel("swarm0", "vxlan", 4789, |link| of(link).id = Some(4096));
        world.tunnel("vxlan.calico", "vxlan", 4789, |link| {
            link.up = false;
            of(link).external = true;
            of(link).families = Family::BOTH.to_vec();
        })
    }

    fn down() -> Snapshot {
        Snapshot::healthy().tunnel("flannel.1", "vxlan", 8472, |link| link.up = false)
    }

    fn of(link: &mut Link) -> &mut Tunnel {
        link.tunnel.get_or_insert_default()
    }

    fn listens(world: Snapshot, local: &str, owner: Owner) -> Snapshot {
        let peer = if local.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        world.socket(Protocol::Udp, State::Close, local, peer, |socket| socket.owner = owner)
    }

    fn unready(world: Snapshot, kind: &str, host_network: bool) -> Snapshot {
        world.pod("calico-node-x2", |pod| {
            pod.controller = Some(Controller { kind: kind.to_owned(), name: "calico-node".to_owned() });
            (pod.host_network, pod.ready) = (host_network, false);
        })
    }

    #[track_caller]
    fn problem(world: &Snapshot) -> Evidence {
        expect_problem(&RULE, world, &Subject::this_node(world))
    }

    #[track_caller]
    fn healthy(world: &Snapshot) {
        expect_healthy(&RULE, world, &Subject::this_node(world));
    }

    #[test]
    fn a_tunnel_that_another_one_keeps_down_is_told_with_both() {
        let evidence = problem(&two());
        assert_eq!((evidence.variant, evidence.severity), ("devices", Severity::Info));
        assert_eq!(
            evidence.summary,
            "Tunnel vxlan.calico is down and cannot come up: tunnel swarm0 has 4789/udp, and the kernel does not let them share the port."
        );
        for value in [
            ("down", "vxlan.calico: vxlan, external, IPv4, IPv6"),
            ("up", "swarm0: vxlan, id 4096, IPv4"),
            (
                "not shared",
                "vxlan.calico has the option `external`, and gets the packets of every VNI; swarm0 has no such option",
            ),
        ] {
            assert!(evidence.values.contains(&(value.0, value.1.to_owned())), "{value:?} {evidence:#?}");
        }
        let steps: Vec<_> = evidence.remedies.iter().flat_map(|it| &it.steps).map(|step| step.text.as_str()).collect();
        assert!(steps[0].contains("`vxlanPort`") && steps[1].contains("(vxlan.calico, swarm0)"), "{steps:?}");
    }

    #[test]
    fn a_daemonsets_pod_of_the_hosts_network_that_is_not_ready_makes_a_warning() {
        let evidence = problem(&unready(two(), "DaemonSet", true));
        assert_eq!(evidence.severity, Severity::Warning);
        let pods = "hostNetwork pods of DaemonSets: default/calico-node-x2".to_owned();
        assert!(evidence.values.contains(&("not ready", pods)), "{evidence:#?}");
        for world in [unready(two(), "ReplicaSet", true), unready(two(), "DaemonSet", false)] {
            assert_eq!(problem(&world).severity, Severity::Info);
        }
        let mut unread = two();
        unread.cluster.pods = gap(Source::Pods, Why::NotPermitted);
        assert_eq!(problem(&unread).severity, Severity::Info, "no more is certain");
    }

    #[test]
    fn one_that_is_down_although_the_other_would_share_its_port_is_not_kept_down() {
        let beside = |change: fn(&mut Tunnel)| {
            let world = down().tunnel("other", "vxlan", 8472, |link| change(of(link)));
            listens(world, "0.0.0.0:8472", Owner::Kernel { link: "other".to_owned() })
        };
        healthy(&beside(|tunnel| tunnel.id = Some(2)));
        let of_ipv6 = beside(|tunnel| tunnel.families = vec![Family::V6]);
        assert_eq!(problem(&of_ipv6).variant, "listener", "a socket of IPv4 is not that of a tunnel of IPv6");
        let both_external = |world: Snapshot, name: &str, up| {
            world.tunnel(name, "vxlan", 8472, |link| {
                link.up = up;
                (of(link).external, of(link).families) = (true, Family::BOTH.to_vec());
            })
        };
        healthy(&both_external(both_external(Snapshot::healthy(), "cilium_vxlan", true), "eth9", false));
    }

    #[test]
    fn options_of_receiving_and_kinds_keep_tunnels_apart_and_families_and_ports_do_not() {
        let other =
            |kind: &str, port, change: fn(&mut Tunnel)| down().tunnel("other", kind, port, |link| change(of(link)));
        let options = problem(&other("vxlan", 8472, |tunnel| tunnel.options = vec!["gbp".to_owned()]));
        assert!(options.values.contains(&("not shared", "their receive options differ".to_owned())));
        let kinds = problem(&other("geneve", 8472, |_| ()));
        assert!(kinds.values.contains(&("not shared", "flannel.1 is vxlan, other is geneve".to_owned())), "{kinds:#?}");
        healthy(&other("vxlan", 8472, |tunnel| {
            (tunnel.options, tunnel.families) = (vec!["gbp".to_owned()], vec![Family::V6]);
        }));
        healthy(&other("geneve", 6081, |_| ()));
        let geneve = |world: Snapshot, name: &str, up, external| {
            world.tunnel(name, "geneve", 6081, |link| (link.up, of(link).external) = (up, external))
        };
        healthy(&geneve(geneve(Snapshot::healthy(), "one", true, true), "two", false, false));
    }

    #[test]
    fn what_is_up_has_its_port_and_what_is_down_beside_one_that_is_down_lost_it_to_nobody() {
        let mut up = two();
        interfaces_of(&mut up).links.iter_mut().for_each(|link| link.up = true);
        healthy(&up);
        let mut off = two();
        interfaces_of(&mut off).links.iter_mut().for_each(|link| link.up = false);
        healthy(&off);
        healthy(&down());
    }

    #[test]
    fn a_process_with_the_port_of_a_tunnel_that_is_down_is_named() {
        let evidence = problem(&listens(down(), "127.0.0.1:8472", daemon("dnsmasq", 7)));
        assert_eq!((evidence.variant, evidence.severity), ("listener", Severity::Info));
        let sentence = "Tunnel flannel.1 is down and cannot come up: process dnsmasq listens on 127.0.0.1:8472/udp.";
        assert_eq!(evidence.summary, sentence);
        assert_eq!(evidence.remedies[0].steps[0].text, "move process dnsmasq off port 8472/udp");
        healthy(&listens(down(), "0.0.0.0:8473", daemon("dnsmasq", 7)));
        let tcp = down().listens("0.0.0.0:8472");
        healthy(&tcp);
    }

    #[test]
    fn a_socket_of_the_kernel_without_a_link_here_may_be_wireguards_or_that_of_another_namespace() {
        let evidence = problem(&listens(down(), "0.0.0.0:8472", Owner::Kernel { link: String::new() }));
        assert!(evidence.summary.contains("the kernel listens on 0.0.0.0:8472/udp"), "{}", evidence.summary);
        let step = &evidence.remedies[0].steps[0].text;
        assert!(step.contains("WireGuard") && step.contains("another network namespace"), "{step}");
    }

    fn wireguard(world: Snapshot, name: &str) -> Snapshot {
        world.tunnel(name, "wireguard", 1, |link| {
            (link.up, link.udp_port) = (false, None);
            of(link).families = Family::BOTH.to_vec();
        })
    }

    #[test]
    fn a_wireguard_device_of_a_network_plugin_is_judged_with_the_plugins_default_port() {
        let taken = |name: &str, port| {
            let world = wireguard(Snapshot::healthy(), name);
            problem(&listens(world, &format!("0.0.0.0:{port}"), daemon("dnsmasq", 7)))
        };
        let evidence = taken("cilium_wg0", 51871);
        assert_eq!((evidence.variant, evidence.severity), ("listener", Severity::Info));
        assert_eq!(
            evidence.summary,
            "Tunnel cilium_wg0 is down and, with the default port of Cilium, cannot come up: process dnsmasq listens on 0.0.0.0:51871/udp."
        );
        for value in [
            ("down", "cilium_wg0: wireguard, IPv4, IPv6"),
            ("assumed", "51871/udp is the default port of Cilium; the device's own port is not read"),
        ] {
            assert!(evidence.values.contains(&(value.0, value.1.to_owned())), "{value:?} {evidence:#?}");
        }
        let advice = |evidence: &Evidence| format!("{:?}", evidence.remedies);
        assert!(!advice(&evidence).contains("another UDP port"), "Cilium has no setting: {evidence:#?}");
        for (name, port, setting) in [
            ("wireguard.cali", 51820, "alike: `wireguardListeningPort` in"),
            ("wg-v6.cali", 51821, "alike: `wireguardListeningPortV6` in"),
            ("flannel-wg", 51820, "alike: `ListenPort` in"),
            ("flannel-wg-v6", 51821, "alike: `ListenPortV6` in"),
            ("antrea-wg0", 51820, "alike: `wireGuard.port` in"),
            ("kilo0", 51820, "alike: `--port` of Kilo"),
        ] {
            assert!(advice(&taken(name, port)).contains(setting), "{name}");
        }
        let of_ipv6 = wireguard(Snapshot::healthy(), "kilo0").socket(
            Protocol::Udp,
            State::Close,
            "[::]:51820",
            "[::]:0",
            |socket| (socket.owner, socket.v6only) = (daemon("dnsmasq", 7), Some(true)),
        );
        assert_eq!(problem(&of_ipv6).variant, "listener", "it opens a socket of each family");
    }

    #[test]
    fn a_tunnel_with_the_default_port_of_a_wireguard_device_is_told_with_both() {
        let world = wireguard(Snapshot::healthy(), "flannel-wg").tunnel("old0", "vxlan", 51820, |_| ());
        let evidence = problem(&listens(world, "0.0.0.0:51820", Owner::Kernel { link: "old0".to_owned() }));
        assert_eq!(evidence.variant, "devices");
        assert_eq!(
            evidence.summary,
            "Tunnel flannel-wg is down and, with the default port of flannel, cannot come up: tunnel old0 has 51820/udp, and the kernel does not let them share the port."
        );
        let kinds = ("not shared", "flannel-wg is wireguard, old0 is vxlan".to_owned());
        assert!(evidence.values.contains(&kinds), "{evidence:#?}");
        let step = &evidence.remedies[0].steps[0].text;
        assert!(step.contains("`vxlanPort`") && step.ends_with("`ListenPort` in flannel's net-conf.json"), "{step}");
    }

    #[test]
    fn a_wireguard_device_is_not_judged_if_it_is_up_or_of_another_name_or_nothing_has_the_port() {
        let taken = |world: Snapshot| listens(world, "0.0.0.0:51820", daemon("dnsmasq", 7));
        healthy(&wireguard(Snapshot::healthy(), "kilo0"));
        healthy(&taken(wireguard(Snapshot::healthy(), "wg0")));
        healthy(&taken(wireguard(Snapshot::healthy(), "cilium_wg0")));
        let mut up = taken(wireguard(Snapshot::healthy(), "kilo0"));
        interfaces_of(&mut up).links.iter_mut().for_each(|link| link.up = true);
        healthy(&up);
        let mut dummy = taken(wireguard(Snapshot::healthy(), "kilo0"));
        let link = interfaces_of(&mut dummy).links.last_mut().expect("a link");
        link.kind = Some("dummy".to_owned());
        healthy(&dummy);
    }

    #[test]
    fn a_socket_of_the_other_family_is_not_in_the_way() {
        let v6only = |value| {
            let owner = daemon("dnsmasq", 7);
            let peer = "[::]:0";
            down().socket(Protocol::Udp, State::Close, "[::]:8472", peer, |it| (it.owner, it.v6only) = (owner, value))
        };
        healthy(&v6only(Some(true)));
        assert_eq!(problem(&v6only(Some(false))).variant, "listener");
        let world = v6only(None);
        let gap = expect_unknown(&RULE, &world, &Subject::this_node(&world));
        assert_eq!(gap.source, Source::Listeners);
    }

    #[test]
    fn what_was_not_read_is_unknown_only_where_a_tunnel_is_down() {
        let unread = |mut world: Snapshot| {
            world.kernel.listeners = gap(Source::Listeners, Why::NotPermitted);
            world
        };
        healthy(&unread(Snapshot::healthy()));
        let world = unread(down());
        assert_eq!(expect_unknown(&RULE, &world, &Subject::this_node(&world)).source, Source::Listeners);
        assert_eq!(problem(&unread(two())).variant, "devices");
        let mut world = down();
        world.kernel.no_udp = Some(Gap::new(Source::Listeners, Why::TooMuch, "so the test says"));
        assert_eq!(expect_unknown(&RULE, &world, &Subject::this_node(&world)).why, Why::TooMuch);
    }

    #[test]
    fn of_a_snapshot_of_an_earlier_version_it_is_unknown_whether_tunnels_share() {
        let old = |mut world: Snapshot| {
            interfaces_of(&mut world).links.iter_mut().for_each(|link| link.tunnel = None);
            world
        };
        for world in [old(two()), old(listens(down(), "0.0.0.0:8472", daemon("dnsmasq", 7)))] {
            assert_eq!(expect_unknown(&RULE, &world, &Subject::this_node(&world)).source, Source::Addresses);
        }
        healthy(&old(down()));
    }
}
