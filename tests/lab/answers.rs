//! The answers of a real API server to the requests of a watching client. The fake API server of `tests/cluster` must
//! give the same answers.

use serde_json::{Value, json};

use crate::{
    parts::{Api, ControlPlane, objects},
    said,
    server::small_cluster,
};

const SERVICES: &str = "/api/v1/services";

fn cluster() -> ControlPlane {
    let cluster = small_cluster();
    for name in ["a", "b", "c", "d"] {
        cluster.api().create(&objects::service(name, &[objects::port(80, None)]));
    }
    cluster
}

/// Returns the server's answer, which may be a refusal.
#[track_caller]
fn answer(cluster: &ControlPlane, query: &str) -> Value {
    let text = Api::unrepeated(&cluster.kubeconfig("admin")).answer(&format!("{SERVICES}?{query}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[track_caller]
fn lines(cluster: &ControlPlane, query: &str) -> Vec<Value> {
    let text = Api::unrepeated(&cluster.kubeconfig("admin"))
        .answer(&format!("{SERVICES}?watch=1&allowWatchBookmarks=true&timeoutSeconds=1&{query}"));
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn items(list: &Value) -> usize {
    list["items"].as_array().expect("items").len()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value["metadata"][key].as_str().unwrap_or_default()
}

/// Asserts that the real answer has all fields of the fake's answer, with the same types.
#[track_caller]
fn has_the_shape(real: &Value, fake: &Value) {
    match (real, fake) {
        (Value::Object(real), Value::Object(fake)) => {
            for (key, value) in fake {
                has_the_shape(real.get(key).unwrap_or_else(|| panic!("no {key} in {real:?}")), value);
            }
        }
        (Value::Array(real), Value::Array(fake)) => {
            real.first().zip(fake.first()).into_iter().for_each(|(real, fake)| has_the_shape(real, fake));
        }
        (real, fake) => {
            assert_eq!(std::mem::discriminant(real), std::mem::discriminant(fake), "{real} and {fake}");
        }
    }
}

#[track_caller]
fn is_refusal(real: &Value, code: u16) {
    let fake = said::refusal(code);
    has_the_shape(real, &fake);
    assert_eq!((&real["code"], &real["reason"]), (&fake["code"], &fake["reason"]), "{real}");
}

#[test]
fn a_list_comes_in_pages_from_etcd_and_whole_from_the_cache() {
    let cluster = cluster();
    let first = answer(&cluster, "limit=2");
    has_the_shape(&first, &said::page("Service", &[], "t"));
    assert_eq!(items(&first), 2);
    let next = answer(&cluster, &format!("limit=2&continue={}", text(&first, "continue")));
    assert_eq!((items(&next), text(&next, "resourceVersion")), (2, text(&first, "resourceVersion")));
    assert_ne!(text(&next, "continue"), text(&first, "continue"), "no token comes twice");
    let last = answer(&cluster, &format!("limit=2&continue={}", text(&next, "continue")));
    has_the_shape(&last, &said::page("Service", &[], ""));
    assert_eq!((items(&last), text(&last, "continue")), (1, ""));

    let cached = answer(&cluster, "limit=2&resourceVersion=0");
    assert_eq!((items(&cached), text(&cached, "continue")), (5, ""), "whatever the limit");
    let seen = text(&first, "resourceVersion");
    let fresh = answer(&cluster, &format!("resourceVersion={seen}&resourceVersionMatch=NotOlderThan"));
    assert_eq!(items(&fresh), 5);
    let number = |list: &Value| text(list, "resourceVersion").parse::<u64>().expect("a number");
    assert!(number(&fresh) >= number(&first));
}

#[test]
fn what_is_too_old_too_new_or_unknown_is_refused_in_these_words() {
    let mut cluster = cluster();
    let future = answer(&cluster, "resourceVersion=999999999&resourceVersionMatch=NotOlderThan");
    is_refusal(&future, 504);
    assert!(future["message"].as_str().is_some_and(|it| it.contains("Too large resource version")), "{future}");
    is_refusal(&lines(&cluster, "sendInitialEvents=true")[0], 422);
    let first = answer(&cluster, "limit=2");
    cluster.api().create(&objects::service("e", &[objects::port(80, None)]));
    cluster.compact();
    cluster.restart();
    is_refusal(&answer(&cluster, &format!("limit=2&continue={}", text(&first, "continue"))), 410);
    let gone = lines(&cluster, "resourceVersion=1");
    has_the_shape(&gone[0], &said::gone());
    assert_eq!((&gone[0]["type"], gone.len()), (&json!("ERROR"), 1));
    is_refusal(&gone[0]["object"], 410);
}

#[test]
fn a_watch_begins_with_the_present_state_and_marks_its_end() {
    let cluster = cluster();
    let streamed = lines(&cluster, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
    let (state, rest) = streamed.split_at(5);
    for event in state {
        has_the_shape(event, &said::event("ADDED", &json!({"kind": "Service", "metadata": {"name": "a"}})));
        assert_eq!(event["type"], "ADDED");
    }
    has_the_shape(&rest[0], &said::end_of_state("Service", "1"));
    assert_eq!((&rest[0]["type"], &rest[0]["object"]["kind"]), (&json!("BOOKMARK"), &json!("Service")));
    let end = &said::end_of_state("Service", "1")["object"]["metadata"]["annotations"];
    assert_eq!(&rest[0]["object"]["metadata"]["annotations"], end);
}
