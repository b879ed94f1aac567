//! The predicted changes as text. The most urgent changes are first. Each claim is listed once. If the answers on
//! several ports change equally, these ports share one block.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    sync::Arc,
};

use super::{
    page::Page,
    rows::{port, subject_in_words},
};
use crate::{
    Style,
    names::{NAMED, first_nodes},
    terminal::{Ink, tidy},
    topic::{reason_words, topic},
    what_if::{
        Answer, AnswerOn, Claim, ClaimChange, FindingChange, How, NOT_PREDICTED, NotKnown, NotKnownOn, Place,
        WhatIfDocument,
    },
};
use portreeve_facts::{Mode, Source, Vantage, Why, text};
use portreeve_rules::findings::{Subject, SubjectKind};

/// The largest number of claims whose findings are explained. All claims are listed.
const EXPLAINED: usize = 20;
const LABEL: usize = 8;

#[derive(Default)]
struct Reason {
    input: Option<(Source, Why)>,
    ports: Vec<String>,
    nodes: BTreeSet<Arc<str>>,
}

/// One line about a claim. The first field is `false` if a client would lose an answer. The other fields are the
/// target, the address (only on loopback), who answers now, who would answer after the change, and the nodes.
type Line<'a> = (bool, Place, Option<String>, String, String, &'a [Arc<str>]);

impl WhatIfDocument {
    /// Writes the text. The first section has the clients that would lose an answer. The next sections have the
    /// findings that would begin, the answers or findings that would change, and the findings that would end.
    ///
    /// # Errors
    /// Fails if the writer fails.
    pub fn write(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        Page { style, wide: false, out }.what_if(self)
    }
}

