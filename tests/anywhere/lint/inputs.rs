//! The inputs of `lint`: every kind, files and folders, standard input, JSON, Lists, and broken documents.

use std::{
    fs::{self, File, OpenOptions, create_dir},
    io::Write as _,
    os::{fd::AsRawFd as _, unix::fs::symlink},
    process::{Output, Stdio},
};

use nix::{sys::stat::Mode, unistd::mkfifo};
use serde_json::Value;

use super::{containers, folder, found, lint, service, workload};
use crate::{
    cli::{binary, ended},
    manifests::as_json,
};

const IN_RANGE: &str = "containerPort: 80, hostPort: 31000";

#[test]
fn every_kind_with_pods_is_read() {
    for kind in ["DaemonSet", "Deployment", "StatefulSet", "ReplicaSet", "ReplicationController", "Job"] {
        let lines = found(&workload(kind, "x", "", &containers(IN_RANGE)), &[]);
        assert_eq!(lines, [format!("5:74 info host-port-conflict/latent {kind} default/x 31000/tcp")]);
    }
    let pod = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: x}}\nspec: {{{}}}\n", containers(IN_RANGE));
    assert_eq!(found(&pod, &[]), ["4:60 info host-port-conflict/latent Pod default/x 31000/tcp"]);
    let cron = format!(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{generateName: x-}}\nspec: {{jobTemplate: {{spec: {{template: \
         {{spec: {{{}}}}}}}}}}}\n",
        containers(IN_RANGE)
    );
    let lines = found(&cron, &[]);
    assert!(lines[0].ends_with("info host-port-conflict/latent CronJob default/x-00000 31000/tcp"), "{lines:?}");
    let stays = format!("initContainers: [{{restartPolicy: Always, ports: [{{{IN_RANGE}}}]}}]");
    assert_eq!(found(&workload("Deployment", "x", "", &stays), &[]).len(), 1);
    assert!(found(&workload("Deployment", "x", "", &stays.replace("Always", "Never")), &[]).is_empty());
}

#[test]
fn what_a_controller_made_is_told_of_the_controller_alone() {
    let set = workload("ReplicaSet", "x-7d9", "", &containers(IN_RANGE));
    let owned =
        set.replace("{name: x-7d9}", "{name: x-7d9, ownerReferences: [{kind: Deployment, name: x, controller: true}]}");
    assert_eq!(found(&set, &[]).len(), 1);
    assert!(found(&owned, &["--allow-empty"]).is_empty());
    let of_group = |version: &str| {
        found(&owned.replace("{kind:", &format!("{{apiVersion: {version}, kind:")), &["--allow-empty"]).len()
    };
    assert_eq!((of_group("apps/v1"), of_group("apps.kruise.io/v1")), (0, 1));
}

#[test]
fn what_an_operator_made_is_judged() {
    let set = workload("DaemonSet", "x", "", &containers(IN_RANGE));
    let by = |kind: &str| {
        set.replace("{name: x}", &format!("{{name: x, ownerReferences: [{{kind: {kind}, controller: true}}]}}"))
    };
    for (kind, findings) in [("Installation", 1), ("Pod", 1), ("CronJob", 0), ("ReplicationController", 0)] {
        assert_eq!(found(&by(kind), &["--allow-empty"]).len(), findings, "{kind}");
    }
}

#[test]
fn a_folder_is_read_with_what_is_below_it() {
    let web = service("web", "nodePort: 30080");
    let files = [
        ("deploy/a.yaml", web.as_str()),
        ("deploy/below/b.yml", &service("api", "nodePort: 30080")),
        ("deploy/c.json", &as_json(service("dns", "nodePort: 30080").trim_end_matches("---\n"))),
        ("deploy/notes.md", "no manifest: ["),
        ("deploy/.git/d.yaml", "no manifest: ["),
    ];
    let (code, stdout, stderr) = lint(&files, &["deploy", "--no-headers"]);
    assert_eq!((code, stderr.as_str()), (1, ""), "{stdout}");
    let places: Vec<&str> = stdout.lines().filter_map(|line| line.split(": ").next()).collect();
    assert_eq!(places, ["deploy/a.yaml:6:32", "deploy/below/b.yml:6:32", "deploy/c.json:11:21"], "{stdout}");
    let (code, stdout, _) = lint(&files, &[".", "-o", "github"]);
    assert_eq!(code, 1);
    assert!(stdout.starts_with("::error file=deploy/a.yaml,line=6,col=32,"), "{stdout}");
    let (code, _, stderr) = lint(&[("a/b.txt", "")], &["a"]);
    assert_eq!(code, 2);
    assert_eq!(stderr, "error: a: has no file *.yaml, *.yml or *.json\n");
    let (code, _, stderr) = lint(&[], &["nowhere.yaml"]);
    assert_eq!(code, 2);
    assert!(stderr.starts_with("error: nowhere.yaml: cannot be read: No such file"), "{stderr}");
}

