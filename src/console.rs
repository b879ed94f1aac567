//! The terminal: its width and colours, output, and error messages.

use std::{
    env,
    io::{self, BufWriter, ErrorKind, IsTerminal, Write, stderr, stdout},
    os::fd::AsFd as _,
};

use clap::{ArgAction, ValueEnum};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use portreeve_facts::text;
use portreeve_report::Style;

#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = "General")]
pub(super) struct ConsoleFlags {
    /// Query the agents of all nodes instead of scanning this node, as `kubectl portreeve` does
    // `--agents` is read before the command line is parsed.
    #[arg(long = "agents", global = true, display_order = 100)]
    _agents: bool,
    /// Use colour always, never, or on a terminal unless NO_COLOR is set
    #[arg(long, global = true, value_enum, value_name = "WHEN", display_order = 101, default_value_t = Colour::Auto)]
    pub(super) color: Colour,
    /// Report the steps on standard error; given twice, report more
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 102)]
    pub(super) verbose: u8,
    /// Print help; `-h` prints a summary
    #[arg(short, long = "help", id = "help", global = true, action = ArgAction::Help, display_order = 103)]
    _help: Option<bool>,
}

/// When to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Colour {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always, also into a file
    Always,
    /// Never
    Never,
}

#[derive(Clone, Debug)]
pub(super) struct Console {
    /// How tables are laid out.
    pub(super) style: Style,
}

/// The width if the output is not a terminal.
const WIDTH: usize = 100;
/// The longest error message, in bytes.
const LONGEST: usize = 4096;

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

    /// Writes to standard output. Returns no error if the program that reads the output has stopped.
    pub(super) fn write(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
        self.write_while_read(write).map(|_| ())
    }

    /// Writes like `write`, and returns whether a program still reads the output.
    pub(super) fn write_while_read(
        &self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> anyhow::Result<bool> {
        let mut out = BufWriter::new(stdout().lock());
        match write(&mut out).and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                // The rest in the buffer is dropped, because no program reads the output.
                let (_, _) = out.into_parts();
                Ok(false)
            }
            written => Ok(written.map(|()| true)?),
        }
    }

    /// Whether a program reads the output. The kernel reports an error for a pipe without a reader.
    pub(super) fn is_read(&self) -> bool {
        let out = stdout();
        let mut polled = [PollFd::new(out.as_fd(), PollFlags::empty())];
        // If the poll fails, the next write reports the error.
        let answered = poll(&mut polled, PollTimeout::ZERO).is_ok();
        !answered || !polled[0].revents().is_some_and(|it| it.contains(PollFlags::POLLERR))
    }

    /// Prints a line on standard error, because standard output may be for scripts.
    pub(super) fn print_note(&self, text: &str) {
        drop(writeln!(stderr(), "{}", text::clean(text, LONGEST)));
    }

    pub(super) fn print_error(&self, error: &anyhow::Error) {
        let line = text::clean(&format!("{error:#}"), LONGEST);
        let word = if stderr().is_terminal() && self.style.colour { "\u{1b}[1;31merror:\u{1b}[0m" } else { "error:" };
        drop(writeln!(stderr(), "{word} {line}"));
    }
}
