//! Reads the redirections of hostPorts, which the CNI plugin `portmap` writes as rules of iptables-nft or of nftables
//! (containernetworking/plugins plugins/meta/portmap). Also reads the ports that rules of the tables `raw` exclude from
//! conntrack.

use std::{
    collections::{BTreeSet, HashMap},
    io,
};

use super::{
    names::{
        NFPROTO_IPV4, NFPROTO_IPV6, NFT_MSG_GETRULE, NFT_MSG_NEWCHAIN, NFT_MSG_NEWRULE, NFTA_CHAIN_NAME,
        NFTA_CHAIN_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_TABLE, attribute,
    },
    rule::{Rule, rule},
};
use crate::netlink::{self, Connection, Malformed, Message, Request, Transport, bytes_at};
use portreeve_facts::{Gap, Protocol, Redirection, Source, Why};

/// The largest number of chains that are read, each with its own request. A node has fewer pods.
const MOST_CHAINS: usize = 512;
const MOST_REDIRECTIONS: usize = 8192;

/// The chain of iptables with a jump to each pod's chain.
const ALL_PODS: &str = "CNI-HOSTPORT-DNAT";
const ONE_POD: &str = "CNI-DN-";
/// The table of `portmap` in nftables. `CHAINS` are the chains of this table, in the order in which the kernel
/// evaluates them.
const TABLE: &str = "cni_hostport";
const CHAINS: [&str; 2] = ["hostip_hostports", "hostports"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    family: u8,
    table: String,
    name: String,
}

const RAW: &str = "raw";

/// The chain in a message, if it is a chain of `portmap` or of a table `raw`.
pub(crate) fn chain(message: &Message<'_>) -> Result<Option<Chain>, Malformed> {
    if message.kind != NFT_MSG_NEWCHAIN {
        return Ok(None);
    }
    let [family] = bytes_at(message.body, 0)?;
    let (table, name) = (attribute(message, NFTA_CHAIN_TABLE)?, attribute(message, NFTA_CHAIN_NAME)?);
    let of_iptables = table == "nat" && (name == ALL_PODS || name.starts_with(ONE_POD));
    let ours = of_iptables || table == RAW || table == TABLE && CHAINS.contains(&name.as_str());
    let wanted = ours && [NFPROTO_IPV4, NFPROTO_IPV6].contains(&family);
    Ok(wanted.then_some(Chain { family, table, name }))
}

/// The ports that the chains of tables `raw` exclude from conntrack, each once. Takes these chains out of `chains`.
///
/// # Errors
/// Returns a `Gap` if a dump of rules failed, or if there are too many chains to read.
pub(crate) fn untracked<S: Transport, O: FnMut() -> io::Result<S>>(
    connection: &mut Connection<S, O>,
    chains: &mut Vec<Chain>,
) -> Result<Vec<(Protocol, u16)>, Gap> {
    let raw: Vec<Chain> = chains.extract_if(.., |chain| chain.table == RAW).collect();
    at_most(MOST_CHAINS, "chains of tables raw", raw.len())?;
    let mut found = BTreeSet::new();
    for chain in raw {
        found.extend(rules(connection, &chain)?.into_iter().filter_map(|rule| rule.untracked));
    }
    Ok(found.into_iter().collect())
}

/// The redirections of these chains, in the order in which the kernel evaluates them.
///
/// # Errors
/// Returns a `Gap` if a dump of rules failed, or if there are too many chains or redirections. A partial list would
/// lack the redirections of the newest pods. Then the pods that receive no connections would be unknown.
pub(crate) fn read<S: Transport, O: FnMut() -> io::Result<S>>(
    connection: &mut Connection<S, O>,
    mut chains: Vec<Chain>,
) -> Result<Vec<Redirection>, Gap> {
    let mut order: HashMap<(u8, String), usize> = HashMap::new();
    for all in chains.extract_if(.., |chain| chain.name == ALL_PODS) {
        for rule in rules(connection, &all)? {
            if let Some(chain) = rule.jump {
                let next = order.len();
                order.entry((all.family, chain)).or_insert(next);
            }
        }
    }
    let place = |chain: &Chain| match CHAINS.iter().position(|name| *name == chain.name) {
        Some(place) => Some(place),
        // A chain without a jump to it redirects nothing.
        None => order.get(&(chain.family, chain.name.clone())).copied(),
    };
    let mut placed: Vec<(usize, Chain)> =
        chains.into_iter().filter_map(|chain| Some((place(&chain)?, chain))).collect();
    placed.sort_by_key(|(place, _)| *place);
    at_most(MOST_CHAINS, "chains of hostPorts", placed.len())?;
    let mut found = Vec::new();
    for (_, chain) in placed {
        found.extend(rules(connection, &chain)?.into_iter().filter_map(|rule| rule.redirection));
        at_most(MOST_REDIRECTIONS, "redirections of hostPorts", found.len())?;
    }
    Ok(found)
}

fn at_most(most: usize, what: &str, are: usize) -> Result<(), Gap> {
    match are > most {
        true => Err(Gap::new(Source::Netfilter, Why::TooMuch, format!("more than {most} {what}"))),
        false => Ok(()),
    }
}

fn rules<S: Transport, O: FnMut() -> io::Result<S>>(
    connection: &mut Connection<S, O>,
    chain: &Chain,
) -> Result<Vec<Rule>, Gap> {
    let mut body = vec![chain.family, 0, 0, 0];
    for (kind, name) in [(NFTA_RULE_TABLE, &chain.table), (NFTA_RULE_CHAIN, &chain.name)] {
        body.extend(netlink::attribute(kind, &[name.as_bytes(), b"\0"].concat()));
    }
    let request =
        Request { source: Source::Netfilter, what: "nft rules", kind: NFT_MSG_GETRULE, body: &body, absent: None };
    connection.dump(&request, Vec::new, |found, message| {
        // A kernel before Linux 4.10 ignores the filter, and sends the rules of all chains.
        if message.kind == NFT_MSG_NEWRULE && attribute(message, NFTA_RULE_CHAIN)? == chain.name {
            found.push(rule(message)?);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{Family, script};

    #[test]
    fn too_many_chains_are_too_much_and_never_none() {
        let of_chains = |count: usize| {
            let chain = Chain { family: 2, table: TABLE.to_owned(), name: CHAINS[0].to_owned() };
            let silent = (0..8).map(|_| Vec::new()).collect();
            let read = read(&mut script::connection(Family::Netfilter, silent), vec![chain; count]);
            read.expect_err("a kernel without an answer").why
        };
        assert_eq!(of_chains(MOST_CHAINS + 1), Why::TooMuch);
        assert_ne!(of_chains(MOST_CHAINS), Why::TooMuch, "the first chain is requested");
        assert_eq!(at_most(2, "things", 2), Ok(()));
        assert_eq!(at_most(2, "things", 3).expect_err("too many").detail, "more than 2 things");
    }
}
