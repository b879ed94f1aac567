//! Measures the processor time of an agent while hundreds of Services change in a second. For comparison, measures
//! curl, which reads the same stream and stores nothing.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use kube::config::Kubeconfig;
use serde_json::json;

use crate::{
    memory::processor_time,
    parts::{Api, ControlPlane, PRIMARY, directory::Directory, objects},
    row::{Promise, Row},
    storm::start,
};

const SERVICES: u16 = 400;
const FIRST: u16 = 30_000;
/// All writers together make `CHANGES` changes per second, for the time `LASTS`.
const CHANGES: u32 = 200;
const WRITERS: u32 = 4;
const LASTS: Duration = Duration::from_secs(60);
/// The number of bytes in the annotations of a Service. With these annotations, the Service is as large as a Service of
/// a Helm chart.
const ANNOTATIONS: usize = 2_000;
/// The greatest processor time of the agent, in per cent of one core.
const MOST: f64 = 2.5;

pub fn measure(binary: &Path, small: bool) -> Vec<Row> {
    let (services, lasts) = if small { (20, LASTS / 20) } else { (SERVICES, LASTS) };
    let (directory, cluster) = (Directory::new(), ControlPlane::start());
    cluster.api().create(&objects::node("n1", &PRIMARY));
    for port in FIRST..FIRST + services {
        let mut service = objects::service(&format!("s{port}"), &[objects::port(80, Some(port))]);
        service["metadata"]["annotations"] = json!({"example.org/values": "v".repeat(ANNOTATIONS)});
        cluster.api().create(&service);
    }
    let agent = start(binary, &cluster, &directory, services);
    let stream = Stream::open(&cluster);
    // Waits until the first list and the first scans are over.
    thread::sleep(lasts / 2);
    let (begun, ours, theirs) = (Instant::now(), processor_time(agent.pid()), processor_time(stream.0.id()));
    let changes: u32 = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn({
                    let cluster = &cluster;
                    move || write(cluster, writer, services, lasts)
                })
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().expect("a writer")).sum()
    });
    let seconds = begun.elapsed().as_secs_f64();
    let share = |spent: Duration| 100.0 * spent.as_secs_f64() / seconds;
    let ours = share(processor_time(agent.pid()) - ours);
    let theirs = share(processor_time(stream.0.id()) - theirs);
    let rate = f64::from(changes) / seconds;
    let what = format!("{CHANGES} changes of Services a second");
    vec![
        Row::alone(format!("{what}: processor time"), "% of a core", [ours], Promise::AtMost(MOST)),
        Row::alone(
            format!("{what}: processor time of curl, which discards the stream"),
            "% of a core",
            [theirs],
            Promise::None,
        ),
        Row::alone(format!("{what}: changes that were made"), "changes a second", [rate], Promise::None),
    ]
}

fn write(cluster: &ControlPlane, writer: u32, services: u16, lasts: Duration) -> u32 {
    let api = Api::of(&cluster.kubeconfig("admin")).expect("a kubeconfig");
    let (begun, mut changes) = (Instant::now(), 0);
    while begun.elapsed() < lasts {
        let number = writer + WRITERS * changes;
        let port = FIRST + (number % u32::from(services)) as u16;
        let patch = json!({"metadata": {"labels": {"change": number.to_string()}}});
        let path = format!("/api/v1/namespaces/default/services/s{port}");
        api.send("PATCH", &path, "application/merge-patch+json", &patch).expect("the Service may be changed");
        changes += 1;
        thread::sleep((Duration::from_secs(1) * WRITERS / CHANGES * changes).saturating_sub(begun.elapsed()));
    }
    changes
}

struct Stream(Child);

impl Stream {
    fn open(cluster: &ControlPlane) -> Self {
        let config = Kubeconfig::read_from(cluster.kubeconfig("admin")).expect("a kubeconfig");
        let server = config.clusters[0].cluster.as_ref().and_then(|it| it.server.clone()).expect("a server");
        let child = Command::new("curl")
            .args([
                "--silent",
                "--fail",
                "--no-buffer",
                "--output",
                "/dev/null",
                "--header",
                "Authorization: Bearer admin",
            ])
            .arg("--cacert")
            .arg(cluster.authority())
            .arg(format!("{server}/api/v1/services?watch=1&allowWatchBookmarks=1"))
            .stdin(Stdio::null())
            .spawn()
            .expect("curl is installed");
        Self(child)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
