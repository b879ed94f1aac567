//! The reasons why `tools/install` cannot install a tool.

use std::{fs, os::unix::fs::symlink, path::Path};

use crate::maker::{Maker, command};

#[test]
fn a_package_that_apt_cannot_install_is_one_line_with_the_reason_of_apt() {
    let maker = Maker::new();
    fs::create_dir(maker.path("bin")).expect("a folder");
    // This folder lacks Valgrind, the only program of the set `order`.
    for tool in ["cksum", "cut", "dirname", "env", "grep", "sed", "sort"] {
        symlink(Path::new("/usr/bin").join(tool), maker.path(&format!("bin/{tool}"))).expect("a link");
    }
    let refuses = "echo >&2 'W: a warning'\necho >&2 'E: no such package'\nexit 100";
    for (name, does) in [("cargo", "exit"), ("rustc", "exit"), ("id", "echo 0"), ("apt-get", refuses)] {
        maker.script(&format!("bin/{name}"), &format!("#!/bin/bash\n{does}\n"));
    }
    let mut install = command(concat!(env!("CARGO_MANIFEST_DIR"), "/tools/install"), &["order"], Path::new("/"));
    install.env("PATH", maker.path("bin")).env("XDG_CACHE_HOME", maker.path("cache")).env("CARGO", "cargo");
    let output = install.env_remove("RUSTC").env_remove("KUBEBUILDER_ASSETS").output().expect("bash");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said, "could not install valgrind: E: no such package; type: apt-get install valgrind\n");
}
