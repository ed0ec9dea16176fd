//! Waiting for several sockets at the same time. One of them may be the end of a pair, by which another thread wakes the
//! one that waits.

use std::io::{Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;

/// Waits until one of these sockets has something to read, or has ended, or until then. Returns for each whether it has.
/// Looks at least once, even after that time.
pub(crate) fn readable<'s>(
    sockets: impl IntoIterator<Item = BorrowedFd<'s>>,
    until: Instant,
) -> SmallVec<[bool; 8]> {
    let polled = |socket| PollFd::from_borrowed_fd(socket, PollFlags::IN);
    let mut polled: SmallVec<[_; 8]> = sockets.into_iter().map(polled).collect();
    let left = until.saturating_duration_since(Instant::now());
    // An error means that a signal came, or that the system has no memory: the caller looks again.
    poll(&mut polled, Timespec::try_from(left).ok().as_ref()).ok();
    let is_ready = |polled: &PollFd<'_>| !polled.revents().is_empty();
    polled.iter().map(is_ready).collect()
}

/// Returns two connected ends. A byte written to the first wakes a thread that waits at the second.
pub(crate) fn wakers() -> std::io::Result<(UnixStream, UnixStream)> {
    let (waker, woken) = UnixStream::pair()?;
    for end in [&waker, &woken] {
        end.set_nonblocking(true)?;
    }
    Ok((waker, woken))
}

/// Wakes the thread at the other end.
pub(crate) fn wake(mut waker: &UnixStream) {
    // If it is full, the thread will wake anyway.
    waker.write_all(&[0]).ok();
}

/// Takes the bytes that have woken the thread.
pub(crate) fn take_wakes(mut woken: &UnixStream) {
    let mut piece = [0; 64];
    while woken.read(&mut piece).is_ok_and(|read| read > 0) {}
}
