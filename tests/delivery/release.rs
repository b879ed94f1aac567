//! A release: in which cases `tools/release` refuses, and which files it makes below `dist`.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::Output,
    thread,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    maker::{Maker, command, program, successful},
    names::{UNPUBLISHED, name},
};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The files that differ if a release is made twice, because two signatures of one file differ. All other files are
/// equal.
const SIGNED: [&str; 2] = ["SHA256SUMS.sigstore.json", "SHA256SUMS.provenance.json"];

fn files(dist: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dist).unwrap_or_else(|error| panic!("{}: {error}", dist.display()));
    let path = entries.map(|entry| entry.expect("an entry").path());
    path.map(|it| (it.file_name().expect("a name").display().to_string(), fs::read(&it).expect("a file"))).collect()
}

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
        "REPOSITORY=https://forge.test/portreeve\nREGISTRY=registry.test/portreeve\nSITE=https://site.example/\nMAINTAINERS=@a/b\n",
        "REPOSITORY=https://forge.test/portreeve\nREGISTRY=registry.test/portreeve\nSITE=https://site.test/\nMAINTAINERS=@a.example/b\n",
        "REPOSITORY=https://forge.test/portreeve\nREGISTRY=registry.test/portreeve\nSITE=https://site.test/\n",
        "REPOSITORY=https://forge.test/portreeve/\nREGISTRY=registry.test/portreeve\nSITE=https://site.test/\nMAINTAINERS=@a/b\n",
        "REPOSITORY=https://forge.test/portreeve\nREGISTRY=registry.test/Portreeve\nSITE=https://site.test/\nMAINTAINERS=@a/b\n",
        "REPOSITORY=https://forge.test/a&b\nREGISTRY=registry.test/portreeve\nSITE=https://site.test/\nMAINTAINERS=@a/b\n",
        "REPOSITORY=https://forge.test/portreeve\nREGISTRY=registry.test/a|e id|\nSITE=https://site.test/\nMAINTAINERS=@a/b\n",
        "",
    ];
    for names in examples {
        let names = maker.write("examples", names);
        assert!(refused(VERSION, &[("NAMES", &names)]).contains("must have the real names"));
    }
    // The maintainer's names are real, but the binary and the chart have other names.
    assert!(
        refused(VERSION, &[("CARGO", "false")]).contains("has other names than deploy/names, which the binary has")
    );
    let readme = clone.join("deploy/chart/README.md");
    let text = fs::read_to_string(&readme).expect("a document");
    let commit = || {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@localhost"];
        let words = [&identity[..], &["commit", "--quiet", "--all", "--message=x"]].concat();
        successful("git", &command("git", &words, &clone).output().expect("git"));
    };
    for line in ["oci://other.example/charts", &format!("**{UNPUBLISHED}.** Compile it.")] {
        fs::write(&readme, format!("{text}\n{line}\n")).expect("a document");
        commit();
        // A release without a reason to refuse would start cargo, so `false` replaces cargo.
        let said = refused(VERSION, &[("CARGO", "false"), ("OWN_KEYS", "1")]);
        assert!(said.contains("the chart of a release must have the names of ") && said.contains(line), "{said}");
    }
    let changes = clone.join("CHANGELOG.md");
    let heading = format!("## [{VERSION}]");
    let text = fs::read_to_string(&changes).expect("a document");
    fs::write(&changes, text.replace(&heading, "## [Unreleased]")).expect("a document");
    commit();
    assert!(refused(VERSION, &[]).contains(&format!("CHANGELOG.md has no heading `{heading}`")));
    // A release refuses an uncommitted file, even if the names are examples.
    fs::write(clone.join("new"), "").expect("a file");
    assert!(refused(VERSION, &[]).contains("commit the changed files first"));
    assert!(!clone.join("dist").exists());
}

