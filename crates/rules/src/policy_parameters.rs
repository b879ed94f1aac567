//! The parameters of admission policies: the NodePort range, its dynamic band, and the addresses of nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{node_ports::bands_here, wording::listed};
use portreeve_facts::{Gap, NodeAddressKind, PortRange, RangeSource, Snapshot, Source, Why};

/// The largest number of addresses of one node, because a hostile node may report any number of addresses.
const MOST_ADDRESSES: usize = 16;

/// The longest list of addresses, in bytes. kube-apiserver accepts 100,000 characters in one expression. The rest of
/// the expression, such as the networks of `--keep-free`, may have the other 50,000 characters.
const LONGEST: usize = 50_000;

/// The parameters from the scans of some nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyParameters {
    ranges: BTreeSet<PortRange>,
    dynamic_bands: BTreeSet<PortRange>,
    addresses: BTreeSet<IpAddr>,
    /// Whether some agent only assumes that the NodePort range is the default.
    pub is_assumed: bool,
    /// Unread input, with the name of its node.
    pub unread: Vec<(String, Gap)>,
}

impl PolicyParameters {
    /// Adds the scan of a node. Only the node's own Node object is used.
    pub fn absorb(&mut self, snapshot: &Snapshot) {
        let name = snapshot.node_name();
        match snapshot.cluster.node_port_range.get() {
            Err(gap) => self.unread.push((name.to_owned(), gap)),
            Ok(known) => {
                self.is_assumed |= known.source == RangeSource::Assumed;
                self.ranges.insert(known.range);
                let bands = bands_here(snapshot, known.range);
                // A range that is too small for two bands has no dynamic band.
                self.dynamic_bands.extend(bands.fixed.map(|_| bands.dynamic));
            }
        }
        match snapshot.cluster.nodes.get() {
            Err(gap) => self.unread.push((name.to_owned(), gap)),
            Ok(nodes) => {
                let own = nodes.iter().filter(|node| node.name == name).flat_map(|node| &node.addresses);
                let own = own.filter(|address| address.kind != NodeAddressKind::Hostname);
                let mut own = own.map(|address| address.ip);
                self.addresses.extend(own.by_ref().take(MOST_ADDRESSES));
                let more = own.count();
                if more > 0 {
                    let detail =
                        format!("the Node has more than {MOST_ADDRESSES} addresses: {more} are not in the policies");
                    self.unread.push((name.to_owned(), Gap::new(Source::Nodes, Why::TooMuch, detail)));
                }
            }
        }
    }

    /// The ranges in words, if agents report different ranges.
    pub fn disagreement(&self) -> Option<String> {
        (self.ranges.len() > 1).then(|| listed(&self.ranges))
    }

    /// The number of node addresses, if there are too many for one list.
    pub fn too_many_addresses(&self) -> Option<usize> {
        (self.address_list().len() > LONGEST).then_some(self.addresses.len())
    }

    fn address_list(&self) -> String {
        self.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    /// The parameters by their names. If a value is not certain, the parameter is missing, and the policy that needs
    /// the value judges nothing.
    pub fn data(&self) -> BTreeMap<String, String> {
        let mut data = BTreeMap::new();
        let mut range = |name: &str, ranges: &BTreeSet<PortRange>| {
            if let [range] = ranges.iter().collect::<Vec<_>>()[..] {
                data.insert(format!("{name}First"), range.first.to_string());
                data.insert(format!("{name}Last"), range.last.to_string());
            }
        };
        range("nodePort", &self.ranges);
        if self.ranges.len() == 1 {
            range("dynamicBand", &self.dynamic_bands);
        }
        let addresses = self.address_list();
        if !addresses.is_empty() && self.too_many_addresses().is_none() {
            data.insert("nodeAddresses".to_owned(), addresses);
        }
        data
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{
        NodeAddress,
        healthy::{PEER, PRIMARY, gap, objects},
    };

    fn of(nodes: &[Snapshot]) -> PolicyParameters {
        let mut parameters = PolicyParameters::default();
        nodes.iter().for_each(|node| parameters.absorb(node));
        parameters
    }

    fn names(parameters: &PolicyParameters) -> Vec<String> {
        parameters.data().into_keys().collect()
    }

    #[test]
    fn the_range_its_dynamic_band_and_each_agents_own_node_are_parameters() {
        let mut other = Snapshot::healthy();
        other.cluster.node_name = Some("n2".to_owned());
        let parameters = of(&[Snapshot::healthy(), other]);
        let data = parameters.data();
        let value = |name: &str| data[name].as_str();
        assert_eq!([value("nodePortFirst"), value("nodePortLast")], ["30000", "32767"]);
        assert_eq!([value("dynamicBandFirst"), value("dynamicBandLast")], ["30086", "32767"]);
        assert_eq!(value("nodeAddresses"), [PRIMARY[0], PEER, PRIMARY[1]].join(" "));
        assert!(!parameters.is_assumed && of(&[Snapshot::healthy().assumed_range()]).is_assumed);
        assert_eq!(of(&[Snapshot::healthy()]).data()["nodeAddresses"], PRIMARY.join(" "), "n2 has no agent to say so");
    }

    #[test]
    fn more_addresses_than_fit_are_no_parameter_and_are_counted() {
        let mut parameters = of(&[Snapshot::healthy()]);
        assert_eq!(parameters.too_many_addresses(), None);
        parameters.addresses =
            (0..4000).map(|it| IpAddr::from([192, 168, (it / 250) as u8, (it % 250) as u8])).collect();
        assert_eq!(parameters.too_many_addresses(), Some(4000));
        assert!(!parameters.data().contains_key("nodeAddresses"));
    }

    #[test]
    fn more_addresses_of_one_node_than_are_used_are_counted() {
        let mut world = Snapshot::healthy();
        let addresses = &mut objects(&mut world.cluster.nodes)[0].addresses;
        let first = addresses[0].clone();
        addresses.clear();
        addresses.extend((1..=20).map(|n| NodeAddress { ip: IpAddr::from([192, 0, 2, n]), ..first.clone() }));
        let unread = of(&[world]).unread;
        assert!(unread[0].1.detail.contains("more than 16 addresses: 4 are not"), "{unread:?}");
    }

    #[test]
    fn what_is_not_certain_is_no_parameter() {
        let small = Snapshot::healthy().node_port_range("30000-30015");
        assert_eq!(names(&of(std::slice::from_ref(&small))), ["nodeAddresses", "nodePortFirst", "nodePortLast"]);
        let both = of(&[small, Snapshot::healthy()]);
        assert_eq!(names(&both), ["nodeAddresses"]);
        assert_eq!(both.disagreement().as_deref(), Some("30000-30015, 30000-32767"));
        let mut blind = Snapshot::healthy();
        blind.cluster.node_port_range = gap(Source::NodePortRange, Why::NotPermitted);
        blind.cluster.nodes = gap(Source::Nodes, Why::NotPermitted);
        let blind = of(&[blind]);
        assert!(names(&blind).is_empty() && blind.unread.len() == 2);
    }
}
