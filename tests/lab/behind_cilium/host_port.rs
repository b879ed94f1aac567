//! hostPorts of a pod that Cilium serves, inside and outside of the NodePort range.

use std::net::SocketAddr;

use portreeve_facts::Protocol;
use serde_json::json;

use super::live::Behind;
use crate::{
    look::Look,
    parts::{Answer, PRIMARY, Release, ask, objects, until},
    verdicts::{
        binds::{Held, to},
        claims::OTHER,
    },
};

const RULE: &str = "host-port-conflict/ignored";

#[test]
fn a_host_port_in_the_node_port_range_is_ignored_and_told_and_one_beside_it_is_served() {
    let node = Behind::start_of(Release::Newest, &[], &PRIMARY);
    let _served = node.pod.run(|| Held::on(&to("::"), Protocol::Tcp, OTHER, Answer::OtherPod));
    let addresses: Vec<&str> = node.addresses.iter().map(String::as_str).collect();
    // cilium-agent applies the hostPorts in this order. The last hostPort is outside the NodePort range.
    for port in [30600, 8600] {
        let pod = objects::host_port_pod(&format!("edge-{port}"), "TCP", port, None);
        node.cluster.api().create_running(&pod, &addresses);
    }
    let asked = |port: u16| {
        let to = SocketAddr::new(PRIMARY[0].parse().expect("an address"), port);
        [node.wired.client.run(move || ask(to)), ask(to)]
    };
    until("hostPort beside the range", || (asked(8600) == [Answer::OtherPod; 2]).then_some(()));
    assert_eq!(asked(30600), [Answer::Refused; 2]);

    let look = Look::check_with(&["--rule", RULE], &node.cluster.kubeconfig("observer"));
    let [finding] = &look.findings(RULE)[..] else { panic!("{:#}", look.json) };
    assert_eq!((&finding["port"], &finding["variant"]), (&json!(30600), &json!("ignored")));
    assert_eq!((&finding["severity"], &finding["subject"]["name"]), (&json!("warning"), &json!("edge-30600")));
}
