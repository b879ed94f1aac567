//! The metrics of `portreeve agent` in a real cluster. The node is set up so that every metric has a value.

use serde_json::json;

use crate::parts::{Agent, Proxy, Wired, cluster, http_get, serve, until};

#[test]
fn a_healthy_node_of_a_real_cluster_is_at_most_200_series() {
    let _wired = Wired::enter();
    let cluster = cluster();
    serve(&cluster, "web", Some(30080));
    let _proxy = Proxy::start(&cluster, "nftables", &json!({}));
    let _agent = Agent::start(&cluster, &[]);
    let whole = ["portreeve_node_ports{", "portreeve_proxy_info{mode=\"nftables\"", "portreeve_watch_age_seconds{"];
    let is_whole =
        |text: &String| whole.iter().all(|words| text.contains(words)) && !text.contains("portreeve_unknown{");
    let text = until("whole view", || http_get("127.0.0.1:29517", "/metrics").filter(is_whole));
    for source in ["services", "endpoint-slices", "nodes", "proxy-mode", "proxy-config", "proxy-metrics"] {
        assert!(text.contains(&format!("portreeve_source_up{{source=\"{source}\"}} 1")), "{source}: {text}");
    }
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series <= 200, "{series} series: {text}");
}
