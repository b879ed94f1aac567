//! Text that somebody else wrote, made safe to print.

/// The longest name kept from outside, in bytes: Kubernetes' own limit for a DNS subdomain (RFC 1123).
pub const NAME: usize = 253;

/// A copy of at most `limit` bytes, cut on a character boundary, without control, bidirectional and zero-width
/// characters; what was removed or cut is not replaced, so the result is safe in a terminal, a table and an Event.
pub fn clean(text: &str, limit: usize) -> String {
    // Nearly every name is such a one.
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

/// A word that a shell takes as it is: Kubernetes' names are such words, what a file calls a name need not be.
pub fn shell_word(text: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-._:/".contains(character);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Whether a character is one that `clean` removes: control characters, and those of Unicode's general category Cf that hide or reorder text.
pub fn is_invisible(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
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
}