#[test]
fn a_release_is_signed_with_the_keys_of_its_commit_or_nothing_is_compiled() {
    let maker = Maker::new();
    fs::create_dir(maker.path("bin")).expect("a folder");
    // In this test, a private key has the text of its public key, and a signature is this text. A locked key is a key
    // whose password is wrong.
    let opens = "! grep -qx locked";
    maker.script(
        "bin/cosign",
        &format!("#!/bin/bash\n{opens} \"$3\" || {{ echo >&2 no password; exit 1; }}\ncat \"$3\"\n"),
    );
    let signs = format!(
        "text=\"$(cat \"$3\")\"; {opens} <<< \"$text\" || {{ echo >&2 no password; exit 1; }}; echo \"$text\" > \"$9\""
    );
    let minisign = format!("case \"$1\" in -S) {signs} ;; -V) cmp \"$4\" \"$6.minisig\" ;; esac");
    maker.script("bin/minisign", &format!("#!/bin/bash\n{minisign}\n"));
    let path = format!("{}:{}", maker.path("bin"), env::var("PATH").expect("a PATH"));
    let clone = maker.clone_and("clone", &[("cosign.pub", "one\n"), ("minisign.pub", "two\n")]);
    let none = maker.clone_and("none", &[]);
    let other = "are not the keys of cosign.pub and minisign.pub of this commit";
    for (clone, cosign, minisign, own, wanted) in [
        (&clone, "other", "two", "", other),
        (&clone, "one", "other", "", other),
        (&none, "one", "two", "", other),
        (&clone, "locked", "two", "1", "COSIGN_KEY cannot sign: no password"),
        (&clone, "one", "locked", "1", "MINISIGN_KEY cannot sign: no password"),
        // In the last two cases, the release accepts the signing keys. The next step fails, because it needs cargo and
        // more tools.
        (&clone, "one", "two", "", ""),
        (&none, "other", "other", "1", ""),
    ] {
        maker.write("cosign.key", &format!("{cosign}\n"));
        maker.write("minisign.key", &format!("{minisign}\n"));
        let output = maker.release(clone, VERSION, &[("PATH", &path), ("CARGO", "false"), ("OWN_KEYS", own)]);
        assert!(!output.status.success());
        let said = text(&output.stderr);
        assert!(said.contains(wanted) && (!wanted.is_empty() || !said.contains("_KEY")), "{cosign} {minisign}: {said}");
        if !wanted.is_empty() {
            assert_eq!(said.lines().count(), 1, "{said}");
        }
    }
}

#[test]
fn one_command_writes_real_names_and_a_release_takes_them() {
    let maker = Maker::new();
    let clone = maker.clone_of_this("other");
    let [repository, registry, site, maintainers] = ["REPOSITORY", "REGISTRY", "SITE", "MAINTAINERS"].map(name);
    let git = |clone: &Path, words: &[&str]| text(&command("git", words, clone).output().expect("git").stdout);
    for wrong in [
        ["https://forge.test/a|b", "registry.test/a", "https://site.test/", "@a"],
        ["https://forge.test/a", "registry.test/a: b", "https://site.test/", "@a"],
        ["https://forge.test/a", "registry.test/a", "https://site.test", "@a"],
        ["https://forge.test/a", "registry.test/a", "https://site.test/", "@a&"],
        ["https://forge.test/a", "registry.example/a", "https://site.test/", "@a"],
    ] {
        let output = maker.names(&clone, &wrong);
        assert_eq!(output.status.code(), Some(1), "{wrong:?}");
        assert!(text(&output.stderr).contains("tools/names must have the real names"), "{wrong:?}");
    }
    assert_eq!(maker.names(&clone, &["https://forge.test/a"]).status.code(), Some(64));
    assert_eq!(git(&clone, &["status", "--porcelain"]), "", "nothing was written");

    let clone = maker.clone_and("clone", &[]);
    assert_eq!(fs::read(clone.join("deploy/names")).expect("names"), fs::read(maker.path("names")).expect("names"));
    let charts = format!("oci://{registry}");
    let old = ["-e", &*repository, "-e", &site, "-e", &maintainers, "-e", &charts];
    let left = git(&clone, &[&["grep", "-IlF"], &old[..], &["--", ":!tests"]].concat());
    assert_eq!(left, "", "files with a name of before");
    assert_eq!(git(&clone, &["grep", "-IlF", &registry, "--", "deploy"]), "", "a registry without oci://");
    assert_eq!(git(&clone, &["grep", "-Ilx", &format!("{UNPUBLISHED}.")]), "");
    // No document has such an address, because tools/names would not replace the address.
    let strange = ["grep", "-IlF", "-e", "example.org/portreeve", "-e", "REPOSITORY/", "--", "*.md"];
    assert_eq!(git(&clone, &strange), "");
    let linked = git(&clone, &["grep", "-IlF", "https://forge.test/portreeve/portreeve", "--", "*.md"]);
    for file in ["SECURITY.md", "docs/lint.md"] {
        assert!(linked.lines().any(|it| it == file), "{file}: {linked}");
    }
    let written = git(&clone, &["grep", "-IlF", "registry.test/portreeve"]);
    for file in ["deploy/chart/Chart.yaml", "deploy/chart/README.md", "deploy/install.yaml", "docs/install.md"] {
        assert!(written.lines().any(|it| it == file), "{file}: {written}");
    }
    // All names are accepted now. The next check refuses the release for another reason: cosign cannot sign.
    fs::create_dir(maker.path("bin")).expect("a folder");
    maker.script("bin/cosign", "#!/bin/bash\necho >&2 no password\nexit 1\n");
    let path = format!("{}:{}", maker.path("bin"), env::var("PATH").expect("a PATH"));
    maker.write("cosign.key", "a key");
    maker.write("minisign.key", "a key");
    let output = maker.release(&clone, VERSION, &[("NAMES", "deploy/names"), ("PATH", &path), ("CARGO", "false")]);
    assert_eq!(text(&output.stderr), "COSIGN_KEY cannot sign: no password\n");
}

