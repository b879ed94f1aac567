//! The website of the documents: its table of contents in `docs/SUMMARY.md`, its length, and the commands that users
//! type.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::cli::ended;

/// The largest number of words in all pages together. The tables of `who-answers/` do not count, because a reader looks
/// up one row.
const WORDS: usize = 45_000;
const TABLES: &str = "who-answers/";
/// The largest number of words in the pages for a new user. Runbooks do not count, because an alert leads to its
/// runbook.
const WORDS_OF_A_NEW_USER: usize = 15_000;
const RUNBOOKS: &str = "runbooks/";

/// The parts of `docs/SUMMARY.md` for a new user.
const FOR_A_NEW_USER: [&str; 4] = ["Start", "Fix an incident", "Run it on every node", "Prevent"];

/// Commands of other programs in the pages: the first words of each command, and the test file that runs the command.
/// If no test runs the command, the second value is the reason, not a file. REGISTRY stands for the registry in
/// `deploy/names`.
const TYPED: &[(&str, &str)] = &[
    ("kubectl create namespace portreeve", "tests/lab/chart.rs"),
    ("kubectl label namespace portreeve pod-security.kubernetes.io/enforce=privileged", "tests/lab/chart.rs"),
    ("helm install portreeve deploy/chart -n portreeve --set image.repository=", "tests/lab/chart.rs"),
    ("helm uninstall portreeve -n portreeve", "tests/lab/chart.rs"),
    ("helm upgrade portreeve deploy/chart -n portreeve --reset-then-reuse-values", "tests/lab/chart.rs"),
    ("helm rollback portreeve -n portreeve", "tests/lab/chart.rs"),
    ("kubectl -n portreeve rollout status daemonset/portreeve", "tests/lab/chart.rs"),
    ("kubectl patch node NODE --subresource=status", "tests/lab/condition.rs"),
    ("kubectl get events -A --field-selector reportingComponent=portreeve", "docs/runbooks/PortreeveWarningFinding.md"),
    ("kubectl get events -n portreeve", "tests/lab/chart.rs lists the Events of all namespaces"),
    ("node=n1", "tests/lab/parts/page.rs"),
    ("agent=$(kubectl -n portreeve get pods -l app.kubernetes.io/name=portreeve ", "tests/lab/parts/page.rs"),
    ("kubectl -n portreeve logs \"$agent\" --tail=50", "docs/runbooks/PortreeveAgentStuck.md"),
    ("kubectl -n portreeve logs POD --previous", "it is kubectl's own"),
    ("kubectl -n portreeve delete \"$agent\"", "it is kubectl's own"),
    ("kubectl auth can-i --list --as=", "it is kubectl's own"),
    ("kubectl apply -f install.yaml", "tests/delivery/generated.rs compares the file with the chart"),
    ("ip ", "it is Linux's own"),
    ("nsenter -t PID -n", "it is Linux's own"),
    ("kubectl apply -f deploy/policies/policies.yaml", "tests/lab/policies.rs creates the same objects"),
    ("kubectl delete -f deploy/policies/policies.yaml", "it deletes what the command before created"),
    ("kubectl delete namespace portreeve", "it is kubectl's own"),
    ("helm upgrade ... --set policies.enabled=false", "it is a part of the user's own command"),
    ("kubectl get services,endpointslices,pods,nodes -A -o yaml", "tests/lab/chart.rs types it on a node"),
    ("ln -s \"$(command -v portreeve)\" ~/.local/bin/kubectl", "tests/lab/plugin.rs makes the same links"),
    ("cargo build --release --locked", "this test is built by it"),
    ("cargo run --release --locked -- check", "tests run the same binary"),
    ("set -o pipefail; helm template my-chart", "tests/anywhere/lint/examples.rs types the pipes of docs/lint.md"),
    ("kubectl kustomize overlay/", "kustomize is a part of kubectl: lint reads the same form from helm"),
    (
        concat!("skopeo copy docker-archive:target/portreeve-", env!("CARGO_PKG_VERSION"), ".tar "),
        "it needs a registry",
    ),
    ("cosign verify-blob ", "tests/delivery/release.rs verifies a release with it"),
    ("cosign verify-blob-attestation --key cosign.pub ", "tests/lab/released.rs"),
    ("cosign verify --key cosign.pub IMAGE@DIGEST", "it needs a registry"),
    ("minisign -V -p minisign.pub -m SHA256SUMS", "tests/lab/released.rs"),
    ("sha256sum --check ", "tests/delivery/release.rs checks a release with it"),
    (
        "kubectl krew install --manifest=portreeve.yaml --archive=",
        "tests/lab/released.rs types it with krew's own name",
    ),
    ("sudo dpkg --install portreeve-VERSION-linux-ARCH.deb", "tests/lab/released.rs installs it below a folder"),
    ("sudo rpm --install portreeve-VERSION-linux-ARCH.rpm", "tests/lab/released.rs installs it below a folder"),
    (
        "helm install portreeve oci://REGISTRY/charts/portreeve -n portreeve",
        "it needs a registry: tests/lab/released.rs installs the file of the chart",
    ),
    (
        "helm upgrade portreeve oci://REGISTRY/charts/portreeve -n portreeve --reset-then-reuse-values",
        "it needs a registry: tests/lab/chart.rs types it with the folder of the chart",
    ),
];

