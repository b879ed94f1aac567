//! What is sent to the API server about an Event, and what it answers.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::events::v1::{Event, EventSeries},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use serde::Deserialize;

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
    /// Whether it only reads.
    pub(super) fn is_read(&self) -> bool {
        matches!(self, Self::Find | Self::Look)
    }

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
    /// Nothing can be done about this one Event, as long as nobody changes that: what the server has cannot be read, or it
    /// declines for another reason.
    Stuck,
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

/// As much of an Event as is read. Who may write Events may leave anything out.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    metadata: Metadata,
    event_time: Option<MicroTime>,
    series: Option<KeptSeries>,
    related: Option<Related>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeptSeries {
    count: Option<i32>,
    last_observed_time: Option<MicroTime>,
}

#[derive(Deserialize)]
struct Related {
    name: Option<String>,
}

impl Seen {
    /// What is to be known of an Event that the server answers with.
    pub(super) fn parse(body: &[u8]) -> serde_json::Result<Self> {
        let Kept { metadata, event_time, series, related } = serde_json::from_slice(body)?;
        let written = event_time.map(|time| time.0);
        let (count, last) = series.map_or((None, None), |it| (it.count, it.last_observed_time));
        // An Event without any time counts as an old one.
        let last = last.map(|time| time.0).or(written).unwrap_or(Timestamp::UNIX_EPOCH);
        Ok(Self {
            version: metadata.resource_version,
            node: related.and_then(|node| node.name),
            mark: metadata.annotations.and_then(|all| Mark::parse(all.get(VOICE)?)),
            series: Series { count: count.and_then(|count| u32::try_from(count).ok()).unwrap_or(1), last },
        })
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

    fn seen(event: &Event) -> Seen {
        let mut event = serde_json::to_value(event).expect("JSON");
        event["metadata"]["resourceVersion"] = json!("7");
        Seen::parse(event.to_string().as_bytes()).expect("an Event")
    }

    #[test]
    fn an_event_without_a_series_was_written_once() {
        let at = Timestamp::from_second(1_700_000_000).expect("a time");
        let event = Event { event_time: Some(MicroTime(at)), ..Event::default() };
        assert_eq!(seen(&event).series, Series { count: 1, last: at });
        let repeated = seen(&event).series.repeated(at);
        let event = Event { series: Some(repeated.into()), ..Event::default() };
        assert_eq!(seen(&event).series, Series { count: 2, last: at });
        assert_eq!(seen(&Event::default()).series, Series { count: 1, last: Timestamp::UNIX_EPOCH });
    }

    #[test]
    fn an_event_of_somebody_else_is_read_as_far_as_it_goes() {
        let odd = json!({
            "metadata": {"resourceVersion": "7", "annotations": {VOICE: "mine"}},
            "eventTime": null,
            "series": {"count": -3, "lastObservedTime": null},
            "related": {},
        });
        let series = Series { count: 1, last: Timestamp::UNIX_EPOCH };
        let expected = Seen { series, version: "7".to_owned(), node: None, mark: None };
        assert_eq!(Seen::parse(odd.to_string().as_bytes()).expect("an Event"), expected);
        assert!(Seen::parse(b"{}").is_err());
    }
}
