//! Marks of proxies in netfilter: nft tables and chains over nfnetlink, and the tables of legacy iptables
//! (include/uapi/linux/netfilter/nfnetlink.h, nf_tables.h). Needs CAP_NET_ADMIN.

mod names;
mod redirections;
pub mod rule;

use super::{
    netlink::{Family, Malformed, Message, Request, connection, name},
    privileges::require_net_admin,
    root::{Root, read_text},
};
use portreeve_facts::{Gap, Netfilter, Source, Why};

use names::{
    NAME, NFT_MSG_GETCHAIN, NFT_MSG_GETTABLE, NFT_MSG_NEWCHAIN, NFT_MSG_NEWTABLE, NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE,
    NFTA_TABLE_NAME, attribute, family,
};

/// Chains of a single Service, endpoint, pod or network policy. A node may have thousands of chains of Services and
/// endpoints, but the chain `KUBE-SERVICES` shows enough (kubernetes pkg/proxy/iptables/proxier.go). The chains of pods
/// and network policies say nothing about a proxy (kube-router pkg/controllers/netpol).
const ONE_AN_OBJECT: [&str; 8] =
    ["KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-", "KUBE-XLB-", "KUBE-POD-FW-", "KUBE-NWPLCY-"];

/// The families and the files with the tables of legacy iptables. Only root can read the files.
const LEGACY: [(&str, &str); 2] = [("ip", "ip_tables_names"), ("ip6", "ip6_tables_names")];

/// Reads four things: tables, chains whose name begins with `KUBE-`, redirections of hostPorts, and ports that
/// conntrack does not track. Chains of single objects are left out.
///
/// # Errors
/// Returns a `Gap` with `NotPermitted` if the process lacks the capability NET_ADMIN. If the kernel lacks nf_tables or
/// legacy iptables, their list of tables is empty.
pub(crate) fn read(root: &Root) -> Result<Netfilter, Gap> {
    require_net_admin(Source::Netfilter, "nft tables and chains")?;
    let mut connection = connection(Family::Netfilter);
    let tables = connection.dump(&request("nft tables", NFT_MSG_GETTABLE), Vec::new, |tables, message| {
        tables.extend(table(message)?);
        Ok(())
    });
    let chains = connection.dump(&request("nft chains", NFT_MSG_GETCHAIN), Default::default, |chains, message| {
        let (of_proxies, of_host_ports): &mut (Vec<String>, Vec<redirections::Chain>) = chains;
        of_proxies.extend(chain(message)?);
        of_host_ports.extend(redirections::chain(message)?);
        Ok(())
    });
    let (chains, mut of_host_ports) = existing(chains)?;
    let untracked = redirections::untracked(&mut connection, &mut of_host_ports).into();
    let redirections = redirections::read(&mut connection, of_host_ports).into();
    let mut legacy_tables = Vec::new();
    for (family, file) in LEGACY {
        let content = existing(read_text(Source::Netfilter, &root.net(file), 4096))?;
        legacy_tables.extend(content.lines().map(|table| format!("{family} {}", name(table.as_bytes(), NAME))));
    }
    Ok(Netfilter { tables: existing(tables)?, chains, legacy_tables, redirections, untracked })
}

fn existing<T: Default>(read: Result<T, Gap>) -> Result<T, Gap> {
    match read {
        Err(gap) if gap.why == Why::NotSupported => Ok(T::default()),
        read => read,
    }
}

/// Makes a request with `struct nfgenmsg`: all families, version 0.
fn request(what: &'static str, kind: u16) -> Request<'static> {
    Request { source: Source::Netfilter, what, kind, body: &[0; 4], absent: None }
}

/// The family and the name of the table in a message about a table.
///
/// # Errors
/// Returns `Malformed` if attributes are cut or missing.
pub fn table(message: &Message<'_>) -> Result<Option<String>, Malformed> {
    if message.kind != NFT_MSG_NEWTABLE {
        return Ok(None);
    }
    Ok(Some(format!("{} {}", family(message)?, attribute(message, NFTA_TABLE_NAME)?)))
}

/// The name of the chain in a message about a chain.
///
/// # Errors
/// Returns `Malformed` if attributes are cut or missing.
pub fn chain(message: &Message<'_>) -> Result<Option<String>, Malformed> {
    if message.kind != NFT_MSG_NEWCHAIN {
        return Ok(None);
    }
    let chain = attribute(message, NFTA_CHAIN_NAME)?;
    if !chain.starts_with("KUBE-") || ONE_AN_OBJECT.iter().any(|prefix| chain.starts_with(prefix)) {
        return Ok(None);
    }
    Ok(Some(format!("{} {} {chain}", family(message)?, attribute(message, NFTA_CHAIN_TABLE)?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message_body(family: u8, names: &[(u8, &str)]) -> Vec<u8> {
        let mut body = vec![family, 0, 0, 0];
        for (kind, name) in names {
            body.extend([u8::try_from(name.len() + 5).unwrap(), 0, *kind, 0]);
            body.extend(name.as_bytes());
            body.push(0);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        body
    }

    fn chain_of(table: &str, name: &str) -> Option<String> {
        let body = message_body(2, &[(1, table), (3, name)]);
        chain(&Message { kind: NFT_MSG_NEWCHAIN, body: &body }).unwrap()
    }

    #[test]
    fn a_table_is_named_with_its_family() {
        let body = message_body(10, &[(1, "kube-proxy")]);
        let named = table(&Message { kind: NFT_MSG_NEWTABLE, body: &body }).unwrap();
        assert_eq!(named.as_deref(), Some("ip6 kube-proxy"));
    }

    #[test]
    fn chains_of_a_proxy_are_kept_without_chains_of_single_objects() {
        assert_eq!(chain_of("nat", "KUBE-NODEPORTS").as_deref(), Some("ip nat KUBE-NODEPORTS"));
        for single in ["KUBE-SVC-NPX46M4PTMTKRN6Y", "KUBE-POD-FW-NPX46M4PTMTKRN6Y", "KUBE-NWPLCY-NPX46M4PTMTKRN6Y"] {
            assert_eq!(chain_of("nat", single), None, "{single}");
        }
        assert_eq!(chain_of("nat", "DOCKER"), None);
    }

    #[test]
    fn a_chain_without_a_name_is_malformed() {
        let body = message_body(2, &[(1, "nat")]);
        assert!(chain(&Message { kind: NFT_MSG_NEWCHAIN, body: &body }).is_err());
        assert!(table(&Message { kind: NFT_MSG_NEWTABLE, body: &[] }).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(body in proptest::collection::vec(any::<u8>(), 0..64)) {
            let named = table(&Message { kind: NFT_MSG_NEWTABLE, body: &body });
            prop_assert!(named.is_err() || body.len() > 4);
            let named = chain(&Message { kind: NFT_MSG_NEWCHAIN, body: &body });
            prop_assert!(named.is_err() || body.len() > 4);
        }
    }
}
