//! Splits a YAML stream into its documents, so that each is parsed on its own.
//!
//! A line that begins with `---` or `...` ends a document anywhere, even inside a block scalar (YAML 1.2.2, 9.1.2). So
//! lines are enough to find the documents.

use std::io::{self, BufRead, Read};

/// The greatest number of bytes of a line that are kept at one time.
const CHUNK: u64 = 8 << 10;

/// The documents of a stream. Reading gives the current document.
pub(super) struct Documents<R> {
    reader: R,
    chunk: Vec<u8>,
    served: usize,
    /// The next chunk begins a line.
    fresh: bool,
    /// The number of lines that have begun.
    lines: u64,
    /// The current document has begun: another `---` ends it.
    begun: bool,
    /// The present chunk belongs to the next document.
    ended: bool,
}

impl<R: BufRead> Documents<R> {
    /// The documents of `reader`.
    pub(super) fn new(reader: R) -> Self {
        Self { reader, chunk: Vec::new(), served: 0, fresh: true, lines: 0, begun: false, ended: true }
    }

    /// Skips the rest of the current document and goes to the next one; false if there is none.
    pub(super) fn advance(&mut self) -> io::Result<bool> {
        while self.fill()? {
            self.served = self.chunk.len();
        }
        (self.begun, self.ended) = (false, false);
        let more = self.served < self.chunk.len();
        if more {
            self.begin_line();
        }
        Ok(more || self.fill()?)
    }

    /// The current line, counted from 1.
    pub(super) fn line(&self) -> u64 {
        self.lines
    }

    /// Makes sure that bytes of the current document are available; false at its end.
    fn fill(&mut self) -> io::Result<bool> {
        if self.ended {
            return Ok(false);
        }
        if self.served < self.chunk.len() {
            return Ok(true);
        }
        self.chunk.clear();
        self.served = 0;
        self.reader.by_ref().take(CHUNK).read_until(b'\n', &mut self.chunk)?;
        if self.chunk.is_empty() {
            return Ok(false);
        }
        let begins = self.fresh;
        self.fresh = self.chunk.ends_with(b"\n");
        if begins {
            self.lines += 1;
            if is_marker(&self.chunk, b"...") {
                // The text after the marker is a document; the marker itself is not.
                self.chunk.clear();
                self.chunk.push(b'\n');
                self.ended = self.begun;
            } else if is_marker(&self.chunk, b"---") && self.begun {
                self.ended = true;
                return Ok(false);
            }
            self.begin_line();
        }
        Ok(!self.ended)
    }

    fn begin_line(&mut self) {
        let first = self.chunk.iter().find(|byte| !byte.is_ascii_whitespace());
        self.begun |= first.is_some_and(|byte| !matches!(byte, b'#' | b'%'));
    }
}

impl<R: BufRead> Read for Documents<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.fill()? {
            return Ok(0);
        }
        let rest = &self.chunk[self.served..];
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        self.served += length;
        Ok(length)
    }
}

/// Whether a line is a document marker: `---` alone, or followed by a blank.
fn is_marker(line: &[u8], marker: &[u8]) -> bool {
    line.strip_prefix(marker).is_some_and(|rest| rest.first().is_none_or(u8::is_ascii_whitespace))
}
