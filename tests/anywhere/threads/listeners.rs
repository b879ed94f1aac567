//! A NodePort and a process use one port. Other threads are about ports that answer although `netstat` shows no
//! process.

use portreeve_facts::Mode;

use super::{
    objects::{api_server, host_pod, served, service},
    served::Served,
    world::{World, daemon, in_pod},
};

/// Thread: kubernetes/kubernetes#76892
/// Symptom: a Service gets nodePort 6443, and then a pod answers instead of the API server
/// Says: `listener-on-node-port/loses` names kube-apiserver and the Service, and `node-port-range-mismatch/daemons`
/// names the range
#[test]
fn kubernetes_76892() -> Served {
    let manifests = [api_server("6000-32767"), served("default/web", "NodePort", "80:6443/TCP", "")];
    let world = World::of(&manifests).listens("[::]:6443", daemon("kube-apiserver"));
    let reported = world
        .reports("listener-on-node-port/loses", "critical", "Service default/web", "kube-apiserver")
        .types("kubectl -n default patch service web");
    world
        .reports("node-port-range-mismatch/daemons", "warning", "Node n1", "kube-apiserver")
        .advises("--service-node-port-range");
    reported
}

/// Thread: www.sobyte.net/post/2022-06/node-port
/// Symptom: a server on the host's network listens and is healthy, but its clients reach the pods of a Service
/// Says: `listener-on-node-port/loses` names the pod, the Service and a free port
#[test]
fn sobyte_node_port() -> Served {
    let manifests = [host_pod("shop/server", &[30090]), served("default/web", "NodePort", "80:30090/TCP", "")];
    let world = World::of(&manifests).listens("0.0.0.0:30090", in_pod("uid-server", "server"));
    let reported = world
        .reports("listener-on-node-port/loses", "critical", "Service default/web", "shop/server")
        .types("kubectl -n default patch service web");
    world.listening(|socket| socket.local_port != 30090).is_silent("listener-on-node-port/loses");
    reported
}

/// Thread: openshift/baremetal-runtimecfg#175
/// Symptom: the platform's own load balancer listens on a port in 30000-32767, until a Service gets the port
/// Says: `listener-on-node-port/latent` while no Service has the port, and `listener-on-node-port/loses` after a
/// Service gets the port
#[test]
fn baremetal_runtimecfg_175() -> Served {
    let haproxy = || in_pod("uid-haproxy", "haproxy");
    let pod = host_pod("openshift-kni-infra/haproxy", &[]);
    let free = World::of(&[pod.clone(), served("default/web", "NodePort", "80:30080/TCP", "")]);
    free.listens("[::]:30936", haproxy())
        .reports("listener-on-node-port/latent", "info", "Node n1", "haproxy")
        .advises("off port 30936/tcp");
    let taken = World::of(&[pod, served("default/web", "NodePort", "80:30936/TCP", "")]);
    taken
        .listens("[::]:30936", haproxy())
        .reports("listener-on-node-port/loses", "critical", "Service default/web", "haproxy")
        .types("kubectl -n default patch service web")
}

/// Thread: kubernetes/kubernetes#115568
/// Symptom: a NodePort answers, although `netstat` does not show the port
/// Says: `portreeve owner 32000` names the Service and the address to use: no process has to listen
#[test]
fn kubernetes_115568() -> Served {
    World::of(&[served("default/helloworld", "NodePort", "8080:32000/TCP", "")])
        .owner("32000")
        .says("remote clients to 192.0.2.1, 192.0.2.2: a pod of ")
        .says("no process has to listen on a NodePort")
        .names("node-port", "Service default/helloworld")
        .advises("connect to port 32000 of 192.0.2.1")
}

/// Thread: k3s-io/k3s#8989
/// Symptom: no process listens on a nodePort, so people think that the Service is broken
/// Says: `portreeve owner 30080` names the Service, the address to use, and the command that lists the Service's pods
#[test]
fn k3s_8989() -> Served {
    let ask = |service: String| World::of(&[service]).owner("30080");
    let name = "Service default/nginx-service";
    ask(service("default/nginx-service", "NodePort", "80:30080/TCP", ""))
        .says("remote clients to 192.0.2.1, 192.0.2.2: connections are refused, because of Service ")
        .names("node-port", name)
        .types("kubectl -n default get endpointslices -l kubernetes.io/service-name=nginx-service");
    ask(served("default/nginx-service", "NodePort", "80:30080/TCP", ""))
        .says("remote clients to 192.0.2.1, 192.0.2.2: a pod of ")
        .names("node-port", name)
        .advises("connect to port 30080 of 192.0.2.1")
}

/// Thread: kubesphere/kubekey#1468
/// Symptom: since an upgrade, `netstat` no longer shows the NodePorts
/// Says: `portreeve owner 31005` names the Service and the address to use: no process has to listen
#[test]
fn kubekey_1468() -> Served {
    World::of(&[served("default/app", "NodePort", "80:31005/TCP", "")])
        .mode(Mode::Ipvs)
        .owner("31005")
        .says("31005/tcp, proxy mode ipvs")
        .says("no process has to listen on a NodePort")
        .names("node-port", "Service default/app")
        .advises("connect to port 31005 of 192.0.2.1")
}

/// Thread: cloudnativelabs/kube-router#357
/// Symptom: with ipvs, no process listens on the nodePort
/// Says: `portreeve owner 8099 --proxy-mode ipvs` names the Service, and the address to use
#[test]
fn kube_router_357() -> Served {
    let manifests = [api_server("8000-9000"), served("default/k8s-webapp-demo", "NodePort", "8088:8099/TCP", "")];
    World::of(&manifests)
        .without_kube_proxy()
        .said(Mode::Ipvs)
        .owner("8099")
        .says("no process has to listen on a NodePort")
        .names("node-port", "Service default/k8s-webapp-demo")
        .advises("connect to port 8099 of 192.0.2.1")
}
