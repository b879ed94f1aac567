//! Reads a whole document: an object, a List, a Table, or a bare list. Each object is passed on as soon as it is complete.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::{
    slim_object::{Metadata, SlimObject},
    table_format::{TableColumn, TableRows},
    tolerant_field::{Field, quoted},
};

/// Reads one document: an object, a List of them (or of Lists), or a bare list. Every object that is no List goes to
/// `sink` as soon as it is complete, so that a document of any length needs the memory of one object.
pub(super) struct ObjectReader<'a> {
    /// The kind of items that carry none, as in an answer of the API server.
    pub(super) kind: Option<&'a str>,
    /// Whether the format marks the end of a document, as JSON does: then a List that ends is whole.
    pub(super) closed: bool,
    /// Where objects go.
    pub(super) sink: &'a mut dyn FnMut(SlimObject),
}

/// What a document was, once it was read to its end.
#[derive(Debug, Default)]
pub struct DocumentSummary {
    /// It had `items`.
    pub(super) list: bool,
    /// Its own `kind`, where it had `items` and that is a text.
    pub(super) kind: Option<String>,
    /// Whether a List has a next page cannot be told: its `metadata` or what they say of it are of the wrong type, or a List
    /// in it has one, to which no way leads.
    pub(super) next_page_unread: bool,
    /// `metadata.remainingItemCount` of a List that names no next page, where that is not 0: it is a part of one.
    pub(super) remaining: Option<i64>,
    /// `metadata.continue` of a List.
    pub(super) next_page: Option<String>,
    /// `metadata.resourceVersion` of a List.
    pub(super) version: Option<String>,
    /// It, or a List in it, had items but no `kind`, which kubectl writes after them: the rest is missing.
    pub(super) cut: bool,
    /// The kind of a List that is whole and has no items: an answer, and not the end of a file.
    pub(super) empty: Option<String>,
}

impl DocumentSummary {
    /// Whether it is, or may be, a part of a longer List.
    pub(super) fn is_part(&self) -> bool {
        self.next_page.is_some() || self.next_page_unread || self.remaining.is_some()
    }
}

impl<'de> DeserializeSeed<'de> for ObjectReader<'_> {
    type Value = DocumentSummary;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<DocumentSummary, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ObjectReader<'_> {
    type Value = DocumentSummary;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object or a List of them")
    }

    fn visit_unit<E>(self) -> Result<DocumentSummary, E> {
        Ok(DocumentSummary::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<DocumentSummary, A::Error> {
        let Self { kind, closed, sink } = self;
        let items = Items { kind, closed, sink: &mut *sink };
        let ItemsRead { last, count, part, cut, .. } = items.visit_seq(list)?;
        if let Some(last) = last {
            sink(*last);
        }
        Ok(DocumentSummary { list: count == 0, next_page_unread: part, cut, ..DocumentSummary::default() })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<DocumentSummary, A::Error> {
        let Self { kind, closed, sink } = self;
        match read_map(map, kind, closed, sink)? {
            Parsed::Object(object) => {
                sink(*object);
                Ok(DocumentSummary::default())
            }
            Parsed::List(summary) => Ok(summary),
        }
    }
}

/// One item of a List: an object, or a List whose items went to the sink.
enum Parsed {
    Object(Box<SlimObject>),
    List(DocumentSummary),
}

/// A key of an object, a List or a Table.
#[derive(Clone, Copy, Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum Key {
    ApiVersion,
    Kind,
    Metadata,
    Spec,
    Status,
    Data,
    AddressType,
    Ports,
    Endpoints,
    Items,
    ColumnDefinitions,
    Rows,
    #[serde(other)]
    Other,
}

/// The keys of a mapping so far.
#[derive(Default)]
struct Keys {
    known: u32,
    twice: Option<&'static str>,
}

impl Keys {
    const NAMES: [&str; 12] = [
        "apiVersion",
        "kind",
        "metadata",
        "spec",
        "status",
        "data",
        "addressType",
        "ports",
        "endpoints",
        "items",
        "columnDefinitions",
        "rows",
    ];

    fn note(&mut self, key: Key) {
        let Some(name) = Self::NAMES.get(key as usize) else { return };
        if self.known & (1 << key as u32) != 0 {
            self.twice = Some(name);
        }
        self.known |= 1 << key as u32;
    }
}

fn read_map<'de, A: MapAccess<'de>>(
    mut map: A,
    inherited: Option<&str>,
    closed: bool,
    sink: &mut dyn FnMut(SlimObject),
) -> Result<Parsed, A::Error> {
    // Large, and handed on several times.
    let mut object = Box::<SlimObject>::default();
    let mut items = false;
    let mut read = ItemsRead::default();
    let mut keys = Keys::default();
    let mut columns: Vec<TableColumn> = Vec::new();
    while let Some(key) = map.next_key()? {
        keys.note(key);
        read.null &= !matches!(key, Key::Kind);
        match key {
            Key::ApiVersion => object.api_version = map.next_value()?,
            Key::Kind => object.kind = map.next_value()?,
            Key::Metadata => object.metadata = map.next_value()?,
            Key::Spec => object.spec = map.next_value()?,
            Key::Status => object.status = map.next_value()?,
            Key::Data => object.data = map.next_value()?,
            Key::AddressType => object.address_type = map.next_value()?,
            Key::Ports => object.ports = map.next_value()?,
            Key::Endpoints => object.endpoints = map.next_value()?,
            Key::Items => {
                // `ServiceList` holds Services, which then carry no kind of their own.
                let own = object.kind.seen().and_then(|kind| kind.strip_suffix("List")).filter(|kind| !kind.is_empty());
                let kind = own.map(str::to_owned).or_else(|| inherited.map(str::to_owned));
                items = true;
                read = map.next_value_seed(Items { kind: kind.as_deref(), closed, sink: &mut *sink })?;
                read.null &= !closed;
            }
            Key::ColumnDefinitions if is_table(&object) => columns = map.next_value::<Option<_>>()?.unwrap_or_default(),
            Key::Rows if is_table(&object) => {
                (items, read.count) = (true, 1);
                map.next_value_seed(TableRows { columns: &columns, sink: &mut *sink })?;
            }
            Key::ColumnDefinitions | Key::Rows | Key::Other => {
                map.next_value::<IgnoredAny>()?;
            }
        }
    }
    if !items {
        object.broken = keys.twice.map(|key| format!("{key} is there twice, wanted every key once"));
        if matches!(object.kind, Field::Absent)
            && let Some(kind) = inherited
        {
            object.kind = Field::Value(kind.to_owned());
        }
        return Ok(Parsed::Object(object));
    }
    if let Some(key) = keys.twice {
        sink(SlimObject::broken(format!("{key} of a List is there twice, wanted every key once")));
    }
    let cut = !closed && object.kind.seen().is_none();
    let empty = object.kind.seen().filter(|_| read.count == 0 && !read.null).cloned();
    // Where the List was cut, its last item may have been too: half a port number is worse than none.
    if let Some(last) = read.last.filter(|_| !cut) {
        sink(*last);
    }
    let wrong = matches!(object.metadata, Field::WrongType(_));
    let metadata = object.metadata.seen();
    let unread =
        |it: &Metadata| matches!(it.next_page, Field::WrongType(_)) || matches!(it.remaining, Field::WrongType(_));
    let next_page_unread = wrong || read.part || metadata.is_some_and(|metadata| unread(metadata));
    let next_page = metadata.and_then(|metadata| metadata.next_page.seen()).map(|token| token.0.clone());
    let next_page = next_page.filter(|token| !token.is_empty());
    let remaining = metadata.and_then(|metadata| metadata.remaining.seen()).copied();
    Ok(Parsed::List(DocumentSummary {
        list: true,
        kind: object.kind.seen().cloned(),
        next_page_unread,
        remaining: remaining.filter(|remaining| *remaining != 0 && next_page.is_none()),
        next_page,
        version: metadata.and_then(|metadata| metadata.version.seen()).cloned(),
        cut: cut || read.cut,
        empty,
    }))
}

/// A server writes the kind first.
fn is_table(object: &SlimObject) -> bool {
    object.kind.seen().is_some_and(|kind| kind == "Table")
}

/// The `items` of a List. The last one is handed back: only the List knows whether it is whole.
struct Items<'a> {
    kind: Option<&'a str>,
    closed: bool,
    sink: &'a mut dyn FnMut(SlimObject),
}

