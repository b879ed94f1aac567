//! Several claims to one port of a node: Services with different endpoints, and the answers that Portreeve reports.

use std::{collections::BTreeMap, net::IpAddr};

use portreeve_agent::judge;
use portreeve_dataplane::{ClaimKind, Outcome, owner};
use portreeve_facts::{Gap, Protocol, Snapshot};
use portreeve_rules::{
    Limits,
    findings::{Affected, Severity, Vantage},
};
use serde_json::{Value, json};

use super::{Held, binds::BINDS, judged::is_link_local};
use crate::parts::{self, Api, ControlPlane, Wired, kubectl, objects};

/// The second port of the backend pod. The claim that competes with a NodePort sends connections to the second port.
pub const OTHER: u16 = 9090;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// An endpoint on this node.
    Ready,
    Nothing,
    /// An endpoint on another node, with externalTrafficPolicy Local.
    Elsewhere,
}

impl Behind {
    pub const ALL: [Self; 3] = [Self::Ready, Self::Nothing, Self::Elsewhere];

    /// The endpoints answer on the port `target` of the backend pod.
    #[track_caller]
    pub fn create(self, api: &Api, mut service: Value, target: u16) -> Value {
        let policy = if self == Self::Elsewhere { "Local" } else { "Cluster" };
        service["spec"]["externalTrafficPolicy"] = json!(policy);
        let service = api.create(&service);
        let endpoints = match self {
            Self::Ready => Wired::HERE.map(|address| Some((address, "n1"))),
            Self::Nothing => [None; 2],
            Self::Elsewhere => Wired::ELSEWHERE.map(|address| Some((address, "n2"))),
        };
        for (family, endpoint) in ["IPv4", "IPv6"].into_iter().zip(endpoints) {
            let mut slice = objects::endpoint_slice(&service, endpoint, family);
            slice["ports"][0]["port"] = json!(target);
            api.create(&slice);
        }
        service
    }
}

/// Starts three more servers in the backend pod, which already has the TCP server of [`Wired`].
pub fn serve(wired: &Wired) -> [Held; 3] {
    let on = |protocol, port, identity| wired.backend.run(move || Held::on(&BINDS[1], protocol, port, identity));
    [
        on(Protocol::Udp, Wired::PORT, parts::Answer::Pod),
        on(Protocol::Tcp, OTHER, parts::Answer::OtherPod),
        on(Protocol::Udp, OTHER, parts::Answer::OtherPod),
    ]
}

pub fn service(name: &str, protocol: Protocol, port: u16, node_port: Option<u16>) -> Value {
    let mut entry = objects::port(port, node_port);
    entry["protocol"] = json!(protocol.to_string().to_uppercase());
    objects::service(name, &[entry])
}

pub fn balanced_service(name: &str, protocol: Protocol, port: u16) -> Value {
    let mut service = service(name, protocol, port, None);
    service["spec"]["type"] = json!("LoadBalancer");
    service["spec"]["allocateLoadBalancerNodePorts"] = json!(false);
    service
}

#[track_caller]
pub fn balance(cluster: &ControlPlane, name: &str, addresses: &[&str]) {
    let ingress: Vec<_> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    let status = json!({"status": {"loadBalancer": {"ingress": ingress}}}).to_string();
    kubectl(cluster, &["patch", "service", name, "--subresource=status", "--type=merge", "-p", &status]);
}

/// `P` is the pod behind the NodePort, and `O` is the other pod. `?` stands for an unknown answer.
#[track_caller]
pub fn told(snapshot: &Snapshot, protocol: Protocol, port: u16) -> BTreeMap<(Vantage, IpAddr), char> {
    let owned = owner(&Limits::default().round(snapshot, None), protocol, port).expect("it can be told");
    let letter = |by: Option<usize>, outcome: &Result<Outcome, Gap>, from, to| match outcome {
        Ok(Outcome::Listener) => 'L',
        Ok(Outcome::Pod) => match by.map(|index| owned.claimants[index].claim) {
            Some(ClaimKind::NodePort) => 'P',
            Some(ClaimKind::HostPort | ClaimKind::ExternalIp) => 'O',
            other => unreachable!("{other:?} has no pod"),
        },
        // For a link-local address, `N` stands for an error and for no answer, as in a recording: the kernel may give
        // either result.
        Ok(Outcome::Refused) if is_link_local(to) && from == Vantage::Node => 'N',
        Ok(Outcome::Refused) => 'R',
        Ok(Outcome::TimedOut) if is_link_local(to) => 'N',
        Ok(Outcome::TimedOut) => 'T',
        Ok(Outcome::Nowhere) => 'N',
        Ok(Outcome::Unreachable) => 'N',
        Err(_) => '?',
    };
    owned.answers.iter().map(|it| ((it.from, it.to), letter(it.by, &it.outcome, it.from, it.to))).collect()
}

/// The findings of a rule about a port: the highest severity above info, and the vantage points that lose connections.
pub fn said(snapshot: &Snapshot, rule: &str, protocol: Protocol, port: u16) -> (Option<Severity>, Affected) {
    let board = judge(snapshot, &Limits::default());
    let of_port = board
        .findings
        .iter()
        .filter(|it| (&*it.key.name(), it.key.port, it.key.protocol) == (rule, Some(port), Some(protocol)));
    let findings: Vec<_> = of_port.map(|it| &it.evidence).filter(|it| it.severity > Severity::Info).collect();
    (findings.iter().map(|it| it.severity).max(), findings.iter().flat_map(|it| it.affects.iter().copied()).collect())
}
