//! The node `n1` with all programs that run pods, and the other parts of its cluster.

use std::cell::OnceCell;

use serde_json::{Value, json};

use super::{
    agent::until,
    commands::Person,
    containerd,
    control_plane::ControlPlane,
    controllers, images,
    kubectl::kubectl,
    kubelet,
    machine::Machine,
    node::{PRIMARY, Wired},
    process::Process,
    proxy::Proxy,
    talk::http_get_with,
};

const TOKEN: [&str; 6] = ["create", "token", "portreeve-reader", "--audience=portreeve/n1", "-n", "portreeve"];

/// With `--endpoint-reconciler-type`, the Service `kubernetes` leads to the API server. With
/// `--kubelet-preferred-address-types`, the API server reaches kubelets by address, not by name.
const API_SERVER: [&str; 2] =
    ["--endpoint-reconciler-type=master-count", "--kubelet-preferred-address-types=InternalIP"];

/// A cluster of one node that runs pods like a real node: with kubelet, containerd, runc, CNI plugins, and kube-proxy
/// in iptables mode. The control plane is in the calling thread's network namespace.
pub struct WholeNode {
    pub machine: Machine,
    proxy: Option<Proxy>,
    _controllers: [Process; 2],
    pub cluster: ControlPlane,
    pub wired: Wired,
    token: OnceCell<String>,
}

impl WholeNode {
    #[track_caller]
    pub fn start() -> Self {
        let wired = Wired::enter();
        let mut machine = Machine::start();
        let cluster = ControlPlane::on(PRIMARY[0], &API_SERVER);
        let controllers = controllers::start(&cluster, machine.directory());
        containerd::start(&mut machine);
        kubelet::start(&mut machine, &cluster, "n1", PRIMARY);
        let proxy = Proxy::start_by(&machine.command(), &cluster, "iptables", &json!({}));
        Self { machine, proxy: Some(proxy), _controllers: controllers, cluster, wired, token: OnceCell::new() }
    }

    /// `None` if the agent does not answer.
    pub fn findings(&self) -> Option<String> {
        let token = self.token.get_or_init(|| kubectl(&self.cluster, &TOKEN).trim().to_owned());
        http_get_with("192.0.2.1:29517", "/findings", &format!("Portreeve-Token: {token}\r\n"))
    }

    pub fn person(&self) -> Person<'_> {
        Person::of(&self.cluster)
    }

    /// Stops kube-proxy. Its rules stay.
    pub fn stop_proxy(&mut self) {
        self.proxy = None;
    }

    /// Makes a namespace, and waits until pods can be started in it.
    #[track_caller]
    pub fn namespace(&self, name: &str) {
        self.cluster.api().create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
        until("service account", || {
            self.cluster.api().text(&format!("/api/v1/namespaces/{name}/serviceaccounts/default"))
        });
    }

    /// The pod's label `app` is the pod's name. `more` has further fields of the pod's spec.
    #[track_caller]
    pub fn stranger(&self, namespace: &str, name: &str, arguments: &[&str], more: &Value) {
        let container = json!({"name": "stranger", "image": images::STRANGER, "args": arguments});
        let mut spec = json!({"containers": [container], "terminationGracePeriodSeconds": 0});
        for (name, value) in more.as_object().expect("fields") {
            spec[name] = value.clone();
        }
        let metadata = json!({"name": name, "namespace": namespace, "labels": {"app": name}});
        self.cluster.api().create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}));
        until("running pod", || {
            (self.read(&format!("/api/v1/namespaces/{namespace}/pods/{name}"))?["status"]["phase"] == "Running")
                .then_some(())
        });
    }

    pub fn read(&self, path: &str) -> Option<Value> {
        let text = self.cluster.api().text(path)?;
        Some(serde_json::from_str(&text).expect("JSON"))
    }
}
