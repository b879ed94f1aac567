//! Makes the table in the chart's README.md. The text comes from the comments in the chart's values.yaml.

use std::fmt::Write;

use serde_json::Value;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Documented {
    pub(crate) path: String,
    /// The default as compact JSON.
    pub(crate) default: String,
    /// The meaning as Markdown in one line.
    pub(crate) meaning: String,
}

pub(crate) fn values(text: &str) -> Vec<Documented> {
    let defaults: Value = serde_saphyr::from_str(text).expect("values.yaml is YAML");
    let mut found = Vec::new();
    let mut parents: Vec<(usize, &str)> = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    for line in text.lines() {
        let words = line.trim_start();
        if let Some(said) = words.strip_prefix('#') {
            comment.push(said.trim());
            continue;
        }
        if let Some((key, _)) = words.split_once(':').filter(|_| !words.starts_with('-')) {
            let indent = line.len() - words.len();
            parents.retain(|(depth, _)| *depth < indent);
            parents.push((indent, key));
            if !comment.is_empty() {
                let keys: Vec<&str> = parents.iter().map(|(_, key)| *key).collect();
                let default = keys.iter().fold(&defaults, |value, key| &value[key]).to_string();
                found.push(Documented { path: keys.join("."), default, meaning: one_line(&comment) });
            }
        }
        comment.clear();
    }
    found
}

/// The values without documentation: the value has no comment, and no parent of the value has a comment.
pub(crate) fn silent(text: &str) -> Vec<String> {
    let defaults: Value = serde_saphyr::from_str(text).expect("values.yaml is YAML");
    let explained: Vec<String> = values(text).into_iter().map(|value| value.path).collect();
    let mut silent = Vec::new();
    let mut rest = vec![(String::new(), &defaults)];
    while let Some((path, value)) = rest.pop() {
        if explained.contains(&path) {
            continue;
        }
        match value.as_object() {
            Some(parts) if !parts.is_empty() => {
                let prefix = if path.is_empty() { path } else { path + "." };
                rest.extend(parts.iter().map(|(key, part)| (format!("{prefix}{key}"), part)));
            }
            _ => silent.push(path),
        }
    }
    silent
}

pub(crate) fn table(values: &[Documented]) -> String {
    let mut table = String::from("| value | default | meaning |\n|---|---|---|\n");
    for Documented { path, default, meaning } in values {
        writeln!(table, "| `{path}` | `{default}` | {meaning} |").expect("a String takes everything");
    }
    table
}

fn one_line(comment: &[&str]) -> String {
    let words: Vec<&str> = comment.iter().flat_map(|line| line.split_whitespace()).collect();
    words.join(" ").replace('|', "\\|")
}

const SMALL: &str = "# Says what is here.\n\n# Its\n#\n# place.\na:\n  b: 1\nc:\n  # A | B\n  d: [1, x]\n  e: {}\n";

#[test]
fn a_comment_directly_above_a_value_is_its_documentation() {
    let documented = |path: &str, default: &str, meaning: &str| Documented {
        path: path.to_owned(),
        default: default.to_owned(),
        meaning: meaning.to_owned(),
    };
    let wanted = [documented("a", r#"{"b":1}"#, "Its place."), documented("c.d", r#"[1,"x"]"#, "A \\| B")];
    assert_eq!(values(SMALL), wanted);
}

#[test]
fn a_value_without_a_word_is_found() {
    assert_eq!(silent(SMALL), ["c.e"]);
}
