//! A pair of sockets by which one thread wakes another, which waits in a `poll` beside its other sockets.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// Returns two connected ends. A byte written to the first wakes a thread that waits at the second.
pub(super) fn wakers() -> std::io::Result<(UnixStream, UnixStream)> {
    let (waker, woken) = UnixStream::pair()?;
    for end in [&waker, &woken] {
        end.set_nonblocking(true)?;
    }
    Ok((waker, woken))
}

/// Wakes the thread at the other end.
pub(super) fn wake(mut waker: &UnixStream) {
    // If it is full, the thread will wake anyway.
    waker.write_all(&[0]).ok();
}

/// Takes the bytes that have woken the thread.
pub(super) fn take_wakes(mut woken: &UnixStream) {
    let mut piece = [0; 64];
    while woken.read(&mut piece).is_ok_and(|read| read > 0) {}
}