/// The programs of inline commands. An inline text with fewer than four words only names a command.
const PROGRAMS: [&str; 6] = ["cosign", "helm", "ip", "kubectl", "minisign", "nsenter"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The path of every page below a folder, relative to `docs`.
fn below(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    let mut pages = Vec::new();
    for path in paths {
        if path.is_dir() {
            pages.extend(below(&path));
        } else if path.extension().is_some_and(|it| it == "md") {
            let page = path.strip_prefix(root().join("docs")).expect("it lies below docs");
            pages.push(page.display().to_string());
        }
    }
    pages
}

/// The parts of `docs/SUMMARY.md` and the pages of each part, in their order.
fn tree(summary: &str) -> Vec<(String, Vec<String>)> {
    let mut parts: Vec<(String, Vec<String>)> = Vec::new();
    for line in summary.lines() {
        if let Some(part) = line.strip_prefix("# ") {
            parts.push((part.to_owned(), Vec::new()));
        } else if let Some((_, rest)) = line.split_once("](") {
            let page = rest.split(')').next().expect("a link ends");
            parts.last_mut().expect("a part comes first").1.push(page.to_owned());
        }
    }
    parts
}

/// The number of words in these pages, without the bars of tables.
fn words(pages: &[String]) -> usize {
    let is_word = |it: &&str| it.contains(char::is_alphanumeric);
    pages.iter().map(|page| text(Path::new("docs").join(page)).split_whitespace().filter(is_word).count()).sum()
}

#[test]
fn every_page_is_once_in_the_tree_of_the_site() {
    let listed: Vec<String> = tree(&text("docs/SUMMARY.md")).into_iter().flat_map(|(_, pages)| pages).collect();
    let mut there = below(&root().join("docs"));
    there.retain(|page| page != "SUMMARY.md");
    let [once, there] = [listed.clone(), there].map(BTreeSet::from_iter);
    let missing: Vec<_> = there.difference(&once).collect();
    assert!(missing.is_empty(), "add to docs/SUMMARY.md: {missing:?}");
    let gone: Vec<_> = once.difference(&there).collect();
    assert!(gone.is_empty(), "docs/SUMMARY.md names pages that do not exist: {gone:?}");
    assert_eq!(listed.len(), once.len(), "docs/SUMMARY.md names a page twice");
}

#[test]
fn the_site_is_short_enough_to_read() {
    let parts = tree(&text("docs/SUMMARY.md"));
    let first: Vec<String> = parts
        .iter()
        .filter(|(part, _)| FOR_A_NEW_USER.contains(&part.as_str()))
        .flat_map(|(_, pages)| pages.clone())
        .filter(|page| !page.starts_with(RUNBOOKS))
        .collect();
    assert!(first.len() > 20, "{FOR_A_NEW_USER:?} are parts of docs/SUMMARY.md");
    let mut all: Vec<String> = parts.into_iter().flat_map(|(_, pages)| pages).collect();
    all.retain(|page| !page.starts_with(TABLES));
    for (pages, most) in [(all, WORDS), (first, WORDS_OF_A_NEW_USER)] {
        let counted = words(&pages);
        assert!(counted <= most, "{} pages have {counted} words, {most} are the most: cut", pages.len());
    }
}

#[test]
fn the_part_about_every_node_begins_with_links_to_values_rights_upgrade_and_removal() {
    let parts = tree(&text("docs/SUMMARY.md"));
    let (_, pages) = parts.iter().find(|(part, _)| part == "Run it on every node").expect("the part");
    assert_eq!(pages[0], "every-node.md");
    assert!(text("docs/README.md").contains("](every-node.md)"), "the first page leads to it");
    let page = text("docs/every-node.md");
    for place in
        ["chart/README.md#values", "settings.md#rights-on-the-node", "install.md#upgrade", "install.md#removal"]
    {
        assert!(page.contains(&format!("{place})")), "{place}");
    }
}

#[test]
fn a_page_that_is_not_in_the_tree_is_caught() {
    let parts = tree("# Start\n\n[One](a.md)\n\n- [Two](b/c.md)\n  - [Three](d.md)\n\n# More\n\n- [Four](e.md)\n");
    let pages = |index: usize| parts[index].1.join(" ");
    assert_eq!(
        (parts.len(), parts[0].0.as_str(), pages(0), pages(1)),
        (2, "Start", "a.md b/c.md d.md".into(), "e.md".into())
    );
}

/// The commands in the console blocks of a page, each in one line. If a block has prompts, lines without a prompt are
/// output.
fn commands(page: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    for block in page.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next()) {
        let prompts = block.lines().any(|line| line.starts_with("$ "));
        let mut continued = false;
        for line in block.lines().filter(|line| !line.trim().is_empty()) {
            let typed = line.strip_prefix("$ ").or((!prompts).then_some(line));
            match (typed, commands.last_mut()) {
                (_, Some(last)) if continued => {
                    *last = format!("{} {}", last.trim_end_matches('\\').trim(), line.trim());
                }
                (Some(typed), _) => commands.push(typed.split("  #").next().unwrap_or(typed).trim().to_owned()),
                (None, _) => {}
            }
            continued = (continued || typed.is_some()) && line.ends_with('\\');
        }
    }
    commands.iter_mut().for_each(|command| *command = command.split(" # ").next().unwrap_or(command).trim().to_owned());
    commands
}

