//! What the linker is told.
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "so a build script talks with cargo")]

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A static binary relocates itself when it starts. The list of places is read once, and its pages stay resident: packed,
    // it takes 6 KiB instead of 430. A linker that cannot do it says so and goes on.
    if env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|environment| environment == "musl") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
