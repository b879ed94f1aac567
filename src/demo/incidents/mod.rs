//! The five incidents: the setup and the expected findings of each.

mod crowded_range;
mod lost_node;
mod squatting_listener;
mod starved_proxy;
mod widened_ephemeral_range;

use super::incident::Incident;

/// Every incident, in the order in which they are shown.
pub(super) static INCIDENTS: [&Incident; 5] = [
    &starved_proxy::INCIDENT,
    &crowded_range::INCIDENT,
    &squatting_listener::INCIDENT,
    &widened_ephemeral_range::INCIDENT,
    &lost_node::INCIDENT,
];

/// Every name that `--without` takes.
pub(super) fn step_names() -> impl Iterator<Item = &'static str> {
    INCIDENTS.iter().flat_map(|incident| incident.steps).map(|step| step.name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::demo::incident::Steps;
    use portreeve_rules::ids::Named;

    #[test]
    fn every_step_has_a_name_of_its_own_and_changes_the_scene() {
        let names: BTreeSet<_> = step_names().collect();
        assert_eq!(names.len(), step_names().count());
        for incident in INCIDENTS {
            let whole = (incident.scene)(&Steps::without(None));
            for step in incident.steps {
                let less = (incident.scene)(&Steps::without(Some(step.name.to_owned())));
                assert_ne!(whole, less, "{} / {}", incident.name, step.name);
            }
        }
    }

    #[test]
    fn every_expected_rule_is_in_the_catalogue_and_can_be_that_severe() {
        for expected in INCIDENTS.iter().flat_map(|incident| incident.expected) {
            let named = Named::parse(expected.rule).unwrap_or_else(|| panic!("no rule {}", expected.rule));
            let variant = named.variant.and_then(|name| named.id.variant(name)).expect("a variant");
            assert!(variant.severities.contains(&expected.severity), "{}", expected.rule);
        }
    }
}
