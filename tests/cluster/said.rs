//! The texts of real API servers, word for word. The fake sends these texts, and `tests/lab` compares them with a real
//! server.

use serde_json::{Value, json};

/// `next` is the token of the next page, or empty on the last page.
pub fn page(kind: &str, items: &[Value], next: &str) -> Value {
    let mut metadata = json!({"resourceVersion": "1"});
    if !next.is_empty() {
        metadata["continue"] = json!(next);
    }
    json!({"kind": format!("{kind}List"), "apiVersion": "v1", "metadata": metadata, "items": items})
}

/// 410: the version is expired. 422: a field is unknown. 504: the server has not reached the version.
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

/// Applies a strategic merge patch to the status of a Node. If the Node has a condition of the same type, the patch
/// changes this condition.
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

pub fn event(word: &str, object: &Value) -> Value {
    json!({"type": word, "object": object})
}

/// The event after the last existing object, in a watch that first sends an event for each existing object.
pub fn end_of_state(kind: &str, version: &str) -> Value {
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    let metadata = json!({"resourceVersion": version, "annotations": annotations});
    event("BOOKMARK", &json!({"kind": kind, "apiVersion": "v1", "metadata": metadata}))
}

/// The event that ends a watch if the API server no longer has the watch's version.
pub fn gone() -> Value {
    event("ERROR", &refusal(410))
}
