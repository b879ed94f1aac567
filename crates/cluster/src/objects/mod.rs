//! Objects of Kubernetes: one derived struct for each kind, with the fields that rules use. Unused keys are skipped.
//!
//! Portreeve parses an object as the API server does. Null means absent. If a value has a wrong type or no meaning, the
//! whole object is refused. The error contains the field, its value and the expected value. If an API server accepts an
//! object, the object is kept. [`Notes`] describes the parts that Portreeve cannot use. The names of fields are from
//! k8s.io/api `core/v1` and `discovery/v1`.
//!
//! Each file has the struct of one kind, and the facts that follow from it.

mod endpoint_slice;
mod managed_fields;
mod node;
mod pod;
mod service;
mod settings;
mod values;
mod workload;

use std::fmt;

use serde::{Deserialize, Deserializer, de::DeserializeOwned};

pub use self::{endpoint_slice::EndpointSlice, node::Node, pod::Pod, service::Service};
use self::{managed_fields::ManagedFields, values::Time};
pub(crate) use self::{
    pod::{ContainerPortSpec, PodSpec, probed_ports},
    settings::{CiliumNodeConfig, ConfigMap, FelixConfiguration, Network},
    values::{Ip, Name, NumberOrText, OptionalPort, Port, PortProtocol, Text, lenient_ip, quoted, short, whole},
    workload::Workload,
};
use super::facts_builder::FactsBuilder;
use portreeve_facts::{Source, WorkloadKind, names};

/// A kind of object from which facts are made.
pub trait Object: DeserializeOwned {
    /// The name of the kind.
    const KIND: &'static str;
    /// The API path of the kind's group, for example `/api/v1`.
    const GROUP: &'static str;
    /// The name of the kind in a path, for example `pods`.
    const PLURAL: &'static str;
    /// The fact that is incomplete if an object of this kind is refused.
    const SOURCE: Source;

    /// The object's `metadata`.
    fn metadata(&self) -> Option<&Metadata>;

    /// Adds the facts of the object.
    ///
    /// # Errors
    /// Fails if the API server would refuse the object. The error contains the reason.
    fn add_to(self, facts: &mut FactsBuilder, notes: &mut Notes) -> Result<(), FieldError>;
}

/// Decodes an object, or a part of an object.
///
/// # Errors
/// Fails if the object is malformed. The error contains the field, its value, and the expected value.
pub(crate) fn decode<'de, T: Deserialize<'de>>(document: impl Deserializer<'de> + Copy) -> Result<T, FieldError> {
    // To record the path of a wrong field, all keys must be copied. So paths are recorded only when an object with an
    // error is decoded again.
    T::deserialize(document).or_else(|_| {
        serde_path_to_error::deserialize(document).map_err(|error| {
            let path = error.path().to_string();
            FieldError::of_message(if path == "." { String::new() } else { path }, &error.into_inner().to_string())
        })
    })
}

/// The reason why the API server would refuse an object: the first field with an error.
#[derive(Debug)]
pub struct FieldError {
    /// The path of the field, for example `spec.ports[0].nodePort`. Empty if the error is about the whole object.
    pub(crate) path: String,
    /// The value and the expected value, for example `70000, wanted 1 to 65535`.
    is: String,
}

impl FieldError {
    pub(crate) fn new(path: impl fmt::Display, is: impl fmt::Display, wanted: impl fmt::Display) -> Self {
        Self { path: path.to_string(), is: format!("{is}, wanted {wanted}") }
    }

    pub(crate) fn twice(key: &str) -> Self {
        Self::new(key, "there twice", "every key once")
    }

    fn of_message(path: String, message: &str) -> Self {
        let message = without_place(message);
        if let Some(key) = message.strip_prefix("duplicate field `").and_then(|key| key.strip_suffix('`')) {
            return if path.is_empty() {
                Self::twice(key)
            } else {
                Self::new(path, format_args!("a mapping with {key} twice"), "a mapping")
            };
        }
        let unlike = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
        match unlike.and_then(|unlike| unlike.rsplit_once(", expected ")) {
            Some((is, wanted)) => Self::new(path, what_is(is), what_was_wanted(wanted)),
            None => Self { path, is: message.to_owned() },
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, is } = self;
        write!(f, "{} is {is}", if path.is_empty() { "it" } else { path })
    }
}

