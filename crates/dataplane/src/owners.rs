//! The owner of a socket, as a value and in words: a pod, a process, or the kernel.

use std::sync::Arc;

use portreeve_facts::{Gap, Owner, Pod, Process, Reading, Snapshot, Source, Unread, Why};

/// The pod that owns a socket, according to the uid in the name of the owner's cgroup.
pub fn pod_of<'a>(snapshot: &'a Snapshot, owner: &Owner) -> Option<&'a Pod> {
    let Owner::Held(holder) = owner else { return None };
    let pods = snapshot.cluster.pods.known_part(Unread::Adds);
    pod_of_uid(pods, &holder.cgroup.known(Unread::Adds)?.pod.as_ref()?.pod_uid)
}

/// The pod whose cgroup has this uid in its name. The cgroup of a static pod has the kubelet's hash of the manifest
/// file instead, so the second search compares hashes.
pub fn pod_of_uid<'a>(pods: &'a [Arc<Pod>], uid: &str) -> Option<&'a Pod> {
    let pods = || pods.iter().map(Arc::as_ref);
    let by_hash = || pods().find(|pod| pod.config_hash.as_deref() == Some(uid));
    pods().find(|pod| pod.uid.as_deref() == Some(uid)).or_else(by_hash)
}

/// A list of Pods that is this many seconds newer than a process contains the process's Pod, unless the Pod was
/// deleted.
const SETTLED: i64 = 60;

/// The uid of the pod that owns a socket, if the API server no longer has the Pod. A Pod exists before its processes
/// start, so a Pod that is missing in a later list was deleted. `None` for static pods: their cgroups have a hash
/// instead of a uid, and a static pod may never have had a Pod object.
pub fn gone_pod<'a>(snapshot: &Snapshot, owner: &'a Owner) -> Option<&'a str> {
    let Owner::Held(holder) = owner else { return None };
    let uid = holder.cgroup.known(Unread::Adds)?.pod.as_ref()?.pod_uid.as_str();
    let pods = snapshot.cluster.pods.known(Unread::Adds)?;
    let started = holder.process.known(Unread::Adds)?.started_at(snapshot.kernel.booted?)?;
    let is_known = pod_of_uid(pods, uid).is_some();
    let are_newer = snapshot.pods_at?.as_second() - started.as_second() > SETTLED;
    let are_whole = snapshot.cluster.rejected.is_empty() && is_this_node(snapshot);
    (!is_known && are_newer && are_whole && is_uid(uid)).then_some(uid)
}

/// Whether the Node object with this node's name has an address of this node. If the result is false, the Pods that
/// were read may belong to another node.
fn is_this_node(snapshot: &Snapshot) -> bool {
    let here = snapshot.kernel.interfaces.known(Unread::Adds).map_or(&[][..], |interfaces| &interfaces.addresses);
    let its = snapshot.own_node().map_or(&[][..], |node| &node.addresses);
    its.iter().any(|its| here.iter().any(|address| address.ip == its.ip))
}

/// Whether the uid is from an API server (RFC 9562). A kubelet's hash of a file has no dashes.
fn is_uid(text: &str) -> bool {
    text.len() == 36 && [8, 13, 18, 23].iter().all(|place| text.as_bytes()[*place] == b'-')
}

/// A unit of systemd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit<'a> {
    /// The name, for example `cockpit.socket`.
    pub name: &'a str,
    /// The uid of the user whose manager runs the unit; `None` for a unit of the system.
    pub user: Option<u32>,
}

impl Unit<'_> {
    /// Whether the unit is a socket unit: systemd listens, and starts another unit when a client connects.
    pub fn is_socket(self) -> bool {
        self.name.ends_with(".socket")
    }

    /// Whether the unit is systemd's own process. If the kernel has no BPF for control groups, systemd makes the
    /// sockets of all socket units in systemd's own control group.
    pub fn is_init(self) -> bool {
        self.name == "init.scope"
    }
}

