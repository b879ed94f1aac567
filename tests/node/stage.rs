//! The stage of a test: a node in its own network namespace, and a manifest of the cluster. A test scans the node and
//! the manifest.

use crate::named::is_of;
use std::{
    fmt::Write as _,
    fs::File,
    io::{Read as _, Write as _},
    os::fd::AsRawFd as _,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    thread,
};

use nix::sched::{CloneFlags, setns, unshare};
use serde_json::Value;
use tempfile::TempDir;

/// For each family, the primary address and the second address.
pub(crate) const ADDRESSES: [&str; 4] = ["192.0.2.1/24", "192.0.2.2/24", "2001:db8::1/64", "2001:db8::2/64"];
/// The InternalIP of the Node `n2`, at which no process answers.
pub(crate) const PEER: &str = "192.0.2.9";

/// The network namespace of the calling thread, which is node `n1`, and a manifest.
///
/// If a test opens sockets on the same thread, the sockets belong to the node. The namespace ends when the thread ends.
pub(crate) struct Stage {
    directory: TempDir,
    manifest: String,
}

impl Stage {
    /// `lo` is up, and `eth0` has the [`ADDRESSES`].
    #[track_caller]
    pub(crate) fn new() -> Self {
        unshare(CloneFlags::CLONE_NEWNET).expect("these tests make network namespaces: run them as root, `make test`");
        ip("link set lo up");
        ip("link add eth0 type veth peer name wire");
        ip("link set wire up");
        ip("link set eth0 up");
        for address in ADDRESSES {
            ip(&format!("address add {address} dev eth0{}", if address.contains(':') { " nodad" } else { "" }));
        }
        // Every cluster has this Service, so a complete file of Services contains it. Because of its label, no proxy
        // serves this Service.
        let manifest = "apiVersion: v1\nkind: Service\nmetadata: {name: kubernetes, labels: \
                        {service.kubernetes.io/headless: x}}\nspec: {}\n"
            .to_owned();
        let stage = Self { directory: TempDir::new().expect("a directory"), manifest };
        stage.node("n1", &["192.0.2.1", "2001:db8::1"]).node("n2", &[PEER])
    }

    pub(crate) fn document(mut self, yaml: &str) -> Self {
        self.manifest.push_str("---\n");
        self.manifest.push_str(yaml.trim_start_matches('\n'));
        self.manifest.push('\n');
        self
    }

