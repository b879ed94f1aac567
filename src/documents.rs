//! What the program writes about itself is what is committed below `docs/`. `make docs` writes it anew.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use clap::Command;

use super::{
    command_line::{Cli, Name, command},
    kubectl,
};
use portreeve_agent::metrics::metrics_page;
use portreeve_report::{findings_schema, lint_schema, owner_schema, ports_schema, rule_page_markdown};
use portreeve_rules::ids::{IDS, Id};

/// Every generated document: its path below `docs/`, and its text.
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

/// Every command and flag, in Markdown.
fn command_reference() -> String {
    let mut text = String::from("# Commands\n");
    for command in [command::<Cli>(Name::Portreeve), command::<kubectl::Cli>(Name::Plugin)] {
        let mut command = command.term_width(100);
        command.build();
        describe(&mut command, &mut text);
    }
    text
}

fn describe(command: &mut Command, text: &mut String) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    // What a terminal shows, without the blanks that clap leaves at line ends.
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    text.push_str(&format!("\n## {name}\n\n```text\n{}\n```\n", help.join("\n").trim_end()));
    for subcommand in command.get_subcommands_mut().filter(|it| !it.is_hide_set() && it.get_name() != "help") {
        describe(subcommand, text);
    }
}

fn rules_index() -> String {
    let row = |id: &&Id| {
        let variants: Vec<String> = id.variants.iter().map(|variant| format!("`{}`", variant.name)).collect();
        format!("| [{0}]({0}.md) | {1} | {2} | {3} |\n", id.name, id.ceiling(), id.title, variants.join(", "))
    };
    let rows: String = IDS.iter().map(row).collect();
    format!(
        "# Rules\n\nA finding has an id and a variant: `node-port-claimed-twice/lost`. [`lint`](../lint.md) has the same ids, for what \
         manifests would make.\n\n| rule | worst | finds | variants |\n|---|---|---|---|\n{rows}"
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
        // A page that is not there yet is old too.
        if !fs::read_to_string(&path).is_ok_and(|found| found == wanted) {
            old.push(format!("docs/{name}"));
        }
    }
    assert!(old.is_empty(), "`make docs` writes anew: {}", old.join(", "));
}

#[test]
fn no_page_is_left_of_a_rule_that_is_gone() {
    let wanted: BTreeSet<PathBuf> = generated_documents().into_iter().map(|(name, _)| docs().join(name)).collect();
    for entry in fs::read_dir(docs().join("rules")).expect("pages") {
        let page = entry.expect("a page").path();
        assert!(wanted.contains(&page), "{} is of no rule", page.display());
    }
}
