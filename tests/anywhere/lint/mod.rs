//! `lint` as people and pipelines use it. The tests cover each rule, the place of each field, every form of output, and
//! every kind of input.

mod accepted;
mod against;
mod charts;
mod examples;
mod fast;
mod forms;
mod helm;
mod inputs;
mod refused;
mod rules;
pub(crate) mod sarif;

use crate::named::{is_of, name};
use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::cli::{binary, ended};

pub(crate) fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().expect("a directory");
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    folder
}

/// Exit code, standard output and standard error of `lint` in a folder with these files.
pub(crate) fn lint(files: &[(&str, &str)], arguments: &[&str]) -> (i32, String, String) {
    let folder = folder(files);
    ended(binary().current_dir(folder.path()).arg("lint").args(arguments))
}

/// The findings of `lint` in one file, one per line: `12:5 warning node-port-claimed-twice/refused Service shop/web
/// 30080/tcp`. Fails if an input was not read, or if the exit code does not fit the findings.
#[track_caller]
pub(crate) fn found(manifest: &str, arguments: &[&str]) -> Vec<String> {
    let (code, stdout, stderr) = lint(&[("a.yaml", manifest)], &[&["a.yaml", "-o", "json"], arguments].concat());
    let document: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
    assert_eq!(document["failures"], Value::Array(Vec::new()), "{manifest}");
    let findings = document["findings"].as_array().expect("findings");
    let counts = findings.iter().any(|it| it["severity"] != "info");
    assert_eq!(code, i32::from(counts), "{stdout}{stderr}");
    findings.iter().map(line).collect()
}

fn line(finding: &Value) -> String {
    let word = |key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let port = finding["port"].as_u64().map(|port| format!(" {port}/{}", word("protocol"))).unwrap_or_default();
    let place = format!("{}:{}", finding["line"], finding["column"]);
    format!("{place} {} {} {}{port}", word("severity"), name(finding), word("object"))
}

#[track_caller]
pub(crate) fn sentence(manifest: &str, rule: &str, arguments: &[&str]) -> String {
    let (_, stdout, _) = lint(&[("a.yaml", manifest)], &[&["a.yaml", "-o", "json"], arguments].concat());
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    let findings = document["findings"].as_array().expect("findings");
    let of_rule: Vec<&Value> = findings.iter().filter(|it| is_of(it, rule)).collect();
    let [finding] = of_rule[..] else { panic!("not one finding of {rule}: {stdout}") };
    finding["summary"].as_str().expect("a sentence").to_owned()
}

/// A Service on lines 1 to 6. The first port is on line 6, and its nodePort begins at column 27.
pub(crate) fn service(name: &str, port: &str) -> String {
    let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  type: NodePort\n  \
         ports: [{{port: 80, {port}}}]\n---\n"
    )
}

/// A workload on lines 1 to 5. The spec of the pods is on line 5.
pub(crate) fn workload(kind: &str, name: &str, replicas: &str, pods: &str) -> String {
    let group = match kind {
        "Job" | "CronJob" => "batch/v1",
        "ReplicationController" => "v1",
        _ => "apps/v1",
    };
    format!(
        "apiVersion: {group}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n  \
         {{{replicas}template: {{spec: {{{pods}}}}}}}\n---\n"
    )
}

pub(crate) fn containers(port: &str) -> String {
    format!("containers: [{{ports: [{{{port}}}]}}]")
}

/// A manifest with two warnings and one finding of severity info.
pub(crate) fn manifest() -> String {
    let daemon = format!("hostNetwork: true, {}", containers("containerPort: 9100"));
    service("shop/web", "nodePort: 30080")
        + &service("api", "nodePort: 30080")
        + &workload("DaemonSet", "exporter", "", &daemon)
}
