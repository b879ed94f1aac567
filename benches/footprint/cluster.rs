//! Services as clusters have them: written by a tool that leaves its annotation, with labels and managedFields.

use std::{path::Path, thread};

use serde_json::{Value, json};

use crate::parts::{Api, objects};

/// How many clients write at once.
const WRITERS: usize = 4;

/// Creates Services with an EndpointSlice each, the first `node_ports` of them with a NodePort. Returns how long a
/// Service is on average, in bytes of JSON as the server keeps it.
pub fn fill(kubeconfig: &Path, services: usize, node_ports: usize) -> usize {
    let write = |writer: usize| {
        let api = Api::of(kubeconfig).expect("a kubeconfig");
        let mut bytes = 0;
        for number in (writer..services).step_by(WRITERS) {
            let kept = api.create(&service(number, number < node_ports));
            bytes += kept.to_string().len();
            api.create(&endpoints(&kept, number));
        }
        bytes
    };
    let bytes: usize = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
        writers.into_iter().map(|writer| writer.join().expect("a writer that does not panic")).sum()
    });
    bytes / services
}

fn service(number: usize, node_port: bool) -> Value {
    let name = format!("checkout-service-{number:04}");
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
        // One port: two NodePorts each are more than the range has.
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

/// Three endpoints, none on this node.
fn endpoints(service: &Value, number: usize) -> Value {
    let mut slice = objects::endpoint_slice(service, Some(("10.1.0.1", "n2")), "IPv4");
    let one = slice["endpoints"][0].clone();
    let many = (1..=3).map(|replica| {
        let mut endpoint = one.clone();
        endpoint["addresses"] = json!([format!("10.{}.{}.{replica}", 1 + number / 250, number % 250)]);
        endpoint
    });
    slice["endpoints"] = many.collect();
    slice
}
