//! The settings of CiliumNodeConfigs, which override Cilium's ConfigMap on the selected nodes.

use portreeve_facts::{Claimant, ProxyConfig, Source, Why};
use serde_json::{Value, json};

use crate::{
    api::{list, small},
    fake::{Fake, Reply},
};

pub(crate) const MAP: &str = "/api/v1/namespaces/kube-system/configmaps/cilium-config";
const CONFIGS: &str = "/apis/cilium.io/v2/namespaces/kube-system/ciliumnodeconfigs";
const OLD_CONFIGS: &str = "/apis/cilium.io/v2alpha1/namespaces/kube-system/ciliumnodeconfigs";
const NODE: &str = r#"{"metadata":{"name":"n1","uid":"u","labels":{"pool":"edge"}}}"#;

pub(crate) fn config_map() -> Reply {
    let data = json!({"kube-proxy-replacement": "true", "devices": "eth0", "nodeport-addresses": "10.0.0.0/8"});
    let metadata = json!({"name": "cilium-config", "namespace": "kube-system"});
    Reply::Json(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}).to_string())
}

fn config(name: &str, selector: &Value, defaults: &Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"nodeSelector": selector, "defaults": defaults}})
}

fn edge() -> Value {
    json!({"matchLabels": {"pool": "edge"}})
}

fn cilium(place: &'static str, answer: impl Fn() -> Reply + Send + Sync + 'static) -> Fake {
    Fake::new(move |path, _| match path.split('?').next().expect("a path") {
        MAP => config_map(),
        "/api/v1/nodes" => list("Node", &[NODE]),
        at if at == place => answer(),
        _ => small(path),
    })
}

fn of_configs(items: &[Value]) -> impl Fn() -> Reply + Send + Sync + use<> {
    let items = json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNodeConfigList", "metadata": {}, "items": items});
    move || Reply::Json(items.to_string())
}

fn settings(fake: &Fake) -> ProxyConfig {
    let facts = fake.facts();
    assert_eq!(facts.rejected, []);
    facts.proxy_config.get().expect("settings").clone()
}

#[test]
fn configs_that_select_this_node_override_the_config_map_in_the_order_of_their_names() {
    let fake = cilium(
        CONFIGS,
        of_configs(&[
            config("b", &edge(), &json!({"devices": "eth2"})),
            config("a", &edge(), &json!({"devices": "eth1", "enable-ipv6": "false"})),
            config("c", &json!({"matchLabels": {"pool": "core"}}), &json!({"devices": "eth3"})),
            config("d", &Value::Null, &json!({"devices": "eth4"})),
            config("e", &json!({}), &json!({})),
        ]),
    );
    let settings = settings(&fake);
    assert_eq!(settings.place, "ConfigMap kube-system/cilium-config with CiliumNodeConfig a, b");
    assert_eq!(settings.node_port_addresses, ["10.0.0.0/8"], "a setting that none of them names stays");
    let cilium = settings.cilium.expect("Cilium's");
    assert_eq!((cilium.devices, cilium.families_off.len()), (vec!["eth2".to_owned()], 1));
}

#[test]
fn a_config_can_make_cilium_replace_kube_proxy_on_one_node_or_not() {
    let fake = cilium(CONFIGS, of_configs(&[config("a", &json!({}), &json!({"kube-proxy-replacement": "false"}))]));
    let facts = fake.facts();
    let gap = facts.proxy_config.gap().expect("no settings of a proxy");
    assert!(gap.why == Why::NotSupported && gap.detail.contains("configmaps/kube-proxy"), "{gap:?}");
}

#[test]
fn an_older_cilium_has_configs_at_another_path_and_without_configs_the_config_map_counts() {
    let fake = cilium(OLD_CONFIGS, of_configs(&[config("a", &edge(), &json!({"devices": "eth1"}))]));
    assert_eq!(settings(&fake).cilium.expect("Cilium's").devices, ["eth1"]);
    for fake in [cilium("", config_map), cilium(CONFIGS, of_configs(&[]))] {
        let settings = settings(&fake);
        assert_eq!(settings.place, "ConfigMap kube-system/cilium-config");
        assert_eq!(settings.cilium.expect("Cilium's").devices, ["eth0"]);
        let asked_again = |path: &String| path.starts_with("/api/v1/nodes?resourceVersion=0");
        assert!(!fake.requests().iter().any(asked_again), "no config needs the labels of a node");
    }
}

#[test]
fn configs_are_not_requested_without_cilium() {
    let fake = Fake::new(|path, _| small(path));
    fake.facts();
    assert!(!fake.requests().iter().any(|path| path.contains("ciliumnodeconfigs")));
}

#[test]
fn configs_that_cannot_be_read_leave_the_settings_unknown() {
    let page = || {
        let metadata = json!({"continue": "more"});
        Reply::Json(json!({"kind": "CiliumNodeConfigList", "metadata": metadata, "items": []}).to_string())
    };
    let wrong = of_configs(&[config("a", &edge(), &json!({"devices": ["eth1"]}))]);
    for (fake, why) in [
        (cilium(CONFIGS, || Reply::Status(403, "forbidden")), Why::NotPermitted),
        (cilium(CONFIGS, || Reply::Status(500, "etcd is gone")), Why::Unreachable),
        (cilium(CONFIGS, page), Why::Malformed),
        (
            cilium(CONFIGS, || Reply::Json(json!({"kind": "PodList", "metadata": {}, "items": []}).to_string())),
            Why::Malformed,
        ),
        (cilium(CONFIGS, wrong), Why::Malformed),
    ] {
        let facts = fake.facts();
        let gap = facts.proxy_config.gap().expect("a gap");
        assert_eq!((gap.source, gap.why), (Source::ConfigMaps, why), "{gap:?}");
        assert!(gap.detail.contains("ciliumnodeconfigs"), "{}", gap.detail);
        assert_eq!(facts.range_claims.iter().map(|claim| claim.by).collect::<Vec<_>>(), [Claimant::Cilium]);
    }
}

#[test]
fn settings_are_unknown_without_the_name_of_this_node() {
    let fake = Fake::new(|path, _| match path.split('?').next().expect("a path") {
        MAP => config_map(),
        "/api/v1/nodes" => list("Node", &[r#"{"metadata":{"name":"other"}}"#]),
        CONFIGS => of_configs(&[config("a", &edge(), &json!({"devices": "eth1"}))])(),
        _ => small(path),
    });
    let facts = fake.facts();
    let gap = facts.proxy_config.gap().expect("a gap");
    assert!(gap.detail.contains("CiliumNodeConfig a: the name of this node is not known"), "{}", gap.detail);
}
