//! The metrics of an agent. For each scrape, one collector makes all series again, so every series is current.

mod catalogue;
mod families;
mod sources;

use std::{collections::BTreeMap, fmt, fmt::Write as _, sync::Arc, time::Duration};

use jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text::encode},
    metrics::MetricType,
    registry::Registry,
};

pub(crate) use catalogue::{Metric, counter, gauge};
pub(crate) use families::{Family, word};

use self::{catalogue::METRICS, families::families};
use crate::{events::Counters, guard::GUARD_METRICS, node_condition::Writes};
use portreeve_facts::{Snapshot, Source};
use portreeve_rules::ledger::Board;

/// The form of an exposition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Text,
}

/// The upper bounds of the buckets of `portreeve_scan_duration_seconds`. Each bucket is a series on each node, so there
/// are few buckets.
pub const BUCKETS: [f64; 3] = [0.005, 0.05, 0.5];

/// The input for one scrape.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// The last scan. `None` before the first scan.
    pub scan: Option<(Arc<Snapshot>, Arc<Board>)>,
    /// The agent's own work.
    pub work: Work,
    /// The age of the facts about each kind of object.
    pub views: Vec<ViewAge>,
    /// The results of requests about Events. `None` if the agent writes no Events.
    pub events: Option<Counters>,
    /// The results of writes of the Node condition. `None` if the agent does not write the condition.
    pub condition: Option<Writes>,
    /// The resources of this process.
    pub process: ProcessUse,
}

/// The agent's own work since its start.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// The number of scans that were judged.
    pub scans: u64,
    /// The number of scans by duration. The last number counts the scans that took longer than the greatest of
    /// [`BUCKETS`].
    pub buckets: [u64; BUCKETS.len() + 1],
    /// The duration of all scans together, in seconds.
    pub seconds: f64,
    /// The time at which the last scan ended.
    pub last: Option<Timestamp>,
    /// The time that each reader of the node took in the last scan.
    pub took: BTreeMap<Source, Duration>,
    /// The number of caught panics, by the name of the rule, or `reader`.
    pub panics: BTreeMap<&'static str, u64>,
    /// The results of the last readings of the configuration.
    pub configuration: Configuration,
}

/// The results of the last readings of the configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Configuration {
    /// Whether the configuration was valid at the last reading.
    pub is_valid: bool,
    /// The time at which the current configuration was read, if there is one.
    pub adopted: Option<Timestamp>,
}

/// The age of the facts about one kind of object.
#[derive(Clone, Debug)]
pub struct ViewAge {
    /// The name of the kind in the plural, for example `services`.
    pub resource: &'static str,
    /// The time that has passed since all objects of the kind were last read. `None` if the objects were never read.
    pub age: Option<Duration>,
    /// The number of failures by their code. The codes are words or numbers of a closed list.
    pub errors: Vec<(String, u64)>,
}

/// The resources that the agent's process uses. `None` stands for a value that could not be read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessUse {
    /// User and system time in seconds.
    pub cpu_seconds: Option<f64>,
    /// Resident memory in bytes.
    pub resident_bytes: Option<u64>,
    /// Virtual memory in bytes.
    pub virtual_bytes: Option<u64>,
    /// Open file descriptors.
    pub open_fds: Option<u64>,
    /// The limit of open file descriptors.
    pub max_fds: Option<u64>,
    /// The time at which the process started.
    pub started: Option<Timestamp>,
}

impl Work {
    /// Counts a scan of this duration that ended at `at`.
    pub fn scanned(&mut self, took: Duration, at: Timestamp) {
        let seconds = took.as_secs_f64();
        let bucket = BUCKETS.iter().position(|bound| seconds <= *bound).unwrap_or(BUCKETS.len());
        self.buckets[bucket] += 1;
        self.scans += 1;
        self.seconds += seconds;
        self.last = Some(at);
    }

    /// Counts a panic of a rule, or of the `reader`.
    pub fn panicked(&mut self, part: &'static str) {
        *self.panics.entry(part).or_default() += 1;
    }
}

impl Exposition {
    /// The form that this `Accept` header selects: OpenMetrics if the header names it, otherwise the text format.
    pub fn accepted(accept: &str) -> Self {
        let mut wanted = accept.split(',').map(|part| part.split(';').next().unwrap_or("").trim());
        if wanted.any(|kind| kind == "application/openmetrics-text") { Self::OpenMetrics } else { Self::Text }
    }

    /// The `Content-Type` of the form.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The metrics as text, in one of the two forms. Writing into a string always succeeds.
pub(crate) fn metrics(collector: impl Collector, form: Exposition) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(collector));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(match form {
        Exposition::OpenMetrics => text,
        Exposition::Text => plain(&text),
    })
}

/// Makes the page `docs/metrics.md`.
pub fn metrics_page() -> String {
    let agents = "# Metrics\n\n`portreeve agent` serves these metrics at `/metrics`, in OpenMetrics or in the text format 0.0.4. The header `Accept` selects the format.\n\n";
    let guards =
        "\n## Metrics of the guard\n\n`portreeve guard` has these metrics at `/metrics`, in the same formats.\n\n";
    format!("{agents}{}{guards}{}", table(METRICS), table(&GUARD_METRICS))
}

fn table(metrics: &[Metric]) -> String {
    let mut text = String::from("| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for Metric { name, kind, labels, help } in metrics {
        let total = if matches!(kind, MetricType::Counter) { "_total" } else { "" };
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        writeln!(text, "| `{name}{total}` | {} | {} | {help} |", kind.as_str(), labels.join(", "))
            .expect("a string accepts all text");
    }
    text
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { metric, samples } in families(self) {
            let (stem, unit) = metric.stem_and_unit();
            let mut family = encoder.encode_descriptor(stem, metric.help, unit.as_ref(), metric.kind)?;
            if matches!(metric.kind, MetricType::Histogram) {
                let buckets: Vec<_> = BUCKETS.into_iter().chain([f64::INFINITY]).zip(self.work.buckets).collect();
                family.encode_histogram::<NoLabelSet>(self.work.seconds, self.work.scans, &buckets, None)?;
            }
            metric.encode(&samples, &mut family)?;
        }
        Ok(())
    }
}

impl Metric {
    fn encode(&self, samples: &[(Vec<String>, f64)], family: &mut MetricEncoder<'_>) -> fmt::Result {
        for (values, value) in samples {
            let labels: Vec<(&str, &str)> =
                self.labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
            // An empty set of labels would appear as `{}`.
            match labels.is_empty() {
                true => self.write(*value, family)?,
                false => self.write(*value, &mut family.encode_family(&labels)?)?,
            }
        }
        Ok(())
    }

    fn write(&self, value: f64, sample: &mut MetricEncoder<'_>) -> fmt::Result {
        match self.kind {
            MetricType::Counter => sample.encode_counter::<NoLabelSet, f64, f64>(&value, None),
            _ => sample.encode_gauge(&value),
        }
    }
}

impl Family {
    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Self { metric, samples } = self;
        let (stem, unit) = metric.stem_and_unit();
        let mut family = encoder.encode_descriptor(stem, metric.help, unit.as_ref(), metric.kind)?;
        metric.encode(samples, &mut family)
    }
}

/// In the text format, `_total` is part of the name of a counter's family. The text format has no units and no end
/// mark.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let counters: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    for line in text.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("UNIT"), ..) => {}
            (Some("#"), Some(keyword), Some(name), Some(rest)) if counters.contains(&name) => {
                plain.push_str(&format!("# {keyword} {name}_total {rest}\n"));
            }
            _ => {
                plain.push_str(line);
                plain.push('\n');
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests;