/// The identity of an object.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// `namespace/name`, or `name`. Empty if the object has no name. A text that is not a valid name is quoted.
    pub(crate) title: String,
    pub(crate) version: Option<String>,
}

impl Identity {
    /// The identity of an object, which may be malformed.
    pub(crate) fn of<'de>(document: impl Deserializer<'de>) -> Self {
        let object = serde_json::Value::deserialize(document).unwrap_or_default();
        let word = |key: &str| object.get("metadata")?.get(key)?.as_str();
        let name =
            |key: &str| word(key).map(|name| if names::is_subdomain(name) { name.to_owned() } else { quoted(name) });
        Self {
            title: titled(name("namespace").as_deref(), &name("name").unwrap_or_default()),
            version: word("resourceVersion").map(short),
        }
    }

    pub(crate) fn of_metadata(metadata: &Metadata) -> Self {
        Self { title: metadata.title(), version: metadata.resource_version.as_deref().map(str::to_owned) }
    }
}

pub(crate) fn group(version: &str) -> &str {
    version.split_once('/').map_or("", |(group, _)| group)
}

fn titled(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| [namespace, "/", name].concat())
}

/// Removes the line and the column that `serde_json` writes at the end of a message. This position is counted from the
/// start of the object, not of the file.
fn without_place(message: &str) -> &str {
    let is_place = |place: &str| place.bytes().all(|byte| byte.is_ascii_digit() || b" column".contains(&byte));
    message.rsplit_once(" at line ").filter(|(_, place)| is_place(place)).map_or(message, |(message, _)| message)
}

/// Converts a value in a message of serde (`serde::de::Unexpected`) to Portreeve's words.
fn what_is(is: &str) -> String {
    let value = |after: &str| is.strip_prefix(after)?.split('`').next();
    let number = value("integer `").or_else(|| value("floating point `")).or_else(|| value("boolean `"));
    if let Some(number) = number {
        return number.strip_suffix(".0").unwrap_or(number).to_owned();
    }
    match is {
        "map" => "a mapping".to_owned(),
        "sequence" => "a list".to_owned(),
        "unit value" | "Option value" => "null".to_owned(),
        is => match is.strip_prefix("string \"").and_then(|text| text.strip_suffix('"')) {
            Some(text) => quoted(text),
            None => is.to_owned(),
        },
    }
}

fn what_was_wanted(wanted: &str) -> &str {
    match wanted {
        "a string" => "a text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "a mapping",
        wanted if wanted.starts_with("struct ") => "a mapping",
        wanted => wanted,
    }
}

/// Notes about fields that an API server accepts but that Portreeve cannot use.
#[derive(Debug, Default)]
pub struct Notes(Vec<String>);

impl Notes {
    const MOST: usize = 16;

    /// Adds a note that the field at `path` has the value `is`, and `wanted` was expected.
    pub fn note(&mut self, path: impl fmt::Display, is: impl fmt::Display, wanted: impl fmt::Display) {
        self.add(format!("{path} is {is}, wanted {wanted}"));
    }

    /// Adds a note in any words.
    pub fn add(&mut self, what: String) {
        if self.0.len() < Self::MOST {
            self.0.push(what);
        }
    }
}

impl IntoIterator for Notes {
    type Item = String;
    type IntoIter = std::vec::IntoIter<String>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

const GENERATE_NAME: &str = "metadata.generateName";
const LONGEST_GENERATED: usize = 63;

/// `metadata` of any kind.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    #[serde(deserialize_with = "values::unless_empty")]
    pub(crate) name: Option<Name>,
    pub(crate) generate_name: Option<Text>,
    /// Whether [`Metadata::complete`] made the name. If so, an error about the name quotes `generateName`.
    #[serde(skip)]
    is_generated: bool,
    #[serde(deserialize_with = "values::unless_empty")]
    pub(crate) namespace: Option<Name>,
    pub(crate) uid: Option<Text>,
    pub(crate) resource_version: Option<Text>,
    pub(crate) labels: Option<Labels>,
    pub(crate) annotations: Option<Annotations>,
    pub(crate) managed_fields: Option<ManagedFields>,
    pub(crate) owner_references: Option<Vec<OwnerReference>>,
    pub(crate) deletion_timestamp: Option<Time>,
}

