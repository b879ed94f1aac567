//! ServiceLB of k3s and RKE2 sends a connection to a Service's port through its own pods. The tests show what happens
//! if another program has the Service's NodePort. The rules of klipper-lb are in the pod's network namespace.

use std::{net::IpAddr, process::Command};

use portreeve_dataplane::owner;
use portreeve_facts::{Protocol, Snapshot};
use portreeve_rules::{Limits, findings::Vantage};
use serde_json::{Value, json};

use super::{
    Held,
    asks::ask_all,
    binds::BINDS,
    claims::{serve, told},
    cni::{self, HostPort, Sandbox},
    forget_flows,
    record::letter,
};
use crate::{
    look::{Look, snapshot},
    parts::{Answer, ControlPlane, PRIMARY, Proxy, Wired, kubectl, objects, sysctl},
};

const PORT: u16 = 80;
const NODE_PORT: u16 = 30080;

/// The address of the pod of ServiceLB.
const POD: &str = "10.244.0.5";

#[track_caller]
pub fn agrees(mode: &str) {
    let wired = Wired::enter();
    let _pods = serve(&wired);
    let cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &PRIMARY));
    for namespace in ["default", "kube-system"] {
        let mut account = objects::service_account();
        account["metadata"]["namespace"] = json!(namespace);
        cluster.api().create(&account);
    }
    let mut web = objects::service("web", &[objects::port(PORT, Some(NODE_PORT))]);
    web["spec"]["type"] = json!("LoadBalancer");
    let web = cluster.api().create(&web);
    for (family, endpoint) in ["IPv4", "IPv6"].into_iter().zip(Wired::HERE) {
        cluster.api().create(&objects::endpoint_slice(&web, Some((endpoint, "n1")), family));
    }
    let mut pod = objects::host_port_pod("svclb-web", "TCP", PORT, None);
    pod["metadata"]["namespace"] = json!("kube-system");
    pod["metadata"]["labels"] =
        json!({"svccontroller.k3s.cattle.io/svcname": "web", "svccontroller.k3s.cattle.io/svcnamespace": "default"});
    cluster.api().create_running(&pod, &[POD, "fd00:244::5"]);
    nat(&[format!("PREROUTING -m addrtype --dst-type LOCAL -p tcp --dport {PORT} -j DNAT --to {POD}:{PORT}")]);
    wired.pod.run(|| sysctl("net.ipv4.ip_forward", "1"));
    let primary: IpAddr = PRIMARY[0].parse().expect("an address");
    let ask = || {
        forget_flows();
        let asks = [(Vantage::Remote, PORT), (Vantage::Pods, NODE_PORT)];
        let asks = asks.map(|(from, port)| (from, Protocol::Tcp, (primary, port).into()));
        let answers = ask_all(&wired, &asks);
        asks.map(|ask| letter(&ask, answers[&ask]))
    };
    let see = || snapshot(&cluster.kubeconfig("admin"));
    let mut all = Proxy::start(&cluster, mode, &json!({}));

    // With the policy Cluster, ServiceLB's pod connects to the cluster IP, so the owner of the NodePort does not
    // matter.
    let cluster_ip = web["spec"]["clusterIP"].as_str().expect("a cluster IP").to_owned();
    let squatter = || Held::on(&BINDS[1], Protocol::Tcp, NODE_PORT, Answer::Process);
    let leads_to = |address: String, port: u16| {
        wired.pod.run(move || {
            nat(&["--flush".to_owned()]);
            nat(&[
                format!("PREROUTING -p tcp --dport {PORT} -j DNAT --to {address}:{port}"),
                format!("POSTROUTING -d {address} -p tcp -j MASQUERADE"),
            ]);
        });
    };
    leads_to(cluster_ip, PORT);
    let held = squatter();
    assert_eq!(ask(), ['P', 'P'], "{mode}");
    assert!(detail(&see()).contains("the cluster IP of Service default/web"), "{}", detail(&see()));

    // With the policy Local, ServiceLB's pod connects to the NodePort.
    let local = json!({"spec": {"externalTrafficPolicy": "Local"}}).to_string();
    kubectl(&cluster, &["patch", "service", "web", "--type=merge", "-p", &local]);
    all.settle(&cluster);
    leads_to(PRIMARY[0].to_owned(), NODE_PORT);
    let agree = |shown: [char; 2], why: &str| {
        assert_eq!(shown, [shown[1]; 2], "{mode}, {why}: the port is answered as the NodePort");
        let seen = see();
        let told = told(&seen, Protocol::Tcp, NODE_PORT)[&(Vantage::Pods, primary)];
        assert_eq!(told, shown[1], "{mode}, {why}");
        assert!(detail(&seen).contains("nodePort 30080 of this node"), "{}", detail(&seen));
    };
    let before = ask();
    agree(before, "a process on a NodePort that is served");
    assert_eq!(before[0], 'P');
    all.clean_up();
    let elsewhere = Proxy::start(&cluster, mode, &json!({"nodePortAddresses": ["192.0.2.2/32"]}));
    let taken = ask();
    agree(taken, "a process on a NodePort that is not served there");
    assert_eq!(taken[0], 'L', "the process has the Service's port, too");
    drop(held);
    let free = ask();
    agree(free, "a NodePort that is not served there");
    assert_eq!(free[0], 'R');
    elsewhere.clean_up();

    // In ipvs mode, the hostPort gets the NodePort's connections. In the other modes, the NodePort keeps its
    // connections: in iptables mode, kube-proxy's rule comes first, and in nftables mode, kube-proxy's chain is newer.
    let edge = objects::host_port_pod("edge", "TCP", NODE_PORT, None);
    cluster.api().create_running(&edge, &Wired::HERE);
    let proxy = Proxy::start(&cluster, mode, &json!({}));
    let host_port = [HostPort { port: NODE_PORT, protocol: Protocol::Tcp, address: None }];
    cni::add(&Sandbox::of(&wired), &host_port);
    let [port, node_port] = ask();
    assert_eq!(port, node_port, "{mode}: the port is answered as the NodePort");
    let look = Look::check_with(&["--rule", "host-port-conflict/node-port"], &cluster.kubeconfig("admin"));
    let lost = look.findings("host-port-conflict/node-port").into_iter().any(lost_too);
    assert_eq!(lost, mode == "ipvs", "{:#}", look.json);
    assert_eq!(node_port, if mode == "ipvs" { 'O' } else { 'P' }, "{mode}");
    proxy.clean_up();
}

fn lost_too(finding: &Value) -> bool {
    finding.to_string().contains("port 80/tcp of this node, which ServiceLB sends to this NodePort")
}

#[track_caller]
fn detail(seen: &Snapshot) -> String {
    let owned = owner(&Limits::default().round(seen, None), Protocol::Tcp, PORT).expect("it can be told");
    owned.claimants.into_iter().map(|it| it.detail).collect::<Vec<_>>().join("\n")
}

#[track_caller]
fn nat(rules: &[String]) {
    for rule in rules {
        let verb = if rule.starts_with("--") { None } else { Some("--append") };
        let arguments = verb.into_iter().chain(rule.split(' '));
        let status = Command::new("iptables").args(["--wait", "--table", "nat"]).args(arguments).status();
        assert!(status.expect("iptables is installed").success(), "{rule}");
    }
}
