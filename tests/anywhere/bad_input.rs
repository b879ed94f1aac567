//! Files and arguments that the program cannot use. The first line of the error names the input, the place and the
//! expected form.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use nix::{sys::stat::Mode, unistd::mkfifo};
use portreeve_cluster::{ClusterSource, read_now};
use portreeve_facts::{PortRange, Reading, Snapshot};
use tempfile::TempDir;

use crate::cli::{binary, ended, healthy};

const GOOD: &str =
    "kind: Service\nmetadata: {name: good}\nspec: {type: NodePort, ports: [{port: 80, nodePort: 30080}]}\n";

fn check(directory: &TempDir, content: &[u8], form: &str) -> (i32, String, String) {
    let path = directory.path().join("services.yaml");
    fs::write(&path, content).expect("a file");
    ended(binary().arg("check").args(["-o", form, "--host-root", "/nonexistent", "--services"]).arg(path))
}

#[test]
fn a_file_that_cannot_be_read_is_told_first_and_once() {
    let directory = TempDir::new().expect("a directory");
    for (content, wanted) in [
        (&b"kind: Service\nmetadata:\n  name: [broken\n"[..], "services.yaml:3:9: not YAML: unclosed bracket"),
        (b"{\"kind\": \"Service\",}", "services.yaml:1:20: not JSON: trailing comma; wanted the output of kubectl get"),
        (
            b"kind: Service\nmetadata: {name: \xff\xfe}\n",
            "services.yaml:2:18: not YAML: not UTF-8 text; wanted the output of",
        ),
        (b"", "services.yaml: is empty, wanted the output of kubectl get -o yaml or -o json"),
        (b"kind: Pod\nmetadata: {name: a}\nspec: {}\n", "services.yaml: has no Service, wanted all Services"),
    ] {
        let (code, stdout, stderr) = check(&directory, content, "table");
        assert_eq!(code, 2, "{stdout}{stderr}");
        assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "{stderr}");
        assert!(stderr.contains(wanted), "{stderr}");
        let reported = stderr.trim_start_matches("error: ").trim_end().split(": ").nth(1).expect("what is wrong");
        let table = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(table.matches(reported).count(), 1, "{stdout}");
        let (_, junit, _) = check(&directory, content, "junit");
        assert_eq!(junit.matches(&format!("<error message=\"{}", directory.path().display())).count(), 1, "{junit}");
    }
}

#[test]
fn a_kubeconfig_that_cannot_be_used_is_told_first() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("kubeconfig");
    for (content, wanted) in [
        ("\u{0}\u{1}binary", "kubeconfig: "),
        ("- a list", "not a kubeconfig"),
        ("apiVersion: v1\nkind: Config\ncurrent-context: nowhere\n", "nowhere"),
    ] {
        fs::write(&path, content).expect("a file");
        let mut command = binary();
        command.args(["check", "--host-root", "/nonexistent", "--kubeconfig"]).arg(&path);
        let (code, stdout, stderr) = ended(&mut command);
        assert_eq!(code, 2, "{stdout}{stderr}");
        assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1 && stderr.contains(wanted), "{stderr}");
    }
}

#[test]
fn what_is_good_beside_it_is_judged() {
    let directory = TempDir::new().expect("a directory");
    let (_, stdout, stderr) = check(&directory, format!("{GOOD}---\nkind: [\n---\n{{").as_bytes(), "wide");
    assert!(stdout.contains("1 Service from"), "{stdout}");
    assert!(stderr.lines().count() == 1 && stderr.contains("services.yaml:5:"), "{stderr}");
    assert!(stderr.contains("(and 2 more)"), "the file also lacks Services: {stderr}");
}

fn replayed(world: &Snapshot, arguments: &[&str]) -> (i32, String, String) {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("snapshot.json");
    fs::write(&path, serde_json::to_vec(world).expect("JSON")).expect("a file");
    ended(binary().args(["check", "--snapshot"]).arg(path).args(arguments))
}

#[test]
fn a_range_that_cannot_be_is_refused_and_one_that_can_be_breaks_no_rule() {
    for (first, last, wanted) in [(40000, 30000, 2), (65535, 65535, 0), (0, 65535, 0), (65535, 0, 2)] {
        let mut world = healthy();
        let range = PortRange { first, last };
        world.kernel.sysctls.ip_local_port_range = Reading::Seen(range);
        if let Reading::Seen(known) = &mut world.cluster.node_port_range {
            known.range = range;
        }
        let (code, stdout, stderr) = replayed(&world, &[]);
        assert!(code == wanted || (wanted == 0 && code == 1), "{first}-{last}: {stdout}{stderr}");
        assert!(!stdout.contains("failed on these facts") && !stderr.contains("panicked"), "{stdout}{stderr}");
        if wanted == 2 {
            assert!(stderr.contains(&format!("a port range from {first} to {last}, wanted first <= last")), "{stderr}");
        }
    }
}

