//! If the container runtime does not call the CNI plugin portmap at the end of a pod, the plugin's rules stay. The
//! tests show which connections the leftover rules redirect.

use crate::parts::named::is_of;
use std::{collections::BTreeMap, net::SocketAddr};

use portreeve_facts::Protocol;
use portreeve_rules::findings::Vantage::{Node, Pods, Remote};
use serde_json::{Value, json};

use crate::{
    look::Look,
    parts::{Answer, ControlPlane, PRIMARY, Proxy, Wired, cluster, follow, kubectl, objects, serve},
    verdicts::{
        asks::{Ask, ask_all},
        binds::{BINDS, Held},
        claims::{self, OTHER},
        cni::{self, HostPort, Plugin, Sandbox},
    },
};

const RULE: &str = "stale-redirection/host-port";
/// Three hostPorts of a deleted pod. After the deletion, a process listens on 8081, and the next pod has hostPort 8082.
/// A Service always has NodePort 30080.
const PORTS: [u16; 3] = [8081, 8082, 30080];

/// Returns the answer on each of [`PORTS`]. All vantage points must get the same answer in both families.
#[track_caller]
fn answers(wired: &Wired) -> [Answer; 3] {
    let asks: Vec<Ask> = PORTS
        .into_iter()
        .flat_map(|port| PRIMARY.map(|ip| SocketAddr::new(ip.parse().expect("an address"), port)))
        .flat_map(|to| [Remote, Node, Pods].map(|from| (from, Protocol::Tcp, to)))
        .collect();
    let answers = ask_all(wired, &asks);
    PORTS.map(|port| {
        let here: Vec<_> =
            answers.iter().filter(|((.., to), _)| to.port() == port).map(|(_, answer)| *answer).collect();
        assert!(here.iter().all(|answer| *answer == here[0]), "{port}: {answers:?}");
        here[0]
    })
}

#[track_caller]
fn found(cluster: &ControlPlane) -> BTreeMap<u64, Value> {
    let look = Look::check_with(&["--rule", RULE], &cluster.kubeconfig("observer"));
    assert!(!look.unknown().iter().any(|it| is_of(it, RULE)), "{:#}", look.json);
    look.findings(RULE).into_iter().map(|it| (it["port"].as_u64().expect("a port"), it.clone())).collect()
}

#[track_caller]
fn what_is_left_takes_connections(mode: &str, plugin: Plugin) {
    let host = |port| HostPort { port, protocol: Protocol::Tcp, address: None };
    let wired = Wired::enter();
    let _pods = claims::serve(&wired);
    let cluster = cluster();
    serve(&cluster, "web", Some(PORTS[2]));
    let proxy = Proxy::start(&cluster, mode, &json!({}));

    cluster.api().create(&objects::service_account());
    let mut pod = objects::host_port_pod("gone", "TCP", PORTS[0], None);
    for port in &PORTS[1..] {
        let more = json!({"containerPort": OTHER, "hostPort": port, "protocol": "TCP"});
        pod["spec"]["containers"][0]["ports"].as_array_mut().expect("ports").push(more);
    }
    cluster.api().create_running(&pod, &Wired::ANOTHER);
    let gone = Wired::another();
    let server = gone.run(|| Held::on(&BINDS[1], Protocol::Tcp, OTHER, Answer::OtherPod));
    let addresses = Wired::ANOTHER;
    cni::add(&Sandbox { plugin, id: "gone", namespace: &gone, addresses }, &PORTS.map(host));
    // The answer on the NodePort depends on the mode. The rule `host-port-conflict/node-port` reports this conflict.
    let [first, second, node_port] = answers(&wired);
    assert_eq!([first, second], [Answer::OtherPod; 2]);
    assert_eq!(found(&cluster), BTreeMap::new(), "a pod that lives has them all");

    drop((server, gone));
    kubectl(&cluster, &["delete", "pod", "gone", "--force", "--grace-period=0"]);
    let _process = Held::on(&BINDS[1], Protocol::Tcp, PORTS[0], Answer::Process);
    cluster.api().create_running(&objects::host_port_pod("next", "TCP", PORTS[1], None), &Wired::HERE);
    cni::add(&Sandbox { plugin, ..Sandbox::of(&wired) }, &[host(PORTS[1])]);
    let node_port = if node_port == Answer::OtherPod { Answer::TimedOut } else { Answer::Pod };
    assert_eq!(answers(&wired), [Answer::TimedOut, Answer::TimedOut, node_port]);
    assert_eq!(node_port == Answer::TimedOut, mode == "nftables");

    let told = found(&cluster);
    let severities: Vec<_> = told.iter().map(|(port, it)| (*port, it["severity"].as_str().expect("a word"))).collect();
    assert_eq!(severities, [(8081, "critical"), (8082, "critical"), (30080, "warning")]);
    let ends = [
        "a process gets no connections.",
        "pod default/next gets no connections.",
        match mode {
            "nftables" => "Service default/web port p80 may get no connections.",
            _ => "an address that no pod of this node has.",
        },
    ];
    for (finding, end) in told.values().zip(ends) {
        assert!(finding["summary"].as_str().is_some_and(|it| it.ends_with(end)), "{end} {finding:#}");
    }
    // In nftables mode, the chains of the new proxy are now newer than the chains of portmap.
    drop(proxy);
    let _proxy = Proxy::start(&cluster, mode, &json!({}));
    assert_eq!(answers(&wired), [Answer::TimedOut, Answer::TimedOut, Answer::Pod]);
    assert_eq!(found(&cluster).keys().collect::<Vec<_>>(), told.keys().collect::<Vec<_>>());

    told.values().for_each(|finding| follow(&cluster, finding));
    assert_eq!(answers(&wired), [Answer::Process, Answer::OtherPod, Answer::Pod]);
    assert_eq!(found(&cluster), BTreeMap::new());
}

#[test]
fn in_iptables_mode_what_is_left_takes_a_process_and_a_pod_and_no_node_port() {
    what_is_left_takes_connections("iptables", Plugin::Iptables);
}

#[test]
fn in_nftables_mode_what_is_left_by_iptables_takes_a_process_and_a_pod_and_a_node_port() {
    what_is_left_takes_connections("nftables", Plugin::Iptables);
}

#[test]
fn in_nftables_mode_what_is_left_by_nftables_takes_a_process_and_a_pod_and_a_node_port() {
    what_is_left_takes_connections("nftables", Plugin::Nftables);
}
