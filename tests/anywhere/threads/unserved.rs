//! Threads that no test shows to be served, each with its reason.

use super::{Reason, Unserved};

/// Each of these becomes a test once a rule speaks of it.
const OTHER_MASQUERADE: Reason = Reason::WaitsFor("masquerading by an ip-masq-agent in Cilium's place");

/// The CNI asks the proxy first since portmap 0.7.5 (containernetworking/plugins#269).
const OLD_PORTMAP: Reason =
    Reason::OutOfReach("ended with the portmap plugin 0.7.5 of 2019: since then the proxy's rules come first");

pub(crate) const UNSERVED: &[Unserved] = &[
    Unserved {
        threads: &["antrea-io/antrea#2381"],
        symptom: "a pod's port of the node (NodePortLocal) redirects the port on which containerd answers `kubectl exec`",
        reason: Reason::WaitsFor("redirections that no hostPort of a pod declares"),
    },
    Unserved {
        threads: &["projectcalico/calico#8112"],
        symptom: "a health check that an earlier proxy left goes on to answer, with a count of endpoints that is out of date",
        reason: Reason::WaitsFor("health checks that answer with a wrong count of endpoints"),
    },
    Unserved {
        threads: &["kubernetes-sigs/ip-masq-agent#135"],
        symptom: "masqueraded connections of a managed platform hang, now and then: their source port is a NodePort",
        reason: OTHER_MASQUERADE,
    },
    Unserved {
        threads: &["kubernetes/kubernetes#142183"],
        symptom: "kube-proxy 1.37 goes on to refuse NodePorts at 127.0.0.1 after it was told to serve them",
        reason: Reason::WaitsFor("the proxy of localhost NodePorts, which 1.37 has behind a gate"),
    },
    Unserved {
        threads: &["kubernetes/kubernetes#60305", "kubernetes/kubernetes#66103", "containernetworking/plugins#222"],
        symptom: "a hostPort 443 takes the cluster IP of the API server (ipvs)",
        reason: OLD_PORTMAP,
    },
    Unserved {
        threads: &["kubernetes/community#8883"],
        symptom: "kube-proxy on Windows cannot have port 10256",
        reason: Reason::OutOfReach("a node with Windows: Portreeve reads Linux"),
    },
    Unserved {
        threads: &["kubernetes-sigs/kind#3681"],
        symptom: "a laptop refuses a port that kind maps into its node",
        reason: Reason::OutOfReach("the port is a laptop's, outside of every node"),
    },
];
