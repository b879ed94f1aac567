//! Healthy nodes as in practice: real sockets of processes with the usual names cause no finding above info. Each test
//! then makes one conflict that a rule must report. So a test also shows that the rules read the node.
//!
//! The sockets, processes and addresses are real. A test process answers in place of kube-proxy. For ipvs, the test
//! makes only a link with the right name. `tests/lab/healthy.rs` tests real proxies.

use crate::named::name;
use std::{
    io::Read as _,
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
};

use crate::{
    proxy::{StandIn, serve},
    stage::{Scan, Stage, ip, sysctl},
};

/// A process with a given name that listens. If this value is dropped, the process ends.
struct Daemon(Child);

/// The perl program of a `Daemon`. The program's arguments are a name, and then addresses like `tcp/[::]:443` and
/// `udp/127.0.0.1:53`.
const PROGRAM: &str = r#"
    use Socket;
    my $name = shift;
    my @held = map {
        my ($protocol, $host, $port) = m{^(tcp|udp)/\[?(.*?)\]?:(\d+)$} or die $_;
        my @listens = $protocol eq "tcp" ? (Type => SOCK_STREAM, Listen => 5) : (Type => SOCK_DGRAM);
        IO::Socket::IP->new(LocalHost => $host, LocalPort => $port, V6Only => 0, @listens) or die "$_: $@";
    } @ARGV;
    $0 = $name; $| = 1; print "ready\n"; <STDIN>;"#;

impl Daemon {
    #[track_caller]
    fn start(name: &str, places: &[&str]) -> Self {
        Self::run(Command::new("perl"), name, places)
    }

    #[track_caller]
    fn in_pod(name: &str, places: &[&str]) -> Self {
        let mut command = Command::new("unshare"); // of the package util-linux
        command.args(["--net", "perl"]);
        Self::run(command, name, places)
    }

    #[track_caller]
    fn run(mut command: Command, name: &str, places: &[&str]) -> Self {
        command.args(["-MIO::Socket::IP", "-e", PROGRAM, name]).args(places);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("perl, which every Debian has");
        child.stdout.as_mut().expect("a pipe").read_exact(&mut [0; 6]).expect("the process listens");
        Self(child)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.kill().expect("the process is a child");
        self.0.wait().expect("the process ended");
    }
}

/// A cluster with five Services that have endpoints on this node and the NodePorts 30080 to 30084. A sixth Service has
/// type LoadBalancer and the health check port 30999.
fn cluster() -> Stage {
    let stage = (0..5).fold(Stage::new(), |stage, n| {
        let name = format!("s{n}");
        stage.service(&name, "TCP", 30080 + n, "").endpoints(&name, "TCP", Some("n1"))
    });
    let balanced = "apiVersion: v1\nkind: Service\nmetadata: {name: lb, namespace: default, uid: uid-lb}\nspec:\n  type: LoadBalancer\n  \
         clusterIP: 10.96.0.30\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 30999\n  ipFamilies: [IPv4]\n  \
         ports: [{port: 80, protocol: TCP, nodePort: 30090}]";
    stage.document(balanced).endpoints("lb", "TCP", Some("n1")).node_port_range("30000-32767")
}

fn health_check() {
    let server = TcpListener::bind("[::]:30999").expect("the port is free");
    let body = r#"{"service":{"namespace":"default","name":"lb"},"localEndpoints":1,"serviceProxyHealthy":true}"#;
    thread::spawn(move || serve(&server, |_| Some(body.to_owned())));
}

fn every_node() -> Vec<Daemon> {
    vec![
        Daemon::start("systemd", &["tcp/[::]:22"]),
        Daemon::start(
            "systemd-resolve",
            &["tcp/127.0.0.53:53", "udp/127.0.0.53:53", "tcp/127.0.0.54:53", "udp/127.0.0.54:53"],
        ),
        Daemon::start("chronyd", &["udp/127.0.0.1:323", "udp/[::1]:323"]),
        Daemon::start("kubelet", &["tcp/[::]:10250", "tcp/127.0.0.1:10248"]),
        Daemon::start("containerd", &["tcp/127.0.0.1:41237"]),
        Daemon::start("node_exporter", &["tcp/[::]:9100"]),
    ]
}

