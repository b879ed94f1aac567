//! What came of it, as a document, and what was expected: survivors each have a written reason.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::{ask::Noticed, copy::Mutant};

/// Why conditions may survive: `file | function | condition | reason` a line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reasons(BTreeMap<[String; 3], String>);

impl Reasons {
    /// Of the lines of a file; empty ones, and those that begin with `#`, are for people.
    ///
    /// # Errors
    /// The first line that is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut reasons = BTreeMap::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            // A condition may have `||` in it.
            let parts: Vec<&str> = line.split(" | ").map(str::trim).collect();
            let [file, function, condition, reason] = parts[..] else { return Err(line.to_owned()) };
            reasons.insert([file, function, condition].map(str::to_owned), reason.to_owned());
        }
        Ok(Self(reasons))
    }

    fn of(&self, mutant: &Mutant) -> Option<&str> {
        self.0.get(&key(mutant)).map(String::as_str)
    }
}

fn key(mutant: &Mutant) -> [String; 3] {
    [mutant.file.clone(), mutant.condition.function.clone(), mutant.text.clone()]
}

/// Every mutant, and who notices it.
pub struct Report<'a> {
    /// The mutants.
    pub mutants: &'a [Mutant],
    /// As many answers.
    pub noticed: &'a [Noticed],
    /// Why some may survive.
    pub reasons: &'a Reasons,
}

impl Report<'_> {
    fn survivors(&self) -> impl Iterator<Item = &Mutant> {
        self.mutants.iter().zip(self.noticed).filter(|(_, it)| it.first.is_none()).map(|(mutant, _)| mutant)
    }

    /// What is not as it should be: survivors without a reason, and reasons without a survivor.
    pub fn complaints(&self) -> Vec<String> {
        let unexplained = self.survivors().filter(|it| self.reasons.of(it).is_none()).map(|it| {
            let [file, function, condition] = key(it);
            format!("src/{file}:{}: no test notices: {file} | {function} | {condition} | ", it.condition.line)
        });
        let alive: Vec<_> = self.survivors().map(key).collect();
        let idle = self.reasons.0.keys().filter(|it| !alive.contains(it));
        unexplained.chain(idle.map(|it| format!("a reason without a survivor: {}", it.join(" | ")))).collect()
    }

    /// The document.
    pub fn document(&self) -> String {
        let mut rows: BTreeMap<&str, [usize; 6]> = BTreeMap::new();
        for (mutant, noticed) in self.mutants.iter().zip(self.noticed) {
            let row = rows.entry(&mutant.file).or_default();
            row[0] += 1;
            row[noticed.first.map_or(4, |it| it as usize + 1)] += 1;
            row[5] += usize::from(noticed.by_cells);
        }
        let mut text = HEAD.to_owned();
        let mut sum = [0; 6];
        for (file, row) in &rows {
            sum = std::array::from_fn(|index| sum[index] + row[index]);
            line(&mut text, &format!("`{file}`"), *row);
        }
        line(&mut text, "**all**", sum);
        text.push_str(SURVIVORS);
        let mut survivors: Vec<_> = self.survivors().collect();
        survivors.dedup_by_key(|it| key(it));
        for mutant in survivors {
            let [file, function, condition] = key(mutant);
            let condition = condition.replace('|', "\\|");
            let reason = self.reasons.of(mutant).unwrap_or("**none is known**");
            writeln!(text, "| `{file}` | `{function}` | `{condition}` | {reason} |").expect("writing to a string");
        }
        text
    }
}

fn line(text: &mut String, name: &str, [all, beside, cells, others, survive, by_cells]: [usize; 6]) {
    writeln!(text, "| {name} | {all} | {beside} | {cells} | {others} | {survive} | {by_cells} |")
        .expect("writing to a string");
}

const HEAD: &str = "\
# Would a test notice a wrong verdict?

Every condition of every rule and data plane, inverted one at a time: each part of an `if` or a `match` guard, each
comparison, each answer of a predicate. `make mutants` writes this page.

- **Beside** are the tests beside the rules and data planes. They run first.
- **Cells** are the recorded answers of real packets. They run where the tests beside the code pass.
- **Others** are the other tests that need no node. They run last.

A column counts the conditions that these tests notice first. **Survive** counts those that no test notices. **By cells**
counts those that cells notice, first or not; only data planes are asked, since they say who answers.

| file of `src` | conditions | beside | cells | others | survive | by cells |
|---|---|---|---|---|---|---|
";

const SURVIVORS: &str = "
## Survivors

The conditions that no test notices, and why none can.

| file | function | condition | why |
|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ask::Witness, conditions::Condition};

    fn first(witness: Option<Witness>) -> Noticed {
        Noticed { first: witness, by_cells: witness == Some(Witness::Cells) }
    }

    fn mutant(number: usize, text: &str) -> Mutant {
        let condition = Condition { bytes: 0..1, line: 7, function: "check".to_owned(), is_name: false };
        Mutant { number, file: "rules/range.rs".to_owned(), condition, text: text.to_owned() }
    }

    #[test]
    fn a_survivor_needs_a_reason_and_a_reason_a_survivor() {
        let mutants = [mutant(1, "a || b"), mutant(2, "c")];
        let reasons =
            Reasons::parse("# why\n\nrules/range.rs | check | a || b | both are the same\n").expect("a reason");
        let complaints = |firsts: [Option<Witness>; 2]| {
            Report { mutants: &mutants, noticed: &firsts.map(first), reasons: &reasons }.complaints()
        };
        assert_eq!(complaints([None, Some(Witness::Cells)]), [""; 0]);
        assert_eq!(complaints([None, None]), ["src/rules/range.rs:7: no test notices: rules/range.rs | check | c | "]);
        assert_eq!(
            complaints([Some(Witness::Beside); 2]),
            ["a reason without a survivor: rules/range.rs | check | a || b"]
        );
        assert!(Reasons::parse("rules/range.rs | check").is_err());
    }

    #[test]
    fn the_document_counts_first_witnesses_and_lists_survivors() {
        let mutants = [mutant(1, "a || b"), mutant(2, "c")];
        let noticed = [None, Some(Witness::Cells)].map(first);
        let document = Report { mutants: &mutants, noticed: &noticed, reasons: &Reasons::default() }.document();
        assert!(document.contains("| **all** | 2 | 0 | 1 | 0 | 1 | 1 |"), "{document}");
        assert!(
            document.ends_with("| `rules/range.rs` | `check` | `a \\|\\| b` | **none is known** |\n"),
            "{document}"
        );
    }
}
