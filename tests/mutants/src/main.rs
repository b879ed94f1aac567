//! Inverts every condition of every rule and data plane, one at a time, on a copy, and lists those that no test notices.
//!
//! All are compiled at once: each condition gets a number, and the environment says which one is inverted. The result is
//! written to `docs/mutants.md`. A survivor that `reasons.txt` does not explain fails the run, and so does a condition of a data
//! plane that cells do not notice, and of which `not_by_cells.txt` does not say why.

#![allow(clippy::disallowed_methods, reason = "reads and copies the tree, and runs its tests")]

mod ask;
mod conditions;
mod copy;
mod report;
#[cfg(test)]
mod switch;

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use ask::{Programs, Witness};
use report::{Reasons, Report};

fn main() -> io::Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("it lies below the package");
    let read = |name: &str| {
        let text = fs::read_to_string(root.join("tests/mutants").join(name))?;
        Reasons::parse(&text).map_err(|line| io::Error::other(format!("{name}: no reason: {line}")))
    };
    let (reasons, not_by_cells) = (read("reasons.txt")?, read("not_by_cells.txt")?);

    // Of some files, to see what new tests notice: the page is about all.
    let some = env::var("FILES").unwrap_or_default();
    let copy: PathBuf = root.join("target/mutants/copy");
    let mut mutants = copy::make(root, &copy)?;
    for file in some.split_whitespace().filter(|file| !mutants.iter().any(|it| it.file == *file)) {
        return Err(io::Error::other(format!("FILES: src/{file} has no condition; name files below src")));
    }
    mutants.retain(|it| some.is_empty() || some.split_whitespace().any(|file| file == it.file));
    println!("{} conditions; compiling", mutants.len());
    let runner = root.join("tests/in-private-namespaces");
    let programs = Programs { paths: copy::compile(root, &copy)?, runner, copy };
    for witness in Witness::ALL {
        if programs.notices(witness, None)? {
            return Err(io::Error::other(format!("{witness:?}: a test fails although nothing is inverted")));
        }
    }
    println!("compiled; inverting one at a time");
    let noticed = programs.ask(&mutants)?;

    let report = Report { mutants: &mutants, noticed: &noticed, reasons: &reasons, not_by_cells: &not_by_cells };
    if !some.is_empty() {
        report.missed().iter().for_each(|line| println!("{line}"));
        return Ok(ExitCode::SUCCESS);
    }
    fs::write(root.join("docs/mutants.md"), report.document())?;
    let complaints = report.complaints();
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    let survivors = noticed.iter().filter(|it| it.first.is_none()).count();
    println!("{} conditions, {survivors} survive, {} complaints", mutants.len(), complaints.len());
    Ok(if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
