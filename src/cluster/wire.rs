//! Kubernetes objects as they are written, one union of every kind that is read.
//!
//! `kind` may come after everything else, so an object holds the fields of all kinds; keys that no rule uses are
//! skipped by the parser and never kept. Upstream names: k8s.io/api `core/v1`, `discovery/v1`.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::{
    field::{Field, Long, Present, Scalar},
    managed::Managed,
};

/// One object of any kind.
#[derive(Debug, Default)]
pub(super) struct Object {
    pub(super) api_version: Field<String>,
    pub(super) kind: Field<String>,
    pub(super) metadata: Field<Metadata>,
    pub(super) spec: Field<Spec>,
    pub(super) status: Field<Status>,
    pub(super) data: Field<Data>,
    pub(super) address_type: Field<String>,
    pub(super) ports: Field<Vec<Field<Port>>>,
    pub(super) endpoints: Field<Vec<Field<Endpoint>>>,
}

macro_rules! mappings {
    ($($name:ident { $($field:ident: $shape:ty = $key:literal,)* })*) => {$(
        #[derive(Debug, Default, Deserialize)]
        #[serde(default)]
        pub(super) struct $name { $(#[serde(rename = $key)] pub(super) $field: Field<$shape>,)* }
        super::field::mapping!($name);
    )*};
}

mappings! {
    Metadata {
        name: String = "name",
        namespace: String = "namespace",
        uid: String = "uid",
        labels: Labels = "labels",
        annotations: Annotations = "annotations",
        managed_fields: Managed = "managedFields",
        next_page: Long = "continue",
    }
    Labels {
        service_name: String = "kubernetes.io/service-name",
        proxy_name: String = "service.kubernetes.io/service-proxy-name",
        excluded: Present = "node.kubernetes.io/exclude-from-external-load-balancers",
        component: String = "component",
    }
    Annotations {
        config_hash: String = "kubernetes.io/config.hash",
        k3s_args: Long = "k3s.io/node-args",
        rke2_args: Long = "rke2.io/node-args",
    }
    Spec {
        kind: String = "type",
        cluster_ip: String = "clusterIP",
        cluster_ips: Vec<Field<String>> = "clusterIPs",
        ip_families: Vec<Field<String>> = "ipFamilies",
        external_ips: Vec<Field<String>> = "externalIPs",
        external_traffic_policy: String = "externalTrafficPolicy",
        health_check_node_port: i64 = "healthCheckNodePort",
        ports: Vec<Field<Port>> = "ports",
        node_name: String = "nodeName",
        host_network: bool = "hostNetwork",
        containers: Vec<Field<Container>> = "containers",
        security_context: SecurityContext = "securityContext",
        service_node_port_range: String = "serviceNodePortRange",
        kube_node_port_ranges: Vec<Field<Scalar>> = "kubeNodePortRanges",
    }
    Port {
        name: String = "name",
        protocol: String = "protocol",
        port: i64 = "port",
        node_port: i64 = "nodePort",
        container_port: i64 = "containerPort",
        host_port: i64 = "hostPort",
        host_ip: String = "hostIP",
    }
    Container {
        command: Vec<Field<Long>> = "command",
        args: Vec<Field<Long>> = "args",
        ports: Vec<Field<Port>> = "ports",
    }
    SecurityContext {
        sysctls: Vec<Field<NameValue>> = "sysctls",
    }
    NameValue {
        name: String = "name",
        value: Scalar = "value",
    }
    Status {
        load_balancer: LoadBalancer = "loadBalancer",
        phase: String = "phase",
        conditions: Vec<Field<Condition>> = "conditions",
        pod_ip: String = "podIP",
        pod_ips: Vec<Field<Address>> = "podIPs",
        addresses: Vec<Field<Address>> = "addresses",
        node_info: NodeInfo = "nodeInfo",
    }
    LoadBalancer {
        ingress: Vec<Field<Address>> = "ingress",
    }
    Condition {
        kind: String = "type",
        status: String = "status",
    }
    Address {
        kind: String = "type",
        address: String = "address",
        ip: String = "ip",
        ip_mode: String = "ipMode",
    }
    NodeInfo {
        kubelet_version: String = "kubeletVersion",
    }
    Endpoint {
        addresses: Vec<Field<String>> = "addresses",
        conditions: Conditions = "conditions",
        node_name: String = "nodeName",
    }
    Conditions {
        ready: bool = "ready",
        serving: bool = "serving",
        terminating: bool = "terminating",
    }
    Data {
        proxy_config: Long = "config.conf",
        cluster_configuration: Long = "ClusterConfiguration",
        proxy_replacement: Scalar = "kube-proxy-replacement",
        node_port_range: Scalar = "node-port-range",
    }
}

impl Object {
    /// `namespace/name`, or `name`; empty when it has none.
    pub(super) fn title(&self) -> String {
        let Some(metadata) = self.metadata.seen() else { return String::new() };
        let name = metadata.name.seen().map_or("", String::as_str);
        metadata.namespace.seen().map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
    }
}

/// Reads one document: an object, a List of them (or of Lists), or a bare list. Every object that is no List goes to
/// `sink` as soon as it is complete, so that a document of any length needs the memory of one object.
pub(super) struct Document<'a> {
    /// The kind of items that carry none, as in an answer of the API server.
    pub(super) kind: Option<&'a str>,
    /// Whether the format marks the end of a document, as JSON does: then a List that ends is whole.
    pub(super) closed: bool,
    /// Where objects go.
    pub(super) sink: &'a mut dyn FnMut(Object),
}

/// What a document was, once it was read to its end.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// It had `items`.
    pub(super) list: bool,
    /// `metadata.continue` of a List.
    pub(super) next_page: Option<String>,
    /// It had items but no `kind`, which kubectl writes after them: the rest is missing.
    pub(super) cut: bool,
}

