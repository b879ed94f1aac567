//! Splits a YAML stream into documents, so that each document is parsed alone.
//!
//! A line that begins with `---` or `...` always ends a document, even inside a block scalar (YAML 1.2.2, 9.1.2). So
//! the end of a document is found without parsing the document.

use std::{
    io::{self, BufRead, Read},
    mem,
};

const CHUNK: u64 = 8 << 10;
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A reader for one document at a time. [`Self::advance`] goes to the next document.
pub(super) struct Documents<R> {
    reader: R,
    chunk: Vec<u8>,
    served: usize,
    /// Whether the next chunk is the beginning of a line.
    fresh: bool,
    lines: u64,
    /// Whether the current document has begun. If true, another `---` ends the document.
    begun: bool,
    /// Whether the chunk in memory belongs to the next document.
    ended: bool,
    /// Whether the previous line was `---`.
    marked: bool,
}

impl<R: BufRead> Documents<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, chunk: Vec::new(), served: 0, fresh: true, lines: 0, begun: false, ended: true, marked: false }
    }

    /// Goes to the next document. Returns false at the end of the stream.
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

    /// Reads the next chunk. Returns false at the end of the document.
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
            // kubectl accepts a byte order mark after `---`, and refuses it on later lines. A user may join files that
            // begin with a byte order mark, with `---` between the files.
            if mem::take(&mut self.marked) && self.chunk.starts_with(BYTE_ORDER_MARK) {
                self.chunk.drain(..BYTE_ORDER_MARK.len());
            }
            self.marked = is_marker(&self.chunk, b"---");
            if is_marker(&self.chunk, b"...") {
                // The marker line is replaced by an empty line of the document.
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

fn is_marker(line: &[u8], marker: &[u8]) -> bool {
    line.strip_prefix(marker).is_some_and(|rest| rest.first().is_none_or(u8::is_ascii_whitespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(text: &str) -> Vec<(u64, String)> {
        let mut documents = Documents::new(text.as_bytes());
        let mut all = Vec::new();
        while documents.advance().expect("bytes in memory") {
            let (line, mut document) = (documents.line(), String::new());
            documents.read_to_string(&mut document).expect("UTF-8");
            all.push((line, document));
        }
        all
    }

    /// kubectl 1.32 accepts a byte order mark on the first line and after `---`. On any other line, kubectl refuses the
    /// mark.
    #[test]
    fn a_byte_order_mark_is_skipped_at_the_beginning_of_a_document_only() {
        let joined = documents("a: 1\n---\n\u{feff}b: 2\n--- # c\n\u{feff}---\nc: 3\n");
        let joined: Vec<_> = joined.iter().map(|(line, text)| (*line, text.as_str())).collect();
        assert_eq!(joined, [(1, "a: 1\n"), (2, "---\nb: 2\n"), (4, "--- # c\n"), (5, "---\nc: 3\n")]);
        for refused in ["a: 1\n\u{feff}---\nb: 2\n", "---\na: 1\n\u{feff}b: 2\n"] {
            assert!(documents(refused).iter().any(|(_, text)| text.contains('\u{feff}')), "{refused:?}");
        }
    }
}
