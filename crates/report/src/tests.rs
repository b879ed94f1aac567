//! Reports of three scans: a scan with many findings and hostile names, a healthy scan, and a scan that read almost nothing.

use std::io;

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use portreeve_facts::{
    Gap, Owner, Protocol, Reading, Snapshot, Source, Why,
    healthy::{gap, seen, squatter},
};
use portreeve_rules::{
    findings::{Evidence, Finding, Key, Remedy, RuleId, Severity, Step, Subject, Unknown, Vantage},
    ids::Rows,
    ledger::Board,
    port_usage,
};

const HOSTILE: &str = "web\u{1b}[31m\n\r\u{202e}<forged attr=\"'&\u{fffe}>]]>\u{200b}";

fn finding(
    world: &Snapshot,
    (rule, variant): (&'static str, &'static str),
    subject: Subject,
    port: Option<u16>,
    evidence: Evidence,
) -> Finding {
    let protocol = port.map(|_| Protocol::Tcp);
    Finding { key: Key { rule: RuleId(rule), variant, subject, port, protocol }, evidence, since: world.at }
}

fn rich() -> (Snapshot, Board) {
    let mut world = Snapshot::healthy()
        .service("web", |it| it.node_port(30080).with(|service| service.ports[0].fixed = Some(true)))
        .service("api", |it| it.node_port(30443))
        .listens("0.0.0.0:30080")
        .listens("127.0.0.1:31000")
        .ephemeral("30400 60999", "30500-32767");
    world.kernel.pod_namespaces = gap(Source::PodNamespaces, Why::NotPermitted);
    if let Some(socket) = seen(&mut world.kernel.listeners).last_mut() {
        let Owner::Held(mut holder) = squatter() else { unreachable!("a squatter is a process") };
        holder.process = Reading::Gap(Gap::new(Source::Processes, Why::NotPermitted, "/proc/4242/fd: not permitted"));
        socket.owner = Owner::Held(holder);
    }
    let web = Subject::service(&seen(&mut world.cluster.services)[0]);
    let squatted = Evidence::new(
        Severity::Critical,
        "Process nginx listens on 0.0.0.0:30080/tcp, the NodePort of default/web: new connections go to the Service's pods instead.",
    )
    .value("listener", "tcp LISTEN 0.0.0.0:30080")
    .value("process", format!("nginx {HOSTILE} (pid 4242)"))
    .value("endpoints", "IPv4: 1 usable of 1, 1 on this node")
    .value("endpoints", "IPv6: 1 usable of 1, 1 on this node")
    .value("from elsewhere", "to 192.0.2.1, 192.0.2.2, 2001:db8::1, 2001:db8::2 are answered by a pod of the Service")
    .value("proxy mode", "iptables (from 127.0.0.1:10249/proxyMode)")
    .value("NodePort range", "30000-32767 (kube-apiserver /flagz)")
    .affects([Vantage::Remote, Vantage::Pods])
    .remedy(Step::advice("move nginx off port 30080/tcp"))
    .remedy(Step::command("kubectl -n default patch service web --type=json -p '[{\"op\":\"replace\",\"path\":\"/spec/ports/0/nodePort\",\"value\":30000}]'"));
    let overlap = Evidence::new(Severity::Warning, "The ephemeral port range overlaps the NodePort range.")
        .value("unreserved", "100 ports: 30400-30499")
        .affects([Vantage::Node])
        .remedy(Remedy::from(Step::command("sysctl -w net.ipv4.ip_local_reserved_ports=30000-32767")).then(Step::advice(
            "write it to a file of /etc/sysctl.d as well, because what is only written to the kernel is gone after a restart",
        )));
    let listener = Evidence::new(Severity::Info, "Process nginx listens inside the NodePort range.")
        .value("listener", "tcp LISTEN 127.0.0.1:31000")
        .remedy(Step::command(format!("kubectl delete {HOSTILE}")));
    let findings = vec![
        finding(&world, ("listener-on-node-port", "loses"), web.clone(), Some(30080), squatted),
        finding(&world, ("ephemeral-range-overlap", "node-ports"), Subject::node("n1", None), None, overlap),
        finding(&world, ("listener-on-node-port", "latent"), Subject::node(HOSTILE, None), Some(31000), listener),
    ];
    let unknown = |rule, variants, subject: Option<Subject>, source, why, detail: &str| Unknown {
        rows: Rows { rule: RuleId(rule), variants },
        claims: usize::from(subject.is_some()),
        subject,
        gap: Gap::new(source, why, detail),
    };
    let unknown = vec![
        unknown(
            "stale-redirection",
            &["proxy"],
            None,
            Source::Netfilter,
            Why::NotPermitted,
            "NETLINK_NETFILTER: not permitted",
        ),
        unknown("proxy-near-fd-limit", &["near"], None, Source::ProxyMetrics, Why::TimedOut, HOSTILE),
        unknown(
            "host-port-conflict",
            &["node-port"],
            Some(web),
            Source::Pods,
            Why::NotRequested,
            "the input has no Pod",
        ),
        unknown(
            "node-port-range-crowded",
            &["crowded", "spilled", "full"],
            None,
            Source::Pods,
            Why::NotRequested,
            "the input has no Pod",
        ),
    ];
    (world, Board { findings, unknown })
}

