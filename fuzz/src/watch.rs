//! Checks that the reader of a watch keeps its promises for any lines: the promises about the parsed lines, and about
//! the resulting facts.

use std::sync::Arc;

use tokio::time::Instant;

use portreeve_cluster::{
    error::Error,
    objects::{EndpointSlice, Object, Service},
    watch::{
        index::{Index, ObjectBatch, Update},
        resource::Resource,
        selection::Selection,
        watch_event::WatchEvent,
    },
};
use portreeve_facts::{ClusterFacts, Gap, Source, text};

const PLACE: &str = "here";

/// Reads the lines of a watch. The first lines are the list of the present objects. `sound` asserts the promises about
/// the facts after the lines.
///
/// If the list is not complete, there are no facts. If the list is complete, the facts are the same as after an empty
/// list and one change for each object.
pub(crate) fn watch_lines(bytes: &[u8], sound: impl Fn(&ClusterFacts)) {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_ascii().is_empty()).collect();
    let web = Selection::EndpointsOf(Arc::new(["web".to_owned()].into()));
    watch::<Service>(Resource::Services, Selection::Served, &lines, &sound);
    watch::<EndpointSlice>(Resource::EndpointSlices, web, &lines, &sound);
}

fn watch<K: Object>(resource: Resource, selection: Selection, lines: &[&str], sound: &impl Fn(&ClusterFacts)) {
    let at = Instant::now();
    let names = || Arc::new(["web".to_owned()].into());
    let index = || Index::new(Some("n1".to_owned()), PLACE.to_owned(), names());
    let known = |index: &Index| {
        let facts = index.facts();
        if resource == Resource::Services {
            facts.services.seen().is_some()
        } else {
            facts.endpoint_slices.seen().is_some()
        }
    };
    let (mut index, mut other) = (index(), index());
    let (mut state, empty) = (ObjectBatch::within(selection.clone(), None), ObjectBatch::default());
    other.apply(resource, Update::Replaced(selection.clone(), empty), at);
    let mut rest = lines.iter();
    let is_whole = loop {
        let Some(line) = rest.next() else { break false };
        match WatchEvent::read::<K>("a watch", PLACE, line) {
            Ok(WatchEvent::Applied(title, object, _)) => {
                state.put(title.clone(), object.clone());
                other.apply(resource, Update::Applied(title, object), at);
            }
            Ok(WatchEvent::Bookmark(true, Some(version))) => {
                let has_mark = line.contains("k8s.io/initial-events-end") || line.contains('\\');
                assert!(!version.is_empty() && has_mark, "{line:?} ends a state");
                break true;
            }
            Ok(WatchEvent::Bookmark(..)) => {}
            Err(error) => return said(&error),
        }
    };
    if !is_whole {
        // The lines ended before the mark that ends the list of present objects.
        return assert!(!known(&index));
    }
    index.apply(resource, Update::Replaced(selection, state), at);
    assert!(known(&index));
    assert_eq!(index.facts(), other.facts());
    for line in rest {
        match WatchEvent::read::<K>("a watch", PLACE, line) {
            Ok(WatchEvent::Applied(title, object, _)) => {
                index.apply(resource, Update::Applied(title, object), at);
            }
            Ok(WatchEvent::Bookmark(..)) => {}
            Err(error) => {
                said(&error);
                break;
            }
        }
    }
    assert!(known(&index));
    sound(&index.facts());
}

fn said(error: &Error) {
    let Gap { detail, .. } = error.gap(Source::Services);
    assert!(detail.len() <= 512 && !detail.chars().any(text::is_invisible), "{detail:?}");
}
