//! Healthy clusters cause no finding above info.

use serde_json::json;

use crate::{
    look::Look,
    parts::{ControlPlane, PRIMARY, Proxy, Wired, objects},
};

#[test]
fn fifty_services_and_the_proxys_own_listeners_are_no_alarm_in_either_mode() {
    let _wired = Wired::enter();
    let cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &PRIMARY));
    for number in 0..50 {
        let mut service = objects::service(&format!("s{number}"), &[objects::port(80, None)]);
        if number % 10 == 0 {
            // kube-proxy listens on the healthCheckNodePort of every tenth Service.
            service["spec"]["type"] = json!("LoadBalancer");
            service["spec"]["externalTrafficPolicy"] = json!("Local");
        }
        let service = cluster.api().create(&service);
        for (family, address) in ["IPv4", "IPv6"].into_iter().zip(Wired::HERE) {
            cluster.api().create(&objects::endpoint_slice(&service, Some((address, "n1")), family));
        }
    }
    for mode in ["iptables", "nftables"] {
        let proxy = Proxy::start(&cluster, mode, &json!({}));
        let look = Look::check(&cluster.kubeconfig("admin"));
        assert_eq!(look.json["nodes"][0]["proxy"]["mode"], mode);
        assert_eq!((look.alarms(), look.code), (vec![], 0), "{mode}");
        assert!(look.unknown().is_empty(), "{:#}", look.json);
        proxy.clean_up();
    }
}
