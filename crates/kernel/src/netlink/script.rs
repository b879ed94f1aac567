//! A kernel with scripted answers, for tests.

use std::{collections::VecDeque, io};

use netlink_packet_core::{NLMSG_DONE, NLMSG_ERROR};
use nix::errno::Errno;

use super::{
    connection::Connection,
    message::HEADER,
    socket::{Family, Transport},
};

pub use super::attributes::attribute;

/// The answers of one socket, in order. After the last answer, `receive` fails.
pub struct Script {
    answers: VecDeque<io::Result<Vec<u8>>>,
    family: Family,
}

impl Transport for Script {
    fn send(&mut self, request: &[u8]) -> io::Result<()> {
        assert!(request.len() > HEADER);
        Ok(())
    }

    fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let datagram = self.answers.pop_front().unwrap_or(Err(Errno::EAGAIN.into()))?;
        buffer.clear();
        let fits = datagram.len().min(buffer.capacity());
        buffer.extend_from_slice(&datagram[..fits]);
        Ok(datagram.len())
    }

    fn family(&self) -> Family {
        self.family
    }

    fn explains(&self) -> bool {
        true
    }
}

/// A connection whose sockets each have one script.
pub fn connection(
    family: Family,
    scripts: Vec<Vec<io::Result<Vec<u8>>>>,
) -> Connection<Script, impl FnMut() -> io::Result<Script>> {
    let mut scripts = scripts.into_iter();
    Connection::over(move || {
        let answers = scripts.next().expect("no further socket").into();
        Ok(Script { answers, family })
    })
}

/// A message as the kernel writes it.
pub fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len()).expect("short");
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes()].concat();
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The end of a dump, with its result.
pub fn done(sequence: u32, code: i32) -> Vec<u8> {
    message(NLMSG_DONE, 0, sequence, &code.to_ne_bytes())
}

/// A refusal without a text.
pub fn refused(sequence: u32, errno: Errno) -> Vec<u8> {
    message(NLMSG_ERROR, 0, sequence, &(-(errno as i32)).to_ne_bytes())
}