/// The unit of systemd in which a socket was made: a service, a socket unit, or systemd itself.
///
/// The path is parsed as in systemd (src/basic/cgroup-util.c, `cg_path_get_unit` and `cg_path_get_user_unit`). The unit
/// is the first directory that is not a slice, or the directory after a user's manager. Deeper directories are ignored,
/// because the unit chooses their names. systemd makes the sockets of a socket unit in the unit's control group
/// (src/core/socket.c, `socket_address_listen_in_cgroup`).
pub fn unit_of(owner: &Owner) -> Option<Unit<'_>> {
    let Owner::Held(holder) = owner else { return None };
    let cgroup = holder.cgroup.known(Unread::Adds).filter(|cgroup| cgroup.pod.is_none())?;
    // If the node is a container, the node's control groups may be below the container's group. A pod's group is no
    // unit.
    let is_above = |name: &str| {
        !name.contains("kubepods") && ![".slice", ".scope", ".service"].iter().any(|it| name.ends_with(it))
    };
    let of_system = cgroup.path.split_once("/system.slice/").filter(|(above, _)| above.split('/').all(is_above));
    let path = of_system.map_or(cgroup.path.as_str(), |(_, path)| path);
    let mut units = path.split('/').filter(|name| !name.is_empty() && !name.ends_with(".slice"));
    let name = units.next()?;
    let manager = name.strip_prefix("user@").and_then(|rest| rest.strip_suffix(".service")?.parse().ok());
    let name = if manager.is_some() { units.next().unwrap_or(name) } else { name };
    // systemd puts `_` before a name that a control group cannot have.
    let name = name.strip_prefix('_').unwrap_or(name);
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
    let is_kind = [".service", ".socket"].iter().any(|kind| name.ends_with(kind)) || name == "init.scope";
    let unit = Unit { name, user: manager.filter(|_| !name.starts_with("user@")) };
    (is_kind && name.bytes().all(is_usual)).then_some(unit)
}

/// Whether a container of this pod owns a listening socket. A pod without a running container owns no socket.
///
/// # Errors
/// Fails if the owner is unknown.
pub fn holds(snapshot: &Snapshot, pod: &Pod, owner: &Owner) -> Result<bool, Gap> {
    let gap = |source, why, detail| Err(Gap::new(source, why, detail));
    let holder = match owner {
        Owner::Held(holder) => holder,
        Owner::NotRead => return gap(Source::Processes, Why::NotRequested, "the owner of this socket was not queried"),
        // The kernel opened nfsd's socket for a program, perhaps of this pod.
        Owner::Kernel { link } if link.is_empty() => {
            return gap(
                Source::Processes,
                Why::Ambiguous,
                "the kernel opened this socket for a program that is not known",
            );
        }
        Owner::Kernel { .. } | Owner::TimeWait => return Ok(false),
    };
    let in_pod = holder.cgroup.known(Unread::Doubted).and_then(|cgroup| cgroup.pod.as_ref());
    let in_pod = in_pod.map(|it| it.pod_uid.as_str());
    let is_known = |uid| pod_of_uid(snapshot.cluster.pods.known_part(Unread::Doubted), uid).is_some();
    match (in_pod, &holder.cgroup) {
        (Some(uid), _) if pod.uids_of_cgroups().any(|own| own == uid) => Ok(true),
        _ if pod.running == Some(false) => Ok(false),
        (Some(uid), _) if pod.uid.is_none() && !is_known(uid) => {
            gap(Source::Pods, Why::Ambiguous, "a pod has this socket, but the Pod in the input has no uid")
        }
        (None, Reading::Seen(cgroup)) if cgroup.is_root() => gap(
            Source::Cgroups,
            Why::Ambiguous,
            "the cgroup of this socket does not show whether the socket belongs to a pod",
        ),
        (None, Reading::Gap(gap)) => Err(gap.clone()),
        _ => Ok(false),
    }
}

/// The words for the owner of a socket if its process and cgroup are not known.
pub const UNNAMED: &str = "a process whose name could not be read";

/// The owner of a socket, in words that do not change from scan to scan: `pod default/web`, `process nginx`, `the
/// kernel`.
pub fn owner_name(snapshot: &Snapshot, owner: &Owner) -> String {
    if let Some(pod) = pod_of(snapshot, owner) {
        return format!("pod {}/{}", pod.namespace, pod.name);
    }
    if let Some(uid) = gone_pod(snapshot, owner) {
        return format!("a deleted pod (uid {uid})");
    }
    match owner {
        Owner::TimeWait => "a connection in TIME_WAIT".to_owned(),
        Owner::Kernel { link } if link.is_empty() => "the kernel".to_owned(),
        Owner::Kernel { link } => format!("the kernel ({} {link})", kind_of(snapshot, link)),
        Owner::NotRead => "a process".to_owned(),
        Owner::Held(holder) => {
            match (unit_of(owner), holder.process.known(Unread::Adds), holder.cgroup.known(Unread::Adds)) {
                (Some(unit), ..) if unit.is_socket() => unit_name(unit),
                (Some(unit), ..) if unit.is_init() => format!("systemd{} (a socket unit)", whose(unit)),
                (unit, Some(process), _) => process_name(snapshot, process, unit),
                (Some(unit), None, _) => unit_name(unit),
                (None, None, Some(cgroup)) if cgroup.pod.is_some() => "a pod whose name is not known".to_owned(),
                (None, None, Some(cgroup)) if !cgroup.is_root() => format!("a process of {}", cgroup.path),
                _ => UNNAMED.to_owned(),
            }
        }
    }
}

