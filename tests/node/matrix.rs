//! The connections that a listener loses, by the proxy's mode, the listener's address and the Service's endpoints. The
//! test runs the binary.

use std::net::TcpListener;

use crate::stage::{Scan, Stage};

const SHAPES: [&str; 3] = ["ready", "empty", "elsewhere"];

/// A row: the listener's address, and the verdict for each kind of Service in [`SHAPES`]. The Service `elsewhere` has
/// endpoints only on another node, and externalTrafficPolicy Local.
type Row = (&'static str, [&'static str; 3]);

const EVERYWHERE: &str = "critical remote node loopback pods";
const OUTSIDE: &str = "critical remote node pods";
const LOOPBACK: &str = "warning loopback";
const SILENT: &str = "";

const MATRIX: &[(&str, [Row; 6])] = &[
    (
        "iptables",
        [
            ("0.0.0.0", [EVERYWHERE; 3]),
            ("[::]", [EVERYWHERE; 3]),
            ("127.0.0.1", [LOOPBACK; 3]),
            ("[::1]", [SILENT, LOOPBACK, LOOPBACK]),
            ("192.0.2.1", [OUTSIDE; 3]),
            ("[2001:db8::2]", [OUTSIDE; 3]),
        ],
    ),
    (
        "nftables",
        [
            ("0.0.0.0", [OUTSIDE; 3]),
            ("[::]", [OUTSIDE; 3]),
            ("127.0.0.1", [SILENT; 3]),
            ("[::1]", [SILENT; 3]),
            ("192.0.2.1", [OUTSIDE; 3]),
            ("[2001:db8::2]", [SILENT; 3]),
        ],
    ),
    (
        "ipvs",
        [
            ("0.0.0.0", [OUTSIDE; 3]),
            ("[::]", [OUTSIDE; 3]),
            ("127.0.0.1", [SILENT; 3]),
            ("[::1]", [SILENT; 3]),
            ("192.0.2.1", [OUTSIDE; 3]),
            ("[2001:db8::2]", [OUTSIDE; 3]),
        ],
    ),
];

fn port(row: usize, column: usize) -> u16 {
    30000 + 10 * u16::try_from(row).expect("few rows") + u16::try_from(column).expect("few columns")
}

fn service(row: usize, column: usize) -> String {
    format!("row{row}-{}", SHAPES[column])
}

#[test]
fn every_case_of_the_matrix_has_its_severity_and_affects() {
    let mut stage = Stage::new();
    let mut listeners = Vec::new();
    for row in 0..6 {
        for column in 0..3 {
            let name = service(row, column);
            let policy = if column == 2 { "  externalTrafficPolicy: Local" } else { "" };
            stage = stage.service(&name, "TCP", port(row, column), policy);
            stage = stage.endpoints(&name, "TCP", [Some("n1"), None, Some("n2")][column]);
            let bind = MATRIX[0].1[row].0;
            listeners.push(TcpListener::bind(format!("{bind}:{}", port(row, column))).expect("the port is free"));
        }
    }
    for (mode, rows) in MATRIX {
        let scan = stage.check(&["--proxy-mode", mode]);
        assert_eq!(scan.code, 1, "{mode}");
        assert_eq!(scan.json["nodes"][0]["proxy"]["mode"], *mode);
        for (row, (bind, verdicts)) in rows.iter().enumerate() {
            for (column, expected) in verdicts.iter().enumerate() {
                let found = scan.find("listener-on-node-port/loses", &service(row, column));
                let told = found.map(|finding| finding.verdict()).unwrap_or_default();
                assert_eq!(told, *expected, "{mode}, bound to {bind}, endpoints {}", SHAPES[column]);
            }
        }
    }
}

#[test]
fn evidence_names_the_lost_addresses_of_each_family_and_the_remedy_is_a_command() {
    let stage = Stage::new().service("web", "TCP", 30080, "").endpoints("web", "TCP", Some("n1"));
    let _listener = TcpListener::bind("[::]:30080").expect("the port is free");
    let scan = stage.check(&["--proxy-mode", "nftables"]);
    let finding = scan.finding("listener-on-node-port/loses", "web");
    let evidence = finding.evidence();
    for part in
        ["from elsewhere = to 192.0.2.1, 2001:db8::1 are answered by a pod", "proxy mode = nftables", "[::]:30080"]
    {
        assert!(evidence.contains(part), "{part:?} in {evidence}");
    }
    assert!(!evidence.contains("to 192.0.2.1, 192.0.2.2"), "the second address keeps the listener: {evidence}");
    // A file of Services does not show which ports are hostPorts of Pods. So the remedy offers no free port.
    assert!(finding.remedy().contains("kubectl -n default edit service web"), "{}", finding.remedy());
}

#[test]
fn exit_codes_differ_for_findings_unread_input_and_usage_errors() {
    let stage = Stage::new().service("web", "TCP", 30080, "").endpoints("web", "TCP", Some("n1"));
    assert_eq!(stage.check(&["--proxy-mode", "iptables"]).code, 0);
    let _listener = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    assert_eq!(stage.check(&["--proxy-mode", "iptables"]).code, 1);
    assert_eq!(stage.check(&["--proxy-mode", "iptables", "--exit-zero"]).code, 0);
    let code = |arguments: &[&str]| {
        let output = crate::stage::portreeve().args(arguments).output().expect("portreeve runs");
        output.status.code().expect("an exit code")
    };
    assert_eq!(code(&["check", "--proxy-mode", "bridge"]), 64);
    assert_eq!(code(&["check", "--services", "/nonexistent.yaml"]), 2);
}

#[test]
fn a_loopback_only_listener_stays_below_a_critical_threshold() {
    let stage = Stage::new().service("web", "TCP", 30081, "").endpoints("web", "TCP", None);
    let _listener = TcpListener::bind("127.0.0.1:30081").expect("the port is free");
    let scan: Scan = stage.check(&["--proxy-mode", "iptables", "--min-severity", "critical"]);
    assert_eq!(scan.code, 0);
}
