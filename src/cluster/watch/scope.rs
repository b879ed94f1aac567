//! Which objects of a resource are asked for.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    super::{api::SERVED, requests::encoded},
    row::Row,
};

/// The longest list of names in a request, in bytes: proxies on the way take URLs of 8 KiB.
const LONGEST: usize = 6 << 10;

/// A part of a resource, as far as a selector can say it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Scope {
    /// All objects.
    #[default]
    All,
    /// Services that a proxy serves.
    Served,
    /// Pods of a Node.
    Node(String),
    /// EndpointSlices of Services of these names, in whatever namespace: a selector of labels cannot name one. More
    /// names than a request holds select everything. Whoever knows the scope shares them.
    Names(Arc<BTreeSet<String>>),
}

impl Scope {
    /// The parameter of the query, with its `&`; empty where nothing is left out.
    pub(super) fn query(&self) -> String {
        match self {
            Self::All => String::new(),
            Self::Served => format!("&fieldSelector={}", encoded(SERVED)),
            Self::Node(name) => format!("&fieldSelector={}", encoded(&format!("spec.nodeName={name}"))),
            Self::Names(names) => {
                let names = names.iter().map(String::as_str).collect::<Vec<_>>().join(",");
                let selector = encoded(&format!("kubernetes.io/service-name in ({names})"));
                if selector.len() > LONGEST { String::new() } else { format!("&labelSelector={selector}") }
            }
        }
    }

    /// Whether an object is within it: an answer may hold more than was asked for.
    pub(super) fn holds(&self, row: &Row) -> bool {
        match (self, row.endpoint_slice()) {
            (Self::Names(names), Some(slice)) => names.contains(&slice.service),
            _ => true,
        }
    }

    /// Whether it holds nothing whatever the cluster has.
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, Self::Names(names) if names.is_empty())
    }

    /// Whether it may stay while `wanted` is wanted: a little more may be asked for than that, but not much.
    pub(super) fn serves(&self, wanted: &Self) -> bool {
        match (self, wanted) {
            (Self::Names(own), Self::Names(others)) if own.len() > 2 * others.len() => false,
            _ => self.covers(wanted),
        }
    }

    /// Whether it holds everything that `other` holds.
    pub(super) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All, _) => true,
            (Self::Names(own), Self::Names(others)) => own.is_superset(others),
            _ => self == other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Scope {
        Scope::Names(Arc::new(names.iter().map(|name| (*name).to_owned()).collect()))
    }

    #[test]
    fn names_cover_fewer_names_but_not_others() {
        assert!(names(&["a", "b"]).covers(&names(&["b"])));
        assert!(!names(&["a", "b"]).covers(&names(&["c"])));
        assert!(Scope::All.covers(&Scope::Served) && !Scope::Served.covers(&Scope::All));
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
        assert!(!Scope::Node("n1".to_owned()).covers(&Scope::Node("n2".to_owned())));
    }

    #[test]
    fn more_names_than_a_request_holds_select_everything() {
        assert_eq!(names(&["a", "b"]).query(), "&labelSelector=kubernetes.io%2Fservice-name%20in%20%28a%2Cb%29");
        let many = Scope::Names(Arc::new((0..1000).map(|number| format!("service-{number}")).collect()));
        assert_eq!(many.query(), "");
    }
}
