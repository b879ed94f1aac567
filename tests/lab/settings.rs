//! What the real kube-proxy says of itself on loopback.

use std::fs;

use portreeve::facts::Mode;
use serde_json::json;

use crate::{
    look::snapshot,
    parts::{ControlPlane, PRIMARY, Proxy, Wired, objects},
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
