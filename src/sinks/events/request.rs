//! What is sent to the API server about an Event, and what it answers.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::events::v1::{Event, EventSeries},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};

use super::incident::{Mark, VOICE};

/// One request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// Comes back with the reply.
    pub ticket: u64,
    /// The namespace of the Event.
    pub namespace: String,
    /// The name of the Event.
    pub name: String,
    /// What to do with it.
    pub request: Request,
}

/// What is to be done with an Event.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Create it.
    Create(Box<Event>),
    /// Write into its series that it is still so.
    Repeat(Series),
    /// Read whether it is there, of one that this agent does not know of; nothing is written.
    Find,
    /// Read it; nothing is written.
    Look,
    /// Write into a gate who holds the voice, unless somebody has written since it was read.
    Hold(Hold),
}

impl Request {
    /// Whether it only reads, or writes nothing but who holds a voice.
    pub(super) fn is_light(&self) -> bool {
        match self {
            Self::Find | Self::Look => true,
            Self::Hold(hold) => hold.series.is_none(),
            Self::Create(_) | Self::Repeat(_) => false,
        }
    }
}

/// What is written into a gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The version that was read.
    pub version: String,
    /// Who holds the voice from now on.
    pub mark: Mark,
    /// That it is still so, where the gate tells of the node that writes.
    pub series: Option<Series>,
}

/// What the API server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is written.
    Written,
    /// There is one of that name already.
    Exists,
    /// This is what the server has.
    Current(Seen),
    /// Another agent wrote into the gate first.
    Overtaken,
    /// There is none of that name, or no such namespace.
    Missing,
    /// It may not be written there, as long as nobody changes that.
    Forbidden,
    /// It will never be accepted.
    Refused,
    /// No answer now; how long the server wants to be left alone, where it says so.
    Unavailable(Option<SignedDuration>),
}

/// An Event on the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// How often it was written.
    pub series: Series,
    /// Its version, which changes with every write.
    pub version: String,
    /// The node that it names.
    pub node: Option<String>,
    /// Who holds the voice, where it is a gate.
    pub mark: Option<Mark>,
}

impl Seen {
    /// What is to be known of an Event on the server.
    pub(super) fn of(event: Event) -> Self {
        let annotations = event.metadata.annotations.as_ref();
        Self {
            version: event.metadata.resource_version.clone().unwrap_or_default(),
            node: event.related.as_ref().and_then(|node| node.name.clone()),
            mark: annotations.and_then(|all| all.get(VOICE)).and_then(|text| Mark::parse(text)),
            series: Series::of(event),
        }
    }

    /// Who holds the voice: the one that wrote it, where nothing else is said.
    pub(super) fn holder(&self) -> Option<Mark> {
        self.mark.clone().or_else(|| self.node.clone().map(|node| Mark { node, over: false }))
    }
}

/// How often an Event was written, and when last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series {
    /// 1 is an Event without a series; the API server takes 2 and more.
    pub count: u32,
    /// When it was last written.
    pub last: Timestamp,
}

impl Series {
    /// The series of an Event on the server. An Event without any time counts as an old one.
    pub(super) fn of(event: Event) -> Self {
        match event.series {
            Some(EventSeries { count, last_observed_time }) => {
                Self { count: u32::try_from(count).unwrap_or(1), last: last_observed_time.0 }
            }
            None => Self { count: 1, last: event.event_time.map_or(Timestamp::UNIX_EPOCH, |time| time.0) },
        }
    }

    /// The same, written once more. The API server's count is an `int32`.
    pub(super) fn repeated(self, at: Timestamp) -> Self {
        Self { count: self.count.saturating_add(1).clamp(2, i32::MAX.unsigned_abs()), last: at }
    }
}

impl From<Series> for EventSeries {
    fn from(Series { count, last }: Series) -> Self {
        Self { count: i32::try_from(count).unwrap_or(i32::MAX), last_observed_time: MicroTime(last) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_series_has_microseconds_even_where_they_are_zero() {
        let series = Series { count: 2, last: Timestamp::from_second(1_700_000_000).expect("a time") };
        let expected = json!({"count": 2, "lastObservedTime": "2023-11-14T22:13:20.000000Z"});
        assert_eq!(serde_json::to_value(EventSeries::from(series)).expect("JSON"), expected);
    }

    #[test]
    fn an_event_without_a_series_was_written_once() {
        let at = Timestamp::from_second(1_700_000_000).expect("a time");
        let event = Event { event_time: Some(MicroTime(at)), ..Event::default() };
        assert_eq!(Series::of(event.clone()), Series { count: 1, last: at });
        let repeated = Series::of(event).repeated(at);
        let event = Event { series: Some(repeated.into()), ..Event::default() };
        assert_eq!(Series::of(event), Series { count: 2, last: at });
        assert_eq!(Series::of(Event::default()), Series { count: 1, last: Timestamp::UNIX_EPOCH });
    }
}
