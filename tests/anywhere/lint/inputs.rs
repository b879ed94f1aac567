//! What is read: every kind, files and folders, standard input, JSON, Lists, and documents that are broken.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    os::unix::fs::symlink,
    process::{Output, Stdio},
};

use nix::{sys::stat::Mode, unistd::mkfifo};
use serde_json::Value;

use super::{containers, folder, found, lint, service, workload};
use crate::{
    cli::{binary, ended},
    manifests::as_json,
};

const IN_RANGE: &str = "containerPort: 80, hostPort: 31000";

#[test]
fn every_kind_with_pods_is_read() {
    for kind in ["DaemonSet", "Deployment", "StatefulSet", "ReplicaSet", "ReplicationController", "Job"] {
        let lines = found(&workload(kind, "x", "", &containers(IN_RANGE)), &[]);
        assert_eq!(lines, [format!("5:74 warning pod-port-in-node-port-range {kind} default/x 31000/tcp")]);
    }
    let pod = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: x}}\nspec: {{{}}}\n", containers(IN_RANGE));
    assert_eq!(found(&pod, &[]), ["4:60 warning pod-port-in-node-port-range Pod default/x 31000/tcp"]);
    let cron = format!(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{generateName: x-}}\nspec: {{jobTemplate: {{spec: {{template: \
         {{spec: {{{}}}}}}}}}}}\n",
        containers(IN_RANGE)
    );
    let lines = found(&cron, &[]);
    assert!(lines[0].ends_with("warning pod-port-in-node-port-range CronJob default/x 31000/tcp"), "{lines:?}");
    let stays = format!("initContainers: [{{restartPolicy: Always, ports: [{{{IN_RANGE}}}]}}]");
    assert_eq!(found(&workload("Deployment", "x", "", &stays), &[]).len(), 1);
    assert!(found(&workload("Deployment", "x", "", &stays.replace("Always", "Never")), &[]).is_empty());
}

#[test]
fn what_a_controller_made_is_told_of_the_controller_alone() {
    let set = workload("ReplicaSet", "x-7d9", "", &containers(IN_RANGE));
    let owned =
        set.replace("{name: x-7d9}", "{name: x-7d9, ownerReferences: [{kind: Deployment, name: x, controller: true}]}");
    assert_eq!(found(&set, &[]).len(), 1);
    assert!(found(&owned, &[]).is_empty());
}

#[test]
fn a_folder_is_read_with_what_is_below_it() {
    let web = service("web", "nodePort: 30080");
    let files = [
        ("deploy/a.yaml", web.as_str()),
        ("deploy/below/b.yml", &service("api", "nodePort: 30080")),
        ("deploy/c.json", &as_json(service("dns", "nodePort: 30080").trim_end_matches("---\n"))),
        ("deploy/notes.md", "no manifest: ["),
        ("deploy/.git/d.yaml", "no manifest: ["),
    ];
    let (code, stdout, stderr) = lint(&files, &["deploy", "--no-headers"]);
    assert_eq!((code, stderr.as_str()), (1, ""), "{stdout}");
    let places: Vec<&str> = stdout.lines().filter_map(|line| line.split(": ").next()).collect();
    assert_eq!(places, ["deploy/a.yaml:6:32", "deploy/below/b.yml:6:32", "deploy/c.json:11:21"], "{stdout}");
    let (code, stdout, _) = lint(&files, &[".", "-o", "github"]);
    assert_eq!(code, 1);
    assert!(stdout.starts_with("::warning file=deploy/a.yaml,line=6,col=32,"), "{stdout}");
    let (code, _, stderr) = lint(&[("a/b.txt", "")], &["a"]);
    assert_eq!(code, 2);
    assert_eq!(stderr, "error: a: holds no file *.yaml, *.yml or *.json\n");
    let (code, _, stderr) = lint(&[], &["nowhere.yaml"]);
    assert_eq!(code, 2);
    assert!(stderr.starts_with("error: nowhere.yaml: cannot be read: No such file"), "{stderr}");
}

