//! The endpoints behind a Service port: the input that decides most outcomes.

/// The endpoints of a Service port in one family (kubernetes pkg/proxy/topology.go).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// An endpoint that traffic from outside can reach through this node.
    Ready,
    /// No usable endpoint.
    Empty,
    /// externalTrafficPolicy Local, and usable endpoints on other nodes only.
    Elsewhere,
    /// For clients from outside like `Ready`; internalTrafficPolicy Local, and usable endpoints only on other nodes.
    ReadyOutside,
    /// For clients from outside like `Elsewhere`; internalTrafficPolicy is Local too.
    ElsewhereOutside,
}

impl Backing {
    /// Every value, for judging when endpoints are unknown.
    pub const ALL: [Self; 5] = [Self::Ready, Self::Empty, Self::Elsewhere, Self::ReadyOutside, Self::ElsewhereOutside];

    /// The backing if usable endpoints are only on other nodes, with these policies Local.
    pub fn elsewhere(external_local: bool, internal_local: bool) -> Self {
        match (external_local, internal_local) {
            (false, false) => Self::Ready,
            (true, false) => Self::Elsewhere,
            (false, true) => Self::ReadyOutside,
            (true, true) => Self::ElsewhereOutside,
        }
    }
}
