//! An unknown data plane: the proxy did not answer, and no configuration names its mode.
//!
//! A verdict is certain only if every mode of kube-proxy gives the same verdict. If the node has a link of Cilium or of
//! an unmeasured data plane, Cilium or the unmeasured data plane must give the same verdict too.

use super::{
    cilium,
    plane::{DATA_PLANES, DataPlane},
    unmeasured,
};
use portreeve_facts::{Gap, Interfaces, Mode, Snapshot, Source, Why};

pub(super) fn possible(snapshot: &Snapshot, interfaces: &Interfaces) -> impl Iterator<Item = &'static DataPlane> {
    // The only possible mode of kube-proxy, if a source names one.
    let named = snapshot.contested().map(|(mode, _)| mode);
    // If a kube-proxy answers and the mode is still unknown, Cilium runs beside kube-proxy.
    let answers = named.is_some() && snapshot.kernel.proxy.mode.gap().is_none();
    let cilium = answers || cilium::may_be(snapshot, interfaces);
    let unmeasured = !answers && interfaces.unmeasured().is_some();
    let is_possible = move |mode: Mode| named.map_or(Mode::KUBE_PROXY.contains(&mode), |named| named == mode);
    let of_kube_proxy = DATA_PLANES.into_iter().filter(move |plane| is_possible(plane.mode));
    of_kube_proxy.chain(cilium.then_some(&cilium::PLANE)).chain(unmeasured.then_some(&unmeasured::PLANE))
}

pub(super) fn gap(interfaces: &Interfaces) -> Option<Gap> {
    let (name, link) = interfaces.unmeasured()?;
    let detail = format!(
        "this node's link {link} shows that it runs {name}: Portreeve has no measurement of who answers with {name}"
    );
    Some(Gap::new(Source::ProxyMode, Why::Ambiguous, detail))
}

pub(super) const WORDS: &str = "unknown: each known result is the same in iptables, ipvs and nftables mode";

pub(super) const OR_UNMEASURED: &str = ", and, from its source code, with  ";

