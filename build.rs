//! Links the static binary of the image for little memory.
//!
//! Packed relocations are 5 KB instead of 400, all of which are read at the start and stay resident. Other C libraries may
//! be too old to know them. And what is called comes first: the kernel maps code 64 KB at a time, and with a third of the
//! functions in use everywhere, nearly all of it.

#![allow(clippy::disallowed_methods, reason = "cargo tells a build script of its target in the environment")]
#![allow(clippy::print_stdout, reason = "and is answered on standard output")]

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=layout.ld");
    println!("cargo::rerun-if-env-changed=PORTREEVE_SYMBOLS");
    let is = |name: &str, wanted: &str| env::var(name).is_ok_and(|value| value == wanted);
    if is("CARGO_CFG_TARGET_ENV", "musl") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
        if is("PROFILE", "release") {
            let folder = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
            println!("cargo::rustc-link-arg-bins=-Wl,-T,{folder}/layout.ld");
            // The profile of our own package loses `strip`, and has the hashes of `layout.ld` change where it says it again.
            if env::var_os("PORTREEVE_SYMBOLS").is_none() {
                println!("cargo::rustc-link-arg-bins=-Wl,--strip-all");
            }
        }
    }
}
