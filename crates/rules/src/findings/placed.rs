//! A problem in a manifest, with the place of the field.

use super::{Evidence, RuleId};
use portreeve_facts::{Place, Protocol};

/// One problem at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedFinding {
    /// The place of the field with the wrong value.
    pub place: Place,
    /// The id of the rule. The evidence has the variant.
    pub rule: RuleId,
    /// The object, `Service shop/web`.
    pub object: String,
    /// The path of the field, `spec.ports[0].nodePort`.
    pub field: String,
    /// The port, if there is one.
    pub port: Option<u16>,
    /// The protocol, if there is one.
    pub protocol: Option<Protocol>,
    /// The evidence.
    pub evidence: Evidence,
    /// Fields of other objects that contribute to the problem, each with its object.
    pub related: Vec<(Place, String)>,
}

impl PlacedFinding {
    /// The id and the variant: `node-port-claimed-twice/lost`
    pub fn name(&self) -> String {
        format!("{}/{}", self.rule, self.evidence.variant)
    }
}