/// The kind of a link for which the kernel opens sockets.
fn kind_of(snapshot: &Snapshot, link: &str) -> &'static str {
    let interfaces = snapshot.kernel.interfaces.known(Unread::Adds);
    let link = interfaces.and_then(|interfaces| interfaces.links.iter().find(|it| it.name == link));
    match link.and_then(|link| link.kind.as_deref()) {
        Some("vxlan") => "VXLAN device",
        Some("geneve") => "Geneve device",
        Some("wireguard") => "WireGuard device",
        _ => "tunnel",
    }
}

fn unit_name(unit: Unit<'_>) -> String {
    format!("systemd unit {}{}", unit.name, whose(unit))
}

fn whose(unit: Unit<'_>) -> String {
    unit.user.map(|user| format!(" of user {user}")).unwrap_or_default()
}

fn process_name(snapshot: &Snapshot, process: &Process, unit: Option<Unit<'_>>) -> String {
    let Process { command, .. } = process;
    let is_like = |unit: &Unit<'_>| {
        let stem = unit.name.trim_end_matches(".service");
        // The kernel cuts a process name after 15 bytes (include/linux/sched.h, `TASK_COMM_LEN`).
        command.starts_with(stem) || (command.len() == 15 && stem.starts_with(command))
    };
    match unit {
        // The process has chosen a name of blanks or control characters.
        unit if command.trim().is_empty() => unit.map_or_else(|| UNNAMED.to_owned(), unit_name),
        Some(unit) if !is_like(&unit) => format!("process {command} of {}", unit_name(unit)),
        _ if is_runtime(snapshot, command) => format!("process {command} (the container runtime)"),
        _ => format!("process {command}"),
    }
}

fn is_runtime(snapshot: &Snapshot, command: &str) -> bool {
    let name = match command {
        "containerd" => "containerd",
        "crio" => "cri-o",
        "dockerd" | "cri-dockerd" => "docker",
        _ => return false,
    };
    let runtime = snapshot.own_node().and_then(|node| node.container_runtime.as_deref()?.split_once("://"));
    runtime.is_some_and(|(runtime, _)| runtime == name)
}

/// All known facts about a socket's owner, for evidence: names and values.
pub fn owner_evidence(snapshot: &Snapshot, owner: &Owner) -> Vec<(&'static str, String)> {
    let mut values = vec![("held by", owner_name(snapshot, owner))];
    let Owner::Held(holder) = owner else { return values };
    match &holder.process {
        Reading::Seen(process) => {
            let started = snapshot.kernel.booted.and_then(|booted| process.started_at(booted));
            let since = started.map_or_else(String::new, |at| format!(", started {at}"));
            values.push(("process", format!("{} (pid {}){since}", process.command, process.pid)));
            values.extend(process.command_line.clone().map(|line| ("command line", line)));
        }
        Reading::Gap(gap) => values.push(("process", format!("not seen: {}", gap.detail))),
    }
    match &holder.cgroup {
        Reading::Seen(cgroup) => {
            values.push(("cgroup", cgroup.path.clone()));
            if let Some(container) = cgroup.pod.as_ref().and_then(|pod| pod.container.clone()) {
                values.push(("container", container));
            }
        }
        Reading::Gap(gap) => values.push(("cgroup", format!("not seen: {}", gap.detail))),
    }
    values
}

/// The process that owns a socket in a pod, in words that do not change from scan to scan.
pub fn process_in_words(owner: &Owner) -> String {
    let Owner::Held(holder) = owner else { return "a process".to_owned() };
    let process = holder.process.known(Unread::Adds);
    process.map_or_else(|| "a process".to_owned(), |process| format!("process {}", process.command))
}

#[cfg(test)]
mod tests;
