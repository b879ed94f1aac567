//! `portreeve check`, the shipped binary, on nodes that these tests prepare for real in network namespaces.
//!
//! They need root, or a user namespace in which they are root, and `ip` (iproute2); they fail where that is missing.

mod addresses;
mod claims;
mod healthy;
mod hostile;
mod matrix;
mod proxy;
mod ranges;
mod scale;
mod stage;
mod unprivileged;
