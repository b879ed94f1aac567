//! Objects with settings: ConfigMaps, and objects of Cilium, Calico and OpenShift.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;

use super::{FieldError, Metadata, Notes, Object, values::NumberOrText};
use crate::facts_builder::FactsBuilder;
use portreeve_facts::Source;

#[derive(Debug, Deserialize)]
pub(crate) struct ConfigMap {
    pub(crate) metadata: Option<Metadata>,
    pub(crate) data: Option<BTreeMap<String, String>>,
}

impl ConfigMap {
    pub(crate) fn title(&self) -> String {
        self.metadata.as_ref().map(Metadata::title).unwrap_or_default()
    }
}

impl Object for ConfigMap {
    const KIND: &'static str = "ConfigMap";
    const GROUP: &'static str = "/api/v1";
    const PLURAL: &'static str = "configmaps";
    const SOURCE: Source = Source::ConfigMaps;

    fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    fn add_to(self, facts: &mut FactsBuilder, notes: &mut Notes) -> Result<(), FieldError> {
        facts.settings.config_map(&self.title(), &self.data.unwrap_or_default(), notes);
        Ok(())
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct FelixConfiguration {
    metadata: Option<Metadata>,
    spec: Option<FelixSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FelixSpec {
    kube_node_port_ranges: Option<Vec<NumberOrText>>,
}

impl Object for FelixConfiguration {
    const KIND: &'static str = "FelixConfiguration";
    const GROUP: &'static str = "/apis/crd.projectcalico.org/v1";
    const PLURAL: &'static str = "felixconfigurations";
    const SOURCE: Source = Source::ConfigMaps;

    fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    fn add_to(self, facts: &mut FactsBuilder, notes: &mut Notes) -> Result<(), FieldError> {
        if self.metadata.unwrap_or_default().title() == "default" {
            let ranges = self.spec.and_then(|spec| spec.kube_node_port_ranges).unwrap_or_default();
            facts.settings.felix(ranges.into_iter().map(|NumberOrText(range)| range).collect(), notes);
        }
        Ok(())
    }
}

/// OpenShift's `network.config.openshift.io`.
#[derive(Debug, Deserialize)]
pub(crate) struct Network {
    metadata: Option<Metadata>,
    spec: Option<NetworkSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NetworkSpec {
    service_node_port_range: Option<String>,
}

impl Object for Network {
    const KIND: &'static str = "Network";
    const GROUP: &'static str = "/apis/config.openshift.io/v1";
    const PLURAL: &'static str = "networks";
    const SOURCE: Source = Source::ConfigMaps;

    fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    fn add_to(self, facts: &mut FactsBuilder, _: &mut Notes) -> Result<(), FieldError> {
        if self.metadata.unwrap_or_default().title() == "cluster" {
            let range = self.spec.and_then(|spec| spec.service_node_port_range);
            facts.settings.openshift(range.as_deref().filter(|range| !range.is_empty()));
        }
        Ok(())
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct CiliumNodeConfig {
    pub(crate) metadata: Option<Metadata>,
    pub(crate) spec: Option<CiliumNodeConfigSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CiliumNodeConfigSpec {
    pub(crate) defaults: Option<BTreeMap<String, String>>,
    pub(crate) node_selector: Option<LabelSelector>,
}
