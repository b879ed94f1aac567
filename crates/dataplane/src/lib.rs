//! Who answers: for each data plane, the outcome of a new connection to a Service port on one of this node's addresses.
//!
//! This crate reads only facts, keeps no state and does not log. Rules decide whether something is wrong.
//!
//! To add a data plane, copy the shortest file, `ipvs.rs`, and add the new file to the list in `plane.rs`.
//! `docs/adding-a-data-plane.md` lists all steps.

// One file for each data plane.
mod cilium;
mod iptables;
mod ipvs;
mod nftables;
mod unknown;
mod unmeasured;

// The parts that data planes share.
mod kube_proxy;
mod plane;
mod settings;

// A question (address, vantage point, backing), and its answer.
mod backing;
mod claim;
mod devices;
mod endpoints;
mod local_address;
mod outcome;
mod vantage;

// Assumptions and cases for unread inputs, and the results that all assumptions and cases share.
mod assumption;
mod assumptions;
mod cases;

// The indexes that each scan builds once, and functions that use them.
mod by_port;
mod contest;
mod round;

// Who claims a port of this node, and who owns it.
mod declared;
mod external_address;
mod kept_off;
mod need;
mod owner;
mod owners;
mod part;
mod proxy_sockets;
mod redirections;
mod served;
mod service_lb;
mod sockets;
mod usual_ports;

pub use claim::{Claim, ClaimKind};
pub use declared::{Declaration, DeclaredField, declarations};
pub use need::{Addresses, Need, Needs, health_address};
pub use outcome::Outcome;
pub use owner::{Answered, Beside, BesideKind, Claimant, Ownership, owner, owner_in_pod, pod_of_name};

pub use assumption::Assumption;
pub use assumptions::{Assumptions, mode_in_words};
pub use backing::Backing;
pub use by_port::{ByPort, Port, by_port};
pub use cases::{Case, Judged, Loss, Stratum};
pub use cilium::{cilium_range, ignores_host_port, refuses_bind, refuses_bind_of};
pub use contest::{Contest, Lost, takes, v6only_unknown};
pub use endpoints::Endpoints;
pub use external_address::ExternalAddress;
pub use kept_off::{is_left, serves};
pub use kube_proxy::holds_ports;
pub use local_address::{LocalAddress, is_link_local, local_addresses, other_loopback};
pub use owners::{
    UNNAMED, Unit, gone_pod, holds, owner_evidence, owner_name, pod_of, pod_of_uid, process_in_words, unit_of,
};
pub use part::{Field, Part};
pub use proxy_sockets::{Group, Own, Proxy, group};
pub use redirections::{Redirections, meet, share_table};
pub use round::{Addressed, Allocated, Fact, Round};
pub use served::{
    covers, each_service, host_ports, may_have, own_network_pods, served_node_ports, service_port, unsettled,
};
pub use service_lb::sent_to_node_port;
pub use sockets::{is_bound, is_on_loopback, place, socket_in_words, workers};
pub use usual_ports::{Role, UsualPort, is_usual, usual_ports};
pub use vantage::{is_everywhere, vantage_points};

#[cfg(test)]
mod tests;
