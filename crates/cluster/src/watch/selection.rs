//! The objects of a resource that a watch selects, and the query for them.

use std::{collections::BTreeSet, sync::Arc};

use crate::requests::encoded;

/// The field selector leaves out ExternalName and headless Services, because they have no NodePorts.
const SERVED: &str = "spec.type!=ExternalName,spec.clusterIP!=None";

/// The longest list of names in a request, in bytes. Proxies accept URLs of 8 KiB.
const LONGEST: usize = 6 << 10;

/// A part of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// All objects.
    #[default]
    All,
    /// Services that a proxy serves.
    Served,
    /// Pods of the Node with this name.
    Node(String),
    /// EndpointSlices of the Services with these names. A label selector cannot name a namespace, so all namespaces are
    /// included. If the names are too long for a request, everything is selected.
    EndpointsOf(Arc<BTreeSet<String>>),
}

impl Selection {
    /// The part of the query that selects objects, with `&` at the start. The text is empty if everything is selected.
    pub fn query(&self) -> String {
        match self {
            Self::All => String::new(),
            Self::Served => format!("&fieldSelector={}", encoded(SERVED)),
            Self::Node(name) => format!("&fieldSelector={}", encoded(&format!("spec.nodeName={name}"))),
            Self::EndpointsOf(names) => {
                let names = names.iter().map(String::as_str).collect::<Vec<_>>().join(",");
                let selector = encoded(&format!("kubernetes.io/service-name in ({names})"));
                if selector.len() > LONGEST { String::new() } else { format!("&labelSelector={selector}") }
            }
        }
    }

    /// Whether the selection includes the endpoints of the Services with this name.
    pub fn holds_endpoints_of(&self, service: &str) -> bool {
        match self {
            Self::EndpointsOf(names) => names.contains(service),
            _ => true,
        }
    }

    /// Whether the selection is empty in every cluster.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::EndpointsOf(names) if names.is_empty())
    }

    /// Whether this selection can be kept while `needed` must be selected. This selection must include `needed`, and
    /// may have at most twice as many names.
    pub fn serves(&self, needed: &Self) -> bool {
        match (self, needed) {
            (Self::EndpointsOf(own), Self::EndpointsOf(others)) if own.len() > 2 * others.len() => false,
            _ => self.covers(needed),
        }
    }

    /// Whether the selection includes everything in `other`.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All, _) => true,
            (Self::EndpointsOf(own), Self::EndpointsOf(others)) => own.is_superset(others),
            _ => self == other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Selection {
        Selection::EndpointsOf(Arc::new(names.iter().map(|name| (*name).to_owned()).collect()))
    }

    #[test]
    fn names_cover_fewer_names_but_not_others() {
        assert!(names(&["a", "b"]).covers(&names(&["b"])));
        assert!(!names(&["a", "b"]).covers(&names(&["c"])));
        assert!(Selection::All.covers(&Selection::Served) && !Selection::Served.covers(&Selection::All));
    }

    #[test]
    fn an_unneeded_selection_ends_but_not_at_every_change() {
        assert!(names(&["a", "b"]).serves(&names(&["b"])) && !names(&["a", "b", "c"]).serves(&names(&["b"])));
        assert!(
            names(&[]).serves(&names(&[])) && names(&["a"]).covers(&names(&[])) && !names(&["a"]).serves(&names(&[]))
        );
    }

    #[test]
    fn everything_covers_a_part_and_a_part_covers_no_other_part() {
        assert!(!Selection::Node("n1".to_owned()).covers(&Selection::Node("n2".to_owned())));
    }

    #[test]
    fn more_names_than_a_request_holds_select_everything() {
        assert_eq!(names(&["a", "b"]).query(), "&labelSelector=kubernetes.io%2Fservice-name%20in%20%28a%2Cb%29");
        let many = Selection::EndpointsOf(Arc::new((0..1000).map(|number| format!("service-{number}")).collect()));
        assert_eq!(many.query(), "");
    }
}
