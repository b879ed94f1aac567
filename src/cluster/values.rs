//! Single values: ports, addresses, protocols, names, and lists of them. A wrong one is noted and left out.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
};

use super::field::{Field, Misfits, Shape, quoted};
use crate::facts::{Family, Protocol};

/// What a port must be.
pub(super) const PORT: &str = "1 to 65535";
/// What a port must be that may be left out.
pub(super) const NODE_PORT: &str = "0 to 65535";

/// An IP address as Kubernetes reads it: it forgives leading zeros in IPv4, and takes them for decimal
/// (k8s.io/utils/net `ParseIPSloppy`).
pub(super) fn lenient_ip(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    let decimal = |part: &str| {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| part.trim_start_matches('0')).map(|part| if part.is_empty() { "0" } else { part })?.parse().ok()
    };
    let octets: Vec<u8> = text.split('.').take(5).map(decimal).collect::<Option<_>>()?;
    <[u8; 4]>::try_from(octets).ok().map(|octets| IpAddr::V4(Ipv4Addr::from(octets)))
}

/// Converts every element of a list; `convert` gets its path, `list[index]`.
pub(super) fn each<T: Shape, U>(
    list: Field<Vec<Field<T>>>,
    path: impl fmt::Display,
    misfits: &mut Misfits,
    mut convert: impl FnMut(T, fmt::Arguments<'_>, &mut Misfits) -> Option<U>,
) -> Vec<U> {
    let items = list.take(&path, misfits).unwrap_or_default();
    let mut converted = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let item = item.take(format_args!("{path}[{index}]"), misfits);
        converted.extend(item.and_then(|item| convert(item, format_args!("{path}[{index}]"), misfits)));
    }
    converted
}

pub(super) fn name(field: Field<String>, misfits: &mut Misfits) -> Option<String> {
    let name = field.take("metadata.name", misfits).filter(|name| !name.is_empty());
    if name.is_none() {
        misfits.note("metadata.name", "absent", "a name");
    }
    name
}

/// A manifest without a namespace goes to `default`, as `kubectl apply` would have it.
pub(super) fn namespace(field: Field<String>, misfits: &mut Misfits) -> String {
    let namespace = field.take("metadata.namespace", misfits).filter(|name| !name.is_empty());
    namespace.unwrap_or_else(|| "default".to_owned())
}

pub(super) fn address(text: &str, path: impl fmt::Display, misfits: &mut Misfits) -> Option<IpAddr> {
    let ip = lenient_ip(text);
    if ip.is_none() {
        misfits.note(path, quoted(text), "an IP address");
    }
    ip
}

pub(super) fn addresses(
    list: Field<Vec<Field<String>>>,
    path: impl fmt::Display,
    misfits: &mut Misfits,
) -> Vec<IpAddr> {
    each(list, path, misfits, |text, path, misfits| address(&text, path, misfits))
}

pub(super) fn families(list: Field<Vec<Field<String>>>, cluster_ips: &[IpAddr], misfits: &mut Misfits) -> Vec<Family> {
    let said = each(list, "spec.ipFamilies", misfits, |text, path, misfits| match text.as_str() {
        "IPv4" => Some(Family::V4),
        "IPv6" => Some(Family::V6),
        other => {
            misfits.note(path, quoted(other), "IPv4 or IPv6");
            None
        }
    });
    if !said.is_empty() {
        return said;
    }
    let mut families: Vec<_> = cluster_ips.iter().copied().map(Family::of).collect();
    families.dedup();
    if families.is_empty() { vec![Family::V4] } else { families }
}

pub(super) fn port(number: i64, path: impl fmt::Display, wanted: &'static str, misfits: &mut Misfits) -> Option<u16> {
    let port = u16::try_from(number).ok().filter(|port| *port > 0);
    if port.is_none() {
        misfits.note(path, number, wanted);
    }
    port
}

/// A port that may be absent; 0 says the same.
pub(super) fn optional_port(
    field: Field<i64>,
    path: impl fmt::Display,
    wanted: &'static str,
    misfits: &mut Misfits,
) -> Option<u16> {
    let number = field.take(&path, misfits).filter(|number| *number != 0)?;
    port(number, path, wanted, misfits)
}

pub(super) fn protocol(field: Field<String>, path: impl fmt::Display, misfits: &mut Misfits) -> Option<Protocol> {
    match field.take(&path, misfits).as_deref() {
        None | Some("TCP" | "") => Some(Protocol::Tcp),
        Some("UDP") => Some(Protocol::Udp),
        Some("SCTP") => Some(Protocol::Sctp),
        Some(other) => {
            misfits.note(path, quoted(other), "TCP, UDP or SCTP");
            None
        }
    }
}
