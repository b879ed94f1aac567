//! Pods' own network namespaces, seen through `/proc/<pid>/net` without entering them.

use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use crate::{
    facts::{Cgroup, EphemeralUse, Gap, Holder, Owner, PodNamespace, PortRange, PortSet, Reading, Source, Why},
    kernel::{
        cgroup::cgroup_of_process,
        ephemeral::Counting,
        privileges,
        proc_net::why,
        process::{is_gone, pids, sees_the_node},
        sockets::Sockets,
        sockstat,
    },
};

/// `net.ipv4.tcp_tw_reuse` as every network namespace begins: a pod's own cannot be seen from outside.
const TCP_TW_REUSE: Option<u8> = Some(2);

/// As long as `/proc/PID/cgroup` usually is, in bytes, with a line for each hierarchy of version 1.
const CGROUP: usize = 4096;
/// As long as it may be: a dozen lines, each with a path.
const LONGEST: u64 = 65_536;

/// The use of ephemeral ports in each pod with a network namespace of its own, by pod uid. A pod whose sockstat shows
/// fewer than `worth_walking` sockets of one protocol is not walked. Its own port range cannot be seen from outside,
/// so every local port counts that no listener of its own covers. `proc` is where the host's `/proc` is mounted.
///
/// # Errors
/// A [`Gap`] of [`Source::PodNamespaces`]: `NotPermitted` where not every process of the node, or not its namespaces,
/// are to be seen. A pod that could not be read carries its own gap.
pub fn pod_namespaces(proc: &Path, worth_walking: u32) -> Result<Vec<PodNamespace>, Gap> {
    if !sees_the_node(proc) {
        let detail = "only processes of this pid namespace are to be seen (no hostPID)";
        return Err(Gap::new(Source::PodNamespaces, Why::NotPermitted, detail));
    }
    let Found { namespaces, hidden, refused } = find(proc)?;
    // Not only when a pod happens to be hidden: without the privilege it is luck what is to be seen.
    if let Some(gap) = refused.filter(|_| !privileges::read().iter().any(|held| held == "CAP_SYS_PTRACE")) {
        return Err(Gap { detail: format!("{}: that takes CAP_SYS_PTRACE", gap.detail), ..gap });
    }
    let unseen = hidden.into_iter().filter(|(uid, _)| namespaces.iter().all(|namespace| namespace.pod_uid != *uid));
    let unseen: Vec<_> = unseen.map(|(pod_uid, gap)| PodNamespace { pod_uid, ephemeral: Reading::Gap(gap) }).collect();
    let mut told: Vec<_> = namespaces.into_iter().filter_map(|namespace| namespace.read(worth_walking)).collect();
    told.extend(unseen);
    told.sort_by(|one, other| one.pod_uid.cmp(&other.pod_uid));
    Ok(told)
}

/// What the processes of the node tell of pods' namespaces.
#[derive(Default)]
struct Found {
    namespaces: Vec<Namespace>,
    /// Pods with a process that does not show its namespace.
    hidden: BTreeMap<String, Gap>,
    /// The first process of all that does not.
    refused: Option<Gap>,
}

/// A network namespace of a pod: one process to look through, and the cgroup that names the pod.
struct Namespace {
    net: PathBuf,
    pod_uid: String,
    cgroup: Cgroup,
}

