//! Documents show commands with files of `examples/`, and the output. The program prints exactly this output.

use std::{collections::BTreeSet, fs, path::Path};

use portreeve_facts::Snapshot;
use tempfile::TempDir;

use crate::{
    cli::{binary, ended},
    shown::{has, shown},
};

const PAGES: [&str; 5] = ["README.md", "docs/start.md", "docs/reserve.md", "docs/what-if.md", "examples/README.md"];

#[test]
fn every_output_of_an_example_is_what_the_program_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for page in PAGES {
        let text = fs::read_to_string(root.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        let mut commands = shown(&text);
        commands.retain(|(command, _)| command.starts_with("portreeve ") && command.contains(" examples/"));
        assert!(!commands.is_empty(), "{page} shows no example");
        for (command, lines) in commands {
            let words = command.trim_end_matches(" 2> /dev/null").split_whitespace().skip(1);
            let (_, output, errors) = ended(binary().args(words).current_dir(root));
            assert!(has(&output, &lines), "{page}: {command} prints\n{output}{errors}");
        }
    }
}

#[test]
fn a_command_and_its_output_are_read_as_a_page_shows_them() {
    let page = "```console\nportreeve map\n$ portreeve check\na\n\nb\n$ date\n```\n\n```sh\n$ portreeve owner 1\n```\n";
    assert_eq!(shown(page), [("portreeve check", vec!["a", "", "b"]), ("date", vec![])]);
}

#[test]
fn output_that_differs_is_caught() {
    assert!(has("a\nb\nc\n", &["a", "b", "c"]));
    assert!(has("a\nb\nc\nd", &["a", "...", "c", "..."]));
    assert!(!has("a\nb", &["b"]));
    assert!(!has("a\nb", &["a"]));
    assert!(!has("a\nb\nc", &["a", "...", "x", "..."]));
}

#[test]
fn the_scan_of_the_examples_was_made_of_their_cluster() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let scan = fs::read_to_string(root.join("examples/node-1.json")).expect("examples/node-1.json");
    assert!(scan.contains("\"origin\": \"examples/cluster.yaml\""));
    let (code, output, _) = ended(binary().args(["lint", "examples/cluster.yaml"]).current_dir(root));
    assert_eq!(code, 0, "{output}");
}

#[test]
fn the_objects_of_the_examples_are_a_whole_cluster() {
    let host = TempDir::new().expect("a directory");
    let mut command = binary();
    command.args(["check", "--services", "examples/cluster.yaml", "--node", "node-1", "--host-root"]).arg(host.path());
    let (_, output, errors) = ended(command.current_dir(env!("CARGO_MANIFEST_DIR")));
    assert!(output.starts_with("node-1: "), "{output}{errors}");
    assert!(!errors.contains("Services") && !errors.contains("cluster.yaml"), "{errors}");
    for name in ["node-1", "node-2"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.json"));
        let scan = Snapshot::from_json(&fs::read(path).expect("a snapshot")).expect("a snapshot");
        assert_eq!(scan.cluster.lacks_services(), None, "{name}");
        let (services, nodes) = (scan.cluster.services.get(), scan.cluster.nodes.get());
        let of_services = services.expect("Services").iter().filter_map(|it| Some(it.uid.as_ref()?.to_string()));
        let of_nodes = nodes.expect("Nodes").iter().filter_map(|it| it.uid.clone());
        let uids: Vec<String> = of_services.chain(of_nodes).collect();
        assert_eq!(BTreeSet::from_iter(&uids).len(), uids.len(), "two objects have one uid: {uids:?}");
    }
}
