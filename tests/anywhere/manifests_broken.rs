//! Broken and hostile files. For each file there is one clear error, and Portreeve reads all other objects.

use std::fs;

use portreeve_facts::{ClusterFacts, Family, Gap, ServiceKind, Source, Why};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::manifests::{as_json, facts_of, facts_of_paths};

const GOOD: &str = "
kind: Service
metadata: {name: good}
spec: {type: NodePort, ports: [{port: 80, nodePort: 30080}]}
";

fn names(facts: &ClusterFacts) -> Vec<&str> {
    facts.services.get().expect("services").iter().map(|service| service.name.as_str()).collect()
}

fn only(facts: &ClusterFacts) -> &Gap {
    match facts.rejected.as_slice() {
        [gap] => gap,
        other => panic!("one complaint, not {other:#?}"),
    }
}

#[test]
fn an_impossible_port_loses_its_service_and_says_where_it_is() {
    let facts = facts_of(&["
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: NodePort
  ports: [{port: 70000, nodePort: 30080}, {port: 80, nodePort: 30081}]
"]);
    let gap = only(&facts);
    assert_eq!((gap.source, gap.why), (Source::Services, Why::Malformed));
    assert!(
        gap.detail.ends_with("0.txt: Service shop/web: spec.ports[0].port is 70000, wanted 1 to 65535"),
        "{}",
        gap.detail
    );
    assert_eq!(names(&facts), [""; 0], "the API server would not take it");
    assert_eq!(facts.unread_services, [("shop".to_owned(), "web".to_owned())]);
}

#[test]
fn a_field_of_the_wrong_shape_is_named_and_loses_no_other_object() {
    let broken = [
        ("spec: {ports: [{port: 80, nodePort: abc}]}", "spec.ports[0].nodePort is \"abc\", wanted a number"),
        ("spec: {ports: [{port: 80, nodePort: -1}]}", "spec.ports[0].nodePort is -1, wanted 0 to 65535"),
        ("spec: {ports: [{port: 80.5}]}", "spec.ports[0].port is 80.5, wanted a number"),
        ("spec: {ports: [{nodePort: 30001}]}", "spec.ports[0].port is absent, wanted 1 to 65535"),
        ("spec: {ports: [{port: .nan}]}", "spec.ports[0].port is NaN, wanted a number"),
        (
            "spec: {ports: [{port: 100000000000000000000}]}",
            "spec.ports[0].port is 100000000000000000000, wanted a number",
        ),
        ("spec: {ports: [80]}", "spec.ports[0] is 80, wanted a mapping"),
        ("spec: {ports: [null]}", "spec.ports[0] is null, wanted a mapping"),
        ("spec: {externalIPs: [null]}", "spec.externalIPs[0] is null, wanted a text"),
        ("spec: {ports: {a: {b: [c]}}}", "spec.ports is a mapping, wanted a list"),
        ("spec: {clusterIP: x}", "spec.clusterIP is \"x\", wanted an IP address"),
        ("spec: {externalIPs: [300.0.0.1]}", "spec.externalIPs[0] is \"300.0.0.1\", wanted an IP address"),
        (
            "spec: {type: Nodeport}",
            "spec.type is \"Nodeport\", wanted ClusterIP, NodePort, LoadBalancer or ExternalName",
        ),
        ("spec: hello", "spec is \"hello\", wanted a mapping"),
        ("spec: [1, {a: b}]", "spec is a list, wanted a mapping"),
        ("spec: null", "0.txt: Service bad: spec is absent, wanted a mapping"),
        ("status: {}", "0.txt: Service bad: spec is absent, wanted a mapping"),
    ];
    for (spec, complaint) in broken {
        let facts = facts_of(&[format!("kind: Service\nmetadata: {{name: bad}}\n{spec}\n---{GOOD}")]);
        assert!(only(&facts).detail.ends_with(complaint), "{}", only(&facts).detail);
        assert_eq!(names(&facts), ["good"], "{spec}");
    }
}

#[test]
fn a_pod_that_is_none_is_named_and_is_no_absence_of_pods() {
    let broken = [
        ("spec: null", "Pod bad: spec is absent, wanted a mapping"),
        ("spec: {nodeName: n1, containers: [null]}", "Pod bad: spec.containers[0] is null, wanted a mapping"),
        (
            "spec: {nodeName: n1, containers: [{name: c, ports: [null]}]}",
            "Pod bad: spec.containers[0].ports[0] is null, wanted a mapping",
        ),
    ];
    for (spec, complaint) in broken {
        let facts = facts_of(&[format!("kind: Pod\nmetadata: {{name: bad}}\n{spec}\n---{GOOD}")]);
        assert!(only(&facts).detail.ends_with(complaint), "{}", only(&facts).detail);
        assert_eq!(facts.pods.gap(), Some(only(&facts)), "it is not known what it would be");
    }
}

#[test]
fn a_family_counts_once_however_often_it_is_listed() {
    let of = |spec: &str| {
        let facts = facts_of(&[format!("kind: Service\nmetadata: {{name: a}}\nspec: {{{spec}}}")]);
        facts.services.get().expect("services")[0].families
    };
    assert_eq!(of("ipFamilies: [IPv6, IPv4, IPv6, IPv4]"), [Family::V6, Family::V4]);
    assert_eq!(of("clusterIPs: [10.0.0.1, 2001:db8::1, 10.0.0.2, 2001:db8::2]"), [Family::V4, Family::V6]);
}

#[test]
fn leading_zeros_in_an_address_are_decimal_as_kube_proxy_takes_them() {
    let facts = facts_of(&["kind: Service\nmetadata: {name: a}\nspec: {externalIPs: [010.000.0.009]}"]);
    let ips = &facts.services.get().expect("services")[0].external_ips;
    assert_eq!(ips.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.9"]);
}

#[test]
fn a_syntax_error_is_placed_by_line_and_costs_only_its_document() {
    let facts =
        facts_of(&[format!("{GOOD}---\nkind: Service\nmetadata:\n  name: [broken\n---{}", GOOD.replace("good", "b"))]);
    let gap = only(&facts);
    assert!(gap.detail.contains(": not YAML: ") && gap.detail.ends_with("-o json"), "{}", gap.detail);
    let place = gap.detail.split("0.txt:").nth(1).and_then(|rest| rest.split(':').next());
    let line: u64 = place.and_then(|line| line.parse().ok()).expect("a line");
    assert!((6..=9).contains(&line), "the broken document spans lines 6 to 9: {}", gap.detail);
    assert_eq!(names(&facts), ["b", "good"]);
    assert_eq!(facts.endpoint_slices.gap().map(|gap| gap.why), Some(Why::Malformed), "they may have been in there");
}

#[test]
fn json_that_breaks_says_where_and_keeps_what_came_before() {
    let facts = facts_of(&[r#"{"kind":"List","items":[
        {"kind":"Service","metadata":{"name":"a"},"spec":{}},
        {"kind":"Service","metadata":{"name":"b"},"spec":{}},
        {"kind":"Service","metadata":{"name":"c",}}]}"#]);
    assert!(
        only(&facts).detail.contains("0.txt:4:50: not JSON: trailing comma; wanted the output of kubectl get"),
        "{}",
        only(&facts).detail
    );
    assert_eq!(names(&facts), ["a", "b"]);
}

#[test]
fn a_file_cut_anywhere_keeps_whole_items_only_and_complains() {
    let item = |name: &str| {
        format!(
            "- kind: Service\n  metadata:\n    name: {name}\n  spec:\n    ports:\n    - nodePort: 30080\n      port: 80\n"
        )
    };
    let yaml = format!("apiVersion: v1\nitems:\n{}{}{}kind: List\n", item("a"), item("b"), item("c"));
    let whole = facts_of(&[&yaml]);
    assert_eq!((names(&whole), whole.rejected.len()), (vec!["a", "b", "c"], 0));
    let json = as_json(&yaml);

    for text in [&yaml, &json] {
        let known = facts_of(&[text]).services;
        let known = known.get().expect("services");
        let end = text.rfind("kind").expect("a kind") - 1;
        for cut in (20..end).step_by(7) {
            let facts = facts_of(&[&text[..cut]]);
            assert!(!facts.rejected.is_empty(), "cut at {cut} without a word");
            if let Some(services) = facts.services.seen() {
                assert_eq!(services.as_slice(), &known[..services.len()], "cut at {cut}");
            }
            assert!(facts.endpoint_slices.gap().is_some());
        }
    }
}

#[test]
fn a_file_that_is_no_manifest_is_one_clear_error() {
    let directory = TempDir::new().expect("a directory");
    let good = directory.path().join("good");
    fs::write(&good, GOOD).expect("a file");
    let bad = |name: &str, content: Option<&[u8]>| {
        let path = directory.path().join(name);
        if let Some(content) = content {
            fs::write(&path, content).expect("a file");
        }
        let facts = facts_of_paths(vec![path, good.clone()]);
        assert_eq!(names(&facts), ["good"]);
        only(&facts).clone()
    };
    let missing = bad("missing", None);
    assert_eq!(missing.why, Why::Unreachable);
    assert!(missing.detail.contains("missing: cannot be read: No such file"), "{}", missing.detail);
    assert!(bad("empty", Some(b"")).detail.contains("is empty"));
    assert!(bad("comments", Some(b"\n# nothing\n---\n\n")).detail.contains("is empty"));
    assert!(bad("wide", Some(b"\xff\xfek\0i\0n\0d\0")).detail.contains("is UTF-16, wanted UTF-8"));
    let text = bad("text", Some(b"hello"));
    assert!(text.detail.contains("text:1:1: invalid type"), "{}", text.detail);
    let html = bad("html", Some(b"<html><body>: no</body></html>"));
    assert_eq!(html.why, Why::Malformed);
    assert!(bad("binary", Some(b"\x00\xc3\x28\x07")).detail.contains("binary:1:"));
    assert!(bad("anonymous", Some(b"metadata: {name: x}")).detail.contains("kind is absent"));

    let facts = facts_of_paths(vec![directory.path().to_owned(), good.clone()]);
    assert!(only(&facts).detail.contains("cannot be read: is a directory; wanted a file with the output"));
    let facts = facts_of_paths(vec![directory.path().join("missing")]);
    assert_eq!(facts.services.gap().map(|gap| gap.why), Some(Why::Unreachable), "nothing read is not no Services");
}

#[test]
fn hostile_texts_come_out_clean_and_bounded() {
    let long = "x".repeat(1 << 20);
    let facts = facts_of(&[format!(
        "kind: Service\nmetadata:\n  name: \"a\\e[31m\\n\\u202e{long}\"\n  namespace: \"n\\r\\tb\"\n  annotations:\n    big: {long}\nspec:\n  type: \"T\\e[2J{long}\"\n---{GOOD}"
    )]);
    let gap = only(&facts);
    assert!(gap.detail.len() <= 512 && !gap.detail.contains(char::is_control), "{:?}", gap.detail);

    let facts = facts_of(&[format!("kind: Service\nmetadata:\n  name: \"a\\e[31m\\n\\u202e{long}\"\nspec: {{}}\n")]);
    let gap = only(&facts);
    assert!(gap.detail.contains("metadata.name is \"a[31mxxx"), "{}", gap.detail);
    assert!(gap.detail.len() <= 512 && !gap.detail.contains(char::is_control), "{:?}", gap.detail);
}

#[test]
fn a_thousand_broken_services_are_counted_not_listed() {
    let item = "kind: Service\nmetadata: {name: bad}\nspec: {ports: [{port: 0}]}\n---\n";
    let facts = facts_of(&[item.repeat(1000)]);
    assert_eq!(facts.rejected.len(), 65);
    assert!(facts.rejected[64].detail.contains("936 more"), "{}", facts.rejected[64].detail);
}

#[test]
fn a_billion_laughs_are_refused() {
    let mut yaml = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let previous = level - 1;
        let aliases = vec![format!("*a{previous}"); 10].join(", ");
        yaml.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    let facts = facts_of(&[format!("{yaml}kind: Service\n---{GOOD}")]);
    assert_eq!(only(&facts).why, Why::Malformed);
    assert_eq!(names(&facts), ["good"]);
}

#[test]
fn a_name_that_the_api_server_would_not_take_is_refused_where_it_comes_in() {
    let longest = "x".repeat(64);
    for name in ["--all", "-f", "--kubeconfig=/tmp/x", "a b", "Web", "a_b", "a.b", "web\\u200b", longest.as_str()] {
        let facts = facts_of(&[format!("kind: Service\nmetadata: {{name: \"{name}\"}}\nspec: {{}}\n---{GOOD}")]);
        let detail = &only(&facts).detail;
        assert!(detail.contains("metadata.name is ") && detail.contains(", wanted a name of"), "{detail}");
        assert_eq!(names(&facts), ["good"], "{name}");
        let text = format!("kind: Service\nmetadata: {{name: a, namespace: \"{name}\"}}\nspec: {{}}\n---{GOOD}");
        assert!(only(&facts_of(&[text])).detail.contains("metadata.namespace is "), "{name}");
        if name == "a.b" {
            continue;
        }
        for kind in ["Pod", "Node"] {
            let facts = facts_of(&[format!("kind: {kind}\nmetadata: {{name: \"{name}\"}}\n---{GOOD}")]);
            assert!(name == longest || facts.rejected.iter().any(|gap| gap.detail.contains("metadata.name")), "{name}");
            assert!(name == longest || facts.pods.seen().is_none() && facts.nodes.seen().is_none(), "{kind} {name}");
        }
    }
}

/// `tests/lab/server.rs` shows that kubectl also uses the last value of a repeated key.
#[test]
fn of_a_key_that_is_there_twice_the_last_counts() {
    let other = r#"{"kind": "Service", "metadata": {"name": "other"}, "spec": {}}"#;
    for object in [
        r#"{"kind": "Node", "metadata": {"name": "last"}, "spec": {"type": "NodePort"}, "kind": "Service"}"#,
        r#"{"kind": "Service", "metadata": {"name": "last"}, "spec": {"type": 5}, "spec": {"type": "NodePort"}}"#,
        r#"{"kind": "Service", "metadata": {"name": "last"}, "spec": {"type": "ClusterIP", "type": "NodePort"}}"#,
        r#"{"kind": "Service", "metadata": {"name": "first", "name": "last"}, "spec": {"type": "NodePort"}}"#,
    ] {
        let list = format!(r#"{{"kind": "List", "items": [{object}, {other}]}}"#);
        for files in [
            vec![list],
            vec![format!("kind: List\nitems:\n- {object}\n- {other}\n")],
            vec![object.to_owned(), other.to_owned()],
        ] {
            let facts = facts_of(&files);
            assert_eq!((names(&facts), &facts.rejected[..]), (vec!["last", "other"], &[][..]), "{files:?}");
            assert_eq!(facts.services.get().expect("services")[0].kind, ServiceKind::NodePort, "{files:?}");
        }
    }
    let twice = facts_of(&[r#"{"kind": "List", "items": [], "items": []}"#]);
    assert!(only(&twice).detail.contains("a List has items twice, wanted every key once"));
}

#[test]
fn a_mapping_that_is_merged_counts_at_its_place_as_for_kubectl() {
    const NAMED: &str = "b: &b {type: ClusterIP}\nl: &l {type: LoadBalancer}\nkind: Service\nmetadata: {name: a}\n";
    for (spec, wanted) in [
        ("spec: {<<: *b, type: NodePort}", ServiceKind::NodePort),
        ("spec: {type: NodePort, <<: *b}", ServiceKind::ClusterIp),
        ("spec: {type: NodePort, <<: *b, type: NodePort}", ServiceKind::NodePort),
        ("spec: {type: NodePort, <<: {type: ClusterIP}}", ServiceKind::ClusterIp),
        ("spec: {<<: [*l, *b]}", ServiceKind::LoadBalancer),
        ("spec: {<<: *l, <<: *b}", ServiceKind::ClusterIp),
        ("spec: {type: NodePort, !!merge <<: *b}", ServiceKind::ClusterIp),
        ("spec: {type: NodePort}\n<<: {spec: *b}", ServiceKind::ClusterIp),
        ("<<: {spec: *b}\nspec: {type: NodePort}", ServiceKind::NodePort),
        ("x: &of {<<: *l, a: 1}\nspec: *of", ServiceKind::LoadBalancer),
        ("x: &of {<<: *l}\ny: &s {<<: *of}\nspec: {type: NodePort, <<: *s}", ServiceKind::LoadBalancer),
        ("x: &s {\"<<\": *l, type: NodePort}\nspec: *s", ServiceKind::NodePort),
        ("x: &s {'<<': 5}\nspec: {type: NodePort, <<: *s}", ServiceKind::NodePort),
    ] {
        let facts = facts_of(&[format!("{NAMED}{spec}\n")]);
        assert_eq!(facts.services.get().expect("services")[0].kind, wanted, "{spec}");
    }
    for refused in ["spec: {<<: 5}", "spec: {<<: }", "spec: {<<: [[*b]]}", "<<: {items: [{}]}"] {
        let facts = facts_of(&[format!("{NAMED}{refused}\n")]);
        assert!(only(&facts).detail.contains("<<"), "{refused}: {}", only(&facts).detail);
    }
}

/// `tests/lab/server.rs` shows that kubectl also treats a `<<` in quotes as a name, if the file is YAML.
#[test]
fn a_merge_key_in_quotes_is_a_name_and_adds_nothing() {
    let other = r#"{"kind": "Service", "metadata": {"name": "other"}, "spec": {}}"#;
    for value in [r#"{"type": "ClusterIP"}"#, "5", "null", "[[1]]", r#""text""#] {
        for spec in [
            format!(r#"{{"<<": {value}, "type": "NodePort"}}"#),
            format!(r#"{{"type": "NodePort", "<<": {value}}}"#),
            format!(r#"{{"type": "NodePort", "ports": [{{"<<": {value}, "port": 80}}]}}"#),
        ] {
            let named = format!(r#""kind": "Service", "metadata": {{"name": "a"}}, "spec": {spec}"#);
            let list = format!(r#"{{"<<": {value}, "kind": "List", "items": [{{{named}, "<<": {value}}}, {other}]}}"#);
            let yaml = format!("\"<<\": {value}\nkind: List\nitems:\n- {{{named}, '<<': {value}}}\n- {other}\n");
            for text in [list, yaml.replace("\"<<\"", "'<<'"), yaml] {
                let facts = facts_of(&[&text]);
                assert_eq!((names(&facts), &facts.rejected[..]), (vec!["a", "other"], &[][..]), "{text}");
                assert_eq!(facts.services.get().expect("services")[0].kind, ServiceKind::NodePort, "{text}");
            }
        }
    }
}

#[test]
fn what_is_no_object_among_items_loses_nothing_else() {
    for odd in ["5", "-1", "1.5", "true", "\"text\"", "[1, [2]]", "99999999999999999999"] {
        let good = |name: &str| format!(r#"{{"kind": "Service", "metadata": {{"name": "{name}"}}, "spec": {{}}}}"#);
        let items = format!("[{}, {odd}, {}]", good("a"), good("b"));
        for text in [format!(r#"{{"kind":"List","items":{items}}}"#), format!("kind: List\nitems: {items}\n"), items] {
            let facts = facts_of(&[&text]);
            assert_eq!(names(&facts), ["a", "b"], "{text}");
            assert!(only(&facts).detail.contains("items[1] is "), "{}", only(&facts).detail);
        }
    }
}

#[test]
fn without_any_service_the_services_are_unread_because_every_cluster_has_one() {
    let headless = facts_of(&["kind: Service\nmetadata: {name: a}\nspec: {clusterIP: None}\n"]);
    assert_eq!((headless.services.seen().map(Vec::len), headless.rejected.len()), (Some(0), 0));
    let unknown = [
        "apiVersion: v1\nitems: []\nkind: List\nmetadata:\n  resourceVersion: \"\"\n",
        "kind: List\nitems: []\n",
        r#"{"kind":"List","items":[]}"#,
        r#"{"kind":"List","items":null}"#,
        r#"{"kind":"ServiceList","items":null}"#,
        r#"{"kind":"ServiceList","items":[]}"#,
        "apiVersion: v1\nitems:\n",
        "kind: List\nitems:\n",
        r#"{"items":null}"#,
        r#"{"items":[]}"#,
        r#"{"kind":"List"}"#,
        "[]",
        r#"{"kind":"PodList","items":[]}"#,
        "kind: Pod\nmetadata: {name: a}\n",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n",
        "apiVersion: core/v1\nkind: Service\nmetadata: {name: a}\n",
        "kind: service\nmetadata: {name: a}\n",
    ];
    for text in unknown {
        let facts = facts_of(&[text]);
        let gap = facts.services.gap().unwrap_or_else(|| panic!("{text}: {:?}", facts.services));
        assert!(gap.detail.contains("0.txt: "), "{text}: {}", gap.detail);
    }
    let facts = facts_of(&["kind: Deployment\nmetadata: {name: a}\n"]);
    assert!(
        facts
            .services
            .gap()
            .expect("a gap")
            .detail
            .contains("has no Service but for example Deployment, wanted all Services of the cluster")
    );
}

#[test]
fn one_broken_file_is_one_gap_whatever_it_held() {
    let facts = facts_of(&["kind: [Service"]);
    let gap = only(&facts);
    let missing = [facts.services.gap(), facts.endpoint_slices.gap(), facts.pods.gap(), facts.nodes.gap()];
    assert_eq!(missing, [Some(gap); 4]);
}

#[test]
fn what_is_too_large_is_refused_with_its_bound_and_what_came_before_counts() {
    let long = "x".repeat(5 << 20);
    let yaml =
        format!("{GOOD}---\nkind: Service\nmetadata: {{name: b}}\ndata: {long}\n---{}", GOOD.replace("good", "c"));
    let json = format!(
        r#"[{{"kind":"Service","metadata":{{"name":"good"}},"spec":{{}}}},{{"kind":"Service","data":"{long}"}}]"#
    );
    for text in [yaml, json] {
        let facts = facts_of(&[text]);
        assert_eq!(names(&facts), ["good"]);
        assert_eq!(only(&facts).why, Why::TooMuch);
        assert!(only(&facts).detail.contains("4 MiB without a complete object"), "{}", only(&facts).detail);
    }
    let facts = facts_of(&[format!(
        r#"[{{"kind":"Service","metadata":{{"name":"bad"}},"spec":{{"ports":[5{}]}}}}]"#,
        ",5".repeat(1_000_000)
    )]);
    assert!(only(&facts).detail.ends_with("spec.ports[0] is 5, wanted a mapping"), "{}", only(&facts).detail);
    // Without a limit, the aliases would expand 105 kB to 99 MB.
    let scalar = "x".repeat(100_000);
    let aliases = "- *a\n".repeat(990);
    let facts = facts_of(&[format!("kind: Service\nx: &a {scalar}\ny:\n{aliases}\n---{GOOD}")]);
    assert_eq!(names(&facts), ["good"]);
    assert_eq!(facts.rejected.len(), 1, "{:?}", facts.rejected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_pass_without_a_complaint(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(!facts_of(&[bytes]).rejected.is_empty());
    }

    #[test]
    fn a_damaged_manifest_never_invents_a_service(at in 0usize..100, byte in any::<u8>()) {
        let mut bytes = GOOD.as_bytes().to_vec();
        let at = at.min(bytes.len() - 1);
        bytes[at] = byte;
        let facts = facts_of(&[bytes]);
        prop_assert!(facts.services.seen().is_none_or(|services| services.len() <= 1));
    }
}
