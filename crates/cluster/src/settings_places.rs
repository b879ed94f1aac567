//! Reads the settings of the cluster from all places in the API that may contain settings.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    cilium_node_configs,
    collection::Collection,
    error::Error,
    facts_builder::FactsBuilder,
    objects::{ConfigMap, FelixConfiguration, Network, Pod},
    requests::{Server, encoded},
};
use portreeve_facts::{Claimant, Gap, Source, Why};

/// The number of places with settings: the ConfigMaps, kube-apiserver's Pods, `/flagz`, Calico's object and OpenShift's
/// object.
pub(super) const COUNT: usize = CONFIG_MAPS.len() + 4;

const NAMESPACE: &str = "kube-system";
const CONFIG_MAPS: [SettingsPlace; 3] = ["kube-proxy", "kubeadm-config", CILIUM];
const CILIUM: SettingsPlace = "cilium-config";
const CALICO: SettingsPlace = "felixconfiguration";

pub(super) type SettingsPlace = &'static str;

#[derive(Default)]
pub(super) struct SettingsRead {
    pub(super) facts: FactsBuilder,
    pub(super) found: BTreeSet<SettingsPlace>,
    pub(super) absent: BTreeMap<SettingsPlace, Error>,
    pub(super) failed: Vec<(Source, Error)>,
}

impl SettingsRead {
    fn note(&mut self, place: SettingsPlace, source: Source, answer: Result<FactsBuilder, Error>) {
        match answer {
            Ok(facts) => {
                self.facts.merge(facts);
                self.found.insert(place);
            }
            Err(error) => {
                if source == Source::ConfigMaps {
                    self.facts.mark_missing(error.gap(source));
                }
                // If the place does not exist, the component has no range of its own. If the place is forbidden, this
                // range is unknown.
                if let Some(by) = claimant(place).filter(|_| error.why() != Why::NotSupported) {
                    self.facts.settings.mark_claim_missing(by, error.gap(source));
                }
                match error.why() {
                    Why::NotSupported => drop(self.absent.insert(place, error)),
                    Why::NotPermitted if error.code() != "401" => drop(self.absent.insert(place, error)),
                    _ => self.failed.push((source, error)),
                }
            }
        }
    }
}

fn claimant(place: SettingsPlace) -> Option<Claimant> {
    match place {
        CILIUM => Some(Claimant::Cilium),
        CALICO => Some(Claimant::Calico),
        _ => None,
    }
}

/// Reads all places. A place may be absent, or the user may lack the right to read it. `node` is this node's name. The
/// name selects the CiliumNodeConfigs of this node, because a CiliumNodeConfig applies only to some nodes.
pub(super) async fn read(server: &Server, node: Option<&str>) -> SettingsRead {
    let pods = Collection::in_namespace::<Pod>(NAMESPACE);
    let api_servers = format!("&labelSelector={}", encoded("component=kube-apiserver"));
    let [proxy_name, kubeadm_name, cilium_name] = CONFIG_MAPS;
    let felix_configuration = Collection::of::<FelixConfiguration>().object("default");
    let openshift_network = Collection::of::<Network>().object("cluster");
    let (api_servers, kube_proxy, kubeadm, cilium, felix, openshift, flagz) = tokio::join!(
        server.list::<Pod>(&pods, &api_servers),
        config_map(server, proxy_name),
        config_map(server, kubeadm_name),
        cilium(server, node),
        server.facts_of::<FelixConfiguration>(&felix_configuration),
        server.facts_of::<Network>(&openshift_network),
        server.text("/flagz"),
    );
    let mut read = SettingsRead::default();
    read.note("flagz", Source::NodePortRange, flagz.map(|answer| range_of_flagz(server, &answer)));
    // Only the arguments of kube-apiserver are used here. Another request reads the Pods of this node.
    let arguments = |pods: FactsBuilder| {
        let mut facts = FactsBuilder::default();
        facts.settings = pods.settings;
        facts
    };
    read.note("kube-apiserver", Source::NodePortRange, api_servers.map(arguments));
    for (place, answer) in [
        (proxy_name, kube_proxy),
        (cilium_name, cilium),
        (kubeadm_name, kubeadm),
        (CALICO, felix),
        ("openshift", openshift),
    ] {
        read.note(place, Source::ConfigMaps, answer);
    }
    read
}

async fn config_map(server: &Server, name: &str) -> Result<FactsBuilder, Error> {
    server.facts_of::<ConfigMap>(&Collection::in_namespace::<ConfigMap>(NAMESPACE).object(name)).await
}

/// Reads Cilium's settings. CiliumNodeConfigs are read only if Cilium's ConfigMap exists, because every cluster with
/// Cilium has this ConfigMap.
async fn cilium(server: &Server, node: Option<&str>) -> Result<FactsBuilder, Error> {
    let map: ConfigMap = server.only(&Collection::in_namespace::<ConfigMap>(NAMESPACE).object(CILIUM)).await?;
    let mut facts = FactsBuilder::default();
    match cilium_node_configs::read(server, node).await? {
        Ok(over) => facts.add_cilium(server.address(), map, over),
        Err(detail) => {
            let gap = Gap::new(Source::ConfigMaps, Why::NotRequested, format!("{}: {detail}", server.address()));
            facts.settings.mark_claim_missing(Claimant::Cilium, gap);
        }
    }
    Ok(facts)
}

fn range_of_flagz(server: &Server, answer: &str) -> FactsBuilder {
    let mut facts = FactsBuilder::default();
    let place = format!("{}/flagz", server.address());
    if !facts.settings.flagz(place.clone(), answer) {
        let detail = format!("{place}: the answer has no service-node-port-range");
        facts.reject(Gap::new(Source::NodePortRange, Why::Malformed, detail));
    }
    facts
}