/// A command line that starts a program of another author must begin with an environment without keys.
#[test]
fn no_program_that_others_wrote_has_the_keys_in_its_environment() {
    let release = crate::text("tools/release");
    for program in [
        "\"$goreleaser\" ",
        "cargo-cyclonedx ",
        "mdbook build",
        "tools/notice >",
        "tools/image \"oci",
        "\"$helm\" package",
        "\"$helm\" template",
    ] {
        let mut lines = release.lines().filter(|line| line.contains(program));
        let begins = lines.next().is_some_and(|line| line.trim_start().starts_with("\"${without_keys[@]}\" "));
        assert!(begins && lines.next().is_none(), "{program}");
    }
    let maker = Maker::new();
    let clone = maker.clone_of_this("clone");
    fs::create_dir(maker.path("bin")).expect("a folder");
    maker.script("bin/cargo-deny", &format!("#!/bin/bash\nenv > '{}'\n", maker.path("environment")));
    fs::write(clone.join("tools/install"), "#!/bin/bash\n").expect("a tool that installs nothing");
    let path = format!("{}:{}", maker.path("bin"), env::var("PATH").expect("a PATH"));
    let secrets = [
        "COSIGN_PRIVATE_KEY",
        "COSIGN_PASSWORD",
        "MINISIGN_PRIVATE_KEY",
        "MINISIGN_PASSWORD",
        "ACTIONS_ID_TOKEN_REQUEST_URL",
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
    ];
    let mut make = command("make", &["release", "VERSION=none"], &clone);
    let output = make.env("PATH", path).envs(secrets.map(|name| (name, "secret"))).output().expect("make");
    assert!(text(&output.stderr).contains("VERSION must be the number of the release"), "{}", text(&output.stderr));
    let environment = fs::read_to_string(maker.path("environment")).expect("cargo-deny was run");
    assert!(environment.contains("PATH=") && !environment.contains("secret"), "{environment}");
    let without = "env --unset={COSIGN,MINISIGN}_{PRIVATE_KEY,PASSWORD} --unset=ACTIONS_ID_TOKEN_REQUEST_{URL,TOKEN}";
    assert!(release.contains(without) && crate::text("Makefile").contains(without), "both have the same list");
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

fn words(name: &str) -> String {
    crate::text(name).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_documents_say_why_a_release_has_nothing_for_macos() {
    let targets = words(".goreleaser.yaml");
    assert!(targets.contains("targets: [x86_64-unknown-linux-musl, aarch64-unknown-linux-musl]"), "{targets}");
    for (document, sentences) in [
        ("docs/verify.md", &["**Releases have no archive for macOS**", "The manifest for krew names Linux only"][..]),
        (
            "docs/install.md",
            &[
                "Releases have no archive for macOS: Linux can link the plugin only against stand-ins for Apple's frameworks",
                "On a Mac, `cargo build --release --locked` makes the plugin",
                "`make lab` type-checks the plugin for macOS",
            ],
        ),
    ] {
        let words = words(document);
        for sentence in sentences {
            assert!(words.contains(sentence), "{document} does not say: {sentence}");
        }
    }
    let makefile = crate::text("Makefile");
    assert!(
        makefile.contains("MACOS := aarch64-apple-darwin\n") && makefile.contains("clippy --locked --target $(MACOS)")
    );
}

/// A person changes the first four files. For each other file, the step has the command that changes the file.
#[test]
fn the_step_of_a_release_about_the_version_names_each_file_that_has_the_version() {
    let guide = crate::text("CONTRIBUTING.md");
    let (_, step) = guide.split_once("\n3. The version: ").expect("the step");
    let (step, _) = step.split_once("\n4. ").expect("its end");
    let step = step.split_whitespace().collect::<Vec<_>>().join(" ");
    for (file, named) in [
        ("Cargo.toml", "Cargo.toml"),
        ("Dockerfile", "Dockerfile"),
        ("deploy/chart/Chart.yaml", "deploy/chart/Chart.yaml"),
        ("docs/install.md", "docs/install.md"),
        ("Cargo.lock", "cargo update --workspace"),
        ("fuzz/Cargo.lock", "cargo update --workspace --manifest-path fuzz/Cargo.toml"),
        (
            "crates/report/src/snapshots/portreeve_report__tests__rich_json.snap",
            "INSTA_UPDATE=always cargo nextest run -p portreeve-report",
        ),
        ("deploy/install.yaml", "make chart"),
    ] {
        assert!(crate::text(file).contains(VERSION), "{file} does not have the version");
        assert!(step.contains(&format!("`{named}`")), "CONTRIBUTING.md does not name {named}");
    }
}

#[test]
fn nothing_is_published_that_was_not_made() {
    let maker = Maker::new();
    let clone = maker.clone_of_this("clone");
    let published = command(clone.join("tools/publish").to_str().expect("UTF-8"), &[], &clone).output().expect("bash");
    assert_eq!(published.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&published.stderr).contains("dist has no release"));
}

const KEY: &str = "the key that signs";

/// A local forge: a git repository, to which git really pushes, and fake programs, which only record their arguments.
struct Forge<'a>(&'a Maker);

