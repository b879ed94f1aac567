//! Every form of the output: read by its own parser, with the place of the field, and with the exit codes of other commands.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

use super::{containers, folder, lint, service, workload};
use crate::cli::{binary, ended};

const FORMS: [&str; 7] = ["table", "wide", "json", "yaml", "junit", "sarif", "github"];

fn manifest() -> String {
    let daemon = format!("hostNetwork: true, {}", containers("containerPort: 9100"));
    service("shop/web", "nodePort: 30080")
        + &service("api", "nodePort: 30080")
        + &workload("DaemonSet", "exporter", "", &daemon)
}

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
fn code_scanning_gets_the_line_of_the_field() {
    let (_, stdout, _) = lint(&[("deploy/a b.yaml", &manifest())], &["deploy", "-o", "sarif"]);
    let log: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    let rules = run["tool"]["driver"]["rules"].as_array().expect("rules");
    let results = run["results"].as_array().expect("results");
    assert_eq!(results.len(), 3, "{stdout}");
    for result in results {
        let index = usize::try_from(result["ruleIndex"].as_u64().expect("an index")).expect("a small one");
        assert_eq!(rules[index]["id"], result["ruleId"]);
        assert!(rules[index]["help"]["text"].as_str().is_some_and(|text| text.contains("## Fix")), "{result}");
        let location = &result["locations"][0]["physicalLocation"];
        assert_eq!(location["artifactLocation"]["uri"], "deploy/a%20b.yaml");
        assert!(["error", "warning", "note"].contains(&result["level"].as_str().expect("a level")));
    }
    let region = |index: usize| &results[index]["locations"][0]["physicalLocation"]["region"];
    assert_eq!(region(0), &serde_json::json!({"startLine": 6, "startColumn": 32}));
    let related = &results[0]["relatedLocations"][0]["physicalLocation"]["region"];
    assert_eq!(related, &serde_json::json!({"startLine": 13, "startColumn": 32}));
    // A line that moves makes no other problem.
    let (_, moved, _) = lint(&[("deploy/a b.yaml", &format!("\n\n{}", manifest()))], &["deploy", "-o", "sarif"]);
    let moved: Value = serde_json::from_str(&moved).expect("JSON");
    assert_eq!(moved["runs"][0]["results"][0]["partialFingerprints"], results[0]["partialFingerprints"]);
    // A run that could not read everything says so.
    let (_, failed, _) = lint(&[("a.yaml", "a: [\n")], &["a.yaml", "-o", "sarif"]);
    let failed: Value = serde_json::from_str(&failed).expect("JSON");
    let invocation = &failed["runs"][0]["invocations"][0];
    assert_eq!(invocation["executionSuccessful"], false);
    assert_eq!(invocation["toolExecutionNotifications"][0]["level"], "error");
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
fn a_pipeline_gets_a_case_for_each_finding_and_each_quiet_rule() {
    let (_, stdout, _) = lint(&[("a.yaml", &manifest())], &["a.yaml", "-o", "junit"]);
    let xml = roxmltree::Document::parse(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"));
    let of = |name: &str| xml.descendants().filter(|node| node.tag_name().name() == name).count();
    assert_eq!((of("failure"), of("system-out")), (2, 1), "{stdout}");
    let suite = xml.descendants().find(|node| node.has_tag_name("testsuite")).expect("a suite");
    assert_eq!(suite.attribute("tests"), Some(of("testcase").to_string().as_str()), "{stdout}");
    let case = xml.descendants().find(|node| node.has_tag_name("testcase")).expect("a case");
    assert_eq!((case.attribute("file"), case.attribute("line")), (Some("a.yaml"), Some("6")));
}

#[test]
fn annotations_are_a_line_each() {
    let (_, stdout, _) = lint(&[("a,b.yaml", &manifest())], &["a,b.yaml", "-o", "github"]);
    assert_eq!(stdout.lines().count(), 3, "{stdout}");
    let first = stdout.lines().next().expect("a line");
    assert!(first.starts_with("::warning file=a%2Cb.yaml,line=6,col=32,title=node-port-claimed-twice::"), "{first}");
    assert!(first.contains("%0Awrite another nodePort into Service shop/web"), "{first}");
    assert!(stdout.lines().last().is_some_and(|line| line.starts_with("::notice ")), "{stdout}");
}

#[test]
fn the_table_names_the_place_the_field_and_what_to_write() {
    let (_, stdout, _) = lint(&[("a.yaml", &manifest())], &["a.yaml"]);
    for wanted in [
        "manifests: 2 warning, 1 info",
        "a.yaml:6:32  WARNING  Service shop/web, port 30080/tcp",
        "Field     spec.ports[0].nodePort",
        "Also      a.yaml:13:32  Service default/api",
        "Remedy    write another nodePort into Service shop/web",
        "NodePort range   30000-32767 (assumed: the default of kube-apiserver)",
        "compared with    nothing: --against",
    ] {
        assert!(stdout.contains(wanted), "{wanted}: {stdout}");
    }
    let (_, stdout, _) = lint(&[("a.yaml", &service("web", "nodePort: 30080"))], &["a.yaml"]);
    assert!(stdout.starts_with("manifests: no port conflicts.\n"), "{stdout}");
}
