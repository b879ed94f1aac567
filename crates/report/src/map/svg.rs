//! The picture as one self-contained SVG, for documents: light and dark, with a title and a description.

use std::io::{self, Write};

use super::{
    super::{terminal::tidy, xml::Escaped},
    PortState, ROW, counts, remarks, rows,
};
use portreeve_rules::PortUsage;

/// Pixels of a port's square, gap included.
const PITCH: usize = 10;
/// Pixels left of the first column, for the row's first port.
const LEFT: usize = 56;
/// Pixels above the first row, for the title.
const TOP: usize = 44;
/// Pixels of a line of text.
const LINE: usize = 18;

const CSS: &str = "
  svg { background: #fff; color: #1f2328; font: 12px system-ui, sans-serif }
  text { fill: currentColor } .title { font-size: 15px; font-weight: 600 } .row { text-anchor: end; font-size: 9px }
  .contested { fill: #d1242f } .listener { fill: #a333c8 } .fixed { fill: #0550ae } .automatic { fill: #54aeff }
  .allocated { fill: #218bff } .ephemeral { fill: #eac54f } .reserved { fill: #7cc98f } .free-static { fill: #afb8c1 }
  .free { fill: #e1e5ea } .band { stroke: currentColor; stroke-width: 1.5; fill: none }
  .risk { stroke: #bf8700; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117; color: #e6edf3 }
    .fixed { fill: #a5d6ff } .automatic { fill: #388bfd } .reserved { fill: #2ea043 } .ephemeral { fill: #bb8009 }
    .free-static { fill: #57606a } .free { fill: #262c36 } .contested { fill: #ff6a69 } .listener { fill: #d2a8ff }
  }";

/// Writes the map as SVG; each used port has a tooltip.
///
/// # Errors
/// When the writer fails.
pub fn write_svg(census: &PortUsage, out: &mut dyn Write) -> io::Result<()> {
    let range = census.range.range;
    let remarks = remarks(census);
    let counts = counts(census);
    let row_count = rows(census).count();
    let width = LEFT + usize::from(ROW) * PITCH + 16;
    let legend = TOP + row_count * PITCH + LINE;
    let height = legend + (counts.len() + remarks.len()) * LINE + 8;
    let title = format!("NodePorts {range} ({})", tidy(&census.range.place));
    let reported: Vec<String> = counts.iter().map(|(state, count)| format!("{count} {}", state.legend())).collect();

    writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" aria-labelledby="title description">"#
    )?;
    writeln!(out, r#"<title id="title">{}</title>"#, Escaped(&title))?;
    writeln!(out, r#"<desc id="description">{}.</desc>"#, Escaped(&reported.join("; ")))?;
    writeln!(out, "<style>{CSS}\n</style>")?;
    writeln!(out, r#"<text class="title" x="16" y="26">{}</text>"#, Escaped(&title))?;
    for (index, first) in rows(census).enumerate() {
        let y = TOP + index * PITCH;
        writeln!(out, r#"<text class="row" x="{}" y="{}">{first}</text>"#, LEFT - 8, y + PITCH - 1)?;
        write_row(census, first, y, out)?;
    }
    write_band(census, out)?;
    for (index, (state, count)) in counts.iter().enumerate() {
        let y = legend + index * LINE;
        writeln!(out, r#"<rect class="{}" x="{LEFT}" y="{y}" width="10" height="10"/>"#, class(*state))?;
        writeln!(out, r#"<text x="{}" y="{}">{count} {}</text>"#, LEFT + 18, y + 9, Escaped(state.legend()))?;
    }
    for (index, remark) in remarks.iter().enumerate() {
        let y = legend + (counts.len() + index) * LINE + 10;
        writeln!(out, r#"<text x="{LEFT}" y="{y}">{}</text>"#, Escaped(remark))?;
    }
    writeln!(out, "</svg>")
}

/// Free ports that look alike are one path, used ones a square each.
fn write_row(census: &PortUsage, first: u16, y: usize, out: &mut dyn Write) -> io::Result<()> {
    let range = census.range.range;
    let mut free: Vec<(PortState, String)> = Vec::new();
    for port in (first..=first.saturating_add(ROW - 1)).filter(|port| range.contains(*port)) {
        let x = LEFT + usize::from(port - first) * PITCH;
        let state = PortState::of(census, port);
        let size = PITCH - 1;
        match census.used.get(&port) {
            Some(used) => {
                let service = used.allocated.as_ref().map(|(service, _)| format!(", Service {service}"));
                let taken = used.taken.as_ref().map(|taken| format!(", {taken}"));
                let tip = format!("{port}{}{}", service.unwrap_or_default(), taken.unwrap_or_default());
                let risk = if census.ephemeral.contains(port) { " risk" } else { "" };
                writeln!(
                    out,
                    r#"<rect class="{}{risk}" x="{x}" y="{y}" width="{size}" height="{size}"><title>{}</title></rect>"#,
                    class(state),
                    Escaped(&tip)
                )?;
            }
            None => {
                let square = format!("M{x} {y}h{size}v{size}h-{size}z");
                match free.last_mut() {
                    Some((same, path)) if *same == state => path.push_str(&square),
                    _ => free.push((state, square)),
                }
            }
        }
    }
    for (state, path) in free {
        writeln!(out, r#"<path class="{}" d="{path}"/>"#, class(state))?;
    }
    Ok(())
}

/// The line between the static and the dynamic band.
fn write_band(census: &PortUsage, out: &mut dyn Write) -> io::Result<()> {
    let Some(band) = census.static_band else { return Ok(()) };
    let first_row = census.range.range.first / ROW;
    let edge = usize::from(band.last % ROW + 1);
    let above = TOP + usize::from(band.last / ROW - first_row) * PITCH;
    let (x, right) = (LEFT + edge * PITCH, LEFT + usize::from(ROW) * PITCH);
    writeln!(
        out,
        r#"<path class="band" d="M{LEFT} {0}H{x}V{above}H{right}"><title>end of the static band, {1}</title></path>"#,
        above + PITCH,
        band.last
    )
}

fn class(state: PortState) -> &'static str {
    match state {
        PortState::Contested => "contested",
        PortState::Listener => "listener",
        PortState::Fixed => "fixed",
        PortState::Automatic => "automatic",
        PortState::Allocated => "allocated",
        PortState::Ephemeral => "ephemeral",
        PortState::Reserved => "reserved",
        PortState::FreeStatic => "free-static",
        PortState::Free => "free",
    }
}