impl<'a> Forge<'a> {
    fn new(maker: &'a Maker) -> Self {
        maker.run("git", &["init", "--quiet", "--bare", "forge"]);
        fs::create_dir(maker.path("bin")).expect("a folder");
        // gh and a login read their standard input to its end.
        let login = format!("[ \"$1\" != login ] || cat >> '{}'\n", maker.path("called"));
        let notes = format!("cat > '{}'\n", maker.path("notes"));
        // The release does not exist yet.
        let answers = "[ \"$1\" != auth ] || exit ${LOGGED_OUT-0}\n[ \"$2\" != view ] || exit 1";
        let gh = format!("#!/bin/bash\n{answers}\necho \"gh $*\" >> '{}'\n{notes}", maker.path("called"));
        maker.script("bin/gh", &gh);
        for (name, does) in [("skopeo", &*login), ("helm", "echo Digest: sha256:1\n")] {
            let script = format!("#!/bin/bash\necho \"{name} $*\" >> '{}'\n{does}", maker.path("called"));
            maker.script(&format!("bin/{name}"), &script);
        }
        // Signatures are valid only for this key.
        let verify = format!("grep -qx '{KEY}'");
        let sign = format!("echo \"cosign $*\" >> '{}'", maker.path("called"));
        let cosign = format!(
            "case \"$1\" in verify-blob*) exec {verify} \"$3\" ;; public-key) exec echo \"$(sed 's/^a key$/{KEY}/' <<< \"$3\")\" ;; esac\n{sign}"
        );
        maker.script("bin/cosign", &format!("#!/bin/bash\n{cosign}\n"));
        maker.script("bin/minisign", &format!("#!/bin/bash\nexec {verify} \"$4\"\n"));
        Self(maker)
    }

    fn clone_with_keys(&self, name: &str, cosign: &str, minisign: &str) -> PathBuf {
        let changes =
            ["1.11.0", "1.10.0", "1.9.1"].map(|version| format!("## [{version}]\n\nWhat is new in {version}.\n"));
        self.0.clone_and(
            name,
            &[
                ("cosign.pub", &format!("{cosign}\n")),
                ("minisign.pub", &format!("{minisign}\n")),
                ("CHANGELOG.md", &format!("# Changelog\n\n{}", changes.join("\n"))),
            ],
        )
    }

    /// Writes a release of the clone's commit below `dist`, with only the files that `tools/publish` reads.
    fn made(&self, clone: &Path, version: &str, system: &str) {
        let dist = clone.join("dist");
        drop(fs::remove_dir_all(&dist));
        fs::create_dir_all(dist.join("site")).expect("a folder");
        fs::write(dist.join("site/index.html"), format!("the site of {version}")).expect("a page");
        let site = format!("portreeve-{version}-site.tar.gz");
        let run = |program: &str, arguments: &[&str]| {
            successful(program, &command(program, arguments, &dist).output().expect("it runs"))
        };
        run("tar", &["-czf", &site, "-C", "site", "."]);
        fs::remove_dir_all(dist.join("site")).expect("the page is in the archive");
        let revision = run("git", &["rev-parse", "HEAD"]);
        fs::write(dist.join("SHA256SUMS"), run("sha256sum", &[&site])).expect("a list");
        let predicate = json!({"predicate": {"buildDefinition": {
            "externalParameters": {"version": version, "image": "registry.test/portreeve@sha256:2"},
            "internalParameters": {"system": system},
            "resolvedDependencies": [{
                "uri": "git+https://forge.test/portreeve/portreeve",
                "digest": {"gitCommit": revision.trim()},
            }],
        }}});
        fs::write(dist.join("predicate"), predicate.to_string()).expect("a file");
        let payload = run("base64", &["--wrap=0", "predicate"]);
        fs::remove_file(dist.join("predicate")).expect("the file is there");
        let bundle = json!({"dsseEnvelope": {"payload": payload}});
        fs::write(dist.join("SHA256SUMS.provenance.json"), bundle.to_string()).expect("a file");
    }

