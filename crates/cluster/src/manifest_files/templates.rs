//! The names of the templates in a stream that helm rendered. helm writes `# Source: shop/templates/web.yaml` before
//! each document.

use std::ops::RangeInclusive;

use portreeve_facts::{FileName, text};

const MARK: &[u8] = b"# Source: ";

pub(super) struct Templates<'a> {
    /// The `# Source:` comments after `next`. Each comment has its line number, counted from 1.
    ahead: Box<dyn Iterator<Item = (u64, &'a [u8])> + 'a>,
    next: Option<(u64, &'a [u8])>,
}

impl<'a> Templates<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let lines = (1..).zip(bytes.split(|byte| *byte == b'\n'));
        let mut ahead = Box::new(lines.filter_map(|(line, text)| Some((line, text.strip_prefix(MARK)?))));
        let next = ahead.next();
        Self { ahead, next }
    }

    /// The template of the document on `lines`. Callers must ask for the documents in the order of their lines.
    pub(super) fn of(&mut self, lines: RangeInclusive<u64>) -> Option<FileName> {
        let mut found = None;
        while let Some((line, path)) = self.next.filter(|(line, _)| line <= lines.end()) {
            // helm wrote the document's first `# Source:` comment. Each further `# Source:` comment is from the author
            // of the template.
            if lines.contains(&line) && found.is_none() {
                found = Some(path);
            }
            self.next = self.ahead.next();
        }
        let name = text::clean(&String::from_utf8_lossy(found?.trim_ascii()), text::NAME);
        (!name.is_empty()).then(|| FileName::new(name.clone(), name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_has_the_first_comment_of_its_own_lines() {
        let text =
            b"---\n# Source: a/b.yaml\nx: 1\n# Source: not this\n---\ny: |\n  # Source: no\n---\n# Source: c\r\n";
        let mut templates = Templates::new(text);
        let mut of = |lines| templates.of(lines).map(|it| it.to_string());
        assert_eq!(of(1..=5).as_deref(), Some("a/b.yaml"));
        assert_eq!(of(5..=8), None);
        assert_eq!(of(8..=9).as_deref(), Some("c"));
        assert_eq!(of(10..=12), None);
    }
}
