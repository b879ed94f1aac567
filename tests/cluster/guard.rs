//! The requests of a guard to the API server.

use std::{
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{fake::Fake, watch::calm};

const SOON: Duration = Duration::from_secs(60);

/// The durations that a guard requests for its watches of Services and Pods, in seconds.
fn watch_durations(bind: &str) -> [u64; 2] {
    let fake = Fake::new(|path, _| calm(path));
    let directory = TempDir::new().expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_portreeve"));
    command.env_clear().env("HOME", directory.path()).env("KUBECONFIG", fake.kubeconfig());
    command.args(["guard", "--node", "n1", "--proxy-mode", "iptables", bind]);
    // This directory has no list of reserved ports, so the guard reserves nothing.
    command.arg("--sysctls").arg(directory.path()).arg("--state").arg(directory.path().join("guard.json"));
    let mut guard = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("portreeve runs");
    let duration_of = |resource: &str| -> Option<u64> {
        let watch = format!("/api/v1/{resource}?watch=1");
        let requests = fake.requests();
        let (_, rest) = requests.iter().find(|path| path.starts_with(&watch))?.split_once("timeoutSeconds=")?;
        rest.split('&').next()?.parse().ok()
    };
    let (end, mut durations) = (Instant::now() + SOON, None);
    while durations.is_none() && Instant::now() < end {
        sleep(Duration::from_millis(20));
        durations = duration_of("services").zip(duration_of("pods"));
    }
    drop(guard.kill());
    drop(guard.wait());
    durations.map(|(services, pods)| [services, pods]).expect("both watches")
}

#[test]
fn the_watches_of_a_guard_that_refuses_binds_end_within_half_of_the_default_of_stale() {
    let usual = watch_durations("--bind=report");
    assert!(usual.iter().all(|seconds| (300..=600).contains(seconds)), "{usual:?}");
    let short = watch_durations("--bind=refuse");
    assert!(short.iter().all(|seconds| (15..=30).contains(seconds)), "{short:?}");
}
