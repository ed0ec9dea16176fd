//! The table of the settings: the setter of each on the [`Builder`] with its documentation, how a URL writes it, and its
//! bounds. Its default stands beside its field in [`Settings`].
//!
//! The URL's parameters ([`super::url`]), the list of them in its errors, and [`check`] are read off this table. A setting
//! that a handle may change has its bounds in [`Settings::checked_terms`], because each call checks them.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::builder::Builder;
use crate::config::{LONGEST_QUANTUM, MAX_LEASE, Settings};
use crate::error::{Error, Result};
#[cfg(doc)]
use crate::manager::LockManager;
use crate::owner::{self, MARK, MAX_LABEL, is_label};

/// A row of the table, without its setter.
pub(super) struct Setting {
    /// The name of the builder's method, of the URL's parameter, and in errors.
    pub(super) name: &'static str,
    pub(super) value: Value,
    /// Returns what is wrong with the value, if its bounds are not those of a handle's option.
    wrong: fn(&Settings) -> Option<String>,
}

/// How a URL writes a value, and the method that takes it.
pub(super) enum Value {
    Bool(fn(Builder, bool) -> Builder),
    Number(fn(Builder, u32) -> Builder),
    /// The number of a database.
    Index(fn(Builder, i64) -> Builder),
    Text(fn(Builder, String) -> Builder),
    Time(fn(Builder, Duration) -> Builder),
    /// A time that may also be none, which a URL says by leaving it out.
    Limit(fn(Builder, Option<Duration>) -> Builder),
}

