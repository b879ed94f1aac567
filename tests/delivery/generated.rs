//! What is made of the chart is what is committed. `make chart` writes it anew.

use std::{env, fs, path::PathBuf};

use crate::{helm, readme};

const MANIFEST: &str = "deploy/install.yaml";
const README: &str = "deploy/chart/README.md";

const HEAD: &str = "\
# Portreeve with the minimal profile, for `kubectl apply -f`. Made from deploy/chart by `make chart`.
# The image has to be put where your nodes find it: see deploy/chart/README.md.
";

/// Between these the README is made.
const MARKS: [&str; 2] = ["<!-- values.yaml, by `make chart` -->\n", "<!-- end -->\n"];

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[track_caller]
fn compare(name: &str, wanted: &str) {
    if env::var_os("UPDATE").is_some() {
        fs::write(path(name), wanted).expect("the file can be written");
    }
    assert!(text(name) == wanted, "{name} is old: run `make chart`");
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
