//! Another program overwrites the list of reserved ports. With a real API server, the guard writes an Event about the
//! Node.

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use serde_json::{Value, json};

use crate::parts::{ControlPlane, PRIMARY, enter_alone, objects, sysctl, until};

const LIST: &str = "net.ipv4.ip_local_reserved_ports";

struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn reserves(ports: &str) -> Option<()> {
    let list = fs::read_to_string("/proc/sys/net/ipv4/ip_local_reserved_ports").expect("a list");
    (list.trim() == ports).then_some(())
}

fn events(cluster: &ControlPlane) -> Vec<Value> {
    let list = cluster.api().text("/apis/events.k8s.io/v1/namespaces/default/events").expect("a list");
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let events = list["items"].as_array().expect("Events").iter();
    events.filter(|event| event["reportingController"] == "portreeve-guard").cloned().collect()
}

#[test]
fn an_overwritten_list_is_one_event_on_the_node_that_names_the_ports() {
    enter_alone();
    let cluster = ControlPlane::with(&[]);
    let node = cluster.api().create(&objects::node("n1", &PRIMARY));
    let serve = |name, port| cluster.api().create(&objects::service(name, &[objects::port(80, Some(port))]));
    serve("web", 30080);
    sysctl("net.ipv4.ip_local_port_range", "30000 60999");
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_portreeve"));
    command.args(["guard", "--node", "n1", "--kubeconfig"]).arg(cluster.kubeconfig("admin"));
    command.arg("--state").arg(directory.path().join("guard.json")).stderr(Stdio::null());
    let _guard = Guard(command.spawn().expect("portreeve runs"));
    until("the reservation", || reserves("30080"));
    assert_eq!(events(&cluster), [] as [Value; 0]);
    for (name, port, after) in [("second", 30090, "7,30080,30090"), ("third", 30091, "7,30091")] {
        sysctl(LIST, "7");
        serve(name, port);
        until("the new port", || reserves(after));
        let event = until("the Event", || events(&cluster).into_iter().next());
        assert_eq!((&event["reason"], &event["action"]), (&json!("ReservedPortsOverwritten"), &json!("ReservePorts")));
        assert_eq!(
            (&event["regarding"]["kind"], &event["regarding"]["uid"]),
            (&json!("Node"), &node["metadata"]["uid"])
        );
        let note = event["note"].as_str().expect("a note");
        let wanted = "Another program removed reserved ports from net.ipv4.ip_local_reserved_ports: 30080. The guard";
        assert!(note.starts_with(wanted), "{note}");
    }
    // The guard has already written the list again. A second Event would come within this time.
    sleep(Duration::from_secs(2));
    assert_eq!(events(&cluster).len(), 1, "one an hour");
}
