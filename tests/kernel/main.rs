//! Mirrors `src/kernel`: every reader against a real kernel, in private network namespaces. Needs root.

mod namespace;
mod owners;
mod process;
mod sockets;
