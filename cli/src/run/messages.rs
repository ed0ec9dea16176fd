//! The messages between the front and the keeper. Each is one packet of a `SOCK_SEQPACKET` socket pair.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg,
    socketpair,
};

use super::Time;

/// A packet: one letter, and a number.
const LENGTH: usize = 9;

/// A message of the front to the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToKeeper {
    /// The lease, or the time of `--max`, ends at this time. The command must have ended by then.
    Deadline(Time),
    /// The lock is lost.
    Lost,
    /// The command's group gets this signal.
    Signal(i32),
}

/// A message of the keeper to the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromKeeper {
    /// The command's process.
    Started(i32),
    /// A signal of job control stopped the command, which is in the group of the front.
    Stopped,
    /// The lease, or the time of `--max`, is nearly over, and the command is ended for it.
    Warned { is_max: bool },
    /// The command has ended with this status, and left this number of processes behind, which are ended now.
    Left(i64),
    /// The command and all its descendants have ended.
    Ended(End),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exited(u8),
    /// This signal killed it.
    Killed(u8),
}

impl End {
    /// Returns the exit status, as a shell has it.
    pub fn status(self) -> u8 {
        match self {
            Self::Exited(status) => status,
            Self::Killed(signal) => signal.saturating_add(128),
        }
    }
}

impl ToKeeper {
    fn encode(self) -> (u8, i64) {
        match self {
            Self::Deadline(at) => (b'd', at),
            Self::Lost => (b'l', 0),
            Self::Signal(signal) => (b's', signal.into()),
        }
    }

    fn decode(letter: u8, number: i64) -> Option<Self> {
        Some(match letter {
            b'd' => Self::Deadline(number),
            b'l' => Self::Lost,
            b's' => Self::Signal(number.try_into().ok()?),
            _ => return None,
        })
    }
}

impl FromKeeper {
    fn encode(self) -> (u8, i64) {
        match self {
            Self::Started(pid) => (b'p', pid.into()),
            Self::Stopped => (b't', 0),
            Self::Warned { is_max } => (b'w', is_max.into()),
            Self::Left(processes) => (b'r', processes),
            Self::Ended(End::Exited(status)) => (b'e', status.into()),
            Self::Ended(End::Killed(signal)) => (b'k', signal.into()),
        }
    }

    fn decode(letter: u8, number: i64) -> Option<Self> {
        Some(match letter {
            b'p' => Self::Started(number.try_into().ok()?),
            b't' => Self::Stopped,
            b'w' => Self::Warned {
                is_max: number != 0,
            },
            b'r' => Self::Left(number),
            b'e' => Self::Ended(End::Exited(number.try_into().ok()?)),
            b'k' => Self::Ended(End::Killed(number.try_into().ok()?)),
            _ => return None,
        })
    }
}

/// Makes the socket pair. Neither end is inherited.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Sends a descriptor, before all messages.
pub fn send_descriptor(socket: impl AsFd, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(
        socket,
        &[IoSlice::new(b"i")],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Receives the descriptor that [`send_descriptor`] sent.
pub fn receive_descriptor(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut letter = [0];
    recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut letter)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let descriptors = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptors.ok_or_else(|| io::Error::other("the front has ended"))
}

/// Sends to the keeper, and returns whether it will get the message. Never blocks: a keeper that has been stopped for long,
/// or has died, gets none.
pub fn tell_keeper(socket: impl AsFd, message: ToKeeper) -> bool {
    put(socket, message.encode())
}

/// Sends to the front, which may have died.
pub fn tell_front(socket: impl AsFd, message: FromKeeper) {
    put(socket, message.encode());
}

/// Blocks until the front has sent a message. `None` at the end of the socket.
pub fn hear_front(socket: impl AsFd) -> Option<ToKeeper> {
    get(socket).and_then(|(letter, number)| ToKeeper::decode(letter, number))
}

/// Blocks until the keeper has sent a message. `None` at the end of the socket.
pub fn hear_keeper(socket: impl AsFd) -> Option<FromKeeper> {
    get(socket).and_then(|(letter, number)| FromKeeper::decode(letter, number))
}

fn put(socket: impl AsFd, (letter, number): (u8, i64)) -> bool {
    let mut packet = [letter; LENGTH];
    packet[1..].copy_from_slice(&number.to_le_bytes());
    send(socket, &packet, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok()
}

fn get(socket: impl AsFd) -> Option<(u8, i64)> {
    let mut packet = [0; LENGTH];
    let received = loop {
        match recv(&socket, &mut packet, RecvFlags::empty()) {
            // The other end has closed and left a message of ours unread. Its own messages are still here.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            other => break other,
        }
    };
    let (length, _) = received.ok()?;
    let number = packet[1..]
        .try_into()
        .expect("eight bytes follow the letter");
    (length == LENGTH).then(|| (packet[0], i64::from_le_bytes(number)))
}
