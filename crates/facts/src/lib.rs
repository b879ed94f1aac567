//! The facts that Portreeve reads about one node and its cluster. The facts are plain data, and can be serialized.
//!
//! The crate has no behaviour: no I/O, no clock, no thresholds and no Kubernetes client types. The crate depends on no
//! other crate of this repository.

mod claim_of;
mod cluster;
#[cfg(any(test, feature = "testing"))]
pub mod healthy;
mod manifest;
pub mod names;
mod node;
mod pods;
mod ports;
mod proxy;
mod reading;
mod snapshot;
mod snapshot_document;
mod sockets;
pub mod text;
mod uid;
mod vantage;
mod workload;

pub use claim_of::{ClaimField, ClaimOf};
pub use cluster::{
    API_SERVER, Announced, Claimant, ClusterFacts, Endpoint, EndpointPort, EndpointSlice, ForCilium, Node, NodeAddress,
    NodeAddressKind, NodePortRange, Overrides, RangeClaim, RangeSource, Service, ServiceKind, ServicePort,
    kubernetes_version,
};
pub use manifest::{ACCEPT, Accepts, Claim, Claimed, FileName, Manifest, Place, Refusal, Refused};
pub use node::{
    Address, CILIUM_HOST, HealthCheckAnswer, IPVS_LINKS, Interfaces, IpVsConnection, KernelFacts, Link, Masquerade,
    MasqueradePool, MasqueradedFlow, Netfilter, NodeQuery, PodQuery, Redirection, SockStat, Sysctls, Tunnel,
    VirtualServer, WireGuard,
};
pub use pods::{ContainerPort, ContainerPorts, Controller, Pod, ServiceName, WaitingPod};
pub use ports::{Family, NotPorts, PortRange, PortSet, Protocol};
pub use proxy::{
    CiliumConfig, FdUse, Learned, Mode, NFTABLES_LOCALHOST_GATE, NotAMode, PROXY_HEALTH, PROXY_METRICS, ProxyConfig,
    ProxyFacts, ProxyMetrics, WithoutBackend,
};
pub use reading::{Gap, Reading, Source, Unread, Why, if_requested};
pub use snapshot::{OwnPort, SNAPSHOT_SCHEMA, Snapshot, VERSION};
pub use sockets::{
    Cgroup, Clients, DestinationUse, EphemeralUse, Extent, Holder, Owner, PodContainer, PodNamespace, Process, Socket,
    State, lists_bound,
};
pub use uid::Uid;
pub use vantage::{Affected, Vantage};
pub use workload::{Workload, WorkloadKind};
