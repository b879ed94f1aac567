//! The files for the forge. Workflows call only verbs of the Makefile. Workflows have few rights, and pin each GitHub
//! action by a digest.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use serde_json::{Value, json};

use crate::{programs, text};

const WORKFLOWS: [&str; 3] = ["ci", "nightly", "release"];

fn workflow(name: &str) -> String {
    text(&format!(".github/workflows/{name}.yml"))
}

fn parsed(text: &str) -> Value {
    serde_saphyr::from_str(text).expect("YAML")
}

fn jobs(workflow: &Value) -> impl Iterator<Item = (&String, &Vec<Value>)> {
    let jobs = workflow["jobs"].as_object().expect("jobs").iter();
    jobs.map(|(name, job)| (name, job["steps"].as_array().expect("steps")))
}

fn verbs() -> BTreeSet<String> {
    let makefile = text("Makefile");
    let lines = makefile.lines().filter_map(|line| line.split_once(':').filter(|(_, rest)| rest.contains("## ")));
    lines.map(|(verb, _)| verb.to_owned()).collect()
}

/// Whether a step's command is more than one verb with its settings.
fn strange(command: &str, verbs: &BTreeSet<String>) -> bool {
    let command = command.trim().trim_start_matches("sudo --preserve-env env \"PATH=$PATH\" ");
    let mut words = command.split(' ');
    let is_verb = words.next() == Some("make") && words.next().is_some_and(|verb| verbs.contains(verb));
    // Only settings of the verb may follow, and no other command.
    let is_setting = |word: &str| {
        let (name, value) = word.split_once('=').unwrap_or_default();
        !name.is_empty()
            && name.chars().all(|it| it.is_ascii_uppercase() || it == '_')
            && !value.contains([';', '|', '&', '`', '('])
    };
    !(is_verb && words.all(is_setting) && !command.contains('\n'))
}

#[test]
fn workflows_are_what_the_forge_takes() {
    let output = Command::new(programs::find("actionlint"))
        .args(["-no-color", "-shellcheck=", "-pyflakes="])
        .args(WORKFLOWS.map(|name| format!(".github/workflows/{name}.yml")))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("actionlint");
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let here = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".github/workflows")).expect("a folder");
    assert_eq!(here.count(), WORKFLOWS.len(), "WORKFLOWS names each file");
}

#[test]
fn a_workflow_runs_verbs_of_the_makefile_only() {
    let verbs = verbs();
    for name in WORKFLOWS {
        let workflow = parsed(&workflow(name));
        for (job, steps) in jobs(&workflow) {
            let commands: Vec<_> = steps.iter().filter_map(|step| step["run"].as_str()).collect();
            assert!(!commands.is_empty(), "{name}: {job} runs nothing");
            let strange: Vec<_> = commands.into_iter().filter(|it| strange(it, &verbs)).collect();
            assert_eq!(strange, Vec::<&str>::new(), "{name}: {job} runs more than a verb");
        }
    }
    for command in
        ["cargo build", "make test; curl x", "make nonsense", "make test\ncurl x", "make test SHARD=$(curl x)"]
    {
        assert!(strange(command, &verbs), "{command}");
    }
}

#[test]
fn a_workflow_has_no_right_that_its_job_does_not_name() {
    for name in WORKFLOWS {
        let workflow = parsed(&workflow(name));
        assert_eq!(workflow["permissions"], json!({}), "{name}");
        for (job, permissions) in
            workflow["jobs"].as_object().expect("jobs").iter().map(|(it, job)| (it, &job["permissions"]))
        {
            let rights = permissions.as_object().unwrap_or_else(|| panic!("{name}: {job} names no rights"));
            let writes: Vec<_> =
                rights.iter().filter(|(_, how)| *how != "read").map(|(right, _)| right.as_str()).collect();
            let may: &[&str] =
                if name == "release" { &["attestations", "contents", "id-token", "packages"] } else { &[] };
            assert!(writes.iter().all(|it| may.contains(it)), "{name}: {job} may write {writes:?}");
        }
    }
}

#[test]
fn an_action_is_pinned_by_its_digest_with_its_version_beside_it() {
    for name in WORKFLOWS {
        let workflow = workflow(name);
        let used =
            workflow.lines().filter_map(|line| line.trim_start().trim_start_matches("- ").strip_prefix("uses: "));
        let mut seen = 0;
        for action in used {
            let (pinned, version) =
                action.split_once(" # v").unwrap_or_else(|| panic!("{name}: {action} names no version"));
            let digest = pinned.split_once('@').map_or("", |(_, digest)| digest);
            assert!(digest.len() == 40 && digest.chars().all(|it| it.is_ascii_hexdigit()), "{name}: {action}");
            assert!(version.starts_with(|it: char| it.is_ascii_digit()), "{name}: {action}");
            seen += 1;
        }
        assert!(seen > 0, "{name} uses no action");
    }
}

