//! kube-proxy as it answers on loopback: its mode, its settings, its metrics, and who answers.

use std::{collections::BTreeMap, net::SocketAddr};

use jiff::Timestamp;
use serde_json::Value;

use super::http::{self, Answer};
use crate::facts::{Gap, Learned, Mode, ProxyConfig, ProxyMetrics, Reading, Source, Why, text};

/// `/proxyMode` and `/configz` are short; `/metrics` of a busy kube-proxy is about 200 KiB.
const SHORT: usize = 64 * 1024;
const METRICS: usize = 1024 * 1024;

/// The label sets of one metric that are told apart; kube-proxy has one an address family.
const LABEL_SETS: usize = 8;

/// What kube-proxy answered, and where.
pub(super) struct Answers {
    /// The place that answered `/proxyMode`, whatever it said.
    pub(super) place: Option<SocketAddr>,
    pub(super) mode: Reading<Learned<Mode>>,
    pub(super) config: Reading<ProxyConfig>,
    pub(super) metrics: Reading<ProxyMetrics>,
}

impl Answers {
    /// The same gap for each fact, under each fact's own source.
    pub(super) fn none(gap: &Gap) -> Self {
        let of = |source| Gap { source, ..gap.clone() };
        Self {
            place: None,
            mode: Reading::Gap(of(Source::ProxyMode)),
            config: Reading::Gap(of(Source::ProxyConfig)),
            metrics: Reading::Gap(of(Source::ProxyMetrics)),
        }
    }
}

/// Asks each place in turn for `/proxyMode`, and the first that names a mode for the rest. Where none does, the first
/// at which somebody listens is asked: a proxy may be too old, or not kube-proxy at all.
pub(super) async fn read(places: &[SocketAddr]) -> Answers {
    let mut somebody = None;
    let mut refused = Vec::new();
    for place in places {
        let mode = http::get(Source::ProxyMode, *place, "/proxyMode", SHORT)
            .await
            .and_then(|answer| answer.success(Source::ProxyMode))
            .and_then(|answer| mode(&answer));
        match mode {
            Ok(mode) => {
                somebody = Some((*place, Ok(mode)));
                break;
            }
            Err(gap) if gap.why == Why::Unreachable => refused.push(gap.detail),
            Err(gap) => somebody = somebody.or(Some((*place, Err(gap)))),
        }
    }
    let Some((place, mode)) = somebody else {
        return Answers::none(&Gap::new(Source::ProxyMode, Why::Unreachable, refused.join("; ")));
    };
    let of = async |source, path, limit| http::get(source, place, path, limit).await?.success(source);
    let (config, metrics) =
        tokio::join!(of(Source::ProxyConfig, "/configz", SHORT), of(Source::ProxyMetrics, "/metrics", METRICS));
    Answers {
        place: Some(place),
        mode: mode.into(),
        config: config.and_then(|answer| settings(&answer)).into(),
        metrics: metrics.and_then(|answer| measures(&answer)).into(),
    }
}

fn mode(answer: &Answer) -> Result<Learned<Mode>, Gap> {
    let word = answer.body.trim();
    let value = Mode::KUBE_PROXY
        .into_iter()
        .find(|mode| mode.name() == word)
        .ok_or_else(|| answer.malformed(Source::ProxyMode, "iptables, ipvs or nftables"))?;
    Ok(Learned { value, place: answer.place.clone() })
}

