//! The Node condition that an agent writes. One fake API server keeps conditions, and another refuses them.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use portreeve_agent::{
    judge,
    node_condition::{ConditionTiming, NodeCondition},
};
use portreeve_cluster as cluster;
use portreeve_facts::Snapshot;
use portreeve_rules::Limits;
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    agent_memory::Agent,
    fake::{Fake, Reply},
    said,
    watch::{PATIENT, calm},
};

const STATUS: &str = "/api/v1/nodes/n1/status?fieldManager=portreeve";
const MERGE: &str = "application/strategic-merge-patch+json";
const READY: &str = r#"{"type":"Ready","status":"True","reason":"KubeletReady","message":"kubelet is ready"}"#;

/// The server answers the first patches with the `troubles`, each once. Then it keeps patches.
struct Server {
    fake: Fake,
    node: Arc<Mutex<Value>>,
    troubles: Arc<Mutex<Vec<Reply>>>,
}

impl Server {
    fn new() -> Self {
        let ready: Value = serde_json::from_str(READY).expect("JSON");
        let node = json!({"kind": "Node", "metadata": {"name": "n1"}, "status": {"conditions": [ready]}});
        let node = Arc::new(Mutex::new(node));
        let troubles = Arc::<Mutex<Vec<Reply>>>::default();
        let (kept, waiting) = (Arc::clone(&node), Arc::clone(&troubles));
        let fake = Fake::writable(move |sent, _| {
            if sent.method != "PATCH" {
                return calm(sent.path);
            }
            assert_eq!((sent.path, sent.kind), (STATUS, MERGE));
            if let Some(trouble) = waiting.lock().expect("the troubles").pop() {
                return trouble;
            }
            let mut node = kept.lock().expect("the Node");
            said::patch_status(&mut node, &serde_json::from_slice(sent.body).expect("JSON"));
            Reply::Json(node.to_string())
        });
        Self { fake, node, troubles }
    }

    fn conditions(&self, kind: &str) -> Vec<Value> {
        let node = self.node.lock().expect("the Node");
        let all = node["status"]["conditions"].as_array().expect("a list");
        all.iter().filter(|condition| condition["type"] == kind).cloned().collect()
    }

    fn condition(&self) -> Option<Value> {
        let conditions = self.conditions("PortConflict");
        assert!(conditions.len() <= 1, "{conditions:#?}");
        conditions.into_iter().next()
    }

    fn patches(&self) -> usize {
        self.fake.requests().iter().filter(|path| path.as_str() == STATUS).count()
    }

    /// The time limit is long enough for a slow machine.
    async fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..12_000 {
            match self.condition().filter(|condition| holds(condition)) {
                Some(condition) => return condition,
                None => sleep(Duration::from_millis(10)).await,
            }
        }
        panic!("never {what}: {:#?}", self.condition());
    }

    fn start(&self, heartbeat: Duration) -> (NodeCondition, JoinHandle<()>) {
        let client = cluster::client(self.fake.access("t", PATIENT));
        let timing = ConditionTiming { least: Duration::from_millis(50).min(heartbeat), heartbeat };
        let (condition, writing) = NodeCondition::new(client, Duration::from_millis(500), timing);
        (condition, tokio::spawn(writing))
    }
}

const HOUR: Duration = Duration::from_secs(3600);

fn healthy() -> Snapshot {
    Snapshot::healthy().service("web", |it| it.node_port(30080))
}

fn conflict(minute: i64) -> Snapshot {
    at(healthy().listens("0.0.0.0:30080"), minute)
}

fn at(snapshot: Snapshot, minute: i64) -> Snapshot {
    let begin: jiff::Timestamp = "2026-11-21T12:00:00Z".parse().expect("a time");
    Snapshot { at: begin + jiff::SignedDuration::from_mins(minute), ..snapshot }
}

fn scan(condition: &NodeCondition, snapshot: &Snapshot) {
    condition.scanned(snapshot, &judge(snapshot, &Limits::default()), true);
}