#[test]
fn a_release_is_made_on_debian_12_and_no_workflow_names_a_registry_to_push_to() {
    let release = parsed(&workflow("release"));
    let image = image(&release["jobs"]["release"]).expect("a container");
    let toolchain = text("rust-toolchain.toml");
    let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"'));
    let digest =
        image.strip_prefix(&format!("docker.io/library/rust:{}-bookworm@sha256:", channel.expect("a channel")));
    assert!(digest.is_some_and(|it| it.len() == 64 && it.chars().all(|it| it.is_ascii_hexdigit())), "{image}");
    assert!(digest.is_some_and(|it| it.chars().collect::<BTreeSet<_>>().len() > 10), "{image}: this is no digest");
    // Only tools/publish logs in: it reads the registry's name in deploy/names.
    for name in WORKFLOWS {
        for (job, steps) in jobs(&parsed(&workflow(name))) {
            assert!(steps.iter().all(|step| step["with"]["registry"].is_null()), "{name}: {job}");
        }
    }
    let publish = release["jobs"]["release"]["steps"].as_array().expect("steps").last().expect("a step");
    assert_eq!(publish["run"], "make publish");
    for name in ["REGISTRY_USER", "REGISTRY_PASSWORD", "GH_TOKEN"] {
        assert!(publish["env"][name].is_string(), "make publish needs {name}");
    }
}

/// The action setup-go sets `GOTOOLCHAIN=local`. With this setting, Go refuses a module that needs a later version of
/// Go.
#[test]
fn the_go_of_a_workflow_is_late_enough_for_every_module() {
    let mut git = Command::new("git");
    let listed =
        git.args(["ls-files", "--", "*/go.mod"]).current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("git");
    let listed = String::from_utf8(listed.stdout).expect("UTF-8");
    let of = |path: &str| {
        let text = text(path);
        let version = text.lines().find_map(|line| line.strip_prefix("go ")).unwrap_or_else(|| panic!("{path}: no go"));
        version.split('.').map(|it| it.parse::<u32>().expect("a number")).collect::<Vec<_>>()
    };
    let newest = listed.lines().map(of).max().expect("modules");
    for name in WORKFLOWS {
        for (job, steps) in jobs(&parsed(&workflow(name))) {
            for file in steps.iter().filter_map(|step| step["with"]["go-version-file"].as_str()) {
                assert_eq!(of(file), newest, "{name}: {job}");
            }
        }
    }
}

/// `None` if the job runs directly on the machine.
fn image(job: &Value) -> Option<&str> {
    job["container"]["image"].as_str()
}

#[test]
fn every_shard_of_a_night_has_a_machine() {
    let nightly = text("tests/nightly");
    let rows = nightly.split_once("<<'ROWS'\n").and_then(|(_, rest)| rest.split_once("\nROWS")).expect("the rows").0;
    let sets = rows.lines().map(|row| row.split_whitespace());
    let mut shards: Vec<_> = sets.clone().filter_map(|mut words| words.next()).collect();
    let workflow = parsed(&workflow("nightly"));
    let run_by = |job: &str| -> Vec<&str> {
        let shards = workflow["jobs"][job]["strategy"]["matrix"]["shard"].as_array().expect("shards");
        shards.iter().map(|it| it.as_str().expect("a name")).collect()
    };
    let mut run = [run_by("shard"), run_by("guest")].concat();
    for list in [&mut shards, &mut run] {
        list.sort_unstable();
    }
    assert_eq!(run, shards);
    // `tests/lab/guest/fetch` gets Debian's kernel with apt.
    let of_guests = |words: &mut std::str::SplitWhitespace<'_>| words.any(|it| ["guests", "arm64"].contains(&it));
    let mut guests: Vec<_> =
        sets.filter(|words| of_guests(&mut words.clone())).filter_map(|mut it| it.next()).collect();
    guests.sort_unstable();
    let mut in_debian = run_by("guest");
    in_debian.sort_unstable();
    assert_eq!(in_debian, guests);
    let release = parsed(&self::workflow("release"));
    assert_eq!(image(&workflow["jobs"]["guest"]), image(&release["jobs"]["release"]), "it is Debian 12");
    let families = |text: &str, before: &str, after: char| -> Vec<String> {
        let lists = text.split(before).skip(1).filter_map(|rest| rest.split_once(after));
        lists.flat_map(|(list, _)| list.split(' ').map(str::to_owned).collect::<Vec<_>>()).collect()
    };
    let measured = families(&text("benches/cost/main.rs"), "Family { name: \"", '"');
    assert!(measured.len() > 5, "{measured:?}");
    assert_eq!(families(&nightly, "FAMILIES='", '\''), measured, "each family of the benchmark is in one shard");
}

#[test]
fn who_reports_a_problem_is_asked_for_a_snapshot() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".github/ISSUE_TEMPLATE");
    let mut forms = 0;
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let form = parsed(&fs::read_to_string(&path).expect("a form"));
        if path.ends_with("config.yml") {
            continue;
        }
        assert!(form["name"].is_string() && form["description"].is_string(), "{}", path.display());
        let asked = form["body"].as_array().expect("fields").iter().any(|field| field["id"] == "snapshot");
        assert!(asked, "{} asks for no snapshot", path.display());
        forms += 1;
    }
    assert!(forms >= 3, "{forms} forms");
}

#[test]
fn renovate_and_owners_name_files_that_are_there() {
    let settings: Value = serde_json::from_str(&text("renovate.json")).expect("JSON");
    let ignored = settings["ignorePaths"].as_array().expect("paths").iter().filter_map(Value::as_str);
    let owners = text(".github/CODEOWNERS");
    let owned = owners.lines().filter_map(|line| line.split(' ').next()?.strip_prefix('/'));
    for path in ignored.map(|it| it.trim_end_matches("/**")).chain(owned) {
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(path).exists(), "{path}");
    }
}

#[test]
fn the_compiler_has_one_version() {
    let toolchain = text("rust-toolchain.toml");
    let channel =
        toolchain.lines().find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"')).expect("a channel");
    assert!(channel.starts_with(concat!(env!("CARGO_PKG_RUST_VERSION"), ".")), "{channel}");
}
