//! What the lines of a watch promise, and what is known by them.

use std::sync::Arc;

use tokio::time::Instant;

use portreeve_cluster::watch::{
    cached_object::ObjectBatch,
    index::Index,
    line::{InitialState, LineError, change},
    resource::Resource,
    selection::Selection,
    update::Update,
    watch_lines::LineBuffer,
};
use portreeve_cluster::{
    allowance::Allowance,
    meter::{Meter, Stopped},
};
use portreeve_facts::{ClusterFacts, text};

const PLACE: &str = "here";

/// The lines of pieces, and how that ended: between two lines, inside one, or with an error.
fn lines<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Vec<u8>>, Result<bool, String>) {
    let (mut buffer, mut lines) = (LineBuffer::default(), Vec::new());
    for piece in pieces {
        buffer.push(piece);
        loop {
            match buffer.next_line() {
                Ok(Some(line)) => lines.push(line),
                Ok(None) => break,
                Err(what) => return (lines, Err(what)),
            }
        }
    }
    (lines, Ok(buffer.is_between_lines()))
}

/// What is known after the lines of a watch, the first of which are its state; `sound` judges the facts.
///
/// Pieces of any size are the same lines. A state that has not ended makes nothing known. One that has makes the same
/// known as a state of nothing, and its objects one by one.
pub(crate) fn watch_lines(bytes: &[u8], sound: impl Fn(&ClusterFacts)) {
    let (cut, end) = lines([bytes].into_iter());
    assert_eq!(lines(bytes.chunks(bytes.len() % 61 + 1)), (cut.clone(), end.clone()));
    let length = cut.iter().map(Vec::len).sum::<usize>();
    assert!(bytes.starts_with(&cut.concat()) && (end != Ok(true) || length == bytes.len()));
    let web = Selection::EndpointsOf(Arc::new(["web".to_owned()].into()));
    watch(Resource::Services, "Service", Selection::Served, &cut, &sound);
    watch(Resource::EndpointSlices, "EndpointSlice", web, &cut, &sound);
}

fn watch(resource: Resource, kind: &str, selection: Selection, lines: &[Vec<u8>], sound: &impl Fn(&ClusterFacts)) {
    let (at, allowance) = (Instant::now(), Allowance::of(Allowance::OF_LIST));
    let names = || Arc::new(["web".to_owned()].into());
    let known = |index: &Index| {
        let facts = index.facts();
        if resource == Resource::Services {
            facts.services.seen().is_some()
        } else {
            facts.endpoint_slices.seen().is_some()
        }
    };
    let mut index = Index::new(Some("n1".to_owned()), PLACE.to_owned(), names());
    let mut state = InitialState::of(ObjectBatch::within(selection.clone(), None), Meter::default());
    let mut rest = lines.iter();
    let ended = rest.by_ref().find_map(|line| match state.take(PLACE, kind, line) {
        Ok(None) => None,
        Ok(Some(version)) => Some(Ok((line, version))),
        Err(error) => Some(Err(error)),
    });
    let (last, version) = match ended {
        Some(Ok(ended)) => ended,
        Some(Err(error)) => return said(error),
        // Nobody has said that this is all.
        None => return assert!(!known(&index)),
    };
    let has = |part: &[u8]| last.windows(part.len()).any(|it| it == part);
    assert!(!version.is_empty() && (has(b"k8s.io/initial-events-end") || has(b"\\")), "{last:?} ends a state");
    index.apply(resource, Update::Replaced(selection.clone(), state.into_objects()), at);
    assert!(known(&index));
    let mut other = Index::new(Some("n1".to_owned()), PLACE.to_owned(), names());
    other.apply(resource, Update::Replaced(selection.clone(), ObjectBatch::within(selection, None)), at);
    for line in lines.iter().take_while(|line| !std::ptr::eq(*line, last)) {
        if let Ok(Some((update, _))) = change(PLACE, kind, line, &allowance) {
            other.apply(resource, update, at);
        }
    }
    assert_eq!(index.facts(), other.facts());
    for line in rest {
        match change(PLACE, kind, line, &allowance) {
            Ok(None) => {}
            Ok(Some((update, _))) => {
                index.apply(resource, update, at);
            }
            Err(error) => {
                said(error);
                break;
            }
        }
    }
    assert!(known(&index));
    sound(&index.facts());
}

/// What is said of a line that ends a watch can be shown, when it is cleaned as every answer's error is.
fn said(error: LineError) {
    let (LineError::Stopped(Stopped::Malformed(what) | Stopped::TooMuch(what)) | LineError::Refused(_, what)) = error;
    let what = text::clean(&what, 256);
    assert!(what.len() <= 256 && !what.chars().any(text::is_invisible), "{what:?}");
}
