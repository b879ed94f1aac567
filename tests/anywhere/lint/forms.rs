//! Checks every output format of `lint`. A parser reads the output, each field has the right place, and the exit codes
//! mean the same as in other commands.

use crate::named::name;
use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

use super::{containers, folder, lint, manifest, service, workload};
use crate::cli::{binary, ended};

const FORMS: [&str; 7] = ["table", "wide", "json", "yaml", "junit", "sarif", "github"];

#[test]
fn the_exit_code_tells_findings_from_failures_from_neither() {
    let broken = "a: [\n---\n".to_owned();
    let clear = service("web", "nodePort: 30080");
    let info = service("web", "nodePort: 30090");
    for (what, text, arguments, wanted) in [
        ("clear", clear.clone(), &[][..], 0),
        ("information", info.clone(), &[], 0),
        ("information that shall count", info, &["--min-severity", "info"], 1),
        ("a finding", manifest(), &[], 1),
        ("a finding that shall not count", manifest(), &["--exit-zero"], 0),
        ("findings below the chosen severity", manifest(), &["--min-severity", "critical"], 0),
        ("a failure", broken.clone() + &clear, &[], 2),
        ("a failure and a finding", broken.clone() + &manifest(), &[], 1),
        ("a failure beside what shall not count", broken + &manifest(), &["--exit-zero"], 2),
    ] {
        for form in FORMS {
            let (code, stdout, stderr) = lint(&[("a.yaml", &text)], &[&["a.yaml", "-o", form], arguments].concat());
            assert_eq!(code, wanted, "{what}, {form}: {stdout}{stderr}");
        }
    }
}

