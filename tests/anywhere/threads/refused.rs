//! The API server refuses a number that is allocated, and does not say to whom.

use super::{
    objects::served,
    world::{World, proxy},
};

/// The Service of a chart that has its number written into it, as whoever applied it owns that field.
fn chart(service: &str, port: &str, node_port: &str) -> World {
    let key = format!(r#"'k:{{"port":{port},"protocol":"TCP"}}': {{'f:nodePort': {{}}}}"#);
    let written = format!(
        "managedFields: [{{manager: helm, operation: Update, fieldsType: FieldsV1, \
         fieldsV1: {{'f:spec': {{'f:ports': {{{key}}}}}}}}}], uid:"
    );
    World::of(&[served(service, "NodePort", &format!("{port}:{node_port}/TCP"), "").replacen("uid:", &written, 1)])
}

/// Thread: 1Password/connect-helm-charts#22
/// Symptom: a chart has 31080 written into it: the second namespace that installs it is refused
/// Says: `portreeve owner 31080` names the first; `fixed-node-port-in-dynamic-band` said before that the number is a risk
#[test]
fn connect_helm_charts_22() {
    let world = chart("dev/onepassword-connect", "8080", "31080");
    assert!(world.owner("31080").contains("node-port, Service dev/onepassword-connect"));
    world
        .tells("fixed-node-port-in-dynamic-band", "info", "Service dev/onepassword-connect", "31080")
        .types(r#""value":30000"#);
}

/// Thread: istio/istio#6050
/// Symptom: an update brings a gateway with the written number 31380, which some other Service was given before
/// Says: `portreeve owner 31380` names that Service
#[test]
fn istio_6050() {
    let said = World::of(&[served("shop/backend", "NodePort", "80:31380/TCP", "")]).owner("31380");
    assert!(said.contains("node-port, Service shop/backend"), "{said}");
}

/// Thread: kubecube-io/KubeCube#285
/// Symptom: a chart's written 30080 is the NodePort of the ingress that was there before
/// Says: `portreeve owner 30080` names the ingress
#[test]
fn kubecube_285() {
    let said = World::of(&[served("ingress-nginx/controller", "NodePort", "80:30080/TCP", "")]).owner("30080");
    assert!(said.contains("node-port, Service ingress-nginx/controller"), "{said}");
}

/// Thread: rancher/rancher#18989
/// Symptom: a number that a person chose is allocated, and the message does not say to whom
/// Says: `portreeve owner 30500` names the Service that has it
#[test]
fn rancher_18989() {
    let said = World::of(&[served("other-project/app", "NodePort", "80:30500/TCP", "")]).owner("30500");
    assert!(said.contains("node-port, Service other-project/app"), "{said}");
}

/// Thread: karmada-io/karmada#1942
/// Symptom: the Service that is propagated to a member cluster is refused for a number that its own copy has there
/// Says: `portreeve owner 30685` names that copy
#[test]
fn karmada_1942() {
    let said = World::of(&[served("default/serve", "NodePort", "80:30685/TCP", "")]).owner("30685");
    assert!(said.contains("node-port, Service default/serve"), "{said}");
}

/// A LoadBalancer whose health check kube-proxy serves on this node.
fn checked(service: &str, port: u16) -> World {
    let spec = format!("externalTrafficPolicy: Local\n  healthCheckNodePort: {port}");
    World::of(&[served(service, "LoadBalancer", "80:31500/TCP", &spec)]).listens(&format!("[::]:{port}"), proxy())
}

/// Thread: velero-io/velero#6376
/// Symptom: a restore is refused for its healthCheckNodePort, which no list of NodePorts shows
/// Says: `portreeve owner 30591` names the Service whose health check it is
#[test]
fn velero_6376() {
    let said = checked("upgrade/test-node-port", 30591).owner("30591");
    assert!(said.contains("health check of Service upgrade/test-node-port"), "{said}");
}

/// Thread: velero-io/velero#3419
/// Symptom: the namespace was deleted, and yet the health check port of its load balancer is allocated
/// Says: `portreeve owner 32100` names the Service that was given the number meanwhile
#[test]
fn velero_3419() {
    let said = checked("other/load-balancer", 32100).owner("32100");
    assert!(said.contains("health check of Service other/load-balancer"), "{said}");
}

/// Thread: velero-io/velero#1950
/// Symptom: a restored ingress gateway is refused: 30001 is allocated
/// Says: `portreeve owner 30001` names the Service that has it
#[test]
fn velero_1950() {
    let world = World::of(&[served("istio-system/istio-ingressgateway", "NodePort", "80:30001/TCP", "")]);
    let said = world.owner("30001");
    assert!(said.contains("node-port, Service istio-system/istio-ingressgateway"), "{said}");
}

/// Thread: velero-io/velero#2308
/// Symptom: a restore over a Service that still exists fails for the number that this Service has
/// Says: `portreeve owner 32555` names the Service: it is the same
#[test]
fn velero_2308() {
    let said = World::of(&[served("nginx/nginx", "NodePort", "80:32555/TCP", "")]).owner("32555");
    assert!(said.contains("node-port, Service nginx/nginx"), "{said}");
}
