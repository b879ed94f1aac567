//! What is delivered: the chart and the manifest, as the real helm renders them, the image, as buildah builds it, a release, and the
//! workflows of the forge.

#![allow(clippy::disallowed_methods, reason = "tests read the package's own files and run helm and buildah")]

mod chart;
mod config;
mod forge;
mod generated;
mod guard;
mod helm;
mod image;
mod lint;
#[allow(unreachable_pub, reason = "the lab's, too")]
mod maker;
mod monitoring;
mod names;
#[path = "../lab/parts/programs.rs"]
#[allow(unreachable_pub, reason = "the lab's own")]
mod programs;
mod rbac;
mod readme;
mod release;
mod skew;
mod tried;
