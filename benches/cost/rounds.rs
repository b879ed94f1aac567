//! The compared programs run in turns, so that other work of the machine slows all programs alike.

use std::time::Instant;

pub struct Contender<'a> {
    pub name: &'static str,
    measure: Box<dyn FnMut() -> f64 + 'a>,
}

impl<'a> Contender<'a> {
    /// A program that reports its own time in milliseconds.
    pub fn telling(name: &'static str, measure: impl FnMut() -> f64 + 'a) -> Self {
        Self { name, measure: Box::new(measure) }
    }

    /// A program whose run is timed from outside. The program runs twice: the first run fills the processor's caches,
    /// and the second run is measured.
    pub fn timed<T>(name: &'static str, mut run: impl FnMut() -> T + 'a) -> Self {
        Self::telling(name, move || {
            run();
            let begun = Instant::now();
            run();
            1000.0 * begun.elapsed().as_secs_f64()
        })
    }
}

/// The first round does not count, because all data is read for the first time in it.
pub fn rounds(count: usize, mut contenders: Vec<Contender<'_>>) -> Vec<(&'static str, Vec<f64>)> {
    let mut measured: Vec<_> = contenders.iter().map(|it| (it.name, Vec::with_capacity(count))).collect();
    for round in 0..=count {
        for (contender, (_, values)) in contenders.iter_mut().zip(&mut measured) {
            let value = (contender.measure)();
            if round > 0 {
                values.push(value);
            }
        }
    }
    measured
}

pub fn of<'a>(measured: &'a [(&'static str, Vec<f64>)], name: &str) -> &'a [f64] {
    &measured.iter().find(|(it, _)| *it == name).expect("a contender").1
}
