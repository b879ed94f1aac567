//! The agent and the real kube-proxy in each mode: the agent's findings and Events, and the time until the agent
//! reports them. If a proxy restarts or changes its mode, the agent must report nothing. No flag sets the mode.

use crate::parts::named::is_of;
use std::{
    net::TcpListener,
    process::Command,
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    look::Look,
    parts::{
        Agent, Answer, ControlPlane, Proxy, Wired, ask, cluster, events, http_get, objects, reasons, serve, until,
    },
};

const TOLD: &str = "127.0.0.1:10249/proxyMode";

pub const NONE: [&Value; 0] = [];

pub fn found<'a>(document: &'a Value, rule: &str) -> Vec<&'a Value> {
    let findings = document["findings"].as_array().expect("findings");
    findings.iter().filter(|finding| is_of(finding, rule)).collect()
}

pub fn alarms(document: &Value) -> Vec<&Value> {
    let findings = document["findings"].as_array().expect("findings");
    findings.iter().filter(|finding| finding["severity"] != "info").collect()
}

/// The sources that a rule could not read, each with the reason.
pub fn unseen<'a>(document: &'a Value, rule: &str) -> Vec<(&'a str, &'a str)> {
    let word = |value: &'a Value| value.as_str().expect("a word");
    let unknown = document["unknown"].as_array().expect("unknown").iter();
    unknown.filter(|it| is_of(it, rule)).map(|it| (word(&it["source"]), word(&it["why"]))).collect()
}

/// Runs a closure. Returns the agent's documents of findings, which are read about every 50 ms while the closure runs.
pub fn meanwhile(agent: &Agent, story: impl FnOnce()) -> Vec<Value> {
    thread::scope(|scope| {
        // The sender is dropped at the end of the closure, even after a panic.
        let (end, ended) = channel::<()>();
        let witness = scope.spawn(move || {
            let mut seen = Vec::new();
            while ended.recv_timeout(Duration::from_millis(50)) == Err(RecvTimeoutError::Timeout) {
                seen.push(agent.findings());
            }
            seen
        });
        story();
        drop(end);
        witness.join().expect("an agent that answers")
    })
}

/// A node in iptables mode with a reported finding: a NodePort takes the connections of a listener on loopback. In
/// other modes, the finding would be wrong.
pub struct Hanging {
    pub wired: Wired,
    pub cluster: ControlPlane,
    pub proxy: Proxy,
    pub squatter: TcpListener,
    pub agent: Agent,
}

impl Hanging {
    #[track_caller]
    pub fn with(start: fn(&ControlPlane, &[&str]) -> Agent) -> Self {
        let wired = Wired::enter();
        let cluster = cluster();
        // One NodePort stays free, because Portreeve may treat a process that holds all NodePorts as a proxy.
        for (name, port) in [("web", 30080), ("free", 30081)] {
            serve(&cluster, name, Some(port));
        }
        let proxy = Proxy::start(&cluster, "iptables", &json!({}));
        let squatter = TcpListener::bind("127.0.0.1:30080").expect("the port is free");
        let agent = start(&cluster, &[]);
        until("Event", || (reasons(&cluster) == ["ListenerOnNodePort"]).then_some(()));
        Self { wired, cluster, proxy, squatter, agent }
    }
}

#[track_caller]
pub fn is_held(agent: &Agent, why: &str) {
    let document = agent.findings_after(2);
    assert_eq!(alarms(&document).len(), 1, "what cannot be told is held: {document:#}");
    assert_eq!(unseen(&document, "listener-on-node-port/loses"), [("proxy-mode", why)], "{document:#}");
}

#[track_caller]
pub fn is_back(agent: &Agent, cluster: &ControlPlane) {
    let document = agent.findings_after(2);
    assert_eq!(
        (&document["nodes"][0]["proxy"]["mode"], alarms(&document).len()),
        (&json!("iptables"), 1),
        "{document:#}"
    );
    assert_eq!(reasons(cluster), ["ListenerOnNodePort"]);
}

