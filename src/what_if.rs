//! `what-if`: judges every node with a changed setting, and shows how the result changes.

use std::{collections::BTreeMap, process::ExitCode};

use clap::ValueEnum;

use super::{
    command_line::UsageError,
    console::Console,
    scope::{Behind, NodeResults, Scope, Wanted},
};
use portreeve_agent::judge_both;
use portreeve_dataplane::{Own, Port, Proxy, Round, owner};
use portreeve_facts::{Gap, Mode, Protocol, Reading, Service, Snapshot, Socket, Source, Unread, Why};
use portreeve_report::{Setting, WhatIf, first_nodes};
use portreeve_rules::{
    Limits, RULES, Rule,
    findings::{RuleId, Subject},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args<S: Scope> {
    /// Judge the node with this setting: ip_local_port_range="1024 65535", proxy_mode=nftables, node_port_range=20000-40000 ...
    ///
    /// May be given several times. Keys: ip_local_port_range, ip_local_reserved_ports, ip_unprivileged_port_start,
    /// route_localnet, tcp_tw_reuse, proxy_mode, node_port_range, node_port_addresses, localhost_node_ports.
    #[arg(long = "set", value_name = "KEY=VALUE", required = true, help_heading = "What if", value_parser = supposed)]
    settings: Vec<(String, Setting)>,
    #[command(flatten)]
    scope: S,
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = Form::Text)]
    output: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Text
    Text,
    /// One JSON document, `portreeve.ports/v1`
    Json,
}

fn supposed(text: &str) -> Result<(String, Setting), String> {
    Ok((text.to_owned(), text.parse()?))
}

/// The rule about leftovers of another proxy mode.
const LEFT_BEHIND: (RuleId, &str) = (RuleId("stale-redirection"), "proxy");

pub(super) fn run<S: Scope>(args: Args<S>, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { settings, scope, output } = args;
    let (settings, parsed): (Vec<String>, Vec<Setting>) = settings.into_iter().unzip();
    let (mut what_if, mut refused) = (WhatIf::default(), Vec::new());
    let wanted = Wanted { behind: Behind::EveryNodePort, ..Wanted::default() };
    let NodeResults { results, nodes, partial, oldest, scope, .. } =
        scope.judge(&wanted, console, |snapshot| compare(snapshot, &parsed, &mut what_if, &mut refused))?;
    if results.iter().all(|(_, result)| result.is_err())
        && let Some(words) = refused.pop()
    {
        return Err(UsageError(words).into());
    }
    partial.iter().chain(&oldest).for_each(|note| console.print_note(note));
    if results.is_empty() {
        anyhow::bail!("nothing is known; scope: {scope}");
    }
    for (node, result) in results {
        if let Err(gap) = result {
            console.print_note(&format!("{} could not be judged: {}", first_nodes(&[&node], 1), gap.detail));
            what_if.leave_out(&node, &gap);
        }
    }
    let document = what_if.finish(settings, nodes);
    console.write(|out| match output {
        Form::Text => document.write(&console.style, out),
        Form::Json => document.write_json(out),
    })?;
    Ok(ExitCode::from(document.result() as u8))
}

/// Compares a node with and without the changes. If a kernel would refuse the changes, adds the error to `refused`.
fn compare(
    snapshot: &Snapshot,
    settings: &[Setting],
    what_if: &mut WhatIf,
    refused: &mut Vec<String>,
) -> Result<(), Gap> {
    let mut supposed = snapshot.clone();
    if let Err(words) = Setting::apply_all(settings, &mut supposed) {
        refused.push(words.clone());
        return Err(Gap::new(Source::Sysctls, Why::NotSupported, words));
    }
    let limits = Limits::default();
    let switches = settings.iter().any(|setting| matches!(setting, Setting::ProxyMode(_)));
    if switches {
        end_held_ports(snapshot, &mut supposed);
    }
    // Portreeve cannot predict which rules of the old mode remain after the proxy's mode changes.
    let rules: Vec<&'static Rule> =
        RULES.iter().copied().filter(|rule| !switches || !rule.rows().have(LEFT_BEHIND.0, LEFT_BEHIND.1)).collect();
    let everywhere = everywhere(&supposed, settings);
    // Without Services, no port is judged, and the result would show no change.
    snapshot.cluster.services.get()?;
    let worlds = [snapshot, &supposed];
    let [is, would_be] = worlds.map(|it| limits.round(it, None));
    let everywhere = everywhere.as_ref().map(|(mode, world)| (*mode, limits.round(world, None)));
    let mut ports = Vec::new();
    for ((protocol, port), service) in service_ports(snapshot) {
        // Without addresses, there are no answers.
        snapshot.kernel.interfaces.get()?;
        let of = |round: &Round<'_>| owner(round, protocol, port);
        let (now, then) = (of(&is)?, of(&would_be)?);
        if let Some((mode, everywhere)) = &everywhere {
            what_if.take_cure(snapshot, [&now, &then], *mode, || of(everywhere))?;
        }
        ports.push((Subject::service(service), [now, then]));
    }
    let judged = judge_both(&rules, worlds, &limits);
    what_if.take(worlds, &judged, &ports);
    Ok(())
}

