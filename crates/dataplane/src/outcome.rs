//! The outcome of a new connection.

use portreeve_facts::Protocol;

/// Who answers a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The process that listens on the address and port.
    Listener,
    /// A pod of the Service.
    Pod,
    /// Connection refused. The kernel rate-limits the ICMP error, so some clients see a time-out.
    Refused,
    /// No answer.
    TimedOut,
    /// The packet reaches no target: its destination is unused, or the kernel does not forward it. The kernel does not
    /// forward translated packets between link-local addresses. Some programs report *no route to host*, and other
    /// programs time out.
    Nowhere,
    /// The client's own `connect` fails with *no route to host*, because Cilium's socket load balancer has no endpoint.
    Unreachable,
}

impl Outcome {
    /// A verb phrase for evidence, for example `to 192.0.2.1 are refused`.
    pub fn words(self) -> &'static str {
        match self {
            Self::Listener => "reach the listener",
            Self::Pod => "are answered by a pod of the Service",
            Self::Refused => "are refused",
            Self::TimedOut => "time out",
            Self::Nowhere => "reach no target, because no router forwards link-local addresses",
            Self::Unreachable => "fail with no route to host",
        }
    }

    /// The outcome's word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Listener => "process",
            Self::Pod => "pod",
            Self::Refused => "refused",
            Self::TimedOut => "timed-out",
            Self::Nowhere => "nowhere",
            Self::Unreachable => "unreachable",
        }
    }

    /// The outcome that a client sees with this protocol. Proxies refuse with an ICMP error. An SCTP client ignores the
    /// error, and retries until it times out (docs/how-nodeports-work.md: measured in ipvs mode).
    pub fn over(self, protocol: Protocol) -> Self {
        match (self, protocol) {
            (Self::Refused, Protocol::Sctp) => Self::TimedOut,
            (outcome, _) => outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_association_of_sctp_ignores_that_it_is_refused() {
        assert_eq!(Outcome::Refused.over(Protocol::Sctp), Outcome::TimedOut);
        assert_eq!(Outcome::Refused.over(Protocol::Udp), Outcome::Refused);
        assert_eq!(Outcome::Pod.over(Protocol::Sctp), Outcome::Pod);
    }
}
