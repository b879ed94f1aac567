//! Lines for a terminal: colour, width, and text that is safe in a line.

use portreeve_facts::text::clean;
use portreeve_rules::findings::Severity;

/// How lines are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Style {
    /// The width of the terminal, in characters. A file has a fixed width.
    pub width: usize,
    /// Whether the text has colours.
    pub colour: bool,
    /// The name with which the user called this program: `portreeve`, or `kubectl portreeve`.
    pub program: String,
}

/// The kind of a text, which selects its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// Text.
    Plain,
    /// The heading of a part.
    Heading,
    /// Less important text.
    Faint,
    /// A command.
    Command,
    /// Good news.
    Good,
    /// A problem, with its severity.
    Bad(Severity),
    /// Another style, as SGR parameters (ECMA-48).
    Raw(&'static str),
}

impl Style {
    /// The text in its colour, if colours are on.
    pub fn paint(&self, ink: Ink, text: &str) -> String {
        if !self.colour || text.is_empty() {
            return text.to_owned();
        }
        let code = match ink {
            Ink::Plain => return text.to_owned(),
            Ink::Heading => "1",
            Ink::Faint => "2",
            Ink::Command => "36",
            Ink::Good => "32",
            Ink::Bad(Severity::Critical) => "1;31",
            Ink::Bad(Severity::Warning) => "1;33",
            Ink::Bad(Severity::Info) => "34",
            Ink::Raw(code) => code,
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

/// The largest length of untrusted text that is printed, in bytes.
const LONGEST: usize = 16 * 1024;

/// Untrusted text as one safe line. GitHub Actions treats `##[` as a command anywhere in a line (actions/runner
/// `ActionCommand.TryParse`).
pub fn tidy(text: &str) -> String {
    clean(text, LONGEST).replace("##[", "## [")
}

/// Cuts a text to `width`. The last character of a cut text is an ellipsis.
pub(super) fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// The words of a text in lines of at most `width` characters. A word that is longer than `width` has its own line.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut taken = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        match lines.last_mut() {
            // A new line must not begin with `::`. GitHub Actions would treat the line as a command, even after spaces
            // (actions/runner `ActionCommand.TryParseV2`).
            Some(line) if taken + 1 + length <= width || word.starts_with("::") => {
                line.push(' ');
                line.push_str(word);
                taken += 1 + length;
            }
            _ => {
                lines.push(word.to_owned());
                taken = length;
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_word_longer_than_the_line_is_not_broken() {
        assert_eq!(wrap("a bb cccccccc d", 4), ["a bb", "cccccccc", "d"]);
    }

    #[test]
    fn no_line_but_the_first_begins_as_a_command_of_github() {
        assert_eq!(tidy("a##[stop-commands]b"), "a## [stop-commands]b");
        assert_eq!(wrap("aa ::error::b c", 6), ["aa ::error::b", "c"]);
    }

    proptest! {
        #[test]
        fn wrapping_keeps_every_word_in_order(text in "[a-zé ]{0,60}", width in 1usize..20) {
            let lines = wrap(&text, width);
            prop_assert_eq!(lines.join(" "), text.split_whitespace().collect::<Vec<_>>().join(" "));
            for line in lines {
                prop_assert!(line.chars().count() <= width || !line.contains(' '));
            }
        }

        #[test]
        fn shortening_never_exceeds_the_width(text in ".{0,40}", width in 1usize..20) {
            prop_assert!(shorten(&text, width).chars().count() <= width);
        }
    }
}
