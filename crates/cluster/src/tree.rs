//! A part of a document as a tree. Every value has its place in the file, except in JSON.
//!
//! The `kind` of an object may follow its other fields, so an object is kept until it is complete. If an object is
//! refused, the other objects of its document are still read.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use serde::{
    Deserialize, Deserializer,
    de::{
        Error as _, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
        value::{MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_saphyr::Spanned;

use crate::objects::{quoted, whole};

/// The largest width of a value, in characters.
const LONGEST: u64 = 256;
const MERGE: &str = "<<";

#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Line and column within the document, from 1.
    pub(crate) at: (u64, u64),
    /// The number of characters of a value on one line. For other values, 1.
    pub(crate) width: u64,
    pub(crate) value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Flag(bool),
    Number(i64),
    /// A number that is not an `i64`. No field that Portreeve reads accepts a `Fraction`.
    Fraction(f64),
    Text(String),
    List(Vec<Node>),
    Mapping(Vec<(String, Node)>),
}

impl Value {
    pub(crate) fn in_words(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Flag(flag) => flag.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Fraction(number) => number.to_string(),
            Self::Text(text) => quoted(text),
            Self::List(_) => "a list".to_owned(),
            Self::Mapping(_) => "a mapping".to_owned(),
        }
    }
}

impl Node {
    /// A mapping without a place.
    pub(crate) fn mapping(fields: Vec<(String, Self)>) -> Self {
        Self { at: (0, 0), width: 1, value: Value::Mapping(fields) }
    }

    pub(crate) fn put(&mut self, key: String, node: Self) {
        if let Value::Mapping(fields) = &mut self.value {
            fields.push((key, node));
        }
    }

    pub(crate) fn has_twice(&self, key: &str) -> bool {
        let Value::Mapping(fields) = &self.value else { return false };
        fields.iter().filter(|(name, _)| name == key).count() > 1
    }

    /// Keeps the last value of a repeated key, as kubectl does.
    pub(crate) fn keep_last(&mut self) {
        if let Value::Mapping(fields) = &mut self.value {
            keep_last(fields);
        }
    }

    /// The fields that this value adds if it is the value of the key `<<`. As in kubectl (sigs.k8s.io/yaml/goyaml.v2
    /// `decode.go`), these fields override fields before `<<`. Fields after `<<` override these fields. Of several
    /// mappings, the first overrides the others.
    ///
    /// # Errors
    /// Fails if the value is neither a mapping nor a list of mappings.
    pub(crate) fn into_merged(self) -> Result<Vec<(String, Self)>, String> {
        let mappings = match self.value {
            Value::List(items) => items.into_iter().map(|it| it.value).rev().collect(),
            value => vec![value],
        };
        let mut merged = Vec::new();
        for mapping in mappings {
            match mapping {
                Value::Mapping(fields) => merged.extend(fields),
                other => {
                    return Err(format!("{MERGE} has {}, wanted a mapping or a list of mappings", other.in_words()));
                }
            }
        }
        Ok(merged)
    }

    pub(crate) fn into_items(self) -> Vec<Self> {
        let Value::Mapping(fields) = self.value else { return Vec::new() };
        let items = fields.into_iter().rfind(|(key, _)| key == "items").map(|(_, node)| node.value);
        if let Some(Value::List(items)) = items { items } else { Vec::new() }
    }

    pub(crate) fn field(&self, key: &str) -> Option<&Self> {
        let Value::Mapping(fields) = &self.value else { return None };
        fields.iter().rfind(|(name, _)| name == key).map(|(_, node)| node)
    }

    /// The value at the end of a path such as `spec.ports[0].nodePort`. If this value is absent, the nearest parent
    /// that is present is returned.
    pub(crate) fn at_field(&self, way: &str) -> &Self {
        let mut node = self;
        for part in way.split(['.', '[']) {
            let next = match part.strip_suffix(']') {
                Some(index) => index.parse::<usize>().ok().and_then(|index| match &node.value {
                    Value::List(items) => items.get(index),
                    _ => None,
                }),
                None => node.field(part),
            };
            let Some(next) = next else { return node };
            node = next;
        }
        node
    }

