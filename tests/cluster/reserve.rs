//! `kubectl portreeve reserve` prints one list for nodes that differ. The test also checks the list in the kernel.

use std::{
    fs,
    io::ErrorKind,
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::Command,
    thread,
};

use nix::sched::{CloneFlags, unshare};
use portreeve_facts::{NodeQuery, PortRange, PortSet};
use portreeve_kernel::Host;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    fake::{Fake, Reply},
    plugin::{Plugin, cluster, guarded_cluster, snapshot},
};

fn seen(node: &str, ephemeral: &str, reserved: &str) -> Reply {
    let mut world: Value = serde_json::from_str(&snapshot(node, 29999)).expect("JSON");
    let range: PortRange = ephemeral.parse().expect("a range");
    let reserved: PortSet = reserved.parse().expect("a list");
    let sysctls = &mut world["kernel"]["sysctls"];
    sysctls["ip_local_port_range"] = json!({"seen": range});
    sysctls["ip_local_reserved_ports"] = json!({"seen": reserved});
    Reply::Json(world.to_string())
}

/// Four nodes. On `open`, the ephemeral range includes all NodePorts. `some-1` and `some-2` are equal, and reserve only
/// some NodePorts. On `sound`, the ephemeral range includes no NodePort.
fn differing() -> Fake {
    cluster(&["open", "some-1", "some-2", "sound"], |node, _, _| match node {
        "open" => seen(node, "1024 65535", "2703"),
        "sound" => seen(node, "32768 60999", ""),
        _ => seen(node, "16384 60999", "20000-20009,30000-30999"),
    })
}

/// The ports in the file. The file must have exactly one line that is not a comment.
fn list(file: &str) -> PortSet {
    let lines: Vec<&str> = file.lines().filter(|line| !line.starts_with('#')).collect();
    let [line] = lines[..] else { panic!("{file}") };
    line.strip_prefix("net.ipv4.ip_local_reserved_ports = ").expect("the setting").parse().expect("a list")
}

#[test]
fn different_nodes_get_one_list_and_are_listed_separately() {
    let (fake, plugin) = (differing(), Plugin::new());
    let (code, file, notes) = plugin.run(&fake, &["reserve"]);
    assert_eq!(code, 0, "{notes}");
    let wanted: PortSet = "2703,20000-20009,30000-32767".parse().expect("a list");
    assert!(wanted.minus(&list(&file)).is_empty(), "{file}");
    for told in [
        "not covered  node open\n  ip_local_port_range      1024-65535\n  ip_local_reserved_ports  2703\n",
        "not covered  2 of 4 nodes: some-1, some-2\n",
        "  not reserved             31000-32767 (1768 ports)\n  chance of any NodePort   1768 of 43606 (4.054 %)\n",
        "covered  node sound\n",
        "scope: 4 agents of namespace portreeve; other nodes are not included\n",
    ] {
        assert!(notes.contains(told), "{told}: {notes}");
    }
    let code = |words: &[&str]| plugin.run(&fake, &[&["reserve"], words].concat()).0;
    assert_eq!(code(&["--check"]), 1);
    assert_eq!(code(&["--check", "--node", "sound"]), 0);
    assert_eq!(code(&["--check", "--node", "nobody"]), 2);
    assert_eq!(code(&["--check", "--for", "talos"]), 64);
    assert_eq!(code(&["--for", "talos", "-o", "json"]), 64);
    assert_eq!(code(&["--for", "windows"]), 64);
}

