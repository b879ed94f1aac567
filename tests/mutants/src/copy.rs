//! The copy of the tree in which every condition can be inverted, and its test programs.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use crate::conditions::{Condition, conditions};

/// What inverts a condition of the copy.
const SWITCH: &str = include_str!("switch.rs");

/// The rooms of `src` that decide what is wrong.
const ROOMS: [&str; 2] = ["dataplane", "rules"];

/// Names of files and folders in them that are compiled for tests only.
const FOR_TESTS: [&str; 3] = ["expectations.rs", "tests.rs", "tests"];

/// A condition of a rule or a data plane, with its number in the copy.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// Its number, from 1.
    pub number: usize,
    /// Its file below `src`.
    pub file: String,
    /// Where it is there.
    pub condition: Condition,
    /// Its text, on one line.
    pub text: String,
}

impl Mutant {
    /// Whether it says who answers: packets can show that it is wrong.
    pub fn is_of_data_plane(&self) -> bool {
        self.file.starts_with("dataplane/")
    }
}

/// Copies the tree and gives each condition of the rules and data planes its switch.
///
/// # Errors
/// When a file cannot be read or written, or is no Rust.
pub fn make(root: &Path, copy: &Path) -> io::Result<Vec<Mutant>> {
    let listed =
        Command::new("git").arg("-C").arg(root).args(["ls-files", "-z", "-co", "--exclude-standard"]).output()?;
    let mut files = BTreeMap::new();
    for path in String::from_utf8_lossy(&listed.stdout).split_terminator('\0') {
        // What is deleted, but not yet committed, is still listed; links are followed.
        if root.join(path).is_file() {
            files.insert(PathBuf::from(path), fs::read(root.join(path))?);
        }
    }
    let mut mutants = Vec::new();
    for (path, text) in &mut files {
        let Some(file) = judging(path) else { continue };
        let old = String::from_utf8_lossy(text).into_owned();
        let found = conditions(&old).map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
        let first = mutants.len() + 1;
        *text = switched(&old, &found, first).into_bytes();
        mutants.extend((first..).zip(found).map(|(number, condition)| {
            let text = old[condition.bytes.clone()].split_whitespace().collect::<Vec<_>>().join(" ");
            Mutant { number, file: file.display().to_string(), condition, text }
        }));
    }
    let library = files.get_mut(Path::new("src/lib.rs")).ok_or_else(|| io::Error::other("there is no src/lib.rs"))?;
    library.extend_from_slice(b"\nmod mutants;\n");
    files.insert("src/mutants.rs".into(), SWITCH.into());
    write(copy, &files)?;
    Ok(mutants)
}

/// The name below `src` of a file that takes part in a verdict; nothing for any other.
fn judging(path: &Path) -> Option<&Path> {
    let file = path.strip_prefix("src").ok()?;
    let is_for_tests = file.iter().any(|part| FOR_TESTS.iter().any(|name| part == *name));
    let judges = ROOMS.iter().any(|room| file.starts_with(room)) && !is_for_tests;
    (judges && file.extension()? == "rs").then_some(file)
}

/// The text with a call around every condition.
fn switched(text: &str, conditions: &[Condition], first: usize) -> String {
    // By position; there, what ends comes before what begins, and what is longest begins first.
    let mut pieces = Vec::new();
    for (number, Condition { bytes, is_name, .. }) in (first..).zip(conditions) {
        let (before, after) = match is_name {
            true => (format!("|it| crate::mutants::flip({number}, "), "(it))"),
            false => (format!("crate::mutants::flip({number}, "), ")"),
        };
        pieces.push((bytes.start, 1, usize::MAX - bytes.end, before));
        pieces.push((bytes.end, 0, usize::MAX - bytes.start, after.to_owned()));
    }
    pieces.sort();
    let (mut switched, mut at) = (String::new(), 0);
    for (position, _, _, piece) in pieces {
        switched.push_str(&text[at..position]);
        switched.push_str(&piece);
        at = position;
    }
    switched + &text[at..]
}

/// Writes what differs, so that cargo compiles what differs, and removes what is gone.
fn write(copy: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) -> io::Result<()> {
    let mut folders = vec![copy.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.strip_prefix(copy).is_ok_and(|below| !files.contains_key(below)) {
                fs::remove_file(path)?;
            }
        }
    }
    for (path, text) in files {
        let path = copy.join(path);
        if fs::read(&path).is_ok_and(|old| old == *text) {
            continue;
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&path, text)?;
    }
    Ok(())
}

/// Compiles the test programs of the copy: each by its name, `lib` or that of its folder in `tests`.
///
/// What cargo makes of other crates is shared with the real tree. What it makes of this one must not be: cargo tells the
/// copy from the tree by its profile only, and would take the one for the other.
///
/// # Errors
/// When cargo does not run or the copy does not compile.
pub fn compile(root: &Path, copy: &Path) -> io::Result<BTreeMap<String, PathBuf>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // What cargo says to this program would have crates compiled anew that ask for it.
    for (name, _) in std::env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|it| name.to_string_lossy().starts_with(it)) {
            command.env_remove(name);
        }
    }
    let made = command
        .current_dir(copy)
        .args(["test", "--locked", "--no-run", "--lib", "--test", "anywhere", "--color", "never"])
        // It runs thousands of times.
        .args(["--config", "profile.dev.package.portreeve.debug=false"])
        .args(["--config", "profile.dev.package.portreeve.opt-level=2"])
        .args(["--config", "profile.dev.package.portreeve.debug-assertions=false"])
        .env("CARGO_BUILD_BUILD_DIR", root.join("target"))
        .env("CARGO_TARGET_DIR", copy.with_extension("target"))
        .output()?;
    let said = String::from_utf8_lossy(&made.stderr);
    if !made.status.success() {
        return Err(io::Error::other(format!("the copy does not compile:\n{said}")));
    }
    let programs = said.lines().filter_map(|line| {
        let (source, path) =
            line.trim().strip_prefix("Executable ")?.trim_start_matches("unittests ").split_once(" (")?;
        let name = source.strip_prefix("tests/").and_then(|it| it.strip_suffix("/main.rs")).unwrap_or("lib");
        Some((name.to_owned(), copy.join(path.trim_end_matches(')'))))
    });
    Ok(programs.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_rules_and_data_planes_takes_part_and_no_test() {
        let file = |path| judging(Path::new(path)).map(|it| it.display().to_string());
        assert_eq!(file("src/rules/own_port_taken.rs").as_deref(), Some("rules/own_port_taken.rs"));
        assert_eq!(file("src/dataplane/owner/claims.rs").as_deref(), Some("dataplane/owner/claims.rs"));
        let others = [
            "src/rules/expectations.rs",
            "src/dataplane/tests.rs",
            "src/dataplane/candidates/tests/cilium.rs",
            "src/rules/remedies/snapshots/a.snap",
        ];
        assert_eq!(others.map(file), [const { None }; 4]);
        assert_eq!(["src/kernel/mod.rs", "tests/rules/a.rs"].map(file), [const { None }; 2]);
    }

    #[test]
    fn every_condition_gets_a_call_around_it() {
        let text = "fn f() { if a && b {} c.all(Option::is_none); }";
        let found = conditions(text).expect("it is Rust");
        let flip = "crate::mutants::flip";
        assert_eq!(
            switched(text, &found, 7),
            format!(
                "fn f() {{ if {flip}(8, {flip}(7, a) && {flip}(9, b)) {{}} \
                 {flip}(10, c.all(|it| {flip}(11, Option::is_none(it)))); }}"
            )
        );
    }
}
