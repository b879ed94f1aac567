//! The hash in the names of Events.

/// FNV-1a of 128 bits: the same in every build, on every node and after every restart.
pub(crate) fn hash(parts: &[&str]) -> u128 {
    // 0xff is in no UTF-8 text: it keeps the parts apart.
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0xff]));
    bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}
