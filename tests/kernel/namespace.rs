//! A network namespace for the calling thread. The namespace separates a test from the node.

use std::{fs, fs::File, marker::PhantomData, process::Command};

use nix::sched::{CloneFlags, setns, unshare};

/// While this value exists, the calling thread is in a new, empty network namespace with loopback up. Threads and
/// processes that the thread starts are in the same namespace.
pub struct Namespace {
    before: File,
    /// A thread must not move this value to another thread.
    _of_this_thread: PhantomData<*const ()>,
}

impl Namespace {
    /// # Panics
    /// Panics if this process does not have the capability CAP_SYS_ADMIN.
    pub fn enter() -> Self {
        let before = File::open("/proc/thread-self/ns/net").expect("this thread's network namespace");
        unshare(CloneFlags::CLONE_NEWNET).expect("the tests of the kernel make network namespaces: run them as root");
        let namespace = Self { before, _of_this_thread: PhantomData };
        namespace.ip("link set lo up");
        namespace
    }

    pub fn ip(&self, arguments: &str) {
        let status = Command::new("ip").args(arguments.split(' ')).status().expect("ip of iproute2 is installed");
        assert!(status.success(), "ip {arguments}: {status}");
    }

    pub fn in_root_cgroup(&self, command: &str) {
        let places = "for it in /sys/fs/cgroup /sys/fs/cgroup/unified; do [ -e $it/cgroup.controllers ] && break; done";
        let script = format!("{places}; echo $$ > $it/cgroup.procs && exec {command}");
        let status = Command::new("sh").args(["-c", &script]).status().expect("a shell");
        assert!(status.success(), "{command}: {status}");
    }

    /// Adds an address to loopback, where the kernel does not search for duplicate addresses.
    pub fn add_address(&self, address: &str) {
        self.ip(&format!("address add {address} dev lo"));
    }

    pub fn set(&self, sysctl: &str, value: &str) {
        fs::write(format!("/proc/sys/net/{sysctl}"), value).expect("a sysctl of this namespace");
    }

    /// Packets to 10.66.0.2 leave through this link, and get no answer.
    pub fn add_void(&self) {
        self.ip("link add void type veth peer name pit");
        self.ip("link set void up");
        self.ip("link set pit up");
        self.ip("address add 10.66.0.1/24 dev void");
        self.ip("neighbour add 10.66.0.2 lladdr 02:00:00:00:00:02 dev void");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        setns(&self.before, CloneFlags::CLONE_NEWNET).expect("the return to the former namespace of this thread");
    }
}
