//! The chart under its switches.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::helm::{object, objects, render, run, try_render};

const PROFILES: [&str; 3] = [r#"profile="minimal""#, r#"profile="attribution""#, r#"profile="netfilter""#];

fn file(name: &str) -> Value {
    let path = format!("{}/deploy/chart/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn pod(settings: &[&str]) -> Value {
    object("DaemonSet", settings)["spec"]["template"]["spec"].take()
}

fn container(settings: &[&str]) -> Value {
    pod(settings)["containers"][0].take()
}

#[test]
fn helm_finds_nothing_to_object_to() {
    for profile in PROFILES {
        let said = run(["lint", "--strict", "--quiet", "deploy/chart", "--set-json", profile].into_iter());
        assert_eq!(said, Ok(String::new()));
    }
}

#[test]
fn the_chart_is_of_the_version_of_the_program() {
    let chart = file("Chart.yaml");
    assert_eq!([&chart["version"], &chart["appVersion"]], [env!("CARGO_PKG_VERSION"); 2]);
    assert_eq!(container(&[])["image"], concat!("portreeve:", env!("CARGO_PKG_VERSION")));
}

#[test]
fn each_profile_takes_what_it_says_and_no_more() {
    let minimal = json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "runAsNonRoot": true,
        "runAsUser": 65534,
        "runAsGroup": 65534,
        "seccompProfile": {"type": "RuntimeDefault"},
        "capabilities": {"drop": ["ALL"]},
    });
    let root = |capabilities: Value| {
        json!({
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "runAsUser": 0,
            "runAsGroup": 0,
            "appArmorProfile": {"type": "Unconfined"},
            "seccompProfile": {"type": "RuntimeDefault"},
            "capabilities": {"drop": ["ALL"], "add": capabilities},
        })
    };
    let attribution = root(json!(["SYS_PTRACE", "DAC_READ_SEARCH"]));
    let netfilter = root(json!(["SYS_PTRACE", "DAC_READ_SEARCH", "NET_ADMIN"]));
    for ((profile, context), host_pid) in
        PROFILES.into_iter().zip([minimal, attribution, netfilter]).zip([false, true, true])
    {
        let pod = pod(&[profile]);
        assert_eq!(pod["containers"][0]["securityContext"], context, "{profile}");
        assert_eq!((&pod["hostNetwork"], &pod["hostPID"]), (&json!(true), &json!(host_pid)), "{profile}");
        assert_eq!(pod["securityContext"], Value::Null, "{profile}");
        let mounts = pod["containers"][0]["volumeMounts"].as_array().expect("mounts").iter();
        let mounts: Vec<_> = mounts.map(|it| (it["mountPath"].as_str().expect("a path"), &it["readOnly"])).collect();
        assert_eq!(mounts, [("/etc/portreeve", &json!(true)), ("/sys/fs/cgroup", &json!(true))]);
    }
}

#[test]
fn app_armor_is_told_by_annotation_where_there_is_no_field() {
    let old = run(["template", "portreeve", "deploy/chart", "--kube-version=v1.29.7-eks-1", "--set-json", PROFILES[1]]
        .into_iter());
    let objects = objects(&old.expect("the chart is for old clusters, too"));
    let set = objects.iter().find(|object| object["kind"] == "DaemonSet").expect("a DaemonSet");
    let template = &set["spec"]["template"];
    let key = "container.apparmor.security.beta.kubernetes.io/portreeve";
    assert_eq!(template["metadata"]["annotations"][key], "unconfined");
    assert_eq!(template["spec"]["containers"][0]["securityContext"]["appArmorProfile"], Value::Null);
}

#[test]
fn two_agents_never_share_a_node_and_every_node_has_one() {
    let set = object("DaemonSet", &[]);
    let update = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}});
    assert_eq!(set["spec"]["updateStrategy"], update);
    assert_eq!(set["spec"]["template"]["spec"]["tolerations"], json!([{"operator": "Exists"}]));
}

#[test]
fn life_is_asked_of_the_binary_and_readiness_at_the_port() {
    let container = container(&["port=29600"]);
    assert_eq!(container["livenessProbe"]["exec"]["command"], json!(["/portreeve", "agent", "--probe"]));
    assert_eq!(container["livenessProbe"]["httpGet"], Value::Null);
    assert_eq!(container["readinessProbe"]["httpGet"], json!({"path": "/readyz", "port": "http"}));
    assert_eq!(container["ports"], json!([{"name": "http", "containerPort": 29600, "protocol": "TCP"}]));
    let env = container["env"].as_array().expect("an environment");
    assert!(env.contains(&json!({"name": "PORTREEVE_LISTEN", "value": "$(HOST_IP):29600"})));
    // Stronger than the configuration file, and the probe's environment too: both mean one socket whatever that one says.
    assert!(env.contains(&json!({"name": "PORTREEVE_SOCKET", "value": "/dev/shm/portreeve.socket"})));
}

