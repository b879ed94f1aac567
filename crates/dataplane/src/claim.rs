//! The rights by which a port of this node is claimed.

/// By what right a port is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A Service's external IP or load balancer address is an address of this node, and its `port` is this one.
    ExternalIp,
    /// A Service's nodePort.
    NodePort,
    /// A pod's hostPort.
    HostPort,
    /// A listening socket.
    Listener,
    /// A listening socket of the proxy itself: a held NodePort, a health check.
    Proxy,
}

impl Claim {
    /// Its word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::ExternalIp => "external-ip",
            Self::NodePort => "node-port",
            Self::HostPort => "host-port",
            Self::Listener => "listener",
            Self::Proxy => "proxy",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_right_has_a_word_of_its_own() {
        let all = [Claim::ExternalIp, Claim::NodePort, Claim::HostPort, Claim::Listener, Claim::Proxy];
        let words: BTreeSet<&str> = all.into_iter().map(Claim::name).collect();
        assert_eq!(words.len(), all.len(), "{words:?}");
    }
}
