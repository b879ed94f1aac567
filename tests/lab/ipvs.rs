//! Verdicts in ipvs mode, and verdicts that depend on other kernel modules. If this machine lacks the module of ipvs,
//! the tests run in a guest (a virtual machine).

use crate::parts::named::name;
use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
    process::Command,
};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, Backlog, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect, listen, socket,
    },
};
use portreeve_facts::{Family, Mode, PortRange, Protocol, Socket, State, VirtualServer};
use portreeve_kernel::Sockets;
use portreeve_rules::NFS_CLIENT_PORTS;
use serde_json::{Value, json};

use crate::{
    look::{Look, snapshot},
    parts::{Answer, ControlPlane, PRIMARY, Proxy, Server, Wired, ask, guest::with_ipvs, objects, until},
    verdicts::{
        Lab, addresses, binds::BINDS, external_ip, health_check, host_port, masquerade, outgoing, redirected, sctp,
        service_lb,
    },
};

/// The address of the client, which is the Node `n2`.
const PEER: &str = "192.0.2.100";

#[test]
fn verdicts_are_what_packets_show() {
    with_ipvs(|| {
        // A guest is slow. So for UDP, only the wildcard sockets are tested.
        let lab = Lab::start(&[(Protocol::Tcp, &BINDS), (Protocol::Udp, &BINDS[..2])]);
        lab.agrees("ipvs-default", "ipvs", &json!({}));
        lab.agrees("ipvs-second", "ipvs", &json!({"nodePortAddresses": ["192.0.2.2/32"]}));
    });
}

#[test]
fn an_outgoing_connection_on_a_node_port_is_judged_as_it_works() {
    with_ipvs(|| outgoing::agrees("ipvs"));
}

// This test of `masquerade-source-ports/taken` needs a guest without other tests: virtual servers of another network
// namespace can make the kernel's list of connections incomplete.
#[test]
fn a_masqueraded_connection_on_a_node_port_is_judged_as_it_works() {
    with_ipvs(|| masquerade::agrees("ipvs"));
}

#[test]
fn an_external_ip_and_a_node_port_are_judged_as_they_answer() {
    with_ipvs(|| {
        // Tests only TCP, because each lost datagram takes long in a guest. One run with UDP gave the same answers.
        external_ip::agrees("ipvs", &[Protocol::Tcp]);
    });
}

#[test]
fn a_listener_of_sctp_on_a_node_port_is_judged_as_associations_fare() {
    with_ipvs(|| sctp::agrees("ipvs"));
}

#[test]
fn a_host_port_and_a_node_port_are_judged_as_they_answer() {
    with_ipvs(|| host_port::agrees("ipvs"));
}

#[test]
fn the_port_of_a_service_of_service_lb_goes_with_its_node_port_where_its_policy_is_local() {
    with_ipvs(|| service_lb::agrees("ipvs"));
}

#[test]
fn what_a_load_balancers_address_or_an_undeclared_redirection_takes_is_judged_as_it_answers() {
    with_ipvs(|| {
        redirected::agrees("ipvs");
    });
}

#[test]
fn the_address_of_another_node_is_judged_as_it_answers() {
    with_ipvs(|| addresses::agrees("ipvs"));
}

#[test]
fn a_health_check_is_judged_as_it_is_answered() {
    with_ipvs(|| health_check::agrees("ipvs"));
}

