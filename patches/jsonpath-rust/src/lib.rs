//! In the place of the crate `jsonpath-rust`, with the part of it that `kube` calls.
//!
//! `kube` needs it for one thing: the `auth-provider` called `gcp` of a kubeconfig, which is refused before `kube` sees it
//! (`crates/cluster/src/connect.rs`). The real crate brings `regex` and `pest` with it, and each page of the program that lies near
//! a used one is memory on every node: `docs/performance.md`.

/// What a value is asked for.
pub trait JsonPath {
    /// The values at a path.
    ///
    /// # Errors
    /// Always.
    fn query(&self, path: &str) -> Result<Vec<&Self>, String>;
}

impl JsonPath for serde_json::Value {
    fn query(&self, _: &str) -> Result<Vec<&Self>, String> {
        Err("JSONPath is not supported".to_owned())
    }
}
