//! Charts beside what helm rendered of them: the file and the line of the template are marked, and never a wrong one.

use std::{fs, os::unix::fs::symlink};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{folder, helm::from_stdin, sarif::follows_the_standard};

/// A template as `helm create` makes one, with a number of its own.
const WEB: &str = r#"{{- if .Values.enabled -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "shop.fullname" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "shop.labels" . | nindent 4 }}
spec:
  # nodePort: 30080 is the door of the shop
  type: NodePort
  ports:
    - port: {{ .Values.service.port }}
      targetPort: http
      {{- if .Values.service.nodePort }}
      nodePort: {{ .Values.service.nodePort }}
      {{- end }}
  selector:
    {{- include "shop.selectorLabels" . | nindent 4 }}
{{- end }}
"#;
const DB: &str = "apiVersion: v1\nkind: Service\nmetadata:\n  name: db\n  namespace: api\nspec:\n  type: NodePort\n  \
                  ports:\n    - port: 5432\n      nodePort: 30080\n    - port: 5433\n      nodePort: 30081\n";

/// Two charts as people keep them, of which one lies in a folder of another name, and the other has a chart in it.
const CHARTS: [(&str, &str); 6] = [
    ("charts/store/Chart.yaml", "apiVersion: v2\nname: shop\nversion: 0.1.0\n"),
    ("charts/store/templates/web.yaml", WEB),
    ("charts/store/values.yaml", "enabled: true\nservice:\n  port: 80\n  nodePort: 30080\n"),
    ("charts/api/Chart.yaml", "apiVersion: v2\nname: api\nversion: 0.1.0\n"),
    ("charts/api/charts/db/Chart.yaml", "apiVersion: v2\nname: db\nversion: 0.1.0\n"),
    ("charts/api/charts/db/templates/db.yaml", DB),
];

/// As `helm template` prints both, one after the other. The nodePorts that collide are on lines 17 and 32.
fn rendered() -> String {
    let web = "---\n# Source: shop/templates/web.yaml\napiVersion: v1\nkind: Service\nmetadata:\n  name: shop\n  namespace: shop\n  \
               labels:\n    app.kubernetes.io/name: shop\n    app.kubernetes.io/instance: shop\nspec:\n  \
               # nodePort: 30080 is the door of the shop\n  type: NodePort\n  ports:\n    - port: 80\n      targetPort: http\n      \
               nodePort: 30080\n  selector:\n    app.kubernetes.io/name: shop\n    app.kubernetes.io/instance: shop\n";
    format!("{web}---\n# Source: api/charts/db/templates/db.yaml\n{DB}")
}

const STORE: &str = "charts/store/templates/web.yaml";
const INNER: &str = "charts/api/charts/db/templates/db.yaml";

/// The annotations of the collision, up to their titles and with what stands before the sentence.
fn annotations(folder: &TempDir) -> Vec<String> {
    let (stdout, _) = from_stdin(folder.path(), &rendered(), &["-o", "github", "--rule", "node-port-claimed-twice"]);
    stdout.lines().map(|line| line.split(": nodePort").next().expect("a part").to_owned()).collect()
}

/// The same where the first chart has these files instead.
fn with(files: &[(&str, &str)]) -> Vec<String> {
    let others = CHARTS.into_iter().filter(|(name, _)| files.iter().all(|(file, _)| file != name));
    annotations(&folder(&others.chain(files.iter().copied()).collect::<Vec<_>>()))
}

const MARKED: &str = "::warning file=charts/store/templates/web.yaml,line=16,col=7,title=node-port-claimed-twice/refused::\
                      charts/store/templates/web.yaml:16:7 (standard input:17:17)";
const MARKED_INNER: &str = "::warning file=charts/api/charts/db/templates/db.yaml,line=10,col=7,title=node-port-claimed-twice/refused::\
                            charts/api/charts/db/templates/db.yaml:10:7 (standard input:32:17)";
const FILE_ALONE: &str = "::warning file=charts/store/templates/web.yaml,title=node-port-claimed-twice/refused::\
                          charts/store/templates/web.yaml (standard input:17:17)";
const NO_FILE: &str = "::warning title=node-port-claimed-twice/refused::shop/templates/web.yaml (standard input:17:17)";

#[test]
fn two_charts_that_collide_are_marked_at_the_lines_that_write_the_number() {
    assert_eq!(with(&[]), [MARKED, MARKED_INNER]);
}

