//! The connections of one server's pool, which threads that call at the same moment share.
//!
//! The places of the r2d2 pool hold the connections. Each place is taken while a thread uses its connection. A thread that
//! makes a call *enters* a connection:
//!
//! | request | enters |
//! | --- | --- |
//! | short, of one key | the fullest connection that has room, once [`FEW`] threads are in calls. If there is none, or it answers slowly, a connection of its own while the pool has a place |
//! | any other | a connection that no other thread enters |
//!
//! A connection has room for [`MOST_IN_FLIGHT`] threads, each with one request at a time. Two threads in calls have a
//! connection each. Up to 127 more enter the fullest of them. Each further connection costs each side a system call for
//! each write and each read that is not shared: with 64 threads, one connection was measured to be 10 % faster than two,
//! and twice as fast as sixteen.
//!
//! The last thread that leaves a connection gives its place back. The next thread that takes the place finds the connection
//! open. All this is decided under one mutex, the [gate](connections). A thread has it twice in a call: when it enters, and
//! when it leaves. No thread waits for a place in r2d2.
//!
//! A thread waits at the gate, and only if the pool has no place and no connection has room. Requests with priority wait before all
//! others, and have room on a connection for twice as many. So a thousand threads that ask for locks do not keep a holder
//! from its release. While a thread waits for a connection of its own, no other enters the first one, so that its place
//! becomes free.
//!
//! If the other side closes a connection, it may have closed others too: the server was started again, or something on the
//! way ends connections that were not used for a while. So no thread enters a connection that was opened before one was
//! last found closed, and none of those is kept. If a request fails because its connection was closed, the caller sends it
//! again, on a connection that was opened later.
//!
//! On a connection, [`combiner`] decides who writes and who reads. It is guarded by the mutex of that connection. Where there
//! are more than eight threads, requests that follow the answers of one read are written together. A `sched_yield` before
//! each write was measured to be worse: the whole connection then waits for its slowest thread, and client and server wait
//! for each other in turn.
//!
//! # What a thread does
//!
//! | [`combiner`] says | the thread is alone on the connection | others are on it too |
//! | --- | --- | --- |
//! | write, and no answer is missing | first takes the half that reads, looks without blocking whether anything is unread, and gives the half back | the same |
//! | write | takes the half of the socket that writes, and blocks until all is written | takes the half, writes as much as there is room for, and gives it back. If bytes are left, waits by `poll` without the half, and writes on |
//! | read | takes the half that reads, and blocks until an answer has come | waits by `poll` without the half. Then takes it, reads without blocking, and gives it back |
//! | wait | | sleeps until another thread wakes it. After 5 ms without that, and then after 10 ms, 20 ms and so on up to 1 s, looks at the socket itself. With 16 threads or more on the connection, the first of these pauses is longer: 80 ms with 128. If the socket is ready, takes over the role of the thread that has it |
//!
//! So a thread that gets no CPU time while it waits holds nothing that another thread needs. Between taking a half and giving
//! it back, a thread makes one system call that does not block. If the system stops it just there, or while it has a mutex,
//! the others wait for it. So they do for a thread that was alone when it began to read.
//!
//! A thread that waits by `poll` also goes on after those pauses: another thread may have read its answer meanwhile.
//!
//! # Failures
//!
//! | event | the caller | the other callers | the connection |
//! | --- | --- | --- | --- |
//! | a caller's time or call is over, and the socket has nothing for it | leaves, with an unknown outcome | go on | takes no new caller until the overdue answer has come. It closes if the last caller leaves before. |
//! | input or output fails | gets the failure | each gets it too, once | closes |
//! | an answer cannot be read, or is no reply to its request | `Protocol` | a transient failure of unknown outcome, once: their answers may be those of other requests. Answers before it have reached their callers | closes |
//! | the connection has ended, or something is unread, before a request is written although no answer is missing | goes to another connection | the same | closes, and so do all that were opened before this moment |
//! | the connection fails before a request is written | goes to another connection | | |
//! | a server says that it is a replica, or denies the request | gets the failure | go on | takes no new caller |
//! | a caller panics | leaves | go on | as if its time was over |
//!
//! TCP loses no bytes in the middle. So answers come in the order of the requests. A look before the first request, and a
//! check of the answers' type, are the only checks: an ECHO before each request would cost a command each.
//!
//! No input or output happens under a mutex, with TLS too. A half of the socket belongs to the thread that writes or
//! reads, and goes back when that thread is done, or leaves by a panic. A thread that has the mutex of a connection may take
//! the gate, but no mutex of a connection is taken at the gate: there, threads look at a few atomics of each connection. A
//! forked child makes no calls, so it neither writes nor reads.

mod combiner;
mod connection;
mod connections;
mod request;
mod terms;

pub(crate) use connections::{Connections, PooledConnection};

#[cfg(test)]
mod tests;
