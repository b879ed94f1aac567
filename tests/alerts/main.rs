//! Tests of alerts and dashboards. Prometheus' own program promtool reads the alerts and the queries.

#![allow(clippy::disallowed_methods, reason = "tests read the package's own files and run promtool")]

mod alerts;
mod dashboards;
mod incidents;
mod promql;
