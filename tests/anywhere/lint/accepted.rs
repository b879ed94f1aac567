//! The annotation `portreeve/accept`: `lint` counts accepted findings and does not print them. A wrong name in the
//! annotation is an error.

use serde_json::Value;

use super::{lint, service};

fn accepting(name: &str, rules: &str) -> String {
    let plain = format!("namespace: {}}}", name.split_once('/').map_or("default", |(namespace, _)| namespace));
    let text = service(name, "nodePort: 30080");
    text.replace(&plain, &plain.replace('}', &format!(", annotations: {{portreeve/accept: {rules}}}}}")))
}

fn document(text: &str) -> (i32, Value) {
    let (code, stdout, stderr) = lint(&[("a.yaml", text)], &["a.yaml", "-o", "json"]);
    (code, serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}")))
}

#[test]
fn what_an_object_accepts_is_counted_and_told_of_no_other_object() {
    let web = accepting("shop/web", "node-port-claimed-twice");
    let (code, found) = document(&(web.clone() + &service("api", "nodePort: 30080")));
    assert_eq!((code, &found["accepted"]), (1, &Value::from(1)), "{found}");
    let objects: Vec<_> = found["findings"].as_array().expect("findings").iter().map(|it| &it["object"]).collect();
    assert_eq!(objects, ["Service default/api"], "the other one accepts nothing");
    let both = web + &accepting("api", "\"pod-waits-for-port/pod, node-port-claimed-twice/refused\"");
    let (code, found) = document(&both);
    assert_eq!((code, &found["accepted"], found["findings"].as_array().map(Vec::len)), (0, &Value::from(2), Some(0)));
    let (_, stdout, _) = lint(&[("a.yaml", &both)], &["a.yaml"]);
    assert!(stdout.contains("accepted         2, as annotations portreeve/accept say"), "{stdout}");
    for form in [&["--no-headers"][..], &["-o", "github"]] {
        let (code, stdout, stderr) = lint(&[("a.yaml", &both)], &[&["a.yaml"], form].concat());
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "", "accepted: 2\n"));
    }
}

#[test]
fn another_rule_accepts_nothing() {
    for other in ["pod-waits-for-port/pod", "node-port-range-mismatch/band"] {
        let (code, found) = document(&accepting("web", other).replace("30080", "40000"));
        assert_eq!((code, &found["accepted"]), (1, &Value::from(0)), "{found}");
    }
}

#[test]
fn a_name_that_is_no_rule_is_an_error_at_its_place() {
    for (written, says) in [
        ("node-port-claimed-twize", "names \"node-port-claimed-twize\", which is no rule that judges manifests"),
        ("proxy-near-fd-limit", "names \"proxy-near-fd-limit\", which is no rule"),
        ("\"\"", "names no rule, wanted RULE,RULE"),
    ] {
        let (code, _, stderr) = lint(&[("a.yaml", &accepting("web", written))], &["a.yaml", "--no-headers"]);
        assert_eq!(code, 2, "{stderr}");
        assert!(
            stderr.starts_with("error: a.yaml:3:75: Service default/web: the annotation portreeve/accept"),
            "{stderr}"
        );
        assert!(stderr.contains(says), "{stderr}");
    }
    // Like `lint`, the API server accepts only text as the value of an annotation.
    for (written, is) in [("true", "true"), ("[node-port-claimed-twice]", "a list")] {
        let (code, stdout, _) = lint(&[("a.yaml", &accepting("web", written))], &["a.yaml", "-o", "github"]);
        let wanted = format!(
            "::error file=a.yaml,line=3,col=75,title=portreeve::Service default/web: \
             metadata.annotations.portreeve/accept is {is}, wanted a text"
        );
        assert!(code == 2 && stdout.contains(&wanted), "{stdout}");
    }
}
