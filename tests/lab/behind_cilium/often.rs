//! The settings that answer differently, one by one: `make verdicts` asks in each, and so does CI.

use super::{BESIDE, record};

#[test]
fn by_default() {
    record("default", &[]);
}

#[test]
fn on_one_address() {
    record("second", &[("nodeport-addresses", "192.0.2.2/32")]);
}

#[test]
fn on_every_address_of_two_devices() {
    record("all", &[("nodeport-addresses", "0.0.0.0/0,::/0"), ("devices", "eth0,pod0")]);
}

#[test]
fn on_one_address_of_each_of_two_devices() {
    record("devices", &[("devices", "eth0,pod0")]);
}

#[test]
fn without_endpoints_in_silence() {
    record("drop", &[("service-no-backend-response", "drop")]);
}

#[test]
fn without_endpoints_not_taken() {
    record("not-routable", &[("enable-no-service-endpoints-routable", "false")]);
}

#[test]
fn with_sockets_of_the_host_only() {
    record("host-sockets", &[("bpf-lb-sock-hostns-only", "true")]);
}

#[test]
fn beside_kube_proxy() {
    record(BESIDE, &[("kube-proxy-replacement", "false")]);
}
