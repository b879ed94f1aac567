//! Manifests that the real helm renders. Findings in these manifests name the templates.

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

use crate::helm;

const CHARTS: [(&str, &str); 5] = [
    ("charts/store/Chart.yaml", "apiVersion: v2\nname: shop\nversion: 0.1.0\n"),
    (
        "charts/store/templates/web.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: {{ .Release.Namespace }}}\nspec:\n  type: NodePort\n  \
         ports:\n  - {port: 80, nodePort: 30080}\n",
    ),
    ("charts/api/Chart.yaml", "apiVersion: v2\nname: api\nversion: 0.1.0\n"),
    ("charts/api/charts/db/Chart.yaml", "apiVersion: v2\nname: db\nversion: 0.1.0\n"),
    (
        "charts/api/charts/db/templates/db.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: api}\nspec:\n  type: NodePort\n  ports:\n  \
         - {port: 5432, nodePort: 30080}\n",
    ),
];

#[test]
fn of_two_charts_that_collide_the_templates_are_named() {
    let folder = tempfile::TempDir::new().expect("a directory");
    for (name, text) in CHARTS {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    let render = |name: &str, chart: &str| {
        let chart = folder.path().join(chart);
        let arguments = ["template", name, chart.to_str().expect("UTF-8"), "--namespace", name];
        helm::run(arguments.into_iter()).unwrap_or_else(|error| panic!("{error}"))
    };
    let rendered = render("shop", "charts/store") + &render("api", "charts/api");
    let mut lint = Command::new(env!("CARGO_BIN_EXE_portreeve"));
    lint.current_dir(folder.path()).args(["lint", "-", "-o", "github", "--rule", "node-port-claimed-twice"]);
    let mut lint = lint.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("portreeve runs");
    lint.stdin.take().expect("a pipe").write_all(rendered.as_bytes()).expect("it reads");
    let output = lint.wait_with_output().expect("it ends");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{text}");
    let mut marked: Vec<&str> = text.lines().map(|line| line.split(",title=").next().expect("a part")).collect();
    marked.sort_unstable();
    assert_eq!(
        marked,
        ["::error file=api/charts/db/templates/db.yaml", "::error file=shop/templates/web.yaml"],
        "{text}\n{rendered}"
    );
}
