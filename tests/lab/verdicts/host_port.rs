//! A hostPort, a NodePort and a process claim one port. The tests compare who answers with one claim and with all
//! claims. The tests make the claims in each order.

use portreeve_facts::{Protocol, Snapshot};
use portreeve_rules::findings::{Affected, Severity, Vantage};
use serde_json::json;

use super::{
    Answers, Ask, Held,
    asks::{ask_all, questions},
    binds::BINDS,
    claims::{Behind, said, serve, service, told},
    cni::{self, HostPort, Sandbox},
    forget_flows,
    record::letter,
};
use crate::{
    look::snapshot,
    parts::{Answer, ControlPlane, PRIMARY, Proxy, Wired, objects},
};

struct Row {
    host: HostPort,
    service: Option<Behind>,
    process: bool,
}

fn rows() -> Vec<Row> {
    let services = [None].into_iter().chain(Behind::ALL.map(Some));
    let addresses =
        [(None, false), (None, true), (Some("192.0.2.2"), true), (Some("0.0.0.0"), true), (Some("127.0.0.1"), true)];
    let all = [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(|protocol| {
        services
            .clone()
            .flat_map(move |service| addresses.map(|(address, process)| (protocol, service, address, process)))
    });
    let numbered = (30000..).zip(all);
    numbered
        .map(|(port, (protocol, service, address, process))| Row {
            host: HostPort { port, protocol, address },
            service,
            process,
        })
        .collect()
}

#[track_caller]
pub fn agrees(mode: &str) {
    let wired = Wired::enter();
    let _pods = serve(&wired);
    let rows = rows();
    let _processes: Vec<Held> = rows
        .iter()
        .filter(|row| row.process)
        .map(|row| Held::on(&BINDS[1], row.host.protocol, row.host.port, Answer::Process))
        .collect();
    let cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &PRIMARY));
    cluster.api().create(&objects::node("n2", &["192.0.2.9"]));
    cluster.api().create(&objects::service_account());
    for Row { host: HostPort { port, protocol, address }, service: behind, .. } in &rows {
        let upper = protocol.to_string().to_uppercase();
        let pod = objects::host_port_pod(&format!("edge-{port}"), &upper, *port, *address);
        cluster.api().create_running(&pod, &Wired::HERE);
        if let Some(behind) = behind {
            let service = service(&format!("web-{port}"), *protocol, 80, Some(*port));
            behind.create(cluster.api(), service, Wired::PORT);
        }
    }
    let host_ports: Vec<HostPort> = rows.iter().map(|row| row.host).collect();
    let asks: Vec<Ask> = rows.iter().flat_map(|row| questions(row.host.protocol, row.host.port)).collect();
    let ask = || {
        forget_flows();
        ask_all(&wired, &asks)
    };

    let proxy = Proxy::start(&cluster, mode, &json!({}));
    let service = ask();
    cni::add(&Sandbox::of(&wired), &host_ports);
    let host_port_last = ask();
    drop(proxy);
    let proxy = Proxy::start(&cluster, mode, &json!({}));
    let restarted = ask();
    let seen = snapshot(&cluster.kubeconfig("admin"));
    cni::delete(&Sandbox::of(&wired), &host_ports);
    cni::add(&Sandbox::of(&wired), &host_ports);
    let added_again = ask();
    proxy.clean_up();
    let host_port = ask();
    let shown = Shown { service, host_port, both: [host_port_last, restarted, added_again] };

    let wrong: Vec<String> = rows.iter().flat_map(|row| shown.disagreements(row, &seen)).collect();
    assert!(wrong.is_empty(), "{mode}: {} of {} cells disagree\n{}", wrong.len(), asks.len(), wrong.join("\n"));
}

struct Shown {
    /// The answers while only the Services exist.
    service: Answers,
    /// The answers while only the hostPorts exist.
    host_port: Answers,
    /// The answers with both claims: first with new hostPorts, then after a restart of the proxy, then after the
    /// hostPorts were made again.
    both: [Answers; 3],
}

impl Shown {
    fn disagreements(&self, row: &Row, seen: &Snapshot) -> Vec<String> {
        let HostPort { port, protocol, address } = row.host;
        let told = told(seen, protocol, port);
        let mut wrong = Vec::new();
        let mut lost = Affected::new();
        for ask in questions(protocol, port) {
            let (from, _, to) = ask;
            let of = |answers: &Answers| letter(&ask, answers[&ask]);
            let (service, host_port, [first, restarted, again]) =
                (of(&self.service), of(&self.host_port), [0, 1, 2].map(|index: usize| of(&self.both[index])));
            let shown = if first == again { first } else { '?' };
            let told = told[&(from, to.ip())];
            let restart_decides = restarted == again;
            if shown != told || !restart_decides {
                wrong.push(format!(
                    "{port}/{protocol}, {:?}, hostIP {address:?}: {from} to {}\n  Service {service}, hostPort {host_port}, both {first}{restarted}{again}, told {told}",
                    row.service,
                    to.ip(),
                ));
            }
            // A claim loses a connection if the claim would get the connection without the other claim.
            let of_process = row.service.is_none() && service == 'L' && shown != 'L';
            if of_process || (service == 'P' && shown == 'O') || (host_port == 'O' && shown == 'P') {
                lost.insert(from);
            }
        }
        let rule =
            if row.service.is_some() { "host-port-conflict/node-port" } else { "host-port-conflict/takes-listener" };
        let (severity, affected) = said(seen, rule, protocol, port);
        if affected != lost
            || (severity == Some(Severity::Critical)) != (row.service.is_some() && lost.contains(&Vantage::Remote))
        {
            wrong.push(format!(
                "{port}/{protocol}, {:?}, hostIP {address:?}: lost {lost:?}, said {severity:?} {affected:?}",
                row.service
            ));
        }
        wrong
    }
}
