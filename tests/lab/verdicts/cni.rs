//! hostPorts of a node. The test makes the hostPorts with the real CNI plugin portmap.

use std::{
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use portreeve_facts::Protocol;
use serde_json::{Value, json};

use super::claims::OTHER;
use crate::parts::{Namespace, Wired, find};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugin {
    /// Debian's version of portmap, which makes iptables rules.
    Iptables,
    /// Version 1.9.0 of portmap, which makes nftables rules.
    Nftables,
}

impl Plugin {
    fn program(self) -> PathBuf {
        match self {
            Self::Iptables => PathBuf::from("/usr/lib/cni/portmap"),
            Self::Nftables => find("portmap-1.9.0"),
        }
    }

    /// The value of portmap's setting `backend`. Debian's version of portmap does not have the setting `backend`.
    fn backend(self) -> Option<&'static str> {
        (self == Self::Nftables).then_some("nftables")
    }
}

#[derive(Clone, Copy)]
pub struct HostPort {
    pub port: u16,
    pub protocol: Protocol,
    /// `None` means all addresses.
    pub address: Option<&'static str>,
}

pub struct Sandbox<'a> {
    pub plugin: Plugin,
    pub id: &'a str,
    pub namespace: &'a Namespace,
    /// The IPv4 address and the IPv6 address.
    pub addresses: [&'a str; 2],
}

impl<'a> Sandbox<'a> {
    pub fn of(wired: &'a Wired) -> Self {
        Self { plugin: Plugin::Iptables, id: "edge", namespace: &wired.backend, addresses: Wired::HERE }
    }
}

/// The hostPorts lead to the pod's port [`OTHER`].
#[track_caller]
pub fn add(pod: &Sandbox<'_>, host_ports: &[HostPort]) {
    portmap("ADD", pod, host_ports);
}

#[track_caller]
pub fn delete(pod: &Sandbox<'_>, host_ports: &[HostPort]) {
    portmap("DEL", pod, host_ports);
}

#[track_caller]
fn portmap(verb: &str, pod: &Sandbox<'_>, host_ports: &[HostPort]) {
    let mappings: Vec<Value> = host_ports
        .iter()
        .map(|it| {
            let protocol = it.protocol.to_string();
            json!({"hostPort": it.port, "containerPort": OTHER, "protocol": protocol, "hostIP": it.address.unwrap_or("")})
        })
        .collect();
    let [four, six] = pod.addresses;
    let mut network = json!({
        "cniVersion": "1.0.0",
        "name": "lab",
        "type": "portmap",
        "capabilities": {"portMappings": true},
        "runtimeConfig": {"portMappings": mappings},
        "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "eth0", "sandbox": pod.namespace.path()}],
            "ips": [
                {"address": format!("{four}/24"), "interface": 0},
                {"address": format!("{six}/64"), "interface": 0},
            ],
        },
    });
    if let Some(backend) = pod.plugin.backend() {
        network["backend"] = json!(backend);
    }
    let mut plugin = Command::new(pod.plugin.program())
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", pod.id)
        .env("CNI_NETNS", pod.namespace.path())
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", "/usr/lib/cni")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("portmap of containernetworking-plugins is installed");
    plugin.stdin.take().expect("a pipe").write_all(network.to_string().as_bytes()).expect("it reads its network");
    let output = plugin.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stdout));
}
