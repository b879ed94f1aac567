//! Reads a live API server once: one LIST for each resource, and the settings.

use super::{
    collection::Collection,
    connect::{Access, connect},
    error::Error,
    facts_builder::FactsBuilder,
    nodes,
    objects::{EndpointSlice, Pod, Service},
    requests::Server,
    settings_places::{self, SettingsRead},
    waiting_pods,
    watch::selection::Selection,
};
use portreeve_facts::{ClusterFacts, Gap, Source, Why};

/// Returns the facts and the namespace of the credentials. The namespace is `None` if the credentials could not be
/// read. `configured` is this node's name, if a user set the name.
pub(super) async fn read(access: &Access, configured: Option<&str>, hostname: &str) -> (ClusterFacts, Option<String>) {
    match connect(access).await {
        Ok((client, address)) => {
            // Unlike kubectl, the client library does not trim the text in the file with a pod's namespace.
            let namespace = access.own_namespace().unwrap_or_else(|| client.default_namespace().to_owned());
            let server = Server::new(client, address, access.request_timeout);
            let (node, facts) = of_server(&server, configured, hostname).await;
            (facts.finish(server.address().to_owned(), true, node), Some(namespace))
        }
        Err(error) => {
            let mut facts = FactsBuilder::default();
            facts.mark_all_missing(&error);
            (facts.finish("the API server".to_owned(), true, configured.map(str::to_owned)), None)
        }
    }
}

/// Returns this node's name and the facts.
async fn of_server(server: &Server, configured: Option<&str>, hostname: &str) -> (Option<String>, FactsBuilder) {
    let mut facts = FactsBuilder::default();
    // Nodes are read first, because they give this node's name. The other requests need this name to select this node's
    // Pods. The first request also shows whether the server answers.
    match nodes::read(server, configured).await {
        Ok(nodes) => facts.merge(nodes),
        Err(error @ (Error::TimedOut { .. } | Error::Unreachable { .. })) => {
            facts.mark_all_missing(&error);
            return (configured.map(str::to_owned), facts);
        }
        Err(error) => facts.mark_missing(error.gap(Source::Nodes)),
    }
    let node = facts.node_name(configured, hostname);
    let endpoint_slices = Collection::of::<EndpointSlice>();
    let (services, slices, pods, waiting, settings) = tokio::join!(
        services(server),
        server.list::<EndpointSlice>(&endpoint_slices, ""),
        own_pods(server, node.as_deref(), hostname),
        waiting_pods::read(server),
        settings_places::read(server, node.as_deref()),
    );
    let SettingsRead { facts: settings, failed, .. } = settings;
    let of = |source, list: Result<FactsBuilder, Error>| list.map_err(|error| error.gap(source));
    let lists = [of(Source::Services, services), of(Source::EndpointSlices, slices), of(Source::WaitingPods, waiting)];
    for list in lists.into_iter().chain([pods]) {
        match list {
            Ok(list) => facts.merge(list),
            Err(gap) => facts.mark_missing(gap),
        }
    }
    facts.merge(settings);
    for (source, error) in failed.iter().filter(|(_, error)| error.why() != Why::NotPermitted) {
        facts.reject(error.gap(*source));
    }
    (node, facts)
}

/// Reads the Services that a proxy serves. API servers before 1.22 lack one of the field selectors, and answer 400.
/// After the answer 400, the function reads all Services.
async fn services(server: &Server) -> Result<FactsBuilder, Error> {
    let services = Collection::of::<Service>();
    match server.list::<Service>(&services, &Selection::Served.query()).await {
        Err(Error::Status { code: 400, .. }) => server.list::<Service>(&services, "").await,
        result => result,
    }
}

async fn own_pods(server: &Server, node: Option<&str>, hostname: &str) -> Result<FactsBuilder, Gap> {
    let Some(node) = node else {
        let detail = format!("no Node that was read has the name {hostname}; set the name of this node with --node");
        return Err(Gap::new(Source::Pods, Why::NotRequested, detail));
    };
    let pods = server.list::<Pod>(&Collection::of::<Pod>(), &Selection::Node(node.to_owned()).query()).await;
    pods.map_err(|error| error.gap(Source::Pods))
}
