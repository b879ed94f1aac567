//! One netlink dump, from the request to its last message, or the reason why the dump failed.
//!
//! If data changed during a dump, the kernel marks the dump (`NLM_F_DUMP_INTR`). If the receive buffer is full, the
//! kernel drops messages (`ENOBUFS`). Portreeve discards the result of a marked or incomplete dump, and requests the
//! dump again on a new socket. After a successful dump, the socket is used for the next dump.

use std::{cell::Cell, io};

use netlink_packet_core::{NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN};
use nix::errno::Errno;

use super::{
    attributes::Malformed,
    message::{Answer, Message, Request},
    refusal::{Refusal, failed},
    socket::{Family, NetlinkSocket, Transport},
};
use portreeve_facts::{Gap, Why};

const ATTEMPTS: u32 = 3;
/// The largest number of bytes in one message buffer of the kernel (net/netlink/af_netlink.c `netlink_recvmsg`).
const BUFFER: usize = 32 * 1024;
const LARGEST_MESSAGE: usize = 1024 * 1024;

/// A connection to one family of netlink, for all dumps of one reader. All dumps are in the network namespace of the
/// calling thread. The first dump opens the socket.
#[derive(Debug)]
pub struct Connection<S, O> {
    open: O,
    idle: Option<S>,
    sequence: u32,
}

/// A connection to a family.
pub fn connection(family: Family) -> Connection<NetlinkSocket, impl FnMut() -> io::Result<NetlinkSocket>> {
    Connection::over(move || NetlinkSocket::open(family))
}

/// A connection to sock_diag that is kept from walk to walk.
pub type SockDiagConnection = Connection<NetlinkSocket, fn() -> io::Result<NetlinkSocket>>;

/// A connection to sock_diag.
pub fn sock_diag_connection() -> SockDiagConnection {
    Connection::over(|| NetlinkSocket::open(Family::SockDiag))
}

