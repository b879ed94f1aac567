//! One netlink dump, from the request to its last message, or the reason why it cannot be had.
//!
//! The kernel marks a dump during which the dumped changed (`NLM_F_DUMP_INTR`), and drops messages when the receive
//! buffer is full (`ENOBUFS`). Neither is taken for truth: the dump is asked for again, on a new socket. One that went
//! well leaves its socket to the next.

use std::{cell::Cell, io};

use nix::errno::Errno;

use super::wire::{KernelWire, Wire};
use crate::facts::{Gap, Source, Why};

/// How often a torn dump is asked for.
const ATTEMPTS: u32 = 3;
/// What the kernel fills at most in one go (net/netlink/af_netlink.c `netlink_recvmsg`).
const BUFFER: usize = 32 * 1024;
/// The largest single message that is still waited for.
const LARGEST_MESSAGE: usize = 1024 * 1024;

// include/uapi/linux/netlink.h, as are all numbers here.
pub(super) const NETLINK_ROUTE: isize = 0;
const NETLINK_SOCK_DIAG: isize = 4;
pub(super) const NETLINK_NETFILTER: isize = 12;
const HEADER: usize = 16;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLMSG_NOOP: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSG_OVERRUN: u16 = 4;

/// What to dump.
pub(super) struct Request<'a> {
    /// Whose fact it is: the source of every gap.
    pub(super) source: Source,
    /// What is dumped, for people: `TCP sockets`.
    pub(super) what: &'static str,
    /// `nlmsg_type`.
    pub(super) kind: u16,
    /// Everything behind the `nlmsghdr`.
    pub(super) body: &'a [u8],
}

/// One message of a dump.
pub(super) struct Message<'a> {
    /// `nlmsg_type`.
    pub(super) kind: u16,
    /// Everything behind the `nlmsghdr`.
    pub(super) body: &'a [u8],
}

/// Bytes that are not what they must be: what was wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// A way to one protocol of the kernel, for dumps of one reader, all in the network namespace of the calling thread.
#[derive(Debug)]
pub(super) struct Line<W, O> {
    open: O,
    idle: Option<W>,
    sequence: u32,
}

/// A way to [`NETLINK_ROUTE`], [`NETLINK_NETFILTER`], ... `strict`: the kernel has to honour or refuse every field of a
/// request (`NETLINK_GET_STRICT_CHK`, Linux 4.20).
pub(super) fn line(protocol: isize, strict: bool) -> Line<KernelWire, impl FnMut() -> io::Result<KernelWire>> {
    Line::over(move || KernelWire::open(protocol, strict))
}

/// A way to sockets that is kept from walk to walk.
pub(super) type SocketLine = Line<KernelWire, fn() -> io::Result<KernelWire>>;

/// The way to [`NETLINK_SOCK_DIAG`].
pub(super) fn socket_line() -> SocketLine {
    Line::over(|| KernelWire::open(NETLINK_SOCK_DIAG, false))
}

/// The attributes of a message (`struct nlattr`), as kind and payload; flags are masked off the kind.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = Result<(u16, &[u8]), Malformed>> {
    std::iter::from_fn(move || {
        let (head, _) = bytes.split_first_chunk::<4>()?;
        let [low, high, kind @ ..] = *head;
        let length = usize::from(u16::from_ne_bytes([low, high]));
        let Some(payload) = bytes.get(4..length) else {
            bytes = &[];
            return Some(Err(Malformed("an attribute within its message")));
        };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok((u16::from_ne_bytes(kind) & 0x3fff, payload)))
    })
}

/// `N` bytes at an offset.
///
/// # Errors
/// [`Malformed`] when there are fewer.
pub(super) fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], Malformed> {
    let found = bytes.get(offset..).and_then(|rest| rest.first_chunk::<N>());
    found.copied().ok_or(Malformed("a message as long as its kind demands"))
}

