//! `kubectl portreeve policies` prints parameters with the facts of the agents, and with the options that the user
//! chose.

use serde_json::{Map, Value, json};

use crate::{
    fake::{Fake, Reply},
    plugin::{Plugin, cluster, snapshot},
};

fn told() -> Fake {
    cluster(&["n1", "n2"], |node, _, _| Reply::Json(snapshot(node, 29999)))
}

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn parameters(text: &str) -> Value {
    let objects = documents(text);
    let policies = objects.iter().filter(|it| it["kind"] == "ValidatingAdmissionPolicy");
    let all = policies.map(|policy| {
        let variables = policy["spec"]["variables"].as_array().expect("variables");
        let of = variables.iter().find(|it| it["name"] == "parameters").expect("parameters");
        let text = of["expression"].as_str().expect("text");
        serde_json::from_str::<Map<String, Value>>(text).expect("JSON")
    });
    all.reduce(|mut all, more| {
        all.extend(more);
        all
    })
    .expect("policies")
    .into()
}

#[test]
fn policies_have_the_range_the_band_the_addresses_and_the_chosen_options() {
    let (fake, plugin) = (told(), Plugin::new());
    let chosen = ["--action", "deny", "--keep-free", "10.96.3.4/16", "--fixed", "30000-30085", "--fixed", "shop="];
    let (code, text, notes) = plugin.run(&fake, &[&["policies"], &chosen[..]].concat());
    assert_eq!(code, 0, "{notes}");
    assert!(text.contains("these are the values for one cluster") && !text.contains("the defaults"), "{text}");
    let objects = documents(&text);
    let of_kind = |kind: &str| objects.iter().filter(|it| it["kind"] == kind).collect::<Vec<_>>();
    let policies = of_kind("ValidatingAdmissionPolicy");
    let bindings = of_kind("ValidatingAdmissionPolicyBinding");
    assert_eq!((policies.len(), bindings.len()), (4, 4));
    assert_eq!(objects.len(), 8);
    for (policy, binding) in policies.iter().zip(bindings) {
        assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
        assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
    }
    let wanted = json!({
        "nodePortFirst": "30000", "nodePortLast": "32767", "dynamicBandFirst": "30086", "dynamicBandLast": "32767",
        "keptFreeOfExternalIPs": "10.96.0.0/16", "fixedNodePorts": "30000-30085", "fixedNodePorts.shop": "",
    });
    let all = parameters(&text);
    let mut data = all.clone();
    let addresses = data.as_object_mut().expect("data").remove("nodeAddresses").expect("addresses");
    assert!(addresses.as_str().is_some_and(|it| it.split(' ').any(|ip| ip == "192.0.2.1")), "{addresses}");
    assert_eq!(data, wanted);
    let (_, values, _) = plugin.run(&fake, &[&["policies", "-o", "values"], &chosen[..]].concat());
    let values = &documents(&values)[0]["policies"];
    assert_eq!(values["parameters"], all);
    assert_eq!((&values["enabled"], &values["action"]), (&json!(true), &json!("Deny")));
    for wrong in [["--fixed", "Shop=1"], ["--keep-free", "10.0.0.0/33"], ["--action", "block"]] {
        assert_eq!(plugin.run(&fake, &[&["policies"], &wrong[..]].concat()).0, 64, "{wrong:?}");
    }
}

#[test]
fn a_fact_of_no_agent_is_no_parameter_and_is_reported() {
    let fake = cluster(&["n1", "unready"], |node, _, _| Reply::Json(snapshot(node, 29999)));
    let plugin = Plugin::new();
    let (code, _, notes) = plugin.run(&fake, &["policies"]);
    assert!(code == 2 && notes.contains("not known of unready: ") && notes.contains("the oldest scan is "), "{notes}");
    let nobody = cluster(&[], |_, _, _| Reply::Hangup);
    let (code, text, notes) = plugin.run(&nobody, &["policies"]);
    assert!(
        code == 2 && text.is_empty() && notes.contains("no policy is printed"),
        "an incomplete policy would replace known facts: {notes}"
    );
    assert!(notes.contains("without agents, apply deploy/policies/policies.yaml unchanged"), "{notes}");
    let (code, text, notes) =
        plugin.run(&nobody, &["policies", "--fixed", "shop=30010", "--fixed", "shop=30011-30012"]);
    assert!(code == 2 && notes.contains("no agent reported the cluster"), "{notes}");
    assert_eq!(parameters(&text), json!({"fixedNodePorts.shop": "30010-30012"}));
    let (code, text, notes) = plugin.run(&nobody, &["policies", "--keep-free", "10.96.0.0/16"]);
    assert!(code == 2 && notes.contains("no agent reported the cluster"), "{notes}");
    assert_eq!(parameters(&text), json!({"keptFreeOfExternalIPs": "10.96.0.0/16"}));
    let (_, values, _) = plugin.run(&nobody, &["policies", "-o", "values", "--fixed", ""]);
    let unknown = json!({
        "nodePortFirst": "", "nodePortLast": "", "dynamicBandFirst": "", "dynamicBandLast": "", "fixedNodePorts": "",
    });
    assert_eq!(documents(&values)[0]["policies"]["parameters"], unknown, "else the chart's would be used");
}
