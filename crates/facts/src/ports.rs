//! Port numbers, ranges of ports, sets of ports, protocols and address families.

use std::{fmt, net::IpAddr, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error};

use super::text;

/// A transport protocol that a Service port can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// Every protocol that a Service can have.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        })
    }
}

/// An IP address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Family {
    #[serde(rename = "IPv4")]
    V4,
    #[serde(rename = "IPv6")]
    V6,
}

impl Family {
    /// Both families, IPv4 first.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address. IPv4-mapped IPv6 addresses count as IPv6.
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The families in the order of the input, each family once. A file may repeat a family.
    pub fn each_once(families: impl IntoIterator<Item = Self>) -> &'static [Self] {
        let mut families = families.into_iter();
        match families.next().map(|first| (first, families.any(|it| it != first))) {
            None => &[],
            Some((Self::V4, false)) => &[Self::V4],
            Some((Self::V6, false)) => &[Self::V6],
            Some((Self::V4, true)) => &Self::BOTH,
            Some((Self::V6, true)) => &[Self::V6, Self::V4],
        }
    }

    /// The index of the family in a pair of values: 0 for IPv4, 1 for IPv6.
    pub fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// An inclusive range of ports, `first <= last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
pub struct PortRange {
    /// The lowest port.
    pub first: u16,
    /// The highest port.
    pub last: u16,
}

impl PortRange {
    /// The API server's default `--service-node-port-range`.
    pub const DEFAULT_NODE_PORTS: Self = Self { first: 30000, last: 32767 };
    /// The kernel's default `net.ipv4.ip_local_port_range`.
    pub const DEFAULT_EPHEMERAL: Self = Self { first: 32768, last: 60999 };

    /// The range from `first` to `last`. `None` if `first > last`.
    pub fn new(first: u16, last: u16) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// The number of ports, 1 to 65536.
    pub fn size(self) -> u32 {
        u32::from(self.last) - u32::from(self.first) + 1
    }

    /// Whether a port is in the range.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// The ports that are in both ranges. `None` if the ranges have no common port.
    pub fn intersection(self, other: Self) -> Option<Self> {
        Self::new(self.first.max(other.first), self.last.min(other.last))
    }

    /// Every port, the lowest first.
    pub fn iter(self) -> impl Iterator<Item = u16> {
        self.first..=self.last
    }
}

/// Refuses a range whose first port is larger than its last port.
impl<'de> Deserialize<'de> for PortRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Written {
            first: u16,
            last: u16,
        }
        let Written { first, last } = Written::deserialize(deserializer)?;
        Self::new(first, last)
            .ok_or_else(|| Error::custom(format_args!("a port range from {first} to {last}, wanted first <= last")))
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

/// The error for a text that cannot be parsed as ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}")]
pub struct NotPorts {
    text: String,
    wanted: &'static str,
}

/// The largest number of bytes of the wrong text that an error shows.
const LONGEST: usize = 64;

impl NotPorts {
    fn new(text: &str, wanted: &'static str) -> Self {
        // A text from a file may contain characters that hide other characters or change their order.
        Self { text: text::clean(text, LONGEST), wanted }
    }
}

impl FromStr for PortRange {
    type Err = NotPorts;

    /// Parses the forms of a range in kube-apiserver and in the kernel: `a-b`, `a+offset`, `a`, and `a b`
    /// (k8s.io/apimachinery/pkg/util/net/port_range.go).
    fn from_str(text: &str) -> Result<Self, NotPorts> {
        let wanted = "a port range: FIRST-LAST, FIRST+COUNT or one port, each 0 to 65535";
        let port = |part: &str| part.trim().parse::<u16>().map_err(|_| NotPorts::new(text, wanted));
        let trimmed = text.trim();
        let (first, last) = if let Some((first, offset)) = trimmed.split_once('+') {
            let first = port(first)?;
            (first, first.saturating_add(port(offset)?))
        } else if let Some((first, last)) = trimmed.split_once('-').or_else(|| trimmed.split_once(char::is_whitespace))
        {
            (port(first)?, port(last)?)
        } else {
            (port(trimmed)?, port(trimmed)?)
        };
        Self::new(first, last).ok_or_else(|| NotPorts::new(text, wanted))
    }
}

/// A set of ports. The ranges are sorted. Ranges that touch or overlap are merged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<PortRange>", into = "Vec<PortRange>")]
pub struct PortSet(Vec<PortRange>);

impl PortSet {
    /// The ranges, the lowest first. Ranges that touch or overlap are merged.
    pub fn ranges(&self) -> &[PortRange] {
        &self.0
    }

    /// The number of ports.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|range| range.size()).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a port is in the set.
    pub fn contains(&self, port: u16) -> bool {
        let after = self.0.partition_point(|range| range.first <= port);
        after > 0 && self.0[after - 1].contains(port)
    }

    /// The ports that are in at least one of the two sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.0.iter().chain(&other.0).copied().collect()
    }

    /// The ports that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.0.iter().flat_map(|mine| other.meeting(*mine).filter_map(|theirs| mine.intersection(*theirs))).collect()
    }

    /// The ports of this set that are not in the other set.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        for range in &self.0 {
            let mut from = u32::from(range.first);
            for cut in other.meeting(*range) {
                left.extend(between(from, u32::from(cut.first)));
                from = u32::from(cut.last) + 1;
            }
            left.extend(between(from, u32::from(range.last) + 1));
        }
        left.into()
    }

    fn meeting(&self, range: PortRange) -> impl Iterator<Item = &PortRange> {
        let first = self.0.partition_point(|it| it.last < range.first);
        self.0[first..].iter().take_while(move |it| it.first <= range.last)
    }

    /// Every port, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().flat_map(|range| range.iter())
    }
}