#[test]
fn the_document_has_each_node_and_fits_its_schema() {
    let (fake, plugin) = (differing(), Plugin::new());
    let (code, stdout, _) = plugin.run(&fake, &["reserve", "--check", "-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((code, &document["covered"]), (1, &json!(false)));
    let lacking = document["nodes"].as_array().expect("nodes").iter();
    let lacking: Vec<bool> = lacking.map(|node| node["notReserved"] != json!([])).collect();
    assert_eq!(lacking, [true, true, true, false]);
    let schema = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema/ports.schema.json"));
    let schema: Value = serde_json::from_str(&schema.expect("a schema")).expect("JSON");
    jsonschema::validate(&schema, &document).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_node_with_a_ready_pod_of_a_guard_needs_only_the_node_ports_of_its_services() {
    // Each node reserves the ports of kubelet and kube-proxy, and the NodePort of the only Service.
    let fake = guarded_cluster(&["guarded", "open"], Some(&[("guarded", true), ("open", false)]), |node, _, _| {
        seen(node, "1024 65535", "10249-10250,10256,30080")
    });
    let plugin = Plugin::new();
    let (code, stdout, notes) = plugin.run(&fake, &["reserve", "--check", "-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{notes}"));
    let [guarded, open] = [0usize, 1].map(|index| &document["nodes"][index]);
    assert_eq!((code, &guarded["node"], &open["node"]), (1, &json!("guarded"), &json!("open")), "{document:#}");
    assert_eq!(guarded["guard"], json!({"running": true, "source": "pod"}), "{document:#}");
    assert_eq!(open["guard"], Value::Null, "the pod is not Ready: {document:#}");
    assert_eq!([guarded, open].map(|node| node["notReserved"] == json!([])), [true, false], "{document:#}");
    let schema = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema/ports.schema.json"));
    let schema: Value = serde_json::from_str(&schema.expect("a schema")).expect("JSON");
    jsonschema::validate(&schema, &document).unwrap_or_else(|error| panic!("{error}"));
    let (code, table, notes) = plugin.run(&fake, &["reserve", "--check", "--node", "guarded"]);
    assert_eq!(code, 0, "{table}{notes}");
    assert!(table.starts_with("covered  node guarded\n"), "{table}");
    assert!(table.contains("\n  guard                    runs, according to its pod\n"), "{table}");
}

#[test]
fn if_guards_cannot_be_listed_a_node_that_would_be_covered_with_a_guard_is_unknown() {
    let checked = |reserved: &'static str, words: &[&str]| {
        let fake = guarded_cluster(&["open"], None, move |node, _, _| seen(node, "1024 65535", reserved));
        Plugin::new().run(&fake, &[&["reserve", "--check"], words].concat())
    };
    let (code, table, notes) = checked("10249-10250,10256,30080", &[]);
    assert_eq!(code, 2, "{table}{notes}");
    assert!(table.starts_with("perhaps not covered  node open\n"), "{table}");
    assert!(table.contains("\n  guard                    unknown: "), "{table}");
    assert!(notes.contains("guards are not known: "), "{notes}");
    let (code, stdout, notes) = checked("10249-10250,10256,30080", &["-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{notes}"));
    assert_eq!((code, &document["result"], &document["covered"]), (2, &json!("not-checked"), &json!(false)));
    let unknown = document["nodes"][0]["unknown"].as_array().expect("a list");
    assert!(unknown.iter().any(|it| it["source"] == "pods" && it["why"] == "not-permitted"), "{document:#}");
    let (code, table, _) = checked("2703", &[]);
    assert!(code == 1 && table.starts_with("not covered  node open\n"), "the node needs its own ports too: {table}");
    let (code, table, _) = checked("10249-10250,10256,30000-32767", &[]);
    assert!(code == 0 && table.starts_with("covered  node open\n"), "no guard is needed: {table}");
}

#[test]
fn a_list_that_may_miss_reserved_ports_of_a_node_has_a_comment_about_it() {
    let fake = cluster(&["n1", "torn", "unready"], |node, _, _| match node {
        "n1" => seen(node, "32768 60999", "2703"),
        _ => Reply::Torn(r#"{"schema":"#),
    });
    let plugin = Plugin::new();
    let (code, file, notes) = plugin.run(&fake, &["reserve"]);
    assert_eq!(code, 2, "{notes}");
    assert!(
        file.ends_with("\n# Incomplete: the ports that 2 nodes reserve are not known, and are not in the list.\n"),
        "{file}"
    );
    assert!(notes.contains("not known of torn: ") && notes.contains("not known of unready: "), "{notes}");
    let (code, table, _) = plugin.run(&fake, &["reserve", "--check"]);
    assert!(
        code == 2 && table.starts_with("covered  node n1\n"),
        "nothing is open, but not all agents answered: {table}"
    );
    let (_, stdout, _) = plugin.run(&fake, &["reserve", "-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(document["nodes"][1]["unknown"][0]["source"], "agent");
    let nobody = cluster(&["unready"], |_, _, _| Reply::Hangup);
    let (code, stdout, notes) = plugin.run(&nobody, &["reserve"]);
    assert!((code, stdout.as_str()) == (2, "") && notes.contains("nothing is known"), "{notes}");
}

#[test]
fn a_scan_that_is_too_old_covers_nothing_and_its_time_is_reported() {
    let fake = cluster(&["fresh", "old"], |node, _, _| {
        let Reply::Json(answer) = seen(node, "32768 60999", "2703") else { panic!("an answer is JSON") };
        let mut world: Value = serde_json::from_str(&answer).expect("JSON");
        if node == "old" {
            world["at"] = json!("2026-03-01T10:00:00Z");
        }
        Reply::Json(world.to_string())
    });
    let (code, table, notes) = Plugin::new().run(&fake, &["reserve", "--check"]);
    assert_eq!(code, 2, "{table}{notes}");
    assert!(table.starts_with("covered  node fresh\n") && !table.contains("old"), "{table}");
    assert!(notes.contains("not known of old: its last scan, at 2026-03-01T10:00:00Z, is too old\n"), "{notes}");
    let (_, stdout, _) = Plugin::new().run(&fake, &["reserve", "--check", "-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(document["nodes"][1]["unknown"][0]["why"], "stale");
    assert_eq!((&document["judged"], &document["nodes"][1]["lookedAt"]), (&json!(1), &Value::Null), "{document:#}");
    assert!(document["nodes"][0]["lookedAt"].is_string(), "{document:#}");
}

#[test]
fn a_node_that_reserves_all_ports_is_named_and_hides_no_other_node() {
    let all = "1-65535";
    let fleet = |nodes: &'static [&'static str]| {
        cluster(nodes, move |node, _, _| match node {
            "open" => seen(node, "1024 65535", "2703"),
            "greedy" => seen(node, "32768 60999", all),
            _ => seen(node, "32768 60999", ""),
        })
    };
    let plugin = Plugin::new();
    let fake = fleet(&["greedy", "open", "sound"]);
    let (code, table, notes) = plugin.run(&fake, &["reserve", "--check"]);
    assert_eq!(code, 1, "{table}{notes}");
    assert!(table.starts_with("not covered  node open\n"), "{table}");
    assert!(table.contains("\ncovered  node sound\n") && table.contains("\ncovered  node greedy\n"), "{table}");
    assert!(
        notes.contains("each node is compared with its own ports: a list for all nodes would leave 0 ports"),
        "{notes}"
    );
    assert!(notes.contains("; node greedy reserves the most: 1-65535"), "{notes}");
    let (_, stdout, _) = plugin.run(&fake, &["reserve", "--check", "-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    let lacking = document["nodes"].as_array().expect("nodes").iter();
    let lacking: Vec<bool> = lacking.map(|node| node["notReserved"] != json!([])).collect();
    assert_eq!((lacking, &document["ipLocalReservedPorts"]), (vec![false, true, false], &json!("")));
    assert_eq!(plugin.run(&fleet(&["greedy", "sound"]), &["reserve", "--check"]).0, 0);
    let (code, file, notes) = plugin.run(&fake, &["reserve"]);
    assert!((code, file.as_str()) == (2, "") && notes.contains("node greedy reserves the most"), "{file}{notes}");
}

/// Whether the kernel finds a port for an outgoing connection if the ephemeral range is `range`.
fn connects(to: SocketAddr, range: &str) -> bool {
    fs::write("/proc/sys/net/ipv4/ip_local_port_range", range).expect("a setting of this namespace");
    match TcpStream::connect(to) {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn with_the_file_the_kernel_chooses_no_node_port_and_keeps_earlier_reservations() {
    let (fake, plugin) = (differing(), Plugin::new());
    let (_, file, _) = plugin.run(&fake, &["reserve"]);
    let reserved = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("root, or a namespace in which this is root");
        assert!(Command::new("ip").args("link set lo up".split(' ')).status().expect("iproute2").success());
        let listener = TcpListener::bind("127.0.0.1:80").expect("an empty network");
        let place = listener.local_addr().expect("an address");
        let before: PortSet = "2703,20000-20009,30000-30999".parse().expect("a list");
        fs::write("/proc/sys/net/ipv4/ip_local_reserved_ports", before.to_string()).expect("a setting");
        assert!(connects(place, "31000 31007"), "the overlap is not reserved yet");

        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("zz-node-ports.conf");
        fs::write(&path, file).expect("a file");
        let applied = Command::new("sysctl").arg("-p").arg(&path).output().expect("procps");
        assert!(applied.status.success(), "{applied:?}");
        let sysctls = Host::at("/").read(&NodeQuery::default()).sysctls;
        let now = sysctls.ip_local_reserved_ports.seen().expect("a setting");
        for range in ["30000 30003", "31000 31007", "32764 32767", "20000 20009", "2703 2703"] {
            assert!(!connects(place, range), "{range} is reserved: {now}");
        }
        assert!(connects(place, "32760 32775"), "ports above are not reserved");
        assert!(before.minus(now).is_empty(), "{now}");
    });
    reserved.join().expect("the kernel accepts the list");
}
