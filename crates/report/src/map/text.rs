//! The picture of the NodePort range in characters.

use std::io::{self, Write};

use super::{
    super::{
        Style,
        terminal::{Ink, tidy, wrap},
    },
    PortState, counts, remarks, rows,
};
use portreeve_rules::PortUsage;

const LABEL: usize = 7;

fn ports_in_row(width: usize) -> u16 {
    [100, 50].into_iter().find(|ports| LABEL + usize::from(*ports) <= width).unwrap_or(25)
}

/// Writes the map, its legend and the conflicts. The rows are not longer than the terminal.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_map(census: &PortUsage, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let range = census.range.range;
    let title = format!("NodePorts {range} ({})", tidy(&census.range.place));
    writeln!(out, "{}\n", style.paint(Ink::Heading, &title))?;
    let row = ports_in_row(style.width);
    let ruler: String = (0..row / 10).map(|tens| format!("{:<10}", format!("+{}", tens * 10))).collect();
    writeln!(out, "{:LABEL$}{}", "", style.paint(Ink::Faint, ruler.trim_end()))?;
    for first in rows(census, row) {
        let ports = first..=first.saturating_add(row - 1);
        let drawn = |port| if range.contains(port) { drawn(census, port) } else { (Ink::Plain, ' ') };
        let symbols: Vec<(Ink, char)> = ports.map(drawn).collect();
        let painted = |run: &[(Ink, char)]| style.paint(run[0].0, &run.iter().map(|it| it.1).collect::<String>());
        let line: String = symbols.chunk_by(|one, next| one.0 == next.0).map(painted).collect();
        writeln!(out, "{}  {}", style.paint(Ink::Faint, &format!("{first:>5}")), line.trim_end())?;
    }
    writeln!(out)?;
    for (state, count) in counts(census) {
        let look = state.look();
        writeln!(out, "  {} {count:>5}  {}", style.paint(look.ink, &look.symbol.to_string()), state.legend())?;
    }
    write_conflicts(census, style, out)?;
    writeln!(out)?;
    for remark in remarks(census) {
        for line in wrap(&tidy(&remark), style.width.clamp(40, LABEL + 100)) {
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

const NAMED: usize = 10;

fn write_conflicts(census: &PortUsage, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let listened = || census.used.iter().filter_map(|(port, used)| Some((port, used.taken.as_deref()?, used)));
    if listened().next().is_none() {
        return Ok(());
    }
    writeln!(out)?;
    for (port, listener, used) in listened().take(NAMED) {
        let ink = PortState::of(census, *port).look().ink;
        let service = used.allocated.as_ref().map(|(service, _)| format!(", owned by Service {}", tidy(service)));
        let port = style.paint(ink, &format!("{port:>5}"));
        writeln!(out, "  {port}  {}{}", tidy(listener), service.unwrap_or_default())?;
    }
    let more = listened().count().saturating_sub(NAMED);
    if more > 0 {
        writeln!(out, "  and {more} more such ports")?;
    }
    Ok(())
}

/// The symbol of a port. If the kernel may give an allocated port to connections, the symbol is underlined.
fn drawn(census: &PortUsage, port: u16) -> (Ink, char) {
    let state = PortState::of(census, port);
    let look = state.look();
    let at_risk = matches!(state, PortState::Fixed | PortState::Automatic | PortState::Allocated)
        && census.ephemeral.contains(port);
    (if at_risk { Ink::Raw("4;33") } else { look.ink }, look.symbol)
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::Snapshot;
    use portreeve_rules::port_usage;

    #[test]
    fn the_map_folds_to_the_width_of_the_terminal_and_draws_every_port() {
        let usage = port_usage(&Snapshot::healthy()).expect("the range is known");
        for (width, row) in [(200, 100), (107, 100), (106, 50), (57, 50), (56, 25), (40, 25)] {
            let style = Style { width, colour: false, program: String::new() };
            let mut out = Vec::new();
            write_map(&usage, &style, &mut out).expect("memory");
            let text = String::from_utf8(out).expect("text");
            let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('3')).collect();
            assert_eq!(rows.len(), 2768_usize.div_ceil(row), "{width}");
            assert!(rows.iter().all(|line| line.chars().count() <= width), "{text}");
            let ports: usize = rows.iter().map(|line| line.chars().count() - LABEL).sum();
            assert_eq!(ports, 2768);
        }
    }
}
