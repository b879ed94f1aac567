//! Which test programs notice that a condition is inverted.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::copy::Mutant;

/// A program that has not ended by then never will: a loop has lost its end.
const NEVER: Duration = Duration::from_secs(600);

/// The tests that run, in this order, until one notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Witness {
    /// The tests beside the rules and data planes.
    Beside,
    /// What packets showed.
    Cells,
    /// Every other test that needs no node.
    Others,
}

impl Witness {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Beside, Self::Cells, Self::Others];

    /// The programs, each with its arguments.
    fn runs(self) -> &'static [(&'static str, &'static [&'static str])] {
        match self {
            Self::Beside => &[("lib", &["rules::", "dataplane::"])],
            Self::Cells => &[("anywhere", &["verdicts::every_verdict", "verdicts::cilium::every_verdict"])],
            Self::Others => &[
                ("lib", &["--skip", "rules::", "--skip", "dataplane::"]),
                // These read the source, which is another one here.
                ("anywhere", &["--skip", "architecture::", "--skip", "verdicts::"]),
                // Cells too, and they take longer than all others.
                ("anywhere", &["verdicts::unread::"]),
            ],
        }
    }
}

/// Who notices that a condition is inverted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noticed {
    /// The first witness; nothing for a survivor.
    pub first: Option<Witness>,
    /// Whether cells notice it, first or not. Only data planes are asked: they are what packets show.
    pub by_cells: bool,
}

/// The test programs.
pub struct Programs {
    /// Each by its name.
    pub paths: BTreeMap<String, PathBuf>,
    /// What runs them on a network of their own.
    pub runner: PathBuf,
    /// The copy that they were made of.
    pub copy: PathBuf,
}

impl Programs {
    /// Whether a witness fails: with a condition inverted, or with none.
    ///
    /// # Errors
    /// When a program cannot be run.
    pub fn notices(&self, witness: Witness, inverted: Option<usize>) -> io::Result<bool> {
        for (name, arguments) in witness.runs() {
            let program = self.paths.get(*name).ok_or_else(|| io::Error::other(format!("there is no {name}")))?;
            if !self.passes(program, arguments, inverted)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn passes(&self, program: &Path, arguments: &[&str], inverted: Option<usize>) -> io::Result<bool> {
        let mut command = Command::new(&self.runner);
        command.arg(program).args(arguments).arg("--quiet").current_dir(&self.copy);
        command.env("INSTA_UPDATE", "no").env_remove("PORTREEVE_MUTANT");
        // Where a test fails is of no interest here, and takes longer to find out than that it fails.
        command.env("RUST_BACKTRACE", "0").env("PROPTEST_MAX_SHRINK_ITERS", "0");
        // Else each program runs cargo to find it out.
        command.env("INSTA_WORKSPACE_ROOT", &self.copy);
        if let Some(number) = inverted {
            command.env("PORTREEVE_MUTANT", number.to_string());
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let begun = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status.success());
            }
            if begun.elapsed() > NEVER {
                child.kill()?;
                child.wait()?;
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Who notices each mutant, in the order of the mutants.
    ///
    /// # Errors
    /// When a program cannot be run.
    pub fn ask(&self, mutants: &[Mutant]) -> io::Result<Vec<Noticed>> {
        let next = AtomicUsize::new(0);
        let told = Mutex::new(vec![Noticed::default(); mutants.len()]);
        let work = || -> io::Result<()> {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(mutant) = mutants.get(index) else { return Ok(()) };
                let noticed = self.ask_of(mutant)?;
                told.lock().expect("no worker panics")[index] = noticed;
            }
        };
        let workers = thread::available_parallelism()?.get();
        thread::scope(|scope| {
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
        })?;
        Ok(told.into_inner().expect("no worker panics"))
    }

    fn ask_of(&self, mutant: &Mutant) -> io::Result<Noticed> {
        let mut first = None;
        for witness in Witness::ALL {
            if self.notices(witness, Some(mutant.number))? {
                first = Some(witness);
                break;
            }
        }
        let by_cells = match first {
            Some(Witness::Beside) => mutant.is_of_data_plane() && self.notices(Witness::Cells, Some(mutant.number))?,
            other => other == Some(Witness::Cells),
        };
        Ok(Noticed { first, by_cells })
    }
}
