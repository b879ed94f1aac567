//! The part of the chart that installs the guard.

use serde_json::{Value, json};

use crate::helm::{objects, render, try_render};

const ON: &str = r#"guard={"enabled":true}"#;

fn added(settings: &[&str]) -> Vec<Value> {
    let without = objects(&render(&settings[1..]));
    objects(&render(settings)).into_iter().filter(|object| !without.contains(object)).collect()
}

fn of<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

#[test]
fn without_it_the_chart_is_as_before() {
    let manifest = render(&[]);
    assert!(!manifest.contains("portreeve-guard") && !manifest.contains("/proc/sys/net"), "it is off by default");
}

#[test]
fn the_guard_has_an_account_of_its_own_that_reads_three_kinds_of_objects_and_has_no_capability() {
    let added = added(&[ON]);
    let kinds: Vec<&str> = added.iter().filter_map(|object| object["kind"].as_str()).collect();
    assert_eq!(kinds, ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "DaemonSet"]);
    let rules = json!([
        {"apiGroups": [""], "resources": ["services", "pods"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]},
    ]);
    assert_eq!(of(&added, "ClusterRole")["rules"], rules);
    let events = json!([{"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]}]);
    let role = of(&added, "Role");
    assert_eq!((&role["rules"], &role["metadata"]["namespace"]), (&events, &json!("default")));
    assert_eq!(of(&added, "RoleBinding")["metadata"]["namespace"], "default");
    let silent = self::added(&[ON, r#"rbac={"events":false}"#]);
    assert!(!silent.iter().any(|object| object["kind"] == "Role"), "Events can be switched off");
    let account = json!([{"kind": "ServiceAccount", "name": "portreeve-guard", "namespace": "portreeve"}]);
    assert_eq!(of(&added, "ClusterRoleBinding")["subjects"], account);
    assert_eq!(of(&added, "RoleBinding")["subjects"], account);
    let pod = &of(&added, "DaemonSet")["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], "portreeve-guard");
    assert_eq!((&pod["hostNetwork"], &pod["hostPID"]), (&json!(true), &Value::Null));
    let context = json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "runAsUser": 0,
        "runAsGroup": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
        "capabilities": {"drop": ["ALL"]},
    });
    assert_eq!(pod["containers"][0]["securityContext"], context);
}

#[test]
fn it_writes_the_list_and_its_record_and_nothing_else_of_the_node() {
    let added = added(&[ON]);
    let pod = &of(&added, "DaemonSet")["spec"]["template"]["spec"];
    let list = "/proc/sys/net/ipv4/ip_local_reserved_ports";
    let volumes = json!([
        {"name": "list", "hostPath": {"path": list, "type": "File"}},
        {"name": "state", "hostPath": {"path": "/run/portreeve", "type": "DirectoryOrCreate"}},
    ]);
    assert_eq!(pod["volumes"], volumes);
    assert_eq!(pod["containers"][0]["volumeMounts"][0]["mountPath"], format!("/host{list}"));
    assert_eq!(pod["containers"][0]["livenessProbe"], Value::Null, "another program may own the port");
    let arguments = pod["containers"][0]["args"].as_array().expect("arguments");
    for argument in ["guard", "--sysctls=/host/proc/sys/net", "--state=/run/portreeve/guard.json", "--leave=4096"] {
        assert!(arguments.contains(&argument.into()), "{argument}");
    }
}

#[test]
fn the_bind_hook_adds_two_capabilities_the_control_groups_endpoints_and_events_everywhere() {
    let without = added(&[ON]);
    let pod = &of(&without, "DaemonSet")["spec"]["template"]["spec"];
    assert!(!pod.to_string().contains("cgroup") && !pod.to_string().contains("--bind"), "{pod:#}");
    for mode in ["report", "refuse"] {
        let on = format!(
            r#"guard={{"enabled":true,"bind":"{mode}","allow":["system.slice","a b"],"stale":90,"cgroup":"/host/a b"}}"#
        );
        let added = self::added(&[&on]);
        let pod = &of(&added, "DaemonSet")["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let capabilities = json!({"drop": ["ALL"], "add": ["BPF", "NET_ADMIN"]});
        assert_eq!(container["securityContext"]["capabilities"], capabilities);
        let arguments = container["args"].as_array().expect("arguments");
        let bind = format!("--bind={mode}");
        for argument in [bind.as_str(), "--allow=system.slice", "--allow=a b", "--stale=90", "--cgroup=/host/a b"] {
            assert!(arguments.contains(&argument.into()), "{argument} in {arguments:?}");
        }
        let mount = json!({"name": "cgroup", "mountPath": "/host/sys/fs/cgroup", "readOnly": true});
        assert_eq!(container["volumeMounts"][2], mount);
        let volume = json!({"name": "cgroup", "hostPath": {"path": "/sys/fs/cgroup", "type": "Directory"}});
        assert_eq!(pod["volumes"][2], volume);
        let events = json!({"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]});
        assert_eq!(of(&added, "ClusterRole")["rules"][2], events);
        let slices =
            json!({"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]});
        assert_eq!(of(&added, "ClusterRole")["rules"][3], slices);
        assert!(!added.iter().any(|object| object["kind"] == "Role"), "this right is everywhere");
        let silent = self::added(&[&on, r#"rbac={"events":false}"#]);
        let rules = of(&silent, "ClusterRole")["rules"].as_array().expect("rules");
        assert_eq!((rules.len(), &rules[2]), (3, &slices), "without Events, the guard still watches endpoints");
        let whole = self::added(&[&format!(r#"guard={{"enabled":true,"bind":"{mode}"}}"#)]);
        let arguments = of(&whole, "DaemonSet")["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
        assert!(arguments.contains("--stale=120") && !arguments.contains("--cgroup"), "{arguments}");
        assert!(!arguments.contains("--proxy-mode"), "{arguments}");
        let cilium = self::added(&[&on, r#"config={"proxy-mode":"cilium"}"#]);
        let arguments = of(&cilium, "DaemonSet")["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
        assert!(arguments.contains("\"--proxy-mode=cilium\""), "{arguments}");
    }
}

#[test]
fn its_pods_are_not_taken_for_agents() {
    let added = added(&[ON, r#"podMonitor={"enabled":true}"#, r#"serviceMonitor={"enabled":true}"#]);
    let labels = json!({"app.kubernetes.io/name": "portreeve-guard", "app.kubernetes.io/instance": "portreeve"});
    let selectors = [
        ("DaemonSet", "/spec/selector/matchLabels"),
        ("PodMonitor", "/spec/selector/matchLabels"),
        ("Service", "/spec/selector"),
        ("ServiceMonitor", "/spec/selector/matchLabels"),
    ];
    for (kind, place) in selectors {
        assert_eq!(of(&added, kind).pointer(place), Some(&labels), "{kind}");
    }
    let pods = &of(&added, "DaemonSet")["spec"]["template"]["metadata"]["labels"];
    assert_eq!(pods["app.kubernetes.io/name"], "portreeve-guard");
}

#[test]
fn it_runs_on_the_nodes_of_both_selectors_and_agents_stay_on_theirs() {
    let selector = |objects: &[Value]| of(objects, "DaemonSet")["spec"]["template"]["spec"]["nodeSelector"].clone();
    let few = r#"guard={"enabled":true,"nodeSelector":{"pool":"canary"}}"#;
    let added = added(&[few]);
    assert_eq!(selector(&added), json!({"kubernetes.io/os": "linux", "pool": "canary"}));
    assert!(!added.iter().any(|it| it["metadata"]["name"] == "portreeve"), "the agents do not change: {added:#?}");
    assert_eq!(selector(&self::added(&[few, "nodeSelector=null"])), json!({"pool": "canary"}));
    let none = r#"guard={"enabled":true,"nodeSelector":{"kubernetes.io/os":"windows"}}"#;
    let refused = try_render(&[none]).expect_err("no node has both values of a label");
    assert!(refused.contains("guard.nodeSelector: kubernetes.io/os is \"windows\", and nodeSelector"), "{refused}");
}

#[test]
fn its_values_are_checked() {
    for wrong in [
        r#"guard={"enabled":1}"#,
        r#"guard={"leave":-1}"#,
        r#"guard={"port":0}"#,
        r#"guard={"bind":"on"}"#,
        r#"guard={"allow":[""]}"#,
        r#"guard={"stale":0}"#,
        r#"guard={"stale":3601}"#,
        r#"guard={"cgroup":"system.slice"}"#,
        r#"guard={"nodeSelector":{"pool":1}}"#,
    ] {
        try_render(&[wrong]).expect_err(wrong);
    }
    let refused = try_render(&[r#"guard={"enabled":true,"port":29517}"#]).expect_err("the agents have this port");
    assert!(refused.contains("set another guard.port"), "{refused}");
}

#[test]
fn on_openshift_its_pods_are_admitted_with_what_they_take_and_no_more() {
    let added = added(&[ON, "openshift.enabled=true"]);
    let allowed = of(&added, "SecurityContextConstraints");
    assert_eq!(allowed["users"], json!(["system:serviceaccount:portreeve:portreeve-guard"]));
    let taken = json!({
        "volumes": ["hostPath", "projected"],
        "allowedCapabilities": [],
        "requiredDropCapabilities": ["ALL"],
        "runAsUser": {"type": "MustRunAs", "uid": 0},
        "seLinuxContext": {"type": "RunAsAny"},
        "allowHostPID": false,
        "allowPrivilegedContainer": false,
        "allowPrivilegeEscalation": false,
    });
    for (key, value) in taken.as_object().expect("keys") {
        assert_eq!(&allowed[key], value, "{key}");
    }
    let pod = &of(&added, "DaemonSet")["spec"]["template"]["spec"];
    assert_eq!(pod["containers"][0]["securityContext"]["seLinuxOptions"], json!({"type": "spc_t"}));
    let hooked = self::added(&[r#"guard={"enabled":true,"bind":"report"}"#, "openshift.enabled=true"]);
    let context = &of(&hooked, "DaemonSet")["spec"]["template"]["spec"]["containers"][0]["securityContext"];
    assert_eq!(of(&hooked, "SecurityContextConstraints")["allowedCapabilities"], context["capabilities"]["add"]);
}

#[test]
fn what_holds_for_all_pods_and_monitors_holds_for_its_own() {
    let set = [
        ON,
        r#"podLabels={"more":"1"}"#,
        r#"podAnnotations={"note":"2"}"#,
        "revisionHistoryLimit=3",
        r#"priorityClassName="high""#,
        r#"podMonitor={"enabled":true,"scrapeTimeout":"3s","metricRelabelings":[{"action":"drop"}],"labels":{"a":"b"}}"#,
    ];
    let added = added(&set);
    let of_agents = objects(&render(&set[1..]));
    let template = |objects: &[Value]| of(objects, "DaemonSet")["spec"]["template"].clone();
    let (guard, agent) = (template(&added), template(&of_agents));
    assert_eq!(
        (&guard["metadata"]["labels"]["more"], &guard["metadata"]["annotations"]["note"]),
        (&json!("1"), &json!("2"))
    );
    assert_eq!(of(&added, "DaemonSet")["spec"]["revisionHistoryLimit"], 3);
    for field in ["priorityClassName", "dnsPolicy", "nodeSelector", "affinity", "tolerations", "hostNetwork"] {
        assert_eq!(guard["spec"][field], agent["spec"][field], "{field}");
    }
    let (monitor, other) = (of(&added, "PodMonitor"), of(&of_agents, "PodMonitor"));
    assert_eq!(monitor["spec"]["podMetricsEndpoints"], other["spec"]["podMetricsEndpoints"]);
    assert_eq!(monitor["metadata"]["labels"]["a"], "b");
}
