//! The known word that a person may have meant by an unknown one.

/// The word that takes the fewest changed letters to get to; words must not be empty.
pub(super) fn closest_word<'a>(typed: &str, words: &[&'a str]) -> &'a str {
    // A name may be long; its end is ignored.
    let typed: Vec<char> = typed.chars().take(64).collect();
    words.iter().copied().min_by_key(|word| distance(&typed, word)).unwrap_or_default()
}

/// Levenshtein's distance, a row at a time.
fn distance(from: &[char], to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (deleted, letter) in from.iter().enumerate() {
        let mut diagonal = deleted;
        row[0] = deleted + 1;
        for (column, other) in to.iter().enumerate() {
            let changed = diagonal + usize::from(letter != other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_forgiven() {
        let words = ["listener-on-node-port", "proxy-left-behind"];
        assert_eq!(closest_word("listener-on-node-prot", &words), words[0]);
        assert_eq!(closest_word("proxy", &words), words[1]);
        let distance = |a: &str, b: &str| super::distance(&a.chars().collect::<Vec<_>>(), b);
        assert_eq!((distance("kitten", "sitting"), distance("", "ab"), distance("ab", "")), (3, 2, 2));
    }
}
