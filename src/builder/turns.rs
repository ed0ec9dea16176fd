//! The settings that divide a lock among the threads of this process, other processes, and clients of other kinds.

use std::time::Duration;

use crate::builder::settings::Builder;

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
