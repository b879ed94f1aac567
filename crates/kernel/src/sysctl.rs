//! `/proc/sys/net`, which shows the network namespace of the thread that opens it.

use std::str::FromStr;

use super::root::{Root, read_value};
use portreeve_facts::{PortRange, PortSet, Reading, Source, Sysctls};

/// The greatest length of a file, in bytes. The longest list of ports has 32,768 ports that are not adjacent, with 6
/// bytes each.
const LONGEST: usize = 256 * 1024;

pub(super) fn read(root: &Root) -> Sysctls {
    Sysctls {
        ip_local_port_range: value::<PortRange>(root, "net/ipv4/ip_local_port_range", "two ports"),
        ip_local_reserved_ports: value::<PortSet>(root, "net/ipv4/ip_local_reserved_ports", "a list of ports"),
        ip_unprivileged_port_start: value(root, "net/ipv4/ip_unprivileged_port_start", "a port"),
        route_localnet: value::<u8>(root, "net/ipv4/conf/all/route_localnet", "0 or 1").map(|number| number != 0),
        tcp_tw_reuse: value(root, "net/ipv4/tcp_tw_reuse", "0, 1 or 2"),
    }
}

fn value<T: FromStr>(root: &Root, name: &str, wanted: &str) -> Reading<T> {
    read_value::<T>(Source::Sysctls, &root.file(&format!("proc/sys/{name}")), LONGEST, wanted).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::Why;

    fn recorded(settings: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let tree = tempfile::tempdir().unwrap();
        for (name, value) in settings {
            let path = tree.path().join("proc/sys").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, value).unwrap();
        }
        let root = Root::at(tree.path().into());
        (tree, root)
    }

    #[test]
    fn every_setting_is_read_in_the_kernel_s_own_form() {
        let (_tree, root) = recorded(&[
            ("net/ipv4/ip_local_port_range", "32768\t60999\n"),
            ("net/ipv4/ip_local_reserved_ports", "2703,30000-32767\n"),
            ("net/ipv4/ip_unprivileged_port_start", "1024\n"),
            ("net/ipv4/conf/all/route_localnet", "1\n"),
            ("net/ipv4/tcp_tw_reuse", "2\n"),
        ]);
        assert_eq!(
            read(&root),
            Sysctls {
                ip_local_port_range: Reading::Seen(PortRange::DEFAULT_EPHEMERAL),
                ip_local_reserved_ports: Reading::Seen("2703,30000-32767".parse().unwrap()),
                ip_unprivileged_port_start: Reading::Seen(1024),
                route_localnet: Reading::Seen(true),
                tcp_tw_reuse: Reading::Seen(2),
            }
        );
    }

    #[test]
    fn an_empty_reserved_list_is_empty_and_a_missing_one_is_unknown() {
        let (_tree, root) = recorded(&[("net/ipv4/ip_local_reserved_ports", "\n")]);
        let sysctls = read(&root);
        assert_eq!(sysctls.ip_local_reserved_ports, Reading::Seen(PortSet::default()));
        let gap = sysctls.ip_local_port_range.gap().unwrap();
        assert_eq!(gap.why, Why::NotSupported);
        assert!(gap.detail.contains("proc/sys/net/ipv4/ip_local_port_range"), "{}", gap.detail);
    }

    #[test]
    fn a_wrong_value_is_malformed_with_the_wanted_form() {
        let (_tree, root) = recorded(&[("net/ipv4/ip_local_port_range", "\u{1b}[31m<html>")]);
        let sysctls = read(&root);
        let gap = sysctls.ip_local_port_range.gap().unwrap();
        assert_eq!(gap.why, Why::Malformed);
        assert!(gap.detail.ends_with(r#"ip_local_port_range: "[31m<html>" is not two ports"#), "{}", gap.detail);
    }
}
