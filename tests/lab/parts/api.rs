//! A client of the API server that sends and receives plain JSON.

use std::path::Path;

use http::Request;
use http_body_util::BodyExt as _;
use kube::{
    Client, Config, Error,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

/// The client connects from the network namespace of the calling thread.
pub struct Api {
    runtime: Runtime,
    client: Client,
}

impl Api {
    /// Returns `None` if the kubeconfig's files do not exist yet.
    pub fn of(kubeconfig: &Path) -> Option<Self> {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
        let (runtime, options) = (runtime(), KubeConfigOptions::default());
        let config = runtime.block_on(Config::from_custom_kubeconfig(kubeconfig, &options)).ok()?;
        Self::by(runtime, config)
    }

    /// A client that returns each refusal at once. By default, the library repeats a refused request for minutes.
    #[track_caller]
    pub fn unrepeated(kubeconfig: &Path) -> Self {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
        let (runtime, options) = (runtime(), KubeConfigOptions::default());
        let config = runtime.block_on(Config::from_custom_kubeconfig(kubeconfig, &options));
        let mut config = config.expect("its files");
        config.default_retry = false;
        Self::by(runtime, config).expect("a client")
    }

    #[track_caller]
    pub fn at(url: &str) -> Self {
        Self::by(runtime(), Config::new(url.parse().expect("a URL"))).expect("no files to wait for")
    }

    fn by(runtime: Runtime, config: Config) -> Option<Self> {
        // Makes the client inside the runtime, because a client belongs to one runtime.
        let client = runtime.block_on(async { Client::try_from(config) }).ok()?;
        Some(Self { runtime, client })
    }

    pub fn text(&self, path: &str) -> Option<String> {
        let request = Request::get(path).body(Vec::new()).expect("a path");
        self.runtime.block_on(self.client.request_text(request)).ok()
    }

    pub fn text_with(&self, path: &str, header: &str, value: &str) -> Option<String> {
        let request = Request::get(path).header(header, value).body(Vec::new()).expect("a path");
        self.runtime.block_on(self.client.request_text(request)).ok()
    }

    /// The body of the answer to a `GET`, even if the server refuses the request.
    ///
    /// # Panics
    /// Panics if the server does not answer.
    #[track_caller]
    pub fn answer(&self, path: &str) -> String {
        let request = Request::get(path).body(Body::empty()).expect("a path");
        let body = self.runtime.block_on(async {
            let response = self.client.send(request).await.expect("an answer");
            response.into_body().collect().await.expect("a body").to_bytes()
        });
        String::from_utf8(body.into()).expect("a text")
    }

    /// Creates an object. Returns the stored object, or the reason of the refusal.
    ///
    /// # Panics
    /// Panics if the server does not answer.
    #[track_caller]
    pub fn try_create(&self, object: &Value) -> Result<Value, String> {
        self.post(&format!("{}?fieldManager=lab", collection(object)), object)
    }

    #[track_caller]
    pub fn create(&self, object: &Value) -> Value {
        self.try_create(object).unwrap_or_else(|refusal| panic!("{refusal}: {object:#}"))
    }

    /// Creates a Pod, and writes these addresses into its status, as a kubelet does when the pod's network is ready.
    #[track_caller]
    pub fn create_running(&self, pod: &Value, addresses: &[&str]) {
        self.create(pod);
        let addresses: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
        let status = json!({"status": {"phase": "Running", "podIP": addresses[0]["ip"], "podIPs": addresses}});
        let to = format!("{}/status", path(pod));
        self.send("PATCH", &to, "application/merge-patch+json", &status)
            .unwrap_or_else(|refusal| panic!("{refusal}: {status:#}"));
    }

    /// Sends an object to a path, and returns the answer, or the reason of the refusal.
    ///
    /// # Panics
    /// Panics if the server does not answer.
    #[track_caller]
    pub fn post(&self, path: &str, object: &Value) -> Result<Value, String> {
        self.send("POST", path, "application/json", object)
    }

    /// Sends an object with a method and a media type to a path.
    ///
    /// # Panics
    /// Panics if the server does not answer.
    #[track_caller]
    pub fn send(&self, method: &str, path: &str, media_type: &str, object: &Value) -> Result<Value, String> {
        let body = serde_json::to_vec(object).expect("an object");
        let request = Request::builder().method(method).uri(path).header("content-type", media_type);
        let request = request.body(body).expect("a path");
        self.runtime.block_on(self.client.request(request)).map_err(|error| match error {
            Error::Api(status) => status.message,
            error => panic!("{error}"),
        })
    }

    #[track_caller]
    pub fn delete(&self, object: &Value) {
        let request = Request::delete(path(object)).body(Vec::new()).expect("a path");
        self.runtime.block_on(self.client.request_text(request)).expect("it may be deleted");
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn path(object: &Value) -> String {
    format!("{}/{}", collection(object), object["metadata"]["name"].as_str().expect("a name"))
}

fn collection(object: &Value) -> String {
    let word = |value: &Value| value.as_str().expect("a word").to_owned();
    let version = word(&object["apiVersion"]);
    let root = if version.contains('/') { "/apis" } else { "/api" };
    let namespace = object["metadata"]["namespace"].as_str();
    let namespace = namespace.map(|name| format!("namespaces/{name}/")).unwrap_or_default();
    format!("{root}/{version}/{namespace}{}s", word(&object["kind"]).to_lowercase())
}
