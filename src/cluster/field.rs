//! A field as somebody wrote it: absent, of the wanted shape, or something else.
//!
//! A document is read in one pass, so a single wrong field must not end it. [`Field`] takes whatever is there, skips
//! what has the wrong shape without keeping it, and leaves the complaint to the conversion, which knows the path.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use crate::facts::text;

/// The longest text kept as it is, in bytes: settings in ConfigMaps and annotations are far shorter.
const LONG: usize = 256 << 10;
/// How much of a wrong value is shown.
const SHOWN: usize = 64;

/// A field of a wire object.
#[derive(Clone, Debug, Default)]
pub(super) enum Field<T> {
    /// Not there, or null.
    #[default]
    Absent,
    /// There, in the wanted shape.
    Is(T),
    /// There, in another shape: what it is, for people.
    Odd(String),
}

impl<T: Shape> Field<T> {
    /// The value. A wrong shape is noted under `path` and counts as absent from then on.
    pub(super) fn take(self, path: impl fmt::Display, misfits: &mut Misfits) -> Option<T> {
        match self {
            Self::Absent => None,
            Self::Is(value) => Some(value),
            Self::Odd(is) => {
                misfits.note(path, is, T::WANTED);
                None
            }
        }
    }

    /// The value where it is there and well-shaped; a wrong shape is somebody else's complaint.
    pub(super) fn seen(&self) -> Option<&T> {
        if let Self::Is(value) = self { Some(value) } else { None }
    }
}

/// What is wrong with one object, field by field.
#[derive(Debug, Default)]
pub(super) struct Misfits(Vec<String>);

impl Misfits {
    /// More misfits than this in one object are not worth a person's time.
    const MOST: usize = 16;

    /// Notes that the field at `path` holds `is` where `wanted` should be.
    pub(super) fn note(&mut self, path: impl fmt::Display, is: impl fmt::Display, wanted: impl fmt::Display) {
        if self.0.len() < Self::MOST {
            self.0.push(format!("{path} is {is}, wanted {wanted}"));
        }
    }
}

impl IntoIterator for Misfits {
    type Item = String;
    type IntoIter = std::vec::IntoIter<String>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// A wrong text, shown safely.
pub(super) fn quoted(text: &str) -> String {
    format!("{:?}", text::clean(text, SHOWN))
}

/// Which of the shapes of JSON a type can be read from; what it does not take is skipped.
pub(super) trait Shape: Sized {
    /// What belongs here, for people.
    const WANTED: &'static str;

    /// From a text.
    fn from_text(text: &str) -> Result<Self, String> {
        Err(quoted(text))
    }

    /// From a whole number.
    fn from_number(number: i64) -> Result<Self, String> {
        Err(number.to_string())
    }

    /// From true or false.
    fn from_flag(flag: bool) -> Result<Self, String> {
        Err(flag.to_string())
    }

    /// From a mapping.
    fn from_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<Result<Self, String>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Err("a mapping".to_owned()))
    }

    /// From a list.
    fn from_list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Result<Self, String>, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Err("a list".to_owned()))
    }
}

impl<'de, T: Shape> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyShape(PhantomData))
    }
}

struct AnyShape<T>(PhantomData<T>);

impl<T> From<Result<T, String>> for Field<T> {
    fn from(result: Result<T, String>) -> Self {
        result.map_or_else(Self::Odd, Self::Is)
    }
}

impl<'de, T: Shape> Visitor<'de> for AnyShape<T> {
    type Value = Field<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WANTED)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Field::Absent)
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Field::Absent)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Self::Value, E> {
        Ok(T::from_flag(flag).into())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(T::from_number(number).into())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(i64::try_from(number).map_err(|_| number.to_string()).and_then(T::from_number).into())
    }

    fn visit_i128<E: Error>(self, number: i128) -> Result<Self::Value, E> {
        Ok(Field::Odd(number.to_string()))
    }

    fn visit_u128<E: Error>(self, number: u128) -> Result<Self::Value, E> {
        Ok(Field::Odd(number.to_string()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Field::Odd(number.to_string()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(T::from_text(text).into())
    }

    fn visit_bytes<E: Error>(self, _: &[u8]) -> Result<Self::Value, E> {
        Ok(Field::Odd("binary data".to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::from_map(map).map(Into::into)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        T::from_list(list).map(Into::into)
    }
}

/// Makes types with a derived `Deserialize` the shape of a mapping.
macro_rules! mapping {
    ($($name:ty),*) => {$(
        impl $crate::cluster::field::Shape for $name {
            const WANTED: &'static str = "a mapping";

            fn from_map<'de, A: serde::de::MapAccess<'de>>(map: A) -> Result<Result<Self, String>, A::Error> {
                serde::Deserialize::deserialize(serde::de::value::MapAccessDeserializer::new(map)).map(Ok)
            }
        }
    )*};
}
pub(super) use mapping;

impl<T: Shape> Shape for Box<T> {
    const WANTED: &'static str = T::WANTED;

    fn from_map<'de, A: MapAccess<'de>>(map: A) -> Result<Result<Self, String>, A::Error> {
        Ok(T::from_map(map)?.map(Self::new))
    }
}

impl Shape for i64 {
    const WANTED: &'static str = "a number";

    fn from_number(number: i64) -> Result<Self, String> {
        Ok(number)
    }
}

impl Shape for bool {
    const WANTED: &'static str = "true or false";

    fn from_flag(flag: bool) -> Result<Self, String> {
        Ok(flag)
    }
}

/// A name: cleaned, and cut at [`text::NAME`].
impl Shape for String {
    const WANTED: &'static str = "a text";

    fn from_text(text: &str) -> Result<Self, String> {
        Ok(text::clean(text, text::NAME))
    }
}

/// A text that is parsed further and never shown: as it was written, at most [`LONG`] bytes.
#[derive(Clone, Debug)]
pub(super) struct Long(pub(super) String);

impl Shape for Long {
    const WANTED: &'static str = "a text of at most 256 KiB";

    fn from_text(text: &str) -> Result<Self, String> {
        if text.len() <= LONG { Ok(Self(text.to_owned())) } else { Err(format!("{} bytes long", text.len())) }
    }
}

/// A number or a text: what an `IntOrString` or a flag's value may be, cleaned as a name is.
#[derive(Clone, Debug)]
pub(super) struct Scalar(pub(super) String);

impl Shape for Scalar {
    const WANTED: &'static str = "a number or a text";

    fn from_text(text: &str) -> Result<Self, String> {
        String::from_text(text).map(Self)
    }

    fn from_number(number: i64) -> Result<Self, String> {
        Ok(Self(number.to_string()))
    }

    fn from_flag(flag: bool) -> Result<Self, String> {
        Ok(Self(flag.to_string()))
    }
}

/// That a key is there, whatever it holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Present;

impl Shape for Present {
    const WANTED: &'static str = "anything";

    fn from_text(_: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn from_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<Result<Self, String>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Ok(Self))
    }
}

impl<T: Shape> Shape for Vec<Field<T>> {
    const WANTED: &'static str = "a list";

    fn from_list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Result<Self, String>, A::Error> {
        let mut items = Self::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Ok(items))
    }
}
