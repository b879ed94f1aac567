//! kube-proxy 1.23.6, the last version that holds each NodePort with a socket. The proxy may open 1024 file
//! descriptors, the old default limit of a process.

use std::{io::ErrorKind, net::TcpListener};

use serde_json::{Value, json};

use crate::{
    look::{Look, map},
    modes::{NONE, alarms, found, meanwhile},
    parts::{Agent, Answer, Proxy, Wired, ask, cluster, events, objects, reasons, serve, until},
};

const LIMIT: u64 = 1024;

fn wide(name: &str, count: u16) -> Value {
    let ports: Vec<Value> = (1..=count).map(|number| objects::port(number, None)).collect();
    let mut service = objects::service(name, &ports);
    service["spec"]["ipFamilyPolicy"] = json!("SingleStack");
    service
}

#[test]
fn ports_that_the_proxy_holds_are_no_squatters_but_one_that_it_lacks_has_one() {
    let _wired = Wired::enter();
    let cluster = cluster();
    for number in 0..5 {
        serve(&cluster, &format!("s{number}"), Some(30080 + number));
    }
    let mut proxy = Proxy::start_holding(&cluster, LIMIT);
    proxy.settle(&cluster);
    let held = TcpListener::bind("0.0.0.0:30080").expect_err("the proxy holds it");
    assert_eq!(held.kind(), ErrorKind::AddrInUse);
    for start in [Agent::start, Agent::start_as_nobody] {
        let document = start(&cluster, &[]).findings_after(3);
        assert_eq!((&document["nodes"][0]["proxy"]["mode"], alarms(&document)), (&json!("iptables"), NONE.to_vec()));
        assert_eq!(found(&document, "listener-on-node-port/loses"), NONE);
    }
    let observer = cluster.kubeconfig("observer");
    let look = Look::check(&observer);
    assert_eq!((look.alarms(), look.code), (vec![], 0));
    assert!(!map(&observer).contains("listens"), "{}", map(&observer));

    // The listener has the port in both families, so the proxy cannot listen on this NodePort.
    let _squatter = TcpListener::bind("[::]:30085").expect("the port is free");
    let service = serve(&cluster, "late", Some(30085));
    proxy.settle(&cluster);
    let agent = Agent::start_as_nobody(&cluster, &[]);
    until("Event", || (reasons(&cluster) == ["ListenerOnNodePort"]).then_some(()));
    assert_eq!(events(&cluster)[0]["regarding"]["uid"], service["metadata"]["uid"]);
    assert_eq!(alarms(&agent.findings()).len(), 1);
    assert!(map(&observer).contains("listens, owned by Service default/late"), "{}", map(&observer));

    // A frozen proxy still has its listening sockets.
    proxy.freeze();
    let document = agent.findings_after(3);
    assert_eq!((&document["nodes"][0]["proxy"]["mode"], alarms(&document).len()), (&Value::Null, 1), "{document:#}");
    // The two Events differ: an old kube-proxy also serves NodePorts on ::1, but the version of a frozen kube-proxy is
    // unknown.
    let ends = ["time out or go to the Service's pods", "connections go to the Service's pods"];
    let told = events(&cluster);
    let notes: Vec<&str> = told.iter().filter_map(|event| event["note"].as_str()).collect();
    assert!(notes.len() == 2 && notes.iter().zip(ends).all(|(note, end)| note.contains(end)), "{notes:#?}");
}

/// Fault (proxy): the proxy runs out of file descriptors
/// Does: warns before the failure, and reports the failure
/// Right again: when the proxy has descriptors again
/// Lost: nothing
#[test]
fn one_service_too_many_is_told_before_and_when_the_proxy_runs_out_of_descriptors() {
    let wired = Wired::enter();
    let cluster = cluster();
    serve(&cluster, "web", Some(30080));
    let mut proxy = Proxy::start_holding(&cluster, LIMIT);
    proxy.settle(&cluster);
    let agent = Agent::start_as_nobody(&cluster, &[]);
    assert_eq!(alarms(&agent.findings_after(3)), NONE);
    let severity = || {
        let document = agent.findings();
        found(&document, "proxy-near-fd-limit/near").first().map(|it| it["severity"].clone())
    };
    let open = || open_descriptors(&agent.metrics());

    let documents = meanwhile(&agent, || {
        // With this Service, the proxy needs four fifths of its descriptors, and still works.
        let most = cluster.api().create(&wide("most", 820));
        proxy.settle(&cluster);
        until("warning", || (severity()? == "warning").then_some(()));
        until("its sockets", || (open()? >= 820).then_some(()));
        cluster.api().delete(&most);
        proxy.settle(&cluster);
        until("end of it", || severity().is_none().then_some(()));

        // With this Service, the proxy needs more descriptors than its limit. The proxy serves no new Service, and has
        // few open descriptors.
        cluster.api().create(&wide("more", 1025));
        until("critical finding", || (severity()? == "critical").then_some(()));
        serve(&cluster, "late", Some(30081));
        let document = agent.findings_after(5);
        until("idleness", || (open()? < 50).then_some(()));
        let finding = found(&document, "proxy-near-fd-limit/near")[0];
        assert_eq!(
            (&finding["severity"], &finding["affects"]),
            (&json!("critical"), &json!(["remote", "node", "pods"]))
        );
        let evidence = finding["evidence"].to_string();
        for words in ["1029 for NodePorts", "1024 (process_max_fds", "default/more with 1025", "v1.23.6"] {
            assert!(evidence.contains(words), "{evidence}");
        }
        let late = "192.0.2.1:30081".parse().expect("an address");
        assert_eq!(wired.client.run(move || ask(late)), Answer::Refused, "no Service is updated");
    });
    for document in &documents {
        assert_eq!(alarms(document).len(), found(document, "proxy-near-fd-limit/near").len(), "{document:#}");
    }
    let told = events(&cluster);
    let told: Vec<_> = told.iter().map(|it| (&it["reason"], &it["regarding"]["kind"], &it["type"])).collect();
    let [open, over] = ["ProxyNearFdLimit", "ProxyNearFdLimitResolved"].map(|it| json!(it));
    let (node, warning, normal) = (json!("Node"), json!("Warning"), json!("Normal"));
    assert_eq!(told, [(&open, &node, &warning), (&over, &node, &normal), (&open, &node, &warning)]);
}

fn open_descriptors(metrics: &str) -> Option<u64> {
    let value = metrics.lines().find_map(|line| line.strip_prefix("portreeve_proxy_open_fds "))?;
    value.trim_end_matches(".0").parse().ok()
}
