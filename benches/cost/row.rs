//! A row of the table: a measurement, its promise, and whether the measurement keeps the promise.

use std::fmt;

use serde::Serialize;

/// The median and the quartiles of some values. Equal quartiles are not printed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

impl Spread {
    /// # Panics
    /// Panics if there are no measurements.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
        Self { low: at(0.25), median: at(0.5), high: at(0.75) }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { low, median, high } = self;
        let [low, median, high] = [low, median, high].map(|it| digits(*it));
        if low == high { write!(f, "{median}") } else { write!(f, "{median} ({low}..{high})") }
    }
}

pub fn digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size < 0.1 => format!("{value:.3}"),
        size if size < 1.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Promise {
    /// The other program takes at least this multiple of Portreeve's time.
    Times(f64),
    AtMost(f64),
    None,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The name of the measurement, which must stay the same: the baseline finds the row by this name.
    pub what: String,
    pub ours: Spread,
    pub unit: String,
    pub theirs: Option<(String, Spread)>,
    /// The other program's time divided by Portreeve's time, in each round.
    pub ratio: Option<Spread>,
    pub promise: Promise,
    pub failed: Option<String>,
}

impl Row {
    pub fn alone(what: impl Into<String>, unit: &str, values: impl IntoIterator<Item = f64>, promise: Promise) -> Self {
        let (what, unit) = (what.into(), unit.to_owned());
        Self { what, ours: Spread::of(values), unit, theirs: None, ratio: None, promise, failed: None }
    }

    /// A row with the milliseconds of Portreeve and of another program, measured in the same rounds.
    pub fn against(what: impl Into<String>, ours: &[f64], (who, theirs): (&str, &[f64]), promise: Promise) -> Self {
        let ratio = Spread::of(ours.iter().zip(theirs).map(|(ours, theirs)| theirs / ours));
        let theirs = Spread::of(theirs.iter().copied());
        let row = Self::alone(what, "ms", ours.iter().copied(), promise);
        Self { theirs: Some((who.to_owned(), theirs)), ratio: Some(ratio), ..row }
    }

    pub fn provided(self, same: &Result<(), String>) -> Self {
        Self { failed: same.clone().err(), ..self }
    }

    pub fn complaint(&self) -> Option<String> {
        if let Some(failed) = &self.failed {
            return Some(failed.clone());
        }
        match (self.promise, self.ratio) {
            (Promise::Times(wanted), Some(ratio)) if ratio.median < wanted => {
                Some(format!("{} times is less than the {} promised", digits(ratio.median), digits(wanted)))
            }
            (Promise::AtMost(most), _) if self.ours.median > most => {
                Some(format!("{} {} is more than the {} promised", digits(self.ours.median), self.unit, digits(most)))
            }
            _ => None,
        }
    }
}
