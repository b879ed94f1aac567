//! What is sent to the API server about an Event, and what it answers.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::events::v1::Event;
use portreeve_rules::findings::Key;

/// One request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Write {
    /// The finding that it is about.
    pub(super) key: Key,
    /// Why it is made.
    pub(super) step: Step,
    /// The namespace of the Event.
    pub(super) namespace: String,
    /// The name of the Event.
    pub(super) name: String,
    /// What to do with it.
    pub(super) request: Request,
}

/// What is done next about a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The Event of this hour is created, unless it is there.
    Tell,
    /// What this node told is told again: somebody has read that it is over.
    TellAgain,
    /// It is over: an Event that may be from this node is read.
    Look,
    /// It is over, and this node has told of it.
    End,
}

/// What is to be done with an Event.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Request {
    /// Create it.
    Create(Box<Event>),
    /// Write into its series that it is so for this many times, the last one now.
    Repeat(i32, Timestamp),
    /// Read who reports it; nothing is written.
    Read,
}

/// What the API server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// It is written.
    Written,
    /// There is one of that name already.
    Exists,
    /// It is there, and this is who reports it, where it says so.
    Current(Option<String>),
    /// There is none of that name, or no such namespace.
    Missing,
    /// It may not be written there, as long as nobody changes that.
    Forbidden,
    /// Nothing can be done about this one Event, as long as nobody changes that: what the server has cannot be read, or it
    /// declines for another reason.
    Stuck,
    /// It will never be accepted.
    Refused,
    /// No answer now; how long the server wants to be left alone, where it says so.
    Unavailable(Option<SignedDuration>),
}
