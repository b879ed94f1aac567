//! Services as in real clusters: with labels, with managedFields, and with the annotation of the tool that made the
//! Service.

use serde_json::{Value, json};

use crate::parts::{Api, objects};

/// Returns the Service and its EndpointSlice, as the API server stores them.
pub fn create(api: &Api, number: usize, node_port: bool) -> (Value, Value) {
    let kept = api.create(&service(number, node_port));
    let endpoints = api.create(&endpoints(&kept, number));
    (kept, endpoints)
}

pub fn service(number: usize, node_port: bool) -> Value {
    let name = format!("checkout-service-{number:05}");
    let mut service = objects::service(&name, &[objects::port(80, None), objects::port(9090, None)]);
    let labels = json!({
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/instance": format!("team-{}", number % 97),
        "app.kubernetes.io/managed-by": "Helm",
        "app.kubernetes.io/version": "4.17.2",
        "helm.sh/chart": "checkout-service-4.17.2",
    });
    service["metadata"]["labels"] = labels.clone();
    service["spec"]["selector"] = labels;
    service["spec"]["ipFamilyPolicy"] = json!("SingleStack");
    if node_port {
        // Keeps only one port of the Service: with two NodePorts for each Service, the NodePort range would be too
        // small.
        service["spec"]["ports"].as_array_mut().expect("ports").truncate(1);
    } else {
        service["spec"]["type"] = json!("ClusterIP");
    }
    let applied = service.to_string();
    service["metadata"]["annotations"] = json!({
        "kubectl.kubernetes.io/last-applied-configuration": applied,
        "meta.helm.sh/release-name": name,
        "meta.helm.sh/release-namespace": "default",
    });
    service
}

/// An EndpointSlice with three endpoints on other nodes.
pub fn endpoints(service: &Value, number: usize) -> Value {
    let mut slice = objects::endpoint_slice(service, Some(("10.1.0.1", "n2")), "IPv4");
    let one = slice["endpoints"][0].clone();
    let many = (1..=3).map(|replica| {
        let mut endpoint = one.clone();
        endpoint["addresses"] = json!([format!("10.{}.{}.{replica}", 1 + number / 250 % 90, number % 250)]);
        endpoint
    });
    slice["endpoints"] = many.collect();
    slice
}
