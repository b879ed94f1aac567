//! A release: what `tools/release` refuses, and what it leaves below `dist`.

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{names::name, programs};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const NAMES: &str =
    "REPOSITORY=https://forge.test/portreeve/portreeve\nREGISTRY=registry.test/portreeve\nSITE=https://site.test/\n";
/// Two signatures of one file differ. Every other file of a release is the same.
const SIGNED: [&str; 2] = ["SHA256SUMS.sigstore.json", "SHA256SUMS.provenance.json"];

/// Keys to sign with, and names, in a folder of their own.
struct Maker(TempDir);

impl Maker {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let maker = Self(folder);
        maker.write("names", NAMES);
        maker
    }

    /// The same with keys, which need the tools of a release.
    fn with_keys() -> Self {
        let maker = Self::new();
        maker.run(&program("cosign"), &["generate-key-pair"]);
        maker.run("minisign", &["-G", "-W", "-p", "minisign.pub", "-s", "minisign.key"]);
        maker
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.0.path().join(name), text).expect("a file");
        self.path(name)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = command(program, arguments, self.0.path()).env("COSIGN_PASSWORD", "").output();
        successful(program, &output.unwrap_or_else(|error| panic!("{program}: {error}")))
    }

    /// A clone of the commit that is checked out, in a folder of its own.
    fn clone_of_this(&self, name: &str) -> PathBuf {
        self.run("git", &["clone", "--quiet", env!("CARGO_MANIFEST_DIR"), name]);
        self.0.path().join(name)
    }

    /// Makes a release in a clone.
    fn release(&self, clone: &Path, version: &str, more: &[(&str, &str)]) -> Output {
        let [cosign, minisign, names] = ["cosign.key", "minisign.key", "names"].map(|name| self.path(name));
        let keys = [("COSIGN_KEY", &*cosign), ("MINISIGN_KEY", &minisign), ("NAMES", &names), ("COSIGN_PASSWORD", "")];
        let mut release = command(clone.join("tools/release").to_str().expect("UTF-8"), &[version], clone);
        release.envs(keys).envs(more.iter().copied()).output().expect("bash")
    }

    /// Stands in for cargo when cargo compiles: a release of a small file is a release, too.
    fn cargo(&self) -> String {
        let text = format!(
            "#!/bin/bash\nset -eu\n\
             [ \"$1 $2\" = 'auditable build' ] || exec '{}' \"$@\"\n\
             for word; do case \"$word\" in --target=*) target=\"${{word#--target=}}\" ;; esac; done\n\
             mkdir -p \"target/$target/release\"\n\
             printf '\\177ELF of %s' \"$target\" > \"target/$target/release/portreeve\"\n\
             chmod 755 \"target/$target/release/portreeve\"\n",
            env!("CARGO")
        );
        let path = self.write("cargo", &text);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
        path
    }
}

fn program(name: &str) -> String {
    programs::find(name).to_str().expect("UTF-8").to_owned()
}

fn command(program: &str, arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder);
    command
}

#[track_caller]
fn successful(program: &str, output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{program}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// The files of a release, by name.
fn files(dist: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dist).unwrap_or_else(|error| panic!("{}: {error}", dist.display()));
    let path = entries.map(|entry| entry.expect("an entry").path());
    path.map(|it| (it.file_name().expect("a name").display().to_string(), fs::read(&it).expect("a file"))).collect()
}

/// Two releases have the same files with the same bytes.
#[track_caller]
fn same(first: &Path, second: &Path) {
    let [first, second] = [first, second].map(files);
    assert_eq!(first.keys().collect::<Vec<_>>(), second.keys().collect::<Vec<_>>());
    let differ = first.iter().filter(|(name, bytes)| !SIGNED.contains(&name.as_str()) && second[*name] != **bytes);
    assert_eq!(differ.map(|(name, _)| name).collect::<Vec<_>>(), Vec::<&String>::new(), "these differ");
}

