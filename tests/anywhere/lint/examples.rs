//! The examples of docs/lint.md. Each example is correct, and a test runs it as far as possible without a cluster.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use serde_json::Value;

use super::{folder, lint, service};
use crate::cli::ended;

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/lint.md");
    fs::read_to_string(path).expect("the page")
}

fn examples(page: &str, language: &str) -> Vec<String> {
    let fence = format!("\n```{language}\n");
    let parts = page.split(&fence).skip(1);
    parts.map(|part| part.split("\n```").next().expect("a part").to_owned() + "\n").collect()
}

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The only example of docs/lint.md in this language that contains these words.
#[track_caller]
fn example(language: &str, words: &str) -> String {
    let mut found = examples(&page(), language).into_iter().filter(|it| it.contains(words));
    let (Some(only), None) = (found.next(), found.next()) else { panic!("not one example has {words:?}") };
    only
}

#[test]
fn every_example_is_yaml_or_a_script() {
    let (yaml, scripts) = (examples(&page(), "yaml"), examples(&page(), "sh"));
    assert!(yaml.len() >= 7 && scripts.len() >= 4, "{} and {}", yaml.len(), scripts.len());
    for text in yaml {
        assert!(documents(&text).iter().all(|it| it.is_object() || it.is_array()), "{text}");
    }
    for text in scripts {
        let output = Command::new("sh").args(["-n", "-c", &text]).output().expect("a shell");
        assert!(output.status.success(), "{text}{output:?}");
    }
}

#[test]
fn the_example_of_an_annotation_accepts_what_it_names() {
    let text = example("yaml", "portreeve/accept: ");
    let (code, stdout, _) = lint(&[("a.yaml", &text)], &["a.yaml", "-o", "json", "--min-severity", "info"]);
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((code, &document["accepted"]), (0, &Value::from(1)), "{stdout}");
}

#[test]
fn a_job_of_argo_cd_finds_all_that_it_names_in_an_earlier_wave() {
    let objects = documents(&example("yaml", "kind: ClusterRoleBinding"));
    let of_kind = |kind: &str| objects.iter().find(|it| it["kind"] == kind).unwrap_or_else(|| panic!("{kind}"));
    let generator = documents(&example("yaml", "configMapGenerator:")).remove(0);
    let map = &generator["configMapGenerator"][0];
    let hook = |object: &Value| object["annotations"]["argocd.argoproj.io/hook"].clone();
    for earlier in [
        &map["options"],
        &of_kind("ServiceAccount")["metadata"],
        &of_kind("ClusterRole")["metadata"],
        &of_kind("ClusterRoleBinding")["metadata"],
    ] {
        assert_eq!(hook(earlier), "PreSync");
        assert_eq!(earlier["annotations"]["argocd.argoproj.io/sync-wave"], "-1", "{earlier}");
    }
    let job = of_kind("Job");
    assert_eq!(hook(&job["metadata"]), "PreSync");
    let pods = &job["spec"]["template"]["spec"];
    let account = of_kind("ServiceAccount");
    let subject = &of_kind("ClusterRoleBinding")["subjects"][0];
    for name in [&pods["serviceAccountName"], &subject["name"]] {
        assert_eq!(name, &account["metadata"]["name"]);
    }
    for namespace in [&subject["namespace"], &job["metadata"]["namespace"], &map["namespace"]] {
        assert_eq!(namespace, &account["metadata"]["namespace"]);
    }
    assert_eq!(of_kind("ClusterRoleBinding")["roleRef"]["name"], of_kind("ClusterRole")["metadata"]["name"]);
    assert_eq!(pods["volumes"][0]["configMap"]["name"], map["name"]);
    assert_eq!(pods["volumes"][0]["name"], pods["containers"][0]["volumeMounts"][0]["name"]);
    assert_eq!(pods["containers"][0]["args"][1], pods["containers"][0]["volumeMounts"][0]["mountPath"]);
}

/// Runs a script in which `portreeve` is this binary, and `program` prints the manifest. If `wrong` is not 0, call
/// number `wrong` of `program` fails. Returns the exit code, standard output and standard error of the script.
fn run(script: &str, program: &str, manifest: &str, wrong: usize) -> (i32, String, String) {
    let other = format!(
        "#!/bin/sh\ncd \"$(dirname \"$0\")\"\necho called >> calls\n\
         if [ \"$(wc -l < calls)\" -eq {wrong} ]; then exit 1; fi\ncat manifest.yaml\n"
    );
    let files = folder(&[("bin/manifest.yaml", manifest), ("bin/other", &other)]);
    let bin = files.path().join("bin");
    fs::set_permissions(bin.join("other"), fs::Permissions::from_mode(0o755)).expect("a file of this test");
    fs::rename(bin.join("other"), bin.join(program)).expect("a file of this test");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_portreeve"), bin.join("portreeve")).expect("a link");
    let path = format!("{}:/usr/bin:/bin", bin.display());
    ended(Command::new("bash").args(["-c", script]).env("PATH", path).current_dir(files.path()))
}

#[test]
fn pipes_of_helm_and_flux_judge_what_they_render() {
    let web = service("web", "nodePort: 40000");
    let step = documents(&example("yaml", "-o github\n- run: |")).remove(0)[1]["run"].clone();
    for (script, program) in [
        (example("sh", "helm template api"), "helm"),
        (example("sh", "flux build"), "flux"),
        (step.as_str().expect("a script").to_owned(), "helm"),
    ] {
        let (code, stdout, stderr) = run(&script, program, &web, 0);
        assert!(code == 1 && stdout.contains("nodePort 40000/tcp"), "{script}{stdout}{stderr}");
        assert_eq!(run(&script, program, "", 0).0, 2, "nothing was rendered: {script}");
        // The manifest has no conflict, but the program that rendered it failed.
        let sound = service("web", "nodePort: 30080");
        assert_eq!(run(&script, program, &sound, 0).0, 0, "{script}");
        for call in 1..=script.matches(&format!("{program} ")).count() {
            assert_ne!(run(&script, program, &sound, call).0, 0, "{program} failed at call {call}: {script}");
        }
    }
}

fn hides_a_failure(script: &str) -> bool {
    let pipes = |line: &str| line.split_once("| portreeve lint").is_some();
    let mut lines = script.lines().skip_while(|line| !line.contains("set -o pipefail"));
    script.lines().any(pipes) && !lines.any(pipes)
}

#[test]
fn a_pipe_into_lint_fails_where_what_renders_does() {
    assert!(hides_a_failure("helm template a | portreeve lint -"));
    assert!(hides_a_failure("helm template a | portreeve lint -\nset -o pipefail"));
    assert!(!hides_a_failure("set -o pipefail\nhelm template a | portreeve lint -"));
    let pages = ["docs/lint.md", "docs/faq.md", "docs/kubectl.md", "docs/install.md", "README.md"];
    let pages = pages.map(|it| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(it)).expect("a page"));
    let scripts: Vec<String> =
        pages.iter().flat_map(|page| ["sh", "yaml"].map(|it| examples(page, it))).flatten().collect();
    assert!(scripts.iter().filter(|it| it.contains("| portreeve lint")).count() >= 3, "the examples of docs/lint.md");
    for script in scripts {
        assert!(!hides_a_failure(&script), "no `set -o pipefail` before the pipe:\n{script}");
    }
}

#[test]
fn every_rule_of_manifests_has_its_row_and_its_page() {
    let page = page();
    for rows in portreeve_rules::lint::lint_rules() {
        let row = format!("| [`{0}`](rules/{0}.md) | ", rows.rule);
        assert!(page.contains(&row), "docs/lint.md has no row {row}");
    }
}
