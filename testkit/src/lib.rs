#![doc = include_str!("../README.md")]

mod clock;
#[doc(hidden)]
pub mod memory;
mod network;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use leasehold::seam::{self, MovedByTest, TestMachine, TestNetwork, Time};
use leasehold::{Builder, LockInfo, LockManager, Reply};
use uuid::Uuid;

use clock::{PATIENCE, TestClock};
use memory::Resp;
use network::{MemoryNetwork, MemoryNode, ProcessNetwork};

/// The shortest step of the time that passes, so that it goes on.
const SHORTEST_STEP: Duration = Duration::from_millis(1);
/// The years by which a test may move the time, in all. Fences are microseconds, and end in the year 2255.
const MOST_YEARS: u64 = 100;
const MOST_TIME: Duration = Duration::from_secs(MOST_YEARS * 365 * 24 * 60 * 60);
/// The lease of a manager that acquires nothing: a lease may be no longer than the restart delay.
const SHORTEST_LEASE: Duration = Duration::from_millis(10);
/// The key of the note about the restart delay, for managers without a prefix.
const NOTE: &str = "leasehold:restart_delay";
/// The longest time for which another program holds a lock: longer than a test can wait for its end.
const LONGEST_HOLD: Duration = MOST_TIME.saturating_mul(2);

/// A Redis in memory, or several of them. Clones are the same servers.
///
/// Each manager of [`manager`](Self::manager) and [`builder`](Self::builder) stands for another process. The servers end
/// with the last clone and the last manager.
#[derive(Clone)]
pub struct Redis {
    clock: Arc<TestClock>,
    network: Arc<MemoryNetwork>,
}

impl Redis {
    /// Makes a server. It has no port, no socket and no thread: the bytes of its managers reach it in memory.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each call makes another server")]
    pub fn new() -> Self {
        Self::quorum(1)
    }

    /// Makes the `n` nodes of a quorum. All of them vote at once, although they have just started: the
    /// [`restart_delay`](Builder::restart_delay) is zero.
    ///
    /// # Panics
    ///
    /// Panics if `n` is zero.
    #[must_use]
    pub fn quorum(n: usize) -> Self {
        assert!(n > 0, "a quorum needs at least one node");
        let clock = Arc::new(TestClock::default());
        let network = Arc::new(MemoryNetwork::new(n, &clock));
        Self { clock, network }
    }

    /// Returns a new manager, which stands for another process. Its settings are those of [`builder`](Self::builder).
    ///
    /// # Panics
    ///
    /// Panics if the system refuses what a manager needs, or if the link is [cut](Self::cut).
    #[must_use]
    pub fn manager(&self) -> LockManager {
        self.builder().build().expect("the Redis in memory answers")
    }

    /// Returns a builder, for a manager with other settings. Its settings are the default ones, with two exceptions. The time
    /// limits of connecting, of requests and of nodes are 5 to 10 s, because the machine of a test may be busy. The
    /// [`restart_delay`](Builder::restart_delay) is zero.
    pub fn builder(&self) -> Builder {
        LockManager::quorum(self.network.urls())
            .connect_timeout(Duration::from_secs(10))
            .io_timeout(Duration::from_secs(10))
            .node_timeout(Duration::from_secs(5))
            .restart_delay(Duration::ZERO)
            .on(Arc::new(self.clone()))
    }

    /// Moves the time of the servers and of their managers forward at once, as a machine sees it that was suspended for
    /// `time`. No lease is renewed meanwhile. So each lease that has less time left ends, and its guard reads
    /// [`Lost`](leasehold::LeaseState::Lost) when this returns. A thread that sleeps in a call until a time in between wakes.
    ///
    /// Requests do not see the time move: a request that is under way ends first, and later ones begin afterwards. The
    /// program's own clocks and sleeps, such as [`Instant`] and [`std::thread::sleep`], do not change.
    ///
    /// # Panics
    ///
    /// Panics if a request has not ended within 30 s, or if the managers have not done within 30 s what is due. Panics at
    /// once if the time would have moved by more than 100 years in all: fences are microseconds, and end in the year 2255.
    pub fn advance(&self, time: Duration) {
        self.check_move(time);
        self.move_clock(|| time);
        self.settle();
    }