#[test]
fn every_form_names_the_line_of_the_template_and_that_of_what_was_rendered() {
    let charts = folder(&CHARTS);
    let run = |arguments: &[&str]| {
        let (stdout, stderr) = from_stdin(charts.path(), &rendered(), arguments);
        assert!(!stderr.contains("template"), "{stderr}");
        stdout
    };
    let rows = run(&["--no-headers"]);
    let place = "charts/store/templates/web.yaml:16:7 (standard input:17:17)";
    let other = "charts/api/charts/db/templates/db.yaml:10:7 (standard input:32:17)";
    assert!(rows.lines().any(|row| row.starts_with(&format!("{place}: warning: "))), "{rows}");
    let table = run(&[]);
    assert!(table.contains(&format!("{place}  WARNING")) && table.contains(&format!("Also      {other}")), "{table}");
    let document: Value = serde_json::from_str(&run(&["-o", "json"])).expect("JSON");
    let web = document["findings"].as_array().expect("findings").iter().find(|it| it["object"] == "Service shop/shop");
    let web = web.expect("a finding");
    let keys = ["file", "line", "template", "templateFile", "templateLine"];
    assert_eq!(
        keys.map(|key| web[key].clone()),
        [json!("standard input"), json!(17), json!("shop/templates/web.yaml"), json!(STORE), json!(16)]
    );
    assert_eq!((&web["related"][0]["templateFile"], &web["related"][0]["templateLine"]), (&json!(INNER), &json!(10)));
    let log: Value = serde_json::from_str(&run(&["-o", "sarif"])).expect("JSON");
    follows_the_standard(&log);
    let results = log["runs"][0]["results"].as_array().expect("results");
    let physical = |at: &Value| (at["artifactLocation"]["uri"].clone(), at["region"].clone());
    let web = results.iter().find(|it| physical(&it["locations"][0]["physicalLocation"]).0 == STORE).expect("a result");
    let text = "      nodePort: {{ .Values.service.nodePort }}";
    assert_eq!(
        web["locations"][0]["physicalLocation"]["region"],
        json!({"startLine": 16, "startColumn": 7, "endLine": 16, "endColumn": text.len() + 1})
    );
    assert_eq!(physical(&web["relatedLocations"][0]["physicalLocation"]).0, INNER);
    assert!(web["message"]["text"].as_str().is_some_and(|text| text.ends_with(place)), "{web}");
    let junit = run(&["-o", "junit"]);
    assert!(junit.contains(&format!("file=\"{STORE}\" line=\"16\"")) && junit.contains(place), "{junit}");
}

#[test]
fn in_the_folder_of_the_chart_its_template_is_found_too() {
    let charts = folder(&CHARTS);
    let arguments = ["-o", "github", "--rule", "node-port-claimed-twice"];
    let (stdout, _) = from_stdin(&charts.path().join("charts/store"), &rendered(), &arguments);
    assert!(stdout.contains("::warning file=templates/web.yaml,line=16,col=7,"), "{stdout}");
    assert!(stdout.contains("::api/charts/db/templates/db.yaml (standard input:32:17): "), "{stdout}");
}

#[test]
fn where_two_files_fit_or_none_does_the_template_is_named_as_helm_names_it() {
    let second = [("old/shop/Chart.yaml", "name: shop"), ("old/shop/templates/web.yaml", WEB)];
    assert_eq!(with(&second), [NO_FILE, MARKED_INNER], "two charts have the name");
    assert_eq!(with(&second[..1]), [MARKED, MARKED_INNER], "only one has the file");
    let rendered = [("rendered/shop/templates/web.yaml", "x"), ("shop/templates/web.yaml", "x")];
    assert_eq!(with(&rendered), [MARKED, MARKED_INNER], "what is in no chart is no template");
    for chart in ["name: store", "name: [", "", "name: {{ .name }}"] {
        assert_eq!(with(&[("charts/store/Chart.yaml", chart)]), [NO_FILE, MARKED_INNER], "{chart}");
    }
}

