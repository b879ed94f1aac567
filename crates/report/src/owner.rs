//! The owners of a port: as text for one node, and as the JSON document `portreeve.owner/v1` for any number of nodes.

use std::{
    collections::HashMap,
    io::{self, Write},
    net::IpAddr,
};

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;

use super::{
    Style,
    declared::DeclaredEntry,
    findings_document::{Unknown, tidy_remedy},
    indented_json::write_indented_json,
    outcome::{CheckResult, NOT_ALL_READ, Open, answer_outcome},
    remedies::lines,
    terminal::{Ink, tidy, wrap},
};
use portreeve_dataplane::{Answered, Beside, BesideKind, ClaimKind, Claimant, Ownership, Stratum};
use portreeve_facts::{Gap, Mode, Protocol, Source, VERSION, Why};
use portreeve_rules::{
    Advice,
    findings::{Remedy, Severity, StepKind, Vantage},
};

/// The owners of a port of one node.
#[derive(Clone, Debug)]
pub struct PortOwner {
    /// The time at which the scan began.
    pub looked_at: Timestamp,
    /// The version of the program that made the scan, if known.
    pub version: Option<String>,
    /// The owners, by protocol.
    pub owned: Vec<Ownership>,
    /// The advice.
    pub advice: Vec<Advice>,
    /// The pod, `namespace/name`, if the port is in the pod's own network. `None` if the port is a port of the node.
    pub pod: Option<String>,
}

/// The owners of a port of one node, or the reason why they are unknown.
#[derive(Debug)]
pub struct NodeOwner {
    /// The node.
    pub node: String,
    /// The owners.
    pub owner: Result<PortOwner, Gap>,
}