#[track_caller]
fn squatters_come_and_go(mode: &str, start: fn(&ControlPlane, &[&str]) -> Agent) {
    let wired = Wired::enter();
    let cluster = cluster();
    // One NodePort stays free, because Portreeve may treat a process that holds all NodePorts as a proxy.
    let services =
        [("web", 30080), ("api", 30081), ("free", 30082)].map(|(name, port)| serve(&cluster, name, Some(port)));
    let proxy = Proxy::start(&cluster, mode, &json!({}));
    let agent = start(&cluster, &[]);
    assert_eq!(alarms(&agent.findings_after(2)), NONE);

    let looks = agent.looks();
    let [on_web, on_api] =
        ["0.0.0.0:30080", "0.0.0.0:30081"].map(|it| TcpListener::bind(it).expect("the port is free"));
    until("metric", || {
        let metrics = agent.metrics();
        let told = metrics
            .contains(r#"portreeve_findings{rule="listener-on-node-port",variant="loses",severity="critical"} 2"#);
        // One scan may have begun before the listeners. The next two scans must find the listeners.
        assert!(told || Agent::looks_in(&metrics) < looks + 3, "{metrics}");
        told.then_some(())
    });
    let document = agent.findings();
    assert_eq!(
        (&document["nodes"][0]["proxy"]["mode"], &document["nodes"][0]["proxy"]["source"]),
        (&json!(mode), &json!(TOLD))
    );
    assert_eq!(alarms(&document).len(), 2, "{document:#}");
    for finding in found(&document, "listener-on-node-port/loses") {
        assert_eq!(finding["severity"], "critical");
        let how = json!({"name": "proxy mode", "value": format!("{mode} (from {TOLD})")});
        assert!(finding["evidence"].as_array().expect("evidence").contains(&how), "{finding:#}");
    }
    let place = "192.0.2.1:30080".parse().expect("an address");
    assert_eq!(wired.client.run(move || ask(place)), Answer::Pod, "not the listener");
    until("Events", || (reasons(&cluster) == ["ListenerOnNodePort"; 2]).then_some(()));

    drop(proxy);
    let document = agent.findings_after(2);
    assert_eq!(
        (&document["nodes"][0]["proxy"]["mode"], alarms(&document).len()),
        (&Value::Null, 2),
        "so it is in every mode"
    );
    let _proxy = Proxy::start(&cluster, mode, &json!({}));
    assert_eq!(alarms(&agent.findings_after(2)).len(), 2);
    assert_eq!(reasons(&cluster), ["ListenerOnNodePort"; 2], "a proxy that was away is no news");

    let over =
        |count: usize| reasons(&cluster).iter().filter(|it| *it == "ListenerOnNodePortResolved").count() == count;
    cluster.api().delete(&services[0]);
    until("end of the Service", || over(1).then_some(()));
    drop(on_api);
    until("end of the process", || over(2).then_some(()));
    assert_eq!(alarms(&agent.findings_after(3)), NONE);
    for service in &services[..2] {
        assert_eq!(types_of(&events(&cluster), service), ["Warning", "Normal"]);
    }
    assert_eq!(events(&cluster).len(), 4);
    drop(on_web);
}

fn types_of<'a>(events: &'a [Value], object: &Value) -> Vec<&'a Value> {
    let about = events.iter().filter(|event| event["regarding"]["uid"] == object["metadata"]["uid"]);
    about.map(|event| &event["type"]).collect()
}

#[test]
fn in_iptables_mode_a_squatter_is_told_at_once_and_its_end_once() {
    squatters_come_and_go("iptables", Agent::start);
}

#[test]
fn in_nftables_mode_a_squatter_is_told_at_once_and_its_end_once() {
    squatters_come_and_go("nftables", Agent::start_as_nobody);
}

