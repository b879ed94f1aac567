//! Links that Cilium treats differently if the setting `devices` is empty.

use crate::parts::{Namespace, ip};

/// The addresses on three links, two for each link. Cilium finds the first two links by itself, but not the third link.
pub const ON_LINKS: [&str; 6] =
    ["203.0.113.1", "2001:db8:a::1", "203.0.113.65", "2001:db8:b::1", "203.0.113.129", "2001:db8:c::1"];

/// Gives the node three links: a link that is not a veth, a veth with an unused default route, and a bridge. The links
/// to the pods are veths without a default route.
#[track_caller]
pub fn add(client: &Namespace) {
    ip(&[
        "link add mac0 link pod1 type macvlan mode bridge".to_owned(),
        format!("link add net1 type veth peer name wire netns {}", client.path()),
        "link add bridge0 type bridge".to_owned(),
    ]);
    client.run(|| ip(&["link set wire up".to_owned()]));
    for (link, addresses) in ["mac0", "net1", "bridge0"].into_iter().zip(ON_LINKS.chunks(2)) {
        ip(&[
            format!("link set {link} up"),
            format!("address add {}/26 dev {link}", addresses[0]),
            format!("address add {}/64 dev {link} nodad", addresses[1]),
        ]);
    }
    ip(&["route add default via 203.0.113.66 metric 2000", "route add default via 2001:db8:b::2 metric 2000"]
        .map(str::to_owned));
}
