//! Who owns a socket: a pod, a process, the kernel; and in words.

use std::sync::Arc;

use portreeve_facts::{Gap, Owner, Pod, Reading, Snapshot, Source, Why};

/// The pod that owns a socket, by the uid in its cgroup's name.
pub fn pod_of<'a>(snapshot: &'a Snapshot, owner: &Owner) -> Option<&'a Pod> {
    let Owner::Held(holder) = owner else { return None };
    pod_of_uid(snapshot.cluster.pods.seen()?, &holder.cgroup.seen()?.pod.as_ref()?.pod_uid)
}

/// The pod whose cgroup has this uid in its name. A uid is the API server's word; a hash only counts where no pod has it for one.
pub fn pod_of_uid<'a>(pods: &'a [Arc<Pod>], uid: &str) -> Option<&'a Pod> {
    let pods = || pods.iter().map(Arc::as_ref);
    let by_hash = || pods().find(|pod| pod.config_hash.as_deref() == Some(uid));
    pods().find(|pod| pod.uid.as_deref() == Some(uid)).or_else(by_hash)
}

/// Whether a socket is a pod's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holding {
    /// One of its containers has it.
    Own,
    /// Somebody else has it.
    Other,
    /// It cannot be told.
    Unknown(Gap),
}

impl Holding {
    /// Why it cannot be told.
    pub fn gap(self) -> Option<Gap> {
        if let Self::Unknown(gap) = self { Some(gap) } else { None }
    }
}

/// Whether the owner of a listening socket is this pod. One of which no container runs has none, whoever that is.
pub fn holding(snapshot: &Snapshot, pod: &Pod, owner: &Owner) -> Holding {
    let gap = |source, why, detail| Holding::Unknown(Gap::new(source, why, detail));
    let holder = match owner {
        Owner::Held(holder) => holder,
        Owner::NotAsked => return gap(Source::Processes, Why::NotAsked, "nobody was asked who owns this socket"),
        // nfsd's socket is one that a program asked for, perhaps one of this pod.
        Owner::Kernel { link } if link.is_empty() => {
            return gap(
                Source::Processes,
                Why::Ambiguous,
                "the kernel has this socket, and who asked it to is not known",
            );
        }
        Owner::Kernel { .. } | Owner::TimeWait => return Holding::Other,
    };
    let in_pod = holder.cgroup.seen().and_then(|cgroup| cgroup.pod.as_ref()).map(|it| it.pod_uid.as_str());
    let is_known = |uid| snapshot.cluster.pods.seen().is_some_and(|pods| pod_of_uid(pods, uid).is_some());
    match (in_pod, &holder.cgroup) {
        (Some(uid), _) if [&pod.uid, &pod.config_hash].into_iter().flatten().any(|own| own == uid) => Holding::Own,
        _ if pod.running == Some(false) => Holding::Other,
        (Some(uid), _) if pod.uid.is_none() && !is_known(uid) => {
            gap(Source::Pods, Why::Ambiguous, "a pod has this socket, and the Pod in question was given without a uid")
        }
        (None, Reading::Seen(cgroup)) if cgroup.is_root() => {
            gap(Source::Cgroups, Why::Ambiguous, "the cgroup of this socket does not show which pod it is of, if any")
        }
        (None, Reading::Gap(gap)) => Holding::Unknown(gap.clone()),
        _ => Holding::Other,
    }
}

/// The owner of a socket, where neither its process nor its cgroup is known.
pub const UNNAMED: &str = "a process that could not be named";

/// The owner of a socket, in words that stay the same from look to look: `pod default/web`, `process nginx`, `the kernel`.
pub fn owner_name(snapshot: &Snapshot, owner: &Owner) -> String {
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

#[cfg(test)]
mod tests;
