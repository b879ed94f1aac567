//! The words between the steps of remedies, for every form of a report.

use portreeve_rules::findings::{Remedy, Step};

pub(super) fn lines(remedies: &[Remedy]) -> impl Iterator<Item = (&'static str, &Step)> {
    let word = |remedy: usize, step: usize| match (remedy, step) {
        (0, 0) => "",
        (_, 0) => "or",
        (_, _) => "then",
    };
    let numbered = remedies.iter().enumerate();
    numbered.flat_map(move |(number, remedy)| {
        remedy.steps.iter().enumerate().map(move |(index, step)| (word(number, index), step))
    })
}

pub(super) fn joined(word: &str, text: &str) -> String {
    if word.is_empty() { text.to_owned() } else { format!("{word} {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_and_remedies_are_alternatives() {
        let remedies = [
            Remedy::from(Step::command("a")).then(Step::advice("b")),
            Remedy::from(Step::advice("c")).then(Step::command("d")),
        ];
        let words: Vec<String> = lines(&remedies).map(|(word, step)| joined(word, &step.text)).collect();
        assert_eq!(words, ["a", "then b", "or c", "then d"]);
        assert_eq!(lines(&[]).count(), 0);
    }
}