fn control_plane() -> Vec<Daemon> {
    vec![
        Daemon::start("kube-apiserver", &["tcp/[::]:6443"]),
        Daemon::start(
            "etcd",
            &["tcp/192.0.2.1:2379", "tcp/127.0.0.1:2379", "tcp/192.0.2.1:2380", "tcp/127.0.0.1:2381"],
        ),
        Daemon::start("kube-controller", &["tcp/127.0.0.1:10257"]),
        Daemon::start("kube-scheduler", &["tcp/127.0.0.1:10259"]),
    ]
}

fn alarms(stage: &Stage, arguments: &[&str]) -> Vec<String> {
    let scan: Scan = stage.check(arguments);
    let word = |value: &serde_json::Value| value.as_str().expect("a word").to_owned();
    scan.alarms().into_iter().map(|it| format!("{} of {}", name(it), word(&it["subject"]["name"]))).collect()
}

const NONE: [&str; 0] = [];

#[test]
fn a_kubeadm_node_in_each_mode() {
    for mode in ["iptables", "nftables", "ipvs"] {
        let stage = cluster();
        let _daemons = (every_node(), control_plane());
        StandIn { mode, ..StandIn::default() }.start();
        let _proxy = TcpListener::bind("0.0.0.0:10256").expect("the port is free");
        health_check();
        if mode == "ipvs" {
            ip("link add kube-ipvs0 type bridge");
            ip("address add 10.96.0.10/32 dev kube-ipvs0");
            ip("address add 10.96.0.30/32 dev kube-ipvs0");
        }
        assert_eq!(alarms(&stage, &[]), NONE, "{mode}");
        let _exporter = Daemon::start("node_exporter", &["tcp/0.0.0.0:30081"]);
        assert_eq!(alarms(&stage, &[]), ["listener-on-node-port/loses of s1"], "{mode}");
    }
}

#[test]
fn a_k3s_server_that_is_also_the_proxy_and_all_other_daemons() {
    let stage = cluster();
    StandIn { version: "v1.36.3+k3s1", ..StandIn::default() }.start();
    health_check();
    let ports = ["[::]:6443", "127.0.0.1:6444", "[::]:10250", "127.0.0.1:10256", "127.0.0.1:10257", "127.0.0.1:10258"];
    let _server = ports.map(|place| TcpListener::bind(place).expect("the port is free"));
    assert_eq!(alarms(&stage, &[]), NONE);
    // The proxy's process also listens on 6443. A NodePort with this number takes the listener's connections too.
    let stage = stage.service("api", "TCP", 6443, "").endpoints("api", "TCP", Some("n1"));
    assert!(
        alarms(&stage, &[]).contains(&"listener-on-node-port/loses of api".to_owned()),
        "{:?}",
        alarms(&stage, &[])
    );
}

#[test]
fn an_openshift_node_whose_ovnkube_holds_every_node_port() {
    let stage = cluster();
    let _daemons = every_node();
    let held = ["tcp/[::]:30080", "tcp/[::]:30081", "tcp/[::]:30082", "tcp/[::]:30083", "tcp/[::]:30084"];
    let _ovnkube = Daemon::start("ovnkube", &[&held[..], &["tcp/[::]:30090"]].concat());
    health_check();
    assert_eq!(alarms(&stage, &[]), NONE);
    let stage = stage.service("late", "TCP", 30085, "").endpoints("late", "TCP", Some("n1"));
    let _other = Daemon::start("nginx", &["tcp/0.0.0.0:30085"]);
    // Only nginx has a conflict. ovnkube still listens on the other NodePorts, so Portreeve treats ovnkube as a proxy.
    assert_eq!(alarms(&stage, &[]), ["listener-on-node-port/loses of late"]);
    // A new NodePort that ovnkube has not opened yet is no conflict.
    let stage = stage.service("new", "TCP", 30086, "").endpoints("new", "TCP", Some("n1"));
    assert_eq!(alarms(&stage, &[]), ["listener-on-node-port/loses of late"]);
    // With two of eight NodePorts free, ovnkube no longer counts as a proxy, and each of its sockets is a conflict.
    let stage = stage.service("free", "TCP", 30087, "").endpoints("free", "TCP", Some("n1"));
    let conflicts = alarms(&stage, &[]);
    assert_eq!(conflicts.iter().filter(|it| it.starts_with("listener-on-node-port/loses")).count(), 7, "{conflicts:?}");
}

