//! Manifests that the API server refuses, and that never become objects which a look could see.

use crate::cli::{binary, ended};
use crate::lint::folder;

/// What `lint` says of a manifest next to a cluster.
fn lint(manifest: &str, cluster: &str) -> String {
    let files = folder(&[("rendered.yaml", manifest), ("cluster.yaml", cluster)]);
    let arguments = ["lint", "rendered.yaml", "--against", "cluster.yaml"];
    let (code, stdout, stderr) = ended(binary().current_dir(files.path()).args(arguments));
    assert_eq!((code, stderr.as_str()), (1, ""), "{stdout}");
    // Lines are broken where they are full.
    stdout.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn service(name: &str, uid: &str, ports: &str) -> String {
    let (namespace, name) = name.split_once('/').expect("namespace/name");
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}{uid}}}\nspec:\n  type: NodePort\n  \
         ports:\n  - {ports}\n---\n"
    )
}

/// As in ansible/awx-operator#814, before the operator asks: the line of the number, who has it, and numbers that are free.
#[test]
fn a_number_that_somebody_has_is_found_where_it_is_written() {
    let wanted = service("awx/awx-service", "", "{name: http, port: 80, nodePort: 30080}");
    let there = service("shop/frontend", ", uid: u1", "{name: http, port: 80, nodePort: 30080}");
    let said = lint(&wanted, &there);
    assert!(said.contains("rendered.yaml:7:38 WARNING Service awx/awx-service, port 30080/tcp"), "{said}");
    assert!(said.contains("also nodePort of shop/frontend port http: the"), "{said}");
    assert!(said.contains("free 30000, 30001, 30002"), "{said}");
}

/// As in redpanda-data/helm-charts#1124, at both ports of the Service.
#[test]
fn a_number_that_is_written_twice_is_found_at_both_places() {
    let ports = "{name: http-default, port: 8083, nodePort: 30082}\n  - {name: http-own, port: 30082, nodePort: 30082}";
    let there = service("shop/web", ", uid: u1", "{name: http, port: 80, nodePort: 30080}");
    let said = lint(&service("redpanda/redpanda-external", "", ports), &there);
    assert_eq!(said.matches(" WARNING ").count(), 2, "{said}");
    for (place, other) in [("7:48", "http-own"), ("8:45", "http-default")] {
        let title = format!("rendered.yaml:{place} WARNING Service redpanda/redpanda-external, port 30082/tcp");
        assert!(said.contains(&title), "{said}");
        assert!(said.contains(&format!("also nodePort of redpanda/redpanda-external port {other}: the API")), "{said}");
    }
}

/// What threads of other classes hit, as it was written: each is found before it is applied.
#[test]
fn what_was_refused_is_found_where_it_is_written() {
    let of = |name: &str, ports: &str| service(name, "", ports);
    let there = |name: &str, port: u16| service(name, ", uid: u", &format!("{{name: p, port: 80, nodePort: {port}}}"));
    for (thread, manifest, cluster, says) in [
        (
            "connect-helm-charts#22",
            of("b/onepassword", "{port: 8080, nodePort: 31080}"),
            there("a/onepassword", 31080),
            "a/onepassword",
        ),
        (
            "istio#6050",
            of("istio/gateway", "{port: 80, nodePort: 31380}"),
            there("shop/backend", 31380),
            "shop/backend",
        ),
        ("KubeCube#285", of("kubecube/nginx", "{port: 80, nodePort: 30080}"), there("nginx/web", 30080), "nginx/web"),
        ("rancher#18989", of("a/app", "{port: 80, nodePort: 30500}"), there("b/app", 30500), "b/app"),
        ("velero#1950", of("istio/gateway", "{port: 80, nodePort: 30001}"), there("shop/web", 30001), "shop/web"),
        (
            "coturn-chart#75",
            of("a/tcp", "{port: 30030, nodePort: 30030}")
                + &of("a/udp", "{port: 30030, protocol: UDP, nodePort: 30030}"),
            there("shop/web", 30000),
            "a/udp",
        ),
        (
            "bitnami/charts#2564",
            of("a/mysql", "{port: 3306, nodePort: 32001}") + &of("a/mysql-slave", "{port: 3306, nodePort: 32001}"),
            there("shop/web", 30000),
            "a/mysql-slave",
        ),
        (
            "kubernetes#135439",
            of(
                "a/dns",
                "{name: u, port: 53, protocol: UDP, nodePort: 30053}\n  - {name: t, port: 5353, nodePort: 30053}",
            ),
            there("shop/web", 30000),
            "a/dns port u",
        ),
    ] {
        let said = lint(&manifest, &cluster);
        assert!(said.contains("WARNING") && said.contains("Rule node-port-claimed-twice"), "{thread}: {said}");
        assert!(said.contains(&format!("is also nodePort of {says}")), "{thread}: {said}");
    }
}
