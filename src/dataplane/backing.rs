//! What stands behind a Service port: the input that decides most outcomes.

/// What a Service port of one family has behind it (kubernetes pkg/proxy/topology.go).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// An endpoint that outside traffic may go to from this node.
    Ready,
    /// No usable endpoint at all.
    Empty,
    /// externalTrafficPolicy Local, and usable endpoints on other nodes only.
    Elsewhere,
}

impl Backing {
    /// Every value, for judging when endpoints are unknown.
    pub(crate) const ALL: [Self; 3] = [Self::Ready, Self::Empty, Self::Elsewhere];
}
