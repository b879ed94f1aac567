//! krew's manifest, as it is made of the archives that people will download.

use std::{fs, path::Path, process::Command};

use serde_json::Value;
use tempfile::TempDir;

const URL: &str = "https://downloads.example/portreeve/";

/// What a program prints, or its complaint.
fn run(folder: &TempDir, program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).current_dir(folder).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// Archives of these names, as `make krew` packs them.
fn archives(names: &[&str]) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    for name in names {
        for file in ["kubectl-portreeve", "LICENSE"] {
            fs::write(folder.path().join(file), format!("{file} of {name}")).expect("a file");
        }
        run(&folder, "tar", &["-czf", name, "kubectl-portreeve", "LICENSE"]).expect("an archive");
    }
    folder
}

fn manifest(folder: &TempDir, arguments: &[&str]) -> Result<String, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/krew/manifest");
    run(folder, script.to_str().expect("UTF-8"), arguments)
}

#[test]
fn a_manifest_has_the_hash_of_each_archive_and_names_what_is_inside() {
    let names = ["kubectl-portreeve-1.2.3-linux-amd64.tar.gz", "kubectl-portreeve-1.2.3-darwin-arm64.tar.gz"];
    let folder = archives(&names);
    let text = manifest(&folder, &[URL, names[0], names[1]]).expect("a manifest");
    let plugin: Value = serde_saphyr::from_str(&text).expect("YAML");
    assert_eq!(plugin["apiVersion"], "krew.googlecontainertools.github.com/v1alpha2");
    assert_eq!((&plugin["metadata"]["name"], &plugin["spec"]["version"]), (&"portreeve".into(), &"v1.2.3".into()));
    // krew shows it in one line of a table.
    assert!(plugin["spec"]["shortDescription"].as_str().expect("words").len() <= 50);
    let platforms = plugin["spec"]["platforms"].as_array().expect("platforms");
    assert_eq!(platforms.len(), 2);
    for (platform, name) in platforms.iter().zip(names) {
        assert_eq!(platform["uri"], format!("{URL}{name}"));
        let sum = run(&folder, "sha256sum", &[name]).expect("a hash");
        assert_eq!(sum.split_whitespace().next(), platform["sha256"].as_str());
        let labels = &platform["selector"]["matchLabels"];
        let end = format!("{}-{}.tar.gz", labels["os"].as_str().expect("os"), labels["arch"].as_str().expect("arch"));
        assert!(name.ends_with(&end), "{end}");
        let inside = run(&folder, "tar", &["-tzf", name]).expect("a list");
        let files = platform["files"].as_array().expect("files").iter().map(|file| &file["from"]);
        for file in files.chain([&platform["bin"]]) {
            assert!(inside.lines().any(|it| Some(it) == file.as_str()), "{file} is not in {inside}");
        }
    }
}

#[test]
fn archives_of_two_versions_or_of_no_platform_make_no_manifest() {
    let names = [
        "kubectl-portreeve-1.2.3-linux-amd64.tar.gz",
        "kubectl-portreeve-1.2.4-linux-arm64.tar.gz",
        "kubectl-portreeve.tar.gz",
    ];
    let folder = archives(&names);
    for (arguments, complaint) in [
        (&[URL, names[0], names[1]][..], "several versions"),
        (&[URL, names[2]], "is not kubectl-portreeve-VERSION-OS-ARCH.tar.gz"),
        (&[URL], "no archive is named"),
    ] {
        let refused = manifest(&folder, arguments).expect_err("no manifest");
        assert!(refused.contains(complaint), "{refused}");
    }
}
