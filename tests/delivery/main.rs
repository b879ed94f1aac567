//! The parts that users get: the chart and the manifest as the real helm renders them, the image as buildah builds it,
//! and a release. The tests also check the workflows of the forge.

#![allow(clippy::disallowed_methods, reason = "tests read the package's own files and run helm and buildah")]

mod chart;
mod config;
mod forge;
mod generated;
mod guard;
mod helm;
mod image;
mod install;
mod lint;
#[allow(unreachable_pub, reason = "the lab's, too")]
mod maker;
mod monitoring;
mod names;
#[path = "../cluster/permissions.rs"]
#[allow(unreachable_pub, reason = "other test programs use it, too")]
mod permissions;
#[path = "../lab/parts/programs.rs"]
#[allow(unreachable_pub, reason = "the lab's own")]
mod programs;
mod rbac;
mod readme;
mod release;
mod skew;
mod tried;

fn text(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn listed(pattern: &str) -> String {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    maker::successful("git", &maker::command("git", &["ls-files", pattern], root).output().expect("git"))
}
