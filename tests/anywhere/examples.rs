//! Documents show commands with files of `examples/`, and the output. The program prints exactly this output.

use std::{fs, path::Path};

use tempfile::TempDir;

use crate::cli::{binary, ended};

const PAGES: [&str; 3] = ["README.md", "docs/start.md", "examples/README.md"];

/// The commands in a page that read files of `examples/`. Each command has the output that the page shows below it.
fn shown(page: &str) -> Vec<(Vec<&str>, Vec<&str>)> {
    let mut commands: Vec<(Vec<&str>, Vec<&str>)> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            line if inside && line.starts_with("$ portreeve ") => {
                commands.push((line.split_whitespace().skip(2).collect(), Vec::new()));
            }
            line if inside => commands.last_mut().into_iter().for_each(|(_, lines)| lines.push(line)),
            _ => {}
        }
        if !inside {
            commands.push((Vec::new(), Vec::new()));
        }
    }
    commands.retain(|(words, _)| words.iter().any(|word| word.starts_with("examples/")));
    commands
}

/// A line `...` stands for any number of lines.
fn has(output: &str, lines: &[&str]) -> bool {
    let parts: Vec<String> = lines.split(|line| *line == "...").map(|part| part.join("\n")).collect();
    let mut rest = output.trim_end();
    for (index, part) in parts.iter().enumerate() {
        let Some(at) = rest.find(part.as_str()) else { return false };
        if index == 0 && at > 0 {
            return false;
        }
        rest = &rest[at + part.len()..];
    }
    rest.is_empty() || lines.last() == Some(&"...")
}

#[test]
fn every_output_of_an_example_is_what_the_program_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for page in PAGES {
        let text = fs::read_to_string(root.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        let commands = shown(&text);
        assert!(!commands.is_empty(), "{page} shows no example");
        for (words, lines) in commands {
            let (_, output, errors) = ended(binary().args(&words).current_dir(root));
            assert!(has(&output, &lines), "{page}: {words:?} prints\n{output}{errors}");
        }
    }
}

#[test]
fn output_that_differs_is_caught() {
    assert!(has("a\nb\nc\n", &["a", "b", "c"]));
    assert!(has("a\nb\nc\nd", &["a", "...", "c", "..."]));
    assert!(!has("a\nb", &["b"]));
    assert!(!has("a\nb", &["a"]));
    assert!(!has("a\nb\nc", &["a", "...", "x", "..."]));
}

#[test]
fn the_scan_of_the_examples_was_made_of_their_cluster() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let scan = fs::read_to_string(root.join("examples/node-1.json")).expect("examples/node-1.json");
    assert!(scan.contains("\"origin\": \"examples/cluster.yaml\""));
    let (code, output, _) = ended(binary().args(["lint", "examples/cluster.yaml"]).current_dir(root));
    assert_eq!(code, 0, "{output}");
}

#[test]
fn the_objects_of_the_examples_are_a_whole_cluster() {
    let host = TempDir::new().expect("a directory");
    let mut command = binary();
    command.args(["check", "--services", "examples/cluster.yaml", "--node", "node-1", "--host-root"]).arg(host.path());
    let (_, output, errors) = ended(command.current_dir(env!("CARGO_MANIFEST_DIR")));
    assert!(output.starts_with("node-1: "), "{output}{errors}");
    assert!(!errors.contains("Services") && !errors.contains("cluster.yaml"), "{errors}");
}