#[test]
fn a_pipe_is_read_where_it_is_named_and_keeps_nobody_waiting_in_a_folder() {
    let files = folder(&[("deploy/a.yaml", &service("web", "nodePort: 40000"))]);
    let pipe = files.path().join("deploy/b.yaml");
    mkfifo(&pipe, Mode::S_IRWXU).expect("a pipe");
    // Somebody keeps it open and never writes.
    let _writer = OpenOptions::new().read(true).write(true).open(&pipe).expect("a pipe");
    let (code, stdout, stderr) = ended(binary().current_dir(files.path()).args(["lint", "deploy", "--no-headers"]));
    assert_eq!(code, 1, "{stdout}{stderr}");
    assert!(stderr.starts_with("error: deploy/b.yaml: cannot be read: ") && stderr.lines().count() == 1, "{stderr}");

    let text = service("web", "nodePort: 40000");
    let mut command = binary();
    let child = command.args(["lint", "/dev/stdin", "--no-headers"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.spawn().expect("portreeve runs");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("/dev/stdin:6:32: warning"), "{output:?}");
}

#[test]
fn a_mounted_config_map_is_read_once() {
    let files = folder(&[("..2026/a.yaml", &service("web", "nodePort: 40000"))]);
    symlink("..2026", files.path().join("..data")).expect("a link");
    symlink("..data/a.yaml", files.path().join("a.yaml")).expect("a link");
    let (code, stdout, stderr) = ended(binary().current_dir(files.path()).args(["lint", ".", "--no-headers"]));
    assert_eq!((code, stderr.as_str()), (1, ""), "{stdout}");
    assert!(stdout.lines().count() == 1 && stdout.starts_with("a.yaml:6:32: "), "{stdout}");
}

#[test]
fn standard_input_is_read() {
    let files = folder(&[("rendered", &(service("web", "nodePort: 30080") + &service("b", "nodePort: 30080")))]);
    let rendered = File::open(files.path().join("rendered")).expect("a file");
    let output: Output =
        binary().args(["lint", "-", "--no-headers"]).stdin(Stdio::from(rendered)).output().expect("portreeve runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("standard input:6:32: warning: nodePort 30080/tcp of default/web"), "{text}");
    // What renders them failed.
    let output = binary().args(["lint", "-"]).output().expect("portreeve runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: standard input: holds nothing, wanted"));
}

#[test]
fn lists_and_json_have_places_too() {
    let list = "kind: List\napiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: a}\n  \
                spec: {ports: [{port: 80, nodePort: 40000}], type: NodePort}\n- kind: List\n  items:\n  - kind: Service\n    \
                metadata: {name: b}\n    spec: {ports: [{port: 80, nodePort: 40000}], type: NodePort}\n";
    let places = |text: &str| {
        let lines = found(text, &[]);
        let outside = lines.iter().filter(|line| line.contains("node-port-outside-range"));
        outside.map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(places(list), ["7:39", "12:41"]);
    assert_eq!(places(&as_json(list)).len(), 2);
    assert_eq!(places(&as_json(list).replace("  ", "\t")).len(), 2, "tabs");
    let of_kind = "kind: ServiceList\nitems: [{metadata: {name: a}, spec: {ports: [{port: 80, nodePort: 40000}], type: NodePort}}]\n";
    assert_eq!(places(of_kind), ["2:67"]);
    assert_eq!(places(&list.replace('\n', "\r\n")), ["7:39", "12:41"]);
    assert_eq!(places(&format!("\u{feff}{list}")), ["7:39", "12:41"]);
    let text = format!("# comment\n---\n# another\n---\n{}", service("web", "nodePort: 40000"));
    assert_eq!(places(&text), ["10:32"]);
    let alias = "port: &p 40000\nkind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {ports: [{port: 80, nodePort: *p}], type: NodePort}\n";
    assert_eq!(places(alias), ["5:37"], "where it is used");
}

#[test]
fn other_kinds_are_skipped_and_counted() {
    let text = "kind: ConfigMap\napiVersion: v1\n---\nkind: Service\napiVersion: serving.knative.dev/v1\nmetadata: \
                {name: a}\nspec: {ports: 5}\n---\nreplicaCount: 3\n---\nkind: ConfigMap\napiVersion: v1\n";
    let (code, stdout, stderr) = lint(&[("values.yaml", text)], &["values.yaml", "-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((code, &document["objects"]), (0, &Value::from(0)));
    let skipped = serde_json::json!({"": 1, "ConfigMap": 2, "Service.serving.knative.dev": 1});
    assert_eq!(document["skipped"], skipped);
    assert_eq!(stderr, "no object was judged: none is a Service, a Pod or has the template of one\n");
    let (_, stdout, _) = lint(&[("values.yaml", text)], &["values.yaml"]);
    assert!(stdout.contains("4: 2 ConfigMap, 1 documents without a kind, 1 Service.serving.knative.dev"), "{stdout}");
}

#[test]
fn a_broken_document_loses_nothing_of_the_others() {
    let broken = "a: [\n---\n".to_owned() + &service("web", "nodePort: 40000") + "a: }\n";
    let (code, stdout, stderr) = lint(&[("a.yaml", &broken)], &["a.yaml", "--no-headers"]);
    assert_eq!(code, 1);
    assert!(stdout.starts_with("a.yaml:8:32: warning: nodePort 40000/tcp"), "{stdout}");
    assert_eq!(stderr.lines().count(), 2, "each, as no row names one: {stderr}");
    assert!(stderr.starts_with("error: a.yaml:1:4: not YAML: unclosed bracket"), "{stderr}");
    let (_, stdout, stderr) = lint(&[("a.yaml", &broken)], &["a.yaml"]);
    assert_eq!(stdout.matches("not read ").count(), 2, "{stdout}");
    assert_eq!(stderr.lines().count(), 1);
    assert!(stderr.trim_end().ends_with("have to be rendered first (and 1 more)"), "{stderr}");
    let (code, _, stderr) = lint(&[("a.yaml", "kind: Service\nmetadata: {name: a}\nspec: {ports: 5}\n")], &["a.yaml"]);
    assert_eq!(code, 2, "{stderr}");
    assert_eq!(stderr, "error: a.yaml:1:1: Service a: spec.ports is 5, wanted a list\n");
}

#[test]
fn what_could_not_be_read_whole_is_not_counted_as_judged_and_the_rest_of_it_is_judged() {
    let wrong = ["\"30081\"", "70000", "-1", "true"].map(|it| service("wrong", &format!("nodePort: {it}"))).concat();
    let half = service("half", "nodePort: 40000}, {name: b, port: 81, nodePort: \"30081\"");
    let text =
        wrong + &half + &service("web", "nodePort: 30080") + "kind: Service\nmetadata: {name: Web_1}\nspec: {}\n";
    let (code, stdout, stderr) = lint(&[("a.yaml", &text)], &["a.yaml", "-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    assert_eq!((code, &document["objects"]), (1, &Value::from(1)), "{stdout}");
    assert_eq!(document["failures"].as_array().map(Vec::len), Some(6), "{stdout}");
    assert_eq!(document["findings"][0]["object"], "Service default/half", "{stdout}");
}

#[test]
fn an_object_that_is_there_again_is_counted() {
    let again = |text: &str| {
        let (_, stdout, _) = lint(&[("a.yaml", text)], &["a.yaml", "-o", "json"]);
        let document: Value = serde_json::from_str(&stdout).expect("JSON");
        document["again"].clone()
    };
    let web = service("web", "nodePort: 30080");
    let twice = web.clone() + &service("web", "nodePort: 30081");
    assert_eq!(again(&twice), 1);
    assert_eq!(again(&(web.clone() + &service("shop/web", "nodePort: 30081"))), 0);
    // Two of one generated name are two objects.
    assert_eq!(again(&twice.replace("{name: web", "{generateName: web-")), 0);
    let (_, stdout, _) = lint(&[("a.yaml", &twice)], &["a.yaml"]);
    let row = "the same again   1 objects of a name that was there already; --namespace tells them apart";
    assert!(stdout.contains(row), "{stdout}");
    let (_, stdout, _) = lint(&[("a.yaml", &web)], &["a.yaml"]);
    assert!(!stdout.contains("the same again"), "{stdout}");
}

#[test]
fn a_file_has_one_name_whatever_way_leads_to_it() {
    let web = service("web", "nodePort: 40000");
    let files = folder(&[("a/x.yaml", &web), ("b/c/x.yaml", &web), ("b/x.yaml", &web)]);
    let place = |path: &str| {
        let (_, stdout, stderr) =
            ended(binary().current_dir(files.path()).args(["lint", path, "--no-headers", "--exit-zero"]));
        stdout.split(": ").next().map_or(stderr, str::to_owned)
    };
    let whole = files.path().canonicalize().expect("a folder").join("a/x.yaml");
    for path in
        ["a/x.yaml", "a//./x.yaml", "./a/x.yaml", "b/../a/x.yaml", "./b/./../a//x.yaml", whole.to_str().expect("UTF-8")]
    {
        assert_eq!(place(path), "a/x.yaml:6:32", "{path}");
    }
    assert_eq!(place("b/../a/"), "a/x.yaml:6:32");
    // Beyond a link the same detour leads elsewhere.
    symlink("b/c", files.path().join("link")).expect("a link");
    assert_eq!(place("link/../x.yaml"), "link/../x.yaml:6:32");
}

#[test]
fn an_object_without_a_namespace_goes_where_it_is_sent() {
    let text = service("web", "nodePort: 40000").replace(", namespace: default", "");
    assert!(found(&text, &["--namespace", "shop"])[0].contains("Service shop/web"));
    assert!(found(&text, &[])[0].contains("Service default/web"));
    let (code, _, stderr) = lint(&[("a.yaml", &text)], &["a.yaml", "-n", "--all"]);
    assert_eq!(code, 64, "{stderr}");
}
