//! Every rule of manifests.

use super::{
    external_ip_in_cluster, host_port_taken, host_port_with_replicas, listener_on_port, node_port_taken_by_pod,
    pod_port_in_node_port_range, pod_port_of_daemon, port_field_refused, rule::LintRule,
};
use crate::OF_MANIFESTS;

/// The rules that judge manifests alone.
static OWN: &[LintRule] = &[
    port_field_refused::RULE,
    pod_port_in_node_port_range::RULE,
    host_port_with_replicas::RULE,
    node_port_taken_by_pod::RULE,
    host_port_taken::RULE,
    listener_on_port::RULE,
    pod_port_of_daemon::RULE,
    external_ip_in_cluster::RULE,
];

/// Every rule, in the order in which a person should read them: first those of objects that are there, which judge manifests too.
pub fn lint_rules() -> impl Iterator<Item = LintRule> {
    OF_MANIFESTS.iter().map(|rule| LintRule::shared(rule)).chain(OWN.iter().copied())
}

/// The rule of this name.
pub fn find_lint_rule(id: &str) -> Option<LintRule> {
    lint_rules().find(|rule| rule.id.0 == id)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_rule_has_a_name_of_its_own_and_says_how_to_mend_it() {
        let names: BTreeSet<_> = lint_rules().map(|rule| rule.id).collect();
        assert_eq!(names.len(), lint_rules().count());
        for rule in lint_rules() {
            let page = rule.documentation();
            for heading in ["## Why it hurts", "## Silent when", "## Fix"] {
                assert!(page.contains(heading), "{} lacks {heading}", rule.id);
            }
        }
    }
}
