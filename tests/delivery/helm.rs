//! Runs the real helm.

use std::process::Command;

use serde_json::Value;

use crate::{names::name, programs};

/// The version of Kubernetes that `make lab` builds. The committed manifest is made for the same version.
const KUBERNETES: &str = "--kube-version=1.36.3";

pub(crate) fn try_render(settings: &[&str]) -> Result<String, String> {
    let image = image();
    let values =
        [image.as_str()].into_iter().chain(settings.iter().copied()).flat_map(|setting| ["--set-json", setting]);
    let fixed = ["template", "portreeve", "deploy/chart", "--namespace=portreeve", KUBERNETES];
    run(fixed.into_iter().chain(values))
}

/// The setting that the chart needs and that its default values lack.
pub(crate) fn image() -> String {
    format!("image.repository={:?}", name("REGISTRY"))
}

#[track_caller]
pub(crate) fn render(settings: &[&str]) -> String {
    try_render(settings).unwrap_or_else(|error| panic!("{settings:?}: {error}"))
}

#[track_caller]
pub(crate) fn objects(manifest: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(manifest).unwrap_or_else(|error| panic!("{error}\n{manifest}"))
}

#[track_caller]
pub(crate) fn object(kind: &str, settings: &[&str]) -> Value {
    let mut found = objects(&render(settings)).into_iter().filter(|object| object["kind"] == kind);
    let object = found.next().unwrap_or_else(|| panic!("no {kind} with {settings:?}"));
    assert!(found.next().is_none(), "more than one {kind} with {settings:?}");
    object
}

pub(crate) fn run<'a>(arguments: impl Iterator<Item = &'a str>) -> Result<String, String> {
    let program = programs::find("helm");
    let output = Command::new(&program)
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("KUBECONFIG")
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("helm speaks UTF-8");
    match output.status.success() {
        true => Ok(text(output.stdout)),
        false => Err(text(output.stdout) + &text(output.stderr)),
    }
}
