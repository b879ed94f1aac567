//! The volume of the heartbeat is full, read-only, gone, or hostile.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::{MODE, beats, finds_it, until_it_finds_it};
use crate::{
    agent::{Agent, until, web},
    proxy::Squatter,
    stage::Stage,
};

/// What the agent says of a heartbeat that it cannot write.
const SAID: &str = "the heartbeat cannot be written";

/// A volume of one page in memory, in the test's own mount namespace, until it is dropped.
struct Volume(PathBuf);

impl Volume {
    fn at(path: PathBuf) -> Self {
        fs::create_dir(&path).expect("a directory");
        mount(Some("volume"), &path, Some("tmpfs"), MsFlags::empty(), Some("size=4k")).expect("a volume");
        Self(path)
    }

    fn set_read_only(&self, is_read_only: bool) {
        let read_only = if is_read_only { MsFlags::MS_RDONLY } else { MsFlags::empty() };
        mount(None::<&str>, &self.0, None::<&str>, MsFlags::MS_REMOUNT | read_only, Some("size=4k"))
            .expect("remounted");
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        umount2(&self.0, MntFlags::MNT_DETACH).expect("it is mounted");
    }
}

/// An agent that beats into `heartbeat`, and a squatter that it has found.
#[track_caller]
fn start(stage: &Stage, heartbeat: &Path) -> (Agent, Squatter) {
    let agent = Agent::beating(stage.command("agent"), stage, heartbeat, &MODE);
    let squatter = Squatter::on("0.0.0.0:30080");
    until_it_finds_it();
    (agent, squatter)
}

#[track_caller]
fn until_it_beats(heartbeat: &Path) {
    until(|| beats(heartbeat).then_some(())).expect("a heartbeat again");
}

/// Fault (disk): the volume of its heartbeat is full
/// Does: says so once, and looks on; the probe fails, since nothing can be read
/// Right again: with the first heartbeat after there is room
/// Lost: heartbeats: kubelet restarts it when they are away for longer than they are valid
#[test]
fn a_full_volume_costs_heartbeats_and_no_look() {
    let stage = web();
    let volume = Volume::at(stage.path("volume"));
    fs::write(volume.0.join("other"), [0; 4096]).expect("it just fits");
    let heartbeat = volume.0.join("heartbeat");
    let (mut agent, _squatter) = start(&stage, &heartbeat);
    agent.says(SAID);
    assert!(finds_it() && !beats(&heartbeat));
    fs::remove_file(volume.0.join("other")).expect("it is there");
    until_it_beats(&heartbeat);
    assert!(finds_it());
    drop(agent);
}

/// Fault (disk): the volume of its heartbeat becomes read-only
/// Does: says so once, and looks on
/// Right again: with the first heartbeat after it can be written
/// Lost: heartbeats
#[test]
fn a_volume_that_becomes_read_only_costs_heartbeats_and_no_look() {
    let stage = web();
    let volume = Volume::at(stage.path("volume"));
    let heartbeat = volume.0.join("heartbeat");
    let (mut agent, _squatter) = start(&stage, &heartbeat);
    until_it_beats(&heartbeat);
    volume.set_read_only(true);
    agent.says(SAID);
    assert!(finds_it());
    let last = fs::read(&heartbeat).expect("the last one");
    volume.set_read_only(false);
    until(|| (fs::read(&heartbeat).expect("it stays") != last).then_some(())).expect("a new heartbeat");
    assert!(beats(&heartbeat) && finds_it());
    drop(agent);
}

/// Fault (disk): the directory of its heartbeat is removed, and made anew
/// Does: says so once, and looks on; the probe fails
/// Right again: with the first heartbeat after it is there
/// Lost: heartbeats
#[test]
fn a_directory_that_is_gone_costs_heartbeats_and_no_look() {
    let stage = web();
    let directory = stage.path("run");
    fs::create_dir(&directory).expect("a directory");
    let heartbeat = directory.join("heartbeat");
    let (mut agent, _squatter) = start(&stage, &heartbeat);
    until_it_beats(&heartbeat);
    fs::remove_dir_all(&directory).expect("it is there");
    agent.says(SAID);
    assert!(finds_it() && !beats(&heartbeat));
    fs::create_dir(&directory).expect("a directory");
    until_it_beats(&heartbeat);
    drop(agent);
}

/// Fault (disk): a link to another file is put in place of its heartbeat
/// Does: says so once, does not write through it, and looks on
/// Right again: with the first heartbeat after the link is gone
/// Lost: heartbeats
#[test]
fn a_link_in_place_of_the_heartbeat_is_not_followed_and_costs_no_look() {
    let stage = web();
    let (heartbeat, precious) = (stage.path("heartbeat"), stage.path("precious"));
    let (mut agent, _squatter) = start(&stage, &heartbeat);
    until_it_beats(&heartbeat);
    fs::write(&precious, "precious").expect("a file");
    fs::remove_file(&heartbeat).expect("it is there");
    symlink(&precious, &heartbeat).expect("a link");
    agent.says(SAID);
    assert!(finds_it());
    assert_eq!(fs::read_to_string(&precious).expect("a file"), "precious");
    fs::remove_file(&heartbeat).expect("it is there");
    until_it_beats(&heartbeat);
    drop(agent);
}
