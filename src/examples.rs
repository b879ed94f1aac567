//! The examples at the beginning of each verb's help.

use clap::Command;

/// The verb, the words after the verb, and a comment.
pub(super) type Example = (&'static str, &'static str, &'static str);

/// The verbs of `portreeve`, which are about one node.
pub(super) const OF_A_NODE: &[Example] = &[
    ("check", "--services cluster.yaml", "the cluster from a file of kubectl get -o yaml"),
    ("check", "--set proxy_mode=nftables", "judge the node with another proxy mode"),
    ("check", "-o sarif > findings.sarif", "for code scanning"),
    ("owner", "30080 --services cluster.yaml", "the cluster from a file of kubectl get -o yaml"),
    ("owner", "30080/udp --refused", "if the API server refused a Service with this port"),
    ("owner", "8080 --pod shop/web-0", "a port in the network of a pod"),
    ("map", "-o svg > ports.svg", "a picture for documents"),
    ("snapshot", "> node.json", "other verbs read the file with --snapshot node.json"),
    ("agent", "--listen 127.0.0.1:29517", "try the agent on this machine"),
    ("guard", "--dry-run", "print the ports that the guard would reserve"),
    ("guard", "--release", "remove the ports that the guard reserved"),
    ("completion", "bash > /etc/bash_completion.d/portreeve", "for bash"),
];

/// The verbs of the plugin, which are about all nodes.
pub(super) const OF_ALL_NODES: &[Example] = &[
    ("check", "-n shop", "findings about the objects of one namespace"),
    ("check", "--watch", "print the report again after each change"),
    ("check", "-o json", "for scripts"),
    ("owner", "30080 --node n1", "on one node"),
    ("owner", "30080 --refused", "if the API server refused a Service with this port"),
    ("owner", "30080 --no-agent", "without agents: the objects that claim the port"),
    ("map", "--node n1", "the ports of one node"),
    ("snapshot", "n1 > node.json", "other verbs read the file with --snapshot node.json"),
];

/// The verbs that both programs have, with the same flags.
const OF_BOTH: &[Example] = &[
    ("suggest", "--count 3", "three free NodePorts"),
    ("suggest", "--host", "a port for a hostPort, or for a server on the host's network"),
    ("reserve", "--for talos", "the reservation in the format of a platform"),
    ("reserve", "--check", "whether outgoing connections may get NodePorts"),
    ("what-if", "--set proxy_mode=nftables", "the effects of another proxy mode"),
    ("what-if", "--set node_port_range=20000-22767", "the effects of another NodePort range"),
    ("policies", "| kubectl apply -f -", "warn about port conflicts"),
    ("policies", "--action deny --fixed= --fixed shop=30010-30019", "only shop may choose NodePorts, only these"),
    ("lint", "manifests/", "the files of a folder"),
    ("lint", "- < rendered.yaml", "the output of helm template"),
    ("lint", "manifests/ --against cluster", "compare with the Services of the cluster"),
    ("explain", "listener-on-node-port", "the page of a rule"),
    ("demo", "crowded-range", "one incident"),
    ("man", "check | man -l -", "the manual page of a verb"),
];

/// Adds the examples to the verbs of a program. `typed` starts the program.
pub(super) fn with_examples(command: Command, typed: &str, own: &[Example]) -> Command {
    command.mut_subcommands(|verb| {
        let rows: Vec<&Example> = own.iter().chain(OF_BOTH).filter(|row| row.0 == verb.get_name()).collect();
        let widest = rows.iter().map(|row| row.1.len()).max().unwrap_or_default();
        let line = |row: &&Example| format!("\n  {typed} {} {:widest$}  # {}", row.0, row.1, row.2);
        match rows[..] {
            [] => verb,
            _ => verb.before_help(format!("Examples:{}", rows.iter().map(line).collect::<String>())),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{command_line::Cli, kubectl};
    use clap::CommandFactory as _;

    #[test]
    fn each_verb_has_examples_that_the_command_line_accepts() {
        for (command, own) in [(Cli::command(), OF_A_NODE), (kubectl::Cli::command(), OF_ALL_NODES)] {
            let mut command = with_examples(command, "portreeve", own);
            command.build();
            for verb in command.get_subcommands() {
                let has_flags = verb.get_arguments().any(|it| !it.is_global_set() && !it.is_hide_set());
                let has_examples = verb.get_before_help().is_some();
                assert!(has_examples || !has_flags || ["help", "version"].contains(&verb.get_name()), "{verb}");
            }
            for (verb, words, _) in own.iter().chain(OF_BOTH) {
                let words = words.split_whitespace().take_while(|word| !["|", ">", "<"].contains(word));
                let line = ["portreeve", verb].into_iter().chain(words);
                command.clone().try_get_matches_from(line).unwrap_or_else(|error| panic!("{verb}: {error}"));
            }
        }
    }

    #[test]
    fn the_flags_of_a_verb_come_before_the_general_flags() {
        for mut command in [Cli::command(), kubectl::Cli::command()] {
            command.build();
            for verb in command.get_subcommands().filter(|it| it.get_name() != "help") {
                let help = verb.clone().render_long_help().to_string();
                let (_, last) = help.split_once("\nGeneral:\n").unwrap_or_else(|| panic!("{help}"));
                assert!(last.contains("--color") && last.contains("--help"), "{help}");
                let headings = last.lines().filter(|it| it.ends_with(':') && !it.starts_with(' '));
                assert_eq!(headings.collect::<Vec<_>>(), Vec::<&str>::new(), "{help}");
                assert!(!help.contains("\nOptions:\n      --agents"), "{help}");
            }
        }
    }
}
