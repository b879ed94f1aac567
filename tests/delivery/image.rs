//! The image that buildah makes of the Dockerfile, without a registry.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::text;

/// The content of a file that replaces the binary. No test runs it.
const BINARY: &[u8] = b"\x7fELF and so on";

fn package(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns a folder with the parts of the image.
fn build() -> TempDir {
    let folder = TempDir::new().expect("a folder");
    for name in ["Dockerfile", "LICENSE"] {
        fs::write(folder.path().join(name), package(name)).expect("a file");
    }
    let binary = folder.path().join("portreeve");
    fs::write(&binary, BINARY).expect("a binary");
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).expect("its mode");
    let arguments = "bud --isolation chroot --build-arg VERSION=1.2.3 \
                     --build-arg REPOSITORY=https://forge.test/p --tag image .";
    run(&folder, "buildah", arguments.split(' '));
    run(&folder, "buildah", ["push", "image", "dir:parts"].into_iter());
    folder
}

fn run<'a>(folder: &TempDir, program: &str, arguments: impl Iterator<Item = &'a str>) -> String {
    let storage = ["--storage-driver=vfs", "--root=storage", "--runroot=run"];
    let storage = storage.into_iter().filter(|_| program == "buildah");
    let output = Command::new(program).args(storage).args(arguments).current_dir(folder).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The path of a part of the image. The manifest names the part by its digest.
fn part(reference: &Value) -> String {
    let digest = reference["digest"].as_str().and_then(|it| it.strip_prefix("sha256:")).expect("a digest");
    format!("parts/{digest}")
}

fn parsed(folder: &TempDir, name: &str) -> Value {
    let text = fs::read(folder.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn the_image_is_one_binary_and_its_licence_for_nobody() {
    let folder = build();
    let manifest = parsed(&folder, "parts/manifest.json");
    let config = parsed(&folder, &part(&manifest["config"]))["config"].take();
    assert_eq!(config["User"], "65534:65534");
    assert_eq!(config["Entrypoint"], json!(["/portreeve"]));
    let labels = ["title", "licenses", "version"].map(|it| &config["Labels"][format!("org.opencontainers.image.{it}")]);
    assert_eq!(labels, ["portreeve", "Apache-2.0", "1.2.3"]);
    for label in ["source", "url", "documentation"] {
        assert_eq!(config["Labels"][format!("org.opencontainers.image.{label}")], "https://forge.test/p", "{label}");
    }

    fs::create_dir(folder.path().join("root")).expect("a folder");
    for layer in manifest["layers"].as_array().expect("layers") {
        run(&folder, "tar", ["-C", "root", "-xf", &part(layer)].into_iter());
    }
    let listed = fs::read_dir(folder.path().join("root")).expect("a tree");
    let mut names: Vec<_> = listed.map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["LICENSE", "portreeve"]);
    let binary = folder.path().join("root/portreeve");
    assert_eq!(fs::metadata(&binary).expect("a binary").permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::read(&binary).expect("a binary"), BINARY);
    assert_eq!(fs::read(folder.path().join("root/LICENSE")).expect("a licence"), package("LICENSE"));
}

#[test]
fn the_dockerfile_is_of_the_version_of_the_package_and_pulls_nothing() {
    let dockerfile = text("Dockerfile");
    assert!(dockerfile.lines().any(|line| line == concat!("ARG VERSION=", env!("CARGO_PKG_VERSION"))));
    let bases: Vec<_> = dockerfile.lines().filter_map(|line| line.strip_prefix("FROM ")).collect();
    assert_eq!(bases, ["scratch"]);
}

/// `tools/shipped` adds the list of dependencies to the binary, and removes the paths of the machine. Both binaries
/// have the bind hook, and a release's lists of crates have the crates of the bind hook.
#[test]
fn the_image_has_the_binary_of_a_release() {
    let makefile = text("Makefile");
    assert!(makefile.contains("\nimage: shipped ") && makefile.contains("\n\ttools/shipped build --release --locked "));
    assert!(text("tools/shipped").contains("\nexec \"${CARGO:-cargo}\" auditable "));
    assert!(makefile.contains("\nshipped: FEATURES ?= bind-hook\n") && makefile.contains("--features '$(FEATURES)'"));
    assert!(text(".goreleaser.yaml").contains(", --features=bind-hook]\n"));
    let scripts = [("tools/release", &["cargo-cyclonedx "][..]), ("tools/notice", &[" tree ", " metadata "])];
    for (script, programs) in scripts {
        let script = text(script);
        for program in programs {
            let lines: Vec<&str> = script.lines().filter(|line| line.contains(program)).collect();
            let has_hook = |line: &&str| line.contains("--features bind-hook");
            assert!(!lines.is_empty() && lines.iter().all(has_hook), "{program}: {lines:?}");
        }
    }
}

#[test]
fn an_image_is_the_same_of_two_folders_at_two_times() {
    let archives = [1, 2].map(|_| {
        let folder = TempDir::new().expect("a folder");
        fs::write(folder.path().join("binary"), BINARY).expect("a binary");
        let mut image = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/image"));
        let of = |name: &str| folder.path().join(name).display().to_string();
        image.args([format!("docker-archive:{}:portreeve:1.2.3", of("image.tar")), format!("amd64={}", of("binary"))]);
        let output = image.env("SOURCE_DATE_EPOCH", "1700000000").output().expect("bash");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::read(folder.path().join("image.tar")).expect("an archive")
    });
    assert!(archives[0] == archives[1], "two archives of the same binary differ");
}
