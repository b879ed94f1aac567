//! The attributes of netlink messages (`struct nlattr`, include/uapi/linux/netlink.h), for sockets, flows and
//! nf_tables.
//!
//! A walk over sockets may call this code a million times. So the code borrows from the receive buffer, does not
//! allocate, and skips unused attributes.

use netlink_packet_core::NLA_TYPE_MASK;

use portreeve_facts::text;

/// The error for malformed bytes. The text names the expected form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// The attributes of a message (`struct nlattr`), as kind and payload. Flags are removed from the kind.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = Result<(u16, &[u8]), Malformed>> {
    std::iter::from_fn(move || {
        let (head, _) = bytes.split_first_chunk::<4>()?;
        let [low, high, kind @ ..] = *head;
        let length = usize::from(u16::from_ne_bytes([low, high]));
        let Some(payload) = bytes.get(4..length) else {
            bytes = &[];
            return Some(Err(Malformed("an attribute within its message")));
        };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok((u16::from_ne_bytes(kind) & NLA_TYPE_MASK, payload)))
    })
}

/// `N` bytes at an offset.
///
/// # Errors
/// [`Malformed`] if there are fewer bytes.
pub fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], Malformed> {
    let found = bytes.get(offset..).and_then(|rest| rest.first_chunk::<N>());
    found.copied().ok_or(Malformed("a message as long as its kind demands"))
}

/// A zero-terminated name. Invisible characters are removed, because the name of a link, table or chain may contain
/// escape codes.
pub fn name(payload: &[u8], limit: usize) -> String {
    let bytes = payload.split(|byte| *byte == 0).next().unwrap_or_default();
    text::clean(&String::from_utf8_lossy(bytes), limit)
}

/// Makes an attribute with padding.
pub fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + payload.len()).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn attributes_end_at_their_own_length() {
        let bytes = [&[5, 0, 11, 0x80, 1, 0, 0, 0][..], &[8, 0, 1, 0, 9, 9, 9, 9]].concat();
        let found: Result<Vec<_>, _> = attributes(&bytes).collect();
        assert_eq!(found, Ok(vec![(11, &[1][..]), (1, &[9, 9, 9, 9][..])]));
        assert!(attributes(&[9, 0, 1, 0, 0]).any(|attribute| attribute.is_err()));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(attributes(&bytes).count() <= bytes.len());
        }
    }
}
