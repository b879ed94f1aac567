//! A request for a dump, and the messages of the answer (`struct nlmsghdr`, include/uapi/linux/netlink.h).

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST};
use nix::errno::Errno;

use super::attributes::{Malformed, bytes_at};
use portreeve_facts::{Gap, Source, Why};

/// `sizeof(struct nlmsghdr)`.
pub(crate) const HEADER: usize = 16;

/// A request for a dump.
pub struct Request<'a> {
    /// The source of the fact, for each `Gap` about this request.
    pub source: Source,
    /// The objects in the dump, in words: `TCP sockets`.
    pub what: &'static str,
    /// `nlmsg_type`.
    pub kind: u16,
    /// All bytes after the `nlmsghdr`.
    pub body: &'a [u8],
    /// The error with which the kernel reports that it has no objects. A dump that ends with this error is empty.
    pub absent: Option<Errno>,
}

/// One message of a dump.
pub struct Message<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// All bytes after the `nlmsghdr`.
    pub body: &'a [u8],
}

impl Request<'_> {
    /// The request in the form in which it is sent.
    pub fn encode(&self, sequence: u32) -> Vec<u8> {
        let length = HEADER + self.body.len();
        let mut bytes = Vec::with_capacity(length);
        bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(self.body);
        bytes
    }

    /// A `Gap` for a malformed answer.
    pub fn malformed(&self, wanted: &str) -> Gap {
        Gap::new(self.source, Why::Malformed, format!("dump of {}: wanted {wanted}", self.what))
    }
}

pub(crate) struct Answer<'a> {
    pub flags: u16,
    pub sequence: u32,
    pub message: Message<'a>,
}

impl<'a> Answer<'a> {
    pub(crate) fn split(bytes: &mut &'a [u8]) -> Result<Self, Malformed> {
        let length = usize::try_from(u32::from_ne_bytes(bytes_at(bytes, 0)?)).unwrap_or(usize::MAX);
        let answer = Self {
            flags: u16::from_ne_bytes(bytes_at(bytes, 6)?),
            sequence: u32::from_ne_bytes(bytes_at(bytes, 8)?),
            message: Message {
                kind: u16::from_ne_bytes(bytes_at(bytes, 4)?),
                body: bytes.get(HEADER..length).ok_or(Malformed("a message within its datagram"))?,
            },
        };
        *bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Ok(answer)
    }
}
