//! A view that is kept up to date, through whatever the server does.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use portreeve::{
    cluster::{ACCESS, EndpointsOf, Pace, Resource, Standing, View, Watch},
    facts::{ClusterFacts, RangeSource, Source, Why},
};
use tokio::{
    sync::watch::{Receiver, Sender, channel},
    time::{Instant, sleep, timeout},
};

use crate::{
    api::{list, page, row_of, small},
    fake::{After, Fake, Reply},
};

/// No test waits for longer.
const LIMIT: Duration = Duration::from_secs(60);
const PATIENT: Duration = Duration::from_secs(20);
const A: &str = r#"{"metadata":{"name":"a","namespace":"d"},"spec":{"ports":[{"port":80}]}}"#;
const B: &str = r#"{"metadata":{"name":"b","namespace":"d"},"spec":{"ports":[{"port":80}]}}"#;

pub(crate) fn pace() -> Pace {
    Pace {
        watch: Duration::from_secs(1),
        idle: PATIENT,
        settings: Duration::from_millis(50),
        first_wait: Duration::from_millis(20),
        last_wait: Duration::from_millis(40),
        gather: Duration::from_millis(10),
    }
}

/// Somebody who asks about the endpoints of these Services.
pub(crate) fn about(services: &[&str]) -> (Sender<Arc<BTreeSet<String>>>, EndpointsOf) {
    channel(Arc::new(services.iter().map(|name| (*name).to_owned()).collect()))
}

fn start(fake: &Fake) -> (Watch, Receiver<Arc<View>>) {
    start_within(fake, PATIENT, pace())
}

fn start_within(fake: &Fake, request_timeout: Duration, pace: Pace) -> (Watch, Receiver<Arc<View>>) {
    Watch::paced(fake.access("t", request_timeout), None, "n1".to_owned(), about(&["b", "kubernetes"]).1, pace)
}