impl Page<'_> {
    fn what_if(&mut self, document: &WhatIfDocument) -> io::Result<()> {
        let WhatIfDocument { supposed, agents, judged, claims, unknown, .. } = document;
        let heading = format!("what if {}; {judged} of {agents} nodes judged", tidy(&supposed.join(" ")));
        self.line(0, Ink::Heading, &heading)?;
        if claims.is_empty() {
            let words = match (unknown.is_empty() && judged == agents, *judged) {
                (true, _) => "nothing would change",
                (false, 0) => "nothing is known: no node could be judged",
                (false, _) => "nothing would change in the part that could be judged",
            };
            self.line(0, Ink::Plain, words)?;
        }
        let (lost, others): (Vec<&ClaimChange>, Vec<&ClaimChange>) = claims.iter().partition(|it| it.is_loss());
        let of = |how: How| others.iter().copied().filter(|it| it.how == how).collect();
        let sections: [(&str, Vec<&ClaimChange>); 4] = [
            ("Clients would lose answers: inform these clients first", lost),
            ("Findings would begin: fix these before the change", of(How::Begins)),
            ("Answers or findings would change", of(How::Stays)),
            ("Findings would end", of(How::Ends)),
        ];
        let mut explained = 0;
        for (number, (title, claims)) in sections.into_iter().enumerate() {
            if claims.is_empty() {
                continue;
            }
            self.blank()?;
            self.line(0, Ink::Heading, title)?;
            for group in alike(&claims) {
                explained += usize::from(!group[0].findings.is_empty());
                self.group(&group, *judged, explained <= EXPLAINED)?;
            }
            if let Some(mode) = document.kept_by_addresses.filter(|_| number == 0) {
                self.cure(mode)?;
            }
        }
        if explained > EXPLAINED {
            self.blank()?;
            let more = explained - EXPLAINED;
            self.line(0, Ink::Faint, &format!("-o json has {more} more claims."))?;
        }
        self.not_known(document)?;
        self.blank()?;
        self.paragraph(0, Ink::Faint, NOT_PREDICTED)
    }

    /// Writes one group of claims that change in the same way: the claims, the nodes, the findings and the answers.
    fn group(&mut self, group: &[&ClaimChange], judged: usize, explained: bool) -> io::Result<()> {
        let first = group[0];
        let ClaimChange { how, findings, nodes, .. } = first;
        let on = if judged <= 1 { first_nodes(nodes, NAMED) } else { on_nodes(nodes, judged) };
        self.blank()?;
        match group {
            [_] => self.line(0, Ink::Heading, &format!("{}, {}, on {on}", claim(first, ", port "), how.name()))?,
            all => {
                self.line(0, Ink::Heading, &format!("{} ports of Services stay, on {on}", all.len()))?;
                self.line(2, Ink::Plain, &text::listed(all.iter().map(|it| claim(it, " ")), NAMED))?;
            }
        }
        for finding in findings {
            let whose = nodes.first().filter(|_| nodes.len() > 1).map(|it| format!("On {it}: ")).unwrap_or_default();
            self.finding_change(finding, &whose, explained)?;
        }
        let mut lines = Vec::new();
        for ((_, to, address, now, then, on), from, example) in answer_lines(first) {
            let to = match (to, address) {
                (Place::Loopback, Some(address)) => address,
                (Place::NodeAddress, _) => "the Node's address".to_owned(),
                (_, _) => format!("other addresses, such as {example}"),
            };
            let from: Vec<String> = from.iter().map(Vantage::to_string).collect();
            let on = if on == &nodes[..] { String::new() } else { format!("; on {}", on_nodes(on, judged)) };
            let words = format!("from {} to {to}: {now} now, then {then}{on}", from.join(", "));
            lines.extend(self.wrapped(Ink::Plain, &words, LABEL + 4));
        }
        self.labelled("Answers", LABEL, &lines)
    }

    fn finding_change(&mut self, change: &FindingChange, whose: &str, explained: bool) -> io::Result<()> {
        let FindingChange { how, difference, then, .. } = change;
        let Some(shown) = change.shown() else { return Ok(()) };
        let mut lines = self.wrapped(Ink::Bad(shown.severity), difference, LABEL + 4);
        if explained {
            lines.extend(self.wrapped(Ink::Plain, &format!("{whose}{}", shown.summary), LABEL + 4));
        }
        self.labelled(how.name(), LABEL, &lines)?;
        match then.as_ref().filter(|_| explained) {
            Some(problem) => self.remedies(problem),
            None => Ok(()),
        }
    }

    fn cure(&mut self, mode: Mode) -> io::Result<()> {
        let words = format!(
            "Why clients of other addresses lose their answers: {mode} mode serves NodePorts only on the addresses in nodePortAddresses. By default, nftables mode serves only the primary address. To keep the other addresses, set nodePortAddresses: \
             [\"0.0.0.0/0\", \"::/0\"] in the configuration of kube-proxy. Then repeat this command with --set node_port_addresses=0.0.0.0/0,::/0 added. The answers that the second result lists are lost with this setting too."
        );
        self.blank()?;
        self.paragraph(2, Ink::Plain, &words)
    }

    fn not_known(&mut self, WhatIfDocument { unknown, agents, .. }: &WhatIfDocument) -> io::Result<()> {
        if unknown.is_empty() {
            return Ok(());
        }
        self.blank()?;
        self.line(0, Ink::Heading, "Not known")?;
        let mut reasons: BTreeMap<&str, Reason> = BTreeMap::new();
        // Unread inputs without an effect on the result are named in one line for each reason.
        let mut excused: BTreeMap<(Why, &[Arc<str>]), BTreeSet<&str>> = BTreeMap::new();
        for NotKnownOn { what: NotKnown { port, protocol, detail, input, decides }, nodes } in unknown {
            if let (None, Some((source, why)), false) = (port, *input, decides) {
                excused.entry((why, nodes)).or_default().insert(topic(source, why));
                continue;
            }
            let reason = reasons.entry(detail).or_default();
            reason.input = reason.input.or(*input);
            reason.ports.extend(port.zip(*protocol).map(|(port, protocol)| format!("{port}/{protocol}")));
            reason.nodes.extend(nodes.iter().cloned());
        }
        for (detail, Reason { input, ports, nodes }) in reasons {
            let words = match input {
                Some((Source::ProxyMode, _)) => format!(
                    "the proxy mode is not known: {detail}; set --proxy-mode of the agent (config.proxy-mode of the chart)"
                ),
                Some((source, why)) => format!("{}: {detail}", topic(source, why)),
                None => detail.to_owned(),
            };
            self.line(2, Ink::Plain, &words)?;
            match &ports[..] {
                [] => {}
                [one] => self.line(4, Ink::Plain, &format!("port {one}"))?,
                many => {
                    let words = format!("{} ports: {}", many.len(), text::listed(many, NAMED));
                    self.line(4, Ink::Plain, &words)?;
                }
            }
            let nodes: Vec<Arc<str>> = nodes.into_iter().collect();
            self.line(4, Ink::Faint, &on_nodes(&nodes, *agents))?;
        }
        for ((why, nodes), topics) in excused {
            let topics: Vec<&str> = topics.into_iter().collect();
            self.line(2, Ink::Plain, &format!("{}: {}", reason_words(why), topics.join("; ")))?;
            self.line(4, Ink::Faint, &on_nodes(nodes, *agents))?;
        }
        Ok(())
    }
}

