//! What may not be in the source. `ARCHITECTURE.md` tells the reasons.

use std::collections::BTreeSet;

use super::source::{self, Token};

/// A Rust file by its path below the package's root.
pub(super) struct File {
    pub(super) path: String,
    pub(super) text: String,
}

/// `path:line: what is wrong`.
pub(super) type Complaint = String;

/// Each room and the rooms that it may know.
pub(super) const ROOMS: [(&str, &[&str]); 11] = [
    ("facts", &[]),
    ("findings", &["facts"]),
    ("dataplane", &["facts"]),
    ("rules", &["facts", "findings", "dataplane"]),
    ("ledger", &["facts", "findings"]),
    ("kernel", &["facts"]),
    ("cluster", &["facts"]),
    ("lint", &["facts", "findings", "dataplane", "rules"]),
    // The registry only: a rule's title, ceiling and page belong into reports.
    ("sinks", &["facts", "findings", "dataplane", "rules", "lint", "ledger"]),
    ("agent", &["facts", "findings", "dataplane", "rules", "ledger", "kernel", "cluster", "sinks"]),
    ("cli", &["facts", "findings", "dataplane", "rules", "lint", "ledger", "kernel", "cluster", "sinks", "agent"]),
];

/// The rooms that do input and output.
const OUTSIDE: &[&str] = &["kernel", "cluster", "sinks", "agent", "cli"];

/// Paths that reach out of the program, and the rooms in which they may be written.
const DOORS: [(&str, &[&str]); 37] = [
    ("std::env", OUTSIDE),
    ("std::fs", OUTSIDE),
    ("std::io::stderr", OUTSIDE),
    ("std::io::stdin", OUTSIDE),
    ("std::io::stdout", OUTSIDE),
    ("std::net::TcpListener", OUTSIDE),
    ("std::net::TcpStream", OUTSIDE),
    ("std::net::UdpSocket", OUTSIDE),
    ("std::os", OUTSIDE),
    ("std::process", OUTSIDE),
    ("std::thread", OUTSIDE),
    ("std::time::Instant", OUTSIDE),
    ("std::time::SystemTime", OUTSIDE),
    ("jiff::Timestamp::now", OUTSIDE),
    ("jiff::Zoned::now", OUTSIDE),
    ("Timestamp::now", OUTSIDE),
    ("Zoned::now", OUTSIDE),
    ("tracing", OUTSIDE),
    ("tokio", OUTSIDE),
    ("hyper", &["kernel", "cluster", "agent"]),
    ("hyper_util", &["kernel", "cluster", "agent"]),
    ("netlink_packet_core", &["kernel"]),
    ("netlink_packet_route", &["kernel"]),
    ("netlink_sys", &["kernel"]),
    ("procfs_core", &["kernel"]),
    ("rtnetlink", &["kernel", "cli"]),
    // `cluster` opens files of credentials without waiting for them, and ends credential plug-ins.
    ("nix", &["kernel", "cluster", "agent", "cli"]),
    ("secrecy", &["cluster"]),
    // The writer of Events is a sink that speaks to the API server.
    ("kube", &["cluster", "sinks", "agent"]),
    ("tower", &["cluster"]),
    ("k8s_openapi", &["cluster", "sinks"]),
    ("anyhow", &["agent", "cli"]),
    ("axum", &["agent"]),
    ("prometheus_client", &["sinks"]),
    ("clap", &["cli"]),
    ("clap_complete", &["cli"]),
    ("clap_mangen", &["cli"]),
];

/// The clocks, by whatever path they are reached.
const CLOCKS: [&str; 2] = ["Instant", "SystemTime"];

const LONGEST: usize = 400;

/// The longest that half of the files of `src` may be.
const MEDIAN: usize = 137;

/// Module names that say nothing about what is inside.
const DRAWERS: [&str; 9] = ["common", "consts", "helper", "helpers", "holders", "manager", "misc", "types", "utils"];

/// Folders of one machine.
const MACHINE: [&str; 3] = ["/work", "/home", "/root"];

/// No room reaches into one that it may not know, by `crate::`, by `super::` or by the package's own name.
pub(super) fn edges(files: &[File]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in sources(files) {
        let room = room(file);
        for path in source::paths(&file.text, &module(file)) {
            let target = match path.segments.as_slice() {
                [own, target, ..] if own == "crate" || own == "portreeve" => target.as_str(),
                _ => continue,
            };
            let knows = match room {
                Some(room) => target == room || may_know(room).contains(&target),
                None => file.path == "src/lib.rs" || target == "cli",
            };
            if !knows {
                let who = room.unwrap_or("main");
                complaints.push(format!("{}:{}: {who} may not know {target}", file.path, path.line));
            }
        }
    }
    complaints
}

