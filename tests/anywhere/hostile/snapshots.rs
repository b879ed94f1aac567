//! Hostile snapshots, which no scan wrote.

use std::{fs, path::Path};

use super::{Case, NAMES};

const REPLAY: [&str; 3] = ["check", "--snapshot", "FILE"];

pub(super) fn cases() -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/anywhere/worlds/healthy.json");
    let world: serde_json::Value =
        serde_json::from_slice(&fs::read(path).expect("the recorded world")).expect("a snapshot");
    let world = serde_json::to_string(&world).expect("JSON");
    let changed = |was: &str, is: &str| {
        assert!(world.contains(was), "{was}");
        world.replacen(was, is, 1)
    };
    let case = |name: String, content: String, says: &str| Case::new(name, &REPLAY, content, 2, says);
    let mut cases = vec![
        case("nothing".to_owned(), String::new(), "is not a snapshot: "),
        case("a list".to_owned(), "[]".to_owned(), "is not a snapshot: "),
        case("null".to_owned(), "null".to_owned(), "is not a snapshot: "),
        case("no schema".to_owned(), "{}".to_owned(), "the document has no schema"),
        case("brackets".to_owned(), "[".repeat(100_000), "is not a snapshot: "),
        case("its end is missing".to_owned(), world[..world.len() / 2].to_owned(), "is not a snapshot: "),
        case("more behind it".to_owned(), format!("{world}{world}"), "is not a snapshot: "),
    ];
    let name = r#""name":"web""#;
    for hostile in NAMES {
        cases.push(case(
            format!("Service {hostile}"),
            changed(name, &format!(r#""name":"{hostile}""#)),
            "the name of a Service",
        ));
        let namespace = format!(r#""namespace":"{hostile}""#);
        let everywhere = world.replace(r#""namespace":"default""#, &namespace);
        cases.push(case(format!("namespace {hostile}"), everywhere, "the namespace of "));
    }
    let (nodes, ephemeral) = (r#"{"first":30000,"last":32767}"#, r#"{"first":32768,"last":60999}"#);
    for range in [nodes, ephemeral] {
        for (first, last) in
            [("32768", "0"), ("65535", "0"), ("65536", "65537"), ("-1", "5"), ("\"1\"", "5"), ("1.5", "5")]
        {
            let inverted = format!(r#"{{"first":{first},"last":{last}}}"#);
            cases.push(case(format!("range {inverted} for {range}"), changed(range, &inverted), "is not a snapshot: "));
        }
    }
    for port in ["0", "-1", "65536", "null", "\"80\"", "[]"] {
        let text = changed(r#""node_port":30080"#, &format!(r#""node_port":{port}"#));
        if port != "null" {
            cases.push(case(format!("nodePort {port}"), text, "is not a snapshot: "));
        }
    }
    for schema in ["portreeve.snapshot/v2", "a\\u202eb", "", "\\u001b[2J"] {
        let text = changed("portreeve.snapshot/v1", schema);
        cases.push(case(format!("schema {schema}"), text, "the schema of the document is "));
    }
    cases
}
