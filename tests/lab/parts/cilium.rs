//! Cilium's agent, which replaces kube-proxy, and a pod whose network Cilium makes.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio, id},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use nix::unistd::gettid;
use serde_json::{Map, Value, json};

use super::{control_plane::ControlPlane, directory::Directory, namespace::Namespace, process::Process, programs};

/// The lab's settings of Cilium that differ from the chart's defaults, for example no proxies, small tables, and no
/// tunnels.
const OURS: [(&str, Option<&str>); 29] = [
    ("enable-ipv6", Some("true")),
    ("kube-proxy-replacement", Some("true")),
    ("ipam", Some("kubernetes")),
    ("procfs", Some("/proc")),
    ("enable-l7-proxy", Some("false")),
    ("external-envoy-proxy", Some("false")),
    ("enable-hubble", Some("false")),
    ("enable-health-checking", Some("false")),
    ("enable-endpoint-health-checking", Some("false")),
    ("enable-dynamic-config", Some("false")),
    ("enable-policy-secrets-sync", Some("false")),
    ("remove-cilium-node-taints", Some("false")),
    ("set-cilium-node-taints", Some("false")),
    ("write-cni-conf-when-ready", None),
    ("cni-exclusive", Some("false")),
    ("bpf-map-dynamic-size-ratio", None),
    ("bpf-ct-global-tcp-max", Some("65536")),
    ("bpf-ct-global-any-max", Some("65536")),
    ("bpf-nat-global-max", Some("65536")),
    ("bpf-neigh-global-max", Some("65536")),
    ("bpf-lb-sock-rev-nat-map-max", Some("65536")),
    ("routing-mode", Some("native")),
    ("tunnel-protocol", None),
    ("auto-direct-node-routes", Some("false")),
    ("enable-ipv4-masquerade", Some("true")),
    ("enable-ipv6-masquerade", Some("true")),
    ("ipv4-native-routing-cidr", Some("10.244.0.0/16")),
    ("ipv6-native-routing-cidr", Some("fd00:244::/48")),
    ("devices", Some("eth0")),
];

/// The time limit for the agent to compile its programs while other agents compile too.
const COMPILING: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The version of `tests/lab/cilium-1.20`.
    Newest,
    /// The version of `tests/lab/cilium-1.19`.
    Before,
}

impl Release {
    fn program(self, of_newest: &str) -> String {
        match self {
            Self::Newest => of_newest.to_owned(),
            Self::Before => format!("{of_newest}-before"),
        }
    }

    /// The folder with the sources of this version: the programs for the kernel (`bpf`), the custom resources (`crds`)
    /// and the chart.
    fn sources(self) -> PathBuf {
        programs::find(&self.program("cilium-agent")).with_file_name("sources")
    }

    #[track_caller]
    pub fn version(self) -> String {
        let chart =
            fs::read_to_string(self.sources().join("chart/Chart.yaml")).expect("`make nightly` has put it there");
        let chart: Value = serde_saphyr::from_str(&chart).expect("YAML");
        chart["appVersion"].as_str().expect("a version").to_owned()
    }
}

/// A control group for threads of this process. Cilium handles the sockets of these threads.
pub struct Inside(PathBuf);

impl Inside {
    #[track_caller]
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = Self::outside().join(format!("portreeve-lab-{}-{number}-cilium", id()));
        fs::create_dir(&path).expect("control groups can be made: run these tests as root");
        fs::write(path.join("cgroup.type"), "threaded").expect("a group of threads");
        Self(path)
    }

    /// Moves the calling thread into the group. Threads that the calling thread starts later are in the group too.
    #[track_caller]
    pub fn join(path: &Path) {
        fs::write(path.join("cgroup.threads"), gettid().to_string()).expect("a thread can join");
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    fn outside() -> PathBuf {
        let places = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let mount = places.into_iter().find(|place| place.join("cgroup.controllers").exists());
        let own = fs::read_to_string("/proc/self/cgroup").expect("control groups");
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).expect("a cgroup2 hierarchy");
        mount.expect("a cgroup2 hierarchy is mounted").join(own)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        Self::join(&Self::outside());
        // A thread that has ended leaves the group a moment later, so the removal is repeated.
        super::until("end of a control group", || fs::remove_dir(&self.0).ok());
    }
}

/// Cilium's agent of node `n1`. The calling thread must be in this node's network namespace.
pub struct Cilium {
    /// The settings of the agent, as in the ConfigMap `cilium-config`.
    pub settings: Map<String, Value>,
    release: Release,
    process: Process,
    _directory: Directory,
}

impl Cilium {
    /// Creates the Node with the given addresses, and other objects that must exist before Cilium's agent starts.
    #[track_caller]
    pub fn prepare(cluster: &ControlPlane, release: Release, addresses: &[&str]) {
        for folder in ["v2", "v2alpha1"] {
            let folder = release.sources().join("crds").join(folder);
            let entries = fs::read_dir(&folder).expect("`make nightly` has put it there");
            let paths = entries.map(|it| it.expect("an entry").path());
            for path in paths.filter(|it| it.extension().is_some_and(|it| it == "yaml")) {
                let text = fs::read_to_string(path).expect("a definition");
                cluster.api().create(&serde_saphyr::from_str::<Value>(&text).expect("YAML"));
            }
        }
        let mut node = super::objects::node("n1", addresses);
        node["spec"] = json!({"podCIDR": "10.244.8.0/24", "podCIDRs": ["10.244.8.0/24", "fd00:244:0:8::/64"]});
        cluster.api().create(&node);
        cluster.api().create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cilium-secrets"}}));
    }

