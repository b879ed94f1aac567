//! A hostPort still leads to a pod that does not exist any more.

use std::net::SocketAddr;

use portreeve_facts::{Netfilter, Protocol, Reading, Redirection};

use super::{objects::pod_with_host_ports, served::Served, world::World};

/// The rules of the CNI plugin `portmap` for a TCP port. The kernel evaluates the rules in this order.
fn redirections(port: u16, to: &[&str]) -> Reading<Netfilter> {
    let rules = to.iter().enumerate().map(|(place, to)| {
        let to: SocketAddr = to.parse().expect("an address with a port");
        let chain = format!("ip nat CNI-DN-{place}");
        Redirection { protocol: Protocol::Tcp, port, ip: None, to: to.ip(), to_port: to.port(), chain, handle: 5 }
    });
    Reading::Seen(Netfilter { redirections: Reading::Seen(rules.collect()), ..Netfilter::default() })
}

/// An ingress controller at 10.244.0.9 with hostPort 80. portmap's rules redirect the hostPort to these targets.
fn ingress(to: &[&str]) -> World {
    let rules = redirections(80, to);
    World::of(&[pod_with_host_ports("ingress/nginx", &[80])]).with(|it| it.kernel.netfilter = rules)
}

/// Thread: rancher-archives/rke#3440
/// Symptom: after an upgrade, hostPorts 80 and 443 lead to the old pod of the ingress controller
/// Says: `stale-redirection/host-port` names the rule, the pod that gets no connections, and the command that deletes
/// the rule
#[test]
fn rke_3440() -> Served {
    let reported = ingress(&["10.244.0.3:80", "10.244.0.9:80"])
        .reports("stale-redirection/host-port", "critical", "Node n1", "pod ingress/nginx gets no connections")
        .shows("redirection", "CNI-DN-0")
        .types("nft delete rule ip nat CNI-DN-0 handle 5");
    ingress(&["10.244.0.9:80"]).is_silent("stale-redirection/host-port");
    reported
}

/// Thread: projectcalico/calico#3412
/// Symptom: rules of a hostPort stay when its pod is deleted, and the next pod gets no connections
/// Says: `stale-redirection/host-port` is a warning until the next pod exists
#[test]
fn calico_3412() -> Served {
    let rules = redirections(8080, &["10.244.0.3:80"]);
    World::of(&[pod_with_host_ports("ingress/nginx", &[80])])
        .with(|it| it.kernel.netfilter = rules)
        .reports("stale-redirection/host-port", "warning", "Node n1", "ip nat CNI-DN-0")
        .types("nft delete rule")
}

/// Thread: Netcracker/KubeMarine#724
/// Symptom: after an upgrade of the container runtime, clients of a hostPort time out, although the new pod seems to
/// have the port
/// Says: `portreeve owner 80` reports that no process answers, and names the old redirection and the command that
/// deletes it
#[test]
fn kube_marine_724() -> Served {
    let healthy = ingress(&["10.244.0.9:80"]);
    healthy.owner("80").says("remote clients to 192.0.2.1, 192.0.2.2: pod ingress/nginx answers");
    ingress(&["10.244.0.3:80", "10.244.0.9:80"])
        .owner("80")
        .says("remote clients to 192.0.2.1, 192.0.2.2: connections reach no target, because of a leftover redirection of a hostPort")
        .names("redirection", "a leftover redirection of a hostPort, to 10.244.0.3:80")
        .types("nft delete rule ip nat CNI-DN-0 handle 5")
}
