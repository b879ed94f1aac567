//! The network namespaces of pods. The reader uses `/proc/<pid>/net`, and stays in its own namespace.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    cgroup::cgroup_of_process,
    ephemeral::Counting,
    known::{Known, KnownProcess},
    pod_sockets::sockets_on,
    privileges,
    proc_net::why,
    process::{is_gone, pids, sees_the_node},
    root::open_file,
    sockets::Sockets,
    sockstat,
};
use portreeve_facts::{
    Cgroup, EphemeralUse, Gap, Holder, Owner, PodNamespace, PodQuery, PortRange, PortSet, Protocol, Reading, Socket,
    Source, Why,
};

/// The default of `net.ipv4.tcp_tw_reuse` in a new network namespace. The value of a pod cannot be read from outside.
const TCP_TW_REUSE: Option<u8> = Some(2);

/// The usual length of `/proc/PID/cgroup` in bytes, if the node uses hierarchies of version 1.
const CGROUP: usize = 4096;
/// The largest length of `/proc/PID/cgroup`: a dozen lines, each with a path.
const LONGEST: u64 = 65_536;
/// If a pod has fewer sockets than `worth_walking` divided by this number, reading `sockstat` is enough: the pod cannot
/// soon use most of its ports.
const FAR: u32 = 8;

/// The largest number of pods whose sockets on needed ports are listed. The time for a list grows with the number of
/// connections on the node.
const MOST_PODS_READ: usize = 8;
/// If a pod has fewer sockets than `worth_walking` divided by this number, the scan does not walk over the pod's
/// sockets, even if the pod has a small port range. The time for a walk grows with the number of connections on the
/// node.
const FEWEST: u32 = 64;

/// The use of ephemeral ports in each pod that has its own network namespace, by pod uid. `proc` is the mount of the
/// host's `/proc`. `known` has the facts from earlier scans.
///
/// For a pod in `pods`, the range comes from the pod's specification. If the pod's `sockstat` has fewer sockets of each
/// protocol than half of the range, the function does not walk over the pod's sockets. For any other pod, the function
/// walks over the sockets if the pod has at least `worth_walking` sockets. The range of any other pod is unknown: to
/// read the range, Portreeve would need CAP_SYS_ADMIN and a thread in the namespace. So the function counts each local
/// port without a listener.
///
/// For the first eight of `pods` that need ports, the function lists the sockets on these ports.
///
/// # Errors
/// A [`Gap`] of [`Source::PodNamespaces`]: `NotPermitted` if some processes of the node, or their namespaces, are not
/// visible. A pod that could not be read has its own `Gap`.
pub fn pod_namespaces(
    proc: &Path,
    worth_walking: u32,
    pods: &BTreeMap<String, PodQuery>,
    known: &mut Known,
) -> Result<Vec<PodNamespace>, Gap> {
    if !sees_the_node(proc) {
        let detail = "only processes of this pid namespace are visible (no hostPID)";
        return Err(Gap::new(Source::PodNamespaces, Why::NotPermitted, detail));
    }
    let Found { namespaces, hidden, refused, mut members } = find(proc, pods, known)?;
    // Without CAP_SYS_PTRACE, some pods may be hidden in the next scan, even if all are visible now. So a refusal for
    // one process is an error.
    if let Some(gap) = refused.filter(|_| !privileges::read().iter().any(|held| held == "CAP_SYS_PTRACE")) {
        return Err(Gap { detail: format!("{}: this needs CAP_SYS_PTRACE", gap.detail), ..gap });
    }
    let unseen = hidden.into_iter().filter(|(uid, _)| namespaces.iter().all(|namespace| namespace.pod_uid != *uid));
    let unseen: Vec<_> = unseen.map(|(pod_uid, gap)| PodNamespace::with_use(pod_uid, Err(gap))).collect();
    let mut left = MOST_PODS_READ;
    let read = |namespace: Namespace| {
        let query = pods.get(&namespace.pod_uid);
        let own = query.and_then(|query| query.ephemeral.as_ref());
        let (net, pids) = (namespace.net.clone(), members.remove(&namespace.inode));
        let mut read =
            namespace.read(own, own.map_or(worth_walking, |ports| (ports.len() / 2).max(worth_walking / FEWEST)))?;
        if let (Some(query), Some(pids)) = (query, pids) {
            let needed = match left.checked_sub(1) {
                Some(fewer) => {
                    left = fewer;
                    sockets_on(proc, &net, &query.needed, &pids)
                }
                None => {
                    let detail =
                        format!("more than {MOST_PODS_READ} pods fail: the sockets of the other pods are not read");
                    Err(Gap::new(Source::PodNamespaces, Why::TooMuch, detail))
                }
            };
            if needed.is_err() && !net.exists() {
                // The pod ended during the scan.
                return None;
            }
            read.needed = needed.map_err(|gap| Gap { source: Source::PodNamespaces, ..gap }).into();
        }
        Some(read)
    };
    let mut reported: Vec<_> = namespaces.into_iter().filter_map(read).collect();
    reported.extend(unseen);
    reported.sort_by(|one, other| one.pod_uid.cmp(&other.pod_uid));
    Ok(reported)
}

