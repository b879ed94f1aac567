//! Limits of an input that is read object by object.

use std::{
    cell::{Cell, RefCell},
    io::{self, Read},
};

use portreeve_facts::Why;

/// The longest input, in bytes.
pub(crate) const WHOLE: usize = 1 << 30;
const OBJECTS: u64 = 500_000;

/// Counts the bytes and the objects of an input. Objects are read one at a time, so each object has its own limit. This
/// limit is smaller than the limit of the whole input.
#[derive(Debug, Default)]
pub(crate) struct InputMeter {
    longest: usize,
    /// Bytes since the last complete object.
    since: Cell<usize>,
    bytes: Cell<usize>,
    objects: Cell<u64>,
    fault: RefCell<Option<(Why, String)>>,
}

impl InputMeter {
    pub(crate) fn new(longest: usize) -> Self {
        Self { longest, ..Self::default() }
    }

    /// Counts a complete object. Returns false if there are too many objects.
    pub(crate) fn count_object(&self) -> bool {
        self.since.set(0);
        self.objects.set(self.objects.get() + 1);
        self.objects.get() <= OBJECTS
    }

    pub(crate) fn fault(&self) -> Option<(Why, String)> {
        self.fault.borrow().clone()
    }

    fn check(&self, read: usize) -> Option<String> {
        self.since.set(self.since.get() + read);
        self.bytes.set(self.bytes.get() + read);
        if self.since.get() > self.longest {
            let longest = self.longest >> 20;
            Some(format!("{longest} MiB without a complete object, wanted objects of at most {longest} MiB"))
        } else if self.bytes.get() > WHOLE {
            Some(format!("longer than {} MiB, the rest was not read", WHOLE >> 20))
        } else if self.objects.get() > OBJECTS {
            Some(format!("more than {OBJECTS} objects, the rest was not read"))
        } else {
            None
        }
    }
}

pub(crate) struct MeteredInput<'a, R> {
    pub(crate) reader: R,
    pub(crate) meter: &'a InputMeter,
}

impl<R: Read> Read for MeteredInput<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer).inspect_err(|error| {
            *self.meter.fault.borrow_mut() = Some((Why::Malformed, error.to_string()));
        })?;
        match self.meter.check(read) {
            None => Ok(read),
            Some(fault) => {
                *self.meter.fault.borrow_mut() = Some((Why::TooMuch, fault.clone()));
                Err(io::Error::new(io::ErrorKind::FileTooLarge, fault))
            }
        }
    }
}
