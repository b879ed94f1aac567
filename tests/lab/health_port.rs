//! Another program has the health port of the real kube-proxy.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::{
    look::Look,
    parts::{Answer, ControlPlane, Proxy, Server, Wired, ask, cluster, http_status, until},
};

const RULE: &str = "health-check-unserved/proxy";

#[track_caller]
fn look(cluster: &ControlPlane) -> (Vec<Value>, Vec<Value>) {
    let look = Look::check_with(&["--rule", RULE], &cluster.kubeconfig("observer"));
    (look.findings(RULE).into_iter().cloned().collect(), look.unknown().into_iter().cloned().collect())
}

#[test]
fn whoever_answers_in_kube_proxys_place_is_named_until_kube_proxy_has_its_port() {
    let wired = Wired::enter();
    let cluster = cluster();
    let place: SocketAddr = "192.0.2.1:10256".parse().expect("an address");
    let squatter = Server::on(SocketAddr::new([0; 4].into(), place.port()), Answer::Process);
    let proxy = Proxy::start(&cluster, "iptables", &json!({}));

    // kube-proxy serves the Service, but the load balancer's health check reaches another program.
    assert_eq!(wired.client.run(move || ask(place)), Answer::Process);
    let (found, unknown) = look(&cluster);
    let [finding] = &found[..] else { panic!("{found:#?} {unknown:#?}") };
    assert_eq!((&finding["severity"], &finding["port"]), (&json!("warning"), &json!(10256)));
    assert!(finding["evidence"].to_string().contains(&format!("pid {}", std::process::id())), "{finding:#}");
    let refusals = || proxy.log().matches("listen tcp 0.0.0.0:10256: bind: address already in use").count();
    until("another try, and another refusal", || (refusals() >= 2).then_some(()));

    drop(squatter);
    let health = || http_status(&place.to_string(), "/healthz", "");
    until("health of kube-proxy", || (health() == Some(200)).then_some(()));
    assert_eq!(look(&cluster), (vec![], vec![]));
}

#[test]
fn a_kube_proxy_that_must_have_its_port_ends_where_somebody_else_has_it() {
    let _wired = Wired::enter();
    let cluster = cluster();
    let _squatter = Server::on("0.0.0.0:10256".parse().expect("an address"), Answer::Process);
    let said = Proxy::end(&cluster, "iptables", &json!({"bindAddressHardFail": true}));
    assert!(said.contains("bind: address already in use"), "{said}");
    // This kube-proxy has ended. No running program needs the port, so the rule has no finding.
    let (found, _) = look(&cluster);
    assert_eq!(found, [Value::Null; 0]);
}