    pub(crate) fn text(&self) -> Option<&str> {
        if let Value::Text(text) = &self.value { Some(text) } else { None }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, .. } = Spanned::<Value>::deserialize(deserializer)?;
        // A value without spaces and line breaks is on one line.
        let is_short = matches!(value, Value::Flag(_) | Value::Number(_) | Value::Fraction(_))
            || matches!(&value, Value::Text(text) if !text.contains(['\n', ' ']));
        let width = if is_short { referenced.span().len().clamp(1, LONGEST) } else { 1 };
        Ok(Self { at: (referenced.line(), referenced.column()), width, value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        // A number that is too large for a port is kept, so that the error message can contain the number.
        Ok(i64::try_from(number).map_or(Value::Fraction(number as f64), Value::Number))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Value, E> {
        Ok(Value::Fraction(number as f64))
    }

    fn visit_u128<E>(self, number: u128) -> Result<Value, E> {
        Ok(Value::Fraction(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(whole(number).map_or(Value::Fraction(number), Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<Value, E> {
        Ok(Value::Text("binary data".to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Vec::new();
        while let Some((key, node)) = map.next_entry::<Key, Node>()? {
            match key {
                Key::Name(key) => fields.push((key, node)),
                Key::Merge => fields.extend(node.into_merged().map_err(A::Error::custom)?),
            }
        }
        keep_last(&mut fields);
        Ok(Value::Mapping(fields))
    }
}

fn keep_last(fields: &mut Vec<(String, Node)>) {
    let last: HashMap<&str, usize> = fields.iter().enumerate().map(|(at, (key, _))| (key.as_str(), at)).collect();
    if last.len() < fields.len() {
        let kept: HashSet<usize> = last.into_values().collect();
        let mut at = 0..;
        fields.retain(|_| at.next().is_some_and(|at| kept.contains(&at)));
    }
}

pub(crate) enum Key {
    /// The name of a field. YAML allows keys that are not texts, but fields of Kubernetes do not have such keys.
    Name(String),
    /// The YAML key `<<` without quotes. The key adds the fields of other mappings.
    Merge,
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct("Key", KeyVisitor)
    }
}

/// Reads a key. Keys in YAML have a place. For a mapping in JSON, `Spanned` returns the first key as a text.
struct KeyVisitor;

impl<'de> Visitor<'de> for KeyVisitor {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Key, E> {
        Ok(Key::Name(key.to_owned()))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        let Spanned { value, defined, .. } = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Key::Name(match value {
            // The key `<<` has two characters without quotes, and four with quotes. `defined` is used, because
            // `referenced` may be the place of an alias. In JSON, the place is not known.
            Value::Text(text) if text == MERGE && defined.span().len() == MERGE.len() as u64 => return Ok(Key::Merge),
            Value::Text(text) => text,
            Value::Flag(flag) => flag.to_string(),
            Value::Number(number) => number.to_string(),
            Value::Fraction(number) => number.to_string(),
            Value::Null | Value::List(_) | Value::Mapping(_) => String::new(),
        }))
    }
}

type Error = serde::de::value::Error;

impl<'de> IntoDeserializer<'de, Error> for &'de Node {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.value {
            Value::Null => visitor.visit_unit(),
            Value::Flag(flag) => visitor.visit_bool(*flag),
            Value::Number(number) => visitor.visit_i64(*number),
            Value::Fraction(number) => visitor.visit_f64(*number),
            Value::Text(text) => visitor.visit_borrowed_str(text),
            Value::List(items) => visitor.visit_seq(SeqDeserializer::new(items.iter())),
            Value::Mapping(fields) => {
                visitor.visit_map(MapDeserializer::new(fields.iter().map(|(key, node)| (key.as_str(), node))))
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if matches!(self.value, Value::Null) { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    /// Refuses a list as the value of a struct. By default, serde would accept the list.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match &self.value {
            Value::List(_) => Err(Error::invalid_type(Unexpected::Seq, &visitor)),
            _ => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map enum identifier ignored_any
    }
}
