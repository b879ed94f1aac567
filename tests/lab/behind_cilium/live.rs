//! Portreeve's agent on a node that Cilium serves: its findings about lost connections and ports. Packets and system
//! calls first show what really happens.

use crate::parts::named::is_of;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::ErrorKind,
    net::{IpAddr, SocketAddr, TcpListener},
    os::fd::{AsRawFd as _, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket},
};
use portreeve_facts::Protocol;
use portreeve_rules::findings::Vantage;
use serde_json::{Value, json};

use super::{
    FAR, Further, ON_LO,
    asks::{Everybody, From, ask_everything, places},
    further_addresses, send_whole, settle,
};
use crate::{
    look::owner,
    parts::{
        Agent, Answer, Cilium, ControlPlane, Inside, Namespace, PRIMARY, Release, Role, Wired, events, ip, objects,
        sysctl, until,
    },
    verdicts::{
        binds::{Held, to},
        outgoing::{ECHO, begin, echo, open, works},
    },
};

const RULE: &str = "connection-on-port/answers-taken";

/// A node that Cilium serves. The node has a pod, and each Service has an endpoint on another node.
pub struct Behind {
    cilium: Cilium,
    pub pod: Namespace,
    /// The addresses of the pod, IPv4 first.
    pub addresses: Vec<String>,
    pub cluster: ControlPlane,
    pub wired: Wired,
    /// This field is dropped last, after the end of all processes in the group.
    _inside: Inside,
}

impl Behind {
    #[track_caller]
    fn start() -> Self {
        Self::start_of(Release::Newest, &[], &PRIMARY)
    }

    #[track_caller]
    pub fn start_with(settings: &Further) -> Self {
        Self::start_all(Release::Newest, settings, &[], &PRIMARY)
    }

    /// `further` are additional addresses of `eth0`. `of_node` are the addresses of the Node object.
    #[track_caller]
    pub fn start_of(release: Release, further: &[&str], of_node: &[&str]) -> Self {
        Self::start_all(release, &[], further, of_node)
    }

    #[track_caller]
    pub fn start_all(release: Release, settings: &Further, further: &[&str], of_node: &[&str]) -> Self {
        let inside = Inside::new();
        let wired = Wired::enter();
        further_addresses(&wired);
        ip(&further.iter().map(|it| format!("address add {it} dev eth0")).collect::<Vec<_>>());
        let mut cluster = ControlPlane::start();
        Cilium::prepare(&cluster, release, of_node);
        Role::of_chart().grant(&mut cluster);
        Inside::join(inside.path());
        let group = inside.path().to_owned();
        wired.pod.run(move || Inside::join(&group));
        let pod = Namespace::new();
        let mut cilium = Cilium::start(&cluster, release, &inside, settings);
        let addresses = cilium.add(&cluster, &pod);
        pod.run(send_whole);
        Self { cilium, pod, addresses, cluster, wired, _inside: inside }
    }

    /// Starts a server that answers as the endpoint on another node.
    #[track_caller]
    pub fn far(&self) -> Held {
        self.wired.client.run(|| Held::on(&to("::"), Protocol::Tcp, Wired::PORT, Answer::Pod))
    }

    /// Creates Services from a name, a protocol, a nodePort, a target port and endpoint addresses. Waits until Cilium
    /// serves the Services.
    #[track_caller]
    pub fn serve(&mut self, services: &[(&str, Protocol, u16, u16, [&str; 2])]) {
        for (name, protocol, node_port, target, addresses) in services {
            let mut entry = objects::port(80, Some(*node_port));
            entry["protocol"] = json!(protocol.to_string().to_uppercase());
            let service = self.cluster.api().create(&objects::service(name, &[entry]));
            for (family, address) in ["IPv4", "IPv6"].into_iter().zip(addresses) {
                let mut slice = objects::endpoint_slice(&service, Some((*address, "n2")), family);
                slice["ports"][0]["port"] = json!(target);
                self.cluster.api().create(&slice);
            }
        }
        settle(&self.cluster, &mut self.cilium, &self.pod, 2);
    }

    #[track_caller]
    fn event(&self, agent: &Agent, reason: &str, (kind, name): (&str, &str)) -> Value {
        let wanted = |event: &Value| {
            let about = &event["regarding"];
            event["reason"] == reason && about["kind"] == kind && about["name"] == name
        };
        until(&format!("Event {reason} about {kind} {name}, among {}", agent.findings()), || {
            events(&self.cluster).into_iter().find(wanted)
        })
    }
}

#[track_caller]
fn finding(agent: &Agent, rule: &str, port: u16) -> Value {
    until(&format!("finding of {rule} on {port}"), || {
        let document = agent.findings();
        let findings = document["findings"].as_array().expect("a list");
        findings.iter().find(|it| is_of(it, rule) && it["port"] == port).cloned()
    })
}

