//! Watches that keep the view of the cluster up to date, through all faults of a server.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use portreeve_cluster::{ClusterView, EndpointsOf, Resource, ResourceStatus, Watch, WatchTiming};
use portreeve_facts::{ClusterFacts, Gap, RangeSource, Why};
use tokio::{
    sync::watch::{Sender, channel},
    time::{sleep, timeout},
};

use crate::{
    api::{list, page, row_of, rows_of_reading, small},
    cilium,
    fake::{After, Fake, Reply},
    permissions::{ACCESS, Grant},
};

/// The longest time that a test waits. If a test hangs, the test runner ends the test a little later.
const LIMIT: Duration = Duration::from_secs(280);
pub(crate) const PATIENT: Duration = Duration::from_secs(20);
pub(crate) const A: &str = r#"{"metadata":{"name":"a","namespace":"d"},"spec":{"ports":[{"port":80}]}}"#;
pub(crate) const B: &str = r#"{"metadata":{"name":"b","namespace":"d"},"spec":{"ports":[{"port":80}]}}"#;

pub(crate) fn timing() -> WatchTiming {
    WatchTiming {
        watch_duration: Duration::from_secs(1),
        idle_timeout: PATIENT,
        behind: Duration::from_millis(200),
        poll_interval: Duration::from_millis(50),
        first_backoff: Duration::from_millis(20),
        max_backoff: Duration::from_millis(40),
    }
}

#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) facts: Arc<ClusterFacts>,
    pub(crate) statuses: BTreeMap<Resource, ResourceStatus>,
}

impl View {
    pub(crate) fn of(view: &ClusterView) -> Self {
        // `facts` marks the changes as seen. The clone has its own mark, so `view` still reports the changes.
        Self { facts: view.clone().facts(), statuses: view.statuses() }
    }
}

pub(crate) fn about(services: &[&str]) -> (Sender<Arc<BTreeSet<String>>>, EndpointsOf) {
    channel(Arc::new(services.iter().map(|name| (*name).to_owned()).collect()))
}

pub(crate) fn start(fake: &Fake) -> (Watch, ClusterView) {
    start_within(fake, PATIENT, timing())
}

pub(crate) fn start_within(fake: &Fake, request_timeout: Duration, timing: WatchTiming) -> (Watch, ClusterView) {
    let (access, endpoints_of) = (fake.access("t", request_timeout), about(&["b", "kubernetes"]).1);
    Watch::start(access, &Resource::ALL, None, "n1".to_owned(), endpoints_of, timing)
}

