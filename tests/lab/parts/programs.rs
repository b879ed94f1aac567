//! Where the programs are: in `$KUBEBUILDER_ASSETS`, on the `PATH`, or where `make lab` built them, in this order.

use std::{env, path::PathBuf};

const MODULES: &str = include_str!("../go.mod");

/// The path of a program.
///
/// # Panics
/// When it is nowhere: these tests have no smaller version that means anything.
pub fn find(program: &str) -> PathBuf {
    let assets = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = assets.into_iter().chain(env::split_paths(&path)).chain([built()]).collect();
    places
        .iter()
        .map(|place| place.join(program))
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("no {program} in {places:?}: run `make lab`"))
}

/// The Makefile's `CACHE`.
pub fn cache() -> PathBuf {
    let of_home = || PathBuf::from(env::var_os("HOME").expect("a home directory")).join(".cache");
    let cache = env::var_os("XDG_CACHE_HOME").filter(|it| !it.is_empty()).map_or_else(of_home, PathBuf::from);
    cache.join("portreeve")
}

/// The Makefile's `LAB`.
fn built() -> PathBuf {
    env::var_os("PORTREEVE_LAB").map_or_else(|| cache().join("lab").join(pinned()), PathBuf::from)
}

/// The version of Kubernetes in `go.mod`.
fn pinned() -> &'static str {
    let line = MODULES.lines().find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes "));
    line.and_then(|rest| rest.split(' ').next()).expect("go.mod requires k8s.io/kubernetes")
}
