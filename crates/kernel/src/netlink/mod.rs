//! Netlink: connections to the kernel, the dumps over them, and the attributes in the answers.
//!
//! Portreeve has its own code for sockets, dumps and flags, also for rtnetlink. The crates `rtnetlink` and
//! `netlink-proto` hide the flags in a message's header. So a program that uses the crates cannot see
//! `NLM_F_DUMP_INTR`, and a torn dump looks complete. The crates also need an async runtime and a task for each
//! connection.

mod attributes;
mod connection;
mod message;
mod refusal;
#[cfg(test)]
pub mod script;
mod socket;

pub use attributes::{Malformed, attribute, attributes, bytes_at, name};
pub use connection::{Connection, SockDiagConnection, connection, sock_diag_connection};
pub use message::{Message, Request};
pub use socket::{Family, InterfaceChanges, Transport};