    fn published(&self, clone: &Path) -> String {
        successful("tools/publish", &self.publish(clone, &[]))
    }

    /// The reason why `tools/publish` refuses, before it calls any program.
    fn refused(&self, clone: &Path) -> String {
        let output = self.publish(clone, &[]);
        assert_eq!(output.status.code(), Some(1));
        assert!(!fs::exists(self.0.path("called")).expect("a folder"), "a program was called");
        let lines = text(&output.stderr);
        assert_eq!(lines.lines().count(), 1, "{lines}");
        lines
    }

    fn publish(&self, clone: &Path, more: &[(&str, &str)]) -> Output {
        let path = format!("{}:{}", self.0.path("bin"), env::var("PATH").expect("a PATH"));
        let to_forge = [
            ("GIT_CONFIG_COUNT", "1".to_owned()),
            ("GIT_CONFIG_KEY_0", format!("url.{}.insteadOf", self.0.path("forge"))),
            ("GIT_CONFIG_VALUE_0", "https://forge.test/portreeve/portreeve".to_owned()),
        ];
        let mut publish = command(clone.join("tools/publish").to_str().expect("UTF-8"), &[], clone);
        publish.env("PATH", path).env("COSIGN_KEY", "a key").env_remove("KUBEBUILDER_ASSETS").envs(to_forge);
        publish.envs(more.iter().copied()).output().expect("bash")
    }

    fn has(&self, arguments: &[&str]) -> String {
        self.0.run("git", &[&["--git-dir=forge"], arguments].concat())
    }
}

#[test]
fn what_was_made_is_published_and_the_site_is_that_of_the_newest_release() {
    let maker = Maker::new();
    let forge = Forge::new(&maker);
    let clone = forge.clone_with_keys("clone", KEY, KEY);
    forge.made(&clone, "1.10.0", "debian 12");
    forge.published(&clone);
    let calls = fs::read_to_string(maker.path("called")).expect("calls");
    let wanted = [
        "skopeo copy --all --preserve-digests oci-archive:dist/portreeve-1.10.0-image.tar:1.10.0 docker://registry.test/portreeve:1.10.0",
        "cosign sign --yes --key a key registry.test/portreeve@sha256:2",
        "helm push dist/portreeve-1.10.0.tgz oci://registry.test/portreeve/charts",
        "cosign sign --yes --key a key registry.test/portreeve/charts/portreeve@sha256:1",
        "gh release create v1.10.0 --repo https://forge.test/portreeve/portreeve --verify-tag --title Portreeve 1.10.0 --notes-file - \
         dist/SHA256SUMS dist/SHA256SUMS.provenance.json dist/portreeve-1.10.0-site.tar.gz",
    ];
    assert_eq!(calls.lines().collect::<Vec<_>>(), wanted);
    let notes = fs::read_to_string(maker.path("notes")).expect("notes");
    assert_eq!(notes, "## [1.10.0]\n\nWhat is new in 1.10.0.\n");
    let head = successful("git", &command("git", &["rev-parse", "HEAD"], &clone).output().expect("git"));
    assert_eq!(forge.has(&["rev-parse", "v1.10.0"]), head);
    let site = |of: &str| {
        assert_eq!(forge.has(&["show", "gh-pages:index.html"]), format!("the site of {of}"));
        assert_eq!(forge.has(&["ls-tree", "-r", "--name-only", "gh-pages"]), "index.html\n", "and no other file");
        assert_eq!(forge.has(&["rev-list", "--count", "gh-pages"]), "1\n", "no version of the site is kept");
    };
    site("1.10.0");

    fs::remove_dir_all(clone.join("dist")).expect("a release");
    forge.made(&clone, "1.9.1", "debian 12");
    let said = forge.published(&clone);
    assert!(said.contains("The site was not pushed: it stays that of 1.10.0, which is newer than 1.9.1"), "{said}");
    site("1.10.0");

    fs::remove_dir_all(clone.join("dist")).expect("a release");
    forge.made(&clone, "1.11.0", "debian 12");
    forge.published(&clone);
    site("1.11.0");
    let changes = successful("git", &command("git", &["status", "--porcelain"], &clone).output().expect("git"));
    assert_eq!(changes, "", "dist is ignored, and nothing else was written");
}

