//! The cluster with which most tests begin: one Node, the agent's role, and Services with endpoints on this Node.

use serde_json::Value;

use super::{ControlPlane, PRIMARY, Role, Wired, objects};

/// An agent in this cluster has the role of the chart.
#[track_caller]
pub fn cluster() -> ControlPlane {
    let mut cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &PRIMARY));
    Role::of_chart().grant(&mut cluster);
    cluster
}

/// Creates a Service with an endpoint on this node in each family.
#[track_caller]
pub fn serve(cluster: &ControlPlane, name: &str, node_port: Option<u16>) -> Value {
    let service = cluster.api().create(&objects::selecting_service(name, &[objects::port(80, node_port)]));
    for (family, address) in ["IPv4", "IPv6"].into_iter().zip(Wired::HERE) {
        cluster.api().create(&objects::endpoint_slice(&service, Some((address, "n1")), family));
    }
    service
}
