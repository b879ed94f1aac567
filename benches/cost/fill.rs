//! Makes tens of thousands of Services. For each new Service, kube-apiserver walks all cluster addresses twice to count
//! them. So kube-apiserver creates only a few Services, and copies of these Services are written into etcd.

use std::{collections::BTreeSet, net::Ipv4Addr, ops::Range, thread};

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::{
    cluster::{create, endpoints, service},
    parts::{Api, ControlPlane},
};

const WRITERS: usize = 4;
/// The number of Services in a batch: the API server creates the first Service, and the others are copies.
const BATCH: usize = 4_096;
/// The number of addresses that are written before the first of their Services. If the API server does not know the
/// address of a Service, the API server changes the Service. If an address has no Service for a minute, the API server
/// deletes the address.
const LEAD: usize = 1_000;
/// The first address of the lab's range from which the API server allocates addresses.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 96, 1, 0);
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";

/// Every second Service has a NodePort, up to `node_ports` in all. Only the API server creates Services with a
/// NodePort, because it also records the NodePort as used.
pub fn services(cluster: &ControlPlane, numbers: Range<usize>, node_ports: usize) {
    let (with, without): (Vec<usize>, Vec<usize>) =
        numbers.partition(|number| number % 2 == 0 && number / 2 < node_ports);
    let write = &|writer: usize| {
        let api = Api::of(&cluster.kubeconfig("admin")).expect("a kubeconfig");
        for number in with.iter().skip(writer).step_by(WRITERS) {
            create(&api, *number, true);
        }
    };
    thread::scope(|scope| (0..WRITERS).for_each(|writer| drop(scope.spawn(move || write(writer)))));
    for batch in without.chunks(BATCH) {
        copies(cluster, batch);
    }
}

fn copies(cluster: &ControlPlane, numbers: &[usize]) {
    let model = Kept::of_new(cluster, numbers[0]);
    let others = numbers[1..].iter().zip(free(cluster));
    let copies: Vec<Kept> = others.map(|(number, address)| model.copy(*number, address)).collect();
    let (etcd, lead) = (cluster.etcd(), LEAD.min(copies.len()));
    for at in 0..copies.len() + lead {
        let behind = at.checked_sub(lead).and_then(|at| copies.get(at));
        let puts = [copies.get(at).map(Kept::address), behind.map(Kept::endpoints), behind.map(Kept::service)];
        let puts: Vec<Value> = puts.into_iter().flatten().collect();
        // A request writes at most one object of each kind, because a watch expects that no two objects of a kind have
        // the same version.
        etcd.post("/v3/kv/txn", &json!({"success": puts})).unwrap_or_else(|refusal| panic!("{refusal}"));
    }
}

fn free(cluster: &ControlPlane) -> impl Iterator<Item = Ipv4Addr> {
    let list = get(cluster, ADDRESSES);
    let names = list["items"].as_array().expect("a list").iter().filter_map(|item| item["metadata"]["name"].as_str());
    let taken: BTreeSet<Ipv4Addr> = names.filter_map(|name| name.parse().ok()).collect();
    (FIRST.to_bits()..).map(Ipv4Addr::from_bits).filter(move |address| !taken.contains(address))
}

fn get(cluster: &ControlPlane, path: &str) -> Value {
    let text = cluster.api().text(path).unwrap_or_else(|| panic!("no {path}"));
    serde_json::from_str(&text).expect("JSON")
}

struct Kept {
    service: Value,
    endpoints: Value,
    address: Value,
}

impl Kept {
    fn of_new(cluster: &ControlPlane, number: usize) -> Self {
        let (service, endpoints) = create(cluster.api(), number, false);
        let address = service["spec"]["clusterIP"].as_str().expect("an address");
        let address = get(cluster, &format!("{ADDRESSES}/{address}"));
        Self { service, endpoints, address }
    }

    fn copy(&self, number: usize, address: Ipv4Addr) -> Self {
        let mut wanted = service(number, false);
        wanted["spec"]["clusterIP"] = json!(address);
        wanted["spec"]["clusterIPs"] = json!([address]);
        let service = instead(&self.service, &wanted, number);
        let endpoints = instead(&self.endpoints, &endpoints(&service, number), number);
        let wanted =
            json!({"metadata": {"name": address}, "spec": {"parentRef": {"name": service["metadata"]["name"]}}});
        let address = instead(&self.address, &wanted, number);
        Self { service, endpoints, address }
    }

    fn service(&self) -> Value {
        put("services/specs/default", &self.service)
    }

    fn endpoints(&self) -> Value {
        put("endpointslices/default", &self.endpoints)
    }

    fn address(&self) -> Value {
        put("ipaddresses", &self.address)
    }
}

/// The object is written as JSON. The API server writes protobuf, but also reads JSON.
fn put(place: &str, object: &Value) -> Value {
    let bytes = |text: String| ByteString(text.into_bytes());
    let name = object["metadata"]["name"].as_str().expect("a name");
    json!({"requestPut": {"key": bytes(format!("/registry/{place}/{name}")), "value": bytes(object.to_string())}})
}

/// Copies `kept`, with the fields of `wanted` and a new uid, and without a version, because etcd keeps versions.
fn instead(kept: &Value, wanted: &Value, number: usize) -> Value {
    let mut object = over(kept, wanted);
    let uid = kept["metadata"]["uid"].as_str().expect("a uid");
    object["metadata"]["uid"] = json!(format!("{}{number:012x}", &uid[..uid.len() - 12]));
    object["metadata"].as_object_mut().expect("metadata").remove("resourceVersion");
    object
}

/// Merges two objects. A field of `above` replaces the same field of `below`.
fn over(below: &Value, above: &Value) -> Value {
    match (below, above) {
        (Value::Object(below), Value::Object(above)) => {
            let mut object = below.clone();
            for (name, value) in above {
                let field = object.entry(name).or_insert(Value::Null);
                *field = over(field, value);
            }
            Value::Object(object)
        }
        (Value::Array(below), Value::Array(above)) if below.len() == above.len() => {
            below.iter().zip(above).map(|(below, above)| over(below, above)).collect()
        }
        _ => above.clone(),
    }
}
