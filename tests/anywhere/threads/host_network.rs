//! A pod in the host's network cannot listen on its port.

use super::{
    objects::{crashing, host_pod, probed},
    served::Served,
    world::{World, daemon, in_pod, in_unit},
};

fn blocked(name: &str, ports: &[u16]) -> World {
    World::of(&[crashing(&host_pod(name, ports))])
}

/// Thread: awslabs/amazon-eks-ami#2631
/// Symptom: by chance, containerd has the port that an add-on on the host's network needs. The add-on crash-loops, and
/// the node becomes NotReady
/// Says: `host-network-port-taken/listener` names containerd, the pod, and the command that reserves the port
#[test]
fn amazon_eks_ami_2631() -> Served {
    blocked("kube-system/efs-csi-node", &[9809])
        .ephemeral("1024 65535", "")
        .listens("127.0.0.1:9809", daemon("containerd"))
        .reports("host-network-port-taken/listener", "warning", "Pod kube-system/efs-csi-node", "containerd")
        .types("sysctl -w net.ipv4.ip_local_reserved_ports=\"9809,")
}

/// Thread: prometheus/node_exporter#1115
/// Symptom: an exporter crash-loops on a new node, because another exporter has the port
/// Says: `host-network-port-taken/listener` names the pod that has the port
#[test]
fn node_exporter_1115() -> Served {
    World::of(&[host_pod("other/node-exporter", &[]), crashing(&host_pod("monitoring/exporter", &[9100]))])
        .listens("[::]:9100", in_pod("uid-node-exporter", "node_exporter"))
        .reports("host-network-port-taken/listener", "warning", "Pod monitoring/exporter", "other/node-exporter")
        .advises("move pod other/node-exporter off port 9100/tcp")
}

/// Thread: prometheus-community/helm-charts#2248
/// Symptom: an operator on the host's network needs 10250, the kubelet's port
/// Says: `host-network-port-taken/listener` names the kubelet and the pod, even if only a probe names the port
#[test]
fn helm_charts_2248() -> Served {
    let operator = "monitoring/prometheus-operator";
    let reports = |world: World| {
        let (rule, subject) = ("host-network-port-taken/listener", "Pod monitoring/prometheus-operator");
        world
            .reports(rule, "warning", subject, "kubelet")
            .advises("give pod monitoring/prometheus-operator another port")
    };
    reports(World::of(&[crashing(&probed(operator, 10250))]));
    reports(blocked(operator, &[10250]))
}

/// Thread: silogen/cluster-forge#739
/// Symptom: the operating system already runs an exporter, so the exporter of a DaemonSet crash-loops
/// Says: `host-network-port-taken/listener` names the process; no finding after the process ended
#[test]
fn cluster_forge_739() -> Served {
    let world = blocked("otel/node-exporter", &[9100]);
    let taken = world.clone().listens("[::]:9100", daemon("prometheus-node-exporter"));
    let reported = taken
        .reports("host-network-port-taken/listener", "warning", "Pod otel/node-exporter", "prometheus-node-exporter")
        .advises("off port 9100/tcp");
    world.is_silent("host-network-port-taken/listener");
    reported
}

/// Thread: metallb/metallb#581
/// Symptom: MetalLB's speaker cannot listen on port 7946, because Docker's own cluster has the port
/// Says: `host-network-port-taken/listener` names dockerd and the pod
#[test]
fn metallb_581() -> Served {
    blocked("metallb-system/speaker", &[7946])
        .listens("[::]:7946", daemon("dockerd"))
        .reports("host-network-port-taken/listener", "warning", "Pod metallb-system/speaker", "dockerd")
        .advises("off port 7946/tcp")
}

/// Thread: kubernetes/ingress-nginx#7856
/// Symptom: an ingress controller reports that port 80 is in use, but not by which process
/// Says: `host-network-port-taken/listener` names the process
#[test]
fn ingress_nginx_7856() -> Served {
    blocked("ingress-nginx/controller", &[80, 443])
        .listens("[::]:80", daemon("apache2"))
        .reports("host-network-port-taken/listener", "warning", "Pod ingress-nginx/controller", "apache2")
        .advises("off port 80/tcp")
}

/// Thread: kubernetes/ingress-nginx#8461
/// Symptom: two ingress controllers are on the host's network of one node, and the second controller crash-loops
/// Says: `host-network-port-taken/listener` names the first controller
#[test]
fn ingress_nginx_8461() -> Served {
    World::of(&[host_pod("first/nginx", &[]), crashing(&host_pod("second/controller", &[8443]))])
        .listens("[::]:8443", in_pod("uid-nginx", "nginx"))
        .reports("host-network-port-taken/listener", "warning", "Pod second/controller", "first/nginx")
        .advises("move pod first/nginx off port 8443/tcp")
}