#[test]
fn a_cilium_node_without_kube_proxy() {
    let stage = cluster().document(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cilium-config, namespace: kube-system}\n\
         data: {kube-proxy-replacement: \"true\"}",
    );
    let _daemons = every_node();
    let _agent = Daemon::start(
        "cilium-agent",
        &["tcp/[::]:4240", "tcp/[::]:4244", "tcp/127.0.0.1:9879", "tcp/127.0.0.1:9890", "tcp/[::]:9962"],
    );
    let _envoy = Daemon::start("cilium-envoy", &["tcp/127.0.0.1:9878", "tcp/[::]:9964"]);
    health_check();
    assert_eq!(stage.check(&[]).json["nodes"][0]["proxy"]["mode"], "cilium");
    assert_eq!(alarms(&stage, &[]), NONE);
    let _other = Daemon::start("nginx", &["tcp/0.0.0.0:30080"]);
    assert_eq!(alarms(&stage, &[]), ["listener-on-node-port/loses of s0"]);
}

#[test]
fn a_cilium_that_leaves_masquerading_to_iptables() {
    let told = |bpf: &str| {
        let stage = cluster().document(&format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: cilium-config, namespace: kube-system}}\n\
             data: {{kube-proxy-replacement: \"true\", enable-bpf-masquerade: \"{bpf}\"}}",
        ));
        let scan: Scan = stage.check(&[]);
        let findings = scan.findings("masquerade-source-ports");
        findings.iter().map(|finding| finding["severity"].as_str().expect("a severity").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(told("false"), ["warning"]);
    assert_eq!(told("true"), NONE);
}

fn host_port(stage: Stage, name: &str, port: u16) -> Stage {
    stage.document(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: default, uid: uid-{name}}}\nspec:\n  nodeName: n1\n  containers:\n  \
         - name: {name}\n    ports: [{{containerPort: 8080, hostPort: {port}, protocol: TCP}}]\nstatus: {{phase: Running, podIP: 10.244.0.7, podIPs: [{{ip: 10.244.0.7}}]}}"
    ))
}

#[test]
fn host_ports_beside_node_ports_and_inside_their_range() {
    let stage = host_port(host_port(host_port(cluster(), "edge", 443), "metrics", 9102), "game", 31999);
    let _daemons = every_node();
    health_check();
    for mode in ["iptables", "nftables", "ipvs"] {
        assert_eq!(alarms(&stage, &["--proxy-mode", mode]), NONE, "{mode}");
    }
    let stage = host_port(stage, "late", 30080);
    for mode in ["iptables", "nftables", "ipvs"] {
        assert_eq!(alarms(&stage, &["--proxy-mode", mode]), ["host-port-conflict/node-port of late"], "{mode}");
    }
}

#[test]
fn a_mesh_and_exporters_on_every_address() {
    let stage = cluster();
    let _daemons = every_node();
    let _ztunnel = Daemon::start(
        "ztunnel",
        &[
            "tcp/[::]:15001",
            "tcp/[::]:15006",
            "tcp/[::]:15008",
            "tcp/[::]:15020",
            "tcp/[::]:15021",
            "udp/127.0.0.1:15053",
        ],
    );
    let _linkerd = Daemon::start("linkerd2-proxy", &["tcp/[::]:4143", "tcp/127.0.0.1:4140", "tcp/[::]:4191"]);
    let _exporters = [
        Daemon::start("dcgm-exporter", &["tcp/[::]:9400"]),
        Daemon::start("calico-node", &["tcp/127.0.0.1:9099", "tcp/[::]:9091", "tcp/0.0.0.0:179"]),
        Daemon::start("speaker", &["tcp/[::]:7472", "tcp/0.0.0.0:7946", "udp/0.0.0.0:7946"]),
        Daemon::start("nginx-ingress-c", &["tcp/0.0.0.0:80", "tcp/0.0.0.0:443", "tcp/127.0.0.1:10246"]),
    ];
    health_check();
    for mode in ["iptables", "nftables", "ipvs"] {
        assert_eq!(alarms(&stage, &["--proxy-mode", mode]), NONE, "{mode}");
    }
    let stage =
        stage.node_port_range("15000-32767").service("mesh", "TCP", 15021, "").endpoints("mesh", "TCP", Some("n1"));
    assert!(alarms(&stage, &["--proxy-mode", "ipvs"]).contains(&"listener-on-node-port/loses of mesh".to_owned()));
}

