//! The lines of a watch, as they arrive.

use std::mem;

use hyper::body::Bytes;
use tokio::time::{Instant, sleep, timeout};

use super::reading_pace::{ReadingPace, TOGETHER};
use crate::{
    answer::Answer,
    error::Error,
    meter::{OBJECT, Stopped, VALUES},
    value_counter::ValueCounter,
};

/// So many frames of a watch are read at once, whatever came before it: a server that refuses it says so in the first.
const FIRST: u32 = 4;

/// Cuts lines out of pieces that end anywhere.
#[derive(Default)]
pub struct LineBuffer {
    bytes: Vec<u8>,
    /// Where the next line begins in `bytes`.
    start: usize,
    /// So many bytes of that line are known to hold no end of it.
    searched: usize,
}

impl LineBuffer {
    /// Adds what has arrived.
    pub fn push(&mut self, piece: &[u8]) {
        // Once for each piece, however many lines it had.
        self.bytes.drain(..mem::take(&mut self.start));
        self.bytes.extend_from_slice(piece);
    }

    /// The next whole line, with its end; `None` where more has to arrive first. The error is for people.
    pub fn next_line(&mut self) -> Result<Option<Vec<u8>>, String> {
        let unread = &self.bytes[self.start..];
        let Some(length) = unread[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = unread.len();
            return if self.searched > OBJECT {
                Err(format!("a line is longer than {OBJECT} bytes"))
            } else {
                Ok(None)
            };
        };
        let line = unread[..=self.searched + length].to_vec();
        self.start += line.len();
        self.searched = 0;
        if ValueCounter::of(&line) > VALUES {
            return Err(format!("a line holds more than {VALUES} values"));
        }
        Ok(Some(line))
    }

    /// Whether the last line has ended.
    pub fn is_between_lines(&self) -> bool {
        self.start == self.bytes.len()
    }
}

/// The lines of an answer that goes on until one side ends it.
pub struct WatchLines {
    answer: Answer,
    buffer: LineBuffer,
    /// Whether a frame was read just now, so that more of them may be there already.
    in_batch: bool,
    /// Frames that were read, up to [`FIRST`].
    frames: u32,
    /// Since when batches have ended although more may have been there.
    behind: Option<Instant>,
}

impl WatchLines {
    /// The lines of an answer.
    pub fn of(answer: Answer) -> Self {
        Self { answer, buffer: LineBuffer::default(), in_batch: false, frames: 0, behind: None }
    }

    /// The next line; `None` at the end. With a pace, frames that never end are read in batches; without one, they wake the
    /// process each.
    pub(crate) async fn next(&mut self, mut pace: Option<&mut ReadingPace>) -> Result<Option<Vec<u8>>, Error> {
        loop {
            if let Some(line) = self.buffer.next_line().map_err(|what| self.wrong(&what))? {
                return Ok(Some(line));
            }
            match self.frame(pace.as_deref_mut()).await? {
                None if self.buffer.is_between_lines() => return Ok(None),
                None => return Err(self.wrong("it ends inside a line")),
                Some(frame) => self.buffer.push(&frame),
            }
        }
    }

    /// Since when the server may have had more to say than was read; `None` where all of it was.
    pub fn behind(&self) -> Option<Instant> {
        self.behind
    }

    /// The next frame. Whoever stops waiting for it loses nothing.
    async fn frame(&mut self, pace: Option<&mut ReadingPace>) -> Result<Option<Bytes>, Error> {
        let Some(pace) = pace else { return self.answer.frame().await };
        let in_batch = mem::take(&mut self.in_batch);
        let goes_on = in_batch && !pace.is_full();
        let together = if goes_on { timeout(TOGETHER, self.answer.frame()).await.ok() } else { None };
        let frame = match together {
            Some(frame) => frame,
            None => {
                let now = Instant::now();
                if in_batch {
                    self.behind = if goes_on { None } else { self.behind.or(Some(now)) };
                }
                let pause = pace.pause(now);
                if self.frames >= FIRST {
                    sleep(pause).await;
                }
                self.answer.frame().await
            }
        };
        self.frames = (self.frames + 1).min(FIRST);
        pace.read(frame.as_ref().ok().and_then(Option::as_ref).map_or(0, Bytes::len));
        self.in_batch = true;
        frame
    }

    /// A line that is no event of a watch.
    pub fn wrong(&self, what: &str) -> Error {
        self.answer.wrong(what)
    }

    /// Lines that are not read to their end.
    pub fn stopped(&self, why: &Stopped) -> Error {
        self.answer.stopped(why)
    }

    /// A line in which the server ends the watch.
    pub fn refused(&self, code: u16, message: &str) -> Error {
        self.answer.refused(code, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_end_anywhere_are_the_same_lines() {
        let text = b"one\n\ntwo,2\nthree";
        for size in 1..=text.len() {
            let (mut buffer, mut lines) = (LineBuffer::default(), Vec::new());
            for piece in text.chunks(size) {
                buffer.push(piece);
                while let Some(line) = buffer.next_line().expect("short lines") {
                    lines.push(line);
                }
            }
            assert_eq!(lines, [&b"one\n"[..], b"\n", b"two,2\n"], "pieces of {size}");
            assert!(!buffer.is_between_lines());
            buffer.push(b"\n");
            assert_eq!(buffer.next_line(), Ok(Some(b"three\n".to_vec())));
            assert!(buffer.is_between_lines());
        }
    }

    #[test]
    fn a_line_without_an_end_and_one_of_too_many_values_are_errors() {
        let mut buffer = LineBuffer::default();
        buffer.push(&vec![b' '; OBJECT]);
        assert_eq!(buffer.next_line(), Ok(None));
        buffer.push(b" ");
        assert!(buffer.next_line().is_err_and(|what| what.contains("longer")));
        let mut buffer = LineBuffer::default();
        buffer.push(&[&b"\""[..], &vec![b','; VALUES + 1], b"\"\n"].concat());
        assert!(buffer.next_line().is_ok_and(|line| line.is_some()), "commas of a text are no values");
        buffer.push(&vec![b','; VALUES + 1]);
        buffer.push(b"\n");
        assert!(buffer.next_line().is_err_and(|what| what.contains("values")));
    }
}
