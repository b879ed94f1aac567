//! Two Services claim one port: one has an address of the node as external IP, and one has the port as NodePort. The
//! test compares who answers with one claim and with both claims.

use std::{collections::BTreeSet, net::IpAddr};

use portreeve_facts::{Mode, Protocol, Snapshot};
use portreeve_rules::findings::{Affected, Severity, Vantage};
use serde_json::json;

use super::{
    Answers, Ask,
    asks::{ask_all, questions},
    claims::{Behind, OTHER, said, serve, service, told},
    forget_flows,
    record::letter,
};
use crate::{
    look::snapshot,
    parts::{Answer, ControlPlane, PRIMARY, Proxy, Wired, objects},
};

struct Row {
    port: u16,
    protocol: Protocol,
    node_port: Behind,
    external: Behind,
    addresses: [&'static str; 2],
}

fn rows(protocols: &[Protocol]) -> Vec<Row> {
    let addresses = [PRIMARY, ["192.0.2.2", "2001:db8::2"]];
    let mut rows = Vec::new();
    for protocol in protocols.iter().copied() {
        for node_port in Behind::ALL {
            for external in Behind::ALL {
                for addresses in addresses {
                    let port = 30000 + u16::try_from(rows.len()).expect("few");
                    rows.push(Row { port, protocol, node_port, external, addresses });
                }
            }
        }
    }
    rows
}

#[track_caller]
pub fn agrees(mode: &str, protocols: &[Protocol]) {
    let wired = Wired::enter();
    let _pods = serve(&wired);
    let rows = rows(protocols);
    let cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &PRIMARY));
    cluster.api().create(&objects::node("n2", &["192.0.2.9"]));
    for Row { port, protocol, node_port, .. } in &rows {
        let service = service(&format!("web-{port}"), *protocol, 80, Some(*port));
        node_port.create(cluster.api(), service, Wired::PORT);
    }
    let mut proxy = Proxy::start(&cluster, mode, &json!({}));
    let asks: Vec<Ask> = rows.iter().flat_map(|row| questions(row.protocol, row.port)).collect();
    let ask = || {
        forget_flows();
        ask_all(&wired, &asks)
    };
    let alone = ask();
    for Row { port, protocol, external, addresses, .. } in &rows {
        let mut service = service(&format!("taker-{port}"), *protocol, *port, None);
        service["spec"]["type"] = json!("ClusterIP");
        service["spec"]["externalIPs"] = json!(addresses);
        external.create(cluster.api(), service, OTHER);
    }
    proxy.settle(&cluster);
    let both = ask();
    let seen = snapshot(&cluster.kubeconfig("admin"));
    // If the NodePort of one row answered at an address, NodePorts of all rows are served at this address.
    let served = asks.iter().filter(|ask| alone[ask] == Answer::Pod).map(|(from, _, to)| (*from, to.ip())).collect();
    let shown = Shown { served, alone, both };

    let wrong: Vec<String> = rows.iter().flat_map(|row| shown.disagreements(row, &seen)).collect();
    assert!(wrong.is_empty(), "{mode}: {} of {} cells disagree\n{}", wrong.len(), asks.len(), wrong.join("\n"));
}

struct Shown {
    served: BTreeSet<(Vantage, IpAddr)>,
    /// The answers while only the NodePorts exist.
    alone: Answers,
    both: Answers,
}

impl Shown {
    fn disagreements(&self, row: &Row, seen: &Snapshot) -> Vec<String> {
        let Row { port, protocol, node_port, external, addresses } = row;
        let place = format!("{port}/{protocol}, nodePort {node_port:?}, external {external:?} {}", addresses[0]);
        let told = told(seen, *protocol, *port);
        let mut wrong = Vec::new();
        let mut lost = Affected::new();
        for ask in questions(*protocol, *port) {
            let (from, to) = (ask.0, ask.2.ip());
            let (alone, both) = (letter(&ask, self.alone[&ask]), letter(&ask, self.both[&ask]));
            let told = told[&(from, to)];
            if both != told && !(told == '?' && row.is_undefined(to, seen)) {
                wrong.push(format!("{place}: {from} to {to}\n  alone {alone}, both {both}, told {told}"));
            }
            // The external IP takes the connection from the NodePort: the wrong Service answers, or no Service answers
            // any more.
            if self.served.contains(&(from, to)) && (both == 'O' || (alone == 'P' && both != 'P')) {
                lost.insert(from);
            }
        }
        let (severity, affected) = said(seen, "external-ip-conflict/takes-node-port", *protocol, *port);
        // In ipvs mode, the Service that gets the virtual server can change with each sync.
        let ipvs = seen.proxy_mode().expect("a mode").value == Mode::Ipvs;
        let (lost, severe) = if ipvs { Default::default() } else { (lost.clone(), lost.contains(&Vantage::Remote)) };
        if affected != lost || (severity == Some(Severity::Critical)) != severe {
            wrong.push(format!("{place}: lost {lost:?}, said {severity:?} {affected:?}"));
        }
        wrong
    }
}

impl Row {
    /// Whether kube-proxy has contradicting rules for the address. The order of the rules is undefined.
    fn is_undefined(&self, to: IpAddr, seen: &Snapshot) -> bool {
        let both_refuse = [self.node_port, self.external].iter().all(|it| *it != Behind::Ready);
        let of_address = self.addresses.iter().any(|address| address.parse() == Ok(to));
        match seen.proxy_mode().expect("a mode").value {
            Mode::Ipvs => of_address,
            Mode::Iptables => of_address && both_refuse && self.node_port != self.external,
            _ => false,
        }
    }
}
