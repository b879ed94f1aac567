//! Hostile inputs. For each input: the expected exit code and first line. No output may contain characters that change
//! the direction of text, hide text or imitate other text.

mod arguments;
mod configurations;
mod lint;
mod manifests;
mod snapshots;

use std::fs;

use portreeve_facts::text::is_invisible;
use tempfile::TempDir;

use crate::{bad_input::within_seconds, cli::binary};

struct Case {
    name: String,
    /// `FILE` stands for the path of a file that has the `content`.
    arguments: Vec<String>,
    content: Vec<u8>,
    code: i32,
    /// Words that the first line of standard error must contain.
    says: String,
}

impl Case {
    fn new(name: String, arguments: &[&str], content: impl Into<Vec<u8>>, code: i32, says: &str) -> Self {
        let arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
        Self { name, arguments, content: content.into(), code, says: says.to_owned() }
    }

    fn complaint(&self, directory: &TempDir) -> Option<String> {
        let path = directory.path().join("input");
        fs::write(&path, &self.content).expect("a file");
        let file = path.to_str().expect("UTF-8");
        let words = self.arguments.iter().map(|word| word.replace("FILE", file));
        let (code, stdout, stderr) = within_seconds(binary().args(words), 20);
        let first = stderr.lines().next().unwrap_or_default();
        let strange = [&stdout, &stderr].into_iter().flat_map(|text| text.chars());
        let strange = strange.filter(|it| *it != '\n').find(|it| is_invisible(*it));
        let right = code == self.code && first.contains(&self.says) && strange.is_none();
        let right = right && (self.says.is_empty() || first.starts_with("error: "));
        (!right || stderr.contains("panicked")).then(|| {
            let Self { name, code: wanted, says, .. } = self;
            format!("{name}: {code} for {wanted}, {strange:?}, wanted {says:?} in {first:?}")
        })
    }
}

/// Names that the API server refuses.
const NAMES: [&str; 16] = [
    "--all",
    "-f",
    "--kubeconfig=x",
    "-",
    "a b",
    "Web",
    "a_b",
    "web.",
    ".web",
    "a/b",
    "$(reboot)",
    "a;b",
    "a\\u202eb",
    "a\\u200bb",
    "a\\u0000b",
    "\\u3164",
];
/// Texts that are not durations, and durations that the program refuses.
const DURATIONS: [&str; 14] = [
    "0s",
    "-1s",
    "1",
    "soon",
    "1h1ns",
    "61m",
    "1000h",
    "1y",
    "1ns",
    "999us",
    "9223372036854775807s",
    "99999999999999999999s",
    "1e3s",
    "\u{202e}1s",
];
/// Texts that are not ranges of ports.
const RANGES: [&str; 14] = [
    "2-1",
    "65536",
    "1-65536",
    "-1",
    "1-",
    "-",
    "a-b",
    "1-2-3",
    "1+70000",
    "0x10-0x20",
    "1.5-2",
    "1--2",
    "99999999999-1",
    "1\u{200b}-2",
];

#[test]
fn every_hostile_input_ends_as_it_should_with_one_clean_line() {
    let directory = TempDir::new().expect("a directory");
    let cases: Vec<Case> =
        [manifests::cases(), snapshots::cases(), arguments::cases(), configurations::cases(), lint::cases()]
            .into_iter()
            .flatten()
            .collect();
    let complaints: Vec<String> = cases.iter().filter_map(|case| case.complaint(&directory)).collect();
    assert!(complaints.is_empty(), "{} of {}:\n{}", complaints.len(), cases.len(), complaints.join("\n"));
}
