//! What `portreeve agent` exposes on a node of a real cluster, where every family has something to tell.

use serde_json::json;

use crate::parts::{Agent, Proxy, Wired, cluster, http_get, serve, until};

#[test]
fn a_healthy_node_of_a_real_cluster_is_at_most_150_series() {
    let _wired = Wired::enter();
    let cluster = cluster();
    serve(&cluster, "web", Some(30080));
    let _proxy = Proxy::start(&cluster, "nftables", &json!({}));
    let _agent = Agent::start(&cluster, &[]);
    let parts = [
        "portreeve_node_ports{",
        "portreeve_proxy_info{mode=\"nftables\"",
        "portreeve_watch_age_seconds{",
        "portreeve_source_up{source=\"services\"} 1",
        "portreeve_source_up{source=\"endpoint-slices\"} 1",
        "portreeve_source_up{source=\"nodes\"} 1",
        "portreeve_source_up{source=\"proxy-mode\"} 1",
        "portreeve_source_up{source=\"proxy-config\"} 1",
        "portreeve_source_up{source=\"proxy-metrics\"} 1",
    ];
    for part in parts {
        until(part, || http_get("127.0.0.1:29517", "/metrics").filter(|text| text.contains(part)));
    }
    let text = until("verdict of every rule", || {
        http_get("127.0.0.1:29517", "/metrics").filter(|text| !text.contains("portreeve_unknown{"))
    });
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series <= 150, "{series} series: {text}");
}
