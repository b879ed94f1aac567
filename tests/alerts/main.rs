//! Tests of alerts and dashboards. Prometheus itself reads them.

#![allow(clippy::disallowed_methods, reason = "tests read the package's own files and run promtool")]

mod alerts;
mod dashboards;
mod incidents;
mod promql;
