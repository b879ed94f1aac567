//! Where the programs are: in `$KUBEBUILDER_ASSETS`, on the `PATH`, or where `tools/install` built them, in this order.

use std::{env, path::PathBuf};

const KUBERNETES: &str = include_str!("../go.mod");
const OLD_PROXY: &str = include_str!("../kube-proxy-1.23/go.mod");
const NEW_PROXY: &str = include_str!("../kube-proxy-1.37/go.mod");
const CNI: &str = include_str!("../cni-1.9/go.mod");
const HELM: &str = include_str!("../helm/go.mod");
const CILIUM: &str = include_str!("../cilium-1.20/go.mod");
const CILIUM_BEFORE: &str = include_str!("../cilium-1.19/go.mod");
/// Every program that `tools/install` installs: its set first, then its kind and its name.
const VERSIONS: &str = include_str!("../../../tools/versions");

/// The path of a program.
///
/// # Panics
/// When it is nowhere: these tests have no smaller version that means anything.
pub fn find(program: &str) -> PathBuf {
    let assets = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = assets.into_iter().chain(env::split_paths(&path)).chain([built(program)]).collect();
    places
        .iter()
        .map(|place| place.join(program))
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("no {program} in {places:?}: {}", advice(program)))
}

/// Where `tools/install` keeps what it made.
pub fn cache() -> PathBuf {
    let of_home = || PathBuf::from(env::var_os("HOME").expect("a home directory")).join(".cache");
    let cache = env::var_os("XDG_CACHE_HOME").filter(|it| !it.is_empty()).map_or_else(of_home, PathBuf::from);
    cache.join("portreeve")
}

/// What installs a program that is nowhere. The verbs install other sets each, and a test is also run without a verb.
fn advice(program: &str) -> String {
    let mut rows = VERSIONS.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    match rows.find(|row| row.get(2) == Some(&program)) {
        Some(row) => format!("run `tools/install {}`", row[0]),
        None => "tools/versions does not list it".to_owned(),
    }
}

/// The folder that `tools/install` makes for it: each program's row of `tools/versions` names a module of its `go.mod`.
fn built(program: &str) -> PathBuf {
    let (place, version) = match program {
        "helm" => ("helm", pinned(HELM, "helm.sh/helm/v4")),
        "cilium-agent" | "cilium-cni" => ("cilium", pinned(CILIUM, "github.com/cilium/cilium")),
        "cilium-agent-before" | "cilium-cni-before" => ("cilium", pinned(CILIUM_BEFORE, "github.com/cilium/cilium")),
        "etcd" => ("lab", pinned(KUBERNETES, "go.etcd.io/etcd/server/v3")),
        "kube-proxy-1.23.6" => ("lab", pinned(OLD_PROXY, "k8s.io/kubernetes")),
        "kube-proxy-1.37.2" => ("lab", pinned(NEW_PROXY, "k8s.io/kubernetes")),
        "portmap-1.9.0" => ("lab", pinned(CNI, "github.com/containernetworking/plugins")),
        _ => ("lab", pinned(KUBERNETES, "k8s.io/kubernetes")),
    };
    cache().join(place).join(version)
}

/// The version of a module that a `go.mod` requires.
fn pinned(modules: &'static str, module: &str) -> &'static str {
    let mut lines = modules.lines().map(|line| line.trim().trim_start_matches("require "));
    let line = lines.find_map(|line| line.strip_prefix(module)?.strip_prefix(' '));
    line.and_then(|rest| rest.split(' ').next()).unwrap_or_else(|| panic!("no go.mod requires {module}"))
}