#[test]
fn a_release_needs_its_version_keys_and_real_names() {
    let maker = Maker::new();
    let clone = maker.clone_of_this("clone");
    let refused = |version: &str, more: &[(&str, &str)]| {
        let output = maker.release(&clone, version, more);
        assert_eq!(output.status.code(), Some(1), "{version}");
        let lines = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(lines.lines().count(), 1, "{lines}");
        lines
    };
    assert!(refused("", &[]).contains("VERSION must be the number of the release"));
    assert!(refused("1", &[]).contains("VERSION must be the number of the release"));
    assert!(refused(VERSION, &[("COSIGN_KEY", "")]).contains("COSIGN_KEY and MINISIGN_KEY must name the keys"));
    assert!(refused(VERSION, &[]).contains("COSIGN_KEY and MINISIGN_KEY must name the keys"));
    maker.write("minisign.key", "a key");
    assert!(refused("99.0.0", &[]).contains(&format!("Cargo.toml has version {VERSION}, not 99.0.0")));
    let examples = [
        "REPOSITORY=https://forge.example/portreeve\nREGISTRY=registry.test/portreeve\n",
        "REPOSITORY=https://forge.test/portreeve\nREGISTRY=portreeve\n",
        "REPOSITORY=https://forge.test/portreeve\nREGISTRY=registry.test/portreeve\nSITE=https://site.example/\n",
        "",
    ];
    for names in examples {
        let names = maker.write("examples", names);
        assert!(refused(VERSION, &[("NAMES", &names)]).contains("must have the real names"));
    }
    // The names of this tree are examples, or are real.
    fs::write(clone.join("new"), "").expect("a file");
    assert!(refused(VERSION, &[]).contains("commit the changed files first"));
    assert!(!clone.join("dist").exists());
}