/// What became of the items.
#[derive(Default)]
struct ItemsRead {
    last: Option<Box<SlimObject>>,
    count: usize,
    /// They are null, which is how a cut List looks as long as nothing follows.
    null: bool,
    /// A List among them is, or may be, a part of a longer one.
    part: bool,
    /// A List among them was cut.
    cut: bool,
}

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = ItemsRead;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ItemsRead;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of Kubernetes objects")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(ItemsRead { null: true, ..ItemsRead::default() })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let Self { kind, closed, sink } = self;
        let mut read = ItemsRead::default();
        loop {
            // What came before is whole: either another item follows, or the document broke inside one.
            let next = list.next_element_seed(Item { kind, closed, index: read.count, sink: &mut *sink });
            if let Some(whole) = read.last.take_if(|_| !matches!(next, Ok(None))) {
                sink(*whole);
            }
            match next? {
                None => return Ok(read),
                Some(Parsed::Object(object)) => read.last = Some(object),
                Some(Parsed::List(inner)) => {
                    read.part |= inner.is_part();
                    read.cut |= inner.cut;
                }
            }
            read.count += 1;
        }
    }
}

struct Item<'a> {
    kind: Option<&'a str>,
    closed: bool,
    index: usize,
    sink: &'a mut dyn FnMut(SlimObject),
}

impl<'de> DeserializeSeed<'de> for Item<'_> {
    type Value = Parsed;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Item<'_> {
    /// Something else than an object costs nothing but itself.
    fn broken<E>(&self, is: impl fmt::Display) -> Result<Parsed, E> {
        let why = format!("items[{}] is {is}, wanted a Kubernetes object", self.index);
        Ok(Parsed::Object(Box::new(SlimObject::broken(why))))
    }
}

impl<'de> Visitor<'de> for Item<'_> {
    type Value = Parsed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        self.broken("null")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Self::Value, E> {
        self.broken(flag)
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        self.broken(number)
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        self.broken(number)
    }

    fn visit_i128<E>(self, number: i128) -> Result<Self::Value, E> {
        self.broken(number)
    }

    fn visit_u128<E>(self, number: u128) -> Result<Self::Value, E> {
        self.broken(number)
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        self.broken(number)
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        self.broken(quoted(text))
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<Self::Value, E> {
        self.broken("binary data")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        self.broken("a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        read_map(map, self.kind, self.closed, self.sink)
    }
}

#[cfg(test)]
mod tests;
