//! As uid 65534 without a single capability, as the minimal profile runs.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    proxy::{Squatter, StandIn},
    stage::{Look, Stage},
};

/// The same command as nobody, from places that nobody can read.
fn as_nobody(command: &Command) -> Command {
    let mut nobody = Command::new("setpriv");
    nobody.args([
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "--inh-caps",
        "-all",
        "--bounding-set",
        "-all",
        "--no-new-privs",
    ]);
    let binary = published(Path::new(command.get_program()));
    nobody.arg(binary).args(command.get_args());
    nobody
}

/// A copy of the binary that everybody may run.
fn published(binary: &Path) -> PathBuf {
    let copy = std::env::temp_dir().join(format!("portreeve-{}-{:?}", std::process::id(), std::thread::current().id()));
    std::fs::copy(binary, &copy).expect("a copy");
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    copy
}

fn look(stage: &Stage) -> Look {
    let mut command = stage.command("check");
    command.args(["-o", "json"]);
    let manifest = stage.manifest();
    std::fs::set_permissions(&manifest, std::fs::Permissions::from_mode(0o644)).expect("permissions");
    std::fs::set_permissions(manifest.parent().expect("a directory"), std::fs::Permissions::from_mode(0o755))
        .expect("permissions");
    let mut nobody = as_nobody(&command);
    let look = Look::of(&mut nobody);
    std::fs::remove_file(
        nobody.get_args().map(PathBuf::from).find(|it| it.starts_with(std::env::temp_dir())).expect("the copy"),
    )
    .expect("the copy goes");
    look
}

#[test]
fn everything_but_names_pod_namespaces_and_netfilter_still_works() {
    // An old proxy would hold the other NodePort too: so the one socket here cannot be its own.
    let stage = Stage::new()
        .service("web", "TCP", 30080, "")
        .endpoints("web", "TCP", Some("n1"))
        .service("other", "TCP", 30081, "")
        .node_port_range("30000-32767");
    StandIn { version: "v1.23.6", max_fds: 16, ..StandIn::default() }.start();
    let _squatter = Squatter::on("0.0.0.0:30080");
    let look = look(&stage);
    assert_eq!(look.code, 1);
    assert_eq!(look.json["proxy"]["mode"], "iptables");
    let fds = look.finding("proxy-near-fd-limit", "n1");
    assert!(fds.evidence().contains("16"), "the limit needs no privilege: {}", fds.evidence());
    for unknown in look.unknown() {
        assert!(
            !unknown.starts_with("listeners") && !unknown.starts_with("addresses") && !unknown.starts_with("sysctls"),
            "{unknown}"
        );
    }
    assert!(look.unknown().iter().any(|it| it.ends_with("not-permitted")), "{:?}", look.unknown());
}

#[test]
fn what_is_not_permitted_does_not_change_the_exit_code() {
    let stage = Stage::new()
        .service("web", "TCP", 30080, "")
        .endpoints("web", "TCP", Some("n1"))
        .node_port_range("30000-32767");
    StandIn::default().start();
    let look = look(&stage);
    assert_eq!(look.code, 0, "{:#}", look.json);
    assert!(!look.unknown().is_empty());
}
