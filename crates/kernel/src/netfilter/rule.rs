//! Finds the port and the target in a rule of nf_tables. The rule has the form of `nft` or of iptables-nft
//! (include/uapi/linux/netfilter/nf_tables.h, nf_tables_compat.h).

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::names::{NAME, NFPROTO_IPV4, NFPROTO_IPV6, NFTA_RULE_CHAIN, NFTA_RULE_TABLE, attribute, family};
use crate::{
    conntrack::protocol,
    netlink::{Malformed, Message, attributes, bytes_at, name},
};
use portreeve_facts::{Protocol, Redirection};

const NFTA_RULE_HANDLE: u16 = 3;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;

/// The parts of a rule that this parser understands.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The chain to which the rule jumps.
    pub jump: Option<String>,
    /// The redirection of a port, with its target.
    pub redirection: Option<Redirection>,
    /// The destination port whose packets the rule excludes from conntrack. `None` if the rule is only for some
    /// addresses.
    pub untracked: Option<(Protocol, u16)>,
}

impl Rule {
    /// The names in a rule. Another program chose these names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.jump.iter().chain(self.redirection.as_ref().map(|it| &it.chain)).map(String::as_str)
    }
}

/// Parses one rule of a dump.
pub fn rule(message: &Message<'_>) -> Result<Rule, Malformed> {
    let [number] = bytes_at(message.body, 0)?;
    let (table, chain) = (attribute(message, NFTA_RULE_TABLE)?, attribute(message, NFTA_RULE_CHAIN)?);
    let chain = format!("{} {table} {chain}", family(message)?);
    let parts = Parts::of(message.body.get(4..).unwrap_or_default())?;
    let handle = parts.get(NFTA_RULE_HANDLE).map(|it| bytes_at(it, 0)).transpose()?.map_or(0, u64::from_be_bytes);
    let mut so_far = RuleSoFar { family: number, ..RuleSoFar::default() };
    for expression in attributes(parts.get(NFTA_RULE_EXPRESSIONS).unwrap_or_default()) {
        so_far.expression(expression?.1)?;
    }
    let to = so_far.to.filter(|_| !so_far.unclear);
    let redirection = to.zip(so_far.protocol.zip(so_far.port)).map(|((to, to_port), (protocol, port))| {
        let port_inside = if to_port == 0 { port } else { to_port };
        Redirection { protocol, port, ip: so_far.ip, to, to_port: port_inside, chain, handle }
    });
    let untracked =
        so_far.protocol.zip(so_far.port).filter(|_| so_far.untracked && !so_far.unclear && so_far.ip.is_none());
    Ok(Rule { jump: so_far.jump, redirection, untracked })
}

#[derive(Clone, Copy)]
enum Held<'a> {
    Protocol,
    Port,
    Destination,
    Bytes(&'a [u8]),
    /// A value that is not needed for a redirection.
    Other,
}

#[derive(Default)]
struct RuleSoFar<'a> {
    family: u8,
    registers: HashMap<u32, Held<'a>>,
    protocol: Option<Protocol>,
    port: Option<u16>,
    ip: Option<IpAddr>,
    jump: Option<String>,
    to: Option<(IpAddr, u16)>,
    untracked: bool,
    /// Whether the rule has a condition that this parser does not understand, such as a network or an excluded port.
    /// Such a rule may redirect only some clients.
    unclear: bool,
}

impl<'a> RuleSoFar<'a> {
    fn expression(&mut self, expression: &'a [u8]) -> Result<(), Malformed> {
        let parts = Parts::of(expression)?;
        let data = Parts::of(parts.get(NFTA_EXPR_DATA).unwrap_or_default())?;
        match parts.get(NFTA_EXPR_NAME).map(|it| name(it, NAME)).as_deref() {
            Some("meta") => self.meta(&data),
            Some("payload") => self.payload(&data),
            Some("cmp") => self.compare(&data)?,
            Some("immediate") => self.immediate(&data)?,
            Some("nat") => self.nat(&data),
            Some("notrack") => self.untracked = true,
            Some("match") => self.xt_match(&data)?,
            Some("target") => self.xt_target(&data)?,
            Some("bitwise" | "lookup" | "range" | "byteorder") => self.unclear = true,
            _ => {}
        }
        Ok(())
    }

