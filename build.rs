//! Links the static binary of the image with packed relocations: 5 KB instead of 400, all of which are read at the start
//! and stay resident. Other C libraries may be too old to know them.

#![allow(clippy::disallowed_methods, reason = "cargo tells a build script of its target in the environment")]
#![allow(clippy::print_stdout, reason = "and is answered on standard output")]

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|libc| libc == "musl") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
