//! The facts that Portreeve reads from workloads: the ports of a workload, and the nodes on which it can run.

use portreeve_facts::Protocol;

use crate::manifests::facts_of;

#[test]
fn of_workloads_the_ports_of_nodes_are_kept() {
    let workload = |kind: &str, name: &str, spec: &str| {
        format!(
            "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{template: {{spec: {spec}}}}}\n---\n"
        )
    };
    let facts = facts_of(&[[
        workload(
            "DaemonSet",
            "a",
            "{containers: [{ports: [{containerPort: 80, hostPort: 8080, protocol: UDP}, {containerPort: 81}]}]}",
        ),
        workload("Deployment", "b", "{hostNetwork: true, containers: [{ports: [{containerPort: 82}]}]}"),
        workload("StatefulSet", "c", "{containers: [{ports: [{containerPort: 83}]}]}"),
        workload("ReplicaSet", "d", "{containers: [{ports: [{containerPort: 84, hostPort: 84}]}]}"),
        "kind: List\nitems: []\n".to_owned(),
    ]
    .concat()]);
    assert_eq!(facts.rejected, []);
    let kept =
        facts.workloads.iter().map(|it| (it.to_string(), it.host_network, it.ports[0].port, it.ports[0].host_port));
    let expected = [
        ("DaemonSet default/a".to_owned(), false, 80, Some(8080)),
        ("Deployment default/b".to_owned(), true, 82, None),
    ];
    assert_eq!(kept.collect::<Vec<_>>(), expected);
    assert_eq!((facts.workloads[0].ports.len(), facts.workloads[0].ports[0].protocol), (1, Protocol::Udp));
    let idle = |kind: &str, replicas: &str, desired: &str| {
        let object = workload(kind, "idle", "{containers: [{ports: [{containerPort: 80, hostPort: 80}]}]}");
        let object = object.replace("spec: {template", &format!("status: {{{desired}}}\nspec: {{{replicas}template"));
        facts_of(&[object]).workloads.len()
    };
    assert_eq!([idle("Deployment", "replicas: 0, ", ""), idle("Deployment", "replicas: 1, ", "")], [0, 1]);
    let desired = |number| format!("desiredNumberScheduled: {number}");
    assert_eq!([idle("DaemonSet", "", &desired(0)), idle("DaemonSet", "", &desired(1))], [0, 1]);
    assert_eq!(idle("StatefulSet", "", &desired(0)), 1, "that is a DaemonSet's word");
    let broken = facts_of(&[workload("DaemonSet", "a", "{containers: [{ports: [{containerPort: x, hostPort: 80}]}]}")]);
    let [rejected, ..] = &broken.rejected[..] else { panic!("{:?}", broken.rejected) };
    assert!(rejected.detail.contains("DaemonSet a: spec.template.spec.containers[0].ports[0]"), "{}", rejected.detail);
}

#[test]
fn a_workload_for_windows_wants_no_port_of_a_linux_node() {
    let wants = |more: &str| {
        let object = format!(
            "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {{name: a}}\nspec: {{template: {{spec: {{{more}containers: \
             [{{ports: [{{containerPort: 80, hostPort: 80}}]}}]}}}}}}\n"
        );
        !facts_of(&[object]).workloads.is_empty()
    };
    let affinity = |values: &str| {
        let term = format!("{{matchExpressions: [{{key: kubernetes.io/os, operator: In, values: [{values}]}}]}}");
        let required = format!("requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{term}]}}");
        format!("affinity: {{nodeAffinity: {{{required}}}}}, ")
    };
    assert!(!wants("nodeSelector: {kubernetes.io/os: windows}, "));
    assert!(!wants("nodeSelector: {beta.kubernetes.io/os: windows, pool: a}, "));
    assert!(!wants(&affinity("windows")));
    assert!(wants("nodeSelector: {kubernetes.io/os: linux}, ") && wants(&affinity("linux, windows")) && wants(""));
}

#[test]
fn of_a_workload_the_nodes_are_kept_for_which_it_is_meant() {
    let nodes = |more: &str| {
        let object = format!(
            "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {{name: a}}\nspec: {{template: {{spec: {{{more}containers: \
             [{{ports: [{{containerPort: 80, hostPort: 80}}]}}]}}}}}}\n"
        );
        let facts = facts_of(&[object]);
        let Some(workload) = facts.workloads.first() else { return Default::default() };
        (workload.selects.join(";"), workload.avoids.join(";"), workload.tolerates.join(";"))
    };
    let selects = |more: &str| nodes(more).0;
    assert_eq!(selects(""), "");
    assert_eq!(selects("nodeSelector: {}, "), "");
    assert_eq!(selects("nodeSelector: {kubernetes.io/os: linux, beta.kubernetes.io/os: linux}, "), "");
    assert_eq!(selects("nodeSelector: {pool: a, kubernetes.io/os: linux, disk: ssd}, "), "disk In ssd;pool In a");
    let affinity = |kind: &str, terms: &str| {
        let (selects, avoids, _) =
            nodes(&format!("affinity: {{nodeAffinity: {{{kind}: {{nodeSelectorTerms: [{terms}]}}}}}}, "));
        (selects, avoids)
    };
    let required = |terms: &str| affinity("requiredDuringSchedulingIgnoredDuringExecution", terms);
    let term = |key: &str, operator: &str, values: &str| {
        format!("{{matchExpressions: [{{key: {key}, operator: {operator}, values: [{values}]}}]}}")
    };
    let both = |one: &str, other: &str| (one.to_owned(), other.to_owned());
    assert_eq!(required(&term("type", "NotIn", "fargate")), both("", "type NotIn fargate"));
    assert_eq!(required(&term("gpu", "DoesNotExist", "")), both("", "gpu DoesNotExist "));
    assert_eq!(required(&term("pool", "In", "b, a")), both("pool In a,b", ""));
    assert_eq!(required(&term("kubernetes.io/os", "In", "linux")), both("", ""));
    let either = [term("pool", "In", "a"), term("type", "NotIn", "fargate")].join(", ");
    assert_eq!(required(&either), both("pool In a or type NotIn fargate", ""));
    assert_eq!(affinity("preferredDuringSchedulingIgnoredDuringExecution", &either), both("", ""));
    let tolerations = "tolerations: [{key: pool, operator: Equal, value: a, effect: NoSchedule}, {operator: Exists}], ";
    assert_eq!(nodes(tolerations).2, " Exists  ;pool Equal a NoSchedule");
}

#[test]
fn of_a_service_port_the_number_is_kept_to_which_it_sends() {
    let of = |selector: &str, port: &str| {
        let spec = format!("spec: {{type: NodePort, {selector}ports: [{{port: 443, nodePort: 30443{port}}}]}}");
        let object = format!("apiVersion: v1\nkind: Service\nmetadata: {{name: edge, namespace: d}}\n{spec}\n");
        facts_of(&[object]).services.get().expect("services")[0].ports[0].target
    };
    let target = |port: &str| of("selector: {app: edge}, ", port);
    assert_eq!(of("", ", targetPort: 30443"), None, "whoever writes its EndpointSlices chooses");
    assert_eq!(target(", targetPort: 30443"), Some(30443));
    assert_eq!(target(""), Some(443));
    assert_eq!(target(", targetPort: https"), None, "a name");
}