#[test]
fn every_duration_and_number_says_what_is_allowed() {
    for (arguments, given, wanted) in [
        (&["agent", "--interval", "9223372036854775807s"][..], "9223372036854775807s", "from 1ms to 1h"),
        (&["agent", "--interval", "1000h"], "1000h", "from 1ms to 1h"),
        (&["agent", "--request-timeout", "61m"], "61m", "from 1ms to 1h"),
        (&["agent", "--cpu-percent", "101"], "101", "a share of 0.001 to 100"),
        (&["agent", "--cpu-percent", "nan"], "nan", "a share of 0.001 to 100"),
        (&["check", "--request-timeout", "1us"], "1us", "from 1ms to 1h"),
        (&["suggest", "--count", "0"], "'0'", "--count"),
        (&["owner", "8080", "--pod", "web"], "shop/web-0", "--pod"),
        (&["owner", "8080", "--pod", "a/b/c"], "shop/web-0", "--pod"),
        (&["suggest", "--count", "65536"], "65536", "--count"),
        (&["owner", "65536"], "65536", "65535"),
        (&["check", "--node-port-range", "1-70000"], "1-70000", "0 to 65535"),
    ] {
        let (code, stdout, stderr) = ended(binary().args(arguments));
        assert_eq!((code, stdout.as_str()), (64, ""), "{arguments:?}: {stderr}");
        let first = stderr.lines().next().unwrap_or_default();
        assert!(first.contains(given) && first.contains(wanted), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_message_about_an_argument_has_no_character_that_turns_or_hides_it() {
    for strange in ["\u{202e}", "\u{200b}", "\u{1b}[31m", "\u{e0041}", "\u{fe0f}", "\n"] {
        for arguments in [
            vec![format!("che{strange}ck")],
            vec!["check".to_owned(), format!("--ser{strange}vices")],
            vec!["check".to_owned(), "--proxy-mode".to_owned(), format!("ip{strange}vs")],
            vec!["check".to_owned(), "--snapshot=x".to_owned(), "--set".to_owned(), format!("a{strange}b=1")],
        ] {
            let (code, stdout, stderr) = ended(binary().args(&arguments));
            assert_eq!((code, stdout.as_str()), (64, ""), "{arguments:?}: {stderr}");
            let clean = !stderr.contains(strange) || strange == "\n";
            assert!(clean && stderr.starts_with("error: "), "{arguments:?}: {stderr:?}");
        }
    }
}

pub(crate) fn within_seconds(command: &mut Command, seconds: u32) -> (i32, String, String) {
    let mut bounded = Command::new("timeout");
    bounded.arg("--signal=KILL").arg(seconds.to_string()).arg(command.get_program()).args(command.get_args());
    bounded.env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
    let output = bounded.output().expect("timeout runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

fn pipe(directory: &Path) -> PathBuf {
    let path = directory.join("pipe");
    mkfifo(&path, Mode::S_IRWXU).expect("a pipe");
    path
}

#[test]
fn a_pipe_in_place_of_a_configuration_file_is_one_line_and_no_waiting() {
    let directory = TempDir::new().expect("a directory");
    let path = pipe(directory.path());
    let (code, _, stderr) = within_seconds(binary().args(["agent", "--config"]).arg(&path), 30);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.lines().count() == 1 && stderr.contains("pipe: is not a regular file"), "{stderr}");
    let (code, _, stderr) = within_seconds(binary().args(["agent", "--probe", "--socket"]).arg(&path), 30);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("there is a file that is not a socket"), "{stderr}");
}

#[test]
fn a_file_without_an_end_ends_with_a_line() {
    for (arguments, wanted) in [
        (["check", "--services", "/dev/zero"], "/dev/zero"),
        (["check", "--snapshot", "/dev/zero"], "/dev/zero"),
        (["agent", "--config", "/dev/zero"], "not a regular file"),
    ] {
        let (code, _, stderr) = within_seconds(binary().args(arguments), 60);
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(wanted), "{stderr}");
    }
}

#[test]
fn a_cluster_in_which_no_node_is_this_one_is_not_clear() {
    let root = TempDir::new().expect("a directory");
    let hostname = root.path().join("proc/sys/kernel/hostname");
    fs::create_dir_all(hostname.parent().expect("a folder")).expect("a folder");
    fs::write(hostname, "here\n").expect("a file");
    let objects = root.path().join("objects.yaml");
    let services = format!("{GOOD}---\nkind: Service\nmetadata: {{name: kubernetes}}\nspec: {{}}\n");
    let rejected = |nodes: &[&str], arguments: &[&str]| {
        let nodes = nodes.iter().map(|name| format!("---\nkind: Node\nmetadata: {{name: {name}}}\n"));
        fs::write(&objects, services.clone() + &nodes.collect::<String>()).expect("a file");
        let mut snapshot = binary();
        snapshot.arg("snapshot").arg("--services").arg(&objects).arg("--host-root").arg(root.path()).args(arguments);
        let (code, stdout, stderr) = ended(&mut snapshot);
        let world: Snapshot = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
        // The folder has no sockets of a node, so the exit code is 2. This test checks only error messages.
        assert_eq!(code, 2);
        let said = world.cluster.rejected.iter().map(|gap| gap.detail.clone()).collect::<Vec<_>>();
        said.iter().for_each(|detail| assert!(stderr.contains(detail) && stderr.lines().count() == 1, "{stderr}"));
        (said, world)
    };
    let (said, world) = rejected(&["n1", "n2"], &[]);
    assert_eq!(said, ["no Node has the name here; there are n1, n2; set the name of this node with --node"]);
    let judged = |world: &Snapshot| {
        fs::write(&objects, serde_json::to_string(world).expect("a snapshot is JSON")).expect("a file");
        let (code, stdout, _) = ended(binary().args(["check", "--snapshot"]).arg(&objects));
        (code, stdout.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let (_, stdout) = judged(&world);
    assert!(stdout.contains(&format!("Nodes depends on unknown input: {}", said[0])), "{stdout}");
    let named = rejected(&["n1"], &["--node", "typo"]).0;
    assert_eq!(named, ["no Node of the cluster has the name typo; there is n1; its Pods and addresses are not known"]);
    for (nodes, arguments) in [(&["n1", "here"][..], &[][..]), (&["n1"], &["--node", "n1"]), (&[], &[])] {
        assert_eq!(rejected(nodes, arguments).0, [""; 0], "{nodes:?}");
    }
    // The scan of the healthy node is complete. With the error about the missing Node, the scan is incomplete.
    let mut whole = healthy();
    let reserved = || ended(binary().args(["reserve", "--check", "--snapshot"]).arg(&objects)).0;
    assert_eq!((judged(&whole).0, reserved()), (0, 0));
    whole.cluster.rejected = world.cluster.rejected;
    assert_eq!((judged(&whole).0, reserved()), (2, 2));
}

/// A list of one namespace (`kubectl get services -n shop`) has the same form as a list of all namespaces (`-A`).
#[test]
fn a_file_that_lacks_services_of_the_cluster_leaves_no_answer_sure() {
    let directory = TempDir::new().expect("a directory");
    let (file, snapshot) = (directory.path().join("services.yaml"), directory.path().join("snapshot.json"));
    let service =
        |name: &str, spec: &str| format!("kind: Service\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n---\n");
    let web = service("web, namespace: shop", "");
    let (other, api) = (service("db, namespace: office", ""), service("kubernetes", ""));
    for (services, doubt) in [
        (web.clone(), Some("only Services of namespace shop: ")),
        (web.clone() + &other, Some("without Service default/kubernetes: ")),
        (service("web", "clusterIP: None"), Some("without Service default/kubernetes: ")),
        (web + &other + &api, None),
        (api, None),
    ] {
        fs::write(&file, &services).expect("a file");
        let source = ClusterSource::Files(vec![file.clone().into()]);
        let facts = read_now(&source, Some("n1"), "").expect("files need no runtime");
        let mut world = healthy();
        (world.cluster.services, world.cluster.rejected) = (facts.services, facts.rejected);
        fs::write(&snapshot, serde_json::to_string(&world).expect("a snapshot is JSON")).expect("a file");
        for verb in ["check", "owner 31000", "owner 31000 --refused", "suggest", "map"] {
            let (code, stdout, stderr) = ended(binary().args(verb.split(' ')).arg("--snapshot").arg(&snapshot));
            let text = format!("{stdout}{stderr}").split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(code, if doubt.is_some() { 2 } else { 0 }, "{verb}, {services}: {text}");
            assert!(doubt.is_none_or(|doubt| text.contains(doubt)), "{verb}, {services}: {text}");
            let is_sure = ["no Service, pod or process has it", "no Service has", "no port conflicts"];
            assert!(doubt.is_none() || !is_sure.iter().any(|words| text.contains(words)), "{verb}, {services}: {text}");
        }
    }
}
