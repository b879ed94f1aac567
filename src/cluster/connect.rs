//! From a kubeconfig or a service account to a client.

use std::{path::PathBuf, time::Duration};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::{runtime::Handle, task, time};
use tracing::warn;

use super::error::{Error, causes};

/// How long credentials that cannot be used are left alone.
const AGAIN: Duration = Duration::from_secs(15);

/// How to reach an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Who to be, and where to go.
    pub credentials: Credentials,
    /// How long each request may take.
    pub request_timeout: Duration,
}

impl Access {
    /// `--request-timeout` where nobody says otherwise.
    pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
}

/// Who to be, and where to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// A context of the merged files, the current one unless it is named.
    Kubeconfig {
        /// The files; the first that sets a value wins, as in `$KUBECONFIG`.
        paths: Vec<PathBuf>,
        /// `--context`.
        context: Option<String>,
    },
    /// The service account of the pod this runs in.
    InCluster,
}

/// A client for what is written to the cluster. Credentials that cannot be used now are tried again until they can.
pub async fn client(access: Access) -> Client {
    let mut told = false;
    loop {
        match connect(&access).await {
            Ok((client, _)) => return client,
            Err(error) if !told => warn!(%error, "cannot write to the cluster yet"),
            Err(_) => {}
        }
        told = true;
        time::sleep(AGAIN).await;
    }
}

/// A client, and the address it talks to.
pub(super) async fn connect(access: &Access) -> Result<(Client, String), Error> {
    let place = match &access.credentials {
        Credentials::Kubeconfig { paths, .. } => {
            let paths: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
            format!("kubeconfig {}", paths.join(", "))
        }
        Credentials::InCluster => "service account".to_owned(),
    };
    let unusable = |what: String| Error::Credentials { place: place.clone(), what };
    let wanted = access.clone();
    // Files are read and credential plug-ins are run in here; both can hang.
    let runtime = Handle::current();
    let made = task::spawn_blocking(move || runtime.block_on(make(&wanted)));
    match time::timeout(access.request_timeout, made).await {
        Err(_) => Err(Error::TimedOut { request: place, limit: access.request_timeout }),
        Ok(Err(panicked)) => Err(unusable(panicked.to_string())),
        Ok(Ok(made)) => made.map_err(unusable),
    }
}

async fn make(access: &Access) -> Result<(Client, String), String> {
    let mut config = match &access.credentials {
        Credentials::InCluster => Config::incluster().map_err(|error| causes(&error))?,
        Credentials::Kubeconfig { paths, context } => {
            let mut merged = Kubeconfig::default();
            for path in paths {
                let next = Kubeconfig::read_from(path).map_err(|error| causes(&error))?;
                merged = merged.merge(next).map_err(|error| causes(&error))?;
            }
            let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
            Config::from_custom_kubeconfig(merged, &options).await.map_err(|error| causes(&error))?
        }
    };
    config.connect_timeout = Some(access.request_timeout);
    // Each request has its own limit; on a connection, it would end a watch on which nothing happens.
    config.read_timeout = None;
    // Retries are decided where the answer is judged.
    config.default_retry = false;
    let address = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    let client = Client::try_from(config).map_err(|error| causes(&error))?;
    Ok((client, address))
}
