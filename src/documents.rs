//! Writes the generated documents below `docs/` from texts in the program. `make docs` writes them again.

use std::{
    cmp::Reverse,
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use clap::{Arg, Command};

use super::{
    command_line::{Cli, command},
    kubectl,
};
use portreeve_agent::metrics::metrics_page;
use portreeve_report::{findings_schema, lint_schema, owner_schema, ports_schema, rule_page_markdown};
use portreeve_rules::ids::{IDS, Id, find};

/// Other flags that two verbs explain in the same words.
const OF_TWO_VERBS: [&str; 4] = ["settings", "min_severity", "exit_zero", "no_headers"];
/// The pages below `docs/symptoms`, in the order of README.md.
const SYMPTOMS: [&str; 4] = ["refused", "address-in-use", "already-allocated", "time-outs"];

fn generated_documents() -> Vec<(String, String)> {
    let mut documents = vec![
        ("cli.md".to_owned(), command_reference()),
        ("metrics.md".to_owned(), metrics_page()),
        ("rules/README.md".to_owned(), rules_index()),
        ("schema/findings.schema.json".to_owned(), format!("{:#}\n", findings_schema().to_value())),
        ("schema/lint.schema.json".to_owned(), format!("{:#}\n", lint_schema().to_value())),
        ("schema/owner.schema.json".to_owned(), format!("{:#}\n", owner_schema().to_value())),
        ("schema/ports.schema.json".to_owned(), format!("{:#}\n", ports_schema().to_value())),
    ];
    documents.extend(IDS.iter().map(|id| (format!("rules/{}.md", id.name), rule_page_markdown(id))));
    documents
}

fn command_reference() -> String {
    let mut text = String::from(
        "# Commands\n\n`portreeve VERB` reports about this node, or with `--snapshot FILE` about the node in the file. \
         `kubectl portreeve VERB` and `portreeve --agents VERB` report about all nodes that have an agent. The help of \
         each verb also has examples.\n",
    );
    let built = |command: Command| {
        let mut command = command.term_width(100);
        command.build();
        command
    };
    let [node, nodes] = [command::<Cli>("portreeve"), command::<kubectl::Cli>("kubectl portreeve")].map(built);
    let verbs = |command: &Command| -> Vec<Command> {
        let shown = |it: &&Command| it.get_name() != "help";
        command.get_subcommands().filter(shown).cloned().collect()
    };
    // `portreeve` and `kubectl portreeve` have the same verbs. The page lists each verb once.
    let nodes_alone = nodes.clone().mut_subcommands(|verb| verb.hide(true));
    for command in [&node, &nodes_alone] {
        text.push_str(&help(command.clone(), &[]));
    }
    // If several verbs explain a flag in the same words, the page lists the flag once for all these verbs.
    let shared = [
        ("Flags of a scan of this node", "suggest", &node),
        ("Flags that reach the agents", "suggest", &nodes),
        ("Flag of check and what-if", "what-if", &node),
        ("Flags of check and lint", "check", &node),
    ];
    let mut explained: Vec<Arg> = node.get_arguments().chain(nodes.get_arguments()).cloned().collect();
    for (title, verb, command) in shared {
        let verb = command.find_subcommand(verb).expect("the verb");
        let is_shared = |arg: &Arg| {
            matches!(arg.get_help_heading(), Some("Sources" | "Cluster" | "Agents"))
                || OF_TWO_VERBS.contains(&arg.get_id().as_str())
        };
        let is_new = |arg: &&Arg| is_shared(arg) && !is_known(arg, &explained);
        let flags: Vec<Arg> = verb.get_arguments().filter(is_new).cloned().collect();
        let page = built(Command::new("shared").disable_help_flag(true).help_template("{options}").args(&flags));
        text.push_str(&fenced(title, page));
        explained.extend(flags);
    }
    for (of_node, of_nodes) in verbs(&node).into_iter().zip(verbs(&nodes)) {
        let first = help(of_node, &explained);
        let second = help(of_nodes, &explained);
        // If a verb has the same flags in both programs, the page lists the flags once.
        let flags =
            |page: &str| page.split_once("Usage: ").and_then(|(_, page)| Some(page.split_once('\n')?.1.to_owned()));
        text.push_str(&first);
        if flags(&first) != flags(&second) {
            text.push_str(&second);
        }
    }
    text
}

/// The help of a program, or of a verb without its examples and without the explained flags.
fn help(command: Command, explained: &[Arg]) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    if explained.is_empty() {
        return fenced(&name, command);
    }
    let is_hidden = |arg: &Arg| is_known(arg, explained) || arg.get_id() == "help";
    let command = command.mut_args(|arg| if is_hidden(&arg) { arg.hide(true) } else { arg });
    fenced(&name, command.before_help(None::<&'static str>))
}

/// Whether the page already explains a flag in the same words.
fn is_known(arg: &Arg, explained: &[Arg]) -> bool {
    let help = |arg: &Arg| arg.get_help().map(ToString::to_string);
    explained.iter().any(|it| it.get_id() == arg.get_id() && help(it) == help(arg))
}

/// A section with the help of a command, without the spaces that clap writes at line ends.
fn fenced(title: &str, mut command: Command) -> String {
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    format!("\n## {title}\n\n```text\n{}\n```\n", help.join("\n").trim())
}

fn rules_index() -> String {
    let page = |name: &str| fs::read_to_string(docs().join(format!("symptoms/{name}.md"))).expect("a page");
    let symptoms = SYMPTOMS.map(|name| (name, page(name)));
    let row = |id: &&Id| {
        let leads_here = |page: &str| page.contains(&format!("](../rules/{}.md)", id.name));
        let symptoms = symptoms.iter().filter(|(_, page)| leads_here(page));
        let symptoms: Vec<String> = symptoms.map(|(name, _)| format!("[{name}](../symptoms/{name}.md)")).collect();
        let symptoms = if symptoms.is_empty() { "–".to_owned() } else { symptoms.join(", ") };
        let variants: Vec<String> = id.variants.iter().map(|variant| format!("`{}`", variant.name)).collect();
        format!(
            "| [{0}]({0}.md) | {1} | {2} | {3} | {4} |\n",
            id.name,
            id.ceiling(),
            symptoms,
            id.title,
            variants.join(", ")
        )
    };
    let mut ids = IDS.to_vec();
    ids.sort_by_key(|id| Reverse(id.ceiling()));
    let rows: String = ids.iter().map(row).collect();
    format!(
        "# Rules\n\nA finding has an id and a variant, for example `node-port-claimed-twice/lost`. [`lint`](../lint.md) uses the same ids \
         for conflicts that manifests would cause. On the page of a rule, the column *decided by* names the part of the system \
         that decides between two claims. *Supply* means that ports or file descriptors run out, or that a \
         range of automatic ports contains a needed port. *State* means a wrong state without a conflict.\n\n| rule | worst | symptom | finds | variants |\n|---|---|---|---|---|\n{rows}"
    )
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")
}

#[test]
fn the_generated_documents_are_up_to_date() {
    let update = std::env::var_os("UPDATE").is_some();
    let mut old = Vec::new();
    for (name, wanted) in generated_documents() {
        let path = docs().join(&name);
        if update {
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(&path, &wanted).expect("a document");
        }
        if !fs::read_to_string(&path).is_ok_and(|found| found == wanted) {
            old.push(format!("docs/{name}"));
        }
    }
    assert!(old.is_empty(), "`make docs` writes anew: {}", old.join(", "));
}

#[test]
fn the_index_of_the_rules_begins_with_the_worst_and_has_a_symptom_of_each_rule_for_a_cluster() {
    let index = rules_index();
    let rows: Vec<(&Id, &str)> = index
        .lines()
        .filter_map(|row| row.strip_prefix("| [")?.split_once("]("))
        .map(|(name, rest)| (find(name).expect("an id"), rest))
        .collect();
    assert!(rows.len() == IDS.len() && rows.is_sorted_by_key(|(id, _)| Reverse(id.ceiling())), "{index}");
    let without = rows.iter().filter(|(_, row)| !row.contains("](../symptoms/"));
    assert_eq!(without.map(|(id, _)| id.name.0).collect::<Vec<_>>(), ["port-field-refused"]);
    let read: BTreeSet<PathBuf> = SYMPTOMS.map(|name| docs().join(format!("symptoms/{name}.md"))).into();
    let there = fs::read_dir(docs().join("symptoms")).expect("pages").map(|entry| entry.expect("a page").path());
    assert_eq!(there.collect::<BTreeSet<_>>(), read, "the index reads every page of a symptom");
}

#[test]
fn a_flag_of_two_verbs_is_explained_once_in_a_part_that_names_both() {
    let page = command_reference();
    for (title, flags) in [
        ("Flag of check and what-if", &["--set <KEY=VALUE>"][..]),
        ("Flags of check and lint", &["--min-severity <SEVERITY>", "--exit-zero", "--no-headers"]),
    ] {
        let (_, part) = page.split_once(&format!("\n## {title}\n")).expect("the part");
        let part = part.split("\n## ").next().expect("a part");
        let found: Vec<&str> = part.lines().map(str::trim_start).filter(|line| line.starts_with("--")).collect();
        assert_eq!(found, flags, "{part}");
    }
    for words in ["Keys: ip_local_port_range,", "Do not exit with 1 for findings", "does not read sources that only"] {
        assert_eq!(page.matches(words).count(), 1, "{words}");
    }
    let (_, lint) = page.split_once("\n## portreeve lint\n").expect("the verb");
    assert!(lint.contains("Run only this rule") && !lint.contains("does not read sources that only"), "{lint}");
}

#[test]
fn no_page_is_left_of_a_rule_that_is_gone() {
    let wanted: BTreeSet<PathBuf> = generated_documents().into_iter().map(|(name, _)| docs().join(name)).collect();
    for entry in fs::read_dir(docs().join("rules")).expect("pages") {
        let page = entry.expect("a page").path();
        assert!(wanted.contains(&page), "no rule has the page {}", page.display());
    }
}