#[test]
fn the_folder_that_a_person_is_in_may_be_named_by_its_whole_path() {
    let files = folder(&[("a.yaml", &service("web", "nodePort: 40000")), ("-", &service("b", "nodePort: 40000"))]);
    let here = files.path().canonicalize().expect("a folder");
    for (end, place) in
        [("", "a.yaml:6:32: "), ("/", "a.yaml:6:32: "), ("/a.yaml", "a.yaml:6:32: "), ("/-", "./-:6:32: ")]
    {
        let path = format!("{}{end}", here.display());
        let (code, stdout, stderr) = ended(binary().current_dir(&here).args(["lint", &path, "--no-headers"]));
        assert_eq!((code, stderr.as_str()), (1, ""), "{path}: {stdout}");
        assert!(stdout.lines().count() == 1 && stdout.starts_with(place), "{path}: {stdout}");
    }
}

#[test]
fn a_folder_that_cannot_be_listed_loses_nothing_of_the_others() {
    let web = service("web", "nodePort: 40000");
    let deep = format!("deep/{}a.yaml", "d/".repeat(64));
    let files = folder(&[("a.yaml", &web), ("z.yaml", &web), (&deep, &web)]);
    // The path of this folder becomes longer than the system allows.
    let mut long = File::open(files.path()).expect("a folder");
    for _ in 0..20 {
        let below = format!("/proc/self/fd/{}/{}", long.as_raw_fd(), "l".repeat(250));
        create_dir(&below).expect("a folder");
        long = File::open(below).expect("a folder");
    }
    let (code, stdout, stderr) = ended(binary().current_dir(files.path()).args(["lint", ".", "--no-headers"]));
    assert_eq!(code, 1, "{stdout}{stderr}");
    let places: Vec<&str> = stdout.lines().filter_map(|line| line.split(": ").next()).collect();
    assert_eq!(places, ["a.yaml:6:32", "z.yaml:6:32"]);
    let errors: Vec<&str> = stderr.lines().collect();
    let [too_deep, too_long] = errors[..] else { panic!("{stderr}") };
    let path = deep.trim_end_matches("/a.yaml");
    assert_eq!(too_deep, format!("error: {path}: is not read, because it is more than 64 folders deep"));
    assert!(
        too_long.starts_with("error: lll") && too_long.contains(": cannot be read: File name too long"),
        "{too_long}"
    );
    assert_eq!(lint(&[(&deep, &web)], &["."]).0, 2, "nothing else is there");
}

