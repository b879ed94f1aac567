//! All that is recorded, one by one: the settings of [`super::often`], and others that operators use.

use super::{BESIDE, ask_all, often};

#[test]
fn by_default() {
    ask_all("default", often::DEFAULT);
}

#[test]
fn on_one_address() {
    ask_all("second", often::SECOND);
}

#[test]
fn on_every_address_of_two_devices() {
    ask_all("all", often::ALL);
}

#[test]
fn on_one_address_of_each_of_two_devices() {
    ask_all("devices", often::DEVICES);
}

#[test]
fn without_endpoints_in_silence() {
    ask_all("drop", often::DROP);
}

#[test]
fn without_endpoints_not_taken() {
    ask_all("not-routable", often::NOT_ROUTABLE);
}

#[test]
fn with_sockets_of_the_host_only() {
    ask_all("host-sockets", often::HOST_SOCKETS);
}

#[test]
fn beside_kube_proxy() {
    ask_all(BESIDE, often::WITHOUT);
}

#[test]
fn with_one_family() {
    ask_all("four-only", &[("enable-ipv6", "false")]);
}

#[test]
fn answered_by_the_far_node_itself() {
    ask_all("dsr", &[("bpf-lb-mode", "dsr"), ("bpf-lb-dsr-dispatch", "opt")]);
}

#[test]
fn masqueraded_in_ebpf() {
    ask_all("masquerade", &[("enable-bpf-masquerade", "true")]);
}

#[test]
fn on_every_address_of_one_device() {
    ask_all("all-of-one", &[("nodeport-addresses", "0.0.0.0/0,::/0")]);
}
