//! `kubectl portreeve` in clusters with very many agents or very slow agents.

use std::{
    fs,
    io::Read as _,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    api::list,
    fake::{Fake, Reply},
    plugin::{self, Plugin, ended, listener, pod, snapshot, told, told_at},
    shown::{has, shown},
};

/// `agent` gives the answer of a node's agent to `/findings`.
fn cluster(nodes: Vec<String>, agent: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Fake {
    Fake::patient(move |path, _| {
        if path.starts_with("/api/v1/namespaces/portreeve/pods?") {
            let pods: Vec<String> = nodes.iter().map(|node| pod(node, true)).collect();
            return list("Pod", &pods.iter().map(String::as_str).collect::<Vec<_>>());
        }
        if path == "/api/v1/namespaces/portreeve/serviceaccounts/portreeve-reader/token" {
            let expires = "2099-01-01T00:00:00Z";
            let issued = json!({"spec": {"audiences": []}, "status": {"token": "t", "expirationTimestamp": expires}});
            return Reply::Json(issued.to_string());
        }
        let place = path.strip_prefix("/api/v1/namespaces/portreeve/pods/portreeve-");
        match place.and_then(|place| place.strip_suffix(":29517/proxy/findings")) {
            Some(node) => agent(node),
            None => Reply::Status(404, "not found"),
        }
    })
}

fn names(letter: char, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{letter}{number:04}")).collect()
}

fn started(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

/// Returns exit code, standard output and standard error.
fn end(child: Child) -> (i32, String, String) {
    let output = child.wait_with_output().expect("the program ends");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().expect("an exit code"), text(output.stdout), text(output.stderr))
}

/// The highest resident memory of a program until its end, in MiB.
fn peak(child: &mut Child) -> f64 {
    let path = format!("/proc/{}/status", child.id());
    let mut peak = 0.0_f64;
    while child.try_wait().expect("the state of a child").is_none() {
        let status = fs::read_to_string(&path).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        peak = line.and_then(|kib| kib.parse::<f64>().ok()).map_or(peak, |kib| peak.max(kib / 1024.0));
        thread::sleep(Duration::from_millis(20));
    }
    peak
}

/// The number of bytes in an agent's answer that the program does not keep.
const PADDING: usize = 40_000;

/// Runs `check` for this number of nodes. A tenth of the nodes have the same finding. Returns the table, the highest
/// memory in MiB, and the time.
fn table_of(nodes: usize) -> (String, f64, Duration) {
    let padding = "x".repeat(PADDING);
    let all = names('n', nodes);
    let first_without = all[nodes / 10].clone();
    let fake = cluster(all, move |node| {
        let mut findings = if node < first_without.as_str() { listener() } else { json!([]) };
        for finding in findings.as_array_mut().expect("a list") {
            let pod = if node.ends_with('0') { "x7f2p" } else { "b9zzk" };
            finding["summary"] = json!(format!("Pod office/scanner-{pod} listens here."));
        }
        let Reply::Json(document) = told(node, &findings) else { panic!("a document") };
        Reply::Json(document.replacen('{', &format!("{{\"later\": \"{padding}\", "), 1))
    });
    let plugin = Plugin::new();
    let begun = Instant::now();
    let mut child = started(plugin.command("kubectl-portreeve", &fake, &["check"]));
    let most = peak(&mut child);
    let took = begun.elapsed();
    let (code, table, stderr) = end(child);
    assert_eq!((code, stderr.as_str()), (1, ""), "{table}");
    let asked = fake.requests().iter().filter(|path| path.contains("/proxy/findings")).count();
    assert_eq!(asked, nodes, "each once");
    (table, most, took)
}

#[test]
fn five_thousand_agents_are_one_row_for_an_incident_and_memory_does_not_grow_with_their_answers() {
    let (_, few, _) = table_of(500);
    let (table, many, took) = table_of(5_000);
    eprintln!("{few:.1} MiB for 500 agents, {many:.1} MiB for 5000, which took {:.1} s", took.as_secs_f64());
    assert!(table.starts_with("1 critical; 5000 agents queried, oldest scan "), "{table}");
    assert!(table.contains("  500 of 5000 nodes: n0000, n0001, n0002 and 497 more\n"), "{table}");
    assert!(table.lines().count() < 25, "{table}");
    let answers = (4_500 * PADDING) as f64 / f64::from(1 << 20);
    assert!(many - few < answers / 5.0, "{few:.1} MiB and then {many:.1} MiB; {answers:.1} MiB more arrived");
}

#[test]
fn many_agents_are_queried_at_a_time_within_the_limit_of_open_files() {
    let most_at_once = |limit: Option<u32>| {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let seen = Arc::clone(&most);
        let fake = cluster(names('n', 400), move |node| {
            seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(50));
            now.fetch_sub(1, Ordering::SeqCst);
            told(node, &json!([]))
        });
        let plugin = Plugin::new();
        let mut command = plugin.command("kubectl-portreeve", &fake, &["check"]);
        if let Some(limit) = limit {
            let mut limited = Command::new("/usr/bin/prlimit");
            limited.arg(format!("--nofile={limit}")).arg(command.get_program()).args(command.get_args());
            limited.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            command = limited;
        }
        let (code, stdout, stderr) = ended(command);
        assert_eq!(code, 0, "{stdout}{stderr}");
        most.load(Ordering::SeqCst)
    };
    let usual = most_at_once(None);
    assert!((17..=64).contains(&usual), "{usual} at a time");
    let limited = most_at_once(Some(64));
    assert!((2..=32).contains(&limited), "{limited} at a time");
}

