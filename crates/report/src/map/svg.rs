//! The NodePort range as one SVG for documents, and as blocks for the agent's page. The SVG needs no other files. The
//! SVG and the page have light and dark colours.

use std::io::{self, Write};

use maud::{Markup, PreEscaped, html};

use super::{super::terminal::tidy, PortState, counts, remarks, rows};
use portreeve_rules::PortUsage;

/// The number of ports in a row of the SVG, or in a block of the page.
const ROW: u16 = 100;
/// The number of ports in a line of a block.
const BLOCK: u16 = 20;
/// The distance between the left edges of two neighbouring squares, in pixels.
const PITCH: usize = 10;
/// The space to the left of the first column, in pixels. This space contains the number of the row's first port.
const LEFT: usize = 56;
/// The space above the first row, in pixels, for the title.
const TOP: usize = 44;
/// The height of a line of text, in pixels.
const LINE: usize = 18;

pub(crate) const COLOURS: &str = "
  .contested { fill: #d1242f } .listener { fill: #a333c8 } .fixed { fill: #0550ae } .automatic { fill: #54aeff }
  .allocated { fill: #218bff } .ephemeral { fill: #eac54f } .reserved { fill: #7cc98f } .free-static { fill: #afb8c1 }
  .free { fill: #e1e5ea } .risk { stroke: #bf8700; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    .fixed { fill: #a5d6ff } .automatic { fill: #388bfd } .reserved { fill: #2ea043 } .ephemeral { fill: #bb8009 }
    .free-static { fill: #57606a } .free { fill: #262c36 } .contested { fill: #ff6a69 } .listener { fill: #d2a8ff }
  }";

const FRAME: &str = "
  svg { background: #fff; color: #1f2328; font: 12px system-ui, sans-serif }
  text { fill: currentColor } .title { font-size: 15px; font-weight: 600 } .row { text-anchor: end; font-size: 9px }
  .band { stroke: currentColor; stroke-width: 1.5; fill: none }
  @media (prefers-color-scheme: dark) { svg { background: #0d1117; color: #e6edf3 } }";

/// Writes the map as SVG. Each used port has a tooltip.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_svg(census: &PortUsage, out: &mut dyn Write) -> io::Result<()> {
    let range = census.range.range;
    let remarks = remarks(census);
    let counts = counts(census);
    let row_count = rows(census, ROW).count();
    let width = LEFT + usize::from(ROW) * PITCH + 16;
    let legend = TOP + row_count * PITCH + LINE;
    let height = legend + (counts.len() + remarks.len()) * LINE + 8;
    let title = format!("NodePorts {range} ({})", tidy(&census.range.place));
    let reported: Vec<String> = counts.iter().map(|(state, count)| format!("{count} {}", state.legend())).collect();
    let svg = html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(width) height=(height) viewBox=(format!("0 0 {width} {height}"))
            role="img" aria-labelledby="title description" {
            title #title { (title) }
            desc #description { (reported.join("; ")) "." }
            style { (PreEscaped(FRAME)) (PreEscaped(COLOURS)) }
            text.title x="16" y="26" { (title) }
            @for (index, first) in rows(census, ROW).enumerate() {
                @let y = TOP + index * PITCH;
                text.row x=(LEFT - 8) y=(y + PITCH - 1) { (first) }
                (squares(census, first, ROW, (LEFT, y)))
            }
            @if let Some(band) = band(census) { (band) }
            @for (index, (state, count)) in counts.iter().enumerate() {
                @let y = legend + index * LINE;
                rect class=(state.look().class) x=(LEFT) y=(y) width="10" height="10" {}
                text x=(LEFT + 18) y=(y + 9) { (count) " " (state.legend()) }
            }
            @for (index, remark) in remarks.iter().enumerate() {
                text x=(LEFT) y=(legend + (counts.len() + index) * LINE + 10) { (tidy(remark)) }
            }
        }
    };
    writeln!(out, "{}", svg.into_string())
}

pub(crate) fn blocks(census: &PortUsage) -> Markup {
    let lines = ROW / BLOCK;
    let (width, height) = (usize::from(BLOCK) * PITCH, usize::from(lines) * PITCH);
    html! {
        @for first in rows(census, ROW) {
            div {
                (first)
                svg viewBox=(format!("0 0 {width} {height}")) {
                    @for (line, first) in (0..lines).filter_map(|line| Some((line, first.checked_add(line * BLOCK)?))) {
                        (squares(census, first, BLOCK, (0, usize::from(line) * PITCH)))
                    }
                }
            }
        }
    }
}

pub(crate) fn legend(census: &PortUsage) -> Markup {
    html! {
        ul.legend {
            @for (state, count) in counts(census) {
                li {
                    svg viewBox="0 0 10 10" { rect class=(state.look().class) width="10" height="10" {} }
                    " " (count) " " (state.legend())
                }
            }
            @for remark in remarks(census) { li { (tidy(&remark)) } }
        }
    }
}

/// The squares of a row. Free ports that follow one another and have the same state are drawn as one path. Each used
/// port has a square with a tooltip.
fn squares(census: &PortUsage, first: u16, length: u16, (left, y): (usize, usize)) -> Markup {
    let range = census.range.range;
    let size = PITCH - 1;
    let place = |port: u16| left + usize::from(port - first) * PITCH;
    let ports = (first..=first.saturating_add(length - 1)).filter(|port| range.contains(*port));
    let mut free: Vec<(PortState, String)> = Vec::new();
    for port in ports.clone().filter(|port| !census.used.contains_key(port)) {
        let (state, square) = (PortState::of(census, port), format!("M{} {y}h{size}v{size}h-{size}z", place(port)));
        match free.last_mut() {
            Some((same, path)) if *same == state => path.push_str(&square),
            _ => free.push((state, square)),
        }
    }
    html! {
        @for (port, used) in ports.filter_map(|port| Some((port, census.used.get(&port)?))) {
            @let risk = census.ephemeral.contains(port);
            rect class={ (PortState::of(census, port).look().class) @if risk { " risk" } } x=(place(port)) y=(y)
                width=(size) height=(size) {
                title {
                    (port)
                    @if let Some((service, _)) = &used.allocated { ", Service " (tidy(&service.to_string())) }
                    @if let Some(taken) = &used.taken { ", " (tidy(&taken.to_string())) }
                }
            }
        }
        @for (state, path) in free { path class=(state.look().class) d=(path) {} }
    }
}

fn band(census: &PortUsage) -> Option<Markup> {
    let band = census.static_band?;
    let first_row = census.range.range.first / ROW;
    let edge = usize::from(band.last % ROW + 1);
    let above = TOP + usize::from(band.last / ROW - first_row) * PITCH;
    let (x, right, below) = (LEFT + edge * PITCH, LEFT + usize::from(ROW) * PITCH, above + PITCH);
    let line = format!("M{LEFT} {below}H{x}V{above}H{right}");
    Some(html! { path.band d=(line) { title { "end of the static band, " (band.last) } } })
}
