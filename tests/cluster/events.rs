//! The writer of Events. One fake API server keeps Events, and another refuses them.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use kube::{Client, Config};
use portreeve_agent::events::{Counters, Place, Recorder};
use portreeve_facts::Protocol;
use portreeve_rules::{
    findings::{Evidence, Finding, Key, RuleId, Severity, Subject, SubjectKind},
    ledger::{Change, Clearance},
};
use serde_json::Value;

#[derive(Clone, Copy)]
enum Whim {
    Status(u16, &'static str),
    /// 429 with a `Retry-After` of this number of seconds.
    Busy(u32),
    Silence,
}

#[derive(Default)]
struct Kept {
    events: BTreeMap<String, Value>,
    /// Method, path and content type of every request that the server received.
    asked: Vec<(String, String, String)>,
}

/// An API server that has only Events. Each of the `whims` is an error that answers one of the first requests.
#[derive(Clone)]
struct Server {
    address: String,
    kept: Arc<Mutex<Kept>>,
    whims: Arc<Mutex<Vec<Whim>>>,
}

impl Server {
    fn new(whims: &[Whim]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let server = Self { address, kept: Arc::default(), whims: Arc::new(Mutex::new(whims.to_vec())) };
        let own = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let own = own.clone();
                thread::spawn(move || own.serve(&stream.expect("a connection")));
            }
        });
        server
    }

    fn client(&self) -> Client {
        let mut config = Config::new(self.address.parse().expect("an address"));
        // As in the crate `cluster`, the client does not retry requests: the writer of Events retries them itself.
        config.default_retry = false;
        Client::try_from(config).expect("a client")
    }

    fn events(&self) -> BTreeMap<String, Value> {
        self.kept.lock().expect("the Events").events.clone()
    }

    fn serve(&self, mut stream: &TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).is_err() || line.trim().is_empty() {
                break;
            }
            head.push(line.trim().to_lowercase());
        }
        let Some(request) = head.first().cloned() else { return };
        let field = |name: &str| head.iter().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
        let mut body = vec![0; field("content-length: ").parse().expect("a length")];
        reader.read_exact(&mut body).expect("a body");
        let words: Vec<&str> = request.split(' ').collect();
        let asked = (words[0].to_owned(), words[1].to_owned(), field("content-type: "));
        let whim = {
            let mut whims = self.whims.lock().expect("the whims");
            (!whims.is_empty()).then(|| whims.remove(0))
        };
        let wait = if let Some(Whim::Busy(wait)) = whim { wait } else { 0 };
        let (code, answer) = match whim {
            Some(Whim::Silence) => {
                thread::sleep(Duration::from_secs(30));
                return;
            }
            Some(Whim::Busy(_)) => (429, serde_json::json!({"kind": "Status", "message": "a whim"})),
            Some(Whim::Status(code, reason)) => {
                (code, serde_json::json!({"kind": "Status", "message": "a whim", "reason": reason}))
            }
            None => self.answer(&asked, serde_json::from_slice(&body).expect("JSON")),
        };
        self.kept.lock().expect("the Events").asked.push(asked);
        let body = answer.to_string();
        let head = format!(
            "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nRetry-After: {wait}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        // The client may have closed the connection. The test checks how the client reacts.
        drop(stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())));
    }

    fn answer(&self, (method, path, kind): &(String, String, String), body: Value) -> (u16, Value) {
        let events = &mut self.kept.lock().expect("the Events").events;
        match (method.as_str(), kind.as_str()) {
            ("post", "application/json") => {
                let name = body["metadata"]["name"].as_str().expect("a name");
                let path = format!("{path}/{name}");
                if events.contains_key(&path) {
                    let message = "already exists";
                    return (409, serde_json::json!({"kind": "Status", "message": message, "reason": "AlreadyExists"}));
                }
                events.insert(path, body.clone());
                (201, body)
            }
            ("patch", "application/merge-patch+json") => match events.get_mut(path) {
                None => (404, serde_json::json!({"kind": "Status", "message": "not found"})),
                Some(event) => {
                    if let Some(series) = body.get("series") {
                        event["series"] = series.clone();
                    }
                    (200, event.clone())
                }
            },
            other => panic!("unexpected request {other:?}"),
        }
    }
}

#[derive(Clone)]
struct Clock(Arc<Mutex<Timestamp>>);

impl Clock {
    fn new() -> Self {
        Self(Arc::new(Mutex::new("2026-11-21T12:00:00Z".parse().expect("a time"))))
    }

    fn now(&self) -> Timestamp {
        *self.0.lock().expect("the clock")
    }

    fn forward(&self, by: SignedDuration) {
        *self.0.lock().expect("the clock") += by;
    }
}

fn start(server: &Server, clock: &Clock) -> Recorder {
    let clock = clock.clone();
    Recorder::start(server.client(), Duration::from_millis(500), None, move || clock.now(), || 0.0).0
}

