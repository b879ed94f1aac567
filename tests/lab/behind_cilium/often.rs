//! Tests the settings that change Cilium's answers, one after the other. These tests are the shard `cilium` of `make
//! nightly`.

use super::{BESIDE, Further, Told, ask_some};

pub const DEFAULT: &Further = &[];
pub const SECOND: &Further = &[("nodeport-addresses", "192.0.2.2/32")];
pub const ALL: &Further = &[("nodeport-addresses", "0.0.0.0/0,::/0"), ("devices", "eth0,pod0")];
pub const DEVICES: &Further = &[("devices", "eth0,pod0")];
pub const DETECTS: &Further = &[("devices", "")];
pub const DROP: &Further = &[("service-no-backend-response", "drop")];
pub const NOT_ROUTABLE: &Further = &[("enable-no-service-endpoints-routable", "false")];
pub const HOST_SOCKETS: &Further = &[("bpf-lb-sock-hostns-only", "true")];
pub const WITHOUT: &Further = &[("kube-proxy-replacement", "false")];

#[test]
fn by_default() {
    ask_some(&Told::newest("default", DEFAULT));
}

#[test]
fn on_one_address() {
    ask_some(&Told::newest("second", SECOND));
}

#[test]
fn on_every_address_of_two_devices() {
    ask_some(&Told::newest("all", ALL));
}

#[test]
fn on_one_address_of_each_of_two_devices() {
    ask_some(&Told::newest("devices", DEVICES));
}

#[test]
fn without_endpoints_in_silence() {
    ask_some(&Told::newest("drop", DROP));
}

#[test]
fn without_endpoints_not_taken() {
    ask_some(&Told::newest("not-routable", NOT_ROUTABLE));
}

#[test]
fn with_sockets_of_the_host_only() {
    ask_some(&Told::newest("host-sockets", HOST_SOCKETS));
}

#[test]
fn beside_kube_proxy() {
    ask_some(&Told::newest(BESIDE, WITHOUT));
}
