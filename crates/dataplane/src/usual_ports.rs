//! The only table of the usual ports of a node's programs. Callers select ports by role.

use portreeve_facts::Protocol::{self, Tcp, Udp};

/// A port, and the program that usually has this port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsualPort {
    /// The port.
    pub number: u16,
    /// The protocol.
    pub protocol: Protocol,
    /// The port's usual user, according to the documentation of this program.
    pub of: &'static str,
    /// Words in the names of the workloads that run this program. The list is empty if the port does not have
    /// [`Role::Noted`], or if no workload runs the program.
    pub words: &'static [&'static str],
    roles: &'static [Role],
}

/// The roles of a usual port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A daemon of a node or control plane has the port, perhaps with a proxy in it (`k3s server`, `k0s`, `kubelite`).
    Daemon,
    /// If a manifest claims the port, Portreeve names the port's usual user.
    Noted,
    /// Clients use this port to reach SSH, DNS, etcd, the API server, kubelet, kube-proxy or the control plane of a
    /// node. Findings propose to move this server only as the last remedy.
    Reached,
    /// Without this port, the node is unreachable.
    Vital,
    /// Only MicroK8s uses the port. On other nodes the port is free.
    MicroK8s,
    /// Users reach ingress controllers on this port.
    Ingress,
    /// Programs of a node connect to servers on this port. If a connection has this remote port, this node opened the
    /// connection.
    Server,
}

/// The usual ports of a role.
pub fn usual_ports(role: Role) -> impl Iterator<Item = &'static UsualPort> {
    TABLE.iter().filter(move |port| port.roles.contains(&role))
}

/// Whether a number has a role for at least one protocol.
pub fn is_usual(number: u16, role: Role) -> bool {
    TABLE.iter().any(|port| port.number == number && port.roles.contains(&role))
}

const VITAL: &[Role] = &[Role::Daemon, Role::Noted, Role::Reached, Role::Vital];
const REACHED: &[Role] = &[Role::Daemon, Role::Noted, Role::Reached];
const NOTED: &[Role] = &[Role::Daemon, Role::Noted];
const DAEMON: &[Role] = &[Role::Daemon];
/// Only manifests are compared with this port. Listeners on the port are judged like any other listeners.
const NOTED_ONLY: &[Role] = &[Role::Noted];
const MICROK8S: &[Role] = &[Role::MicroK8s];

const SERVER: &[Role] = &[Role::Server];