fn healthy() -> (Snapshot, Board) {
    (Snapshot::healthy().service("web", |it| it.node_port(30080)), Board::default())
}

/// A node whose cluster does not answer, and whose list of sockets is torn (changed during the read).
fn blind() -> (Snapshot, Board) {
    let mut world = Snapshot::healthy().without_proxy();
    let refused = || Gap::new(Source::Services, Why::Unreachable, "https://192.0.2.7:6443: connection refused");
    world.cluster.services = Reading::Gap(refused());
    world.cluster.node_port_range = gap(Source::NodePortRange, Why::Ambiguous);
    world.kernel.listeners = gap(Source::Listeners, Why::Torn);
    let unknown = Unknown {
        rows: Rows { rule: RuleId("listener-on-node-port"), variants: &["loses", "trap", "no-return"] },
        subject: None,
        claims: 0,
        gap: refused(),
    };
    (world, Board { unknown: vec![unknown], ..Board::default() })
}

fn style() -> Style {
    Style { width: 100, colour: false, program: "portreeve".to_owned() }
}

fn written(write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> String {
    let mut out = Vec::new();
    write(&mut out).expect("memory takes everything");
    String::from_utf8(out).expect("UTF-8")
}

fn report<'a>((snapshot, board): &'a (Snapshot, Board)) -> Report<'a> {
    Report::of(snapshot, board)
}

fn every_form(report: &Report<'_>) -> Vec<(&'static str, String)> {
    let style = style();
    vec![
        ("table", written(|out| write_table(report, false, &style, out))),
        ("wide", written(|out| write_table(report, true, &style, out))),
        ("rows", written(|out| write_rows(report, &style, out))),
        ("json", written(|out| write_json(report, None, out))),
        ("yaml", written(|out| write_yaml(report, out))),
        ("junit", written(|out| write_junit(report, out))),
        ("sarif", written(|out| write_sarif(report, out))),
        ("npd", npd_line(report)),
        ("page", written(|out| write_html_page(Some(report), PageDetail::Everything, None, out))),
    ]
}

#[test]
fn the_table_says_what_for_whom_and_what_next() {
    insta::assert_snapshot!("rich_table", written(|out| write_table(&report(&rich()), false, &style(), out)));
}

#[test]
fn the_wide_table_says_everything() {
    insta::assert_snapshot!("rich_wide", written(|out| write_table(&report(&rich()), true, &style(), out)));
}

#[test]
fn a_healthy_node_is_one_calm_line_and_what_was_looked_at() {
    insta::assert_snapshot!("healthy_table", written(|out| write_table(&report(&healthy()), false, &style(), out)));
}

#[test]
fn rules_that_were_not_judged_are_counted_beside_a_mild_finding() {
    let (world, mut board) = rich();
    (board.findings, board.unknown) = (board.findings.split_off(2), board.unknown.split_off(3));
    let mild = (world, board);
    let table = written(|out| write_table(&report(&mild), false, &style(), out));
    let first = table.lines().next().expect("a line");
    assert_eq!(first, "n1: 1 info; 1 rule was not judged: Pods: not given (--services FILE)");
}

#[test]
fn ports_that_a_right_would_show_are_counted_beside_a_finding_that_sets_the_result() {
    let (world, mut board) = rich();
    board.unknown[2].gap = Gap::new(Source::PodNamespaces, Why::NotPermitted, "no right");
    let unprivileged = (world, board);
    assert_eq!(report(&unprivileged).result(), CheckResult::Findings);
    let line = "1 critical, 1 warning, 1 info; 1 port or object was not judged: pods' own sockets: not permitted \
                (run as root, or use the attribution profile)";
    let table = written(|out| write_table(&report(&unprivileged), false, &style(), out));
    assert_eq!(table.lines().next(), Some(format!("n1: {line}").as_str()));
    let (page, words) = page_of(&unprivileged);
    let title = format!("<title>Node n1: {line} - Portreeve</title>");
    assert!(page.contains(&title), "{words}");
}

