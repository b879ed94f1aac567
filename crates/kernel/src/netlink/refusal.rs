//! The meaning of a refusal by the kernel.
//!
//! Portreeve does not treat an error with several meanings as a missing subsystem. Otherwise, the refusal of a
//! malformed request would look like an empty table.

use std::io;

use netlink_packet_core::{NLM_F_ACK_TLVS, NLM_F_CAPPED, NLMSG_ERROR};
use nix::errno::Errno;

use super::{
    attributes::{attributes, bytes_at, name},
    message::{Answer, HEADER, Request},
    socket::Family,
};
use portreeve_facts::{Gap, Why};

const WORDS: usize = 160;

// include/uapi/linux/netlink.h `enum nlmsgerr_attrs`
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLMSGERR_ATTR_OFFS: u16 = 2;

/// An error from the kernel, with the kernel's explanation (`NETLINK_EXT_ACK`, Linux 4.12).
#[derive(Debug)]
pub(crate) struct Refusal {
    pub errno: Errno,
    words: Option<String>,
}

impl Refusal {
    /// The refusal in a message of the kind `NLMSG_ERROR` or `NLMSG_DONE`. `None` if the message reports success.
    /// `NLMSG_DONE` contains the result of the dump. Very old kernels leave the result out.
    pub(crate) fn of(answer: &Answer<'_>) -> Option<Self> {
        let body = answer.message.body;
        let code = bytes_at(body, 0).map_or(0, i32::from_ne_bytes);
        let has_words = answer.flags & NLM_F_ACK_TLVS != 0;
        (code < 0).then(|| Self {
            errno: Errno::from_raw(code.saturating_neg()),
            words: has_words.then(|| words(body.get(behind_request(answer)..)?)).flatten(),
        })
    }

    /// `explained` says whether the socket has the option with which the kernel explains an error.
    pub(crate) fn gap(&self, request: &Request<'_>, family: Family, explained: bool) -> Gap {
        let why = match self.errno {
            Errno::EPERM | Errno::EACCES => Why::NotPermitted,
            Errno::ENOENT | Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT => Why::NotSupported,
            // nfnetlink answers with this error and without a text if the kernel lacks the subsystem
            // (net/netfilter/nfnetlink.c `nfnetlink_rcv_msg`). If nfnetlink cannot parse a request, it adds a text.
            Errno::EINVAL if explained && self.words.is_none() && family == Family::Netfilter => Why::NotSupported,
            Errno::EINVAL => Why::Malformed,
            _ => Why::Unreachable,
        };
        let words = self.words.as_deref().map(|words| format!(": {words}")).unwrap_or_default();
        let error = io::Error::from(self.errno);
        Gap::new(request.source, why, format!("the kernel refused a dump of {}: {error}{words}", request.what))
    }
}

/// The offset of the attributes in a refusal. In `NLMSG_DONE`, the attributes follow the error code. In `NLMSG_ERROR`,
/// a copy of the request or of its header separates the error code from the attributes.
fn behind_request(answer: &Answer<'_>) -> usize {
    let quoted = match answer.message.kind {
        NLMSG_ERROR if answer.flags & NLM_F_CAPPED != 0 => HEADER,
        NLMSG_ERROR => bytes_at(answer.message.body, 4)
            .map_or(HEADER, |length| usize::try_from(u32::from_ne_bytes(length)).unwrap_or(usize::MAX)),
        _ => 0,
    };
    quoted.saturating_add(3).saturating_add(4) & !3
}

fn words(bytes: &[u8]) -> Option<String> {
    let mut place = None;
    for (kind, payload) in attributes(bytes).map_while(Result::ok) {
        match kind {
            NLMSGERR_ATTR_MSG => return Some(name(payload, WORDS)),
            NLMSGERR_ATTR_OFFS => place = bytes_at(payload, 0).ok().map(u32::from_ne_bytes),
            _ => {}
        }
    }
    place.map(|place| format!("at byte {place} of the request"))
}

