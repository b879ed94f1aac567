//! A server that answers like kube-proxy on the node's loopback: its mode, its settings and its limit of descriptors.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

use crate::stage::Stage;

pub(crate) fn serve(listener: &TcpListener, page: impl Fn(&str) -> Option<String>) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { return };
        answer(&mut stream, &page);
    }
}

fn answer(stream: &mut TcpStream, page: &impl Fn(&str) -> Option<String>) {
    let mut request = [0; 4096];
    let length = stream.read(&mut request).unwrap_or(0);
    let request = String::from_utf8_lossy(&request[..length]).into_owned();
    let path = request.split(' ').nth(1).unwrap_or("/");
    let (status, body) = match page(path) {
        Some(body) => ("200 OK", body),
        None => ("404 Not Found", String::new()),
    };
    let length = body.len();
    // The client may have closed the connection.
    stream
        .write_all(
            format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}").as_bytes(),
        )
        .ok();
}

pub(crate) struct StandIn {
    pub(crate) mode: &'static str,
    pub(crate) node_port_addresses: &'static str,
    pub(crate) version: &'static str,
    pub(crate) max_fds: u64,
}

impl Default for StandIn {
    fn default() -> Self {
        Self { mode: "iptables", node_port_addresses: "[]", version: "v1.36.3", max_fds: 1_048_576 }
    }
}

impl StandIn {
    pub(crate) fn start(self) {
        let listener = TcpListener::bind("127.0.0.1:10249").expect("the port is free");
        std::thread::spawn(move || {
            serve(&listener, |path| match path {
                "/proxyMode" => Some(self.mode.to_owned()),
                "/configz" => Some(format!(
                    r#"{{"kubeproxy.config.k8s.io":{{"bindAddress":"0.0.0.0","mode":"{}","nodePortAddresses":{},"clusterCIDR":"10.244.0.0/16","detectLocalMode":"ClusterCIDR","iptables":{{"localhostNodePorts":true}}}}}}"#,
                    self.mode, self.node_port_addresses
                )),
                "/metrics" => Some(format!(
                    "# TYPE process_max_fds gauge\nprocess_max_fds {}\nprocess_open_fds 12\nkubernetes_build_info{{git_version=\"{}\"}} 1\n",
                    self.max_fds, self.version
                )),
                _ => None,
            });
        });
    }
}

/// If this value is dropped, the process ends.
pub(crate) struct Squatter(Child);

impl Squatter {
    #[track_caller]
    pub(crate) fn on(address: &str) -> Self {
        Self::with(address, &[])
    }

    /// Starts the process with additional arguments, which the process ignores.
    #[track_caller]
    pub(crate) fn with(address: &str, arguments: &[&str]) -> Self {
        let script = "my $s = IO::Socket::INET->new(Listen => 5, LocalAddr => $ARGV[0]) or die $!; $| = 1; print qq(ready\\n); <STDIN>";
        Self::ready(Command::new("perl").args(["-MIO::Socket::INET", "-e", script, address]).args(arguments))
    }

    #[track_caller]
    fn ready(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("perl, which every Debian has");
        let mut ready = [0; 6];
        child.stdout.as_mut().expect("a pipe").read_exact(&mut ready).expect("the squatter listens");
        Self(child)
    }
}

impl Drop for Squatter {
    fn drop(&mut self) {
        self.0.kill().expect("the process is a child");
        self.0.wait().expect("the process ended");
    }
}

/// A process of the user nobody. The process answers every request on kube-proxy's port with `iptables`, and listens on
/// `squatting`. If the returned value is dropped, the process ends.
fn imposter(squatting: &str) -> Squatter {
    let script = r#"
        my ($port, $squat) = map { IO::Socket::INET->new(Listen => 5, LocalAddr => $_) or die $! } @ARGV;
        $| = 1; print qq(ready\n);
        while (my $client = $port->accept) {
            my $line; do { $line = <$client> } while (defined $line && $line =~ /\S/);
            print $client "HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\niptables";
        }
    "#;
    let mut setpriv = Command::new("setpriv"); // of the package util-linux
    setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups", "perl", "-MIO::Socket::INET", "-e", script]);
    Squatter::ready(setpriv.args(["127.0.0.1:10249", squatting]))
}