    fn meta(&mut self, data: &Parts<'a>) {
        const NFTA_META_DREG: u16 = 1;
        const NFTA_META_KEY: u16 = 2;
        const NFT_META_L4PROTO: u32 = 16;
        let is_protocol = data.number(NFTA_META_KEY) == Some(NFT_META_L4PROTO);
        self.hold(data.number(NFTA_META_DREG), if is_protocol { Held::Protocol } else { Held::Other });
    }

    fn payload(&mut self, data: &Parts<'a>) {
        const NFTA_PAYLOAD_DREG: u16 = 1;
        const NFTA_PAYLOAD_BASE: u16 = 2;
        const NFTA_PAYLOAD_OFFSET: u16 = 3;
        const NFTA_PAYLOAD_LEN: u16 = 4;
        const NETWORK: u32 = 1;
        const TRANSPORT: u32 = 2;
        let field = |kind| data.number(kind).unwrap_or(u32::MAX);
        // Base, offset and length of three fields: the destination port, the protocol in an IPv4 header, and the
        // destination address.
        let held = match (field(NFTA_PAYLOAD_BASE), field(NFTA_PAYLOAD_OFFSET), field(NFTA_PAYLOAD_LEN), self.family) {
            (TRANSPORT, 2, 2, _) => Held::Port,
            (NETWORK, 9, 1, NFPROTO_IPV4) => Held::Protocol,
            (NETWORK, 16, 4, NFPROTO_IPV4) | (NETWORK, 24, 16, NFPROTO_IPV6) => Held::Destination,
            _ => Held::Other,
        };
        self.hold(data.number(NFTA_PAYLOAD_DREG), held);
    }

    fn compare(&mut self, data: &Parts<'a>) -> Result<(), Malformed> {
        const NFTA_CMP_SREG: u16 = 1;
        const NFTA_CMP_OP: u16 = 2;
        const NFTA_CMP_DATA: u16 = 3;
        const NFT_CMP_EQ: u32 = 0;
        let held = data.number(NFTA_CMP_SREG).and_then(|register| self.registers.get(&register).copied());
        let (Some(held), Some(NFT_CMP_EQ)) = (held, data.number(NFTA_CMP_OP)) else {
            self.unclear = true;
            return Ok(());
        };
        let value = value(data.get(NFTA_CMP_DATA).unwrap_or_default())?.unwrap_or_default();
        match held {
            Held::Protocol => self.protocol = value.first().and_then(|number| protocol([*number])),
            Held::Port => self.port = Some(u16::from_be_bytes(bytes_at(value, 0)?)),
            Held::Destination => self.ip = Some(self.address(value)?),
            Held::Bytes(_) | Held::Other => self.unclear = true,
        }
        Ok(())
    }

    fn immediate(&mut self, data: &Parts<'a>) -> Result<(), Malformed> {
        const NFTA_IMMEDIATE_DREG: u16 = 1;
        const NFTA_IMMEDIATE_DATA: u16 = 2;
        const NFTA_DATA_VERDICT: u16 = 2;
        const NFTA_VERDICT_CHAIN: u16 = 2;
        let set = data.get(NFTA_IMMEDIATE_DATA).unwrap_or_default();
        if let Some(bytes) = value(set)? {
            self.hold(data.number(NFTA_IMMEDIATE_DREG), Held::Bytes(bytes));
        }
        if let Some(verdict) = Parts::of(set)?.get(NFTA_DATA_VERDICT) {
            self.jump = Parts::of(verdict)?.get(NFTA_VERDICT_CHAIN).map(|chain| name(chain, NAME));
        }
        Ok(())
    }

