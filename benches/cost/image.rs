//! The size of the program and of its image, as stored and as compressed for a registry. The program must have the bind
//! hook.

use std::{env, fs, path::Path, process::Command};

use crate::{
    row::{Promise, Row},
    world::run,
};

/// The name of a section in the kernel program of the bind hook.
const OF_HOOK: &[u8] = b"cgroup/bind4";

pub fn measure(binary: &Path, _: bool) -> Vec<Row> {
    let image = env::var_os("PORTREEVE_IMAGE").expect("PORTREEVE_IMAGE names the image: `make bench` builds it");
    let program = fs::read(binary).expect("a program");
    assert!(program.windows(OF_HOOK.len()).any(|it| it == OF_HOOK), "the program of the image has no bind hook");
    let kept = |file: &Path| fs::metadata(file).expect("a file").len();
    let sent = run(Command::new("gzip").arg("--stdout").arg(&image)).stdout.len() as u64;
    let sizes = [("the program", kept(binary)), ("the image", kept(image.as_ref())), ("the image, packed", sent)];
    sizes.map(|(what, bytes)| Row::alone(what, "MiB", [bytes as f64 / 1024.0 / 1024.0], Promise::None)).into()
}
