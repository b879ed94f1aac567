//! The settings that answer differently, one by one: `make verdicts` asks in each, and so does CI.

use super::{BESIDE, Further, ask_some};

pub const DEFAULT: &Further = &[];
pub const SECOND: &Further = &[("nodeport-addresses", "192.0.2.2/32")];
pub const ALL: &Further = &[("nodeport-addresses", "0.0.0.0/0,::/0"), ("devices", "eth0,pod0")];
pub const DEVICES: &Further = &[("devices", "eth0,pod0")];
pub const DROP: &Further = &[("service-no-backend-response", "drop")];
pub const NOT_ROUTABLE: &Further = &[("enable-no-service-endpoints-routable", "false")];
pub const HOST_SOCKETS: &Further = &[("bpf-lb-sock-hostns-only", "true")];
pub const WITHOUT: &Further = &[("kube-proxy-replacement", "false")];

#[test]
fn by_default() {
    ask_some("default", DEFAULT);
}

#[test]
fn on_one_address() {
    ask_some("second", SECOND);
}

#[test]
fn on_every_address_of_two_devices() {
    ask_some("all", ALL);
}

#[test]
fn on_one_address_of_each_of_two_devices() {
    ask_some("devices", DEVICES);
}

#[test]
fn without_endpoints_in_silence() {
    ask_some("drop", DROP);
}

#[test]
fn without_endpoints_not_taken() {
    ask_some("not-routable", NOT_ROUTABLE);
}

#[test]
fn with_sockets_of_the_host_only() {
    ask_some("host-sockets", HOST_SOCKETS);
}

#[test]
fn beside_kube_proxy() {
    ask_some(BESIDE, WITHOUT);
}
