//! Container images as archives: Portreeve's image from the Dockerfile, and the image of the program `stranger.rs`.

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

/// In the shards of `make nightly`, the image has the static binary, which users get. In `make lab`, the image has the
/// binary of the other tests, because a static binary needs a second compilation of all crates.
#[track_caller]
pub fn portreeve(folder: &Path) -> PathBuf {
    let of_users = env::var("NEXTEST_PROFILE").is_ok_and(|profile| profile == "nightly");
    let binary = if of_users { static_binary() } else { env!("CARGO_BIN_EXE_portreeve").into() };
    image_of(&binary, PORTREEVE, &folder.join("portreeve"))
}

#[track_caller]
pub fn image_of(binary: &Path, name: &str, folder: &Path) -> PathBuf {
    build(name, folder, |context| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        fs::copy(root.join("LICENSE"), context.join("LICENSE")).expect("LICENSE");
        let mut dockerfile = fs::read_to_string(root.join("Dockerfile")).expect("Dockerfile");
        // `strip` removes 90 MB of symbols, which would otherwise be copied five times.
        let mut strip = Command::new("strip");
        run(strip.arg("-o").arg(context.join("portreeve")).arg(binary)).expect("`strip` of binutils is installed");
        // A static binary has no libraries.
        let libraries = Command::new("ldd").arg(binary).output().expect("`ldd` of libc is installed").stdout;
        let libraries = String::from_utf8_lossy(&libraries);
        for library in libraries.split_whitespace().filter_map(|word| word.strip_prefix('/')) {
            let copy = context.join("libraries").join(library);
            fs::create_dir_all(copy.parent().expect("a folder")).expect("a folder");
            fs::copy(Path::new("/").join(library), copy).expect("a library");
        }
        if context.join("libraries").exists() {
            dockerfile.push_str("COPY libraries /\n");
        }
        fs::write(context.join("Dockerfile"), dockerfile).expect("a Dockerfile");
    })
}

/// The image's program answers at the address in its first argument. Without arguments, the program sleeps.
#[track_caller]
pub fn stranger(folder: &Path) -> PathBuf {
    build(STRANGER, &folder.join("stranger"), |context| {
        fs::write(context.join("Dockerfile"), OF_A_STRANGER).expect("a Dockerfile");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/parts/stranger.rs");
        let mut rustc = Command::new(cargo().with_file_name("rustc"));
        rustc.args(["--edition=2024", "-Cstrip=symbols", "-Ctarget-feature=+crt-static"]).arg(source);
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

/// Compiles the static binary of the current source. cargo does nothing if `make static` has compiled it. cargo downloads
/// nothing, because tests have no network.
pub fn static_binary() -> PathBuf {
    let mut command = Command::new(cargo());
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--locked", "--offline", "--bin=portreeve"]);
    if cfg!(feature = "bind-hook") {
        command.arg("--features=bind-hook");
    }
    // Removes the variables that cargo sets for the test. With these variables, some build scripts would run again.
    for (name, _) in env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|of| name.as_encoded_bytes().starts_with(of.as_bytes())) {
            command.env_remove(name);
        }
    }
    let told = run(command.args(["--message-format=json", "--target", &format!("{ARCH}-unknown-linux-musl")]));
    let told = told.expect("a static binary");
    let messages = told.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let mut executables = messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    executables.next().expect("cargo names the binary")
}

fn cargo() -> PathBuf {
    env::var_os("CARGO").expect("cargo runs the tests").into()
}
