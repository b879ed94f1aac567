//! Starts as many processes as are needed to hold the wanted sockets, because each process has a limit of descriptors.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio, id},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

/// The greatest number of connections that a holder opens to itself. Each connection needs two descriptors.
const PAIRS: usize = 9_000;

/// A process that holds sockets until this value is dropped.
pub struct Holder {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    cgroup: PathBuf,
}

impl Holder {
    /// Starts a holder in a control group of its own, like a pod.
    pub fn start(place: &str) -> Self {
        Self::of(&format!("portreeve-bench-{}-{}", id(), next()), place, false)
    }

    pub fn pod() -> Self {
        let number = next();
        let cgroup = format!("portreeve-bench-{}/kubepods/pod0e6a3a0c-5a0b-4b1e-8d6e-{:012x}", id(), number);
        Self::of(&cgroup, "127.0.0.1:7000", true)
    }

    fn of(cgroup: &str, place: &str, apart: bool) -> Self {
        let cgroup = cgroups().join(cgroup);
        fs::create_dir_all(&cgroup).expect("control groups can be made: run this as root");
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(env::current_exe().expect("a program"))
            .args(["hold", cgroup.to_str().expect("UTF-8"), place, if apart { "apart" } else { "here" }])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("setpriv of util-linux is installed");
        let orders = child.stdin.take().expect("a pipe");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, orders, answers, cgroup }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn begin(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("the holder lives");
    }

    /// Waits for the holder's answer to the oldest order.
    pub fn end(&mut self) {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        assert_eq!(line, "done\n", "a holder failed; its error is above");
    }

    pub fn order(&mut self, order: &str) {
        self.begin(order);
        self.end();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.child.kill().expect("a child that can be killed");
        self.child.wait().expect("a child that can be waited for");
        // A killed process leaves its control group a moment later, so the removal is repeated. A parent group with
        // other processes stays.
        let mut tries = 0;
        while fs::remove_dir(&self.cgroup).is_err() && tries < 1000 {
            tries += 1;
            thread::sleep(Duration::from_millis(5));
        }
        let above = self.cgroup.ancestors().skip(1).take_while(|above| *above != cgroups());
        above.for_each(|above| drop(fs::remove_dir(above)));
    }
}

#[derive(Default)]
pub struct Crowd(Vec<Holder>);

impl Crowd {
    /// Makes `sockets` sockets in the network namespace of the calling thread. A quarter of the sockets are IPv6
    /// sockets.
    pub fn grow(&mut self, sockets: usize) {
        let pairs = sockets / 2;
        while self.0.len() * PAIRS < pairs {
            let number = self.0.len();
            let place = match number % 4 {
                3 => format!("[::1]:{}", 7000 + number),
                _ => format!("127.0.{}.1:7000", 1 + number),
            };
            self.0.push(Holder::start(&place));
        }
        let begun = pairs / PAIRS;
        let last = self.0.iter_mut().enumerate().map(|(number, holder)| {
            let count = if number < begun { PAIRS } else { pairs - begun * PAIRS };
            (count, holder)
        });
        let mut busy: Vec<&mut Holder> = Vec::new();
        for (count, holder) in last {
            holder.begin(&format!("pairs {count}"));
            busy.push(holder);
        }
        busy.into_iter().for_each(Holder::end);
    }
}

fn next() -> usize {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

fn cgroups() -> &'static Path {
    let places = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    places.into_iter().find(|place| place.join("cgroup.controllers").exists()).expect("a cgroup2 hierarchy is mounted")
}
