//! How YAML is read: streamed, with bounds on what a few lines can become.

use serde_saphyr::{NonFiniteFloatPolicy, Options, options::DuplicateKeyPolicy};

/// The most aliases in one document; what kubectl writes has none.
const ALIASES: usize = 1_000;
/// The most bytes that anchors of one document may hold together. Times [`ALIASES`], it bounds what aliases become.
const ANCHORED: usize = 64 << 10;

/// For documents of any length, which are streamed.
pub(super) fn streamed() -> Options {
    options(usize::MAX)
}

/// For a document that is held as a tree: a List of ten thousand objects has less.
pub(super) fn tree() -> Options {
    options(2_000_000)
}

/// For a document that is held as text.
pub(super) fn embedded() -> Options {
    options(100_000)
}

fn options(most: usize) -> Options {
    let bounds = serde_saphyr::budget! {
        max_reader_input_bytes: None,
        max_events: most,
        max_nodes: most,
        max_total_scalar_bytes: usize::MAX,
        max_aliases: ALIASES,
        max_anchors: ALIASES,
        max_recorded_anchor_events: ANCHORED,
        max_recorded_anchor_bytes: ANCHORED,
    };
    serde_saphyr::options! {
        budget: bounds,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 100_000 },
        // kubectl reads YAML 1.1: 017620 is 8080.
        legacy_octal_numbers: true,
        with_snippet: false,
        emit_comments: false,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        // A key that is twice costs its object, and not the document.
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
    }
}
