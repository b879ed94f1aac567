//! Servers that begin a watch with the present objects, and mark the end of these objects.

use std::time::Duration;

use portreeve_cluster::Resource;

use crate::{
    fake::{After, Fake, Reply},
    said,
    watch::{
        A, B, PATIENT, calm, errors, event, from, is_list, is_watch, names, start, start_within, timing, until, whole,
    },
};

fn is_streamed(path: &str) -> bool {
    path.starts_with("/api/v1/services?") && path.contains("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan")
}

fn streaming(lines: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Fake {
    Fake::streaming(move |path, before| match path {
        path if is_streamed(path) => lines(before),
        path if path.contains("sendInitialEvents") => Reply::Refused(422),
        path => calm(path),
    })
}

fn end() -> String {
    format!("{}\n", said::end_of_state("Service", "7"))
}

#[tokio::test]
async fn the_state_is_applied_at_its_end_and_the_watch_continues() {
    let fake = streaming(|_| {
        let state = [event("ADDED", A, 3), event("ADDED", B, 4), event("BOOKMARK", A, 4), end()];
        Reply::Watch(state.into_iter().chain([event("DELETED", A, 8)]).collect(), After::Ends)
    });
    let (_watch, views) = start(&fake);
    until(&views, "the state and its change", |view| names(view) == ["b"]).await;
    until(&views, "the watch continues from its last version", |_| fake.requests().iter().any(|path| from(path, 8)))
        .await;
    let requests = fake.requests();
    assert!(!requests.iter().any(|path| is_list(path)), "no LIST is needed");
    let first = requests.iter().find(|path| is_streamed(path)).expect("a watch");
    assert!(!first.contains("resourceVersion="), "the present state: {first}");
}

#[tokio::test]
async fn a_state_without_its_end_is_incomplete_and_a_list_replaces_it() {
    let torn: [fn() -> Reply; 2] = [
        || Reply::Watch(vec![event("ADDED", B, 3)], After::Ends),
        || Reply::Watch(vec![event("ADDED", B, 3)], After::Goes),
    ];
    for reply in torn {
        let fake = streaming(move |_| reply());
        let (_watch, views) = start_within(&fake, Duration::from_secs(5), timing());
        let view = until(&views, "everything is read", whole).await;
        assert_eq!(names(&view), ["a"], "the state of the LIST");
        assert_eq!(errors(&view, Resource::Services, "timed-out"), 0);
    }
}

#[tokio::test]
async fn a_state_that_expired_or_was_cut_is_streamed_again_from_its_start() {
    let fake = streaming(|before| match before {
        0 => Reply::Watch(vec![event("ADDED", A, 3), format!("{}\n", said::gone())], After::Ends),
        1 => Reply::Watch(vec![event("ADDED", A, 3), "{\"type\":".to_owned()], After::Ends),
        _ => Reply::Watch(vec![event("ADDED", B, 4), end()], After::Goes),
    });
    let (_watch, views) = start(&fake);
    let view = until(&views, "the third state", whole).await;
    assert_eq!(names(&view), ["b"]);
    let failures = ["410", "malformed"].map(|code| errors(&view, Resource::Services, code));
    assert_eq!(failures, [1, 1]);
}

#[tokio::test]
async fn a_state_is_never_older_than_the_last_version_read() {
    let fake = Fake::streaming(|path, before| match path {
        path if is_streamed(path) && path.contains("resourceVersion=9") => {
            Reply::Watch(vec![event("ADDED", B, 9), end()], After::Goes)
        }
        path if is_streamed(path) && before == 0 => {
            let nonsense = "{\"type\":\"ADDED\",\"obj\n".to_owned();
            Reply::Watch(vec![event("ADDED", A, 3), end(), event("BOOKMARK", A, 9), nonsense], After::Goes)
        }
        path if is_watch(path) && path.contains("sendInitialEvents") => Reply::Refused(422),
        path => calm(path),
    });
    let (_watch, views) = start(&fake);
    let view = until(&views, "Services are read again", |view| names(view) == ["b"] && whole(view)).await;
    assert_eq!(errors(&view, Resource::Services, "malformed"), 1);
}

#[tokio::test]
async fn an_endless_state_is_cut() {
    let fake = streaming(|before| match before {
        0 => Reply::Endless("", event("ADDED", A, 3)),
        _ => Reply::Watch(vec![end()], After::Goes),
    });
    let (_watch, views) = start_within(&fake, PATIENT, timing());
    let view = until(&views, "the state ends", |view| errors(view, Resource::Services, "too-much") == 1).await;
    assert_eq!(names(&view), [""; 0]);
}
