//! Starts the real programs of Kubernetes in network namespaces. At the end of a test, all these programs have ended.

mod agent;
mod alertmanager;
mod api;
pub mod audit;
mod cilium;
mod cluster;
mod commands;
mod containerd;
mod control_plane;
pub mod controllers;
mod copies;
pub mod directory;
mod etcd;
#[cfg(feature = "bind-hook")]
mod group;
pub mod guest;
mod images;
mod kubectl;
mod kubelet;
mod lent;
mod machine;
pub mod memory;
#[path = "../../anywhere/named.rs"]
pub mod named;
mod namespace;
mod node;
pub mod objects;
mod page;
mod patience;
pub mod process;
pub mod programs;
mod prometheus;
mod proxy;
mod relay;
mod role;
mod second_node;
#[allow(dead_code, reason = "compiled by itself, for an image")]
mod stranger;
mod talk;
mod whole_node;

#[cfg(feature = "bind-hook")]
pub use self::group::Group;
pub use self::{
    agent::{Agent, all_events, events, reasons, until, until_within},
    alertmanager::Alertmanager,
    api::Api,
    audit::Audit,
    cilium::{Cilium, Inside, Release},
    cluster::{cluster, serve},
    commands::{Person, follow},
    control_plane::ControlPlane,
    copies::Copies,
    directory::Directory,
    images::{PORTREEVE, image_of, static_binary},
    kubectl::{Plugin, kubectl},
    machine::Machine,
    namespace::{Namespace, ip, sysctl},
    node::{ADDRESSES, LINK_LOCAL, PRIMARY, Wired, enter_alone},
    page::{AGENT, Reader},
    patience::slowness,
    programs::find,
    prometheus::Prometheus,
    proxy::Proxy,
    relay::Relay,
    role::Role,
    second_node::SecondNode,
    talk::{Answer, Server, answer_within, ask, http_get, http_status, http_status_from, is_pod},
    whole_node::WholeNode,
};
