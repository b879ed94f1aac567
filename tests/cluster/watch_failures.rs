//! The server fails, restarts, refuses requests, or drops an old resource version. The watcher keeps the known state,
//! and reads all changes later.

use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use portreeve_cluster::{Resource, Watch, WatchTiming};
use portreeve_facts::{Source, Why};
use tokio::time::{Instant, sleep};

use crate::{
    api::{list, page, small},
    fake::{After, Fake, Reply},
    said,
    watch::{
        A, B, PATIENT, View, about, calm, errors, event, from, is_list, is_watch, is_watch_of_services, names, start,
        start_within, timing, until, whole,
    },
};

/// While a server fails, the view keeps the known objects, and their age grows. When the server answers again, all
/// changes are read.
async fn is_kept_through(code: &str, request_timeout: Duration, trouble: fn() -> Reply) {
    let phase = Arc::new(AtomicUsize::new(0));
    let shared = Arc::clone(&phase);
    let fake = Fake::new(move |path, _| match (shared.load(Ordering::SeqCst), path) {
        (1, _) => trouble(),
        (2, path) if from(path, 1) => Reply::Watch(vec![event("ADDED", B, 2)], After::Ends),
        (2, path) if path.starts_with("/api/v1/services?limit") => list("Service", &[A, B]),
        (_, path) if is_watch(path) => Reply::Watch(vec![], After::Ends),
        (_, path) => small(path),
    });
    let (_watch, views) = start_within(&fake, request_timeout, timing());
    let before = until(&views, "everything is read", whole).await;
    phase.store(1, Ordering::SeqCst);
    let during = until(&views, "failures of all resources", |view| {
        Resource::ALL.iter().filter(|resource| errors(view, **resource, code) >= 2).count() >= 4
            && view.statuses[&Resource::Services].failure.is_some()
    })
    .await;
    assert_eq!(during.facts.services, before.facts.services);
    assert_eq!(*during.facts, *before.facts, "the whole view is kept");
    let now = Instant::now();
    let later = until(&views, "one more failure", |view| {
        errors(view, Resource::Services, code) > errors(&during, Resource::Services, code)
    })
    .await;
    let [then, later] = [&during, &later].map(|view| view.statuses[&Resource::Services].confirmed);
    assert!(then.is_some() && then == later && then < Some(now), "the age of the view grows");
    phase.store(2, Ordering::SeqCst);
    let after = until(&views, "the view recovers", |view| names(view) == ["a", "b"] && whole(view)).await;
    assert!(after.statuses[&Resource::Services].confirmed > then);
}

#[tokio::test]
async fn a_server_that_refuses_the_token() {
    is_kept_through("401", PATIENT, || Reply::Status(401, "Unauthorized")).await;
}

/// Fault (API server): the server answers 403 to every request
/// Does: the age of the facts grows
/// Right again: when the server allows requests again
/// Lost: nothing
#[tokio::test]
async fn a_server_that_forbids() {
    is_kept_through("403", PATIENT, || Reply::Status(403, "forbidden")).await;
}

/// Fault (API server): the server answers 404 to every request
/// Does: the age of the facts grows
/// Right again: when the server answers
/// Lost: nothing
#[tokio::test]
async fn a_server_that_has_lost_its_resources() {
    is_kept_through("404", PATIENT, || Reply::Status(404, "not found")).await;
}

/// Fault (API server): the server answers 429 to every request
/// Does: the age of the facts grows
/// Right again: when the server answers
/// Lost: nothing
#[tokio::test]
async fn a_server_that_is_busy() {
    is_kept_through("429", PATIENT, || Reply::Busy(0)).await;
}

/// Fault (API server): the server answers 500 or 503 to every request
/// Does: the age of the facts grows
/// Right again: when the server answers
/// Lost: nothing
#[tokio::test]
async fn a_storm_of_internal_errors() {
    is_kept_through("500", PATIENT, || Reply::Status(500, "etcd is gone")).await;
    is_kept_through("503", PATIENT, || Reply::Status(503, "not ready")).await;
}

/// Fault (API server): a proxy in front of the server answers with a web page
/// Does: counts the error `malformed`
/// Right again: when the server answers
/// Lost: nothing
#[tokio::test]
async fn a_proxy_that_answers_with_a_page() {
    is_kept_through("malformed", PATIENT, || Reply::Html("<html>Log in</html>")).await;
}

/// Fault (API server): the server closes every connection
/// Does: counts the error `unreachable`
/// Right again: when the server answers
/// Lost: nothing
#[tokio::test]
async fn a_server_that_hangs_up() {
    is_kept_through("unreachable", PATIENT, || Reply::Hangup).await;
}

