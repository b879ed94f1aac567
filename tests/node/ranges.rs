//! Compares the ephemeral range with the NodePort range. Other tests are about bands, and about client sockets on
//! NodePorts.

use std::{net::TcpListener, thread::sleep, time::Duration};

use crate::named::name;
use crate::stage::{PEER, Scan, Stage, connecting, sysctl};

const OVERLAP: &str = "ephemeral-range-overlap/node-ports";

fn overlap(mode: &str, range: &str, reserved: &str) -> Option<String> {
    let stage = Stage::new()
        .service("web", "TCP", 30080, "")
        .endpoints("web", "TCP", Some("n1"))
        .node_port_range("30000-32767");
    sysctl("net.ipv4.ip_local_port_range", range);
    sysctl("net.ipv4.ip_local_reserved_ports", reserved);
    let scan = stage.check(&["--proxy-mode", mode]);
    scan.find(OVERLAP, "n1").map(|finding| finding.0["severity"].as_str().expect("a severity").to_owned())
}

#[test]
fn the_overlap_is_critical_in_ipvs_mode_while_an_allocated_port_is_uncovered() {
    for (range, reserved, ipvs, other) in [
        ("32768 60999", "", None, None),
        ("1024 65535", "", Some("critical"), Some("warning")),
        ("1024 65535", "30000-30999", Some("warning"), Some("warning")),
        ("1024 65535", "30000-32767", None, None),
        ("1024 65535", "30000-30999,31000-31999,32000-32767", None, None),
    ] {
        assert_eq!(overlap("ipvs", range, reserved).as_deref(), ipvs, "ipvs, {range}, reserved {reserved:?}");
        assert_eq!(overlap("iptables", range, reserved).as_deref(), other, "iptables, {range}, reserved {reserved:?}");
        assert_eq!(overlap("nftables", range, reserved).as_deref(), other, "nftables, {range}, reserved {reserved:?}");
    }
}

#[test]
fn the_remedy_keeps_ports_that_were_reserved_before() {
    let stage = Stage::new().node_port_range("30000-32767");
    sysctl("net.ipv4.ip_local_port_range", "1024 65535");
    sysctl("net.ipv4.ip_local_reserved_ports", "2703,9808-9810");
    let scan = stage.check(&["--proxy-mode", "iptables"]);
    let remedy = scan.finding(OVERLAP, "n1").remedy();
    // The remedy also reserves the ports of kube-proxy, because kube-proxy starts later than the first connections of a
    // node.
    assert!(remedy.contains("2703,9808-9810,10249,10256,30000-32767"), "{remedy}");
}

#[test]
fn a_wide_range_over_the_port_of_a_server_is_a_warning_until_it_is_reserved() {
    let stage = Stage::new().node_port_range("30000-32767");
    sysctl("net.ipv4.ip_local_port_range", "1024 65535");
    sysctl("net.ipv4.ip_local_reserved_ports", "30000-32767");
    let _kubelet = TcpListener::bind("0.0.0.0:10250").expect("the port is free");
    let scan = stage.check(&["--proxy-mode", "iptables"]);
    let finding = scan.finding("ephemeral-range-overlap/servers", "n1");
    assert_eq!(finding.0["severity"], "warning");
    assert!(finding.evidence().contains("10249-10250,10256 (3 ports)"), "{}", finding.evidence());
    assert!(finding.remedy().contains("10249-10250,10256,30000-32767"), "{}", finding.remedy());
    sysctl("net.ipv4.ip_local_reserved_ports", "10249-10250,10256,30000-32767");
    assert!(stage.check(&["--proxy-mode", "iptables"]).findings("ephemeral-range-overlap").is_empty());
}

/// Scans for at most twenty seconds, until the kernel has repeated the client's SYN. The kernel repeats the SYN after
/// about a second.
fn scan_client(stage: &Stage, mode: &str) -> Scan {
    for _ in 0..40 {
        let scan = stage.check(&["--proxy-mode", mode]);
        let told = scan.find("connection-on-port/answers-taken", "web").map(|finding| finding.evidence());
        if told.is_some_and(|evidence| evidence.contains("retransmitting")) {
            return scan;
        }
        sleep(Duration::from_millis(500));
    }
    panic!("no retransmitted SYN was found in {mode} mode: {:#}", stage.check(&["--proxy-mode", mode]).json);
}