#[test]
fn an_input_that_is_missing_for_two_reasons_is_named_once() {
    let (world, mut board) = rich();
    board.unknown[0].gap = Gap::new(Source::Pods, Why::NotPermitted, "no right");
    let table = written(|out| write_table(&report(&(world, board)), false, &style(), out));
    assert!(table.contains("Not read: Pods (3 rules), proxy metrics (1 rule)."), "{table}");
}

#[test]
fn what_failed_comes_first_and_is_never_fine() {
    let table = written(|out| write_table(&report(&blind()), false, &style(), out));
    assert!(table.starts_with("n1: not everything was checked: listening sockets: "), "{table}");
    insta::assert_snapshot!("blind_table", table);
}

#[test]
fn the_map_shows_who_has_what() {
    let census = port_usage(&rich().0.node_port_range("30000-30511")).expect("the range is known");
    insta::assert_snapshot!("map", written(|out| write_map(&census, &style(), out)));
}

#[test]
fn the_document_is_stable() {
    insta::assert_snapshot!("rich_json", written(|out| write_json(&report(&rich()), None, out)));
}

#[test]
fn the_outcome_counts_from_warning_on_unless_chosen() {
    let rich = rich();
    let outcome = |min_severity| Report { min_severity, ..report(&rich) }.result();
    assert_eq!(outcome(None), CheckResult::Findings);
    assert_eq!(outcome(Some(Severity::Critical)), CheckResult::Findings);
    let mut mild = (rich.0.clone(), Board { findings: rich.1.findings[2..].to_vec(), ..rich.1.clone() });
    let not_judged = report(&mild).failures().iter().map(|it| (it.gap.source, it.claims)).collect::<Vec<_>>();
    assert_eq!(not_judged, [(Source::Pods, 1)]);
    assert_eq!(report(&mild).result(), CheckResult::NotChecked);
    mild.1.unknown.retain(|it| it.claims == 0);
    assert_eq!(report(&mild).result(), CheckResult::Clear, "what a profile may not see changes nothing");
    assert_eq!(Report { min_severity: Some(Severity::Info), ..report(&mild) }.result(), CheckResult::Findings);
    assert_eq!(report(&healthy()).result(), CheckResult::Clear);
    assert_eq!(report(&blind()).result(), CheckResult::NotChecked);
}

#[test]
fn a_finding_counts_even_where_something_failed() {
    let (world, _) = blind();
    let both = (world, rich().1);
    assert_eq!(report(&both).result(), CheckResult::Findings);
    assert!(!report(&both).failures().is_empty());
}

#[test]
fn findings_below_the_chosen_severity_are_not_told_but_their_number_is() {
    let rich = rich();
    let chosen = Report { min_severity: Some(Severity::Critical), ..report(&rich) };
    let table = written(|out| write_table(&chosen, false, &style(), out));
    assert!(table.starts_with("n1: 1 critical, 1 warning, 1 info (2 findings of lower severity not shown)"), "{table}");
    assert!(!table.contains("ephemeral-range-overlap/node-ports"), "{table}");
    let json: Value = serde_json::from_str(&written(|out| write_json(&chosen, None, out))).expect("JSON");
    assert_eq!(json["findings"].as_array().map(Vec::len), Some(1));
}

#[test]
fn hostile_text_breaks_no_line_of_any_form() {
    for (form, text) in every_form(&report(&rich())) {
        let strange = text.chars().find(|c| (c.is_control() && *c != '\n') || matches!(c, '\u{202e}' | '\u{200b}'));
        assert_eq!(strange, None, "{form}: {text}");
        assert!(!text.lines().any(|line| line.starts_with("<forged")), "{form}: {text}");
    }
}

/// The page in HTML. The second value is the part before the picture, for messages of assertions.
fn page_of(world: &(Snapshot, Board)) -> (String, String) {
    let page = written(|out| write_html_page(Some(&report(world)), PageDetail::Everything, None, out));
    let words = page.split("<svg").next().unwrap_or_default().to_owned();
    (page, words)
}

