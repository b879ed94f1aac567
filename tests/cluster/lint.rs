//! `lint --against cluster` compares manifests with the objects of an API server.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    api::{list, small},
    fake::{Fake, Reply},
    plugin::Plugin,
};

const WEB: &str = r#"{"metadata":{"name":"web","namespace":"shop","uid":"u1"},"spec":{"type":"NodePort",
    "clusterIP":"10.96.0.9","ports":[{"port":80,"nodePort":30080}]}}"#;

/// The Service of the API server, which every cluster has.
const API_SERVER: &str = r#"{"metadata":{"name":"kubernetes","namespace":"default","uid":"u0"},"spec":{"type":"ClusterIP",
    "clusterIP":"10.96.0.1","ports":[{"port":443}]}}"#;

fn manifest(name: &str) -> String {
    format!(
        "kind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{ports: [{{port: 80, nodePort: 30080}}], type: NodePort}}\n"
    )
}

fn lint(fake: &Fake, name: &str) -> (i32, String, String) {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("a.yaml");
    fs::write(&path, manifest(name)).expect("a file");
    Plugin::new().run(fake, &["lint", path.to_str().expect("UTF-8"), "--against", "cluster"])
}

#[test]
fn the_holder_of_the_number_is_named_and_an_update_is_no_conflict() {
    let fake = Fake::new(|path, _| match path.starts_with("/api/v1/services") {
        true => list("Service", &[API_SERVER, WEB]),
        false => small(path),
    });
    let (code, stdout, stderr) = lint(&fake, "api");
    assert_eq!((code, stderr.as_str()), (1, ""), "{stdout}");
    assert!(stdout.contains("a.yaml:3:37  WARNING  Service shop/api, port 30080/tcp"), "{stdout}");
    assert!(stdout.contains("is also nodePort of shop/web"), "{stdout}");
    assert!(stdout.contains("no Service has  30000, 30001, 30002"), "{stdout}");
    let (code, stdout, _) = lint(&fake, "web");
    assert_eq!(code, 0, "{stdout}");
    assert!(stdout.starts_with("manifests: no port conflicts in 1 object."), "{stdout}");
    let unread =
        "pod-waits-for-port/pod (Pods of a live cluster are not read: to compare with Pods, use --against with a file";
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(unread) && !words.contains("--node "), "{stdout}");
}

#[test]
fn an_object_without_a_namespace_is_in_the_namespace_of_the_context() {
    let fake = Fake::new(|path, _| match path.starts_with("/api/v1/services") {
        true => list("Service", &[API_SERVER, WEB]),
        false => small(path),
    });
    let directory = TempDir::new().expect("a directory");
    let [path, context] = ["a.yaml", "kubeconfig"].map(|name| directory.path().join(name));
    fs::write(&path, manifest("web").replace(", namespace: shop", "")).expect("a file");
    let kubeconfig = fs::read_to_string(fake.kubeconfig()).expect("a kubeconfig");
    fs::write(&context, kubeconfig.replace("user: u}}", "user: u, namespace: shop}}")).expect("a file");
    let [path, context] = [&path, &context].map(|it| it.to_str().expect("UTF-8"));
    let arguments = ["lint", path, "--against", "cluster", "--kubeconfig", context];
    let (code, stdout, _) = Plugin::new().run(&fake, &arguments);
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(code == 0 && words.contains("objects without a namespace are in shop"), "{code}: {stdout}");
    let (code, stdout, _) = Plugin::new().run(&fake, &[&arguments[..], &["--namespace", "default"]].concat());
    assert!(code == 1 && !stdout.contains("objects without a namespace"), "{code}: {stdout}");
    let (_, stdout, _) = Plugin::new().run(&fake, &[&arguments[..], &["--output", "json"]].concat());
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(document["namespace"], "shop");
    let looked_at = document["lookedAt"].as_str().expect("a time");
    assert!(looked_at.parse::<jiff::Timestamp>().is_ok(), "{looked_at}");
    assert!(document["against"].as_str().is_some_and(|it| !it.contains("objects")), "it is a name: {stdout}");
    let (_, stdout, _) = Plugin::new().run(&fake, &["lint", path, "--against", "cluster"]);
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("objects without a namespace are in default"), "the context has none: {stdout}");
    let plugin = Plugin::new();
    let piped = ["lint", path, "--against", "cluster", "--kubeconfig", "/dev/stdin", "--output", "json"];
    let mut command = plugin.command("kubectl-portreeve", &fake, &piped);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the binary runs");
    let kubeconfig = fs::read(context).expect("a kubeconfig");
    child.stdin.take().expect("a pipe").write_all(&kubeconfig).expect("the program reads");
    let output = child.wait_with_output().expect("the program ends");
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(document["namespace"], "shop", "a pipe is read once");
    let unread = String::from_utf8_lossy(&kubeconfig).replace("token: ", "tokenFile: /nowhere/");
    fs::write(context, unread).expect("a file");
    let (_, stdout, _) = Plugin::new().run(&fake, &[&arguments[..], &["--output", "json"]].concat());
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(document["namespace"], Value::Null, "the credentials were not read: {stdout}");
}