#[tokio::test]
async fn a_server_that_never_answers() {
    is_kept_through("timed-out", Duration::from_millis(400), || Reply::Silence).await;
}

/// Fault (API server): a watch sends nothing more, and its connection stays open
/// Does: ends the watch after an idle time, and requests the watch again
/// Right again: with the next watch
/// Lost: nothing
#[tokio::test]
async fn a_silent_watch_is_requested_again() {
    let fake = Fake::new(|path, before| if before == 0 || !is_watch(path) { calm(path) } else { Reply::Silence });
    let short = WatchTiming { idle_timeout: Duration::from_millis(50), ..timing() };
    let (_watch, views) = start_within(&fake, Duration::from_secs(3), short);
    let view = until(&views, "the silence is noticed", |view| errors(view, Resource::Services, "timed-out") > 0).await;
    assert_eq!(names(&view), ["a"]);
}

/// Fault (API server): a large Service changes all the time, faster than an agent may read
/// Does: reads the state again after a number of bytes; the age of the facts counts from the last complete state
/// Right again: with each state that is read
/// Lost: changes that were replaced before they were read
#[tokio::test]
async fn a_watch_with_more_changes_than_are_read_is_old_until_the_state_is_read_anew() {
    let fake = Fake::new(|path, before| match path {
        path if from(path, 1) && before == 0 => Reply::Endless("", format!("{}\n", event("MODIFIED", A, 2))),
        path if is_list(path) && path.contains("NotOlderThan") => list("Service", &[A, B]),
        path => calm(path),
    });
    let (_watch, views) = start(&fake);
    let mut oldest = Duration::ZERO;
    until(&views, "the state is read anew", |view| {
        let confirmed = view.statuses[&Resource::Services].confirmed;
        oldest = oldest.max(confirmed.map_or(Duration::ZERO, |at| at.elapsed()));
        names(view) == ["a", "b"]
    })
    .await;
    assert!(oldest >= timing().behind, "unread lines make the view old: {oldest:?}");
}

#[tokio::test]
async fn a_refusal_after_many_changes_is_read_before_the_state_is_confirmed() {
    let refused_at = Arc::new(Mutex::new(None));
    let shared = Arc::clone(&refused_at);
    let fake = Fake::new(move |path, before| match path {
        path if from(path, 1) => {
            Reply::Slow((0..45).map(|_| format!("{}\n", event("MODIFIED", A, 2))).collect(), Duration::from_millis(50))
        }
        path if from(path, 2) => {
            *shared.lock().expect("a lock") = Some(Instant::now());
            Reply::Watch(vec![format!("{}\n", said::gone())], After::Goes)
        }
        path if is_list(path) && before > 0 => Reply::Silence,
        path => calm(path),
    });
    let (_watch, views) = start(&fake);
    let view = until(&views, "the watch is refused", |view| errors(view, Resource::Services, "410") == 1).await;
    let confirmed = view.statuses[&Resource::Services].confirmed;
    assert!(confirmed < *refused_at.lock().expect("a lock"), "no state was confirmed after the refusal");
}

#[tokio::test]
async fn an_expired_version_leads_to_a_list_of_the_present_state() {
    let ways: [fn() -> Reply; 2] =
        [|| Reply::Watch(vec![format!("{}\n", said::gone())], After::Ends), || Reply::Refused(410)];
    for expired in ways {
        let fake = Fake::new(move |path, before| match path {
            path if from(path, 1) && before == 0 => expired(),
            path if is_list(path) && !path.contains("resourceVersion") => list("Service", &[A, B]),
            path => calm(path),
        });
        let (_watch, views) = start(&fake);
        let view = until(&views, "Services are read again", |view| names(view) == ["a", "b"]).await;
        assert_eq!(errors(&view, Resource::Services, "410"), 1);
    }
}

/// Fault (API server): a list expires between two pages
/// Does: discards the first pages, and reads the current state
/// Right again: with the second list
/// Lost: nothing
#[tokio::test]
async fn a_list_that_expires_between_pages_is_read_again_in_its_present_state() {
    let fake = Fake::new(|path, _| match path {
        path if !is_list(path) => calm(path),
        path if path.contains("continue=") => Reply::Refused(410),
        path if path.contains("resourceVersion=0") => page("Service", &[A], "t"),
        _ => list("Service", &[B]),
    });
    let (_watch, views) = start(&fake);
    until(&views, "only the objects of the second attempt", |view| names(view) == ["b"]).await;
}

