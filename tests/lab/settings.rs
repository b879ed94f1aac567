//! The settings that the real kube-proxy reports about itself on loopback.

use std::{fs, net::SocketAddr};

use portreeve_dataplane::owner;
use portreeve_facts::{Mode, Protocol};
use portreeve_rules::{Limits, findings::Vantage};
use serde_json::json;

use crate::{
    look::snapshot,
    parts::{Answer, ControlPlane, PRIMARY, Proxy, Wired, ask, objects},
};

#[test]
fn mode_settings_version_and_descriptors_are_read_from_the_proxy_itself() {
    let _wired = Wired::enter();
    let cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &PRIMARY));
    let proxy = Proxy::start(
        &cluster,
        "nftables",
        &json!({
            "nodePortAddresses": ["192.0.2.0/24", "2001:db8::/64"],
            "iptables": {"localhostNodePorts": false},
            "detectLocalMode": "InterfaceNamePrefix",
            "detectLocal": {"interfaceNamePrefix": "pod"},
            "bindAddress": "192.0.2.1",
        }),
    );
    let read = snapshot(&cluster.kubeconfig("admin")).kernel.proxy;

    let mode = read.mode.seen().expect("a mode");
    assert_eq!((mode.value, mode.place.as_str()), (Mode::Nftables, "127.0.0.1:10249/proxyMode"));
    let config = read.config.seen().expect("settings");
    assert_eq!(config.place, "127.0.0.1:10249/configz");
    assert_eq!(config.mode.as_deref(), Some("nftables"));
    assert_eq!(config.node_port_addresses, ["192.0.2.0/24", "2001:db8::/64"]);
    assert_eq!(config.localhost_node_ports, Some(false));
    assert_eq!(config.bind_address, "192.0.2.1".parse().ok());
    assert_eq!(config.detect_local_mode.as_deref(), Some("InterfaceNamePrefix"));
    assert_eq!(config.cluster_cidr.as_deref(), Some("10.244.0.0/16,fd00:244::/56"));

    let metrics = read.metrics.seen().expect("metrics");
    assert_eq!(metrics.version, Some(Proxy::version()));
    assert!(metrics.last_sync.is_some() && metrics.last_sync >= metrics.last_queued, "{metrics:?}");
    let limits = fs::read_to_string(format!("/proc/{}/limits", proxy.pid())).expect("limits");
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next());
    assert_eq!(metrics.max_fds.map(|it| it.to_string()).as_deref(), soft);
    assert!(metrics.open_fds.is_some_and(|open| open > 0), "{metrics:?}");

    let process = read.process.seen().expect("a process");
    assert_eq!((process.pid, process.command.as_str()), (proxy.pid(), "kube-proxy"));
    assert!(read.cgroup.seen().is_some_and(|it| it.path.ends_with("-kube-proxy")), "{:?}", read.cgroup);
    assert_eq!(read.fds.seen().map(|fds| fds.limit), metrics.max_fds);
}

#[test]
fn a_proxy_that_goes_by_its_nodes_pod_cidrs_tells_pods_apart_in_their_families_only() {
    let wired = Wired::enter();
    let cluster = ControlPlane::start();
    let mut node = objects::node("n1", &PRIMARY);
    node["spec"] = json!({"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]});
    cluster.api().create(&node);
    let mut service = objects::service("far", &[objects::port(80, Some(30080))]);
    service["spec"]["externalTrafficPolicy"] = json!("Local");
    let service = cluster.api().create(&service);
    for (family, address) in ["IPv4", "IPv6"].into_iter().zip(Wired::ELSEWHERE) {
        cluster.api().create(&objects::endpoint_slice(&service, Some((address, "n2")), family));
    }
    let places = PRIMARY.map(|address| SocketAddr::new(address.parse().expect("an address"), 30080));
    for mode in ["iptables", "nftables"] {
        let proxy = Proxy::start(&cluster, mode, &json!({"detectLocalMode": "NodeCIDR"}));
        let packets = wired.pod.run(move || places.map(ask));
        assert_ne!(packets[0], packets[1], "{mode}: a pod is treated as an outsider where its Node has no CIDR");
        let told = owner(&Limits::default().round(&snapshot(&cluster.kubeconfig("admin")), None), Protocol::Tcp, 30080);
        let told = told.expect("nothing is missing");
        let from_pods = |to: SocketAddr| {
            let answers = &mut told.answers.iter();
            let answer = answers.find(|it| it.from == Vantage::Pods && it.to == to.ip()).expect("an answer");
            answer.outcome.as_ref().expect("nothing is missing").name()
        };
        let words = packets.map(|packet| match packet {
            Answer::Pod => "pod",
            Answer::TimedOut => "timed-out",
            other => panic!("{mode}: {other:?}"),
        });
        assert_eq!(places.map(from_pods), words, "{mode}");
        proxy.clean_up();
    }
}
