//! The program of an earlier commit and the program of this commit. Agents of both programs replace each other. Each
//! plugin reads each agent, and each program judges the snapshots of both programs. One test uses the oldest supported
//! API server.
//!
//! `tests/lab/before` builds the earlier program. `make nightly SHARD=skew` runs these tests.

use std::{collections::BTreeSet, fs, net::TcpListener, path::PathBuf, process::Command};

use serde_json::{Value, json};

use crate::{
    agent::Trouble,
    chart::{
        INSTALL_BEFORE, PLACE, UNINSTALL, UPGRADE, an_incident_on_each_node, objects, prepare, roll_out, served, told,
    },
    parts::{
        Agent, ControlPlane, Directory, Machine, Plugin, Role, SecondNode, WholeNode, enter_alone, http_get, image_of,
        named::is_of, programs, reasons, serve, until,
    },
    plugin::two_findings,
    policies,
    readers::World,
};

const SCRIPT: &str = include_str!("before");
const IMAGE_BEFORE: &str = "registry.example/portreeve:before";
/// A file of the chart. The file's `kubeVersion` is the oldest version of Kubernetes on which the chart installs.
const CHART: &str = include_str!("../../deploy/chart/Chart.yaml");
const IMAGE_OF_OLD_CHART: &str = "docker.io/library/portreeve:0.1.0";

struct Program {
    path: PathBuf,
    version: String,
}

impl Program {
    #[track_caller]
    fn now() -> Self {
        Self::at(env!("CARGO_BIN_EXE_portreeve").into())
    }

    #[track_caller]
    fn before() -> Self {
        let path = programs::cache().join("before").join(commit()).join("portreeve");
        assert!(path.is_file(), "no {}: run `make nightly SHARD=skew`", path.display());
        Self::at(path)
    }

    #[track_caller]
    fn both() -> [Self; 2] {
        let both = [Self::before(), Self::now()];
        assert_ne!(both[0].version, both[1].version, "an answer shows which program gave it");
        both
    }

    #[track_caller]
    fn at(path: PathBuf) -> Self {
        let program = Self { path, version: String::new() };
        let said = program.prints(&["--version"]);
        let version = said.trim().strip_prefix("portreeve ").unwrap_or_else(|| panic!("{said}")).to_owned();
        Self { version, ..program }
    }

    /// Returns the program's output for any exit code. With findings or unread inputs, the exit code is not 0.
    #[track_caller]
    fn prints(&self, arguments: &[&str]) -> String {
        let output = Command::new(&self.path).args(arguments).output().expect("the program runs");
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(!said.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        said
    }

    /// The findings and unread inputs of a snapshot in a file. The list is sorted, and has no sentences.
    #[track_caller]
    fn verdicts(&self, file: &str) -> Vec<String> {
        let said = self.prints(&["check", "--snapshot", file, "-o", "json"]);
        let document: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        let fields = ["rule", "variant", "variants", "severity", "subject", "port", "protocol", "source", "why"];
        let entries = ["findings", "unknown"].into_iter().flat_map(|list| document[list].as_array().expect("a list"));
        let mut bare: Vec<String> =
            entries.map(|entry| fields.map(|field| entry[field].to_string()).join(" ")).collect();
        bare.sort();
        bare
    }
}

fn commit() -> &'static str {
    SCRIPT.lines().find_map(|line| line.strip_prefix("commit=")).expect("the script names a commit")
}