/// Fault (proxy): the proxy is killed and started again
/// Does: until the proxy answers, the mode is unknown; reports no problem
/// Right again: within three scans
/// Lost: nothing
///
/// Fault (proxy): the proxy cleans up and comes back in another mode
/// Does: uses the new mode; reports no problem
/// Right again: within three scans
/// Lost: nothing
///
/// Fault (proxy): the proxy changes its mode without a cleanup
/// Does: uses the new mode; reports no problem
/// Right again: within three scans
/// Lost: nothing
#[test]
fn five_hundred_services_are_no_alarm_whatever_becomes_of_the_proxy() {
    let _wired = Wired::enter();
    let cluster = cluster();
    for number in 0..500 {
        serve(&cluster, &format!("s{number}"), None);
    }
    let proxy = Proxy::start(&cluster, "iptables", &json!({}));
    let agent = Agent::start(&cluster, &[]);
    let documents = meanwhile(&agent, || {
        let is = |mode: &Value| assert_eq!(&agent.findings_after(3)["nodes"][0]["proxy"]["mode"], mode);
        is(&json!("iptables"));
        drop(proxy);
        is(&Value::Null);
        let proxy = Proxy::start(&cluster, "iptables", &json!({}));
        is(&json!("iptables"));
        proxy.clean_up();
        is(&Value::Null);
        let proxy = Proxy::start(&cluster, "nftables", &json!({}));
        is(&json!("nftables"));
        // The mode changes without a cleanup, and then changes back.
        drop(proxy);
        let proxy = Proxy::start(&cluster, "iptables", &json!({}));
        is(&json!("iptables"));
        drop(proxy);
        let _proxy = Proxy::start(&cluster, "nftables", &json!({}));
        is(&json!("nftables"));
    });
    for document in &documents {
        assert_eq!(alarms(document), NONE);
    }
    assert_eq!(reasons(&cluster), Vec::<String>::new());
    assert!(unseen(&documents[documents.len() - 1], "stale-redirection/proxy").is_empty());
}

/// Fault (proxy): the proxy dies while a finding that depends on the proxy's mode is open
/// Does: marks the finding as unknown; clears the finding when a proxy of another mode answers
/// Right again: within a scan of the new proxy’s answer
/// Lost: nothing
#[test]
fn a_verdict_is_of_the_mode_of_the_proxy_that_answers() {
    let Hanging { wired: _wired, cluster, proxy, squatter: _squatter, agent } = Hanging::with(Agent::start);
    let documents = meanwhile(&agent, || {
        drop(proxy);
        is_held(&agent, "unreachable");
        let proxy = Proxy::start(&cluster, "nftables", &json!({}));
        assert_eq!(alarms(&agent.findings_after(1)), NONE);
        until("resolution", || (reasons(&cluster).len() == 2).then_some(()));
        drop(proxy);
        let _proxy = Proxy::start(&cluster, "iptables", &json!({}));
        until("finding again", || (alarms(&agent.findings()).len() == 1).then_some(()));
    });
    for document in documents.iter().filter(|it| it["nodes"][0]["proxy"]["mode"] == "nftables") {
        assert_eq!(alarms(document), NONE);
    }
    assert!(documents.iter().any(|it| it["nodes"][0]["proxy"]["mode"] == "nftables"));
}

