//! Flags that say where the facts come from, and the snapshot that is taken with them.

use std::{collections::BTreeSet, env, path::PathBuf, time::Duration};

use anyhow::{Context, anyhow};

use super::{console::Console, progress::Progress};
use portreeve_agent::{SnapshotSources, now, settings::duration};
use portreeve_cluster::{ApiServer, ClusterSource, Environment, Input, SourceOptions};
use portreeve_facts::{ClusterFacts, Gap, Learned, Mode, NodePortRange, Overrides, PortRange, Snapshot, Source};
use portreeve_kernel::Host;
use portreeve_report::unread_in_words;

/// Prints what is wrong with the source, before anything else: one line, however much it is. Of an API server that is why it
/// says nothing of Services, as with a kubeconfig that is none. Where the cluster is well, it is what of the node was not read.
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

// Where the facts come from.
#[derive(Debug, clap::Args)]
pub(super) struct Sources {
    /// Read the cluster from a file, `-` for standard input: any `kubectl get ... -o yaml` or `-o json`
    ///
    /// Services, EndpointSlices, Pods and Nodes, in one file or several, as lists or as documents. What is not in
    /// there is not known: `kubectl get services,endpointslices,pods,nodes -A -o yaml
    /// --show-managed-fields` has everything.
    /// Of DaemonSets, Deployments and StatefulSets, the ports that their pods will want are compared with NodePorts.
    #[arg(long, value_name = "FILE", help_heading = "Sources")]
    services: Vec<PathBuf>,
    /// Read the cluster from an API server, with this kubeconfig
    #[arg(long, value_name = "FILE", help_heading = "Sources", conflicts_with = "services")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME", help_heading = "Sources", conflicts_with = "services")]
    context: Option<String>,
    /// Reach the API server here instead, like https://192.0.2.10:6443, with the same credentials
    ///
    /// For a cluster whose own way to its API server, a Service, is what is broken. The server has to prove that it is
    /// the one that is meant: by its certificate, for the name in the kubeconfig, or in a pod for kubernetes.default.svc.
    #[arg(long = "apiserver", value_name = "URL", help_heading = "Sources", conflicts_with = "services")]
    api_server: Option<ApiServer>,
    /// How long the API server may be silent: until an answer begins, and until more of it comes
    #[arg(long, value_name = "DURATION", help_heading = "Sources", default_value = "10s", value_parser = duration)]
    request_timeout: Duration,
    /// This node's name in the cluster, where it is not its hostname
    #[arg(long, value_name = "NAME", help_heading = "Sources", env = "NODE_NAME")]
    node: Option<String>,
    /// The proxy mode, instead of asking kube-proxy: iptables, ipvs, nftables or cilium
    #[arg(long, value_name = "MODE", help_heading = "Sources")]
    proxy_mode: Option<Mode>,
    /// The API server's --service-node-port-range, instead of looking for it
    #[arg(long, value_name = "FIRST-LAST", help_heading = "Sources")]
    node_port_range: Option<PortRange>,
    /// Where the node's root is mounted, or a recorded tree of /proc and /sys
    #[arg(long, value_name = "DIR", help_heading = "Sources", default_value = "/")]
    host_root: PathBuf,
}

impl Sources {
    /// Takes a snapshot without what is skipped. Command lines are kept only for a person at this node.
    pub(super) fn snapshot(
        self,
        skipped: BTreeSet<Source>,
        command_lines: bool,
        console: &Console,
    ) -> anyhow::Result<Snapshot> {
        self.snapshot_of(None, skipped, command_lines, console)
    }

    /// The same with everything, and with the owners of sockets on this port.
    pub(super) fn snapshot_with_port(
        self,
        port: u16,
        command_lines: bool,
        console: &Console,
    ) -> anyhow::Result<Snapshot> {
        self.snapshot_of(Some(port), BTreeSet::new(), command_lines, console)
    }

    fn snapshot_of(
        self,
        port: Option<u16>,
        skipped: BTreeSet<Source>,
        command_lines: bool,
        console: &Console,
    ) -> anyhow::Result<Snapshot> {
        let Self {
            services,
            kubeconfig,
            context,
            api_server,
            request_timeout,
            node,
            proxy_mode,
            node_port_range,
            host_root,
        } = self;
        let choice = SourceOptions {
            services: services.into_iter().map(Input::from).collect(),
            kubeconfig,
            context,
            api_server,
            request_timeout: Some(request_timeout),
        };
        let sources = SnapshotSources {
            cluster: ClusterSource::discover(choice, &environment()),
            // A variable that is set to nothing names no node.
            node: node.filter(|node| !node.is_empty()),
            host: Host::at(host_root),
            overrides: Overrides {
                proxy_mode: proxy_mode.map(|value| Learned { value, place: "--proxy-mode".to_owned() }),
            },
            node_port_range: node_port_range.map(|range| NodePortRange::configured(range, "--node-port-range")),
            owner_ports: port.into_iter().collect(),
            skipped,
            command_lines,
        };
        let progress = Progress::start();
        let snapshot = sources.gather(now(), |step| progress.show(step)).context("starting the runtime")?;
        drop(progress);
        complain(&sources.cluster, &snapshot, console);
        Ok(snapshot)
    }
}

/// Where a cluster may be found, as the environment says.
pub(super) fn environment() -> Environment {
    Environment {
        kubeconfig: env::var_os("KUBECONFIG"),
        home: env::var_os("HOME").map(PathBuf::from),
        in_cluster: env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
    }
}
