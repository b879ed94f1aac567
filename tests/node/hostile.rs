//! Tenants can choose hostile names, and the names of files and processes can be hostile too. The output must have each
//! hostile name in one line, without control characters.

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
fn an_impossible_port_rejects_that_service_by_name_and_keeps_the_rest() {
    let stage = Stage::new()
        .document("apiVersion: v1\nkind: Service\nmetadata: {name: broken, namespace: default}\nspec: {type: NodePort, clusterIP: 10.96.0.9, ports: [{port: 70000, nodePort: 30081}]}")
        .service("web", "TCP", 30080, "");
    let _listener = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    let scan = stage.check(&["--proxy-mode", "iptables"]);
    scan.finding("listener-on-node-port/loses", "web");
    let unknown = scan.json["unknown"].to_string();
    assert!(unknown.contains("broken") && unknown.contains("70000") && unknown.contains("65535"), "{unknown}");
}

#[test]
fn a_path_that_is_not_a_file_is_one_clear_error() {
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
fn an_unknown_flag_value_is_a_usage_error_that_names_the_wanted_values() {
    for (arguments, wanted) in [
        (vec!["check", "--proxy-mode", "bridge"], "nftables"),
        (vec!["check", "--node-port-range", "32767-30000"], "FIRST-LAST"),
        (vec!["check", "-o", "xml"], "sarif"),
        (vec!["check", "--min-severity", "fatal"], "critical"),
        (vec!["explain", "listener-on-node-prot"], "listener-on-node-port"),
    ] {
        let (code, _, stderr) = run(&arguments);
        assert_eq!(code, 64, "{arguments:?}: {stderr}");
        assert!(stderr.contains(wanted), "{arguments:?}: {stderr}");
    }
}

fn with_files(limit: usize, arguments: &str) -> (i32, String) {
    let program = portreeve();
    let mut shell = std::process::Command::new("sh");
    let line = format!("ulimit -n {limit} && exec \"$0\" {arguments}");
    let Output { status, stdout, stderr } =
        shell.args(["-c", &line]).arg(program.get_program()).output().expect("a shell");
    let text = [stdout, stderr].concat();
    (status.code().expect("an exit code"), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn too_few_open_files_are_one_clear_line_and_no_panic() {
    let stage = Stage::new().service("web", "TCP", 30080, "");
    crate::proxy::StandIn::default().start();
    let manifest = stage.manifest();
    for command in ["check", "agent"] {
        for limit in 5..12 {
            let (code, text) = with_files(limit, &format!("{command} --node n1 --services {}", manifest.display()));
            assert_eq!((code, text.lines().count()), (2, 1), "{command}, {limit}: {text}");
            assert!(text.contains("ulimit -n"), "{command}, {limit}: {text}");
        }
    }
}

fn recorded_tree() -> tempfile::TempDir {
    let tree = tempfile::TempDir::new().expect("a directory");
    let heading = "  sl  local_address rem_address   st\n";
    for (name, content) in [
        ("proc/net/tcp", heading),
        ("proc/net/udp", heading),
        ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
        ("proc/sys/net/ipv4/ip_local_reserved_ports", "\n"),
    ] {
        let path = tree.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        std::fs::write(path, content).expect("written");
    }
    tree
}

#[test]
fn a_recorded_tree_can_neither_block_a_scan_nor_show_a_file_from_outside() {
    let secret = file(b"1024 secret-of-the-host\n");
    for (name, wanted) in [
        ("etc/resolv.conf", "resolv-conf"),
        ("proc/sys/kernel/random/boot_id", "addresses"),
        ("proc/sys/net/ipv4/ip_local_port_range", "sysctls"),
        ("proc/net/tcp", "listeners"),
        ("proc/net/ip_vs", "addresses"),
    ] {
        for outside in [false, true] {
            let tree = recorded_tree();
            let path = tree.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            if path.exists() {
                std::fs::remove_file(&path).expect("removed");
            }
            match outside {
                true => std::os::unix::fs::symlink(secret.path(), &path).expect("linked"),
                false => nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO"),
            }
            let root = tree.path().to_str().expect("UTF-8");
            let (code, stdout, stderr) = run(&["check", "-o", "json", "--proxy-mode", "iptables", "--host-root", root]);
            assert_eq!(code, 2, "{name}: {stdout}{stderr}");
            // Portreeve resolves links inside the tree. So a link to a path outside of the tree leads to no file.
            assert!(outside || stdout.contains(&format!("\"source\": \"{wanted}\"")), "{name}: {stdout}");
            assert!(!stdout.contains("secret") && !stderr.contains("secret"), "{name}: {stdout}{stderr}");
        }
    }
}

#[test]
fn a_recorded_tree_without_its_sockets_is_not_a_node_without_sockets() {
    for content in [Some(""), None] {
        let tree = recorded_tree();
        let table = tree.path().join("proc/net/tcp");
        match content {
            Some(content) => std::fs::write(table, content).expect("written"),
            None => std::fs::remove_file(table).expect("removed"),
        }
        let root = tree.path().to_str().expect("UTF-8");
        let (code, stdout, _) = run(&["check", "-o", "json", "--proxy-mode", "iptables", "--host-root", root]);
        assert_eq!(code, 2, "{stdout}");
        assert!(stdout.contains("\"source\": \"listeners\""), "{stdout}");
    }
}