impl Metadata {
    pub(crate) fn name(&self) -> Result<String, FieldError> {
        let name = self.name.as_ref().map(|Name(name)| name.clone());
        name.ok_or_else(|| FieldError::new("metadata.name", "absent", "a name"))
    }

    fn label(&self) -> Result<String, FieldError> {
        as_label(&self.name()?, "metadata.name").map_err(|error| match &self.generate_name {
            Some(generated) if self.is_generated => {
                FieldError::new(GENERATE_NAME, quoted(generated), names::LABEL_WORDS)
            }
            _ => error,
        })
    }

    /// Adds the values that the API server would add: the namespace, and a name for `generateName`. Returns whether the
    /// object already had a name.
    ///
    /// The API server ends a generated name with five random characters. Here, the name ends with `number`, so that all
    /// names differ. A `number` below 22222 contains a 0 or a 1, which the API server never uses (apimachinery
    /// `util/rand`). A name has at most 63 characters (apiserver `pkg/storage/names/generate.go`).
    ///
    /// # Errors
    /// Fails if the API server would refuse the name.
    pub(crate) fn complete(&mut self, namespace: Option<&str>, number: usize) -> Result<bool, FieldError> {
        let is_named = self.name.is_some();
        if let Some(generated) = self.generate_name.as_deref().filter(|it| !is_named && !it.is_empty()) {
            let number = format!("{number:05}");
            let base: String = generated.chars().take(LONGEST_GENERATED.saturating_sub(number.len())).collect();
            let name = Name::try_from(base + &number);
            let refused = |_| FieldError::new(GENERATE_NAME, quoted(generated), names::SUBDOMAIN);
            self.name = Some(name.map_err(refused)?);
            self.is_generated = true;
        }
        self.namespace = self.namespace.take().or_else(|| namespace.map(|it| Name(it.to_owned())));
        Ok(is_named)
    }

    /// Whether a workload made the object. The policies in deploy/policies use the same test. An operator's resource
    /// does not count as a workload, because Portreeve does not know the ports of the resource. So Portreeve judges the
    /// objects that the operator made.
    pub(crate) fn is_of_a_workload(&self) -> bool {
        let owners = self.owner_references.iter().flatten().filter(|owner| owner.controller == Some(true));
        owners.into_iter().any(|owner| {
            let is_of = |wanted: &str| owner.api_version.as_deref().is_none_or(|version| group(version) == wanted);
            match owner.kind.as_deref() {
                Some("ReplicationController") => is_of(""),
                Some("Pod") | None => false,
                Some(kind) => WorkloadKind::ALL.into_iter().any(|it| it.name() == kind && is_of(it.group())),
            }
        })
    }

    /// The namespace of the object. Without a namespace, an object belongs to `default`, as in `kubectl apply` without
    /// a namespace in the context.
    pub(crate) fn namespace(&self) -> Result<String, FieldError> {
        let namespace = self.namespace.as_ref().map_or("default", |Name(name)| name);
        as_label(namespace, "metadata.namespace")
    }

    fn uid(&self) -> Option<String> {
        self.uid.as_ref().map(|Text(uid)| uid.clone())
    }

    /// `namespace/name`, or `name`. Empty if the object has no name.
    pub(crate) fn title(&self) -> String {
        let name = self.name.as_ref().map_or("", |Name(name)| name);
        titled(self.namespace.as_ref().map(|Name(namespace)| namespace.as_str()), name)
    }
}

