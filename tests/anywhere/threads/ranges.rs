//! The kernel gives NodePorts to outgoing connections.

use portreeve_facts::{MasqueradePool, Mode, Protocol, Reading};

use super::{
    objects::{crashing, host_pod, of_daemon_set, own_pod, served, service},
    served::Served,
    world::{World, daemon, in_pod},
};

/// The command that reserves all NodePorts, and the ports of the kubelet and kube-proxy in the ephemeral range.
const RESERVE: &str = "sysctl -w net.ipv4.ip_local_reserved_ports=\"10249-10250,10256,30000-32767\"";

/// Thread: kubernetes/kubernetes#111682
/// Symptom: connections between control planes sometimes time out, because their source port is a NodePort
/// Says: `connection-on-port/answers-taken` names the process and the Service, and `ephemeral-range-overlap/node-ports`
/// names the range
#[test]
fn kubernetes_111682() -> Served {
    let world = World::of(&[served("fstest-gray/tomcat", "NodePort", "8080:31234/TCP", "")])
        .mode(Mode::Ipvs)
        .ephemeral("10000 65535", "")
        .hangs("192.0.2.1:31234", "192.0.2.9:6443", daemon("kubelet"));
    let reported = world
        .reports("connection-on-port/answers-taken", "critical", "Service fstest-gray/tomcat", "kubelet")
        .types(RESERVE);
    world.reports("ephemeral-range-overlap/node-ports", "critical", "Node n1", "ip_local_port_range").types(RESERVE);
    let mended = world.ephemeral("10000 65535", "10249-10250,10256,30000-32767");
    mended.is_silent("ephemeral-range-overlap/node-ports");
    reported
}

/// Thread: kubernetes/kops#6342
/// Symptom: an installer sets the ephemeral range `10240 65535`, which includes all NodePorts
/// Says: `ephemeral-range-overlap/node-ports` names the command that reserves the NodePorts
#[test]
fn kops_6342() -> Served {
    let world = World::of(&[service("default/web", "NodePort", "80:30080/TCP", "")]).ephemeral("10240 65535", "");
    let reported = world
        .reports("ephemeral-range-overlap/node-ports", "warning", "Node n1", "ip_local_port_range")
        .shows("ip_local_port_range", "10240-65535")
        .types(RESERVE);
    world.ephemeral("32768 60999", "").is_silent("ephemeral-range-overlap/node-ports");
    reported
}

/// Thread: awslabs/amazon-eks-ami#1307
/// Symptom: a wider ephemeral range includes NodePorts and the kubelet's port, and health checks fail. The node already
/// reserves other ports
/// Says: `ephemeral-range-overlap/node-ports` names a command that also keeps the reserved ports
#[test]
fn amazon_eks_ami_1307() -> Served {
    let world = World::of(&[service("default/web", "NodePort", "80:30080/TCP", "")]).ephemeral("1024 65000", "2703");
    let reported = world
        .reports("ephemeral-range-overlap/node-ports", "warning", "Node n1", "ip_local_port_range")
        .types("sysctl -w net.ipv4.ip_local_reserved_ports=\"2703,10249-10250,10256,30000-32767\"");
    world.ephemeral("1024 65000", "2703,10249-10250,10256,30000-32767").is_silent("ephemeral-range-overlap/node-ports");
    reported
}

/// Thread: rancher-archives/rke#893
/// Symptom: a container of the ingress controller sets the ephemeral range `1024 65535` on every node
/// Says: `ephemeral-range-overlap/node-ports` names the command that reserves the NodePorts
#[test]
fn rke_893() -> Served {
    let manifests =
        [host_pod("ingress-nginx/nginx", &[80, 443]), served("default/web", "NodePort", "80:30080/TCP", "")];
    let world = World::of(&manifests)
        .listens("0.0.0.0:80", in_pod("uid-nginx", "nginx"))
        .listens("0.0.0.0:443", in_pod("uid-nginx", "nginx"))
        .ephemeral("1024 65535", "");
    world
        .reports("ephemeral-range-overlap/node-ports", "warning", "Node n1", "ip_local_port_range")
        .types(RESERVE)
        .types("sysctl -w net.ipv4.ip_local_port_range")
}

/// Thread: learn.microsoft.com/en-us/azure/aks/custom-node-configuration
/// Symptom: the ephemeral range `32000 60000` in a vendor's example includes 768 NodePorts
/// Says: `ephemeral-range-overlap/node-ports` names the ports in both ranges
#[test]
fn aks_custom_node_configuration() -> Served {
    let world = World::of(&[served("default/web", "NodePort", "80:30080/TCP", "")]).ephemeral("32000 60000", "");
    let reported = world
        .reports("ephemeral-range-overlap/node-ports", "warning", "Node n1", "ip_local_port_range")
        .types("sysctl -w net.ipv4.ip_local_reserved_ports=\"30000-32767\"");
    world.ephemeral("32768 60000", "").is_silent("ephemeral-range-overlap/node-ports");
    reported
}

/// Thread: onedr0p/home-ops#11712
/// Symptom: the ephemeral range begins at 1024, and only NodePorts are reserved. A connection gets the port of a
/// storage daemon, which is down for six hours
/// Says: `ephemeral-range-overlap/servers` lists the known ports of servers, and a range without these ports
#[test]
fn home_ops_11712() -> Served {
    let storage = host_pod("storage/replicator", &[7000]);
    let world = World::of(&[storage, served("default/web", "NodePort", "80:30080/TCP", "")])
        .listens("0.0.0.0:7000", in_pod("uid-replicator", "replicator"));
    let reported = world
        .clone()
        .ephemeral("1024 65535", "30000-32767")
        .reports("ephemeral-range-overlap/servers", "warning", "Node n1", "ip_local_port_range")
        .types("sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\"");
    world.ephemeral("32768 60999", "").is_silent("ephemeral-range-overlap/servers");
    reported
}