/// Every room is one of [`ROOMS`], and its `mod.rs` opens with its job and its Never.
pub(super) fn rooms(files: &[File]) -> Vec<Complaint> {
    let found: BTreeSet<&str> = sources(files).filter_map(room).collect();
    let known = ROOMS.map(|(room, _)| room);
    let strangers = found.iter().filter(|room| !known.contains(room)).map(|room| format!("src/{room}: is no room"));
    let silent = found.iter().filter_map(|room| {
        let path = format!("src/{room}/mod.rs");
        let text = files.iter().find(|file| file.path == path).map_or("", |file| &file.text);
        let mut head = text.lines().take_while(|line| line.starts_with("//!"));
        let says_job = head.next().is_some();
        let says_never = head.any(|line| line.starts_with("//! Never: "));
        (!says_job || !says_never).then(|| format!("{path}:1: does not open with its job and a line `//! Never: ...`"))
    });
    strangers.chain(silent).collect()
}

/// Foreign crates, files, sockets, threads, the environment and the clock stay in their rooms.
pub(super) fn doors(files: &[File]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (file, room) in sources(files).filter_map(|file| Some((file, room(file)?))) {
        for path in source::paths(&file.text, &module(file)) {
            let shut = DOORS.iter().find(|(door, rooms)| path.is_below(door) && !rooms.contains(&room));
            if let Some((door, _)) = shut {
                complaints.push(format!("{}:{}: {room} may not use {door}", file.path, path.line));
            }
        }
        let tokens = source::tokens(&file.text);
        let clocks = tokens.iter().filter(|token| CLOCKS.contains(&token.text) && !OUTSIDE.contains(&room));
        complaints.extend(clocks.map(|clock| format!("{}:{}: {room} reads {}", file.path, clock.line, clock.text)));
    }
    complaints
}

/// Every file is reached by `mod` lines from a crate's root.
pub(super) fn orphans(files: &[File]) -> Vec<Complaint> {
    let mut reached: BTreeSet<String> =
        files.iter().map(|file| &file.path).filter(|path| is_root(path)).cloned().collect();
    let mut open: Vec<String> = reached.iter().cloned().collect();
    while let Some(path) = open.pop() {
        let text = files.iter().find(|file| file.path == path).map_or("", |file| &file.text);
        for child in children(&path, text) {
            if files.iter().any(|file| file.path == child) && reached.insert(child.clone()) {
                open.push(child);
            }
        }
    }
    let lost = files.iter().filter(|file| !reached.contains(&file.path));
    lost.map(|file| format!("{}:1: no `mod` line leads here, so it is never compiled", file.path)).collect()
}

/// No file is over [`LONGEST`] lines.
pub(super) fn length(files: &[File]) -> Vec<Complaint> {
    let lengths = files.iter().map(|file| (&file.path, file.text.lines().count()));
    lengths
        .filter(|&(_, lines)| lines > LONGEST)
        .map(|(path, lines)| format!("{path}:{LONGEST}: goes on to line {lines}"))
        .collect()
}

/// Half of the files of `src` have no more than [`MEDIAN`] lines.
pub(super) fn median(files: &[File]) -> Vec<Complaint> {
    let mut lengths: Vec<usize> = sources(files).map(|file| file.text.lines().count()).collect();
    lengths.sort_unstable();
    let median = lengths.get(lengths.len().saturating_sub(1) / 2).copied().unwrap_or(0);
    let complaint = format!("src: half of the files have {median} lines or more, not {MEDIAN} or fewer");
    (median > MEDIAN).then_some(complaint).into_iter().collect()
}

/// Every file of a rule is in `RULES` and expects a problem, health and the unknown somewhere in its tests.
pub(super) fn rules(files: &[File]) -> Vec<Complaint> {
    const WAYS: [&str; 3] = ["expect_problem", "expect_healthy", "expect_unknown"];
    let registry = files.iter().find(|file| file.path == "src/rules/mod.rs").map_or("", |file| &file.text);
    let registry: Vec<&str> = source::tokens(registry).into_iter().map(|token| token.text).collect();
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with("src/rules/") && defines_rule(file)) {
        let name = *module(file).last().expect("a rule has a module");
        if !registry.windows(4).any(|window| window == ["&", name, "::", "RULE"]) {
            complaints.push(format!("{}:1: `&{name}::RULE` is not in `RULES`", file.path));
        }
        let own = format!("src/rules/{name}/");
        let family = files.iter().filter(|other| other.path == file.path || other.path.starts_with(&own));
        let words: BTreeSet<&str> =
            family.flat_map(|file| source::tokens(&file.text)).map(|token| token.text).collect();
        let untested = WAYS.iter().filter(|way| !words.contains(*way));
        complaints.extend(untested.map(|way| format!("{}:1: no test uses `{way}`", file.path)));
    }
    complaints
}

