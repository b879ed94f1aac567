//! Tests of the binary with real programs, for example kube-apiserver and kube-proxy, and with real packets.
//!
//! The tests need root and the programs that `make lab` and `make nightly` install. Otherwise they fail.

#![allow(clippy::disallowed_methods, reason = "makes the worlds that the program looks at")]
#![allow(clippy::print_stderr, reason = "says where the logs of a failing test are")]
#![allow(unreachable_pub, reason = "a test program has no outside")]

mod agent;
mod alertmanager;
mod answers;
mod arm64;
mod bands;
mod behind_cilium;
mod bind_hook;
mod chart;
mod churn;
mod claimed_twice;
mod condition;
mod events;
mod faults;
mod guard;
mod health_port;
mod healthy;
mod ipvs;
mod left_behind;
mod look;
#[path = "../delivery/maker.rs"]
#[allow(dead_code, reason = "the tests of a release use all of it")]
mod maker;
mod metrics;
mod modes;
mod old_proxy;
mod overwritten;
mod panels;
mod parts;
mod pictures;
mod plugin;
mod policies;
mod prometheus;
mod readers;
mod refused;
mod released;
mod runbooks;
#[path = "../cluster/said.rs"]
mod said;
mod server;
mod settings;
mod thousands;
mod verdicts;
mod versions;
mod waiting;
