//! Public threads for which Portreeve has no answer, each with the reason.

use super::{Reason, Unserved};

/// Since version 0.7.5 of portmap, the proxy's rules come before portmap's rules (containernetworking/plugins#269).
const OLD_PORTMAP: Reason = Reason::OutOfReach("the portmap plugin 0.7.5 of 2019 fixed this conflict");

pub(crate) const UNSERVED: &[Unserved] = &[
    Unserved {
        threads: &["ovn-kubernetes/ovn-kubernetes#5034", "kubernetes/kubernetes#120536"],
        symptom: "the API server refuses a nodePort as allocated, but no Service has the number",
        reason: Reason::NotRead(
            "the API server's list of allocated numbers, which names no owner. `owner PORT --refused` reports that no Service has the number, and when the API server releases the number",
        ),
    },
    Unserved {
        threads: &["antrea-io/antrea#2381"],
        symptom: "NodePortLocal redirects the node's port on which containerd answers `kubectl exec`",
        reason: Reason::OutOfReach("antrea-io/antrea#2385 of 2021 fixed this conflict"),
    },
    Unserved {
        threads: &["projectcalico/calico#8112"],
        symptom: "a health check of an earlier proxy still answers, with an old count of endpoints",
        reason: Reason::NotRead("the count in a health check's answer, which follows the endpoints with a delay"),
    },
    Unserved {
        threads: &["kubernetes-sigs/ip-masq-agent#135"],
        symptom: "on a managed platform, some masqueraded connections hang, because the source port is a NodePort",
        reason: Reason::NotRead(
            "the rules of an ip-masq-agent, which may choose source ports (`--random-fully`, `--to-ports`)",
        ),
    },
    Unserved {
        threads: &["cilium/cilium#48419"],
        symptom: "two nodes announce one load balancer's address, because two Services share the address and Cilium elects a node for each Service",
        reason: Reason::NotRead("the Leases of Cilium, because Portreeve requests no right to Leases"),
    },
    Unserved {
        threads: &["cilium/cilium#24555"],
        symptom: "a client has 32,767 connections through one NodePort, and each further connection times out",
        reason: Reason::NotRead("the source NAT of Cilium, which is in its own eBPF maps"),
    },
    Unserved {
        threads: &["kubernetes/kubernetes#142183"],
        symptom: "kube-proxy 1.37 still refuses NodePorts at 127.0.0.1 after its settings were changed to serve 127.0.0.1",
        reason: Reason::NotRead("the old entries of kube-proxy's verdict maps"),
    },
    Unserved {
        threads: &["kubernetes/kubernetes#60305", "kubernetes/kubernetes#66103", "containernetworking/plugins#222"],
        symptom: "a hostPort 443 takes connections to the API server's cluster IP (ipvs)",
        reason: OLD_PORTMAP,
    },
    Unserved {
        threads: &["kubernetes/community#8883"],
        symptom: "kube-proxy on Windows cannot listen on port 10256",
        reason: Reason::OutOfReach("Portreeve reads only nodes with Linux"),
    },
    Unserved {
        threads: &["kubernetes-sigs/kind#3681"],
        symptom: "a laptop refuses a port that kind maps into its node",
        reason: Reason::OutOfReach("the port belongs to a laptop, not to a node"),
    },
];
