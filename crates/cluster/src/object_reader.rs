//! Reads a document of a file: an object, a List, or a list without a kind. Each object is passed on when it is
//! complete.

use std::fmt;

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor},
};

use super::tree::{Key, Node, Value};

/// A function that receives each object and the kind of its List. If an item is not an object, the function receives an
/// error.
pub(super) type Sink<'a> = dyn FnMut(Option<&str>, Result<Node, String>) + 'a;

/// Passes each object to `sink` as soon as the object is complete. For a List, passes the items of the List. So only
/// one object is in memory, even if the document is long.
pub(super) struct ObjectReader<'a> {
    /// True if the format marks the end of a document, as JSON does. If the format has this mark, a List that ends is
    /// complete. YAML marks no end.
    pub(super) closed: bool,
    pub(super) sink: &'a mut Sink<'a>,
}

#[derive(Debug, Default)]
pub(super) struct DocumentSummary {
    pub(super) list: bool,
    /// Whether a List in the document may be incomplete: its `metadata` has a next page, or a number of remaining
    /// items.
    pub(super) part: bool,
    /// Whether the end of the file is missing: a List in the document has items but no `kind`, which kubectl writes
    /// after the items.
    pub(super) cut: bool,
    /// The kind of an empty List, if the List is complete.
    pub(super) empty: Option<String>,
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
        let Self { closed, sink } = self;
        let mut read = Items { kind: None, closed, sink: &mut *sink }.visit_seq(list)?;
        let is_empty = read.count == 0;
        read.take_last(closed, sink);
        Ok(DocumentSummary { list: is_empty, part: read.part, cut: read.cut, empty: None })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DocumentSummary, A::Error> {
        let Self { closed, sink } = self;
        let mut object = Node::mapping(Vec::new());
        let mut items: Option<ItemsRead> = None;
        let mut items_twice = false;
        while let Some(key) = map.next_key()? {
            let Key::Name(key) = key else {
                let merged = map.next_value::<Node>()?.into_merged().map_err(A::Error::custom)?;
                merged.into_iter().for_each(|(key, node)| object.put(key, node));
                continue;
            };
            if key == "items" {
                items_twice |= items.is_some();
                let kind = kind_of_items(&object, None);
                let read = map.next_value_seed(Items { kind: kind.as_deref(), closed, sink: &mut *sink })?;
                items = Some(ItemsRead { null: read.null && !closed, ..read });
            } else {
                if let Some(read) = items.as_mut().filter(|_| key == "kind") {
                    read.null = false;
                }
                object.put(key, map.next_value()?);
            }
        }
        if object.field("items").is_some() {
            sink(None, Err("a List has items in a mapping of <<, wanted the items in the List".to_owned()));
            if items.is_none() {
                return Ok(DocumentSummary::default());
            }
        }
        let Some(mut read) = items else {
            object.keep_last();
            sink(None, Ok(object));
            return Ok(DocumentSummary::default());
        };
        let twice = ["apiVersion", "kind", "metadata"].into_iter().find(|key| object.has_twice(key));
        if let Some(key) = twice.or(items_twice.then_some("items")) {
            sink(None, Err(format!("a List has {key} twice, wanted every key once")));
        }
        let kind = object.field("kind").and_then(Node::text);
        let cut = !closed && kind.is_none();
        let empty = kind.filter(|_| read.count == 0 && !read.null).map(str::to_owned);
        // If the file ends inside a List, the last item may be incomplete. For example, a port number may have lost
        // digits.
        if !cut {
            read.take_last(closed, sink);
        }
        Ok(DocumentSummary { list: true, part: read.part || goes_on(&object), empty, cut: cut || read.cut })
    }
}

/// The kind for items without a kind. For example, an item of a `ServiceList` is a Service.
fn kind_of_items(list: &Node, inherited: Option<&str>) -> Option<String> {
    let own = list.field("kind").and_then(Node::text).and_then(|kind| kind.strip_suffix("List"));
    own.filter(|kind| !kind.is_empty()).or(inherited).map(str::to_owned)
}

