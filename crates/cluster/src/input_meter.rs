//! Bounds on what one input of manifests may hold. Documents are streamed, so it is objects that are bounded, and not files
//! of an honest length.

use std::{
    cell::{Cell, RefCell},
    io::{self, Read},
};

use super::meter::WHOLE;
use portreeve_facts::Why;

/// The longest object of an input, in bytes. An API server takes 3 MiB.
const OBJECT: usize = 4 << 20;
/// The most objects in an input.
const OBJECTS: u64 = 500_000;

/// What was read so far.
#[derive(Debug, Default)]
pub(super) struct InputMeter {
    /// Bytes since the last whole object.
    since: Cell<usize>,
    bytes: Cell<usize>,
    objects: Cell<u64>,
    fault: RefCell<Option<(Why, String)>>,
}

impl InputMeter {
    /// Counts a whole object; false for one that is too many.
    pub(super) fn count_object(&self) -> bool {
        self.since.set(0);
        self.objects.set(self.objects.get() + 1);
        self.objects.get() <= OBJECTS
    }

    /// The bound that was exceeded, or what kept an input from being read further.
    pub(super) fn fault(&self) -> Option<(Why, String)> {
        self.fault.borrow().clone()
    }

    fn check(&self, read: usize) -> Option<String> {
        self.since.set(self.since.get() + read);
        self.bytes.set(self.bytes.get() + read);
        if self.since.get() > OBJECT {
            Some(format!("{} MiB without a whole object, wanted objects of at most that", OBJECT >> 20))
        } else if self.bytes.get() > WHOLE {
            Some(format!("longer than {} MiB, the rest was not read", WHOLE >> 20))
        } else if self.objects.get() > OBJECTS {
            Some(format!("more than {OBJECTS} objects, the rest was not read"))
        } else {
            None
        }
    }
}

/// A reader that is bounded by a meter.
pub(super) struct MeteredInput<'a, R> {
    pub(super) reader: R,
    pub(super) meter: &'a InputMeter,
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
