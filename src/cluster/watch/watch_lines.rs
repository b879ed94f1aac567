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
    /// So many bytes of `buffer` are known to hold no end of a line.
    searched: usize,
}

impl WatchLines {
    /// The lines of an answer.
    pub(super) fn of(answer: Answer) -> Self {
        Self { answer, buffer: Vec::new(), searched: 0 }
    }

    /// The next line; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        loop {
            if let Some(length) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(self.searched + length + 1);
                self.searched = 0;
                let line = mem::replace(&mut self.buffer, rest);
                if line.iter().filter(|byte| **byte == b',').count() > VALUES {
                    return Err(self.wrong(&format!("a line holds more than {VALUES} values")));
                }
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.searched > OBJECT {
                return Err(self.wrong(&format!("a line is longer than {OBJECT} bytes")));
            }
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