#[test]
fn listeners_inside_pods_do_not_matter_to_the_node() {
    let stage = cluster();
    let _daemons = every_node();
    let mesh =
        ["tcp/0.0.0.0:15001", "tcp/0.0.0.0:15006", "tcp/127.0.0.1:15000", "tcp/0.0.0.0:15021", "tcp/0.0.0.0:15090"];
    let _sidecars = [Daemon::in_pod("envoy", &mesh), Daemon::in_pod("envoy", &mesh)];
    let _server = Daemon::in_pod("nginx", &["tcp/[::]:30080", "udp/0.0.0.0:30081"]);
    health_check();
    for mode in ["iptables", "nftables", "ipvs"] {
        assert_eq!(alarms(&stage, &["--proxy-mode", mode]), NONE, "{mode}");
    }
    let _on_the_host = Daemon::start("nginx", &["tcp/[::]:30080"]);
    assert_eq!(alarms(&stage, &["--proxy-mode", "iptables"]), ["listener-on-node-port/loses of s0"]);
}

#[test]
fn resolvers_on_loopback_and_link_local_addresses() {
    let stage = Stage::new().service("dns", "UDP", 30053, "").endpoints("dns", "UDP", Some("n1"));
    let _daemons = every_node();
    ip("link add nodelocaldns type bridge");
    ip("address add 169.254.20.10/32 dev nodelocaldns");
    ip("link set nodelocaldns up");
    let _cache = Daemon::start("node-cache", &["udp/169.254.20.10:53", "tcp/169.254.20.10:53", "tcp/127.0.0.1:30053"]);
    // A resolver listens on loopback, on the port that is the NodePort. In nftables and ipvs mode, the proxy serves no
    // NodePorts on loopback.
    let loopback = Daemon::start("dnsmasq", &["udp/127.0.0.1:30053"]);
    for mode in ["nftables", "ipvs"] {
        assert_eq!(alarms(&stage, &["--proxy-mode", mode]), NONE, "{mode}");
    }
    assert_eq!(alarms(&stage, &["--proxy-mode", "iptables"]), ["listener-on-node-port/loses of dns"]);
    drop(loopback);
    assert_eq!(alarms(&stage, &["--proxy-mode", "iptables"]), NONE, "only TCP is left, and the Service has UDP");
}

#[test]
fn thousands_of_connections_in_time_wait() {
    let stage = cluster();
    health_check();
    sysctl("net.ipv4.tcp_tw_reuse", "0");
    sysctl("net.ipv4.ip_local_port_range", "33000 35999");
    let server = TcpListener::bind("192.0.2.1:8080").expect("the port is free");
    let connect = |times: u16| {
        for _ in 0..times {
            // The client closes first, so its port, which is from the ephemeral range, stays in TIME_WAIT.
            drop(TcpStream::connect("192.0.2.1:8080").expect("a connection"));
            drop(server.accept().expect("a connection"));
        }
    };
    connect(2000);
    for mode in ["iptables", "nftables", "ipvs"] {
        assert_eq!(alarms(&stage, &["--proxy-mode", mode]), NONE, "{mode}");
    }
    connect(700);
    assert_eq!(alarms(&stage, &["--proxy-mode", "iptables"]), ["ephemeral-ports-near-exhaustion/node of n1"]);
}

#[test]
fn a_range_without_daemons_and_a_range_that_covers_them() {
    let stage = Stage::new().node_port_range("30000-32767");
    let _daemons = every_node();
    assert_eq!(alarms(&stage, &["--proxy-mode", "iptables"]), NONE);
    let wide = Stage::new().node_port_range("1024-32767");
    let _daemons = every_node();
    assert_eq!(alarms(&wide, &["--proxy-mode", "iptables"]), ["node-port-range-mismatch/daemons of n1"]);
}
