//! What a line of a watch brings. Pure: it is the same wherever the lines were cut, and however long they took.

use std::sync::Arc;

use super::{cached_object::ObjectBatch, update::Update, watch_event::WatchEvent};
use crate::{
    allowance::{Allowance, Share},
    meter::{Meter, Stopped},
    objects::{Identity, Object},
};

/// Why a watch ends with a line.
#[derive(Debug, PartialEq, Eq)]
pub enum LineError {
    /// It is no event of this watch, or there is too much of it.
    Stopped(Stopped),
    /// The server ends the watch, with a code and a message.
    Refused(u16, String),
}

/// The present state, with which a watch begins, as far as it has come.
pub struct InitialState {
    objects: ObjectBatch,
    meter: Meter,
}

impl InitialState {
    /// Nothing of it yet: an empty batch, and what counts what comes into it.
    pub fn of(objects: ObjectBatch, meter: Meter) -> Self {
        Self { objects, meter }
    }

    /// Takes in a line, which was read at `place`. The resource version of the whole state, where the line ends it: before that
    /// it is not whole.
    pub(crate) fn take<K: Object>(&mut self, place: &str, line: &[u8]) -> Result<Option<String>, LineError> {
        if line.trim_ascii().is_empty() {
            return Ok(None);
        }
        if let Err(error) = self.meter.read(line) {
            let why = self.meter.stopped().unwrap_or_else(|| Stopped::Malformed(error.to_string()));
            return Err(LineError::Stopped(why));
        }
        match event(line)? {
            WatchEvent::Applied(object) => self.meter.object(self.objects.add_object::<K>(place, object).0),
            WatchEvent::Deleted(object) => {
                self.meter.object(0);
                self.objects.remove(&Identity::of(object).title);
            }
            WatchEvent::Error(code, message) => return Err(LineError::Refused(code, message)),
            WatchEvent::Bookmark(version, true) => {
                let version = version.filter(|version| !version.is_empty());
                return version.ok_or_else(|| wrong("its state has no resource version")).map(Some);
            }
            WatchEvent::Bookmark(..) => self.meter.object(0),
        }
        Ok(None)
    }

    /// The objects so far. From here on whoever takes them counts them.
    pub fn into_objects(self) -> ObjectBatch {
        self.objects
    }
}

/// What a line after the state changes, and the version that it reaches; `None` for an empty line. What it brings takes its
/// memory from `allowance`.
pub(crate) fn change<K: Object>(
    place: &str,
    line: &[u8],
    allowance: &Arc<Allowance>,
) -> Result<Option<(Update, Option<String>)>, LineError> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    Ok(Some(match event(line)? {
        WatchEvent::Applied(object) => {
            let mut objects = ObjectBatch::default();
            let mut room = Share::of(allowance);
            let (memory, version) = objects.add_object::<K>(place, object);
            if room.grow(memory).is_err() {
                let what = format!("it would take {}", allowance.in_words());
                return Err(LineError::Stopped(Stopped::TooMuch(what)));
            }
            (Update::Applied(objects.with_room(room)), version)
        }
        WatchEvent::Deleted(object) => {
            let Identity { title, version } = Identity::of(object);
            (Update::Deleted(title), version)
        }
        WatchEvent::Bookmark(version, _) => (Update::Confirmed, version),
        WatchEvent::Error(code, message) => return Err(LineError::Refused(code, message)),
    }))
}

fn event(line: &[u8]) -> Result<WatchEvent<'_>, LineError> {
    WatchEvent::read(line).map_err(|error| wrong(&error.to_string()))
}

fn wrong(what: &str) -> LineError {
    LineError::Stopped(Stopped::Malformed(what.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{objects::EndpointSlice, watch::selection::Selection};

    #[test]
    fn an_object_that_leaves_the_selection_before_the_state_is_whole_leaves_the_state() {
        let slice = |service: &str| {
            let labels = format!(r#"{{"kubernetes.io/service-name":"{service}"}}"#);
            let metadata = format!(r#"{{"namespace":"d","name":"s","labels":{labels}}}"#);
            let object = format!(r#"{{"metadata":{metadata},"addressType":"IPv4","endpoints":[]}}"#);
            format!(r#"{{"type":"MODIFIED","object":{object}}}"#)
        };
        let selection = Selection::EndpointsOf(Arc::new(["web".to_owned()].into()));
        let mut state = InitialState::of(ObjectBatch::within(selection, None), Meter::default());
        assert_eq!(state.take::<EndpointSlice>("here", slice("web").as_bytes()), Ok(None));
        assert_eq!(state.objects.objects.len(), 1);
        assert_eq!(state.take::<EndpointSlice>("here", slice("other").as_bytes()), Ok(None));
        assert_eq!(state.into_objects().objects.len(), 0);
    }
}
