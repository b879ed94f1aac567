//! The output forms of the map of the NodePort range.

use clap::ValueEnum;

use super::console::Console;
use portreeve_report::{write_map, write_svg};
use portreeve_rules::PortUsage;

/// The form of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum MapForm {
    /// A character a port, for a terminal
    Text,
    /// A self-contained picture for documents
    Svg,
}

impl MapForm {
    pub(super) fn draw(self, usage: &PortUsage, console: &Console) -> anyhow::Result<()> {
        console.write(|out| match self {
            Self::Text => write_map(usage, &console.style, out),
            Self::Svg => write_svg(usage, out),
        })
    }
}
