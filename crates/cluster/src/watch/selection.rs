//! Which objects of a resource are selected, and how a request says so.

use std::{collections::BTreeSet, sync::Arc};

use crate::{collection::SERVED, requests::encoded};

/// The longest list of names in a request, in bytes: proxies on the way take URLs of 8 KiB.
const LONGEST: usize = 6 << 10;

/// The selected part of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// All objects.
    #[default]
    All,
    /// Services that a proxy serves.
    Served,
    /// Pods of the Node of this name.
    Node(String),
    /// EndpointSlices of the Services of these names, in every namespace: a label selector cannot name a namespace.
    /// More names than fit into a request select everything.
    EndpointsOf(Arc<BTreeSet<String>>),
}

impl Selection {
    /// The parameter of the query, with its `&`; empty where everything is selected.
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

    /// Whether it holds the endpoints of the Services of a name.
    pub fn holds_endpoints_of(&self, service: &str) -> bool {
        match self {
            Self::EndpointsOf(names) => names.contains(service),
            _ => true,
        }
    }

    /// Whether it is empty, whatever the cluster holds.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::EndpointsOf(names) if names.is_empty())
    }

    /// Whether it may stay while `needed` is needed: it may hold a little more than that, but not much.
    pub fn serves(&self, needed: &Self) -> bool {
        match (self, needed) {
            (Self::EndpointsOf(own), Self::EndpointsOf(others)) if own.len() > 2 * others.len() => false,
            _ => self.covers(needed),
        }
    }

    /// Whether it holds everything that `other` holds.
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
    fn what_is_not_wanted_any_more_ends_but_not_at_every_change() {
        assert!(names(&["a", "b"]).serves(&names(&["b"])) && !names(&["a", "b", "c"]).serves(&names(&["b"])));
        assert!(
            names(&[]).serves(&names(&[])) && names(&["a"]).covers(&names(&[])) && !names(&["a"]).serves(&names(&[]))
        );
    }

    #[test]
    fn all_covers_a_part_and_a_part_no_other() {
        assert!(!Selection::Node("n1".to_owned()).covers(&Selection::Node("n2".to_owned())));
    }

    #[test]
    fn more_names_than_a_request_holds_select_everything() {
        assert_eq!(names(&["a", "b"]).query(), "&labelSelector=kubernetes.io%2Fservice-name%20in%20%28a%2Cb%29");
        let many = Selection::EndpointsOf(Arc::new((0..1000).map(|number| format!("service-{number}")).collect()));
        assert_eq!(many.query(), "");
    }
}
