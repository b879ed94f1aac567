//! Tests all recorded settings, one after the other: the settings of [`super::often`], and other settings that
//! operators use.

use super::{BESIDE, CHOSEN, DETECTED, Told, ask_all, ask_common, often};

#[test]
fn by_default() {
    ask_all(&Told::newest("default", often::DEFAULT));
}

#[test]
fn on_one_address() {
    ask_all(&Told::newest("second", often::SECOND));
}

#[test]
fn on_every_address_of_two_devices() {
    ask_all(&Told::newest("all", often::ALL));
}

#[test]
fn on_one_address_of_each_of_two_devices() {
    ask_all(&Told::newest("devices", often::DEVICES));
}

#[test]
fn without_endpoints_in_silence() {
    ask_all(&Told::newest("drop", often::DROP));
}

#[test]
fn without_endpoints_not_taken() {
    ask_all(&Told::newest("not-routable", often::NOT_ROUTABLE));
}

#[test]
fn with_sockets_of_the_host_only() {
    ask_all(&Told::newest("host-sockets", often::HOST_SOCKETS));
}

#[test]
fn beside_kube_proxy() {
    ask_all(&Told::newest(BESIDE, often::WITHOUT));
}

#[test]
fn with_one_family() {
    ask_all(&Told::newest("four-only", &[("enable-ipv6", "false")]));
}

#[test]
fn answered_by_the_far_node_itself() {
    ask_all(&Told::newest("dsr", &[("bpf-lb-mode", "dsr"), ("bpf-lb-dsr-dispatch", "opt")]));
}

#[test]
fn masqueraded_in_ebpf() {
    ask_all(&Told::newest("masquerade", &[("enable-bpf-masquerade", "true")]));
}

#[test]
fn on_every_address_of_one_device() {
    ask_all(&Told::newest("all-of-one", &[("nodeport-addresses", "0.0.0.0/0,::/0")]));
}

#[test]
fn on_devices_that_it_finds_by_itself() {
    ask_common(&Told::newest(DETECTED, often::DETECTS));
}

#[test]
fn on_devices_by_how_their_names_begin() {
    ask_common(&Told::newest(CHOSEN[0], &[("devices", "eth+,!net1,net+")]));
}

#[test]
fn on_a_device_that_is_named_and_on_those_that_it_finds() {
    ask_common(&Told::newest(CHOSEN[1], &[("devices", "bridge0"), ("force-device-detection", "true")]));
}
