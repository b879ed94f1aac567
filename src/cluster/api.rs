//! A live API server: one LIST per resource, and the few settings that have a place of their own.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    connect::{Access, connect},
    error::Error,
    gathered::Gathered,
    requests::{Server, encoded},
};
use crate::facts::{Claimant, Family, Gap, NodeAddressKind, Source, Why};

/// What a failed connection leaves unknown.
const EVERYTHING: [Source; 5] =
    [Source::Services, Source::EndpointSlices, Source::Pods, Source::Nodes, Source::ConfigMaps];

/// ExternalName and headless Services have no NodePorts worth a byte on the wire.
pub(super) const SERVED: &str = "spec.type!=ExternalName,spec.clusterIP!=None";

/// The label of Nodes that run the control plane, k3s' servers among them.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// How many places tell settings: ConfigMaps, kube-apiserver's Pods and `/flagz`, Calico's and OpenShift's objects.
pub(super) const PLACES: usize = CONFIG_MAPS.len() + 4;

const CONFIG_MAPS: [Place; 3] = ["kube-proxy", "kubeadm-config", CILIUM];
const CILIUM: Place = "cilium-config";
const CALICO: Place = "felixconfiguration";

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
    match nodes(&server, said).await {
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

/// A place that tells settings, by a name of ours.
pub(super) type Place = &'static str;

/// Settings, and where they were looked for.
#[derive(Default)]
pub(super) struct Found {
    pub(super) gathered: Gathered,
    /// The places that told something.
    pub(super) told: BTreeSet<Place>,
    /// The places that are absent or closed to us.
    pub(super) silent: BTreeMap<Place, Error>,
    /// The places that neither answered nor said that they are absent or closed to us.
    pub(super) broken: Vec<(Source, Error)>,
}

impl Found {
    fn note(&mut self, place: Place, source: Source, answer: Result<Gathered, Error>) {
        match answer {
            Ok(gathered) => {
                self.gathered.absorb(gathered);
                self.told.insert(place);
            }
            Err(error) => {
                if source == Source::ConfigMaps {
                    self.gathered.lack_all(&[source], &error);
                }
                // Absent, it claims nothing; out of bounds, nobody knows.
                if let Some(by) = claimant(place).filter(|_| error.why() != Why::NotSupported) {
                    self.gathered.settings.lack_claim(by, error.gap(source));
                }
                match error.why() {
                    Why::NotSupported => drop(self.silent.insert(place, error)),
                    Why::NotPermitted if error.code() != "401" => drop(self.silent.insert(place, error)),
                    _ => self.broken.push((source, error)),
                }
            }
        }
    }
}

/// Who tells an idea of its own of the NodePort range at a place.
fn claimant(place: Place) -> Option<Claimant> {
    match place {
        CILIUM => Some(Claimant::Cilium),
        CALICO => Some(Claimant::Calico),
        _ => None,
    }
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
    let mut found = Found::default();
    found.note("flagz", Source::NodePortRange, flagz.map(|answer| range_of_flagz(server, &answer)));
    // Only their arguments count here: this node's own Pods come from another list.
    let arguments = |pods: Gathered| {
        let mut gathered = Gathered::default();
        gathered.settings = pods.settings;
        gathered
    };
    found.note("kube-apiserver", Source::NodePortRange, api_servers.map(arguments));
    let [proxy_name, kubeadm_name, cilium_name] = CONFIG_MAPS;
    for (place, answer) in [
        (proxy_name, kube_proxy),
        (cilium_name, cilium),
        (kubeadm_name, kubeadm),
        (CALICO, felix),
        ("openshift", openshift),
    ] {
        found.note(place, Source::ConfigMaps, answer);
    }
    found
}

/// Every Node. Where it was said which is this one, as a server has them at hand, and others in brief, since every agent
/// asks for them and a large cluster has thousands; but whole those that may tell arguments of k3s or RKE2, and all of
/// them where Nodes have addresses of both families, of which a Table tells one.
pub(super) async fn nodes(server: &Server, own: Option<&str>) -> Result<Gathered, Error> {
    let Some(own) = own else { return server.list("/api/v1/nodes", "Node", "").await };
    let nodes = |operator: &str, labels: &str| {
        let fields = encoded(&format!("metadata.name{operator}{own}"));
        format!("/api/v1/nodes?resourceVersion=0&fieldSelector={fields}{labels}")
    };
    let role = |selector: &str| nodes("!=", &format!("&labelSelector={}", encoded(selector)));
    let mut all = one(server, &nodes("=", ""), "Node").await?;
    let internal = all.nodes.iter().flat_map(|node| &node.addresses);
    let internal = internal.filter(|address| address.kind == NodeAddressKind::InternalIp);
    if internal.map(|address| Family::of(address.ip)).collect::<BTreeSet<_>>().len() > 1 {
        all.absorb(one(server, &nodes("!=", ""), "Node").await?);
        return Ok(all);
    }
    all.absorb(one(server, &role(CONTROL_PLANE), "Node").await?);
    let brief = format!("{}&includeObject=None", role(&format!("!{CONTROL_PLANE}")));
    let (others, _) = server.brief(&brief, "Node").await?;
    all.absorb(others);
    Ok(all)
}

fn range_of_flagz(server: &Server, answer: &str) -> Gathered {
    let mut gathered = Gathered::default();
    let place = format!("{}/flagz", server.address());
    if !gathered.settings.flagz(place.clone(), answer) {
        let detail = format!("{place}: the answer names no service-node-port-range");
        gathered.reject(Gap::new(Source::NodePortRange, Why::Malformed, detail));
    }
    gathered
}

async fn one(server: &Server, path: &str, kind: &'static str) -> Result<Gathered, Error> {
    server.objects(path, kind).await.map(|(gathered, _)| gathered)
}
