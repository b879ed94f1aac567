//! Services by the ten thousand. For each that it creates, kube-apiserver walks all cluster addresses twice, to count
//! them. So it creates some, and etcd is given copies of what it keeps of these.

use std::{collections::BTreeSet, net::Ipv4Addr, ops::Range, thread};

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::{
    cluster::{create, endpoints, service},
    parts::{Api, ControlPlane},
};

/// How many clients write at once.
const WRITERS: usize = 4;
/// Services that are copies of one.
const BATCH: usize = 4_096;
/// How many addresses are written before the Service of the first of them. The API server repairs a Service whose address it
/// has not seen yet, and an address of a minute ago without a Service.
const LEAD: usize = 1_000;
/// The first address of the range of the lab that the API server gives to whoever asks for none.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 96, 1, 0);
/// The path of the addresses that Services have.
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";

/// Adds Services with an EndpointSlice each; every other one has a NodePort, `node_ports` of all at most. These the API
/// server creates itself: it has a record of NodePorts.
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

/// Adds Services, the first of which the API server creates.
fn copies(cluster: &ControlPlane, numbers: &[usize]) {
    let model = Kept::of_new(cluster, numbers[0]);
    let others = numbers[1..].iter().zip(free(cluster));
    let copies: Vec<Kept> = others.map(|(number, address)| model.copy(*number, address)).collect();
    let (etcd, lead) = (cluster.etcd(), LEAD.min(copies.len()));
    for at in 0..copies.len() + lead {
        let behind = at.checked_sub(lead).and_then(|at| copies.get(at));
        let puts = [copies.get(at).map(Kept::address), behind.map(Kept::endpoints), behind.map(Kept::service)];
        let puts: Vec<Value> = puts.into_iter().flatten().collect();
        // One of a kind: who watches takes it that no two objects of a kind have the same version.
        etcd.post("/v3/kv/txn", &json!({"success": puts})).unwrap_or_else(|refusal| panic!("{refusal}"));
    }
}

/// Addresses that no Service has.
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

/// What the API server keeps of one Service.
struct Kept {
    service: Value,
    endpoints: Value,
    address: Value,
}

impl Kept {
    /// Of one that it creates.
    fn of_new(cluster: &ControlPlane, number: usize) -> Self {
        let (service, endpoints) = create(cluster.api(), number, false);
        let address = service["spec"]["clusterIP"].as_str().expect("an address");
        let address = get(cluster, &format!("{ADDRESSES}/{address}"));
        Self { service, endpoints, address }
    }

    /// Of another one.
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

/// How an object is put where the API server keeps its like: it writes protobuf there, but reads JSON too.
fn put(place: &str, object: &Value) -> Value {
    let bytes = |text: String| ByteString(text.into_bytes());
    let name = object["metadata"]["name"].as_str().expect("a name");
    json!({"requestPut": {"key": bytes(format!("/registry/{place}/{name}")), "value": bytes(object.to_string())}})
}

/// An object with a uid of its own, as another one is kept but for what is wanted of it. etcd knows its version.
fn instead(kept: &Value, wanted: &Value, number: usize) -> Value {
    let mut object = over(kept, wanted);
    let uid = kept["metadata"]["uid"].as_str().expect("a uid");
    object["metadata"]["uid"] = json!(format!("{}{number:012x}", &uid[..uid.len() - 12]));
    object["metadata"].as_object_mut().expect("metadata").remove("resourceVersion");
    object
}

/// One value laid over another: what it does not name stays.
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
