//! The redirections of hostPorts: their targets, their pods, and redirections that deleted pods left behind.

use std::{collections::BTreeMap, net::IpAddr};

use super::{
    by_port::{ByPort, Port},
    outcome::Outcome,
    served::own_network_pods,
};
use portreeve_facts::{Address, Gap, Netfilter, Pod, Redirection, Snapshot, Source, Why};

const TWO_TABLES: &str =
    "a leftover redirection and the pod's own redirection are in two tables, and the order of the tables was not read";

/// The redirections of hostPorts, and the pods to which they may belong.
pub struct Redirections<'a> {
    snapshot: &'a Snapshot,
    /// The pods of this node that have addresses of their own.
    pub pods: Vec<&'a Pod>,
    by_ip: BTreeMap<IpAddr, Vec<&'a Pod>>,
    by_port: ByPort<&'a Redirection>,
}

impl<'a> Redirections<'a> {
    /// The redirections of a node.
    ///
    /// # Errors
    ///
    /// Fails if Pods, or the rules of netfilter, were not read.
    pub fn of(snapshot: &'a Snapshot) -> Result<Self, Gap> {
        let pods: Vec<&Pod> = own_network_pods(snapshot, snapshot.cluster.pods.get()?).collect();
        let mut by_ip = BTreeMap::<IpAddr, Vec<&Pod>>::new();
        pods.iter().for_each(|pod| pod.ips.iter().for_each(|ip| by_ip.entry(*ip).or_default().push(pod)));
        let by_port = ByPort::of(listed(snapshot)?.iter().map(|it| ((it.protocol, it.port), it)));
        Ok(Self { snapshot, pods, by_ip, by_port })
    }

    /// The redirections of each port, in the order in which the kernel evaluates them within a table.
    pub fn ports(&self) -> impl Iterator<Item = (Port, &[&'a Redirection])> {
        self.by_port.ports()
    }

    /// The redirections of one port that belong to no living pod. The `bool` is true if the kernel may evaluate the
    /// redirection before the redirections of living pods. The list is empty if a pod that wants the port has no
    /// address yet, because each redirection may belong to this pod.
    pub fn left_behind(&self, port: Port) -> Vec<(&'a Redirection, bool)> {
        if self.is_awaited(port) {
            return Vec::new();
        }
        // `alive` has one entry for each table and address, because there may be thousands of redirections.
        let (mut left, mut alive) = (Vec::new(), BTreeMap::new());
        for it in self.by_port.at(port).iter().copied() {
            if self.pod_of(it).is_some_and(|pod| !pod.finished) {
                alive.insert((table(it), it.ip), it);
            } else {
                left.push((it, !alive.values().any(|other| share_table(other, it) && meet(other, it))));
            }
        }
        left
    }

    /// Whether a pod that wants the port as hostPort has no address yet.
    pub fn is_awaited(&self, (protocol, number): Port) -> bool {
        let wants = |pod: &&&Pod| pod.ports.iter().any(|it| (it.protocol, it.host_port) == (protocol, Some(number)));
        self.pods.iter().filter(wants).any(|pod| !pod.finished && pod.ips.is_empty())
    }

    /// The pod for which a redirection was made. A living pod is preferred to a pod that ended.
    pub fn pod_of(&self, redirection: &Redirection) -> Option<&'a Pod> {
        self.pods_at(redirection.to).filter(|pod| declares(pod, redirection)).min_by_key(|pod| pod.finished)
    }

