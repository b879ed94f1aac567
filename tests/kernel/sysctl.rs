//! Settings in the form that the kernel prints, in a namespace that no other test uses.

use std::{
    io::ErrorKind,
    net::{TcpListener, TcpStream},
};

use portreeve_facts::{NodeQuery, PortRange, PortSet, Reading, Snapshot, Sysctls};
use portreeve_kernel::Host;
use portreeve_report::Setting;

use crate::namespace::Namespace;

fn sysctls() -> Sysctls {
    Host::at("/").read(&NodeQuery::default()).sysctls
}

fn set(name: &str, value: &str) {
    std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value).unwrap_or_else(|error| panic!("{name}: {error}"));
}

#[test]
fn a_new_namespace_has_the_kernel_s_defaults() {
    let _namespace = Namespace::enter();
    let seen = sysctls();
    assert_eq!(seen.ip_local_port_range, Reading::Seen(PortRange::DEFAULT_EPHEMERAL));
    assert_eq!(seen.ip_local_reserved_ports, Reading::Seen(PortSet::default()));
    assert_eq!(seen.ip_unprivileged_port_start, Reading::Seen(1024));
    assert_eq!(seen.route_localnet, Reading::Seen(false));
    assert_eq!(seen.tcp_tw_reuse, Reading::Seen(2));
}

#[test]
fn a_written_setting_is_read() {
    let _namespace = Namespace::enter();
    set("ip_local_port_range", "1024 65535");
    set("conf/all/route_localnet", "1");
    set("tcp_tw_reuse", "1");
    set("ip_local_reserved_ports", "30000-30999,31000-32767");
    let seen = sysctls();
    assert_eq!(seen.ip_local_port_range, Reading::Seen(PortRange { first: 1024, last: 65535 }));
    assert_eq!(seen.ip_local_reserved_ports, Reading::Seen(PortRange::DEFAULT_NODE_PORTS.into()));
    assert_eq!((seen.route_localnet, seen.tcp_tw_reuse), (Reading::Seen(true), Reading::Seen(1)));
}

#[test]
fn a_supposed_value_is_accepted_if_the_kernel_accepts_it() {
    let _namespace = Namespace::enter();
    let (mut taken, mut refused) = (0, 0);
    for (name, value) in [
        ("ip_local_port_range", "0 0"),
        ("ip_local_port_range", "0 5000"),
        ("ip_local_port_range", "1023 5000"),
        ("ip_local_port_range", "1024 1024"),
        ("ip_local_port_range", "2000 1999"),
        ("ip_local_port_range", "40000 65535"),
        ("ip_local_port_range", "40000 65536"),
        ("ip_unprivileged_port_start", "40000"),
        ("ip_unprivileged_port_start", "40001"),
        ("ip_unprivileged_port_start", "0"),
        ("ip_local_port_range", "1 5"),
        ("ip_local_reserved_ports", "0-65535"),
        ("ip_local_reserved_ports", "65536"),
        ("tcp_tw_reuse", "0"),
        ("tcp_tw_reuse", "2"),
        ("tcp_tw_reuse", "3"),
    ] {
        let mut world = Snapshot::healthy();
        world.kernel.sysctls = sysctls();
        let supposed = format!("{name}={value}").parse::<Setting>();
        let accepted = supposed.and_then(|setting| Setting::apply_all(&[setting], &mut world));
        let written = std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value);
        assert_eq!(accepted.is_ok(), written.is_ok(), "{name}={value}: {accepted:?}, {written:?}");
        *if written.is_ok() { &mut taken } else { &mut refused } += 1;
    }
    assert_eq!((taken, refused), (8, 8));
}

#[test]
fn no_connection_opens_if_every_ephemeral_port_is_reserved() {
    let _namespace = Namespace::enter();
    let server = TcpListener::bind("127.0.0.1:8080").expect("a fixed port is no ephemeral port");
    let address = server.local_addr().expect("bound");
    TcpStream::connect(address).expect("a port is free");
    set("ip_local_reserved_ports", "32768-60999");
    let error = TcpStream::connect(address).expect_err("no port is left");
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable, "{error}");
}

/// The first read of this file returns at most as many bytes as the reader requests. A second read returns nothing.
#[test]
fn a_long_reserved_list_is_read_to_its_end() {
    let _namespace = Namespace::enter();
    let want: PortSet = (1024..=60_000).step_by(2).map(|port: u16| PortRange { first: port, last: port }).collect();
    // In one write, the kernel accepts at most one page of memory. Each write replaces the list.
    let written: PortSet = want.iter().take(600).collect();
    set("ip_local_reserved_ports", &written.to_string());
    assert_eq!(sysctls().ip_local_reserved_ports, Reading::Seen(written));
}
