//! What came of it, as a document, and what was expected: survivors each have a written reason.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use crate::{ask::Noticed, copy::Mutant};

/// Why a witness may miss conditions: `file | function | condition | reason` a line. `*` is every function of the file, or every
/// condition of the function.
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

    /// The line for a mutant: the narrowest that fits.
    fn of(&self, mutant: &Mutant) -> Option<(&[String; 3], &str)> {
        let [file, function, condition] = key(mutant);
        let every = || "*".to_owned();
        let keys =
            [[file.clone(), function.clone(), condition], [file.clone(), function, every()], [file, every(), every()]];
        keys.iter().find_map(|key| self.0.get_key_value(key)).map(|(key, reason)| (key, reason.as_str()))
    }

    /// Those that are about none of these.
    fn idle(&self, missed: &[&Mutant]) -> impl Iterator<Item = String> {
        let used: BTreeSet<_> = missed.iter().filter_map(|it| self.of(it)).map(|(key, _)| key).collect();
        self.0.keys().filter(move |key| !used.contains(key)).map(|key| key.join(" | "))
    }
}

fn key(mutant: &Mutant) -> [String; 3] {
    [mutant.file.clone(), mutant.condition.function.clone(), mutant.text.clone()]
}

/// The beginning of a reason for what is missed, with its place.
fn place(missed: &Mutant, who: &str) -> String {
    let [file, function, condition] = key(missed);
    format!("src/{file}:{}: no {who} notices: {file} | {function} | {condition} | ", missed.condition.line)
}

/// Every mutant, and who notices it.
pub struct Report<'a> {
    /// The mutants.
    pub mutants: &'a [Mutant],
    /// As many answers.
    pub noticed: &'a [Noticed],
    /// Why some may survive.
    pub reasons: &'a Reasons,
    /// Why cells may miss some of data planes.
    pub not_by_cells: &'a Reasons,
}

