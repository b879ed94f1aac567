//! A field of an object: absent, a value of the expected type, or something else.
//!
//! A document is read in one pass, so a single wrong field must not end it. [`Field`] takes whatever is there, skips
//! what has the wrong type without keeping it, and leaves the error to the conversion, which knows the path.

use std::{cell::Cell, fmt, marker::PhantomData};

use jiff::Timestamp;
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use portreeve_facts::{names, text};

/// The longest text kept as it is, in bytes: settings in ConfigMaps and annotations are far shorter.
const LONG: usize = 256 << 10;
/// What the items of one list may take, those of lists within it included, in bytes: some 20,000 ports. An object has a few
/// lists that are in no other one, and its length alone bounds little: `{}` takes two hundred bytes.
const LIST: usize = 4 << 20;
/// How much of a wrong value is shown.
const SHOWN: usize = 64;

/// A field of a slim object.
#[derive(Clone, Debug, Default)]
pub enum Field<T> {
    /// Not there, or null.
    #[default]
    Absent,
    /// There, with the expected type.
    Value(T),
    /// There, with another type: what it is, for people.
    WrongType(String),
}

impl<T: FieldType> Field<T> {
    /// The value. A wrong type is noted under `path` and counts as absent from then on.
    pub fn take(self, path: impl fmt::Display, errors: &mut FieldErrors) -> Option<T> {
        match self {
            Self::Absent => None,
            Self::Value(value) => Some(value),
            Self::WrongType(is) => {
                errors.note(path, is, T::EXPECTED);
                None
            }
        }
    }

    /// The value, if the field holds one. A wrong type is noted where the field is taken.
    pub fn seen(&self) -> Option<&T> {
        if let Self::Value(value) = self { Some(value) } else { None }
    }
}

impl Field<String> {
    /// The same text as a name.
    pub fn into_name(self) -> Field<Name> {
        match self {
            Self::Absent => Field::Absent,
            Self::Value(text) => Name::from_text(&text).into(),
            Self::WrongType(is) => Field::WrongType(is),
        }
    }
}

/// What is wrong with one object, field by field.
#[derive(Debug, Default)]
pub struct FieldErrors(Vec<String>);

impl FieldErrors {
    /// More errors than this in one object are not named.
    const MOST: usize = 16;