thread_local! {
    static IDLE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

enum Stop {
    /// The dump is torn. A repeated request may succeed.
    Torn(&'static str),
    /// The buffer was too small: a message needs a buffer of this size.
    Truncated(usize),
    /// A repeated request would also fail.
    Final(Gap),
}

impl<S: Transport, O: FnMut() -> io::Result<S>> Connection<S, O> {
    /// A connection. `open` makes its sockets. The first dump makes the first socket.
    pub fn over(open: O) -> Self {
        Self { open, idle: None, sequence: 0 }
    }

    /// Requests a dump. `start` makes a new value, and `each` adds one message to this value. A torn dump and its value
    /// are dropped, and the dump is requested again. There are at most three requests.
    ///
    /// # Errors
    /// A [`Gap`] of the request's source. The kernel refused the request or took too long, every attempt was torn, or a
    /// message cannot be parsed.
    pub fn dump<T>(
        &mut self,
        request: &Request<'_>,
        mut start: impl FnMut() -> T,
        mut each: impl FnMut(&mut T, &Message<'_>) -> Result<(), Malformed>,
    ) -> Result<T, Gap> {
        // All dumps of a thread use one buffer, because a scan makes a dozen dumps. Unused pages of the buffer take no
        // memory.
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
            let socket = self.idle.take().map_or_else(&mut self.open, Ok);
            let mut socket = socket.map_err(|error| failed(request, "netlink socket", &error))?;
            self.sequence += 1;
            let sequence = self.sequence;
            socket.send(&request.encode(sequence)).map_err(|error| failed(request, "netlink request", &error))?;
            let mut collected = start();
            match receive(&mut socket, request, sequence, buffer, |message| each(&mut collected, message)) {
                Ok(()) => {
                    self.idle = Some(socket);
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

fn receive(
    socket: &mut impl Transport,
    request: &Request<'_>,
    sequence: u32,
    buffer: &mut Vec<u8>,
    mut each: impl FnMut(&Message<'_>) -> Result<(), Malformed>,
) -> Result<(), Stop> {
    let mut interrupted = false;
    loop {
        let length = match socket.receive(buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(stopped(request, &error)),
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
                    return match Refusal::of(&answer) {
                        None if interrupted => Err(Stop::Torn("interrupted by changes")),
                        None => Ok(()),
                        Some(refusal) if request.absent == Some(refusal.errno) => Ok(()),
                        Some(refusal) => Err(torn(refusal.errno)
                            .unwrap_or_else(|| Stop::Final(refusal.gap(request, socket.family(), socket.explains())))),
                    };
                }
                _ => {
                    each(&answer.message).map_err(|Malformed(wanted)| Stop::Final(request.malformed(wanted)))?;
                }
            }
        }
    }
}

fn stopped(request: &Request<'_>, error: &io::Error) -> Stop {
    let errno = error.raw_os_error().map(Errno::from_raw);
    errno.and_then(torn).unwrap_or_else(|| Stop::Final(failed(request, "dump", error)))
}

fn torn(errno: Errno) -> Option<Stop> {
    match errno {
        Errno::ENOBUFS => Some(Stop::Torn("overrun")),
        Errno::EINTR => Some(Stop::Torn("interrupted by changes")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::{
            message::HEADER,
            script::{self, Script, done, message, refused},
        },
        *,
    };
    use portreeve_facts::Source;

    const REQUEST: Request<'static> =
        Request { source: Source::Listeners, what: "TCP sockets", kind: 20, body: &[1, 2, 3, 4], absent: None };

    /// Returns the first byte of each message in the dump.
    fn play<const N: usize>(attempts: [Vec<io::Result<Vec<u8>>>; N]) -> Result<Vec<u8>, Gap> {
        first_bytes(&mut script::connection(Family::SockDiag, attempts.into()))
    }

    fn first_bytes<O: FnMut() -> io::Result<Script>>(connection: &mut Connection<Script, O>) -> Result<Vec<u8>, Gap> {
        connection.dump(&REQUEST, Vec::new, |seen, message| {
            seen.push(*message.body.first().ok_or(Malformed("a byte"))?);
            Ok(())
        })
    }

    fn why(outcome: Result<Vec<u8>, Gap>) -> Why {
        outcome.expect_err("a gap").why
    }

    #[test]
    fn several_datagrams_make_one_dump() {
        let first = [message(20, 0, 1, b"a"), message(20, 0, 1, b"bcdef")].concat();
        assert_eq!(play([vec![Ok(first), Ok(message(20, 0, 1, b"g")), Ok(done(1, 0))]]), Ok(b"abg".to_vec()));
    }

    #[test]
    fn a_torn_dump_is_retried_and_its_messages_are_discarded() {
        let torn = vec![Ok(message(20, NLM_F_DUMP_INTR, 1, b"x")), Ok(done(1, 0))];
        let sound = vec![Ok(message(20, 0, 2, b"a")), Ok(done(2, 0))];
        assert_eq!(play([torn, sound]), Ok(b"a".to_vec()));
    }

    #[test]
    fn a_successful_dump_leaves_its_socket_to_the_next_and_a_failed_one_does_not() {
        let first =
            vec![Ok(message(20, 0, 1, b"a")), Ok(done(1, 0)), Ok(message(20, 0, 2, b"b")), Err(Errno::EIO.into())];
        let second = vec![Ok(message(20, 0, 3, b"c")), Ok(done(3, 0))];
        let mut connection = script::connection(Family::SockDiag, vec![first, second]);
        assert_eq!(first_bytes(&mut connection), Ok(b"a".to_vec()));
        assert_eq!(why(first_bytes(&mut connection)), Why::Unreachable);
        assert_eq!(first_bytes(&mut connection), Ok(b"c".to_vec()));
    }

    #[test]
    fn a_dump_torn_every_time_is_unread() {
        let torn = |sequence| vec![Ok(message(NLMSG_DONE, NLM_F_DUMP_INTR, sequence, &[0; 4]))];
        assert_eq!(why(play([torn(1), torn(2), torn(3)])), Why::Torn);
    }

    #[test]
    fn an_overrun_is_retried() {
        let overrun = vec![Ok(message(20, 0, 1, b"x")), Err(Errno::ENOBUFS.into())];
        assert_eq!(play([overrun, vec![Ok(done(2, 0))]]), Ok(vec![]));
    }

    #[test]
    fn an_interrupted_call_continues_its_dump() {
        let script = vec![Ok(message(20, 0, 1, b"a")), Err(Errno::EINTR.into()), Ok(done(1, 0))];
        assert_eq!(play([script]), Ok(b"a".to_vec()));
    }

    #[test]
    fn a_datagram_larger_than_the_buffer_is_requested_again_with_a_larger_one() {
        let large = vec![b'a'; BUFFER];
        let answer = |sequence| vec![Ok(message(20, 0, sequence, &large)), Ok(done(sequence, 0))];
        assert_eq!(play([answer(1), answer(2)]), Ok(b"a".to_vec()));
    }

    #[test]
    fn answers_to_an_earlier_request_are_ignored() {
        let script = vec![Ok(message(20, 0, 7, b"x")), Ok(done(7, 0)), Ok(message(20, 0, 1, b"a")), Ok(done(1, 0))];
        assert_eq!(play([script]), Ok(b"a".to_vec()));
    }

    #[test]
    fn refusals_keep_their_reason() {
        let by = |errno: Errno| why(play([vec![Ok(refused(1, errno))]]));
        assert_eq!(by(Errno::EPERM), Why::NotPermitted);
        assert_eq!(by(Errno::EACCES), Why::NotPermitted);
        assert_eq!(by(Errno::ENOENT), Why::NotSupported, "there is no module for the protocol");
        assert_eq!(by(Errno::EOPNOTSUPP), Why::NotSupported);
        assert_eq!(by(Errno::EINVAL), Why::Malformed, "the request was wrong");
        assert_eq!(by(Errno::ENOMEM), Why::Unreachable);
        assert_eq!(why(play([vec![Ok(done(1, -(Errno::EPROTONOSUPPORT as i32)))]])), Why::NotSupported);
        assert_eq!(why(play([vec![]])), Why::TimedOut);
    }

    #[test]
    fn only_the_refusal_that_means_absent_is_an_empty_dump() {
        let request = Request { absent: Some(Errno::ENOENT), ..REQUEST };
        let dumped = |errno| {
            let mut connection = script::connection(Family::Route, vec![vec![Ok(refused(1, errno))]]);
            connection.dump(&request, || 0, |_, _| Ok(()))
        };
        assert_eq!(dumped(Errno::ENOENT), Ok(0));
        assert_eq!(dumped(Errno::EOPNOTSUPP).expect_err("a gap").why, Why::NotSupported);
        assert_eq!(dumped(Errno::EINVAL).expect_err("a gap").why, Why::Malformed);
    }

    #[test]
    fn a_message_cut_short_is_malformed() {
        let mut cut = message(20, 0, 1, b"abcd");
        cut.truncate(HEADER + 2);
        assert_eq!(why(play([vec![Ok(cut)]])), Why::Malformed);
        assert_eq!(why(play([vec![Ok(vec![])]])), Why::Malformed);
        assert_eq!(why(play([vec![Ok(message(20, 0, 1, b""))]])), Why::Malformed);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(datagrams in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..4)) {
            let script = || datagrams.iter().cloned().map(Ok).collect::<Vec<_>>();
            let outcome = play([script(), script(), script()]);
            prop_assert!(outcome.is_err() || !datagrams.is_empty(), "the kernel must send the end");
        }

        #[test]
        fn no_body_behind_a_sound_header_panics(kind in 0u16..30, flags: u16, body in proptest::collection::vec(any::<u8>(), 0..40)) {
            let script = |sequence| vec![Ok(message(kind, flags, sequence, &body))];
            let outcome = play([script(1), script(2), script(3)]);
            prop_assert!(outcome.is_err() || outcome == Ok(vec![]), "a dump without its end is refused");
        }
    }
}
