//! What a tenant, a file or a process name may do: nothing but be reported in one clean line.

use std::{net::TcpListener, process::Output};

use crate::stage::{Stage, portreeve};

fn run(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = portreeve().args(arguments).output().expect("portreeve runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code().expect("an exit code, not a panic by signal"), text(stdout), text(stderr))
}

fn is_clean(text: &str) -> bool {
    !text.chars().any(|c| (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c) || c == '\u{200b}')
}

fn file(content: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), content).expect("writing");
    file
}

#[test]
fn hostile_names_annotations_and_process_names_cannot_break_a_line() {
    let huge = "x".repeat(1 << 20);
    let stage = Stage::new()
        .document(&format!(
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: \"web\\e[31m\\nforged\\u202e\\u200b\"\n  namespace: default\n  annotations: {{a: \"{huge}\"}}\nspec:\n  \
             type: NodePort\n  clusterIP: 10.96.0.10\n  ports: [{{name: \"{huge}\", port: 80, protocol: TCP, nodePort: 30080}}]"
        ));
    let _listener = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    std::fs::write("/proc/thread-self/comm", b"\x1b[2Jev\nil").expect("a name");
    for format in ["table", "wide", "yaml", "npd", "junit", "sarif", "json"] {
        let output = stage
            .command("check")
            .args(["--proxy-mode", "iptables", "-o", format, "--color", "never"])
            .output()
            .expect("portreeve runs");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(is_clean(&text), "{format}: {text:?}");
        assert!(text.len() < 200_000, "{format}: {} bytes", text.len());
        assert!(!text.lines().any(|line| line.starts_with("forged")), "{format}");
    }
}

#[test]
fn a_port_that_cannot_be_rejects_that_service_by_name_and_keeps_the_rest() {
    let stage = Stage::new()
        .document("apiVersion: v1\nkind: Service\nmetadata: {name: broken, namespace: default}\nspec: {type: NodePort, clusterIP: 10.96.0.9, ports: [{port: 70000, nodePort: 30081}]}")
        .service("web", "TCP", 30080, "");
    let _listener = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    let look = stage.check(&["--proxy-mode", "iptables"]);
    look.finding("listener-on-node-port", "web");
    let unknown = look.json["unknown"].to_string();
    assert!(unknown.contains("broken") && unknown.contains("70000") && unknown.contains("65535"), "{unknown}");
}

#[test]
fn a_file_that_is_none_is_one_clear_error() {
    let malformed = file(b"apiVersion: v1\nkind: Service\nmetadata: {name: [}\n");
    let truncated = file(br#"{"apiVersion":"v1","kind":"List","items":[{"kind":"Service","metadata":{"name":"a","#);
    let binary = file(&[0xff, 0xfe, 0, 1, 2, 3]);
    let directory = tempfile::TempDir::new().expect("a directory");
    let paths =
        [malformed.path(), truncated.path(), binary.path(), directory.path(), std::path::Path::new("/nonexistent")];
    for path in paths {
        let path = path.to_str().expect("UTF-8");
        let (code, stdout, stderr) = run(&["check", "--services", path, "--proxy-mode", "iptables"]);
        assert_eq!(code, 2, "{path}: {stdout}{stderr}");
        let both = format!("{stdout}{stderr}");
        assert!(both.contains(path), "the place is named: {both}");
        assert!(!both.contains("panicked"), "{both}");
    }
}

#[test]
fn an_unknown_flag_value_is_a_usage_error_that_names_what_was_wanted() {
    for (arguments, wanted) in [
        (vec!["check", "--proxy-mode", "bridge"], "nftables"),
        (vec!["check", "--node-port-range", "32767-30000"], "FIRST-LAST"),
        (vec!["check", "-o", "xml"], "sarif"),
        (vec!["check", "--min-severity", "fatal"], "critical"),
        (vec!["rules", "explain", "listener-on-node-prot"], "listener-on-node-port"),
    ] {
        let (code, _, stderr) = run(&arguments);
        assert_eq!(code, 64, "{arguments:?}: {stderr}");
        assert!(stderr.contains(wanted), "{arguments:?}: {stderr}");
    }
}