fn is(status: &'static str) -> impl Fn(&Value) -> bool {
    move |condition| condition["status"] == status
}

/// Waits until the writer knows that its write succeeded. The server stores the condition a moment before the writer
/// counts the write.
async fn has_written(condition: &NodeCondition) {
    while condition.writes().written == 0 {
        sleep(Duration::from_millis(5)).await;
    }
}

fn scans(metrics: &str) -> f64 {
    let count = metrics.lines().find_map(|line| line.strip_prefix("portreeve_scans_total "));
    count.and_then(|count| count.parse().ok()).expect("a number")
}

/// Status and reason of the condition, the minute of the last change, and the minute of the last scan.
fn told(condition: &Value) -> [&str; 4] {
    let word = |key: &str| condition[key].as_str().expect("a word");
    let minute = |key: &str| word(key).strip_prefix("2026-11-21T12:").and_then(|rest| rest.strip_suffix(":00Z"));
    let [changed, scanned] = ["lastTransitionTime", "lastHeartbeatTime"].map(|key| minute(key).expect("a minute"));
    [word("status"), word("reason"), changed, scanned]
}

#[tokio::test]
async fn a_result_is_a_condition_beside_those_of_others_and_its_transition_is_the_change_of_its_status() {
    let server = Server::new();
    let (condition, _task) = server.start(HOUR);
    scan(&condition, &at(healthy(), 0));
    let first = server.until("written", is("False")).await;
    assert_eq!(told(&first), ["False", "NoPortConflict", "00", "00"]);
    scan(&condition, &conflict(1));
    let second = server.until("changed", is("True")).await;
    assert_eq!(told(&second), ["True", "PortsInConflict", "01", "01"]);
    assert!(second["message"].as_str().is_some_and(|it| it.contains("listener-on-node-port/loses: 1")), "{second:#}");
    let two = healthy().service("more", |it| it.node_port(30081)).listens("0.0.0.0:30080").listens("0.0.0.0:30081");
    scan(&condition, &at(two, 2));
    let third = server.until("two", |it| it["message"] != second["message"]).await;
    assert_eq!(told(&third), ["True", "PortsInConflict", "01", "02"], "the status is the same");
    assert_eq!(server.conditions("Ready"), [serde_json::from_str::<Value>(READY).expect("JSON")]);
    assert_eq!(server.patches(), 4, "an empty patch reads the condition once");
}

#[tokio::test]
async fn without_a_change_it_is_written_with_the_heartbeat_and_no_more_often() {
    let server = Server::new();
    let (condition, task) = server.start(HOUR);
    for minute in 0..20 {
        scan(&condition, &conflict(minute));
        sleep(Duration::from_millis(10)).await;
    }
    let first = server.until("written", is("True")).await;
    has_written(&condition).await;
    assert_eq!(condition.writes().written, 1);
    task.abort();

    let (condition, _task) = server.start(Duration::from_millis(100));
    let since = told(&first)[2];
    for minute in 20..23 {
        scan(&condition, &conflict(minute));
        let seen = minute.to_string();
        let beat = server.until("a heartbeat", |it| told(it)[3] == seen).await;
        assert_eq!(told(&beat), ["True", "PortsInConflict", since, seen.as_str()], "a restart changes no status");
    }
}

#[tokio::test]
async fn an_agent_that_finds_another_status_after_its_restart_dates_the_change() {
    let server = Server::new();
    let (condition, task) = server.start(HOUR);
    scan(&condition, &at(healthy(), 0));
    server.until("written", is("False")).await;
    task.abort();
    let (condition, _task) = server.start(HOUR);
    scan(&condition, &conflict(5));
    assert_eq!(told(&server.until("changed", is("True")).await), ["True", "PortsInConflict", "05", "05"]);
}

