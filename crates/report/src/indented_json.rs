//! Indented JSON.

use std::io::{self, BufWriter, Write};

use serde::Serialize;

/// Writes a value, and a line end.
pub(super) fn write_indented_json(value: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    // It comes in thousands of small pieces: a writer that is known by its type takes them several times as fast.
    let mut out = BufWriter::new(out);
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    out.flush()
}
