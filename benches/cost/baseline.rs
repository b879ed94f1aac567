//! The ratios of an earlier run, and the machine of that run.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::row::{Row, digits};

/// A run with `UPDATE=1` writes this file again.
const FILE: &str = "benches/baseline.json";
/// A ratio may fall to this fraction of its baseline, because other work on the machine changes each ratio.
const KEPT: f64 = 0.8;

#[derive(Serialize, Deserialize)]
pub struct Baseline {
    machine: String,
    /// Ratios by the name of the measurement.
    ratios: BTreeMap<String, f64>,
    #[serde(skip)]
    path: PathBuf,
}

impl Baseline {
    pub fn of(root: &Path) -> Self {
        let path = root.join(FILE);
        match fs::read_to_string(&path) {
            Ok(text) => Self { path, ..serde_json::from_str(&text).expect("a baseline") },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Self { machine: String::new(), ratios: BTreeMap::new(), path }
            }
            Err(error) => panic!("{FILE}: {error}"),
        }
    }

    /// If the baseline is of another machine, returns a text that explains why no row is compared with the baseline.
    pub fn unfit(&self, machine: &str) -> Option<String> {
        let other = self.machine != machine;
        other.then(|| {
            format!("The baseline is of another machine, so only promises are compared. It is of: {}", self.machine)
        })
    }

    pub fn complaint(&self, row: &Row, machine: &str) -> Option<String> {
        let (before, ratio) = (self.ratios.get(&row.what)?, row.ratio?);
        let worse = self.machine == machine && ratio.high < KEPT * before;
        worse.then(|| format!("{} times was {} times before", digits(ratio.median), digits(*before)))
    }

    /// If the ratios are of another machine, first removes all of them. Then `rows` must be complete.
    pub fn update(&mut self, rows: &[Row], machine: &str) {
        if self.machine != machine {
            self.ratios.clear();
            machine.clone_into(&mut self.machine);
        }
        let sound = rows.iter().filter(|row| row.failed.is_none());
        self.ratios.extend(sound.filter_map(|row| Some((row.what.clone(), rounded(row.ratio?.median)))));
        let text = serde_json::to_string_pretty(self).expect("JSON");
        fs::write(&self.path, text + "\n").expect("a file");
    }
}

fn rounded(ratio: f64) -> f64 {
    digits(ratio).parse().expect("a number")
}
