//! The binary for arm64 in an emulated guest. QEMU emulates the guest, which runs Debian's kernel for arm64.
//!
//! `make nightly SHARD=arm64` compiles the binary and fetches the kernel.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};

use crate::parts::{Directory, guest::pack, process::Process, programs};

const INIT: &str = include_str!("guest/init-alone");
/// The commands that the script `init-alone` calls. All commands are in busybox.
const APPLETS: [&str; 14] = [
    "sh", "mount", "mkdir", "ip", "cat", "nc", "uname", "lsmod", "modprobe", "wget", "sleep", "sync", "poweroff",
    "true",
];
/// The uid of a pod. `init-alone` starts a server in a control group whose path contains this uid.
const POD: &str = "0e6a3a0c-5a0b-4b1e-8d6e-3f2b1c0d9e8f";
const MODULES: [&str; 4] = ["lib", "net", "drivers/net/dummy.ko", "drivers/net/veth.ko"];
/// QEMU emulates each instruction: the guest needs a minute on an idle machine, and many minutes beside other tests.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Returns the guest's output between the lines `begin NAME` and `end NAME`, and the exit code.
#[track_caller]
fn answer(console: &str, name: &str) -> (String, String) {
    let console = console.replace('\r', "");
    let (_, rest) = console.split_once(&format!("begin {name}\n")).unwrap_or_else(|| panic!("no {name}:\n{console}"));
    let (text, rest) = rest.split_once(&format!("end {name} ")).unwrap_or_else(|| panic!("no end of {name}:\n{rest}"));
    (text.to_owned(), rest.lines().next().expect("an exit code").to_owned())
}

/// The folder of the kernel that `tests/lab/guest/fetch` unpacked.
fn kernel() -> PathBuf {
    let kernels = programs::cache().join("guest-arm64");
    let unpacked = fs::read_dir(&kernels).into_iter().flatten().map(|entry| entry.expect("an entry").path());
    let newest = unpacked.filter(|kernel| kernel.join("vmlinux").is_file()).max();
    newest.unwrap_or_else(|| panic!("no kernel: run `tests/lab/guest/fetch {} arm64`", kernels.display()))
}

fn binary() -> PathBuf {
    let built = "target/aarch64-unknown-linux-musl/release/portreeve";
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join(built);
    assert!(built.is_file(), "no {}: run `make nightly SHARD=arm64`", built.display());
    built
}

fn run(program: &str, arguments: &[&str], folder: &Path) -> String {
    crate::parts::guest::run_here(program, arguments, folder)
}

#[test]
fn the_binary_of_arm64_checks_finds_its_incidents_and_serves_in_a_guest_of_that_architecture() {
    let directory = Directory::new();
    let folder = directory.path();
    let (kernel, root) = (kernel(), folder.join("root"));
    let release = kernel.file_name().and_then(|name| name.to_str()).expect("the kernel's release");
    let modules = format!("lib/modules/{release}");
    for name in ["bin", "sbin", "proc", "sys", "dev", "run", "tmp", &format!("{modules}/kernel/drivers/net")] {
        fs::create_dir_all(root.join(name)).expect("a folder");
    }
    fs::copy(kernel.join("busybox"), root.join("bin/busybox")).expect("busybox");
    for applet in APPLETS {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).expect("a link");
    }
    // The kernel calls `modprobe` at this path.
    std::os::unix::fs::symlink("/bin/busybox", root.join("sbin/modprobe")).expect("a link");
    fs::copy(binary(), root.join("bin/portreeve")).expect("the binary");
    for part in MODULES {
        let [from, to] = [kernel.join(&modules), root.join(&modules)].map(|it| it.join("kernel").join(part));
        let [from, to] = [&from, &to].map(|path| path.to_str().expect("a path in UTF-8"));
        run("cp", &["-r", from, to], folder);
    }
    for list in ["modules.builtin", "modules.order"] {
        fs::copy(kernel.join(&modules).join(list), root.join(&modules).join(list)).expect("a list");
    }
    run("depmod", &["--basedir", "root", release], folder);
    let object = |kind: &str, metadata: Value, spec: Value| json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec});
    let service = object(
        "Service",
        json!({"name": "kubernetes", "namespace": "default"}),
        json!({"clusterIP": "10.96.0.1", "ports": [{"port": 443}]}),
    );
    let pod = object(
        "Pod",
        json!({"name": "web-0", "namespace": "shop", "uid": POD}),
        json!({"nodeName": "n1", "hostNetwork": true, "containers": [{"name": "web"}]}),
    );
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [service, pod]});
    fs::write(root.join("objects.json"), objects.to_string()).expect("a file");
    fs::write(root.join("init"), INIT).expect("a program");
    pack(folder);

    let console = folder.join("console");
    let words = "-n 5 qemu-system-aarch64 -M virt -cpu cortex-a72 -smp 1 -m 1024 -nodefaults -no-user-config -no-reboot -nic none \
                 -display none -serial file:console -initrd initramfs -kernel";
    let vmlinux = kernel.join("vmlinux").to_str().expect("a path in UTF-8").to_owned();
    let boot = "console=ttyAMA0 quiet panic=-1 init_on_alloc=0".to_owned();
    let arguments: Vec<String> =
        words.split_whitespace().map(str::to_owned).chain([vmlinux, "-append".to_owned(), boot]).collect();
    let mut guest = Process::start("nice", &arguments, folder);
    let console = || fs::read_to_string(&console).unwrap_or_default();
    guest.wait_within(PATIENCE, "last answer", || console().contains("end log ").then_some(()));

    let console = console();
    let of = |name: &str| answer(&console, name);
    assert_eq!(of("machine"), ("aarch64\n".to_owned(), "0".to_owned()));
    assert_eq!(of("version").0, concat!("portreeve ", env!("CARGO_PKG_VERSION"), "\n"));

    let (check, code) = of("check");
    let document: Value =
        serde_json::from_str(&check).unwrap_or_else(|error| panic!("{error}, exit code {code}:\n{check}"));
    assert_eq!(document["findings"], json!([]), "{document:#}");
    // The kernel loads these modules for a program that lists sockets with sock_diag. A program that reads the text
    // files of `/proc` does not need the modules.
    let listed = of("modules").0;
    for module in ["tcp_diag", "udp_diag", "inet_diag"] {
        assert!(listed.lines().any(|line| line.starts_with(module)), "{module} is not loaded:\n{listed}");
    }

    let (owner, code) = of("owner");
    let document: Value =
        serde_json::from_str(&owner).unwrap_or_else(|error| panic!("{error}, exit code {code}:\n{owner}"));
    let claimants = &document["nodes"][0]["protocols"][0]["claimants"];
    assert!(claimants.to_string().contains("pod shop/web-0 on "), "{document:#}");

    let (demo, code) = of("demo");
    assert_eq!(code, "0", "{demo}");
    assert!(demo.contains("5 of 5"), "{demo}");

    let log = of("log").0;
    assert_eq!(of("ready").1, "0", "{log}");
    let metrics = of("metrics").0;
    assert!(metrics.contains("portreeve_build_info{"), "{metrics}");
    assert_eq!(of("probe").1, "0", "{log}");
}