/// Every network namespace that a process of a pod is in, but ours and the node's own.
fn find(proc: &Path) -> Result<Found, Gap> {
    let unread = |path: &Path, error: &io::Error| {
        Gap::new(Source::PodNamespaces, why(error), format!("{}: {error}", path.display()))
    };
    let own = proc.join("thread-self/ns/net");
    let own = fs::read_link(&own).map_err(|error| unread(&own, &error))?;
    // Of init and of the first thread of the kernel, of which some hosts show only one.
    let node = ["1", "2"].into_iter().filter_map(|pid| fs::read_link(proc.join(pid).join("ns/net")).ok());
    let mut known: HashSet<PathBuf> = [own].into_iter().chain(node).collect();
    let mut found = Found::default();
    let mut text = Vec::with_capacity(CGROUP);
    for pid in pids(proc).map_err(|error| unread(proc, &error))? {
        let process = proc.join(pid.to_string());
        let link = process.join("ns/net");
        let namespace = match fs::read_link(&link) {
            Ok(namespace) if known.contains(&namespace) => continue,
            Ok(namespace) => Ok(namespace),
            Err(error) if is_gone(&error) => continue,
            Err(error) => Err(unread(&link, &error)),
        };
        if let Err(gap) = &namespace {
            found.refused.get_or_insert_with(|| gap.clone());
        }
        text.clear();
        // Of every process of every pod, so without asking how long it is, and into one buffer.
        let read = File::open(process.join("cgroup")).and_then(|file| file.take(LONGEST).read_to_end(&mut text));
        let cgroup = match read {
            Ok(_) => cgroup_of_process(&String::from_utf8_lossy(&text)),
            Err(error) if is_gone(&error) => continue,
            Err(error) => return Err(unread(&process.join("cgroup"), &error)),
        };
        // A process that merely entered the namespace does not name its pod; the next one may.
        let Some((cgroup, pod_uid)) = cgroup.and_then(|cgroup| Some((cgroup.clone(), cgroup.pod?.pod_uid))) else {
            continue;
        };
        match namespace {
            Ok(namespace) => {
                known.insert(namespace);
                found.namespaces.push(Namespace { net: process.join("net"), pod_uid, cgroup });
            }
            Err(gap) => {
                found.hidden.insert(pod_uid, gap);
            }
        }
    }
    Ok(found)
}

impl Namespace {
    /// Nothing when the pod ended.
    fn read(self, worth_walking: u32) -> Option<PodNamespace> {
        let ephemeral = self.ephemeral_use(worth_walking);
        let ended = ephemeral.is_err() && !self.net.exists();
        (!ended).then(|| PodNamespace {
            pod_uid: self.pod_uid,
            ephemeral: ephemeral.map_err(|gap| Gap { source: Source::PodNamespaces, ..gap }).into(),
        })
    }