#[test]
fn a_service_with_a_peers_address_takes_the_peer_away_until_its_address_is_gone() {
    with_ipvs(|| {
        let (wired, cluster) = two_nodes();
        let kubelet = SocketAddr::new(ip(PEER), 10250);
        let _kubelet = wired.client.run(move || Server::on(kubelet, Answer::Process));
        let mut proxy = Proxy::start(&cluster, "ipvs", &json!({}));
        let look = || Look::check(&cluster.kubeconfig("admin"));
        assert_eq!((ask(kubelet), look().alarms()), (Answer::Process, vec![] as Vec<&Value>));

        let trap = cluster.api().create(&trap());
        proxy.settle(&cluster);
        assert!(route_to(PEER).starts_with("local "), "{}", route_to(PEER));
        assert_eq!(ask(kubelet), Answer::Refused);
        let seen = look();
        let told = seen.alarms();
        assert_eq!(told.len(), 1, "{told:#?}");
        assert_eq!(
            (name(told[0]), &told[0]["severity"]),
            ("external-ip-conflict/node-address".to_owned(), &json!("critical"))
        );
        assert!(told[0].to_string().contains("yes, 192.0.2.100 is on kube-ipvs0"), "{:#}", told[0]);

        cluster.api().delete(&trap);
        until("way to the peer", || (ask(kubelet) == Answer::Process).then_some(()));
        assert_eq!(look().alarms(), vec![] as Vec<&Value>);

        // The addresses stay on the device when the proxy is killed.
        let trap = cluster.api().create(&self::trap());
        proxy.settle(&cluster);
        drop(proxy);
        cluster.api().delete(&trap);
        assert_eq!(ask(kubelet), Answer::Refused);
        let seen = look();
        for (rule, severity) in [("address-held-twice/ipvs", "critical"), ("stale-redirection/proxy", "warning")] {
            let told = seen.findings(rule);
            assert_eq!((told.len(), &told[0]["severity"]), (1, &json!(severity)), "{:#}", seen.json);
            let steps = told[0]["remedies"][0]["steps"].as_array().expect("steps");
            let delete = json!({"kind": "command", "text": "ip addr del 192.0.2.100/32 dev kube-ipvs0"});
            assert!(steps.contains(&delete), "{steps:#?}");
        }
        run("ip", &["addr", "del", "192.0.2.100/32", "dev", "kube-ipvs0"]);
        assert_eq!(ask(kubelet), Answer::Process);
        assert!(look().findings("address-held-twice/ipvs").is_empty());

        // kube-proxy in iptables mode does not remove the addresses and the device of ipvs mode.
        let _proxy = Proxy::start(&cluster, "iptables", &json!({}));
        let seen = look();
        let told = seen.findings("stale-redirection/proxy");
        assert_eq!(told.len(), 1, "{:#}", seen.json);
        assert!(told[0].to_string().contains("still has rules of ipvs mode"), "{:#}", told[0]);
    });
}

#[test]
fn what_ipvs_serves_is_read_and_takes_an_outgoing_connection() {
    with_ipvs(|| {
        let (wired, cluster) = two_nodes();
        let far = SocketAddr::new(ip(PEER), 7000);
        let _far = wired.client.run(move || Server::on(far, Answer::Process));
        let web = cluster.api().create(&objects::service("web", &[objects::port(80, Some(30080))]));
        for (family, address) in ["IPv4", "IPv6"].into_iter().zip(Wired::HERE) {
            cluster.api().create(&objects::endpoint_slice(&web, Some((address, "n1")), family));
        }
        let mut signalling = objects::service("signalling", &[objects::port(2905, Some(30132))]);
        signalling["spec"]["ports"][0]["protocol"] = json!("SCTP");
        cluster.api().create(&signalling);
        let _proxy = Proxy::start(&cluster, "ipvs", &json!({}));

        let read = snapshot(&cluster.kubeconfig("admin")).kernel;
        assert_eq!(read.proxy.mode.seen().expect("a mode").value, Mode::Ipvs);
        let servers = read.ip_vs.seen().expect("virtual servers");
        for address in PRIMARY.map(ip) {
            for (protocol, port, real_servers) in [(Protocol::Tcp, 30080, 1), (Protocol::Sctp, 30132, 0)] {
                let server = VirtualServer { protocol, ip: address, port, real_servers };
                assert!(servers.contains(&server), "{server:?} in {servers:#?}");
            }
        }
        let held: Vec<String> =
            read.interfaces.seen().expect("links").of("kube-ipvs0").map(|it| it.ip.to_string()).collect();
        for address in web["spec"]["clusterIPs"].as_array().expect("cluster IPs") {
            assert!(held.iter().any(|it| address == it), "{address} in {held:?}");
        }

        let lucky = dial(SockProtocol::Tcp, 30081, far);
        until("connection", || lucky.peer_addr().ok());
        let hanging = dial(SockProtocol::Tcp, 30080, far);
        until("hanging connection", || {
            let look = Look::check(&cluster.kubeconfig("admin"));
            let told = look.findings("connection-on-port/answers-taken");
            told.into_iter().any(|it| it["severity"] == "critical").then_some(())
        });
        assert!(hanging.peer_addr().is_err());
    });
}