#[test]
fn a_long_answer_waits_for_all_others() {
    let long = "x".repeat(2 << 20);
    let fake = cluster(names('n', 5), move |node| {
        let Reply::Json(document) = told(node, &listener()) else { panic!("a document") };
        let more = if node == "n0002" { long.as_str() } else { "" };
        Reply::Json(document.replacen('{', &format!("{{\"later\": \"{more}\", "), 1))
    });
    let (code, stdout, stderr) = Plugin::new().run(&fake, &["check", "--no-headers"]);
    assert_eq!((code, stderr.as_str()), (1, ""));
    assert!(stdout.ends_with("  n0000,n0001,n0002,n0003,n0004\n"), "{stdout}");
    let requests = fake.requests();
    let asked: Vec<&String> = requests.iter().filter(|path| path.contains("/proxy/findings")).collect();
    assert!(asked.len() == 6 && asked[5].contains("n0002"), "{asked:?}");
}

/// The text with one age for the oldest scan.
fn with_one_age(text: &str) -> String {
    let parts = text.split_once("oldest scan ").and_then(|(before, rest)| Some((before, rest.split_once(" s ago")?.1)));
    parts.map_or_else(|| text.to_owned(), |(before, after)| format!("{before}oldest scan 0 s ago{after}"))
}

