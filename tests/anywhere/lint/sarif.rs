//! The SARIF log for GitHub's code scanning: the log follows the standard, and has the properties that GitHub requires.

use serde_json::{Value, json};

use super::{lint, manifest, service};

fn log(files: &[(&str, &str)], arguments: &[&str]) -> Value {
    let (_, stdout, stderr) = lint(files, &[arguments, &["-o", "sarif"]].concat());
    let log: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
    follows_the_standard(&log);
    log
}

/// Checks a log with the schema beside this file. The schema names the sections of the standard.
#[track_caller]
pub(crate) fn follows_the_standard(log: &Value) {
    let schema: Value = serde_json::from_str(include_str!("sarif.schema.json")).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let errors: Vec<String> =
        validator.iter_errors(log).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

fn texts(value: &Value, paths: &[&str]) -> bool {
    paths.iter().all(|path| value.pointer(path).and_then(Value::as_str).is_some_and(|text| !text.is_empty()))
}

#[test]
fn code_scanning_gets_what_it_documents_as_required() {
    // The properties that the tables in GitHub's page "SARIF support for code scanning" call required.
    let log = log(&[("deploy/a b.yaml", &manifest())], &["deploy"]);
    let run = &log["runs"][0];
    assert_eq!((&log["version"], &run["tool"]["driver"]["name"]), (&json!("2.1.0"), &json!("portreeve")));
    let rules = run["tool"]["driver"]["rules"].as_array().expect("rules");
    for rule in rules {
        assert!(texts(rule, &["/id", "/shortDescription/text", "/fullDescription/text", "/help/text"]), "{rule}");
        assert!(rule["fullDescription"]["text"].as_str().is_some_and(|text| text.chars().count() <= 1024), "{rule}");
        assert!(rule["help"]["text"].as_str().is_some_and(|text| text.contains("## Fix")), "{rule}");
        assert!(!rule["help"].to_string().contains("]("), "code scanning has no other pages: {rule}");
    }
    let results = run["results"].as_array().expect("results");
    assert_eq!(results.len(), 3, "{log}");
    for result in results {
        let index = usize::try_from(result["ruleIndex"].as_u64().expect("an index")).expect("a small one");
        assert_eq!(rules[index]["id"], result["ruleId"]);
        assert!(texts(result, &["/message/text", "/partialFingerprints/primaryLocationLineHash"]), "{result}");
        let location = &result["locations"][0]["physicalLocation"];
        assert_eq!(location["artifactLocation"]["uri"], "deploy/a%20b.yaml");
        for bound in ["startLine", "startColumn", "endLine", "endColumn"] {
            assert!(location["region"][bound].is_u64(), "{bound}: {result}");
        }
    }
    let fingerprints: std::collections::BTreeSet<_> =
        results.iter().map(|it| it["partialFingerprints"]["primaryLocationLineHash"].to_string()).collect();
    assert_eq!(fingerprints.len(), results.len(), "each is another problem");
}

#[test]
fn a_region_is_the_value_and_nothing_else() {
    let written = log(&[("a.yaml", &manifest())], &["a.yaml"]);
    let region =
        |index: usize| written["runs"][0]["results"][index]["locations"][0]["physicalLocation"]["region"].clone();
    assert_eq!(region(0), json!({"startLine": 6, "startColumn": 32, "endLine": 6, "endColumn": 37}));
    assert_eq!(region(1), json!({"startLine": 13, "startColumn": 32, "endLine": 13, "endColumn": 37}));
    let related = &written["runs"][0]["results"][0]["relatedLocations"][0]["physicalLocation"]["region"];
    assert_eq!(related, &region(1));
    let end = |port: &str| {
        let text = service("web", port);
        let log = log(&[("a.yaml", &text)], &["a.yaml"]);
        let region = &log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"];
        region["endColumn"].as_u64().zip(region["startColumn"].as_u64()).map(|(end, start)| end - start)
    };
    for (port, wanted) in [("nodePort: 0x9c40", 6), ("nodePort: 40000 , name: x", 5)] {
        assert_eq!(end(port), Some(wanted), "{port}");
    }
}

#[test]
fn a_line_that_moves_makes_no_other_problem() {
    let hashes = |text: &str| {
        let log = log(&[("a.yaml", text)], &["a.yaml"]);
        log["runs"][0]["results"]
            .as_array()
            .expect("results")
            .iter()
            .map(|it| it["partialFingerprints"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(hashes(&manifest()), hashes(&format!("\n\n{}", manifest())));
}

#[test]
fn a_run_that_could_not_read_everything_says_so_and_where() {
    let bad = service("web", "nodePort: 70000") + "a: [\n";
    let log = log(&[("a.yaml", &bad)], &["a.yaml"]);
    let invocation = &log["runs"][0]["invocations"][0];
    assert_eq!(invocation["executionSuccessful"], false);
    let notifications = invocation["toolExecutionNotifications"].as_array().expect("notifications");
    let places: Vec<_> = notifications
        .iter()
        .filter(|it| it["level"] == "error")
        .map(|it| it["locations"][0]["physicalLocation"]["region"]["startLine"].clone())
        .collect();
    assert_eq!(places, [json!(6), json!(8)], "{log}");
    let asked = notifications.iter().find(|it| it["associatedRule"]["id"] == "listener-on-node-port").expect("a note");
    assert_eq!(asked["message"]["text"], "not run: no node was scanned");
}

#[test]
fn a_log_that_is_none_of_the_standard_is_noticed() {
    let mut log = log(&[("a.yaml", &manifest())], &["a.yaml"]);
    log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] = json!(0);
    assert!(std::panic::catch_unwind(|| follows_the_standard(&log)).is_err());
}
