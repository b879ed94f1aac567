//! A request to the API server about an Event, and the answer.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::events::v1::Event;
use portreeve_rules::findings::Key;

/// One request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Write {
    /// The finding.
    pub(super) key: Key,
    /// The reason of the request.
    pub(super) step: Step,
    /// The namespace of the Event.
    pub(super) namespace: String,
    /// The name of the Event.
    pub(super) name: String,
    /// The action.
    pub(super) request: Request,
}

/// The next step about a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Create the Event of this hour, unless it exists.
    Report,
    /// Count up this node's Event, because its end was reported and the finding is back.
    ReportAgain,
    /// The finding is over. Read an Event that may be from this node.
    Read,
    /// The finding is over, and this node reported it. Write its end.
    End,
}

/// The action on an Event.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Request {
    /// Create it.
    Create(Box<Event>),
    /// Set the count and the last time of its series.
    Repeat(i32, Timestamp),
    /// Read the reporting instance. Changes nothing.
    Read,
}

/// The answer of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The Event is written.
    Written,
    /// An Event of this name exists.
    Exists,
    /// The Event exists. The value is its reporting instance, if it has one.
    Current(Option<String>),
    /// No Event of this name exists, or no such namespace.
    Missing,
    /// The agent has no right to write it there. This lasts until a person changes it.
    Forbidden,
    /// This one Event cannot be read, or the server refuses for another reason. This lasts until a person changes it.
    Stuck,
    /// The server refuses it for good.
    Refused,
    /// The server gave no answer now. The value is the wait that the server wants, if it names a wait.
    Unavailable(Option<SignedDuration>),
}