fn place() -> Place {
    Place {
        node: "n1".to_owned(),
        node_uid: Some("uid-n1".to_owned()),
        kubernetes_uid: None,
        nodes: Some(1),
        agents: None,
    }
}

fn finding() -> Finding {
    let key = Key {
        rule: RuleId("proxy-near-fd-limit"),
        variant: "near",
        subject: Subject::node("n1", Some("uid-n1")),
        port: Some(30080),
        protocol: Some(Protocol::Tcp),
    };
    Finding { key, evidence: Evidence::new(Severity::Critical, "it is full."), since: Timestamp::UNIX_EPOCH }
}

fn raised() -> [Change; 1] {
    [Change::Raised(finding())]
}

/// The time limit is long enough for a slow machine.
async fn counted(recorder: &Recorder, expected: Counters) {
    for _ in 0..3000 {
        if recorder.counters() == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?} instead of {expected:?}", recorder.counters());
}

fn written(written: u64) -> Counters {
    Counters { written, ..Counters::default() }
}

#[tokio::test]
async fn a_finding_is_an_event_in_each_hour_and_is_resolved_by_create_and_patch_alone() {
    let (server, clock) = (Server::new(&[]), Clock::new());
    let recorder = start(&server, &clock);
    recorder.offer(clock.now(), &raised(), &place());
    counted(&recorder, written(1)).await;
    clock.forward(SignedDuration::from_hours(1));
    recorder.offer(clock.now(), &[], &place());
    counted(&recorder, written(2)).await;
    let cleared = [Change::Cleared(finding(), Clearance::Repaired)];
    recorder.offer(clock.now(), &cleared, &place());
    counted(&recorder, written(3)).await;
    recorder.offer(clock.now(), &raised(), &place());
    counted(&recorder, written(4)).await;
    recorder.offer(clock.now(), &cleared, &place());
    counted(&recorder, written(5)).await;
    let events = server.events();
    let of = |kind: &'static str| events.values().filter(move |event| event["type"] == kind);
    let times: std::collections::BTreeSet<&str> =
        of("Warning").map(|event| event["eventTime"].as_str().expect("a time")).collect();
    assert_eq!(times, ["2026-11-21T12:00:00.000000Z", "2026-11-21T13:00:00.000000Z"].into());
    let series = serde_json::json!({"count": 2, "lastObservedTime": "2026-11-21T13:00:00.000000Z"});
    assert_eq!(of("Warning").filter(|event| event["series"] == series).count(), 1);
    assert_eq!(of("Normal").map(|event| &event["series"]).collect::<Vec<_>>(), [&series]);
    assert!(events.keys().all(|path| path.starts_with("/apis/events.k8s.io/v1/namespaces/default/events/portreeve.")));
    let asked = server.kept.lock().expect("the requests").asked.clone();
    let methods: Vec<&str> = asked.iter().map(|(method, ..)| method.as_str()).collect();
    assert_eq!(methods, ["post", "post", "post", "patch", "patch"]);
}

#[tokio::test]
async fn a_restarted_agent_writes_no_event_and_ends_the_event_of_the_one_before() {
    let (server, clock) = (Server::new(&[]), Clock::new());
    let first = start(&server, &clock);
    first.offer(clock.now(), &raised(), &place());
    counted(&first, written(1)).await;
    drop(first);
    let before = server.events();
    let second = start(&server, &clock);
    second.offer(clock.now(), &raised(), &place());
    counted(&second, Counters { deduplicated: 1, ..Counters::default() }).await;
    assert_eq!(server.events(), before);
    second.offer(clock.now(), &[Change::Cleared(finding(), Clearance::Repaired)], &place());
    counted(&second, Counters { written: 1, deduplicated: 1, ..Counters::default() }).await;
    let asked = server.kept.lock().expect("the requests").asked.clone();
    let methods: Vec<&str> = asked.iter().map(|(method, ..)| method.as_str()).collect();
    assert_eq!(methods, ["post", "post", "patch", "post"], "an empty patch sets the reporter");
}

/// Fault (API server): an Event is deleted, or expires early, while the finding is open
/// Does: writes an Event again in the next hour of the incident
/// Right again: within an hour
/// Lost: the Event, until then
#[tokio::test]
async fn a_deleted_event_is_written_again_in_the_next_hour() {
    let (server, clock) = (Server::new(&[]), Clock::new());
    let recorder = start(&server, &clock);
    recorder.offer(clock.now(), &raised(), &place());
    counted(&recorder, written(1)).await;
    server.kept.lock().expect("the Events").events.clear();
    recorder.offer(clock.now(), &[], &place());
    recorder.idle().await;
    assert_eq!(recorder.counters(), written(1));
    clock.forward(SignedDuration::from_hours(1));
    recorder.offer(clock.now(), &[], &place());
    counted(&recorder, written(2)).await;
    assert_eq!(server.events().values().next().expect("an Event")["eventTime"], "2026-11-21T13:00:00.000000Z");
}

