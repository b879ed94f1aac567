//! The lines of a watch, as they arrive.

use std::mem;

use crate::cluster::{
    answer::Answer,
    error::Error,
    meter::{OBJECT, VALUES},
};

/// The lines of an answer that goes on until one side ends it.
pub(super) struct WatchLines {
    answer: Answer,
    buffer: Vec<u8>,
    /// Where the next line begins in `buffer`.
    start: usize,
    /// So many bytes of that line are known to hold no end of it.
    searched: usize,
}

impl WatchLines {
    /// The lines of an answer.
    pub(super) fn of(answer: Answer) -> Self {
        Self { answer, buffer: Vec::new(), start: 0, searched: 0 }
    }

    /// The next line; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        loop {
            let unread = &self.buffer[self.start..];
            if let Some(length) = unread[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line = unread[..=self.searched + length].to_vec();
                self.start += line.len();
                self.searched = 0;
                if line.iter().filter(|byte| **byte == b',').count() > VALUES {
                    return Err(self.wrong(&format!("a line holds more than {VALUES} values")));
                }
                return Ok(Some(line));
            }
            self.searched = unread.len();
            if self.searched > OBJECT {
                return Err(self.wrong(&format!("a line is longer than {OBJECT} bytes")));
            }
            // Once for each frame, however many lines it had.
            self.buffer.drain(..mem::take(&mut self.start));
            match self.answer.frame().await? {
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(self.wrong("it ends inside a line")),
                Some(frame) => self.buffer.extend_from_slice(&frame),
            }
        }
    }

    /// A line that is no event of a watch.
    pub(super) fn wrong(&self, what: &str) -> Error {
        self.answer.wrong(what)
    }

    /// A line in which the server ends the watch.
    pub(super) fn refused(&self, code: u16, message: &str) -> Error {
        self.answer.refused(code, message)
    }
}
