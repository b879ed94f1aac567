//! What stands behind a Service port: the input that decides most outcomes.

/// What a Service port of one family has behind it (kubernetes pkg/proxy/topology.go).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// An endpoint that outside traffic may go to from this node.
    Ready,
    /// No usable endpoint at all.
    Empty,
    /// externalTrafficPolicy Local, and usable endpoints on other nodes only.
    Elsewhere,
    /// From outside like `Ready`; internalTrafficPolicy Local, and usable endpoints on other nodes only.
    ReadyOutside,
    /// From outside like `Elsewhere`; internalTrafficPolicy Local too.
    ElsewhereOutside,
}

impl Backing {
    /// Every value, for judging when endpoints are unknown.
    pub const ALL: [Self; 5] = [Self::Ready, Self::Empty, Self::Elsewhere, Self::ReadyOutside, Self::ElsewhereOutside];

    /// What usable endpoints on other nodes only are, with these policies Local.
    pub fn elsewhere(external_local: bool, internal_local: bool) -> Self {
        match (external_local, internal_local) {
            (false, false) => Self::Ready,
            (true, false) => Self::Elsewhere,
            (false, true) => Self::ReadyOutside,
            (true, true) => Self::ElsewhereOutside,
        }
    }
}