    /// Lets `time` pass for the servers and their managers. Leases are renewed meanwhile.
    ///
    /// The time jumps to what is due next: a renewal, the end of a lease, a release. What is due is done before the next
    /// jump. While a thread waits for a lock, no jump is longer than a second, or a tenth of its manager's lease, so that the
    /// thread keeps its place. Other threads of the program go on by themselves, and may see few of the jumps. So a lease
    /// that such a thread gains meanwhile may end before the thread goes on.
    ///
    /// A thousand jumps take about a tenth of a second. So a day takes a moment if nothing is held, a second with a lease
    /// of 30 s, which is renewed every ten seconds, and 20 s with a lease of a second.
    ///
    /// # Panics
    ///
    /// As [`advance`](Self::advance).
    pub fn pass(&self, time: Duration) {
        self.check_move(time);
        let clock = &self.clock;
        let end = clock.added() + time;
        loop {
            let left = end.saturating_sub(clock.added());
            if left.is_zero() {
                return;
            }
            self.move_clock(|| match clock.until_due() {
                Some(due) => due.max(SHORTEST_STEP).min(left),
                None => left,
            });
            self.settle();
        }
    }

    /// Kills the process of a manager, as `kill -9` does: its connections end, and it reaches no server any more. So its locks
    /// stay held until their leases end, and other processes find out by themselves that it waits no more. Clones of the
    /// manager are the same process.
    ///
    /// The program that runs the test lives on, and so do the threads and guards of that process. A call that waits returns
    /// [`Closed`](leasehold::Error::Closed), as each later call does. Guards read [`AtRisk`](leasehold::LeaseState::AtRisk) and
    /// then [`Lost`](leasehold::LeaseState::Lost) as time passes, and their drop changes nothing.
    ///
    /// # Panics
    ///
    /// Panics if the manager is one of a real server, and as [`advance`](Self::advance).
    pub fn kill(&self, manager: &LockManager) {
        let is_dead = seam::kill(manager);
        assert!(is_dead, "the manager is one of a real server");
        // Whether its releases could be sent does not matter: none can.
        let _ = manager.close(Duration::ZERO);
        self.settle();
    }

    /// Takes a lock of any kind from its holders, as an operator does who deletes its key. Does nothing if there is no such
    /// lock. `name` includes the [`prefix`](Builder::prefix), and the lock is in the database 0. The guards that are renewed
    /// read [`Lost`](leasehold::LeaseState::Lost) when this returns.
    ///
    /// # Panics
    ///
    /// As [`advance`](Self::advance).
    pub fn lose(&self, name: &str) {
        self.command(["DEL", name]);
        self.renew_all();
    }

    /// Has another program hold the mutex `name` for this time, whoever held it before. `name` includes the
    /// [`prefix`](Builder::prefix), and the lock is in the database 0. The guards that are renewed read
    /// [`Lost`](leasehold::LeaseState::Lost) when this returns.
    ///
    /// # Panics
    ///
    /// As [`advance`](Self::advance).
    pub fn hold_by_other(&self, name: &str, time: Duration) {
        // An owner as another process would have it, with the label `other`.
        let other = format!("lh1:{}:other", Uuid::new_v4());
        let ms = time.min(LONGEST_HOLD).as_nanos().div_ceil(1_000_000);
        let ms = ms.max(1).to_string();
        self.command(["SET", name, &other, "PX", &ms]);
        self.renew_all();
    }

