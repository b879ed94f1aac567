//! Records the data that `make pictures` draws: the answers of a real Prometheus to all panels, and the agent's page.
//! The test makes one problem after the other on two nodes.

mod many;

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::Path,
    thread::sleep,
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};

use crate::{
    panels::{EMPTY_WHEN_NEW, EMPTY_WHEN_WELL, questions},
    parts::{Agent, ControlPlane, PRIMARY, Prometheus, Proxy, Role, Wired, objects, sysctl},
};

/// The time between two problems, so that each problem is visible in the pictures.
const SCENE: Duration = Duration::from_secs(20);
const AGENTS: [(&str, &str); 2] = [("n1", "127.0.0.1:29517"), ("n2", "192.0.2.100:29517")];

/// Manifests set some NodePorts of this cluster, and the API server chose the others.
#[track_caller]
fn cluster() -> ControlPlane {
    let mut cluster = ControlPlane::on(PRIMARY[0], &[]);
    cluster.api().create(&objects::node("n1", &PRIMARY));
    cluster.api().create(&objects::node("n2", &["192.0.2.100", "2001:db8::100"]));
    for (name, port) in [("web", 30080), ("mail", 30025), ("metrics", 32700)] {
        let service = cluster.api().create(&objects::service(name, &[objects::port(80, Some(port))]));
        cluster.api().create(&objects::endpoint_slice(&service, Some((Wired::HERE[0], "n1")), "IPv4"));
    }
    for number in 1..=9 {
        cluster.api().create(&objects::service(&format!("team-{number}"), &[objects::port(80, None)]));
    }
    Role::of_chart().grant(&mut cluster);
    cluster
}

#[track_caller]
fn keep(name: &str, text: &str) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pictures");
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join(name), text).expect("a file");
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is later than 1970").as_secs()
}

/// Whether all values of a series are 0.
fn is_zero(series: &Value) -> bool {
    let values = series["values"].as_array().into_iter().flatten().chain([&series["value"]]);
    values.filter_map(|it| it[1].as_str()).all(|value| value == "0")
}

#[test]
fn every_panel_has_data_while_one_problem_after_the_other_is_made() {
    let wired = Wired::enter();
    let mut cluster = cluster();
    let _proxy = Proxy::start(&cluster, "iptables", &json!({}));
    let arguments = ["--request-timeout", "2s"];
    // The agents have the rights of the chart's default profile: no capability.
    let here = Agent::start_as_nobody(&cluster, &arguments);
    let kubeconfig = cluster.kubeconfig("observer");
    // No proxy runs on the node `n2`, so the agent of `n2` reports rules that cannot judge.
    let _there = wired.client.run(move || Agent::as_nobody(&kubeconfig, AGENTS[1].0, AGENTS[1].1, &arguments));
    let prometheus = Prometheus::start(&AGENTS);
    let begin = now();
    sleep(SCENE);
    keep("page-well.html", &here.page());

    sysctl("net.ipv4.ip_local_port_range", "32500 33099");
    let mut connections = Vec::new();
    for _ in 0..36 {
        connections.extend((0..10).map(|_| TcpStream::connect((Wired::HERE[0], Wired::PORT)).expect("a connection")));
        sleep(SCENE / 36);
    }
    let _first = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    sleep(SCENE);
    cluster.kill();
    sleep(SCENE);
    cluster.restart();
    let _second = wired.client.run(|| TcpListener::bind("0.0.0.0:30025").expect("the port is free"));
    sleep(SCENE);
    let span = [begin, now()];
    keep("page.html", &here.page());

    let mut answers = json!({});
    for it in questions("15s", "1h") {
        let series = match it.is_instant {
            true => prometheus.query_at(&it.query, span[1]),
            false => prometheus.query_range(&it.query, span),
        };
        let may_be_empty = EMPTY_WHEN_WELL[..1]
            .iter()
            .chain(&EMPTY_WHEN_NEW)
            .any(|title| *title == it.title)
            // By default, no guard runs, so the guard's series do not exist.
            || it.query.contains("portreeve_guard_");
        assert!(may_be_empty || !series.is_empty(), "nothing for {} of {}: {}", it.title, it.dashboard, it.query);
        assert!(!it.query.contains("portreeve_capability") || series.iter().all(is_zero), "{}: {series:?}", it.title);
        answers[it.dashboard][&it.panel][&it.target] = Value::Array(series);
    }
    keep("answers.json", &json!({"from": span[0], "to": span[1], "answers": answers}).to_string());
}
