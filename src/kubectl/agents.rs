//! Flags for the connection to the cluster's agents, and the requests to the agents.

use std::{path::PathBuf, time::Duration};

use anyhow::{anyhow, bail};
use tokio::runtime::{self, Runtime};

use crate::{progress::Progress, sources::environment};
use portreeve_agent::{events::AGENT_NAMESPACE, settings::duration};
use portreeve_cluster::{Access, Agent, AgentPlace, Agents, ClusterSource, Impersonation, SourceOptions};
use portreeve_facts::Gap;

#[derive(Clone, Debug, clap::Args)]
pub(super) struct AgentFlags {
    /// The kubeconfig, instead of $KUBECONFIG or ~/.kube/config
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    context: Option<String>,
    /// Act as this user
    #[arg(long = "as", value_name = "USER", help_heading = "Cluster")]
    user: Option<String>,
    /// Act as a member of this group; may be given several times
    #[arg(long = "as-group", value_name = "GROUP", help_heading = "Cluster", requires = "user")]
    groups: Vec<String>,
    /// The time limit of one request to the API server, or through it to an agent
    #[arg(long, value_name = "DURATION", help_heading = "Cluster", default_value = "10s", value_parser = duration)]
    request_timeout: Duration,
    /// The time limit of all queries together; a partial result is printed when it ends
    #[arg(long, value_name = "DURATION", help_heading = "Agents", default_value = "10m", value_parser = duration)]
    pub(super) time_limit: Duration,
    /// The namespace of the agents
    ///
    /// You need these rights in this namespace: `list` of pods, `get` of pods/proxy, and `create` of serviceaccounts/token for
    /// the ServiceAccount of --reader.
    #[arg(long, value_name = "NAMESPACE", help_heading = "Agents", default_value = AGENT_NAMESPACE)]
    pub(super) agent_namespace: String,
    /// The ServiceAccount in this namespace whose tokens the agents accept
    ///
    /// The plugin requests a token for each agent from the API server. The token is valid for ten minutes, and only for that agent.
    #[arg(long, value_name = "NAME", help_heading = "Agents", default_value = "portreeve-reader")]
    reader: String,
    /// Query only agents whose pods have these labels, like app.kubernetes.io/instance=blue
    #[arg(short = 'l', long, value_name = "SELECTOR", help_heading = "Agents")]
    selector: Option<String>,
}

impl AgentFlags {
    pub(super) async fn connect(&self) -> anyhow::Result<Agents> {
        let impersonation = Impersonation { user: self.user.clone(), groups: self.groups.clone() };
        let place = AgentPlace { namespace: self.agent_namespace.clone(), reader: self.reader.clone() };
        Agents::connect(&self.access()?, &impersonation, place).await.map_err(failed)
    }

    /// The agents of `nodes`, or all agents if `nodes` is empty.
    ///
    /// # Errors
    /// Fails if the agents cannot be listed, or a named node has no agent.
    pub(super) async fn list(&self, agents: &Agents, nodes: &[String]) -> anyhow::Result<Vec<Agent>> {
        let progress = Progress::start();
        progress.show("listing the agents");
        let listed = agents.list(self.selector.as_deref()).await.map_err(failed)?;
        if let Some(node) = nodes.iter().find(|node| !listed.iter().any(|agent| agent.node == **node)) {
            bail!("no agent of node {node:?} is listed in namespace {}", self.agent_namespace);
        }
        Ok(listed.into_iter().filter(|agent| nodes.is_empty() || nodes.contains(&agent.node)).collect())
    }

    fn access(&self) -> anyhow::Result<Access> {
        let choice = SourceOptions {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            request_timeout: Some(self.request_timeout),
            ..SourceOptions::default()
        };
        match ClusterSource::discover(choice, &environment()) {
            ClusterSource::Api(access) => Ok(access),
            ClusterSource::Files(_) | ClusterSource::None => {
                bail!("no cluster is configured: neither --kubeconfig, nor $KUBECONFIG, nor ~/.kube/config")
            }
        }
    }
}

pub(super) fn runtime() -> anyhow::Result<Runtime> {
    Ok(runtime::Builder::new_current_thread().enable_all().build()?)
}

fn failed(gap: Gap) -> anyhow::Error {
    anyhow!(gap.detail)
}