/// The whole commands in the inline code of a page, each in one line.
fn inline(page: &str) -> Vec<String> {
    let mut is_block = false;
    let prose = page.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_block ^= is_fence;
        !is_block && !is_fence
    });
    let prose = prose.collect::<Vec<_>>().join("\n");
    let spans = prose.split("\n\n").flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2));
    let spans = spans.map(|span| span.split_whitespace().collect::<Vec<_>>());
    spans.filter(|words| is_whole(words)).map(|words| words.join(" ")).collect()
}

fn is_whole(words: &[&str]) -> bool {
    match words {
        [.., "VERB"] => false,
        ["portreeve" | "make", _, ..] | ["kubectl" | "sudo", "portreeve", _, ..] => true,
        [program, _, _, _, ..] => PROGRAMS.contains(program),
        _ => false,
    }
}

/// Whether a command of Portreeve reads only files, so that a test can type the command without a node and a cluster.
fn reads_files(words: &str) -> bool {
    let words: Vec<&str> = words.split(' ').collect();
    match words[..] {
        ["explain", ..] => true,
        ["lint", path, ..] => path.ends_with('/') && !words.contains(&"cluster"),
        _ => words.contains(&"--snapshot"),
    }
}

/// Whether a page is about one alert.
fn is_runbook(page: &str) -> bool {
    page.starts_with("docs/runbooks/") && page != "docs/runbooks/README.md"
}

/// A folder with the program under both of its names, and with the files that commands of the documents read.
fn with_files() -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for name in ["portreeve", "kubectl-portreeve"] {
        symlink(env!("CARGO_BIN_EXE_portreeve"), at(name)).expect("a link");
    }
    symlink(root().join("examples"), at("examples")).expect("a link");
    for name in ["deploy", "manifests"] {
        fs::create_dir(at(name)).expect("a folder");
    }
    for (example, names) in [
        ("node-1.json", &["n1.json", "node.json", "node-1.json"][..]),
        ("cluster.yaml", &["cluster.yaml", "deploy/web.yaml", "manifests/web.yaml"]),
    ] {
        for &name in names {
            fs::copy(root().join("examples").join(example), at(name)).expect("a file");
        }
    }
    folder
}

/// For a command of Portreeve: whether it calls the kubectl plugin, and the words after the program's name.
fn ours(command: &str) -> Option<(bool, &str)> {
    let command = command.trim_start_matches("sudo ");
    if let Some((_, words)) = command.rsplit_once("/portreeve ") {
        return Some((false, words)).filter(|_| command.starts_with("kubectl "));
    }
    let plugin = command.strip_prefix("kubectl portreeve ").map(|words| (true, words));
    plugin.or_else(|| command.strip_prefix("portreeve ").map(|words| (false, words)))
}