/// Fault (API server): a watch sends a line that is not JSON
/// Does: counts `malformed`, keeps the earlier lines, lists the objects again
/// Right again: with the new list
/// Lost: nothing
#[tokio::test]
async fn a_malformed_line_leads_to_a_new_list() {
    let fake = Fake::new(|path, before| match path {
        path if from(path, 1) && before == 0 => {
            Reply::Watch(vec![event("ADDED", B, 2), "{\"type\":\"ADDED\",\"obj\n".to_owned()], After::Goes)
        }
        // The request demands an answer that is not older than the known version.
        path if is_list(path) && path.contains("resourceVersion=2&resourceVersionMatch=NotOlderThan") => {
            list("Service", &[A, B])
        }
        path => calm(path),
    });
    let (_watch, views) = start(&fake);
    let read_again = |view: &View| errors(view, Resource::Services, "malformed") == 1 && whole(view);
    let view = until(&views, "Services are read again", read_again).await;
    assert_eq!(names(&view), ["a", "b"]);
}

/// Fault (API server): a watch sends an event without an end
/// Does: refuses the event at 10 MiB, counts `too-much`
/// Right again: with the list that it reads two minutes later
/// Lost: nothing
#[tokio::test]
async fn an_event_without_end_is_refused_and_takes_nothing_away() {
    const BEGINNING: &str = r#"{"type":"ADDED","object":{"metadata":{"name":"x","annotations":{"a":""#;
    let fake = Fake::new(|path, before| match path {
        path if from(path, 1) && before == 0 => Reply::Watch(vec![event("ADDED", B, 2)], After::Ends),
        path if from(path, 2) => Reply::Endless(BEGINNING, "x".to_owned()),
        path => calm(path),
    });
    let (_watch, views) = start(&fake);
    let view = until(&views, "it is refused", |view| errors(view, Resource::Services, "too-much") == 1).await;
    assert_eq!(names(&view), ["a", "b"]);
    let failure = view.statuses[&Resource::Services].failure.as_ref().expect("a failure");
    assert_eq!(failure.why, Why::TooMuch);
    assert!(failure.detail.ends_with("/api/v1/services: one event is longer than 10 MiB"), "{}", failure.detail);
}

/// Fault (API server): the server is busy (429 with Retry-After)
/// Does: waits for the time in Retry-After
/// Right again: with the first answer after this time
/// Lost: nothing
#[tokio::test]
async fn a_server_that_names_a_time_gets_no_request_until_then() {
    let fake = Fake::new(|path, _| if from(path, 1) { Reply::Busy(3600) } else { calm(path) });
    let (_watch, views) = start(&fake);
    until(&views, "the server is busy", |view| errors(view, Resource::Services, "429") == 1).await;
    // Ten times the usual wait of a watcher.
    sleep(Duration::from_millis(400)).await;
    assert_eq!(fake.requests().iter().filter(|path| from(path, 1)).count(), 1);
}

#[tokio::test]
async fn another_selection_does_not_shorten_the_wait_that_a_server_named() {
    let fake = Fake::new(|path, _| if path.contains("/endpointslices") { Reply::Busy(3600) } else { calm(path) });
    let (asks, endpoints_of) = about(&["b"]);
    let (_watch, views) =
        Watch::start(fake.access("t", PATIENT), &Resource::ALL, None, "n1".to_owned(), endpoints_of, timing());
    until(&views, "the server is busy", |view| errors(view, Resource::EndpointSlices, "429") == 1).await;
    for name in ["c", "d", "e"] {
        asks.send_replace(about(&[name]).1.borrow().clone());
        sleep(Duration::from_millis(100)).await;
    }
    let lists = |path: &&String| path.contains("/endpointslices") && !is_watch(path);
    assert_eq!(fake.requests().iter().filter(lists).count(), 1);
}

/// Fault (API server): the server has lost its latest versions (504)
/// Does: reads the current state
/// Right again: with the current state
/// Lost: nothing
#[tokio::test]
async fn a_server_that_lost_its_latest_versions_is_read_in_its_present_state() {
    let fake = Fake::new(|path, before| match path {
        path if from(path, 1) && before == 0 => {
            Reply::Watch(vec![event("ADDED", B, 2), "{\"type\":\"ADDED\",\"obj\n".to_owned()], After::Ends)
        }
        path if is_list(path) && path.contains("NotOlderThan") => Reply::Refused(504),
        path if is_list(path) && path.contains("?limit=500") => list("Service", &[A]),
        path => calm(path),
    });
    let (_watch, views) = start(&fake);
    until(&views, "the version is gone", |view| errors(view, Resource::Services, "504") == 1).await;
    until(&views, "the remaining Services", |view| names(view) == ["a"] && whole(view)).await;
}

