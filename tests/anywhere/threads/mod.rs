//! Real problems from public threads. Each test describes a problem as a node or as manifests. The program must name
//! the conflict, its owner and the remedy. `docs/threads.md` is generated from the comments here.

mod addresses;
mod cilium;
mod crowded;
mod health;
mod host_network;
mod in_pods;
mod lint;
mod listeners;
mod objects;
mod proxies;
mod ranges;
mod redirected;
mod refused;
mod served;
mod tunnels;
mod twice;
mod unserved;
mod waiting;
mod world;

pub(crate) use unserved::UNSERVED;

pub(crate) struct Unserved {
    /// The names of the threads, as in [`CLASSES`].
    pub(crate) threads: &'static [&'static str],
    pub(crate) symptom: &'static str,
    pub(crate) reason: Reason,
}

#[derive(Clone, Copy)]
pub(crate) enum Reason {
    /// No scan reads the input that shows the problem.
    NotRead(&'static str),
    /// The cause is not on a node, or no longer exists.
    OutOfReach(&'static str),
}

/// A kind of conflict: its title, a line of explanation, and its public threads.
type Class = (&'static str, &'static str, &'static [&'static str]);

/// Every thread, in the order of the page. A thread on GitHub has the name `owner/repository#number`. Any
/// other thread has as its name the thread's address without `https://`.
pub(crate) const CLASSES: [Class; 14] = [
    (
        "Ephemeral ports",
        "The kernel gives an outgoing connection a port that a Service or a server needs.",
        &[
            "kubernetes/kubernetes#111682",
            "kubernetes/kops#6342",
            "awslabs/amazon-eks-ami#1307",
            "rancher-archives/rke#893",
            "learn.microsoft.com/en-us/azure/aks/custom-node-configuration",
            "onedr0p/home-ops#11712",
            "hcloud-k8s/terraform-hcloud-kubernetes#473",
            "cilium/cilium#36754",
            "kubernetes-sigs/network-policy-api#341",
            "github.com/mumoshu/kube-node-init",
            "www.michal-drozd.com/en/blog/ephemeral-port-exhaustion-kubernetes",
        ],
    ),
    (
        "Listeners and NodePorts",
        "A process and a Service want the same port.",
        &["kubernetes/kubernetes#76892", "www.sobyte.net/post/2022-06/node-port", "openshift/baremetal-runtimecfg#175"],
    ),
    (
        "NodePorts without a socket",
        "The NodePort answers, but `netstat` shows no process that listens.",
        &[
            "kubernetes/kubernetes#115568",
            "k3s-io/k3s#8989",
            "kubesphere/kubekey#1468",
            "cloudnativelabs/kube-router#357",
            "kubernetes/kubernetes#132068",
            "kubernetes/kubernetes#125167",
        ],
    ),
    (
        "Addresses",
        "Two objects claim one address, or a Service claims a Node's address.",
        &[
            "kubernetes/kubernetes#104679",
            "kubernetes/kubernetes#93175",
            "k0sproject/k0s#4661",
            "kube-vip/kube-vip#1288",
            "kube-vip/kube-vip#1006",
            "kube-vip/kube-vip#996",
            "cilium/cilium#48419",
            "metallb/metallb#1397",
        ],
    ),
    (
        "The proxy and its settings",
        "A proxy mode does not serve an address, an earlier mode has left rules in the kernel, or two settings contradict each other.",
        &[
            "gardener/gardener#4599",
            "kubernetes/kubernetes#102314",
            "kubermatic/kubermatic#11963",
            "k0sproject/k0s#5760",
            "zarf-dev/zarf#3684",
            "kubernetes/kubernetes#142183",
            "cilium/cilium#37691",
        ],
    ),
    (
        "Source ports of Cilium",
        "A connection of a pod has a source port that is a NodePort, a hostPort or a tunnel's port.",
        &[
            "cilium/cilium#16826",
            "cilium/cilium#23539",
            "cilium/cilium#23604",
            "cilium/cilium#24555",
            "cilium/cilium#33723",
            "cilium/cilium#34041",
            "cilium/cilium#45492",
            "dash0hq/dash0-operator#1359",
            "kubernetes-sigs/ip-masq-agent#135",
        ],
    ),
    (
        "The NodePort range",
        "The NodePort range is full, or a nodePort lies outside the range.",
        &[
            "openkruise/kruise-game#142",
            "kubernetes/kubernetes#69845",
            "metallb/metallb#328",
            "k3s-io/k3s#9952",
            "projectbluefin/lab#42",
        ],
    ),
    (
        "Numbers that are allocated",
        "The API server refuses a nodePort, and does not name the Service that has it. `owner` names this Service and a remedy. `lint` finds the conflict before you create a Service.",
        &[
            "1Password/connect-helm-charts#22",
            "istio/istio#6050",
            "kubecube-io/KubeCube#285",
            "rancher/rancher#18989",
            "karmada-io/karmada#1942",
            "velero-io/velero#6376",
            "velero-io/velero#3419",
            "velero-io/velero#1950",
            "velero-io/velero#2308",
            "ansible/awx-operator#814",
            "redpanda-data/helm-charts#1124",
            "open-engineering-nl/coturn-chart#75",
            "bitnami/charts#2564",
            "kubernetes/kubernetes#135439",
            "5stackgg/5stack-panel#154",
            "argoproj/argo-helm#3587",
            "kubernetes/kubernetes#133564",
            "ovn-kubernetes/ovn-kubernetes#5034",
            "kubernetes/kubernetes#120536",
        ],
    ),
    (
        "Pods on the host network",
        "A pod cannot listen on its port, because another process has the port.",
        &[
            "awslabs/amazon-eks-ami#2631",
            "prometheus/node_exporter#1115",
            "prometheus-community/helm-charts#2248",
            "silogen/cluster-forge#739",
            "scylladb/scylla-operator#3089",
            "metallb/metallb#581",
            "kubernetes/ingress-nginx#7856",
            "kubernetes/ingress-nginx#8461",
            "replicatedhq/troubleshoot#849",
            "bottlerocket-os/bottlerocket#3711",
            "aws/aws-network-policy-agent#435",
            "cilium/cilium#19817",
            "cilium/cilium#45253",
            "cozystack/cozystack#3361",
        ],
    ),
    (
        "Networks of pods",
        "Outgoing connections of a pod use all local ports of the pod, or the port that a server in the pod needs.",
        &[
            "jupyterhub/configurable-http-proxy#557",
            "devopsbeast.com/blog/tcp-time-wait-conntrack-exhaustion",
            "skypilot-org/skypilot#10426",
        ],
    ),
    (
        "HostPorts",
        "A hostPort is in use on every node, or its redirection gets connections that belong to another claim.",
        &[
            "k3s-io/k3s#1969",
            "k3s-io/k3s#2270",
            "traefik/traefik-helm-chart#732",
            "loculus-project/loculus#4203",
            "liqotech/liqo#2370",
            "kubernetes/kubernetes#134057",
            "kubernetes/kubernetes#112522",
            "kubernetes-sigs/karpenter#2083",
            "KBVE/kbve#10005",
            "kubernetes/kubernetes#106417",
            "kubernetes-sigs/azurefile-csi-driver#1880",
            "kubernetes/kubernetes#60305",
            "kubernetes/kubernetes#66103",
            "containernetworking/plugins#222",
            "rancher-archives/rke#3440",
            "projectcalico/calico#3412",
            "Netcracker/KubeMarine#724",
            "antrea-io/antrea#2381",
        ],
    ),
    (
        "Tunnels",
        "The tunnels of two networks want one UDP port, and one of the tunnels stays down.",
        &["tigera/docs#2575", "cilium/cilium#8990"],
    ),
    (
        "Health checks",
        "A load balancer checks the health of a node, and the wrong program answers.",
        &[
            "projectcalico/calico#8112",
            "projectcalico/calico#10748",
            "gardener/gardener-extension-networking-calico#732",
        ],
    ),
    (
        "Elsewhere",
        "Problems that no scan of a Linux node can see.",
        &["kubernetes/community#8883", "kubernetes-sigs/kind#3681"],
    ),
];
