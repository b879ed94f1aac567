//! Who owns a socket: a pod, a process, the kernel; and in words.

use std::sync::Arc;

use crate::facts::{Owner, Pod, Reading, Snapshot};

/// The pod that owns a socket, by the uid in its cgroup's name.
fn pod_of<'a>(snapshot: &'a Snapshot, owner: &Owner) -> Option<&'a Pod> {
    let Owner::Held(holder) = owner else { return None };
    pod_of_uid(snapshot.cluster.pods.seen()?, &holder.cgroup.seen()?.pod.as_ref()?.pod_uid)
}

/// The pod whose cgroup has this uid in its name.
pub(crate) fn pod_of_uid<'a>(pods: &'a [Arc<Pod>], uid: &str) -> Option<&'a Pod> {
    pods.iter().map(Arc::as_ref).find(|pod| pod.uid.as_deref() == Some(uid) || pod.config_hash.as_deref() == Some(uid))
}

/// The owner of a socket, where neither its process nor its cgroup is known.
pub(crate) const UNNAMED: &str = "a process that could not be named";

/// The owner of a socket, in words that stay the same from look to look: `pod default/web`, `process nginx`, `the kernel`.
pub(crate) fn owner_name(snapshot: &Snapshot, owner: &Owner) -> String {
    if let Some(pod) = pod_of(snapshot, owner) {
        return format!("pod {}/{}", pod.namespace, pod.name);
    }
    match owner {
        Owner::TimeWait => "a connection in TIME_WAIT, which has no owner".to_owned(),
        Owner::Kernel { link } if link.is_empty() => "the kernel".to_owned(),
        Owner::Kernel { link } => format!("the kernel (tunnel {link})"),
        Owner::NotAsked => "a process".to_owned(),
        Owner::Held(holder) => match (holder.process.seen(), holder.cgroup.seen()) {
            (Some(process), _) => format!("process {}", process.command),
            (None, Some(cgroup)) if cgroup.pod.is_some() => "a pod whose name is not known".to_owned(),
            (None, Some(cgroup)) if !cgroup.is_root() => format!("a process of {}", cgroup.path),
            _ => UNNAMED.to_owned(),
        },
    }
}

/// Everything known of a socket's owner, for evidence: names and values.
pub(crate) fn owner_evidence(snapshot: &Snapshot, owner: &Owner) -> Vec<(&'static str, String)> {
    let mut values = vec![("held by", owner_name(snapshot, owner))];
    let Owner::Held(holder) = owner else { return values };
    match &holder.process {
        Reading::Seen(process) => {
            values.push(("process", format!("{} (pid {})", process.command, process.pid)));
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

#[cfg(test)]
mod tests;