fn goes_on(list: &Node) -> bool {
    let Some(metadata) = list.field("metadata") else { return false };
    let is_mapping = matches!(metadata.value, Value::Null | Value::Mapping(_));
    let is_last = match metadata.field("continue").map(|it| &it.value) {
        None | Some(Value::Null) => true,
        Some(Value::Text(token)) => token.is_empty(),
        Some(_) => false,
    };
    let is_all =
        matches!(metadata.field("remainingItemCount").map(|it| &it.value), None | Some(Value::Null | Value::Number(0)));
    !(is_mapping && is_last && is_all)
}

/// Reads the items of a List. The last item is kept back, because only the rest of the List shows whether this item is
/// complete.
struct Items<'a> {
    kind: Option<&'a str>,
    closed: bool,
    sink: &'a mut Sink<'a>,
}

#[derive(Default)]
struct ItemsRead {
    last: Option<Node>,
    kind: Option<String>,
    count: usize,
    /// Whether the value of `items` is null. A file that was cut after `items:` also has this value.
    null: bool,
    part: bool,
    cut: bool,
}

impl ItemsRead {
    fn take_last(&mut self, closed: bool, sink: &mut Sink<'_>) {
        let Some(item) = self.last.take() else { return };
        let kind = self.kind.take();
        self.take(item, self.count - 1, kind.as_deref(), closed, sink);
        self.kind = kind;
    }

    fn take(&mut self, item: Node, index: usize, kind: Option<&str>, closed: bool, sink: &mut Sink<'_>) {
        let is_list = item.field("items").is_some_and(|items| matches!(items.value, Value::List(_)));
        match item.value {
            Value::Mapping(_) if is_list => {
                self.part |= goes_on(&item);
                let cut = !closed && item.field("kind").and_then(Node::text).is_none();
                self.cut |= cut;
                let inner = kind_of_items(&item, kind);
                let mut items = item.into_items();
                if cut {
                    items.pop();
                }
                for (index, item) in items.into_iter().enumerate() {
                    self.take(item, index, inner.as_deref(), closed, sink);
                }
            }
            Value::Mapping(_) => sink(kind, Ok(item)),
            // An item that is not an object is refused. The next items are still read.
            other => sink(kind, Err(format!("items[{index}] is {}, wanted a Kubernetes object", other.in_words()))),
        }
    }
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
        let mut read = ItemsRead { kind: kind.map(str::to_owned), ..ItemsRead::default() };
        loop {
            // The next item shows that the earlier item is complete, even if the next item is broken.
            let next = list.next_element::<Node>();
            if !matches!(next, Ok(None)) {
                read.take_last(closed, sink);
            }
            let Some(item) = next? else { return Ok(read) };
            read.last = Some(item);
            read.count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_list_makes_its_outer_list_incomplete() {
        let read = |text: &str, closed: bool| {
            let mut found = 0;
            let mut sink = |_: Option<&str>, node: Result<Node, String>| found += usize::from(node.is_ok());
            let reader = ObjectReader { closed, sink: &mut sink };
            let summary = reader.deserialize(&mut serde_json::Deserializer::from_str(text)).expect("a List");
            (summary, found)
        };
        let item = r#"{"kind":"Node","metadata":{"name":"n1"}}"#;
        let outer = |inner: &str| format!(r#"{{"kind":"List","items":[{{"kind":"List","items":[{inner}]}},{item}]}}"#);
        let inner = |metadata: &str| format!(r#"{{"kind":"NodeList","metadata":{{{metadata}}},"items":[{item}]}}"#);
        for metadata in [r#""continue":"t1""#, r#""remainingItemCount":3"#, r#""continue":7"#] {
            for text in [outer(&inner(metadata)), format!("[{}]", inner(metadata))] {
                assert!(read(&text, true).0.part, "{text}");
            }
        }
        let (summary, found) = read(&outer(&inner(r#""resourceVersion":"1""#)), true);
        assert_eq!((summary.part, summary.cut, found), (false, false, 2));
        let (summary, found) = read(&outer(&format!(r#"{{"items":[{item},{item}]}}"#)), false);
        assert_eq!((summary.part, summary.cut, found), (false, true, 2), "the last one may be half of one");
    }
}
