//! Settings as the kernel prints them, in a namespace that no other test uses.

use portreeve_facts::{NodeQuery, PortRange, PortSet, Reading, Sysctls};
use portreeve_kernel::Host;

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

/// The kernel answers only the first read of this file, cut to its size.
#[test]
fn a_long_reserved_list_is_read_to_its_end() {
    let _namespace = Namespace::enter();
    let want: PortSet = (1024..=60_000).step_by(2).map(|port: u16| PortRange { first: port, last: port }).collect();
    // The kernel accepts at most a page in one write, and each write replaces the list.
    let written: PortSet = want.iter().take(600).collect();
    set("ip_local_reserved_ports", &written.to_string());
    assert_eq!(sysctls().ip_local_reserved_ports, Reading::Seen(written));
}