#[test]
fn nothing_is_published_that_the_keys_do_not_verify_or_that_lacks_a_list_or_a_version() {
    let maker = Maker::new();
    let forge = Forge::new(&maker);
    for (name, cosign, minisign) in [("one", "another", KEY), ("two", KEY, "another")] {
        let clone = forge.clone_with_keys(name, cosign, minisign);
        forge.made(&clone, "1.10.0", "debian 12");
        let said = forge.refused(&clone);
        assert!(
            said.contains("cosign.pub and minisign.pub of this commit ") && said.contains("do not verify dist"),
            "{said}"
        );
        assert_eq!(forge.has(&["tag"]), "", "nothing was pushed");
    }
    let clone = forge.clone_with_keys("three", KEY, KEY);
    forge.made(&clone, "v1.10.0", "debian 12");
    let said = forge.refused(&clone);
    assert!(said.contains("the provenance of dist names no release: version v1.10.0"), "{said}");
    forge.made(&clone, "1.10.0", "debian 12");
    for name in ["more.sh", "SHA256SUMS.sh"] {
        let strange = clone.join("dist").join(name);
        fs::write(&strange, "x").expect("a file");
        let said = forge.refused(&clone);
        assert!(said.contains(&format!("dist has {name}, which SHA256SUMS does not list")), "{said}");
        fs::remove_file(strange).expect("the file is there");
    }
    let clone = forge.clone_with_keys("four", KEY, KEY);
    forge.made(&clone, "1.10.0", "debian 12");
    let said = text(&forge.publish(&clone, &[("COSIGN_KEY", "another key")]).stderr);
    assert!(said.contains("COSIGN_KEY is not the key of cosign.pub of "), "{said}");
    // Without a login, gh finds no release, even if a release exists.
    let said = text(&forge.publish(&clone, &[("LOGGED_OUT", "1")]).stderr);
    assert_eq!(said, "gh is not logged in at https://forge.test/portreeve/portreeve; type: gh auth login\n");
    assert!(!fs::exists(maker.path("called")).expect("a folder"), "a program was called");
    assert_eq!(forge.has(&["tag"]), "", "nothing was pushed");
}

#[test]
fn only_what_debian_12_made_of_the_commit_of_the_tag_is_published() {
    let maker = Maker::new();
    let forge = Forge::new(&maker);
    let clone = forge.clone_with_keys("clone", KEY, KEY);
    forge.made(&clone, "1.10.0", "ubuntu 24.04");
    let said = forge.refused(&clone);
    assert!(said.contains("a release is made on Debian 12, and dist was made on 'ubuntu 24.04'"), "{said}");

    fs::remove_dir_all(clone.join("dist")).expect("a release");
    forge.made(&clone, "1.10.0", "debian 12");
    let at = |of: &str| forge.has(&["rev-parse", of]).trim().to_owned();
    maker.run("git", &["-C", "clone", "push", "--quiet", "../forge", "HEAD:refs/heads/main"]);
    let identity = ["-c", "user.name=a", "-c", "user.email=a@localhost"];
    let by_a_person = |words: &[&str]| forge.has(&[&identity[..], words].concat()).trim().to_owned();
    let head = at("main");
    let other = by_a_person(&["commit-tree", "-m", "another commit", "main^{tree}"]);
    for tag in [&["tag", "v1.10.0", &other][..], &["tag", "--force", "--annotate", "--message=x", "v1.10.0", &other]] {
        by_a_person(tag);
        let said = forge.refused(&clone);
        let wanted =
            format!("v1.10.0 of https://forge.test/portreeve/portreeve is at {other}, and dist was made of {head}");
        assert!(said.contains(&wanted), "{said}");
        assert_eq!(at("v1.10.0^{commit}"), other, "the tag stays");
    }
    // A maintainer's tag is an object with a text. It may have a signature.
    by_a_person(&["tag", "--force", "--annotate", "--message=Portreeve 1.10.0", "v1.10.0", &head]);
    let tag = at("v1.10.0");
    assert_ne!(tag, head);
    let home = maker.path("home");
    let in_a_workflow = [("REGISTRY_USER", "me"), ("REGISTRY_PASSWORD", "secret"), ("HOME", &home)];
    successful("tools/publish", &forge.publish(&clone, &in_a_workflow));
    assert_eq!(at("v1.10.0"), tag, "the tag stays");
    let calls = fs::read_to_string(maker.path("called")).expect("calls");
    assert!(
        calls.starts_with("skopeo login --username me --password-stdin registry.test\nsecret\nskopeo copy "),
        "{calls}"
    );
    assert!(!fs::exists(maker.path("home/.docker")).expect("a folder"), "no password stays");
}

// The linkers of some targets refuse the flags of amd64. So .cargo/config.toml has flags for each target.
#[test]
fn no_build_script_has_flags_for_the_linker() {
    let scripts = crate::listed("*build.rs");
    assert!(scripts.lines().count() > 0, "the bind hook has one");
    for script in scripts.lines() {
        assert!(!crate::text(script).contains("rustc-link-arg"), "{script}: write the flag into .cargo/config.toml");
    }
}