/// The first view of which `holds` is true. Standings change without a word, so it looks again and again.
pub(crate) async fn until(views: &Receiver<Arc<View>>, what: &str, mut holds: impl FnMut(&View) -> bool) -> Arc<View> {
    let look = async {
        loop {
            let view = Arc::clone(&views.borrow());
            if holds(&view) {
                return view;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, look).await.unwrap_or_else(|_| panic!("never: {what}: {:#?}", views.borrow()))
}

fn names(view: &View) -> Vec<&str> {
    view.facts.services.seen().into_iter().flatten().map(|service| service.name.as_str()).collect()
}

fn errors(view: &View, resource: Resource, code: &str) -> u64 {
    view.standings[&resource].errors.get(code).copied().unwrap_or_default()
}

fn whole(view: &View) -> bool {
    view.standings.values().all(|standing| standing.confirmed.is_some() && standing.trouble.is_none())
}

fn is_watch(path: &str) -> bool {
    path.contains("watch=1")
}

fn event(word: &str, object: &str, version: u32) -> String {
    let object = object.replacen(r#""name""#, &format!(r#""resourceVersion":"{version}","name""#), 1);
    format!("{{\"type\":\"{word}\",\"object\":{object}}}\n")
}

/// Whether a watch of Services begins at a version.
fn from(path: &str, version: u32) -> bool {
    let begins = format!("resourceVersion={version}");
    path.starts_with("/api/v1/services?") && is_watch(path) && path.split('&').any(|part| part == begins)
}

/// The small cluster, in which nothing happens.
pub(crate) fn calm(path: &str) -> Reply {
    if is_watch(path) { Reply::Watch(vec![], After::Goes) } else { small(path) }
}

#[tokio::test]
async fn a_watch_begins_with_what_a_list_says_in_pages_of_fifty() {
    let fake = Fake::new(|path, _| match path {
        path if is_watch(path) => calm(path),
        path if path.starts_with("/api/v1/services") && path.contains("continue=t2") => list("Service", &[B]),
        path if path.starts_with("/api/v1/services") => page("Service", &[A], "t2"),
        path => small(path),
    });
    let (_watch, views) = start(&fake);
    let view = until(&views, "everything is read", whole).await;
    assert_eq!(names(&view), ["a", "b"]);
    let same = fake.access("t", PATIENT);
    let read = portreeve::cluster::read(&portreeve::cluster::ClusterSource::Api(same), None, "n1").await;
    assert_eq!(ClusterFacts { endpoints_of: None, ..(*view.facts).clone() }, read);
    let asked = fake.asked();
    let first = asked.iter().find(|path| path.starts_with("/api/v1/services?")).expect("a list");
    assert!(first.contains("limit=50&fieldSelector=spec.type%21%3D") && first.ends_with("&resourceVersion=0"));
    assert!(asked.iter().any(|path| path.starts_with("/api/v1/pods?limit=50&fieldSelector=spec.nodeName%3Dn1")));
    let used: BTreeSet<_> = asked.iter().map(|path| row_of(path)).collect();
    assert_eq!(used.len(), ACCESS.len());
    for grant in ACCESS {
        let path = format!("/{}?", grant.resource);
        let watched = asked.iter().any(|asked| asked.contains(&path) && is_watch(asked));
        assert_eq!(grant.verbs.contains(&"watch"), watched, "{}", grant.resource);
    }
}

#[tokio::test]
async fn changes_come_in_and_the_next_watch_begins_where_one_ended() {
    let fake = Fake::new(|path, _| {
        if from(path, 1) {
            let lines =
                [event("ADDED", B, 2), event("MODIFIED", A, 3), event("DELETED", A, 4), event("BOOKMARK", A, 9)];
            Reply::Watch(lines.into(), After::Ends)
        } else {
            calm(path)
        }
    });
    let (_watch, mut views) = start(&fake);
    until(&views, "only b is left", |view| names(view) == ["b"]).await;
    until(&views, "the watch goes on", |_| fake.asked().iter().any(|path| from(path, 9))).await;
    assert_eq!(fake.asked().iter().filter(|path| path.starts_with("/api/v1/services?limit")).count(), 1, "one LIST");
    let seconds = fake.asked().iter().filter_map(|path| Some(path.split_once("timeoutSeconds=")?.1.to_owned())).next();
    assert!(seconds.is_some_and(|rest| rest.starts_with(['1', '2'])));
    assert!(views.has_changed().expect("the watch runs"));
    views.mark_unchanged();
}

#[tokio::test]
async fn endpoints_asked_about_from_the_start_are_not_known_before_they_were_read() {
    let fake = Fake::new(|path, _| if path.contains("/endpointslices") { Reply::Silence } else { calm(path) });
    let (_watch, views) = start(&fake);
    let is_read = |(resource, standing): (&Resource, &Standing)| {
        *resource == Resource::EndpointSlices || standing.confirmed.is_some()
    };
    let view = until(&views, "the rest is read", |view| view.standings.iter().all(is_read)).await;
    assert_eq!(view.standings[&Resource::EndpointSlices].confirmed, None);
}

/// While a server misbehaves, what is known is kept and grows old; when it behaves again, everything is caught up.
async fn is_kept_through(code: &str, request_timeout: Duration, trouble: fn() -> Reply) {
    let phase = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&phase);
    let fake = Fake::new(move |path, _| match (told.load(Ordering::SeqCst), path) {
        (1, _) => trouble(),
        (2, path) if from(path, 1) => Reply::Watch(vec![event("ADDED", B, 2)], After::Ends),
        (2, path) if path.starts_with("/api/v1/services?limit") => list("Service", &[A, B]),
        (_, path) if is_watch(path) => Reply::Watch(vec![], After::Ends),
        (_, path) => small(path),
    });
    let (_watch, views) = start_within(&fake, request_timeout, pace());
    let before = until(&views, "everything is read", whole).await;
    phase.store(1, Ordering::SeqCst);
    let during = until(&views, "trouble everywhere", |view| {
        Resource::ALL.iter().filter(|resource| errors(view, **resource, code) >= 2).count() >= 4
            && view.standings[&Resource::Services].trouble.is_some()
    })
    .await;
    assert_eq!(during.facts.services, before.facts.services);
    assert_eq!(*during.facts, *before.facts, "the whole view is kept");
    let now = Instant::now();
    let later = until(&views, "one more failure", |view| {
        errors(view, Resource::Services, code) > errors(&during, Resource::Services, code)
    })
    .await;
    let [then, later] = [&during, &later].map(|view| view.standings[&Resource::Services].confirmed);
    assert!(then.is_some() && then == later && then < Some(now), "its age grows");
    phase.store(2, Ordering::SeqCst);
    let after = until(&views, "it recovers by itself", |view| names(view) == ["a", "b"] && whole(view)).await;
    assert!(after.standings[&Resource::Services].confirmed > then);
}

#[tokio::test]
async fn a_server_that_does_not_know_us_any_more() {
    is_kept_through("401", PATIENT, || Reply::Status(401, "Unauthorized")).await;
}

#[tokio::test]
async fn a_server_that_forbids() {
    is_kept_through("403", PATIENT, || Reply::Status(403, "forbidden")).await;
}

#[tokio::test]
async fn a_server_that_has_lost_its_resources() {
    is_kept_through("404", PATIENT, || Reply::Status(404, "not found")).await;
}

#[tokio::test]
async fn a_server_that_is_busy() {
    is_kept_through("429", PATIENT, || Reply::Busy(0)).await;
}

#[tokio::test]
async fn a_storm_of_internal_errors() {
    is_kept_through("500", PATIENT, || Reply::Status(500, "etcd is gone")).await;
    is_kept_through("503", PATIENT, || Reply::Status(503, "not ready")).await;
}

#[tokio::test]
async fn a_proxy_that_answers_with_a_page() {
    is_kept_through("malformed", PATIENT, || Reply::Html("<html>Log in</html>")).await;
}

#[tokio::test]
async fn a_server_that_hangs_up() {
    is_kept_through("unreachable", PATIENT, || Reply::Hangup).await;
}

#[tokio::test]
async fn a_black_hole() {
    is_kept_through("timed-out", Duration::from_millis(400), || Reply::Silence).await;
}

#[tokio::test]
async fn a_watch_that_falls_silent_is_asked_for_again() {
    let fake = Fake::new(|path, before| if before == 0 || !is_watch(path) { calm(path) } else { Reply::Silence });
    let short = Pace { idle: Duration::from_millis(50), ..pace() };
    let (_watch, views) = start_within(&fake, Duration::from_secs(3), short);
    let view = until(&views, "the silence is noticed", |view| errors(view, Resource::Services, "timed-out") > 0).await;
    assert_eq!(names(&view), ["a"]);
}

#[tokio::test]
async fn a_version_that_expired_leads_to_a_list_as_of_now() {
    const GONE: &str = "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"message\":\"too old\",\"code\":410}}\n";
    let ways: [fn() -> Reply; 2] =
        [|| Reply::Watch(vec![GONE.to_owned()], After::Ends), || Reply::Status(410, "too old")];
    for expired in ways {
        let fake = Fake::new(move |path, before| match path {
            path if from(path, 1) && before == 0 => expired(),
            path if path.starts_with("/api/v1/services?limit") && !path.contains("resourceVersion") => {
                list("Service", &[A, B])
            }
            path => calm(path),
        });
        let (_watch, views) = start(&fake);
        let view = until(&views, "it is read again", |view| names(view) == ["a", "b"]).await;
        assert_eq!(errors(&view, Resource::Services, "410"), 1);
    }
}

#[tokio::test]
async fn a_list_that_expires_between_pages_is_read_again_as_of_now() {
    let fake = Fake::new(|path, _| match path {
        path if !path.starts_with("/api/v1/services?limit") => calm(path),
        path if path.contains("continue=") => Reply::Status(410, "expired"),
        path if path.contains("resourceVersion=0") => page("Service", &[A], "t"),
        _ => list("Service", &[B]),
    });
    let (_watch, views) = start(&fake);
    until(&views, "only what the second attempt said", |view| names(view) == ["b"]).await;
}

#[tokio::test]
async fn a_line_that_is_none_leads_to_a_new_list() {
    let fake = Fake::new(|path, before| match path {
        path if from(path, 1) && before == 0 => {
            Reply::Watch(vec![event("ADDED", B, 2), "{\"type\":\"ADDED\",\"obj\n".to_owned()], After::Goes)
        }
        path if path.starts_with("/api/v1/services?limit") && before > 0 => list("Service", &[A, B]),
        path => calm(path),
    });
    let (_watch, views) = start(&fake);
    let read_again = |view: &View| errors(view, Resource::Services, "malformed") == 1 && whole(view);
    let view = until(&views, "it is read again", read_again).await;
    assert_eq!(names(&view), ["a", "b"]);
}

#[tokio::test]
async fn a_server_that_names_a_time_is_left_alone_until_then() {
    let fake = Fake::new(|path, _| if from(path, 1) { Reply::Busy(3600) } else { calm(path) });
    let (_watch, views) = start(&fake);
    until(&views, "it is busy", |view| errors(view, Resource::Services, "429") == 1).await;
    // Ten times as long as the watcher would wait otherwise.
    sleep(Duration::from_millis(400)).await;
    assert_eq!(fake.asked().iter().filter(|path| from(path, 1)).count(), 1);
}

#[tokio::test]
async fn a_rotated_token_is_taken_up() {
    let token = Arc::new(Mutex::new("t".to_owned()));
    let ends = |path: &str, _| if is_watch(path) { Reply::Watch(vec![], After::Ends) } else { small(path) };
    let fake = Fake::guarded("127.0.0.1:0", Arc::clone(&token), ends);
    let (_watch, views) = start(&fake);
    until(&views, "everything is read", whole).await;
    "new".clone_into(&mut token.lock().expect("the token"));
    let view = until(&views, "the old one is refused", |view| errors(view, Resource::Services, "401") > 0).await;
    assert_eq!(names(&view), ["a"]);
    fake.access("new", PATIENT);
    until(&views, "the new one is taken up", whole).await;
}

#[tokio::test]
async fn a_client_reads_its_credentials_again_when_they_are_refused() {
    let token = Arc::new(Mutex::new("t".to_owned()));
    let fake = Fake::guarded("127.0.0.1:0", Arc::clone(&token), |path, _| small(path));
    let client = portreeve::cluster::client(fake.access("t", PATIENT));
    let ask = async || {
        let question = http::Request::get("/api/v1/nodes").body(Vec::new()).expect("a path");
        client.request_text(question).await.is_ok()
    };
    assert!(ask().await);
    "new".clone_into(&mut token.lock().expect("the token"));
    assert!(!ask().await, "the old one is refused");
    fake.access("new", PATIENT);
    assert!(ask().await, "the new one is taken up");
}

#[tokio::test]
async fn a_server_that_comes_up_later_is_found() {
    let before = Fake::new(|_, _| Reply::Hangup);
    let directory = tempfile::TempDir::new().expect("a directory");
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").to_string();
    drop(before);
    let access = crate::fake::access(&format!("http://{free}"), &directory, "t", PATIENT);
    let (_watch, views) = Watch::paced(access, None, "n1".to_owned(), about(&["b"]).1, pace());
    let view = until(&views, "nobody is there", |view| errors(view, Resource::Services, "unreachable") > 0).await;
    assert_eq!(view.facts.services.gap().map(|gap| gap.why), Some(Why::Unreachable));
    assert_eq!(view.facts.node_port_range.gap().map(|gap| gap.source), Some(Source::NodePortRange), "not assumed");
    let _late = Fake::at(&free, |path, _| calm(path));
    until(&views, "it is found", whole).await;
}

#[tokio::test]
async fn an_old_server_that_refuses_the_field_selector_is_watched_without() {
    let fake = Fake::new(|path, _| {
        if path.contains("fieldSelector=spec.type") { Reply::Status(400, "not supported") } else { calm(path) }
    });
    let (_watch, views) = start(&fake);
    let view = until(&views, "everything is read", whole).await;
    assert_eq!(names(&view), ["a"]);
    let plain = |path: &String| from(path, 1) && !path.contains("Selector");
    until(&views, "the watch needs none either", |_| fake.asked().iter().any(plain)).await;
}

#[tokio::test]
async fn endpoints_are_asked_for_and_watched_as_long_as_somebody_asks_about_them() {
    let fake = Fake::new(|path, _| calm(path));
    let (asks, endpoints_of) = about(&[]);
    let (_watch, views) = Watch::paced(fake.access("t", PATIENT), None, "n1".to_owned(), endpoints_of, pace());
    until(&views, "everything is read", whole).await;
    let slices = |asked: &[String]| -> Vec<String> {
        asked.iter().filter(|path| path.contains("endpointslices?")).cloned().collect()
    };
    assert_eq!(slices(&fake.asked()), [""; 0], "nobody asks");

    let wanted = |names: &[&str]| about(names).1.borrow().clone();
    for names in [&["b"][..], &["b", "kubernetes"], &["a", "b"]] {
        asks.send_replace(wanted(names));
        until(&views, "endpoints", |view| view.facts.tells_endpoints_of(&wanted(names))).await;
        let last = || slices(&fake.asked()).into_iter().rfind(|path| !is_watch(path)).expect("a list");
        let selector = format!("service-name%20in%20%28{}%29", names.join("%2C"));
        assert!(last().contains(&selector), "{} of {selector}", last());
    }
    asks.send_replace(wanted(&[]));
    until(&views, "the end of it", |view| view.facts.endpoints_of == Some(wanted(&[]))).await;
    let asked = slices(&fake.asked()).len();
    sleep(3 * pace().watch).await;
    assert_eq!(slices(&fake.asked()).len(), asked, "the watch is over");
}

#[tokio::test]
async fn settings_are_read_again_and_kept_where_they_cannot_be() {
    let phase = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&phase);
    let fake = Fake::new(move |path, _| match (path, told.load(Ordering::SeqCst)) {
        ("/flagz", 0) => Reply::Text("service-node-port-range=20000-20999"),
        ("/flagz", 1) => Reply::Status(500, "oops"),
        ("/flagz", _) => Reply::Text("service-node-port-range=21000-21999"),
        (path, _) => calm(path),
    });
    let (_watch, views) = start(&fake);
    let first = |view: &View| view.facts.node_port_range.seen().map_or(0, |range| range.range.first);
    let view = until(&views, "the range is read", |view| first(view) == 20000).await;
    assert_eq!(view.facts.node_port_range.seen().map(|range| range.source), Some(RangeSource::Flagz));
    phase.store(1, Ordering::SeqCst);
    let view = until(&views, "it fails", |view| errors(view, Resource::Settings, "500") > 1).await;
    assert_eq!(first(&view), 20000);
    phase.store(2, Ordering::SeqCst);
    until(&views, "the new range is read", |view| first(view) == 21000).await;
}

#[tokio::test]
async fn settings_that_are_gone_are_believed_to_be_so_after_a_while_only() {
    let phase = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&phase);
    let fake = Fake::new(move |path, _| match (path, told.load(Ordering::SeqCst)) {
        ("/flagz", 0) => Reply::Text("service-node-port-range=20000-20999"),
        ("/flagz", _) => Reply::Status(404, "not found"),
        (path, _) => calm(path),
    });
    let (_watch, views) = start(&fake);
    let source = |view: &View| view.facts.node_port_range.seen().map(|range| range.source);
    until(&views, "the range is read", |view| source(view) == Some(RangeSource::Flagz)).await;
    phase.store(1, Ordering::SeqCst);
    let mut told_missing = 0;
    until(&views, "the range is assumed", |view| {
        if source(view) == Some(RangeSource::Flagz) {
            told_missing = errors(view, Resource::Settings, "404");
        }
        source(view) == Some(RangeSource::Assumed)
    })
    .await;
    assert!(told_missing >= 2, "one answer is not believed: {told_missing}");
    until(&views, "that is all there is", whole).await;
}
