//! The name of a finding in a document.

use serde_json::Value;

/// The name of a finding, for example `node-port-claimed-twice/lost`. An unknown result has the names of all variants:
/// `health-check-unserved/nobody,other,one-family`.
#[allow(dead_code, reason = "not every package of tests that has this file prints names")]
pub(crate) fn name(entry: &Value) -> String {
    let variants: Vec<&str> = variants(entry).collect();
    format!("{}/{}", entry["rule"].as_str().unwrap_or_default(), variants.join(","))
}

/// Whether the finding has this id, or this `id/variant`.
pub(crate) fn is_of(entry: &Value, named: &str) -> bool {
    let (rule, variant) = named.split_once('/').map_or((named, None), |(rule, variant)| (rule, Some(variant)));
    entry["rule"] == rule && variant.is_none_or(|variant| variants(entry).any(|it| it == variant))
}

fn variants(entry: &Value) -> impl Iterator<Item = &str> {
    let all = entry["variants"].as_array().into_iter().flatten();
    all.chain([&entry["variant"]]).filter_map(Value::as_str)
}
