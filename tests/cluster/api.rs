//! List requests to an API server: pages, refusals, and servers that do not answer.

use std::{collections::BTreeSet, net::TcpListener, time::Duration};

use portreeve_facts::{Claimant, ClusterFacts, PortRange, RangeClaim, RangeSource, Source, Why};
use tempfile::TempDir;

use crate::{
    cilium,
    fake::{Fake, Reply, facts_at},
    permissions::ACCESS,
    said,
};

pub(crate) fn list(kind: &str, items: &[&str]) -> Reply {
    page(kind, items, "")
}

pub(crate) fn page(kind: &str, items: &[&str], next: &str) -> Reply {
    let items: Vec<_> = items.iter().map(|item| serde_json::from_str(item).expect("an object")).collect();
    Reply::Json(said::page(kind, &items, next).to_string())
}

/// The answers of a small cluster. All kinds of objects that only some platforms have are missing (404).
pub(crate) fn small(path: &str) -> Reply {
    match path.split('?').next().expect("a path") {
        "/api/v1/nodes" => list("Node", &[r#"{"metadata":{"name":"n1","uid":"u"}}"#]),
        "/api/v1/services" => {
            list("Service", &[r#"{"metadata":{"name":"a","namespace":"d"},"spec":{"ports":[{"port":80}]}}"#])
        }
        "/apis/discovery.k8s.io/v1/endpointslices" => list("EndpointSlice", &[]),
        "/api/v1/pods" | "/api/v1/namespaces/kube-system/pods" => list("Pod", &[]),
        _ => Reply::Status(404, "not found"),
    }
}

fn names(facts: &ClusterFacts) -> Vec<&str> {
    facts.services.get().expect("services").iter().map(|service| service.name.as_str()).collect()
}

fn services_gap(answer: impl Fn(usize) -> Reply + Send + Sync + 'static) -> (Why, String) {
    let fake =
        Fake::new(move |path, before| if path.starts_with("/api/v1/services") { answer(before) } else { small(path) });
    let facts = fake.facts();
    let gap = facts.services.gap().expect("a gap").clone();
    assert_eq!(gap.source, Source::Services);
    assert!(facts.nodes.seen().is_some(), "other resources are read after one failure");
    (gap.why, gap.detail)
}

#[test]
fn a_plain_cluster_is_read_and_absent_objects_are_no_errors() {
    let fake = Fake::new(|path, _| small(path));
    let facts = fake.facts();
    assert_eq!(facts.rejected, []);
    assert_eq!(names(&facts), ["a"]);
    assert_eq!(facts.node_name.as_deref(), Some("n1"));
    assert!(facts.configured && facts.origin.starts_with("http://127.0.0.1:"));
    assert_eq!(facts.endpoint_slices.get().expect("slices").len(), 0, "the API server answered that it has none");
    assert_eq!(
        facts.proxy_config.gap().map(|gap| (gap.source, gap.why)),
        Some((Source::ConfigMaps, Why::NotSupported))
    );
    assert_eq!(facts.node_port_range.get().expect("a range").source, RangeSource::Assumed);
    let requests = fake.requests();
    assert!(
        requests
            .iter()
            .any(|path| path.contains("fieldSelector=spec.type%21%3DExternalName%2Cspec.clusterIP%21%3DNone"))
    );
    assert!(requests.iter().any(|path| path.starts_with("/api/v1/pods?") && path.contains("spec.nodeName%3Dn1")));
}

#[test]
fn every_request_is_in_the_access_table_and_every_row_is_used() {
    let fake = Fake::new(|path, _| if path == cilium::MAP { cilium::config_map() } else { small(path) });
    fake.facts();
    let used: BTreeSet<_> = fake.requests().iter().map(|path| row_of(path)).collect();
    assert_eq!(used.len(), rows_of_reading(), "rows without a request");
}

/// The number of rows in [`ACCESS`] about requests that read facts. The lab tests the rows about token reviews.
pub(crate) fn rows_of_reading() -> usize {
    ACCESS.iter().filter(|grant| grant.verbs != ["create"]).count()
}

pub(crate) fn row_of(request: &str) -> usize {
    let path = request.split('?').next().expect("a path").to_owned();
    let parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
    let (group, rest) = match parts.as_slice() {
        ["api", "v1", rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        [_] => ("", &[path.as_str()][..]),
        other => panic!("{other:?}"),
    };
    let rest = if let ["namespaces", _, rest @ ..] = rest { rest } else { rest };
    let (verb, name) = match rest {
        [resource] if resource.starts_with('/') => ("get", None),
        [_] if request.contains("watch=1") => ("watch", None),
        [_] => ("list", None),
        [_, name] => ("get", Some(*name)),
        other => panic!("{other:?}"),
    };
    let granted = ACCESS.iter().position(|grant| {
        grant.group == group
            && grant.resource == rest[0]
            && grant.verbs.contains(&verb)
            && name.is_none_or(|name| grant.names.contains(&name))
    });
    granted.unwrap_or_else(|| panic!("{request} is not in ACCESS"))
}

#[test]
fn pages_are_followed_to_the_end() {
    let fake = Fake::new(|path, _| {
        let item = |name| format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{}}}}"#);
        match path {
            path if !path.starts_with("/api/v1/services") => small(path),
            path if path.contains("continue=t%2F1%3D") => page("Service", &[&item("b")], "t2"),
            path if path.contains("continue=t2") => list("Service", &[&item("c")]),
            _ => page("Service", &[&item("a")], "t/1="),
        }
    });
    assert_eq!(names(&fake.facts()), ["a", "b", "c"]);
}

#[test]
fn a_list_that_expires_between_pages_is_read_again_once() {
    let fake = Fake::new(|path, before| {
        let item = r#"{"metadata":{"name":"a"},"spec":{}}"#;
        match (path, before) {
            (path, _) if !path.starts_with("/api/v1/services") => small(path),
            (path, 0) if path.contains("continue=") => Reply::Status(410, "expired"),
            (path, _) if path.contains("continue=") => list("Service", &[]),
            _ => page("Service", &[item], "t"),
        }
    });
    assert_eq!(names(&fake.facts()), ["a"], "no object of the first attempt is kept");

    let fake = Fake::new(|path, _| match path {
        path if !path.starts_with("/api/v1/services") => small(path),
        path if path.contains("continue=") => Reply::Status(410, "expired"),
        _ => page("Service", &[], "t"),
    });
    assert_eq!(fake.facts().services.gap().map(|gap| gap.why), Some(Why::Stale));
}

#[test]
fn a_list_that_never_ends_is_an_error() {
    let (why, detail) = services_gap(|_| page("Service", &[], "again"));
    assert_eq!(why, Why::Malformed);
    assert!(detail.contains("a page that was already read"), "{detail}");
}

#[test]
fn an_old_server_that_refuses_the_field_selector_gets_a_request_without() {
    let fake = Fake::new(|path, _| {
        if path.contains("fieldSelector=spec.type") {
            Reply::Status(400, "field label not supported")
        } else {
            small(path)
        }
    });
    assert_eq!(names(&fake.facts()), ["a"]);
}

#[test]
fn a_busy_server_that_names_a_time_gets_one_retry() {
    let fake =
        Fake::new(
            |path, before| {
                if path.starts_with("/api/v1/services") && before == 0 { Reply::Busy(0) } else { small(path) }
            },
        );
    assert_eq!(names(&fake.facts()), ["a"]);
    let (why, detail) = services_gap(|_| Reply::Busy(0));
    assert_eq!(why, Why::Unreachable);
    assert!(detail.contains("429"), "{detail}");
}

#[test]
fn refusals_and_wrong_answers_are_named() {
    let (why, detail) = services_gap(|_| Reply::Status(403, "services is forbidden: User x cannot list"));
    assert_eq!(why, Why::NotPermitted);
    assert!(detail.ends_with("/api/v1/services: 403: services is forbidden: User x cannot list"), "{detail}");
    assert_eq!(services_gap(|_| Reply::Status(401, "Unauthorized")).0, Why::NotPermitted);
    assert_eq!(services_gap(|_| Reply::Status(500, "oops")).0, Why::Unreachable);
    let (why, detail) = services_gap(|_| Reply::Html("<html>Log in</html>"));
    assert_eq!(why, Why::Malformed);
    assert!(detail.contains("text/html") && detail.contains("line 1 column 1"), "{detail}");
    assert_eq!(services_gap(|_| Reply::Json("{}".to_owned())).0, Why::Malformed);
    assert_eq!(services_gap(|_| Reply::Json(r#"{"kind":"ServiceList","items":[{"#.to_owned())).0, Why::Malformed);
    let (why, detail) = services_gap(|_| Reply::Torn(r#"{"kind":"ServiceList","items":["#));
    assert_eq!(why, Why::Unreachable, "{detail}");
}

#[test]
fn an_optional_object_may_be_forbidden_but_its_failure_is_named() {
    let fake = Fake::new(|path, _| match path {
        "/flagz" | "/api/v1/namespaces/kube-system/configmaps/kube-proxy" => Reply::Status(403, "forbidden"),
        "/api/v1/namespaces/kube-system/configmaps/cilium-config" => Reply::Status(500, "etcd is gone"),
        path => small(path),
    });
    let facts = fake.facts();
    assert_eq!(facts.rejected.len(), 1);
    assert!(facts.rejected[0].detail.contains("cilium-config: 500: etcd is gone"), "{:?}", facts.rejected);
    let gap = facts.proxy_config.gap().expect("a gap");
    assert!(gap.detail.contains("cilium-config: 500"), "Cilium may replace kube-proxy: {}", gap.detail);
}

#[test]
fn the_ranges_of_cilium_and_calico_are_unread_if_forbidden() {
    const CILIUM: &str = "/api/v1/namespaces/kube-system/configmaps/cilium-config";
    const CALICO: &str = "/apis/crd.projectcalico.org/v1/felixconfigurations/default";
    let map = r#"{"kind":"ConfigMap","metadata":{"name":"kube-proxy","namespace":"kube-system"},"data":{"config.conf":"mode: nftables"}}"#;
    let facts = |closed: Option<&'static str>| {
        let fake = Fake::new(move |path, _| match path {
            path if Some(path) == closed => Reply::Status(403, "forbidden"),
            "/api/v1/namespaces/kube-system/configmaps/kube-proxy" => Reply::Json(map.to_owned()),
            path => small(path),
        });
        let facts = fake.facts();
        let why = |claim: &RangeClaim| (claim.by, claim.ranges.gap().map(|gap| (gap.source, gap.why)));
        (facts.range_claims.iter().map(why).collect::<Vec<_>>(), facts.proxy_config)
    };
    let unread = Some((Source::ConfigMaps, Why::NotPermitted));
    let (claims, config) = facts(None);
    assert_eq!(claims, [], "an absent object claims no range");
    assert_eq!(config.get().expect("kube-proxy's").mode.as_deref(), Some("nftables"));
    let (claims, config) = facts(Some(CALICO));
    assert_eq!((claims, config.gap()), (vec![(Claimant::Calico, unread)], None));
    let (claims, config) = facts(Some(CILIUM));
    assert_eq!(claims, [(Claimant::Cilium, unread)]);
    assert!(config.gap().is_some(), "kube-proxy's settings may be older than Cilium");
}

#[test]
fn flagz_has_the_range_in_each_of_its_spellings() {
    let spellings = [
        "kube-apiserver flagz\nWarning: not for machines\n\nservice-node-port-range=20000-20999\nv=2\n",
        "service-node-port-range: 20000-20999\n",
        "service-node-port-range:20000-20999\n",
        "service-node-port-range 20000-20999",
        r#"{"kind":"Flagz","apiVersion":"config.k8s.io/v1alpha1","flags":{"v":"2","service-node-port-range":"20000-20999"}}"#,
    ];
    for spelling in spellings {
        let fake = Fake::new(move |path, _| if path == "/flagz" { Reply::Text(spelling) } else { small(path) });
        let range = fake.facts().node_port_range.get().expect("a range").clone();
        assert_eq!((range.range, range.source), (PortRange { first: 20000, last: 20999 }, RangeSource::Flagz));
        assert!(range.place.ends_with("/flagz"), "{}", range.place);
    }
}

#[test]
fn a_flagz_without_the_range_is_named() {
    let fake = Fake::new(|path, _| if path == "/flagz" { Reply::Html("<html>Log in</html>") } else { small(path) });
    let facts = fake.facts();
    assert_eq!(facts.rejected.iter().map(|gap| gap.source).collect::<Vec<_>>(), [Source::NodePortRange]);
    assert_eq!(facts.node_port_range.get().expect("a range").source, RangeSource::Assumed);
}

#[test]
fn the_pods_of_an_unknown_node_are_not_requested() {
    let fake = Fake::new(|path, _| {
        if path.starts_with("/api/v1/nodes") {
            list("Node", &[r#"{"metadata":{"name":"other"}}"#])
        } else {
            small(path)
        }
    });
    let facts = fake.facts();
    assert_eq!(facts.node_name, None);
    let gap = facts.pods.gap().expect("a gap");
    assert_eq!(gap.why, Why::NotRequested);
    assert!(gap.detail.contains("--node"), "{}", gap.detail);
}

#[test]
fn a_server_that_hangs_times_out_after_one_request() {
    let fake = Fake::new(|_, _| Reply::Silence);
    // Two seconds are enough for the request to arrive.
    let facts = fake.facts_within(Duration::from_secs(2));
    for gap in [facts.services.gap(), facts.nodes.gap(), facts.pods.gap(), facts.endpoint_slices.gap()] {
        assert_eq!(gap.expect("a gap").why, Why::TimedOut);
    }
    assert_eq!(fake.requests().len(), 1);
    assert!(facts.configured);
}

#[test]
fn an_address_without_a_server_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let facts = facts_at(&address, &TempDir::new().expect("a directory"), Duration::from_secs(20));
    let gap = facts.services.gap().expect("a gap");
    assert_eq!(gap.why, Why::Unreachable);
    assert!(gap.detail.contains("onnection refused"), "{}", gap.detail);
    assert_eq!(facts.origin, address);
}

#[test]
fn a_server_without_tls_is_unreachable() {
    let plain = Fake::new(|_, _| Reply::Silence);
    let address = plain.address().replace("http:", "https:");
    let facts = facts_at(&address, &TempDir::new().expect("a directory"), Duration::from_secs(20));
    assert_eq!(facts.services.gap().map(|gap| gap.why), Some(Why::Unreachable), "{:?}", facts.services);
}

#[test]
fn a_kubeconfig_that_cannot_be_used_is_an_error_with_its_name() {
    let directory = TempDir::new().expect("a directory");
    let facts = facts_at("not an address", &directory, Duration::from_secs(20));
    let gap = facts.services.gap().expect("a gap");
    assert_eq!(gap.why, Why::Unreachable);
    assert!(gap.detail.contains("kubeconfig") && gap.detail.contains("cluster url"), "{}", gap.detail);
}

#[test]
fn a_config_map_that_the_api_server_would_refuse_is_unread_with_the_field() {
    const MAP: &str = r#"{"kind":"ConfigMap","metadata":{"name":"cilium-config","namespace":"kube-system"},
        "data":{"kube-proxy-replacement":"true","node-port-range":["20000"],"other":{}}}"#;
    let fake = Fake::new(|path, _| match path {
        "/api/v1/namespaces/kube-system/configmaps/cilium-config" => Reply::Json(MAP.to_owned()),
        path => small(path),
    });
    let facts = fake.facts();
    let gap = facts.proxy_config.gap().expect("a gap");
    assert!(gap.detail.contains("data.node-port-range is a list, wanted a text"), "{gap:?}");
}