#[test]
fn a_client_socket_on_a_node_port_is_swallowed_in_ipvs_mode_only() {
    let stage = Stage::new().service("web", "TCP", 30080, "").endpoints("web", "TCP", Some("n1"));
    let _client = connecting("192.0.2.1:30080", &format!("{PEER}:8080"));
    let scan = scan_client(&stage, "ipvs");
    let finding = scan.finding("connection-on-port/answers-taken", "web");
    assert_eq!(finding.0["severity"], "critical");
    assert!(finding.evidence().contains("SYN-SENT 192.0.2.1:30080 -> 192.0.2.9:8080"), "{}", finding.evidence());
    for mode in ["iptables", "nftables"] {
        let scan = stage.check(&["--proxy-mode", mode]);
        let severity =
            scan.find("connection-on-port/answers-taken", "web").map(|finding| finding.0["severity"].clone());
        assert!(severity.is_none_or(|severity| severity == "info"), "{mode}");
    }
}

pub(crate) fn crowd(range: &str, ports: impl IntoIterator<Item = u16>) -> Stage {
    ports
        .into_iter()
        .fold(Stage::new().node_port_range(range), |stage, port| stage.service(&format!("s{port}"), "TCP", port, ""))
}

fn crowded(stage: &Stage) -> Option<(String, String)> {
    let scan = stage.check(&["--proxy-mode", "nftables"]);
    let finding = scan.findings("node-port-range-crowded").into_iter().next().map(crate::stage::Finding)?;
    Some((format!("{} {}", finding.0["severity"], name(finding.0)), finding.evidence()))
}

#[test]
fn bands_are_counted_as_the_api_server_splits_them() {
    for (range, dynamic_first, last) in [
        ("30000-30015", 30000, 30015),
        ("30000-30127", 30016, 30127),
        ("30000-32767", 30086, 32767),
        ("30000-34095", 30128, 34095),
    ] {
        let dynamic: Vec<u16> = (dynamic_first..=last).collect();
        let below = dynamic.len() * 80 / 100 - 1;
        assert_eq!(
            crowded(&crowd(range, dynamic[..below].iter().copied())),
            None,
            "{range}, {below} of {}",
            dynamic.len()
        );
        let (told, evidence) = crowded(&crowd(range, dynamic[..=below + 1].iter().copied())).expect("crowded");
        assert_eq!(told, r#""warning" node-port-range-crowded/crowded"#, "{range}");
        assert!(evidence.contains(&format!("{dynamic_first}-{last}")), "{evidence}");
        let (told, _) = crowded(&crowd(range, 30000..=last)).expect("full");
        assert_eq!(told, r#""critical" node-port-range-crowded/full"#, "{range}");
    }
}

#[test]
fn spilling_into_the_static_band_is_a_warning() {
    let (told, evidence) = crowded(&crowd("30000-30127", (30016..=30127).chain([30003]))).expect("spilled");
    assert_eq!(told, r#""warning" node-port-range-crowded/spilled"#);
    assert!(evidence.contains("30000-30015"), "{evidence}");
}

#[test]
fn an_assumed_range_is_not_judged_for_crowding_and_a_port_outside_disproves_it() {
    let stage = Stage::new().service("odd", "TCP", 20080, "");
    let scan = stage.check(&["--proxy-mode", "nftables"]);
    assert!(
        scan.findings("node-port-range-crowded").is_empty()
            && scan.findings("node-port-range-mismatch/outside").is_empty()
    );
    assert!(scan.json["unknown"].as_array().expect("unknown").iter().any(|it| it["source"] == "node-port-range"));
    let told = stage.node_port_range("30000-32767").check(&["--proxy-mode", "nftables"]);
    assert_eq!(told.finding("node-port-range-mismatch/outside", "odd").0["severity"], "warning");
}
