//! Links, addresses and gateways of a namespace. The reader must return what `ip` sets and prints.

use std::{
    collections::BTreeSet,
    io::Write,
    net::IpAddr,
    process::{Command, Stdio},
    sync::Arc,
};

use portreeve_facts::{Interfaces, NodeQuery, Tunnel};
use portreeve_kernel::{Host, Known};
use serde_json::Value;

use crate::{namespace::Namespace, process::eventually};

fn interfaces() -> Arc<Interfaces> {
    again(&mut Known::default())
}

fn again(known: &mut Known) -> Arc<Interfaces> {
    let (seen, _) = Host::at("/").read_again(&NodeQuery::default(), known);
    seen.interfaces.get().expect("rtnetlink answers").clone()
}

fn ip(batch: &str) {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("the program ip, of the package iproute2");
    child.stdin.take().expect("piped").write_all(batch.as_bytes()).expect("ip reads its batch");
    assert!(child.wait().expect("ip ends").success(), "ip -batch failed");
}

#[test]
fn ten_thousand_addresses_of_kube_ipvs0_are_the_addresses_that_ip_lists() {
    let _namespace = Namespace::enter();
    // Some kernels have no dummy links, so the test adds the addresses to a bridge without ports.
    let mut batch = "link add kube-ipvs0 type bridge\n".to_owned();
    for number in 0..10_000 {
        batch +=
            &format!("addr add 10.{}.{}.{}/32 dev kube-ipvs0\n", 96 + number / 65536, number / 256 % 256, number % 256);
    }
    ip(&batch);
    let seen = interfaces();
    let ours: BTreeSet<IpAddr> = seen.of("kube-ipvs0").map(|address| address.ip).collect();
    assert_eq!(ours.len(), 10_000);
    assert!(seen.of("kube-ipvs0").all(|address| address.is_ipvs() && address.prefix == 32));

    let listed = Command::new("ip").args(["-j", "addr", "show", "dev", "kube-ipvs0"]).output().expect("ip").stdout;
    let listed: Value = serde_json::from_slice(&listed).expect("ip prints JSON");
    let theirs = listed[0]["addr_info"].as_array().expect("addresses").iter();
    let theirs: BTreeSet<IpAddr> = theirs.map(|entry| entry["local"].as_str().unwrap().parse().unwrap()).collect();
    assert_eq!(ours, theirs);
}

#[test]
fn links_have_kind_master_state_and_the_port_of_a_tunnel() {
    let _namespace = Namespace::enter();
    ip("link add br0 type bridge\n\
        link add v0 type veth peer name v1\n\
        link set v0 master br0\n\
        link set v1 up\n\
        link add flannel.1 type vxlan id 1 dstport 8472\n");
    let seen = interfaces();
    let link = |name: &str| seen.links.iter().find(|link| link.name == name).unwrap_or_else(|| panic!("{name}"));
    assert_eq!(link("flannel.1").kind.as_deref(), Some("vxlan"));
    assert_eq!(link("flannel.1").udp_port, Some(8472));
    assert_eq!(link("v0").master, Some(link("br0").index));
    assert_eq!((link("v1").up, link("br0").up), (true, false));
    assert_eq!((link("br0").udp_port, link("lo").kind.as_deref()), (None, None));
}

fn succeeds(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split(' ')).output().expect("the program ip").status.success()
}

/// Options of `ip link add ... type vxlan dstport 4789`. The kernels of cloud machines have VXLAN, but many lack
/// Geneve, WireGuard, bareudp and VRF. For these four, `crates/kernel/src/route/tests.rs` parses bytes instead.
/// `tests/lab/ipvs.rs` has tests of Geneve and WireGuard in a guest.
const VXLANS: [&str; 12] = [
    "id 11",
    "id 12 nolearning noudpcsum l2miss proxy",
    "id 13 local 127.0.0.1 dev lo",
    "id 14 gbp",
    "id 15 gbp udp6zerocsumrx",
    "id 16 remcsumrx",
    "id 17 local ::1",
    "id 18 group ff05::100 dev lo",
    "id 19 local ::1 udp6zerocsumrx",
    "external",
    "external gbp",
    "external vnifilter",
];

#[test]
fn the_kernel_sets_a_second_tunnel_of_a_port_up_unless_their_options_conflict() {
    let (mut shared, mut kept_down) = (0, 0);
    for (number, one) in VXLANS.iter().enumerate() {
        for two in &VXLANS[number + 1..] {
            let _namespace = Namespace::enter();
            ip(&format!("link add one type vxlan dstport 4789 {one}\nlink set one up\n"));
            ip(&format!("link add two type vxlan dstport 4789 {two}\n"));
            let is_up = succeeds("link set two up");
            let seen = interfaces();
            let link = |name: &str| seen.links.iter().find(|link| link.name == name).expect("the link exists");
            assert_eq!((link("one").up, link("two").up), (true, is_up), "{one}, {two}");
            assert_eq!(link("two").excludes(link("one")), Some(!is_up), "{one}, {two}: {:#?}", seen.links);
            let down: Vec<_> = seen.tunnels_down().map(|(port, link)| (port, link.name.as_str())).collect();
            assert_eq!(down, if is_up { vec![] } else { vec![(4789, "two")] });
            *(if is_up { &mut shared } else { &mut kept_down }) += 1;
        }
    }
    assert!(shared > 10 && kept_down > 10, "{shared} share the port, {kept_down} do not");
}