#[derive(Default)]
struct Found {
    namespaces: Vec<Namespace>,
    /// Pods with a process whose namespace could not be read.
    hidden: BTreeMap<String, Gap>,
    refused: Option<Gap>,
    /// The processes of pods whose sockets are requested. The key is the inode of the network namespace.
    members: HashMap<u64, Vec<u32>>,
}

struct Namespace {
    inode: u64,
    net: PathBuf,
    pod_uid: String,
    cgroup: Arc<Cgroup>,
}

/// Finds the network namespaces of pods. The namespaces of the reader and of the node are skipped.
fn find(proc: &Path, pods: &BTreeMap<String, PodQuery>, known: &mut Known) -> Result<Found, Gap> {
    let own = proc.join("thread-self");
    let own = network(&own).map_err(|error| unread(&own.join(NETWORK), &error))?;
    // The node's namespace is the namespace of init and of the kernel's first thread. Some hosts hide pid 1 or pid 2.
    let node = ["1", "2"].into_iter().filter_map(|pid| network(&proc.join(pid)).ok());
    let mut passed: HashSet<u64> = [own].into_iter().chain(node).collect();
    let mut found = Found::default();
    let mut text = Vec::with_capacity(CGROUP);
    // The loop keeps each process that still exists.
    let mut before = std::mem::take(&mut known.processes);
    for (pid, inode) in pids(proc).map_err(|error| unread(proc, &error))? {
        let mut process = before.process(pid, inode);
        match found.scan(&proc.join(pid.to_string()), &mut process, &mut passed, &mut text) {
            Ok(new) => {
                // The first process of a namespace shows which pod has the namespace.
                let query = new.and_then(|pod_uid| pods.get(pod_uid)).filter(|query| !query.needed.is_empty());
                if let (Some(network), Some(_)) = (process.network, query) {
                    found.members.insert(network, Vec::new());
                }
                let member = process.network.and_then(|network| found.members.get_mut(&network));
                member.into_iter().for_each(|pids| pids.push(pid));
                known.processes.keep(pid, process);
            }
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(unread(&proc.join(pid.to_string()).join("cgroup"), &error)),
        }
    }
    Ok(found)
}

impl Found {
    /// Reads the unknown facts of a process. If the process's network namespace is not in `passed`, adds the namespace
    /// and returns the uid of the pod.
    fn scan(
        &mut self,
        directory: &Path,
        process: &mut KnownProcess,
        passed: &mut HashSet<u64>,
        text: &mut Vec<u8>,
    ) -> io::Result<Option<&str>> {
        let network = match process.network.map_or_else(|| network(directory), Ok) {
            Ok(network) => Ok(*process.network.insert(network)),
            Err(error) if is_gone(&error) => return Err(error),
            Err(error) => Err(unread(&directory.join(NETWORK), &error)),
        };
        match &network {
            Ok(network) if passed.contains(network) => return Ok(None),
            Ok(_) => {}
            Err(gap) => _ = self.refused.get_or_insert_with(|| gap.clone()),
        }
        if process.cgroup.is_none() {
            process.cgroup = Some(cgroup(directory, text)?);
        }
        // A process whose cgroup has no pod may have entered the namespace from outside. The next process of the
        // namespace may have a cgroup with the pod.
        let Some(cgroup) = process.cgroup.iter().flatten().next() else { return Ok(None) };
        let Some(pod_uid) = cgroup.pod.as_ref().map(|pod| pod.pod_uid.clone()) else { return Ok(None) };
        match network {
            Ok(inode) => {
                passed.insert(inode);
                let (net, cgroup) = (directory.join("net"), Arc::clone(cgroup));
                self.namespaces.push(Namespace { inode, net, pod_uid, cgroup });
                Ok(self.namespaces.last().map(|namespace| namespace.pod_uid.as_str()))
            }
            Err(gap) => {
                self.hidden.insert(pod_uid, gap);
                Ok(None)
            }
        }
    }
}

const NETWORK: &str = "ns/net";

/// The inode of a process' network namespace, from a link such as `net:[4026531840]`.
fn network(process: &Path) -> io::Result<u64> {
    let link = fs::read_link(process.join(NETWORK))?;
    let inode = link.to_str().and_then(|link| link.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok());
    inode.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{}: wanted net:[INODE]", link.display())))
}

