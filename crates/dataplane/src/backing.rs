//! The endpoints behind a Service port. The outcome of most connections to a Service depends on the endpoints of the
//! Service.

/// Whether a Service port has endpoints in one family, and on which nodes (kubernetes pkg/proxy/topology.go).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// At least one endpoint that traffic from outside can reach through this node.
    Ready,
    /// No usable endpoint.
    Empty,
    /// The Service has externalTrafficPolicy Local, and usable endpoints on other nodes only.
    Elsewhere,
    /// Clients outside reach an endpoint. Clients inside reach no endpoint: internalTrafficPolicy is Local, and all
    /// usable endpoints are on other nodes.
    ReadyOutside,
    /// Clients outside and inside reach no endpoint: both traffic policies are Local, and all usable endpoints are on
    /// other nodes.
    ElsewhereOutside,
}

impl Backing {
    /// All values: if the endpoints of a Service are unknown, the Service is judged with every value.
    pub const ALL: [Self; 5] = [Self::Ready, Self::Empty, Self::Elsewhere, Self::ReadyOutside, Self::ElsewhereOutside];

    /// The backing of a Service if all its usable endpoints are on other nodes. `external_local` is true if
    /// externalTrafficPolicy is Local, and `internal_local` if internalTrafficPolicy is Local.
    pub fn elsewhere(external_local: bool, internal_local: bool) -> Self {
        match (external_local, internal_local) {
            (false, false) => Self::Ready,
            (true, false) => Self::Elsewhere,
            (false, true) => Self::ReadyOutside,
            (true, true) => Self::ElsewhereOutside,
        }
    }
}