#[test]
fn everything_that_ip_shows_of_a_tunnel_is_read() {
    let _namespace = Namespace::enter();
    for (number, options) in VXLANS.iter().enumerate() {
        ip(&format!("link add v{number} type vxlan dstport {} {options}\n", 4000 + number));
    }
    let seen = interfaces();
    let in_words = |number: usize| {
        let link = seen.links.iter().find(|link| link.name == format!("v{number}")).expect("the link exists");
        let Tunnel { id, external, options, families } = link.tunnel.clone().expect("the tunnel is read");
        let families: Vec<String> = families.iter().map(ToString::to_string).collect();
        (link.udp_port.expect("a port"), id, external, options.join(" "), families.join(" "))
    };
    let of = |number: u16, id, external, options: &str, families: &str| {
        (4000 + number, id, external, options.to_owned(), families.to_owned())
    };
    assert_eq!(in_words(1), of(1, Some(12), false, "", "IPv4"));
    assert_eq!(in_words(4), of(4, Some(15), false, "gbp udp6zerocsumrx", "IPv4"));
    assert_eq!(in_words(5), of(5, Some(16), false, "remcsumrx", "IPv4"));
    assert_eq!(in_words(6), of(6, Some(17), false, "", "IPv6"));
    assert_eq!(in_words(7), of(7, Some(18), false, "", "IPv6"));
    assert_eq!(in_words(11), of(11, None, true, "vnifilter", "IPv4 IPv6"));
}

#[test]
fn a_tunnel_that_was_made_in_another_namespace_has_no_port_in_this_one() {
    let _namespace = Namespace::enter();
    let here = format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
    let elsewhere = move || {
        let _namespace = Namespace::enter();
        ip(&format!("link add moved type vxlan id 1 dstport 4789\nlink set moved netns {here}\n"));
        std::fs::File::open("/proc/thread-self/ns/net").expect("this thread's network namespace")
    };
    let _elsewhere = std::thread::spawn(elsewhere).join().expect("the link is moved here");
    ip("link add own type vxlan external dstport 4789\nlink set own up\n");
    let seen = interfaces();
    let port = |name: &str| seen.links.iter().find(|link| link.name == name).map(|link| link.udp_port);
    assert_eq!((port("moved"), port("own")), (Some(None), Some(Some(4789))));
    assert!(succeeds("link set moved up"), "its port is elsewhere");
}

#[test]
fn gateways_come_only_from_default_routes_in_the_main_table() {
    let _namespace = Namespace::enter();
    ip("link add v0 type veth peer name v1\n\
        link set v0 up\n\
        link set v1 up\n\
        addr add 192.0.2.2/24 dev v0\n\
        addr add 2001:db8::2/64 dev v0 nodad\n\
        route add default via 192.0.2.1\n\
        route add 198.51.100.0/24 via 192.0.2.7\n\
        route add default via 192.0.2.9 table 100\n\
        route add default via 2001:db8::1 dev v0\n");
    let want: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    assert_eq!(interfaces().gateways, want);
}

fn lost() -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/netlink").expect("a table");
    let drops = |line: &str| line.split_ascii_whitespace().nth(8).and_then(|word| word.parse::<u64>().ok());
    table.lines().skip(1).map(|line| drops(line).expect("the column Drops")).sum()
}

#[test]
fn lost_notifications_count_as_a_change() {
    let _namespace = Namespace::enter();
    ip("link add br0 type bridge\n");
    let mut known = Known::default();
    (0..3).for_each(|_| drop(again(&mut known)));
    let batch = |verb: &str| -> String {
        (0..5_000).map(|n| format!("addr {verb} 10.1.{}.{}/32 dev br0\n", n / 250, n % 250 + 1)).collect()
    };
    ip(&batch("add"));
    assert!(lost() > 0, "the receive buffer holds fewer");
    assert_eq!(again(&mut known).of("br0").count(), 5_000);
    let kept = again(&mut known);
    assert!(Arc::ptr_eq(&kept, &again(&mut known)), "nothing changed since");
    ip(&batch("del"));
    assert_eq!(again(&mut known).of("br0").count(), 0);
}

#[test]
fn a_change_between_two_scans_is_read_and_without_a_change_nothing_is_read() {
    let _namespace = Namespace::enter();
    let mut known = Known::default();
    let mut before = again(&mut known);
    for change in [
        "link add v0 type veth peer name v1",
        "link set v0 up",
        "link set v1 up",
        "addr add 192.0.2.1/24 dev v0",
        "addr add 192.0.2.2/24 dev v0",
        "addr del 192.0.2.2/24 dev v0",
        "addr add 2001:db8::1/64 dev v0 nodad",
        "route add default via 192.0.2.9",
        "route add default via 2001:db8::9 dev v0",
        "route del default via 192.0.2.9",
        "link add br0 type bridge",
        "link set v0 master br0",
        "link add vx0 type vxlan id 1 dstport 8472 dev lo",
        "link set v1 name renamed",
        "link set renamed down",
        "link del v0",
    ] {
        ip(change);
        let seen = again(&mut known);
        assert_ne!(seen, before, "{change}");
        let is_whole = eventually(|| (again(&mut known) == interfaces()).then_some(()));
        assert!(is_whole.is_some(), "{change}: {:?} is not {:?}", again(&mut known), interfaces());
        // The kernel may add an IPv6 address or route a moment later.
        let settled = eventually(|| {
            before = again(&mut known);
            Arc::ptr_eq(&before, &again(&mut known)).then_some(())
        });
        assert_eq!(settled, Some(()), "{change}: read again, although nothing changed");
    }
    assert!((0..20).any(|_| !Arc::ptr_eq(&before, &again(&mut known))), "addresses are read anew in the end");
}
