//! The cost of a node's addresses, after kube-proxy in ipvs mode has added the address of each Service.

use std::{cell::Cell, collections::BTreeSet, fmt::Write as _, net::IpAddr, process::Command};

use nix::ifaddrs::getifaddrs;

use crate::{
    growth::{self, Point},
    rounds::{Contender, of, rounds},
    row::{Promise, Row},
    sizes::short,
    world::{World, run},
};

pub fn measure(world: &World, numbers: &[usize], count: usize) -> Vec<Row> {
    // The test node gets a veth link instead of a dummy link, because some kernels have no dummy links.
    run(Command::new("ip").args(["link", "add", "kube-ipvs0", "type", "veth", "peer", "name", "spare"]));
    let most = numbers.last().expect("a number of addresses");
    let (mut rows, mut points) = (Vec::new(), Vec::new());
    for pair in numbers.windows(2) {
        let told = of_number(world, pair[0]..pair[1], pair[1] == *most, count);
        // The growth is measured after a change, because an agent does not read unchanged addresses again. Other
        // programs' work hardly changes the lower quartile.
        points.push(Point { size: pair[1] as f64, took: told[3].ours.low });
        rows.extend(told);
    }
    rows.push(growth::row("reading addresses, with addresses", &points, Promise::AtMost(growth::LINEAR)));
    run(Command::new("ip").args(["link", "del", "kube-ipvs0"]));
    rows
}

fn of_number(world: &World, more: std::ops::Range<usize>, promised: bool, count: usize) -> Vec<Row> {
    let addresses = more.end;
    let mut commands = String::new();
    for number in more {
        writeln!(
            commands,
            "addr add 10.{}.{}.{}/32 dev kube-ipvs0",
            100 + number / 62_500,
            number / 250 % 250,
            number % 250 + 1
        )
        .expect("a string");
    }
    run(Command::new("ip").arg("-batch").arg(world.file("addresses", &commands)));

    let agent = world.agent();
    let snapshot = world.snapshot();
    let told = snapshot["interfaces"]["seen"]["addresses"].as_array().expect("addresses");
    let word = |value: &serde_json::Value| value.as_str().expect("a word").to_owned();
    let ours: BTreeSet<(String, IpAddr)> =
        told.iter().map(|it| (word(&it["link"]), word(&it["ip"]).parse().expect("an address"))).collect();
    let by_libc = || -> BTreeSet<(String, IpAddr)> {
        let all = getifaddrs().expect("addresses");
        let ip = |it: nix::ifaddrs::InterfaceAddress| {
            let address = it.address?;
            let ip = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
            Some((it.interface_name, ip.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())))?))
        };
        all.filter_map(ip).collect()
    };
    let alike = if ours == by_libc() { Ok(()) } else { Err("getifaddrs lists other addresses".to_owned()) };
    let also = Cell::new(false);
    let change = &|| {
        also.set(!also.get());
        let verb = if also.get() { "add" } else { "del" };
        run(Command::new("ip").args(["addr", verb, "192.0.2.1/32", "dev", "kube-ipvs0"]));
    };
    let measured = rounds(
        count,
        vec![
            Contender::telling("agent", || agent.scan().by("addresses")),
            Contender::telling("agent after a change", || agent.scan_after(change).by("addresses")),
            Contender::timed("getifaddrs", || drop(getifaddrs().expect("addresses"))),
        ],
    );
    if also.get() {
        change();
    }
    let promise = |promise| if promised { promise } else { Promise::None };
    let mut rows = Vec::new();
    for (who, times, most) in [
        ("agent", promise(Promise::Times(2.0)), promise(Promise::AtMost(4.0))),
        ("agent after a change", Promise::None, Promise::None),
    ] {
        let ours = of(&measured, who);
        let what = format!("{} addresses, read by an {who}", short(addresses));
        let theirs = ("getifaddrs", of(&measured, "getifaddrs"));
        rows.push(Row::against(format!("{what}, compared with getifaddrs"), ours, theirs, times).provided(&alike));
        rows.push(Row::alone(what, "ms", ours.to_vec(), most).provided(&alike));
    }
    rows
}