#[test]
fn a_listener_of_sctp_is_read_with_the_address_it_was_bound_to() {
    with_ipvs(|| {
        let wired = Wired::enter();
        let listener = open(SockProtocol::Sctp, "0.0.0.0:30132".parse().expect("an address"));
        listen(&listener, Backlog::MAXCONN).expect("SCTP listens");
        let here = SocketAddr::new(ip(PRIMARY[0]), 30132);
        let association = wired.client.run(move || dial(SockProtocol::Sctp, 0, here));
        until("association", || association.peer_addr().ok());

        let wildcard = (ip("0.0.0.0"), 30132, State::Listen);
        let [diag, text] = [Sockets::live(Path::new("/proc")), Sockets::recorded(Path::new("/proc/thread-self/net"))]
            .map(|read| (sctp(&read.listeners().expect("listeners").sockets), associations(&read)));
        assert_eq!(diag.0.iter().map(|it| (it.local, it.local_port, it.state)).collect::<Vec<_>>(), [wildcard]);
        assert_eq!((diag.1.len(), diag.1[0].local, diag.1[0].remote), (1, ip(PRIMARY[0]), ip(PEER)), "{diag:#?}");
        assert_eq!(diag, text, "a kernel without the module to ask tells the same");
    });
}

#[test]
fn the_ports_of_nfs_clients_are_those_of_the_kernel() {
    with_ipvs(|| {
        run("modprobe", &["sunrpc"]);
        let [first, last] = ["min", "max"].map(|name| {
            let path = format!("/proc/sys/sunrpc/{name}_resvport");
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
            text.trim().parse().expect("a port")
        });
        assert_eq!(NFS_CLIENT_PORTS, PortRange { first, last });
    });
}

// The device has no configured port. When the device first goes up, the kernel chooses a port, and keeps this port.
#[test]
fn a_wireguard_device_has_a_socket_of_each_family_and_stays_down_without_its_port() {
    with_ipvs(|| {
        let _wired = Wired::enter();
        run("ip", &["link", "add", "cilium_wg0", "type", "wireguard"]);
        let device = || {
            let links = portreeve_kernel::route::read().expect("links");
            let down: Vec<u16> = links.tunnels_down().map(|(port, _)| port).collect();
            let link = links.links.into_iter().find(|link| link.name == "cilium_wg0").expect("the device");
            (link.udp_port, link.tunnel.expect("a tunnel").families, down)
        };
        assert_eq!(device(), (None, Family::BOTH.to_vec(), vec![51871]));

        let udp = || {
            let listeners = Sockets::live(Path::new("/proc")).listeners().expect("listeners");
            let udp = listeners.sockets.into_iter().filter(|socket| socket.protocol == Protocol::Udp);
            udp.map(|socket| (socket.family, socket.local_port)).collect::<BTreeSet<_>>()
        };
        let before = udp();
        run("ip", &["link", "set", "cilium_wg0", "up"]);
        let opened: Vec<_> = udp().difference(&before).copied().collect();
        let [(Family::V4, port), (Family::V6, of_ipv6)] = opened[..] else { panic!("{opened:?}") };
        assert_eq!((port, device().2), (of_ipv6, vec![]));
        run("ip", &["link", "set", "cilium_wg0", "down"]);
        let _taken = UdpSocket::bind(("::1", port)).expect("the port is free again");
        let output = Command::new("ip").args(["link", "set", "cilium_wg0", "up"]).output().expect("ip");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("Address already in use"), "{error}");
    });
}

