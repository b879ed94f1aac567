//! The parts of Kubernetes, run for real in network namespaces: any number at once, and nothing is left behind.

mod agent;
mod api;
mod control_plane;
mod directory;
pub mod guest;
mod namespace;
mod node;
pub mod objects;
mod patience;
mod process;
mod programs;
mod proxy;
mod talk;

pub use self::{
    agent::{Agent, events, reasons, until},
    api::Api,
    control_plane::ControlPlane,
    node::{ADDRESSES, LINK_LOCAL, PRIMARY, Wired, enter_alone},
    proxy::Proxy,
    talk::{Answer, Server, ask, http_get},
};