    fn nat(&mut self, data: &Parts<'a>) {
        const NFTA_NAT_TYPE: u16 = 1;
        const NFTA_NAT_REG_ADDR_MIN: u16 = 3;
        const NFTA_NAT_REG_PROTO_MIN: u16 = 5;
        const NFT_NAT_DNAT: u32 = 1;
        let held = |kind| match data.number(kind).and_then(|register| self.registers.get(&register)) {
            Some(Held::Bytes(bytes)) => Some(*bytes),
            _ => None,
        };
        let address = held(NFTA_NAT_REG_ADDR_MIN).and_then(|bytes| self.address(bytes).ok());
        let port = held(NFTA_NAT_REG_PROTO_MIN).and_then(|bytes| Some(u16::from_be_bytes(*bytes.first_chunk()?)));
        if data.number(NFTA_NAT_TYPE) == Some(NFT_NAT_DNAT) {
            self.to = address.map(|address| (address, port.unwrap_or(0)));
        }
    }

    /// Finds the destination port in a match of iptables (include/uapi/linux/netfilter/xt_tcpudp.h, xt_sctp.h).
    fn xt_match(&mut self, data: &Parts<'a>) -> Result<(), Malformed> {
        let Some((kind, info)) = data.xt() else { return Ok(()) };
        // The protocol, and the offsets of the destination ports and of the flags. Each port has the byte order of this
        // machine.
        let (protocol, at, flags) = match kind.as_str() {
            "tcp" => (Protocol::Tcp, 4, Some(11)),
            "udp" => (Protocol::Udp, 4, Some(8)),
            "sctp" => (Protocol::Sctp, 0, None),
            _ => return Ok(()),
        };
        // XT_TCP_INV_DSTPT, XT_UDP_INV_DSTPT: the rule matches all ports except this port.
        self.unclear |= flags.and_then(|at: usize| info.get(at)).is_some_and(|flags| flags & 2 != 0);
        let (first, last) = (bytes_at(info, at)?, bytes_at(info, at + 2)?);
        self.protocol = Some(protocol);
        self.port = (first == last).then(|| u16::from_ne_bytes(first));
        Ok(())
    }

    /// Parses a target of iptables: DNAT with its destination (`struct nf_nat_range2`,
    /// include/uapi/linux/netfilter/nf_nat.h), or a target that excludes packets from conntrack (`struct
    /// xt_ct_target_info`, include/uapi/linux/netfilter/xt_CT.h).
    fn xt_target(&mut self, data: &Parts<'a>) -> Result<(), Malformed> {
        const NFTA_TARGET_REV: u16 = 2;
        const NF_NAT_RANGE_MAP_IPS: u32 = 1;
        const NF_NAT_RANGE_PROTO_SPECIFIED: u32 = 2;
        const XT_CT_NOTRACK: u16 = 1;
        let Some((kind, info)) = data.xt() else { return Ok(()) };
        match kind.as_str() {
            "NOTRACK" => self.untracked = true,
            "CT" => self.untracked = u16::from_ne_bytes(bytes_at(info, 0)?) & XT_CT_NOTRACK != 0,
            _ => {}
        }
        if kind != "DNAT" {
            return Ok(());
        }
        // Revision 0 begins with a count, and each of its IPv4 addresses has four bytes.
        let (flags, address, port) = match data.number(NFTA_TARGET_REV) {
            Some(0) => (4, 8, 16),
            _ => (0, 4, 36),
        };
        let flags = u32::from_ne_bytes(bytes_at(info, flags)?);
        if flags & NF_NAT_RANGE_MAP_IPS != 0 {
            let address = self.address(info.get(address..).unwrap_or_default())?;
            let port = u16::from_be_bytes(bytes_at(info, port)?);
            self.to = Some((address, if flags & NF_NAT_RANGE_PROTO_SPECIFIED != 0 { port } else { 0 }));
        }
        Ok(())
    }

    fn hold(&mut self, register: Option<u32>, what: Held<'a>) {
        if let Some(register) = register {
            self.registers.insert(register, what);
        }
    }

    fn address(&self, bytes: &[u8]) -> Result<IpAddr, Malformed> {
        Ok(match self.family {
            NFPROTO_IPV4 => IpAddr::V4(Ipv4Addr::from(bytes_at::<4>(bytes, 0)?)),
            _ => IpAddr::V6(Ipv6Addr::from(bytes_at::<16>(bytes, 0)?)),
        })
    }
}

fn value(data: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    const NFTA_DATA_VALUE: u16 = 1;
    Ok(Parts::of(data)?.get(NFTA_DATA_VALUE))
}

