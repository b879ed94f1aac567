//! Shell completion for kubectl: prints one completion on each line, and on the last line a directive for the shell.
//!
//! kubectl runs `kubectl_complete-portreeve` with the typed words. The last word may be unfinished
//! (k8s.io/kubectl/pkg/cmd/plugin_completion.go). The output has the format that cobra prints for shells.

use std::{ffi::OsString, process::ExitCode, time::Duration};

use clap::{Arg, Command, FromArgMatches as _, ValueHint};
use tokio::time::timeout;

use super::agents::{AgentFlags, runtime};
use crate::console::Console;
use portreeve_facts::text;
use portreeve_report::KEYS;
use portreeve_rules::ids::IDS;

/// The directive to complete file names (cobra `ShellCompDirectiveDefault`).
const FILES: u8 = 0;
/// The directive to complete no file names (cobra `ShellCompDirectiveNoFileComp`).
const NO_FILES: u8 = 4;
/// The directive to complete no file names, and to add no space after the unfinished word.
const GOES_ON: u8 = 6;
/// The time limit for the list of nodes, after the user pressed Tab.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) fn complete(mut command: Command, typed: &[String], console: &Console) -> anyhow::Result<ExitCode> {
    command.build();
    let (unfinished, words) = typed.split_last().map_or(("", &[][..]), |(last, words)| (last.as_str(), words));
    let (candidates, directive) = candidates(&command, words, unfinished);
    console.write(|out| {
        for (word, about) in candidates.iter().filter(|(word, _)| word.starts_with(unfinished)) {
            let about = about.lines().next().unwrap_or_default();
            writeln!(out, "{}", format!("{word}\t{about}").trim_end())?;
        }
        writeln!(out, ":{directive}")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The completions of the unfinished word, each with its help, and the directive.
fn candidates(program: &Command, words: &[String], unfinished: &str) -> (Vec<(String, String)>, u8) {
    let (mut command, mut places, mut value_of) = (program, 0, None);
    for word in words {
        if value_of.take().is_some() {
            continue;
        }
        if word.starts_with('-') {
            value_of = flag(command, word);
        } else if let Some(inner) = command.find_subcommand(word) {
            (command, places) = (inner, 0);
        } else {
            places += 1;
        }
    }
    match value_of {
        None if unfinished.starts_with('-') => (flags(command), NO_FILES),
        None if command.has_subcommands() && places == 0 => (commands(command), NO_FILES),
        value_of => match value_of.or_else(|| command.get_positionals().nth(places)) {
            Some(arg) => values(arg, program, words),
            None => (Vec::new(), NO_FILES),
        },
    }
}

/// The flag in this word, if the flag's value is the next word.
fn flag<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let named = |arg: &&Arg| match word.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => arg.get_short().is_some_and(|short| word.strip_prefix('-') == Some(short.encode_utf8(&mut [0; 4]))),
    };
    command.get_arguments().find(named).filter(|arg| arg.get_action().takes_values())
}

fn commands(command: &Command) -> Vec<(String, String)> {
    let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
    shown.map(|it| (it.get_name().to_owned(), about(it.get_about()))).collect()
}

fn flags(command: &Command) -> Vec<(String, String)> {
    let shown = command.get_arguments().filter(|it| !it.is_hide_set());
    shown.filter_map(|it| Some((format!("--{}", it.get_long()?), about(it.get_help())))).collect()
}

fn about(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}

/// The possible values of an argument, and the directive.
fn values(arg: &Arg, command: &Command, words: &[String]) -> (Vec<(String, String)>, u8) {
    let possible = arg.get_possible_values();
    let listed = possible.iter().map(|it| (it.get_name().to_owned(), about(it.get_help())));
    match arg.get_id().as_str() {
        "node" => (nodes(command, words), NO_FILES),
        "id" => (IDS.iter().map(|id| (id.name.0.to_owned(), id.title.to_owned())).collect(), NO_FILES),
        "settings" => (KEYS.iter().map(|key| (format!("{key}="), String::new())).collect(), GOES_ON),
        _ if arg.get_value_hint() == ValueHint::AnyPath => (Vec::new(), FILES),
        _ => (listed.collect(), NO_FILES),
    }
}

/// The nodes that have an agent. If the cluster does not answer, the list is empty, and no error is printed.
fn nodes(command: &Command, words: &[String]) -> Vec<(String, String)> {
    // A flag as the last word is left out, because the parser refuses a flag without a value.
    let words = words.split_last().filter(|(last, _)| last.starts_with('-')).map_or(words, |(_, words)| words);
    let line = [command.get_name().to_owned()].into_iter().chain(words.iter().cloned()).map(OsString::from);
    let Ok(mut matches) = command.clone().ignore_errors(true).try_get_matches_from(line) else { return Vec::new() };
    let Some((_, mut inner)) = matches.remove_subcommand() else { return Vec::new() };
    let listed = AgentFlags::from_arg_matches_mut(&mut inner).map_err(anyhow::Error::from).and_then(|agent_flags| {
        runtime()?.block_on(async {
            let listed = async { agent_flags.list(&agent_flags.connect().await?, &[]).await };
            timeout(PATIENCE, listed).await?
        })
    });
    let mut names: Vec<String> = listed.unwrap_or_default().into_iter().map(|agent| agent.node).collect();
    names.retain(|name| !name.is_empty());
    names.dedup();
    names.into_iter().map(|name| (text::clean(&name, text::NAME), String::new())).collect()
}