#[test]
fn an_empty_file_is_skipped_in_a_folder_and_an_error_where_it_is_named() {
    let text = "# nodePort: 30080\n---\n# or here\n";
    let values = ("d/values.yaml", "items: [a, b]\n");
    let files =
        [("d/a.yaml", ""), ("d/b.yaml", text), ("d/c.yaml", "---\n---\n"), values, ("d/list.json", "[\"a\", [1]]")];
    let (code, stdout, _) = lint(&files, &["d", "-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    let failure = "nothing was judged: 3 empty file, 2 documents without a kind; no object is a Service or a Pod, or has a pod template; \
                   --allow-empty accepts such input";
    assert_eq!((code, &document["failures"][0]["detail"]), (2, &Value::from(failure)));
    let of = |form: &str| lint(&files, &["d", "-o", form]).1;
    let sarif: Value = serde_json::from_str(&of("sarif")).expect("JSON");
    assert_eq!(sarif["runs"][0]["invocations"][0]["executionSuccessful"], false);
    assert!(of("junit").contains("errors=\"1\"") && of("junit").contains(failure), "{}", of("junit"));
    let skipped = of("junit").matches("<skipped message=\"no object was judged").count();
    assert_eq!(skipped, of("junit").matches("<testcase ").count() - 1, "no rule passes: {}", of("junit"));
    assert!(of("github").contains(&format!("::error title=portreeve::{failure}")));
    assert_eq!(document["skipped"], serde_json::json!({"": 2, "empty file": 3}));
    for (name, _) in &files[..3] {
        let (code, _, stderr) = lint(&files, &[name]);
        assert_eq!(code, 2, "{name}");
        assert!(stderr.starts_with(&format!("error: {name}: is empty, wanted")), "{stderr}");
    }
    let (code, _, stderr) = lint(&[("d/a.yaml", "<html></html>\n")], &["d"]);
    assert!(code == 2 && stderr.contains("d/a.yaml:1:1: is not a Kubernetes object"), "{stderr}");
}

#[test]
fn a_link_to_a_folder_is_passed_over_and_one_to_nothing_is_an_error() {
    let files = folder(&[("deploy/a.yaml", &service("web", "nodePort: 40000")), ("other/b.yaml", "no manifest: [")]);
    symlink("../other", files.path().join("deploy/link.yaml")).expect("a link");
    let run = || ended(binary().current_dir(files.path()).args(["lint", "deploy", "--no-headers"]));
    let (code, stdout, stderr) = run();
    assert_eq!((code, stderr.as_str()), (1, ""), "{stdout}");
    symlink("nowhere", files.path().join("deploy/lost.yaml")).expect("a link");
    assert!(run().2.starts_with("error: deploy/lost.yaml: cannot be read: No such file"));
}

#[test]
fn a_pipe_is_read_where_it_is_named_and_keeps_nobody_waiting_in_a_folder() {
    let files = folder(&[("deploy/a.yaml", &service("web", "nodePort: 40000"))]);
    let pipe = files.path().join("deploy/b.yaml");
    mkfifo(&pipe, Mode::S_IRWXU).expect("a pipe");
    // A process opens the pipe for writing and never writes.
    let _writer = OpenOptions::new().read(true).write(true).open(&pipe).expect("a pipe");
    let (code, stdout, stderr) = ended(binary().current_dir(files.path()).args(["lint", "deploy", "--no-headers"]));
    assert_eq!(code, 1, "{stdout}{stderr}");
    assert!(stderr.starts_with("error: deploy/b.yaml: cannot be read: ") && stderr.lines().count() == 1, "{stderr}");

    let text = service("web", "nodePort: 40000");
    let mut command = binary();
    let child = command.args(["lint", "/dev/stdin", "--no-headers"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.spawn().expect("portreeve runs");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("/dev/stdin:6:32: warning"), "{output:?}");
}

#[test]
fn a_mounted_config_map_is_read_once() {
    let files = folder(&[("..2026/a.yaml", &service("web", "nodePort: 40000"))]);
    symlink("..2026", files.path().join("..data")).expect("a link");
    symlink("..data/a.yaml", files.path().join("a.yaml")).expect("a link");
    let (code, stdout, stderr) = ended(binary().current_dir(files.path()).args(["lint", ".", "--no-headers"]));
    assert_eq!((code, stderr.as_str()), (1, ""), "{stdout}");
    assert!(stdout.lines().count() == 1 && stdout.starts_with("a.yaml:6:32: "), "{stdout}");
}

#[test]
fn standard_input_is_read() {
    let files = folder(&[("rendered", &(service("web", "nodePort: 30080") + &service("b", "nodePort: 30080")))]);
    let rendered = File::open(files.path().join("rendered")).expect("a file");
    let output: Output =
        binary().args(["lint", "-", "--no-headers"]).stdin(Stdio::from(rendered)).output().expect("portreeve runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("standard input:6:32: warning: nodePort 30080/tcp of default/web"), "{text}");
    // If the program that renders the manifests fails, standard input is empty.
    let output = binary().args(["lint", "-"]).output().expect("portreeve runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: standard input: is empty, wanted"));
}

#[test]
fn lists_and_json_have_places_too() {
    let list = "kind: List\napiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: a}\n  \
                spec: {ports: [{port: 80, nodePort: 40000}], type: NodePort}\n- kind: List\n  items:\n  - kind: Service\n    \
                metadata: {name: b}\n    spec: {ports: [{port: 80, nodePort: 40000}], type: NodePort}\n";
    let places = |text: &str| {
        let lines = found(text, &[]);
        let outside = lines.iter().filter(|line| line.contains("node-port-range-mismatch/outside"));
        outside.map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(places(list), ["7:39", "12:41"]);
    assert_eq!(places(&as_json(list)).len(), 2);
    assert_eq!(places(&as_json(list).replace("  ", "\t")).len(), 2, "tabs");
    let of_kind = "kind: ServiceList\nitems: [{metadata: {name: a}, spec: {ports: [{port: 80, nodePort: 40000}], type: NodePort}}]\n";
    assert_eq!(places(of_kind), ["2:67"]);
    assert_eq!(places(&list.replace('\n', "\r\n")), ["7:39", "12:41"]);
    assert_eq!(places(&format!("\u{feff}{list}")), ["7:39", "12:41"]);
    let text = format!("# comment\n---\n# another\n---\n{}", service("web", "nodePort: 40000"));
    assert_eq!(places(&text), ["10:32"]);
    let alias = "port: &p 40000\nkind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {ports: [{port: 80, nodePort: *p}], type: NodePort}\n";
    assert_eq!(places(alias), ["5:37"], "where it is used");
}

#[test]
fn documents_of_json_may_follow_each_other() {
    let of = |name: &str, port: &str| as_json(service(name, port).trim_end_matches("---\n"));
    let [web, api] = [of("web", "nodePort: 30080"), of("api", "nodePort: 30080")];
    let places: Vec<String> = found(&format!("{web}\n{api}\n"), &[]);
    let lines = web.lines().count();
    let line = |add: usize| format!("{}:21 warning", 11 + add);
    assert!(places.len() == 2 && places[0].starts_with(&line(0)) && places[1].starts_with(&line(lines)), "{places:?}");
    let a_line_each = [&web, &api].map(|text| text.replace('\n', "")).join("\n");
    assert_eq!(found(&a_line_each, &[]).len(), 2, "{a_line_each}");
    let broken = format!("{a_line_each}\n{{\"kind\": \"Service\", \"metadata\": {{\"name\": \"c\"}}, \"spec\": 5}}");
    let (_, stdout, stderr) = lint(&[("a.json", &broken)], &["a.json", "--no-headers"]);
    assert_eq!(stdout.lines().count(), 2, "{stdout}");
    assert_eq!(stderr, "error: a.json:3:56: Service c: spec is 5, wanted a mapping\n");
}

#[test]
fn a_whole_number_may_be_written_as_a_float() {
    for number in ["40000.0", "4e4", "4.0000e4", "0x9C40"] {
        let lines = found(&service("web", &format!("nodePort: {number}")), &[]);
        assert_eq!(lines, ["6:32 warning node-port-range-mismatch/outside Service default/web 40000/tcp"], "{number}");
    }
}

#[test]
fn other_kinds_are_skipped_and_counted() {
    let text = "kind: ConfigMap\napiVersion: v1\n---\nkind: Service\napiVersion: serving.knative.dev/v1\nmetadata: \
                {name: a}\nspec: {ports: 5}\n---\nreplicaCount: 3\n---\nkind: ConfigMap\napiVersion: v1\n";
    let (code, stdout, stderr) = lint(&[("values.yaml", text)], &["values.yaml", "-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((code, &document["objects"], &document["judged"]), (2, &Value::from(4), &Value::from(0)));
    let skipped = serde_json::json!({"": 1, "ConfigMap": 2, "Service.serving.knative.dev": 1});
    assert_eq!(document["skipped"], skipped);
    let none = "nothing was judged: 2 ConfigMap, 1 document without a kind, 1 Service.serving.knative.dev; no object is a Service or a Pod, or has a pod template; --allow-empty accepts such input";
    assert_eq!(stderr, format!("error: {none}\n"));
    let (code, stdout, _) = lint(&[("values.yaml", text)], &["values.yaml", "--allow-empty"]);
    assert_eq!(code, 0, "{stdout}");
    assert!(stdout.contains("2 ConfigMap, 1 document without a kind, 1 Service.serving.knative.dev"), "{stdout}");
    assert!(!stdout.contains("assumed"), "no object depends on the NodePort range: {stdout}");
}

#[test]
fn a_broken_document_loses_nothing_of_the_others() {
    let broken = "a: [\n---\n".to_owned() + &service("web", "nodePort: 40000") + "a: }\n";
    let (code, stdout, stderr) = lint(&[("a.yaml", &broken)], &["a.yaml", "--no-headers"]);
    assert_eq!(code, 1);
    assert!(stdout.starts_with("a.yaml:8:32: warning: nodePort 40000/tcp"), "{stdout}");
    assert_eq!(stderr.lines().count(), 2, "each, as no row names one: {stderr}");
    assert!(stderr.starts_with("error: a.yaml:1:4: not YAML: unclosed bracket"), "{stderr}");
    let (_, stdout, stderr) = lint(&[("a.yaml", &broken)], &["a.yaml"]);
    assert_eq!(stdout.matches("not read ").count(), 2, "{stdout}");
    assert_eq!(stderr.lines().count(), 1);
    assert!(stderr.trim_end().ends_with("wanted Kubernetes objects in YAML or JSON (and 1 more)"), "{stderr}");
    for form in ["sarif", "junit"] {
        let (_, _, stderr) = lint(&[("a.yaml", &broken)], &["a.yaml", "-o", form]);
        assert_eq!(stderr.lines().count(), 2, "each, as the form goes to a file: {stderr}");
    }
    let template = format!("{broken}# {{{{ .Values.port }}}}\n");
    let (_, _, stderr) = lint(&[("a.yaml", &template)], &["a.yaml", "--no-headers"]);
    assert!(stderr.lines().all(|it| it.ends_with("helm template . | portreeve lint -")), "{stderr}");
    let (code, _, stderr) = lint(&[("a.yaml", "kind: Service\nmetadata: {name: a}\nspec: {ports: 5}\n")], &["a.yaml"]);
    assert_eq!(code, 2, "{stderr}");
    assert_eq!(stderr, "error: a.yaml:3:15: Service a: spec.ports is 5, wanted a list\n");
}

#[test]
fn what_the_api_server_would_not_take_is_not_judged_and_everything_else_is() {
    let wrong = ["\"30081\"", "70000", "-1", "true"].map(|it| service("wrong", &format!("nodePort: {it}"))).concat();
    let half = service("half", "nodePort: 40000}, {name: b, port: 81, nodePort: \"30081\"");
    let text =
        wrong + &half + &service("web", "nodePort: 30080") + "kind: Service\nmetadata: {name: Web_1}\nspec: {}\n";
    let (code, stdout, stderr) = lint(&[("a.yaml", &text)], &["a.yaml", "-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    assert_eq!((code, &document["objects"], &document["judged"]), (2, &Value::from(7), &Value::from(1)), "{stdout}");
    assert_eq!(document["failures"].as_array().map(Vec::len), Some(6), "{stdout}");
    assert_eq!(document["findings"].as_array().map(Vec::len), Some(0), "{stdout}");
}

#[test]
fn the_headline_says_of_how_many_objects_so_many_were_judged() {
    let head = |text: &str| {
        let (_, stdout, stderr) = lint(&[("a.yaml", text)], &["a.yaml"]);
        stdout.lines().next().map_or(stderr, str::to_owned)
    };
    let sound = service("web", "nodePort: 30080");
    let outside = service("api", "nodePort: 40000");
    let release = "kind: HelmRelease\napiVersion: helm.toolkit.fluxcd.io/v2\nmetadata: {name: shop}\n---\n";
    assert_eq!(head(&sound), "manifests: no port conflicts in 1 object.");
    assert_eq!(head(&(release.to_owned() + &sound)), "manifests: no port conflicts in 1 of 2 objects.");
    assert_eq!(head(&(outside.clone() + &sound)), "manifests: 1 warning");
    assert_eq!(head(&(outside.clone() + release + release)), "manifests: 1 warning; 1 of 3 objects judged");
    // `lint` does not count an unread object as judged. An empty List has no object.
    let broken = service("x", "nodePort: 70000") + "kind: List\napiVersion: v1\nitems: []\n---\na: [\n";
    assert_eq!(head(&broken), "manifests: nothing was judged; the errors are below.");
    let both = "manifests: 1 warning; 1 of 3 objects judged; some objects could not be judged";
    assert_eq!(head(&(outside + &broken)), both);
}

#[test]
fn an_object_that_is_there_again_is_counted() {
    let again = |text: &str| {
        let (_, stdout, _) = lint(&[("a.yaml", text)], &["a.yaml", "-o", "json"]);
        let document: Value = serde_json::from_str(&stdout).expect("JSON");
        document["again"].clone()
    };
    let web = service("web", "nodePort: 30080");
    let twice = web.clone() + &service("web", "nodePort: 30081");
    assert_eq!(again(&twice), 1);
    assert_eq!(again(&(web.clone() + &service("shop/web", "nodePort: 30081"))), 0);
    // Two objects with the same `generateName` are two objects.
    assert_eq!(again(&twice.replace("{name: web", "{generateName: web-")), 0);
    let (_, stdout, _) = lint(&[("a.yaml", &twice)], &["a.yaml"]);
    let row = "repeated         1 object with the kind, namespace and name of an earlier object; run lint once";
    assert!(stdout.contains(row), "{stdout}");
    let (_, stdout, _) = lint(&[("a.yaml", &web)], &["a.yaml"]);
    assert!(!stdout.contains("repeated  "), "{stdout}");
}

#[test]
fn a_file_has_one_name_whatever_way_leads_to_it() {
    let web = service("web", "nodePort: 40000");
    let files = folder(&[("a/x.yaml", &web), ("b/c/x.yaml", &web), ("b/x.yaml", &web)]);
    let place = |path: &str| {
        let (_, stdout, stderr) =
            ended(binary().current_dir(files.path()).args(["lint", path, "--no-headers", "--exit-zero"]));
        stdout.split(": ").next().map_or(stderr, str::to_owned)
    };
    let whole = files.path().canonicalize().expect("a folder").join("a/x.yaml");
    for path in
        ["a/x.yaml", "a//./x.yaml", "./a/x.yaml", "b/../a/x.yaml", "./b/./../a//x.yaml", whole.to_str().expect("UTF-8")]
    {
        assert_eq!(place(path), "a/x.yaml:6:32", "{path}");
    }
    assert_eq!(place("b/../a/"), "a/x.yaml:6:32");
    // After a symbolic link, `..` leads to the parent of the link's target.
    symlink("b/c", files.path().join("link")).expect("a link");
    assert_eq!(place("link/../x.yaml"), "link/../x.yaml:6:32");
}

#[test]
fn an_object_without_a_namespace_goes_where_it_is_sent() {
    let text = service("web", "nodePort: 40000").replace(", namespace: default", "");
    assert!(found(&text, &["--namespace", "shop"])[0].contains("Service shop/web"));
    assert!(found(&text, &[])[0].contains("Service default/web"));
    for empty in ["\"\"", "null", ""] {
        let text = text.replace("{name: web}", &format!("{{namespace: {empty}, name: web}}"));
        assert!(found(&text, &["-n", "shop"])[0].contains("Service shop/web"), "{text}");
    }
    assert!(found(&service("other/web", "nodePort: 40000"), &["-n", "shop"])[0].contains("Service other/web"));
    let (code, _, stderr) = lint(&[("a.yaml", &text)], &["a.yaml", "-n", "--all"]);
    assert_eq!(code, 64, "{stderr}");
}

#[test]
fn a_template_that_happens_to_be_yaml_is_told_to_be_one() {
    let template = service("web", "nodePort: {{ .Values.port }}");
    let (code, _, stderr) = lint(&[("a.yaml", &template)], &["a.yaml", "--no-headers"]);
    let hint = "error: a.yaml: has {{ }} as a value, wanted Kubernetes objects in YAML or JSON; \
                render a chart first: helm template . | portreeve lint -\n";
    assert!(code == 2 && stderr.matches(hint).count() == 1, "{stderr}");
    let (_, _, stderr) = lint(&[("a.yaml", &service("web", "nodePort: {a: b}"))], &["a.yaml", "--no-headers"]);
    assert!(stderr.contains("is a mapping") && !stderr.contains("rendered"), "{stderr}");
    // Double braces of another program, here Docker, are not a Helm template.
    let of_docker = service("web", "name: x").replace("{name: web", "{annotations: {a: '{{.Names}}'}, name: web");
    let (code, _, stderr) = lint(&[("a.yaml", &of_docker)], &["a.yaml"]);
    assert!(code == 0 && stderr.is_empty(), "{stderr}");
}

#[test]
fn of_a_key_that_is_there_twice_the_last_counts_as_for_kubectl() {
    let web = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {type: NodePort, ports: [{port: 80, \
               nodePort: 30080}]}\n";
    let api = "{apiVersion: v1, kind: Service, metadata: {name: api, namespace: shop}, spec: {type: NodePort, ports: [{port: 80, \
               nodePort: 30080}]}}";
    let list = format!("{web}---\napiVersion: v1\nkind: List\nitems: []\nitems: [{api}]\n");
    assert_eq!(lint(&[("a.yaml", &list)], &["a.yaml"]).0, 1, "the items are the last ones");
    for (once, twice) in [
        ("kind: Service", "kind: ConfigMap, kind: Service"),
        ("spec: {", "spec: {type: ClusterIP}, spec: {"),
        ("nodePort: 30080", "nodePort: 30081, nodePort: 30080"),
    ] {
        let (code, _, stderr) = lint(&[("a.yaml", &format!("{web}---\n{}\n", api.replace(once, twice)))], &["a.yaml"]);
        assert!(code == 1 && stderr.is_empty(), "{twice}: {stderr}");
    }
}

#[test]
fn the_order_of_documents_changes_no_sentence() {
    let named = |name: &str| service(name, "nodePort: 30080");
    let [one, other, third] = ["a", "b", "c"].map(named);
    let sentences = |files: [&str; 3]| {
        let text = files.concat();
        let (_, stdout, _) = lint(&[("a.yaml", &text)], &["a.yaml", "-o", "json"]);
        let document: Value = serde_json::from_str(&stdout).expect("JSON");
        let findings = document["findings"].as_array().expect("findings").iter();
        let mut all: Vec<String> = findings.map(|it| it["summary"].to_string()).collect();
        all.sort();
        all
    };
    let first = sentences([&one, &other, &third]);
    assert_eq!(first.len(), 3);
    assert_eq!(sentences([&third, &other, &one]), first);
    assert_eq!(sentences([&other, &one, &third]), first);
}

#[test]
fn what_is_too_much_to_compare_is_no_success() {
    let daemon = |number: usize| {
        workload("DaemonSet", &format!("d{number}"), "", &containers("containerPort: 80, hostPort: 9100"))
    };
    let all: String = (0..3000).map(|number| format!("{}---\n", daemon(number).trim_end_matches("---\n"))).collect();
    let (code, stdout, _) = lint(&[("a.yaml", &all)], &["a.yaml"]);
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(code, 2, "{words}");
    assert!(words.contains("manifests: 3000 info; 1 port or object was not judged: Pods: too much"), "{words}");
    assert!(words.contains("3000 workloads want hostPort 9100/tcp: too many to compare all pairs"), "{words}");
}

/// The API server accepts each of these fields (tested with kube-apiserver 1.36). So `lint` must not skip an object
/// because of such a field.
#[test]
fn what_the_api_server_takes_is_judged_whatever_it_looks_like() {
    let pod = |more: &str, port: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: shop}}\nspec: {{{more}containers: [{{name: c, image: x, \
             args: [null, --x], ports: [{{{port}}}]}}]}}\n---\n"
        )
    };
    let other = workload("DaemonSet", "log", "", &containers("containerPort: 2020, hostPort: 2020"));
    for (more, port) in [
        ("", "containerPort: 2020, hostPort: 2020, hostIP: localhost"),
        ("", "containerPort: 2020, hostPort: 2020, hostIP: 0.0.0.0/0"),
        ("nodeSelector: {kubernetes.io/os: }, ", "containerPort: 2020, hostPort: 2020"),
        // In YAML 1.1, a number with a leading zero is octal.
        ("", "containerPort: 2020, hostPort: 03744"),
    ] {
        let (code, stdout, stderr) = lint(&[("a.yaml", &(pod(more, port) + &other))], &["a.yaml"]);
        assert!(
            stdout.contains("host-port") || stdout.contains("pod-waits-for-port"),
            "{code} {port}: {stdout}{stderr}"
        );
        assert!(!stderr.contains("wanted"), "{port}: {stderr}");
    }
}

#[test]
fn objects_of_one_generated_name_are_two_and_none_is_an_update() {
    let generated = |name: &str, port: &str| service(name, port).replacen("name:", "generateName:", 1);
    for other in [generated("shop-", "nodePort: 30080"), service("shop", "nodePort: 30080")] {
        let text = generated("shop-", "nodePort: 30080") + &other;
        let (code, stdout, _) = lint(&[("a.yaml", &text)], &["a.yaml"]);
        assert!(code == 1 && stdout.contains("node-port-claimed-twice/refused"), "{code}: {stdout}");
    }
}

#[test]
fn a_generated_name_is_cut_and_an_error_names_the_written_one() {
    let of = |name: &str| service(name, "nodePort: 40000").replacen("name:", "generateName:", 1);
    assert_eq!(found(&of(&"s".repeat(63)), &[]).len(), 1, "the API server cuts the name");
    let (code, _, stderr) = lint(&[("a.yaml", &of("s."))], &["a.yaml"]);
    let wanted = "error: a.yaml:3:26: Service default/: metadata.generateName is \"s.\", wanted a name of at most 63";
    assert!(code == 2 && stderr.starts_with(wanted), "{stderr}");
    let both = service("a.b, generateName: s", "nodePort: 40000");
    let (code, _, stderr) = lint(&[("a.yaml", &both)], &["a.yaml"]);
    let wanted = "error: a.yaml:3:18: Service default/a.b: metadata.name is \"a.b\", wanted a name of at most 63";
    assert!(code == 2 && stderr.starts_with(wanted), "{stderr}");
}

#[test]
fn the_patches_of_a_kustomization_are_skipped_and_its_resources_are_judged() {
    let patch = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80, nodePort: 30080}]}\n";
    let web = service("web", "nodePort: 40000");
    for (list, port) in [
        ("patches: [{path: port/a.yaml}]", "k/overlay/port"),
        ("patchesStrategicMerge: [port/a.yaml]", "k/overlay/port"),
        ("patches: [{path: ../port/a.yaml}]", "k/port"),
    ] {
        for name in ["kustomization.yaml", "Kustomization"] {
            let kustomization = format!("resources: [../base]\n{list}\n");
            let (path, patched) = (format!("k/overlay/{name}"), format!("{port}/a.yaml"));
            let files = [("k/base/web.yaml", &*web), (&*patched, patch), (&*path, &*kustomization)];
            let (code, stdout, stderr) = lint(&files, &["k"]);
            assert!(code == 1 && stdout.starts_with("manifests: 1 warning; 1 of "), "{stdout}");
            let is_named = stderr == "lint does not judge k/port/a.yaml, a patch of the kustomization k/overlay\n";
            assert_eq!((is_named, stderr.is_empty()), (port == "k/port", port != "k/port"), "{stderr}");
            assert!(stdout.contains("1 patch file of the kustomization k/overlay"), "{stdout}");
            assert_eq!(lint(&files, &[port]).0, 1, "nothing there shows that it is a patch");
        }
    }
    let two = "resources: [../base]\npatches: [{path: a.yaml}, {path: b.yaml}]\n";
    let files =
        [("k/base/web.yaml", &*web), ("k/o/kustomization.yaml", two), ("k/o/a.yaml", patch), ("k/o/b.yaml", patch)];
    assert!(lint(&files, &["k"]).1.contains("2 patch file of the kustomization k/o"));
    let (code, _, stderr) = lint(&[("k/a.yaml", &web), ("k/Kustomization", "a: [\n")], &["k"]);
    assert!(code == 1 && stderr == "error: k/Kustomization: is not YAML\n", "{stderr}");
}

#[test]
fn a_resource_of_any_kustomization_is_no_patch() {
    let web = service("web", "nodePort: 40000");
    for (base, overlay) in [
        ("resources: [./web.yaml]\n", "patches: [{path: ../base/web.yaml}]\n"),
        ("resources: [web.yaml]\npatches: [{path: web.yaml}]\n", "resources: [../base]\n"),
    ] {
        let files = [
            ("k/base/web.yaml", &*web),
            ("k/base/kustomization.yaml", base),
            ("k/overlay/kustomization.yaml", overlay),
        ];
        let (code, stdout, _) = lint(&files, &["k"]);
        assert!(code == 1 && !stdout.contains("patch file of the kustomization"), "{base}{overlay}: {stdout}");
    }
}

#[test]
fn a_kustomization_of_another_folder_neither_hides_an_object_nor_makes_a_patch_whole() {
    let (web, other) = (service("web", "nodePort: 40000"), service("other", "nodePort: 30081"));
    let lists = "resources: [s.yaml]\npatches: [{path: ../a/web.yaml}]\n";
    for (text, wanted) in [(web.as_str(), 1), ("a: [\n", 2)] {
        let files = [("k/a/web.yaml", text), ("k/b/kustomization.yaml", lists), ("k/b/s.yaml", &*other)];
        let (code, stdout, stderr) = lint(&files, &["k", "--no-headers"]);
        assert_eq!(code, wanted, "{stdout}{stderr}");
    }
    let patch = "kind: Service\napiVersion: v1\nmetadata: {name: web}\nspec: {ports: [{port: 80, nodePort: 40000}]}\n";
    let whole = patch.replace("spec: {", "spec: {externalIPs: [192.0.2.77], ");
    for (text, is_part) in [(patch, true), (&*whole, false)] {
        let files = [
            ("k/a/port.yaml", text),
            ("k/a/kustomization.yaml", "resources: [../base]\npatches: [{path: port.yaml}]\n"),
            ("k/b/kustomization.yaml", "resources: [../a/port.yaml]\n"),
            ("k/base/s.yaml", &*other),
        ];
        let (code, stdout, stderr) = lint(&files, &["k", "--no-headers"]);
        let note = "lint does not judge k/a/port.yaml, a patch of the kustomization k/a\n";
        assert_eq!((code == 0, stderr.starts_with(note)), (is_part, is_part), "{stdout}{stderr}");
    }
    let files = folder(&[("k/b/kustomization.yaml", lists), ("k/b/s.yaml", &*other)]);
    create_dir(files.path().join("k/a")).expect("a folder");
    let wide: Vec<u8> = format!("\u{feff}{patch}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    fs::write(files.path().join("k/a/web.yaml"), wide).expect("a file");
    let (code, _, stderr) = ended(binary().current_dir(files.path()).args(["lint", "k"]));
    assert!(code == 2 && stderr.contains("k/a/web.yaml: is UTF-16"), "{stderr}");
}

#[test]
fn a_folder_with_the_name_of_a_kustomization_is_an_ordinary_folder() {
    let files = [("k/Kustomization/web.yaml", &*service("web", "nodePort: 40000"))];
    let (code, _, stderr) = lint(&files, &["k"]);
    assert_eq!((code, stderr.as_str()), (1, ""));
}

#[test]
fn the_templates_of_a_chart_are_named_and_not_read_and_other_manifests_beside_them_are() {
    let template = "kind: Service\nmetadata: {name: {{ .Values.name }}}\n";
    let files = [
        ("web.yaml", &*service("web", "nodePort: 30080")),
        ("charts/shop/Chart.yaml", "name: shop\n"),
        ("charts/shop/templates/web.yaml", template),
    ];
    // The command in `.pre-commit-hooks.yaml` begins with these words.
    let hooks = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/.pre-commit-hooks.yaml")).expect("the hooks");
    let hooks: serde_json::Value = serde_saphyr::from_str(&hooks).expect("YAML");
    let entry = hooks[0]["entry"].as_str().expect("a command").strip_prefix("portreeve lint ").expect("the verb");
    let arguments = hooks[0]["args"].as_array().expect("arguments").iter().map(|it| it.as_str().expect("a word"));
    let typed: Vec<&str> = entry.split(' ').chain(arguments).collect();
    assert_eq!(hooks[0]["pass_filenames"], false, "a commit without manifests has no file to name");
    let (code, stdout, notes) = lint(&files, &typed);
    assert_eq!((code, stdout.as_str()), (0, ""), "{notes}");
    let said =
        "lint does not read the templates of the chart charts/shop: helm template charts/shop | portreeve lint -";
    assert!(notes.contains(said), "{notes}");
    assert_eq!(lint(&files[1..], &typed).0, 0, "a repository with nothing but a chart passes");
    let (_, table, _) = lint(&files, &["."]);
    assert!(table.contains("unread charts    1: charts/shop\n"), "{table}");
    let (_, document, _) = lint(&files, &["-o", "json", "."]);
    let document: serde_json::Value = serde_json::from_str(&document).expect("JSON");
    assert_eq!(document["unreadCharts"], serde_json::json!(["charts/shop"]));
    assert_eq!(lint(&files, &["charts"]).0, 2, "nothing was judged");
    assert_eq!(lint(&files, &["charts/shop/templates"]).0, 2, "who names a template is told");
    assert_eq!(lint(&files, &["--allow-empty", "charts"]).0, 0);
    let twice = [files[1], files[2], ("charts/shop/crds/a.yaml", &*service("a", "nodePort: 30080")), files[0]];
    let (code, stdout, _) = lint(&twice, &["."]);
    assert!(code == 1 && stdout.contains("node-port-claimed-twice/refused"), "{code}: {stdout}");
    let strange = [("a; b/Chart.yaml", "name: shop\n"), ("a; b/templates/web.yaml", template)];
    let (_, _, notes) = lint(&strange, &["--allow-empty", "."]);
    assert!(notes.contains("helm template 'a; b' | portreeve lint -"), "{notes}");
}