struct Parts<'a>(Vec<(u16, &'a [u8])>);

impl<'a> Parts<'a> {
    fn of(bytes: &'a [u8]) -> Result<Self, Malformed> {
        attributes(bytes).take(16).collect::<Result<_, _>>().map(Self)
    }

    fn get(&self, kind: u16) -> Option<&'a [u8]> {
        self.0.iter().find(|(found, _)| *found == kind).map(|(_, payload)| *payload)
    }

    fn number(&self, kind: u16) -> Option<u32> {
        self.get(kind)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }

    /// The name and the data of a match or target of iptables (include/uapi/linux/netfilter/nf_tables_compat.h).
    fn xt(&self) -> Option<(String, &'a [u8])> {
        const NAME_OF: u16 = 1;
        const INFO: u16 = 3;
        Some((name(self.get(NAME_OF)?, NAME), self.get(INFO)?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{netfilter::names::NFT_MSG_NEWRULE, netlink::attribute as nested};

    fn xt(expression: &str, kind: &str, revision: u32, info: &[u8]) -> Vec<u8> {
        let data = [nested(1, kind.as_bytes()), nested(2, &revision.to_be_bytes()), nested(3, info)].concat();
        nested(1, &[nested(1, expression.as_bytes()), nested(2, &data)].concat())
    }

    fn rule_of(family: u8, expressions: &[Vec<u8>]) -> Result<Rule, Malformed> {
        let names = [nested(1, b"nat\0"), nested(2, b"CNI-DN-a\0"), nested(3, &7_u64.to_be_bytes())].concat();
        let body = [vec![family, 0, 0, 0], names, nested(4, &expressions.concat())].concat();
        rule(&Message { kind: NFT_MSG_NEWRULE, body: &body })
    }

    fn tcp(first: u16, last: u16) -> Vec<u8> {
        let ports = [0_u16, u16::MAX, first, last].map(u16::to_ne_bytes).concat();
        xt("match", "tcp", 0, &[&ports[..], &[0; 4]].concat())
    }

    /// The data of a DNAT target: revision 0, or a revision with space for an IPv6 address.
    fn dnat(revision: u32, flags: u32) -> Vec<u8> {
        let (ip, port) = ([10, 1, 0, 8], 8080_u16.to_be_bytes());
        let flags = flags.to_ne_bytes();
        let wide = [&ip[..], &[0; 12]].concat();
        let info = match revision {
            0 => [&1_u32.to_ne_bytes()[..], &flags, &ip, &ip, &port, &port].concat(),
            _ => [&flags[..], &wide, &wide, &port, &port, &[0; 4]].concat(),
        };
        xt("target", "DNAT", revision, &info)
    }

    #[test]
    fn every_form_of_the_target_is_read() {
        for revision in [0, 1, 2] {
            let redirection = rule_of(2, &[tcp(80, 80), dnat(revision, 3)]).expect("a rule").redirection;
            let redirection = redirection.expect("a redirection");
            assert_eq!((redirection.port, redirection.to, redirection.to_port), (80, [10, 1, 0, 8].into(), 8080));
            assert_eq!((redirection.chain.as_str(), redirection.handle), ("ip nat CNI-DN-a", 7));
        }
        let same_port = rule_of(2, &[tcp(80, 80), dnat(2, 1)]).expect("a rule").redirection.expect("a redirection");
        assert_eq!(same_port.to_port, 80, "a target without a port keeps it");
    }

    #[test]
    fn a_rule_that_does_not_redirect_one_port_is_no_redirection() {
        let none = Ok(Rule::default());
        assert_eq!(rule_of(2, &[tcp(80, 81), dnat(2, 3)]), none, "a range");
        assert_eq!(rule_of(2, &[tcp(80, 80)]), none, "without a target");
        assert_eq!(rule_of(2, &[dnat(2, 3)]), none, "every port");
        assert_eq!(rule_of(2, &[tcp(80, 80), dnat(2, 2)]), none, "the address stays");
        assert_eq!(rule_of(2, &[xt("match", "tcp", 0, &[0; 7]), dnat(2, 3)]).err().map(|_| ()), Some(()), "cut off");
    }

    #[test]
    fn an_untracked_port_is_read_from_each_form_of_the_target() {
        let udp = |first: u16, last: u16| {
            let ports = [0_u16, u16::MAX, first, last].map(u16::to_ne_bytes).concat();
            xt("match", "udp", 0, &[&ports[..], &[0; 2]].concat())
        };
        let ct = |flags: u16| xt("target", "CT", 2, &[&flags.to_ne_bytes()[..], &[0; 30]].concat());
        let untracked = |expressions: &[Vec<u8>]| rule_of(2, expressions).expect("a rule").untracked;
        let found = Some((Protocol::Udp, 8472));
        assert_eq!(untracked(&[udp(8472, 8472), ct(1)]), found);
        assert_eq!(untracked(&[udp(8472, 8472), xt("target", "NOTRACK", 0, &[])]), found);
        assert_eq!(untracked(&[udp(8472, 8472), nft("notrack", &[], None)]), found);
        assert_eq!(untracked(&[udp(8472, 8472), ct(0)]), None, "a zone, or a helper");
        assert_eq!(untracked(&[udp(8472, 8473), ct(1)]), None, "a range");
        assert_eq!(untracked(&[ct(1)]), None, "every port");
        let destination = nft("payload", &[(1, 1), (2, 1), (3, 16), (4, 4)], None);
        let of_one = nft("cmp", &[(1, 1), (2, 0)], Some((3, &[10, 1, 2, 0])));
        assert_eq!(untracked(&[destination, of_one, udp(8472, 8472), ct(1)]), None, "one address alone");
    }

    fn nft(name: &str, numbers: &[(u16, u32)], value: Option<(u16, &[u8])>) -> Vec<u8> {
        let numbers = numbers.iter().flat_map(|(kind, number)| nested(*kind, &number.to_be_bytes()));
        let value = value.map(|(kind, bytes)| nested(kind, &nested(1, bytes))).unwrap_or_default();
        let data: Vec<u8> = numbers.chain(value).collect();
        nested(1, &[nested(1, name.as_bytes()), nested(2, &data)].concat())
    }

    #[test]
    fn a_condition_that_is_not_understood_makes_no_redirection() {
        let network = [10, 1, 2, 0];
        let destination = || nft("payload", &[(1, 1), (2, 1), (3, 16), (4, 4)], None);
        let source = || nft("payload", &[(1, 1), (2, 1), (3, 12), (4, 4)], None);
        let compare = |operation| nft("cmp", &[(1, 1), (2, operation)], Some((3, &network)));
        let with = |conditions: &[Vec<u8>]| {
            let rule = rule_of(2, &[conditions, &[tcp(80, 80), dnat(2, 3)]].concat()).expect("a rule");
            rule.redirection.map(|it| it.ip)
        };
        assert_eq!(with(&[destination(), compare(0)]), Some(Some(network.into())));
        assert_eq!(with(&[destination(), compare(1)]), None, "any other address");
        assert_eq!(with(&[source(), compare(0)]), None, "some clients");
        assert_eq!(with(&[destination(), source(), compare(0)]), None, "the register holds another field now");
        assert_eq!(with(&[destination(), nft("bitwise", &[(1, 1), (2, 1)], None), compare(0)]), None, "a network");
        assert_eq!(with(&[nft("meta", &[(1, 1), (2, 6)], None), compare(0)]), None, "an interface");
        let inverted = |kind: &str, flags: usize| {
            let mut info = [0_u16, u16::MAX, 80, 80].map(u16::to_ne_bytes).concat();
            info.resize(12, 0);
            info[flags] = 2;
            rule_of(2, &[xt("match", kind, 0, &info), dnat(2, 3)]).expect("a rule").redirection.map(|it| it.protocol)
        };
        assert_eq!((inverted("tcp", 11), inverted("udp", 8)), (None, None), "any other port");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(body in proptest::collection::vec(any::<u8>(), 0..64), expression in proptest::collection::vec(any::<u8>(), 0..64)) {
            drop(rule(&Message { kind: NFT_MSG_NEWRULE, body: &body }));
            drop(rule_of(10, &[nested(1, &expression)]));
        }
    }
}
