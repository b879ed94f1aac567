//! IndentedFormatter JSON, byte for byte as `serde_json` writes it, with what is between two values in one piece.
//!
//! Its own formatter writes each level of the indentation by itself, which was most of what it wrote.

use std::io::{self, BufWriter, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// Writes a value, and a line end.
pub(super) fn write_indented_json(value: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    // The output has thousands of small pieces: with a concrete type of writer, this is several times as fast.
    let mut out = BufWriter::new(out);
    value.serialize(&mut Serializer::with_formatter(&mut out, IndentedFormatter::default()))?;
    writeln!(out)?;
    out.flush()
}

/// The beginning of a line: a comma after the previous value, a line end, and the deepest usual indentation.
const LINE: &[u8] = b",\n                                ";

#[derive(Default)]
struct IndentedFormatter {
    depth: usize,
    /// The innermost list or mapping has a value.
    filled: bool,
}

impl IndentedFormatter {
    fn open<W: Write + ?Sized>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        out.write_all(bracket)
    }

    fn close<W: Write + ?Sized>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.line(out, true)?;
        }
        out.write_all(bracket)
    }

    fn line<W: Write + ?Sized>(&self, out: &mut W, first: bool) -> io::Result<()> {
        let begin = usize::from(first);
        if let Some(line) = LINE.get(begin..2 + 2 * self.depth) {
            return out.write_all(line);
        }
        out.write_all(&LINE[begin..2])?;
        (0..self.depth).try_for_each(|_| out.write_all(b"  "))
    }
}

impl Formatter for IndentedFormatter {
    fn begin_array<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[")
    }

    fn end_array<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }

    fn begin_array_value<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.line(out, first)
    }

    fn end_array_value<W: Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{")
    }

    fn end_object<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.line(out, first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }

    fn end_object_value<W: Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn it_is_what_serde_json_writes() {
        let deep = (0..40).fold(json!([1]), |inside, level| match level % 2 {
            0 => json!({"a": [], "inside": inside, "b": {}}),
            _ => json!([null, inside, "text"]),
        });
        for value in [json!([]), json!({}), json!([[], {}]), json!("text"), Value::Null, deep] {
            let mut written = Vec::new();
            write_indented_json(&value, &mut written).expect("memory takes everything");
            let expected = serde_json::to_string_pretty(&value).expect("JSON");
            assert_eq!(String::from_utf8(written).expect("UTF-8"), format!("{expected}\n"));
        }
    }
}