macro_rules! settings {
    (
        $(
            $(#[$group:meta])*
            impl Builder {
                $($(#[$about:meta])* $name:ident: $kind:ident $(in $part:ident)? $(, $wrong:expr)?;)*
            }
        )*
        by hand {
            $($other:ident: $of_other:ident $(, $wrong_other:expr)?;)*
        }
    ) => {
        $(
            $(#[$group])*
            impl Builder {$(
                $(#[$about])*
                pub fn $name(mut self, $name: settings!(@type $kind)) -> Self {
                    self.settings.$($part.)?$name = settings!(@value $kind $name);
                    self
                }
            )*}
        )*

        /// All settings.
        pub(super) const SETTINGS: &[Setting] = &[
            $($(Setting {
                name: stringify!($name),
                value: Value::$kind(Builder::$name),
                wrong: settings!(@wrong $($wrong)?),
            },)*)*
            $(Setting {
                name: stringify!($other),
                value: Value::$of_other(Builder::$other),
                wrong: settings!(@wrong $($wrong_other)?),
            },)*
        ];
    };
    (@type Bool) => { bool };
    (@type Number) => { u32 };
    (@type Index) => { i64 };
    (@type Text) => { impl Into<String> };
    (@type Time) => { Duration };
    (@type Limit) => { Option<Duration> };
    // A field may be optional.
    (@value Text $value:ident) => { Into::<String>::into($value).into() };
    (@value $kind:ident $value:ident) => { $value.into() };
    (@wrong) => { |_| None };
    (@wrong $wrong:expr) => { $wrong };
}

settings! {
    /// The settings of the connections and the process.
    impl Builder {
        /// Sets the time limit for making a connection. The system's lookup of a host name is part of it. If the lookup takes
        /// longer, the attempt fails, and a later one uses the result. If an address of the name does not reply, the next one
        /// is tried beside it after 100 ms, and the one that accepts is tried first from then on. From 1 ms to 1 h. Defaults
        /// to 2 s.
        ///
        /// # Example
        ///
        /// ```
        /// # use {leasehold::LockManager, std::time::Duration};
        /// let builder = LockManager::single("redis://127.0.0.1/").connect_timeout(Duration::from_secs(5));
        /// ```
        connect_timeout: Time, |of| outside(SHORT, of.connect_timeout);

        /// Sets the time limit for the server's reply to a request. From 1 ms to 1 h. Defaults to 1 s.
        ///
        /// The *pickup window*, which a process has to pick up a lock that Redis handed over to it, is twice this time: at least
        /// 1 s, and at most the waiter's lease. With a lease below 250 ms it is 250 ms.
        ///
        /// # Example
        ///
        /// ```
        /// # use {leasehold::LockManager, std::time::Duration};
        /// let builder = LockManager::single("redis://127.0.0.1/").io_timeout(Duration::from_millis(500));
        /// ```
        io_timeout: Time, |of| outside(SHORT, of.io_timeout);

        /// Sets how long a wait without a deadline goes on while the server cannot be reached. At least 1 ms. Defaults to
        /// 60 s.
        ///
        /// # Example
        ///
        /// ```
        /// # use {leasehold::LockManager, std::time::Duration};
        /// let builder = LockManager::single("redis://127.0.0.1/").outage_limit(Duration::from_secs(300));
        /// ```
        outage_limit: Time, |of| outside((MS..=Duration::MAX, "at least 1 ms"), of.outage_limit);

        /// Sets whether a call that waits retries transient errors from its first request on.
        ///
        /// Without it, the call returns an error of its first request at once, so a loop that locks again spins while the
        /// server restarts. With it, the call blocks until it has its lock or its wait is over, and then returns the last
        /// error. A wait without a deadline is over when the outage has lasted for [`outage_limit`](Builder::outage_limit). A
        /// try is never retried. Defaults to `false`.
        ///
        /// # Example
        ///
        /// ```
        /// # use leasehold::LockManager;
        /// let builder = LockManager::single("redis://127.0.0.1/").wait_through_outages(true);
        /// ```
        wait_through_outages: Bool;

        /// Sets how long the server remembers the last fence of a name after a grant. It matters only if the server's clock
        /// is set back by more than this. While the lock is held, its process renews that memory once in half of this
        /// time, by a request of its own, so that [`inspect`](LockManager::inspect) shows since when it is held. From 1 s to
        /// 366 days; on a [quorum](LockManager::quorum) more than 2 s. Defaults to 10 min.
        ///
        /// # Example
        ///
        /// ```
        /// # use {leasehold::LockManager, std::time::Duration};
        /// let builder = LockManager::single("redis://127.0.0.1/").fence_memory(Duration::from_secs(3600));
        /// ```
        fence_memory: Time, |of| outside((SECOND..=YEAR, "between 1 s and 366 days"), of.fence_memory);

        /// Sets whether guards leave their release to the renewal thread. Then a guard's end never waits for the server.
        ///
        /// The renewal thread sends the release of a mutex within about a millisecond, with others in one request. It sends a
        /// release at once if this process knows that another process waits for the lock.
        ///
        /// [`release`](crate::LockGuard::release) then reports a loss only if this process knows of it, because it does not
        /// wait for the server's reply. A thread of this process that asks for the name again first waits until the release was
        /// sent, so this suits threads that lock many different names in turn. If the release cannot be sent within
        /// [`io_timeout`](Self::io_timeout), a try returns [`Unavailable`](crate::Error::Unavailable), and so does a wait that has
        /// no time left then. However short a wait is, it gives the release 100 ms.
        ///
        /// A [`Leadership`](crate::Leadership) that is dropped does not take its value back first, so observers learn of that
        /// within a second, and not at once.
        ///
        /// A program that ends right after a release must call [`close`](LockManager::close) first, or the lock stays held
        /// until its lease is over. Defaults to `false`.
        ///
        /// # Example
        ///
        /// ```no_run
        /// # use {leasehold::LockManager, std::time::Duration};
        /// let locks = LockManager::single("redis://127.0.0.1/").background_release(true).build()?;
        /// drop(locks.lock("orders:42")?); // returns at once
        /// assert!(locks.close(Duration::from_secs(1)), "the order stays locked until its lease is over");
        /// # Ok::<(), leasehold::Error>(())
        /// ```
        background_release: Bool;

        /// Sets how long a node of a [quorum](LockManager::quorum) has to answer. A node that takes longer is left out, and
        /// asked again in the background after a pause of 50 ms, which grows to 1 s. A connect may take
        /// [`connect_timeout`](Builder::connect_timeout), but no call that reaches a majority waits longer than this for one.
        /// Choose a time far below the lease, and above the slowest answer of a node that is well. From 1 ms to 1 h. Defaults to
        /// 200 ms. No effect on a single server.
        ///
        /// # Example
        ///
        /// ```no_run
        /// # use {leasehold::LockManager, std::time::Duration};
        /// let locks = LockManager::quorum(["redis://one/", "redis://two/", "redis://three/"])
        ///     .node_timeout(Duration::from_millis(50))
        ///     .build()?;
        /// # Ok::<(), leasehold::Error>(())
        /// ```
        node_timeout: Time, |of| outside(SHORT, of.node_timeout);

        /// Sets for how long a node of a [quorum](LockManager::quorum) must have been up before it votes. A node that has
        /// restarted without its data must not grant a lock that somebody still holds. So no lease and no extension may be
        /// longer than this: that is an [`Error::Config`]. At most 24 h. A node waits until it has been up for at least 3 s,
        /// because its fences may be ahead of its clock. Defaults to 60 s, whatever the lease. No effect on a single server.
        ///
        /// **All clients of a quorum need one value.** Each client notes its value at each node that has no note, in the key
        /// `<prefix>leasehold:restart_delay`. If a client finds another value at any node, [`build`](Self::build) returns
        /// [`Error::Config`]. After [`build_lazy`](Self::build_lazy) the first call that asks for a lock does. A
        /// client that runs leaves such a node out. If no majority is left, its calls return [`Error::Config`]. To change the
        /// value:
        ///
        /// 1. Stop all clients.
        /// 2. Wait for the longer of the old and the new value.
        /// 3. Delete the key at each node.
        /// 4. Start the clients with the new value.
        ///
        /// A note expires after ten times its value, or ten minutes for zero, unless a client renews it. **A wrong value can
        /// still do harm** after a majority of the nodes has restarted empty, if a client with that value is the first to
        /// connect. Its note is at the restarted nodes then, and these are a majority. So all other clients get
        /// [`Error::Config`] until an operator stops that client, and deletes the key or waits until the key expires. That
        /// client may also be granted a lock that another client still holds, if its value is shorter and the other nodes are
        /// down, or do not answer in time.
        ///
        /// With zero, a node votes at once, and leases are not limited. A lease may outlive the note. That is safe only if no
        /// node ever loses a write, as with `appendfsync always`, and for tests.
        ///
        /// # Example
        ///
        /// ```no_run
        /// # use {leasehold::LockManager, std::time::Duration};
        /// let locks = LockManager::quorum(["redis://one/", "redis://two/", "redis://three/"])
        ///     .restart_delay(Duration::from_secs(120))
        ///     .build()?;
        /// let long = locks.mutex("payroll").lease(Duration::from_secs(120));
        /// # Ok::<(), leasehold::Error>(())
        /// ```
        restart_delay: Time, |of| outside((Duration::ZERO..=MAX_LEASE, "at most 24 h"), of.restart_delay);

        /// Sets how many replicas must confirm a grant, and each renewal, before it counts. The connection that wrote it
        /// asks them by [`WAIT`], for at most `io_timeout`. At most 1,000. Defaults to 0.
        ///
        /// | too few replicas confirm | result |
        /// | --- | --- |
        /// | the grant by a call's first request | it is released again, and the call fails with [`Error::NotReplicated`] |
        /// | a later grant of a call that waits | it is released again; the call asks again after a pause, in which others may get it |
        /// | a renewal | it counts as failed: the lease ends at its deadline, unless a later renewal succeeds |
        ///
        /// A failover then loses the lock less often, but it still can: it may promote a replica that has not confirmed.
        /// Or it may promote one that lacks a slot, because the slot has just moved to its master. The cost is one more
        /// round trip for each acquire, and for each batch of renewals. The server's own setting `min-replicas-to-write`
        /// also refuses a grant, but before Redis 7 no grant by a script.
        ///
        /// Redisson waits for its replicas by default (`checkLockSyncedSlaves`, for 1 s), so that no lock could be had after a
        /// failover until they were back (its issues 4706 and 4822). leasehold waits for none by default: a lock costs one round
        /// trip, and a failover that loses it is reported to its holder, and seen by whatever checks fences.
        ///
        /// [`WAIT`]: https://redis.io/docs/latest/commands/wait/
        ///
        /// # Example
        ///
        /// ```no_run
        /// # use leasehold::{Error, LockManager};
        /// let locks = LockManager::single("redis://127.0.0.1/").replicas(1).build()?;
        /// if let Err(Error::NotReplicated { wanted, confirmed, .. }) = locks.lock("payout") {
        ///     println!("{confirmed} of {wanted} replicas: better not now");
        /// }
        /// # Ok::<(), leasehold::Error>(())
        /// ```
        replicas: Number, |of| (of.replicas > MAX_REPLICAS).then(|| "more than 1,000".into());

        /// Sets the largest number of connections for calls: to one server, to each node of a quorum, or to each master of a
        /// cluster. A connection opens when a call needs it, and closes when no call has needed it for 15 to 30 s. If all are
        /// in use, a call waits for one: releases go first, and all other calls in the order of their arrival. On one server
        /// that no sentinel names, and on a cluster, up to 32 requests of such calls go out together, unless replicas must
        /// confirm them. From 1 to 1,024.
        /// Defaults to 32.
        ///
        /// # Example
        ///
        /// ```
        /// # use leasehold::LockManager;
        /// let builder = LockManager::single("redis://127.0.0.1/").pool_size(100);
        /// ```
        pool_size: Number, |of| (!(1..=1024).contains(&of.pool_size)).then(|| "not between 1 and 1,024".into());

        /// Sets the user to log in as, in plain text. It overrides the URL's, and behind sentinels it is that of the
        /// sentinels. Defaults to the URL's, or the server's user `default`.
        ///
        /// # Example
        ///
        /// ```no_run
        /// # use leasehold::LockManager;
        /// let builder = LockManager::single("redis://127.0.0.1/").username("orders");
        /// let locks = builder.password(std::env::var("REDIS_PASSWORD")?).build()?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        username: Text;

        /// Sets the number of the database, at least 0. It overrides the URL's. If the server does not have it, connecting
        /// fails with [`Error::Config`]. Defaults to the URL's, or 0.
        ///
        /// # Example
        ///
        /// ```
        /// # use leasehold::LockManager;
        /// let builder = LockManager::single("redis://127.0.0.1/").database(1);
        /// ```
        database: Index, |of| of.database.filter(|number| *number < 0).map(|_| "negative".into());

        /// Sets the text before every name in Redis: with `lock:`, the key of `orders` is `lock:orders`. At most 1,024
        /// bytes. Defaults to none.
        ///
        /// Set one if other programs use the same database. If one of them writes a key `orders` without an expiry, a lock
        /// called `orders` is held for ever.
        ///
        /// # Example
        ///
        /// ```
        /// # use leasehold::LockManager;
        /// let builder = LockManager::single("redis://127.0.0.1/").prefix("lock:");
        /// ```
        prefix: Text, |of| (of.prefix.len() > MAX_PREFIX).then(|| "longer than 1,024 bytes".into());

        /// Sets the text by which a reader of Redis knows this process: each owner has it. At most 128 visible ASCII
        /// characters without `!`. Defaults to `host:pid`.
        ///
        /// # Example
        ///
        /// ```
        /// # use leasehold::LockManager;
        /// let builder = LockManager::single("redis://127.0.0.1/").label("billing-3");
        /// ```
        label: Text, |of| wrong_label(&of.label);

        /// Sets a short text that [`inspect`](LockManager::inspect) shows with the holder, such as the number of a job or a
        /// deploy. Each owner has it, so it costs no request and no key. At most 200 bytes, where a space, `%`, `:`, `!` and
        /// each byte of a character that is not ASCII counts as three. Do not put a secret into it. Defaults to none. A handle
        /// may set its own, such as [`Mutex::note`](crate::Mutex::note).
        ///
        /// # Example
        ///
        /// ```
        /// # use leasehold::LockManager;
        /// let builder = LockManager::single("redis://127.0.0.1/").note("deploy 2026-11-26.3");
        /// ```
        note: Text, |of| owner::wrong_note(&of.note).map(Into::into);
    }

    /// The settings of guards: their leases, fences and limits.
    impl Builder {
        /// Sets how long Redis keeps a lock without a renewal. A crashed holder delays the others by at most this time.
        /// From 10 ms to 24 h. Defaults to 30 s.
        ///
        /// # Example
        ///
        /// ```
        /// # use {leasehold::LockManager, std::time::Duration};
        /// let builder = LockManager::single("redis://127.0.0.1/").lease(Duration::from_secs(10));
        /// ```
        #[doc(alias("expiry", "ttl"))]
        lease: Time in options;

        /// Sets whether leases are renewed for as long as their guards live. Without renewal, a guard is lost when its
        /// lease is over. Until then this process looks at the key about every ten seconds, so a guard reads `Lost` soon
        /// after its key was removed or taken. Defaults to `true`.
        ///
        /// # Example
        ///
        /// ```
        /// # use leasehold::LockManager;
        /// let builder = LockManager::single("redis://127.0.0.1/").renew(false);
        /// ```
        #[doc(alias("extend", "heartbeat", "watchdog"))]
        renew: Bool in options;

        /// Sets whether guards have [fences](crate::Lease::fence). Without them, [`fence`](crate::Lease::fence) returns 0, and
        /// a free mutex is taken by a plain `SET NX PX`, which costs the server less than a script. Choose that only if nothing
        /// behind the lock checks fences: then nothing rejects the late write of a holder that was paused past its lease.
        /// Defaults to `true`.
        ///
        /// Processes with and without fences exclude each other, and may use the same names. A guard with a fence has a
        /// larger one than every earlier guard with a fence, if the server still has the last fence:
        /// [`fence_memory`](Builder::fence_memory) counts from the last guard with a fence. A thread never gets the lease of
        /// another thread of its process in memory if only one of them wants a fence: it asks the server.
        ///
        /// A guard that [`adopt`](LockManager::adopt) makes has a fence if the adopting manager's guards have one. A guard that
        /// [`downgrade`](crate::WriteGuard::downgrade) makes has one if the writer had one. With a
        /// [`poller_gap`](Builder::poller_gap), and on a [quorum](LockManager::quorum), a mutex is always taken by a script.
        ///
        /// # Example
        ///
        /// ```
        /// # use leasehold::LockManager;
        /// let builder = LockManager::single("redis://127.0.0.1/").fencing(false);
        /// ```
        fencing: Bool in options;

        /// Sets how long one guard may be held. After that time its lock is released, and the guard reads `Lost`. If
        /// [`min_hold`](Builder::min_hold) is longer, the lock stays taken until that is over. Not zero. Defaults to `None`, no
        /// limit.
        ///
        /// # Example
        ///
        /// ```
        /// # use {leasehold::LockManager, std::time::Duration};
        /// let builder = LockManager::single("redis://127.0.0.1/").max_hold(Some(Duration::from_secs(600)));
        /// ```
        max_hold: Limit in options;

        /// Sets how long a lock stays taken from the grant of a guard on, even if the guard is released earlier. So a short
        /// job does not run twice on two hosts whose clocks differ.
        ///
        /// A guard that is released early ends at once. But no thread gets the lock before that time, in this process or
        /// another. The release wakes the first waiter, which learns when the lock is free, and asks again then. It holds
        /// also if [`max_hold`](Builder::max_hold) ends the guard earlier, or if the job panics. If the process crashes,
        /// loses the lease, or cannot reach Redis at the release, the lock is free at the end of its lease. For a job that
        /// must not run again after a crash either, set a [`lease`](Builder::lease) of the same length, and
        /// [`renew(false)`](Builder::renew).
        ///
        /// After work that has failed, [`forget_min_hold`](crate::Lease::forget_min_hold) lets another host try it at once.
        ///
        /// It has no effect on [`detach`](crate::LockGuard::detach). A guard that [`adopt`](LockManager::adopt) makes has
        /// the `min_hold` of the adopting manager, counted from the adoption. A guard that
        /// [`downgrade`](crate::WriteGuard::downgrade) makes keeps the time of the writer. At most 24 h. Defaults to zero.
        ///
        /// # Example
        ///
        /// Cron starts this job on several hosts at the same minute, and one of them runs it:
        ///
        /// ```no_run
        /// # fn run() {}
        /// # use {leasehold::LockManager, std::time::Duration};
        /// let builder = LockManager::single("redis://127.0.0.1/").min_hold(Duration::from_secs(50));
        /// let locks = builder.build()?;
        /// if let Some(guard) = locks.try_lock("nightly-report")? {
        ///     run();
        ///     guard.release()?;
        /// }
        /// # Ok::<(), leasehold::Error>(())
        /// ```
        min_hold: Time in options;

        /// Sets how long a guard may be held before one warning is logged, with the lock's name, owner and fence. The
        /// listener receives it as [`EventKind::HeldLong`](crate::EventKind::HeldLong). The guard itself stays as it is. Not zero.
        /// Defaults to `None`, no warning.
        ///
        /// # Example
        ///
        /// ```
        /// # use {leasehold::LockManager, std::time::Duration};
        /// let builder = LockManager::single("redis://127.0.0.1/").warn_after(Some(Duration::from_secs(60)));
        /// ```
        warn_after: Limit, |of| zero(of.warn_after);

        /// Sets how long a call may wait before a warning is logged, with the lock's name, its holder and the number of
        /// places in its queue. The listener receives it as [`EventKind::WaitsLong`](crate::EventKind::WaitsLong). The call
        /// waits on. A call warns once, and for one name there is one warning in this time. For the queue, the call may send
        /// a request that only reads, with the [rights of line 6](Builder#rights-of-a-redis-user). `None` is no warning. Not
        /// zero. Defaults to a minute.
        ///
        /// # Example
        ///
        /// ```
        /// # use {leasehold::LockManager, std::time::Duration};
        /// let builder = LockManager::single("redis://127.0.0.1/").warn_wait_after(Some(Duration::from_secs(30)));
        /// ```
        warn_wait_after: Limit, |of| zero(of.warn_wait_after);
    }

    /// The settings that divide a lock among the threads of this process, other processes, and clients of other kinds.
    impl Builder {
        /// Sets how long this process may hand a lock from thread to thread in memory while another process waits for it.
        /// From 1 ms to 1 h. Defaults to 20 times as long as a hand-over from another process takes, but at least 5 ms and
        /// at most 50 ms.
        ///
        /// Without this setting, the process measures each hand-over to it: the request of the other process, the message,
        /// and the request that picks the lock up. The median of the last eight counts, whatever their names. Before the
        /// first one, the quantum is 10 ms. It is 50 ms if no message reaches the process, which polls then, and with a
        /// [`poller_gap`](Builder::poller_gap). [`Stats::quantum`](crate::Stats::quantum) shows the quantum in use.
        ///
        /// A short quantum shortens the waits of other processes, and takes more requests. In a measurement, a process of
        /// one thread shared a mutex with two processes of ten busy threads. It waited 102 ms for each guard with a quantum
        /// of 50 ms, and 12 ms with 5 ms. All processes together got as many guards.
        ///
        /// # Example
        ///
        /// ```
        /// # use {leasehold::LockManager, std::time::Duration};
        /// let builder = LockManager::single("redis://127.0.0.1/").quantum(Duration::from_millis(20));
        /// ```
        quantum: Time, |of| outside(SHORT, of.quantum?);

        /// Sets how long a contended mutex is left free once in a [`quantum`](Builder::quantum). In this gap a client of
        /// another library can take the mutex: it polls, and does not know of the queue.
        ///
        /// Without this setting, the gap opens by itself: for 20 ms, about every 50 ms, while such a client has held the
        /// mutex in the last minute and this process has seen that. Other names have none.
        ///
        /// The setting applies to [`Mutex`](crate::Mutex) and [`ReentrantMutex`](crate::ReentrantMutex). The other kinds
        /// ignore it, because no other library has locks in their format. A [`MultiLock`](crate::MultiLock) of
        /// several names leaves no gap either when it releases them.
        ///
        /// Without a gap, a polling client gets no turn while threads of this crate want the name all the time. So its first
        /// turn may take long, because nobody knows of it yet. Where that matters, set a gap in all processes that share the
        /// name. Zero leaves no gap at all. If the gap is shorter than the pause between two polls, the client needs several
        /// gaps.
        ///
        /// During a gap the lock reads as held by its last owner, also to a `try_lock` and to a
        /// [`MultiLock`](crate::MultiLock). The queue, fences and exclusion are the same as without a gap.
        ///
        /// # Cost
        ///
        /// Once a quantum, this crate's threads lose the length of the gap. A turn of another client costs more: its
        /// release notifies nobody, so the waiting processes find the free lock by a poll after 50 to 100 ms. An acquire of
        /// a free lock takes a few commands more on the server. In a measurement, two processes of two threads used a
        /// quantum of 50 ms and a gap of 20 ms. A client that polled every 10 ms got about 35 turns a second instead of
        /// none, and this crate's threads got about half of their guards.
        ///
        /// At most the quantum, and at most 500 ms. With a gap that the program sets, a quantum that it does not set is 50 ms.
        ///
        /// # Example
        ///
        /// ```
        /// # use {leasehold::LockManager, std::time::Duration};
        /// let builder = LockManager::single("redis://127.0.0.1/").poller_gap(Duration::from_millis(20));
        /// ```
        poller_gap: Time, wrong_gap;
    }

    // Their setters are written by hand, beside the [`Builder`].
    by hand {
        password: Text;
        password_file: Text, |of| of.logins.as_ref()?.wrong();
    }
}

type Bounds = (RangeInclusive<Duration>, &'static str);

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const YEAR: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// The bounds of a time in which a thread waits for a server or for other threads.
const SHORT: Bounds = (MS..=Duration::from_secs(60 * 60), "between 1 ms and 1 h");
/// The longest time that a mutex is left free for clients that poll. `gap.lua` has the same number.
const LONGEST_GAP: Duration = Duration::from_millis(500);
/// The largest number of replicas. Nobody has as many, so a larger number is a mistake.
const MAX_REPLICAS: u32 = 1000;
/// The longest prefix, in bytes.
const MAX_PREFIX: usize = 1024;

/// Checks the bounds of all settings, and whether the password's file can be read.
///
/// # Errors
///
/// [`Error::Config`] with the name of the first setting that cannot be used.
pub(super) fn check(settings: &Settings) -> Result<()> {
    settings.checked_terms(&settings.options)?;
    let wrong = |it: &Setting| (it.wrong)(settings).map(|why| Error::config(it.name, why));
    SETTINGS.iter().find_map(wrong).map_or(Ok(()), Err)
}

fn outside((bounds, said): Bounds, value: Duration) -> Option<String> {
    (!bounds.contains(&value)).then(|| format!("{value:?} is not {said}"))
}

fn zero(limit: Option<Duration>) -> Option<String> {
    limit.filter(Duration::is_zero).map(|_| "zero".into())
}

fn wrong_gap(of: &Settings) -> Option<String> {
    let longest = LONGEST_GAP.min(of.quantum.unwrap_or(LONGEST_QUANTUM));
    let said = "between 0 and 500 ms, and no longer than the quantum";
    outside((Duration::ZERO..=longest, said), of.poller_gap?)
}

fn wrong_label(label: &str) -> Option<String> {
    if label.len() > MAX_LABEL {
        return Some("longer than 128 bytes".into());
    }
    let is_wrong = !label.chars().all(is_label);
    is_wrong.then(|| format!("only visible ASCII characters other than {MARK:?} are allowed"))
}

impl Value {
    /// Sets the value of a URL. Returns `None` if it cannot be read.
    pub(super) fn set(&self, builder: Builder, text: &str) -> Option<Builder> {
        Some(match self {
            Self::Bool(set) => set(builder, text.parse().ok()?),
            Self::Number(set) => set(builder, text.parse().ok()?),
            Self::Index(set) => set(builder, text.parse::<u32>().ok()?.into()),
            Self::Text(set) => set(builder, text.to_owned()),
            Self::Time(set) => set(builder, time(text)?),
            Self::Limit(set) => set(builder, Some(time(text)?)),
        })
    }

    /// Returns what a value is, in words.
    pub(super) const fn what(&self) -> &'static str {
        match self {
            Self::Bool(_) => "true or false",
            Self::Number(_) | Self::Index(_) => "a number",
            Self::Text(_) => "a text",
            Self::Time(_) | Self::Limit(_) => A_TIME,
        }
    }
}

const A_TIME: &str = "a time such as 250ms, 10s, 5m or 1h30m";

/// Reads a time as the parameters of a URL have it, and the options of the command line: a whole number and `ms`, `s`, `m`,
/// `h` or `d`, such as `250ms` or `1d`. Several of them add up: `1h30m`.
///
/// # Errors
///
/// [`Error::Config`] with the option `time`.
///
/// # Example
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(leasehold::parse_time("1m30s")?, Duration::from_secs(90));
/// assert!(leasehold::parse_time("90").is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn parse_time(text: &str) -> Result<Duration> {
    time(text).ok_or_else(|| Error::config("time", format!("not {A_TIME}")))
}

fn time(text: &str) -> Option<Duration> {
    let (mut ms, mut rest) = (0_u64, text);
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, behind) = rest.split_at(digits);
        let letters = behind.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, behind) = behind.split_at(letters);
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        ms = ms.checked_add(number.parse::<u64>().ok()?.checked_mul(unit_ms)?)?;
        if behind.is_empty() {
            return Some(Duration::from_millis(ms));
        }
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_in_bounds() {
        check(&Settings::default()).expect("the defaults");
    }

    #[test]
    fn what_is_out_of_bounds_is_named() {
        let settings = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            check(&settings).expect_err("out of bounds").to_string()
        };
        for (text, named) in [
            (settings(|s| s.options.lease = Duration::ZERO), "lease"),
            (
                settings(|s| s.options.lease = Duration::from_millis(9)),
                "lease",
            ),
            (settings(|s| s.options.lease = Duration::MAX), "lease"),
            (
                settings(|s| s.options.max_hold = Some(Duration::ZERO)),
                "max_hold",
            ),
            (
                settings(|s| s.options.min_hold = MAX_LEASE + Duration::from_nanos(1)),
                "min_hold",
            ),
            (settings(|s| s.quantum = Some(Duration::ZERO)), "quantum"),
            (
                settings(|s| s.poller_gap = Some(LONGEST_QUANTUM * 2)),
                "poller_gap",
            ),
            (settings(|s| s.io_timeout = Duration::ZERO), "io_timeout"),
            (
                settings(|s| s.connect_timeout = Duration::MAX),
                "connect_timeout",
            ),
            (
                settings(|s| s.outage_limit = Duration::ZERO),
                "outage_limit",
            ),
            (
                settings(|s| s.fence_memory = Duration::ZERO),
                "fence_memory",
            ),
            (
                settings(|s| s.warn_after = Some(Duration::ZERO)),
                "warn_after",
            ),
            (
                settings(|s| s.warn_wait_after = Some(Duration::ZERO)),
                "warn_wait_after",
            ),
            (settings(|s| s.pool_size = 0), "pool_size"),
            (settings(|s| s.replicas = 1001), "replicas"),
            (settings(|s| s.database = Some(-1)), "database"),
            (settings(|s| s.label = "a b".into()), "label"),
            (settings(|s| s.label = "a!".into()), "label"),
            (settings(|s| s.label = "é".into()), "label"),
            (settings(|s| s.prefix = "p".repeat(2000)), "prefix"),
        ] {
            assert!(text.starts_with(&format!("invalid `{named}`: ")), "{text}");
        }
    }

    #[test]
    fn a_time_is_whole_numbers_and_their_units() {
        for (text, expected) in [
            ("0ms", Some(Duration::ZERO)),
            ("250ms", Some(Duration::from_millis(250))),
            ("10s", Some(Duration::from_secs(10))),
            ("5m", Some(Duration::from_secs(300))),
            ("1h", Some(Duration::from_secs(3_600))),
            ("2d", Some(Duration::from_secs(172_800))),
            ("1h30m", Some(Duration::from_secs(5_400))),
            ("1s1s", Some(Duration::from_secs(2))),
            ("1h30", None),
            ("1h m", None),
            ("1us", None),
            ("213503982334d23d", None),
            ("", None),
            ("10", None),
            ("s", None),
            ("-1s", None),
            ("+1s", None),
            ("1.5s", None),
            ("1 s", None),
            ("1S", None),
            ("18446744073709551615h", None),
            ("99999999999999999999ms", None),
        ] {
            assert_eq!(time(text), expected, "{text:?}");
        }
    }
}
