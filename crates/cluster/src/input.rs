//! An input that a user named. Opening a pipe does not wait for the program at its other end. Reading has limits.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Read},
    os::{fd::AsFd as _, unix::fs::OpenOptionsExt as _},
    path::PathBuf,
    time::Duration,
};

use nix::{
    fcntl::OFlag,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

use portreeve_facts::text;

/// The longest time for which a pipe may send nothing. The program that writes to the pipe may have to log in first.
const SILENCE: Duration = Duration::from_secs(60);

/// An input: a file, or standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A file. Portreeve recognizes the format from the file's content, not from its name.
    File(PathBuf),
    /// Standard input, `-`.
    Stdin,
}

impl From<PathBuf> for Input {
    fn from(path: PathBuf) -> Self {
        if path.as_os_str() == "-" { Self::Stdin } else { Self::File(path) }
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => {
                let name = text::clean(&path.to_string_lossy(), text::NAME);
                // On GitHub, a line of a log that begins with `::` is a command.
                f.write_str(if name.starts_with("::") { "./" } else { "" })?;
                f.write_str(&name)
            }
            Self::Stdin => f.write_str("standard input"),
        }
    }
}

/// The kinds of inputs that a command accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Files, pipes and standard input, for a command that reads once.
    Anything,
    /// For an agent: regular files, which can be read again and never block.
    RegularFiles,
}

impl Input {
    /// Opens the input. If the input is a pipe, the function does not wait until a program opens the other end.
    ///
    /// # Errors
    /// Fails if the input cannot be opened, is a directory, or is not accepted.
    pub fn open(&self, accepted: Accepted) -> io::Result<OpenInput> {
        let file = match self {
            Self::Stdin => File::from(io::stdin().as_fd().try_clone_to_owned()?),
            Self::File(path) => {
                let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
                if file.metadata()?.is_dir() {
                    return Err(io::Error::new(ErrorKind::IsADirectory, "is a directory"));
                }
                file
            }
        };
        let metadata = file.metadata()?;
        if accepted == Accepted::RegularFiles && !metadata.is_file() {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                "is not a regular file, and must be readable more than once",
            ));
        }
        let length = if metadata.is_file() { metadata.len() } else { 0 };
        Ok(OpenInput { file, length, silence: SILENCE })
    }

    /// Reads the whole input.
    ///
    /// # Errors
    /// As [`Self::open`], and if the input is longer than `most` bytes, sends nothing for too long, or fails.
    pub fn read(&self, accepted: Accepted, most: u64) -> io::Result<Vec<u8>> {
        let opened = self.open(accepted)?;
        let mut bytes = Vec::with_capacity(usize::try_from(opened.length.min(most)).unwrap_or(0));
        opened.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > most {
            return Err(io::Error::new(ErrorKind::FileTooLarge, format!("is longer than {most} bytes")));
        }
        Ok(bytes)
    }
}

/// An open input.
#[derive(Debug)]
pub struct OpenInput {
    file: File,
    /// The input's length in bytes; 0 if it is not known.
    pub length: u64,
    silence: Duration,
}

impl Read for OpenInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let timeout = PollTimeout::try_from(self.silence).unwrap_or(PollTimeout::MAX);
            let mut files = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
            match poll(&mut files, timeout) {
                Ok(0) => {
                    let silent = format!("no program has written to it for {} s", self.silence.as_secs_f32());
                    return Err(io::Error::new(ErrorKind::TimedOut, silent));
                }
                Ok(_) => {}
                Err(nix::errno::Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            }
            match self.file.read(buffer) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                read => return read,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    fn pipe() -> (tempfile::TempDir, Input) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pipe");
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).expect("a pipe");
        (directory, Input::from(path))
    }

    #[test]
    fn a_pipe_without_a_writer_ends_with_an_error() {
        let (_directory, input) = pipe();
        let mut opened = input.open(Accepted::Anything).expect("the pipe exists");
        opened.silence = Duration::from_millis(20);
        let error = opened.read(&mut [0; 8]).expect_err("no program writes");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        let error = input.open(Accepted::RegularFiles).expect_err("no file");
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }

    #[test]
    fn a_pipe_is_read_to_its_end() {
        let (directory, input) = pipe();
        let path = directory.path().join("pipe");
        let writer = std::thread::spawn(move || std::fs::write(path, "x".repeat(200_000)));
        assert_eq!(input.read(Accepted::Anything, 200_000).expect("all of it").len(), 200_000);
        writer.join().expect("it ends").expect("it was written");
    }

    #[test]
    fn an_endless_file_is_read_up_to_its_limit() {
        let error = Input::from(PathBuf::from("/dev/zero")).read(Accepted::Anything, 4096).expect_err("endless");
        assert_eq!(error.to_string(), "is longer than 4096 bytes");
    }
}
