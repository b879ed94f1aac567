//! A guest: this machine's own tree under Debian's kernel, which has the modules that this machine's may lack.
//!
//! QEMU emulates every instruction, and the guest's clock counts instructions. So load of the machine does not change
//! the number of instructions in a second of the guest. Only while the guest waits for the machine's files, its clock
//! follows the machine's clock, so the guest needs processor time. Each test has its own guest, with one processor.

use std::{
    any::type_name,
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use super::{directory::Directory, lent::Lender, patience::FACTOR, process::Process, programs};

const INIT: &str = include_str!("../guest/init");
const START: &str = include_str!("../guest/start");

/// The commands that `init` calls; all of them are busybox.
const APPLETS: [&str; 5] = ["sh", "mount", "mkdir", "insmod", "switch_root"];
/// The modules that `init` needs before it has the machine's tree; other modules are loaded from the tree.
const MODULES: [&str; 5] = ["crc32c_generic", "virtio_mmio", "9pnet_virtio", "9p", "overlay"];
/// Variables by which tests find things.
const ENVIRONMENT: [&str; 6] = ["UPDATE", "HOME", "PATH", "XDG_CACHE_HOME", "KUBEBUILDER_ASSETS", "RUST_BACKTRACE"];

/// The longest silence of a guest that boots.
const SILENCE: Duration = Duration::from_secs(120);
/// The largest number of boots without output.
const BOOTS: usize = 3;
/// The longest time of a command.
const PATIENCE: Duration = Duration::from_secs(3600);
/// The factor of time limits in the guest.
const SLOWNESS: &str = "2";

/// The result of a command in a guest.
struct Finished {
    code: i32,
    stdout: String,
    stderr: String,
}

/// Runs a test's body, a closure, with IPVS: on this machine, or as the same test of the same program in its own guest.
///
/// # Panics
/// When the body panics in the guest; with the body's output.
#[track_caller]
pub fn with_ipvs<F: FnOnce()>(body: F) {
    if Path::new("/proc/net/ip_vs").exists() {
        return body();
    }
    let test = type_name::<F>().strip_suffix("::{{closure}}").and_then(|path| path.split_once("::"));
    let (_, test) = test.expect("a closure in a test, whose path begins with the program");
    let program = env::current_exe().expect("a path of this program");
    let Finished { code, stdout, stderr } = run(&[program.to_str().expect("a path in UTF-8"), "--exact", test]);
    let passed = format!("test {test} ... ok");
    assert!(stdout.lines().any(|line| line == passed), "in a guest, exit code {code}:\n{stdout}{stderr}");
}

/// Runs all tests of a program in a guest, one after another.
///
/// # Panics
/// When a test fails in the guest; with the output of the tests.
#[track_caller]
pub fn pass_in_a_guest(program: &str) {
    let Finished { code, stdout, stderr } = run(&[program, "--test-threads=1"]);
    assert_eq!(code, 0, "in a guest:\n{stdout}{stderr}");
    assert!(stdout.contains("test result: ok. "), "in a guest no test ran:\n{stdout}{stderr}");
}

/// Runs a command as root in a guest, in this process's working directory, with loopback up and `ip_vs` loaded. The
/// guest has the machine's file system. Files that the command writes to the package stay; all other changes are
/// dropped if the command succeeds. API servers run on the machine.
///
/// # Panics
/// When there is no guest.
fn run(command: &[&str]) -> Finished {
    let directory = Directory::new();
    let kernel = kernel();
    make_initramfs(&kernel, directory.path());
    let lender = Lender::start();
    make_share(&kernel, directory.path(), &lender, command);

    let read = |name: &str| fs::read_to_string(directory.path().join(name));
    let told = |name: &str| read(name).unwrap_or_else(|error| format!("{name}: {error}\n"));
    let mut guest = (1..=BOOTS).find_map(|_| boot(&kernel, &directory)).unwrap_or_else(|| {
        panic!("{BOOTS} guests did not start:\n{}{}", told("console"), told("nice.log"));
    });
    let end = Instant::now() + PATIENCE;
    while !guest.has_ended() && Instant::now() < end {
        thread::sleep(Duration::from_millis(50));
    }
    drop(guest);
    let (stdout, stderr) = (told("share/stdout"), told("share/stderr"));
    let code = read("share/code").unwrap_or_else(|error| {
        panic!("a guest that did not end well ({error}):\n{}{stdout}{stderr}", told("console"));
    });
    let code = code.trim().parse().expect("an exit code");
    if code != 0 {
        directory.keep();
    }
    Finished { code, stdout, stderr }
}

/// The directory of a kernel that `make nightly` unpacked.
fn kernel() -> PathBuf {
    let kernels = programs::cache().join("guest");
    let unpacked = fs::read_dir(&kernels).into_iter().flatten().map(|entry| entry.expect("an entry").path());
    let newest = unpacked.filter(|kernel| kernel.join("vmlinux").is_file()).max();
    newest.unwrap_or_else(|| panic!("no kernel: run `tests/lab/guest/fetch {}`", kernels.display()))
}

/// A root file system with just enough to mount another.
fn make_initramfs(kernel: &Path, directory: &Path) {
    let root = directory.join("root");
    for folder in ["bin", "modules", "proc"] {
        fs::create_dir_all(root.join(folder)).expect("a folder");
    }
    fs::copy(programs::find("busybox"), root.join("bin/busybox")).expect("busybox");
    for applet in APPLETS {
        symlink("busybox", root.join("bin").join(applet)).expect("a link");
    }
    let modules = in_order(kernel);
    for module in &modules {
        let name = module.file_name().expect("a name");
        fs::copy(module, root.join("modules").join(name)).expect("a module");
    }
    let order: Vec<_> = modules.iter().filter_map(|module| module.file_name()?.to_str()).collect();
    fs::write(root.join("modules/order"), order.join("\n") + "\n").expect("a list");
    fs::write(root.join("init"), INIT).expect("a program");
    pack(directory);
}

/// Makes `initramfs` of the folder `root`.
pub fn pack(directory: &Path) {
    run_here("chmod", &["755", "root/init"], directory);
    run_here("sh", &["-c", "cd root && find . | cpio --create --format=newc --quiet > ../initramfs"], directory);
}

/// The files of `MODULES` and of the modules that they need, each once, the needed modules first.
fn in_order(kernel: &Path) -> Vec<PathBuf> {
    let release = kernel.file_name().and_then(|name| name.to_str()).expect("the kernel's release");
    let base = kernel.to_str().expect("a path in UTF-8");
    let needed = ["--dirname", base, "--set-version", release, "--show-depends", "--all"];
    let said = run_here("modprobe", &[&needed[..], &MODULES].concat(), kernel);
    let mut modules: Vec<PathBuf> = Vec::new();
    for module in said.lines().filter_map(|line| line.strip_prefix("insmod ")).map(|it| PathBuf::from(it.trim())) {
        if !modules.contains(&module) {
            modules.push(module);
        }
    }
    modules
}

/// The directory with the guest's command and its result.
fn make_share(kernel: &Path, directory: &Path, lender: &Lender, command: &[&str]) {
    let share = directory.join("share");
    fs::create_dir(&share).expect("a folder");
    fs::write(share.join("start"), START).expect("a program");
    let here = env::current_dir().expect("a working directory");
    let variables = ENVIRONMENT.iter().filter_map(|name| Some(format!("{name}={}", env::var(name).ok()?)));
    let words = [kernel, &here].into_iter().map(|path| path.to_str().expect("a path in UTF-8").to_owned());
    let words = words.chain(variables).chain([format!("{FACTOR}={SLOWNESS}"), lender.variable()]);
    let words: String = words.chain(command.iter().map(|it| (*it).to_owned())).map(|word| word + "\0").collect();
    fs::write(share.join("command"), words).expect("a command");
}

/// Boots until the command starts. `None` if the guest stops printing before.
fn boot(kernel: &Path, directory: &Directory) -> Option<Process> {
    let console = directory.path().join("console");
    let started = directory.path().join("share/stdout");
    fs::write(&console, "").expect("a log");
    let shared = |name: &str, path: &str, more: &str| {
        [
            "-fsdev".to_owned(),
            format!("local,id={name},path={path},security_model=none{more}"),
            "-device".to_owned(),
            format!("virtio-9p-device,fsdev={name},mount_tag={name}"),
        ]
    };
    let vmlinux = kernel.join("vmlinux");
    let here = env::current_dir().expect("a working directory");
    let words = [
        "-n 5 qemu-system-x86_64 -M microvm -accel tcg -icount shift=1 -cpu max,-erms -smp 1 -m 1536",
        "-nodefaults -no-user-config -no-reboot -display none -serial file:console",
        "-netdev user,id=machine,ipv6=off -device virtio-net-device,netdev=machine -initrd initramfs -kernel",
    ];
    let words = words.iter().flat_map(|words| words.split(' ')).map(str::to_owned);
    // Without `-erms` and what follows `mitigations`, memory is zeroed more often, and byte by byte: a third of the time.
    let boot = "console=ttyS0 reboot=t panic=-1 mitigations=off init_on_alloc=0 clearcpuid=rep_good".to_owned();
    let arguments: Vec<String> = words
        .chain([vmlinux.to_str().expect("a path in UTF-8").to_owned(), "-append".to_owned(), boot])
        .chain(shared("machine", "/", ",readonly=on,multidevs=remap"))
        .chain(shared("share", "share", ""))
        .chain(shared("package", here.to_str().expect("a path in UTF-8"), ",multidevs=remap"))
        .collect();
    let mut guest = Process::start("nice", &arguments, directory.path());
    let (mut said, mut since) = (0, Instant::now());
    while since.elapsed() < SILENCE && !guest.has_ended() {
        if started.exists() {
            return Some(guest);
        }
        let says = fs::metadata(&console).expect("a log").len();
        if says > said {
            (said, since) = (says, Instant::now());
        }
        thread::sleep(Duration::from_millis(50));
    }
    None
}

/// Runs a program of the machine, and returns its output.
pub fn run_here(program: &str, arguments: &[&str], folder: &Path) -> String {
    let output = Command::new(program).args(arguments).current_dir(folder).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}
