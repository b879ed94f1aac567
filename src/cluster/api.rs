//! A live API server: one LIST per resource, and the few settings that have a place of their own.

use super::{
    connect::{Access, connect},
    error::Error,
    gathered::Gathered,
    requests::{Server, encoded},
};
use crate::facts::{Gap, Source, Why};

/// What a failed connection leaves unknown.
const EVERYTHING: [Source; 5] =
    [Source::Services, Source::EndpointSlices, Source::Pods, Source::Nodes, Source::ConfigMaps];

/// ExternalName and headless Services have no NodePorts worth a byte on the wire.
pub(super) const SERVED: &str = "spec.type!=ExternalName,spec.clusterIP!=None";

/// How many places tell settings: ConfigMaps, kube-apiserver's Pods and `/flagz`, Calico's and OpenShift's objects.
pub(super) const PLACES: usize = CONFIG_MAPS.len() + 4;

const CONFIG_MAPS: [&str; 3] = ["kube-proxy", "kubeadm-config", "cilium-config"];

/// Reads everything that rules use. Returns the address of the server, the name of this node and the facts so far.
pub(super) async fn read(access: &Access, said: Option<&str>, hostname: &str) -> (String, Option<String>, Gathered) {
    let mut gathered = Gathered::default();
    let (client, address) = match connect(access).await {
        Ok(connected) => connected,
        Err(error) => {
            gathered.lack_all(&EVERYTHING, &error);
            return ("the API server".to_owned(), said.map(str::to_owned), gathered);
        }
    };
    let server = Server::new(client, address, access.request_timeout);
    // Nodes come first: they tell this node's name, which its Pods are asked by, and whether anybody is there at all.
    match server.list("/api/v1/nodes", "Node", "").await {
        Ok(nodes) => gathered.absorb(nodes),
        Err(error @ (Error::TimedOut { .. } | Error::Unreachable { .. })) => {
            gathered.lack_all(&EVERYTHING, &error);
            return (server.address().to_owned(), said.map(str::to_owned), gathered);
        }
        Err(error) => gathered.lack_all(&[Source::Nodes], &error),
    }
    let node = gathered.node_name(said, hostname);
    let (services, slices, pods, settings) = tokio::join!(
        services(&server),
        server.list("/apis/discovery.k8s.io/v1/endpointslices", "EndpointSlice", ""),
        own_pods(&server, node.as_deref(), hostname),
        settings(&server),
    );
    let Found { gathered: settings, broken, .. } = settings;
    let lists = [(Source::Services, services), (Source::EndpointSlices, slices)];
    for (source, list) in lists {
        match list {
            Ok(list) => gathered.absorb(list),
            Err(error) => gathered.lack_all(&[source], &error),
        }
    }
    gathered.absorb(pods);
    gathered.absorb(settings);
    for (source, error) in broken.iter().filter(|(_, error)| error.why() != Why::NotPermitted) {
        gathered.reject(error.gap(*source));
    }
    (server.address().to_owned(), node, gathered)
}

/// Servers before 1.22 know fewer field selectors, and say 400.
async fn services(server: &Server) -> Result<Gathered, Error> {
    let path = "/api/v1/services";
    match server.list(path, "Service", &format!("&fieldSelector={}", encoded(SERVED))).await {
        Err(Error::Status { code: 400, .. }) => server.list(path, "Service", "").await,
        result => result,
    }
}

async fn own_pods(server: &Server, node: Option<&str>, hostname: &str) -> Gathered {
    let mut gathered = Gathered::default();
    let Some(node) = node else {
        let detail = format!("no Node is called {hostname}; say which one this is with --node");
        gathered.lack(Gap::new(Source::Pods, Why::NotAsked, detail));
        return gathered;
    };
    let selector = format!("&fieldSelector={}", encoded(&format!("spec.nodeName={node}")));
    match server.list("/api/v1/pods", "Pod", &selector).await {
        Ok(pods) => pods,
        Err(error) => {
            gathered.lack_all(&[Source::Pods], &error);
            gathered
        }
    }
}

/// Settings, and the places that neither answered nor said that they are absent or closed to us.
pub(super) struct Found {
    pub(super) gathered: Gathered,
    pub(super) broken: Vec<(Source, Error)>,
    /// The places that are closed to us.
    pub(super) refused: Vec<Error>,
}

/// What tells the NodePort range and the proxy's settings; each place may be missing or out of bounds.
pub(super) async fn settings(server: &Server) -> Found {
    let api_servers = format!("&labelSelector={}", encoded("component=kube-apiserver"));
    let config_map = |name: &str| format!("/api/v1/namespaces/kube-system/configmaps/{name}");
    let [kube_proxy, kubeadm, cilium] = CONFIG_MAPS.map(config_map);
    let (api_servers, kube_proxy, kubeadm, cilium, felix, openshift, flagz) = tokio::join!(
        server.list("/api/v1/namespaces/kube-system/pods", "Pod", &api_servers),
        one(server, &kube_proxy, "ConfigMap"),
        one(server, &kubeadm, "ConfigMap"),
        one(server, &cilium, "ConfigMap"),
        one(server, "/apis/crd.projectcalico.org/v1/felixconfigurations/default", "FelixConfiguration"),
        one(server, "/apis/config.openshift.io/v1/networks/cluster", "Network"),
        server.text("/flagz"),
    );
    let mut gathered = Gathered::default();
    let (mut broken, mut refused) = (Vec::new(), Vec::new());
    let mut note = |source, error: Error| match error.why() {
        Why::NotSupported => {}
        Why::NotPermitted if error.code() != "401" => refused.push(error),
        _ => broken.push((source, error)),
    };
    match flagz {
        Ok(answer) => {
            let place = format!("{}/flagz", server.address());
            if !gathered.settings.flagz(place.clone(), &answer) {
                let detail = format!("{place}: the answer names no service-node-port-range");
                gathered.reject(Gap::new(Source::NodePortRange, Why::Malformed, detail));
            }
        }
        Err(error) => note(Source::NodePortRange, error),
    }
    match api_servers {
        // Only their arguments count here: this node's own Pods come from another list.
        Ok(pods) => gathered.settings.absorb(pods.settings),
        Err(error) => note(Source::NodePortRange, error),
    }
    for found in [kube_proxy, cilium, kubeadm, felix, openshift] {
        match found {
            Ok(object) => gathered.absorb(object),
            Err(error) => {
                gathered.lack_all(&[Source::ConfigMaps], &error);
                note(Source::ConfigMaps, error);
            }
        }
    }
    Found { gathered, broken, refused }
}

async fn one(server: &Server, path: &str, kind: &'static str) -> Result<Gathered, Error> {
    server.objects(path, kind).await.map(|(gathered, _)| gathered)
}
