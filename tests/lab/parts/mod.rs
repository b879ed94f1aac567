//! The parts of Kubernetes, run for real in network namespaces: any number at once, and nothing is left behind.

mod agent;
mod api;
mod commands;
mod containerd;
mod control_plane;
mod controllers;
mod directory;
mod images;
mod kubelet;
mod machine;
mod namespace;
mod node;
pub mod objects;
mod process;
mod programs;
mod proxy;
#[allow(dead_code, reason = "compiled by itself, for an image")]
mod stranger;
mod talk;
mod whole_node;

pub use self::{
    agent::{Agent, events, reasons, until},
    api::Api,
    commands::Person,
    control_plane::ControlPlane,
    node::{ADDRESSES, LINK_LOCAL, PRIMARY, Wired, enter_alone},
    proxy::Proxy,
    talk::{Answer, Server, ask, http_get},
    whole_node::WholeNode,
};