#[test]
fn the_page_of_the_plugin_shows_the_output_of_the_plugin() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut check = Command::new(env!("CARGO_BIN_EXE_portreeve"));
    check.args(["check", "--snapshot", "examples/node-1.json", "-o", "json"]).current_dir(root);
    let (_, example, _) = ended(check);
    // On 31 nodes, a pod of a DaemonSet listens on the NodePort. The agent of n31 has the oldest scan.
    let many = cluster((1..=120).map(|number| format!("n{number}")).collect(), move |node| {
        if node != "n1" && !(node.len() == 3 && ("n10"..="n39").contains(&node)) {
            return told(node, &json!([]));
        }
        let (pod, started) = if node == "n1" { ("b9zzk", "18:50:40Z") } else { ("x7f2p", "18:50:49Z") };
        let text = example.replace("rocess python3", &format!("od office/scanner-{pod}"));
        let mut document: Value = serde_json::from_str(&text.replace("18:50:49Z", started)).expect("JSON");
        let ago = if node == "n31" { 58 } else { 0 };
        if ago == 0 {
            document["findings"][0]["since"] = json!("2026-11-27T18:51:06Z");
        }
        told_at(node, &document["findings"], Timestamp::now() - Duration::from_secs(ago))
    });
    let silent = cluster(vec!["n1".to_owned(), "n2".to_owned()], |node| match node {
        "n1" => told(node, &listener()),
        _ => Reply::Silence,
    });
    let page = fs::read_to_string(root.join("docs/kubectl.md")).expect("docs/kubectl.md");
    let page: String = page.lines().map(|line| with_one_age(line) + "\n").collect();
    let (commands, plugin) = (shown(&page), Plugin::new());
    assert_eq!(commands.len(), 2, "{commands:?}");
    for (command, lines) in commands {
        let words = command.strip_prefix("kubectl portreeve ").expect("a command of the plugin");
        let (words, has_code) = words.strip_suffix("; echo $?").map_or((words, false), |words| (words, true));
        let fake = if words == "check" { &many } else { &silent };
        let (code, mut output, errors) = plugin.run(fake, &words.split(' ').collect::<Vec<_>>());
        if has_code {
            output.push_str(&code.to_string());
        }
        // Both addresses have the same length, so the program wraps the same lines.
        let output = with_one_age(&output).replace(fake.address(), "https://192.0.2.1:6443");
        assert!(has(&output, &lines), "{command} prints\n{output}{errors}");
    }
}

/// Two hundred agents that answer at once with these findings, and six agents that never answer. The program queries
/// the six silent agents last, after many agents have answered.
fn some_are_silent(findings: &Value) -> Fake {
    let findings = findings.clone();
    cluster([names('a', 200), names('z', 6)].concat(), move |node| match node.starts_with('z') {
        true => Reply::Silence,
        false => told(node, &findings),
    })
}

#[test]
fn a_port_is_reported_once_for_all_nodes_with_the_same_facts() {
    const NODES: &[&str] = &["a1", "b", "c", "d", "e", "odd", "old"];
    let fake = plugin::cluster(NODES, |node, _, _| match node {
        "odd" | "old" => Reply::Json("{}".to_owned()),
        node => Reply::Json(snapshot(node, if node == "c" { 30001 } else { 30000 })),
    });
    let plugin = Plugin::new();
    let (code, text, _) = plugin.run(&fake, &["owner", "30001/tcp"]);
    assert_eq!(code, 2, "{text}");
    assert!(text.starts_with("4 of 7 nodes: a1, b, d and 1 more\n30001/tcp, "), "{text}");
    assert!(text.contains("\n\nnode c\n30001/tcp, "), "{text}");
    assert!(text.contains("\n\n2 of 7 nodes: odd, old\n  not known: the agent's answer is not a snapshot"), "{text}");
    let (code, ports, stderr) = plugin.run(&fake, &["suggest"]);
    assert_eq!((code, ports.as_str()), (2, "30002\n"));
    assert!(stderr.contains("not known of 2 nodes, odd, old: the agent's answer is not a snapshot"), "{stderr}");
}