#[test]
fn documents_follow_the_committed_schema() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema/lint.schema.json");
    let schema: Value = serde_json::from_slice(&fs::read(path).expect("the committed schema")).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let text = manifest() + "---\na: [\n";
    let (_, json, _) = lint(&[("a.yaml", &text)], &["a.yaml", "-o", "json"]);
    let (_, yaml, _) = lint(&[("a.yaml", &text)], &["a.yaml", "-o", "yaml"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let yaml: Value = serde_saphyr::from_str(&yaml).expect("YAML");
    assert!(validator.is_valid(&json), "{json}");
    assert_eq!(json, yaml);
    assert_eq!(json["failures"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_pipeline_gets_a_case_for_each_finding_each_failure_and_each_other_rule() {
    let text = manifest() + "a: [\n";
    let (_, stdout, _) = lint(&[("a.yaml", &text)], &["a.yaml", "-o", "junit"]);
    let xml = roxmltree::Document::parse(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"));
    let of = |name: &str| xml.descendants().filter(|node| node.tag_name().name() == name).count();
    assert_eq!((of("failure"), of("system-out"), of("error")), (2, 1, 1), "{stdout}");
    let suite = xml.descendants().find(|node| node.has_tag_name("testsuite")).expect("a suite");
    for (attribute, element) in
        [("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")]
    {
        assert_eq!(suite.attribute(attribute), Some(of(element).to_string().as_str()), "{attribute}: {stdout}");
    }
    let cases: Vec<_> = xml.descendants().filter(|node| node.has_tag_name("testcase")).collect();
    let place = |case: &roxmltree::Node<'_, '_>| {
        (case.attribute("file").map(str::to_owned), case.attribute("line").map(str::to_owned))
    };
    assert_eq!(place(&cases[0]), (Some("a.yaml".to_owned()), Some("21".to_owned())), "what could not be read");
    assert_eq!(place(&cases[1]), (Some("a.yaml".to_owned()), Some("6".to_owned())));
}

#[test]
fn code_scanning_finds_the_file_whatever_its_name_is() {
    let names = ["here/zw\u{200b}.yaml", "here/\u{1b}[2J.yaml", "here/::error::x.yaml", "other/a.yaml"];
    let text = service("web", "nodePort: 40000");
    let files = folder(&names.map(|name| (name, text.as_str())));
    let top = files.path().canonicalize().expect("a folder");
    let run = |arguments: &[&str]| ended(binary().current_dir(top.join("here")).arg("lint").args(arguments));
    let (_, stdout, _) =
        run(&[".", "../other", &format!("{}/here/../other/a.yaml", top.display()), "../here", "-o", "sarif"]);
    let log: Value = serde_json::from_str(&stdout).expect("JSON");
    let of = |result: &Value| result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].clone();
    let uris: BTreeSet<String> = log["runs"][0]["results"]
        .as_array()
        .expect("results")
        .iter()
        .map(|result| of(result).as_str().expect("a text").to_owned())
        .collect();
    let outside = format!("file://{}/other/a.yaml", top.display());
    let wanted = ["%1B%5B2J.yaml", "%3A%3Aerror%3A%3Ax.yaml", outside.as_str(), "zw%E2%80%8B.yaml"];
    assert_eq!(uris, wanted.map(str::to_owned).into());
}

#[test]
fn no_line_of_text_is_a_command_of_github() {
    let name = "::error::x.yaml";
    let text = service("web", "nodePort: 40000") + "a: [\n";
    for form in [&["-o", "table"][..], &["-o", "wide"], &["--no-headers"]] {
        for path in [".", name] {
            let (_, stdout, stderr) = lint(&[(name, &text)], &[&[path], form].concat());
            assert!(stdout.contains("./::error::x.yaml:6:32"), "{stdout}");
            let all = stdout.lines().chain(stderr.lines());
            assert_eq!(all.filter(|line| line.trim_start().starts_with("::")).count(), 0, "{stdout}{stderr}");
        }
    }
}

#[test]
fn a_rule_that_has_nothing_to_compare_with_is_skipped_and_not_passed() {
    let skipped = |arguments: &[&str]| {
        let text = service("web", "nodePort: 30080");
        let files = [
            ("a.yaml", text.as_str()),
            ("there.yaml", "kind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {clusterIP: None}\n"),
        ];
        let (_, stdout, _) = lint(&files, &[&["a.yaml", "-o", "junit"], arguments].concat());
        let xml = roxmltree::Document::parse(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"));
        let skipped = xml.descendants().filter(|node| node.has_tag_name("skipped")).map(|node| {
            let rule = node.parent().and_then(|case| case.attribute("classname")).expect("a rule");
            format!("{rule}: {}", node.attribute("message").expect("a reason"))
        });
        skipped.collect::<Vec<_>>()
    };
    let alone = skipped(&[]);
    let wanted = [
        "listener-on-node-port/loses,trap,no-return: no node was scanned",
        "health-check-unserved/nobody,other,one-family: no node was scanned",
        "host-port-conflict/node-port: no cluster was given",
        "host-port-conflict/takes-listener,no-network: no node was scanned",
        "host-network-port-taken/listener,refused: no node was scanned",
        "host-port-conflict/latent,ignored,health-check: no cluster was given",
    ];
    assert_eq!(alone, wanted);
    assert_eq!(skipped(&["--against", "there.yaml"])[0], wanted[0]);
    assert_eq!(skipped(&["--against", "there.yaml"])[2], "host-port-conflict/node-port: the input has no Pod");
    let (_, stdout, _) = lint(&[("a.yaml", &manifest())], &["a.yaml", "-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(
        document["notRun"][0],
        serde_json::json!({
            "rule": "pod-waits-for-port", "variants": ["pod"], "detail": "no cluster was given",
        })
    );
    let (_, stdout, _) = lint(&[("a.yaml", &manifest())], &["a.yaml"]);
    assert!(stdout.contains("not run          pod-waits-for-port/pod (no cluster was given)"), "{stdout}");
}

#[test]
fn annotations_are_a_line_each() {
    let (_, stdout, _) = lint(&[("a,b.yaml", &manifest())], &["a,b.yaml", "-o", "github"]);
    assert_eq!(stdout.lines().count(), 3, "{stdout}");
    let first = stdout.lines().next().expect("a line");
    assert!(
        first.starts_with("::error file=a%2Cb.yaml,line=6,col=32,title=node-port-claimed-twice/refused::"),
        "{first}"
    );
    assert!(first.contains("%0Agive Service shop/web another nodePort"), "{first}");
    assert!(stdout.lines().last().is_some_and(|line| line.starts_with("::notice ")), "{stdout}");
}

#[test]
fn a_refusal_of_the_api_server_is_an_error_and_keeps_its_severity() {
    let web = |port: u16| service("web", &format!("nodePort: {port}"));
    let there = web(40000).replace("{name: web,", "{name: web, uid: u,");
    let daemon = workload("DaemonSet", "edge", "", &containers("containerPort: 80, hostPort: 30080"));
    let update = ["--against", "there.yaml", "--node-port-range", "30000-32767"];
    let range = &update[2..];
    for (text, arguments, id, variant, level) in [
        (web(30080) + &service("api", "nodePort: 30080"), &[][..], "node-port-claimed-twice", "refused", "error"),
        (web(40000), range, "node-port-range-mismatch", "outside", "error"),
        (web(30080).replace("type: NodePort", "type: ClusterIP"), &[], "port-field-refused", "node-port", "error"),
        // The API server may have another range than the assumed range.
        (web(40000), &[], "node-port-range-mismatch", "outside", "warning"),
        // The API server accepts these manifests.
        (web(40000), &update, "node-port-range-mismatch", "outside", "warning"),
        (web(30080) + &daemon, &[], "node-port-claimed-twice", "pods", "warning"),
    ] {
        let files = [("a.yaml", text.as_str()), ("there.yaml", &there)];
        let (_, stdout, _) = lint(&files, &[&["a.yaml", "-o", "github"], arguments].concat());
        let title = format!("title={id}/{variant}::");
        let lines: Vec<&str> = stdout.lines().filter(|line| line.contains(&title)).collect();
        let start = format!("::{level} file=a.yaml,");
        assert!(!lines.is_empty() && lines.iter().all(|line| line.starts_with(&start)), "{stdout}");
        let (_, stdout, _) = lint(&files, &[&["a.yaml", "-o", "sarif"], arguments].concat());
        let log: Value = serde_json::from_str(&stdout).expect("JSON");
        let results = log["runs"][0]["results"].as_array().expect("results").iter();
        let levels: BTreeSet<(&str, &str)> = results
            .filter(|it| it["ruleId"] == id && it["properties"]["variant"] == variant)
            .filter_map(|it| Some((it["level"].as_str()?, it["properties"]["severity"].as_str()?)))
            .collect();
        assert_eq!(levels, BTreeSet::from([(level, "warning")]), "{stdout}");
    }
}

#[test]
fn what_could_not_be_read_is_annotated_at_its_field() {
    let bad = service("web", "nodePort: 70000");
    for (text, wanted) in [
        (bad.as_str(), "::error file=a.yaml,line=6,col=32,title=portreeve::Service default/web: spec.ports"),
        ("a: 1\n---\na: [\n", "::error file=a.yaml,line=3,col=4,title=portreeve::not YAML"),
        ("  7\n", "::error file=a.yaml,line=1,col=3,title=portreeve::is not a Kubernetes object"),
    ] {
        let (code, stdout, _) = lint(&[("a.yaml", text)], &["a.yaml", "-o", "github"]);
        assert_eq!(code, 2, "{stdout}");
        assert!(stdout.starts_with(wanted), "{stdout}");
    }
    let (_, stdout, _) = lint(&[], &["nowhere.yaml", "-o", "github"]);
    assert!(stdout.starts_with("::error title=portreeve::nowhere.yaml: cannot be read"), "{stdout}");
}

#[test]
fn what_a_rule_could_not_tell_is_in_every_form() {
    let many: String = (0..1100).map(|index| service(&format!("s{index}"), "nodePort: 30080")).collect();
    for form in FORMS {
        let (_, stdout, _) = lint(&[("a.yaml", &many)], &["a.yaml", "-o", form]);
        assert!(stdout.contains("1024 in all"), "{form}: {}", &stdout[..stdout.len().min(500)]);
    }
    let (_, _, stderr) = lint(&[("a.yaml", &many)], &["a.yaml", "--no-headers"]);
    assert!(stderr.starts_with("not known: node-port-claimed-twice: "), "{stderr}");
}

#[test]
fn a_rule_that_is_asked_alone_is_told_alone() {
    let found = |rule: &str| {
        let (code, stdout, _) = lint(&[("a.yaml", &manifest())], &["a.yaml", "-o", "json", "--rule", rule]);
        let document: Value = serde_json::from_str(&stdout).expect("JSON");
        let findings = document["findings"].as_array().expect("findings");
        (code, findings.iter().map(name).collect::<Vec<_>>())
    };
    assert_eq!(found("host-network-port-taken/daemon"), (0, vec!["host-network-port-taken/daemon".to_owned()]));
    assert_eq!(found("node-port-claimed-twice").0, 1);
    let (_, stdout, _) =
        lint(&[("a.yaml", &manifest())], &["a.yaml", "-o", "junit", "--rule", "host-network-port-taken/daemon"]);
    assert_eq!(stdout.matches("<testcase").count(), 1, "the others neither passed nor failed: {stdout}");
    let (code, _, stderr) = lint(&[], &["a.yaml", "--rule", "connection-on-port/blocks"]);
    assert!(code == 64 && stderr.contains("not a rule that judges manifests"), "{stderr}");
    let (code, _, stderr) = lint(&[], &["a.yaml", "--rule", "connection-on-port"]);
    assert!(code == 64 && !stderr.contains("did you mean"), "{stderr}");
}

#[test]
fn the_table_names_the_place_the_field_and_what_to_write() {
    let (_, stdout, _) = lint(&[("a.yaml", &manifest())], &["a.yaml"]);
    for wanted in [
        "manifests: 2 warnings, 1 info",
        "a.yaml:6:32  WARNING  Service shop/web, port 30080/tcp",
        "Field     spec.ports[0].nodePort",
        "Also      a.yaml:13:32  Service default/api",
        "Remedy    give Service shop/web another nodePort",
        "NodePort range   30000-32767 (assumed: the default of kube-apiserver)",
        "compared with    nothing; --against",
    ] {
        assert!(stdout.contains(wanted), "{wanted}: {stdout}");
    }
    let (_, stdout, _) = lint(&[("a.yaml", &service("web", "nodePort: 30080"))], &["a.yaml"]);
    assert!(stdout.starts_with("manifests: no port conflicts in 1 object.\n"), "{stdout}");
}

#[test]
fn who_has_an_external_ip_is_told_that_they_are_deprecated() {
    let text = service("web", "nodePort: 30080").replace("spec:\n", "spec:\n  externalIPs: [10.96.0.7]\n");
    let (code, stdout, _) = lint(&[("a.yaml", &text)], &["a.yaml", "--service-cidr", "10.96.0.0/12"]);
    assert_eq!(code, 1, "{stdout}");
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("or change Service default/web to type LoadBalancer: external IPs are deprecated"),
        "{stdout}"
    );
}
