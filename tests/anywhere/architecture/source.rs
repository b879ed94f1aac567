//! Rust source as the checks see it: tokens with their lines, and paths with their groups spelled out.

/// An identifier, `::`, a lifetime, a literal or one sign. Comments are gone; literals have lost their content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) line: usize,
}

impl Token<'_> {
    /// Whether it is an identifier or a keyword.
    pub(super) fn is_word(&self) -> bool {
        self.text.starts_with(|first: char| first == '_' || first.is_alphabetic())
    }
}

/// One path of a file: `use crate::{facts::Gap, rules}` has two. It begins with `crate` when it is the package's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) segments: Vec<String>,
    /// Whether it was written with `super`.
    pub(super) relative: bool,
    pub(super) line: usize,
}

impl Path {
    /// Whether it begins with the words of a written path, e.g. `std::fs`.
    pub(super) fn is_below(&self, prefix: &str) -> bool {
        let mut segments = self.segments.iter();
        prefix.split("::").all(|word| segments.next().is_some_and(|segment| segment == word))
    }
}

/// The tokens of a source file.
pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let length = length_of_first(rest, first);
        let (token, after) = rest.split_at(length);
        let is_comment = token.starts_with("//") || token.starts_with("/*");
        if !first.is_whitespace() && !is_comment {
            let is_literal = token.len() > 1 && token.ends_with(['"', '#']);
            tokens.push(Token { text: if is_literal { "\"" } else { token }, line });
        }
        line += token.matches('\n').count();
        rest = after;
    }
    tokens
}

/// How many bytes the token, comment or blank at the beginning of `rest` takes.
fn length_of_first(rest: &str, first: char) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return length_of_comment(rest);
    }
    if let Some(length) = length_of_string(rest).or_else(|| length_of_character(rest)) {
        return length;
    }
    if rest.starts_with("::") {
        return 2;
    }
    let is_word = |c: char| c == '_' || c.is_alphanumeric();
    if is_word(first) || first == '\'' {
        let skip = first.len_utf8();
        return skip + rest[skip..].find(|c: char| !is_word(c)).unwrap_or(rest.len() - skip);
    }
    first.len_utf8()
}

/// Block comments nest.
fn length_of_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        let (step, deeper) = match rest.as_bytes().get(at..at + 2) {
            Some(b"/*") => (2, depth + 1),
            Some(b"*/") => (2, depth - 1),
            _ => (1, depth),
        };
        (at, depth) = (at + step, deeper);
        if depth == 0 {
            break;
        }
    }
    at
}

/// `"..."`, `b"..."`, `c"..."`, `r"..."`, `br#"..."#` and so on.
fn length_of_string(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| {
        let after = rest.strip_prefix(prefix).unwrap_or("");
        after.starts_with('"') || (prefix.ends_with('r') && after.trim_start_matches('#').starts_with('"'))
    })?;
    let body = &rest[prefix.len()..];
    if prefix.ends_with('r') {
        let fence = &body[..body.find('"')?];
        let open = prefix.len() + fence.len() + 1;
        let close = format!("\"{fence}");
        return Some(rest[open..].find(&close).map_or(rest.len(), |end| open + end + close.len()));
    }
    let mut escaped = false;
    let end = body.char_indices().skip(1).find(|&(_, c)| {
        let closes = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        closes
    });
    Some(end.map_or(rest.len(), |(end, _)| prefix.len() + end + 1))
}

/// `'x'`, `'\n'`, `b'x'`; a lifetime is none.
fn length_of_character(rest: &str) -> Option<usize> {
    let prefix = usize::from(rest.starts_with("b'"));
    let body = rest[prefix..].strip_prefix('\'')?;
    let inside = match body.chars().next()? {
        '\\' => 2 + body.get(2..)?.find('\'')?,
        other => other.len_utf8(),
    };
    body.get(inside..)?.starts_with('\'').then_some(prefix + 1 + inside + 1)
}

/// Every path of a file; `module` is the file's own place below the crate, e.g. `["rules", "limits"]`.
pub(super) fn paths(text: &str, module: &[&str]) -> Vec<Path> {
    paths_of(&tokens(text), module)
}

