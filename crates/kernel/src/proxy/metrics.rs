//! The parts of kube-proxy's `/metrics` that rules use.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::http::Answer;
use portreeve_facts::{Gap, ProxyMetrics, Source, text};

/// The largest number of label sets for which sync times are kept. kube-proxy has one label set for each address
/// family.
const LABEL_SETS: usize = 8;

/// The values of `/metrics` that rules use (Prometheus text format 0.0.4).
pub fn measures(answer: &Answer) -> Result<ProxyMetrics, Gap> {
    let mut metrics = ProxyMetrics::default();
    // Since version 1.33, kube-proxy has a series for each address family.
    let mut syncs: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for line in answer.body.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, labels, rest)) = series(line) else { continue };
        let number = || {
            let value = rest.split_ascii_whitespace().next().and_then(|word| word.parse::<f64>().ok());
            value
                .filter(|value| value.is_finite() && *value >= 0.0)
                .ok_or_else(|| answer.malformed(Source::ProxyMetrics, &format!("{name} as a number")))
        };
        match name {
            "process_max_fds" => metrics.max_fds = Some(whole(number()?)),
            "process_open_fds" => metrics.open_fds = Some(whole(number()?)),
            "kubernetes_build_info" => metrics.version = label(labels, "git_version"),
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
            | "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds"
                if syncs.len() < LABEL_SETS || syncs.contains_key(labels) =>
            {
                let (synced, queued) = syncs.entry(labels).or_default();
                *(if name.contains("queued") { queued } else { synced }) = number()?;
            }
            _ => {}
        }
    }
    // If the address families differ, the family with the largest lag is used.
    let lag = |(synced, queued): &(f64, f64)| queued - synced;
    if let Some((synced, queued)) = syncs.into_values().max_by(|one, other| lag(one).total_cmp(&lag(other))) {
        (metrics.last_sync, metrics.last_queued) = (moment(synced), moment(queued));
    }
    if metrics == ProxyMetrics::default() {
        return Err(answer.malformed(Source::ProxyMetrics, "the metrics of kube-proxy"));
    }
    Ok(metrics)
}

/// The name, the labels without braces, and the value part of a line.
fn series(line: &str) -> Option<(&str, &str, &str)> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    match rest.strip_prefix('{') {
        Some(rest) => rest.rsplit_once('}').map(|(labels, rest)| (name, labels, rest)),
        None => Some((name, "", rest)),
    }
}

fn label(labels: &str, name: &str) -> Option<String> {
    let from = labels.find(&format!("{name}=\""))? + name.len() + 2;
    let value = labels.get(from..)?;
    Some(text::clean(&value[..value.find('"')?], 64))
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative, and a cast of a float saturates"
)]
fn whole(value: f64) -> u64 {
    value as u64
}

/// A time from seconds since 1970. `None` for 0, because the gauge is 0 until kube-proxy sets it.
#[allow(
    clippy::cast_possible_truncation,
    reason = "a cast of a float saturates, and Timestamp refuses a value out of range"
)]
fn moment(seconds: f64) -> Option<Timestamp> {
    (seconds > 0.0).then(|| Timestamp::from_millisecond((seconds * 1000.0) as i64).ok())?
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;
    use proptest::prelude::*;

    use super::*;
    use portreeve_facts::Why;

    fn answer(body: &str) -> Answer {
        Answer { place: "127.0.0.1:10249/metrics".to_owned(), status: StatusCode::OK, body: body.to_owned() }
    }

    // The series of kube-proxy 1.36 (pkg/proxy/metrics/metrics.go). The second address family has a lag.
    const SERIES: &str = r#"# HELP process_max_fds Maximum number of open file descriptors.
# TYPE process_max_fds gauge
process_max_fds 1.048576e+06
process_open_fds 17
kubernetes_build_info{build_date="2026-01-01T00:00:00Z",git_version="v1.36.3",platform="linux/amd64"} 1
kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1.7e+09
kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 1.7e+09
kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv6"} 1.6e+09
kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv6"} 1.7000000005e+09
"#;

    #[test]
    fn metrics_name_limits_version_and_the_family_that_lags() {
        assert_eq!(
            measures(&answer(SERIES)).unwrap(),
            ProxyMetrics {
                max_fds: Some(1_048_576),
                open_fds: Some(17),
                version: Some("v1.36.3".to_owned()),
                last_sync: Some(Timestamp::from_second(1_600_000_000).unwrap()),
                last_queued: Some(Timestamp::from_millisecond(1_700_000_000_500).unwrap()),
            }
        );
    }

    #[test]
    fn a_proxy_that_never_synced_has_no_sync_time() {
        let never = "process_open_fds 9\nkubeproxy_sync_proxy_rules_last_timestamp_seconds 0\n";
        assert_eq!(measures(&answer(never)).unwrap().last_sync, None);
    }

    #[test]
    fn a_page_with_missing_or_wrong_metrics_is_malformed() {
        for wrong in ["<html></html>", "", "up 1", "process_max_fds many", "process_max_fds NaN", "process_open_fds -1"]
        {
            assert_eq!(measures(&answer(wrong)).unwrap_err().why, Why::Malformed, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_page_is_read_or_refused(
            page in "((process_max_fds|kubernetes_build_info|git_version=\"|[{}\" 0-9eE+-]){0,6}\n?){0,3}",
        ) {
            if let Ok(metrics) = measures(&answer(&page)) {
                prop_assert!(metrics != ProxyMetrics::default());
            }
        }
    }
}
