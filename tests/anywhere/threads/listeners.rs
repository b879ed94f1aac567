//! A NodePort and a process want one port, and who answers on a port where `netstat` shows nobody.

use portreeve::facts::Mode;

use super::{
    objects::{api_server, host_pod, served, service},
    world::{World, daemon, in_pod},
};

/// Thread: kubernetes/kubernetes#76892
/// Symptom: a Service gets nodePort 6443, and from then on a pod answers for the API server
/// Says: `listener-on-node-port` names kube-apiserver and the Service, `node-port-range-covers-daemons` the range
#[test]
fn kubernetes_76892() {
    let manifests = [api_server("6000-32767"), served("default/web", "NodePort", "80:6443/TCP", "")];
    let world = World::of(&manifests).listens("[::]:6443", daemon("kube-apiserver"));
    world
        .tells("listener-on-node-port", "critical", "Service default/web", "kube-apiserver")
        .types("kubectl -n default patch service web");
    world.tells("node-port-range-covers-daemons", "warning", "Node n1", "6000-32767");
}

/// Thread: www.sobyte.net/post/2022-06/node-port
/// Symptom: a server on the host's network is bound and healthy, and its clients reach another Service's pods
/// Says: `listener-on-node-port` names the pod, the Service and a free port
#[test]
fn sobyte_node_port() {
    let manifests = [host_pod("shop/server", &[30090]), served("default/web", "NodePort", "80:30090/TCP", "")];
    let world = World::of(&manifests).listens("0.0.0.0:30090", in_pod("uid-server", "server"));
    world
        .tells("listener-on-node-port", "critical", "Service default/web", "shop/server")
        .types("kubectl -n default patch service web");
    world.listening(|socket| socket.local_port != 30090).is_silent("listener-on-node-port");
}

/// Thread: openshift/baremetal-runtimecfg#175
/// Symptom: a load balancer of the platform itself listens inside of 30000-32767, until some Service gets its port
/// Says: `listener-in-node-port-range` while the port is free, `listener-on-node-port` from the day it is not
#[test]
fn baremetal_runtimecfg_175() {
    let haproxy = || in_pod("uid-haproxy", "haproxy");
    let pod = host_pod("openshift-kni-infra/haproxy", &[]);
    let free = World::of(&[pod.clone(), served("default/web", "NodePort", "80:30080/TCP", "")]);
    free.listens("[::]:30936", haproxy()).tells("listener-in-node-port-range", "info", "Node n1", "haproxy");
    let taken = World::of(&[pod, served("default/web", "NodePort", "80:30936/TCP", "")]);
    taken.listens("[::]:30936", haproxy()).tells("listener-on-node-port", "critical", "Service default/web", "haproxy");
}

/// Thread: kubernetes/kubernetes#115568
/// Symptom: the NodePort answers, and `netstat` shows no such port
/// Says: `portreeve owner 32000` names the Service, its pods, and who gets an answer from where
#[test]
fn kubernetes_115568() {
    let said = World::of(&[served("default/helloworld", "NodePort", "8080:32000/TCP", "")]).owner("32000");
    assert!(said.contains("node-port, Service default/helloworld"), "{said}");
    assert!(said.contains("remote clients to 192.0.2.1, 192.0.2.2: a pod of 1"), "{said}");
}

/// Thread: k3s-io/k3s#8989
/// Symptom: nothing listens on the nodePort of the manifest, so it is taken for broken
/// Says: `portreeve owner 30080` names the Service, and says where there is no pod to answer
#[test]
fn k3s_8989() {
    let said = World::of(&[service("default/nginx-service", "NodePort", "80:30080/TCP", "")]).owner("30080");
    assert!(said.contains("node-port, Service default/nginx-service"), "{said}");
    assert!(
        said.contains("remote clients to 192.0.2.1, 192.0.2.2: nobody, by 1: it is refused"),
        "without endpoints: {said}"
    );
    let said = World::of(&[served("default/nginx-service", "NodePort", "80:30080/TCP", "")]).owner("30080");
    assert!(said.contains("remote clients to 192.0.2.1, 192.0.2.2: a pod of 1"), "{said}");
}

/// Thread: kubesphere/kubekey#1468
/// Symptom: since an upgrade, `netstat` does not show the NodePorts any more
/// Says: `portreeve owner 31005` names the Service: kube-proxy holds no ports since 1.24
#[test]
fn kubekey_1468() {
    let said = World::of(&[served("default/app", "NodePort", "80:31005/TCP", "")]).mode(Mode::Ipvs).owner("31005");
    assert!(said.contains("31005/tcp, proxy mode ipvs") && said.contains("Service default/app"), "{said}");
}

/// Thread: cloudnativelabs/kube-router#357
/// Symptom: with ipvs, no process listens on the nodePort
/// Says: `portreeve owner 8099 --proxy-mode ipvs` names the Service and the endpoint
#[test]
fn kube_router_357() {
    let manifests = [api_server("8000-9000"), served("default/k8s-webapp-demo", "NodePort", "8088:8099/TCP", "")];
    let said = World::of(&manifests).without_kube_proxy().said(Mode::Ipvs).owner("8099");
    assert!(said.contains("Service default/k8s-webapp-demo") && said.contains("a pod of 1"), "{said}");
}
