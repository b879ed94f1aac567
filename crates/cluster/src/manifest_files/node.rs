//! A document as a tree in which every value knows where it is written.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{
        IntoDeserializer, MapAccess, SeqAccess, Visitor,
        value::{MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_saphyr::Spanned;

use crate::tolerant_field::whole;

/// The longest value whose end is told, in characters.
const LONGEST: u64 = 256;

/// A value of a document.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Line and column within the document, from 1.
    pub(super) at: (u64, u64),
    /// How many characters it has, where it is a value that stands on one line; else 1.
    pub(super) width: u64,
    pub(super) value: Value,
}

/// What a value is. A mapping keeps keys that are there twice.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Flag(bool),
    Number(i64),
    /// A number that no field of Kubernetes holds.
    Fraction(f64),
    Text(String),
    List(Vec<Node>),
    Mapping(Vec<(String, Node)>),
}

impl Node {
    /// The value of a key.
    pub(super) fn field(&self, key: &str) -> Option<&Self> {
        let Value::Mapping(fields) = &self.value else { return None };
        fields.iter().rfind(|(name, _)| name == key).map(|(_, node)| node)
    }

    /// The value at the end of a way as errors name it, `spec.ports[0].nodePort`, as far as the way is there.
    pub(super) fn at_field(&self, way: &str) -> &Self {
        let mut node = self;
        for part in way.split(['.', '[']) {
            let next = match part.strip_suffix(']') {
                Some(index) => index.parse::<usize>().ok().and_then(|index| node.items().get(index)),
                None => node.field(part),
            };
            let Some(next) = next else { return node };
            node = next;
        }
        node
    }

    /// The value at the end of a way of keys, `spec.template.spec`.
    pub(super) fn at_path(&self, path: &str) -> Option<&Self> {
        path.split('.').try_fold(self, |node, key| node.field(key))
    }

    /// The text, where it is one.
    pub(super) fn text(&self) -> Option<&str> {
        if let Value::Text(text) = &self.value { Some(text) } else { None }
    }

    /// The number, where it is one.
    pub(super) fn number(&self) -> Option<i64> {
        if let Value::Number(number) = self.value { Some(number) } else { None }
    }

    /// Whether it is true.
    pub(super) fn is_true(&self) -> bool {
        matches!(self.value, Value::Flag(true))
    }

    /// The items of a list.
    pub(super) fn items(&self) -> &[Self] {
        if let Value::List(items) = &self.value { items } else { &[] }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, .. } = Spanned::<Value>::deserialize(deserializer)?;
        // Numbers and addresses stand on one line.
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
        // What no port can be stays what it is for whoever names it.
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
        while let Some((Key(key), node)) = map.next_entry()? {
            fields.push((key, node));
        }
        Ok(Value::Mapping(fields))
    }
}

/// A key as text: YAML has others, which no field of Kubernetes is.
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Value::deserialize(deserializer)? {
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

/// The tree read again, by what reads objects of other sources.
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

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct newtype_struct
        seq tuple tuple_struct map struct enum identifier ignored_any
    }
}
