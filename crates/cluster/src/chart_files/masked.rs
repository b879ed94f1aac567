//! The text of a template without what Go's engine does in it (text/template/parse `lex.go`).

/// What stands in the place of every character of an action. YAML has no such character.
pub(super) const MASK: char = '\u{1}';
/// Words of actions that may write more than one word.
const FIELDS: [&str; 10] =
    ["include", "template", "tpl", "block", "toYaml", "toJson", "toPrettyJson", "toRawJson", "Files", "indent"];
/// Actions that write nothing themselves.
const QUIET: [&str; 9] = ["if", "else", "end", "with", "range", "define", "break", "continue", "fail"];

/// An action that writes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Action {
    /// The line on which it begins, from 0.
    pub(super) line: usize,
    /// How far its lines are indented, where it says that; 0 where it says it in words that are not known here.
    pub(super) indent: Option<usize>,
    /// Whether it may write more than one word.
    pub(super) writes_fields: bool,
}

/// The text, in which lines and columns are where they were, and the actions that write something.
pub(super) fn masked(template: &str) -> (String, Vec<Action>) {
    let (mut text, mut actions) = (String::with_capacity(template.len()), Vec::new());
    let (mut rest, mut line) = (template, 0);
    while let Some(begin) = rest.find("{{") {
        let (before, from) = rest.split_at(begin);
        let (action, after) = from.split_at(end(from));
        text.push_str(before);
        line += before.matches('\n').count();
        let body = action.trim_start_matches("{{").trim_end_matches("}}");
        let body = body.strip_prefix('-').unwrap_or(body).trim_start();
        // With a quotation mark left it ended in a text that has braces: nobody knows what it writes.
        let is_torn = !body.starts_with("/*") && ['"', '`'].iter().any(|mark| body.matches(*mark).count() % 2 == 1);
        if is_torn {
            actions.push(Action { line, indent: Some(0), writes_fields: true });
        } else if !is_quiet(body) {
            let writes_fields = FIELDS.iter().any(|word| body.contains(word));
            actions.push(Action { line, indent: indent(body), writes_fields });
        }
        text.extend(action.chars().map(|it| if it == '\n' { it } else { MASK }));
        line += action.matches('\n').count();
        rest = after;
    }
    text.push_str(rest);
    (text, actions)
}

/// Where an action ends. Braces in a comment end none; one without an end is no template of helm's.
fn end(action: &str) -> usize {
    let body = action.trim_start_matches("{{").trim_start_matches('-').trim_start();
    let comment = if body.starts_with("/*") { action.find("*/").unwrap_or(action.len()) } else { 0 };
    action[comment..].find("}}").map_or(action.len(), |at| comment + at + 2)
}

fn is_quiet(body: &str) -> bool {
    let word = body.split(|it: char| !it.is_ascii_alphanumeric()).next().unwrap_or_default();
    // `$x := 1` and `$x = 1`.
    let variable = body.strip_prefix('$').map(|it| it.trim_start_matches(|it: char| it.is_alphanumeric() || it == '_'));
    let is_set = variable.is_some_and(|it| it.trim_start().starts_with([':', '=']));
    body.starts_with("/*") || is_set || QUIET.contains(&word)
}

fn indent(body: &str) -> Option<usize> {
    let (_, rest) = body.rsplit_once("indent")?;
    // What comes behind it may change it.
    Some(rest.trim_end_matches('-').trim().parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stay_and_what_writes_is_known() {
        let text =
            "a: {{ .x }} # ä\n{{- if .y -}}\nb: {{/* }} */}}1\n{{ toYaml\n  . | nindent 4 }}\n{{ $x := 1 }}{{ $x }}";
        let (masked, actions) = masked(text);
        let shown = masked.replace(MASK, "_");
        assert_eq!(
            shown,
            "a: ________ # ä\n_____________\nb: ____________1\n_________\n__________________\n_____________________"
        );
        let at = |line, indent: Option<usize>| Action { line, indent, writes_fields: indent.is_some() };
        assert_eq!(actions, [at(0, None), at(3, Some(4)), at(5, None)]);
    }

    #[test]
    fn an_indentation_that_is_not_known_is_the_least() {
        for (body, wanted) in [
            ("x | indent 2 -", Some(2)),
            ("x | indent 2 | trim", Some(0)),
            ("x | nindent $n", Some(0)),
            ("x | nindent", Some(0)),
            ("x", None),
        ] {
            assert_eq!(indent(body), wanted, "{body}");
        }
        assert_eq!(masked("{{ open\nx").0.replace(MASK, "_"), "_______\n_");
    }
}
