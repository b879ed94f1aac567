//! The program as uid 65534 without any capability, as in the minimal profile of the chart.

use std::{os::unix::fs::PermissionsExt as _, process::Command};

use tempfile::TempDir;

use crate::{
    agent::{Agent, wait_for},
    proxy::{Squatter, StandIn},
    stage::{Scan, Stage},
};

fn scan(stage: &Stage) -> Scan {
    let (mut nobody, _place) = nobody(stage, "check");
    Scan::of(nobody.args(["-o", "json"]))
}

/// A command that runs a copy of the binary as uid 65534. Every user may read the copy and the manifest. The copy is
/// deleted with the returned directory.
pub(crate) fn nobody(stage: &Stage, command: &str) -> (Command, TempDir) {
    let root = stage.command(command);
    let place = TempDir::new().expect("a directory");
    let manifest = stage.manifest();
    for path in [place.path(), &manifest, manifest.parent().expect("a directory")] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("access for other users");
    }
    let binary = place.path().join("portreeve");
    // `cp` makes the copy. If this process opened the copy for writing, a child of a parallel test could keep the copy
    // open. The kernel would then not run the copy.
    assert!(Command::new("cp").arg(root.get_program()).arg(&binary).status().expect("the program cp").success());
    let mut nobody = Command::new("setpriv"); // of the package util-linux
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]);
    nobody.arg("--no-new-privs").arg(binary).args(root.get_args());
    (nobody, place)
}

/// Fault (kernel): the agent loses every capability
/// Does: finds listeners, addresses and settings; names and pods are unread
/// Right again: with the next start that has the capabilities
/// Lost: names of processes
#[test]
fn everything_but_names_pod_namespaces_and_netfilter_still_works() {
    // This old kube-proxy opens a socket for each NodePort. Only one NodePort has a socket, so another program opened
    // this socket.
    let stage = Stage::new()
        .service("web", "TCP", 30080, "")
        .endpoints("web", "TCP", Some("n1"))
        .service("other", "TCP", 30081, "")
        .node_port_range("30000-32767");
    StandIn { version: "v1.23.6", max_fds: 16, ..StandIn::default() }.start();
    let _squatter = Squatter::on("0.0.0.0:30080");
    let scan = scan(&stage);
    assert_eq!(scan.code, 1);
    assert_eq!(scan.json["nodes"][0]["proxy"]["mode"], "iptables");
    let fds = scan.finding("proxy-near-fd-limit/near", "n1");
    assert!(fds.evidence().contains("16"), "the limit needs no privilege: {}", fds.evidence());
    for unknown in scan.unknown() {
        assert!(
            !unknown.starts_with("listeners") && !unknown.starts_with("addresses") && !unknown.starts_with("sysctls"),
            "{unknown}"
        );
    }
    assert!(scan.unknown().iter().any(|it| it.ends_with("not-permitted")), "{:?}", scan.unknown());
    let as_root = stage.check(&[]);
    assert!(!as_root.unknown().iter().any(|it| it.ends_with("not-permitted")), "{:?}", as_root.unknown());
}

#[test]
fn a_missing_permission_does_not_change_the_exit_code() {
    let stage = Stage::new()
        .service("web", "TCP", 30080, "")
        .endpoints("web", "TCP", Some("n1"))
        .node_port_range("30000-32767");
    StandIn::default().start();
    let scan = scan(&stage);
    assert_eq!(scan.code, 0, "{:#}", scan.json);
    assert!(!scan.unknown().is_empty());
}

#[test]
fn on_a_healthy_node_only_facts_that_may_change_a_verdict_are_unknown() {
    for mode in ["iptables", "nftables", "ipvs"] {
        let stage = Stage::new()
            .service("web", "TCP", 30080, "")
            .endpoints("web", "TCP", Some("n1"))
            .node_port_range("30000-32767");
        StandIn { mode, ..StandIn::default() }.start();
        let healthy = scan(&stage);
        assert!(healthy.findings("listener-on-node-port/loses").is_empty());
        assert_eq!(healthy.unknown(), ["netfilter: not-permitted", "pod-namespaces: not-permitted"], "{mode}");
        let _squatter = Squatter::on("192.0.2.1:30080");
        assert!(scan(&stage).unknown().contains(&"processes: not-permitted".to_owned()), "{mode}: the owner matters");
    }
}

/// Fault (kernel): the agent may not list connection tracking (no CAP_NET_ADMIN)
/// Does: `portreeve_source_up` is 0, and the metric of masqueraded flows is absent
/// Right again: with the next start that has the capability
/// Lost: the number of flows
#[test]
fn an_agent_that_may_not_list_flows_reports_it_and_counts_none() {
    let stage = Stage::new().service("web", "TCP", 30080, "").node_port_range("30000-32767");
    StandIn::default().start();
    let (nobody, _place) = nobody(&stage, "agent");
    let own = stage.path("");
    std::fs::set_permissions(own, std::fs::Permissions::from_mode(0o777)).expect("access for its socket");
    let agent = Agent::of(nobody, &stage, &[]);
    let text = wait_for("/metrics", |text| text.contains("portreeve_source_up{source=\"conntrack\"} 0"));
    assert!(!text.contains("\nportreeve_masqueraded_flows_in_node_port_range "), "{text}");
    let findings = wait_for("/findings", |text| text.contains("\"unknown\""));
    assert!(!findings.contains("conntrack"), "no verdict depends on flows in iptables mode: {findings}");
    drop(agent);
    let _as_root = Agent::start(&stage, &[]);
    let text = wait_for("/metrics", |text| text.contains("portreeve_source_up{source=\"conntrack\"} 1"));
    assert!(text.contains("\nportreeve_masqueraded_flows_in_node_port_range "), "{text}");
}