    fn ephemeral_use(&self, worth_walking: u32) -> Result<EphemeralUse, Gap> {
        let sockstat = sockstat::of(&self.net)?;
        let at_most = sockstat.tcp.saturating_add(sockstat.tcp_time_wait).max(sockstat.udp);
        if at_most < worth_walking {
            return Ok(EphemeralUse { at_most, busiest: Vec::new() });
        }
        let sockets = Sockets::recorded(&self.net);
        let listeners = sockets.listeners()?.sockets;
        let every_port = PortSet::from(PortRange { first: 1, last: u16::MAX });
        let counting =
            Counting { ports: &every_port, at_most: Some(at_most), worth_walking, tcp_tw_reuse: TCP_TW_REUSE };
        let mut used = sockets.ephemeral_use(&counting, &listeners)?.ephemeral;
        let not_asked =
            Gap::new(Source::Processes, Why::NotAsked, "the pod is known, its processes are not looked for");
        for destination in &mut used.busiest {
            destination.owner = Owner::Held(Holder {
                cgroup: Reading::Seen(self.cgroup.clone()),
                process: Reading::Gap(not_asked.clone()),
            });
        }
        Ok(used)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const UID: &str = "0e6a3a0c-5a0b-4b1e-8d6e-3f2b1c0d9e8f";

    /// A made-up `/proc` of a node: ourselves, init, and a process in a namespace.
    fn node(namespace: &str, cgroup: &str) -> tempfile::TempDir {
        let proc = tempfile::tempdir().expect("a directory");
        for (pid, namespace, cgroup) in
            [("1", "net:[1]", "0::/init.scope\n"), ("thread-self", "net:[1]", "0::/\n"), ("7", namespace, cgroup)]
        {
            let process = proc.path().join(pid);
            fs::create_dir_all(process.join("ns")).expect("made");
            symlink(namespace, process.join("ns/net")).expect("linked");
            symlink("pid:[4026531836]", process.join("ns/pid")).expect("linked");
            fs::write(process.join("cgroup"), cgroup).expect("written");
        }
        let net = proc.path().join("7/net");
        fs::create_dir(&net).expect("made");
        fs::write(net.join("sockstat"), "TCP: inuse 3 orphan 0 tw 1 alloc 5 mem 1\nUDP: inuse 0 mem 0\n")
            .expect("written");
        let line = |index: u16, local: &str, remote: &str, state: &str| {
            format!(" {index}: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 0 0 9 1\n")
        };
        let listener = line(0, "00000000:0050", "00000000:0000", "0A");
        let accepted = line(1, "0100000A:0050", "0200000A:9C40", "01");
        let clients =
            line(2, "0100000A:9C40", "0300000A:01BB", "01") + &line(3, "0100000A:9C41", "0300000A:01BB", "06");
        fs::write(net.join("tcp"), format!("heading\n{listener}{accepted}{clients}")).expect("written");
        fs::write(net.join("udp"), "heading\n").expect("written");
        proc
    }

    fn of_pod() -> String {
        format!("0::/kubepods/burstable/pod{UID}\n")
    }

    #[test]
    fn a_busy_pod_is_walked_and_what_it_accepted_does_not_count() {
        let proc = node("net:[2]", &of_pod());
        let namespaces = pod_namespaces(proc.path(), 4).expect("seen");
        assert_eq!(namespaces.len(), 1);
        let used = namespaces[0].ephemeral.seen().expect("read");
        let told: Vec<_> = used.busiest.iter().map(|one| (one.port, one.used, one.time_wait)).collect();
        assert_eq!((namespaces[0].pod_uid.as_str(), used.at_most, told), (UID, 4, vec![(443, 2, 1)]));
    }

    #[test]
    fn a_quiet_pod_is_not_walked() {
        let proc = node("net:[2]", &of_pod());
        fs::remove_file(proc.path().join("7/net/tcp")).expect("removed");
        let namespaces = pod_namespaces(proc.path(), 5).expect("seen");
        assert_eq!(namespaces[0].ephemeral, Reading::Seen(EphemeralUse { at_most: 4, busiest: vec![] }));
        let walked = pod_namespaces(proc.path(), 4).expect("seen");
        assert_eq!(walked[0].ephemeral.gap().expect("no table").source, Source::PodNamespaces);
    }

    #[test]
    fn our_own_namespace_and_those_of_no_pod_are_left_out() {
        assert_eq!(pod_namespaces(node("net:[1]", &of_pod()).path(), 0), Ok(vec![]));
        assert_eq!(pod_namespaces(node("net:[2]", "0::/user.slice\n").path(), 0), Ok(vec![]));
        let elsewhere = node("net:[1]", &of_pod());
        let own = elsewhere.path().join("thread-self/ns/net");
        fs::remove_file(&own).expect("removed");
        symlink("net:[3]", own).expect("linked");
        assert_eq!(pod_namespaces(elsewhere.path(), 0), Ok(vec![]), "the node's, where a pod has hostNetwork");
    }

    #[test]
    fn without_the_nodes_processes_it_is_a_gap() {
        let proc = node("net:[2]", &of_pod());
        let own = proc.path().join("thread-self/ns/pid");
        fs::remove_file(&own).expect("removed");
        symlink("pid:[4026532000]", own).expect("linked");
        fs::write(proc.path().join("1/cgroup"), "0::/\n").expect("written");
        assert_eq!(pod_namespaces(proc.path(), 0).expect_err("blind").why, Why::NotPermitted);
    }
}
