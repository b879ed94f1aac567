//! What is installed: the chart and the manifest, as the real helm renders them, and the image, as buildah builds it.

#![allow(clippy::disallowed_methods, reason = "tests read the package's own files and run helm and buildah")]

mod chart;
mod generated;
mod helm;
mod image;
mod krew;
mod lint;
mod monitoring;
#[path = "../lab/parts/programs.rs"]
#[allow(unreachable_pub, reason = "the lab's own")]
mod programs;
mod rbac;
mod readme;
