//! Values of fields: ports, addresses, protocols, names, and lists of them. A wrong one is noted and left out.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
};

use super::tolerant_field::{Field, FieldErrors, FieldType, Name, quoted};
use portreeve_facts::{Family, Protocol, names, text};

/// What a port must be.
pub(super) const PORT: &str = "1 to 65535";
/// What a port must be that may be left out.
pub(super) const NODE_PORT: &str = "0 to 65535";

/// An IP address as Kubernetes reads it: it forgives leading zeros in IPv4, and takes them for decimal
/// (k8s.io/utils/net `ParseIPSloppy`).
pub(super) fn lenient_ip(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        // Go takes the IPv4 address within an IPv6 one for the same.
        return Some(ip.to_canonical());
    }
    let decimal = |part: &str| {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| part.trim_start_matches('0')).map(|part| if part.is_empty() { "0" } else { part })?.parse().ok()
    };
    let octets: Vec<u8> = text.split('.').take(5).map(decimal).collect::<Option<_>>()?;
    <[u8; 4]>::try_from(octets).ok().map(|octets| IpAddr::V4(Ipv4Addr::from(octets)))
}

/// Converts every element of a list; `convert` gets its path, `list[index]`.
pub(super) fn each<T: FieldType, U>(
    list: Field<Vec<Field<T>>>,
    path: impl fmt::Display,
    errors: &mut FieldErrors,
    mut convert: impl FnMut(T, fmt::Arguments<'_>, &mut FieldErrors) -> Option<U>,
) -> Vec<U> {
    let items = list.take(&path, errors).unwrap_or_default();
    let mut converted = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        if matches!(item, Field::Absent) {
            errors.note(format_args!("{path}[{index}]"), "null", "a value");
        }
        let item = item.take(format_args!("{path}[{index}]"), errors);
        converted.extend(item.and_then(|item| convert(item, format_args!("{path}[{index}]"), errors)));
    }
    converted
}

/// A short text: cleaned, and cut at [`text::NAME`].
pub(super) fn short(text: &str) -> String {
    text::clean(text, text::NAME)
}

/// The name of an object, which it must have.
pub(super) fn name(field: Field<Name>, errors: &mut FieldErrors) -> Option<String> {
    if matches!(&field, Field::Absent) || field.seen().is_some_and(|Name(name)| name.is_empty()) {
        errors.note("metadata.name", "absent", "a name");
        return None;
    }
    field.take("metadata.name", errors).map(|Name(name)| name)
}

/// The name of an object, which must be a DNS label.
pub(super) fn label(field: Field<Name>, errors: &mut FieldErrors) -> Option<String> {
    name(field, errors).and_then(|name| as_label(name, "metadata.name", errors))
}

/// A manifest without a namespace goes to `default`, as `kubectl apply` would have it. `None` for an impossible one.
pub(super) fn namespace(field: Field<Name>, errors: &mut FieldErrors) -> Option<String> {
    let absent = matches!(&field, Field::Absent);
    let namespace = field.take("metadata.namespace", errors);
    match namespace {
        None if absent => Some("default".to_owned()),
        Some(Name(name)) if name.is_empty() => Some("default".to_owned()),
        Some(Name(name)) => as_label(name, "metadata.namespace", errors),
        None => None,
    }
}

fn as_label(name: String, path: &str, errors: &mut FieldErrors) -> Option<String> {
    let is_label = names::is_label(&name);
    if !is_label {
        errors.note(path, quoted(&name), names::LABEL_WORDS);
    }
    is_label.then_some(name)
}

/// The name of another object; `None` where there is none.
pub(super) fn reference(field: Field<Name>, path: impl fmt::Display, errors: &mut FieldErrors) -> Option<String> {
    field.take(path, errors).map(|Name(name)| name).filter(|name| !name.is_empty())
}

pub(super) fn address(text: &str, path: impl fmt::Display, errors: &mut FieldErrors) -> Option<IpAddr> {
    let ip = lenient_ip(text);
    if ip.is_none() {
        errors.note(path, quoted(text), "an IP address");
    }
    ip
}

pub(super) fn addresses(
    list: Field<Vec<Field<String>>>,
    path: impl fmt::Display,
    errors: &mut FieldErrors,
) -> Vec<IpAddr> {
    each(list, path, errors, |text, path, errors| address(&text, path, errors))
}

pub(super) fn families(
    list: Field<Vec<Field<String>>>,
    cluster_ips: &[IpAddr],
    errors: &mut FieldErrors,
) -> Vec<Family> {
    let listed = each(list, "spec.ipFamilies", errors, |text, path, errors| match text.as_str() {
        "IPv4" => Some(Family::V4),
        "IPv6" => Some(Family::V6),
        other => {
            errors.note(path, quoted(other), "IPv4 or IPv6");
            None
        }
    });
    if !listed.is_empty() {
        return Family::each_once(listed);
    }
    let families = Family::each_once(cluster_ips.iter().copied().map(Family::of));
    if families.is_empty() { vec![Family::V4] } else { families }
}

pub(super) fn port(
    number: i64,
    path: impl fmt::Display,
    wanted: &'static str,
    errors: &mut FieldErrors,
) -> Option<u16> {
    let port = u16::try_from(number).ok().filter(|port| *port > 0);
    if port.is_none() {
        errors.note(path, number, wanted);
    }
    port
}

/// A port that may be absent; 0 means the same.
pub(super) fn optional_port(
    field: Field<i64>,
    path: impl fmt::Display,
    wanted: &'static str,
    errors: &mut FieldErrors,
) -> Option<u16> {
    let number = field.take(&path, errors).filter(|number| *number != 0)?;
    port(number, path, wanted, errors)
}

pub(super) fn protocol(field: Field<String>, path: impl fmt::Display, errors: &mut FieldErrors) -> Option<Protocol> {
    match field.take(&path, errors).as_deref() {
        None | Some("TCP" | "") => Some(Protocol::Tcp),
        Some("UDP") => Some(Protocol::Udp),
        Some("SCTP") => Some(Protocol::Sctp),
        Some(other) => {
            errors.note(path, quoted(other), "TCP, UDP or SCTP");
            None
        }
    }
}
