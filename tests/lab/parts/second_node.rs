//! The node `n2` of a cluster whose first node is a [`WholeNode`].

use serde_json::json;

use super::{containerd, kubelet, machine::Machine, process::Process, talk::http_get, whole_node::WholeNode};

/// The addresses of the node `n2`, which is the client of a [`super::Wired`] node.
const ADDRESSES: [&str; 2] = ["192.0.2.100", "2001:db8::100"];

/// The second node is in the network namespace of the first node's client. Pods of the second node must use the host's
/// network, because both nodes' pod networks have the same addresses.
pub struct SecondNode {
    pub machine: Machine,
    _proxy: Process,
}

impl SecondNode {
    /// The second node's pods reach the API server through the Service `kubernetes`.
    #[track_caller]
    pub fn join(first: &WholeNode) -> Self {
        let mut machine = Machine::start_in(&first.wired.client);
        containerd::start(&mut machine);
        kubelet::start(&mut machine, &first.cluster, "n2", ADDRESSES);
        let configuration = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "hostnameOverride": "n2",
            // The agent reads the proxy mode on loopback, and the test reads the mode from the first node.
            "metricsBindAddress": "0.0.0.0:10249",
            "clusterCIDR": "10.244.0.0/16,fd00:244::/56",
            "clientConnection": {"kubeconfig": first.cluster.kubeconfig("admin")},
            "conntrack": {"maxPerCore": 0},
        });
        let file = machine.directory().write("kube-proxy.yaml", &configuration.to_string());
        let arguments = [format!("--config={file}")];
        let mut proxy = Process::start_by(&machine.command(), "kube-proxy", &arguments, machine.directory().path());
        let place = format!("{}:10249", ADDRESSES[0]);
        proxy.wait_for("proxy mode", || http_get(&place, "/proxyMode"));
        Self { machine, _proxy: proxy }
    }
}