impl Report<'_> {
    fn those(&self, holds: impl Fn(&Mutant, &Noticed) -> bool) -> Vec<&Mutant> {
        let pairs = self.mutants.iter().zip(self.noticed);
        pairs.filter(|(mutant, noticed)| holds(mutant, noticed)).map(|(mutant, _)| mutant).collect()
    }

    fn survivors(&self) -> Vec<&Mutant> {
        self.those(|_, noticed| noticed.first.is_none())
    }

    /// Conditions of data planes that others notice, and cells do not.
    fn missed_by_cells(&self) -> Vec<&Mutant> {
        self.those(|it, noticed| it.is_of_data_plane() && noticed.first.is_some() && !noticed.by_cells)
    }

    /// What tests miss, and what cells do, each with its place.
    pub fn missed(&self) -> Vec<String> {
        let missed = [("test", self.survivors()), ("cell", self.missed_by_cells())];
        missed.iter().flat_map(|(who, missed)| missed.iter().map(move |it| place(it, who))).collect()
    }

    /// What is not as it should be: what a witness misses without a reason, and reasons for what it does not miss.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for (who, missed, reasons) in
            [("test", self.survivors(), self.reasons), ("cell", self.missed_by_cells(), self.not_by_cells)]
        {
            complaints.extend(missed.iter().filter(|it| reasons.of(it).is_none()).map(|it| place(it, who)));
            complaints
                .extend(reasons.idle(&missed).map(|it| format!("needs no reason any more, some {who} notices: {it}")));
        }
        complaints
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
        let mut survivors = self.survivors();
        survivors.dedup_by_key(|it| key(it));
        for mutant in survivors {
            let [file, function, condition] = key(mutant);
            let condition = condition.replace('|', "\\|");
            let reason = self.reasons.of(mutant).map_or(NONE, |(_, reason)| reason);
            writeln!(text, "| `{file}` | `{function}` | `{condition}` | {reason} |").expect("writing to a string");
        }
        text.push_str(NOT_BY_CELLS);
        let mut missed: BTreeMap<(&str, &str, &str), usize> = BTreeMap::new();
        for mutant in self.missed_by_cells() {
            let reason = self.not_by_cells.of(mutant);
            let function = reason.map_or(mutant.condition.function.as_str(), |([_, function, _], _)| function);
            *missed.entry((&mutant.file, function, reason.map_or(NONE, |(_, reason)| reason))).or_default() += 1;
        }
        for ((file, function, reason), count) in missed {
            let function = if function == "*" { "all".to_owned() } else { format!("`{function}`") };
            writeln!(text, "| `{file}` | {function} | {count} | {reason} |").expect("writing to a string");
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

const NOT_BY_CELLS: &str = "
## Of data planes, not by cells

The conditions of data planes that other tests notice and recorded packets do not, and why.

| file | function | conditions | why |
|---|---|---|---|
";

const NONE: &str = "**none is known**";

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

    const NO_REASONS: &Reasons = &Reasons(BTreeMap::new());

    #[test]
    fn a_survivor_needs_a_reason_and_a_reason_a_survivor() {
        let mutants = [mutant(1, "a || b"), mutant(2, "c")];
        let reasons =
            Reasons::parse("# why\n\nrules/range.rs | check | a || b | both are the same\n").expect("a reason");
        let complaints = |firsts: [Option<Witness>; 2]| {
            let noticed = firsts.map(first);
            Report { mutants: &mutants, noticed: &noticed, reasons: &reasons, not_by_cells: NO_REASONS }.complaints()
        };
        assert_eq!(complaints([None, Some(Witness::Cells)]), [""; 0]);
        assert_eq!(complaints([None, None]), ["src/rules/range.rs:7: no test notices: rules/range.rs | check | c | "]);
        assert_eq!(
            complaints([Some(Witness::Beside); 2]),
            ["needs no reason any more, some test notices: rules/range.rs | check | a || b"]
        );
        assert!(Reasons::parse("rules/range.rs | check").is_err());
    }

    #[test]
    fn what_cells_miss_of_a_data_plane_needs_a_reason_of_its_function_or_file() {
        let of_plane = |number, text| Mutant { file: "dataplane/a.rs".to_owned(), ..mutant(number, text) };
        let mutants = [of_plane(1, "a"), of_plane(2, "b"), mutant(3, "c")];
        let report = |reasons: &str, firsts: [Option<Witness>; 3]| {
            let not_by_cells = Reasons::parse(reasons).expect("reasons");
            let noticed = firsts.map(first);
            let report =
                Report { mutants: &mutants, noticed: &noticed, reasons: NO_REASONS, not_by_cells: &not_by_cells };
            (report.complaints(), report.document())
        };
        let beside = [Some(Witness::Beside); 3];
        let (complaints, document) = report("", beside);
        assert_eq!(complaints.len(), 2, "a rule needs no cell: {complaints:?}");
        assert_eq!(complaints[0], "src/dataplane/a.rs:7: no cell notices: dataplane/a.rs | check | a | ");
        assert!(document.ends_with("| `dataplane/a.rs` | `check` | 2 | **none is known** |\n"), "{document}");
        for (reasons, row) in [
            ("dataplane/a.rs | check | * | no packet shows it", "| `check` | 2 | no packet shows it |"),
            ("dataplane/a.rs | * | * | no packet shows it", "| all | 2 | no packet shows it |"),
        ] {
            let (complaints, document) = report(reasons, beside);
            assert_eq!(complaints, [""; 0]);
            assert!(document.contains(row), "{document}");
            let (complaints, _) = report(reasons, [Some(Witness::Cells); 3]);
            assert_eq!(
                complaints,
                [format!(
                    "needs no reason any more, some cell notices: {}",
                    reasons.trim_end_matches(" | no packet shows it")
                )]
            );
        }
    }

    #[test]
    fn the_document_counts_first_witnesses_and_lists_survivors() {
        let mutants = [mutant(1, "a || b"), mutant(2, "c")];
        let noticed = [None, Some(Witness::Cells)].map(first);
        let report = Report { mutants: &mutants, noticed: &noticed, reasons: NO_REASONS, not_by_cells: NO_REASONS };
        let document = report.document();
        assert!(document.contains("| **all** | 2 | 0 | 1 | 0 | 1 | 1 |"), "{document}");
        let row = "| `rules/range.rs` | `check` | `a \\|\\| b` | **none is known** |\n";
        assert!(document.contains(row), "{document}");
    }
}
