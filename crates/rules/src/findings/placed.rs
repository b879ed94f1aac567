//! A problem in a manifest, with the place of the very field.

use super::{Evidence, RuleId};
use portreeve_facts::{Place, Protocol};

/// One problem at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedFinding {
    /// Where the value is written that is wrong.
    pub place: Place,
    /// Its id; the evidence names the variant.
    pub rule: RuleId,
    /// Whom it is about, `Service shop/web`.
    pub object: String,
    /// The way to the field, `spec.ports[0].nodePort`.
    pub field: String,
    /// The port it is about, where it is about one.
    pub port: Option<u16>,
    /// The protocol, where it is about one.
    pub protocol: Option<Protocol>,
    /// What was found.
    pub evidence: Evidence,
    /// Fields of other objects that have a part in it, each with its object.
    pub related: Vec<(Place, String)>,
}

impl PlacedFinding {
    /// `node-port-claimed-twice/lost`
    pub fn name(&self) -> String {
        format!("{}/{}", self.rule, self.evidence.variant)
    }
}
