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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::Severity;
    use portreeve_facts::FileName;

    #[test]
    fn the_name_has_the_id_and_the_variant() {
        let finding = PlacedFinding {
            place: Place {
                file: FileName::new("web.yaml".to_owned(), "web.yaml".into()),
                line: 1,
                column: 1,
                width: 1,
                template: None,
            },
            rule: RuleId("node-port-claimed-twice"),
            object: "Service shop/web".to_owned(),
            field: "spec.ports[0].nodePort".to_owned(),
            port: Some(30080),
            protocol: Some(Protocol::Tcp),
            evidence: Evidence::new(Severity::Warning, "").variant("lost"),
            related: Vec::new(),
        };
        assert_eq!(finding.name(), "node-port-claimed-twice/lost");
    }
}