const TABLE: &[UsualPort] = &[
    port(22, Tcp, "sshd", VITAL),
    port(53, Udp, "a DNS server", &[Role::Daemon, Role::Reached]),
    port(80, Tcp, "an ingress controller", DAEMON),
    port(111, Tcp, "rpcbind", DAEMON),
    port(179, Tcp, "a BGP speaker (Calico, MetalLB)", NOTED).by(&["calico", "metallb"]),
    port(443, Tcp, "an ingress controller", DAEMON),
    port(2049, Tcp, "an NFS server", SERVER),
    port(2379, Tcp, "etcd", REACHED).by(&["etcd"]),
    port(2380, Tcp, "etcd", REACHED).by(&["etcd"]),
    port(2381, Tcp, "etcd, for its metrics", NOTED).by(&["etcd"]),
    port(2703, Tcp, "the Pod Identity agent of EKS", DAEMON),
    port(3306, Tcp, "MySQL", SERVER),
    port(4240, Tcp, "Cilium's health check", NOTED).by(&["cilium"]),
    port(4244, Tcp, "Hubble of Cilium", NOTED).by(&["cilium"]),
    port(4789, Udp, "VXLAN of Calico", NOTED).by(&["calico"]),
    port(5432, Tcp, "PostgreSQL", SERVER),
    port(5473, Tcp, "Typha of Calico", NOTED).by(&["calico"]),
    port(6081, Udp, "Geneve of Antrea, Cilium or OVN-Kubernetes", NOTED).by(&["antrea", "cilium", "ovn"]),
    port(6379, Tcp, "Redis", SERVER),
    port(6443, Tcp, "kube-apiserver", VITAL).by(&["kube-apiserver"]),
    port(7445, Tcp, "KubePrism of Talos, a proxy for the API server", SERVER),
    port(7472, Tcp, "MetalLB, for its metrics", NOTED_ONLY).by(&["metallb"]),
    port(7473, Tcp, "FRR of MetalLB, for its metrics", NOTED_ONLY).by(&["metallb"]),
    port(7946, Tcp, "MetalLB's speaker", NOTED_ONLY).by(&["metallb"]),
    port(7946, Udp, "MetalLB's speaker", NOTED_ONLY).by(&["metallb"]),
    port(8080, Tcp, "an HTTP server", SERVER),
    port(8443, Tcp, "an ingress controller or a webhook", &[Role::Ingress, Role::Server]),
    port(8472, Udp, "VXLAN of flannel or Cilium", NOTED).by(&["cilium", "flannel"]),
    port(9091, Tcp, "Felix of Calico, for its metrics", NOTED_ONLY).by(&["calico"]),
    port(9098, Tcp, "Typha of Calico", NOTED_ONLY).by(&["calico"]),
    port(9099, Tcp, "Felix of Calico", NOTED).by(&["calico"]),
    port(9100, Tcp, "the node exporter of Prometheus", NOTED).by(&["node-exporter"]),
    port(9200, Tcp, "Elasticsearch or OpenSearch", SERVER),
    port(9345, Tcp, "the supervisor of RKE2", DAEMON),
    port(9443, Tcp, "a webhook", SERVER),
    port(9808, Tcp, "a CSI driver, for its health", DAEMON),
    port(9809, Tcp, "a CSI driver, for its health", DAEMON),
    port(9878, Tcp, "Envoy of Cilium", NOTED_ONLY).by(&["cilium"]),
    port(9879, Tcp, "Cilium, for its health", NOTED_ONLY).by(&["cilium"]),
    port(9890, Tcp, "Cilium, for gops", NOTED_ONLY).by(&["cilium"]),
    port(9891, Tcp, "the operator of Cilium, for gops", NOTED_ONLY).by(&["cilium"]),
    port(9962, Tcp, "Cilium, for its metrics", NOTED_ONLY).by(&["cilium"]),
    port(9963, Tcp, "the operator of Cilium, for its metrics", NOTED_ONLY).by(&["cilium"]),
    port(9964, Tcp, "Envoy of Cilium, for its metrics", NOTED_ONLY).by(&["cilium"]),
    port(9965, Tcp, "Hubble of Cilium, for its metrics", NOTED_ONLY).by(&["cilium"]),
    port(10248, Tcp, "kubelet", NOTED),
    port(10249, Tcp, "kube-proxy", REACHED).by(&["kube-proxy"]),
    port(10250, Tcp, "kubelet", VITAL),
    port(10251, Tcp, "kube-scheduler before 1.23", DAEMON),
    port(10252, Tcp, "kube-controller-manager before 1.24", DAEMON),
    port(10253, Tcp, "an old cloud-controller-manager", DAEMON),
    port(10254, Tcp, "ingress-nginx, for its health", DAEMON),
    port(10255, Tcp, "kubelet, if its read-only port is enabled", NOTED),
    port(10256, Tcp, "kube-proxy", REACHED).by(&["kube-proxy"]),
    port(10257, Tcp, "kube-controller-manager", REACHED).by(&["kube-controller-manager"]),
    port(10258, Tcp, "cloud-controller-manager", NOTED).by(&["cloud-controller-manager"]),
    port(10259, Tcp, "kube-scheduler", REACHED).by(&["kube-scheduler"]),
    port(10260, Tcp, "cloud-controller-manager, for its webhooks", DAEMON),
    port(15012, Tcp, "istiod", SERVER),
    port(16443, Tcp, "the API server of MicroK8s", MICROK8S),
    port(19001, Tcp, "the datastore of MicroK8s", MICROK8S),
    port(25000, Tcp, "the cluster agent of MicroK8s", MICROK8S),
    port(27017, Tcp, "MongoDB", SERVER),
    port(51820, Udp, "WireGuard of Calico or flannel", NOTED).by(&["calico", "flannel"]),
    port(51871, Udp, "WireGuard of Cilium", NOTED).by(&["cilium"]),
    port(61678, Tcp, "the VPC CNI of AWS, for its metrics", DAEMON),
    port(61679, Tcp, "the VPC CNI of AWS", DAEMON),
];

const fn port(number: u16, protocol: Protocol, of: &'static str, roles: &'static [Role]) -> UsualPort {
    UsualPort { number, protocol, of, words: &[], roles }
}

impl UsualPort {
    const fn by(self, words: &'static [&'static str]) -> Self {
        Self { words, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::PortSet;

    #[test]
    fn each_role_has_its_ports() {
        let of = |role| usual_ports(role).map(|it| it.number).collect::<PortSet>().to_string();
        let daemons = "22,53,80,111,179,443,2379-2381,2703,4240,4244,4789,5473,6081,6443,8472,9099-9100,9345,9808-9809,\
                       10248-10260,51820,51871,61678-61679";
        assert_eq!(of(Role::Daemon), daemons);
        assert_eq!(of(Role::Reached), "22,53,2379-2380,6443,10249-10250,10256-10257,10259");
        assert_eq!(of(Role::Vital), "22,6443,10250");
        assert_eq!(of(Role::MicroK8s), "16443,19001,25000");
        assert_eq!(of(Role::Ingress), "8443");
        assert_eq!(of(Role::Server), "2049,3306,5432,6379,7445,8080,8443,9200,9443,15012,27017");
        assert_eq!(usual_ports(Role::Noted).count(), 38);
        let by_no_workload = usual_ports(Role::Noted).filter(|it| it.words.is_empty()).map(|it| it.number);
        assert_eq!(by_no_workload.collect::<Vec<_>>(), [22, 10248, 10250, 10255]);
    }

    #[test]
    fn no_port_stands_there_twice() {
        let mut ports: Vec<_> = TABLE.iter().map(|it| (it.number, it.protocol)).collect();
        assert!(ports.is_sorted());
        ports.dedup();
        assert_eq!(ports.len(), TABLE.len());
        assert!(is_usual(22, Role::Vital) && !is_usual(23, Role::Vital) && !is_usual(7946, Role::Daemon));
    }
}
