//! The nameservers to which a host sends its queries.

use std::net::{IpAddr, Ipv4Addr};

use super::root::{Root, read_text};
use portreeve_facts::{Gap, Source};

/// The addresses of systemd-resolved, which forwards queries to the real nameservers (systemd-resolved.service(8)).
const STUBS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 53)), IpAddr::V4(Ipv4Addr::new(127, 0, 0, 54))];

const LONGEST: usize = 64 * 1024;

/// Reads `/etc/resolv.conf`. If this file names only systemd-resolved's stub, reads systemd-resolved's list of real
/// nameservers.
///
/// # Errors
/// A `Gap` with the file.
pub(crate) fn read(root: &Root) -> Result<Vec<IpAddr>, Gap> {
    let of = |below| read_text(Source::ResolvConf, &root.file(below), LONGEST).map(|content| nameservers(&content));
    let named = of("etc/resolv.conf")?;
    let only_stub = !named.is_empty() && named.iter().all(|ip| STUBS.contains(ip));
    if only_stub { of("run/systemd/resolve/resolv.conf") } else { Ok(named) }
}

/// The addresses of `nameserver` lines, without zones. Other words are ignored, as in glibc (resolv/res_init.c).
pub fn nameservers(content: &str) -> Vec<IpAddr> {
    let address = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        words.next().filter(|word| *word == "nameserver")?;
        let word = words.next()?;
        word.split_once('%').map_or(word, |(ip, _zone)| ip).parse().ok()
    };
    content.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::Why;
    use proptest::prelude::*;

    fn recorded(files: &[(&str, &str)]) -> Result<Vec<IpAddr>, Gap> {
        let tree = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = tree.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        read(&Root::at(tree.path().into()))
    }

    #[test]
    fn nameservers_are_read_without_comments_and_zones() {
        let content =
            "# nameserver 9.9.9.9\nsearch lan\nnameserver 10.0.0.2\nnameserver\tfe80::1%eth0 \nnameserver x\n";
        let want: [IpAddr; 2] = ["10.0.0.2".parse().unwrap(), "fe80::1".parse().unwrap()];
        assert_eq!(recorded(&[("etc/resolv.conf", content)]).unwrap(), want);
    }

    #[test]
    fn the_real_nameservers_replace_the_stub() {
        let stub = ("etc/resolv.conf", "nameserver 127.0.0.53\noptions edns0 trust-ad\n");
        let real = ("run/systemd/resolve/resolv.conf", "nameserver 192.0.2.1\n");
        assert_eq!(recorded(&[stub, real]).unwrap(), ["192.0.2.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(recorded(&[stub]).unwrap_err().why, Why::NotSupported);
    }

    #[test]
    fn a_missing_file_is_unread_and_a_file_without_nameservers_is_empty() {
        assert_eq!(recorded(&[]).unwrap_err().why, Why::NotSupported);
        assert_eq!(recorded(&[("etc/resolv.conf", "options rotate\n")]), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn any_text_names_at_most_one_server_a_line(text in "(nameserver[ \t]?[0-9a-f.:%]{0,20}|.{0,9}|\n){0,6}") {
            prop_assert!(nameservers(&text).len() <= text.lines().count());
        }
    }
}
