//! Hostile manifest files.

use super::{Case, NAMES};

const CHECK: [&str; 5] = ["check", "--host-root", "/nonexistent", "--services", "FILE"];

fn case(name: String, content: impl Into<Vec<u8>>, says: &str) -> Case {
    Case::new(name, &CHECK, content, 2, says)
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> =
        broken().into_iter().map(|(name, text, says)| case(name.to_owned(), text, says)).collect();
    for name in NAMES {
        for kind in ["Service", "Pod", "Node"] {
            let text = format!("{{\"kind\": \"{kind}\", \"metadata\": {{\"name\": \"{name}\"}}, \"spec\": {{}}}}");
            cases.push(case(format!("{kind} called {name}"), text, "metadata.name is "));
        }
        let text = format!(
            "{{\"kind\": \"Service\", \"metadata\": {{\"name\": \"a\", \"namespace\": \"{name}\"}}, \"spec\": {{}}}}"
        );
        cases.push(case(format!("namespace called {name}"), text, "metadata.namespace is "));
    }
    let values = ["-1", "65536", "80.5", ".nan", "abc", "[]", "{}", "true", "100000000000000000000"];
    for value in values {
        for (field, rest) in [("port", ""), ("nodePort", "port: 80, ")] {
            let text = format!("kind: Service\nmetadata: {{name: a}}\nspec: {{ports: [{{{rest}{field}: {value}}}]}}\n");
            cases.push(case(format!("{field} {value}"), text, &format!("spec.ports[0].{field} is ")));
        }
        let text = format!("kind: Service\nmetadata: {{name: a}}\nspec: {{healthCheckNodePort: {value}}}\n");
        cases.push(case(format!("healthCheckNodePort {value}"), text, "spec.healthCheckNodePort is "));
    }
    for value in ["5", "x", "[]", "{}", "1.2.3", "1.2.3.4.5", "fe80::1%eth0", "1.2.3.4/8"] {
        let text = format!("kind: Service\nmetadata: {{name: a}}\nspec: {{externalIPs: [{value}]}}\n");
        cases.push(case(format!("external IP {value}"), text, "spec.externalIPs[0] is "));
    }
    for value in ["5", "true", "text", "[]"] {
        for key in ["metadata", "spec"] {
            let text = format!("kind: Service\n{key}: {value}\n");
            cases.push(case(format!("{key} {value}"), text, &format!("{key} is ")));
        }
        let text = format!(
            "[{{\"kind\": \"Service\", \"metadata\": {{\"name\": \"a\"}}, \"spec\": {{}}}}, {}]",
            value.replace("text", "\"t\"")
        );
        cases.push(case(format!("item {value}"), text, "items[1] is "));
    }
    cases
}

