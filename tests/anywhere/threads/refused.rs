//! The API server refuses a nodePort that is allocated, and does not name the Service that has the nodePort.

use portreeve_facts::Mode;

use super::{
    objects::{endpoints, served, service},
    served::Served,
    world::{World, proxy},
};

/// A Service whose `managedFields` show that a user's client set the nodePort.
fn chart(service: &str, port: &str, node_port: &str) -> World {
    let key = format!(r#"'k:{{"port":{port},"protocol":"TCP"}}': {{'f:nodePort': {{}}}}"#);
    let written = format!(
        "managedFields: [{{manager: helm, operation: Update, fieldsType: FieldsV1, \
         fieldsV1: {{'f:spec': {{'f:ports': {{{key}}}}}}}}}], uid:"
    );
    World::of(&[served(service, "NodePort", &format!("{port}:{node_port}/TCP"), "").replacen("uid:", &written, 1)])
}

/// Thread: 1Password/connect-helm-charts#22
/// Symptom: a chart has the fixed nodePort 31080, so the API server refuses a second installation
/// Says: `portreeve owner 31080 --refused` names the first Service; `node-port-range-mismatch/band` reports the risk
/// before the second installation
#[test]
fn connect_helm_charts_22() -> Served {
    let world = chart("dev/onepassword-connect", "8080", "31080");
    world
        .owner("31080 --refused")
        .names("node-port", "Service dev/onepassword-connect")
        .advises("another number, such as 30001");
    world
        .reports("node-port-range-mismatch/band", "info", "Service dev/onepassword-connect", "dev/onepassword-connect")
        .types(r#""value":30000"#)
}

/// Thread: istio/istio#6050
/// Symptom: an update adds a gateway with the fixed nodePort 31380, which another Service already has
/// Says: `portreeve owner 31380 --refused` names the other Service, a free number, and the command that moves the other
/// Service
#[test]
fn istio_6050() -> Served {
    World::of(&[served("shop/backend", "NodePort", "80:31380/TCP", "")])
        .owner("31380 --refused")
        .says("what to do if 31380/tcp seems closed: no process has to listen on a NodePort")
        .says("if the API server refuses 31380 to a Service: Service shop/backend has it as nodePort give the refused Service another")
        .names("node-port", "Service shop/backend")
        .advises("give the refused Service another number, such as 30001")
        .types("kubectl -n shop patch service backend")
}

/// Thread: kubecube-io/KubeCube#285
/// Symptom: a chart's fixed number 30080 is the NodePort of an older ingress
/// Says: `portreeve owner 30080 --refused` names the ingress, and a free number
#[test]
fn kubecube_285() -> Served {
    World::of(&[served("ingress-nginx/controller", "NodePort", "80:30080/TCP", "")])
        .owner("30080 --refused")
        .names("node-port", "Service ingress-nginx/controller")
        .advises("give the refused Service another number, such as 30001")
}

/// Thread: rancher/rancher#18989
/// Symptom: a nodePort that a person chose is allocated, and the message does not name the Service
/// Says: `portreeve owner 30500 --refused` names the Service that has the nodePort, and a free number
#[test]
fn rancher_18989() -> Served {
    World::of(&[served("other-project/app", "NodePort", "80:30500/TCP", "")])
        .owner("30500 --refused")
        .names("node-port", "Service other-project/app")
        .advises("give the refused Service another number, such as 30001")
}

/// Thread: karmada-io/karmada#1942
/// Symptom: a member cluster refuses a propagated Service, because the cluster's old copy has the nodePort
/// Says: `portreeve owner 30685 --refused` names the copy, and advises to change the copy instead of creating it
#[test]
fn karmada_1942() -> Served {
    World::of(&[served("default/serve", "NodePort", "80:30685/TCP", "")])
        .owner("30685 --refused")
        .names("node-port", "Service default/serve")
        .advises("if Service default/serve itself is refused, it exists already: change it instead of creating it")
}

/// A LoadBalancer Service. kube-proxy on this node answers the health check of the Service.
fn checked(service: &str, port: u16) -> World {
    let spec = format!("externalTrafficPolicy: Local\n  healthCheckNodePort: {port}");
    World::of(&[served(service, "LoadBalancer", "80:31500/TCP", &spec)]).listens(&format!("[::]:{port}"), proxy())
}

/// Thread: velero-io/velero#6376
/// Symptom: the API server refuses the healthCheckNodePort of a restored Service, which no list of NodePorts shows
/// Says: `portreeve owner 30591 --refused` names the Service that has the number for its health check, and the commands
/// that free the number
#[test]
fn velero_6376() -> Served {
    checked("upgrade/test-node-port", 30591)
        .owner("30591 --refused")
        .names("healthCheckNodePort", "Service upgrade/test-node-port")
        .types("kubectl -n upgrade patch service test-node-port")
}

/// Thread: velero-io/velero#3419
/// Symptom: the namespace was deleted, but the health check port of its load balancer is still allocated
/// Says: `portreeve owner 32100 --refused` names the Service that got the number meanwhile, and the commands that free
/// the number
#[test]
fn velero_3419() -> Served {
    checked("other/load-balancer", 32100)
        .owner("32100 --refused")
        .names("healthCheckNodePort", "Service other/load-balancer")
        .types("kubectl -n other patch service load-balancer")
}

/// Thread: velero-io/velero#1950
/// Symptom: the API server refuses a restored ingress gateway, because 30001 is allocated
/// Says: `portreeve owner 30001 --refused` names the Service that has the number, and a free number
#[test]
fn velero_1950() -> Served {
    World::of(&[served("istio-system/istio-ingressgateway", "NodePort", "80:30001/TCP", "")])
        .owner("30001 --refused")
        .names("node-port", "Service istio-system/istio-ingressgateway")
        .advises("give the refused Service another number, such as 30002")
}

/// Thread: velero-io/velero#2308
/// Symptom: the restore of a Service fails, because the Service still exists and has the number
/// Says: `portreeve owner 32555 --refused` names the Service, and advises to change the Service instead of creating it
#[test]
fn velero_2308() -> Served {
    World::of(&[served("nginx/nginx", "NodePort", "80:32555/TCP", "")])
        .owner("32555 --refused")
        .names("node-port", "Service nginx/nginx")
        .advises("if Service nginx/nginx itself is refused, it exists already: change it instead of creating it")
}

/// Thread: ansible/awx-operator#814
/// Symptom: an operator requests 30080, then 30081. Both are allocated, and only the operator's log may show the error
/// Says: `portreeve owner 30080 --refused` names the Service that has the number, and a free number
#[test]
fn awx_operator_814() -> Served {
    let world = World::of(&[served("shop/web", "NodePort", "80:30080/TCP,81:30081/TCP", "")]);
    world.owner("30081 --refused").names("node-port", "Service shop/web port p1").advises("such as 30002");
    world.owner("30080 --refused").names("node-port", "Service shop/web port p0").advises("such as 30002")
}

/// Thread: 5stackgg/5stack-panel#154
/// Symptom: the API server refuses a fixed nodePort, because another Service got this nodePort before, by chance
/// Says: `portreeve owner 30344 --refused` names the other Service, and a free number
#[test]
fn panel_154() -> Served {
    World::of(&[served("media/stream", "NodePort", "1935:30344/TCP", "")])
        .owner("30344 --refused")
        .names("node-port", "Service media/stream")
        .advises("give the refused Service another number, such as 30001")
}

/// Thread: kubernetes/kubernetes#132068
/// Symptom: a Service has a port at its cluster IP, and another Service has the same NodePort. Is this a conflict?
/// Says: `portreeve owner 31200` names the Service with the NodePort. The cluster IP is another address, so the two
/// Services do not conflict
#[test]
fn kubernetes_132068() -> Served {
    let inner = served("shop/inner", "ClusterIP", "31200/TCP", "").replace("10.96.0.10", "10.96.0.11");
    World::of(&[served("shop/outer", "NodePort", "80:31200/TCP", ""), inner])
        .mode(Mode::Ipvs)
        .owner("31200")
        .says("Service shop/inner at its cluster IP 10.96.0.11, which is another address: no conflict")
        .names("node-port", "Service shop/outer")
        .advises("connect to port 31200 of 192.0.2.1")
}

/// Thread: kubernetes/kubernetes#125167
/// Symptom: in ipvs mode, a NodePort with externalTrafficPolicy Local times out on a node without a pod, instead of
/// being refused
/// Says: `portreeve owner 31444` explains why remote clients time out, and names a node that answers and the policy for
/// all nodes
#[test]
fn kubernetes_125167() -> Served {
    let slice = endpoints("shop/elsewhere", 1, &["10.244.1.5@n2"]);
    let local = service("shop/elsewhere", "NodePort", "80:31444/TCP", "externalTrafficPolicy: Local");
    World::of(&[local + &slice])
        .mode(Mode::Ipvs)
        .owner("31444")
        .says("remote clients to 192.0.2.1, 192.0.2.2: connections time out, because of Service shop/elsewhere")
        .says("if remote clients time out: Service shop/elsewhere")
        .names("node-port", "Service shop/elsewhere")
        .advises("connect to a node that has one of these pods")
        .types("Cluster")
}