#[test]
fn a_remedy_names_no_number_that_is_free_on_one_node_only() {
    let fake = plugin::cluster(&["m1", "m2", "m3"], |node, _, _| {
        Reply::Json(snapshot(node, if node == "m3" { 30001 } else { 30000 }))
    });
    let (code, text, stderr) = Plugin::new().run(&fake, &["owner", "30080/tcp", "--refused"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(text.starts_with("3 of 3 nodes: m1, m2, m3"), "{text}");
    assert!(text.contains("give the refused Service another number: `suggest` prints free ones"), "{text}");
}

fn until_silent(fake: &Fake) {
    let end = Instant::now() + Duration::from_secs(60);
    while fake.requests().iter().filter(|path| path.contains("portreeve-z")).count() < 6 {
        assert!(Instant::now() < end, "the last agents are queried");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn ctrl_c_prints_the_partial_result_with_an_exit_code_that_is_no_success() {
    for (findings, expected, exit_zero) in [(listener(), 1, false), (json!([]), 2, false), (listener(), 2, true)] {
        for form in ["table", "json"] {
            let (fake, plugin) = (some_are_silent(&findings), Plugin::new());
            let mut words = vec!["check", "-o", form];
            words.extend(exit_zero.then_some("--exit-zero"));
            let child = started(plugin.command("kubectl-portreeve", &fake, &words));
            until_silent(&fake);
            kill(Pid::from_raw(i32::try_from(child.id()).expect("a pid")), Signal::SIGINT).expect("the program runs");
            let (code, stdout, stderr) = end(child);
            assert_eq!(code, expected, "{stdout}{stderr}");
            let told = if form == "json" { &stderr } else { &stdout };
            assert!(
                told.starts_with("partial: ")
                    && told.contains(" of 206 agents were queried; you stopped the command\n"),
                "{told}"
            );
            if form == "json" {
                let document: Value = serde_json::from_str(&stdout).expect("a whole document");
                assert_eq!(document["nodes"].as_array().map(Vec::len), Some(206));
                assert_eq!(document["partial"]["why"], "interrupted");
            } else {
                let reason = "not asked: you stopped the command";
                assert!(stdout.contains(reason) || stdout.contains("you stopped the command (pod"), "{stdout}");
            }
        }
    }
}

#[test]
fn a_stopped_watch_ends_with_its_last_result() {
    let (fake, plugin) = (cluster(names('n', 2), |node| told(node, &listener())), Plugin::new());
    let mut child = started(plugin.command("kubectl-portreeve", &fake, &["check", "-w", "--interval", "1h"]));
    let mut first = [0; 10];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut first).expect("a table");
    kill(Pid::from_raw(i32::try_from(child.id()).expect("a pid")), Signal::SIGINT).expect("the program runs");
    let (code, _, stderr) = end(child);
    assert_eq!((&first, code, stderr.as_str()), (b"1 critical", 1, ""));
}

#[test]
fn a_partial_result_is_printed_at_the_end_of_the_time_for_all_agents() {
    let fake = some_are_silent(&json!([]));
    let words = ["check", "--request-timeout", "30s", "--time-limit", "5s"];
    let (code, table, stderr) = Plugin::new().run(&fake, &words);
    assert_eq!((code, stderr.as_str()), (2, ""));
    assert!(table.starts_with("partial: ") && table.contains("; the time limit for all queries ended\n"), "{table}");
    let words = ["suggest", "--request-timeout", "30s", "--time-limit", "1s"];
    let (code, _, stderr) = Plugin::new().run(&some_are_silent(&json!([])), &words);
    assert_eq!(code, 2);
    assert!(stderr.contains("partial: ") && stderr.contains("206 agents"), "{stderr}");
}

#[test]
fn a_terminal_shows_the_progress_on_one_line_and_a_file_does_not() {
    let fake = some_are_silent(&json!([]));
    let plugin = Plugin::new();
    let words = ["check", "--request-timeout", "4s"];
    let command = plugin.command("kubectl-portreeve", &fake, &words);
    let line = format!("{} {} > /dev/null", command.get_program().display(), words.join(" "));
    let mut terminal = Command::new("script");
    terminal.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).env_clear().env("SHELL", "/bin/sh");
    terminal.env("TERM", "xterm");
    terminal.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("PATH", "/usr/bin:/bin");
    let (code, seen, _) = ended(terminal);
    assert_eq!(code, 2, "{seen:?}");
    assert!(seen.contains("\r\u{1b}[2K200 of 206 agents queried; Ctrl-C prints the result ..."), "{seen:?}");
    assert!(seen.ends_with("\r\u{1b}[2K") && !seen.contains('\n'), "{seen:?}");
    let (_, _, stderr) = plugin.run(&fake, &words);
    assert_eq!(stderr, "");
}
