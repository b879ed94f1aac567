//! `lint --against cluster`: manifests next to what an API server has.

use std::fs;

use tempfile::TempDir;

use crate::{
    api::{list, small},
    fake::{Fake, Reply},
    plugin::Plugin,
};

const WEB: &str = r#"{"metadata":{"name":"web","namespace":"shop","uid":"u1"},"spec":{"type":"NodePort",
    "clusterIP":"10.96.0.9","ports":[{"port":80,"nodePort":30080}]}}"#;

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
fn who_has_the_number_is_named_and_an_update_is_no_conflict() {
    let fake = Fake::new(|path, _| match path.starts_with("/api/v1/services") {
        true => list("Service", &[WEB]),
        false => small(path),
    });
    let (code, stdout, stderr) = lint(&fake, "api");
    assert_eq!((code, stderr.as_str()), (1, ""), "{stdout}");
    assert!(stdout.contains("a.yaml:3:37  WARNING  Service shop/api, port 30080/tcp"), "{stdout}");
    assert!(stdout.contains("is also nodePort of shop/web"), "{stdout}");
    assert!(stdout.contains("free  30000, 30001, 30002"), "{stdout}");
    let (code, stdout, _) = lint(&fake, "web");
    assert_eq!(code, 0, "{stdout}");
    assert!(stdout.starts_with("manifests: no port conflicts."), "{stdout}");
}

#[test]
fn a_cluster_that_may_not_be_read_is_no_silence() {
    let fake = Fake::new(|path, _| match path.starts_with("/api/v1/services") {
        true => Reply::Status(403, "services is forbidden"),
        false => small(path),
    });
    let (code, stdout, stderr) = lint(&fake, "api");
    assert_eq!(code, 2, "{stdout}");
    assert!(stdout.starts_with("manifests: could not all be read"), "{stdout}");
    assert!(stderr.starts_with("error: ") && stderr.contains("403"), "{stderr}");
    assert!(stderr.ends_with("; so nothing is compared with Services\n"), "{stderr}");
    // What is asked first is silent, so nothing else is asked.
    let fake = Fake::new(|path, _| match path.starts_with("/api/v1/nodes") {
        true => Reply::Hangup,
        false => small(path),
    });
    let (_, _, stderr) = lint(&fake, "api");
    assert!(stderr.ends_with("; so nothing is compared with Services, Pods, Nodes\n"), "{stderr}");
    let fake = Fake::new(|_, _| Reply::Hangup);
    assert_eq!(lint(&fake, "api").0, 2);
}
