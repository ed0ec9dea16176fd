#![doc = include_str!("../docs/testing.md")]

mod memory;
mod node;

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::admin::LockInfo;
use crate::builder::Builder;
use crate::manager::LockManager;
use crate::owner;
use crate::random::{Rng, SystemRng};
use crate::sync::{Arc, Ordering, TEST_KITS, thread};
use crate::test_clock::TestClock;

use node::ServedNode;

/// For how long the kit waits for the managers to do what is due.
const PATIENCE: Duration = Duration::from_secs(10);

/// A Redis in memory, or several of them. Clones are the same servers.
///
/// Each manager of [`manager`](Self::manager) and [`builder`](Self::builder) stands for another process. The servers end
/// with the last clone, and then their managers find none.
#[derive(Clone)]
pub struct Redis {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<TestClock>,
    /// Has the sockets of the nodes.
    directory: PathBuf,
    nodes: Vec<ServedNode>,
}

impl Redis {
    /// Starts a server. No port is opened: managers reach it by a Unix socket in the directory for temporary files.
    ///
    /// # Panics
    ///
    /// Panics if the system refuses a thread, a directory or a socket.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it starts a thread")]
    pub fn new() -> Self {
        Self::quorum(1)
    }

    /// Starts the `n` nodes of a quorum. All of them vote at once, although they have just started: the
    /// [`restart_delay`](Builder::restart_delay) is zero.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new), and if `n` is zero.
    #[must_use]
    pub fn quorum(n: usize) -> Self {
        assert!(n > 0, "a quorum needs at least one node");
        let id = SystemRng::new().uuid();
        let directory = std::env::temp_dir().join(format!("leasehold-{}", id.simple()));
        fs::create_dir(&directory).expect("a directory for the sockets of the test kit");
        let clock = Arc::new(TestClock::default());
        let node = |number| {
            let path = directory.join(format!("{number}"));
            ServedNode::start(path, Arc::clone(&clock))
                .expect("a socket and a thread for the test kit")
        };
        let nodes = (0..n).map(node).collect();
        TEST_KITS.fetch_add(1, Ordering::Relaxed);
        Self {
            shared: Arc::new(Shared {
                clock,
                directory,
                nodes,
            }),
        }
    }

    /// Returns a new manager with the default settings, which stands for another process.
    ///
    /// # Panics
    ///
    /// Panics if the system refuses what a manager needs, or if the link is [cut](Self::cut).
    #[must_use]
    pub fn manager(&self) -> LockManager {
        self.builder().build().expect("the Redis in memory answers")
    }

    /// Returns a builder, for a manager with other settings. The time limits of connecting and of requests are long,
    /// because the machine of a test may be busy.
    pub fn builder(&self) -> Builder {
        let urls = self.shared.nodes.iter().map(ServedNode::url);
        let mut builder = LockManager::quorum(urls)
            .connect_timeout(Duration::from_secs(10))
            .io_timeout(Duration::from_secs(10))
            .node_timeout(Duration::from_secs(5))
            .restart_delay(Duration::ZERO);
        builder.on_test_clock(Arc::clone(&self.shared.clock));
        builder
    }

    /// Moves the time of the servers and of their managers forward at once, as a machine sees it that was suspended for
    /// `time`. No lease is renewed meanwhile, so each lease that is shorter ends: its guard reads
    /// [`Lost`](crate::LeaseState::Lost) when this returns. A thread that sleeps until a time in between wakes.
    pub fn advance(&self, time: Duration) {
        self.shared.clock.advance(time);
        self.settle();
    }

    /// Lets `time` pass for the servers and their managers. Leases are renewed meanwhile, and an hour takes less than a
    /// second.
    ///
    /// The time goes on in steps of a tenth of the shortest lease, and the renewals that are due at each step are answered
    /// before the next one. Threads of the program go on by themselves, and may see few of the steps.
    pub fn pass(&self, time: Duration) {
        let clock = &self.shared.clock;
        let end = clock.added.get() + time;
        loop {
            let left = end.saturating_sub(clock.added.get());
            if left.is_zero() {
                return;
            }
            let engines = clock.engines();
            let shortest = engines.iter().filter_map(|engine| engine.shortest_lease());
            let step = shortest.min().map_or(left, |lease| lease / 10);
            clock.advance(step.clamp(Duration::from_millis(1), left.max(Duration::from_millis(1))));
            self.settle();
        }
    }

    /// Takes a lock of any kind from its holders, as an operator does who deletes its key. `name` includes the
    /// [`prefix`](Builder::prefix). The guards that are renewed read [`Lost`](crate::LeaseState::Lost) when this returns.
    pub fn lose(&self, name: &str) {
        self.on_all_nodes(&[&["DEL", name]]);
    }

    /// Has another program hold the mutex `name` for this time, whoever held it before. `name` includes the
    /// [`prefix`](Builder::prefix).
    pub fn hold_by_other(&self, name: &str, time: Duration) {
        let other = owner::generate(&SystemRng::new(), "other");
        let ms = crate::clock::ms_rounded_up(time).max(1).to_string();
        self.on_all_nodes(&[&["DEL", name], &["SET", name, &other, "PX", &ms]]);
    }

    /// Ends all connections, and refuses new ones until [`restore`](Self::restore). So no manager reaches a server.
    pub fn cut(&self) {
        self.shared.nodes.iter().for_each(ServedNode::cut);
        self.shared.clock.disturb();
    }

    /// Ends a [cut](Self::cut).
    pub fn restore(&self) {
        self.shared.nodes.iter().for_each(ServedNode::restore);
        self.shared.clock.disturb();
    }

    /// Restarts the servers without their data.
    ///
    /// # Panics
    ///
    /// Panics if there is no memory.
    pub fn restart_empty(&self) {
        self.shared.nodes.iter().for_each(ServedNode::restart_empty);
        self.shared.clock.disturb();
        self.settle();
    }

    /// Returns the locks that are held or waited for, in the order of their names.
    ///
    /// # Panics
    ///
    /// As [`manager`](Self::manager).
    #[must_use]
    pub fn locks(&self) -> Vec<LockInfo> {
        let locks = self.manager().list("*").collect::<Result<Vec<_>, _>>();
        let mut locks = locks.expect("the Redis in memory answers");
        locks.sort_by(|one, other| one.name.cmp(&other.name));
        locks
    }

    /// Executes commands on each node, and has the managers look after their locks.
    fn on_all_nodes(&self, commands: &[&[&str]]) {
        for node in &self.shared.nodes {
            node.execute(commands);
        }
        self.shared.clock.disturb();
        self.settle();
    }

    /// Blocks until the managers have done what is due.
    fn settle(&self) {
        let (engines, begun) = (self.shared.clock.engines(), Instant::now());
        while engines.iter().any(|engine| !engine.is_at_rest()) && begun.elapsed() < PATIENCE {
            thread::yield_now();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        TEST_KITS.fetch_sub(1, Ordering::Relaxed);
        self.nodes.clear();
        fs::remove_dir_all(&self.directory).ok();
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").finish_non_exhaustive()
    }
}