/// Fault (proxy): after a downgrade, rules of another mode remain
/// Does: reports the rules, with the command that removes the rules
/// Right again: when the rules are removed
/// Lost: nothing
#[test]
fn what_a_downgrade_leaves_behind_is_told_by_who_may_list_it_and_unknown_to_others() {
    let wired = Wired::enter();
    let cluster = cluster();
    let web = serve(&cluster, "web", Some(30080));
    drop(Proxy::start(&cluster, "nftables", &json!({})));
    // This old kube-proxy leaves the rules of nftables mode, because it does not know this mode.
    let mut proxy = Proxy::start_holding(&cluster, 1024);
    let agent = Agent::start_as_nobody(&cluster, &[]);
    let document = agent.findings_after(3);
    assert_eq!(alarms(&document), NONE);
    assert_eq!(unseen(&document, "stale-redirection/proxy"), [("netfilter", "not-permitted")]);
    drop(agent);

    let agent = Agent::start(&cluster, &[]);
    until("Event", || (reasons(&cluster) == ["StaleRedirection"]).then_some(()));
    let document = agent.findings();
    assert_eq!(alarms(&document).len(), 1, "{document:#}");
    let finding = found(&document, "stale-redirection/proxy")[0];
    let sentence = "The proxy runs in iptables mode, but the kernel still has rules of nftables mode.";
    assert_eq!((&finding["severity"], &finding["summary"]), (&json!("warning"), &json!(sentence)));

    // The old rules still lead to the deleted endpoints.
    for family in ["IPv4", "IPv6"] {
        cluster.api().delete(&objects::endpoint_slice(&web, None, family));
    }
    proxy.settle(&cluster);
    let asks = || wired.client.run(|| ask("192.0.2.1:30080".parse().expect("an address")));
    assert_eq!(asks(), Answer::Pod);
    let remedy = "nft delete table ip kube-proxy; nft delete table ip6 kube-proxy";
    let alone = json!({"steps": [{"kind": "command", "text": remedy}]});
    assert!(finding["remedies"].as_array().is_some_and(|all| all.contains(&alone)), "{finding:#}");
    assert!(Command::new("sh").args(["-ec", remedy]).status().expect("a shell").success());
    assert_eq!(asks(), Answer::Refused);
    until("resolution", || (reasons(&cluster) == ["StaleRedirection", "StaleRedirectionResolved"]).then_some(()));
    assert_eq!(alarms(&agent.findings_after(2)), NONE);
}

/// Fault (proxy): the proxy hangs (SIGSTOP)
/// Does: the mode is unread (`timed-out`); keeps findings open, and writes no Event
/// Right again: within two scans
/// Lost: nothing
#[test]
fn a_proxy_that_hangs_is_no_news() {
    let hanging = Hanging::with(Agent::start_as_nobody);
    hanging.proxy.freeze();
    is_held(&hanging.agent, "timed-out");
    hanging.proxy.thaw();
    is_back(&hanging.agent, &hanging.cluster);
}

/// Fault (proxy): the proxy answers on no address that the agent knows
/// Does: reports findings that are true in every mode; other results are unknown
/// Right again: within two scans of the proxy's answer
/// Lost: findings that depend on the mode
#[test]
fn a_proxy_that_does_not_tell_its_mode_is_unknown_and_no_alarm() {
    let _wired = Wired::enter();
    let cluster = cluster();
    for (name, port) in [("web", 30080), ("api", 30081), ("free", 30082), ("more", 30083), ("most", 30084)] {
        serve(&cluster, name, Some(port));
    }
    let proxy = Proxy::start(&cluster, "nftables", &json!({"metricsBindAddress": "127.0.0.1:10349"}));
    assert_eq!(http_get("127.0.0.1:10249", "/proxyMode"), None, "nobody is there");
    let _squatter = TcpListener::bind("127.0.0.1:30080").expect("the port is free");
    let agent = Agent::start(&cluster, &[]);
    let document = agent.findings_after(3);
    assert_eq!(document["nodes"][0]["proxy"]["mode"], Value::Null);
    assert_eq!(alarms(&document), NONE);
    for rule in ["listener-on-node-port/loses", "stale-redirection/proxy"] {
        assert_eq!(unseen(&document, rule), [("proxy-mode", "unreachable")]);
    }
    let look = Look::check(&cluster.kubeconfig("observer"));
    assert_eq!((look.alarms(), look.code), (vec![], 2), "no alarm, and not clear either");
    let _other = TcpListener::bind("0.0.0.0:30081").expect("the port is free");
    let finding = until("finding", || {
        let document = agent.findings();
        found(&document, "listener-on-node-port/loses").first().map(|it| (*it).clone())
    });
    assert_eq!((&finding["port"], &finding["severity"]), (&json!(30081), &json!("critical")), "it holds in every mode");
    drop(proxy);
    let _proxy = Proxy::start(&cluster, "nftables", &json!({}));
    let document = agent.findings_after(2);
    assert_eq!(
        (&document["nodes"][0]["proxy"]["mode"], unseen(&document, "listener-on-node-port/loses")),
        (&json!("nftables"), vec![])
    );
}
