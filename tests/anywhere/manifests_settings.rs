//! The NodePort range and the proxy's settings, from every place that can set them.

use std::net::IpAddr;

use portreeve_facts::{
    Announced, CiliumConfig, Claimant, ClusterFacts, Family, ForCilium, PortRange, ProxyConfig, RangeSource,
    ServiceKind, Source, Why, WithoutBackend,
};

use crate::manifests::facts_of;

/// The NodePort range, the kind of the range's source, and the place of the source.
fn range(facts: &ClusterFacts) -> (String, RangeSource, String) {
    assert_eq!(facts.rejected, []);
    let known = facts.node_port_range.get().expect("a range");
    (known.range.to_string(), known.source, known.place.clone())
}

fn api_server(name: &str, command: &str) -> String {
    format!(
        "kind: Pod\nmetadata: {{name: {name}, namespace: kube-system, labels: {{component: kube-apiserver}}}}\nspec:\n  containers:\n  - command: {command}\n---\n"
    )
}

const KUBEADM_OLD: &str = "
kind: ConfigMap
metadata: {name: kubeadm-config, namespace: kube-system}
data:
  ClusterConfiguration: |
    apiServer:
      extraArgs:
        authorization-mode: Node,RBAC
        service-node-port-range: 20000-25000
    apiVersion: kubeadm.k8s.io/v1beta3
    kind: ClusterConfiguration
---
";

fn node_arguments(arguments: &str) -> String {
    format!("kind: Node\nmetadata:\n  name: n1\n  annotations:\n    k3s.io/node-args: '{arguments}'\n---\n")
}