fn cgroup(process: &Path, text: &mut Vec<u8>) -> io::Result<Option<Arc<Cgroup>>> {
    text.clear();
    // The read does not query the length of the file, and uses one buffer for all processes.
    open_file(&process.join("cgroup")).and_then(|file| file.take(LONGEST).read_to_end(text))?;
    Ok(cgroup_of_process(&String::from_utf8_lossy(text)).filter(|cgroup| cgroup.pod.is_some()).map(Arc::new))
}

fn unread(path: &Path, error: &io::Error) -> Gap {
    Gap::new(Source::PodNamespaces, why(error), format!("{}: {error}", path.display()))
}

impl Namespace {
    /// The facts of the namespace. `None` if the pod ended.
    fn read(self, own: Option<&PortSet>, worth_walking: u32) -> Option<PodNamespace> {
        let mut listening = None;
        let ephemeral = self.ephemeral_use(own, worth_walking, &mut listening);
        let ended = ephemeral.is_err() && !self.net.exists();
        let ephemeral = ephemeral.map_err(|gap| Gap { source: Source::PodNamespaces, ..gap });
        (!ended).then(|| PodNamespace { listening, ..PodNamespace::with_use(self.pod_uid, ephemeral) })
    }

    fn ephemeral_use(
        &self,
        own: Option<&PortSet>,
        worth_walking: u32,
        listening: &mut Option<PortSet>,
    ) -> Result<EphemeralUse, Gap> {
        let at_most = sockstat::at_most(&self.net, worth_walking / FAR)?;
        if at_most < worth_walking {
            return Ok(EphemeralUse::of_every_socket(at_most));
        }
        let sockets = Sockets::recorded(&self.net);
        let listeners = sockets.listeners()?.sockets;
        let every_port = PortSet::from(PortRange { first: 1, last: u16::MAX });
        let chosen = own.cloned().unwrap_or_else(|| PortRange::DEFAULT_EPHEMERAL.into());
        // An unconnected UDP socket on an ephemeral port is usually a client, and not a server.
        let serves = |it: &&Socket| it.protocol != Protocol::Udp || !chosen.contains(it.local_port);
        *listening = Some(listeners.iter().filter(serves).map(|socket| socket.local_port).collect());
        let ports = own.unwrap_or(&every_port);
        let counting = Counting { ports, at_most: Some(at_most), worth_walking, tcp_tw_reuse: TCP_TW_REUSE };
        let mut used = sockets.ephemeral_use(&counting, &listeners)?.ephemeral;
        let not_requested =
            Gap::new(Source::Processes, Why::NotRequested, "the pod is known; its processes are not searched");
        for destination in &mut used.busiest {
            destination.owner = Owner::Held(Holder {
                cgroup: Reading::Seen(Cgroup::clone(&self.cgroup)),
                process: Reading::Gap(not_requested.clone()),
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
        fs::write(net.join("tcp"), format!("local_address\n{listener}{accepted}{clients}")).expect("written");
        fs::write(net.join("udp"), "local_address\n").expect("written");
        proc
    }

    fn scan(proc: &tempfile::TempDir, worth_walking: u32) -> Result<Vec<PodNamespace>, Gap> {
        pod_namespaces(proc.path(), worth_walking, &BTreeMap::new(), &mut Known::default())
    }

    fn of_pod() -> String {
        format!("0::/kubepods/burstable/pod{UID}\n")
    }

    #[test]
    fn a_busy_pod_is_walked_and_accepted_connections_do_not_count() {
        let proc = node("net:[2]", &of_pod());
        let namespaces = scan(&proc, 4).expect("seen");
        assert_eq!(namespaces.len(), 1);
        let used = namespaces[0].ephemeral.seen().expect("read");
        let reported: Vec<_> = used.busiest.iter().map(|one| (one.port, one.used, one.time_wait)).collect();
        assert_eq!((namespaces[0].pod_uid.as_str(), used.at_most, reported), (UID, 2, vec![(443, 2, 1)]));
        assert_eq!(namespaces[0].listening.as_ref().expect("walked").to_string(), "80");
    }

    #[test]
    fn a_quiet_pod_is_not_walked() {
        let proc = node("net:[2]", &of_pod());
        fs::remove_file(proc.path().join("7/net/tcp")).expect("removed");
        let namespaces = scan(&proc, 5).expect("seen");
        assert_eq!(namespaces[0].ephemeral, Reading::Seen(EphemeralUse::of_every_socket(4)));
        let walked = scan(&proc, 4).expect("seen");
        assert_eq!(walked[0].ephemeral.gap().expect("no table").source, Source::PodNamespaces);
    }

    #[test]
    fn a_pod_with_its_own_range_is_walked_from_half_of_it_and_only_its_ports_count() {
        let proc = node("net:[2]", &of_pod());
        let used_of = |worth_walking: u32, uid: &str, ports: &str| {
            let query = PodQuery { ephemeral: Some(ports.parse().expect("ports")), ..PodQuery::default() };
            let pods = [(uid.to_owned(), query)].into();
            let seen = pod_namespaces(proc.path(), worth_walking, &pods, &mut Known::default()).expect("seen");
            seen[0].ephemeral.seen().expect("read").busiest.iter().map(|one| one.used).collect::<Vec<_>>()
        };
        let used = |uid: &str, ports: &str| used_of(4 * FEWEST, uid, ports);
        assert_eq!(used_of(5 * FEWEST, UID, "40000-40007"), [0; 0], "a range of few ports makes no walk");
        assert_eq!(used(UID, "40000-40007"), [2], "four sockets of eight ports");
        assert_eq!(used(UID, "40001-40008"), [1], "40000 is no port of its range");
        assert_eq!(used(UID, "40000-40009"), [0; 0], "four of ten");
        assert_eq!(used("of another pod", "40000-40007"), [0; 0]);
    }

    #[test]
    fn the_sockets_of_at_most_eight_pods_are_listed_and_an_unreadable_pod_is_unread() {
        let proc = node("net:[2]", &of_pod());
        let uid = |index: u8| format!("0e6a3a0c-5a0b-4b1e-8d6e-3f2b1c0d9e{index:02}");
        for index in 10..19 {
            let process = proc.path().join(index.to_string());
            fs::create_dir_all(process.join("ns")).expect("made");
            symlink(format!("net:[{index}]"), process.join("ns/net")).expect("linked");
            fs::write(process.join("cgroup"), format!("0::/kubepods/pod{}\n", uid(index))).expect("written");
            symlink("../7/net", process.join("net")).expect("linked");
        }
        let query = |needed: &str| PodQuery { needed: needed.parse().expect("ports"), ..PodQuery::default() };
        let scan = |pods: Vec<String>| {
            let pods = pods.into_iter().map(|uid| (uid, query("40000"))).collect();
            pod_namespaces(proc.path(), 14_116, &pods, &mut Known::default()).expect("seen")
        };
        let count =
            |seen: &[PodNamespace], why| seen.iter().filter(|it| it.needed.gap().map(|gap| gap.why) == why).count();
        let all = scan((10..19).map(uid).collect());
        assert_eq!(
            (count(&all, None), count(&all, Some(Why::TooMuch)), count(&all, Some(Why::NotRequested))),
            (8, 1, 1)
        );
        let ports = all.iter().filter_map(|it| it.needed.seen()).flatten().map(|socket| socket.local_port);
        assert!(ports.clone().count() > 0 && ports.clone().filter(|port| *port == 40000).count() == 8);
        fs::remove_file(proc.path().join("7/net/udp")).expect("removed");
        let unread = scan(vec![uid(10)]);
        assert_eq!((unread.len(), count(&unread, Some(Why::NotSupported))), (10, 1));
    }

    #[test]
    fn a_process_read_twice_is_not_read_again_for_some_scans() {
        let proc = node("net:[2]", &of_pod());
        let mut known = Known::default();
        let mut pods = || pod_namespaces(proc.path(), 5, &BTreeMap::new(), &mut known).expect("seen").len();
        assert_eq!([pods(), pods()], [1, 1]);
        let link = proc.path().join("7/ns/net");
        fs::remove_file(&link).expect("removed");
        symlink("net:[1]", &link).expect("linked");
        fs::remove_file(proc.path().join("7/cgroup")).expect("removed");
        assert_eq!(pods(), 1, "it moved to the node's namespace, and was not read");
        assert!((0..20).any(|_| pods() == 0), "it is read again in the end");
    }

    #[test]
    fn our_own_namespace_and_namespaces_without_a_pod_are_left_out() {
        assert_eq!(scan(&node("net:[1]", &of_pod()), 0), Ok(vec![]));
        assert_eq!(scan(&node("net:[2]", "0::/user.slice\n"), 0), Ok(vec![]));
        let elsewhere = node("net:[1]", &of_pod());
        let own = elsewhere.path().join("thread-self/ns/net");
        fs::remove_file(&own).expect("removed");
        symlink("net:[3]", own).expect("linked");
        assert_eq!(scan(&elsewhere, 0), Ok(vec![]), "the node's namespace, if a pod has hostNetwork");
    }

    #[test]
    fn pods_are_unread_without_the_nodes_processes() {
        let proc = node("net:[2]", &of_pod());
        let own = proc.path().join("thread-self/ns/pid");
        fs::remove_file(&own).expect("removed");
        symlink("pid:[4026532000]", own).expect("linked");
        fs::write(proc.path().join("1/cgroup"), "0::/\n").expect("written");
        assert_eq!(scan(&proc, 0).expect_err("blind").why, Why::NotPermitted);
    }
}