    /// Executes a command at this moment, as a client of another program does, and returns the reply. The data is that of the
    /// database 0. A quorum executes the command on each node, and this returns the reply of the first.
    ///
    /// No manager is told. So after `["DEL", name]` a guard reads `Held` until its next renewal, and only the server can refuse
    /// its [`commit`](leasehold::LockGuard::commit).
    ///
    /// # Panics
    ///
    /// Panics with the error of the server if it rejects the command, and for a command of a connection, such as `SUBSCRIBE`.
    ///
    /// # Example
    ///
    /// ```
    /// use leasehold::Reply;
    ///
    /// let redis = leasehold_testing::Redis::new();
    /// redis.command(["SET", "stock:42", "7"]);
    /// assert_eq!(redis.command(["GET", "stock:42"]), Reply::Bytes(b"7".to_vec()));
    /// ```
    pub fn command(&self, words: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Reply {
        self.on_all_nodes(words).swap_remove(0)
    }

    /// Executes a command on each node, and returns the replies.
    fn on_all_nodes(&self, words: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<Reply> {
        let words = words.into_iter().map(|word| word.as_ref().to_vec());
        let words: Vec<_> = words.collect();
        let of_node = |node: &Arc<MemoryNode>| node.execute(&words).map(reply);
        let replies = self.network.nodes.iter().map(of_node);
        let replies = replies.collect::<Option<_>>();
        replies.expect("the command has one reply, and at once")
    }

    /// Ends all connections, and refuses new ones until [`restore`](Self::restore). So no manager reaches a server, and a
    /// guard reads [`AtRisk`](leasehold::LeaseState::AtRisk) and then [`Lost`](leasehold::LeaseState::Lost) as its time passes.
    pub fn cut(&self) {
        self.network.nodes.iter().for_each(|node| node.cut());
    }

    /// Ends a [cut](Self::cut). The managers find out by themselves: on a quorum within 10 s, so a call before that may
    /// fail. [`pass`](Self::pass) advances the time by these seconds.
    pub fn restore(&self) {
        self.network.nodes.iter().for_each(|node| node.restore());
    }

    /// Restarts the servers without their data. The guards that are renewed read [`Lost`](leasehold::LeaseState::Lost) when this
    /// returns.
    ///
    /// # Panics
    ///
    /// As [`advance`](Self::advance), and if there is no memory.
    pub fn restart_empty(&self) {
        for node in &self.network.nodes {
            node.restart_empty();
        }
        self.renew_all();
    }

    /// Returns the locks that are held or waited for, in the order of their names. Names include the
    /// [`prefix`](Builder::prefix), and the locks are in the database 0. A [background
    /// release](Builder::background_release) shows after [`close`](LockManager::close), or after `pass` of 10 ms.
    ///
    /// # Panics
    ///
    /// As [`manager`](Self::manager).
    #[must_use]
    pub fn locks(&self) -> Vec<LockInfo> {
        // On a quorum, all managers note one restart delay. This manager uses the value of the note. If there was no note, it deletes its own.
        let noted = self.noted_restart_delay();
        let delay = noted.unwrap_or(Duration::ZERO);
        let builder = self.builder().restart_delay(delay).lease(SHORTEST_LEASE);
        let manager = builder.build_lazy();
        let locks = manager.and_then(|manager| manager.list("*").collect::<Result<Vec<_>, _>>());
        if noted.is_none() {
            self.command(["DEL", NOTE]);
        }
        let mut locks = locks.expect("the Redis in memory answers");
        locks.sort_by(|one, other| one.name.cmp(&other.name));
        locks
    }

    /// Returns the restart delay that managers without a prefix have noted, if there is one.
    fn noted_restart_delay(&self) -> Option<Duration> {
        let replies = self.on_all_nodes(["GET", NOTE]).into_iter();
        let mut noted = replies.filter_map(|reply| match reply {
            Reply::Bytes(text) => String::from_utf8(text).ok()?.parse().ok(),
            _ => None,
        });
        noted.next().map(Duration::from_millis)
    }

    fn check_move(&self, time: Duration) {
        let moved = self.clock.added();
        assert!(
            time <= MOST_TIME.saturating_sub(moved),
            "the time of a Redis in memory moves by at most {MOST_YEARS} years in all: it has moved by {moved:?}, and \
             should move by {time:?}"
        );
    }

    fn move_clock(&self, length: impl FnOnce() -> Duration) {
        self.clock.advance(length);
        self.network.notify();
    }

    /// Makes the managers look after their locks.
    fn renew_all(&self) {
        self.clock.renew_all();
        self.settle();
    }

    /// Blocks until the managers have done what is due.
    fn settle(&self) {
        let begun = Instant::now();
        while let Some(busy) = self.clock.busy_part() {
            let waited = begun.elapsed();
            assert!(waited < PATIENCE, "not done within {waited:.0?}: {busy}");
            std::thread::yield_now();
        }
    }
}

/// Returns an answer as a commit has it.
fn reply(answer: Resp) -> Reply {
    match answer {
        Resp::Status(text) if text == "OK" => Reply::Ok,
        Resp::Status(text) => Reply::Bytes(text.into_bytes()),
        Resp::Error(error) => panic!("the Redis in memory refused: {error}"),
        Resp::Int(number) => Reply::Integer(number),
        Resp::Bulk(bytes) => Reply::Bytes(bytes),
        Resp::Nil | Resp::NilArray => Reply::Nil,
        Resp::Array(parts) => Reply::Array(parts.into_iter().map(reply).collect()),
    }
}

/// Makes the machine of each manager.
#[doc(hidden)]
impl TestMachine for Redis {
    fn new_process(&self) -> Option<Arc<dyn TestMachine>> {
        Some(Arc::new(Process {
            clock: Arc::clone(&self.clock),
            network: Arc::new(ProcessNetwork::new(&self.network)),
        }))
    }
}

/// The machine of a manager, which keeps the servers.
struct Process {
    clock: Arc<TestClock>,
    network: Arc<ProcessNetwork>,
}

impl TestMachine for Process {
    fn now(&self) -> Time {
        self.clock.now()
    }

    fn wall_us(&self) -> u64 {
        self.clock.wall_us()
    }

    fn call_begins(&self) {
        self.clock.call_begins();
    }

    fn call_ends(&self) {
        self.clock.call_ends();
    }

    fn register(&self, engine: Weak<dyn MovedByTest>) {
        self.clock.register(engine);
    }

    fn kill(&self) -> bool {
        self.network.kill();
        true
    }

    fn network(&self) -> Option<Arc<dyn TestNetwork>> {
        Some(Arc::clone(&self.network) as _)
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").finish_non_exhaustive()
    }
}