fn broken() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let deep = |open: &str, close: &str| [open.repeat(10_000), close.repeat(10_000)].concat().into_bytes();
    vec![
        ("nothing", vec![], "is empty, wanted"),
        ("white space", b" \n\t\n".to_vec(), ""),
        ("comments", b"# a\n---\n# b\n".to_vec(), "is empty, wanted"),
        ("zeros", vec![0; 4096], ":1:"),
        ("noise", (0..=255).cycle().take(4096).collect(), ":1:"),
        ("UTF-16", b"\xff\xfek\0i\0n\0d\0".to_vec(), "is UTF-16, wanted UTF-8"),
        ("UTF-16, the other way", b"\xfe\xff\0k\0i".to_vec(), "is UTF-16, wanted UTF-8"),
        ("half a character", b"kind: \xc3".to_vec(), "not UTF-8 text"),
        ("an overlong character", b"kind: \xc0\xaf\n".to_vec(), "not UTF-8 text"),
        ("a surrogate", b"kind: \xed\xa0\x80\n".to_vec(), "not UTF-8 text"),
        ("a page of the web", b"<html><body>no</body></html>".to_vec(), "expected a Kubernetes object"),
        ("a number", b"7".to_vec(), "expected a Kubernetes object"),
        ("an escape code", b"kind: \"\\e[2J\"\nmetadata: 5\n---\nkind: [\x1b[31m\n".to_vec(), ":"),
        ("an open bracket", b"kind: [".to_vec(), "not YAML: unclosed bracket"),
        ("an open quote", b"kind: \"Serv".to_vec(), "not YAML: "),
        ("a tab for a space", b"a:\n\tb: c\n".to_vec(), "not YAML: "),
        ("an unknown alias", b"kind: *nobody\n".to_vec(), "not YAML: "),
        ("an alias of itself", b"kind: &a [*a]\n".to_vec(), ""),
        ("ten thousand brackets", deep("[", "]"), ":1:"),
        ("ten thousand open brackets", deep("[", ""), ":1:"),
        ("ten thousand mappings", deep("{\"a\":", "}"), ":1:"),
        ("ten thousand mappings in YAML", [b"x: ".to_vec(), deep("{a: ", "}")].concat(), ":1:"),
        ("a trailing comma", b"{\"kind\": \"Service\",}".to_vec(), ":1:20: not JSON: trailing comma"),
        ("JSON that ends", b"{\"kind\": \"Serv".to_vec(), "not JSON: EOF"),
        ("two kinds", b"{\"kind\": \"Service\", \"kind\": \"Pod\"}".to_vec(), "Pod"),
        ("two names", b"kind: Service\nmetadata: {name: a, name: 5}\n".to_vec(), "metadata.name is 5"),
        ("two specs", b"kind: Service\nmetadata: {name: a}\nspec: {}\nspec: 5\n".to_vec(), "spec is 5"),
        ("no kind", b"metadata: {name: a}\n".to_vec(), "kind is absent, wanted"),
        (
            "a kind in small letters",
            b"kind: service\nmetadata: {name: a}\n".to_vec(),
            "kind is \"service\", wanted Service",
        ),
        ("core/v1", b"apiVersion: core/v1\nkind: Service\nmetadata: {name: a}\n".to_vec(), "wanted v1"),
        (
            "another kind",
            b"kind: Deployment\nmetadata: {name: a}\n".to_vec(),
            "has no Service but for example Deployment",
        ),
        ("a List that was cut", b"apiVersion: v1\nitems:\n".to_vec(), "ends before the kind of its List"),
        ("a List of null", b"{\"items\": null}".to_vec(), "a List without items or without a kind"),
        ("a List of nothing", b"{\"items\": []}".to_vec(), "a List without items or without a kind"),
        (
            "a page of a List",
            br#"{"kind": "ServiceList", "metadata": {"continue": "abc"}, "items": []}"#.to_vec(),
            "a page of a longer List",
        ),
        (
            "a page without the place of the next page",
            br#"{"kind": "ServiceList", "metadata": {"remainingItemCount": 3}, "items": []}"#.to_vec(),
            "a page of a longer List",
        ),
        (
            "a page in a List",
            br#"{"kind": "List", "items": [{"kind": "ServiceList", "metadata": {"continue": "abc"}, "items": []}]}"#
                .to_vec(),
            "a page of a longer List",
        ),
        (
            "a List in a List that was cut",
            b"items:\n- items:\n  - kind: Service\n    metadata: {name: a}\nkind: List\n".to_vec(),
            "ends before the kind of its List",
        ),
        (
            "null in a List",
            b"kind: List\nitems:\n- kind: Node\n  metadata: {name: a}\n- null\n".to_vec(),
            "items[1] is null, wanted a Kubernetes object",
        ),
        (
            "a Service without its spec",
            b"kind: Service\nmetadata: {name: a, namespace: shop}\n".to_vec(),
            "Service shop/a: spec is absent, wanted a mapping",
        ),
        ("a List without items", b"{\"kind\": \"List\"}".to_vec(), "has no Service"),
        ("an empty List", b"{\"kind\": \"List\", \"items\": []}".to_vec(), "has no Service but for example List"),
        ("a PodList", b"{\"kind\": \"PodList\", \"items\": []}".to_vec(), "has no Service but for example PodList"),
        ("no List, and no items", b"items:\nkind: Servi\n".to_vec(), "has no Service but for example Servi"),
        (
            "a long text",
            format!("kind: Service\nx: {}\n", "x".repeat(5 << 20)).into_bytes(),
            "4 MiB without a complete object",
        ),
        ("a long JSON text", format!("{{\"x\": \"{}\"}}", "x".repeat(5 << 20)).into_bytes(), "4 MiB without"),
        ("spaces without end", " ".repeat(5 << 20).into_bytes(), ""),
        (
            "aliases of a long text",
            format!("x: &a {}\ny: [{}]\n", "x".repeat(90_000), "*a,".repeat(900)).into_bytes(),
            ":1:",
        ),
        ("too many aliases", format!("x: &a b\ny: [{}]\n", "*a,".repeat(5000)).into_bytes(), "not YAML: "),
    ]
}
