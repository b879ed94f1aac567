//! Words for evidence that several rules use.

use std::fmt;

use crate::findings::Evidence;
use portreeve_dataplane::{owner_evidence, socket_in_words};
use portreeve_facts::{Service, ServicePort, Snapshot, Socket, text};

/// The largest number of items in a list. The evidence also has the number of the items that are not listed.
pub(super) const MOST_LISTED: usize = 16;
/// The largest number of sockets in a list. The evidence also has the number of the sockets that are not listed.
pub(super) const MOST_SOCKETS: usize = 8;

pub(super) fn listed<T: fmt::Display>(things: impl IntoIterator<Item = T>) -> String {
    text::listed(things, MOST_LISTED)
}

pub(super) fn service_in_words(service: &Service) -> String {
    // The list of ports becomes text only if it is printed: a Service may have thousands of ports.
    let ports = service.ports.iter().map(|port| fmt::from_fn(move |f| write!(f, "{}/{}", port.port, port.protocol)));
    format!("{}/{} type {}, ports {}", service.namespace, service.name, service.kind.name(), listed(ports))
}

/// The field that has one of the [`Service::numbers`].
pub(super) fn number_field(port: Option<&ServicePort>) -> &'static str {
    if port.is_some() { "nodePort" } else { "healthCheckNodePort" }
}

pub(super) fn with_socket(evidence: Evidence, name: &'static str, snapshot: &Snapshot, socket: &Socket) -> Evidence {
    let mut evidence = evidence.value(name, socket_in_words(socket));
    evidence.values.extend(owner_evidence(snapshot, &socket.owner));
    evidence
}

pub(super) fn with_sockets(
    evidence: Evidence,
    name: &'static str,
    snapshot: &Snapshot,
    sockets: &[&Socket],
) -> Evidence {
    let listed = sockets.iter().take(MOST_SOCKETS);
    let evidence = listed.fold(evidence, |evidence, socket| with_socket(evidence, name, snapshot, socket));
    evidence.and_more(name, sockets.len(), MOST_SOCKETS)
}

pub(super) fn capital(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_counted_not_written() {
        assert_eq!(listed([1, 2]), "1, 2");
        assert!(listed(0..20).ends_with("14, 15 and 4 more"));
    }
}