    /// Notes that the field at `path` holds `is` where `wanted` should be.
    pub fn note(&mut self, path: impl fmt::Display, is: impl fmt::Display, wanted: impl fmt::Display) {
        if self.0.len() < Self::MOST {
            self.0.push(format!("{path} is {is}, wanted {wanted}"));
        }
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl IntoIterator for FieldErrors {
    type Item = String;
    type IntoIter = std::vec::IntoIter<String>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// A wrong text, shown safely.
pub fn quoted(text: &str) -> String {
    format!("{:?}", text::clean(text, SHOWN))
}

/// The number that a float is: 30013.0 and 3e4 of YAML are 30013 and 30000 where they go to the API server.
pub fn whole(number: f64) -> Option<i64> {
    // Beyond, floats are not exact.
    (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
}

/// Which types of JSON a value can be read from; what it does not accept is skipped.
pub trait FieldType: Sized {
    /// What belongs here, for people.
    const EXPECTED: &'static str;

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

impl<'de, T: FieldType> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FieldVisitor(PhantomData))
    }
}

struct FieldVisitor<T>(PhantomData<T>);

impl<T> From<Result<T, String>> for Field<T> {
    fn from(result: Result<T, String>) -> Self {
        result.map_or_else(Self::WrongType, Self::Value)
    }
}

impl<'de, T: FieldType> Visitor<'de> for FieldVisitor<T> {
    type Value = Field<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
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
        Ok(Field::WrongType(number.to_string()))
    }

    fn visit_u128<E: Error>(self, number: u128) -> Result<Self::Value, E> {
        Ok(Field::WrongType(number.to_string()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        Ok(whole(number).map_or_else(|| Err(number.to_string()), T::from_number).into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(T::from_text(text).into())
    }

    fn visit_bytes<E: Error>(self, _: &[u8]) -> Result<Self::Value, E> {
        Ok(Field::WrongType("binary data".to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::from_map(map).map(Into::into)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        T::from_list(list).map(Into::into)
    }
}

impl<T: FieldType> FieldType for Box<T> {
    const EXPECTED: &'static str = T::EXPECTED;

    fn from_map<'de, A: MapAccess<'de>>(map: A) -> Result<Result<Self, String>, A::Error> {
        Ok(T::from_map(map)?.map(Self::new))
    }
}

impl FieldType for i64 {
    const EXPECTED: &'static str = "a number";

    fn from_number(number: i64) -> Result<Self, String> {
        Ok(number)
    }
}

impl FieldType for bool {
    const EXPECTED: &'static str = "true or false";

    fn from_flag(flag: bool) -> Result<Self, String> {
        Ok(flag)
    }
}

/// A short text: cleaned, and cut at [`text::NAME`].
impl FieldType for String {
    const EXPECTED: &'static str = "a text";

    fn from_text(text: &str) -> Result<Self, String> {
        Ok(text::clean(text, text::NAME))
    }
}

/// The name of an object, a DNS subdomain. One that is none could be an option of a command that is to be typed.
#[derive(Clone, Debug)]
pub struct Name(pub String);

impl FieldType for Name {
    const EXPECTED: &'static str = names::SUBDOMAIN;

    fn from_text(text: &str) -> Result<Self, String> {
        // An empty one counts as absent.
        if text.is_empty() || names::is_subdomain(text) { Ok(Self(text.to_owned())) } else { Err(quoted(text)) }
    }
}

/// A text that is parsed further and never shown: as it was written, at most `LONG` bytes.
#[derive(Clone, Debug)]
pub struct LongText(pub String);

impl FieldType for LongText {
    const EXPECTED: &'static str = "a text of at most 256 KiB";

    fn from_text(text: &str) -> Result<Self, String> {
        Self::check(text).map(|()| Self(text.to_owned()))
    }
}

impl LongText {
    /// Whether a text is short enough; else what it is, for people.
    pub fn check(text: &str) -> Result<(), String> {
        if text.len() <= LONG { Ok(()) } else { Err(format!("{} bytes long", text.len())) }
    }
}

/// A moment, as Kubernetes writes it.
#[derive(Clone, Copy, Debug)]
pub struct Time(pub Timestamp);

impl FieldType for Time {
    const EXPECTED: &'static str = "a time";

    fn from_text(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| quoted(text))
    }
}

/// A number or a text: what an `IntOrString` or a flag's value may be, cleaned as a name is.
#[derive(Clone, Debug)]
pub struct NumberOrText(pub String);

impl FieldType for NumberOrText {
    const EXPECTED: &'static str = "a number or a text";

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
pub struct Present;

impl FieldType for Present {
    const EXPECTED: &'static str = "anything";

    fn from_text(_: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn from_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<Result<Self, String>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Ok(Self))
    }
}

thread_local! {
    /// How many lists are being read, one within the other, and what their items take. An object is read by one thread.
    static LISTS: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// A list that is being read.
struct ListLevel;

impl ListLevel {
    fn enter() -> Self {
        let (depth, taken) = LISTS.get();
        LISTS.set((depth + 1, taken));
        Self
    }

    /// Counts an item of so many bytes; false where the outermost list, or one within it, takes too much.
    fn has_room_for(bytes: usize) -> bool {
        let (depth, taken) = LISTS.get();
        LISTS.set((depth, taken + bytes));
        taken + bytes <= LIST
    }
}

impl Drop for ListLevel {
    fn drop(&mut self) {
        let (depth, taken) = LISTS.get();
        LISTS.set((depth - 1, if depth == 1 { 0 } else { taken }));
    }
}

impl<T: FieldType> FieldType for Vec<Field<T>> {
    const EXPECTED: &'static str = "a list";

    fn from_list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Result<Self, String>, A::Error> {
        let _level = ListLevel::enter();
        let mut items = Self::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
            if !ListLevel::has_room_for(size_of::<Field<T>>()) {
                drop(items);
                while list.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(Err(format!("a list that takes more than {} MiB", LIST >> 20)));
            }
        }
        Ok(Ok(items))
    }
}

/// A mapping of words to words, such as labels.
#[derive(Clone, Debug)]
pub struct Pairs(pub Vec<(Field<String>, Field<String>)>);

impl FieldType for Pairs {
    const EXPECTED: &'static str = "labels";

    fn from_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<Result<Self, String>, A::Error> {
        let _level = ListLevel::enter();
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
            if !ListLevel::has_room_for(size_of::<(Field<String>, Field<String>)>()) {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                return Ok(Err(format!("a mapping that takes more than {} MiB", LIST >> 20)));
            }
        }
        Ok(Ok(Self(pairs)))
    }
}