    pub(crate) fn node(self, name: &str, addresses: &[&str]) -> Self {
        let mut yaml =
            format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, uid: uid-{name}}}\nstatus:\n  addresses:\n");
        for address in addresses {
            writeln!(yaml, "  - {{type: InternalIP, address: \"{address}\"}}").expect("writing to a string");
        }
        self.document(&yaml)
    }

    /// Adds a dual-stack Service `default/<name>` with one port, 80. `spec` has additional lines of the Service's spec.
    pub(crate) fn service(self, name: &str, protocol: &str, node_port: u16, spec: &str) -> Self {
        self.document(&format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default, uid: uid-{name}}}\nspec:\n  \
             type: NodePort\n  clusterIP: 10.96.0.10\n  ipFamilies: [IPv4, IPv6]\n  selector: {{app: {name}}}\n  ports:\n  \
             - {{port: 80, protocol: {protocol}, nodePort: {node_port}}}\n{spec}"
        ))
    }

    pub(crate) fn endpoints(self, service: &str, protocol: &str, node: Option<&str>) -> Self {
        [("IPv4", "10.244.0.5"), ("IPv6", "fd00:244::5")].into_iter().fold(self, |stage, (family, address)| {
            let endpoints = match node {
                Some(node) => {
                    format!("[{{addresses: [\"{address}\"], nodeName: {node}, conditions: {{ready: true}}}}]")
                }
                None => "[]".to_owned(),
            };
            stage.document(&format!(
                "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: {family}\nmetadata:\n  \
                 name: {service}-{}\n  namespace: default\n  labels: {{kubernetes.io/service-name: {service}}}\n\
                 ports: [{{name: \"\", port: 8080, protocol: {protocol}}}]\nendpoints: {endpoints}",
                family.to_lowercase()
            ))
        })
    }

    pub(crate) fn node_port_range(self, range: &str) -> Self {
        self.document(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: kube-apiserver-n1, namespace: kube-system, uid: uid-apiserver, \
             labels: {{component: kube-apiserver}}}}\nspec:\n  nodeName: n1\n  hostNetwork: true\n  containers:\n  \
             - name: kube-apiserver\n    command: [kube-apiserver, --service-node-port-range={range}]"
        ))
    }

    pub(crate) fn manifest(&self) -> PathBuf {
        let path = self.directory.path().join("cluster.yaml");
        std::fs::write(&path, &self.manifest).expect("a manifest");
        path
    }

    /// Writes the manifest, and a ConfigMap of kube-proxy for the mode in the arguments. From the ConfigMap, Portreeve
    /// knows kube-proxy's settings.
    pub(crate) fn manifest_with(&self, arguments: &[&str]) -> PathBuf {
        let path = self.manifest();
        if let Some([_, mode]) = arguments.windows(2).find(|pair| pair[0] == "--proxy-mode") {
            let settings = format!(
                "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: kube-proxy, namespace: kube-system}}\ndata:\n  \
                 config.conf: |\n    apiVersion: kubeproxy.config.k8s.io/v1alpha1\n    kind: KubeProxyConfiguration\n    \
                 mode: {mode}\n"
            );
            std::fs::write(&path, format!("{}{settings}", self.manifest)).expect("a manifest");
        }
        path
    }

    /// A path in the stage's directory. The directory is removed with the stage.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// If this thread starts the command, the command runs on this node.
    pub(crate) fn command(&self, command: &str) -> Command {
        let mut portreeve = portreeve();
        portreeve.arg(command).arg("--services").arg(self.manifest()).args(["--node", "n1"]);
        portreeve
    }

    #[track_caller]
    pub(crate) fn check(&self, arguments: &[&str]) -> Scan {
        let mut command = self.command("check");
        self.manifest_with(arguments);
        Scan::of(command.args(["-o", "json"]).args(arguments))
    }
}

/// The binary, without environment variables that could name a cluster.
pub(crate) fn portreeve() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portreeve"));
    command.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").env("HOME", "/nonexistent");
    command
}

pub(crate) struct Scan {
    pub(crate) code: i32,
    pub(crate) json: Value,
}

impl Scan {
    #[track_caller]
    pub(crate) fn of(command: &mut Command) -> Self {
        let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().expect("portreeve runs");
        let stderr = String::from_utf8_lossy(&stderr);
        let json = serde_json::from_slice(&stdout)
            .unwrap_or_else(|error| panic!("{error}: {}\n{stderr}", String::from_utf8_lossy(&stdout)));
        Self { code: status.code().expect("an exit code"), json }
    }

    pub(crate) fn findings<'a>(&'a self, rule: &str) -> Vec<&'a Value> {
        let findings = self.json["findings"].as_array().expect("findings");
        findings.iter().filter(|finding| is_of(finding, rule)).collect()
    }

    #[track_caller]
    pub(crate) fn finding(&self, rule: &str, subject: &str) -> Finding<'_> {
        self.find(rule, subject).unwrap_or_else(|| panic!("no {rule} of {subject} in {:#}", self.json))
    }

    pub(crate) fn find(&self, rule: &str, subject: &str) -> Option<Finding<'_>> {
        self.findings(rule).into_iter().find(|finding| finding["subject"]["name"] == subject).map(Finding)
    }

    pub(crate) fn alarms(&self) -> Vec<&Value> {
        let findings = self.json["findings"].as_array().expect("findings");
        findings.iter().filter(|finding| finding["severity"] != "info").collect()
    }

    /// Every unknown fact as `source: why`.
    pub(crate) fn unknown(&self) -> Vec<String> {
        let word = |value: &Value| value.as_str().expect("a word").to_owned();
        let unknown = self.json["unknown"].as_array().expect("unknown");
        let mut unknown: Vec<_> =
            unknown.iter().map(|it| format!("{}: {}", word(&it["source"]), word(&it["why"]))).collect();
        unknown.sort();
        unknown.dedup();
        unknown
    }
}

