//! kube-proxy's settings, from its `/configz`.

use serde_json::Value;

use crate::http::Answer;
use portreeve_facts::{Gap, NFTABLES_LOCALHOST_GATE, ProxyConfig, Source, text};

/// Parses the settings in the object `kubeproxy.config.k8s.io`. kube-proxy shows its internal type, so fields have Go
/// names, and releases moved some fields (cmd/kube-proxy/app/server.go `cz.Set(config)`,
/// pkg/proxy/apis/config/types.go). So the parser treats upper and lower case in names as equal, and reads the
/// cluster's CIDRs from one of two fields.
pub fn settings(answer: &Answer) -> Result<ProxyConfig, Gap> {
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
    let flag = |object: &str, name: &str| field(field(config, object)?, name)?.as_bool();
    let cidrs = field(config, "detectLocal").and_then(|detect| listed(field(detect, "clusterCIDRs")));
    Ok(ProxyConfig {
        place: answer.place.clone(),
        mode: text_of(field(config, "mode")),
        node_port_addresses,
        localhost_node_ports: flag("iptables", "localhostNodePorts"),
        bind_address,
        detect_local_mode: text_of(field(config, "detectLocalMode")),
        cluster_cidr: text_of(field(config, "clusterCIDR")).or(cidrs.map(|cidrs| cidrs.join(","))),
        healthz_bind_address: text_of(field(config, "healthzBindAddress")),
        nftables_localhost: flag("featureGates", NFTABLES_LOCALHOST_GATE),
        iptables_masquerade: None,
        cilium: None,
    })
}

fn field<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    object.as_object()?.iter().find_map(|(key, value)| key.eq_ignore_ascii_case(name).then_some(value))
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;
    use proptest::prelude::*;

    use super::*;
    use portreeve_facts::Why;

    fn answer(body: &str) -> Answer {
        Answer { place: "127.0.0.1:10249/configz".to_owned(), status: StatusCode::OK, body: body.to_owned() }
    }

    // The form of pkg/proxy/apis/config/types.go in kube-proxy 1.36. The internal type has no tags, so the names are Go
    // names.
    const CONFIGZ: &str = r#"{"kubeproxy.config.k8s.io":{"Linux":{"MasqueradeAll":false,"OOMScoreAdj":-999},
        "FeatureGates":{},"HostnameOverride":"n1","BindAddress":"0.0.0.0","HealthzBindAddress":"0.0.0.0:10256",
        "MetricsBindAddress":"127.0.0.1:10249","Mode":"nftables",
        "IPTables":{"MasqueradeBit":14,"LocalhostNodePorts":true},"DetectLocalMode":"ClusterCIDR",
        "DetectLocal":{"BridgeInterface":"","ClusterCIDRs":["10.244.0.0/16","fd00::/56"],"InterfaceNamePrefix":""},
        "NodePortAddresses":["primary"]}}"#;

    #[test]
    fn settings_are_read_in_go_s_names() {
        assert_eq!(
            settings(&answer(CONFIGZ)).unwrap(),
            ProxyConfig {
                place: "127.0.0.1:10249/configz".to_owned(),
                mode: Some("nftables".to_owned()),
                node_port_addresses: vec!["primary".to_owned()],
                localhost_node_ports: Some(true),
                bind_address: Some("0.0.0.0".parse().unwrap()),
                detect_local_mode: Some("ClusterCIDR".to_owned()),
                cluster_cidr: Some("10.244.0.0/16,fd00::/56".to_owned()),
                healthz_bind_address: Some("0.0.0.0:10256".to_owned()),
                nftables_localhost: None,
                iptables_masquerade: None,
                cilium: None,
            }
        );
    }

    #[test]
    fn settings_are_read_in_the_file_s_names_too_and_absent_ones_stay_absent() {
        let body = r#"{"kubeproxy.config.k8s.io":{"mode":"","iptables":{"localhostNodePorts":false},
            "nodePortAddresses":null,"clusterCIDR":"10.1.0.0/16","bindAddress":""}}"#;
        let config = settings(&answer(body)).unwrap();
        assert_eq!(config.mode.as_deref(), Some(""));
        assert_eq!(config.localhost_node_ports, Some(false));
        assert_eq!(config.node_port_addresses, Vec::<String>::new());
        assert_eq!(config.bind_address, None);
        assert_eq!(config.cluster_cidr.as_deref(), Some("10.1.0.0/16"));
        assert_eq!(config.detect_local_mode, None);
    }

    #[test]
    fn settings_of_a_wrong_type_are_malformed() {
        for wrong in [
            "<html>",
            "{}",
            "[]",
            r#"{"kubeproxy.config.k8s.io":7}"#,
            r#"{"kubeproxy.config.k8s.io":{"NodePortAddresses":"primary"}}"#,
            r#"{"kubeproxy.config.k8s.io":{"NodePortAddresses":[7]}}"#,
            r#"{"kubeproxy.config.k8s.io":{"BindAddress":"everywhere"}}"#,
        ] {
            assert_eq!(settings(&answer(wrong)).unwrap_err().why, Why::Malformed, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_document_cut_anywhere_is_refused(cut in 0..CONFIGZ.len()) {
            prop_assert!(settings(&answer(&CONFIGZ[..cut])).is_err());
        }
    }
}
