//! The lines of a watch: one event on each, within a bound.

use std::io::{self, ErrorKind};

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, Lines, Take};

use crate::{answer::LONGEST_OBJECT, input_meter::WHOLE};

/// The longest line, in bytes: an object and the words around it.
const LINE: u64 = LONGEST_OBJECT as u64;

/// Reads a watch line by line.
pub(crate) struct EventLines {
    /// The limit is the number of bytes that this line may still have.
    lines: Lines<Take<Box<dyn AsyncBufRead + Send + Unpin>>>,
}

impl EventLines {
    /// The lines of `body`.
    pub(crate) fn new(body: impl AsyncBufRead + Send + Unpin + 'static) -> Self {
        let body: Box<dyn AsyncBufRead + Send + Unpin> = Box::new(body.take(WHOLE as u64));
        Self { lines: body.take(LINE).lines() }
    }

    /// The next line; `None` at the end. If the caller stops to wait, no byte is lost.
    ///
    /// # Errors
    /// If the line is too long (`FileTooLarge`), is no text (`InvalidData`), or the body breaks.
    pub(crate) async fn next(&mut self) -> io::Result<Option<String>> {
        let line = self.lines.next_line().await;
        // A line that reaches the limit looks like the last line.
        if self.lines.get_ref().limit() == 0 {
            return Err(ErrorKind::FileTooLarge.into());
        }
        self.lines.get_mut().set_limit(LINE);
        line
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[tokio::test]
    async fn a_line_has_a_bound_of_its_own_and_the_lines_before_it_are_read() {
        let most = "x".repeat(LONGEST_OBJECT - 2);
        let body = format!("{most}\n{most}\n{}", "ü".repeat(LONGEST_OBJECT));
        let mut lines = EventLines::new(Cursor::new(body));
        for _ in 0..2 {
            assert_eq!(lines.next().await.expect("a line").map(|line| line.len()), Some(most.len()));
        }
        assert_eq!(lines.next().await.expect_err("no end").kind(), ErrorKind::FileTooLarge);
    }

    #[tokio::test]
    async fn the_last_line_needs_no_end() {
        let mut lines = EventLines::new(Cursor::new("a\nb"));
        for line in [Some("a"), Some("b"), None] {
            assert_eq!(lines.next().await.expect("a line").as_deref(), line);
        }
    }
}
