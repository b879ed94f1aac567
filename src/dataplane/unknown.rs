//! The data plane is not known: the proxy did not answer, and no configuration names its mode.
//!
//! Then a verdict counts only where every mode of kube-proxy agrees, and Cilium too on a node that has its link. Another data
//! plane is known by its own settings, or not at all.

use super::{cilium, iptables, ipvs, nftables, plane::DataPlane};
use crate::facts::{Interfaces, Snapshot};

/// What an unknown data plane may be.
static POSSIBLE: [&DataPlane; 3] = [&iptables::PLANE, &ipvs::PLANE, &nftables::PLANE];

/// What it may be on a node with these links.
pub(super) fn possible(snapshot: &Snapshot, interfaces: &Interfaces) -> Vec<&'static DataPlane> {
    POSSIBLE.into_iter().chain(cilium::may_be(snapshot, interfaces).then_some(&cilium::PLANE)).collect()
}

/// For evidence, in place of the mode.
pub(super) const WORDS: &str = "unknown: this holds in iptables, ipvs and nftables mode";

/// The same on a node that may have Cilium in kube-proxy's place.
pub(super) const OR_CILIUM: &str = ", and with Cilium in kube-proxy's place";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{super::candidates::Candidates, *};
    use crate::facts::{Learned, Mode, ProxyConfig, Reading, Why};

    #[test]
    fn a_config_map_that_kube_proxy_left_behind_does_not_make_a_node_of_cilium_kube_proxys() {
        let mut world = Snapshot::healthy().without_proxy();
        let place = "ConfigMap kube-system/kube-proxy".to_owned();
        let config = ProxyConfig { place, mode: Some(String::new()), ..ProxyConfig::default() };
        world.cluster.proxy_config = Reading::Seen(config);
        let mode = |world: &Snapshot| world.proxy_mode().map(|mode| mode.value).map_err(|gap| gap.why);
        assert_eq!(mode(&world), Ok(Mode::Iptables), "no link of Cilium");
        let mut world = world.address("cilium_host", "10.244.0.1");
        assert_eq!(mode(&world), Err(Why::Ambiguous));
        let both = Candidates::of(&world, world.kernel.interfaces.seen().expect("links"), 60);
        let modes: BTreeSet<_> = both.iter().map(|it| it.mode().name()).collect();
        assert_eq!(modes, ["cilium", "iptables"].into());
        assert!(
            both.mode_in_words().contains("Cilium may be in its place; this holds for both"),
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
}