#[track_caller]
fn exposed(agent: &Agent, rule: &str, severity: &str) -> Option<f64> {
    let (rule, variant) = rule.split_once('/').expect("an id and a variant");
    let labels = format!("rule=\"{rule}\",variant=\"{variant}\",severity=\"{severity}\"");
    Agent::value(&agent.metrics(), &format!("portreeve_findings{{{labels}}}"))
}

/// The kernel chooses the local port when the socket connects.
#[track_caller]
fn begin_anywhere() -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None).expect("a socket");
    let to: SocketAddr = ECHO.parse().expect("an address");
    assert_eq!(connect(socket.as_raw_fd(), &SockaddrStorage::from(to)), Err(Errno::EINPROGRESS));
    socket
}

#[track_caller]
fn owners(cluster: &ControlPlane, port: u16) -> BTreeMap<(String, IpAddr), String> {
    let document = owner(port, &cluster.kubeconfig("observer"));
    let word = |it: &Value| it.as_str().expect("a word").to_owned();
    let answers = document["nodes"][0]["protocols"][0]["answers"].as_array().expect("answers").iter();
    let of_entry = |entry: &Value| -> Vec<_> {
        let to = entry["to"].as_array().expect("addresses").iter();
        to.map(|to| ((word(&entry["from"]), word(to).parse().expect("an address")), word(&entry["answer"]))).collect()
    };
    answers.flat_map(of_entry).collect()
}

fn word(answer: Answer) -> &'static str {
    match answer {
        Answer::Process => "process",
        Answer::Pod | Answer::OtherPod => "pod",
        Answer::Refused => "refused",
        Answer::TimedOut => "timed-out",
        Answer::Unreachable => "unreachable",
    }
}

#[track_caller]
pub fn is_refused(address: &str, port: u16) -> bool {
    match TcpListener::bind((address, port)) {
        Ok(_) => false,
        Err(error) if error.kind() == ErrorKind::AddrInUse => true,
        Err(error) => panic!("{address} {port}: {error}"),
    }
}

