//! What the environment says, in our types.

use std::{env, path::PathBuf};

use portreeve_cluster::Environment;

/// Where a cluster may be found.
pub(super) fn environment() -> Environment {
    Environment {
        kubeconfig: env::var_os("KUBECONFIG"),
        home: env::var_os("HOME").map(PathBuf::from),
        in_cluster: env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
    }
}
