//! How much one LIST may bring: a server that is hostile, or broken, must not fill the memory.

use std::{
    cell::{Cell, RefCell},
    io,
};

/// The longest object, in bytes. etcd stores none of more than 1.5 MB, and JSON is longer than what it stores.
pub(super) const OBJECT: usize = 4 << 20;
/// The most values in one object: the commas in its text.
pub(super) const VALUES: usize = 100_000;
/// All answers to one LIST together, in bytes.
const LIST: usize = 1 << 30;
/// The most objects of one LIST that are kept.
const OBJECTS: usize = 200_000;
/// The most memory that what is kept of one LIST takes, in bytes, roughly.
pub(super) const MEMORY: usize = 256 << 20;

/// Counts what one LIST brings, page by page, while it is parsed.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Since the last object was complete.
    bytes: Cell<usize>,
    values: Cell<usize>,
    /// In this page.
    objects_of_page: Cell<usize>,
    /// Altogether.
    all_bytes: Cell<usize>,
    objects: Cell<usize>,
    memory: Cell<usize>,
    /// Why nothing more is read.
    wrong: RefCell<Option<String>>,
}

impl Meter {
    /// Takes in bytes before they are parsed.
    ///
    /// # Errors
    /// When it is enough, or [`Self::stop`] was called.
    pub(super) fn read(&self, bytes: &[u8]) -> io::Result<()> {
        if let Some(wrong) = self.wrong.take() {
            return Err(io::Error::other(wrong));
        }
        let values = bytes.iter().filter(|byte| **byte == b',').count();
        for (counter, more, most, what) in [
            (&self.bytes, bytes.len(), OBJECT, "bytes in one object"),
            (&self.values, values, VALUES, "values in one object"),
            (&self.all_bytes, bytes.len(), LIST, "bytes"),
        ] {
            add(counter, more, most, what)?;
        }
        Ok(())
    }

    /// An object is complete, and `memory` bytes of it are kept.
    pub(super) fn object(&self, memory: usize) {
        self.bytes.set(0);
        self.values.set(0);
        self.objects_of_page.set(self.objects_of_page.get() + 1);
        if memory == 0 {
            return;
        }
        let counted = add(&self.objects, 1, OBJECTS, "objects");
        let counted = counted.and_then(|()| add(&self.memory, memory, MEMORY, "bytes of what is kept"));
        if let Err(error) = counted {
            self.stop(error.to_string());
        }
    }

    /// Ends the reading with the next bytes, for this reason.
    pub(super) fn stop(&self, wrong: String) {
        *self.wrong.borrow_mut() = Some(wrong);
    }

    /// Why the reading ended, where that was after the last bytes.
    pub(super) fn wrong(&self) -> Option<String> {
        self.wrong.take()
    }

    /// How many objects there were in this page.
    pub(super) fn objects_of_page(&self) -> usize {
        self.objects_of_page.get()
    }

    /// A new page begins.
    pub(super) fn next_page(&self) {
        self.objects_of_page.set(0);
        self.bytes.set(0);
        self.values.set(0);
    }
}

fn add(counter: &Cell<usize>, more: usize, most: usize, what: &str) -> io::Result<()> {
    let sum = counter.get().saturating_add(more);
    counter.set(sum);
    if sum > most { Err(io::Error::other(format!("it holds more than {most} {what}"))) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_of_short_objects_is_read_and_one_long_object_is_not() {
        let meter = Meter::default();
        for _ in 0..10 {
            meter.read(&vec![b' '; OBJECT]).expect("a long object");
            meter.object(1);
        }
        let error = meter.read(&vec![b' '; OBJECT + 1]).expect_err("too long");
        assert!(error.to_string().contains("bytes in one object"), "{error}");
    }

    #[test]
    fn objects_and_their_memory_have_an_end_and_what_is_not_kept_is_free() {
        let meter = Meter::default();
        (0..2 * OBJECTS).for_each(|_| meter.object(0));
        meter.read(b"{").expect("nothing is kept");
        (0..=OBJECTS).for_each(|_| meter.object(1));
        assert!(meter.read(b"{").expect_err("too many").to_string().contains("200000 objects"));
        let meter = Meter::default();
        meter.object(MEMORY + 1);
        assert!(meter.wrong().is_some_and(|wrong| wrong.contains("what is kept")));
    }
}