thread_local! {
    /// The receive buffer of the last dump of this thread.
    static IDLE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Why one attempt came to nothing.
enum Stop {
    /// Asking again may help.
    Torn(&'static str),
    /// A message needs a larger buffer.
    Truncated(usize),
    /// Asking again will not help.
    Final(Gap),
}

impl<W: Wire, O: FnMut() -> io::Result<W>> Line<W, O> {
    fn over(open: O) -> Self {
        Self { open, idle: None, sequence: 0 }
    }

    /// Dumps into what `start` makes: `each` gets every message of one consistent dump. A torn dump is thrown away with
    /// what it filled and asked for again, three times in all.
    ///
    /// # Errors
    /// A [`Gap`] of the request's source when the kernel refused, does not know the request, took too long, tore every
    /// attempt, or sent what `each` or this reader cannot read.
    pub(super) fn dump<T>(
        &mut self,
        request: &Request<'_>,
        mut start: impl FnMut() -> T,
        mut each: impl FnMut(&mut T, &Message<'_>) -> Result<(), Malformed>,
    ) -> Result<T, Gap> {
        // One buffer a thread: a look has a dozen dumps. What no answer fills of it is never touched.
        let mut buffer = IDLE.take();
        buffer.reserve_exact(BUFFER);
        let dumped = self.attempts(request, &mut start, &mut each, &mut buffer);
        if buffer.capacity() == BUFFER {
            buffer.clear();
            IDLE.set(buffer);
        }
        dumped
    }

    fn attempts<T>(
        &mut self,
        request: &Request<'_>,
        start: &mut impl FnMut() -> T,
        each: &mut impl FnMut(&mut T, &Message<'_>) -> Result<(), Malformed>,
        buffer: &mut Vec<u8>,
    ) -> Result<T, Gap> {
        let mut torn = "";
        for _ in 0..ATTEMPTS {
            let wire = self.idle.take().map_or_else(&mut self.open, Ok);
            let mut wire = wire.map_err(|error| request.failed("netlink socket", &error))?;
            self.sequence += 1;
            let sequence = self.sequence;
            wire.send(&request.encode(sequence)).map_err(|error| request.failed("netlink request", &error))?;
            let mut collected = start();
            match receive(&mut wire, request, sequence, buffer, |message| each(&mut collected, message)) {
                Ok(()) => {
                    self.idle = Some(wire);
                    return Ok(collected);
                }
                Err(Stop::Torn(why)) => torn = why,
                Err(Stop::Truncated(needed)) if needed <= LARGEST_MESSAGE => {
                    torn = "cut off by the receive buffer";
                    buffer.clear();
                    buffer.reserve_exact(needed);
                }
                Err(Stop::Truncated(_)) => return Err(request.malformed("messages of at most 1 MiB")),
                Err(Stop::Final(gap)) => return Err(gap),
            }
        }
        let what = request.what;
        Err(Gap::new(request.source, Why::Torn, format!("dump of {what}: {torn}, {ATTEMPTS} times in a row")))
    }
}

/// Reads the answers of one attempt until the kernel says that it is done.
fn receive(
    wire: &mut impl Wire,
    request: &Request<'_>,
    sequence: u32,
    buffer: &mut Vec<u8>,
    mut each: impl FnMut(&Message<'_>) -> Result<(), Malformed>,
) -> Result<(), Stop> {
    let mut interrupted = false;
    loop {
        let length = match wire.receive(buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(request.stopped(&error)),
        };
        let mut rest: &[u8] = buffer.get(..length).ok_or(Stop::Truncated(length))?;
        if rest.is_empty() {
            return Err(Stop::Final(request.malformed("an answer that is not empty")));
        }
        while !rest.is_empty() {
            let answer =
                Answer::split(&mut rest).map_err(|Malformed(wanted)| Stop::Final(request.malformed(wanted)))?;
            if answer.sequence != sequence {
                continue;
            }
            interrupted |= answer.flags & NLM_F_DUMP_INTR != 0;
            match answer.message.kind {
                NLMSG_NOOP => {}
                NLMSG_OVERRUN => return Err(Stop::Torn("overrun")),
                NLMSG_ERROR | NLMSG_DONE => {
                    // DONE carries the dump's own result; very old kernels left it out.
                    let code = bytes_at(answer.message.body, 0).map_or(0, i32::from_ne_bytes);
                    return match code {
                        0 if interrupted => Err(Stop::Torn("interrupted by changes")),
                        0.. => Ok(()),
                        _ => Err(request.stopped(&io::Error::from_raw_os_error(code.saturating_neg()))),
                    };
                }
                _ => {
                    each(&answer.message).map_err(|Malformed(wanted)| Stop::Final(request.malformed(wanted)))?;
                }
            }
        }
    }
}

/// One message with what its header says of the conversation.
struct Answer<'a> {
    flags: u16,
    sequence: u32,
    message: Message<'a>,
}

impl<'a> Answer<'a> {
    /// Takes the first message off `bytes`.
    fn split(bytes: &mut &'a [u8]) -> Result<Self, Malformed> {
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

impl Request<'_> {
    fn encode(&self, sequence: u32) -> Vec<u8> {
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

    /// What an error of the system means for an attempt.
    fn stopped(&self, error: &io::Error) -> Stop {
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOBUFS) => Stop::Torn("overrun"),
            Some(Errno::EINTR) => Stop::Torn("interrupted by changes"),
            _ => Stop::Final(self.failed("dump", error)),
        }
    }

    fn failed(&self, operation: &str, error: &io::Error) -> Gap {
        let why = match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EPERM | Errno::EACCES) => Why::NotPermitted,
            Some(Errno::EAGAIN) => Why::TimedOut,
            Some(
                Errno::ENOENT
                | Errno::EINVAL
                | Errno::EOPNOTSUPP
                | Errno::EPROTONOSUPPORT
                | Errno::EAFNOSUPPORT
                | Errno::ENOPROTOOPT,
            ) => Why::NotSupported,
            None => Why::Malformed,
            Some(_) => Why::Unreachable,
        };
        Gap::new(self.source, why, format!("{operation} of {}: {error}", self.what))
    }

    fn malformed(&self, wanted: &str) -> Gap {
        Gap::new(self.source, Why::Malformed, format!("dump of {}: wanted {wanted}", self.what))
    }
}

/// An attribute, padded, for tests of whoever reads some.
#[cfg(test)]
pub(super) fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + payload.len()).unwrap();
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const REQUEST: Request<'static> =
        Request { source: Source::Listeners, what: "TCP sockets", kind: 20, body: &[1, 2, 3, 4] };

    /// Answers of a kernel that exists on paper only.
    struct Script(VecDeque<io::Result<Vec<u8>>>);

    impl Wire for Script {
        fn send(&mut self, request: &[u8]) -> io::Result<()> {
            assert_eq!(request.len(), HEADER + REQUEST.body.len());
            Ok(())
        }

        fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
            let datagram = self.0.pop_front().unwrap_or(Err(Errno::EAGAIN.into()))?;
            buffer.clear();
            let fits = datagram.len().min(buffer.capacity());
            buffer.extend_from_slice(&datagram[..fits]);
            Ok(datagram.len())
        }
    }

    fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = REQUEST.encode(sequence);
        bytes.truncate(HEADER);
        bytes[..4].copy_from_slice(&u32::try_from(HEADER + body.len()).expect("short").to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn done(sequence: u32, code: i32) -> Vec<u8> {
        message(NLMSG_DONE, 0, sequence, &code.to_ne_bytes())
    }

    /// Dumps over one script per attempt; what comes back is the first byte of each message.
    fn play<const N: usize>(attempts: [Vec<io::Result<Vec<u8>>>; N]) -> Result<Vec<u8>, Gap> {
        let mut attempts = attempts.into_iter();
        let mut line = Line::over(|| Ok(Script(attempts.next().expect("no further attempt").into())));
        first_bytes(&mut line)
    }

    fn first_bytes<O: FnMut() -> io::Result<Script>>(line: &mut Line<Script, O>) -> Result<Vec<u8>, Gap> {
        line.dump(&REQUEST, Vec::new, |seen, message| {
            seen.push(*message.body.first().ok_or(Malformed("a byte"))?);
            Ok(())
        })
    }

    fn why(outcome: Result<Vec<u8>, Gap>) -> Why {
        outcome.expect_err("a gap").why
    }

    #[test]
    fn a_dump_over_several_datagrams_is_one() {
        let first = [message(20, 0, 1, b"a"), message(20, 0, 1, b"bcdef")].concat();
        assert_eq!(play([vec![Ok(first), Ok(message(20, 0, 1, b"g")), Ok(done(1, 0))]]), Ok(b"abg".to_vec()));
    }

    #[test]
    fn a_torn_dump_is_retried_and_what_it_brought_is_forgotten() {
        let torn = vec![Ok(message(20, NLM_F_DUMP_INTR, 1, b"x")), Ok(done(1, 0))];
        let sound = vec![Ok(message(20, 0, 2, b"a")), Ok(done(2, 0))];
        assert_eq!(play([torn, sound]), Ok(b"a".to_vec()));
    }

    #[test]
    fn a_dump_that_went_well_leaves_its_socket_to_the_next_and_one_that_did_not_does_not() {
        let first =
            vec![Ok(message(20, 0, 1, b"a")), Ok(done(1, 0)), Ok(message(20, 0, 2, b"b")), Err(Errno::EIO.into())];
        let second = vec![Ok(message(20, 0, 3, b"c")), Ok(done(3, 0))];
        let mut scripts = [first, second].into_iter();
        let mut line = Line::over(|| Ok(Script(scripts.next().expect("no further socket").into())));
        assert_eq!(first_bytes(&mut line), Ok(b"a".to_vec()));
        assert_eq!(why(first_bytes(&mut line)), Why::Unreachable);
        assert_eq!(first_bytes(&mut line), Ok(b"c".to_vec()));
    }

    #[test]
    fn a_dump_torn_every_time_is_a_gap() {
        let torn = |sequence| vec![Ok(message(NLMSG_DONE, NLM_F_DUMP_INTR, sequence, &[0; 4]))];
        assert_eq!(why(play([torn(1), torn(2), torn(3)])), Why::Torn);
    }

    #[test]
    fn an_overrun_is_retried() {
        let overrun = vec![Ok(message(20, 0, 1, b"x")), Err(Errno::ENOBUFS.into())];
        assert_eq!(play([overrun, vec![Ok(done(2, 0))]]), Ok(vec![]));
    }

    #[test]
    fn an_interrupted_call_goes_on_where_it_was() {
        let script = vec![Ok(message(20, 0, 1, b"a")), Err(Errno::EINTR.into()), Ok(done(1, 0))];
        assert_eq!(play([script]), Ok(b"a".to_vec()));
    }

    #[test]
    fn a_datagram_larger_than_the_buffer_is_asked_for_again_with_a_larger_one() {
        let large = vec![b'a'; BUFFER];
        let answer = |sequence| vec![Ok(message(20, 0, sequence, &large)), Ok(done(sequence, 0))];
        assert_eq!(play([answer(1), answer(2)]), Ok(b"a".to_vec()));
    }

    #[test]
    fn answers_to_an_earlier_request_are_passed_over() {
        let script = vec![Ok(message(20, 0, 7, b"x")), Ok(done(7, 0)), Ok(message(20, 0, 1, b"a")), Ok(done(1, 0))];
        assert_eq!(play([script]), Ok(b"a".to_vec()));
    }

    #[test]
    fn refusals_keep_their_reason() {
        let refused = |errno: Errno| vec![Ok(message(NLMSG_ERROR, 0, 1, &(-(errno as i32)).to_ne_bytes()))];
        assert_eq!(why(play([refused(Errno::EPERM)])), Why::NotPermitted);
        assert_eq!(why(play([refused(Errno::EACCES)])), Why::NotPermitted);
        assert_eq!(why(play([refused(Errno::ENOENT)])), Why::NotSupported);
        assert_eq!(why(play([refused(Errno::EOPNOTSUPP)])), Why::NotSupported);
        assert_eq!(why(play([vec![Ok(done(1, -(Errno::EPROTONOSUPPORT as i32)))]])), Why::NotSupported);
        assert_eq!(why(play([vec![]])), Why::TimedOut);
    }

    #[test]
    fn a_message_cut_short_is_malformed() {
        let mut cut = message(20, 0, 1, b"abcd");
        cut.truncate(HEADER + 2);
        assert_eq!(why(play([vec![Ok(cut)]])), Why::Malformed);
        assert_eq!(why(play([vec![Ok(vec![])]])), Why::Malformed);
        assert_eq!(why(play([vec![Ok(message(20, 0, 1, b""))]])), Why::Malformed);
    }

    #[test]
    fn attributes_are_cut_where_they_say() {
        let bytes = [&[5, 0, 11, 0x80, 1, 0, 0, 0][..], &[8, 0, 1, 0, 9, 9, 9, 9]].concat();
        let found: Result<Vec<_>, _> = attributes(&bytes).collect();
        assert_eq!(found, Ok(vec![(11, &[1][..]), (1, &[9, 9, 9, 9][..])]));
        assert!(attributes(&[9, 0, 1, 0, 0]).any(|attribute| attribute.is_err()));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(datagrams in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..4)) {
            for datagram in &datagrams {
                prop_assert!(attributes(datagram).count() <= datagram.len());
            }
            let script = || datagrams.iter().cloned().map(Ok).collect::<Vec<_>>();
            let outcome = play([script(), script(), script()]);
            prop_assert!(outcome.is_err() || !datagrams.is_empty(), "the kernel has to say that it is done");
        }

        #[test]
        fn no_body_behind_a_sound_header_panics(kind in 0u16..30, flags: u16, body in proptest::collection::vec(any::<u8>(), 0..40)) {
            let script = |sequence| vec![Ok(message(kind, flags, sequence, &body))];
            let outcome = play([script(1), script(2), script(3)]);
            prop_assert!(outcome.is_err() || outcome == Ok(vec![]), "one that is cut short is no dump");
        }
    }
}
