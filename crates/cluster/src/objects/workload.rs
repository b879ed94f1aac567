//! A workload, and the ports that the pods of the workload will need on the node.

use serde::{Deserialize, Deserializer};

use super::{
    FieldError, Metadata, Pod, PodSpec, decode,
    pod::{NodeSelector, NodeSelectorTerm, Requirement},
    values::{NumberOrText, Text, Whole, unless_empty},
};
use portreeve_facts::{self as facts, WorkloadKind};

/// The labels for the operating system. If a selector demands Linux, the selector is ignored, because Portreeve runs on
/// Linux only.
const OS: [&str; 2] = ["kubernetes.io/os", "beta.kubernetes.io/os"];

#[derive(Debug, Deserialize)]
pub(crate) struct Workload {
    pub(crate) metadata: Option<Metadata>,
    pub(crate) spec: Option<WorkloadSpec>,
    pub(crate) status: Option<WorkloadStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WorkloadSpec {
    pub(crate) replicas: Option<Whole>,
    pub(crate) parallelism: Option<Whole>,
    pub(crate) completions: Option<Whole>,
    pub(crate) strategy: Option<Strategy>,
    pub(crate) update_strategy: Option<Strategy>,
    pub(crate) template: Option<Template>,
    pub(crate) job_template: Option<JobTemplate>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Strategy {
    #[serde(rename = "type", deserialize_with = "unless_empty")]
    pub(crate) kind: Option<Text>,
    pub(crate) rolling_update: Option<RollingUpdate>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RollingUpdate {
    pub(crate) max_unavailable: Option<NumberOrText>,
    pub(crate) max_surge: Option<NumberOrText>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct JobTemplate {
    pub(crate) spec: Option<Box<WorkloadSpec>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Template {
    pub(crate) spec: Option<PodSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WorkloadStatus {
    pub(crate) desired_number_scheduled: Option<Whole>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Toleration {
    pub(crate) key: Option<Text>,
    pub(crate) operator: Option<Text>,
    pub(crate) value: Option<Text>,
    pub(crate) effect: Option<Text>,
}

impl WorkloadSpec {
    /// The number of pods. A Job runs at most `completions` pods.
    fn replicas(&self) -> Option<i64> {
        let of_job = || {
            let Whole(parallelism) = self.parallelism?;
            Some(self.completions.map_or(parallelism, |Whole(completions)| parallelism.min(completions)))
        };
        self.replicas.map(|Whole(replicas)| replicas).or_else(of_job)
    }

    /// Whether a Deployment or a DaemonSet keeps the old pods until new pods are ready (kubernetes
    /// pkg/controller/deployment/util `ResolveFenceposts`, pkg/controller/daemon/update.go). A percentage of `maxSurge`
    /// is rounded up. A Deployment rounds a percentage of `maxUnavailable` down. If `maxSurge` and `maxUnavailable` are
    /// both zero, `maxUnavailable` is one.
    fn keeps_old_pods(&self, kind: WorkloadKind) -> bool {
        let (strategy, unavailable, surge) = match kind {
            WorkloadKind::Deployment => (&self.strategy, ("25%", 0), ("25%", 99)),
            WorkloadKind::DaemonSet => (&self.update_strategy, ("1", 99), ("0", 99)),
            _ => return false,
        };
        let replicas = self.replicas().unwrap_or(1);
        let strategy = strategy.as_ref();
        let is_rolled = strategy.and_then(|it| it.kind.as_deref()).is_none_or(|it| it == "RollingUpdate");
        let rolling = strategy.and_then(|it| it.rolling_update.as_ref());
        let some = |value: Option<&NumberOrText>, (default, round_up): (&str, i64)| {
            let value = value.map_or(default, |it| it.0.as_str());
            let Some(percent) = value.strip_suffix('%') else { return value.parse().ok() };
            Some(replicas.checked_mul(percent.parse::<i64>().ok()?)?.checked_add(round_up)? / 100)
        };
        is_rolled
            && some(rolling.and_then(|it| it.max_unavailable.as_ref()), unavailable) == Some(0)
            && some(rolling.and_then(|it| it.max_surge.as_ref()), surge).is_some_and(|surge| surge > 0)
    }
}

impl Workload {
    /// Decodes a workload. A Pod has no template, so it counts as a workload with one pod.
    pub(crate) fn read<'de>(kind: WorkloadKind, document: impl Deserializer<'de> + Copy) -> Result<Self, FieldError> {
        if kind != WorkloadKind::Pod {
            return decode(document);
        }
        let Pod { metadata, spec, .. } = decode(document)?;
        let spec = WorkloadSpec { template: Some(Template { spec }), ..WorkloadSpec::default() };
        Ok(Self { metadata, spec: Some(spec), status: None })
    }

    fn spec(&self) -> Option<&WorkloadSpec> {
        let spec = self.spec.as_ref()?;
        spec.job_template.as_ref().map_or(Some(spec), |job| job.spec.as_deref())
    }

    pub(crate) fn replicas(&self) -> Option<i64> {
        self.spec()?.replicas()
    }

    pub(crate) fn pods(&self) -> Option<&PodSpec> {
        self.spec()?.template.as_ref()?.spec.as_ref()
    }

    /// The facts of a workload. `None` if the workload's pods need no port of a Linux node. Also `None` if the workload
    /// has no pods: it has 0 replicas, or is a DaemonSet that matches no node.
    pub(crate) fn facts(&self, kind: WorkloadKind) -> Result<Option<facts::Workload>, FieldError> {
        let metadata = self.metadata.as_ref().ok_or_else(|| FieldError::new("metadata.name", "absent", "a name"))?;
        let (namespace, name) = (metadata.namespace()?, metadata.name()?);
        let desired = self.status.as_ref().and_then(|status| status.desired_number_scheduled);
        let desired = desired.filter(|_| kind == WorkloadKind::DaemonSet).map(|Whole(desired)| desired);
        let replicas = self.replicas();
        if replicas == Some(0) || desired == Some(0) {
            return Ok(None);
        }
        let Some(pods) = self.pods() else { return Ok(None) };
        let affinity = pods.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let (mut selects, mut avoids) =
            affinity.and_then(|node| node.required.as_ref()).map(demands).unwrap_or_default();
        let selector = pods.node_selector.iter().flatten();
        let beyond = selector.filter(|(label, value)| !(OS.contains(&label.as_str()) && &***value == "linux"));
        selects.extend(beyond.map(|(label, value)| format!("{} In {}", super::short(label), &**value)));
        let toleration = |it: &Toleration| {
            [&it.key, &it.operator, &it.value, &it.effect].map(|word| word.as_deref().unwrap_or_default()).join(" ")
        };
        let mut tolerates: Vec<_> = pods.tolerations.iter().flatten().map(toleration).collect();
        [&mut selects, &mut avoids, &mut tolerates].into_iter().for_each(|texts| {
            texts.sort_unstable();
            texts.dedup();
        });
        let (ports, probed) = pods.ports_of_the_node(kind.pod_spec())?;
        let is_for_windows = OS.iter().any(|label| selects.contains(&format!("{label} In windows")));
        if ports.is_empty() && probed.is_empty() || is_for_windows {
            return Ok(None);
        }
        Ok(Some(facts::Workload {
            kind,
            namespace,
            name,
            replicas,
            keeps_old_pods: self.spec().is_some_and(|spec| spec.keeps_old_pods(kind)),
            host_network: pods.host_network.unwrap_or(false),
            selects,
            avoids,
            tolerates,
            ports,
            probed,
        }))
    }
}

/// The demands of a required node affinity. The second list has the demands with `NotIn` and `DoesNotExist`. A demand
/// for Linux is left out.
fn demands(required: &NodeSelector) -> (Vec<String>, Vec<String>) {
    let text = |it: &Requirement| {
        let [label, operator] = [&it.key, &it.operator].map(|word| word.as_deref().unwrap_or("?"));
        let mut values: Vec<&str> = it.values.iter().flatten().map(|value| &**value).collect();
        values.sort_unstable();
        let is_os = OS.contains(&label) && operator == "In" && values.contains(&"linux");
        (!is_os).then(|| format!("{label} {operator} {}", values.join(",")))
    };
    // A node needs to match only one of the terms, so the demands of several terms become one text with `or`.
    let of_term = |term: &NodeSelectorTerm| {
        let requirements = term.match_fields.iter().chain(&term.match_expressions).flatten();
        requirements.filter_map(text).collect::<Vec<_>>()
    };
    let terms: Vec<_> = required.node_selector_terms.iter().flatten().map(of_term).collect();
    let is_negative = |text: &String| text.contains(" NotIn ") || text.contains(" DoesNotExist ");
    match &terms[..] {
        [term] => term.iter().cloned().partition(|text| !is_negative(text)),
        terms if terms.iter().any(Vec::is_empty) => Default::default(),
        terms => (vec![terms.iter().map(|term| term.join(" and ")).collect::<Vec<_>>().join(" or ")], Vec::new()),
    }
}
