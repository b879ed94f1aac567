//! Compiles the program for the kernel with clang, if the feature `program` is on.

#![allow(clippy::disallowed_methods, reason = "a build script starts the compiler")]

use std::{env, path::PathBuf, process::Command};

/// The names of clang, also on Debian. The environment variable `CLANG` replaces this list.
const COMPILERS: [&str; 3] = ["clang", "clang-19", "clang-14"];

fn main() {
    println!("cargo::rerun-if-changed=src/hook.c");
    println!("cargo::rerun-if-env-changed=CLANG");
    if env::var_os("CARGO_FEATURE_PROGRAM").is_none() {
        return;
    }
    let object = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("hook.o");
    let named = env::var("CLANG").ok();
    let compilers: Vec<&str> = named.as_deref().map_or(COMPILERS.to_vec(), |compiler| vec![compiler]);
    let compiler = compilers.iter().find(|compiler| Command::new(compiler).arg("--version").output().is_ok());
    let compiler = compiler
        .unwrap_or_else(|| panic!("the feature `program` needs clang, and none of {compilers:?} runs; set CLANG"));
    let endian = env::var("CARGO_CFG_TARGET_ENDIAN").expect("cargo sets CARGO_CFG_TARGET_ENDIAN");
    assert_eq!(endian, "little", "src/hook.c swaps bytes as a little-endian machine does");
    // Debian keeps the kernel's headers for each architecture in a separate folder.
    let headers = format!("-I/usr/include/{}-linux-gnu", env::consts::ARCH);
    let arguments = ["-target", "bpfel", "-mcpu=v2", "-O2", "-Wall", "-Werror", &headers, "-c", "src/hook.c", "-o"];
    let status = Command::new(compiler).args(arguments).arg(object).status();
    assert!(status.is_ok_and(|status| status.success()), "{compiler} does not compile src/hook.c");
}
