//! The files with which other programs run Portreeve: node-problem-detector, k9s, and the skill of an assistant.

use std::{fs, path::Path, process::Command};

use portreeve_report::NPD_LINE;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::permissions;

fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The program can reach no cluster.
fn run(line: &str) -> (i32, String) {
    let folder = TempDir::new().expect("a folder");
    let words: Vec<_> = line.split_whitespace().map(|word| word.trim_matches('"')).collect();
    let (name, arguments) = match &words[..] {
        ["kubectl", "portreeve", arguments @ ..] => ("kubectl-portreeve", arguments),
        ["portreeve", arguments @ ..] => ("portreeve", arguments),
        _ => panic!("{line} begins with no name of the program"),
    };
    let program = folder.path().join(name);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_portreeve"), &program).expect("a link");
    fs::write(folder.path().join("service.yaml"), "{apiVersion: v1, kind: Service, metadata: {name: web}}\n")
        .expect("a file");
    let output = Command::new(program)
        .args(arguments)
        .current_dir(&folder)
        .env_remove("KUBERNETES_SERVICE_HOST")
        .env_remove("KUBECONFIG")
        .env("HOME", folder.path())
        .output()
        .expect("the program");
    (output.status.code().expect("an exit code"), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn node_problem_detector_gets_a_line_that_it_does_not_cut() {
    let plugin: Value = serde_json::from_str(&text("npd/portreeve.json")).expect("JSON");
    assert_eq!((&plugin["plugin"], &plugin["pluginConfig"]["max_output_length"]), (&json!("custom"), &json!(NPD_LINE)));
    let rule = &plugin["rules"][0];
    assert_eq!((&rule["path"], &rule["condition"]), (&json!("/usr/bin/portreeve"), &plugin["conditions"][0]["type"]));
    let arguments = rule["args"].as_array().expect("arguments").iter().filter_map(Value::as_str);
    let (code, line) = run(&["portreeve"].into_iter().chain(arguments).collect::<Vec<_>>().join(" "));
    assert!((0..=2).contains(&code), "{code}: {line}");
    assert!(line.lines().count() == 1 && line.trim_end().len() <= NPD_LINE, "{line}");
}

#[test]
fn the_page_names_the_rights_that_node_problem_detector_needs() {
    let page = text("docs/try.md").split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, rights) = page.split_once("`list` of ").expect("the rights");
    let (rights, _) = rights.split_once(':').expect("their end");
    let rights = rights.to_lowercase().replace(" and ", ", ");
    let needed: Vec<_> = permissions::ACCESS.iter().filter(|it| !it.optional).map(|it| it.resource).collect();
    assert_eq!(rights.split(", ").collect::<Vec<_>>(), needed);
}

/// The commands of the program in a text: words between two backticks, and lines of the k9s plugin.
fn commands(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2).filter(|it| !it.contains('\n'));
    let piped = text.lines().filter_map(|line| line.split_once("-c, '")?.1.split(" 2>&1").next());
    let all = quoted.chain(piped).filter(|it| it.starts_with("portreeve ") || it.starts_with("kubectl portreeve "));
    all.map(|it| it.replace("NODE", "n1").replace("$1", "prod").replace("$2", "n1").to_owned()).collect()
}

#[test]
fn each_command_of_the_skill_and_of_k9s_is_one_that_the_program_takes() {
    for (name, least) in [("skills/portreeve/SKILL.md", 8), ("k9s/plugins.yaml", 3)] {
        let commands = commands(&text(name));
        assert!(commands.len() >= least, "{name}: {commands:?}");
        for command in commands {
            // The exit code 64 means wrong usage. Without a cluster, most other commands end with 2.
            let (code, said) = run(&command);
            assert_ne!(code, 64, "{name}: {command}: {said}");
        }
    }
    assert_eq!(run("portreeve checks").0, 64);
    assert_eq!(run("kubectl portreeve check --nonsense").0, 64);
}

/// The letters that k9s (0.25 to 0.51) itself uses with Shift in its lists of nodes, Services and pods (internal/view
/// and internal/ui/table.go). k9s does not load a plugin with such a key. A plugin with the key P would lose the key at
/// the first update of the list. G moves to the end of a list.
const OF_K9S: &str = "ACFGIJMNOPRSTVXZ";

#[test]
fn the_keys_of_k9s_are_what_it_reads_and_are_free() {
    let plugins: Value = serde_saphyr::from_str(&text("k9s/plugins.yaml")).expect("YAML");
    let page = text("docs/try.md");
    for (name, plugin) in plugins["plugins"].as_object().expect("plugins") {
        // The keys that the schema of k9s demands, and no others.
        let keys: Vec<_> = plugin.as_object().expect("a plugin").keys().map(String::as_str).collect();
        assert_eq!(keys, ["args", "command", "description", "scopes", "shortCut"], "{name}");
        assert!(plugin["args"].as_array().expect("arguments").iter().all(Value::is_string), "{name}");
        let key = plugin["shortCut"].as_str().expect("a key");
        let letter = key.strip_prefix("Shift-").expect("a key with Shift");
        assert!(letter.len() == 1 && !OF_K9S.contains(letter), "{name}: {key} is a key of k9s");
        assert!(page.contains(key), "docs/try.md does not name {key}");
    }
}