#[test]
fn a_process_that_is_not_roots_does_not_count_as_the_proxy() {
    let stage = Stage::new()
        .service("web", "TCP", 30080, "")
        .endpoints("web", "TCP", Some("n1"))
        .node_port_range("30000-32767");
    {
        let _imposter = imposter("127.0.0.1:30080");
        let scan = stage.check(&[]);
        assert_eq!(scan.code, 2, "the answer on loopback depends on the mode: {:#}", scan.json);
        assert!(scan.json["nodes"][0]["proxy"]["mode"].is_null(), "{:#}", scan.json["nodes"][0]["proxy"]);
        let unknown = scan.json["unknown"].to_string();
        assert!(unknown.contains("uid 65534 listens on 127.0.0.1:10249, process perl"), "{unknown}");
        stage.check(&["--proxy-mode", "iptables"]).finding("listener-on-node-port/loses", "web");
    }
    let _imposter = imposter("0.0.0.0:30080");
    stage.check(&[]).finding("listener-on-node-port/loses", "web");
}

#[test]
fn without_a_mode_only_a_node_without_listeners_on_node_ports_is_clear() {
    let stage = Stage::new()
        .service("web", "TCP", 30080, "")
        .service("api", "TCP", 30081, "")
        .service("db", "TCP", 30082, "")
        .endpoints("web", "TCP", Some("n1"))
        .node_port_range("30000-32767");
    assert_eq!(stage.check(&[]).code, 0);
    // On loopback, the answer depends on the mode: the pod in iptables mode, the listener in the other modes.
    let _squatter = Squatter::on("127.0.0.1:30080");
    let scan = stage.check(&[]);
    assert_eq!(scan.code, 2, "{:#}", scan.json);
}

#[test]
fn mode_and_settings_come_from_the_proxy_itself() {
    let stage = Stage::new().service("web", "TCP", 30080, "").endpoints("web", "TCP", Some("n1"));
    StandIn { mode: "nftables", node_port_addresses: r#"["primary"]"#, ..StandIn::default() }.start();
    let _squatter = Squatter::on("192.0.2.1:30080");
    let scan = stage.check(&[]);
    assert_eq!(scan.json["nodes"][0]["proxy"]["mode"], "nftables");
    assert_eq!(scan.json["nodes"][0]["proxy"]["source"], "127.0.0.1:10249/proxyMode");
    assert_eq!(scan.finding("listener-on-node-port/loses", "web").verdict(), "critical remote node pods");
}

#[test]
fn a_list_of_addresses_moves_the_verdict_to_the_listed_address() {
    let stage = Stage::new().service("web", "TCP", 30080, "").endpoints("web", "TCP", Some("n1"));
    StandIn { node_port_addresses: r#"["192.0.2.2/32"]"#, ..StandIn::default() }.start();
    let squatter = Squatter::on("192.0.2.1:30080");
    assert!(stage.check(&[]).alarms().is_empty());
    drop(squatter);
    let _squatter = Squatter::on("192.0.2.2:30080");
    assert_eq!(stage.check(&[]).finding("listener-on-node-port/loses", "web").verdict(), "critical remote node pods");
}

fn wide(count: u16) -> Stage {
    let ports: String = (0..count)
        .map(|n| format!("  - {{name: p{n}, port: {}, protocol: TCP, nodePort: {}}}\n", n + 1, 30000 + n))
        .collect();
    Stage::new().document(&format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: wide, namespace: default, uid: uid-wide}}\nspec:\n  type: NodePort\n  \
         clusterIP: 10.96.0.40\n  ipFamilies: [IPv4]\n  ports:\n{ports}"
    ))
}

#[test]
fn the_demand_of_a_proxy_that_holds_ports_is_compared_with_its_limit() {
    for (ports, severity) in [(150, None), (210, Some("warning")), (250, Some("critical")), (300, Some("critical"))] {
        let stage = wide(ports);
        StandIn { version: "v1.23.6", max_fds: 256, ..StandIn::default() }.start();
        let scan = stage.check(&[]);
        let finding = scan.find("proxy-near-fd-limit/near", "n1");
        let told = finding.as_ref().map(|finding| finding.0["severity"].as_str().expect("a severity"));
        assert_eq!(told, severity, "{ports} NodePorts under a limit of 256");
        if let Some(finding) = finding {
            assert!(finding.evidence().contains("default/wide"), "{}", finding.evidence());
        }
    }
}

#[test]
fn a_proxy_that_holds_no_ports_never_nears_its_limit() {
    let stage = wide(300);
    StandIn { max_fds: 256, ..StandIn::default() }.start();
    assert!(stage.check(&[]).findings("proxy-near-fd-limit/near").is_empty());
}

#[test]
fn a_program_that_has_the_health_port_of_a_kube_proxy_is_named() {
    let stage = Stage::new();
    StandIn::default().start();
    let _other = Squatter::on("0.0.0.0:10256");
    let scan = stage.check(&[]);
    let finding = scan.finding("health-check-unserved/proxy", "n1");
    assert_eq!(finding.0["severity"], "warning");
    assert!(finding.evidence().contains("process perl"), "{}", finding.evidence());
}
