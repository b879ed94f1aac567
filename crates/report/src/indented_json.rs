//! Indented JSON.

use std::io::{self, BufWriter, Write};

use serde::Serialize;

pub(super) fn write_indented_json(value: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    // The output has thousands of small parts. Here, a concrete type of writer is several times as fast as `dyn Write`.
    let mut out = BufWriter::new(out);
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    out.flush()
}
