//! Tests of one problem on many nodes.

use super::*;

fn squatters(nodes: usize) -> Vec<AgentAnswer> {
    (1..=nodes).map(|number| reporting(&format!("n{number}"), &[squatter(number)])).collect()
}

/// The finding of node `number`. Names, addresses, processes and times differ from node to node.
fn squatter(number: usize) -> Value {
    let pod = format!("scanner-{}", ["x7f2p", "b9zzk", "q4wls"][number % 3].replace('l', "t"));
    let mut finding = listener("critical");
    finding["outcome"] = json!("process");
    finding["summary"] = json!(format!("Pod office/{pod} listens on 10.0.0.{number}:30080."));
    finding["evidence"] = json!([{"name": "process", "value": format!("scan (pid {number})")}]);
    finding["remedy"] = json!([format!("kubectl -n office delete pod {pod}")]);
    finding["since"] = json!(format!("2026-11-21T11:{:02}:00Z", 59 - number % 60));
    finding
}

#[test]
fn a_mistake_on_many_nodes_is_one_row_in_the_words_of_the_first() {
    let mut answers = squatters(31);
    answers.extend((32..=120).map(|number| reporting(&format!("n{number}"), &[])));
    // The order of the answers does not matter.
    answers.reverse();
    let fleet = fleet(answers);
    let [incident] = &fleet.incidents[..] else { panic!("{:?}", fleet.incidents) };
    assert_eq!((incident.nodes.len(), &*incident.words_of), (31, "n1"));
    assert_eq!((incident.problem.since.as_str(), &*incident.since_of), ("2026-11-21T11:28:00Z", "n31"));
    assert_eq!(incident.differs, Vec::<String>::new(), "names, addresses and numbers of processes are no difference");
    let table = text(|out| write_fleet_table(&fleet, false, &style(), out));
    let row = "critical  listener-on-node-port/loses  Service shop/web  30080/tcp  remote,node  31 of 120 nodes: n1, n10, n11 and 28 more\n";
    assert!(table.starts_with("1 critical; 120 agents queried, oldest scan ") && table.contains(row), "{table}");
    assert!(table.contains("  On n1: Pod office/scanner-b9zzk listens on 10.0.0.1:30080.\n"), "{table}");
    assert!(table.contains("  Since     2026-11-21T11:28:00Z, first on n31\n"), "{table}");
    assert!(!table.contains("Differs"), "{table}");
    let wide = text(|out| write_fleet_table(&fleet, true, &style(), out));
    let row = wide.lines().find(|line| line.starts_with("critical  ")).expect("a row");
    assert!((1..=31).all(|number| row.contains(&format!("n{number}"))) && !row.contains("more"), "{wide}");
    assert!(
        wide.contains("\nCRITICAL  Service shop/web, port 30080/tcp, on 31 of 120 nodes: n1, n10, n11 and 28 more\n"),
        "{wide}"
    );
    let json: Value = serde_json::from_str(&text(|out| fleet.write_json(out))).expect("JSON");
    assert_eq!(json["findings"][0]["nodes"].as_array().map(Vec::len), Some(31));
    let summary = json["nodes"][1]["findings"][0]["summary"].as_str().expect("a sentence");
    assert!(summary.starts_with("Pod office/"), "each node's own words are there too: {summary}");
}

#[test]
fn the_order_of_answers_changes_nothing() {
    let mut answers = squatters(7);
    let one = fleet(answers.clone());
    answers.rotate_left(3);
    answers.swap(0, 2);
    assert_eq!(fleet(answers), one);
}

#[test]
fn what_differs_on_other_nodes_is_named() {
    let mut answers = squatters(3);
    let mut other = squatter(4);
    other["summary"] = json!("Process nginx listens on 10.0.0.4:30080.");
    other["evidence"] = json!([{"name": "process", "value": "nginx (pid 4)"}, {"name": "user", "value": "root"}]);
    other["affects"] = json!(["pods"]);
    answers.push(reporting("n4", &[other]));
    let fleet = fleet(answers);
    let [incident] = &fleet.incidents[..] else { panic!("{:?}", fleet.incidents) };
    assert_eq!(incident.differs, ["affects", "process", "summary", "user"]);
    let affects: Vec<&str> = incident.problem.affects.iter().map(|it| it.name()).collect();
    assert_eq!(affects, ["remote", "node", "pods"], "whoever is affected on any of them");
    let table = text(|out| write_fleet_table(&fleet, false, &style(), out));
    let told = "Differs on other nodes than n1: who is affected, process, what happens, user; -o json has them all";
    assert!(table.split_whitespace().collect::<Vec<_>>().join(" ").contains(told), "{table}");
}

#[test]
fn a_time_that_is_none_is_not_the_earliest() {
    let mut timeless = squatter(9);
    timeless["since"] = json!("");
    let fleet = fleet(vec![reporting("n1", &[squatter(1)]), reporting("n9", &[timeless])]);
    assert_eq!(
        (fleet.incidents[0].problem.since.as_str(), &*fleet.incidents[0].since_of),
        ("2026-11-21T11:58:00Z", "n1")
    );
}