    /// The pod that has the target address of a redirection, even if the pod does not declare the port. A living pod is
    /// preferred to a pod that ended.
    pub fn pod_at(&self, redirection: &Redirection) -> Option<&'a Pod> {
        self.pods_at(redirection.to).min_by_key(|pod| pod.finished)
    }

    fn pods_at(&self, ip: IpAddr) -> impl Iterator<Item = &'a Pod> {
        self.by_ip.get(&ip).into_iter().flatten().copied()
    }

    /// The owner of the target address in words, for a redirection that belongs to no known pod of this node.
    pub fn whose(&self, redirection: &Redirection) -> String {
        match self.pod_at(redirection) {
            Some(Pod { namespace, name, finished: true, .. }) => {
                format!("an address that pod {namespace}/{name} had until it ended")
            }
            Some(Pod { namespace, name, .. }) => {
                format!("an address of pod {namespace}/{name}, which declares no such hostPort")
            }
            None => match self.snapshot.cluster.unplaced_pods().find(|pod| pod.ips.contains(&redirection.to)) {
                Some(Pod { namespace, name, .. }) => {
                    format!("an address of pod {namespace}/{name}, which may be on this node")
                }
                None => "an address that no pod of this node has".to_owned(),
            },
        }
    }

    /// Whether only pods can have this address. True if each network of the node that contains this address also
    /// contains a pod's address. A container outside Kubernetes has an address in a bridge network without pods.
    ///
    /// # Errors
    ///
    /// Fails if the node's links were not read.
    pub fn is_of_pods(&self, ip: IpAddr) -> Result<bool, Gap> {
        // With Multus, portmap may redirect to an address that is in no pod's status.
        if self.pods.iter().any(|pod| pod.more_networks && !pod.finished) {
            return Ok(false);
        }
        let interfaces = self.snapshot.kernel.interfaces.get()?;
        let mut networks = interfaces.addresses.iter().filter(|it| it.network_has(ip));
        let has_pod = |it: &Address| self.pods.iter().flat_map(|pod| &pod.ips).any(|other| it.network_has(*other));
        Ok(networks.all(has_pod))
    }

    /// Whether the kernel evaluates a leftover redirection before the redirection of a pod's hostPort.
    ///
    /// # Errors
    ///
    /// Fails if the redirections are in different tables.
    pub(super) fn is_before(&self, left: &Redirection, pod: &Pod) -> Result<bool, Gap> {
        let all = self.by_port.at((left.protocol, left.port));
        let is_its = |it: &&Redirection| self.pod_of(it).is_some_and(|its| its == pod);
        let place = |of: &dyn Fn(&&Redirection) -> bool| all.iter().position(|it| share_table(it, left) && of(it));
        let its = place(&|it| is_its(it) && meet(it, left)).ok_or_else(|| unclear(TWO_TABLES.to_owned()))?;
        Ok(place(&|it| *it == left).is_some_and(|place| place < its))
    }

    /// The outcome of a connection that a leftover redirection takes: another pod has the target address, or no pod has
    /// the address.
    ///
    /// # Errors
    ///
    /// Fails if a container outside Kubernetes, or a pod that was not read, may have the address.
    pub(super) fn leads_to(&self, left: &Redirection) -> Result<Outcome, Gap> {
        match (self.pod_at(left), self.snapshot.cluster.unread_pod()) {
            (Some(pod), _) if !pod.finished => Ok(Outcome::Pod),
            (_, Some(gap)) => Err(gap.clone()),
            _ if self.is_of_pods(left.to)? => Ok(Outcome::Nowhere),
            _ => Err(unclear(format!("a container that Kubernetes did not start may have {}", left.to))),
        }
    }
}

pub(super) fn declares(pod: &Pod, redirection: &Redirection) -> bool {
    pod.ports.iter().any(|port| {
        (port.protocol, port.host_port) == (redirection.protocol, Some(redirection.port))
            && port.host_ip.filter(|ip| !ip.is_unspecified()) == redirection.ip
    })
}

pub(super) fn listed(snapshot: &Snapshot) -> Result<&[Redirection], Gap> {
    let Netfilter { redirections, legacy_tables, .. } = snapshot.kernel.netfilter.get()?;
    let found = redirections.get()?;
    if found.is_empty() && legacy_tables.iter().any(|table| table.rsplit(' ').next() == Some("nat")) {
        let detail = "rules of legacy iptables cannot be listed: `iptables-legacy-save -t nat | grep CNI-DN-`";
        return Err(Gap::new(Source::Netfilter, Why::NotSupported, detail));
    }
    Ok(found)
}

/// Whether two redirections are in the same table of the same family.
pub fn share_table(one: &Redirection, other: &Redirection) -> bool {
    table(one) == table(other)
}

fn table(redirection: &Redirection) -> Option<&str> {
    redirection.chain.rsplit_once(' ').map(|(table, _)| table)
}

/// Whether two redirections of one port can match the same connections.
pub fn meet(one: &Redirection, other: &Redirection) -> bool {
    one.ip.is_none() || other.ip.is_none() || one.ip == other.ip
}

fn unclear(detail: String) -> Gap {
    Gap::new(Source::Netfilter, Why::Ambiguous, detail)
}