#[test]
fn the_page_has_findings_remedies_unread_input_and_the_map() {
    let (page, words) = page_of(&rich());
    for part in [
        "<title>Node n1: 1 critical, 1 warning, 1 info; 1 port or object was not judged: Pods: not given (--services FILE) - Portreeve</title>",
        "<h3><b>critical</b> Service default/web, port 30080/tcp</h3>",
        "listener-on-node-port/loses</a> since <time datetime=\"2027-01-15T08:00:00Z\">2027-01-15 08:00:00 UTC</time>, for less than",
        "Affects remote clients, its pods.",
        "<li><code class=\"command\" title=\"A click selects the whole command\">sysctl -w net.ipv4.ip_local_reserved_ports=30000-32767</code></li>",
        "<tr><th scope=\"row\">listener</th><td>tcp LISTEN 0.0.0.0:30080</td></tr>",
        "<th scope=\"row\">nft, iptables rules</th><td><b class=\"plain\">not permitted</b>",
        "not judged: stale-redirection/proxy",
        "aria-label=\"The ports 30000-32767\"",
        "<dt>NodePort range</dt><dd>30000-32767 (",
    ] {
        assert!(page.contains(part), "{part}: {words}");
    }
}

#[test]
fn the_page_of_a_node_that_could_not_be_checked_never_reports_that_nothing_is_wrong() {
    let (page, words) = page_of(&blind());
    assert!(page.contains("<title>Node n1: not checked - Portreeve</title>"), "{words}");
    assert!(page.contains("no answer</b><br>https://192.0.2.7:6443: connection refused"), "{words}");
    assert!(!page.contains("class=\"well\""), "{words}");
    let (calm, words) = page_of(&healthy());
    assert!(calm.contains("<p class=\"well\">No port conflicts found, but some input was not read.</p>"), "{words}");
    let early = written(|out| write_html_page(None, PageDetail::Everything, None, out));
    assert!(early.contains("<p>not scanned yet.</p>") && !early.contains("class=\"well\""), "{early}");
}

#[test]
fn the_page_is_whole_and_nothing_of_it_is_foreign() {
    for world in [rich(), healthy(), blind()] {
        let (page, words) = page_of(&world);
        let mut open = Vec::new();
        for tag in page.split('<').skip(1).filter_map(|rest| rest.split('>').next()) {
            let name = tag.split([' ', '\n']).next().unwrap_or_default();
            match name.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name), "{words}"),
                None if ["!DOCTYPE", "meta", "br"].contains(&name) || tag.ends_with('/') => {}
                None => open.push(name),
            }
        }
        assert!(open.is_empty(), "{open:?} is never closed: {words}");
        for foreign in ["<script", "<img", "<link", "<iframe", " src=", "url(", "@import", " onclick"] {
            assert!(!page.contains(foreign), "{foreign}: {words}");
        }
    }
}

#[test]
fn commands_are_never_wrapped() {
    let narrow = Style { width: 40, ..style() };
    let table = written(|out| write_table(&report(&rich()), false, &narrow, out));
    let command = table.lines().find(|line| line.contains("kubectl -n default patch")).expect("the command");
    assert!(command.ends_with("\"value\":30000}]'"), "{command}");
    let command = |line: &str| ["kubectl", "sysctl", "portreeve"].iter().any(|program| line.contains(program));
    let others = table.lines().filter(|line| !command(line));
    for line in others.filter(|line| line.starts_with("  ")) {
        assert!(line.chars().count() <= 60, "{line:?}");
    }
}

#[test]
fn colour_changes_no_word() {
    let painted = Style { colour: true, ..style() };
    let rich = rich();
    let census = port_usage(&rich.0).expect("the range is known");
    for (plain, coloured) in [
        (
            written(|out| write_table(&report(&rich), false, &style(), out)),
            written(|out| write_table(&report(&rich), false, &painted, out)),
        ),
        (written(|out| write_map(&census, &style(), out)), written(|out| write_map(&census, &painted, out))),
    ] {
        assert!(coloured.contains("\u{1b}["));
        let mut bare = String::new();
        let mut rest = coloured.as_str();
        while let Some((before, code)) = rest.split_once("\u{1b}[") {
            bare.push_str(before);
            rest = code.split_once('m').expect("a rendition ends with m").1;
        }
        bare.push_str(rest);
        assert_eq!(bare, plain);
    }
}

