//! Output of helm on standard input. A finding names the template, but no line, because the line in the template is not
//! known.

use std::{
    io::Write as _,
    path::Path,
    process::{Output, Stdio},
};

use serde_json::{Value, json};

use super::{folder, lint, sarif::follows_the_standard, service};
use crate::cli::binary;

fn rendered() -> String {
    let document = |template: &str, name: &str, port: &str| {
        format!("---\n# Source: {template}\n{}", service(name, port).trim_end_matches("---\n"))
    };
    document("shop/templates/web.yaml", "shop/web", "nodePort: 30080")
        + &document("api/charts/db/templates/db.yaml", "api/db", "nodePort: 30080")
        + "---\nkind: ConfigMap\napiVersion: v1\n"
}

/// Standard output and standard error of `lint -` in a folder, with this text as input.
pub(super) fn from_stdin(folder: &Path, text: &str, arguments: &[&str]) -> (String, String) {
    let mut command = binary();
    let command = command.current_dir(folder).args(["lint", "-"]).args(arguments).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("portreeve runs");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    let Output { stdout, stderr, .. } = child.wait_with_output().expect("it ends");
    (String::from_utf8(stdout).expect("UTF-8"), String::from_utf8(stderr).expect("UTF-8"))
}

/// Standard output of `lint -` in a folder without a chart, with this text as input.
fn elsewhere(text: &str, arguments: &[&str]) -> String {
    from_stdin(folder(&[]).path(), text, arguments).0
}

#[test]
fn a_finding_of_a_rendered_chart_names_the_template() {
    let rows = elsewhere(&rendered(), &["--no-headers"]);
    let starts: Vec<&str> = rows.lines().filter_map(|row| row.split(": ").next()).collect();
    let wanted =
        ["shop/templates/web.yaml (standard input:8:32)", "api/charts/db/templates/db.yaml (standard input:16:32)"];
    assert_eq!(starts.iter().collect::<std::collections::BTreeSet<_>>(), wanted.iter().collect(), "{rows}");
    let table = elsewhere(&rendered(), &[]);
    assert!(
        table.contains("Also      api/charts/db/templates/db.yaml (standard input:16:32)  Service api/db"),
        "{table}"
    );
    let document: Value = serde_json::from_str(&elsewhere(&rendered(), &["-o", "json"])).expect("JSON");
    let web = document["findings"].as_array().expect("findings").iter().find(|it| it["object"] == "Service shop/web");
    let web = web.expect("a finding");
    assert_eq!((&web["file"], &web["line"]), (&Value::from("standard input"), &Value::from(8)));
    assert_eq!(web["template"], "shop/templates/web.yaml");
    assert_eq!(web["related"][0]["template"], "api/charts/db/templates/db.yaml");
}

#[test]
fn no_form_gives_a_template_the_line_of_what_was_rendered() {
    let annotations = elsewhere(&rendered(), &["-o", "github"]);
    assert!(!annotations.contains("line="), "{annotations}");
    let start = "::error file=shop/templates/web.yaml,title=node-port-claimed-twice/refused::shop/templates/web.yaml \
                 (standard input:8:32): nodePort 30080";
    assert!(annotations.lines().any(|line| line.starts_with(start)), "{annotations}");
    let log: Value = serde_json::from_str(&elsewhere(&rendered(), &["-o", "sarif"])).expect("JSON");
    follows_the_standard(&log);
    for result in log["runs"][0]["results"].as_array().expect("results") {
        let location = &result["locations"][0]["physicalLocation"];
        assert!(location["artifactLocation"]["uri"].as_str().is_some_and(|uri| uri.ends_with(".yaml")), "{result}");
        assert_eq!(location["region"], json!({"startLine": 1}), "which code scanning wants");
        assert!(result["message"]["text"].as_str().is_some_and(|text| text.contains("(standard input:")), "{result}");
    }
    let junit = elsewhere(&rendered(), &["-o", "junit"]);
    assert!(junit.contains("file=\"shop/templates/web.yaml\">") && !junit.contains("line="), "{junit}");
    let broken = rendered() + "---\n# Source: shop/templates/b.yaml\na: [\n";
    let annotations = elsewhere(&broken, &["-o", "github"]);
    assert!(
        annotations.contains(
            "::error file=shop/templates/b.yaml,title=portreeve::shop/templates/b.yaml (standard input:22:4): not YAML"
        ),
        "{annotations}"
    );
}

#[test]
fn a_file_that_was_rendered_before_has_lines_of_its_own() {
    let (_, rows, _) = lint(&[("rendered.yaml", &rendered())], &["rendered.yaml", "--no-headers"]);
    assert!(rows.starts_with("rendered.yaml:8:32: warning"), "{rows}");
    let (_, stdout, _) = lint(&[("rendered.yaml", &rendered())], &["rendered.yaml", "-o", "json"]);
    assert!(!stdout.contains("template"), "{stdout}");
}

#[test]
fn no_name_of_a_template_ends_a_line_or_a_property() {
    let text = rendered().replace("shop/templates/web.yaml", "a,b:c\u{202e}::error::x");
    let annotations = elsewhere(&text, &["-o", "github"]);
    assert!(annotations.contains("::error file=a%2Cb%3Ac"), "{annotations}");
    assert!(!annotations.contains('\u{202e}'), "{annotations}");
}
