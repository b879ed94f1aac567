//! `policies`: prints admission policies against port conflicts, with the facts that the agents report. The verb
//! applies nothing.

use std::{collections::BTreeMap, process::ExitCode, str::FromStr};

use anyhow::bail;
use clap::ValueEnum;
use ipnet::IpNet;

use super::{
    console::Console,
    scope::{NodeResults, Scope, Wanted},
};
use portreeve_facts::{
    PortSet,
    names::{LABEL_WORDS, is_label},
};
use portreeve_report::{Open, PolicyChoices, answer_outcome, gaps_alike, write_policies, write_policy_values};
use portreeve_rules::{ASSUMED_RANGE, PolicyParameters};

#[derive(Debug, clap::Args)]
pub(super) struct Args<S: Scope> {
    #[command(flatten)]
    scope: S,
    /// The action on a violation
    #[arg(long, value_enum, value_name = "ACTION", help_heading = "Policies", default_value_t = Action::Warn)]
    action: Action,
    /// A network that external IPs must not use, besides the nodes' addresses, such as the network of Services; may be given several times
    #[arg(long, value_name = "CIDR", help_heading = "Policies")]
    keep_free: Vec<IpNet>,
    /// The nodePorts that users may choose, in all namespaces or in one, like shop=30010-30019,30050; may be given several times
    ///
    /// Several values for one namespace are added up, and several values for all namespaces too. The ports of a namespace replace the ports
    /// for all namespaces. An empty value, as in shop=, forbids all ports.
    #[arg(long, value_name = "[NAMESPACE=]PORTS", help_heading = "Policies")]
    fixed: Vec<Fixed>,
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = Form::Yaml)]
    output: Form,
}

/// The action on a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    /// The sender of the object gets a warning
    Warn,
    /// The object is refused
    Deny,
    /// The audit log of the API server records the object
    Audit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Objects for `kubectl apply`
    Yaml,
    /// Values of the chart
    Values,
}

/// A value of `--fixed`: the nodePorts that users may choose, in one namespace or in all namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fixed {
    namespace: Option<String>,
    ports: PortSet,
}

impl FromStr for Fixed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, ports) = text.split_once('=').map_or((None, text), |(name, ports)| (Some(name), ports));
        if let Some(name) = namespace.filter(|name| !is_label(name)) {
            return Err(format!("{name:?} is not a namespace, wanted {LABEL_WORDS}"));
        }
        let ports = ports.parse().map_err(|error| format!("{error}"))?;
        Ok(Self { namespace: namespace.map(str::to_owned), ports })
    }
}

pub(super) fn run<S: Scope>(args: Args<S>, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { scope, action, keep_free, fixed, output } = args;
    let choices = choices(action, &keep_free, &fixed);
    let mut known = PolicyParameters::default();
    let NodeResults { results, partial, oldest, scope, .. } = scope.judge(&Wanted::default(), console, |snapshot| {
        known.absorb(snapshot);
        Ok(())
    })?;
    let is_blank = results.iter().all(|(_, result)| result.is_err());
    // If no value is known, print no policies. With policies without values, `kubectl apply` would remove the values of
    // the policies in the cluster.
    if is_blank && choices.parameters.is_empty() {
        bail!(
            "no policy is printed, because nothing is known (scope: {scope}); without agents, apply deploy/policies/policies.yaml unchanged, or set the values with --fixed and --keep-free"
        );
    }
    if is_blank {
        console.print_note("no agent reported the cluster: the policies have only the values from the command line");
    }
    let silent: Vec<_> = results.into_iter().filter_map(|(node, result)| Some((node, result.err()?))).collect();
    let is_silent = !silent.is_empty();
    let unread: Vec<_> = silent.into_iter().chain(known.unread.clone()).collect();
    console.write(|out| match output {
        Form::Yaml => write_policies(&known, &choices, out),
        Form::Values => write_policy_values(&known, &choices, out),
    })?;
    gaps_alike(&unread).iter().for_each(|note| console.print_note(note));
    let disagreement = known.disagreement();
    if let Some(ranges) = &disagreement {
        console.print_note(&format!("nodes report different NodePort ranges, so the policies have no range: {ranges}"));
    }
    if known.is_assumed {
        console.print_note(ASSUMED_RANGE);
    }
    let too_many = known.too_many_addresses();
    if let Some(count) = too_many {
        console.print_note(&format!(
            "the nodes have {count} addresses, too many for a policy: the policies list no addresses. Name the networks of the nodes with --keep-free"
        ));
    }
    partial.iter().chain(&oldest).for_each(|note| console.print_note(note));
    console.print_note(&format!("scope: {scope}"));
    // An assumed range may be wrong. A wrong warning about a free port does no harm, but a wrong refusal does harm.
    let is_certain = !known.is_assumed || action != Action::Deny;
    let lacks =
        is_blank || is_silent || !is_certain || disagreement.is_some() || too_many.is_some() || partial.is_some();
    let open = known.unread.iter().map(|(_, gap)| Open::of_answer(gap));
    Ok(ExitCode::from(answer_outcome(lacks, open) as u8))
}

fn choices(action: Action, keep_free: &[IpNet], fixed: &[Fixed]) -> PolicyChoices {
    let mut parameters = BTreeMap::new();
    if !keep_free.is_empty() {
        let networks: Vec<String> = keep_free.iter().map(|it| it.trunc().to_string()).collect();
        parameters.insert("keptFreeOfExternalIPs".to_owned(), networks.join(" "));
    }
    let mut by_name: BTreeMap<String, PortSet> = BTreeMap::new();
    for Fixed { namespace, ports } in fixed {
        let name = namespace.as_ref().map_or_else(String::new, |namespace| format!(".{namespace}"));
        let all = by_name.entry(format!("fixedNodePorts{name}")).or_default();
        *all = all.union(ports);
    }
    parameters.extend(by_name.into_iter().map(|(name, ports)| (name, ports.to_string())));
    let action = match action {
        Action::Warn => "Warn",
        Action::Deny => "Deny",
        Action::Audit => "Audit",
    };
    PolicyChoices { action, parameters }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_may_be_chosen_in_a_namespace_or_in_all() {
        let ports = |text: &str| text.parse::<PortSet>().expect("a list");
        let fixed = |text: &str| text.parse::<Fixed>();
        assert_eq!(fixed("30000-30085"), Ok(Fixed { namespace: None, ports: ports("30000-30085") }));
        assert_eq!(fixed("shop=30010"), Ok(Fixed { namespace: Some("shop".to_owned()), ports: ports("30010") }));
        assert_eq!(fixed("shop="), Ok(Fixed { namespace: Some("shop".to_owned()), ports: PortSet::default() }));
        for wrong in ["Shop=1", "=1", "shop=x", "a.b=1", "70000"] {
            assert!(fixed(wrong).is_err(), "{wrong}");
        }
    }
}