/// Thread: hcloud-k8s/terraform-hcloud-kubernetes#473
/// Symptom: a cloud controller on the host's network crash-loops, because the API server's connection to a webhook has
/// the controller's port
/// Says: `connection-on-port/blocks` names the API server's pod, and the command that adds the port to the reserved
/// ports; `owner 50258` lists the connection. The result is unknown if nothing shows who opened the connection
#[test]
fn terraform_hcloud_kubernetes_473() -> Served {
    let rule = "connection-on-port/blocks";
    let api = host_pod("kube-system/apiserver", &[6443]);
    let controller = of_daemon_set("ccm", &crashing(&host_pod("kube-system/ccm", &[50258])));
    let world = |controller: &str| {
        World::of(&[api.clone(), controller.to_owned()])
            .ephemeral("32768 60999", "50000-50001")
            .listens("0.0.0.0:6443", in_pod("uid-apiserver", "apiserver"))
    };
    let incident =
        world(&controller).connects("192.0.2.1:50258", "192.0.2.9:8443", in_pod("uid-apiserver", "apiserver"));
    incident.owner("50258").says("kube-system/apiserver");
    let reported = incident
        .reports(rule, "warning", "Pod kube-system/ccm", "kube-system/apiserver")
        .shows("socket", "tcp ESTAB 192.0.2.1:50258 -> 192.0.2.9:8443")
        .types("sysctl -w net.ipv4.ip_local_reserved_ports=\"50000-50001,50258\"");
    // The finding does not change if the webhook listens on a port in the ephemeral range.
    world(&controller).connects("192.0.2.1:50258", "192.0.2.9:40123", in_pod("uid-apiserver", "apiserver")).reports(
        rule,
        "warning",
        "Pod kube-system/ccm",
        "kube-system/apiserver",
    );
    world(&controller).connects("192.0.2.1:50258", "192.0.2.9:40123", daemon("agentd")).is_silent(rule);
    world(&controller).connects("192.0.2.1:50258", "192.0.2.9:40123", in_pod("uid-ccm", "ccm")).is_silent(rule);
    world(&host_pod("kube-system/ccm", &[50258]))
        .connects("192.0.2.1:50258", "192.0.2.9:8443", in_pod("uid-apiserver", "apiserver"))
        .is_silent(rule);
    reported
}

/// Thread: cilium/cilium#36754
/// Symptom: an exporter on the host's network crash-loops, because a connection of Cilium's agent has the exporter's
/// port. The ephemeral range begins at 1024
/// Says: `connection-on-port/blocks` names the pod that has the connection, and the port to reserve; no finding for
/// connections that the exporter accepted
#[test]
fn cilium_36754() -> Served {
    let rule = "connection-on-port/blocks";
    let exporter = crashing(&host_pod("metrics/exporter", &[9100]));
    let world = World::of(&[exporter, host_pod("kube-system/network-agent", &[])]).ephemeral("1024 65535", "");
    let reported = world
        .clone()
        .connects("192.0.2.1:9100", "192.0.2.9:4240", in_pod("uid-network-agent", "agent"))
        .reports(rule, "warning", "Pod metrics/exporter", "kube-system/network-agent")
        .types("sysctl -w net.ipv4.ip_local_reserved_ports=\"9100,");
    world.connects("192.0.2.1:9100", "192.0.2.9:41240", in_pod("uid-exporter", "exporter")).is_silent(rule);
    reported
}

/// Thread: github.com/mumoshu/kube-node-init
/// Symptom: a DaemonSet that prepares nodes lets outgoing connections use every port from 1024
/// Says: `ephemeral-range-overlap/node-ports` names a command that reserves the NodePorts and keeps the reserved ports
#[test]
fn kube_node_init() -> Served {
    let world = World::of(&[service("media/stream", "NodePort", "80:30344/TCP", "")]);
    world.clone().ephemeral("33000 65535", "").is_silent("ephemeral-range-overlap/node-ports");
    world
        .ephemeral("1024 65535", "5000-5009")
        .reports("ephemeral-range-overlap/node-ports", "warning", "Node n1", "ip_local_port_range")
        .types("sysctl -w net.ipv4.ip_local_reserved_ports=\"5000-5009,10249-10250,10256,30000-32767\"")
}

/// Thread: www.michal-drozd.com/en/blog/ephemeral-port-exhaustion-kubernetes
/// Symptom: the pods of one node cannot reach one server, and the pods of other nodes can
/// Says: `masquerade-source-ports/pool` names the destination, and the pods that use nearly all source ports
#[test]
fn ephemeral_port_exhaustion_kubernetes() -> Served {
    let rule = "masquerade-source-ports/pool";
    let world = |used: u32| {
        World::of(&[own_pod("crawl/fetch", &[9000])]).with(|it| {
            it.kernel.masquerade_pools = Reading::Seen(vec![MasqueradePool {
                protocol: Protocol::Tcp,
                translated: "192.0.2.1".parse().expect("an address"),
                server: ("203.0.113.40".parse().expect("an address"), 443),
                used,
                ports: "1024-65535".parse().expect("ports"),
                moved: used / 2,
                senders: vec![("10.244.0.9".parse().expect("an address"), used)],
            }]);
        })
    };
    world(40_000).is_silent(rule);
    world(64_400)
        .reports(rule, "critical", "Node n1", "pod crawl/fetch")
        .shows("source ports used", "64400 of 64512")
        .advises("make the programs reuse connections")
}
