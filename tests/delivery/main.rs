//! What is installed: the chart and the manifest, as the real helm renders them, the image, as buildah builds it, and the alerts
//! and dashboards.

#![allow(clippy::disallowed_methods, reason = "tests read the package's own files and run helm and buildah")]

mod alerts;
mod chart;
mod dashboards;
mod generated;
mod helm;
mod image;
mod incidents;
mod krew;
mod lint;
mod monitoring;
#[path = "../lab/parts/programs.rs"]
#[allow(unreachable_pub, reason = "the lab's own")]
mod programs;
mod promql;
mod rbac;
mod readme;