#[test]
fn a_cluster_that_may_not_be_read_is_reported() {
    let fake = Fake::new(|path, _| match path.starts_with("/api/v1/services") {
        true => Reply::Status(403, "services is forbidden"),
        false => small(path),
    });
    let (code, stdout, stderr) = lint(&fake, "api");
    assert_eq!(code, 2, "{stdout}");
    assert!(stdout.starts_with("manifests: some objects could not be judged"), "{stdout}");
    assert!(stderr.starts_with("error: ") && stderr.contains("403"), "{stderr}");
    assert!(stderr.ends_with(": nothing was compared with Services\n"), "{stderr}");
    // If the first request gets no answer, `lint` sends no other request.
    let fake = Fake::new(|path, _| match path.starts_with("/api/v1/nodes") {
        true => Reply::Hangup,
        false => small(path),
    });
    let (_, _, stderr) = lint(&fake, "api");
    assert!(stderr.ends_with(": nothing was compared with Services, Pods, Nodes\n"), "{stderr}");
    let fake = Fake::new(|_, _| Reply::Hangup);
    assert_eq!(lint(&fake, "api").0, 2);
}

/// The first code block of docs/lint.md that is in `language` and contains `words`.
fn example(language: &str, words: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/lint.md");
    let page = fs::read_to_string(page).expect("the page");
    let fence = format!("\n```{language}\n");
    let mut parts = page.split(&fence).skip(1).filter_map(|part| part.split("\n```").next());
    parts.find(|part| part.contains(words)).unwrap_or_else(|| panic!("no example has {words:?}")).to_owned()
}

/// Runs the post-renderer of docs/lint.md as Helm does. Returns the script's exit code and output.
fn post_render(fake: &Fake, rendered: &str, arguments: &[&str]) -> (i32, String) {
    let directory = TempDir::new().expect("a directory");
    symlink(env!("CARGO_BIN_EXE_portreeve"), directory.path().join("portreeve")).expect("a link");
    let temporary = directory.path().join("temporary");
    fs::create_dir(&temporary).expect("a folder");
    let script = directory.path().join("lint.sh");
    fs::write(&script, example("sh", "mktemp")).expect("a script");
    let mut child = Command::new("sh")
        .arg(&script)
        .args(arguments)
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", directory.path().display()))
        .env("KUBECONFIG", fake.kubeconfig())
        .env("TMPDIR", &temporary)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell");
    child.stdin.take().expect("a pipe").write_all(rendered.as_bytes()).expect("the program reads");
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(fs::read_dir(&temporary).expect("a folder").count(), 0, "no file is left");
    (output.status.code().expect("an exit code"), String::from_utf8(output.stdout).expect("UTF-8"))
}

#[test]
fn the_post_renderer_lets_an_upgrade_pass_and_ends_a_conflict() {
    let fake = Fake::new(|path, _| match path.starts_with("/api/v1/services") {
        true => list("Service", &[WEB]),
        false => small(path),
    });
    let without_namespace = |name: &str| manifest(name).replace(", namespace: shop", "");
    let upgrade = without_namespace("web");
    assert_eq!(post_render(&fake, &upgrade, &["--namespace=shop"]), (0, upgrade.clone()));
    let other = without_namespace("api");
    assert_eq!(post_render(&fake, &other, &["--namespace=shop"]), (1, String::new()));
    assert_eq!(post_render(&fake, &upgrade, &[]).0, 1, "as documented for a missing namespace");
    let free = other.replace("30080", "30081");
    assert_eq!(post_render(&fake, &free, &["--namespace=shop"]), (0, free.clone()));
}

#[test]
fn the_job_of_the_documents_needs_no_more_than_its_role_and_its_config_map() {
    let objects: Vec<Value> = serde_saphyr::from_multiple(&example("yaml", "kind: ClusterRoleBinding")).expect("YAML");
    let of_kind = |kind: &str| objects.iter().find(|it| it["kind"] == kind).expect("the object");
    let rule = &of_kind("ClusterRole")["rules"][0];
    assert_eq!((&rule["apiGroups"][0], &rule["verbs"]), (&Value::from(""), &serde_json::json!(["list"])));
    let allowed: Vec<String> = rule["resources"]
        .as_array()
        .expect("resources")
        .iter()
        .map(|it| format!("/api/v1/{}", it.as_str().expect("a name")))
        .collect();
    let fake = Fake::new(move |path, _| {
        let of = path.split('?').next().unwrap_or_default();
        match allowed.iter().any(|it| it == of) {
            true if of.ends_with("services") => list("Service", &[WEB]),
            true => small(path),
            false => Reply::Status(403, "forbidden"),
        }
    });
    let directory = TempDir::new().expect("a directory");
    fs::write(directory.path().join("web.yaml"), manifest("web").replace(", namespace: shop", "")).expect("a file");
    let arguments = &of_kind("Job")["spec"]["template"]["spec"]["containers"][0]["args"];
    let folder = directory.path().to_str().expect("UTF-8");
    let words: Vec<&str> =
        arguments.as_array().expect("arguments").iter().map(|it| it.as_str().expect("a word")).collect();
    let words: Vec<&str> = words.into_iter().map(|word| if word == "/manifests" { folder } else { word }).collect();
    let (code, stdout, stderr) = Plugin::new().run(&fake, &words);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    fs::write(directory.path().join("api.yaml"), manifest("api")).expect("a file");
    assert_eq!(Plugin::new().run(&fake, &words).0, 1);
}
