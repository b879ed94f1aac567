//! The files of an agent are broken or missing, or kubelet replaces them as files of a ConfigMap.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use super::{Incident, MODE, SQUATTED, finds_it};
use crate::{
    agent::{Agent, wait_for},
    stage::{Stage, portreeve},
};

fn manifest() -> String {
    fs::read_to_string(super::web().manifest()).expect("a manifest")
}

/// A volume of a ConfigMap, as kubelet makes it. Each file is a link into `..data`, and `..data` is a link to the
/// folder of one version.
struct ConfigMap {
    path: PathBuf,
    versions: u32,
}

impl ConfigMap {
    fn with(path: PathBuf, file: &str, text: &str) -> Self {
        fs::create_dir(&path).expect("a directory");
        let mut made = Self { path, versions: 0 };
        made.set(file, text);
        symlink(Path::new("..data").join(file), made.path.join(file)).expect("a link");
        made
    }

    fn set(&mut self, file: &str, text: &str) {
        let version = |number: u32| format!("..version-{number}");
        let before = self.path.join(version(self.versions));
        self.versions += 1;
        let next = self.path.join(version(self.versions));
        fs::create_dir(&next).expect("a directory");
        fs::write(next.join(file), text).expect("a file");
        symlink(version(self.versions), self.path.join("..data_tmp")).expect("a link");
        fs::rename(self.path.join("..data_tmp"), self.path.join("..data")).expect("a swap");
        if self.versions > 1 {
            fs::remove_dir_all(before).expect("the version before");
        }
    }
}

#[track_caller]
fn incident(services: &Path) -> Incident {
    let stage = Stage::new();
    let mut command = portreeve();
    command.arg("agent").arg("--services").arg(services).args(["--node", "n1"]);
    let agent = Agent::of(command, &stage, &MODE);
    Incident::with(agent, stage)
}

/// Writes `text` into the file of cluster facts, or removes the file, and then repairs the file. The agent must keep
/// its finding.
#[track_caller]
fn is_held_through(text: Option<&str>) {
    let directory = tempfile::TempDir::new().expect("a directory");
    let path = directory.path().join("cluster.yaml");
    let good = manifest();
    fs::write(&path, &good).expect("a file");
    let incident = incident(&path);
    match text {
        Some(text) => fs::write(&path, text).expect("a file"),
        None => fs::remove_file(&path).expect("the file exists"),
    }
    let down = "portreeve_source_up{source=\"services\"} 0";
    wait_for("/metrics", |text| text.contains(down));
    assert!(finds_it(), "a known finding stays");
    fs::write(&path, &good).expect("a file");
    wait_for("/metrics", |text| !text.contains(down));
    assert!(finds_it());
    drop(incident.squatter);
    wait_for("/metrics", |text| !text.contains(SQUATTED));
}

/// Fault (disk): the file of Services ends in the middle of an object
/// Does: `portreeve_source_up` is 0; known findings stay open
/// Right again: when the file is complete
/// Lost: nothing
#[test]
fn a_file_of_services_that_is_cut_off_keeps_known_findings() {
    let good = manifest();
    is_held_through(Some(good.split_at(good.find("nodePort").expect("a port")).0));
}

/// Fault (disk): the file of Services has other content
/// Does: `portreeve_source_up` is 0; known findings stay open
/// Right again: when the file has Services
/// Lost: nothing
#[test]
fn a_file_of_services_with_other_content_keeps_known_findings() {
    is_held_through(Some("\u{1}\u{2}[: not YAML"));
}

/// Fault (disk): the file of Services is removed
/// Does: `portreeve_source_up` is 0; known findings stay open
/// Right again: when the file is back
/// Lost: nothing
#[test]
fn a_missing_file_of_services_keeps_known_findings() {
    is_held_through(None);
}

/// Fault (disk): the Services come from a ConfigMap volume, and the kubelet replaces its links
/// Does: reads the new version
/// Right again: with the scan that the change starts
/// Lost: nothing
#[test]
fn services_in_a_config_map_are_read_anew_when_its_links_are_replaced() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let good = manifest();
    let mut volume = ConfigMap::with(directory.path().join("volume"), "cluster.yaml", &good);
    let _incident = incident(&volume.path.join("cluster.yaml"));
    volume.set("cluster.yaml", &good.replace("30080", "30099"));
    wait_for("/metrics", |text| !text.contains(SQUATTED));
    volume.set("cluster.yaml", &good);
    wait_for("/metrics", |text| text.contains(SQUATTED));
}

/// Fault (disk): the agent's configuration is a ConfigMap volume that becomes invalid, then valid again
/// Does: logs the error, and keeps the last valid configuration
/// Right again: when a version is valid, without a signal
/// Lost: nothing
#[test]
fn a_repaired_config_map_is_read_without_a_signal() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let mut volume = ConfigMap::with(directory.path().join("volume"), "agent.yaml", "interval: 200ms\n");
    let path = volume.path.join("agent.yaml");
    let Incident { mut agent, squatter: _squatter, stage: _stage } =
        Incident::start(&["--config", path.to_str().expect("a path")]);
    volume.set("agent.yaml", "interval: [\n");
    agent.says("cannot be used");
    assert!(finds_it());
    volume.set("agent.yaml", "limits: {band_warning_percent: 60}\n");
    agent.says("the configuration changed");
    assert!(finds_it());
}

/// Fault (disk): the agent's configuration is removed while the agent runs, and comes back
/// Does: logs that the file cannot be read, and keeps its settings
/// Right again: when the file is back
/// Lost: nothing
#[test]
fn a_configuration_that_is_gone_stays_in_force_until_it_is_back() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let path = directory.path().join("agent.yaml");
    fs::write(&path, "limits: {band_warning_percent: 70}\n").expect("a file");
    let Incident { mut agent, squatter: _squatter, stage: _stage } =
        Incident::start(&["--config", path.to_str().expect("a path")]);
    fs::remove_file(&path).expect("the file exists");
    agent.says("cannot be used");
    assert!(finds_it());
    fs::write(&path, "limits: {band_warning_percent: 70}\n").expect("a file");
    agent.says("the configuration is unchanged");
    assert!(finds_it());
}