/// A port of one node or of many nodes: who claims it, who answers, who gets no connections, and what to do. A field
/// that does not apply is absent.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(title = "Portreeve owner of a port")]
pub(super) struct OwnerDocument {
    /// Always `portreeve.owner/v1`.
    #[schemars(extend("const" = "portreeve.owner/v1"))]
    schema: &'static str,
    /// The version of the program that wrote the document.
    version: &'static str,
    /// The port.
    port: u16,
    /// The result: `not-checked` if an answer is unknown, otherwise `clear`. The exit code agrees.
    result: CheckResult,
    /// How many nodes have an answer.
    judged: usize,
    /// One entry for this node, or one entry for each node with an agent. Nodes without an agent are not included.
    nodes: Vec<NodeEntry>,
    /// The objects that declare the port, if only the API server was queried.
    #[serde(skip_serializing_if = "Option::is_none")]
    declared: Option<DeclaredEntry>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct NodeEntry {
    /// The node's name.
    node: String,
    /// The owners; absent if they are unknown.
    #[serde(flatten)]
    owner: Option<OwnerEntry>,
    /// The unread input, which may hide a claim to the port. If the owners or the answers are unknown, this list has the
    /// reason. If no proxy answered, this list has `proxy-mode`, and the answers assume that a proxy serves
    /// Services.
    unknown: Vec<Unknown>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct OwnerEntry {
    /// The version of the program that scanned; absent in scans of older versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// The time at which the scan began, RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    looked_at: String,
    /// The pod, `namespace/name`, if the port is in the pod's own network; absent for a port of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
    /// The proxy's mode; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy_mode: Option<Mode>,
    /// The proxy's mode and the source of this fact, as text.
    proxy_mode_in_words: String,
    /// One entry for each protocol.
    protocols: Vec<ProtocolEntry>,
    /// The advice, with the case in which it helps. Advice about problems of the port comes first.
    advice: Vec<AdviceEntry>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ProtocolEntry {
    /// The protocol.
    protocol: Protocol,
    /// All claimants of the port, in the order in which the kernel checks the claimants for a new connection.
    claimants: Vec<ClaimantEntry>,
    /// Other users of the same port number: connections, Services and servers that get no new connections.
    beside: Vec<BesideEntry>,
    /// Who answers, by the place of the client. Addresses with equal answers share an entry.
    answers: Vec<AnswerEntry>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ClaimantEntry {
    /// The kind of claim: `external-ip`, `node-port`, `host-port`, `redirection`, `listener` or `proxy`. `redirection`:
    /// a redirection of a hostPort whose pod is not known to be on this node. `proxy`: the proxy's own socket.
    claim: String,
    /// The claimant, as text.
    name: String,
    /// The details of the claim, as text.
    detail: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct BesideEntry {
    /// `connection`: a connection with this local port, or a socket bound to it. `cluster-ip`: a port of a Service at
    /// its cluster IP. `not-served`: a nodePort or an external address of a Service that this node's proxy does not
    /// serve. `need`: a server or a tunnel that needs the port. `possible`: a connection, a socket or a need that the
    /// scan may have missed.
    kind: &'static str,
    /// The user of the port number, as text.
    name: String,
    /// How this user of the port affects a server or a Service that wants the port, as text.
    detail: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct AnswerEntry {
    /// The place of the client.
    from: Vantage,
    /// The destination addresses on the node.
    to: Vec<IpAddr>,
    /// `process`, `pod`, `refused`, `timed-out`, `nowhere`, `unreachable` or `unknown`.
    answer: String,
    /// The claimant that causes the answer, as an index into `claimants`; absent if no claimant has these addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<usize>,
    /// The listeners that get no connections while this claimant answers, as indexes into `claimants`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    losers: Vec<usize>,
    /// The assumption behind the answer, as text; absent if the answer does not depend on an unknown setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    assumed: Option<String>,
    /// Why the answer is unknown, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct AdviceEntry {
    /// The case in which the remedies help, as text.
    case: String,
    /// The remedies. One remedy is enough.
    remedies: Vec<Remedy>,
}

/// The JSON Schema of the document.
pub fn owner_schema() -> Schema {
    schema_for!(OwnerDocument)
}

/// Writes the document of these nodes.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_owner_json(port: u16, owners: &[NodeOwner], out: &mut dyn Write) -> io::Result<()> {
    let nodes = owners.iter().map(NodeEntry::of).collect();
    write_indented_json(&OwnerDocument::new(port, owners_result(owners), nodes, None), out)
}

/// The result for these nodes: `Clear` if the answer is known on each node.
pub fn owners_result(owners: &[NodeOwner]) -> CheckResult {
    let known: Vec<&PortOwner> = owners.iter().filter_map(|it| it.owner.as_ref().ok()).collect();
    let lacks = owners.is_empty() || known.len() < owners.len() || known.iter().any(|it| it.is_assumed());
    answer_outcome(lacks, known.into_iter().flat_map(PortOwner::open))
}

impl OwnerDocument {
    fn new(port: u16, result: CheckResult, nodes: Vec<NodeEntry>, declared: Option<DeclaredEntry>) -> Self {
        let judged = nodes.iter().filter(|it| it.owner.is_some()).count();
        Self { schema: "portreeve.owner/v1", version: VERSION, port, result, judged, nodes, declared }
    }

    pub(super) fn declared(port: u16, result: CheckResult, declared: DeclaredEntry) -> Self {
        Self::new(port, result, Vec::new(), Some(declared))
    }
}

impl NodeEntry {
    fn of(NodeOwner { node, owner }: &NodeOwner) -> Self {
        let unknown = match owner {
            Ok(owner) => owner.unread().chain(no_proxy(&owner.owned)).map(Unknown::of).collect(),
            Err(gap) => vec![Unknown::of(gap)],
        };
        Self { node: tidy(node), owner: owner.as_ref().ok().map(OwnerEntry::of), unknown }
    }
}

impl OwnerEntry {
    fn of(PortOwner { looked_at, version, owned, advice, pod }: &PortOwner) -> Self {
        Self {
            version: version.as_deref().map(tidy),
            looked_at: format!("{looked_at:.0}"),
            pod: pod.as_deref().map(tidy),
            proxy_mode: owned.first().and_then(|it| it.proxy_mode),
            proxy_mode_in_words: owned.first().map_or_else(String::new, |it| tidy(&it.mode)),
            protocols: protocols(owned),
            advice: advised(advice),
        }
    }
}

/// Why the redirections were not read. All protocols have one reason.
fn redirections(owned: &[Ownership]) -> Option<&Gap> {
    owned.first()?.redirections.as_ref()
}

/// Why no proxy answered. A protocol without a Service has no reason.
fn no_proxy(owned: &[Ownership]) -> Option<&Gap> {
    owned.iter().find_map(|it| it.no_proxy.as_ref())
}

/// The unread input. All protocols lack the same input.
fn unread(owned: &[Ownership]) -> &[Gap] {
    owned.first().map_or(&[], |it| &it.unread)
}

impl PortOwner {
    /// Whether the answer is known: all possible claims were read, and the result of each connection is certain.
    pub fn result(&self) -> CheckResult {
        answer_outcome(self.is_assumed(), self.open())
    }

    fn open(&self) -> impl Iterator<Item = Open> {
        let unknown = self.answers().filter_map(|it| it.outcome.as_ref().err()).map(Open::of_answer);
        // Without addresses, each answer is unknown.
        let unread = self.unread().map(|gap| match gap.source {
            Source::Addresses => Open::of_answer(gap),
            _ => Open::beside_answer(gap),
        });
        unknown.chain(unread)
    }

    fn unread(&self) -> impl Iterator<Item = &Gap> {
        unread(&self.owned).iter().chain(redirections(&self.owned))
    }

    /// Whether an answer is assumed, or is unknown without Pods. Then the answer is not known, also if the profile has
    /// no right to read Pods.
    fn is_assumed(&self) -> bool {
        let lacks_pods = |it: &Answered| matches!(&it.outcome, Err(gap) if gap.source == Source::Pods);
        self.answers().any(|it| it.assumed == Stratum::Served || lacks_pods(it))
    }

    fn answers(&self) -> impl Iterator<Item = &Answered> {
        self.owned.iter().flat_map(|it| &it.answers)
    }
}

fn advised(advice: &[Advice]) -> Vec<AdviceEntry> {
    let entry =
        |it: &Advice| AdviceEntry { case: tidy(&it.case), remedies: it.remedies.iter().map(tidy_remedy).collect() };
    advice.iter().map(entry).collect()
}

fn protocols(owned: &[Ownership]) -> Vec<ProtocolEntry> {
    let claimant = |it: &Claimant| ClaimantEntry {
        claim: it.claim.name().to_owned(),
        name: tidy(&it.name),
        detail: tidy(&it.detail),
    };
    let beside = |it: &Beside| BesideEntry { kind: it.kind.name(), name: tidy(&it.name), detail: tidy(&it.detail) };
    let of_protocol = |it: &Ownership| ProtocolEntry {
        protocol: it.protocol,
        claimants: it.claimants.iter().map(claimant).collect(),
        beside: it.beside.iter().map(beside).collect(),
        answers: grouped(&it.answers),
    };
    owned.iter().map(of_protocol).collect()
}

fn grouped(answers: &[Answered]) -> Vec<AnswerEntry> {
    let mut groups: Vec<AnswerEntry> = Vec::new();
    let mut known: HashMap<_, usize> = HashMap::new();
    for Answered { from, to, outcome, by, losers, assumed } in answers {
        let assumed = assumed.in_words();
        let (answer, why) = match outcome {
            Ok(outcome) => (outcome.name(), None),
            Err(Gap { source: Source::ProxyMode, why: Why::Unreachable, detail }) => {
                ("unknown", Some(format!("the proxy mode was not read: {}", tidy(detail))))
            }
            Err(gap) => ("unknown", Some(tidy(&gap.detail))),
        };
        let group = *known.entry((*from, answer, *by, losers, why.clone(), assumed)).or_insert_with(|| {
            groups.push(AnswerEntry {
                from: *from,
                to: Vec::new(),
                answer: answer.to_owned(),
                by: *by,
                losers: losers.clone(),
                assumed: assumed.map(str::to_owned),
                why,
            });
            groups.len() - 1
        });
        groups[group].to.push(*to);
    }
    groups
}

/// Writes the text: the claims to the port, the results of connections, and advice.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_owner(
    PortOwner { owned, advice, pod, .. }: &PortOwner,
    style: &Style,
    out: &mut dyn Write,
) -> io::Result<()> {
    for gap in unread(owned) {
        let line = match (gap.source, gap.why) {
            (Source::Services, Why::NotRequested) => {
                "no cluster was read: Services may have this port; name one with --kubeconfig FILE or --services FILE"
                    .to_owned()
            }
            (Source::Services, _) => format!("an unread Service may have this port: {}", tidy(&gap.detail)),
            (Source::Addresses, _) => {
                format!("the node's addresses were not read, so it is not known who answers: {}", tidy(&gap.detail))
            }
            (Source::Listeners, _) => {
                let port = owned.first().map_or_else(String::new, |it| it.port.to_string());
                format!("UDP sockets were not read, so the owner of {port}/udp is not known: {}", tidy(&gap.detail))
            }
            (Source::Nodes, _) => format!("Pods of this node may have this port: {}", tidy(&gap.detail)),
            (_, Why::NotRequested) => "Pods were not read: a hostPort may be this port".to_owned(),
            _ => format!("an unread pod may have this port as hostPort: {}", tidy(&gap.detail)),
        };
        writeln!(out, "{}", style.paint(Ink::Bad(Severity::Warning), &line))?;
    }
    for (index, it) in owned.iter().enumerate() {
        let Ownership { protocol, port, claimants, beside, answers, mode, unread, redirections, .. } = it;
        if index > 0 {
            writeln!(out)?;
        }
        let heading = match pod {
            Some(pod) => format!("{port}/{protocol} in the network of pod {}", tidy(pod)),
            None => format!("{port}/{protocol}, proxy mode {}", tidy(mode)),
        };
        writeln!(out, "{}", style.paint(Ink::Heading, &heading))?;
        if claimants.is_empty() {
            let has = |kind| beside.iter().any(|it| it.kind == kind);
            let not_all_read = format!("no claim on this port was found{NOT_ALL_READ}");
            let line = match () {
                () if !unread.is_empty() || redirections.as_ref().is_some_and(may_change) => &not_all_read,
                () if pod.is_some() => "no process listens on this port",
                () if has(BesideKind::NotServed) => {
                    "no process, pod or Service of this node's proxy has it; another proxy may answer"
                }
                () if [BesideKind::Connection, BesideKind::Need, BesideKind::Possible].into_iter().any(has) => {
                    "no server has it: new connections are refused, unless another program redirects them"
                }
                () => {
                    "no Service, pod or process has it: connections are refused, unless another program redirects them"
                }
            };
            writeln!(out, "  {line}")?;
            write_beside(beside, style, out)?;
            continue;
        }
        writeln!(out, "\n  claimed by, in the order in which a new connection meets them")?;
        for (number, Claimant { claim, name, detail }) in claimants.iter().enumerate() {
            let first = format!("{}  {}, {}", number + 1, claim.name(), tidy(name));
            writeln!(out, "  {}", style.paint(Ink::Plain, &first))?;
            for line in wrap(&tidy(detail), style.width.saturating_sub(5)) {
                writeln!(out, "     {}", style.paint(Ink::Faint, &line))?;
            }
        }
        if !answers.is_empty() {
            writeln!(out, "\n  who answers")?;
        }
        for entry in grouped(answers) {
            write_answer(&entry, claimants, style, out)?;
        }
        write_beside(beside, style, out)?;
    }
    if let Some(gap) = redirections(owned) {
        let (effect, ink) = match may_change(gap) {
            true => ("a leftover redirection may get the connections", Ink::Bad(Severity::Warning)),
            false => ("Portreeve assumes no leftover redirection", Ink::Faint),
        };
        write_note(&format!("redirections of hostPorts were not read, so {effect}: {}", gap.detail), ink, style, out)?;
    }
    if let Some(gap) = no_proxy(owned) {
        let effect = "Portreeve assumes that a proxy serves Services on this node";
        let line = format!("no kube-proxy answered, so {effect}: {}", gap.detail);
        write_note(&line, Ink::Bad(Severity::Warning), style, out)?;
    }
    if !advice.is_empty() {
        writeln!(out, "\n  what to do")?;
    }
    advice.iter().try_for_each(|it| write_advice(it, style, out))
}

/// Writes a note about all protocols, after an empty line.
fn write_note(text: &str, ink: Ink, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out)?;
    for line in wrap(&tidy(text), style.width.saturating_sub(2)) {
        writeln!(out, "  {}", style.paint(ink, &line))?;
    }
    Ok(())
}

fn may_change(gap: &Gap) -> bool {
    answer_outcome(false, [Open::beside_answer(gap)]) == CheckResult::NotChecked
}

fn write_beside(beside: &[Beside], style: &Style, out: &mut dyn Write) -> io::Result<()> {
    if !beside.is_empty() {
        writeln!(out, "\n  the same number has")?;
    }
    for Beside { name, detail, .. } in beside {
        writeln!(out, "  -  {}", style.paint(Ink::Plain, &tidy(name)))?;
        for line in wrap(&tidy(detail), style.width.saturating_sub(5)) {
            writeln!(out, "     {}", style.paint(Ink::Faint, &line))?;
        }
    }
    Ok(())
}

/// Writes advice. Each command has its own line, so that a user can copy it.
fn write_advice(Advice { case, remedies }: &Advice, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    for line in wrap(&tidy(case), style.width.saturating_sub(2)) {
        writeln!(out, "  {}", style.paint(Ink::Plain, &line))?;
    }
    for (word, step) in lines(remedies) {
        let (ink, text) = match step.kind {
            StepKind::Command => (Ink::Command, vec![tidy(&step.text)]),
            StepKind::Advice => (Ink::Plain, wrap(&tidy(&step.text), style.width.saturating_sub(11))),
        };
        for (index, line) in text.iter().enumerate() {
            let word = if index == 0 { word } else { "" };
            writeln!(out, "     {word:<4}  {}", style.paint(ink, line))?;
        }
    }
    Ok(())
}

fn write_answer(entry: &AnswerEntry, claimants: &[Claimant], style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let name = |index: Option<usize>| index.and_then(|index| Some(short(&claimants.get(index)?.name)));
    // The claimant of a hostPort is the pod itself.
    let is_pod = entry.by.and_then(|it| claimants.get(it)).is_some_and(|it| it.claim == ClaimKind::HostPort);
    let ends = match (entry.answer.as_str(), name(entry.by)) {
        ("process", Some(by)) => format!("{by} answers"),
        ("pod", Some(by)) if is_pod => format!("{by} answers"),
        ("pod", Some(by)) => format!("a pod of {by} answers"),
        ("unknown", _) => format!("not known: {}", entry.why.as_deref().unwrap_or_default()),
        ("timed-out", Some(by)) => format!("connections time out, because of {by}"),
        ("nowhere", Some(by)) => format!("connections reach no target, because of {by}"),
        ("unreachable", Some(by)) => format!("connections fail with no route to host, because of {by}"),
        (_, Some(by)) => format!("connections are refused, because of {by}"),
        _ => "connections are refused".to_owned(),
    };
    let losers: Vec<String> = entry.losers.iter().filter_map(|loser| name(Some(*loser))).collect();
    let losers = match losers.as_slice() {
        [] => String::new(),
        [loser] => format!("; {loser} gets nothing"),
        losers => format!("; {} get nothing", losers.join(" and ")),
    };
    // A node has a link-local address for each pod, and no client uses these addresses.
    let is_link_local = |ip: &&IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let (link_local, others): (Vec<&IpAddr>, Vec<&IpAddr>) = entry.to.iter().partition(is_link_local);
    let mut to: Vec<String> = others.into_iter().map(ToString::to_string).collect();
    match link_local[..] {
        [] => {}
        [one] => to.push(one.to_string()),
        _ => to.push(format!("{} link-local addresses", link_local.len())),
    }
    let assumed = entry.assumed.as_ref().map(|it| format!(" (assumed: {it})")).unwrap_or_default();
    let text = format!("to {}: {ends}{losers}{assumed}", to.join(", "));
    let ink = if !entry.losers.is_empty() { Ink::Bad(Severity::Critical) } else { Ink::Plain };
    let label = format!("{:<15}", entry.from.to_string());
    for (index, line) in wrap(&text, style.width.saturating_sub(19)).into_iter().enumerate() {
        let label = if index == 0 { label.as_str() } else { "               " };
        writeln!(out, "  {label}  {}", style.paint(ink, &line))?;
    }
    Ok(())
}

/// The name of a claimant, without port and address: the list of claims has a column for each of them.
fn short(name: &str) -> String {
    let end = [" port ", " on "].iter().filter_map(|word| name.find(word)).min();
    tidy(&name[..end.unwrap_or(name.len())])
}