#[test]
fn junit_has_a_case_for_every_finding_rule_and_failure() {
    for (look, failures, errors) in [(rich(), 2, 1), (healthy(), 0, 0), (blind(), 0, 2)] {
        let text = written(|out| write_junit(&report(&look), out));
        let xml = roxmltree::Document::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let count = |name| xml.descendants().filter(|node| node.has_tag_name(name)).count();
        assert_eq!((count("failure"), count("error")), (failures, errors), "{text}");
        let suite = xml.descendants().find(|node| node.has_tag_name("testsuite")).expect("a suite");
        for (attribute, element) in
            [("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")]
        {
            assert_eq!(suite.attribute(attribute), Some(count(element).to_string().as_str()), "{attribute}: {text}");
        }
    }
}

#[test]
fn sarif_results_point_at_their_rules() {
    let sarif: Value = serde_json::from_str(&written(|out| write_sarif(&report(&rich()), out))).expect("JSON");
    let run = &sarif["runs"][0];
    let results = run["results"].as_array().expect("results");
    assert_eq!(
        results.iter().map(|it| it["level"].as_str().expect("a level")).collect::<Vec<_>>(),
        ["error", "warning", "note"]
    );
    let index = usize::try_from(results[0]["ruleIndex"].as_u64().expect("an index")).expect("small");
    assert_eq!(run["tool"]["driver"]["rules"][index]["id"], results[0]["ruleId"]);
    assert_eq!(
        results[0]["locations"][0]["logicalLocations"][0]["fullyQualifiedName"],
        "Service default/web:30080/tcp"
    );
    assert_eq!(run["invocations"][0]["executionSuccessful"], false, "a Service was not judged");
    let calm: Value = serde_json::from_str(&written(|out| write_sarif(&report(&healthy()), out))).expect("JSON");
    assert_eq!(calm["runs"][0]["invocations"][0]["executionSuccessful"], true);
    let blind: Value = serde_json::from_str(&written(|out| write_sarif(&report(&blind()), out))).expect("JSON");
    assert_eq!(blind["runs"][0]["invocations"][0]["executionSuccessful"], false);
}

#[test]
fn yaml_and_json_are_one_document() {
    for look in [rich(), healthy(), blind()] {
        let json: Value = serde_json::from_str(&written(|out| write_json(&report(&look), None, out))).expect("JSON");
        let yaml: Value = serde_saphyr::from_str(&written(|out| write_yaml(&report(&look), out))).expect("YAML");
        assert_eq!(json, yaml);
    }
}

#[test]
fn every_document_follows_its_schema() {
    let schema = findings_schema().to_value();
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    for look in [rich(), healthy(), blind()] {
        let json: Value = serde_json::from_str(&written(|out| write_json(&report(&look), None, out))).expect("JSON");
        let errors: Vec<String> = validator.iter_errors(&json).map(|error| error.to_string()).collect();
        assert_eq!(errors, Vec::<String>::new());
        let mut wrong = json;
        wrong["schema"] = "portreeve/v2".into();
        assert!(!validator.is_valid(&wrong), "the schema pins its own name");
    }
}

#[test]
fn node_problem_detector_gets_the_rule_first() {
    assert_eq!(npd_line(&report(&rich())), "listener-on-node-port/loses 30080: Service default/web (+2 more)");
    assert_eq!(npd_line(&report(&healthy())), "no port conflicts");
    assert_eq!(npd_line(&report(&blind())), "not checked: https://192.0.2.7:6443: connection refused");
}

#[test]
fn the_picture_is_well_formed_and_described() {
    let (world, _) = rich();
    for range in ["30000-32767", "1024-65535", "30080"] {
        let census = port_usage(&world.clone().node_port_range(range)).expect("the range is known");
        let svg = written(|out| write_svg(&census, out));
        let xml = roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{range}: {error}"));
        let text = |tag| xml.root_element().children().find(|it| it.has_tag_name(tag)).and_then(|it| it.text());
        assert!(text(("http://www.w3.org/2000/svg", "title")).is_some_and(|title| title.contains("NodePorts")));
        assert!(text(("http://www.w3.org/2000/svg", "desc")).is_some_and(|words| words.contains("allocated")));
        assert!(svg.contains("default/web"), "a used port names its Service");
    }
}

proptest! {
    #[test]
    fn the_line_for_node_problem_detector_fits(name in ".{0,300}", port: Option<u16>, more in 0usize..3) {
        let (world, mut board) = rich();
        board.findings[0].key.subject.name = name;
        board.findings[0].key.port = port;
        board.findings.truncate(1 + more);
        let line = npd_line(&Report::of(&world, &board));
        prop_assert!(line.len() <= NPD_LINE, "{}", line);
        prop_assert!(!line.contains('\n'));
    }
}
