//! A pod has no node, because another pod has its hostPort.

use super::{
    objects::{host_pod, pending, pod_with_host_ports, service, service_lb},
    served::Served,
    world::World,
};

/// Two LoadBalancer Services with port 80 on a node of k3s. ServiceLB can serve only the first of the two Services.
fn two_services(first: &str, second: &str) -> World {
    let pod = |name: &str| pod_with_host_ports(&format!("kube-system/svclb-{name}"), &[80]);
    World::of(&[
        service(first, "LoadBalancer", "80:31080/TCP", ""),
        service(second, "LoadBalancer", "80:31081/TCP", ""),
        service_lb(first, &pod("first")),
        service_lb(second, &pending(&pod("second"))),
    ])
}

/// Thread: k3s-io/k3s#1969
/// Symptom: the pods of ServiceLB stay Pending, and a Service has no address: another Service has the port on every
/// node
/// Says: `pod-waits-for-port/pod` names the Service without an address, the port, and the Service that has the port
#[test]
fn k3s_1969() -> Served {
    two_services("kube-system/traefik", "default/web")
        .reports("pod-waits-for-port/pod", "warning", "Service default/web", "that of Service kube-system/traefik")
        .advises("give Service default/web another port than 80/tcp")
}

/// Thread: k3s-io/k3s#2270
/// Symptom: two of several LoadBalancer Services never get an address, and no message explains why
/// Says: `pod-waits-for-port/pod` reports each of the two Services
#[test]
fn k3s_2270() -> Served {
    two_services("default/first", "default/second")
        .reports("pod-waits-for-port/pod", "warning", "Service default/second", "Service default/first")
        .advises("svccontroller.k3s.cattle.io/lbpool")
}

/// Thread: traefik/traefik-helm-chart#732
/// Symptom: a second ingress controller is installed beside the controller of k3s. ServiceLB's pod for the second
/// controller stays Pending: *didn't have free ports for the requested pod ports*
/// Says: `pod-waits-for-port/pod` names the controller of k3s
#[test]
fn traefik_helm_chart_732() -> Served {
    two_services("kube-system/traefik", "traefik-system/traefik")
        .reports("pod-waits-for-port/pod", "warning", "Service traefik-system/traefik", "Service kube-system/traefik")
        .shows("which serves", "Service kube-system/traefik")
        .advises("give Service traefik-system/traefik another port than 80/tcp")
}

/// Thread: loculus-project/loculus#4203
/// Symptom: a LoadBalancer Service stays without an address, because a pod has the Service's port as hostPort
/// Says: `pod-waits-for-port/pod` names the pod
#[test]
fn loculus_4203() -> Served {
    let waits = pending(&pod_with_host_ports("kube-system/svclb-web", &[8080]));
    World::of(&[
        service("default/web", "LoadBalancer", "8080:31080/TCP", ""),
        pod_with_host_ports("default/ingress", &[8080]),
        service_lb("default/web", &waits),
    ])
    .reports("pod-waits-for-port/pod", "warning", "Service default/web", "in the hands of pod default/ingress")
    .advises("give Service default/web another port than 8080/tcp")
}

/// Thread: liqotech/liqo#2370
/// Symptom: a gateway on the host's network stays Pending, because the load balancer of its own Service has the port
/// Says: `pod-waits-for-port/pod` names the Service whose load balancer has the port
#[test]
fn liqo_2370() -> Served {
    let balancer = pod_with_host_ports("kube-system/svclb-liqo-gateway", &[5871]);
    World::of(&[
        service("liqo/liqo-gateway", "LoadBalancer", "5871:31587/TCP", ""),
        service_lb("liqo/liqo-gateway", &balancer),
        pending(&host_pod("liqo/liqo-gateway-65bb", &[5871])),
    ])
    .reports("pod-waits-for-port/pod", "warning", "Pod liqo/liqo-gateway-65bb", "Service liqo/liqo-gateway")
    .shows("which serves", "Service liqo/liqo-gateway")
    .advises("give Service liqo/liqo-gateway another port than 5871/tcp")
}

fn two_pods(port: u16) -> World {
    let [holder, waits] = ["default/holder", "default/waits"].map(|name| pod_with_host_ports(name, &[port]));
    World::of(&[holder, pending(&waits)])
}

/// Thread: kubernetes/kubernetes#134057
/// Symptom: the scheduler reports that a node has no free ports, but names neither the port nor the pod that has it
/// Says: `pod-waits-for-port/pod` names the port and the pod
#[test]
fn kubernetes_134057() -> Served {
    two_pods(8085)
        .reports("pod-waits-for-port/pod", "warning", "Pod default/waits", "pod default/holder")
        .advises("give pod default/waits another port")
}

/// Thread: kubernetes/kubernetes#112522
/// Symptom: a pod waits for its hostPort, although no process listens on the port
/// Says: `pod-waits-for-port/pod` names the pod that has the hostPort: a hostPort needs no socket
#[test]
fn kubernetes_112522() -> Served {
    let world = two_pods(9000).listening(|socket| socket.local_port != 9000);
    world
        .reports("pod-waits-for-port/pod", "warning", "Pod default/waits", "default/holder")
        .advises("give pod default/waits another port")
}

/// Thread: scylladb/scylla-operator#3089
/// Symptom: the exporter of a database on the host's network and the exporter of a DaemonSet both need port 9100
/// Says: `pod-waits-for-port/pod` names the pod of the DaemonSet
#[test]
fn scylla_operator_3089() -> Served {
    World::of(&[host_pod("monitoring/node-exporter", &[9100]), pending(&host_pod("scylla/scylla-0", &[9042, 9100]))])
        .reports("pod-waits-for-port/pod", "warning", "Pod scylla/scylla-0", "pod monitoring/node-exporter")
        .advises("give pod scylla/scylla-0 another port")
}

/// Thread: kubernetes-sigs/azurefile-csi-driver#1880
/// Symptom: an update of a controller on the host's network waits forever: each new pod needs the port of an old pod
/// Says: `pod-waits-for-port/pod` names the old pod of the same workload, and the strategy that ends the old pod first
#[test]
fn azurefile_csi_driver_1880() -> Served {
    let of_set = |hash: &str, pod: &str| {
        let owner =
            format!("metadata: {{ownerReferences: [{{kind: ReplicaSet, name: files-{hash}, controller: true}}], ");
        pod.replacen("metadata: {", &owner, 1)
    };
    let old = of_set("7d4f9b6c58", &host_pod("storage/files-old", &[29712]));
    let new = of_set("6c8d5f7b94", &pending(&host_pod("storage/files-new", &[29712])));
    World::of(&[old.clone(), new.replace("29712", "29713")]).is_silent("pod-waits-for-port/pod");
    World::of(&[old, new])
        .reports("pod-waits-for-port/pod", "warning", "Pod storage/files-new", "pod storage/files-old")
        .advises("delete the old pod first")
}