/// This function polls, because statuses change without a notification.
pub(crate) async fn until(views: &ClusterView, what: &str, mut holds: impl FnMut(&View) -> bool) -> View {
    let look = async {
        loop {
            let view = View::of(views);
            if holds(&view) {
                return view;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, look).await.unwrap_or_else(|_| panic!("never: {what}: {:#?}", View::of(views)))
}

pub(crate) fn names(view: &View) -> Vec<&str> {
    view.facts.services.seen().into_iter().flatten().map(|service| service.name.as_str()).collect()
}

pub(crate) fn errors(view: &View, resource: Resource, code: &str) -> u64 {
    view.statuses[&resource].errors.get(code).copied().unwrap_or_default()
}

pub(crate) fn whole(view: &View) -> bool {
    view.statuses.values().all(|status| status.confirmed.is_some() && status.failure.is_none())
}

pub(crate) fn is_watch(path: &str) -> bool {
    path.contains("watch=1")
}

pub(crate) fn is_list(path: &str) -> bool {
    path.starts_with("/api/v1/services?") && !is_watch(path)
}

pub(crate) fn is_watch_of_services(path: &str) -> bool {
    path.starts_with("/api/v1/services?") && is_watch(path)
}

pub(crate) fn event(word: &str, object: &str, version: u32) -> String {
    let object = object.replacen(r#""name""#, &format!(r#""resourceVersion":"{version}","name""#), 1);
    format!("{{\"type\":\"{word}\",\"object\":{object}}}\n")
}

pub(crate) fn from(path: &str, version: u32) -> bool {
    let begins = format!("resourceVersion={version}");
    path.starts_with("/api/v1/services?") && is_watch(path) && path.split('&').any(|part| part == begins)
}

pub(crate) fn calm(path: &str) -> Reply {
    if is_watch(path) { Reply::Watch(vec![], After::Goes) } else { small(path) }
}

#[tokio::test]
async fn a_watch_begins_with_a_list_from_the_cache_or_in_pages() {
    let fake = Fake::new(|path, _| match path {
        path if is_watch(path) => calm(path),
        path if path.starts_with("/api/v1/services") && path.contains("continue=t2") => list("Service", &[B]),
        path if path.starts_with("/api/v1/services") => page("Service", &[A], "t2"),
        cilium::MAP => cilium::config_map(),
        path => small(path),
    });
    let (_watch, views) = start(&fake);
    let view = until(&views, "everything is read", whole).await;
    assert_eq!(names(&view), ["a", "b"]);
    let same = fake.access("t", PATIENT);
    let read = portreeve_cluster::read(&portreeve_cluster::ClusterSource::Api(same), None, "n1").await;
    assert_eq!(ClusterFacts { endpoints_of: None, ..(*view.facts).clone() }, read);
    let requests = fake.requests();
    let first = requests.iter().find(|path| is_list(path)).expect("a list");
    assert!(first.starts_with("/api/v1/services?resourceVersion=0&fieldSelector=spec.type%21%3D"), "{first}");
    let pods = "/api/v1/pods?resourceVersion=0&fieldSelector=spec.nodeName%3Dn1";
    assert!(requests.iter().any(|path| path.starts_with(pods)));
    let used: BTreeSet<_> = requests.iter().map(|path| row_of(path)).collect();
    assert_eq!(used.len(), rows_of_reading());
    for grant in ACCESS {
        let path = format!("/{}?", grant.resource);
        let watched = requests.iter().any(|request| request.contains(&path) && is_watch(request));
        assert_eq!(grant.verbs.contains(&"watch"), watched, "{}", grant.resource);
    }
}

#[tokio::test]
async fn a_guard_requests_what_its_role_permits_and_nothing_else() {
    let fake = Fake::new(|path, _| calm(path));
    let (access, endpoints_of) = (fake.access("t", PATIENT), about(&["b"]).1);
    let (_watch, views) = Watch::start(access, &Resource::OF_GUARD, None, "n1".to_owned(), endpoints_of, timing());
    let view = until(&views, "everything is read", whole).await;
    assert!(!views.is_awaited(), "nothing else is waited for");
    // Wait for several polls of Nodes. In this time, an agent would also have sent its other polls.
    until(&views, "more polls of Nodes", |_| {
        fake.requests().iter().filter(|path| path.starts_with("/api/v1/nodes")).count() > 3
    })
    .await;
    let used: BTreeSet<_> = fake.requests().iter().map(|path| row_of(path)).collect();
    let is_of_guard = |grant: &Grant| Resource::OF_GUARD.iter().any(|it| it.name() == grant.resource);
    let role = ACCESS.iter().enumerate().filter(|(_, grant)| is_of_guard(grant)).map(|(row, _)| row);
    assert_eq!(used, role.collect(), "{:?}", fake.requests());
    assert!(!fake.requests().iter().any(|path| path.contains("/namespaces/")), "{:?}", fake.requests());
    let why = |gap: Option<&Gap>| gap.map(|gap| gap.why);
    let facts = &view.facts;
    assert_eq!((names(&view).len(), facts.pods.gap(), facts.nodes.gap()), (1, None, None));
    assert_eq!(why(facts.proxy_config.gap()), Some(Why::NotPermitted), "settings are unknown, and not absent");
    assert_eq!(why(facts.node_port_range.gap()), Some(Why::NotPermitted), "no range is assumed");
    for unread in [facts.endpoint_slices.gap(), facts.waiting_pods.gap()] {
        assert_eq!(why(unread), Some(Why::NotRequested));
    }
}

#[tokio::test]
async fn changes_arrive_and_the_next_watch_begins_at_the_end_of_the_last() {
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
    until(&views, "the watch continues", |_| fake.requests().iter().any(|path| from(path, 9))).await;
    assert_eq!(fake.requests().iter().filter(|path| is_list(path)).count(), 1, "one LIST");
    let seconds =
        fake.requests().iter().filter_map(|path| Some(path.split_once("timeoutSeconds=")?.1.to_owned())).next();
    assert!(seconds.is_some_and(|rest| rest.starts_with(['1', '2'])));
    views.changed().await.expect("the watch runs");
}

#[tokio::test]
async fn endless_changes_are_read_in_batches_and_none_is_lost() {
    // The pause between two changes is long enough that each change wakes the process.
    let pause = Duration::from_millis(20);
    let edits: u32 = 300;
    let fake = Fake::new(move |path, _| {
        if from(path, 1) {
            let changed = |number: u32| A.replace("80", &(1000 + number).to_string());
            Reply::Slow((2..=edits).map(|number| event("MODIFIED", &changed(number), number)).collect(), pause)
        } else {
            calm(path)
        }
    });
    let (_watch, mut views) = start(&fake);
    let port = |view: &ClusterView| {
        View::of(view).facts.services.seen().and_then(|services| services.first()?.ports.first().map(|port| port.port))
    };
    let (mut batches, start) = (0_u128, Instant::now());
    let mut last = start;
    while port(&views).map(u32::from) != Some(1000 + edits) {
        timeout(LIMIT, views.changed()).await.expect("the last edit arrives").expect("the watch runs");
        // The first change after a batch can arrive within 10 ms. This change belongs to the batch, but makes a
        // separate view. The test does not count this view.
        batches += u128::from(last.elapsed() > pause * 3 / 4);
        last = Instant::now();
    }
    // The limit is a sum: 32 batches at the same time, one batch for each 100 ms, and the 12 first batches of all
    // kinds. On a busy machine, the changes take longer.
    let most = 32 + start.elapsed().as_millis() / 100 + 12;
    assert!(batches <= most, "{batches} batches of {edits} changes, and not {most}");
}

#[tokio::test]
async fn endpoints_needed_from_the_start_are_not_known_before_they_were_read() {
    let fake = Fake::new(|path, _| if path.contains("/endpointslices") { Reply::Silence } else { calm(path) });
    let (_watch, views) = start(&fake);
    let is_read = |(resource, status): (&Resource, &ResourceStatus)| {
        *resource == Resource::EndpointSlices || status.confirmed.is_some()
    };
    let view = until(&views, "the rest is read", |view| view.statuses.iter().all(is_read)).await;
    assert_eq!(view.statuses[&Resource::EndpointSlices].confirmed, None);
}

#[tokio::test]
async fn endpoints_are_read_and_watched_while_they_are_needed() {
    let fake = Fake::new(|path, _| calm(path));
    let (asks, endpoints_of) = about(&[]);
    let access = fake.access("t", PATIENT);
    let (_watch, views) = Watch::start(access, &Resource::ALL, None, "n1".to_owned(), endpoints_of, timing());
    until(&views, "everything is read", whole).await;
    let slices = |requests: &[String]| -> Vec<String> {
        requests.iter().filter(|path| path.contains("endpointslices?")).cloned().collect()
    };
    assert_eq!(slices(&fake.requests()), [""; 0], "none are needed");

    let wanted = |names: &[&str]| about(names).1.borrow().clone();
    for names in [&["b"][..], &["b", "kubernetes"], &["a", "b"]] {
        asks.send_replace(wanted(names));
        until(&views, "endpoints", |view| view.facts.holds_endpoints_of(&wanted(names))).await;
        let last = || slices(&fake.requests()).into_iter().rfind(|path| !is_watch(path)).expect("a list");
        let selector = format!("service-name%20in%20%28{}%29", names.join("%2C"));
        assert!(last().contains(&selector), "{} of {selector}", last());
    }
    asks.send_replace(wanted(&[]));
    until(&views, "the endpoints are not known any more", |view| view.facts.endpoints_of == Some(wanted(&[]))).await;
    // A request may be running at this time.
    sleep(timing().watch_duration).await;
    let requests = slices(&fake.requests()).len();
    sleep(3 * timing().watch_duration).await;
    assert_eq!(slices(&fake.requests()).len(), requests, "the watch is over");
}

#[tokio::test]
async fn settings_are_read_again_and_kept_if_a_read_fails() {
    let phase = Arc::new(AtomicUsize::new(0));
    let shared = Arc::clone(&phase);
    let fake = Fake::new(move |path, _| match (path, shared.load(Ordering::SeqCst)) {
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
    let view = until(&views, "the read fails", |view| errors(view, Resource::Settings, "500") > 1).await;
    assert_eq!(first(&view), 20000);
    phase.store(2, Ordering::SeqCst);
    until(&views, "the new range is read", |view| first(view) == 21000).await;
}

#[tokio::test]
async fn absent_settings_count_as_gone_only_after_a_while() {
    let phase = Arc::new(AtomicUsize::new(0));
    let shared = Arc::clone(&phase);
    let fake = Fake::new(move |path, _| match (path, shared.load(Ordering::SeqCst)) {
        ("/flagz", 0) => Reply::Text("service-node-port-range=20000-20999"),
        ("/flagz", _) => Reply::Status(404, "not found"),
        (path, _) => calm(path),
    });
    let (_watch, views) = start(&fake);
    let source = |view: &View| view.facts.node_port_range.seen().map(|range| range.source);
    until(&views, "the range is read", |view| source(view) == Some(RangeSource::Flagz)).await;
    phase.store(1, Ordering::SeqCst);
    let mut reported_absent = 0;
    until(&views, "the range is assumed", |view| {
        if source(view) == Some(RangeSource::Flagz) {
            reported_absent = errors(view, Resource::Settings, "404");
        }
        source(view) == Some(RangeSource::Assumed)
    })
    .await;
    assert!(reported_absent >= 2, "one answer is not enough: {reported_absent}");
    until(&views, "everything is read", whole).await;
}