// The kernels of many cloud machines lack Geneve.
#[test]
fn geneve_devices_share_a_port_with_each_other_and_not_with_a_vxlan_device() {
    with_ipvs(|| {
        let _wired = Wired::enter();
        let link = |arguments: &str| {
            let output = Command::new("ip").arg("link").args(arguments.split(' ')).output().expect("the program ip");
            (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let devices = [
            ("geneve1", "id 1 remote 192.0.2.7"),
            ("geneve2", "id 2 remote 192.0.2.8 udpcsum"),
            ("geneve3", "id 3 remote 2001:db8::7 udp6zerocsumrx"),
            ("geneve4", "id 4 remote 2001:db8::8 noudp6zerocsumrx"),
        ];
        for (name, options) in devices {
            for arguments in [format!("add {name} type geneve dstport 6081 {options}"), format!("set {name} up")] {
                let (is_done, error) = link(&arguments);
                assert!(is_done, "{arguments}: {error}");
            }
        }
        assert!(!link("add geneve5 type geneve dstport 6081 external").0, "the kernel makes no device with a conflict");
        assert!(link("add vxlan1 type vxlan id 5 dstport 6081").0);
        let (is_up, error) = link("set vxlan1 up");
        assert!(!is_up && error.contains("Address already in use"), "{error}");

        let seen = portreeve_kernel::route::read().expect("links");
        let of = |name: &str| seen.links.iter().find(|link| link.name == name).expect("the device");
        for (one, other) in devices.iter().flat_map(|(one, _)| devices.map(|(other, _)| (*one, other))) {
            assert_eq!(of(one).excludes(of(other)), Some(false), "{one}, {other}");
        }
        assert_eq!(of("vxlan1").excludes(of("geneve1")), Some(true));
        let down: Vec<_> = seen.tunnels_down().map(|(port, link)| (port, &*link.name)).collect();
        assert_eq!(down, [(6081, "vxlan1")]);
    });
}

fn associations(read: &Sockets) -> Vec<Socket> {
    sctp(&read.connections(Some(&"30132".parse().expect("a port")), None, &[]).clients.expect("clients").sockets)
}

/// The SCTP sockets, without the facts that `/proc/net/sctp` lacks.
fn sctp(sockets: &[Socket]) -> Vec<Socket> {
    let sctp = sockets.iter().filter(|socket| socket.protocol == Protocol::Sctp).cloned();
    sctp.map(|socket| Socket { cgroup: None, device: 0, ..socket }).collect()
}

/// In the cluster, the client is the Node `n2`.
fn two_nodes() -> (Wired, ControlPlane) {
    let wired = Wired::enter();
    let cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &PRIMARY));
    cluster.api().create(&objects::node("n2", &[PEER]));
    (wired, cluster)
}

fn trap() -> Value {
    let mut service = objects::service("trap", &[objects::port(6666, None)]);
    service["spec"] = json!({"ports": service["spec"]["ports"], "externalIPs": [PEER]});
    service
}

fn dial(protocol: SockProtocol, port: u16, to: SocketAddr) -> TcpStream {
    let from = if port == 0 { IpAddr::from([0; 4]) } else { ip(PRIMARY[0]) };
    let client = open(protocol, SocketAddr::new(from, port));
    let outcome = connect(client.as_raw_fd(), &SockaddrStorage::from(to));
    assert!(matches!(outcome, Ok(()) | Err(Errno::EINPROGRESS)), "{outcome:?}");
    client.into()
}

fn open(protocol: SockProtocol, address: SocketAddr) -> OwnedFd {
    let opened = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_NONBLOCK, protocol).expect("a socket");
    bind(opened.as_raw_fd(), &SockaddrStorage::from(address)).unwrap_or_else(|error| panic!("{address}: {error}"));
    opened
}

fn ip(address: &str) -> IpAddr {
    address.parse().expect("an address")
}

fn route_to(address: &str) -> String {
    run("ip", &["route", "get", address])
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("an installed program");
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}