/// Removes the old proxy's sockets on NodePorts, if a proxy of the new mode opens no sockets on NodePorts.
fn end_held_ports(now: &Snapshot, supposed: &mut Snapshot) {
    let holds = |mode| matches!(mode, Mode::Iptables | Mode::Ipvs);
    if supposed.proxy_mode().is_ok_and(|mode| holds(mode.value)) {
        return;
    }
    let (ports, proxy) = (service_ports(now), Proxy::of(now));
    let is_held = |socket: &Socket| {
        let service = ports.get(&(socket.protocol, socket.local_port));
        // The socket of a health check port is not removed, because a proxy in each mode answers health checks.
        let is_node_port = service.is_some_and(|it| it.health_check_node_port != Some(socket.local_port));
        is_node_port && proxy.owns(socket) == Own::Yes
    };
    if let Reading::Seen(listeners) = &mut supposed.kernel.listeners {
        listeners.retain(|socket| !is_held(socket));
    }
}

/// The changed node, but with NodePorts on every address. If the changed node loses an answer, but keeps the answer
/// with NodePorts on every address, `nodePortAddresses` causes the loss. `None` if a user chose the addresses, or if
/// the mode is not known.
fn everywhere(supposed: &Snapshot, settings: &[Setting]) -> Option<(Mode, Snapshot)> {
    if settings.iter().any(|it| matches!(it, Setting::NodePortAddresses(_))) {
        return None;
    }
    let mode = supposed.proxy_mode().ok()?.value;
    let mut everywhere = supposed.clone();
    Setting::NodePortAddresses(vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()]).apply(&mut everywhere);
    Some((mode, everywhere))
}

/// The NodePorts and health check ports of all Services, each with the first Service that has the port.
fn service_ports(snapshot: &Snapshot) -> BTreeMap<Port, &Service> {
    let mut ports = BTreeMap::new();
    for service in snapshot.cluster.services.known_part(Unread::Chooses) {
        for (number, port) in service.numbers() {
            let protocol = port.map_or(Protocol::Tcp, |port| port.protocol);
            ports.entry((protocol, number)).or_insert(&**service);
        }
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::healthy::proxy_holder;

    #[test]
    fn node_ports_that_the_proxy_holds_end_with_it_and_nothing_else_does() {
        let world = Snapshot::healthy().with_mode(Mode::Iptables).service("web", |it| it.node_port(30080));
        let world = world.service("lb", |it| it.node_port(30081).with(|it| it.health_check_node_port = Some(30999)));
        let world = world.listens_as("0.0.0.0:30080", proxy_holder()).listens_as("0.0.0.0:30999", proxy_holder());
        let world = world.listens("127.0.0.1:30081");
        let left = |mode: Mode| {
            let mut supposed = world.clone();
            Setting::ProxyMode(mode).apply(&mut supposed);
            end_held_ports(&world, &mut supposed);
            let ports = supposed.kernel.listeners.seen().into_iter().flatten().map(|it| it.local_port);
            let mut ports: Vec<u16> = ports.filter(|port| *port > 30000).collect();
            ports.sort_unstable();
            ports
        };
        assert_eq!(left(Mode::Nftables), [30081, 30999]);
        assert_eq!(left(Mode::Cilium), [30081, 30999]);
        assert_eq!(left(Mode::Ipvs), [30080, 30081, 30999]);
    }
}