#[test]
fn the_api_servers_own_arguments_come_before_all_files() {
    let pod = api_server("kube-apiserver-cp1", "[kube-apiserver, --v=2, --service-node-port-range=31000-31999]");
    let found = range(&facts_of(&[format!("{KUBEADM_OLD}{pod}{}", node_arguments(r#"["server"]"#))]));
    assert_eq!(found.0, "31000-31999");
    assert_eq!(found.1, RangeSource::ApiServerArguments);
    assert_eq!(found.2, "pod kube-system/kube-apiserver-cp1");

    let separate = api_server("kube-apiserver-cp1", "[/usr/bin/kube-apiserver, --service-node-port-range, 31000+999]");
    assert_eq!(range(&facts_of(&[separate])).0, "31000-31999");
    let shell = api_server("kube-apiserver-cp1", "[sh, -c, 'exec kube-apiserver --service-node-port-range=1-2 --v=2']");
    assert_eq!(range(&facts_of(&[shell])).0, "1-2");
}

#[test]
fn an_api_server_without_the_flag_uses_the_default_and_that_is_known() {
    let (range, source, place) = range(&facts_of(&[api_server("kube-apiserver-cp1", "[kube-apiserver, --v=2]")]));
    assert_eq!((range.as_str(), source), ("30000-32767", RangeSource::ApiServerArguments));
    assert!(place.ends_with("keeps the default"), "{place}");
    let other = facts_of(&[api_server("kube-apiserver-cp1", "[sleep, '1']")]);
    assert_eq!(other.node_port_range.get().expect("a range").source, RangeSource::Assumed);
}

#[test]
fn two_api_servers_that_disagree_leave_the_range_unknown() {
    let pods = [
        api_server("kube-apiserver-cp1", "[kube-apiserver]"),
        api_server("kube-apiserver-cp2", "[kube-apiserver, --service-node-port-range=20000-30000]"),
    ];
    let facts = facts_of(&[pods.concat()]);
    let gap = facts.node_port_range.gap().expect("a gap");
    assert_eq!(gap.why, Why::Ambiguous);
    assert!(gap.detail.contains("cp1") && gap.detail.contains("cp2 has 20000-30000"), "{}", gap.detail);
}

#[test]
fn k3s_and_rke2_arguments_of_a_server_tell_the_range() {
    for arguments in [
        r#"["server","--service-node-port-range","20000-22767"]"#,
        r#"["server","--kube-apiserver-arg=service-node-port-range=20000-22767","--disable","traefik"]"#,
        r#"["server","--kube-apiserver-arg","--service-node-port-range=20000-22767"]"#,
    ] {
        let found = range(&facts_of(&[node_arguments(arguments), KUBEADM_OLD.to_owned()]));
        assert_eq!((found.0.as_str(), found.1), ("20000-22767", RangeSource::NodeArguments), "{arguments}");
    }
    let agent = facts_of(&[node_arguments(r#"["agent","--service-node-port-range","1-2"]"#).replace("k3s", "rke2")]);
    assert_eq!(range(&agent).1, RangeSource::Assumed);
}

#[test]
fn kubeadm_writes_extra_arguments_as_a_mapping_or_a_list() {
    let new = KUBEADM_OLD.replace(
        "        authorization-mode: Node,RBAC\n        service-node-port-range: 20000-25000\n",
        "      - name: service-node-port-range\n        value: 20000-25000\n",
    );
    for config in [KUBEADM_OLD, &new] {
        let found = range(&facts_of(&[config]));
        assert_eq!((found.0.as_str(), found.1), ("20000-25000", RangeSource::KubeadmConfig));
    }
}

#[test]
fn openshift_tells_its_range_or_means_the_default() {
    let network = |spec: &str| {
        facts_of(&[format!(
            "apiVersion: config.openshift.io/v1\nkind: Network\nmetadata: {{name: cluster}}\nspec: {spec}"
        )])
    };
    assert_eq!(range(&network("{serviceNodePortRange: 30000-34095}")).0, "30000-34095");
    let (range, source, _) = range(&network("{}"));
    assert_eq!((range.as_str(), source), ("30000-32767", RangeSource::OpenshiftNetwork));
}

#[test]
fn nobody_says_so_it_is_assumed_but_a_range_that_cannot_be_read_is_not() {
    let found = range(&facts_of(&["kind: Service\nmetadata: {name: a}\nspec: {}"]));
    assert_eq!((found.0.as_str(), found.1), ("30000-32767", RangeSource::Assumed));
    let facts = facts_of(&[api_server("kube-apiserver-cp1", "[kube-apiserver, --service-node-port-range=many]")]);
    assert_eq!(facts.node_port_range.gap().map(|gap| gap.why), Some(Why::Malformed));
}

#[test]
fn the_proxys_config_map_tells_its_settings() {
    let facts = facts_of(&[r#"
kind: ConfigMap
metadata: {name: kube-proxy, namespace: kube-system}
data:
  config.conf: |-
    apiVersion: kubeproxy.config.k8s.io/v1alpha1
    bindAddress: 0.0.0.0
    clusterCIDR: 10.244.0.0/16
    detectLocalMode: ""
    iptables:
      localhostNodePorts: null
      masqueradeAll: false
    ipvs: {excludeCIDRs: null, strictARP: false}
    kind: KubeProxyConfiguration
    mode: ""
    nodePortAddresses: null
  kubeconfig.conf: "apiVersion: v1"
"#]);
    assert_eq!(facts.rejected, []);
    let config = facts.proxy_config.get().expect("a config");
    assert_eq!(config.place, "ConfigMap kube-system/kube-proxy");
    assert_eq!(config.mode.as_deref(), Some(""));
    assert_eq!(config.node_port_addresses, [] as [&str; 0]);
    assert_eq!(config.localhost_node_ports, None);
    assert_eq!(config.bind_address, Some(IpAddr::from([0, 0, 0, 0])));
    assert_eq!(config.cluster_cidr.as_deref(), Some("10.244.0.0/16"));
}

#[test]
fn a_broken_proxy_configuration_is_named_and_unknown() {
    let facts = facts_of(&[
        "kind: ConfigMap\nmetadata: {name: kube-proxy, namespace: kube-system}\ndata: {config.conf: 'a: [b'}",
    ]);
    assert!(facts.rejected[0].detail.contains("data[config.conf] is broken at line 1"), "{:?}", facts.rejected);
    assert!(facts.proxy_config.gap().is_some());
}

#[test]
fn what_is_wrong_with_a_config_map_of_an_application_is_no_gap() {
    let facts = facts_of(&[
        "kind: ConfigMap\nmetadata: {name: redis, namespace: shop}\ndata: {config.conf: [1], node-port-range: [2]}",
    ]);
    assert_eq!(facts.rejected, []);
}

#[test]
fn this_nodes_k3s_arguments_come_before_the_config_map() {
    let arguments = r#"["agent","--kube-proxy-arg=proxy-mode=ipvs","--kube-proxy-arg=iptables-localhost-nodeports=F","--kube-proxy-arg","nodeport-addresses=10.0.0.0/8,127.0.0.0/8"]"#;
    let map = "kind: ConfigMap\nmetadata: {name: kube-proxy, namespace: kube-system}\ndata: {config.conf: 'mode: nftables'}\n---\n";
    let facts = facts_of(&[format!("{map}{}", node_arguments(arguments))]);
    let config = facts.proxy_config.get().expect("a config");
    assert_eq!(config.mode.as_deref(), Some("ipvs"));
    assert_eq!(config.node_port_addresses, ["10.0.0.0/8", "127.0.0.0/8"]);
    assert_eq!(config.localhost_node_ports, Some(false));
    let elsewhere = facts_of(&[format!("{map}{}", node_arguments(arguments).replace("name: n1", "name: n2"))]);
    assert_eq!(elsewhere.proxy_config.get().expect("a config").mode.as_deref(), Some("nftables"));
}

#[test]
fn cilium_names_addresses_with_blanks_or_commas() {
    for (written, wanted) in [
        ("192.0.2.0/24 2001:db8::/64\\n", &["192.0.2.0/24", "2001:db8::/64"][..]),
        ("192.0.2.0/24,2001:db8::/64", &["192.0.2.0/24", "2001:db8::/64"]),
        ("", &[]),
    ] {
        let facts = facts_of(&[format!(
            "kind: ConfigMap\nmetadata: {{name: cilium-config, namespace: kube-system}}\n\
             data: {{kube-proxy-replacement: 'true', nodeport-addresses: \"{written}\"}}\n"
        )]);
        assert_eq!(facts.proxy_config.get().expect("a config").node_port_addresses, wanted, "{written:?}");
    }
}

#[test]
fn a_list_of_cilium_with_more_entries_than_are_kept_is_unread() {
    const NARROW: PortRange = PortRange { first: 31000, last: 31999 };
    let with = |key: &str, entry: &str, entries: usize, more: &str| {
        let list = vec![entry; entries].join(",");
        facts_of(&[format!(
            "kind: ConfigMap\nmetadata: {{name: cilium-config, namespace: kube-system}}\n\
             data: {{kube-proxy-replacement: 'true', {key}: '{list}'{more}}}\n"
        )])
    };
    for (key, entry) in [("nodeport-addresses", "192.0.2.1/32"), ("devices", "eth0")] {
        assert!(with(key, entry, 256, "").proxy_config.gap().is_none(), "{key}");
        let unread = with(key, entry, 257, "");
        let gap = unread.proxy_config.gap().expect("a gap");
        assert_eq!((gap.source, gap.why), (Source::ConfigMaps, Why::TooMuch), "{key}");
        assert!(gap.detail.contains(&format!("{key} has more than 256 entries")), "{gap:?}");
        // The list says nothing about the NodePort range.
        for (more, wanted) in [("", PortRange::DEFAULT_NODE_PORTS), (", node-port-range: '31000,31999'", NARROW)] {
            let facts = with(key, entry, 257, more);
            let [claim] = &facts.range_claims[..] else { panic!("{:?}", facts.range_claims) };
            let ranges = claim.ranges.seen().expect("a range").as_slice();
            assert_eq!((claim.by, ranges), (Claimant::Cilium, &[wanted][..]), "{key}");
        }
    }
}

#[test]
fn cilium_and_calico_have_ideas_of_their_own() {
    let facts = facts_of(&[r#"
kind: ConfigMap
metadata: {name: cilium-config, namespace: kube-system}
data: {kube-proxy-replacement: "true", node-port-range: "30000,32767"}
---
apiVersion: crd.projectcalico.org/v1
kind: FelixConfiguration
metadata: {name: default}
spec: {kubeNodePortRanges: [8080, "30000:32767"]}
"#]);
    assert_eq!(facts.rejected, []);
    assert_eq!(facts.proxy_config.get().expect("a config").mode.as_deref(), Some("cilium"));
    let claims: Vec<_> =
        facts.range_claims.iter().map(|it| (it.by, it.ranges.seen().expect("ranges").as_slice())).collect();
    let single = PortRange { first: 8080, last: 8080 };
    assert_eq!(
        claims,
        [
            (Claimant::Cilium, &[PortRange::DEFAULT_NODE_PORTS][..]),
            (Claimant::Calico, &[single, PortRange::DEFAULT_NODE_PORTS][..]),
        ]
    );
}

#[test]
fn a_range_of_cilium_that_is_no_range_is_unread() {
    let map = "kind: ConfigMap\nmetadata: {name: cilium-config, namespace: kube-system}\n";
    let facts = facts_of(&[format!("{map}data: {{kube-proxy-replacement: 'true', node-port-range: many}}")]);
    let [claim] = &facts.range_claims[..] else { panic!("{:?}", facts.range_claims) };
    let gap = claim.ranges.gap().expect("a gap");
    assert_eq!((gap.source, gap.why), (Source::ConfigMaps, Why::Malformed));
    assert!(gap.detail.contains("data[node-port-range]"), "{gap:?}");
}

#[test]
fn a_list_of_calico_with_one_entry_that_is_no_range_is_unread() {
    let felix = "apiVersion: crd.projectcalico.org/v1\nkind: FelixConfiguration\nmetadata: {name: default}\n";
    let facts = facts_of(&[format!("{felix}spec: {{kubeNodePortRanges: [8080, many]}}")]);
    let [claim] = &facts.range_claims[..] else { panic!("{:?}", facts.range_claims) };
    assert_eq!(claim.ranges.gap().expect("a gap").why, Why::Malformed);
}

#[test]
fn an_empty_range_of_cilium_is_the_default() {
    let map = "kind: ConfigMap\nmetadata: {name: cilium-config, namespace: kube-system}\n";
    let facts = facts_of(&[format!("{map}data: {{kube-proxy-replacement: 'true', node-port-range: ''}}")]);
    assert_eq!((facts.range_claims.len(), facts.rejected.len()), (0, 0));
    assert_eq!(facts.proxy_config.get().expect("a config").mode.as_deref(), Some("cilium"));
}

#[test]
fn what_cilium_does_without_an_endpoint_is_in_its_config_map() {
    let read = |settings: &str| {
        let config = of_cilium(settings);
        (config.without_backend, config.host_namespace_only)
    };
    assert_eq!(read(""), (WithoutBackend::Reject, false));
    assert_eq!(read(", service-no-backend-response: reject"), (WithoutBackend::Reject, false));
    assert_eq!(read(", service-no-backend-response: drop"), (WithoutBackend::Drop, false));
    let routable = |value: &str| {
        read(&format!(", service-no-backend-response: drop, enable-no-service-endpoints-routable: '{value}'"))
    };
    assert_eq!(routable("true"), (WithoutBackend::Drop, false));
    assert_eq!(routable("false"), (WithoutBackend::Pass, false));
    assert_eq!(read(", bpf-lb-sock-hostns-only: 'true'"), (WithoutBackend::Reject, true));
}

#[test]
fn whether_cilium_has_wildcard_entries_is_told_or_shown_by_what_its_chart_writes_since_1_20() {
    let read = |settings: &str| of_cilium(settings).wildcard_entries;
    assert_eq!(read(""), None);
    assert_eq!(read(", enable-datapath-plugins: 'false'"), Some(true));
    assert_eq!(read(", enable-datapath-plugins: 'false', bpf-lb-enable-wildcard-entries: 'false'"), Some(false));
    assert_eq!(read(", bpf-lb-enable-wildcard-entries: 'true'"), Some(true));
}

#[test]
fn the_families_of_cilium_are_in_its_config_map() {
    let off = |settings: &str| of_cilium(settings).families_off;
    assert_eq!(off(""), []);
    assert_eq!(off(", enable-ipv4: 'true', enable-ipv6: 'false'"), [Family::V6]);
    assert_eq!(off(", enable-ipv4: 'false', enable-ipv6: 'true'"), [Family::V4]);
}

#[test]
fn cilium_protects_node_ports_unless_its_config_map_says_otherwise() {
    let read = |settings: &str| {
        let config = of_cilium(settings);
        (config.allows_bind, config.reserves_nothing)
    };
    assert_eq!(read(""), (false, false));
    assert_eq!(read(", node-port-bind-protection: 'true'"), (false, false));
    assert_eq!(read(", node-port-bind-protection: 'false'"), (true, false));
    assert_eq!(read(", enable-auto-protect-node-port-range: 'false'"), (false, true));
}

#[test]
fn cilium_serves_sctp_where_its_config_map_says_so() {
    assert!(
        !of_cilium("").sctp && !of_cilium(", enable-sctp: 'false'").sctp && of_cilium(", enable-sctp: 'true'").sctp
    );
}

/// Each setting begins with a comma.
#[track_caller]
fn of_cilium(settings: &str) -> CiliumConfig {
    let facts = facts_of(&[format!(
        "kind: ConfigMap\nmetadata: {{name: cilium-config, namespace: kube-system}}\ndata: {{kube-proxy-replacement: 'true'{settings}}}"
    )]);
    facts.proxy_config.get().expect("a config").cilium.clone().expect("of Cilium")
}

#[test]
fn who_masquerades_for_cilium_is_in_its_config_map() {
    let by_iptables = |settings: &str| {
        let facts = facts_of(&[format!(
            "kind: ConfigMap\nmetadata: {{name: cilium-config, namespace: kube-system}}\ndata: {{kube-proxy-replacement: 'true'{settings}}}"
        )]);
        facts.proxy_config.get().expect("a config").iptables_masquerade
    };
    for (settings, expected) in [
        ("", None),
        (", enable-bpf-masquerade: ''", None),
        (", enable-ipv4-masquerade: 'false'", None),
        (", enable-ipv4-masquerade: 'false', enable-ipv6: 'false'", Some(false)),
        (", enable-bpf-masquerade: 'true'", Some(false)),
        (", enable-bpf-masquerade: \"true\\n\"", Some(false)),
        (", enable-bpf-masquerade: 'false'", Some(true)),
        (", enable-bpf-masquerade: 'false', enable-ipv4-masquerade: 'false'", Some(true)),
        (", enable-bpf-masquerade: 'false', enable-ipv4-masquerade: 'false', enable-ipv6: 'false'", Some(false)),
        (", enable-bpf-masquerade: 'false', enable-ipv4: 'false'", Some(true)),
        (", enable-bpf-masquerade: 'false', enable-ipv4: 'false', enable-ipv6: 'false'", Some(false)),
        (", enable-bpf-masquerade: 'false', enable-ipv4: 'false', enable-ipv6: 'true'", Some(true)),
        (", enable-bpf-masquerade: 'false', enable-ipv4-masquerade: 'false', enable-ipv6: 'true'", Some(true)),
        (", enable-bpf-masquerade: 'false', masquerade: 'false', enable-ipv6: 'true'", Some(false)),
    ] {
        assert_eq!(by_iptables(settings), expected, "{settings}");
        let in_ebpf = settings.contains("bpf-masquerade: 'true'") || settings.contains("true\\n");
        assert_eq!(of_cilium(settings).masquerades, in_ebpf, "{settings}");
    }
    let nothing = ", enable-bpf-masquerade: 'true', enable-ipv4-masquerade: 'false', enable-ipv6-masquerade: 'false'";
    assert!(!of_cilium(nothing).masquerades);
}

fn configured(line: &str) -> ProxyConfig {
    let facts = facts_of(&[format!(
        "kind: ConfigMap\nmetadata: {{name: kube-proxy, namespace: kube-system}}\ndata: {{config.conf: '{line}'}}"
    )]);
    assert_eq!(facts.rejected, []);
    facts.proxy_config.get().expect("a config").clone()
}

#[test]
fn the_gate_for_node_ports_of_loopback_is_in_the_configuration_or_among_the_arguments() {
    let gates = |gates: &str| configured(&format!("featureGates: {gates}")).nftables_localhost;
    assert_eq!(gates("{KubeProxyNFTablesLocalhostNodePorts: true, Other: false}"), Some(true));
    assert_eq!((gates("{KubeProxyNFTablesLocalhostNodePorts: false}"), gates("{}")), (Some(false), None));
    let arguments = |gates: &str| {
        let flags = format!(r#"["server","--kube-proxy-arg=feature-gates={gates}"]"#);
        facts_of(&[node_arguments(&flags)]).proxy_config.get().expect("a config").nftables_localhost
    };
    assert_eq!(arguments("A=true,KubeProxyNFTablesLocalhostNodePorts=true"), Some(true));
    assert_eq!(
        arguments("KubeProxyNFTablesLocalhostNodePorts=true,KubeProxyNFTablesLocalhostNodePorts=false"),
        Some(false)
    );
    assert_eq!(arguments("KubeProxyNFTables=true"), None);
}

#[test]
fn where_kube_proxy_tells_its_health_is_in_its_configuration() {
    let of = |line: &str| configured(line).healthz_bind_address;
    assert_eq!(of("healthzBindAddress: 0.0.0.0:10300").as_deref(), Some("0.0.0.0:10300"));
    assert_eq!(of("healthzBindAddress: \"\""), None, "kube-proxy takes it for the default");
    assert_eq!(of("mode: iptables"), None);
    let flags = r#"["agent","--kube-proxy-arg=healthz-bind-address=127.0.0.1:10300"]"#;
    let config = facts_of(&[node_arguments(flags)]).proxy_config;
    assert_eq!(config.get().expect("a config").healthz_bind_address.as_deref(), Some("127.0.0.1:10300"));
}

#[test]
fn a_file_does_not_tell_which_nodes_a_cilium_node_config_selects() {
    let facts = facts_of(&[r#"
kind: ConfigMap
metadata: {name: cilium-config, namespace: kube-system}
data: {kube-proxy-replacement: "true"}
---
apiVersion: cilium.io/v2
kind: CiliumNodeConfig
metadata: {name: edge, namespace: kube-system}
spec: {defaults: {devices: eth1}, nodeSelector: {matchLabels: {pool: edge}}}
"#]);
    let gap = facts.proxy_config.gap().expect("a gap");
    assert!(gap.detail.contains("CiliumNodeConfig kube-system/edge may change Cilium's settings"), "{}", gap.detail);
}

#[test]
fn what_annotations_ask_of_cilium_is_read_as_cilium_reads_it() {
    let nothing = ForCilium::default();
    let global = ForCilium { global: true, ..nothing };
    let only = |kind| ForCilium { only: Some(kind), ..nothing };
    let on_some_nodes = ForCilium { on_some_nodes: true, ..nothing };
    let by_envoy = ForCilium { by_envoy: true, ..nothing };
    for (metadata, expected) in [
        ("annotations: {}", nothing),
        (r#"annotations: {service.cilium.io/global: "true"}"#, global),
        (r#"annotations: {io.cilium/global-service: "True"}"#, global),
        (r#"annotations: {service.cilium.io/global: "false", io.cilium/global-service: "true"}"#, nothing),
        (r#"annotations: {service.cilium.io/global: "yes"}"#, nothing),
        ("annotations: {service.cilium.io/type: clusterip}", nothing),
        ("annotations: {service.cilium.io/type: NodePort}", only(ServiceKind::NodePort)),
        ("annotations: {service.cilium.io/type: ClusterIP}", only(ServiceKind::ClusterIp)),
        ("annotations: {service.cilium.io/type: LoadBalancer}", only(ServiceKind::LoadBalancer)),
        ("annotations: {service.cilium.io/node: edge}", on_some_nodes),
        ("annotations: {service.cilium.io/node-selector: disk=ssd}", on_some_nodes),
        ("annotations: {service.cilium.io/lb-l7: enabled}", by_envoy),
        ("annotations: {service.cilium.io/lb-l7: disabled}", nothing),
        ("labels: {io.cilium.gateway/owning-gateway: web}", by_envoy),
        (r#"labels: {cilium.io/ingress: "true"}"#, by_envoy),
        ("labels: {gateway.networking.k8s.io/gateway-name: of-another}", nothing),
    ] {
        let text = format!("kind: Service\nmetadata: {{name: a, {metadata}}}\nspec: {{ports: [{{port: 80}}]}}");
        let facts = facts_of(&[&text]);
        let found = facts.services.get().expect("services")[0].for_cilium;
        assert_eq!(found, expected, "{metadata}");
    }
}

#[test]
fn what_annotations_say_of_who_announces_an_address_is_read() {
    let announced = |host: Option<&str>, pool: Option<&str>| Announced {
        host: host.map(str::to_owned),
        pool: pool.map(str::to_owned),
    };
    for (annotations, expected) in [
        ("", None),
        (r#"kube-vip.io/vipHost: """#, None),
        ("kube-vip.io/loadbalancerIPs: 192.0.2.50", None),
        ("kube-vip.io/vipHost: n2", Some(announced(Some("n2"), None))),
        ("metallb.io/ip-allocated-from-pool: lan", Some(announced(None, Some("lan")))),
        ("metallb.universe.tf/ip-allocated-from-pool: lan", Some(announced(None, Some("lan")))),
        (
            "metallb.universe.tf/ip-allocated-from-pool: old, metallb.io/ip-allocated-from-pool: new",
            Some(announced(None, Some("new"))),
        ),
        ("kube-vip.io/vipHost: n1, metallb.io/ip-allocated-from-pool: lan", Some(announced(Some("n1"), Some("lan")))),
    ] {
        let text = format!(
            "kind: Service\nmetadata: {{name: a, annotations: {{{annotations}}}}}\nspec: {{ports: [{{port: 80}}]}}"
        );
        let facts = facts_of(&[&text]);
        assert_eq!(facts.rejected, [], "{annotations}");
        assert_eq!(facts.services.get().expect("services")[0].announced.as_deref(), expected.as_ref(), "{annotations}");
    }
}