pub(crate) struct Finding<'a>(pub &'a Value);

impl Finding<'_> {
    /// The severity and the values of `affects`, for example `critical remote node pods`.
    pub(crate) fn verdict(&self) -> String {
        let affects = self.0["affects"].as_array().cloned().unwrap_or_default();
        let words = std::iter::once(&self.0["severity"]).chain(&affects).filter_map(Value::as_str);
        words.collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn evidence(&self) -> String {
        let evidence = self.0["evidence"].as_array().expect("evidence");
        evidence.iter().fold(String::new(), |mut text, it| {
            writeln!(text, "{} = {}", it["name"].as_str().expect("a name"), it["value"].as_str().expect("a value"))
                .expect("writing to a string");
            text
        })
    }

    pub(crate) fn remedy(&self) -> String {
        let remedy = self.0["remedy"].as_array().expect("remedy");
        remedy.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
    }
}

#[track_caller]
pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("`ip` of iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Adds a rule to a table, as network plugins do.
#[track_caller]
pub(crate) fn iptables(table: &str, arguments: &str) {
    let status = Command::new("iptables-nft").args(["-w", "-t", table]).args(arguments.split(' ')).status();
    assert!(status.expect("the program iptables-nft, of the package iptables").success(), "{arguments}");
}

/// Another network namespace. The namespace ends when this value is dropped.
pub(crate) struct Elsewhere(Child);

impl Elsewhere {
    pub(crate) fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo; exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("`unshare` of util-linux is installed");
        child.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("the namespace exists");
        Self(child)
    }

    /// A namespace with a link to the node. The node has the address `here` on its link `name`, and is the router of
    /// the address `there` in the namespace.
    pub(crate) fn linked(name: &str, here: &str, there: &str) -> Self {
        let elsewhere = Self::new();
        ip(&format!("link add {name} type veth peer name far"));
        ip(&format!("link set far netns {}", elsewhere.pid()));
        ip(&format!("link set {name} up"));
        ip(&format!("address add {here}/24 dev {name}"));
        elsewhere.ip("link set far up");
        elsewhere.ip(&format!("address add {there}/24 dev far"));
        elsewhere.ip(&format!("route add default via {here}"));
        elsewhere
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn ip(&self, arguments: &str) {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.pid().to_string(), "ip"]).args(arguments.split(' '));
        assert!(command.status().expect("`nsenter` of util-linux is installed").success(), "ip {arguments}");
    }

    /// Sockets that the job opens stay in this namespace.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let namespace = File::open(format!("/proc/{}/ns/net", self.pid())).expect("the process runs");
        let running = thread::spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET).expect("root may enter the namespace");
            job()
        });
        running.join().expect("a result")
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.0.kill().expect("the process runs");
        self.0.wait().expect("the process ends");
    }
}

#[track_caller]
pub(crate) fn ip_batch(lines: &str) {
    let mut child =
        Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().expect("`ip` of iproute2 is installed");
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("writing to ip");
    assert!(child.wait().expect("ip ends").success());
}

#[track_caller]
pub(crate) fn sysctl(name: &str, value: &str) {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    std::fs::write(&path, format!("{value}\n")).unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// Makes a socket whose connection to `remote` stays in SYN-SENT, because `remote` does not answer.
#[track_caller]
pub(crate) fn connecting(local: &str, remote: &str) -> std::os::fd::OwnedFd {
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
    };
    let address =
        |text: &str| SockaddrStorage::from(text.parse::<std::net::SocketAddr>().expect("an address and port"));
    let family = if local.starts_with('[') { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let fd =
        socket(family, SockType::Stream, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    setsockopt(&fd, sockopt::ReuseAddr, &true).expect("SO_REUSEADDR");
    bind(fd.as_raw_fd(), &address(local)).expect("the local port is free");
    let connected = connect(fd.as_raw_fd(), &address(remote));
    assert_eq!(connected, Err(nix::errno::Errno::EINPROGRESS), "no server answers at {remote}");
    fd
}