/// The object `kubeproxy.config.k8s.io`. kube-proxy shows its internal type, whose fields have Go's names and moved
/// between releases (cmd/kube-proxy/app/server.go `cz.Set(config)`, pkg/proxy/apis/config/types.go); so names are
/// compared without case, and the cluster's CIDRs looked for in both places.
fn settings(answer: &Answer) -> Result<ProxyConfig, Gap> {
    let malformed = |wanted| answer.malformed(Source::ProxyConfig, wanted);
    let document: Value = serde_json::from_str(&answer.body).map_err(|_| malformed("JSON"))?;
    let config = field(&document, "kubeproxy.config.k8s.io")
        .filter(|config| config.is_object())
        .ok_or_else(|| malformed("the object kubeproxy.config.k8s.io"))?;
    let text_of = |value: Option<&Value>| value.and_then(Value::as_str).map(|word| text::clean(word, text::NAME));
    let listed = |value: Option<&Value>| match value {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::Array(words)) => words.iter().map(|word| text_of(Some(word))).collect(),
        Some(_) => None,
    };
    let node_port_addresses =
        listed(field(config, "nodePortAddresses")).ok_or_else(|| malformed("nodePortAddresses as a list of CIDRs"))?;
    let bind_address = match text_of(field(config, "bindAddress")).filter(|word| !word.is_empty()) {
        Some(word) => Some(word.parse().map_err(|_| malformed("bindAddress as an IP address"))?),
        None => None,
    };
    let cidrs = field(config, "detectLocal").and_then(|detect| listed(field(detect, "clusterCIDRs")));
    Ok(ProxyConfig {
        place: answer.place.clone(),
        mode: text_of(field(config, "mode")),
        node_port_addresses,
        localhost_node_ports: field(config, "iptables")
            .and_then(|iptables| field(iptables, "localhostNodePorts"))
            .and_then(Value::as_bool),
        bind_address,
        detect_local_mode: text_of(field(config, "detectLocalMode")),
        cluster_cidr: text_of(field(config, "clusterCIDR")).or(cidrs.map(|cidrs| cidrs.join(","))),
    })
}

/// A field of an object by its name in any case.
fn field<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    object.as_object()?.iter().find_map(|(key, value)| key.eq_ignore_ascii_case(name).then_some(value))
}

/// The few series of `/metrics` that rules use (Prometheus text format 0.0.4).
fn measures(answer: &Answer) -> Result<ProxyMetrics, Gap> {
    let mut metrics = ProxyMetrics::default();
    // kube-proxy of 1.33 and later tells the families apart.
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
    // The family that lags most speaks for the proxy.
    let lag = |(synced, queued): &(f64, f64)| queued - synced;
    if let Some((synced, queued)) = syncs.into_values().max_by(|one, other| lag(one).total_cmp(&lag(other))) {
        (metrics.last_sync, metrics.last_queued) = (moment(synced), moment(queued));
    }
    if metrics == ProxyMetrics::default() {
        return Err(answer.malformed(Source::ProxyMetrics, "the metrics of kube-proxy"));
    }
    Ok(metrics)
}

/// Name, labels without braces, and the rest of a line.
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

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and a float saturates")]
fn whole(value: f64) -> u64 {
    value as u64
}