/// The tests that `make nightly SHARD=release` runs. These tests need GoReleaser, cosign and other tools.
mod made {
    use super::*;

    /// The name of a section in the kernel program of the bind hook.
    const OF_HOOK: &[u8] = b"cgroup/bind4";

    #[test]
    fn a_release_verifies_by_itself_and_two_of_the_same_commit_are_the_same() {
        let maker = Maker::with_keys();
        let cargo = maker.cargo(None);
        let [first, second] = [("one", "022"), ("a/second/one", "077")].map(|(name, mask)| {
            let clone = maker.clone_with_keys(name);
            successful("tools/release", &maker.release(&clone, VERSION, &[("CARGO", &cargo), ("MASK", mask)]));
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
            "portreeve-VERSION-site.tar.gz",
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
            let package = |kind: &str| path(&first, &format!("portreeve-{VERSION}-linux-{arch}.{kind}"));
            for listed in [
                maker.run("dpkg-deb", &["-c", &package("deb")]),
                maker.run("rpm", &["--query", "--list", "--verbose", "--package", &package("rpm")]),
            ] {
                for wanted in
                    ["/usr/bin/portreeve", "/usr/bin/kubectl-portreeve -> portreeve", "/usr/share/doc/portreeve/NOTICE"]
                {
                    assert!(listed.contains(wanted), "{listed}");
                }
            }
        }
        site(&maker, &first);
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
        for (name, ours) in [
            ("Chart.yaml", "home: https://forge.test/portreeve/portreeve\n"),
            ("README.md", "oci://registry.test/portreeve/charts/portreeve"),
            ("values.yaml", "documentation: https://site.test/\n"),
        ] {
            let archive = path(&first, &format!("portreeve-{VERSION}.tgz"));
            let text = maker.run("tar", &["-xzOf", &archive, &format!("portreeve/{name}")]);
            assert!(text.contains(ours) && !text.contains(".example") && !text.contains(UNPUBLISHED), "{name}: {text}");
        }
        let notice = text(&has["NOTICE"]);
        for word in ["  ring v0.", "  rustls v", "  kube v5.", "Permission is hereby granted, free of charge"] {
            assert!(notice.contains(word), "NOTICE lacks {word}");
        }
        let bom: Value = serde_json::from_slice(&has[&format!("portreeve-{VERSION}.cdx.json")]).expect("JSON");
        let components = bom["components"].as_array().expect("components");
        assert!(components.iter().any(|it| it["name"] == "ring"), "{} components", components.len());
        assert!(components.iter().all(|it| it["licenses"][0].is_object()), "each has a licence");
    }

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
            let output = command(program, &arguments, Path::new(&maker.path(""))).output().expect("it");
            assert!(!output.status.success(), "{program} {arguments:?} takes another list");
        }
    }

    /// Returns the digest of the image, and asserts that the image has both architectures.
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
        assert_eq!(copied(&archive), index["digest"]);
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
            let layers = blob(manifest)["layers"].as_array().expect("layers").clone();
            let listed = |layer: &Value| {
                let blob = format!("blobs/{}", layer["digest"].as_str().expect("a digest").replace(':', "/"));
                successful("tar", &command("tar", &["-tf", &blob], folder.path()).output().expect("tar"))
            };
            let files: String = layers.iter().map(listed).collect();
            assert!(files.lines().any(|file| file == "NOTICE"), "{files}");
        }
        index["digest"].as_str().expect("a digest").to_owned()
    }

    /// Copies the archive with the same options of skopeo as `tools/publish`, and returns the digest of the copy.
    fn copied(archive: &str) -> String {
        let folder = TempDir::new().expect("a folder");
        let from = format!("oci-archive:{archive}:{VERSION}");
        let copy = ["copy", "--all", "--preserve-digests", &from, "dir:copy"];
        successful("skopeo", &command("skopeo", &copy, folder.path()).output().expect("skopeo"));
        let sum = command("sha256sum", &["copy/manifest.json"], folder.path()).output().expect("sha256sum");
        format!("sha256:{}", successful("sha256sum", &sum).split_whitespace().next().expect("a sum"))
    }

    fn site(maker: &Maker, dist: &Path) {
        let archive = path(dist, &format!("portreeve-{VERSION}-site.tar.gz"));
        let file = |name: &str| maker.run("tar", &["-xzOf", &archive, &format!("./{name}")]);
        assert!(file("runbooks/PortreeveWarningFinding.html").contains("</html>"));
        assert!(
            file("install.html").contains("https://forge.test/portreeve/portreeve/blob/main/"),
            "links to the repository"
        );
        let install = file("install.html");
        assert!(install.contains("oci://registry.test/portreeve/charts/portreeve") && !install.contains(UNPUBLISHED));
        assert!(install.contains("https://forge.test/portreeve/portreeve/releases"), "the page of releases");
        assert_eq!(file("CNAME").trim_end(), "site.test");
        let listed = maker.run("tar", &["-tvzf", &archive]);
        assert!(listed.lines().all(|line| line.contains(" 0/0 ")), "{listed}");
        let chart = path(dist, &format!("portreeve-{VERSION}.tgz"));
        let rules = maker.run(
            &program("helm"),
            &["template", "portreeve", &chart, "--kube-version=1.36.3", "--set=prometheusRule.enabled=true"],
        );
        let links: BTreeSet<&str> = rules
            .lines()
            .filter_map(|line| line.trim().strip_prefix("runbook_url: https://site.test/"))
            .map(|link| link.split('#').next().expect("a page"))
            .collect();
        assert!(links.len() > 10, "{links:?}");
        for page in links {
            assert!(listed.contains(&format!(" ./{page}\n")), "an alert links to {page}, which the site does not have");
        }
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
        // krew prints this text in one line of a table.
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

    fn is_shipped(maker: &Maker, arch: &str) {
        let header = maker.run("readelf", &["--wide", "--file-header", "--section-headers", "--segments", "portreeve"]);
        let has = |wanted: &str| header.contains(wanted);
        // cargo-auditable writes this list of dependencies.
        assert!(has(" .dep-v0 "), "{arch} has no list of dependencies: {header}");
        assert!(!has(" .symtab "), "{arch} has symbols, which nothing on a node reads: {header}");
        // The kernel may load a DYN program at any address. In the packed form, the list of relocations takes 6 KiB
        // instead of 430 KiB.
        let kinds = if arch == "amd64" { ["X86-64", "DYN (", " .relr.dyn "] } else { ["AArch64", "EXEC (", ""] };
        assert!(kinds.into_iter().all(has), "{arch}: {header}");
        // 0x10000 is the size of the largest memory page that a kernel for arm64 uses.
        let loaded: Vec<_> = header.lines().filter(|line| line.trim_start().starts_with("LOAD ")).collect();
        assert!(!loaded.is_empty(), "{arch}: {header}");
        assert!(arch == "amd64" || loaded.iter().all(|line| line.ends_with(" 0x10000")), "{arch}: {header}");

        let binary = fs::read(maker.path("portreeve")).expect("a binary");
        assert!(binary.windows(OF_HOOK.len()).any(|it| it == OF_HOOK), "{arch} has no bind hook");
        // These are the folders that tools/shipped looks for.
        let of_cargo =
            maker.run("bash", &["-c", "echo \"${CARGO_HOME:-$HOME/.cargo}\"; \"${RUSTC:-rustc}\" --print sysroot"]);
        for path in of_cargo.lines().chain([&*maker.path(""), "/.rustup/", "/.cargo/"]) {
            assert!(!binary.windows(path.len()).any(|it| it == path.as_bytes()), "{arch} names {path}");
        }
    }

    // This test compiles the whole program for both architectures in two folders, which takes half an hour.
    #[test]
    fn the_whole_program_is_the_same_of_two_folders_and_names_no_path_of_this_machine() {
        let maker = Maker::with_keys();
        // The linker uses one thread for each program. So both folders are compiled at the same time.
        let [first, second] = thread::scope(|scope| {
            // A stranger who compares the files has other keys, and may have flags for the compiler.
            let keys = ("OWN_KEYS", "1");
            let flags = ("RUSTFLAGS", "-Cdebuginfo=1");
            let made = [("one", vec![keys]), ("another", vec![keys, flags])].map(|(name, with)| {
                let (maker, clone) = (&maker, maker.clone_of_this(name));
                scope.spawn(move || {
                    successful("tools/release", &maker.release(&clone, VERSION, &with));
                    clone.join("dist")
                })
            });
            made.map(|it| it.join().expect("a release"))
        });
        same(&first, &second);
        for arch in ["amd64", "arm64"] {
            let archive = path(&first, &format!("kubectl-portreeve-{VERSION}-linux-{arch}.tar.gz"));
            maker.run("tar", &["-xzf", &archive]);
            is_shipped(&maker, arch);
            if arch == env::consts::ARCH.replace("x86_64", "amd64") {
                let shipped = maker.path("portreeve");
                assert_eq!(maker.run(&shipped, &["--version"]), format!("portreeve {VERSION}\n"));
                assert!(maker.run(&shipped, &["demo"]).ends_with("5 of 5 found.\n"));
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
