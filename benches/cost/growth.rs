//! How the cost grows: the exponent of a power function through the measured points.

use crate::row::{Promise, Row};

/// Up to this exponent, growth is linear within the precision of a few points.
pub const LINEAR: f64 = 1.15;

/// Up to this exponent, the cost is constant within the precision of a few points.
pub const NONE: f64 = 0.15;

#[derive(Clone, Copy, Debug)]
pub struct Point {
    pub size: f64,
    pub took: f64,
}

pub fn row(what: &str, points: &[Point], promise: Promise) -> Row {
    Row::alone(format!("growth of {what}"), "exponent", [exponent(points)], promise)
}

/// The slope of the regression line through the logarithms.
pub fn exponent(points: &[Point]) -> f64 {
    let count = points.len() as f64;
    let logarithms = || points.iter().map(|point| (point.size.ln(), point.took.ln()));
    let (x, y) = logarithms().fold((0.0, 0.0), |sum, point| (sum.0 + point.0 / count, sum.1 + point.1 / count));
    let (above, below) = logarithms()
        .fold((0.0, 0.0), |sum, point| (sum.0 + (point.0 - x) * (point.1 - y), sum.1 + (point.0 - x).powi(2)));
    above / below
}
