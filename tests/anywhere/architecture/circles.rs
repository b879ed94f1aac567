//! No file of `src` uses one that uses it, through however many files.
//!
//! Who uses an item uses the file that defines it: what a parent re-exports is its child's. A parent that declares or
//! re-exports a child does not use it; one whose own code names it does. Code for tests does not count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    checks::{Complaint, File, module, sources},
    source::{self, Token},
};

/// A module's place below the crate.
type Place = Vec<String>;

/// Every file by what it uses: the file and the line.
type Graph<'a> = BTreeMap<&'a str, BTreeMap<&'a str, usize>>;

/// The shortest circle through each use of one file by another, each circle once.
pub(super) fn circles(files: &[File]) -> Vec<Complaint> {
    let house = House::of(files);
    let graph = house.graph();
    let mut found: BTreeSet<Vec<&str>> = BTreeSet::new();
    for (from, used) in &graph {
        for to in used.keys() {
            if let Some(mut circle) = way(&graph, to, from) {
                let first = circle.iter().enumerate().min_by_key(|(_, path)| **path).map_or(0, |(at, _)| at);
                circle.rotate_left(first);
                found.insert(circle);
            }
        }
    }
    let complaints = found.into_iter().map(|circle| {
        let line = graph[circle[0]][circle[1]];
        format!("{}:{line}: is in a circle: {} -> {}", circle[0], circle.join(" -> "), circle[0])
    });
    complaints.collect()
}

/// The shortest way from one file to another, both included.
fn way<'a>(graph: &Graph<'a>, from: &'a str, to: &'a str) -> Option<Vec<&'a str>> {
    let mut before: BTreeMap<&str, &str> = BTreeMap::new();
    let mut open = VecDeque::from([from]);
    while let Some(at) = open.pop_front() {
        if at == to {
            let mut way = vec![at];
            while let Some(&earlier) = way.last().filter(|last| **last != from).and_then(|last| before.get(last)) {
                way.push(earlier);
            }
            way.reverse();
            return Some(way);
        }
        for &next in graph.get(at).into_iter().flat_map(BTreeMap::keys) {
            if next != from && !before.contains_key(next) {
                before.insert(next, at);
                open.push_back(next);
            }
        }
    }
    None
}

/// One file as the graph sees it.
struct Room<'a> {
    file: &'a File,
    imports: Vec<Import>,
    /// The tokens outside of imports.
    code: Vec<Token<'a>>,
}

/// A name that a file brings in.
struct Import {
    target: Place,
    line: usize,
    is_public: bool,
    /// Whether it stands in a module within the file.
    is_inner: bool,
}

struct House<'a> {
    rooms: BTreeMap<Place, Room<'a>>,
}

impl<'a> House<'a> {
    fn of(files: &'a [File]) -> Self {
        let mut rooms = BTreeMap::new();
        let mut tests: Vec<Place> = Vec::new();
        for file in sources(files).filter(|file| file.path != "src/main.rs") {
            let place = owned(&module(file));
            let (tokens, for_tests) = without_tests(&source::tokens(&file.text));
            tests.extend(for_tests.iter().map(|name| below(&place, name)));
            let (imports, code) = split(&tokens, &module(file));
            rooms.insert(place, Room { file, imports, code });
        }
        rooms.retain(|place: &Place, _| !tests.iter().any(|test| place.starts_with(test)));
        Self { rooms }
    }

