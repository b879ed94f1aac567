//! Splits a stream of JSON into its documents. A document begins at the end of the previous document, with or without a
//! separator.

use std::ops::RangeInclusive;

use serde::de::IgnoredAny;
use serde_json::Deserializer;

/// Several documents, each with its first and last line, counted from 1. Each document must begin on a new line.
/// Returns `None` for a single document, and for text that is not JSON. The caller then reads the text as YAML.
pub(super) fn json_documents(bytes: &[u8]) -> Option<impl Iterator<Item = (RangeInclusive<u64>, &[u8])>> {
    let is_mapping = bytes.trim_ascii_start().starts_with(b"{");
    // A file may have millions of documents, so they are not kept. The text is cut once to count the documents, and
    // once to return them.
    let several =
        is_mapping && cut(bytes).try_fold(0_usize, |count, it| it.map(|_| count + 1)).is_some_and(|it| it > 1);
    several.then(|| cut(bytes).flatten())
}

/// Cuts the text into its documents. Yields `None` for a malformed document, and for a document that does not begin on
/// a new line.
fn cut(bytes: &[u8]) -> impl Iterator<Item = Option<(RangeInclusive<u64>, &[u8])>> {
    let mut stream = Deserializer::from_slice(bytes).into_iter::<IgnoredAny>();
    let (mut begin, mut line) = (0, 1);
    std::iter::from_fn(move || {
        let document = stream.next()?;
        let text = &bytes[begin..stream.byte_offset()];
        let breaks = |text: &[u8]| text.iter().filter(|byte| **byte == b'\n').count() as u64;
        let blank = text.len() - text.trim_ascii_start().len();
        let begins_line = begin == 0 || breaks(&text[..blank]) > 0;
        let lines = line..=line + breaks(text);
        (begin, line) = (stream.byte_offset(), *lines.end());
        Some(document.ok().filter(|_| begins_line).map(|_| (lines, text)))
    })
}

#[cfg(test)]
mod tests {
    use super::json_documents;

    #[test]
    fn documents_have_their_first_lines() {
        let cut = |text: &'static str| {
            let documents = json_documents(text.as_bytes())?;
            Some(
                documents
                    .into_iter()
                    .map(|(lines, text)| (lines, str::from_utf8(text).expect("UTF-8")))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(cut("{\n}\n\n{}"), Some(vec![(1..=2, "{\n}"), (2..=4, "\n\n{}")]));
        assert_eq!(cut(" {\"a\": \"}\\\"{\"}\n{} \n"), Some(vec![(1..=1, " {\"a\": \"}\\\"{\"}"), (1..=2, "\n{}")]));
        for other in ["{}\n", "{}{}", "{}\n{", "{a: b}\n", "{}\n---\n{}", "a: b\n", ""] {
            assert_eq!(cut(other), None, "{other:?}");
        }
    }
}
