//! The source of the cluster's facts. The first configured source in a fixed order is used.

use std::{env, ffi::OsString, path::PathBuf, time::Duration};

use super::{
    connect::{Access, ApiServer, Credentials},
    input::Input,
};

/// The source of the cluster's facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterSource {
    /// `--services`: output of `kubectl get`, or manifests.
    Files(Vec<Input>),
    /// An API server.
    Api(Access),
    /// No source for the cluster. Portreeve still runs the rules that need only the node.
    None,
}

/// The options that choose the source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceOptions {
    /// The values of `--services`.
    pub services: Vec<Input>,
    /// `--kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// `--context`.
    pub context: Option<String>,
    /// `--apiserver`, parsed as an [`ApiServer`].
    pub api_server: Option<ApiServer>,
    /// `--request-timeout`.
    pub request_timeout: Option<Duration>,
}

/// The environment variables that choose the source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `$KUBECONFIG`: a list of paths as in `$PATH`.
    pub kubeconfig: Option<OsString>,
    /// `$HOME`.
    pub home: Option<PathBuf>,
    /// Whether `$KUBERNETES_SERVICE_HOST` is set, as in every pod.
    pub in_cluster: bool,
}

impl ClusterSource {
    /// The first configured source in this order: `--services`, `--kubeconfig` or `--context`, the pod's service
    /// account, `$KUBECONFIG`, `~/.kube/config`, none.
    pub fn discover(chosen: SourceOptions, environment: &Environment) -> Self {
        let SourceOptions { services, kubeconfig, context, api_server, request_timeout } = chosen;
        if !services.is_empty() {
            return Self::Files(services);
        }
        let request_timeout = request_timeout.unwrap_or(Access::REQUEST_TIMEOUT);
        // If the user named a context or a server, a missing kubeconfig is an error.
        let named = context.is_some() || api_server.is_some();
        let api = |credentials| Self::Api(Access { credentials, api_server: api_server.clone(), request_timeout });
        let from_files = |paths, context| api(Credentials::Kubeconfig { paths, context });
        if let Some(path) = kubeconfig {
            return from_files(vec![path], context);
        }
        if environment.in_cluster && context.is_none() {
            return api(Credentials::InCluster);
        }
        let listed: Vec<PathBuf> = environment.kubeconfig.iter().flat_map(env::split_paths).collect();
        let mut listed: Vec<_> = listed.into_iter().filter(|path| !path.as_os_str().is_empty()).collect();
        let own = environment.home.as_ref().map(|home| home.join(".kube/config"));
        if listed.is_empty() {
            // If this process may not read the home directory, the kubeconfig counts as absent.
            listed.extend(own.filter(|path| named || path.try_exists().unwrap_or(false)));
        }
        if listed.is_empty() && !named { Self::None } else { from_files(listed, context) }
    }
}
