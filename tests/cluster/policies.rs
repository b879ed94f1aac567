//! `kubectl portreeve policies`: what the agents know stands in the parameters, and what is chosen beside it.

use serde_json::{Value, json};

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

#[test]
fn policies_come_with_the_range_the_band_the_addresses_and_what_is_chosen() {
    let (fake, plugin) = (told(), Plugin::new());
    let chosen = ["--action", "deny", "--keep-free", "10.96.3.4/16", "--fixed", "30000-30085", "--fixed", "shop="];
    let (code, text, notes) = plugin.run(&fake, &[&["policies"], &chosen[..]].concat());
    assert_eq!(code, 0, "{notes}");
    let objects = documents(&text);
    let of_kind = |kind: &str| objects.iter().filter(|it| it["kind"] == kind).collect::<Vec<_>>();
    let policies = of_kind("ValidatingAdmissionPolicy");
    let bindings = of_kind("ValidatingAdmissionPolicyBinding");
    assert_eq!((policies.len(), bindings.len()), (4, 4));
    let maps = of_kind("ConfigMap");
    let [map] = maps[..] else { panic!("{text}") };
    for (policy, binding) in policies.iter().zip(bindings) {
        assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
        assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
        let reference = &binding["spec"]["paramRef"];
        assert_eq!(
            ["name", "namespace"].map(|it| &reference[it]),
            ["name", "namespace"].map(|it| &map["metadata"][it])
        );
    }
    let wanted = json!({
        "nodePortFirst": "30000", "nodePortLast": "32767", "dynamicBandFirst": "30086", "dynamicBandLast": "32767",
        "keptFreeOfExternalIPs": "10.96.0.0/16", "fixedNodePorts": "30000-30085", "fixedNodePorts.shop": "",
    });
    let mut data = map["data"].clone();
    let addresses = data.as_object_mut().expect("data").remove("nodeAddresses").expect("addresses");
    assert!(addresses.as_str().is_some_and(|it| it.split(' ').any(|ip| ip == "192.0.2.1")), "{addresses}");
    assert_eq!(data, wanted);
    let (_, values, _) = plugin.run(&fake, &[&["policies", "-o", "values"], &chosen[..]].concat());
    let values = &documents(&values)[0]["policies"];
    assert_eq!(values["parameters"], map["data"]);
    assert_eq!((&values["enabled"], &values["action"]), (&json!(true), &json!("Deny")));
    for wrong in [["--fixed", "Shop=1"], ["--keep-free", "10.0.0.0/33"], ["--action", "block"]] {
        assert_eq!(plugin.run(&fake, &[&["policies"], &wrong[..]].concat()).0, 64, "{wrong:?}");
    }
}

#[test]
fn what_no_agent_tells_is_no_parameter_and_is_said() {
    let fake = cluster(&["n1", "unready"], |node, _, _| Reply::Json(snapshot(node, 29999)));
    let plugin = Plugin::new();
    let (code, _, notes) = plugin.run(&fake, &["policies"]);
    assert!(code == 2 && notes.contains("not known of unready: "), "{notes}");
    let nobody = cluster(&[], |_, _, _| Reply::Hangup);
    let (code, text, notes) = plugin.run(&nobody, &["policies"]);
    assert!(code == 2 && notes.contains("no agent told"), "{notes}");
    assert_eq!(documents(&text).last().expect("a map")["data"], json!({}));
}
