//! The chart with different values.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::helm::{image, object, objects, render, run, try_render};

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
        let values = ["--set-json", profile, "--set-json", &image()];
        let said = run(["lint", "--strict", "--quiet", "deploy/chart"].into_iter().chain(values));
        assert_eq!(said, Ok(String::new()));
    }
}

#[test]
fn the_chart_is_of_the_version_of_the_program() {
    let chart = file("Chart.yaml");
    assert_eq!([&chart["version"], &chart["appVersion"]], [env!("CARGO_PKG_VERSION"); 2]);
    let image = container(&[r#"image.repository="r.example/x""#])["image"].take();
    assert_eq!(image, concat!("r.example/x:", env!("CARGO_PKG_VERSION")));
}

fn ports(policy: &Value) -> Vec<u64> {
    match policy {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(key, value)| match (key.as_str(), value) {
                ("port", value) => vec![number(value)],
                ("ports", Value::Array(listed)) if !listed.iter().any(Value::is_object) => {
                    listed.iter().map(number).collect()
                }
                (_, value) => ports(value),
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(ports).collect(),
        _ => Vec::new(),
    }
}

fn number(port: &Value) -> u64 {
    port.as_u64().or_else(|| port.as_str()?.parse().ok()).unwrap_or_else(|| panic!("{port} is no port"))
}

#[test]
fn the_examples_of_policies_for_hosts_are_about_the_ports_of_the_chart() {
    let values = file("values.yaml");
    let both = [&values["port"], &values["guard"]["port"]].map(number);
    for (name, kind) in
        [("calico-host-policy", "GlobalNetworkPolicy"), ("cilium-host-policy", "CiliumClusterwideNetworkPolicy")]
    {
        let policy = file(&format!("../examples/{name}.yaml"));
        assert_eq!(policy["kind"], kind);
        assert_eq!(ports(&policy["spec"]), [both; 2].concat(), "{name}");
    }
}

#[test]
fn an_image_without_a_registry_is_never_pulled() {
    for (name, is_whole) in [
        ("", false),
        ("portreeve", false),
        ("someone/portreeve", false),
        ("registry.example/", false),
        ("registry.example/portreeve", true),
        ("registry:5000/portreeve", true),
        ("localhost/portreeve", true),
    ] {
        let rendered = try_render(&[&format!("image.repository={name:?}")]);
        assert_eq!(rendered.is_ok(), is_whole, "{name}");
        if let Err(refused) = rendered {
            assert!(refused.contains(&format!("image.repository is {name:?}, wanted")), "{refused}");
        }
    }
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
        // If `hostPID` is false, the field must be absent, as in the object of the API server. Otherwise `kubectl
        // apply` would always report a change.
        let host_pid = if host_pid { json!(true) } else { Value::Null };
        assert_eq!((&pod["hostNetwork"], &pod["hostPID"]), (&json!(true), &host_pid), "{profile}");
        assert_eq!(pod["securityContext"], Value::Null, "{profile}");
        let mounts = pod["containers"][0]["volumeMounts"].as_array().expect("mounts").iter();
        let mounts: Vec<_> = mounts.map(|it| (it["mountPath"].as_str().expect("a path"), &it["readOnly"])).collect();
        assert_eq!(mounts, [("/etc/portreeve", &json!(true)), ("/sys/fs/cgroup", &json!(true))]);
    }
}

#[test]
fn a_cluster_older_than_the_api_that_the_program_speaks_is_refused() {
    let at = |version: &str| {
        let version = format!("--kube-version={version}");
        run(["template", "portreeve", "deploy/chart", &version, "--set-json", &image()].into_iter())
    };
    let refused = at("v1.32.9").expect_err("Kubernetes 1.33 is the first");
    assert!(refused.contains("requires kubeVersion: >=1.33.0-0"), "{refused}");
    for version in ["v1.33.0", "v1.33.4-eks-1", "v1.36.3+k3s1"] {
        at(version).unwrap_or_else(|refusal| panic!("{version}: {refusal}"));
    }
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
    // The agent and the probe have the same environment, and the environment overrides the configuration file. So the
    // agent and the probe use the same socket, even if the file names another socket.
    assert!(env.contains(&json!({"name": "PORTREEVE_SOCKET", "value": "/dev/shm/portreeve.socket"})));
}

#[test]
fn the_node_tells_its_name_and_its_address() {
    let env = container(&[r#"env=[{"name":"MORE","value":"1"}]"#])["env"].take();
    let from = |path: &str| json!({"fieldRef": {"apiVersion": "v1", "fieldPath": path}});
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
    let set = json!({"node": "a: b", "cpu-percent": 1, "services": ["/x", "/y"], "limits": {"fds_warning_percent": 7}});
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
    let image = image();
    let settings = [
        image.as_str(),
        "policies.enabled=true",
        r#"policies.action="Deny""#,
        r#"policies.parameters.keptFreeOfExternalIPs="1\"2""#,
        r#"policies.parameters.fixedNodePorts\.shop="30010-30019,30100""#,
    ];
    let place = ["template", "other", "deploy/chart", "--namespace=elsewhere", "--kube-version=1.36.3"];
    let made = run(place.into_iter().chain(settings.iter().flat_map(|it| ["--set-json", it])));
    let made = objects(&made.expect("the chart takes them"));
    let committed = std::fs::read_to_string("deploy/policies/policies.yaml").expect("the policies");
    let committed = committed
        .replace("[Warn]", "[Deny]")
        .replace(r#"{"keptFreeOfExternalIPs": "", "nodeAddresses": ""}"#, r#"{"keptFreeOfExternalIPs":"1\"2"}"#)
        .replace(r#"{"fixedNodePorts": "0-65535"}"#, r#"{"fixedNodePorts.shop":"30010-30019,30100"}"#)
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
fn a_chart_that_lost_a_file_makes_nothing_of_it_and_says_so() {
    for (file, settings) in [
        ("policies/policies.yaml", "policies={\"enabled\":true,\"action\":\"Deny\"}"),
        ("files/alerts.yaml", "prometheusRule.enabled=true"),
        ("files/alerts-without-agent.yaml", "prometheusRule={\"enabled\":true,\"withoutAgent\":true}"),
        ("files/node.json", "dashboards.configMaps.enabled=true"),
        ("files/node.json", "dashboards.grafanaDashboard.enabled=true"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let copy = std::process::Command::new("cp").arg("-r").arg("deploy/chart").arg(folder.path()).status();
        assert!(copy.expect("cp runs").success());
        let chart = folder.path().join("chart");
        let chart = chart.to_str().expect("UTF-8");
        let render =
            || run(["template", "portreeve", chart, "--set-json", &image(), "--set-json", settings].into_iter());
        render().unwrap_or_else(|error| panic!("{file}: {error}"));
        std::fs::remove_file(format!("{chart}/{file}")).expect("the file is there");
        let refused = render().expect_err(file);
        assert!(refused.contains(&format!("{file} is missing in the chart or empty")), "{refused}");
    }
}

#[test]
fn no_pod_waits_for_a_node_on_which_no_agent_can_run() {
    let required = &pod(&[])["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let [term] = required["nodeSelectorTerms"].as_array().expect("terms").as_slice() else { panic!("{required}") };
    let expressions = term["matchExpressions"].as_array().expect("expressions").iter();
    let left_out: Vec<(&Value, &Value)> = expressions
        .map(|it| {
            assert_eq!(it["operator"], "NotIn");
            (&it["key"], &it["values"][0])
        })
        .collect();
    let word = |word: &'static str| Value::from(word);
    let wanted = [("eks.amazonaws.com/compute-type", "fargate"), ("type", "virtual-kubelet")];
    assert_eq!(
        left_out,
        wanted.map(|(key, value)| (word(key), word(value))).each_ref().map(|(key, value)| (key, value))
    );
}

#[test]
fn the_objects_for_flux_in_the_page_about_the_installation_fit_the_chart() {
    let page = std::fs::read_to_string("docs/install.md").expect("the page");
    let (_, block) = page.split_once("```yaml\n").expect("the objects");
    let (block, _) = block.split_once("```").expect("their end");
    let digest = format!("sha256:{}", "0".repeat(64));
    let parts = objects(&block.replace("sha256:...", &digest));
    let [namespace, release] = &parts[..] else { panic!("{parts:#?}") };
    let label = |it: &Value| it["metadata"]["labels"]["pod-security.kubernetes.io/enforce"].clone();
    assert_eq!(label(namespace), label(&object("Namespace", &["namespace.create=true"])));
    assert_eq!(release["spec"]["chart"]["spec"]["chart"], "deploy/chart");
    let values = release["spec"]["values"].as_object().expect("values");
    let settings: Vec<String> = values.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let set = object("DaemonSet", &settings);
    let image = &set["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(*image, format!("registry.example/portreeve@{digest}"));
    assert_eq!(set["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"], "10%");
}

#[test]
fn no_object_says_that_helm_manages_it_before_helm_does() {
    let manifest = render(&["namespace.create=true"]);
    assert!(!manifest.contains("managed-by"), "kubectl apply takes it, too");
}

#[test]
fn labels_for_everything_are_on_every_object_and_on_the_pods_and_select_nothing() {
    let set = [r#"commonLabels={"team":"net"}"#, r#"podLabels={"team":"pods","more":"1"}"#, "namespace.create=true"];
    for object in objects(&render(&set)) {
        assert_eq!(object["metadata"]["labels"]["team"], "net", "{object}");
        if object["kind"] == "DaemonSet" {
            let labels = &object["spec"]["template"]["metadata"]["labels"];
            assert_eq!((&labels["team"], &labels["more"]), (&json!("pods"), &json!("1")), "those of pods are stronger");
            assert_eq!(object["spec"]["selector"]["matchLabels"].as_object().map(serde_json::Map::len), Some(2));
            assert_eq!(object["spec"]["revisionHistoryLimit"], 10);
        }
    }
    assert!(try_render(&[r#"commonLabels={"app.kubernetes.io/name":"x"}"#]).is_err(), "pods would not be found");
}

#[test]
fn two_releases_of_two_namespaces_have_no_object_in_common() {
    let mut all = BTreeSet::new();
    let everything = ["guard.enabled=true", "openshift.enabled=true", "reader.create=true"];
    for (namespace, name) in [
        ("portreeve", "portreeve"),
        ("portreeve", "x"),
        ("other", "portreeve"),
        ("a", "b-c"),
        ("a-b", "c"),
        ("a-b-c", "a-b-c"),
        ("c-guard", "a"),
    ] {
        let (place, name) = (format!("--namespace={namespace}"), format!("fullnameOverride={name:?}"));
        let image = image();
        let settings = everything.into_iter().chain([&*name, &image]).flat_map(|it| ["--set-json", it]);
        let chart = ["template", "one", "deploy/chart", &place, "--kube-version=1.36.3"];
        let made = run(chart.into_iter().chain(settings)).unwrap_or_else(|error| panic!("{name}: {error}"));
        for object in objects(&made) {
            let meta = &object["metadata"];
            let whole = [&object["kind"], &meta["namespace"], &meta["name"]].map(ToString::to_string);
            assert!(all.insert(whole.clone()), "{namespace}, {name}: {whole:?} is there already");
        }
    }
    assert!(all.iter().any(|it| it[2] == r#""other.portreeve-guard""#), "{all:?}");
}

/// Names that are not text in YAML, in any part of an object.
fn not_text(value: &Value) -> Vec<String> {
    const NAMES: [&str; 5] =
        ["name", "namespace", "serviceAccountName", "priorityClassName", "app.kubernetes.io/instance"];
    match value {
        Value::Array(all) => all.iter().flat_map(not_text).collect(),
        Value::Object(fields) => {
            let wrong = fields.iter().filter(|(key, value)| NAMES.contains(&key.as_str()) && !value.is_string());
            let wrong = wrong.map(|(key, value)| format!("{key}: {value}"));
            wrong.chain(fields.values().flat_map(not_text)).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn a_name_of_digits_stays_text() {
    let image = image();
    let settings = [
        image.as_str(),
        r#"fullnameOverride="1e3""#,
        r#"serviceAccount.name="null""#,
        r#"priorityClassName="1""#,
        "namespace.create=true",
        "guard.enabled=true",
        "openshift.enabled=true",
        "reader.create=true",
        "podMonitor.enabled=true",
        "serviceMonitor.enabled=true",
        "prometheusRule.enabled=true",
        "dashboards.configMaps.enabled=true",
        "dashboards.grafanaDashboard.enabled=true",
    ];
    let chart = ["template", "123", "deploy/chart", "--namespace=456", "--kube-version=1.36.3"];
    let made = run(chart.into_iter().chain(settings.into_iter().flat_map(|it| ["--set-json", it])));
    for object in objects(&made.expect("the names are legal")) {
        assert_eq!(not_text(&object), [""; 0], "{}", object["kind"]);
    }
}

#[test]
fn more_objects_are_made_as_they_are_written_and_their_templates_are_rendered() {
    let more = r#"[{"apiVersion":"v1","kind":"One","metadata":{"name":"{{ .Release.Name }}"}},"kind: Two\nport: {{ .Values.port }}"]"#;
    let objects = objects(&render(&[&format!("extraObjects={more}")]));
    let of_kind = |kind: &str| objects.iter().find(|it| it["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"));
    assert_eq!(of_kind("One")["metadata"]["name"], "portreeve");
    assert_eq!(of_kind("Two")["port"], 29517);
}

#[test]
fn both_monitors_scrape_as_they_are_told_and_always_name_the_node() {
    let more = r#"{"enabled":true,"interval":"9s","scrapeTimeout":"3s","relabelings":[{"targetLabel":"zone"}],"metricRelabelings":[{"action":"drop"}]}"#;
    let node = json!({"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"});
    for (kind, key, list) in
        [("PodMonitor", "podMonitor", "podMetricsEndpoints"), ("ServiceMonitor", "serviceMonitor", "endpoints")]
    {
        let scraped = |settings: &str| object(kind, &[&format!("{key}={settings}")])["spec"][list].take();
        assert_eq!(scraped(r#"{"enabled":true}"#), json!([{"port": "http", "interval": "30s", "relabelings": [node]}]));
        let wanted = json!([{"port": "http", "interval": "9s", "scrapeTimeout": "3s",
            "relabelings": [node, {"targetLabel": "zone"}], "metricRelabelings": [{"action": "drop"}]}]);
        assert_eq!(scraped(more), wanted);
    }
}

#[test]
fn on_openshift_the_pods_are_admitted_with_what_they_take_and_no_more() {
    for profile in PROFILES {
        let objects = objects(&render(&[profile, "openshift.enabled=true"]));
        let of_kind = |kind: &str| objects.iter().find(|it| it["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"));
        let (allowed, pod) = (of_kind("SecurityContextConstraints"), &of_kind("DaemonSet")["spec"]["template"]["spec"]);
        let context = &pod["containers"][0]["securityContext"];
        assert_eq!(allowed["users"], json!(["system:serviceaccount:portreeve:portreeve"]));
        assert_eq!(allowed["allowHostPID"], pod["hostPID"].as_bool().unwrap_or_default());
        assert_eq!(allowed["runAsUser"], json!({"type": "MustRunAs", "uid": context["runAsUser"]}));
        let added = context["capabilities"]["add"].as_array().cloned().unwrap_or_default();
        assert_eq!(
            (&allowed["allowedCapabilities"], &allowed["requiredDropCapabilities"]),
            (&json!(added), &json!(["ALL"]))
        );
        let volumes =
            pod["volumes"].as_array().expect("volumes").iter().flat_map(|it| it.as_object().expect("one").keys());
        let kinds: BTreeSet<&str> =
            volumes.map(String::as_str).filter(|key| *key != "name").chain(["projected"]).collect();
        assert_eq!(allowed["volumes"], json!(kinds), "and the token of the ServiceAccount");
        for never in ["allowPrivilegedContainer", "allowPrivilegeEscalation", "allowHostIPC"] {
            assert_eq!(allowed[never], false, "{never}");
        }
    }
    assert!(!render(&[]).contains("SecurityContextConstraints"));
}

#[test]
fn a_value_that_cannot_be_is_refused_by_name() {
    for (setting, named) in [
        (r#"profile="root""#, "/profile"),
        (r#"profile="guard""#, "'netfilter'"),
        (r#"image.tga="x""#, "tga"),
        ("port=70000", "/port"),
        (r#"maxUnavailable="all""#, "/maxUnavailable"),
        ("maxUnavailable=99999999999", "/maxUnavailable"),
        ("revisionHistoryLimit=99999999999", "/revisionHistoryLimit"),
        ("livenessProbe.periodSeconds=99999999999", "/livenessProbe/periodSeconds"),
        (r#"policies.action="Block""#, "/policies/action"),
        ("policies.parameters.nodePortFirst=30000", "/policies/parameters/nodePortFirst"),
        (r#"image.digest="sha256:1""#, "/image/digest"),
        (r#"rbac.optional.flagz="no""#, "/rbac/optional/flagz"),
        (r#"env=[{"name":"A","value":1}]"#, "/env/0/value"),
        (r#"resources.limit={"memory":"1Gi"}"#, "limit"),
        (r#"guard.resources.limit={"memory":"1Gi"}"#, "/guard/resources"),
        (r#"tolerations=[{"operator":"Exist"}]"#, "/tolerations/0/operator"),
        (r#"affinity.nodeAfinity={}"#, "nodeAfinity"),
        (r#"podMonitor.scrapeTimeout="3""#, "/podMonitor/scrapeTimeout"),
        (r#"policies.parameters.nodePortFrist="30000""#, "nodePortFrist"),
        (r#"policies.parameters.nodePortFirst\.shop="30000""#, "nodePortFirst.shop"),
        (r#"policies.parameters.nodePortFirst=" 30000""#, "nodePortFirst"),
        (r#"policies.parameters.fixedNodePorts\.shop="30010-30019, 30100""#, "fixedNodePorts.shop"),
        // The chart would copy these values unchanged. A line break in a value would begin another field.
        (r#"fullnameOverride="a\nb: c""#, "/fullnameOverride"),
        (r#"fullnameOverride="a-reader""#, "fullnameOverride is \"a-reader\": names that end with"),
        (r#"fullnameOverride="a-guard""#, "fullnameOverride is \"a-guard\": names that end with"),
        (r#"priorityClassName="a\nhostIPC: true""#, "/priorityClassName"),
        (r#"serviceAccount.name="a\nhostIPC: true""#, "/serviceAccount/name"),
        (r#"serviceAccount.name="portreeve-reader""#, "serviceAccount.name: portreeve-reader is another account"),
        // If a file has a key without a value, helm removes the default.
        ("livenessProbe=null", "'livenessProbe'"),
        ("port=null", "'port'"),
        ("rbac=null", "'rbac'"),
        ("rbac.optional.flagz=null", "'flagz'"),
        ("image.pullSecrets=[{}]", "'name'"),
        // These values would write a key or a variable twice, or would make an object without a kind.
        (r#"commonLabels={"helm.sh/chart":"x"}"#, "'helm.sh/chart'"),
        (r#"commonLabels={"app.kubernetes.io/version":"x"}"#, "'app.kubernetes.io/version'"),
        (r#"commonLabels={"pod-security.kubernetes.io/enforce":"x"}"#, "'pod-security.kubernetes.io/enforce'"),
        (
            r#"podAnnotations={"kubectl.kubernetes.io/default-container":"x"}"#,
            "'kubectl.kubernetes.io/default-container'",
        ),
        (r#"env=[{"name":"NODE_NAME","value":"x"}]"#, "env: NODE_NAME is there twice"),
        (r#"env=[{"name":"A","value":"x"},{"name":"A","value":"y"}]"#, "env: A is there twice"),
        ("extraObjects=[{}]", "/extraObjects/0"),
        (r#"extraObjects=[{"kind":"ConfigMap"}]"#, "'apiVersion'"),
        (r#"extraObjects=[""]"#, "/extraObjects/0"),
        (r#"serviceAccount.name="portreeve-guard""#, "serviceAccount.name: portreeve-guard is another account"),
    ] {
        let refused = try_render(&[setting]).expect_err(setting);
        assert!(refused.contains(named), "{setting}: {refused}");
    }
}

#[test]
fn the_schema_knows_every_parameter_of_a_policy_and_no_other() {
    let policies = std::fs::read_to_string("deploy/policies/policies.yaml").expect("the policies");
    let objects = policies.lines().filter(|line| line.starts_with("        {\""));
    let objects = objects.map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let mut names: BTreeSet<String> =
        objects.flat_map(|it| it.as_object().expect("parameters").keys().cloned().collect::<Vec<_>>()).collect();
    // Each namespace can have its own parameter `fixedNodePorts.NAMESPACE`.
    assert!(names.remove("fixedNodePorts"));
    names.insert(r"fixedNodePorts(\..+)?".to_owned());
    let wanted = format!("^({})$", names.into_iter().collect::<Vec<_>>().join("|"));
    let schema = file("values.schema.json");
    let parameters = &schema["properties"]["policies"]["properties"]["parameters"];
    assert_eq!(parameters["propertyNames"]["pattern"], wanted);
}

#[test]
fn the_schema_knows_every_value_and_no_other() {
    same_keys("values", &file("values.yaml"), &file("values.schema.json"));
}

/// A user may remove these values. Without `nodeSelector`, `tolerations` or `affinity`, pods run on other nodes.
/// Without `resources`, `requests` or `limits`, pods have no requests or no limits.
const REMOVABLE: [&str; 6] = ["nodeSelector", "tolerations", "affinity", "resources", "requests", "limits"];

fn is_empty(value: &Value) -> bool {
    [json!(""), json!([]), json!({})].contains(value)
}

#[test]
fn a_key_without_a_value_is_as_the_empty_default_or_takes_a_removable_one_away() {
    fn empty(place: &str, values: &Value, all: &mut Vec<String>) {
        for (key, value) in
            values.as_object().into_iter().flatten().filter(|(key, _)| !REMOVABLE.contains(&key.as_str()))
        {
            let place = format!("{place}{key}");
            if is_empty(value) { all.push(format!("{place}=null")) } else { empty(&format!("{place}."), value, all) }
        }
    }
    let mut nulls = Vec::new();
    empty("", &file("values.yaml"), &mut nulls);
    nulls.retain(|it| it != "image.repository=null");
    assert!(nulls.len() > 20 && nulls.contains(&"podMonitor.labels=null".to_owned()), "{nulls:?}");
    let all = [
        "podMonitor.enabled",
        "serviceMonitor.enabled",
        "prometheusRule.enabled",
        "dashboards.configMaps.enabled",
        "dashboards.grafanaDashboard.enabled",
        "guard.enabled",
        "openshift.enabled",
        "policies.enabled",
        "reader.create",
    ]
    .map(|it| format!("{it}=true"));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let with: Vec<&str> = all.iter().copied().chain(nulls.iter().map(String::as_str)).collect();
    assert_eq!(objects(&render(&with)), objects(&render(&all)));

    let pod = pod(&["nodeSelector=null", "tolerations=null", "affinity=null", "resources=null"]);
    for gone in [&pod["nodeSelector"], &pod["tolerations"], &pod["affinity"], &pod["containers"][0]["resources"]] {
        assert_eq!(*gone, Value::Null);
    }
}

/// Compares the keys of the values with the keys of the schema. The comparison ends at a value if the schema does not
/// name the keys of the value. The key `global` belongs to helm. An empty object has only keys that users choose. A
/// user must not remove a default with content, except the values in [`REMOVABLE`].
fn same_keys(place: &str, values: &Value, schema: &Value) {
    if *values == json!({}) {
        return;
    }
    let Some(known) = schema["properties"].as_object() else { return };
    assert_eq!(schema["additionalProperties"], false, "{place} takes anything");
    let values = values.as_object().unwrap_or_else(|| panic!("{place} is no object"));
    let names: BTreeSet<&String> = known.keys().filter(|key| *key != "global").collect();
    assert_eq!(names, values.keys().collect(), "{place}");
    let needed = values.iter().filter(|(key, value)| !is_empty(value) && !REMOVABLE.contains(&key.as_str()));
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    assert_eq!(required.collect::<BTreeSet<_>>(), needed.map(|(key, _)| key.as_str()).collect(), "{place}");
    for (key, value) in values {
        same_keys(&format!("{place}.{key}"), value, &known[key]);
    }
}