#[test]
fn the_package_has_the_name_of_the_repository_and_no_tests_or_pictures() {
    let repository = name("REPOSITORY");
    assert_eq!([env!("CARGO_PKG_REPOSITORY"), env!("CARGO_PKG_HOMEPAGE")], [repository.as_str(); 2]);
    let listed = command(
        env!("CARGO"),
        &["package", "--list", "--allow-dirty", "--offline"],
        Path::new(env!("CARGO_MANIFEST_DIR")),
    );
    let listed = successful("cargo package", &{ listed }.output().expect("cargo"));
    assert!(listed.lines().any(|it| it == "README.md") && listed.lines().any(|it| it == "src/main.rs"), "{listed}");
    let strange =
        listed.lines().filter(|it| ["tests/", "docs/", "benches/", "dashboards/"].iter().any(|no| it.starts_with(no)));
    assert_eq!(strange.collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn nothing_is_published_that_was_not_made() {
    let maker = Maker::new();
    let clone = maker.clone_of_this("clone");
    let published = command(clone.join("tools/publish").to_str().expect("UTF-8"), &[], &clone).output().expect("bash");
    assert_eq!(published.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&published.stderr).contains("dist has no release"));
}

/// What `make nightly SHARD=release` runs: it needs GoReleaser, cosign and more.
mod made {
    use super::*;

    #[test]
    fn a_release_verifies_by_itself_and_two_of_the_same_commit_are_the_same() {
        let maker = Maker::with_keys();
        let cargo = maker.cargo();
        let [first, second] = ["one", "a/second/one"].map(|name| {
            let clone = maker.clone_of_this(name);
            successful("tools/release", &maker.release(&clone, VERSION, &[("CARGO", &cargo)]));
            clone.join("dist")
        });
        same(&first, &second);
        let has = files(&first);
        let named = |name: &str| name.replace("VERSION", VERSION);
        let expected = [
            "NOTICE",
            "SHA256SUMS",
            "SHA256SUMS.minisig",
            "SHA256SUMS.provenance.json",
            "SHA256SUMS.sigstore.json",
            "install.yaml",
            "kubectl-portreeve-VERSION-linux-amd64.tar.gz",
            "kubectl-portreeve-VERSION-linux-arm64.tar.gz",
            "portreeve-VERSION-image.tar",
            "portreeve-VERSION-linux-amd64.deb",
            "portreeve-VERSION-linux-amd64.rpm",
            "portreeve-VERSION-linux-arm64.deb",
            "portreeve-VERSION-linux-arm64.rpm",
            "portreeve-VERSION.cdx.json",
            "portreeve-VERSION.tgz",
            "portreeve.yaml",
        ];
        assert_eq!(has.keys().map(String::as_str).collect::<Vec<_>>(), expected.map(named));

        verifies(&maker, &first);
        let digest = image(&first);
        for (arch, target) in [("amd64", "x86_64"), ("arm64", "aarch64")] {
            let archive = format!("kubectl-portreeve-{VERSION}-linux-{arch}.tar.gz");
            let listed = maker.run("tar", &["-tzf", &path(&first, &archive)]);
            let mut listed: Vec<_> = listed.lines().collect();
            listed.sort_unstable();
            assert_eq!(listed, ["LICENSE", "NOTICE", "portreeve"]);
            let inside = maker.run("tar", &["-xzOf", &path(&first, &archive), "portreeve"]);
            assert_eq!(inside, format!("\u{7f}ELF of {target}-unknown-linux-musl"));
            let package =
                maker.run("dpkg-deb", &["-c", &path(&first, &format!("portreeve-{VERSION}-linux-{arch}.deb"))]);
            for wanted in
                ["/usr/bin/portreeve", "/usr/bin/kubectl-portreeve -> portreeve", "/usr/share/doc/portreeve/NOTICE"]
            {
                assert!(package.contains(wanted), "{package}");
            }
        }
        krew(&maker, &first);
        let manifest = text(&has["install.yaml"]);
        assert!(manifest.contains(&format!("registry.test/portreeve@{digest}")), "{manifest}");
        let values =
            maker.run(&program("helm"), &["show", "values", &path(&first, &format!("portreeve-{VERSION}.tgz"))]);
        let values: Value = serde_saphyr::from_str(&values).expect("YAML");
        assert_eq!(
            (&values["image"]["repository"], &values["image"]["digest"]),
            (&json!("registry.test/portreeve"), &json!(digest))
        );
        let notice = text(&has["NOTICE"]);
        for word in ["  ring v0.", "  rustls v", "  kube v5.", "Permission is hereby granted, free of charge"] {
            assert!(notice.contains(word), "NOTICE lacks {word}");
        }
        let bom: Value = serde_json::from_slice(&has[&format!("portreeve-{VERSION}.cdx.json")]).expect("JSON");
        let components = bom["components"].as_array().expect("components");
        assert!(components.iter().any(|it| it["name"] == "ring"), "{} components", components.len());
        assert!(components.iter().all(|it| it["licenses"][0].is_object()), "each has a licence");
    }

    /// The signatures are of this list, the list of these files, and what was changed is noticed.
    fn verifies(maker: &Maker, dist: &Path) {
        let [sums, bundle, provenance] = ["SHA256SUMS", SIGNED[0], SIGNED[1]].map(|name| path(dist, name));
        successful(
            "sha256sum",
            &command("sha256sum", &["--check", "--quiet", "SHA256SUMS"], dist).output().expect("it"),
        );
        let cosign = program("cosign");
        let key = ["--key", "cosign.pub", "--insecure-ignore-tlog"];
        maker.run(&cosign, &[&["verify-blob", "--bundle", &bundle], &key[..], &[&sums]].concat());
        let slsa = ["verify-blob-attestation", "--type", "slsaprovenance1", "--bundle", &provenance];
        maker.run(&cosign, &[&slsa[..], &key, &[&sums]].concat());
        maker.run("minisign", &["-V", "-q", "-p", "minisign.pub", "-m", &sums]);

        let changed = maker.write("changed", &(fs::read_to_string(&sums).expect("a list") + "\n"));
        fs::copy(path(dist, "SHA256SUMS.minisig"), maker.path("changed.minisig")).expect("a signature");
        for (program, arguments) in [
            (&*cosign, [&["verify-blob", "--bundle", &bundle], &key[..], &[&changed]].concat()),
            (&cosign, [&slsa[..], &key, &[&changed]].concat()),
            ("minisign", vec!["-V", "-q", "-p", "minisign.pub", "-m", &changed]),
        ] {
            let output = command(program, &arguments, maker.0.path()).output().expect("it");
            assert!(!output.status.success(), "{program} {arguments:?} takes another list");
        }
    }

    /// The digest of the image, which has both architectures.
    fn image(dist: &Path) -> String {
        let folder = TempDir::new().expect("a folder");
        let archive = path(dist, &format!("portreeve-{VERSION}-image.tar"));
        successful("tar", &command("tar", &["-xf", &archive], folder.path()).output().expect("tar"));
        let parsed = |name: &str| -> Value {
            let bytes = fs::read(folder.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            serde_json::from_slice(&bytes).expect("JSON")
        };
        let blob = |reference: &Value| {
            parsed(&format!("blobs/{}", reference["digest"].as_str().expect("a digest").replace(':', "/")))
        };
        let index = &parsed("index.json")["manifests"][0];
        let manifests = blob(index)["manifests"].as_array().expect("manifests").clone();
        let archs: Vec<_> = manifests.iter().map(|it| it["platform"]["architecture"].as_str().expect("one")).collect();
        assert_eq!(archs, ["amd64", "arm64"]);
        for manifest in &manifests {
            let labels = &blob(&blob(manifest)["config"])["config"]["Labels"];
            let of =
                |name: &str| labels[format!("org.opencontainers.image.{name}")].as_str().expect("a label").to_owned();
            assert_eq!(
                (of("version"), of("source")),
                (VERSION.to_owned(), "https://forge.test/portreeve/portreeve".to_owned())
            );
            assert_eq!(of("revision").len(), 40);
        }
        index["digest"].as_str().expect("a digest").to_owned()
    }

    fn krew(maker: &Maker, dist: &Path) {
        let plugin: Value =
            serde_saphyr::from_str(&fs::read_to_string(dist.join("portreeve.yaml")).expect("a file")).expect("YAML");
        let spec = &plugin["spec"];
        assert_eq!(
            (&plugin["metadata"]["name"], &spec["version"]),
            (&json!("portreeve"), &json!(format!("v{VERSION}")))
        );
        assert_eq!(spec["homepage"], "https://forge.test/portreeve/portreeve");
        // krew shows it in one line of a table.
        assert!(spec["shortDescription"].as_str().expect("words").len() <= 50);
        let platforms = spec["platforms"].as_array().expect("platforms");
        let mut archs: Vec<_> =
            platforms.iter().map(|it| it["selector"]["matchLabels"]["arch"].as_str().expect("one")).collect();
        archs.sort_unstable();
        assert_eq!(archs, ["amd64", "arm64"]);
        for platform in platforms {
            let arch = platform["selector"]["matchLabels"]["arch"].as_str().expect("one");
            let name = format!("kubectl-portreeve-{VERSION}-linux-{arch}.tar.gz");
            assert_eq!(
                platform["uri"],
                format!("https://forge.test/portreeve/portreeve/releases/download/v{VERSION}/{name}")
            );
            let sum = maker.run("sha256sum", &[&path(dist, &name)]);
            assert_eq!(
                (platform["sha256"].as_str(), &platform["bin"]),
                (sum.split_whitespace().next(), &json!("portreeve"))
            );
        }
    }

    // The whole program, compiled for both architectures in two folders: half an hour.
    #[test]
    fn the_whole_program_is_the_same_of_two_folders_and_names_no_path_of_this_machine() {
        let maker = Maker::with_keys();
        let [first, second] = ["one", "another"].map(|name| {
            let clone = maker.clone_of_this(name);
            successful("tools/release", &maker.release(&clone, VERSION, &[]));
            clone.join("dist")
        });
        same(&first, &second);
        // In the header of ELF: a program that the kernel may load anywhere is 3, another one 2.
        for (arch, machine, kind) in [("amd64", 0x3e, 3), ("arm64", 0xb7, 2)] {
            let archive = path(&first, &format!("kubectl-portreeve-{VERSION}-linux-{arch}.tar.gz"));
            maker.run("tar", &["-xzf", &archive]);
            let binary = fs::read(maker.path("portreeve")).expect("a binary");
            assert_eq!(&binary[..4], b"\x7fELF");
            assert_eq!((binary[18], binary[16]), (machine, kind), "{arch}");
            let has = |wanted: &[u8]| binary.windows(wanted.len()).any(|it| it == wanted);
            // cargo-auditable's list.
            assert!(has(b".dep-v0"), "{arch} has no list of dependencies");
            assert!(!has(b".symtab"), "{arch} has symbols, which nothing on a node reads");
            for path in [maker.0.path().to_str().expect("UTF-8"), "/.rustup/", "/.cargo/"] {
                assert!(!has(path.as_bytes()), "{arch} names {path}");
            }
            if arch == env::consts::ARCH.replace("x86_64", "amd64") {
                assert_eq!(maker.run(&maker.path("portreeve"), &["--version"]), format!("portreeve {VERSION}\n"));
            }
        }
    }
}

fn path(dist: &Path, name: &str) -> String {
    dist.join(name).to_str().expect("UTF-8").to_owned()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
