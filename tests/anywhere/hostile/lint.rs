//! Hostile manifests from a user who can open a pull request.

use super::{Case, NAMES};

const LINT: [&str; 2] = ["lint", "FILE"];

pub(super) fn cases() -> Vec<Case> {
    let deep = |open: &str, close: &str| [open.repeat(10_000), close.repeat(10_000)].concat().into_bytes();
    let bomb = |levels: usize| {
        let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..levels {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            text.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        text.into_bytes()
    };
    let long = 33 << 20;
    let mut cases: Vec<Case> = vec![
        ("nothing", vec![], "is empty, wanted"),
        ("comments", b"# a\n---\n# b\n".to_vec(), "is empty, wanted"),
        ("zeros", vec![0; 4096], ":1:"),
        ("noise", (0..=255).cycle().take(4096).collect(), ":1:"),
        ("UTF-16", b"\xff\xfek\0i\0n\0d\0".to_vec(), "is UTF-16, wanted UTF-8"),
        ("half a character", b"kind: \xc3".to_vec(), "not UTF-8 text"),
        ("an overlong character", b"a: b\nkind: \xc0\xaf\n".to_vec(), "2:7: not YAML: not UTF-8 text"),
        ("a page of the web", b"<html><body>no</body></html>".to_vec(), "is not a Kubernetes object"),
        ("a number", b"7".to_vec(), "1:1: is not a Kubernetes object"),
        ("an open bracket", b"kind: [".to_vec(), "not YAML: unclosed bracket"),
        ("a tab for a space", b"a:\n\tb: c\n".to_vec(), "not YAML: "),
        ("an unknown alias", b"kind: *nobody\n".to_vec(), "not YAML: "),
        ("a bomb of anchors", bomb(12), "not YAML: "),
        ("too many aliases", format!("x: &a b\ny: [{}]\n", "*a,".repeat(5000)).into_bytes(), "not YAML: "),
        (
            "aliases of a long text",
            format!("x: &a {}\ny: [{}]\n", "x".repeat(90_000), "*a,".repeat(900)).into_bytes(),
            "not YAML: ",
        ),
        ("ten thousand brackets", deep("[", "]"), "not YAML: "),
        ("ten thousand open brackets", deep("[", ""), "not YAML: "),
        ("ten thousand mappings", [b"x: ".to_vec(), deep("{a: ", "}")].concat(), "not YAML: "),
        ("Lists in Lists", [deep_list(20).into_bytes()].concat(), "too many Lists inside Lists"),
        ("a file that is too long", format!("x: {}\n", "x".repeat(long)).into_bytes(), "is longer than 33554432 bytes"),
        ("two names", b"kind: Service\nmetadata: {name: a, name: 5}\nspec: {}\n".to_vec(), "metadata.name is 5"),
        ("two specs", b"kind: Service\nmetadata: {name: a}\nspec: {}\nspec: 5\n".to_vec(), "spec is 5"),
        (
            "a Service without its spec",
            b"kind: Service\nmetadata: {name: a}\n".to_vec(),
            "spec is absent, wanted a mapping",
        ),
        ("an escape code", b"kind: Service\nmetadata: {name: \"\\e[2J\"}\nspec: {}\n".to_vec(), "metadata.name is "),
        ("a thousand broken documents", b"a: [\n---\n".repeat(1000), "(and 16 more)"),
    ]
    .into_iter()
    .map(|(name, content, says)| Case::new(format!("lint: {name}"), &LINT, content, 2, says))
    .collect();
    for name in NAMES {
        let text = format!("{{\"kind\": \"Service\", \"metadata\": {{\"name\": \"{name}\"}}, \"spec\": {{}}}}");
        cases.push(Case::new(format!("lint: Service called {name}"), &LINT, text, 2, "metadata.name is "));
    }
    for value in
        ["-1", "65536", "80.5", "65536.0", "1e30", ".inf", ".nan", "abc", "[]", "{}", "true", "100000000000000000000"]
    {
        let text =
            format!("kind: Service\nmetadata: {{name: a}}\nspec: {{ports: [{{port: 80, nodePort: {value}}}]}}\n");
        cases.push(Case::new(format!("lint: nodePort {value}"), &LINT, text, 2, "spec.ports[0].nodePort is "));
    }
    cases
}

fn deep_list(levels: usize) -> String {
    [r#"{"kind": "List", "items": ["#.repeat(levels), "]}".repeat(levels)].concat()
}
