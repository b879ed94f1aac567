//! Names of tables, chains and families in messages of nf_tables (include/uapi/linux/netfilter/nf_tables.h).

use crate::netlink::{Malformed, Message, attributes, bytes_at, name};

// libc has only the lower bytes of these numbers, and has them only on Linux.
/// `NFNL_SUBSYS_NFTABLES << 8`. The low byte is the type of the message.
pub(crate) const NFT_MSG_NEWTABLE: u16 = 0x0a00;
pub(crate) const NFT_MSG_GETTABLE: u16 = 0x0a01;
pub(crate) const NFT_MSG_NEWCHAIN: u16 = 0x0a03;
pub(crate) const NFT_MSG_GETCHAIN: u16 = 0x0a04;
pub(crate) const NFT_MSG_NEWRULE: u16 = 0x0a06;
pub(crate) const NFT_MSG_GETRULE: u16 = 0x0a07;

pub(crate) const NFTA_TABLE_NAME: u16 = 1;
pub(crate) const NFTA_CHAIN_TABLE: u16 = 1;
pub(crate) const NFTA_CHAIN_NAME: u16 = 3;
pub(crate) const NFTA_RULE_TABLE: u16 = 1;
pub(crate) const NFTA_RULE_CHAIN: u16 = 2;

/// The longest name that nf_tables accepts (`NFT_NAME_MAXLEN`).
pub(crate) const NAME: usize = 256;

// include/uapi/linux/netfilter.h
pub(crate) const NFPROTO_INET: u8 = 1;
pub(crate) const NFPROTO_IPV4: u8 = 2;
pub(crate) const NFPROTO_ARP: u8 = 3;
pub(crate) const NFPROTO_NETDEV: u8 = 5;
pub(crate) const NFPROTO_BRIDGE: u8 = 7;
pub(crate) const NFPROTO_IPV6: u8 = 10;

/// The family of the object in a message, by the name that `nft` uses.
pub(crate) fn family(message: &Message<'_>) -> Result<&'static str, Malformed> {
    let [number] = bytes_at(message.body, 0)?;
    Ok(match number {
        NFPROTO_INET => "inet",
        NFPROTO_IPV4 => "ip",
        NFPROTO_ARP => "arp",
        NFPROTO_NETDEV => "netdev",
        NFPROTO_BRIDGE => "bridge",
        NFPROTO_IPV6 => "ip6",
        _ => "unknown",
    })
}

pub(crate) fn attribute(message: &Message<'_>, kind: u16) -> Result<String, Malformed> {
    for attribute in attributes(message.body.get(4..).unwrap_or_default()) {
        let (found, payload) = attribute?;
        if found == kind {
            return Ok(name(payload, NAME));
        }
    }
    Err(Malformed("a table or chain with its name"))
}