/// Thread: replicatedhq/troubleshoot#849
/// Symptom: a storage plug-in needs port 9090, but systemd listens on the port for a web console
/// Says: `host-network-port-taken/listener` names the socket unit, and the command that ends the unit; no finding after
/// the unit ended
#[test]
fn troubleshoot_849() -> Served {
    let world = blocked("storage/plugin", &[9090]);
    let reported = world
        .clone()
        .listens("[::]:9090", in_unit("/system.slice/console.socket", "systemd"))
        .reports("host-network-port-taken/listener", "warning", "Pod storage/plugin", "console.socket")
        .advises("if no program needs the socket unit, `systemctl disable --now console.socket`");
    world.is_silent("host-network-port-taken/listener");
    // If the kernel does not support BPF for control groups, Portreeve does not know the unit.
    world
        .listens("[::]:9090", in_unit("/init.scope", "systemd"))
        .reports("host-network-port-taken/listener", "warning", "Pod storage/plugin", "systemd")
        .types("systemctl list-sockets");
    reported
}

/// Thread: bottlerocket-os/bottlerocket#3711
/// Symptom: a DNS cache on the host's network crash-loops, although the node's own resolver listens only on 127.0.0.53
/// Says: `host-network-port-taken/listener` names the resolver, and explains how both servers can have the port. No
/// finding if the cache listens only on the node's address
#[test]
fn bottlerocket_3711() -> Served {
    let taken = |world: World| {
        world.listens("127.0.0.53:53", in_unit("/system.slice/systemd-resolved.service", "systemd-resolve"))
    };
    let reported = taken(blocked("kube-system/cache", &[53]))
        .reports("host-network-port-taken/listener", "warning", "Pod kube-system/cache", "systemd-resolve")
        .advises("listen only on the addresses of the node that clients use")
        .advises("at /run/systemd/resolve/resolv.conf")
        .advises("set `DNSStubListener=no`");
    let of_one =
        crashing(&host_pod("kube-system/cache", &[53])).replace("hostPort: 53", "hostPort: 53, hostIP: 192.0.2.1");
    taken(World::of(&[of_one])).is_silent("host-network-port-taken/listener");
    taken(World::of(&[host_pod("kube-system/cache", &[53])])).is_silent("host-network-port-taken/listener");
    reported
}

/// Thread: aws/aws-network-policy-agent#435
/// Symptom: a pod is not ready, because another server has the port of 127.0.0.1 that a container needs. No field of
/// the pod names the port
/// Says: `host-network-port-taken/listener` finds the address in the container's last message, and names the process;
/// no finding without a message
#[test]
fn aws_network_policy_agent_435() -> Served {
    let rule = "host-network-port-taken/listener";
    let ended = |message: &str| {
        let agent = crashing(&host_pod("kube-system/node-agent", &[8162]));
        let agent = agent.replace("exitCode: 1", &format!("exitCode: 1, message: \"{message}\""));
        World::of(&[agent, host_pod("storage/driver", &[])]).listens("127.0.0.1:50052", in_pod("uid-driver", "driver"))
    };
    let reported = ended("listen tcp 127.0.0.1:50052: bind: address already in use")
        .reports(rule, "warning", "Pod kube-system/node-agent", "storage/driver")
        .shows("message of a container", "127.0.0.1:50052/tcp is in use")
        .advises("give pod kube-system/node-agent another port");
    ended("dial tcp 127.0.0.1:50052: connection refused").is_silent(rule);
    ended("listen tcp 127.0.0.1:50053: bind: address already in use").is_silent(rule);
    reported
}

/// Thread: cilium/cilium#19817
/// Symptom: an agent crash-loops, because the agent of another network has the port. Only a probe names the port
/// Says: `host-network-port-taken/listener` names both pods
#[test]
fn cilium_19817() -> Served {
    let world = World::of(&[host_pod("mesh/agent", &[]), crashing(&probed("kube-system/net-agent", 9876))]);
    world
        .clone()
        .listens("0.0.0.0:9877", in_pod("uid-agent", "mesh-cni"))
        .is_silent("host-network-port-taken/listener");
    world
        .listens("0.0.0.0:9876", in_pod("uid-agent", "mesh-cni"))
        .reports("host-network-port-taken/listener", "warning", "Pod kube-system/net-agent", "pod mesh/agent")
        .advises("give pod kube-system/net-agent another port")
}

/// Thread: cilium/cilium#45253
/// Symptom: on a managed platform an add-on crash-loops: the provider's agent has 8094 on every node
/// Says: `host-network-port-taken/listener` names the pod of the provider
#[test]
fn cilium_45253() -> Served {
    World::of(&[host_pod("kube-system/tunnel-agent", &[]), crashing(&host_pod("net/operator", &[8094]))])
        .listens("[::]:8094", in_pod("uid-tunnel-agent", "proxy-agent"))
        .reports("host-network-port-taken/listener", "warning", "Pod net/operator", "pod kube-system/tunnel-agent")
        .advises("give pod net/operator another port")
}
