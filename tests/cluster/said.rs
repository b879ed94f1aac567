//! The texts of API servers, word for word. The fake sends them, and `tests/lab` compares them with a real server.

use serde_json::{Value, json};

/// A page of a list; `next` is the token of the next page, empty on the last one.
pub fn page(kind: &str, items: &[Value], next: &str) -> Value {
    let mut metadata = json!({"resourceVersion": "1"});
    if !next.is_empty() {
        metadata["continue"] = json!(next);
    }
    json!({"kind": format!("{kind}List"), "apiVersion": "v1", "metadata": metadata, "items": items})
}

/// A refusal: 410 for an expired version, 422 for an unknown field, 504 for a version that the server has not reached.
pub fn refusal(code: u16) -> Value {
    let (reason, message) = match code {
        410 => ("Expired", "The provided continue parameter is too old to display a consistent list result."),
        422 => ("Invalid", "sendInitialEvents: Forbidden: resourceVersionMatch is forbidden for watch"),
        504 => ("Timeout", "Too large resource version: 2, current: 1"),
        other => unreachable!("{other}"),
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

/// Patches the status of a Node, as a strategic merge patch does: a condition of the patch changes the condition of its type.
pub fn patch_status(node: &mut Value, patch: &Value) {
    let conditions = node["status"]["conditions"].as_array_mut().expect("conditions");
    for patched in patch["status"]["conditions"].as_array().into_iter().flatten() {
        match conditions.iter_mut().find(|condition| condition["type"] == patched["type"]) {
            Some(known) => {
                let fields = patched.as_object().expect("a condition").clone();
                known.as_object_mut().expect("a condition").extend(fields);
            }
            None => conditions.push(patched.clone()),
        }
    }
}

/// An event of a watch.
pub fn event(word: &str, object: &Value) -> Value {
    json!({"type": word, "object": object})
}

/// The event that ends the state with which a watch begins.
pub fn end_of_state(kind: &str, version: &str) -> Value {
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    let metadata = json!({"resourceVersion": version, "annotations": annotations});
    event("BOOKMARK", &json!({"kind": kind, "apiVersion": "v1", "metadata": metadata}))
}

/// The end of a watch whose version is gone.
pub fn gone() -> Value {
    event("ERROR", &refusal(410))
}