impl<'de> DeserializeSeed<'de> for Document<'_> {
    type Value = Outcome;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Outcome, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Document<'_> {
    type Value = Outcome;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object or a List of them")
    }

    fn visit_unit<E>(self) -> Result<Outcome, E> {
        Ok(Outcome::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Outcome, A::Error> {
        let Self { kind, closed, sink } = self;
        let items = Items { kind, closed, sink: &mut *sink };
        if let Some(last) = items.visit_seq(list)? {
            sink(last);
        }
        Ok(Outcome::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Outcome, A::Error> {
        let Self { kind, closed, sink } = self;
        match read_map(map, kind, closed, sink)? {
            Read::Object(object) => {
                sink(*object);
                Ok(Outcome::default())
            }
            Read::List(outcome) => Ok(outcome),
        }
    }
}

/// One item of a List: an object to be kept, or a List whose items went to the sink.
enum Read {
    Object(Box<Object>),
    List(Outcome),
}

fn read_map<'de, A: MapAccess<'de>>(
    mut map: A,
    inherited: Option<&str>,
    closed: bool,
    sink: &mut dyn FnMut(Object),
) -> Result<Read, A::Error> {
    let mut object = Object::default();
    let mut items = false;
    let mut last = None;
    while let Some(key) = map.next_key::<String>()? {
        match key.as_str() {
            "apiVersion" => object.api_version = map.next_value()?,
            "kind" => object.kind = map.next_value()?,
            "metadata" => object.metadata = map.next_value()?,
            "spec" => object.spec = map.next_value()?,
            "status" => object.status = map.next_value()?,
            "data" => object.data = map.next_value()?,
            "addressType" => object.address_type = map.next_value()?,
            "ports" => object.ports = map.next_value()?,
            "endpoints" => object.endpoints = map.next_value()?,
            "items" => {
                // `ServiceList` holds Services, which then carry no kind of their own.
                let own = object.kind.seen().and_then(|kind| kind.strip_suffix("List")).filter(|kind| !kind.is_empty());
                let kind = own.map(str::to_owned).or_else(|| inherited.map(str::to_owned));
                items = true;
                last = map.next_value_seed(Items { kind: kind.as_deref(), closed, sink: &mut *sink })?;
            }
            _ => {
                map.next_value::<IgnoredAny>()?;
            }
        }
    }
    if !items {
        if matches!(object.kind, Field::Absent)
            && let Some(kind) = inherited
        {
            object.kind = Field::Is(kind.to_owned());
        }
        return Ok(Read::Object(Box::new(object)));
    }
    let cut = !closed && object.kind.seen().is_none();
    // Where the List was cut, its last item may have been too: half a port number is worse than none.
    if let Some(last) = last.filter(|_| !cut) {
        sink(last);
    }
    let next_page = object
        .metadata
        .seen()
        .and_then(|metadata| metadata.next_page.seen())
        .map(|token| token.0.clone())
        .filter(|token| !token.is_empty());
    Ok(Read::List(Outcome { list: true, next_page, cut }))
}

/// The `items` of a List. The last one is handed back: only the List knows whether it is whole.
struct Items<'a> {
    kind: Option<&'a str>,
    closed: bool,
    sink: &'a mut dyn FnMut(Object),
}

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = Option<Object>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = Option<Object>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of Kubernetes objects")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let Self { kind, closed, sink } = self;
        let mut last: Option<Object> = None;
        loop {
            // What came before is whole: either another item follows, or the document broke inside one.
            let next = list.next_element_seed(Item { kind, closed, sink: &mut *sink });
            if let Some(whole) = last.take_if(|_| !matches!(next, Ok(None))) {
                sink(whole);
            }
            match next? {
                None => return Ok(last),
                Some(item) => last = item,
            }
        }
    }
}

struct Item<'a> {
    kind: Option<&'a str>,
    closed: bool,
    sink: &'a mut dyn FnMut(Object),
}

impl<'de> DeserializeSeed<'de> for Item<'_> {
    type Value = Option<Object>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Item<'_> {
    type Value = Option<Object>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        Ok(match read_map(map, self.kind, self.closed, self.sink)? {
            Read::Object(object) => Some(*object),
            Read::List(_) => None,
        })
    }
}
