//! A user who has the files of a release, the public keys and a cluster.

use std::{fs, path::Path, process::Command};

use serde_json::json;
use tempfile::TempDir;

use crate::{
    chart::{INSTALL, UNINSTALL, UPGRADE, objects, prepare, roll_out, served},
    maker::{Maker, successful},
    parts::{ControlPlane, Person, WholeNode, enter_alone, reasons, static_binary, until},
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

const PAGE: &str = include_str!("../../docs/verify.md");
/// The commands in docs/verify.md.
const VERIFY: [&str; 4] = [
    "cosign verify-blob --key cosign.pub --insecure-ignore-tlog --bundle SHA256SUMS.sigstore.json SHA256SUMS",
    "sha256sum --check --ignore-missing SHA256SUMS",
    "minisign -V -p minisign.pub -m SHA256SUMS",
    "cosign verify-blob-attestation --key cosign.pub --insecure-ignore-tlog --type slsaprovenance1 \
     --bundle SHA256SUMS.provenance.json SHA256SUMS",
];

/// The release's program for amd64 is the program under test.
fn released() -> TempDir {
    let maker = Maker::with_keys();
    let clone = maker.clone_with_keys("clone");
    let small = TempDir::new().expect("a folder");
    let binary = small.path().join("portreeve");
    let strip = Command::new("strip").arg("-o").args([&binary, &static_binary()]).output();
    successful("strip", &strip.expect("binutils are installed"));
    let cargo = maker.cargo(Some(&binary));
    successful("tools/release", &maker.release(&clone, VERSION, &[("CARGO", &cargo)]));
    let folder = TempDir::new().expect("a folder");
    for entry in fs::read_dir(clone.join("dist")).expect("a release") {
        let entry = entry.expect("an entry");
        fs::rename(entry.path(), folder.path().join(entry.file_name())).expect("one file system");
    }
    for key in ["cosign.pub", "minisign.pub"] {
        fs::copy(maker.path(key), folder.path().join(key)).expect("a key");
    }
    folder
}

fn load(node: &WholeNode, archive: &Path) {
    let archive = archive.to_str().expect("UTF-8");
    let import = ["ctr", "--namespace=k8s.io", "images", "import", "--digests", "--base-name=registry.test/portreeve"];
    node.machine.run(&[&import[..], &[archive]].concat());
}

fn in_and_out(root: &Path, install: &[&str], remove: &[&str]) {
    let run = |words: &[&str]| {
        let output = Command::new(words[0]).args(&words[1..]).output();
        successful(&words.join(" "), &output.unwrap_or_else(|error| panic!("{words:?}: {error}")))
    };
    run(install);
    for name in ["portreeve", "kubectl-portreeve"] {
        let path = root.to_str().expect("UTF-8");
        assert_eq!(run(&["chroot", path, &format!("/usr/bin/{name}"), "--version"]), format!("portreeve {VERSION}\n"));
    }
    assert!(root.join("usr/share/doc/portreeve/NOTICE").is_file());
    run(remove);
    for name in ["usr/bin/portreeve", "usr/bin/kubectl-portreeve", "usr/share/doc/portreeve"] {
        assert!(fs::symlink_metadata(root.join(name)).is_err(), "{name} is left");
    }
}

fn packages(folder: &Path) {
    let file = |kind: &str| folder.join(format!("portreeve-{VERSION}-linux-amd64.{kind}"));
    for kind in ["deb", "rpm"] {
        let (root, package) = (TempDir::new().expect("a folder"), file(kind));
        let [in_root, package] = [root.path(), &package].map(|path| path.to_str().expect("UTF-8"));
        let at = format!("--root={in_root}");
        if kind == "deb" {
            for folder in ["var/lib/dpkg/updates", "var/lib/dpkg/info"] {
                fs::create_dir_all(root.path().join(folder)).expect("a folder");
            }
            fs::write(root.path().join("var/lib/dpkg/status"), "").expect("a file");
            in_and_out(root.path(), &["dpkg", &at, "--install", package], &["dpkg", &at, "--purge", "portreeve"]);
        } else {
            in_and_out(root.path(), &["rpm", &at, "--install", package], &["rpm", &at, "--erase", "portreeve"]);
        }
    }
}

fn plugin(person: &Person<'_>) {
    let archive = format!("kubectl-portreeve-{VERSION}-linux-amd64.tar.gz");
    person.types(&format!("krew install --manifest=portreeve.yaml --archive={archive}"));
    let found = person.tries("kubectl portreeve check -n shop").expect_err("a critical finding ends with 1");
    assert!(found.contains("listener-on-node-port/loses") && found.contains("Service shop/web"), "{found}");
}

#[test]
fn the_files_of_a_release_are_enough_to_verify_install_use_upgrade_and_remove_it() {
    let folder = released();
    packages(folder.path());
    let node = WholeNode::start();
    let person = node.person().moves_to(folder.path());
    let page = PAGE.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in VERIFY {
        assert!(page.contains(line), "docs/verify.md does not have: {line}");
        person.types(line);
    }
    let image = folder.path().join(format!("portreeve-{VERSION}-image.tar"));
    load(&node, &image);

    for name in ["shop", "office"] {
        node.namespace(name);
    }
    prepare(&person);
    until("authority for pods", || node.read("/api/v1/namespaces/portreeve/configmaps/kube-root-ca.crt"));
    let (_, port) = served(&node);
    let more = json!({"hostNetwork": true, "nodeName": "n1"});
    node.stranger("office", "printer", &[&format!("0.0.0.0:{port}"), "process"], &more);
    let before = objects(&person);

    let chart = format!("portreeve-{VERSION}.tgz");
    person.types(&format!("helm install portreeve {chart} -n portreeve"));
    roll_out(&person);
    until("Event", || (reasons(&node.cluster) == ["ListenerOnNodePort"]).then_some(()));
    plugin(&person);

    let profile = || {
        let set = node.read("/apis/apps/v1/namespaces/portreeve/daemonsets/portreeve").expect("a DaemonSet");
        let container = &set["spec"]["template"]["spec"]["containers"][0];
        assert!(container["image"].as_str().is_some_and(|it| it.starts_with("registry.test/portreeve@sha256:")));
        container["securityContext"]["capabilities"]["add"].clone()
    };
    assert_eq!(profile(), json!(null));
    person.types(&format!(
        "helm upgrade portreeve {chart} -n portreeve --reset-then-reuse-values --set profile=attribution"
    ));
    roll_out(&person);
    assert_eq!(profile(), json!(["SYS_PTRACE", "DAC_READ_SEARCH"]));
    person.types("helm rollback portreeve -n portreeve");
    roll_out(&person);
    assert_eq!(profile(), json!(null));

    person.types("helm uninstall portreeve -n portreeve");
    until("end of its objects", || (objects(&person) == before).then_some(()));
}

#[test]
fn helm_3_installs_upgrades_rolls_back_and_removes_what_helm_4_does() {
    enter_alone();
    let cluster = ControlPlane::start();
    let person = Person::of(&cluster);
    prepare(&person);
    let before = objects(&person);
    let images = |text: &str| text.matches("image: \"registry.example/portreeve:").count();
    let mut made = Vec::new();
    for helm in ["helm", "helm-3"] {
        let types = |line: &str| person.types(&line.replacen("helm", helm, 1));
        types(&format!("{INSTALL} --set config.interval=5s"));
        types(&format!("{UPGRADE} --set guard.enabled=true --set policies.enabled=true"));
        let manifest = types("helm get manifest portreeve -n portreeve");
        assert_eq!(images(&manifest), 2, "{helm}: agent and guard");
        assert!(manifest.contains("interval: 5s"), "{helm} keeps what was set");
        let with_guard = objects(&person);
        types("helm rollback portreeve -n portreeve");
        assert_eq!(images(&types("helm get manifest portreeve -n portreeve")), 1, "{helm}");
        types(UNINSTALL);
        until("end of its objects", || (objects(&person) == before).then_some(()));
        // The manifests differ only in empty lines.
        let lines: Vec<String> = manifest.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
        made.push((lines, with_guard));
    }
    assert_eq!(made[0], made[1]);
}