pub(super) const OR_CILIUM: &str = ", and with Cilium instead of kube-proxy";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{
        super::{
            assumption::Assumption, assumptions::Assumptions, backing::Backing, by_port::Port,
            local_address::LocalAddress, outcome::Outcome,
        },
        *,
    };
    use portreeve_facts::{
        Learned, Protocol, ProxyConfig, Reading, Vantage,
        healthy::{PRIMARY, gap as torn, ip},
    };

    const WEB: Port = (Protocol::Tcp, 30080);

    fn of(world: &Snapshot) -> Assumptions {
        Assumptions::of(world, world.kernel.interfaces.seen().expect("links"), 60)
    }

    #[test]
    fn a_config_map_that_kube_proxy_left_behind_does_not_make_a_node_of_cilium_kube_proxys() {
        let mut world = Snapshot::healthy().without_proxy();
        let place = "ConfigMap kube-system/kube-proxy".to_owned();
        let config = ProxyConfig { place, mode: Some(String::new()), ..ProxyConfig::default() };
        world.cluster.proxy_config = Reading::Seen(config);
        let mode = |world: &Snapshot| world.proxy_mode().map(|mode| mode.value).map_err(|gap| gap.why);
        assert_eq!(mode(&world), Ok(Mode::Iptables), "no link of Cilium");
        let mut unread = world.clone();
        for (why, known) in [(Why::Torn, Err(Why::Torn)), (Why::NotRequested, Ok(Mode::Iptables))] {
            unread.kernel.interfaces = torn(Source::Addresses, why);
            assert_eq!(mode(&unread), known, "it may have one");
        }
        let mut world = world.address("cilium_host", "10.244.0.1");
        assert_eq!(mode(&world), Err(Why::Ambiguous));
        let both = of(&world);
        let modes: BTreeSet<_> = both.iter().map(|it| it.mode().name()).collect();
        assert_eq!(modes, ["cilium", "iptables"].into());
        assert!(
            both.mode_in_words().contains("Cilium may replace it; the result is the same in both cases"),
            "{}",
            both.mode_in_words()
        );
        world.cluster.cilium_replaces = Some(false);
        assert_eq!(mode(&world), Ok(Mode::Iptables), "Cilium's settings leave it in its place");
        world.cluster.cilium_replaces = None;
        world.overrides.proxy_mode = Some(Learned { value: Mode::Ipvs, place: "--proxy-mode".to_owned() });
        assert_eq!(mode(&world), Ok(Mode::Ipvs), "somebody says so");
        world.overrides.proxy_mode = None;
        assert_eq!(mode(&world.with_mode(Mode::Iptables)), Ok(Mode::Iptables), "it answers");
    }

    #[test]
    fn where_nobody_tells_a_plane_that_was_not_measured_is_named_where_answers_differ() {
        let verdict = |world: &Snapshot, address: &str, backing| {
            let assumptions = of(world);
            let to = LocalAddress { ip: ip(address), vrf: false };
            let lost = |it: &Assumption| it.outcome((to, WEB), Vantage::Remote, backing) != Outcome::Listener;
            let lost: Vec<bool> = assumptions.at(true).iter().map(lost).collect();
            if lost.contains(&true) == lost.contains(&false) {
                Err(assumptions.ambiguity().detail)
            } else {
                Ok(lost[0])
            }
        };
        let plain = Snapshot::healthy().without_proxy();
        assert_eq!(verdict(&plain, PRIMARY[0], Backing::Elsewhere), Ok(true));
        for (link, name) in [
            ("kube-bridge", "kube-router"),
            ("ovn-k8s-mp0", "OVN-Kubernetes"),
            ("bpfin.cali", "Calico's eBPF data plane"),
            ("antrea-gw0", "Antrea"),
        ] {
            let world = plain.clone().address(link, "10.244.0.1");
            assert_eq!(verdict(&world, PRIMARY[0], Backing::Ready), Ok(true), "{link}: all take it");
            for backing in [Backing::Empty, Backing::Elsewhere] {
                let unknown = verdict(&world, PRIMARY[0], backing).expect_err("they differ");
                assert!(unknown.contains(name), "{link}: {unknown}");
            }
            assert!(of(&world).mode_in_words().contains(name), "{}", of(&world).mode_in_words());
            let told = Snapshot::healthy().address(link, "10.244.0.1");
            assert_eq!(verdict(&told, PRIMARY[0], Backing::Elsewhere), Ok(true), "kube-proxy answers");
        }
    }

    #[test]
    fn what_is_local_inside_is_sure_to_be_served_from_outside_only_by_a_plane_that_was_not_measured() {
        let world = Snapshot::healthy().without_proxy().address("kube-bridge", "10.244.0.1");
        let outcomes = |from| {
            let to = LocalAddress { ip: ip(PRIMARY[0]), vrf: false };
            let assumptions = of(&world);
            let served = assumptions.at(true).iter();
            let outcomes: Vec<_> = served.map(|it| it.outcome((to, WEB), from, Backing::ReadyOutside)).collect();
            (outcomes.iter().all(|it| *it == Outcome::Pod), outcomes.contains(&Outcome::Listener))
        };
        assert_eq!(outcomes(Vantage::Remote), (true, false));
        assert_eq!(outcomes(Vantage::Node), (false, true));
    }

    #[test]
    fn a_config_map_alone_does_not_hide_a_plane_that_has_kube_proxys_place() {
        let mode = |link: &str| {
            let mut world = Snapshot::healthy().without_proxy().address(link, "10.244.0.1");
            let config = ProxyConfig { mode: Some("ipvs".to_owned()), ..ProxyConfig::default() };
            world.cluster.proxy_config = Reading::Seen(config);
            world.proxy_mode().map(|mode| mode.value).map_err(|gap| gap.detail)
        };
        for link in ["bpfin.cali", "kube-dummy-if", "ovn-k8s-mp0"] {
            assert!(mode(link).expect_err("either").contains(link), "{link}");
        }
        for link in ["kube-bridge", "antrea-gw0"] {
            assert_eq!(mode(link), Ok(Mode::Ipvs), "{link} is there beside kube-proxy too");
        }
    }
}