    fn graph(&self) -> Graph<'a> {
        let mut graph = Graph::new();
        for (place, room) in &self.rooms {
            let uses = graph.entry(room.file.path.as_str()).or_default();
            for (target, line) in self.uses(place, room) {
                if let Some(used) = self.definition(&target, 0)
                    && used.path != room.file.path
                {
                    uses.entry(used.path.as_str()).or_insert(line);
                }
            }
        }
        graph
    }

    /// The items that a file uses: what it imports, and the paths in its code.
    fn uses(&self, place: &Place, room: &Room<'a>) -> Vec<(Place, usize)> {
        let mut uses = Vec::new();
        for import in &room.imports {
            let next = import.target.len().min(place.len() + 1);
            let is_childs = import.target.starts_with(place) && self.rooms.contains_key(&import.target[..next]);
            let name = import.target.last().expect("a path has an end");
            // A function may have the name of the module that it is in.
            let is_named = (0..room.code.len())
                .any(|at| room.code[at].text == name && (at == 0 || room.code[at - 1].text != "mod"));
            // A module is used by what is taken out of it.
            let is_module = self.rooms.contains_key(&import.target);
            if !is_module && (!import.is_public || !is_childs || is_named) {
                uses.push((import.target.clone(), import.line));
            }
        }
        let names: Vec<&str> = place.iter().map(String::as_str).collect();
        for path in source::paths_of(&room.code, &names) {
            let Some(first) = path.segments.first() else { continue };
            let import = room.imports.iter().find(|import| import.target.last() == Some(first));
            let target = if first == "crate" {
                path.segments[1..].to_vec()
            } else if let Some(import) = import {
                import.target.iter().chain(&path.segments[1..]).cloned().collect()
            } else if self.rooms.contains_key(&below(place, first)) {
                place.iter().chain(&path.segments).cloned().collect()
            } else {
                continue;
            };
            if !self.rooms.contains_key(&target) {
                uses.push((target, path.line));
            }
        }
        uses
    }

    /// The file that defines an item: through the modules as far as there are any, then through re-exports.
    fn definition(&self, target: &[String], depth: usize) -> Option<&'a File> {
        let known = (0..=target.len()).rev().find(|&length| self.rooms.contains_key(&target[..length]))?;
        let room = &self.rooms[&target[..known]];
        let item = target.get(known);
        let import = room.imports.iter().find(|import| !import.is_inner && import.target.last() == item);
        match import {
            Some(import) if depth < 8 && import.target != target => {
                let further: Place = import.target.iter().chain(target.iter().skip(known + 1)).cloned().collect();
                self.definition(&further, depth + 1)
            }
            _ => Some(room.file),
        }
    }
}

fn owned(names: &[&str]) -> Place {
    names.iter().map(ToString::to_string).collect()
}

fn below(place: &Place, name: &str) -> Place {
    place.iter().cloned().chain([name.to_owned()]).collect()
}

/// Tokens without the items that are compiled for tests only, and the names of modules among these.
fn without_tests<'a>(tokens: &[Token<'a>]) -> (Vec<Token<'a>>, Vec<&'a str>) {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut kept, mut modules, mut at) = (Vec::new(), Vec::new(), 0);
    while at < tokens.len() {
        if !tokens[at..].iter().take(MARK.len()).map(|token| token.text).eq(MARK) {
            kept.push(tokens[at]);
            at += 1;
            continue;
        }
        at += MARK.len();
        let mut depth = 0_usize;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token.text {
                "mod" if depth == 0 => modules.extend(tokens.get(at).map(|name| name.text)),
                "{" | "(" | "[" => depth += 1,
                "}" if depth == 1 => {
                    // The group of an import ends before its semicolon.
                    at += usize::from(tokens.get(at).is_some_and(|next| next.text == ";"));
                    break;
                }
                "}" | ")" | "]" => depth = depth.saturating_sub(1),
                ";" | "," if depth == 0 => break,
                _ => {}
            }
        }
    }
    (kept, modules)
}

