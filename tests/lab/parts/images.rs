//! Container images as archives: the image that the Dockerfile makes for users, and the image of the program
//! `stranger.rs`.

use std::{
    env::{self, consts::ARCH},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::commands::run;

/// The image's name as in the chart's README, with the tag that the chart uses.
pub const PORTREEVE: &str = concat!("registry.example/portreeve:", env!("CARGO_PKG_VERSION"));

pub const STRANGER: &str = "registry.example/stranger:1";

const OF_A_STRANGER: &str = "FROM scratch\nCOPY stranger /stranger\nUSER 65534:65534\nENTRYPOINT [\"/stranger\"]\n";

#[track_caller]
pub fn portreeve(folder: &Path) -> PathBuf {
    image_of(&static_binary(), PORTREEVE, &folder.join("portreeve"))
}

#[track_caller]
pub fn image_of(binary: &Path, name: &str, folder: &Path) -> PathBuf {
    build(name, folder, |context| {
        for file in ["Dockerfile", "LICENSE"] {
            fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(file), context.join(file)).expect(file);
        }
        // Without `strip`, 90 MB of symbols would be copied five times.
        let mut strip = Command::new("strip");
        run(strip.arg("-o").arg(context.join("portreeve")).arg(binary)).expect("`strip` of binutils is installed");
    })
}

/// With the argument of an address, the program answers at this address. Otherwise it sleeps.
#[track_caller]
pub fn stranger(folder: &Path) -> PathBuf {
    build(STRANGER, &folder.join("stranger"), |context| {
        fs::write(context.join("Dockerfile"), OF_A_STRANGER).expect("a Dockerfile");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/parts/stranger.rs");
        let mut rustc = Command::new(cargo().with_file_name("rustc"));
        rustc.args(["--edition=2024", "-Cstrip=symbols", "--target", &target()]).arg(source);
        run(rustc.arg("-o").arg(context.join("stranger"))).expect("a static program");
    })
}

#[track_caller]
fn build(name: &str, folder: &Path, prepare: impl FnOnce(&Path)) -> PathBuf {
    let context = folder.join("context");
    fs::create_dir_all(&context).expect("a folder");
    prepare(&context);
    let buildah = || {
        let mut buildah = Command::new("buildah");
        buildah.current_dir(folder).args(["--storage-driver=vfs", "--root=storage", "--runroot=run"]);
        buildah
    };
    let mut bud = buildah();
    bud.args(["bud", "--isolation=chroot", "--tag", name]).arg(&context);
    run(&mut bud).expect("`buildah` is installed, and the image can be built");
    let archive = folder.join("image.tar");
    run(buildah().args(["push", name, &format!("docker-archive:{}:{name}", archive.display())])).expect("an archive");
    archive
}

/// Compiles the static binary of the current source. cargo does nothing if `make lab` has compiled it. cargo downloads
/// nothing, because tests have no network.
pub fn static_binary() -> PathBuf {
    let mut command = Command::new(cargo());
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--locked", "--offline", "--bin=portreeve"]);
    if cfg!(feature = "bind-hook") {
        command.arg("--features=bind-hook");
    }
    // Removes cargo's variables of the test. With these variables, some build scripts would run again.
    for (name, _) in env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|of| name.as_encoded_bytes().starts_with(of.as_bytes())) {
            command.env_remove(name);
        }
    }
    let told = run(command.args(["--message-format=json", "--target", &target()])).expect("a static binary");
    let messages = told.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let mut executables = messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    executables.next().expect("cargo names the binary")
}

fn cargo() -> PathBuf {
    env::var_os("CARGO").expect("cargo runs the tests").into()
}

fn target() -> String {
    format!("{ARCH}-unknown-linux-musl")
}
