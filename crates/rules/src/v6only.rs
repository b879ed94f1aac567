//! What holds of a listener of which nobody told whether it takes IPv4 too: `/proc/net` does not, and sock_diag may be closed.

use crate::findings::Verdict;
use portreeve_facts::{Family, Gap, Socket, Source, Why};

/// What is said of a socket that takes IPv6 alone.
const ONLY: &str = " v6only";

/// The verdict about a listener, each way where `v6only` was not told. It loses the more, the more it takes: what it loses with
/// IPv6 alone it loses, and what it would lose with both is unknown.
pub(super) fn either_way(socket: &Socket, verdict: impl Fn(&Socket) -> Option<Verdict>) -> Option<Verdict> {
    if socket.serves(Family::V4).is_some() {
        return verdict(socket);
    }
    let [alone, both] = [true, false].map(|only| verdict(&Socket { v6only: Some(only), ..socket.clone() }));
    match (alone, both) {
        (Some(Verdict::Problem(mut evidence)), _) => {
            // What was assumed is not told.
            let listeners = evidence.values.iter_mut().filter(|(name, _)| *name == "listener");
            listeners.for_each(|(_, words)| *words = words.replace(ONLY, ""));
            Some(Verdict::Problem(evidence))
        }
        (_, None | Some(Verdict::Healthy)) => None,
        (_, Some(Verdict::Unknown(gap))) => Some(Verdict::Unknown(gap)),
        (_, Some(Verdict::Problem(_))) => Some(Verdict::Unknown(unknown(socket))),
    }
}

/// It was not told.
pub(super) fn unknown(socket: &Socket) -> Gap {
    let detail = format!("whether [::]:{} takes IPv4 too, IPV6_V6ONLY, was not told", socket.local_port);
    Gap::new(Source::Listeners, Why::Ambiguous, detail)
}