/// The imports of a file, and all tokens that are in none.
fn split<'a>(tokens: &[Token<'a>], module: &[&'a str]) -> (Vec<Import>, Vec<Token<'a>>) {
    let (mut imports, mut code, mut at) = (Vec::new(), Vec::new(), 0);
    let (mut place, mut braces) = (module.to_vec(), Vec::new());
    let word = |at: usize| tokens.get(at).map_or("", |token| token.text);
    while let Some(token) = tokens.get(at) {
        // `impl Trait + use<'a>` imports nothing.
        if token.text == "use" && word(at + 1) != "<" {
            let length = tokens[at..].iter().take_while(|token| token.text != ";").count();
            let is_public = code.last().is_some_and(|before: &Token<'_>| matches!(before.text, "pub" | ")"));
            let is_inner = place != module;
            for path in source::paths_of(&tokens[at..at + length], &place) {
                let target: Place = match path.segments.first().map(String::as_str) {
                    Some("crate") => path.segments[1..].to_vec(),
                    // A child's, or a foreign crate's, which is no file.
                    _ => owned(&place).into_iter().chain(path.segments).collect(),
                };
                let import = Import { target, line: path.line, is_public, is_inner };
                imports.extend((!import.target.is_empty()).then_some(import));
            }
            at += length;
            continue;
        }
        match token.text {
            "{" => {
                let opens_module = at >= 2 && word(at - 2) == "mod";
                place.extend(opens_module.then(|| word(at - 1)));
                braces.push(opens_module);
            }
            "}" if braces.pop() == Some(true) => {
                place.pop();
            }
            _ => {}
        }
        code.push(*token);
        at += 1;
    }
    (imports, code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn expect(tree: &[(&str, &str)], wanted: &[&str]) {
        let file = |(path, text): &(&str, &str)| File { path: format!("src/{path}"), text: (*text).to_owned() };
        let files: Vec<File> = tree.iter().map(file).collect();
        assert_eq!(circles(&files), wanted);
    }

    #[test]
    fn two_files_that_use_each_other_are_caught() {
        let circle = ["src/a/b.rs:1: is in a circle: src/a/b.rs -> src/a/c.rs -> src/a/b.rs"];
        for text in [
            "use super::b::B;",
            "use crate::a::b::{self, B};",
            "use super::b; fn f() { b::g() }",
            "fn f() -> super::b::B {}",
            "pub use super::b::B;",
        ] {
            expect(&[("a/mod.rs", "mod b; mod c;"), ("a/b.rs", "use super::c::C;"), ("a/c.rs", text)], &circle);
        }
        expect(&[("a/mod.rs", "mod b; mod c;"), ("a/b.rs", "use super::c::C;"), ("a/c.rs", "use std::fmt;")], &[]);
    }

    #[test]
    fn a_circle_of_three_is_named_whole() {
        let tree = [("a.rs", "use crate::b::B;"), ("b.rs", "\nuse crate::c::C;"), ("c.rs", "use crate::a::A;")];
        expect(&tree, &["src/a.rs:1: is in a circle: src/a.rs -> src/b.rs -> src/c.rs -> src/a.rs"]);
    }

    #[test]
    fn a_parent_that_declares_and_re_exports_is_in_no_circle() {
        let child = ("a/b.rs", "use super::C; pub struct B;");
        expect(
            &[("a/mod.rs", "mod b; mod c; pub use b::B; pub(crate) use c::C;"), child, ("a/c.rs", "struct C;")],
            &[],
        );
    }

    #[test]
    fn a_parent_whose_code_names_a_child_that_uses_it_is_caught() {
        let circle = ["src/a/b.rs:1: is in a circle: src/a/b.rs -> src/a/mod.rs -> src/a/b.rs"];
        let child = ("a/b.rs", "use super::Rule; pub static RULE: Rule = Rule;");
        for text in [
            "mod b; pub struct Rule; static RULES: [&Rule; 1] = [&b::RULE];",
            "mod b; use b::RULE; pub struct Rule;",
            "mod b; pub use b::RULE; pub struct Rule; fn f() -> &Rule { &RULE }",
        ] {
            expect(&[("a/mod.rs", text), child], &circle);
        }
    }

    #[test]
    fn a_re_export_is_followed_to_the_file_that_defines_it() {
        let room = ("a/mod.rs", "mod b; mod c; pub use b::B;");
        let circle = ["src/a/b.rs:1: is in a circle: src/a/b.rs -> src/a/c.rs -> src/a/b.rs"];
        expect(&[room, ("a/b.rs", "use super::c::C;"), ("a/c.rs", "use super::B;")], &circle);
        expect(&[room, ("a/b.rs", "use super::c::C;"), ("a/c.rs", "fn f() -> crate::a::B {}")], &circle);
    }

    #[test]
    fn a_module_within_a_file_is_that_file() {
        let parent = ("a/mod.rs", "mod b; struct C; fn f() { b::g() }");
        expect(&[parent, ("a/b.rs", "struct C; mod inner { use super::C; }")], &[]);
        let circle = ["src/a/b.rs:1: is in a circle: src/a/b.rs -> src/a/mod.rs -> src/a/b.rs"];
        expect(&[parent, ("a/b.rs", "mod inner { use super::super::C; }")], &circle);
    }

    #[test]
    fn code_for_tests_is_in_no_circle() {
        let user = ("b.rs", "use crate::a::A;");
        for text in [
            "#[cfg(test)]\nuse crate::b::{B, C};",
            "#[cfg(test)]\nmod tests { use crate::b::B; }",
            "#[cfg(test)]\npub(crate) fn f() -> crate::b::B { g() }",
        ] {
            expect(&[("a.rs", text), user], &[]);
        }
        expect(&[("a.rs", "#[cfg(test)]\nmod tests;"), ("a/tests.rs", "use crate::b::B;"), user], &[]);
        let circle = ["src/a.rs:2: is in a circle: src/a.rs -> src/b.rs -> src/a.rs"];
        expect(&[("a.rs", "#[cfg(test)] fn t() {}\nuse crate::b::B;"), user], &circle);
    }
}