/// `from..end` as a range of ports. `None` if `from..end` is empty.
fn between(from: u32, end: u32) -> Option<PortRange> {
    let last = end.checked_sub(1)?;
    PortRange::new(u16::try_from(from).ok()?, u16::try_from(last).ok()?)
}

impl From<Vec<PortRange>> for PortSet {
    fn from(mut ranges: Vec<PortRange>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<PortRange> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match merged.last_mut() {
                Some(before) if u32::from(range.first) <= u32::from(before.last) + 1 => {
                    before.last = before.last.max(range.last);
                }
                _ => merged.push(range),
            }
        }
        Self(merged)
    }
}

impl From<PortSet> for Vec<PortRange> {
    fn from(set: PortSet) -> Self {
        set.0
    }
}

impl From<PortRange> for PortSet {
    fn from(range: PortRange) -> Self {
        Self(vec![range])
    }
}

impl FromIterator<PortRange> for PortSet {
    fn from_iter<I: IntoIterator<Item = PortRange>>(ranges: I) -> Self {
        ranges.into_iter().collect::<Vec<_>>().into()
    }
}

impl FromIterator<u16> for PortSet {
    fn from_iter<I: IntoIterator<Item = u16>>(ports: I) -> Self {
        ports.into_iter().map(|port| PortRange { first: port, last: port }).collect()
    }
}

impl FromStr for PortSet {
    type Err = NotPorts;

    /// Parses a list in the form of the kernel, such as `2703,9808-9810`. An empty text is an empty set
    /// (kernel/sysctl.c `proc_do_large_bitmap`).
    fn from_str(text: &str) -> Result<Self, NotPorts> {
        let wanted = "a list of ports and ranges like 2703,30000-32767";
        text.trim()
            .split(',')
            .filter(|part| !part.trim().is_empty())
            .map(|part| part.parse::<PortRange>().map_err(|_| NotPorts::new(text, wanted)))
            .collect()
    }
}

impl fmt::Display for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(index, range)| {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{range}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_family_counts_once_in_a_snapshot_too() {
        let world = crate::Snapshot::healthy().service("web", |it| it);
        let mut service = serde_json::to_value(&world.cluster.services.seen().expect("Services")[0]).expect("JSON");
        service["families"] = serde_json::json!(["IPv6", "IPv4", "IPv6", "IPv6", "IPv4"]);
        let read: crate::Service = serde_json::from_value(service).expect("a Service");
        assert_eq!(read.families, [Family::V6, Family::V4]);
    }

    #[test]
    fn ranges_read_every_form_kube_apiserver_takes() {
        assert_eq!("30000-32767".parse(), Ok(PortRange::DEFAULT_NODE_PORTS));
        assert_eq!("30000+2767".parse(), Ok(PortRange::DEFAULT_NODE_PORTS));
        assert_eq!("32768\t60999\n".parse(), Ok(PortRange::DEFAULT_EPHEMERAL));
        assert_eq!("80".parse(), Ok(PortRange { first: 80, last: 80 }));
        for wrong in ["", "x", "2-1", "1-70000", "-", "1-2-3"] {
            assert!(wrong.parse::<PortRange>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_quoted_of_a_text_hides_and_turns_nothing() {
        // `{:?}` in Rust does not escape these unassigned characters.
        let error = "30000\u{ffff}\u{329a}\u{3269a}\0x\u{202e}".parse::<PortRange>().expect_err("no range").to_string();
        assert!(!error.chars().any(text::is_invisible) && error.starts_with("\"30000㊚x\""), "{error}");
        let long = "x".repeat(1000).parse::<PortRange>().expect_err("no range").to_string();
        assert!(long.len() < 200, "{long}");
    }

    #[test]
    fn adjacent_entries_are_one_cover() {
        let set: PortSet = "30000-30999,31000-32767".parse().expect("a list");
        assert_eq!(set, PortSet::from(PortRange::DEFAULT_NODE_PORTS));
    }

    fn any_set() -> impl Strategy<Value = PortSet> {
        proptest::collection::vec((0u16..=80, 0u16..=9), 0..8).prop_map(|ranges| {
            let high = u16::MAX - 80;
            ranges
                .into_iter()
                .map(|(first, len)| {
                    let first = if first > 40 { high + first } else { first };
                    PortRange { first, last: first.saturating_add(len) }
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn set_algebra_agrees_with_each_port(a in any_set(), b in any_set(), port in prop_oneof![0u16..=60, 65400u16..=65535]) {
            prop_assert_eq!(a.union(&b).contains(port), a.contains(port) || b.contains(port));
            prop_assert_eq!(a.intersection(&b).contains(port), a.contains(port) && b.contains(port));
            prop_assert_eq!(a.minus(&b).contains(port), a.contains(port) && !b.contains(port));
            prop_assert_eq!(a.iter().count(), a.len() as usize);
            prop_assert_eq!(a.to_string().parse::<PortSet>(), Ok(a));
        }
    }
}
