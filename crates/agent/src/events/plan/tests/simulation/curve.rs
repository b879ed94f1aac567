//! The picture of `docs/performance.md`: what agents ask of the API server, second by second, while an incident begins.

use std::{collections::BTreeMap, fmt::Write as _};

/// Seconds that are drawn, and the most requests of one second: the axes end there.
const SECONDS: i64 = 60;
const MOST: f64 = 10_000.0;
/// The area of the curves, and what is around it.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 40.0;

/// The picture of such curves: each the number of nodes, the requests of each second that had some, and the most that is promised.
pub(super) fn draw(curves: &[(usize, &BTreeMap<i64, u32>, u32)]) -> String {
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" font-family="sans-serif" font-size="12">
<title>Requests a second about one incident, by the number of nodes</title>
<style>text {{ fill: #57606a }} .grid {{ stroke: #8c959f; stroke-opacity: .3 }} .curve {{ fill: none; stroke-width: 1.5 }} .bound {{ stroke-dasharray: 4 4; stroke-opacity: .7 }}</style>
"#,
        WIDTH + LEFT + 16.0,
        HEIGHT + TOP + 44.0
    );
    for power in 0..=4 {
        let requests = 10_u32.pow(power);
        let y = down(requests.into());
        line(&mut svg, "grid", "", [LEFT, y, LEFT + WIDTH, y]);
        text(&mut svg, [LEFT - 6.0, y + 4.0], "end", &requests.to_string());
    }
    for second in (0..=SECONDS).step_by(10) {
        text(&mut svg, [right(second), TOP + HEIGHT + 18.0], "middle", &second.to_string());
    }
    text(&mut svg, [LEFT + WIDTH / 2.0, TOP + HEIGHT + 36.0], "middle", "seconds since the first node was hit");
    for (place, ((nodes, seconds, most), colour)) in curves.iter().zip(["#1a7f37", "#0969da", "#bc4c00"]).enumerate() {
        let at = LEFT + 200.0 * place as f64;
        line(&mut svg, "curve", colour, [at, 20.0, at + 24.0, 20.0]);
        text(&mut svg, [at + 30.0, 24.0], "start", &format!("{nodes} nodes, promised {most}"));
        line(&mut svg, "bound", colour, [LEFT, down((*most).into()), LEFT + WIDTH, down((*most).into())]);
        let points: Vec<String> = (0..SECONDS)
            .map(|second| {
                let requests = seconds.get(&second).copied().unwrap_or(0);
                format!("{:.1},{:.1}", right(second), down(requests.into()))
            })
            .collect();
        writeln!(svg, r#"<polyline class="curve" stroke="{colour}" points="{}"/>"#, points.join(" "))
            .expect("writing to a string");
    }
    svg + "</svg>\n"
}

/// Where a second is, and where a number of requests is, on a scale of powers of ten that begins with one.
fn right(second: i64) -> f64 {
    LEFT + WIDTH * second as f64 / SECONDS as f64
}

fn down(requests: f64) -> f64 {
    TOP + HEIGHT * (1.0 - requests.max(1.0).log10() / MOST.log10())
}

fn line(svg: &mut String, class: &str, colour: &str, [x1, y1, x2, y2]: [f64; 4]) {
    let stroke = if colour.is_empty() { String::new() } else { format!(r#" stroke="{colour}""#) };
    writeln!(svg, r#"<line class="{class}"{stroke} x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#)
        .expect("writing to a string");
}

fn text(svg: &mut String, [x, y]: [f64; 2], anchor: &str, words: &str) {
    writeln!(svg, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{words}</text>"#).expect("writing to a string");
}