pub(crate) fn failed(request: &Request<'_>, operation: &str, error: &io::Error) -> Gap {
    let why = match error.raw_os_error().map(Errno::from_raw) {
        // Every kernel with a network has netlink and these calls. So this error is from a filter of system calls.
        Some(Errno::EPERM | Errno::EACCES | Errno::EAFNOSUPPORT | Errno::ENOSYS) => Why::NotPermitted,
        Some(Errno::EAGAIN) => Why::TimedOut,
        Some(Errno::EPROTONOSUPPORT) => Why::NotSupported,
        None => Why::Malformed,
        Some(_) => Why::Unreachable,
    };
    Gap::new(request.source, why, format!("{operation} of {}: {error}", request.what))
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::NLMSG_DONE;

    use super::{super::script, *};
    use portreeve_facts::Source;

    const REQUEST: Request<'static> =
        Request { source: Source::Netfilter, what: "nft tables", kind: 0x0a01, body: &[0; 4], absent: None };

    fn gap(kind: u16, flags: u16, body: &[u8], family: Family, explained: bool) -> Gap {
        let bytes = script::message(kind, flags, 1, body);
        let answer = Answer::split(&mut &bytes[..]).expect("a whole message");
        Refusal::of(&answer).expect("a refusal").gap(&REQUEST, family, explained)
    }

    fn code(errno: Errno) -> [u8; 4] {
        (-(errno as i32)).to_ne_bytes()
    }

    /// A refusal with the kernel's text. The text follows the copy of the request or of its header.
    fn explained(quoted: &[u8]) -> Vec<u8> {
        let mut header = [0; HEADER];
        header[0] = u8::try_from(HEADER + quoted.len()).unwrap();
        let words = script::attribute(NLMSGERR_ATTR_MSG, b"Invalid mask\x1b[2J\0");
        [&code(Errno::EINVAL)[..], &header, quoted, &words].concat()
    }

    #[test]
    fn a_refusal_of_a_wrong_request_has_the_kernel_s_message_and_is_never_an_empty_dump() {
        let told = [
            gap(NLMSG_ERROR, NLM_F_ACK_TLVS | NLM_F_CAPPED, &explained(&[]), Family::Netfilter, true),
            gap(NLMSG_ERROR, NLM_F_ACK_TLVS, &explained(&[7; 8]), Family::Netfilter, true),
        ];
        for gap in told {
            assert_eq!(gap.why, Why::Malformed);
            assert!(gap.detail.ends_with(": Invalid mask[2J"), "{}", gap.detail);
        }
        let words = script::attribute(NLMSGERR_ATTR_OFFS, &20u32.to_ne_bytes());
        let done = [&code(Errno::EINVAL)[..], &words].concat();
        let gap = gap(NLMSG_DONE, NLM_F_ACK_TLVS, &done, Family::Route, true);
        assert_eq!((gap.why, gap.detail.ends_with(": at byte 20 of the request")), (Why::Malformed, true));
    }

    #[test]
    fn only_netfilter_reports_a_missing_subsystem_without_a_message() {
        let bare = |family, explained| gap(NLMSG_ERROR, 0, &code(Errno::EINVAL), family, explained).why;
        assert_eq!(bare(Family::Netfilter, true), Why::NotSupported);
        assert_eq!(bare(Family::Netfilter, false), Why::Malformed, "no reasons were requested");
        for family in [Family::Route, Family::SockDiag] {
            assert_eq!(bare(family, true), Why::Malformed);
        }
    }

    #[test]
    fn a_filter_of_system_calls_is_a_missing_permission_and_a_missing_family_is_not() {
        let why = |errno: Errno| failed(&REQUEST, "netlink socket", &errno.into()).why;
        for errno in [Errno::EPERM, Errno::EACCES, Errno::EAFNOSUPPORT, Errno::ENOSYS] {
            assert_eq!(why(errno), Why::NotPermitted, "{errno}");
        }
        assert_eq!(why(Errno::EPROTONOSUPPORT), Why::NotSupported);
        for errno in [Errno::EMFILE, Errno::EINVAL, Errno::ENOMEM] {
            assert_eq!(why(errno), Why::Unreachable, "{errno}");
        }
    }

    #[test]
    fn a_refusal_cut_anywhere_keeps_its_reason() {
        let whole = explained(&[7; 8]);
        for length in 4..whole.len() {
            let gap = gap(NLMSG_ERROR, NLM_F_ACK_TLVS, &whole[..length], Family::Route, true);
            assert_eq!(gap.why, Why::Malformed, "{length} bytes");
        }
    }
}
