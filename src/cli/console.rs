//! Where a person sits: the terminal's width and colours, output, and complaints.

use std::{
    env,
    io::{self, BufWriter, ErrorKind, IsTerminal, Write, stderr, stdout},
};

use clap::ValueEnum;

use crate::{facts::text, sinks::Style};

/// When to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Colour {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Even into a file
    Always,
    /// Not at all
    Never,
}

/// Standard output and error, and how to write on them.
#[derive(Clone, Debug)]
pub(super) struct Console {
    /// How tables are laid out.
    pub(super) style: Style,
}

/// Columns where output is no terminal.
const WIDTH: usize = 100;
/// The longest complaint, in bytes.
const COMPLAINT: usize = 4096;

impl Console {
    pub(super) fn new(program: &str, colour: Colour) -> Self {
        let set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        let colour = match colour {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => stdout().is_terminal() && !set("NO_COLOR") && !dumb,
        };
        let width = terminal_size::terminal_size_of(stdout()).map(|(width, _)| usize::from(width.0));
        Self { style: Style { width: width.unwrap_or(WIDTH).max(40), colour, program: program.to_owned() } }
    }

    /// Writes to standard output. Whoever stops reading has seen enough: that is success.
    pub(super) fn write(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
        self.offer(write).map(|_| ())
    }

    /// The same, and says whether anybody still reads.
    pub(super) fn offer(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<bool> {
        let mut out = BufWriter::new(stdout().lock());
        match write(&mut out).and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                // What is still buffered has no reader.
                let (_, _) = out.into_parts();
                Ok(false)
            }
            written => Ok(written.map(|()| true)?),
        }
    }

    /// Says in one line what a person should know who sees only what scripts read.
    pub(super) fn remark(&self, text: &str) {
        // As below.
        drop(writeln!(stderr(), "{}", text::clean(text, COMPLAINT)));
    }

    /// Says why a command failed, in one line.
    pub(super) fn complain(&self, error: &anyhow::Error) {
        let line = text::clean(&format!("{error:#}"), COMPLAINT);
        let word = if stderr().is_terminal() && self.style.colour { "\u{1b}[1;31merror:\u{1b}[0m" } else { "error:" };
        // Where standard error is gone there is nobody left to tell.
        drop(writeln!(stderr(), "{word} {line}"));
    }
}