/// Fault (API server): the server refuses the Node condition, or does not answer
/// Does: counts each failure, logs one line, and tries again after growing waits, at most ten minutes
/// Right again: with the first accepted write
/// Lost: nothing
#[tokio::test]
async fn a_condition_that_is_refused_is_written_when_the_server_takes_it() {
    let troubles: [fn() -> Reply; 7] = [
        || Reply::Status(401, "Unauthorized"),
        || Reply::Status(403, "forbidden"),
        || Reply::Status(404, "not found"),
        || Reply::Busy(0),
        || Reply::Status(500, "internal error"),
        || Reply::Html("<html></html>"),
        || Reply::Silence,
    ];
    for trouble in troubles {
        let server = Server::new();
        server.troubles.lock().expect("the troubles").extend([trouble(), trouble()]);
        let (condition, _task) = server.start(HOUR);
        scan(&condition, &conflict(7));
        let written = server.until("written", is("True")).await;
        assert_eq!(told(&written), ["True", "PortsInConflict", "07", "07"]);
        has_written(&condition).await;
        // On a busy machine, one more answer can come too late.
        assert!(condition.writes().written == 1 && condition.writes().failed >= 2, "{:?}", condition.writes());
    }
}

#[tokio::test]
async fn an_agent_that_stops_says_so_even_in_the_pause_after_a_write() {
    let server = Server::new();
    let (condition, _task) = server.start(HOUR);
    scan(&condition, &conflict(0));
    server.until("written", is("True")).await;
    condition.stop(at(healthy(), 1).at).await;
    assert_eq!(told(&server.condition().expect("a condition")), ["Unknown", "AgentStopped", "01", "01"]);

    server.troubles.lock().expect("the troubles").push(Reply::Status(403, "forbidden"));
    let (refused, _task) = server.start(HOUR);
    scan(&refused, &conflict(2));
    refused.stop(at(healthy(), 3).at).await;
    assert_eq!(refused.writes().failed, 1, "one attempt is waited for");
}

#[tokio::test]
async fn an_agent_writes_the_condition_of_its_node_and_at_its_end_that_it_stopped() {
    let server = Server::new();
    let mut agent = Agent::with(&server.fake, &["--node-condition"]);
    let written = server.until("written", |it| it["reason"] != "AgentStopped").await;
    assert!(["False", "True"].map(Value::from).contains(&written["status"]), "{written:#}");
    agent.wait_for("/metrics", |text| text.contains("portreeve_node_condition_writes_total{result=\"written\"} 1"));
    agent.stop();
    let stopped = server.condition().expect("a condition");
    assert_eq!(["status", "reason"].map(|key| &stopped[key]), ["Unknown", "AgentStopped"]);
    assert_eq!(server.conditions("Ready").len(), 1);
}

#[tokio::test]
async fn an_agent_without_the_right_logs_one_line_and_still_scans() {
    let server = Server::new();
    let refusals = (0..9).map(|_| Reply::Status(403, "nodes n1 is forbidden"));
    server.troubles.lock().expect("the troubles").extend(refusals);
    let mut agent = Agent::with(&server.fake, &["--node-condition"]);
    agent.wait_for("/metrics", |text| text.contains("portreeve_node_condition_writes_total{result=\"failed\"} 1"));
    let before = scans(&agent.wait_for("/metrics", |_| true));
    agent.wait_for("/metrics", |text| scans(text) > before + 2.0);
    agent.stop();
    let log = agent.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("Node condition")).collect();
    let [line] = lines[..] else { panic!("{log}") };
    assert!(line.contains("cannot write the Node condition") && line.contains("403: nodes n1 is forbidden"), "{line}");
    assert_eq!(server.condition(), None);
}

#[tokio::test]
async fn an_agent_writes_no_condition_unless_it_is_switched_on() {
    let server = Server::new();
    let mut agent = Agent::of(&server.fake);
    agent.wait_for("/metrics", |text| scans(text) > 3.0);
    agent.stop();
    let writes: Vec<String> = server.fake.requests().into_iter().filter(|path| path.contains("/status")).collect();
    assert_eq!(writes, Vec::<String>::new());
}
