//! Makes text from outside safe to print.

use std::fmt;

use strsim::levenshtein;
use unicode_general_category::{GeneralCategory, get_general_category};

/// The longest name from outside that is kept, in bytes: the length of the longest DNS subdomain (RFC 1123).
pub const NAME: usize = 253;

/// A copy of the visible characters of `text`, at most `limit` bytes. Invisible characters are removed, not replaced.
/// The copy is safe in a terminal, a table and an Event.
pub fn clean(text: &str, limit: usize) -> String {
    // Most names contain only these characters. The function copies these names without further checks.
    if text.len() <= limit && text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return text.to_owned();
    }
    let mut cleaned = String::with_capacity(text.len().min(limit));
    for character in text.chars().filter(|character| !is_invisible(*character)) {
        if cleaned.len() + character.len_utf8() > limit {
            break;
        }
        cleaned.push(character);
    }
    cleaned
}

/// The first `most` things, and the number of the other things, as in `a, b and 3 more`.
pub fn listed<T: fmt::Display>(things: impl IntoIterator<Item = T>, most: usize) -> String {
    let mut things = things.into_iter();
    let first: Vec<String> = things.by_ref().take(most).map(|thing| thing.to_string()).collect();
    let words = first.join(", ");
    match things.count() {
        0 => words,
        more => format!("{words} and {more} more"),
    }
}

/// The text as one word of a shell command. A Kubernetes name is returned without quotes. Any other text is quoted.
pub fn shell_word(text: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-._:/".contains(character);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Whether [`clean`] removes this character. Spaces, letters, marks, numbers, punctuation and symbols stay. Characters
/// that change the direction of the text are removed.
pub fn is_invisible(character: char) -> bool {
    !matches!(character, ' '..='~') && (!prints(character) || is_blank(character))
}

/// Whether the character's general category is printable (Unicode Standard, 4.5).
fn prints(character: char) -> bool {
    use GeneralCategory as C;
    !matches!(
        get_general_category(character),
        C::Control
            | C::Format
            | C::LineSeparator
            | C::ParagraphSeparator
            | C::SpaceSeparator
            | C::Surrogate
            | C::PrivateUse
            | C::Unassigned
    )
}

/// Whether a character shows nothing although its category is printable. The function accepts characters with the
/// property `Other_Default_Ignorable_Code_Point` or `Variation_Selector` (Unicode, `PropList.txt`), and the Braille
/// pattern without dots.
fn is_blank(character: char) -> bool {
    matches!(character,
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2800}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0000}'..='\u{e0fff}')
}

/// A text such as `, did you mean "interval"?`. The text names a word that contains the typed text, or that differs by
/// one or two typing errors. The text is empty if no word is similar.
pub fn did_you_mean(typed: &str, words: &[&str]) -> String {
    // A typed name may be long, so only its beginning is compared.
    let typed: String = typed.chars().take(64).collect();
    let letters = typed.chars().count();
    let slips = (letters / 3).clamp(1, 2);
    let near = |word: &&str| levenshtein(&typed, word) <= slips || letters > 2 && word.contains(&typed);
    let nearest = words.iter().copied().filter(near).min_by_key(|word| levenshtein(&typed, word));
    nearest.map(|word| format!(", did you mean {word:?}?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escape_codes_newlines_and_right_to_left_marks_vanish() {
        assert_eq!(clean("a\u{1b}[31mb\r\nc\u{202e}d\u{200b}", 99), "a[31mbcd");
    }

    #[test]
    fn whatever_prints_nothing_or_turns_the_writing_vanishes() {
        let bad = "\u{ad}\u{34f}\u{61c}\u{115f}\u{17b4}\u{180e}\u{2028}\u{2066}\u{2800}\u{3000}\u{3164}\u{a0}\u{e000}\u{fe0f}\u{feff}\u{ffa0}\u{1bca0}\u{1d173}\u{e0041}\u{e0100}\u{10ffff}";
        for character in bad.chars() {
            assert!(is_invisible(character), "{character:?}");
        }
        assert_eq!(clean(bad, 999), "");
        let good = "aZ0 ~é\u{301}ßяאبक्षणไทย中あ한€→😀½";
        assert_eq!(clean(good, 999), good);
    }

    #[test]
    fn a_hostile_name_stays_one_word_of_a_command() {
        assert_eq!(shell_word("web-1.example"), "web-1.example");
        assert_eq!(shell_word("a; reboot"), "'a; reboot'");
        assert_eq!(shell_word("a'$(reboot)"), r"'a'\''$(reboot)'");
        assert_eq!(shell_word(""), "''");
    }

    proptest! {
        #[test]
        fn cleaning_is_bounded_and_idempotent(text in ".*", limit in 0usize..40) {
            let once = clean(&text, limit);
            prop_assert!(once.len() <= limit);
            prop_assert!(!once.chars().any(is_invisible));
            prop_assert_eq!(clean(&once, limit), once);
        }
    }

    #[test]
    fn a_slip_of_the_finger_is_forgiven() {
        let words = ["listener-on-node-port", "proxy-near-fd-limit"];
        let meant = |word: &str| format!(", did you mean {word:?}?");
        assert_eq!(did_you_mean("listener-on-node-prot", &words), meant(words[0]));
        assert_eq!(did_you_mean("proxy", &words), meant(words[1]));
        for other in ["proxy-left-behind", "client-socket-on-node-port", "x", ""] {
            assert_eq!(did_you_mean(other, &words), "", "{other}");
        }
        assert_eq!(did_you_mean("host-port-claimed-twice", &["node-port-claimed-twice"]), "", "another rule");
        assert_eq!(did_you_mean("mpa", &["map"]), "", "in a short word each letter must match");
        assert_eq!(did_you_mean("mab", &["map"]), meant("map"));
    }
}
