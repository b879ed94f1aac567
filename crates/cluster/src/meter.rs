//! How much one LIST may bring: a server that is hostile, or broken, must not fill the memory.

use std::{
    cell::{Cell, RefCell},
    io,
    sync::Arc,
};

use super::{
    allowance::{Allowance, Share},
    value_counter::ValueCounter,
};

/// The longest object of an API server, in bytes. etcd stores none of more than 1.5 MB, and of a text JSON may take six bytes
/// for one: apimachinery's encoder writes `<` as `\u003c`. Nobody who may write an object is to keep others from being read.
pub const OBJECT: usize = 16 << 20;
/// The most values in one object: the commas between them. In 1.5 MB of Protobuf there is room for some 750,000.
pub const VALUES: usize = 1_000_000;
/// All answers to one LIST together, or one input of manifests, in bytes.
pub const WHOLE: usize = 1 << 30;

/// Why a LIST is not read on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// It is not what it should be.
    #[error("{0}")]
    Malformed(String),
    /// It is more than there is memory for.
    #[error("{0}")]
    TooMuch(String),
}

/// Counts what one LIST brings, page by page, while it is parsed. The memory that is kept of it counts as taken as long as
/// this lives.
#[derive(Debug)]
pub struct Meter {
    /// Since the last object was complete.
    bytes: Cell<usize>,
    values: Cell<ValueCounter>,
    /// In this page.
    objects_of_page: Cell<usize>,
    /// Altogether.
    all_bytes: Cell<usize>,
    memory: RefCell<Share>,
    /// Why nothing more is read.
    stopped: RefCell<Option<Stopped>>,
}

impl Default for Meter {
    /// For a list of which nothing else is kept.
    fn default() -> Self {
        Self::within(&Allowance::of(Allowance::OF_LIST))
    }
}

impl Meter {
    /// For a list that takes its memory from this.
    pub fn within(allowance: &Arc<Allowance>) -> Self {
        Self {
            bytes: Cell::default(),
            values: Cell::default(),
            objects_of_page: Cell::default(),
            all_bytes: Cell::default(),
            memory: RefCell::new(Share::of(allowance)),
            stopped: RefCell::default(),
        }
    }

    /// Takes in bytes before they are parsed.
    ///
    /// # Errors
    /// When it is enough, or [`Self::stop`] was called.
    pub fn read(&self, bytes: &[u8]) -> io::Result<()> {
        if let Some(stopped) = &*self.stopped.borrow() {
            return Err(io::Error::other(stopped.clone()));
        }
        let mut values = self.values.get();
        values.read(bytes);
        self.values.set(values);
        for (now, most, what) in [
            (add(&self.bytes, bytes.len()), OBJECT, "bytes in one object"),
            (values.values(), VALUES, "values in one object"),
            (add(&self.all_bytes, bytes.len()), WHOLE, "bytes"),
        ] {
            if now > most {
                return Err(io::Error::other(format!("it holds more than {most} {what}")));
            }
        }
        Ok(())
    }

    /// An object is complete, and `memory` bytes of it are kept.
    pub fn object(&self, memory: usize) {
        self.bytes.set(0);
        let mut values = self.values.get();
        values.begin();
        self.values.set(values);
        self.objects_of_page.set(self.objects_of_page.get() + 1);
        if memory == 0 {
            return;
        }
        let mut share = self.memory.borrow_mut();
        if share.grow(memory).is_err() {
            let what = format!("it would take {}", share.allowance().in_words());
            *self.stopped.borrow_mut() = Some(Stopped::TooMuch(what));
        }
    }

    /// Ends the reading with the next bytes, for this reason.
    pub fn stop(&self, wrong: String) {
        *self.stopped.borrow_mut() = Some(Stopped::Malformed(wrong));
    }

    /// Why the reading ended, where that was no matter of bytes.
    pub fn stopped(&self) -> Option<Stopped> {
        self.stopped.borrow().clone()
    }

    /// How many objects there were in this page.
    pub fn objects_of_page(&self) -> usize {
        self.objects_of_page.get()
    }

    /// A new page begins.
    pub fn next_page(&self) {
        self.objects_of_page.set(0);
        self.bytes.set(0);
        self.values.take();
    }
}

/// Adds to a counter, and returns what it is then.
fn add(counter: &Cell<usize>, more: usize) -> usize {
    let sum = counter.get().saturating_add(more);
    counter.set(sum);
    sum
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
        meter.read(format!("\"{}\"", ",".repeat(2 * VALUES)).as_bytes()).expect("a text with commas");
        meter.object(1);
        let error = meter.read(&vec![b' '; OBJECT + 1]).expect_err("too long");
        assert!(error.to_string().contains("bytes in one object"), "{error}");
        let meter = Meter::default();
        let error = meter.read(&vec![b','; VALUES + 1]).expect_err("too many");
        assert!(error.to_string().contains("values in one object"), "{error}");
    }

    #[test]
    fn the_memory_of_all_lists_together_has_an_end_and_comes_back() {
        let allowance = Allowance::of(10 << 20);
        let (first, second) = (Meter::within(&allowance), Meter::within(&allowance));
        first.object(6 << 20);
        (0..10_000).for_each(|_| second.object(0));
        second.object(4 << 20);
        assert_eq!((first.stopped(), second.stopped()), (None, None), "what is not kept is free");
        second.object(1);
        let said = second.read(b"{").expect_err("it is too much").to_string();
        assert_eq!(said, "it would take more than 10 MiB of what is kept of the cluster");
        assert!(matches!(second.stopped(), Some(Stopped::TooMuch(what)) if what == said));
        drop(second);
        first.object(4 << 20);
        first.read(b"{").expect("the other one is gone");
    }
}