#[test]
fn where_two_lines_may_write_the_field_the_file_is_marked_and_no_line() {
    let template = |from: &str, to: &str| with(&[(STORE, &WEB.replace(from, to))]);
    let twice = "type: NodePort\n  healthCheck: {nodePort: {{ .Values.other }}}\n";
    assert_eq!(template("type: NodePort\n", twice), [FILE_ALONE, MARKED_INNER]);
    let more = "{{- end }}\n    {{- toYaml .Values.service.more | nindent 4 }}\n  selector:";
    assert_eq!(template("{{- end }}\n  selector:", more), [FILE_ALONE, MARKED_INNER], "a part of what is in values");
    assert_eq!(template("{{- if .Values.enabled -}}", "# nodePort: {{ .x }}"), [MARKED, MARKED_INNER], "a comment");
    assert_eq!(template("      nodePort: ", "      # nodePort: "), [FILE_ALONE, MARKED_INNER], "in a comment alone");
    assert_eq!(template("{{ .Values.service.nodePort }}", "30081"), [FILE_ALONE, MARKED_INNER], "another number");
    let long = format!("{WEB}# {}\n", "x".repeat(1 << 20));
    assert_eq!(with(&[(STORE, &long)]), [FILE_ALONE, MARKED_INNER], "too long to be read");
}

#[test]
fn no_link_is_a_template() {
    let charts = folder(&CHARTS);
    let path = charts.path().join(STORE);
    fs::rename(&path, charts.path().join("web.yaml")).expect("a file");
    symlink(charts.path().join("web.yaml"), &path).expect("a link");
    assert_eq!(annotations(&charts), [NO_FILE, MARKED_INNER]);
    fs::remove_file(&path).expect("a link");
    fs::rename(charts.path().join("web.yaml"), &path).expect("a file");
    symlink(charts.path().join("charts/store"), charts.path().join("charts/shop")).expect("a link");
    symlink(charts.path(), charts.path().join("charts/store/around")).expect("a link");
    assert_eq!(annotations(&charts), [MARKED, MARKED_INNER], "a link is no second chart");
}

#[test]
fn in_a_tree_without_an_end_no_file_is_named_and_a_person_is_told() {
    let charts = folder(&CHARTS);
    let heap = charts.path().join("heap");
    fs::create_dir(&heap).expect("a folder");
    for index in 0..100_000 {
        fs::write(heap.join(index.to_string()), "").expect("a file");
    }
    let (stdout, stderr) = from_stdin(charts.path(), &rendered(), &["-o", "github"]);
    assert!(!stdout.contains("file=") && stdout.contains(NO_FILE), "{stdout}");
    let note = "no file of a template is named, as not all below this folder is known: there are more than 100000 files and folders";
    assert!(stderr.contains(note), "{stderr}");
    // Where nothing is found, nobody looks.
    let (_, stderr) = from_stdin(
        charts.path(),
        &rendered().replace("nodePort: 30080\n  selector", "nodePort: 30082\n  selector"),
        &[],
    );
    assert_eq!(stderr, "");
}

#[test]
fn no_name_leads_elsewhere_or_ends_a_line() {
    let strange = "a,b:c\n::error::x";
    let chart = format!("{strange}/Chart.yaml");
    let file = format!("{strange}/templates/web.yaml");
    let found = with(&[("charts/store/Chart.yaml", "name: store"), (&chart, "name: shop"), (&file, WEB)]);
    let wanted = "::warning file=a%2Cb%3Ac%3A%3Aerror%3A%3Ax/templates/web.yaml,line=16,col=7,title=";
    assert!(found.iter().any(|line| line.starts_with(wanted)), "{found:?}");
    let charts = folder(&[("x/Chart.yaml", "name: x"), ("web.yaml", WEB), ("x/templates/web.yaml", WEB)]);
    for template in
        ["x/../web.yaml", "x/templates/../../web.yaml", "/etc/passwd", "x/", "x/templates", "../x/templates/web.yaml"]
    {
        let text = rendered().replace("shop/templates/web.yaml", template);
        let (stdout, _) = from_stdin(charts.path(), &text, &["-o", "github"]);
        assert!(!stdout.contains("file="), "{template}: {stdout}");
    }
}

#[test]
fn what_could_not_be_read_names_the_file_of_its_template() {
    let text = rendered().replacen("nodePort: 30080\n", "nodePort: 70000\n", 1).replace("# nodePort", "#");
    let charts = folder(&CHARTS);
    let (stdout, _) = from_stdin(charts.path(), &text, &["-o", "github"]);
    let wanted =
        "::error file=charts/store/templates/web.yaml,title=portreeve::shop/templates/web.yaml (standard input:";
    assert!(stdout.starts_with(wanted), "{stdout}");
}
