//! Values that have a special form in Kubernetes. Each value is checked when it is read, so an object with a wrong
//! value is refused as a whole.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
};

use ipnet::IpNet;
use jiff::Timestamp;
use serde::{
    Deserialize, Deserializer,
    de::{Error, Unexpected, Visitor},
};

use portreeve_facts::{Family, Protocol, names, text};

const SHOWN: usize = 64;
pub(crate) const PORT: &str = "1 to 65535";
const OPTIONAL_PORT: &str = "0 to 65535";

macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident($of:ty), $wanted:expr, $read:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Deserialize)]
        #[serde(try_from = "String")]
        pub(crate) struct $name(pub(crate) $of);

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                let read: fn(&str) -> Option<$of> = $read;
                read(&text).map(Self).ok_or_else(|| format!("{}, wanted {}", quoted(&text), $wanted))
            }
        }
    )*};
}

texts! {
    /// The name of an object: a DNS subdomain. Other texts are refused, because they could be an option of a command
    /// that a user types.
    Name(String), names::SUBDOMAIN, |text| names::is_subdomain(text).then(|| text.to_owned());
    Ip(IpAddr), "an IP address", lenient_ip;
    Cidr(IpNet), "a range of addresses", |text| text.parse().ok();
    Time(Timestamp), "a time", |text| text.parse().ok();
    PortProtocol(Protocol), "TCP, UDP or SCTP", |text| match text {
        "TCP" | "" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    };
    IpFamily(Family), "IPv4 or IPv6", |text| match text {
        "IPv4" => Some(Family::V4),
        "IPv6" => Some(Family::V6),
        _ => None,
    };
}

/// A short text for users: at most [`text::NAME`] bytes, without invisible characters. In a list or a mapping, null
/// becomes an empty text, as in the API server.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Option<String>")]
pub(crate) struct Text(pub(crate) String);

impl From<Option<String>> for Text {
    fn from(text: Option<String>) -> Self {
        Self(short(&text.unwrap_or_default()))
    }
}

impl TryFrom<String> for Text {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Ok(Some(text).into())
    }
}

/// A word of a command line, unchanged. Null becomes an empty word.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Option<String>")]
pub(crate) struct Word(pub(crate) String);

impl From<Option<String>> for Word {
    fn from(word: Option<String>) -> Self {
        Self(word.unwrap_or_default())
    }
}

impl std::ops::Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// Reads an optional value. An empty text means no value.
///
/// # Errors
/// Fails if the value is not a text, or if `T` refuses the text.
pub(crate) fn unless_empty<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: TryFrom<String, Error = String>,
    D: Deserializer<'de>,
{
    let text = Option::<String>::deserialize(deserializer)?.filter(|text| !text.is_empty());
    text.map(T::try_from).transpose().map_err(D::Error::custom)
}

/// A whole number. The input may write the number as a float. The API server receives YAML's 30080.0 and 3e4 as 30080
/// and 30000.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole(pub(crate) i64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WholeVisitor;

        impl Visitor<'_> for WholeVisitor {
            type Value = Whole;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Whole, E> {
                Ok(Whole(number))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Whole, E> {
                i64::try_from(number).map(Whole).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Whole, E> {
                whole(number).map(Whole).ok_or_else(|| E::invalid_type(Unexpected::Float(number), &self))
            }
        }

        deserializer.deserialize_any(WholeVisitor)
    }
}

pub(crate) fn whole(number: f64) -> Option<i64> {
    // A float of 9e15 or more is refused, because it may not be exact.
    (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "Whole")]
pub(crate) struct Port(pub(crate) u16);

impl TryFrom<Whole> for Port {
    type Error = String;

    fn try_from(Whole(number): Whole) -> Result<Self, String> {
        let port = u16::try_from(number).ok().filter(|port| *port > 0);
        port.map(Self).ok_or_else(|| format!("{number}, wanted {PORT}"))
    }
}

/// A port, or 0. As in the API server, 0 means that the port is absent.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(try_from = "Whole")]
pub(crate) struct OptionalPort(pub(crate) Option<u16>);

impl TryFrom<Whole> for OptionalPort {
    type Error = String;

    fn try_from(Whole(number): Whole) -> Result<Self, String> {
        let port = u16::try_from(number).map_err(|_| format!("{number}, wanted {OPTIONAL_PORT}"))?;
        Ok(Self(Some(port).filter(|port| *port > 0)))
    }
}

/// A number, or a text of at most [`text::NAME`] bytes without invisible characters.
#[derive(Clone, Debug)]
pub(crate) struct NumberOrText(pub(crate) String);

impl<'de> Deserialize<'de> for NumberOrText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyVisitor;

        impl Visitor<'_> for AnyVisitor {
            type Value = NumberOrText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a text")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<NumberOrText, E> {
                Ok(NumberOrText(short(text)))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<NumberOrText, E> {
                Ok(NumberOrText(number.to_string()))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<NumberOrText, E> {
                Ok(NumberOrText(number.to_string()))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<NumberOrText, E> {
                let number = whole(number).ok_or_else(|| E::invalid_type(Unexpected::Float(number), &self))?;
                Ok(NumberOrText(number.to_string()))
            }
        }

        deserializer.deserialize_any(AnyVisitor)
    }
}

/// An IP address, parsed as Kubernetes does. A part of an IPv4 address may have leading zeros, and is always decimal
/// (k8s.io/utils/net `ParseIPSloppy`).
pub(crate) fn lenient_ip(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        // Like Go, treats an IPv4 address that is mapped into IPv6 as the IPv4 address.
        return Some(ip.to_canonical());
    }
    let decimal = |part: &str| {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| part.trim_start_matches('0')).map(|part| if part.is_empty() { "0" } else { part })?.parse().ok()
    };
    let octets: Vec<u8> = text.split('.').take(5).map(decimal).collect::<Option<_>>()?;
    <[u8; 4]>::try_from(octets).ok().map(|octets| IpAddr::V4(Ipv4Addr::from(octets)))
}

pub(crate) fn short(text: &str) -> String {
    text::clean(text, text::NAME)
}

pub(crate) fn quoted(text: &str) -> String {
    format!("{:?}", text::clean(text, SHOWN))
}
