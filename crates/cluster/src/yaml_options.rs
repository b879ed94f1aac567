//! The settings of the YAML parser. Documents are streamed. With aliases, a few lines can become a large document, so
//! there are limits.

use serde_saphyr::{
    NonFiniteFloatPolicy, Options,
    options::{DuplicateKeyPolicy, MergeKeyPolicy},
};

/// The greatest number of aliases in one document. The output of kubectl has no aliases.
const ALIASES: usize = 1_000;
/// The largest number of bytes of all anchors in one document. All aliases together add at most [`ALIASES`] times this
/// number of bytes.
const ANCHORED: usize = 64 << 10;

pub(super) fn streamed() -> Options {
    options(usize::MAX)
}

/// The options for a document that is kept as a tree. The limit allows a List of ten thousand objects.
pub(super) fn tree() -> Options {
    options(2_000_000)
}

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
        // kubectl parses YAML 1.1, in which 017620 is the octal number 8080.
        legacy_octal_numbers: true,
        with_snippet: false,
        emit_comments: false,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        // The parser passes repeated keys on. The tree keeps the last value, and merges the fields of `<<` in their
        // order.
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        merge_keys: MergeKeyPolicy::AsOrdinary,
    }
}