#[test]
fn a_squatter_is_told_and_owner_says_who_answers_where() {
    let mut node = Behind::start();
    let everywhere = to("::");
    let second = to("192.0.2.2");
    let _squatters = [(&everywhere, 30080), (&second, 30081)]
        .map(|(bind, port)| Held::on(bind, Protocol::Tcp, port, Answer::Process));
    let _far = node.far();
    node.serve(&[("web", Protocol::Tcp, 30080, Wired::PORT, FAR), ("second", Protocol::Tcp, 30081, Wired::PORT, FAR)]);

    let everybody = Everybody { client: &node.wired.client, pod: &node.pod, namespace: &node.wired.pod };
    let ports = [30080, 30081].map(|port| (Protocol::Tcp, port));
    let answers = ask_everything(&everybody, &places(&ON_LO), &ports);
    let mut wrong = Vec::new();
    let mut words = BTreeSet::new();
    for port in [30080, 30081] {
        let said = owners(&node.cluster, port);
        for ((from, _, to, _), answer) in answers.iter().filter(|((.., asked), _)| *asked == port) {
            let From::At(vantage) = from else {
                let pods = answers[&(From::At(Vantage::Pods), Protocol::Tcp, *to, port)];
                assert_eq!(*answer, pods, "a namespace fares like a pod, {to} {port}");
                continue;
            };
            let said = said.get(&(vantage.name().to_owned(), *to)).map(String::as_str);
            words.insert(word(*answer));
            if said != Some(word(*answer)) {
                wrong.push(format!("{port} from {} to {to}: {answer:?}, said {said:?}", vantage.name()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(words.contains("pod") && words.contains("process"), "{words:?}");

    let agent = Agent::start_as_nobody(&node.cluster, &[]);
    let event = node.event(&agent, "ListenerOnNodePort", ("Service", "web"));
    assert_eq!(event["type"], "Warning");
    assert!(event["note"].as_str().is_some_and(|note| note.contains("go to the Service's pods instead")), "{event}");
    let found = finding(&agent, "listener-on-node-port/loses", 30080);
    assert_eq!(found["severity"], "critical", "{found}");
    let found = finding(&agent, "listener-on-node-port/loses", 30081);
    assert_eq!(found["severity"], "warning", "remote clients reach the second address: {found}");
    assert_eq!(exposed(&agent, "listener-on-node-port/loses", "critical"), Some(1.0), "{}", agent.metrics());
    assert_eq!(exposed(&agent, "listener-on-node-port/loses", "warning"), Some(1.0), "{}", agent.metrics());
}

#[test]
fn a_connection_whose_answers_are_swallowed_is_told() {
    let mut node = Behind::start();
    node.wired.client.run(echo);
    let address = |ip: &str, port| SocketAddr::new(ip.parse().expect("an address"), port);
    let old = open(Protocol::Tcp, 30400);
    let idle = open(Protocol::Tcp, 30401);
    let udp = open(Protocol::Udp, 30402);
    let second = begin(Protocol::Tcp, address("192.0.2.2", 30403), ECHO);
    for (socket, name) in [(&old, "old"), (&idle, "idle"), (&udp, "udp"), (&second, "second")] {
        assert!(works(socket), "{name}: there is no Service yet");
    }
    let services = [
        ("old", Protocol::Tcp, 30400, Wired::PORT, FAR),
        ("idle", Protocol::Tcp, 30401, Wired::PORT, FAR),
        ("udp", Protocol::Udp, 30402, Wired::PORT, FAR),
        ("second", Protocol::Tcp, 30403, Wired::PORT, FAR),
        ("new", Protocol::Tcp, 30404, Wired::PORT, FAR),
    ];
    let _far = node.far();
    node.serve(&services);
    // Processes can no longer bind the port, but the kernel can still choose the port for a connection.
    assert!(is_refused("192.0.2.1", 30404));
    sysctl("net.ipv4.ip_local_port_range", "30404 30404");
    let new = begin_anywhere();
    sysctl("net.ipv4.ip_local_port_range", "32768 60999");

    let agent = Agent::start_as_nobody(&node.cluster, &[]);
    // The first scan may come before the agent has read the settings. So the test waits until the finding has the
    // severity `warning`.
    until("severity of idle", || (finding(&agent, RULE, 30401)["severity"] == "warning").then_some(()));
    let swallowed = [(&old, "old"), (&udp, "udp"), (&new, "new")];
    let worked: Vec<_> = swallowed.iter().filter(|(socket, _)| works(socket)).map(|(_, name)| *name).collect();
    assert!(worked.is_empty(), "{worked:?} work: their answers are not swallowed");
    assert!(works(&second), "no NodePort is served on the second address from outside");
    for (name, port, severity) in [("old", 30400, "critical"), ("udp", 30402, "warning")] {
        let event = node.event(&agent, "ConnectionOnPort", ("Service", name));
        assert_eq!(event["type"], "Warning", "{event}");
        until(&format!("severity of {name}"), || (finding(&agent, RULE, port)["severity"] == severity).then_some(()));
    }
    assert!(exposed(&agent, RULE, "critical").is_some_and(|count| count >= 1.0), "{}", agent.metrics());
    assert_eq!(agent.found(RULE).iter().filter(|port| **port == 30403).count(), 0, "{}", agent.findings());
    assert!(!works(&idle), "what was idle is lost too");
}

#[test]
fn who_cannot_bind_again_is_told_before_and_after() {
    let mut node = Behind::start();
    let everywhere = to("::");
    let squatter = Held::on(&everywhere, Protocol::Tcp, 30500, Answer::Process);
    let own = Held::on(&everywhere, Protocol::Tcp, 30501, Answer::Process);
    let _far = node.far();
    let mut single = objects::service("single", &[objects::port(80, Some(30502))]);
    single["spec"]["ipFamilyPolicy"] = json!("SingleStack");
    node.cluster.api().create(&single);
    node.serve(&[("web", Protocol::Tcp, 30500, Wired::PORT, FAR), ("own", Protocol::Tcp, 30501, 30501, PRIMARY)]);
    let agent = Agent::start_as_nobody(&node.cluster, &[]);
    for (name, port, rule) in
        [("web", 30500, "listener-on-node-port/loses"), ("own", 30501, "listener-on-node-port/no-return")]
    {
        node.event(&agent, "ListenerOnNodePort", ("Service", name));
        let found = finding(&agent, rule, port);
        assert!(found.to_string().contains("EADDRINUSE"), "{found}");
    }
    let found = finding(&agent, "listener-on-node-port/no-return", 30501);
    assert_eq!(found["severity"], "warning", "it is the Service's own endpoint: {found}");

    drop((squatter, own));
    for port in [30500, 30501] {
        for address in ["0.0.0.0", "::", "192.0.2.1", "192.0.2.2", "127.0.0.1"] {
            assert!(is_refused(address, port), "{address} {port}");
        }
        // 10.244.0.1 is an address of a device that Cilium does not serve.
        assert!(!is_refused("10.244.0.1", port), "{port}");
    }
    assert!(is_refused("0.0.0.0", 30502), "of a Service with only IPv4");
    assert!(!is_refused("::", 30502), "of a Service with only IPv4");
    until("end of the findings", || agent.found("listener-on-node-port").is_empty().then_some(()));

    let container = json!({
        "name": "own",
        "image": "own",
        "ports": [{"containerPort": 30501, "hostPort": 30501, "protocol": "TCP"}],
    });
    node.cluster.api().create(&json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "restarted", "namespace": "default"},
        "spec": {
            "nodeName": "n1",
            "hostNetwork": true,
            "automountServiceAccountToken": false,
            "containers": [container],
        },
    }));
    let event = node.event(&agent, "HostNetworkPortTaken", ("Pod", "restarted"));
    assert!(
        event["note"].as_str().is_some_and(|note| note.contains("Cilium refuses bind() on this NodePort")),
        "{event}"
    );
    assert_eq!(exposed(&agent, "host-network-port-taken/refused", "warning"), Some(1.0), "{}", agent.metrics());
}