fn on_nodes(nodes: &[Arc<str>], among: usize) -> String {
    format!("{} of {among} nodes: {}", nodes.len(), first_nodes(nodes, NAMED))
}

/// Groups claims into blocks. Two ports of Services share a block if their findings do not change, and if their answers
/// change equally on the same nodes.
fn alike<'a>(claims: &[&'a ClaimChange]) -> Vec<Vec<&'a ClaimChange>> {
    let mut groups: Vec<Vec<&ClaimChange>> = Vec::new();
    let mut known: BTreeMap<_, usize> = BTreeMap::new();
    for claim in claims {
        let is_alone = !claim.findings.is_empty() || claim.claim.subject.kind != SubjectKind::Service;
        let lines: Vec<_> = answer_lines(claim).into_iter().map(|(line, from, _)| (line, from)).collect();
        let place = if is_alone { groups.len() } else { *known.entry((lines, &claim.nodes)).or_insert(groups.len()) };
        match groups.get_mut(place) {
            Some(group) => group.push(claim),
            None => groups.push(vec![claim]),
        }
    }
    groups
}

fn claim(ClaimChange { claim, subjects, .. }: &ClaimChange, before_port: &str) -> String {
    let mut words = subject_in_words(&claim.subject, subjects.len() > 1);
    if let Some(port) = port(claim.port, claim.protocol) {
        words.push_str(&format!("{before_port}{port}"));
    }
    words
}

/// Groups the changed answers of a claim into lines. The losses are first. Each line has the vantage points of the
/// clients, and one address as an example.
fn answer_lines(change: &ClaimChange) -> Vec<(Line<'_>, Vec<Vantage>, String)> {
    let mut lines: BTreeMap<Line<'_>, (Vec<Vantage>, String)> = BTreeMap::new();
    for AnswerOn { answer, example, nodes } in &change.answers {
        let Answer { from, to, now, now_by, then, then_by } = answer;
        let who = |word, by: &Option<String>| answerer(word, by.as_deref(), &change.claim);
        let address = (*to == Place::Loopback).then(|| example.to_string());
        let line = (!answer.is_loss(), *to, address, who(now, now_by), who(then, then_by), &nodes[..]);
        let (vantages, _) = lines.entry(line).or_insert_with(|| (Vec::new(), example.to_string()));
        if !vantages.contains(from) {
            vantages.push(*from);
        }
    }
    lines.into_iter().map(|(line, (from, example))| (line, from, example)).collect()
}

/// The program that answers: `pod`, `process nginx on 0.0.0.0`, `pod default/edge`, `refused`. If a Service other than
/// the claim's Service gets the connections, the text names this Service.
fn answerer(word: &str, by: Option<&str>, Claim { subject, port, protocol, .. }: &Claim) -> String {
    let of_port = port.zip(*protocol).map(|(port, protocol)| format!(":{port}/{protocol}")).unwrap_or_default();
    match by {
        Some(by) if word == "process" => by.strip_suffix(&of_port).unwrap_or(by).to_owned(),
        Some(by) if !is_of(by, subject) && word == "pod" && by.starts_with("pod ") => by.to_owned(),
        Some(by) if !is_of(by, subject) && word == "pod" => format!("pod of {by}"),
        Some(by) if !is_of(by, subject) && by.starts_with("Service ") => format!("{word} ({by})"),
        _ => word.to_owned(),
    }
}

/// Whether a claimant such as `Service default/web port http` is a port of `service`.
fn is_of(claimant: &str, service: &Subject) -> bool {
    let rest = claimant.strip_prefix(&tidy(&service.to_string()));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" port "))
}
