//! An EndpointSlice.

use serde::Deserialize;

use super::{
    FieldError, Metadata, Notes, Object,
    service::addresses,
    values::{Name, OptionalPort, PortProtocol, Text, quoted, unless_empty},
};
use crate::facts_builder::FactsBuilder;
use portreeve_facts::{self as facts, EndpointPort, Family, Protocol, Source};

/// An EndpointSlice of the API server.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSlice {
    pub(crate) metadata: Option<Metadata>,
    pub(crate) address_type: Option<Text>,
    pub(crate) ports: Option<Vec<SlicePort>>,
    pub(crate) endpoints: Option<Vec<Endpoint>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct SlicePort {
    pub(crate) name: Option<Text>,
    pub(crate) protocol: Option<PortProtocol>,
    pub(crate) port: Option<OptionalPort>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Endpoint {
    /// IP addresses, or host names in a slice of type FQDN.
    pub(crate) addresses: Option<Vec<Text>>,
    pub(crate) conditions: Option<Conditions>,
    #[serde(deserialize_with = "unless_empty")]
    pub(crate) node_name: Option<Name>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Conditions {
    pub(crate) ready: Option<bool>,
    pub(crate) serving: Option<bool>,
    pub(crate) terminating: Option<bool>,
}

impl Object for EndpointSlice {
    const KIND: &'static str = "EndpointSlice";
    const GROUP: &'static str = "/apis/discovery.k8s.io/v1";
    const PLURAL: &'static str = "endpointslices";
    const SOURCE: Source = Source::EndpointSlices;

    fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    fn add_to(self, facts: &mut FactsBuilder, _: &mut Notes) -> Result<(), FieldError> {
        let metadata = self.metadata.unwrap_or_default();
        let namespace = metadata.namespace()?;
        // No proxy uses a slice without a Service, or a slice of type FQDN.
        let Some(Text(service)) = metadata.labels.and_then(|labels| labels.service_name) else { return Ok(()) };
        let family = match self.address_type.as_deref() {
            Some("IPv4") => Family::V4,
            Some("IPv6") => Family::V6,
            Some("FQDN") => return Ok(()),
            other => {
                let is = other.map_or_else(|| "absent".to_owned(), quoted);
                return Err(FieldError::new("addressType", is, "IPv4, IPv6 or FQDN"));
            }
        };
        let port = |port: SlicePort| EndpointPort {
            protocol: port.protocol.map_or(Protocol::Tcp, |PortProtocol(protocol)| protocol),
            name: port.name.map(|Text(name)| name).unwrap_or_default(),
            port: port.port.and_then(|OptionalPort(port)| port),
        };
        let endpoint = |(index, endpoint): (usize, Endpoint)| {
            let conditions = endpoint.conditions.unwrap_or_default();
            let ready = conditions.ready.unwrap_or(true);
            let addresses =
                addresses(&endpoint.addresses.unwrap_or_default(), format_args!("endpoints[{index}].addresses"))?;
            Ok::<_, FieldError>(facts::Endpoint {
                ready,
                serving: conditions.serving.unwrap_or(ready),
                terminating: conditions.terminating.unwrap_or(false),
                addresses,
                node: endpoint.node_name.map(|Name(name)| name),
            })
        };
        let slice = facts::EndpointSlice {
            namespace,
            service,
            family,
            ports: self.ports.into_iter().flatten().map(port).collect(),
            endpoints: self.endpoints.into_iter().flatten().enumerate().map(endpoint).collect::<Result<_, _>>()?,
        };
        facts.endpoint_slices.push(slice.into());
        Ok(())
    }
}