/// No test skips itself by attribute.
pub(super) fn ignored(files: &[File]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in files {
        let tokens = source::tokens(&file.text);
        for at in 0..tokens.len() {
            let opens = tokens[at..].iter().take(2).map(|token| token.text).eq(["#", "["]);
            let mut attribute = tokens[at..].iter().take_while(|token| token.text != "]");
            if opens && attribute.any(|token| token.text == "ignore") {
                complaints.push(format!("{}:{}: an ignored test is no test", file.path, tokens[at].line));
            }
        }
    }
    complaints
}

/// Files open with their job; no junk drawers, no `get_`, no globs but `super` and preludes, no machine's own paths.
pub(super) fn style(files: &[File]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in files {
        let mut complain = |line: usize, what: &str| complaints.push(format!("{}:{line}: {what}", file.path));
        // The tests of a file beside it have its job.
        if !file.text.starts_with("//! ") && !file.path.ends_with("/tests.rs") {
            complain(1, "does not open with its job");
        }
        if module(file).iter().any(|name| DRAWERS.contains(name)) {
            complain(1, "is a junk drawer by its name");
        }
        let tokens = source::tokens(&file.text);
        for pair in tokens.windows(2).filter(|pair| pair[0].text == "fn" && pair[1].text.starts_with("get_")) {
            complain(pair[1].line, "a function's name needs no `get_`");
        }
        for path in source::paths(&file.text, &module(file)) {
            if let [.., parent, last] = path.segments.as_slice()
                && last == "*"
                && !path.relative
                && parent != "prelude"
            {
                complain(path.line, "imports a glob");
            }
        }
        for (index, line) in file.text.lines().enumerate() {
            if names_machine(line) {
                complain(index + 1, "names a folder of one machine");
            }
        }
    }
    complaints
}

/// Whether a line has a path into one of [`MACHINE`]; `/proc/self/root` has none.
pub(crate) fn names_machine(line: &str) -> bool {
    let begins = |at: usize| !line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '.');
    MACHINE.iter().any(|folder| line.match_indices(&format!("{folder}/")).any(|(at, _)| begins(at)))
}

pub(super) fn sources(files: &[File]) -> impl Iterator<Item = &File> {
    files.iter().filter(|file| file.path.starts_with("src/"))
}

fn may_know(room: &str) -> &'static [&'static str] {
    ROOMS.iter().find(|(name, _)| *name == room).map_or(&[], |(_, known)| known)
}

/// `rules` for `src/rules/limits.rs`; nothing for the roots of the crate.
fn room(file: &File) -> Option<&str> {
    module(file).first().copied()
}

/// `["rules", "limits"]` for `src/rules/limits.rs`, `["rules"]` for its `mod.rs`.
pub(super) fn module(file: &File) -> Vec<&str> {
    let below = file.path.split_once('/').map_or("", |(_, below)| below);
    let path = below.trim_end_matches(".rs");
    path.split('/').filter(|name| !matches!(*name, "lib" | "main" | "mod")).collect()
}

/// Whether cargo itself compiles it.
fn is_root(path: &str) -> bool {
    match path.split('/').collect::<Vec<_>>().as_slice() {
        ["src", name] => matches!(*name, "lib.rs" | "main.rs"),
        [_, _] => true,
        [top, _, name] => *top != "src" && *name == "main.rs",
        // A tool beside the tests, which is a package of its own.
        ["tests", _, "src", "main.rs"] => true,
        _ => false,
    }
}

/// The files to which the `mod` lines of a file may lead.
fn children(path: &str, text: &str) -> Vec<String> {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let mut place = match name {
        "lib.rs" | "main.rs" | "mod.rs" => vec![folder],
        _ => vec![path.trim_end_matches(".rs")],
    };
    let mut braces = Vec::new();
    let mut children = Vec::new();
    let tokens = source::tokens(text);
    let word = |at: usize| tokens.get(at).map_or("", |token: &Token<'_>| token.text);
    for at in 0..tokens.len() {
        match (word(at), word(at + 1), word(at + 2)) {
            ("mod", name, ";") => {
                let place = place.join("/");
                children.extend([format!("{place}/{name}.rs"), format!("{place}/{name}/mod.rs")]);
            }
            ("mod", name, "{") => place.push(name),
            ("{", ..) => braces.push(at >= 2 && word(at - 2) == "mod"),
            ("}", ..) if braces.pop() == Some(true) => {
                place.pop();
            }
            _ => {}
        }
    }
    children
}

fn defines_rule(file: &File) -> bool {
    let tokens = source::tokens(&file.text);
    tokens.windows(4).any(|window| window.iter().map(|token| token.text).eq(["static", "RULE", ":", "Rule"]))
}

#[cfg(test)]
mod tests;
