//! Flags for the sources of the facts, and the snapshot that is read from these sources.

use std::{
    collections::BTreeSet,
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use clap::builder::PossibleValue;

use super::{
    command_line::UsageError,
    console::Console,
    progress::Progress,
    scope::{NodeResults, Scope, Wanted},
    snapshot_files,
    words::{Words, wanted},
};
use portreeve_agent::{SnapshotSources, now, settings::duration};
use portreeve_cluster::{ApiServer, ClusterSource, Environment, Input, SourceOptions};
use portreeve_facts::{
    ClusterFacts, Gap, Learned, Mode, NodePortRange, NotAMode, Overrides, PortRange, PortSet, Snapshot, Source,
};
use portreeve_kernel::Host;
use portreeve_report::{NodeScan, unread_in_words};

/// Prints an error line for the first of these problems: a file has a rejected object, Services were not read (a broken
/// kubeconfig is one reason), or a core input of the node was not read.
fn complain(source: &ClusterSource, snapshot: &Snapshot, console: &Console) {
    let of_cluster = complaint(source, &snapshot.cluster);
    if let Some(what) = of_cluster.or_else(|| unread_in_words(snapshot)) {
        console.print_error(&anyhow!(what));
    }
}

fn complaint(source: &ClusterSource, cluster: &ClusterFacts) -> Option<String> {
    let rejected: &[Gap] = match source {
        ClusterSource::Files(_) => &cluster.rejected,
        ClusterSource::Api(_) => &[],
        ClusterSource::None => return None,
    };
    let first = rejected.first().or(cluster.services.gap())?;
    let more = match rejected.len() {
        0 | 1 => String::new(),
        more => format!(" (and {} more)", more - 1),
    };
    Some(format!("{}{more}", first.detail))
}

const MODE: Words<Mode> = Words { words: modes, parse: mode };

fn modes() -> Vec<PossibleValue> {
    Mode::ALL.iter().map(|mode| PossibleValue::new(mode.name())).collect()
}

fn mode(typed: &str) -> Result<Mode, String> {
    typed.parse().map_err(|error: NotAMode| wanted(&error.to_string(), typed, &modes()))
}

#[derive(Debug, clap::Args)]
pub(super) struct Sources {
    /// Read a file that `snapshot` wrote, instead of this node; `-` is standard input. Only `suggest`, `reserve`, `what-if` and
    /// `policies` take several files, one for each node
    #[arg(long = "snapshot", value_name = "FILE", help_heading = "Sources", conflicts_with_all = ["services", "kubeconfig", "context", "api_server", "proxy_mode", "node_port_range"])]
    snapshots: Vec<PathBuf>,
    /// Read the cluster from a file with the output of `kubectl get ... -o yaml` or `-o json`; `-` is standard input
    ///
    /// The objects are Services, EndpointSlices, Pods and Nodes, in one file or several, as lists or as documents. Other objects are
    /// ignored: `kubectl get services,endpointslices,pods,nodes -A -o yaml --show-managed-fields` has everything. The ports in the pod
    /// templates of DaemonSets, Deployments and StatefulSets are compared with NodePorts.
    #[arg(long, value_name = "FILE", help_heading = "Sources")]
    services: Vec<PathBuf>,
    /// Read the cluster from an API server, with this kubeconfig
    #[arg(long, value_name = "FILE", help_heading = "Sources", conflicts_with = "services")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME", help_heading = "Sources", conflicts_with = "services")]
    context: Option<String>,
    /// The address of the API server, like https://192.0.2.10:6443, instead of the kubeconfig's, with the same credentials
    ///
    /// Use this flag if the Service of the API server is broken. The server's certificate must have the name in the kubeconfig; in a pod,
    /// kubernetes.default.svc.
    #[arg(long = "apiserver", value_name = "URL", help_heading = "Sources", conflicts_with = "services")]
    api_server: Option<ApiServer>,
    /// The time limit for each pause of the API server, before and within an answer
    #[arg(long, value_name = "DURATION", help_heading = "Sources", default_value = "10s", value_parser = duration)]
    request_timeout: Duration,
    /// The name of this node's Node object, if it is not the hostname
    #[arg(long, value_name = "NAME", help_heading = "Sources", env = "NODE_NAME")]
    node: Option<String>,
    /// The proxy mode, if kube-proxy does not report its mode
    #[arg(long, value_name = "MODE", help_heading = "Sources", value_parser = MODE)]
    proxy_mode: Option<Mode>,
    /// The API server's --service-node-port-range, if Portreeve does not find it
    #[arg(long, value_name = "FIRST-LAST", help_heading = "Sources")]
    node_port_range: Option<PortRange>,
    /// The directory with the root file system of the node, or with a recorded tree of /proc and /sys
    #[arg(long, value_name = "DIR", help_heading = "Sources", default_value = "/")]
    pub(super) host_root: PathBuf,
}

impl Sources {
    pub(super) fn is_live(&self) -> bool {
        self.snapshots.is_empty()
    }

    /// Reads a snapshot from all sources, with the owners of sockets on the given ports, and the network of the given
    /// pod `namespace/name`. Command lines of processes are kept only if `command_lines` is true.
    pub(super) fn snapshot(
        self,
        ports_and_pod: (PortSet, Option<String>),
        skipped: BTreeSet<Source>,
        command_lines: bool,
        console: &Console,
    ) -> anyhow::Result<Snapshot> {
        match self.snapshots.as_slice() {
            [] => {}
            [file] => return snapshot_files::read(file),
            _ => {
                return Err(UsageError("this verb takes only one --snapshot FILE".to_owned()).into());
            }
        }
        let sources = self.gathering(ports_and_pod, skipped, command_lines);
        let progress = Progress::start();
        let snapshot = sources.gather(now(), |step| progress.show(step)).context("starting the runtime")?;
        drop(progress);
        complain(&sources.cluster, &snapshot, console);
        Ok(snapshot)
    }

    pub(super) fn gathering(
        self,
        (owner_ports, pod): (PortSet, Option<String>),
        skipped: BTreeSet<Source>,
        command_lines: bool,
    ) -> SnapshotSources {
        let choice = SourceOptions {
            services: self.services.into_iter().map(Input::from).collect(),
            kubeconfig: self.kubeconfig,
            context: self.context,
            api_server: self.api_server,
            request_timeout: Some(self.request_timeout),
        };
        SnapshotSources {
            cluster: ClusterSource::discover(choice, &environment()),
            // An empty variable NODE_NAME names no node.
            node: self.node.filter(|node| !node.is_empty()),
            host: Host::at(self.host_root),
            overrides: Overrides {
                proxy_mode: self.proxy_mode.map(|value| Learned { value, place: "--proxy-mode".to_owned() }),
                ..Overrides::default()
            },
            node_port_range: self.node_port_range.map(|range| NodePortRange::configured(range, "--node-port-range")),
            owner_ports,
            pod,
            skipped,
            command_lines,
        }
    }
}

impl Scope for Sources {
    fn is_this_node(&self) -> bool {
        self.is_live() && self.host_root == Path::new("/")
    }

    fn judge<T>(
        self,
        wanted: &Wanted,
        console: &Console,
        mut judge: impl FnMut(&Snapshot) -> Result<T, Gap>,
    ) -> anyhow::Result<NodeResults<T>> {
        let mut results: Vec<(String, Result<T, Gap>)> = Vec::new();
        let mut nodes: Vec<NodeScan> = Vec::new();
        let mut take = |snapshot: &Snapshot| {
            let node = snapshot.node_name().to_owned();
            let is_new = results.iter().all(|(other, _)| *other != node);
            nodes.push(NodeScan::of(snapshot));
            results.push((node, judge(snapshot)));
            is_new
        };
        if self.is_live() {
            let searched = (wanted.searched.clone(), None);
            take(&self.snapshot(searched, wanted.skipped.clone(), false, console)?);
        } else {
            for file in &self.snapshots {
                let snapshot = snapshot_files::read(file)?;
                if !take(&snapshot) {
                    let node = snapshot.node_name();
                    bail!("{} is a second snapshot of node {node}: give one snapshot for each node", file.display());
                }
            }
        }
        nodes.sort_by(|a, b| a.node.cmp(&b.node));
        let scope = match results.as_slice() {
            [(node, _)] => format!("node {node} only"),
            several => format!("the {} nodes of these snapshots only", several.len()),
        };
        Ok(NodeResults { results, nodes, partial: None, guarded: Ok(BTreeSet::new()), oldest: None, scope })
    }
}

pub(super) fn environment() -> Environment {
    Environment {
        kubeconfig: env::var_os("KUBECONFIG"),
        home: env::var_os("HOME").map(PathBuf::from),
        in_cluster: env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
    }
}