#[test]
fn every_command_of_the_readme_and_the_site_is_one_that_works() {
    let folder = with_files();
    let (makefile, names) = (text("Makefile"), text("deploy/names"));
    let registry = names.lines().find_map(|line| line.strip_prefix("REGISTRY=")).expect("a registry");
    let (mut accepted, mut ran, mut elsewhere) = (0, 0, BTreeSet::new());
    let mut pages: Vec<String> = below(&root().join("docs")).into_iter().map(|page| format!("docs/{page}")).collect();
    pages.extend(["README.md", "deploy/chart/README.md", "examples/README.md"].map(str::to_owned));
    for page in &pages {
        let page_text = text(page);
        // Tests with a cluster type the blocks of runbooks.
        let blocks = if is_runbook(page) { Vec::new() } else { commands(&page_text) };
        for command in blocks.into_iter().chain(inline(&page_text)) {
            let command = command.replace(&format!("oci://{registry}/"), "oci://REGISTRY/");
            let verb =
                command.trim_start_matches("UPDATE=1 ").strip_prefix("make ").and_then(|it| it.split(' ').next());
            if let Some(verb) = verb {
                assert!(makefile.contains(&format!("\n{verb}:")), "{page}: make has no verb {verb}");
                continue;
            }
            let mut is_known = false;
            if let Some((begin, typed)) = TYPED.iter().find(|(begin, _)| command.starts_with(begin)) {
                is_known = true;
                elsewhere.insert(*begin);
                if root().join(typed).is_file() {
                    assert!(text(typed).contains(begin), "{typed} does not type {begin}");
                }
            }
            for (is_plugin, words) in command.split([';', '|']).filter_map(|part| ours(part.trim())) {
                is_known = true;
                let words = words.split(" > ").next().unwrap_or(words);
                let words = words.replace("PORT", "30080").replace("RULE", "listener-on-node-port");
                let name = if is_plugin { "kubectl-portreeve" } else { "portreeve" };
                let types = |words: &str| {
                    let script = format!("./{name} {words}");
                    ended(Command::new("bash").args(["-c", &script]).env("node", "n1").current_dir(folder.path()))
                };
                // With `--help` at the end, the program parses all words before `--help`, and does nothing else.
                let (code, _, errors) = types(&format!("{words} --help"));
                assert_eq!(code, 0, "{page}: {command}: {errors}");
                accepted += 1;
                if reads_files(&words) {
                    let (code, output, errors) = types(&words);
                    // Code 1 means that there are findings.
                    assert!(matches!(code, 0 | 1), "{page}: {command} ends with {code}: {output}{errors}");
                    ran += 1;
                }
            }
            assert!(is_known, "{page}: {command}: no test types it; add it to TYPED, with the test or the reason");
        }
    }
    assert!(accepted > 80 && ran > 10, "documents show commands: {accepted}, and of files: {ran}");
    let left: Vec<_> = TYPED.iter().map(|(begin, _)| *begin).filter(|begin| !elsewhere.contains(begin)).collect();
    assert!(left.is_empty(), "no document has {left:?}");
}

#[test]
fn a_test_with_a_cluster_follows_each_runbook() {
    let tests = ["tests/lab/runbooks.rs", "tests/lab/guard.rs"].map(text).concat();
    let mut pages = below(&root().join("docs/runbooks"));
    pages.iter_mut().for_each(|page| page.insert_str(0, "docs/"));
    pages.retain(|page| is_runbook(page));
    assert!(pages.len() > 10, "{pages:?}");
    for page in &pages {
        let name = Path::new(page).file_stem().expect("a name").to_string_lossy();
        assert!(tests.contains(&format!("\"{name}\"")), "no test types the commands of {page}");
    }
}

#[test]
fn a_command_is_read_as_a_page_shows_it() {
    let page = "```console\n$ portreeve check --x  # why\nout\n$ sudo portreeve demo\n```\n```console\nkubectl get a \\\n    | b\nmake x\n```\n";
    assert_eq!(commands(page), ["portreeve check --x", "sudo portreeve demo", "kubectl get a | b", "make x"]);
    assert_eq!(ours("sudo portreeve demo"), Some((false, "demo")));
    assert_eq!(ours("kubectl portreeve check -n a"), Some((true, "check -n a")));
    assert_eq!(ours("kubectl debug node/n1 -- /portreeve check"), Some((false, "check")));
    assert_eq!(ours("helm install portreeve deploy/chart"), None);
    let page = "Type `portreeve\ncheck`, `helm install`, `portreeve VERB` or\n`kubectl get pods -A`.\n```sh\n`make x`\n```\n`ip a`";
    assert_eq!(inline(page), ["portreeve check", "kubectl get pods -A"]);
    let typed =
        ["explain", "lint a/ --against b.json", "owner 80 --snapshot a.json", "lint a/ --against cluster", "check"];
    assert_eq!(typed.map(reads_files), [true, true, true, false, false]);
}