#[test]
fn another_severity_outcome_or_port_is_another_incident() {
    let mut milder = squatter(2);
    milder["severity"] = json!("warning");
    let mut refused = squatter(3);
    refused["outcome"] = json!("refused");
    let mut other_port = squatter(4);
    other_port["port"] = json!(30081);
    let all = [squatter(1), milder, refused, other_port].into_iter().enumerate();
    let fleet = fleet(all.map(|(number, finding)| reporting(&format!("n{}", number + 1), &[finding])).collect());
    assert_eq!(fleet.incidents.iter().map(names).collect::<Vec<_>>(), [["n1"], ["n3"], ["n4"], ["n2"]]);
}

#[test]
fn a_wrong_setting_of_every_node_is_one_incident_about_each_of_them() {
    let own = |node: &str| {
        let about = json!({"kind": "Node", "name": node, "uid": node});
        reporting(node, &[finding("ephemeral-range-overlap/node-ports", "warning", &about)])
    };
    let fleet = fleet(["n1", "n2", "n3"].map(own).into());
    let rows = text(|out| write_fleet_rows(&fleet, &style(), out));
    assert!(
        rows.lines().count() == 1 && rows.contains("  Node (each of them)  ") && rows.ends_with("n1,n2,n3\n"),
        "{rows}"
    );
    assert_eq!(text(|out| fleet.write_names(out)), "node/n1\nnode/n2\nnode/n3\n");
    let alone = super::fleet(vec![own("n1")]);
    assert!(text(|out| write_fleet_rows(&alone, &style(), out)).contains("  Node n1  "));
}

#[test]
fn pods_of_one_controller_are_one_incident_and_pods_by_their_own_names_are_not() {
    let of = |node: &str, pod: &str| {
        let about = json!({"kind": "Pod", "namespace": "shop", "name": pod});
        reporting(node, &[finding("host-network-port-taken/listener", "critical", &about)])
    };
    let controlled = fleet(vec![of("n1", "web-x7f2p"), of("n2", "web-b9zzk")]);
    let rows = text(|out| write_fleet_rows(&controlled, &style(), out));
    assert!(rows.lines().count() == 1 && rows.contains("  Pod shop/web-*  "), "{rows}");
    assert_eq!(text(|out| controlled.write_names(out)), "pod/web-b9zzk\npod/web-x7f2p\n");
    assert_eq!(fleet(vec![of("n1", "web-0"), of("n2", "web-1")]).incidents.len(), 2);
}

#[test]
fn agents_that_are_silent_for_one_reason_are_counted_and_the_first_are_named() {
    let silent = |number: usize| {
        let (node, pod) = (format!("n{number}"), format!("portreeve-{}", ["x7f2p", "b9zzk"][number % 2]));
        let detail = format!("GET https://192.0.2.1:6443/pods/{pod}:29517/proxy/findings: no answer within 3 s");
        AgentAnswer { node, pod, answer: Err(Gap::new(Source::Agent, Why::TimedOut, detail)) }
    };
    let mut answers: Vec<AgentAnswer> = (1..=12).map(silent).collect();
    answers.push(without_answer("odd"));
    let fleet = fleet(answers);
    let table = text(|out| write_fleet_table(&fleet, false, &style(), out));
    assert!(table.contains("  12 of 13 agents: n1, n10, n11 and 9 more\n"), "{table}");
    assert!(table.contains("no answer within 3 s (pod\n") || table.contains("(pod portreeve-b9zzk"), "{table}");
    assert!(table.contains("and likewise 11 more)"), "{table}");
    assert!(table.contains("  odd                   no answer: its pod is not Ready (pod portreeve-odd)\n"), "{table}");
    assert_eq!(fleet.silent.iter().map(|reason| reason.nodes.len()).collect::<Vec<_>>(), [12, 1]);
}

fn findings(first: u32, count: u32) -> Vec<Value> {
    let finding = |number| {
        let mut finding = listener("info");
        (finding["subject"]["name"], finding["port"]) =
            (json!(format!("s{}", number / 10_000)), json!(number % 10_000));
        finding["remedy"] = json!([]);
        finding
    };
    (first..first + count).map(finding).collect()
}

#[test]
fn an_agent_that_reports_without_end_is_cut_short_and_that_is_said() {
    let fleet = fleet(vec![reporting("n1", &findings(0, 10_050))]);
    assert_eq!(fleet.incidents.len(), 10_000);
    let table = text(|out| write_fleet_table(&fleet, false, &style(), out));
    assert!(table.contains("50 of its entries are not included"), "{}", &table[table.len() - 600..]);
    assert!(!fleet.is_whole());
}

#[test]
fn agents_that_report_without_end_are_cut_short_together_and_that_is_said() {
    let answers =
        |nodes: u32| (0..nodes).map(|it| reporting(&format!("n{it}"), &findings(it * 8_000, 8_000))).collect();
    let fleet = fleet(answers(3));
    assert_eq!(fleet.incidents.len(), 20_000);
    let table = text(|out| write_fleet_table(&fleet, false, &style(), out));
    assert!(
        table.contains("4000 findings of this node are not included: the report"),
        "{}",
        &table[table.len() - 600..]
    );
    assert!(!fleet.is_whole());

    // Hidden findings do not count toward the limit of the report.
    let wanted = Wanted { namespace: Some("other".to_owned()), ..Wanted::default() };
    let fleet = Fleet::of("portreeve", answers(3), &wanted, now());
    assert_eq!((fleet.incidents.len(), fleet.hidden), (0, 24_000));
    assert!(fleet.is_whole());
}
