//! What has to be read for a check to be one, and when an unread input is a failure.

use portreeve_facts::{Source, Why};

/// Whether nothing can be said of a node without this source. Every kernel has it, and every profile may see it.
pub fn is_indispensable(source: Source) -> bool {
    matches!(source, Source::Listeners | Source::Clients | Source::Addresses)
}

/// Whether an unread input of the core is a failure. Nothing excuses [what is indispensable](is_indispensable); of others
/// what a profile may not see, and what this kernel does not have, is none.
pub(super) fn is_failure(source: Source, why: Why) -> bool {
    let excused = matches!(why, Why::NotPermitted | Why::NotSupported) && !is_indispensable(source);
    !excused && !matches!(why, Why::NotAsked | Why::NotYet)
}