/// Every path in some tokens of a file.
pub(super) fn paths_of(tokens: &[Token<'_>], module: &[&str]) -> Vec<Path> {
    let word = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let mut module: Vec<&str> = module.to_vec();
    // What each open brace belongs to: `true` for that of an inline module.
    let mut braces = Vec::new();
    let mut found = Vec::new();
    let mut walked = 0;
    for at in 0..tokens.len() {
        match word(at) {
            "{" => {
                let opens_module = at >= 2 && word(at - 2) == "mod";
                if opens_module {
                    module.push(word(at - 1));
                }
                braces.push(opens_module);
            }
            "}" if braces.pop() == Some(true) => {
                module.pop();
            }
            _ => {}
        }
        if at >= walked && begins_path(tokens, at) {
            let nothing = Walked { module: &module, segments: Vec::new(), relative: false };
            walked = walk(tokens, at, &nothing, &mut found);
        }
    }
    found
}

/// Whether a path begins with the token at `at`; `::std::fs` begins with `std`.
fn begins_path(tokens: &[Token<'_>], at: usize) -> bool {
    let word = |back: usize| at.checked_sub(back).map_or("", |at| tokens[at].text);
    let is_joined = word(1) == "::" && word(2) != "use" && (at >= 2 && (tokens[at - 2].is_word() || word(2) == ">"));
    let goes_on = tokens.get(at + 1).is_some_and(|next| next.text == "::");
    tokens[at].is_word() && !is_joined && (goes_on || word(1) == "use")
}

/// The part of a path that was read so far.
#[derive(Clone)]
struct Walked<'a> {
    module: &'a [&'a str],
    segments: Vec<String>,
    relative: bool,
}

impl Walked<'_> {
    fn here(&self) -> Vec<String> {
        ["crate"].iter().chain(self.module).map(ToString::to_string).collect()
    }

    fn step(&mut self, word: &str) {
        match word {
            "self" if self.segments.is_empty() => self.segments = self.here(),
            "self" => {}
            "super" => {
                if self.segments.is_empty() {
                    self.segments = self.here();
                }
                self.segments.pop();
                self.relative = true;
            }
            word => self.segments.push(word.to_owned()),
        }
    }
}

/// Reads the path or the group at `at`, adds its leaves to `found` and returns where it ended.
fn walk(tokens: &[Token<'_>], mut at: usize, so_far: &Walked<'_>, found: &mut Vec<Path>) -> usize {
    let mut walked = so_far.clone();
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    loop {
        let Some(token) = tokens.get(at) else { return at };
        match token.text {
            "{" => {
                at += 1;
                while !matches!(text(at), "}" | "") {
                    at = walk(tokens, at, &walked, found);
                    // Over `as name` and the comma.
                    while !matches!(text(at), "}" | "," | "") {
                        at += 1;
                    }
                    at += usize::from(text(at) == ",");
                }
                return at + 1;
            }
            _ if token.is_word() || token.text == "*" => walked.step(token.text),
            _ => break,
        }
        at += 1;
        if text(at) != "::" {
            break;
        }
        at += 1;
    }
    let line = tokens.get(at.saturating_sub(1)).map_or(0, |token| token.line);
    found.push(Path { segments: walked.segments, relative: walked.relative, line });
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<&str> {
        tokens(text).into_iter().map(|token| token.text).collect()
    }

    fn written(text: &str, module: &[&str]) -> Vec<String> {
        paths(text, module).into_iter().map(|path| path.segments.join("::")).collect()
    }

    #[test]
    fn comments_and_literals_say_nothing() {
        let source = "// a::b\n/* c /* d */ e::f */ let x = \"g::h \\\" i\"; r#\"j \" k\"# b'l' '\\'' 'm' &'n o";
        assert_eq!(words(source), ["let", "x", "=", "\"", ";", "\"", "b'l'", "'\\''", "'m'", "&", "'n", "o"]);
    }

    #[test]
    fn a_token_knows_its_line() {
        let lines: Vec<usize> = tokens("a\n\"b\nc\"\n/*\n*/ d").into_iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 2, 5]);
    }

    #[test]
    fn groups_are_spelled_out() {
        let source = "use crate::{facts::{self, Gap as G}, rules::*}; use std::{fs, net::{IpAddr, TcpStream}};";
        let expected = [
            "crate::facts",
            "crate::facts::Gap",
            "crate::rules::*",
            "std::fs",
            "std::net::IpAddr",
            "std::net::TcpStream",
        ];
        assert_eq!(written(source, &[]), expected);
    }

    #[test]
    fn super_is_resolved_from_the_module_it_stands_in() {
        let source = "use super::{Rule, super::ledger}; mod tests { fn f() { super::super::super::sinks::tell() } }";
        let expected = ["crate::rules::Rule", "crate::ledger", "crate::sinks::tell"];
        assert_eq!(written(source, &["rules", "a_rule"]), expected);
    }

    #[test]
    fn a_path_in_an_expression_ends_where_it_ends() {
        let source =
            "let x = crate::facts::Gap { source: ::tokio::spawn(a) }; use anyhow; b::c::<d::E>(); <F as G>::h()";
        assert_eq!(written(source, &[]), ["crate::facts::Gap", "tokio::spawn", "anyhow", "b::c", "d::E"]);
    }
}
