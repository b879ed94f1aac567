//! How many values a text of JSON has, without parsing it.

/// Counts the commas between values, and not those within texts, in pieces that end anywhere.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ValueCounter {
    values: usize,
    in_text: bool,
    /// The last byte was the backslash of an escape.
    escaped: bool,
}

impl ValueCounter {
    /// The commas of a whole text.
    pub(super) fn of(bytes: &[u8]) -> usize {
        let mut counter = Self::default();
        counter.read(bytes);
        counter.values
    }

    /// Counts on.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'"' => self.in_text = !self.in_text,
                b'\\' if self.in_text => self.escaped = true,
                b',' if !self.in_text => self.values += 1,
                _ => {}
            }
        }
    }

    /// How many there were since the last object.
    pub(super) fn values(&self) -> usize {
        self.values
    }

    /// A new object begins, perhaps in the middle of the last piece.
    pub(super) fn begin(&mut self) {
        self.values = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_of_texts_are_no_values_wherever_a_piece_ends() {
        let text = br#"{"a,\\\",":",,,\\",b":[1,2,"\\",3]}"#;
        for size in 1..=text.len() {
            let mut counter = ValueCounter::default();
            text.chunks(size).for_each(|piece| counter.read(piece));
            assert_eq!(counter.values(), ValueCounter::of(text), "pieces of {size}");
        }
        let count = |text: &str| ValueCounter::of(text.as_bytes());
        assert_eq!(count(r#"[1,2,3]"#), 2);
        assert_eq!(count(r#"["a,b","c\\","d,\",e"]"#), 2);
        assert_eq!(count(r#"{"k":",,,,","l":1}"#), 1);
    }
}
