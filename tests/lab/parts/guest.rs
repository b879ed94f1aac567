//! A guest is a virtual machine with this machine's files and with Debian's kernel, which has modules that this
//! machine's kernel may lack.
//!
//! QEMU emulates each instruction, and the guest's clock counts instructions. So the guest does the same work in a
//! second of its clock, even on a busy machine. While the guest waits for files of the machine, its clock follows the
//! machine's clock. Each test has its own guest with one processor.

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

/// The busybox commands that the guest's `init` calls.
const APPLETS: [&str; 5] = ["sh", "mount", "mkdir", "insmod", "switch_root"];
/// The modules that `init` needs before it has mounted the machine's file tree. `init` loads other modules from this
/// tree.
const MODULES: [&str; 5] = ["crc32c_generic", "virtio_mmio", "9pnet_virtio", "9p", "overlay"];
const ENVIRONMENT: [&str; 6] = ["UPDATE", "HOME", "PATH", "XDG_CACHE_HOME", "KUBEBUILDER_ASSETS", "RUST_BACKTRACE"];

/// If a booting guest prints nothing for this time, the guest is stuck.
const SILENCE: Duration = Duration::from_secs(120);
const BOOTS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(3600);
/// The factor by which time limits are longer in the guest.
const SLOWNESS: &str = "2";

struct Finished {
    code: i32,
    stdout: String,
    stderr: String,
}

/// Runs a test's body with the kernel module of ipvs. If this machine lacks the module, the same test runs in a guest.
///
/// # Panics
/// Panics if the body panics in the guest. The message contains the output of the body.
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

#[track_caller]
pub fn pass_in_a_guest(program: &str) {
    let Finished { code, stdout, stderr } = run(&[program, "--test-threads=1"]);
    assert_eq!(code, 0, "in a guest:\n{stdout}{stderr}");
    assert!(stdout.contains("test result: ok. "), "in a guest no test ran:\n{stdout}{stderr}");
}

/// Runs a command as root in a guest, in the working directory of this process. In the guest, loopback is up and
/// `ip_vs` is loaded. The guest sees the machine's files. Changes outside of the package's folder are lost, except for
/// the temporary files of a failed command. API servers run on the machine, outside of the guest.
///
/// # Panics
/// Panics if no guest can be started.
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

/// Makes a root file system with only the files that are needed to mount the machine's file tree.
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

pub fn pack(directory: &Path) {
    run_here("chmod", &["755", "root/init"], directory);
    run_here("sh", &["-c", "cd root && find . | cpio --create --format=newc --quiet > ../initramfs"], directory);
}

/// The files of `MODULES` and of the modules that these modules need, in the order in which the kernel can load them.
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

/// Makes the directory through which the guest gets its command and returns the result.
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

/// Boots the guest, and waits until the command starts. Returns `None` if the guest gets stuck before the command
/// starts.
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
    // Without `-erms` and the arguments after `mitigations`, the guest takes a third of its time for zeroing memory.
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

pub fn run_here(program: &str, arguments: &[&str], folder: &Path) -> String {
    let output = Command::new(program).args(arguments).current_dir(folder).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}