    /// Starts the agent with additional settings, and waits until its BPF programs are attached. These programs see the
    /// sockets of the control group.
    #[track_caller]
    pub fn start(cluster: &ControlPlane, release: Release, inside: &Inside, settings: &[(&str, &str)]) -> Self {
        let directory = Directory::new();
        let settings = all_settings(release, settings);
        let config = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "cilium-config", "namespace": "kube-system"},
            "data": settings,
        });
        cluster.api().create(&config);
        // These settings are paths on this machine, so they are not in the ConfigMap.
        let folder = directory.path().join("config");
        fs::create_dir(&folder).expect("a folder");
        let local = json!({
            "k8s-kubeconfig-path": cluster.kubeconfig("admin"),
            "lib-dir": release.sources(),
        });
        for (name, value) in settings.iter().chain(local.as_object().expect("settings")) {
            fs::write(folder.join(name), value.as_str().expect("a text")).expect("a file");
        }
        let start = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/cilium-1.20/start");
        let command = [start.as_path(), inside.path(), directory.path()].map(|it| it.display().to_string());
        let arguments = [format!("--config-dir={}", folder.display())];
        let mut process = Process::start_by(&command, &release.program("cilium-agent"), &arguments, directory.path());
        let root = PathBuf::from(format!("/proc/{}/root", process.pid()));
        let replaces = settings["kube-proxy-replacement"] == "true";
        process.wait_within(COMPILING, "programs of Cilium", || {
            let pins = root.join("sys/fs/bpf/cilium");
            let attached = pins.join("devices/eth0/links/cil_from_netdev").exists();
            let sockets = pins.join("socketlb/links/cgroup/cil_sock4_connect").exists();
            let api = root.join("run/cilium/cilium.sock").exists();
            (attached && api && (sockets || !replaces)).then_some(())
        });
        Self { settings, release, process, _directory: directory }
    }

    /// Connects the namespace to Cilium's network as a pod. Returns the pod's addresses, IPv4 first.
    #[track_caller]
    pub fn add(&mut self, cluster: &ControlPlane, pod: &Namespace) -> Vec<String> {
        cluster.api().create(&super::objects::service_account());
        cluster.api().create(&json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "own", "namespace": "default", "labels": {"app": "own"}},
            "spec": {
                "nodeName": "n1",
                "automountServiceAccountToken": false,
                "containers": [{"name": "own", "image": "own"}],
            },
        }));
        let network = json!({"cniVersion": "1.0.0", "name": "cilium", "type": "cilium-cni"}).to_string();
        let plugin = programs::find(&self.release.program("cilium-cni"));
        let mut child = Command::new("nsenter")
            .args([&format!("--target={}", self.process.pid()), "--mount", "--net", "--cgroup", "--"])
            .arg(&plugin)
            .env("CNI_COMMAND", "ADD")
            .env("CNI_CONTAINERID", "0123456789ab")
            .env("CNI_NETNS", pod.path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", plugin.parent().expect("a folder"))
            .env(
                "CNI_ARGS",
                "K8S_POD_NAME=own;K8S_POD_NAMESPACE=default;K8S_POD_INFRA_CONTAINER_ID=0123456789ab;IgnoreUnknown=1",
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("nsenter of util-linux is installed");
        child.stdin.take().expect("a pipe").write_all(network.as_bytes()).expect("it reads its network");
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        let result: Value = serde_json::from_str(&said).expect("a result");
        let addresses = result["ips"].as_array().expect("addresses").iter();
        let addresses = addresses.map(|it| it["address"].as_str().expect("an address").split('/').next());
        let mut addresses: Vec<String> = addresses.map(|it| it.expect("an address").to_owned()).collect();
        addresses.sort_by_key(|it| it.contains(':'));
        addresses
    }

    #[track_caller]
    pub fn wait_for<T>(&mut self, what: &str, probe: impl FnMut() -> Option<T>) -> T {
        self.process.wait_for(what, probe)
    }
}

/// The settings of the chart, then the lab's settings, then further settings. An empty value removes a setting of the
/// lab.
#[track_caller]
fn all_settings(release: Release, further: &[(&str, &str)]) -> Map<String, Value> {
    let output = Command::new(programs::find("helm"))
        .args(["template", "cilium"])
        .arg(release.sources().join("chart"))
        .args(["--namespace", "kube-system", "--show-only", "templates/cilium-configmap.yaml"])
        .args([
            "--set",
            "kubeProxyReplacement=true",
            "--set",
            "k8sServiceHost=127.0.0.1",
            "--set",
            "k8sServicePort=6443",
        ])
        .output()
        .expect("helm runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let charts: Value = serde_saphyr::from_str(&text).expect("YAML");
    let mut settings = charts["data"].as_object().expect("settings").clone();
    let further = further.iter().map(|(name, value)| (*name, Some(*value).filter(|it| !it.is_empty())));
    for (name, value) in OURS.into_iter().chain(further) {
        match value {
            Some(value) => settings.insert(name.to_owned(), json!(value)),
            None => settings.remove(name),
        };
    }
    settings
}
