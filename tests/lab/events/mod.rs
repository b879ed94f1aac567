//! The writer of Events with a real API server. The test sets the writer's clock.

mod cluster_facts;
mod every_rule;
mod flood;
mod forged;
mod hours;
mod incident;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use portreeve_agent::events::{Counters, Place, Recorder};
use portreeve_cluster::{Access, Credentials, client};
use portreeve_rules::{
    findings::{Evidence, Finding, Key, RuleId, Severity, Subject, SubjectKind},
    ledger::{Change, Clearance},
};
use serde_json::Value;
use tokio::{
    runtime::{Builder, Runtime},
    time::sleep,
};

use crate::parts::{ControlPlane, PRIMARY, Role, all_events, enter_alone, objects};

/// The time limit for a request that a writer has to send. Even a busy machine needs much less.
const SOON: Duration = Duration::from_secs(60);
/// The time for which a test checks that a writer sends no request.
const A_MOMENT: Duration = Duration::from_millis(30);

/// A cluster with the Node `n1` and the Service `web`, and a clock that begins at noon.
struct Stage {
    cluster: ControlPlane,
    runtime: Runtime,
    clock: Arc<Mutex<Timestamp>>,
    node: Value,
    service: Value,
}

impl Stage {
    /// The writers have the rights of the chart's roles.
    #[track_caller]
    fn new(flags: &[&str]) -> Self {
        enter_alone();
        let mut cluster = ControlPlane::with(flags);
        let node = cluster.api().create(&objects::node("n1", &PRIMARY));
        let service = cluster.api().create(&objects::service("web", &[objects::port(80, Some(30080))]));
        Role::of_chart().grant(&mut cluster);
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let noon = "2026-11-21T12:00:00Z".parse().expect("a time");
        Self { cluster, runtime, clock: Arc::new(Mutex::new(noon)), node, service }
    }

    fn now(&self) -> Timestamp {
        *self.clock.lock().expect("the clock")
    }

    /// Sets the clock to `seconds` after noon, and returns this time as Events write it. The hours of an incident begin
    /// at a minute that depends on the object's random uid. So in each clock hour after noon, exactly one hour of the
    /// incident begins.
    #[track_caller]
    fn set(&self, seconds: i64) -> String {
        let noon: Timestamp = "2026-11-21T12:00:00Z".parse().expect("a time");
        let now = noon + SignedDuration::from_secs(seconds);
        *self.clock.lock().expect("the clock") = now;
        format!("{now:.6}")
    }

    fn writer(&self, node: &str) -> Writer<'_> {
        let kubeconfig = self.cluster.kubeconfig("observer");
        let credentials = Credentials::Kubeconfig { paths: vec![kubeconfig], context: None };
        let access = Access { credentials, api_server: None, request_timeout: Access::REQUEST_TIMEOUT };
        let clock = Arc::clone(&self.clock);
        let now = move || *clock.lock().expect("the clock");
        let _inside = self.runtime.enter();
        let (recorder, _writing) = Recorder::start(client(access), Access::REQUEST_TIMEOUT, None, now, || 0.0);
        let kubernetes = self.cluster.api().text("/api/v1/namespaces/default/services/kubernetes");
        let kubernetes: Option<Value> = kubernetes.map(|text| serde_json::from_str(&text).expect("JSON"));
        let place = Place {
            node: node.to_owned(),
            node_uid: uid(&self.node),
            kubernetes_uid: kubernetes.as_ref().and_then(uid),
            nodes: Some(1),
            agents: None,
        };
        Writer { stage: self, recorder, place }
    }

    fn finding(&self, name: &'static str, object: &Value, severity: Severity, sentence: &str) -> Finding {
        let (rule, variant) = name.split_once('/').expect("an id and a variant");
        let word = |name: &str| object["metadata"][name].as_str().map(str::to_owned);
        let kind = match object["kind"].as_str() {
            Some("Service") => SubjectKind::Service,
            Some("Pod") => SubjectKind::Pod,
            Some("Node") => SubjectKind::Node,
            other => panic!("no finding is about {other:?}"),
        };
        let name = word("name").expect("a name");
        let subject = Subject { kind, namespace: word("namespace"), name, uid: uid(object) };
        let key = Key { rule: RuleId(rule), variant, subject, port: None, protocol: None };
        Finding { key, evidence: Evidence::new(severity, sentence), since: self.now() }
    }

    fn events(&self, kind: &str) -> Vec<Value> {
        all_events(&self.cluster).into_iter().filter(|event| event["type"] == kind).collect()
    }

    #[track_caller]
    fn warning(&self) -> Value {
        let events = self.events("Warning");
        let [event] = &events[..] else { panic!("{} Events: {events:#?}", events.len()) };
        event.clone()
    }
}

struct Writer<'a> {
    stage: &'a Stage,
    recorder: Recorder,
    place: Place,
}

impl Writer<'_> {
    fn offer(&self, changes: &[Change]) {
        self.recorder.offer(self.stage.now(), changes, &self.place);
    }

    fn raise<'f>(&self, findings: impl IntoIterator<Item = &'f Finding>) {
        self.offer(&findings.into_iter().cloned().map(Change::Raised).collect::<Vec<_>>());
    }

    fn clear<'f>(&self, findings: impl IntoIterator<Item = &'f Finding>) {
        let cleared = |finding: &Finding| Change::Cleared(finding.clone(), Clearance::Repaired);
        self.offer(&findings.into_iter().map(cleared).collect::<Vec<_>>());
    }

    #[track_caller]
    fn until(&self, expected: Counters) {
        self.offer(&[]);
        let end = Instant::now() + SOON;
        while self.recorder.counters() != expected {
            assert!(Instant::now() < end, "{:?} instead of {expected:?}", self.recorder.counters());
            self.work(Duration::from_millis(5));
        }
    }

    fn work(&self, time: Duration) {
        self.stage.runtime.block_on(async { sleep(time).await });
    }

    #[track_caller]
    fn is_idle(&self) {
        let before = self.recorder.counters();
        self.offer(&[]);
        self.work(A_MOMENT);
        assert_eq!(self.recorder.counters(), before);
    }
}

fn written(written: u64) -> Counters {
    Counters { written, ..Counters::default() }
}

fn uid(object: &Value) -> Option<String> {
    object["metadata"]["uid"].as_str().map(str::to_owned)
}
