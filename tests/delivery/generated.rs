//! Some files in the repository are generated from the chart. The tests compare these files with the chart's output.
//! `make chart` writes the files again.

use std::{collections::BTreeSet, env, fs, path::PathBuf};

use crate::{config, helm, readme, text};

const MANIFEST: &str = "deploy/install.yaml";
const README: &str = "deploy/chart/README.md";

const HEAD: &str = "\
# Portreeve with the minimal profile, for `kubectl apply -f`. `make chart` makes this file from deploy/chart.
# The image is the image of deploy/names. If your nodes pull from another registry, change the image's name below.
";

/// The chart has copies instead of symbolic links, because Flux and Windows lose links.
const COPIES: [(&str, &str); 7] = [
    ("dashboards", "files/agent.json"),
    ("dashboards", "files/fleet.json"),
    ("dashboards", "files/incident.json"),
    ("dashboards", "files/node.json"),
    ("dashboards", "files/alerts.yaml"),
    ("dashboards", "files/alerts-without-agent.yaml"),
    ("deploy/policies", "policies/policies.yaml"),
];
const SCHEMA: &str = "deploy/chart/values.schema.json";

const CHART: &str = "deploy/chart/Chart.yaml";

const MARKS: [&str; 2] = ["<!-- values.yaml, by `make chart` -->\n", "<!-- end -->\n"];

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

#[track_caller]
fn compare(name: &str, wanted: &str) {
    if env::var_os("UPDATE").is_some() {
        fs::write(path(name), wanted).expect("the file can be written");
    }
    assert!(text(name) == wanted, "{name} is old: run `make chart`");
}

#[test]
fn the_chart_has_the_files_themselves_and_no_others() {
    for (folder, copy) in COPIES {
        let name = copy.rsplit('/').next().expect("a name");
        compare(&format!("deploy/chart/{copy}"), &text(&format!("{folder}/{name}")));
    }
    let copies: BTreeSet<PathBuf> = COPIES.iter().map(|(_, copy)| path("deploy/chart").join(copy)).collect();
    for folder in [".", "files", "policies", "templates"] {
        for entry in fs::read_dir(path("deploy/chart").join(folder)).expect("a folder of the chart") {
            let entry = entry.expect("an entry");
            let is_made = ["files", "policies"].contains(&folder);
            let is_link = entry.file_type().expect("a type").is_symlink();
            assert!(!is_link && (!is_made || copies.contains(&entry.path())), "{}", entry.path().display());
        }
    }
}

#[test]
fn the_schema_has_every_key_of_the_agents_configuration() {
    let schema = text(SCHEMA);
    let (before, rest) = schema.split_once("\n    \"config\": ").expect("the key");
    let (_, after) = rest.split_once("\n    },\n").expect("its end");
    let made = format!("{:#}", config::schema()).replace('\n', "\n    ");
    compare(SCHEMA, &format!("{before}\n    \"config\": {made},\n{after}"));
}

/// The sentences in the newest part of the changelog, in the form for Artifact Hub.
fn changes(changelog: &str) -> String {
    let newest = changelog.split("\n## ").nth(1).expect("a version");
    let mut kind = String::new();
    let mut changes = String::new();
    for line in newest.lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            kind = heading.to_lowercase();
        } else if let Some(sentence) = line.strip_prefix("- ") {
            assert!(line.chars().count() <= 120, "an entry of CHANGELOG.md has at most 120 characters: {line}");
            changes += &format!("    - kind: {kind}\n      description: {sentence:?}\n");
        } else {
            // A further line of an entry would be lost.
            assert!(!line.starts_with(' '), "each entry of CHANGELOG.md is one line: {line}");
        }
    }
    changes
}

#[test]
fn the_chart_has_the_newest_changes() {
    let chart = text(CHART);
    let key = "\n  artifacthub.io/changes: |\n";
    let (before, rest) = chart.split_once(key).expect("the key");
    let after = rest.find("\n  artifacthub.io/").map_or("", |end| &rest[end + 1..]);
    let wanted = changes(&text("CHANGELOG.md"));
    assert!(wanted.lines().count() > 2, "{wanted}");
    compare(CHART, &[before, key, &wanted, after].concat());
}

#[test]
fn the_manifest_is_what_helm_makes_of_the_chart() {
    compare(MANIFEST, &(HEAD.to_owned() + &helm::render(&["namespace.create=true"])));
}

#[test]
fn the_readme_has_every_value_as_values_yaml_tells_it() {
    let readme = text(README);
    let (before, rest) = readme.split_once(MARKS[0]).expect("a beginning of the table");
    let (_, after) = rest.split_once(MARKS[1]).expect("an end of the table");
    let table = readme::table(&readme::values(&text("deploy/chart/values.yaml")));
    compare(README, &[before, MARKS[0], "\n", &table, "\n", MARKS[1], after].concat());
}

#[test]
fn every_value_is_explained() {
    assert_eq!(readme::silent(&text("deploy/chart/values.yaml")), Vec::<String>::new());
}