/// The server answers with failures of this code. The requests that `is_counted` selects become fewer and fewer.
async fn gets_fewer_and_fewer_requests(
    code: &str,
    is_counted: fn(&str) -> bool,
    answer: impl Fn(&str, usize) -> Reply + Send + Sync + 'static,
) {
    let fake = Fake::new(answer);
    let slow = WatchTiming { max_backoff: Duration::from_secs(600), ..timing() };
    let (_watch, views) = start_within(&fake, PATIENT, slow);
    until(&views, "failures", |view| errors(view, Resource::Services, code) >= 5).await;
    // Each further wait is at least 160 ms, and twice as long as the wait before.
    let requests = || fake.requests().iter().filter(|path| is_counted(path)).count();
    let (begun, before) = (Instant::now(), requests());
    sleep(Duration::from_millis(600)).await;
    let after = requests();
    assert!((after - before) as u64 <= most_in(begun.elapsed(), 160), "{code}: {before} and then {after}");
}

/// The code of the report, and the answer of the server.
type Failure = (&'static str, fn() -> Reply);

#[tokio::test]
async fn a_server_that_fails_every_list_gets_fewer_and_fewer_requests() {
    let failures: [Failure; 3] = [
        ("403", || Reply::Status(403, "forbidden")),
        ("500", || Reply::Status(500, "etcd is gone")),
        ("malformed", || Reply::Html("<html>Log in</html>")),
    ];
    for (code, fails) in failures {
        let answer = move |path: &str, _| if is_list(path) { fails() } else { calm(path) };
        gets_fewer_and_fewer_requests(code, is_list, answer).await;
    }
}

#[tokio::test]
async fn a_server_that_breaks_every_watch_gets_fewer_and_fewer_requests() {
    // The connection breaks before the first line, or inside a line.
    let failures: [Failure; 2] = [
        ("unreachable", || Reply::Torn("")),
        ("malformed", || Reply::Watch(vec!["{\"type\":\"ADDED\",\"obj".to_owned()], After::Ends)),
    ];
    for (code, fails) in failures {
        let answer = move |path: &str, _| if is_watch_of_services(path) { fails() } else { calm(path) };
        gets_fewer_and_fewer_requests(code, is_watch_of_services, answer).await;
    }
}

#[tokio::test]
async fn a_server_that_answers_a_little_before_it_fails_gets_fewer_and_fewer_requests() {
    const GONE: &str = "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"message\":\"no\",\"code\":500}}\n";
    gets_fewer_and_fewer_requests("500", is_watch_of_services, |path, _| match path {
        path if is_watch_of_services(path) => Reply::Watch(vec![event("BOOKMARK", A, 2), GONE.to_owned()], After::Ends),
        path => calm(path),
    })
    .await;
}

/// Fault (API server): the server, or a proxy in front, ends every watch at once, without an error
/// Does: requests the watch again after waits that grow
/// Right again: with the first watch that lasts or has a change
/// Lost: nothing
#[tokio::test]
async fn a_server_that_ends_every_watch_at_once_gets_fewer_and_fewer_requests() {
    let fake = Fake::new(|path, _| match path {
        path if is_watch_of_services(path) => Reply::Watch(vec![], After::Ends),
        path => calm(path),
    });
    // If a watch lives for ten times the first wait, the waits begin again with the first wait. An empty watch ends
    // much earlier, even on a busy machine.
    let first_backoff = Duration::from_millis(100);
    let slow = WatchTiming { first_backoff, max_backoff: Duration::from_secs(600), ..timing() };
    let (_watch, views) = start_within(&fake, PATIENT, slow);
    let watches = || fake.requests().iter().filter(|path| is_watch_of_services(path)).count();
    until(&views, "watches", |_| watches() >= 4).await;
    // Each further wait is at least 400 ms, and twice as long as the wait before.
    let (before, begun) = (watches(), Instant::now());
    sleep(Duration::from_millis(600)).await;
    let after = watches();
    assert!((after - before) as u64 <= most_in(begun.elapsed(), 400), "{before} and then {after}");
}

/// The largest number of waits that can end within `time`. The first wait has `first` milliseconds, and each wait is
/// twice as long as the wait before. `time` is measured, because a busy machine sleeps longer.
fn most_in(time: Duration, first: u128) -> u64 {
    u64::from((time.as_millis() / first + 1).ilog2()) + 1
}

#[tokio::test]
async fn a_rotated_token_is_used() {
    let token = Arc::new(Mutex::new("t".to_owned()));
    let ends = |path: &str, _| if is_watch(path) { Reply::Watch(vec![], After::Ends) } else { small(path) };
    let fake = Fake::guarded("127.0.0.1:0", Arc::clone(&token), ends);
    let (_watch, views) = start(&fake);
    until(&views, "everything is read", whole).await;
    "new".clone_into(&mut token.lock().expect("the token"));
    let view = until(&views, "the old token is refused", |view| errors(view, Resource::Services, "401") > 0).await;
    assert_eq!(names(&view), ["a"]);
    fake.access("new", PATIENT);
    until(&views, "the new token is used", whole).await;
}

#[tokio::test]
async fn a_client_reads_its_credentials_again_when_they_are_refused() {
    let token = Arc::new(Mutex::new("t".to_owned()));
    let fake = Fake::guarded("127.0.0.1:0", Arc::clone(&token), |path, _| small(path));
    let client = portreeve_cluster::client(fake.access("t", PATIENT));
    let ask = async || {
        let question = http::Request::get("/api/v1/nodes").body(Vec::new()).expect("a path");
        client.request_text(question).await.is_ok()
    };
    assert!(ask().await);
    "new".clone_into(&mut token.lock().expect("the token"));
    assert!(!ask().await, "the old token is refused");
    fake.access("new", PATIENT);
    assert!(ask().await, "the new token is used");
}

#[tokio::test]
async fn a_client_reads_its_credentials_again_after_a_dropped_request() {
    let swallows = Fake::new(|path, _| if path == "/fine" { small("/api/v1/nodes") } else { Reply::Silence });
    let new = Fake::new(|path, _| small(path));
    let directory = tempfile::TempDir::new().expect("a directory");
    let access = |fake: &Fake| crate::fake::access(fake.address(), &directory, "t", PATIENT);
    let client = portreeve_cluster::client(access(&swallows));
    let question = |path: &str| http::Request::get(path).body(Vec::new()).expect("a path");
    assert!(client.request_text(question("/fine")).await.is_ok());
    let other = tokio::spawn({
        let (client, question) = (client.clone(), question("/other"));
        async move { client.request_text(question).await.is_ok() }
    });
    let asked = |path: &str| swallows.requests().iter().any(|request| request == path);
    let given_up = async || {
        while !(asked("/api/v1/nodes") && asked("/other")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        _ = client.request_text(question("/api/v1/nodes")) => panic!("the request gets no answer"),
        () = given_up() => {}
    }
    access(&new);
    assert!(client.request_text(question("/api/v1/nodes")).await.is_ok(), "the new server is used");

    // A request of the old client fails. The failure must not change the new client.
    fs::remove_file(directory.path().join("kubeconfig")).expect("the file exists");
    other.abort();
    assert!(other.await.is_err_and(|ended| ended.is_cancelled()));
    assert!(client.request_text(question("/api/v1/nodes")).await.is_ok(), "credentials are not read again");
}

/// Fault (API server): the server does not run when the agent starts
/// Does: starts, and reports each kind of object as unread
/// Right again: when the server answers
/// Lost: nothing
#[tokio::test]
async fn a_server_that_starts_later_is_found() {
    let before = Fake::new(|_, _| Reply::Hangup);
    let directory = tempfile::TempDir::new().expect("a directory");
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").to_string();
    drop(before);
    let access = crate::fake::access(&format!("http://{free}"), &directory, "t", PATIENT);
    let (_watch, views) = Watch::start(access, &Resource::ALL, None, "n1".to_owned(), about(&["b"]).1, timing());
    let view = until(&views, "no server is there", |view| errors(view, Resource::Services, "unreachable") > 0).await;
    assert_eq!(view.facts.services.gap().map(|gap| gap.why), Some(Why::Unreachable));
    assert_eq!(view.facts.node_port_range.gap().map(|gap| gap.source), Some(Source::NodePortRange), "not assumed");
    let _late = Fake::at(&free, |path, _| calm(path));
    until(&views, "the server is found", whole).await;
}

#[tokio::test]
async fn an_old_server_that_refuses_the_field_selector_is_watched_without_it() {
    let fake = Fake::new(|path, _| {
        if path.contains("fieldSelector=spec.type") { Reply::Status(400, "not supported") } else { calm(path) }
    });
    let (_watch, views) = start(&fake);
    let view = until(&views, "everything is read", whole).await;
    assert_eq!(names(&view), ["a"]);
    let plain = |path: &String| from(path, 1) && !path.contains("Selector");
    until(&views, "the watch has no selector either", |_| fake.requests().iter().any(plain)).await;
}