/// Fault (API server): the server accepts no Events for a while
/// Does: keeps the Events, and tries again
/// Right again: when the server accepts them
/// Lost: nothing
#[tokio::test]
async fn a_server_that_is_down_busy_or_silent_gets_the_event_when_it_is_back() {
    let refusals = [
        Whim::Status(401, "Unauthorized"),
        Whim::Status(403, "Forbidden"),
        Whim::Status(409, "Conflict"),
        Whim::Status(429, "TooManyRequests"),
        Whim::Status(503, "ServiceUnavailable"),
    ];
    for whim in refusals.into_iter().chain([Whim::Silence]) {
        let (server, clock) = (Server::new(&[whim]), Clock::new());
        let recorder = start(&server, &clock);
        recorder.offer(clock.now(), &raised(), &place());
        counted(&recorder, Counters { failed: 1, ..Counters::default() }).await;
        clock.forward(SignedDuration::from_secs(20));
        recorder.offer(clock.now(), &[], &place());
        counted(&recorder, Counters { written: 1, failed: 1, ..Counters::default() }).await;
        assert_eq!(server.events().len(), 1);
    }
}

#[tokio::test]
async fn a_server_that_names_a_time_gets_no_event_before() {
    let (server, clock) = (Server::new(&[Whim::Busy(60)]), Clock::new());
    let recorder = start(&server, &clock);
    recorder.offer(clock.now(), &raised(), &place());
    let busy = Counters { failed: 1, ..Counters::default() };
    counted(&recorder, busy).await;
    clock.forward(SignedDuration::from_secs(59));
    recorder.offer(clock.now(), &[], &place());
    recorder.idle().await;
    assert_eq!(server.kept.lock().expect("the Events").asked.len(), 1);
    clock.forward(SignedDuration::from_secs(1));
    recorder.offer(clock.now(), &[], &place());
    counted(&recorder, Counters { written: 1, ..busy }).await;
}

#[tokio::test]
async fn an_event_that_is_refused_permanently_is_not_tried_again() {
    let (server, clock) = (Server::new(&[Whim::Status(422, "Invalid")]), Clock::new());
    let recorder = start(&server, &clock);
    recorder.offer(clock.now(), &raised(), &place());
    let failed = Counters { failed: 1, ..Counters::default() };
    counted(&recorder, failed).await;
    clock.forward(SignedDuration::from_hours(2));
    let other = Finding { key: Key { port: None, ..finding().key }, ..finding() };
    recorder.offer(clock.now(), &[Change::Raised(other)], &place());
    counted(&recorder, Counters { written: 1, ..failed }).await;
    assert_eq!(server.events().len(), 1);
}

/// Fault (operator): the node that reported an incident is repaired while other nodes are still affected
/// Does: ends the Event of this node; another affected node writes an Event
/// Right again: with the next hour of the incident
/// Lost: nothing
#[tokio::test]
async fn one_node_of_a_slot_reports_in_an_hour_and_another_in_the_next() {
    let (server, clock) = (Server::new(&[]), Clock::new());
    let mut finding = finding();
    finding.key.subject =
        Subject { kind: SubjectKind::Service, namespace: Some("shop".to_owned()), ..finding.key.subject };
    // Both nodes are in the same slot, because of the hash of their names.
    let [first, second] = ["n0", "n4"].map(|node| Place { node: node.to_owned(), ..place() });
    let [teller, silent] = [start(&server, &clock), start(&server, &clock)];
    teller.offer(clock.now(), &[Change::Raised(finding.clone())], &first);
    counted(&teller, written(1)).await;
    silent.offer(clock.now(), &[Change::Raised(finding.clone())], &second);
    counted(&silent, Counters { deduplicated: 1, ..Counters::default() }).await;
    assert_eq!(server.events().len(), 1);

    let cleared = [Change::Cleared(finding, Clearance::Repaired)];
    teller.offer(clock.now(), &cleared, &first);
    counted(&teller, written(2)).await;
    clock.forward(SignedDuration::from_hours(1));
    silent.offer(clock.now(), &[], &second);
    counted(&silent, Counters { written: 1, deduplicated: 1, ..Counters::default() }).await;
    let events = server.events();
    let notes: Vec<&str> = events.values().map(|event| event["note"].as_str().expect("a note")).collect();
    for words in ["On node n0: it is full.", "Resolved on node n0: it is full.", "On node n4: it is full."] {
        assert_eq!(notes.iter().filter(|note| note.starts_with(words)).count(), 1, "{words}: {notes:#?}");
    }
    let asked = server.kept.lock().expect("the requests").asked.clone();
    assert!(asked.iter().all(|(method, ..)| method == "post"), "{asked:?}");
}

#[tokio::test]
async fn a_program_that_ends_can_wait_for_its_pending_events() {
    let (server, clock) = (Server::new(&[]), Clock::new());
    let recorder = start(&server, &clock);
    recorder.offer(clock.now(), &raised(), &place());
    recorder.idle().await;
    assert_eq!(recorder.counters(), written(1));
}
