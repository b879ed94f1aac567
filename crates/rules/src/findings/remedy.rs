//! Remedies as data. The forms of a report add the words between the steps.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Effect;

/// One remedy of a problem: its steps, in order. Several remedies of one problem are alternatives, and each is enough.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Remedy {
    /// The steps, in this order.
    pub steps: Vec<Step>,
}

/// One step of a remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Whether the text is for a shell or for a person.
    pub kind: StepKind,
    /// The exact command for a shell, or advice for a person.
    pub text: String,
    /// The advice in words without the value that this scan chose, if `text` contains such a value.
    #[serde(skip)]
    lasting: Option<String>,
    /// The change that the step makes. `None` if the step only shows something, or if its result depends on the user.
    #[serde(skip)]
    effect: Option<Box<Effect>>,
}

/// The kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StepKind {
    /// A command: a shell runs it as it is.
    Command,
    /// Advice: a person reads it. A command with a placeholder is advice too.
    Advice,
}

impl Step {
    /// A command for a shell.
    pub fn command(text: impl Into<String>) -> Self {
        Self { kind: StepKind::Command, text: text.into(), lasting: None, effect: None }
    }

    /// Words for a person.
    pub fn advice(text: impl Into<String>) -> Self {
        Self { kind: StepKind::Advice, text: text.into(), lasting: None, effect: None }
    }

    /// Adds the advice in words without the value that this scan chose.
    #[must_use]
    pub fn lasting(mut self, words: impl Into<String>) -> Self {
        self.lasting = Some(words.into());
        self
    }

    /// Adds the change that the step makes.
    #[must_use]
    pub fn with(mut self, effect: Effect) -> Self {
        self.effect = Some(Box::new(effect));
        self
    }

    /// The change that the step makes, if known.
    pub fn effect(&self) -> Option<&Effect> {
        self.effect.as_deref()
    }

    /// The words that stay true later and on other nodes: `lasting` if there is one, otherwise the text.
    pub fn in_lasting_words(&self) -> &str {
        self.lasting.as_deref().unwrap_or(&self.text)
    }
}

impl Remedy {
    /// Adds a step to the end.
    #[must_use]
    pub fn then(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }
}

impl From<Step> for Remedy {
    fn from(step: Step) -> Self {
        Self { steps: vec![step] }
    }
}

impl From<Vec<Step>> for Remedy {
    fn from(steps: Vec<Step>) -> Self {
        Self { steps }
    }
}

/// The remedies of two problems that are reported together. Each combined remedy ends both problems. The function first
/// combines the most direct remedy of the first problem with the most direct remedy of the second problem. If two
/// remedies have the same step, the combined remedy has the step once.
pub(super) fn of_both(mine: Vec<Remedy>, others: Vec<Remedy>) -> Vec<Remedy> {
    let (Some(first), Some(other_first)) = (mine.first(), others.first()) else {
        return if mine.is_empty() { others } else { mine };
    };
    let mut both: Vec<Remedy> = Vec::new();
    for index in 0..mine.len().max(others.len()) {
        let mut remedy = mine.get(index).unwrap_or(first).clone();
        for step in &others.get(index).unwrap_or(other_first).steps {
            if !remedy.steps.contains(step) {
                remedy.steps.push(step.clone());
            }
        }
        if !both.contains(&remedy) {
            both.push(remedy);
        }
    }
    both
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remedies(texts: &[&[&str]]) -> Vec<Remedy> {
        texts.iter().map(|steps| steps.iter().map(|it| Step::advice(*it)).collect::<Vec<_>>().into()).collect()
    }

    #[test]
    fn each_remedy_of_two_problems_ends_both() {
        let both = |mine, others| of_both(remedies(mine), remedies(others));
        assert_eq!(
            both(&[&["move a"], &["patch"]], &[&["move b"], &["patch"]]),
            remedies(&[&["move a", "move b"], &["patch"]])
        );
        assert_eq!(both(&[&["a"], &["b"]], &[&["c"]]), remedies(&[&["a", "c"], &["b", "c"]]));
        assert_eq!(
            both(&[&["reserve", "restart a"]], &[&["reserve", "restart b"]]),
            remedies(&[&["reserve", "restart a", "restart b"]])
        );
        assert_eq!(both(&[&["a"], &["b"]], &[]), remedies(&[&["a"], &["b"]]));
        assert_eq!(both(&[], &[&["c"]]), remedies(&[&["c"]]));
        assert_eq!(both(&[&["a"]], &[&["a"], &["a"]]), remedies(&[&["a"]]));
    }
}