fn as_label(name: &str, path: &str) -> Result<String, FieldError> {
    if names::is_label(name) {
        Ok(name.to_owned())
    } else {
        Err(FieldError::new(path, quoted(name), names::LABEL_WORDS))
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct Labels {
    #[serde(rename = "kubernetes.io/service-name")]
    pub(crate) service_name: Option<Text>,
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub(crate) proxy_name: Option<Text>,
    #[serde(rename = "service.kubernetes.io/headless")]
    pub(crate) headless: Option<Text>,
    #[serde(rename = "cilium.io/ingress")]
    pub(crate) cilium_ingress: Option<Text>,
    #[serde(rename = "io.cilium.gateway/owning-gateway")]
    pub(crate) cilium_gateway: Option<Text>,
    #[serde(rename = "node.kubernetes.io/exclude-from-external-load-balancers")]
    pub(crate) excluded: Option<Text>,
    pub(crate) component: Option<Text>,
    #[serde(rename = "svccontroller.k3s.cattle.io/svcname")]
    pub(crate) k3s_service: Option<Text>,
    #[serde(rename = "svccontroller.k3s.cattle.io/svcnamespace")]
    pub(crate) k3s_namespace: Option<Text>,
    #[serde(rename = "svccontroller.rke2.cattle.io/svcname")]
    pub(crate) rke2_service: Option<Text>,
    #[serde(rename = "svccontroller.rke2.cattle.io/svcnamespace")]
    pub(crate) rke2_namespace: Option<Text>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Annotations {
    #[serde(rename = "kubernetes.io/config.hash")]
    pub(crate) config_hash: Option<Text>,
    #[serde(rename = "kubernetes.io/config.mirror")]
    pub(crate) config_mirror: Option<Text>,
    #[serde(rename = "k8s.v1.cni.cncf.io/networks")]
    pub(crate) networks: Option<Text>,
    #[serde(rename = "k3s.io/node-args")]
    pub(crate) k3s_args: Option<String>,
    #[serde(rename = "rke2.io/node-args")]
    pub(crate) rke2_args: Option<String>,
    #[serde(rename = "service.cilium.io/global")]
    pub(crate) global: Option<Text>,
    #[serde(rename = "io.cilium/global-service")]
    pub(crate) global_alias: Option<Text>,
    #[serde(rename = "service.cilium.io/type")]
    pub(crate) served_type: Option<Text>,
    #[serde(rename = "service.cilium.io/lb-l7")]
    pub(crate) by_envoy: Option<Text>,
    #[serde(rename = "service.cilium.io/node")]
    pub(crate) served_on: Option<Text>,
    #[serde(rename = "service.cilium.io/node-selector")]
    pub(crate) served_on_selected: Option<Text>,
    #[serde(rename = "kube-vip.io/vipHost")]
    pub(crate) vip_host: Option<Text>,
    #[serde(rename = "metallb.io/ip-allocated-from-pool")]
    pub(crate) pool: Option<Text>,
    #[serde(rename = "metallb.universe.tf/ip-allocated-from-pool")]
    pub(crate) old_pool: Option<Text>,
    /// The annotation [`portreeve_facts::ACCEPT`].
    #[serde(rename = "portreeve/accept")]
    pub(crate) accept: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OwnerReference {
    pub(crate) api_version: Option<Text>,
    pub(crate) kind: Option<Text>,
    pub(crate) name: Option<Text>,
    pub(crate) controller: Option<bool>,
}

#[cfg(test)]
mod tests {
    use serde_json::{json, value::RawValue};

    use super::*;

    fn refusal<T: DeserializeOwned + fmt::Debug>(document: &serde_json::Value) -> String {
        let from_value = decode::<T>(document).expect_err("the object is refused");
        let text = document.to_string();
        let raw: &RawValue = serde_json::from_str(&text).expect("JSON");
        let from_text = decode::<T>(raw).expect_err("the object is refused");
        assert_eq!(from_text.to_string(), from_value.to_string(), "{text}");
        from_value.to_string()
    }

    #[test]
    fn a_refusal_names_the_field_its_value_and_the_wanted_value() {
        let of_ports = |port: serde_json::Value| refusal::<Service>(&json!({"spec": {"ports": [{"port": 80}, port]}}));
        for (port, wanted) in [
            (json!({"port": 70000}), "spec.ports[1].port is 70000, wanted 1 to 65535"),
            (json!({"nodePort": -1}), "spec.ports[1].nodePort is -1, wanted 0 to 65535"),
            (json!({"port": "abc"}), "spec.ports[1].port is \"abc\", wanted a number"),
            (json!({"port": 80.5}), "spec.ports[1].port is 80.5, wanted a number"),
            (json!({"port": {}}), "spec.ports[1].port is a mapping, wanted a number"),
            (json!({"name": 5}), "spec.ports[1].name is 5, wanted a text"),
            (json!({"name": [5]}), "spec.ports[1].name is a list, wanted a text"),
            (json!({"protocol": "tcp"}), "spec.ports[1].protocol is \"tcp\", wanted TCP, UDP or SCTP"),
            (json!(5), "spec.ports[1] is 5, wanted a mapping"),
            (json!(true), "spec.ports[1] is true, wanted a mapping"),
            (json!(null), "spec.ports[1] is null, wanted a mapping"),
        ] {
            assert_eq!(of_ports(port), wanted);
        }
        let long = "x\u{1b}[31m".repeat(1000);
        let said = of_ports(json!({"port": long}));
        assert!(said.len() < 200 && said.ends_with("wanted a number") && !said.contains('\u{1b}'), "{said}");
    }

    #[test]
    fn null_is_absent_and_a_key_that_is_there_twice_is_refused() {
        let null = json!({"metadata": null, "spec": {"ports": null, "type": null, "clusterIP": null}});
        decode::<Service>(&null).expect("null is absent");
        let twice = |text: &str| {
            let raw: &RawValue = serde_json::from_str(text).expect("JSON");
            decode::<Service>(raw).expect_err("a key is there twice").to_string()
        };
        assert_eq!(twice(r#"{"spec":{},"spec":{}}"#), "spec is there twice, wanted every key once");
        let said = twice(r#"{"spec":{"type":"NodePort","type":"ClusterIP"}}"#);
        assert_eq!(said, "spec is a mapping with type twice, wanted a mapping");
    }

    /// An empty type gets the default, as in Kubernetes (`SetDefaults_Service` and `SetDefaults_Deployment`).
    #[test]
    fn an_empty_type_is_absent() {
        let metadata = json!({"name": "web"});
        let mut facts = FactsBuilder::default();
        facts.add::<Service>("here", &json!({"metadata": metadata, "spec": {"type": ""}}));
        assert_eq!(facts.rejected(), []);
        assert_eq!(facts.services[0].kind, portreeve_facts::ServiceKind::ClusterIp);
        assert_eq!(refusal::<Service>(&json!({"spec": {"type": 5}})), "spec.type is 5, wanted a text");

        let keeps_old_pods = |strategy: serde_json::Value| {
            let pods = json!({"containers": [{"ports": [{"hostPort": 80, "containerPort": 80}]}]});
            let spec = json!({"strategy": strategy, "template": {"spec": pods}});
            let kind = portreeve_facts::WorkloadKind::Deployment;
            let workload = Workload::read(kind, &json!({"metadata": metadata, "spec": spec})).expect("a Deployment");
            workload.facts(kind).expect("facts").expect("it wants a port").keeps_old_pods
        };
        assert!(keeps_old_pods(json!({"type": ""})) && keeps_old_pods(json!({"type": "RollingUpdate"})));
        assert!(!keeps_old_pods(json!({"type": "Recreate"})));
    }

    #[test]
    fn a_refused_object_has_a_title() {
        let of = |metadata: serde_json::Value| Identity::of(json!({"metadata": metadata})).title;
        assert_eq!(of(json!({"name": "a", "namespace": "d"})), "d/a");
        assert_eq!(of(json!({"name": "a"})), "a");
        assert_eq!(of(json!({"name": "A B"})), "\"A B\"");
        assert_eq!([of(json!({"name": 5})), of(json!([])), Identity::of(json!(5)).title], [""; 3]);
    }
}