#[test]
fn the_node_tells_its_name_and_its_address() {
    let env = container(&[r#"env=[{"name":"MORE","value":"1"}]"#])["env"].take();
    let from = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let wanted = json!([
        {"name": "NODE_NAME", "valueFrom": from("spec.nodeName")},
        {"name": "HOST_IP", "valueFrom": from("status.hostIP")},
        {"name": "PORTREEVE_LISTEN", "value": "$(HOST_IP):29517"},
        {"name": "PORTREEVE_SOCKET", "value": "/dev/shm/portreeve.socket"},
        {"name": "MORE", "value": "1"},
    ]);
    assert_eq!(env, wanted);
}

#[test]
fn the_configuration_file_is_what_was_set() {
    let set = json!({"some": {"key": ["a: b", 1]}});
    let map = object("ConfigMap", &[&format!("config={set}")]);
    let text = map["data"]["agent.yaml"].as_str().expect("a file");
    assert_eq!(serde_saphyr::from_str::<Value>(text).expect("YAML"), set);
    let pod = pod(&[]);
    assert_eq!(pod["volumes"][0], json!({"name": "config", "configMap": {"name": map["metadata"]["name"]}}));
    assert_eq!(pod["containers"][0]["args"][1], "--config=/etc/portreeve/agent.yaml");
}

#[test]
fn monitors_are_made_when_asked_for_and_find_the_pods() {
    let kinds = |settings: &[&str]| -> BTreeSet<String> {
        let kinds = objects(&render(settings)).into_iter().map(|it| it["kind"].as_str().expect("a kind").to_owned());
        kinds.collect()
    };
    let usual = kinds(&[]);
    let (pods, services) = ([r#"podMonitor={"enabled":true,"labels":{"a":"b"}}"#], ["serviceMonitor.enabled=true"]);
    assert_eq!(&kinds(&pods) - &usual, BTreeSet::from(["PodMonitor".to_owned()]));
    let added = &kinds(&services) - &usual;
    assert_eq!(added, BTreeSet::from(["Service", "ServiceMonitor"].map(str::to_owned)));

    let labels = object("DaemonSet", &[])["spec"]["template"]["metadata"]["labels"].take();
    let selects = |selector: &Value| {
        selector.as_object().is_some_and(|wanted| wanted.iter().all(|(key, value)| &labels[key] == value))
    };
    let monitor = object("PodMonitor", &pods);
    assert!(selects(&monitor["spec"]["selector"]["matchLabels"]));
    assert_eq!(monitor["metadata"]["labels"]["a"], "b");
    let service = object("Service", &services);
    assert!(selects(&service["spec"]["selector"]));
    let wanted = object("ServiceMonitor", &services)["spec"]["selector"]["matchLabels"].take();
    let has = &service["metadata"]["labels"];
    assert!(wanted.as_object().expect("labels").iter().all(|(key, value)| &has[key] == value));
}

#[test]
fn policies_are_made_when_asked_for_and_are_those_that_the_plugin_prints() {
    let of_kind = |objects: Vec<Value>, kind: &str| -> Vec<Value> {
        objects.into_iter().filter(|object| object["kind"].as_str().is_some_and(|it| it.starts_with(kind))).collect()
    };
    assert!(of_kind(objects(&render(&[])), "Validating").is_empty());
    let settings = [
        "policies.enabled=true",
        r#"policies.action="Deny""#,
        r#"policies.parameters.keptFreeOfExternalIPs="10.96.0.0/16""#,
        r#"policies.parameters.fixedNodePorts\.shop="1\"2""#,
    ];
    let place = ["template", "other", "deploy/chart", "--namespace=elsewhere", "--kube-version=1.36.3"];
    let made = run(place.into_iter().chain(settings.iter().flat_map(|it| ["--set-json", it])));
    let made = objects(&made.expect("the chart takes them"));
    let committed = std::fs::read_to_string("deploy/policies/policies.yaml").expect("the policies");
    let committed = committed
        .replace("[Warn]", "[Deny]")
        .replace(r#"{"keptFreeOfExternalIPs": "", "nodeAddresses": ""}"#, r#"{"keptFreeOfExternalIPs":"10.96.0.0/16"}"#)
        .replace(r#"{"fixedNodePorts": "0-65535"}"#, r#"{"fixedNodePorts.shop":"1\"2"}"#)
        .replace(r#"": ""#, r#"":""#)
        .replace(r#"", ""#, r#"",""#);
    let mut wanted = objects(&committed);
    let mut found = of_kind(made, "Validating");
    assert_eq!(found.len(), 8);
    for list in [&mut wanted, &mut found] {
        list.sort_by_key(|object| (object["kind"].to_string(), object["metadata"]["name"].to_string()));
    }
    assert_eq!(found, wanted);
}

#[test]
fn a_value_that_cannot_be_is_refused_by_name() {
    for (setting, named) in [
        (r#"profile="root""#, "/profile"),
        (r#"profile="guard""#, "'netfilter'"),
        (r#"image.tga="x""#, "tga"),
        ("port=70000", "/port"),
        (r#"maxUnavailable="all""#, "/maxUnavailable"),
        (r#"policies.action="Block""#, "/policies/action"),
        ("policies.parameters.nodePortFirst=30000", "/policies/parameters/nodePortFirst"),
        (r#"image.digest="sha256:1""#, "/image/digest"),
        (r#"rbac.optional.flagz="no""#, "/rbac/optional/flagz"),
    ] {
        let refused = try_render(&[setting]).expect_err(setting);
        assert!(refused.contains(named), "{setting}: {refused}");
    }
}

#[test]
fn the_schema_knows_every_value_and_no_other() {
    same_keys("values", &file("values.yaml"), &file("values.schema.json"));
}

/// Compares keys as deep as the schema names them. `global` is helm's own.
fn same_keys(place: &str, values: &Value, schema: &Value) {
    let Some(known) = schema["properties"].as_object() else { return };
    assert_eq!(schema["additionalProperties"], false, "{place} takes anything");
    let values = values.as_object().unwrap_or_else(|| panic!("{place} is no object"));
    let names: BTreeSet<&String> = known.keys().filter(|key| *key != "global").collect();
    assert_eq!(names, values.keys().collect(), "{place}");
    for (key, value) in values {
        same_keys(&format!("{place}.{key}"), value, &known[key]);
    }
}
