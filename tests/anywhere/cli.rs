//! The binary as people and pipelines use it: exit codes, every form of output, wrong usage, hostile input.

use crate::named::name;
use std::{
    fs,
    io::Read as _,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output, Stdio},
    sync::Arc,
};

use portreeve_facts::{Gap, Mode, Reading, Snapshot, Source, Why};
use serde_json::Value;
use tempfile::{NamedTempFile, TempDir};

use crate::lint::sarif::follows_the_standard;

const FORMS: [&str; 7] = ["table", "wide", "json", "yaml", "npd", "junit", "sarif"];
const HOSTILE: &str = "ng\u{1b}[2Jinx\n\u{202e}<forged>&\u{200b}";

pub(crate) fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portreeve"));
    command.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").env_remove("NODE_NAME");
    command.env("HOME", "/nonexistent").stdin(Stdio::null());
    command
}

/// Runs a command. Returns its exit code, standard output and standard error.
pub(crate) fn ended(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("portreeve runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code().expect("an exit code, not a signal"), text(stdout), text(stderr))
}

pub(crate) fn healthy() -> Snapshot {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/anywhere/worlds/healthy.json");
    serde_json::from_slice(&fs::read(path).expect("the recorded world")).expect("a snapshot")
}

/// The healthy node after the kubelet's socket moved to the NodePort of `default/web`.
fn squatted() -> Snapshot {
    let mut world = healthy();
    let Reading::Seen(listeners) = &mut world.kernel.listeners else { panic!("listeners were recorded") };
    listeners.last_mut().expect("the kubelet listens").local_port = 30080;
    world
}

fn gap(source: Source, why: Why) -> Gap {
    Gap::new(source, why, format!("{HOSTILE} did not work"))
}

fn replay(world: &Snapshot, arguments: &[&str]) -> (i32, String, String) {
    let file = NamedTempFile::new().expect("a file");
    serde_json::to_writer(&file, world).expect("a snapshot is JSON");
    ended(binary().args(["check", "--snapshot"]).arg(file.path()).args(arguments))
}

#[test]
fn the_exit_code_tells_findings_from_failures_from_neither() {
    let not_permitted = {
        let mut world = healthy();
        world.kernel.pod_namespaces = Reading::Gap(gap(Source::PodNamespaces, Why::NotPermitted));
        world.kernel.netfilter = Reading::Gap(gap(Source::Netfilter, Why::NotPermitted));
        world
    };
    let filtered = {
        let mut world = healthy();
        world.kernel.interfaces = Reading::Gap(gap(Source::Addresses, Why::NotPermitted));
        world
    };
    let torn = {
        let mut world = healthy();
        world.kernel.listeners = Reading::Gap(gap(Source::Listeners, Why::Torn));
        world
    };
    let no_cluster = {
        let mut world = healthy();
        world.cluster.configured = false;
        world.cluster.services = Reading::Gap(gap(Source::Services, Why::NotRequested));
        world
    };
    let unreachable = {
        let mut world = healthy();
        world.cluster.services = Reading::Gap(gap(Source::Services, Why::Unreachable));
        world
    };
    let both = {
        let mut world = squatted();
        world.kernel.sysctls.route_localnet = Reading::Gap(gap(Source::Sysctls, Why::Malformed));
        world
    };
    for (what, world, arguments, wanted) in [
        ("healthy", &healthy(), &[][..], 0),
        ("a finding", &squatted(), &[], 1),
        ("a finding that shall not count", &squatted(), &["--exit-zero"], 0),
        ("a finding and a failure", &both, &[], 1),
        ("a failure beside what shall not count", &both, &["--exit-zero"], 2),
        ("what may not be seen", &not_permitted, &[], 0),
        ("addresses that no profile hides", &filtered, &[], 2),
        ("a torn dump", &torn, &[], 2),
        ("no cluster", &no_cluster, &[], 0),
        ("a cluster that does not answer", &unreachable, &[], 2),
    ] {
        for form in FORMS {
            let (code, stdout, stderr) = replay(world, &[arguments, &["-o", form]].concat());
            assert_eq!(code, wanted, "{what}, {form}: {stdout}{stderr}");
            assert_eq!(stderr, "", "{what}, {form}");
        }
    }
}

#[test]
fn every_form_is_read_by_its_own_parser_and_no_line_is_broken() {
    let mut world = squatted();
    world.cluster.rejected.push(gap(Source::Services, Why::Malformed));
    world.cluster.origin = HOSTILE.to_owned();
    world.kernel.release = HOSTILE.to_owned();
    if let Reading::Seen(services) = &mut world.cluster.services {
        Arc::make_mut(&mut services[0]).uid = Some(HOSTILE.to_owned().into());
    }
    let schema = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema/findings.schema.json"));
    let schema: Value = serde_json::from_slice(&schema.expect("the committed schema")).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    for world in [&world, &healthy()] {
        for form in FORMS {
            let (_, stdout, _) = replay(world, &["-o", form]);
            let strange =
                stdout.chars().find(|c| (c.is_control() && *c != '\n') || matches!(c, '\u{202e}' | '\u{200b}'));
            assert_eq!(strange, None, "{form}: {stdout}");
            assert!(!stdout.lines().any(|line| line.starts_with("<forged")), "{form}: {stdout}");
            match form {
                "json" => {
                    let document: Value = serde_json::from_str(&stdout).expect("JSON");
                    assert!(validator.is_valid(&document), "{stdout}");
                }
                "yaml" => {
                    let document: Value = serde_saphyr::from_str(&stdout).expect("YAML");
                    assert!(validator.is_valid(&document), "{stdout}");
                }
                "sarif" => {
                    let log: Value = serde_json::from_str(&stdout).expect("JSON");
                    follows_the_standard(&log);
                }
                "junit" => {
                    roxmltree::Document::parse(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"));
                }
                "npd" => assert!(stdout.lines().count() == 1 && stdout.len() <= 81, "{stdout:?}"),
                "table" => assert!(stdout.contains(" rules judged all ports and objects."), "{stdout}"),
                _ => assert!(stdout.contains("Sources"), "{stdout}"),
            }
        }
    }
}

#[test]
fn rows_alone_are_for_scripts() {
    let (_, stdout, _) = replay(&squatted(), &["--no-headers"]);
    let row = stdout.lines().next().expect("a row");
    assert!(row.starts_with("critical") && row.contains("30080/tcp"), "{stdout}");
    assert!(stdout.lines().all(|line| ["critical", "warning", "info"].iter().any(|word| line.starts_with(word))));
    assert!(!stdout.contains("SEVERITY"), "{stdout}");
}

#[test]
fn a_rule_that_is_asked_alone_is_told_alone() {
    let world = squatted();
    let (code, reported, _) = replay(&world, &["--rule", "listener-on-node-port/loses", "-o", "json"]);
    let document: Value = serde_json::from_str(&reported).expect("JSON");
    let rules: Vec<_> = document["findings"].as_array().expect("a list").iter().map(name).collect();
    assert_eq!((code, rules), (1, vec!["listener-on-node-port/loses".to_owned()]));
    let (code, reported, _) = replay(&world, &["--rule", "stale-redirection/proxy", "-o", "junit"]);
    assert_eq!(
        (code, reported.matches("<testcase").count()),
        (0, 1),
        "the others neither passed nor failed: {reported}"
    );
    let (code, _, complaint) = replay(&world, &["--rule", "listener"]);
    assert_eq!(code, 64);
    assert!(complaint.contains("`explain` lists them"), "{complaint}");
}

#[test]
fn what_if_is_judged_as_if_it_were_so() {
    let mode = |world: &Snapshot, setting: &str| -> Value {
        let (_, stdout, _) = replay(world, &["-o", "json", "--set", setting]);
        serde_json::from_str(&stdout).expect("JSON")
    };
    let document = mode(&healthy(), "proxy_mode=nftables");
    assert_eq!(
        (&document["nodes"][0]["proxy"]["mode"], &document["nodes"][0]["proxy"]["source"]),
        (&"nftables".into(), &"--set".into())
    );
    let document = mode(&healthy(), "node_port_range=20000-40000");
    assert_eq!(document["nodes"][0]["nodePortRange"]["first"], 20000);
    assert_eq!(document["nodes"][0]["nodePortRange"]["sourceKind"], "flag");
}

#[test]
fn usage_errors_end_with_64_and_say_what_was_wanted() {
    let file = NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("UTF-8");
    // If FORMS lacks a form of output, this test fails. All other tests check only the forms in FORMS.
    let forms = format!("[possible values: {}]", FORMS.join(", "));
    let node = NamedTempFile::new().expect("a file");
    serde_json::to_writer(&node, &healthy()).expect("a snapshot is JSON");
    let node = node.path().to_str().expect("UTF-8");
    let refused =
        "refuses ip_local_port_range=80-5000 with ip_unprivileged_port_start=1024: wanted a range from 1024 on";
    for (arguments, wanted) in [
        (vec![], "Usage"),
        (vec!["chek"], "check"),
        (vec!["check", "-o", "xml"], forms.as_str()),
        (vec!["check", "--proxy-mode", "bridge"], Mode::WORDS),
        (vec!["check", "--node-port-range", "2-1"], "FIRST-LAST"),
        (vec!["check", "--min-severity", "fatal"], "critical"),
        (vec!["check", "--request-timeout", "0s"], "from 1ms to 1h"),
        (vec!["check", "--services", "a", "--kubeconfig", "b"], "--kubeconfig"),
        (vec!["check", "--snapshot", path, "--set", "ip_local_portrange=1-2"], "ip_local_port_range"),
        (vec!["what-if", "--set", "ip_local_port_range=0 0"], "ip_local_port_range=0 0"),
        (vec!["what-if", "--set", "ip_local_port_range=0 0"], "wanted FIRST-LAST, each 1 to 65535"),
        (vec!["what-if", "--set", "tcp_tw_reuse=9"], "wanted 0, 1 or 2"),
        (vec!["what-if", "--set", "ip_unprivileged_port_start=65536"], "wanted a number from 0 to 65535"),
        (vec!["what-if", "--snapshot", node, "--set", "ip_local_port_range=80 5000"], refused),
        (vec!["check", "--snapshot", node, "--set", "ip_unprivileged_port_start=40000"], "refuses ip_local_port_range"),
        (vec!["explain", "listener-on-node-prot"], "listener-on-node-port"),
        (vec!["man", "chek"], "check"),
    ] {
        let (code, stdout, stderr) = ended(binary().args(&arguments));
        assert_eq!(code, 64, "{arguments:?}: {stdout}{stderr}");
        assert!(stderr.contains(wanted), "{arguments:?}: {stderr}");
        assert_eq!(stdout, "", "{arguments:?}");
    }
    for arguments in [&["--help"][..], &["--version"], &["check", "--help"], &["help", "map"]] {
        let (code, stdout, _) = ended(binary().args(arguments));
        assert_eq!(code, 0, "{arguments:?}");
        assert!(!stdout.is_empty(), "{arguments:?}");
    }
    for command in ["check", "agent"] {
        let (_, stdout, _) = ended(binary().args([command, "--help"]));
        let help = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_listed = Mode::ALL.iter().all(|mode| help.contains(mode.name()));
        assert!(is_listed, "--proxy-mode of {command} lists {}: {help}", Mode::WORDS);
    }
}

#[test]
fn a_file_that_is_no_snapshot_is_one_clear_line() {
    let directory = TempDir::new().expect("a directory");
    let file = |name: &str, content: &[u8]| {
        let path = directory.path().join(name);
        fs::write(&path, content).expect("a file");
        path
    };
    for (path, wanted) in [
        (directory.path().to_owned(), "directory"),
        (directory.path().join("missing"), "No such file"),
        (file("empty", b""), "line 1"),
        (file("broken", b"{\n  \"schema\": \"portreeve.snapshot/v1\",\n"), "line 3"),
        (file("other", br#"{"schema":"portreeve/v1"}"#), "portreeve.snapshot/v1"),
        (file("binary", &[0xff, 0, 0x1b]), "line 1"),
    ] {
        let (code, stdout, stderr) = ended(binary().args(["check", "--snapshot"]).arg(&path));
        assert_eq!((code, stdout.as_str()), (2, ""), "{}: {stderr}", path.display());
        assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "{stderr}");
        assert!(stderr.contains(path.to_str().expect("UTF-8")) && stderr.contains(wanted), "{stderr}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut child = binary()
        .args(["map", "--host-root", "/nonexistent", "--node-port-range", "0-65535", "-o", "svg"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("portreeve runs");
    let mut first = [0; 4];
    child.stdout.take().expect("a pipe").read_exact(&mut first).expect("the beginning");
    assert_eq!(&first, b"<svg");
    let Output { stderr, .. } = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(stderr.lines().count() == 1 && stderr.contains("/nonexistent/proc/net/tcp"), "{stderr}");
}

#[test]
fn colour_is_for_terminals_or_on_demand() {
    assert!(!replay(&squatted(), &[]).1.contains('\u{1b}'));
    assert!(replay(&squatted(), &["--color", "always"]).1.contains("\u{1b}[1;31m"));
}

#[test]
fn as_a_kubectl_plugin_the_help_says_so() {
    let directory = TempDir::new().expect("a directory");
    let plugin = directory.path().join("kubectl-portreeve");
    symlink(env!("CARGO_BIN_EXE_portreeve"), &plugin).expect("a link");
    let (code, stdout, _) = ended(Command::new(&plugin).args(["check", "--help"]));
    assert_eq!(code, 0);
    assert!(stdout.contains("Usage: kubectl portreeve check"), "{stdout}");
    let (code, _, stderr) = ended(Command::new(&plugin).args(["explain", "host-network-port-token"]));
    assert_eq!(code, 64);
    assert!(stderr.contains(r#"lists all rules, did you mean "host-network-port-taken"?"#), "{stderr}");
    // The error suggests no name, because every name differs from the typed name by more than two letters. The name
    // `node-port-claimed-twice` is similar, but this rule is about another problem.
    let (code, _, stderr) = ended(Command::new(&plugin).args(["explain", "host-port-claimed-twice"]));
    assert_eq!(code, 64);
    assert!(stderr.contains("no rule has this name; `explain` without a name lists all rules\n"), "{stderr}");
    let (code, _, stderr) = ended(Command::new(&plugin).args(["explain", "PortreeveAgentBlind"]));
    assert!(code == 64 && stderr.contains("docs/runbooks/PortreeveAgentBlind.md"), "{stderr}");
    for verb in ["agent", "completion"] {
        let (code, _, stderr) = ended(Command::new(&plugin).args([verb, "--probe", "bash"]));
        assert!(code == 64 && stderr.lines().count() == 1, "{stderr}");
        assert!(stderr.contains(&format!("only portreeve has the verb {verb}: `portreeve {verb}`")), "{stderr}");
    }
    let (code, stdout, _) = ended(Command::new(&plugin).args(["explain", "host-network-port-taken/agent"]));
    assert!(code == 0 && stdout.starts_with("host-network-port-taken\n"), "{stdout}");
}

#[test]
fn a_verb_is_about_the_node_of_a_snapshot_under_both_names() {
    let directory = TempDir::new().expect("a directory");
    let plugin = directory.path().join("kubectl-portreeve");
    symlink(env!("CARGO_BIN_EXE_portreeve"), &plugin).expect("a link");
    let file = directory.path().join("n1.json");
    fs::write(&file, serde_json::to_vec(&squatted()).expect("JSON")).expect("a file");
    for words in [
        &["check"][..],
        &["owner", "30080"],
        &["map"],
        &["suggest"],
        &["reserve"],
        &["policies"],
        &["what-if", "--set", "proxy_mode=nftables"],
    ] {
        let of = |program: &Path| ended(Command::new(program).args(words).arg("--snapshot").arg(&file));
        let (code, stdout, stderr) = of(env!("CARGO_BIN_EXE_portreeve").as_ref());
        assert!(matches!(code, 0..=2) && !stdout.is_empty(), "{words:?}: {code} {stdout}{stderr}");
        let (again, same, notes) = of(&plugin);
        let as_typed = |text: String| text.replace("kubectl portreeve", "portreeve");
        let [mine, same] = [(stdout, stderr), (same, notes)].map(|(out, notes)| (as_typed(out), as_typed(notes)));
        assert_eq!((code, mine), (again, same), "{words:?}");
    }
    let mut agents = binary();
    agents.args(["--agents", "check", "--kubeconfig", "/nonexistent"]);
    let (code, _, stderr) = ended(&mut agents);
    assert!(code == 2 && stderr.contains("/nonexistent"), "{stderr}");
}

#[test]
fn the_word_that_was_meant_is_named() {
    for (words, wanted) in [
        (&["reserve", "--for", "eks"][..], "use --for al2023 or --for bottlerocket"),
        (&["reserve", "--for", "tallos"], "did you mean \"talos\"?"),
        (&["check", "--rule", "listener-on-node-prot"], "did you mean \"listener-on-node-port\"?"),
        (&["check", "--proxy-mode", "nftable"], "did you mean \"nftables\"?"),
        (&["check", "--min-severity", "warnings"], "did you mean \"warning\"?"),
        (&["lint", "--rule", "node-port-clamed-twice", "."], "did you mean \"node-port-claimed-twice\"?"),
        (&["explain", "PortreeveAgentAbsnt"], "did you mean \"PortreeveAgentAbsent\"?"),
        (&["explain", "nodefdsnearlimit"], "its runbook is docs/runbooks/NodeFdsNearLimit.md"),
    ] {
        let (code, _, stderr) = ended(binary().args(words));
        assert!(code == 64 && stderr.contains(wanted), "{words:?}: {stderr}");
    }
}

#[test]
fn a_recorded_tree_is_looked_at_without_the_running_kernel() {
    let root = TempDir::new().expect("a directory");
    for (path, content) in [
        ("proc/sys/kernel/hostname", "recorded\n"),
        ("proc/sys/kernel/osrelease", "5.10.0\n"),
        ("proc/sys/kernel/random/boot_id", "00000000-0000-0000-0000-000000000000\n"),
        ("proc/sys/net/ipv4/ip_local_port_range", "1024\t65535\n"),
        ("proc/sys/net/ipv4/ip_local_reserved_ports", "\n"),
    ] {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, content).expect("a file");
    }
    let mut snapshot = binary();
    snapshot.arg("snapshot").arg("--host-root").arg(root.path()).args(["--proxy-mode", "ipvs"]);
    let (_, stdout, stderr) = ended(&mut snapshot);
    let world: Snapshot = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
    assert_eq!(world.node_name(), "recorded");
    assert_eq!(world.kernel.sysctls.ip_local_port_range.seen().map(|range| range.first), Some(1024));
    assert_eq!(world.proxy_mode().map(|mode| mode.value), Ok(Mode::Ipvs));
    assert!(world.kernel.interfaces.gap().is_some(), "no netlink for a recorded tree");
}

#[test]
fn rules_completion_and_manual_pages_print() {
    let (code, rules, _) = ended(binary().arg("explain"));
    assert_eq!(code, 0);
    let ids: Vec<&str> = rules.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert!(ids.contains(&"listener-on-node-port") && ids.contains(&"pod-waits-for-port"), "{rules}");
    for id in ids {
        let (code, page, _) = ended(binary().args(["explain", id]));
        assert_eq!(code, 0, "{id}");
        assert!(page.contains("Why it hurts") && page.contains("Fix"), "{page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(ended(binary().args(["completion", shell])).1.contains("portreeve"), "{shell}");
    }
    assert!(ended(binary().arg("man")).1.contains(".TH portreeve"));
    assert!(ended(binary().args(["man", "check"])).1.contains("proxy\\-mode"));
    assert!(ended(binary().args(["--agents", "man", "check"])).1.contains("portreeve \\-\\-agents check"));
}

#[test]
fn a_port_is_suggested_one_a_line_and_what_is_not_known_is_said_beside() {
    let root = TempDir::new().expect("a directory");
    fs::create_dir_all(root.path().join("proc/sys/kernel")).expect("a folder");
    let mut suggest = binary();
    suggest
        .arg("suggest")
        .args(["--count", "2", "--services"])
        .arg(root.path().join("none"))
        .arg("--host-root")
        .arg(root.path());
    let (code, stdout, stderr) = ended(&mut suggest);
    assert_eq!((code, stdout.as_str()), (2, ""), "without Services nothing is known to be free");
    assert!(stderr.contains("no port can be suggested without the Services"), "{stderr}");
    assert!(!stderr.contains("no Service has"), "nothing is known of no port: {stderr}");
    let services = root.path().join("services.json");
    let web = r#"{"kind":"Service","metadata":{"name":"web","namespace":"d"},"spec":{"type":"NodePort","clusterIP":"10.96.0.2","ports":[{"port":80,"nodePort":30000}]}}"#;
    fs::write(&services, web).expect("a file");
    let mut suggest = binary();
    suggest.arg("suggest").args(["--count", "2", "--services"]).arg(&services).arg("--host-root").arg(root.path());
    let (code, stdout, stderr) = ended(&mut suggest);
    assert_eq!((code, stdout.as_str()), (2, "30001\n30002\n"), "{stderr}");
    assert!(stderr.contains("scope: node unknown only") && stderr.contains("not known of"), "{stderr}");
    let mut host = binary();
    host.args(["suggest", "--host", "--services"]).arg(&services).arg("--host-root").arg(root.path());
    let (code, stdout, stderr) = ended(&mut host);
    assert_eq!((code, stdout.as_str()), (2, "10000\n"), "{stderr}");
}

#[test]
fn suggest_says_only_what_was_read() {
    const SERVICES: &str = "no Service has these ports";
    const LISTENERS: &str = "no process listens on these ports";
    const KERNEL: &str = "the kernel gives these ports to no outgoing connection";
    let told = |world: &Snapshot| {
        let file = NamedTempFile::new().expect("a file");
        serde_json::to_writer(&file, world).expect("a snapshot is JSON");
        let (_, _, stderr) = ended(binary().args(["suggest", "--snapshot"]).arg(file.path()));
        [SERVICES, LISTENERS, KERNEL].map(|words| stderr.contains(words))
    };
    let lacks = |source, why| Gap::new(source, why, "it was taken away");
    assert_eq!(told(&Snapshot::healthy()), [true, true, true]);
    let mut torn = Snapshot::healthy();
    torn.kernel.listeners = Reading::Gap(lacks(Source::Listeners, Why::Torn));
    assert_eq!(told(&torn), [true, false, true]);
    let mut range = Snapshot::healthy();
    range.kernel.sysctls.ip_local_port_range = Reading::Gap(lacks(Source::Sysctls, Why::NotPermitted));
    assert_eq!(told(&range), [true, true, false]);
    let mut page = Snapshot::healthy();
    page.cluster.rejected.push(lacks(Source::Services, Why::Malformed));
    assert_eq!(told(&page), [false, true, true]);
    let mut unread = Snapshot::healthy();
    unread.cluster.services = Reading::Gap(lacks(Source::Services, Why::NotPermitted));
    assert_eq!(told(&unread), [false, false, false], "no port is printed");
}

#[test]
fn what_map_and_suggest_print_as_json_fits_the_schema_of_ports() {
    let schema = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema/ports.schema.json"));
    let schema: Value = serde_json::from_slice(&schema.expect("the committed schema")).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    for verb in ["map", "suggest"] {
        let mut command = binary();
        command.args([verb, "--host-root", "/nonexistent", "--node-port-range", "30000-30009", "-o", "json"]);
        let (code, out, error) = ended(&mut command);
        let document: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{verb}: {error}"));
        assert!(validator.is_valid(&document), "{document:#}");
        assert_eq!(
            (code, &document["result"], &document["verb"]),
            (2, &"not-checked".into(), &verb.into()),
            "{document:#}"
        );
        assert!(document["unknown"].as_array().is_some_and(|unknown| !unknown.is_empty()), "{document:#}");
    }
}

#[test]
fn every_document_of_ports_and_owners_has_the_scan_of_its_node_and_what_was_judged() {
    let world = healthy();
    let file = NamedTempFile::new().expect("a file");
    serde_json::to_writer(&file, &Snapshot { version: Some("9.8.7".to_owned()), ..world }).expect("JSON");
    for verb in [
        &["map"][..],
        &["suggest"],
        &["reserve"],
        &["what-if", "--set", "ip_local_port_range=40000 50000"],
        &["owner", "30080"],
    ] {
        let (_, out, error) = ended(binary().args(verb).args(["-o", "json", "--snapshot"]).arg(file.path()));
        let document: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{verb:?}: {error}"));
        let name = if verb[0] == "owner" { "owner" } else { "ports" };
        let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/schema/{name}.schema.json"));
        let schema: Value = serde_json::from_slice(&fs::read(schema).expect("the schema")).expect("JSON");
        jsonschema::validate(&schema, &document).unwrap_or_else(|error| panic!("{verb:?}: {error}"));
        let Some([node]) = document["nodes"].as_array().map(Vec::as_slice) else { panic!("{verb:?}: {document:#}") };
        assert_eq!((&node["version"], &document["judged"]), (&"9.8.7".into(), &1.into()), "{verb:?}: {document:#}");
        assert!(node["lookedAt"].as_str().is_some_and(|it| it.ends_with('Z')), "{verb:?}: {document:#}");
        assert!(node["node"].as_str().is_some_and(|it| !it.is_empty()), "{verb:?}: {document:#}");
    }
}

/// Runs `owner` for port 30080 over TCP. Returns the exit code, the text, standard error and the JSON document.
fn owner_of_30080(world: &Snapshot) -> (i32, String, String, Value) {
    let file = NamedTempFile::new().expect("a file");
    serde_json::to_writer(&file, world).expect("a snapshot is JSON");
    let ask = |form| ended(binary().args(["owner", "30080/tcp", "-o", form, "--snapshot"]).arg(file.path()));
    let ((code, text, error), (same, document, _)) = (ask("text"), ask("json"));
    assert_eq!(code, same, "{text}{document}");
    let document: Value = serde_json::from_str(&document).unwrap_or_else(|_| panic!("{document}{error}"));
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema/owner.schema.json");
    let schema: Value = serde_json::from_slice(&fs::read(schema).expect("the schema")).expect("JSON");
    jsonschema::validate(&schema, &document).unwrap_or_else(|error| panic!("{error}: {document:#}"));
    assert_eq!(document["result"], if code == 0 { "clear" } else { "not-checked" }, "{document:#}");
    (code, text, error, document)
}

#[test]
fn owner_without_addresses_lists_the_claims_and_always_writes_a_document() {
    let mut world = squatted();
    for why in [Why::TimedOut, Why::NotPermitted, Why::NotRequested] {
        world.kernel.interfaces = Reading::Gap(gap(Source::Addresses, why));
        let (code, text, _, document) = owner_of_30080(&world);
        let first = "the node's addresses were not read, so it is not known who answers: ";
        assert!(code == 2 && text.starts_with(first), "{why:?}: {text}");
        assert!(text.contains("  1  node-port, Service default/web") && !text.contains("who answers\n"), "{text}");
        let node = &document["nodes"][0];
        assert_eq!(node["protocols"][0]["claimants"][0]["claim"], "node-port", "{node:#}");
        assert_eq!(node["protocols"][0]["answers"], Value::Array(Vec::new()), "{node:#}");
        assert_eq!(node["unknown"][0]["source"], "addresses", "{node:#}");
    }
    world.kernel.listeners = Reading::Gap(gap(Source::Listeners, Why::Torn));
    let (code, text, error, document) = owner_of_30080(&world);
    assert!(code == 2 && text.is_empty() && error.contains("the owner of port 30080 is not known: "), "{text}{error}");
    let node = &document["nodes"][0];
    assert_eq!((&node["unknown"][0]["source"], node.get("protocols")), (&"listeners".into(), None), "{node:#}");
}

#[test]
fn owner_prints_once_why_a_file_of_the_cluster_was_not_read() {
    let (code, _, errors) = ended(binary().args(["owner", "30080", "--services", "/nowhere/cluster.yaml"]));
    assert_eq!((code, errors.matches("/nowhere/cluster.yaml").count()), (2, 1), "{errors}");
    assert!(errors.ends_with("error: the owner of port 30080 is not known\n"), "{errors}");
}

#[test]
fn owner_without_a_cluster_says_so_first_and_answers_nothing_that_a_service_may_change() {
    let mut world = healthy();
    let why = Gap::new(Source::Services, Why::NotRequested, "no cluster was given");
    (world.cluster.services, world.cluster.configured) = (Reading::Gap(why), false);
    let Reading::Seen(listeners) = &mut world.kernel.listeners else { panic!("listeners were recorded") };
    listeners.retain(|it| it.local_port != 30080);
    let (code, text, _, document) = owner_of_30080(&world);
    let first = "no cluster was read: Services may have this port; name one with --kubeconfig FILE or --services FILE";
    assert_eq!((code, text.lines().next()), (2, Some(first)), "{text}");
    assert!(!text.contains("refused"), "{text}");
    let answers = document["nodes"][0]["protocols"][0]["answers"].as_array().expect("answers");
    assert!(!answers.is_empty(), "{document:#}");
    for answer in answers {
        assert_eq!((&answer["answer"], &answer["why"]), (&"unknown".into(), &"no cluster was given".into()));
    }
}
