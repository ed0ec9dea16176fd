//! The settings that divide a lock among the threads of this process, other processes, and clients of other kinds.

use std::time::Duration;

use crate::builder::settings::Builder;
#[cfg(doc)]
use crate::manager::LockManager;

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
    pub fn quantum(mut self, quantum: Duration) -> Self {
        self.settings.quantum = Some(quantum);
        self
    }

    /// Sets how long a mutex stays with this process after its last guard. Until then, the next lock of that name by any
    /// thread of this process takes about a microsecond, and sends nothing. This suits a process that locks the same names
    /// again and again while other processes seldom want them.
    ///
    /// The time counts from the first moment without a guard. Locking again does not prolong it. At its end, or at the end
    /// of the guard that is held then, the mutex is released. The next lock asks the server again.
    ///
    /// Another process that waits for the mutex recalls it by a message, and gets it at once, or when the present guard
    /// ends. Other clients notice the difference:
    ///
    /// | client | while the mutex lingers |
    /// | --- | --- |
    /// | another process that waits ([`lock`](crate::Mutex::lock), [`try_lock_for`](crate::Mutex::try_lock_for)) | gets the mutex at once; if the message is lost, within a second; if its user may not publish, at the next renewal, after a third of the lease |
    /// | another process that tries ([`try_lock`](crate::Mutex::try_lock)) | finds the mutex held: a try recalls nothing |
    /// | a client of another library, which polls | finds the mutex held until this time is over; then it must ask before this process locks again, as without `linger` |
    /// | another process, after this process has died | waits until the end of the lease, which may be longer than this time |
    ///
    /// [`LockManager::close`] releases all mutexes that linger. So call it before the process ends. Dropping the last
    /// handle does not release them: the manager lives on in its threads until the time is over.
    ///
    /// # When a mutex lingers
    ///
    /// A mutex lingers only if all of these are true:
    ///
    /// * Its lease is [renewed](Builder::renew), on time, and has a fence left. A lease has one for each microsecond of the
    ///   [`quantum`](Builder::quantum).
    /// * No other process waits for it, or has just handed it over.
    /// * The subscription for messages is confirmed. It begins with the first lock that may linger. If it ends, mutexes
    ///   that linger are released.
    /// * No [`min_hold`](Builder::min_hold) runs. The lease was not [adopted](LockManager::adopt).
    ///
    /// The next lock gets the lease only if its handle has the same `lease`, `renew`, [`fencing`](Builder::fencing),
    /// [`max_hold`](Builder::max_hold) and `linger`. Otherwise one request releases the lease, and asks the server for
    /// another. If this process wants the name as another kind of lock, it releases the lease first. A fence rises with each
    /// guard as always. If the server loses its data, and this process does not know that yet, its next fence may be smaller
    /// than that of another process: see [the exceptions](crate#what-it-promises).
    ///
    /// The setting applies to [`Mutex`](crate::Mutex), to the outermost guard of a
    /// [`ReentrantMutex`](crate::ReentrantMutex), and to a [`MultiLock`](crate::MultiLock) of one name. The other kinds
    /// ignore it. It works on one server, behind sentinels and on a cluster. On a [quorum](LockManager::quorum) it is
    /// [`Error::Config`](crate::Error::Config).
    ///
    /// A lease that is lost while it lingers has no guard to tell. The log, the [listener](Builder::listener) and
    /// [`Stats`](crate::Stats) report the loss. [`Stats::lingering`](crate::Stats::lingering) is the number of mutexes that
    /// linger.
    ///
    /// At most 24 h. Defaults to zero: each mutex is released with its last guard.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use {leasehold::LockManager, std::time::Duration};
    /// # let rows: [u64; 0] = [];
    /// let builder = LockManager::single("redis://127.0.0.1/").linger(Duration::from_secs(1));
    /// let locks = builder.build()?;
    /// for row in rows {
    ///     // Only the first of these asks the server, unless another process wants the lock.
    ///     let guard = locks.lock("import")?;
    ///     // … import the row …
    ///     guard.release()?;
    /// }
    /// locks.close(Duration::from_secs(1));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn linger(mut self, length: Duration) -> Self {
        self.settings.options.linger = length;
        self
    }

    /// Sets how long a contended mutex is left free once in a [`quantum`](Builder::quantum). In this gap a client of
    /// another library can take the mutex: it polls, and does not know of the queue.
    ///
    /// The setting applies to [`Mutex`](crate::Mutex) and [`ReentrantMutex`](crate::ReentrantMutex). The other kinds
    /// ignore it, because no other library has locks in their format. A [`MultiLock`](crate::MultiLock) of
    /// several names leaves no gap either when it releases them.
    ///
    /// Without a gap, a polling client gets no turn while threads of this crate want the name all the time. Set a gap
    /// in all processes that share the name while services move over. If the gap is shorter than the pause between two
    /// polls, the client needs several gaps.
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
    /// At most the quantum, and at most 500 ms. Defaults to zero, which leaves no gap. With a gap, a quantum that the
    /// program does not set is 50 ms.
    ///
    /// # Example
    ///
    /// ```
    /// # use {leasehold::LockManager, std::time::Duration};
    /// let builder = LockManager::single("redis://127.0.0.1/").poller_gap(Duration::from_millis(20));
    /// ```
    pub fn poller_gap(mut self, gap: Duration) -> Self {
        self.settings.poller_gap = gap;
        self
    }
}