#[track_caller]
fn judged_alike(programs: &[Program; 2], file: &str) {
    let [before, now] = programs.each_ref().map(|program| program.verdicts(file));
    assert_eq!(before, now, "{file}");
    assert!(now.iter().any(|it| it.starts_with(r#""listener-on-node-port" "loses""#)), "{now:#?}");
}

#[track_caller]
fn import(before: &Program, machines: &[&Machine]) {
    let folder = Directory::new();
    let archive = image_of(&before.path, IMAGE_BEFORE, folder.path());
    let archive = archive.to_str().expect("UTF-8");
    for machine in machines {
        machine.run(&["ctr", "--namespace=k8s.io", "images", "import", archive]);
    }
}

/// The number of Events that an agent did not write because they existed already.
fn found(metrics: &str) -> Option<f64> {
    Agent::value(metrics, r#"portreeve_events_total{result="deduplicated"}"#)
}

#[track_caller]
fn two_incidents_outlast(programs: [&Program; 3]) {
    let Trouble { cluster, squatter, .. } = Trouble::make(&[], &Role::of_chart());
    let both = BTreeSet::from(["ListenerOnNodePort", "EphemeralRangeOverlap"].map(str::to_owned));
    let sorted = || {
        let mut all = reasons(&cluster);
        all.sort();
        all
    };
    let mut running = None;
    for (number, program) in programs.into_iter().enumerate() {
        // The running agent ends first, because a node has at most one agent.
        drop(running.take());
        let agent = running.insert(Agent::of_program(&program.path, &cluster, &Trouble::MODE));
        until("Events", || (sorted().into_iter().collect::<BTreeSet<_>>() == both).then_some(()));
        if number > 0 {
            until("two Events found written", || (found(&agent.metrics()) == Some(2.0)).then_some(()));
        }
        let document = agent.findings_after(5);
        assert_eq!(document["nodes"][0]["version"], program.version);
        assert_eq!(sorted(), Vec::from_iter(both.clone()), "nothing twice, and nothing resolved: {}", program.version);
    }
    drop(squatter);
    until("resolution", || sorted().contains(&"ListenerOnNodePortResolved".to_owned()).then_some(()));
    assert_eq!(sorted(), ["EphemeralRangeOverlap", "ListenerOnNodePort", "ListenerOnNodePortResolved"]);
}

#[test]
fn an_incident_outlasts_an_upgrade_and_its_rollback_with_one_event() {
    let [before, now] = &Program::both();
    two_incidents_outlast([before, now, before]);
}

#[test]
fn an_incident_outlasts_a_rollback_and_the_next_upgrade_with_one_event() {
    let [before, now] = &Program::both();
    two_incidents_outlast([now, before, now]);
}

#[test]
fn a_snapshot_of_either_program_is_judged_alike_by_both() {
    let trouble = Trouble::make(&[], &Role::of_chart());
    let kubeconfig = trouble.cluster.kubeconfig("observer").display().to_string();
    let (programs, directory) = (Program::both(), Directory::new());
    for scanner in &programs {
        let from = ["snapshot", "--node", "n1", "--kubeconfig", &kubeconfig];
        let snapshot = scanner.prints(&[&from[..], &Trouble::MODE].concat());
        let document: Value = serde_json::from_str(&snapshot).expect("JSON");
        assert_eq!(document["version"], scanner.version);
        judged_alike(&programs, &directory.write(&format!("{}.json", scanner.version), &snapshot));
    }
}

#[test]
fn each_plugin_shows_the_findings_of_each_agent_and_the_versions_of_all() {
    let node = WholeNode::start();
    let second = SecondNode::join(&node);
    let programs = Program::both();
    let [before, now] = &programs;
    import(before, &[&second.machine]);
    an_incident_on_each_node(&node);
    // One node has the new agent, and the other node still has the old agent.
    let container = json!({"name": "portreeve", "image": IMAGE_BEFORE});
    let patch = json!({"spec": {
        "updateStrategy": {"type": "OnDelete", "rollingUpdate": null},
        "template": {"spec": {"containers": [container]}},
    }});
    let person = node.person();
    person.types(&format!("kubectl -n portreeve patch daemonset portreeve -p {patch}"));
    let of_n2 = "-l app.kubernetes.io/name=portreeve --field-selector spec.nodeName=n2";
    person.types(&format!("kubectl -n portreeve delete pod {of_n2}"));

    for program in &programs {
        let observer = Plugin::of_program(&program.path, &node.cluster.kubeconfig("observer"));
        let document = until("findings of both versions", || {
            Some(two_findings(&observer)).filter(|it| it["nodes"][1]["version"] == before.version)
        });
        for (told, (place, version)) in
            document["nodes"].as_array().expect("nodes").iter().zip([("n1", &now.version), ("n2", &before.version)])
        {
            assert_eq!((&told["node"], &told["version"]), (&json!(place), &json!(version)));
            let findings = told["findings"].as_array().expect("findings");
            assert!(findings.iter().any(|it| is_of(it, "listener-on-node-port/loses")), "{told:#}");
        }
        assert!(!document.to_string().contains("were not understood"), "{document:#}");
        let (code, table, _) = observer.types("kubectl portreeve check -n shop");
        assert_eq!(code, 1, "{table}");
        assert!(table.contains("2 of 2 nodes: n1, n2"), "one incident: {table}");
        let versions = format!(
            "client  {}\nagents  {}: 1 agent\nagents  {}: 1 agent\n",
            program.version, now.version, before.version
        );
        assert_eq!(observer.types("kubectl portreeve version"), (0, versions, String::new()));
        for place in ["n1", "n2"] {
            let (code, snapshot, error) = observer.types(&format!("kubectl portreeve snapshot {place}"));
            assert_eq!(code, 0, "{error}");
            judged_alike(&programs, &observer.write(&format!("{place}.json"), &snapshot));
        }
    }
}

#[test]
fn an_incident_of_a_live_node_outlasts_an_old_chart_an_old_image_and_rollbacks_with_one_event() {
    let node = WholeNode::start();
    let [before, now] = &Program::both();
    import(before, &[&node.machine]);
    node.machine.run(&["ctr", "--namespace=k8s.io", "images", "tag", IMAGE_BEFORE, IMAGE_OF_OLD_CHART]);
    for name in ["shop", "office"] {
        node.namespace(name);
    }
    let (_, port) = served(&node);
    let person = node.person();
    prepare(&person);
    until("authority for pods", || node.read("/api/v1/namespaces/portreeve/configmaps/kube-root-ca.crt"));
    let objects_before = objects(&person);
    node.stranger("office", "printer", &[&format!("0.0.0.0:{port}"), "process"], &json!({"hostNetwork": true}));

    let install = format!("{INSTALL_BEFORE} --set config.interval=2s --set resources.requests.cpu=20m");
    let upgrade = format!("{UPGRADE} --set image.repository=registry.example/portreeve");
    // The columns: a command, the version that the command installs, and whether the chart is the old chart. The old
    // chart sets no affinity.
    for (line, program, is_old_chart) in [
        (&*install, before, true),
        (&format!("{upgrade} --set image.tag=before"), before, false),
        (&format!("{UPGRADE} --set image.tag="), now, false),
        ("helm rollback portreeve -n portreeve", before, false),
        ("helm rollback portreeve 1 -n portreeve", before, true),
        (&upgrade, now, false),
    ] {
        person.types(line);
        roll_out(&person);
        let set = node.read("/apis/apps/v1/namespaces/portreeve/daemonsets/portreeve").expect("a DaemonSet");
        let pod = &set["spec"]["template"]["spec"];
        assert_eq!(pod["affinity"].is_null(), is_old_chart, "{line}: {pod:#}");
        assert_eq!(pod["containers"][0]["resources"]["requests"]["cpu"], "20m", "{line}");
        let settings = node.read("/api/v1/namespaces/portreeve/configmaps/portreeve").expect("a ConfigMap");
        assert!(settings["data"]["agent.yaml"].as_str().is_some_and(|it| it.contains("interval: 2s")), "{line}");
        let document = until("finding", || {
            let is_found = |it: &Value| it["findings"].as_array().is_some_and(|found| !found.is_empty());
            told(&node).filter(|it| it["nodes"][0]["version"] == program.version && is_found(it))
        });
        assert!(is_of(&document["findings"][0], "listener-on-node-port/loses"), "{line}: {document:#}");
        until("Event", || (reasons(&node.cluster) == ["ListenerOnNodePort"]).then_some(()));
        if line != install {
            until("written Event", || (found(&http_get(PLACE, "/metrics")?) == Some(1.0)).then_some(()));
        }
    }
    person.types("kubectl -n office delete pod printer");
    until("resolution", || (reasons(&node.cluster).len() > 1).then_some(()));
    assert_eq!(reasons(&node.cluster), ["ListenerOnNodePort", "ListenerOnNodePortResolved"]);
    person.types(UNINSTALL);
    until("end of its objects", || (objects(&person) == objects_before).then_some(()));
}

#[test]
fn the_oldest_server_keeps_an_event_of_an_agent_proxies_the_plugin_and_enforces_the_policies() {
    enter_alone();
    let mut world = World::of(ControlPlane::of_the_oldest_server());
    serve(&world.cluster, "web", Some(30080));
    let _squatter = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    let is_told = |cluster: &ControlPlane| reasons(cluster).contains(&"ListenerOnNodePort".to_owned());
    until("Event", || is_told(&world.cluster).then_some(()));
    world.cluster.restart();
    assert!(is_told(&world.cluster), "the server keeps the Event");
    let version = world.cluster.api().text("/version").expect("a version");
    let version: Value = serde_json::from_str(&version).expect("JSON");
    let number = |name: &str| version[name].as_str().expect("a number").to_owned();
    let oldest = format!("\nkubeVersion: \">={}.{}.0-0\"\n", number("major"), number("minor"));
    assert!(CHART.contains(&oldest), "{version:#}");

    let admin = Plugin::of(&world.cluster.kubeconfig("admin"));
    until("finding", || {
        let (_, stdout, _) = admin.types("kubectl portreeve check -o json");
        let document: Value = serde_json::from_str(&stdout).ok()?;
        let is_found = |it: &Value| is_of(it, "listener-on-node-port/loses") && it["subject"]["name"] == "web";
        document["nodes"][0]["findings"].as_array()?.iter().any(is_found).then_some(())
    });

    let file = admin.write("policies.yaml", &policies::committed("Deny"));
    let (code, _, refusal) = admin.types(&format!("kubectl apply -f {file}"));
    assert_eq!(code, 0, "{refusal}");
    let create = |name: &str, node_port: Option<u16>| {
        let service = policies::service(name, "default", &[(80, node_port)]);
        let file = admin.write("service.json", &service.to_string());
        let (code, _, words) = admin.types(&format!("kubectl create --dry-run=server -f {file}"));
        (code == 0, words)
    };
    until("refusal", || {
        let (is_taken, words) = create("fixed", Some(32700));
        let is_refused = words.contains("'portreeve-dynamic-band'") && words.contains("nodePort 32700 is in the band");
        (!is_taken && is_refused).then_some(())
    });
    let (is_taken, words) = create("automatic", None);
    assert!(is_taken, "{words}");
}

#[test]
fn the_old_chart_has_the_files_of_its_commit() {
    let ours = "tests/lab/chart-before";
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
        let output = output.expect("git is installed");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {}: {}: {error}", arguments.join(" "), output.status);
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let listed = git(&["ls-files", ours]);
    assert!(listed.lines().count() > 10, "{listed}");
    for file in listed.lines() {
        let of_commit = file.replace(ours, "c2f01163:deploy/chart");
        let kept = fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file)).expect("a file");
        assert_eq!(git(&["show", &of_commit]), kept, "{file}");
    }
}

#[test]
fn a_clone_without_the_commit_is_told_to_fetch_it_and_a_program_that_is_there_is_kept() {
    let directory = Directory::new();
    let (clone, cache) = (directory.path().join("clone"), directory.path().join("cache"));
    let source = concat!("file://", env!("CARGO_MANIFEST_DIR"));
    let cloned = Command::new("git").args(["clone", "--quiet", "--depth=1", source]).arg(&clone).status();
    assert!(cloned.expect("git is installed").success());
    let run = || Command::new(clone.join("tests/lab/before")).arg(&cache).output().expect("bash");

    let refused = run();
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && error.lines().count() == 1, "{error}");
    assert!(error.contains(commit()) && error.ends_with("type: git fetch --unshallow\n"), "{error}");
    assert!(!cache.exists());

    let kept = cache.join(commit()).join("portreeve");
    fs::create_dir_all(kept.parent().expect("a folder")).expect("a folder");
    fs::copy("/bin/true", &kept).expect("any program");
    let passed = run();
    assert!(passed.status.success() && passed.stdout.is_empty() && passed.stderr.is_empty(), "{passed:?}");
    assert_eq!(fs::read_dir(kept.parent().expect("a folder")).expect("a folder").count(), 1);
}
