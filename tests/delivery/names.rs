//! All delivered files must name the same repository and the same registry. `deploy/names` has both.

use std::{collections::BTreeSet, fs};

use serde_json::Value;

use crate::text;

pub(crate) fn name(which: &str) -> String {
    let names = text("deploy/names");
    let found = names.lines().find_map(|line| line.strip_prefix(which)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("deploy/names has no {which}")).to_owned()
}

fn addresses(text: &str) -> impl Iterator<Item = &str> {
    let ends = |it: char| it.is_whitespace() || matches!(it, ')' | '"' | '`' | '>');
    text.match_indices("://").map(move |(at, _)| {
        let begin = text[..at].rfind(|it: char| !it.is_ascii_alphabetic()).map_or(0, |before| before + 1);
        text[begin..].split(ends).next().expect("an address")
    })
}

#[test]
fn the_chart_leads_to_the_repository_and_the_registry_from_wherever_it_is_read() {
    let (repository, registry) = (name("REPOSITORY"), name("REGISTRY"));
    let ours = [format!("{repository}/"), repository.clone(), format!("oci://{registry}/charts/portreeve")];
    for file in ["deploy/chart/Chart.yaml", "deploy/chart/README.md"] {
        let text = text(file);
        let strange: BTreeSet<&str> = addresses(&text)
            .filter(|it| !it.starts_with(&ours[0]) && *it != ours[1] && *it != ours[2])
            .filter(|it| !["https://www.apache.org/", "https://..."].iter().any(|other| it.starts_with(other)))
            .collect();
        assert_eq!(strange, BTreeSet::new(), "{file}: deploy/names has other names");
        // A relative link would lead nowhere, because the package has only this file.
        let relative: Vec<&str> =
            text.split("](").skip(1).filter(|it| !it.starts_with("https://") && !it.starts_with('#')).collect();
        assert_eq!(relative, Vec::<&str>::new(), "{file}: a link to a file that the package does not have");
        for path in addresses(&text).filter_map(|it| it.strip_prefix(&format!("{repository}/blob/main/"))) {
            let path = path.split('#').next().expect("a path");
            assert!(fs::exists(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).expect("a tree"), "{file}: no {path}");
        }
    }
}

/// A line of the documents. A release removes this line.
pub(crate) const UNPUBLISHED: &str = "No release is published yet";

#[test]
fn the_documents_tell_how_to_install_a_release_and_that_there_is_none_until_the_names_are_real() {
    let (repository, registry) = (name("REPOSITORY"), name("REGISTRY"));
    let install = text("docs/install.md");
    let chart = format!("oci://{registry}/charts/portreeve");
    assert!(install.contains(&format!("]({repository}/releases)")), "docs/install.md names the page of releases");
    let charts: BTreeSet<&str> = addresses(&install).filter(|it| it.starts_with("oci:")).collect();
    assert_eq!(charts, BTreeSet::from([&*chart]), "docs/install.md: deploy/names has another registry");

    let expected = if text("deploy/names").contains(".example") { vec![format!("{UNPUBLISHED}.")] } else { Vec::new() };
    for document in ["README.md", "docs/install.md", "deploy/chart/README.md"] {
        let text = text(document);
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(UNPUBLISHED)).collect();
        assert_eq!(lines, expected, "{document}: the sentence has a line of its own until deploy/names has real names");
    }
}

#[test]
fn the_maintainers_are_named_in_one_place_and_asked_about_every_file() {
    let maintainers = name("MAINTAINERS");
    let owners = text(".github/CODEOWNERS");
    let rows: Vec<Vec<&str>> = owners
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0], ["*", &maintainers]);
    assert!(rows.iter().all(|row| row[1..] == [&*maintainers]), "deploy/names has another name: {rows:?}");
    let governance = text("GOVERNANCE.md");
    let listed = governance.split("\n## Maintainers\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let is_unnamed = listed.expect("the list").contains("No maintainer is named yet.");
    assert_eq!(is_unnamed, maintainers.contains(".example"), "GOVERNANCE.md lists the accounts with the name");
}

#[test]
fn the_chart_says_what_artifact_hub_shows() {
    let (repository, registry) = (name("REPOSITORY"), name("REGISTRY"));
    let chart: Value = serde_saphyr::from_str(&text("deploy/chart/Chart.yaml")).expect("YAML");
    assert_eq!((&chart["home"], &chart["sources"][0]), (&Value::from(repository.clone()), &Value::from(repository)));
    for key in ["icon", "maintainers", "keywords", "description", "kubeVersion"] {
        assert!(!chart[key].is_null(), "no {key}");
    }
    let annotation = |name: &str| -> Value {
        let text =
            chart["annotations"][format!("artifacthub.io/{name}")].as_str().unwrap_or_else(|| panic!("no {name}"));
        serde_saphyr::from_str(text).expect("YAML")
    };
    assert_eq!(annotation("images")[0]["image"], format!("{registry}:{}", env!("CARGO_PKG_VERSION")));
    assert_eq!(annotation("license"), "Apache-2.0");
    let kinds = ["added", "changed", "deprecated", "removed", "fixed", "security"];
    let changes = annotation("changes");
    for change in changes.as_array().expect("changes") {
        assert!(kinds.iter().any(|kind| change["kind"] == *kind), "{change}");
        assert!(
            change["description"].as_str().is_some_and(|it| !it.contains("](")),
            "{change}: Markdown is not rendered"
        );
    }
    assert!(annotation("links").as_array().is_some_and(|links| links.len() > 2));
}
