//! Endpoints that an agent's snapshot lacks: it has those that rules need on its node. A person asks about any port, and
//! reads what is missing with rights of his own.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use portreeve_cluster::Agents;
use portreeve_facts::{ClusterFacts, EndpointSlice, Reading};

/// Services that one request asks for.
const AT_ONCE: usize = 50;

/// What was read of the Services of these names; nothing where that was refused.
type Slices = Option<Vec<Arc<EndpointSlice>>>;

/// Reads endpoints once for all nodes.
pub(super) struct MissingEndpoints<'a> {
    agents: &'a Agents,
    known: BTreeMap<BTreeSet<String>, Slices>,
}

impl<'a> MissingEndpoints<'a> {
    pub(super) fn new(agents: &'a Agents) -> Self {
        Self { agents, known: BTreeMap::new() }
    }

    /// The same behind every port of a Service with NodePorts, as many Services at a time as one request asks for.
    pub(super) async fn fill_in_all(&mut self, facts: &mut ClusterFacts) {
        let services = facts.services.seen().into_iter().flatten();
        let with_node_port = services.filter(|it| it.ports.iter().any(|port| port.node_port.is_some()));
        let names: Vec<String> =
            with_node_port.map(|it| it.name.clone()).collect::<BTreeSet<_>>().into_iter().collect();
        for some in names.chunks(AT_ONCE) {
            self.fill_in_those(facts, some.iter().cloned().collect()).await;
        }
    }

    /// Puts the endpoints behind a port into what an agent knows of the cluster. Where they cannot be read, the facts say
    /// as before that they do not have them.
    pub(super) async fn fill_in(&mut self, facts: &mut ClusterFacts, port: u16) {
        let wanted = facts.reached_on(port);
        self.fill_in_those(facts, wanted).await;
    }

    async fn fill_in_those(&mut self, facts: &mut ClusterFacts, wanted: BTreeSet<String>) {
        if facts.holds_endpoints_of(&wanted) {
            return;
        }
        if !self.known.contains_key(&wanted) {
            let read = self.agents.endpoint_slices(&wanted).await;
            self.known.insert(wanted.clone(), read.ok());
        }
        if let Some(Some(slices)) = self.known.get(&wanted) {
            add(facts, &wanted, slices);
        }
    }
}

/// Takes these slices for all that there are of these Services.
fn add(facts: &mut ClusterFacts, names: &BTreeSet<String>, slices: &[Arc<EndpointSlice>]) {
    let (Reading::Seen(all), Some(known)) = (&mut facts.endpoint_slices, &mut facts.endpoints_of) else { return };
    all.retain(|slice| !names.contains(&slice.service));
    all.extend(slices.iter().filter(|slice| names.contains(&slice.service)).cloned());
    *known = Arc::new(known.union(names).cloned().collect());
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::Snapshot;

    #[test]
    fn endpoints_are_added_to_those_that_are_known_and_said_to_be() {
        let world =
            Snapshot::healthy().service("web", |it| it.node_port(30080)).service("api", |it| it.node_port(30443));
        let all = world.cluster.endpoint_slices.seen().expect("endpoints").clone();
        let of = |name: &str| BTreeSet::from([name.to_owned()]);
        let mut facts = world.cluster;
        assert_eq!(facts.reached_on(30080), of("web"));
        facts.endpoint_slices = Reading::Seen(all.iter().filter(|slice| slice.service == "api").cloned().collect());
        facts.endpoints_of = Some(Arc::new(of("api")));
        assert!(!facts.holds_endpoints_of(&of("web")));
        add(&mut facts, &of("web"), &all);
        assert!(facts.holds_endpoints_of(&of("web")) && facts.holds_endpoints_of(&of("api")));
        let mut known: Vec<_> = facts.endpoint_slices.seen().expect("endpoints").iter().map(Arc::as_ref).collect();
        let mut wanted: Vec<_> =
            all.iter().map(Arc::as_ref).filter(|slice| ["web", "api"].contains(&&*slice.service)).collect();
        known.sort_by_key(|slice| format!("{slice:?}"));
        wanted.sort_by_key(|slice| format!("{slice:?}"));
        assert_eq!(known, wanted);
    }
}