/// Seconds since 1970; the gauge is 0 until it is first set.
#[allow(clippy::cast_possible_truncation, reason = "a float saturates, and Timestamp refuses what is out of range")]
fn moment(seconds: f64) -> Option<Timestamp> {
    (seconds > 0.0).then(|| Timestamp::from_millisecond((seconds * 1000.0) as i64).ok())?
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;
    use proptest::prelude::*;

    use super::*;

    fn answer(path: &str, body: &str) -> Answer {
        Answer { place: format!("127.0.0.1:10249{path}"), status: StatusCode::OK, body: body.to_owned() }
    }

    // The shape of pkg/proxy/apis/config/types.go in kube-proxy 1.36: Go's names, since the internal type has no tags.
    const CONFIGZ: &str = r#"{"kubeproxy.config.k8s.io":{"Linux":{"MasqueradeAll":false,"OOMScoreAdj":-999},
        "FeatureGates":{},"HostnameOverride":"n1","BindAddress":"0.0.0.0","HealthzBindAddress":"0.0.0.0:10256",
        "MetricsBindAddress":"127.0.0.1:10249","Mode":"nftables",
        "IPTables":{"MasqueradeBit":14,"LocalhostNodePorts":true},"DetectLocalMode":"ClusterCIDR",
        "DetectLocal":{"BridgeInterface":"","ClusterCIDRs":["10.244.0.0/16","fd00::/56"],"InterfaceNamePrefix":""},
        "NodePortAddresses":["primary"]}}"#;

    #[test]
    fn a_mode_is_one_of_kube_proxy_s_own_words() {
        assert_eq!(mode(&answer("/proxyMode", "ipvs\n")).unwrap().value, Mode::Ipvs);
        for wrong in ["", "cilium", "<!DOCTYPE html><html>", "userspace", "iptables ipvs"] {
            assert_eq!(mode(&answer("/proxyMode", wrong)).unwrap_err().why, Why::Malformed, "{wrong:?}");
        }
        let gap = mode(&answer("/proxyMode", "<html>\u{1b}[31m\u{202e}")).unwrap_err();
        let want = r#"127.0.0.1:10249/proxyMode answered "<html>[31m", wanted iptables, ipvs or nftables"#;
        assert_eq!(gap.detail, want);
    }

    #[test]
    fn settings_are_read_in_go_s_names() {
        assert_eq!(
            settings(&answer("/configz", CONFIGZ)).unwrap(),
            ProxyConfig {
                place: "127.0.0.1:10249/configz".to_owned(),
                mode: Some("nftables".to_owned()),
                node_port_addresses: vec!["primary".to_owned()],
                localhost_node_ports: Some(true),
                bind_address: Some("0.0.0.0".parse().unwrap()),
                detect_local_mode: Some("ClusterCIDR".to_owned()),
                cluster_cidr: Some("10.244.0.0/16,fd00::/56".to_owned()),
            }
        );
    }

    #[test]
    fn settings_are_read_in_the_file_s_names_too_and_absent_ones_stay_absent() {
        let body = r#"{"kubeproxy.config.k8s.io":{"mode":"","iptables":{"localhostNodePorts":false},
            "nodePortAddresses":null,"clusterCIDR":"10.1.0.0/16","bindAddress":""}}"#;
        let config = settings(&answer("/configz", body)).unwrap();
        assert_eq!(config.mode.as_deref(), Some(""));
        assert_eq!(config.localhost_node_ports, Some(false));
        assert_eq!(config.node_port_addresses, Vec::<String>::new());
        assert_eq!(config.bind_address, None);
        assert_eq!(config.cluster_cidr.as_deref(), Some("10.1.0.0/16"));
        assert_eq!(config.detect_local_mode, None);
    }

    #[test]
    fn settings_that_are_something_else_are_malformed() {
        for wrong in [
            "<html>",
            "{}",
            "[]",
            r#"{"kubeproxy.config.k8s.io":7}"#,
            r#"{"kubeproxy.config.k8s.io":{"NodePortAddresses":"primary"}}"#,
            r#"{"kubeproxy.config.k8s.io":{"NodePortAddresses":[7]}}"#,
            r#"{"kubeproxy.config.k8s.io":{"BindAddress":"everywhere"}}"#,
        ] {
            assert_eq!(settings(&answer("/configz", wrong)).unwrap_err().why, Why::Malformed, "{wrong}");
        }
    }

    // The series of kube-proxy 1.36 (pkg/proxy/metrics/metrics.go), the family that hangs second.
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
            measures(&answer("/metrics", SERIES)).unwrap(),
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
    fn a_proxy_that_never_synced_has_no_moment_of_it() {
        let never = "process_open_fds 9\nkubeproxy_sync_proxy_rules_last_timestamp_seconds 0\n";
        assert_eq!(measures(&answer("/metrics", never)).unwrap().last_sync, None);
    }

    #[test]
    fn a_page_without_these_metrics_or_with_nonsense_in_them_is_malformed() {
        for wrong in ["<html></html>", "", "up 1", "process_max_fds many", "process_max_fds NaN", "process_open_fds -1"]
        {
            assert_eq!(measures(&answer("/metrics", wrong)).unwrap_err().why, Why::Malformed, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_body_is_read_or_refused(body in "((process_max_fds|kubernetes_build_info|git_version=\"|[{}\" 0-9eE+-]){0,6}\n?){0,3}", cut in any::<usize>()) {
            if let Ok(metrics) = measures(&answer("/metrics", &body)) {
                prop_assert!(metrics != ProxyMetrics::default());
            }
            let mut end = cut % CONFIGZ.len();
            while !CONFIGZ.is_char_boundary(end) { end -= 1; }
            prop_assert!(settings(&answer("/configz", &CONFIGZ[..end])).is_err());
        }
    }
}
