//! What would change, for people. What is true of many ports for one cause is told once.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    net::IpAddr,
    sync::Arc,
};

use super::{Change, Changed, NotKnown, NotKnownOn, Place, WhatIf, is_loss};
use crate::{
    Style,
    names::{NAMED, first_names},
    table::write_incidents,
    terminal::{Ink, tidy},
    topic::topic,
};
use portreeve_facts::{Mode, Source, Why};
use portreeve_rules::findings::Vantage;

/// What is the same of changes that have one cause: from where, where to, who answers now and then, whose the port would be, and
/// the nodes. Of loopback the address tells the families apart.
type Cause<'a> = (Vantage, Place, Option<IpAddr>, &'static str, &'static str, Option<&'a str>, &'a [Arc<str>]);

/// Something that is not known, and what depends on it.
#[derive(Default)]
struct Reason {
    input: Option<(Source, Why)>,
    ports: Vec<String>,
    nodes: BTreeSet<Arc<str>>,
}

fn by_cause<'a>(changes: &[&'a Changed]) -> Vec<Vec<&'a Changed>> {
    let mut groups: Vec<Vec<&'a Changed>> = Vec::new();
    let mut known: BTreeMap<Cause<'a>, usize> = BTreeMap::new();
    for changed in changes {
        let Changed { change: Change { from, to, now, then, then_of, .. }, example, nodes } = changed;
        let of_loopback = Some(*example).filter(|_| *to == Place::Loopback);
        let place =
            *known.entry((*from, *to, of_loopback, now, then, then_of.as_deref(), nodes)).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.push(changed),
            None => groups.push(vec![changed]),
        }
    }
    groups
}

impl WhatIf {
    /// Writes it for people: first who would lose, then who would gain, then what would be wrong, and what no more.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn write(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let Self { supposed, agents, judged, answers, begins, changes, ends, unknown, .. } = self;
        let heading = format!("what if {}; {judged} of {agents} nodes judged", tidy(&supposed.join(" ")));
        writeln!(out, "{}", style.paint(Ink::Heading, &heading))?;
        let (lost, others): (Vec<&Changed>, Vec<&Changed>) = answers.iter().partition(|it| is_loss(&it.change));
        if lost.is_empty() && others.is_empty() && begins.is_empty() && changes.is_empty() && ends.is_empty() {
            let words = match (unknown.is_empty() && judged == agents, *judged) {
                (true, _) => "nothing would change",
                (false, 0) => "nothing is known: no node could be judged",
                (false, _) => "nothing would change, as far as it could be judged",
            };
            writeln!(out, "{words}")?;
        }
        self.write_answers("Would lose an answer: tell these clients first", &lost, style, out)?;
        if let Some(mode) = self.kept_by_addresses {
            write_cure(mode, out)?;
        }
        self.write_answers("Would have another answer", &others, style, out)?;
        for (title, incidents) in
            [("Would begin: mend it before", begins), ("Would stay, in another way", changes), ("Would end", ends)]
        {
            if !incidents.is_empty() {
                writeln!(out, "\n{}", style.paint(Ink::Heading, title))?;
                write_incidents(incidents, *judged, style, out)?;
            }
        }
        self.write_unknown(style, out)
    }

    /// Each reason once, with the ports that it leaves open.
    fn write_unknown(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        if self.unknown.is_empty() {
            return Ok(());
        }
        writeln!(out, "\n{}", style.paint(Ink::Heading, "Not known"))?;
        let mut reasons: BTreeMap<&str, Reason> = BTreeMap::new();
        for NotKnownOn { what: NotKnown { port, protocol, detail, input }, nodes } in &self.unknown {
            let reason = reasons.entry(detail).or_default();
            reason.input = reason.input.or(*input);
            reason.ports.extend(port.zip(*protocol).map(|(port, protocol)| format!("{port}/{protocol}")));
            reason.nodes.extend(nodes.iter().cloned());
        }
        for (detail, Reason { input, ports, nodes }) in reasons {
            match input {
                Some((Source::ProxyMode, _)) => writeln!(
                    out,
                    "  the proxy mode is not known: {detail}; name it with --proxy-mode at the agent (config.proxy-mode of the chart)"
                )?,
                Some((source, why)) => writeln!(out, "  {}: {detail}", topic(source, why))?,
                None => writeln!(out, "  {detail}")?,
            }
            match ports.len() {
                0 => {}
                1 => writeln!(out, "    port {}", ports[0])?,
                many => writeln!(out, "    {many} ports: {}", first_names(&ports, NAMED))?,
            }
            write_nodes(&nodes.into_iter().collect::<Vec<_>>(), self.agents, style, out)?;
        }
        Ok(())
    }

    fn write_answers(&self, title: &str, answers: &[&Changed], style: &Style, out: &mut dyn Write) -> io::Result<()> {
        if answers.is_empty() {
            return Ok(());
        }
        writeln!(out, "\n{}", style.paint(Ink::Heading, title))?;
        for group in by_cause(answers) {
            let Changed { change, example, nodes } = group[0];
            let Change { from, to, now, then, then_of, .. } = change;
            let to = match to {
                Place::Loopback => example.to_string(),
                Place::NodeAddress => "the Node's address".to_owned(),
                Place::OtherAddress => format!("other addresses, such as {example}"),
            };
            let ports: Vec<String> = group.iter().map(|it| port_in_words(&it.change)).collect();
            let then_of = then_of.as_ref().map_or_else(String::new, |it| format!(" ({it})"));
            let what = match &ports[..] {
                [port] => port.clone(),
                ports => format!("{} NodePorts", ports.len()),
            };
            writeln!(out, "  {what}, from {from} to {to}: {now} now, then {then}{then_of}")?;
            if ports.len() > 1 {
                writeln!(out, "    {}", first_names(&ports, NAMED))?;
            }
            write_nodes(nodes, self.judged, style, out)?;
        }
        Ok(())
    }
}

fn write_nodes(nodes: &[Arc<str>], among: usize, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let names = format!("{} of {among} nodes: {}", nodes.len(), first_names(nodes, NAMED));
    writeln!(out, "    {}", style.paint(Ink::Faint, &names))
}

/// `30080/tcp (Service default/web)`.
fn port_in_words(change: &Change) -> String {
    let Change { port, protocol, of, .. } = change;
    let whose = if of.is_empty() { String::new() } else { format!(" ({of})") };
    format!("{port}/{protocol}{whose}")
}

/// Why answers on other addresses of nodes would be lost, and what keeps them.
fn write_cure(mode: Mode, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "  Why of other addresses: in {mode} mode nodePortAddresses says on which addresses of a node NodePorts are served,\n  and \
         it lists none of these; by default nftables mode serves the primary address alone. To keep the others, set\n  \
         nodePortAddresses: [\"0.0.0.0/0\", \"::/0\"] in the configuration of kube-proxy. Ask again with\n  \
         --set node_port_addresses=0.0.0.0/0,::/0 beside the rest: what is told then is lost all the same."
    )
}
