//! The world as one process sees it.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use leasehold::testing::simulation::{TestScheduler, TestStream, World as Seen};

use crate::echo::Echo;
use crate::network::{ProcessEnd, server_at};
use crate::world::{Place, World};

thread_local! {
    /// Whether this thread is that of a forked child.
    static IS_CHILD: Cell<bool> = const { Cell::new(false) };
}

/// Has the calling thread be that of a forked child, until this is dropped.
pub(crate) struct Child(());

impl Child {
    pub(crate) fn begin() -> Self {
        IS_CHILD.set(true);
        Self(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        IS_CHILD.set(false);
    }
}

pub(crate) struct ProcessWorld {
    pub(crate) world: Arc<World>,
    pub(crate) process: usize,
}

impl Seen for ProcessWorld {
    fn scheduler(&self) -> &dyn TestScheduler {
        self
    }

    fn now(&self) -> Duration {
        self.world.step();
        let state = self.world.state();
        state.processes[self.process].clock.read(state.now)
    }

    fn since_1970(&self) -> Duration {
        let state = self.world.state();
        state.processes[self.process].began_at + state.now
    }

    fn connect(&self, address: &str, limit: Duration) -> io::Result<Box<dyn TestStream>> {
        let server = server_at(address).ok_or(io::ErrorKind::NotFound)?;
        let end = ProcessEnd::connect(&self.world, self.process, server, limit)?;
        Ok(Box::new(end))
    }

    fn echo(&self) -> Box<dyn TestStream> {
        Box::new(Echo::new(&self.world))
    }

    fn wait_for_input(&self, streams: &[&dyn TestStream], limit: Duration) {
        let numbers = streams.iter().map(|stream| stream.number()).collect();
        self.world.wait(Place::Streams(numbers), Some(limit));
    }
}

impl TestScheduler for ProcessWorld {
    fn step(&self) {
        self.world.step();
    }

    fn wait(&self, place: usize, limit: Option<Duration>) {
        self.world.wait(Place::Address(place), limit);
    }

    fn wake(&self, place: usize, all: bool) {
        self.world.wake(place, all);
    }

    fn thread_planned(&self) -> u64 {
        self.world.thread_planned(self.process)
    }

    fn thread_begins(&self, number: u64) {
        self.world.thread_begins(number);
    }

    fn thread_ends(&self, number: u64) {
        self.world.thread_ends(number);
    }

    fn random(&self) -> u64 {
        self.world.state().random.bits()
    }

    fn is_in_child(&self) -> bool {
        IS_CHILD.get()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use leasehold::LockManager;
    use leasehold::testing::simulation::{Process, sleep};

    use super::*;
    use crate::clock::Clock;
    use crate::network::Network;
    use crate::random::Random;
    use crate::replication::Links;
    use crate::trace::Trace;
    use crate::world::{ProcessState, locked};

    const SINCE_1970: Duration = Duration::from_secs(1_795_514_000);

    type Program = fn(&World, &LockManager, &Mutex<Vec<u64>>);

    /// Runs a program in each process, with one server. Returns the fences that the programs note.
    fn fences_of(programs: &[Program]) -> Vec<u64> {
        let process = |_| ProcessState::new(Clock::new(Duration::from_secs(1), 0), SINCE_1970);
        let links = Links::new(Links::pick_delay(&mut Random::new(1, 1), false));
        let world = Arc::new(World::new(
            Random::new(1, 1),
            Trace::new(false),
            programs.iter().map(process).collect(),
            Network::new(vec![Clock::new(SINCE_1970, 0)], links, None),
        ));
        let fences = Arc::new(Mutex::new(Vec::new()));
        for (number, program) in programs.iter().copied().enumerate() {
            let seen = ProcessWorld {
                world: Arc::clone(&world),
                process: number,
            };
            let process = Process::new(Arc::new(seen));
            let builder = LockManager::single("unix:///0");
            let builder = builder.linger(Duration::from_secs(5));
            let builder = process.builder(builder.lease(Duration::from_secs(10)));
            let (world, fences) = (Arc::clone(&world), Arc::clone(&fences));
            let run = move || {
                let locks = builder.build_unchecked().expect("the settings are good");
                program(&world, &locks, &fences);
                assert!(locks.close(Duration::from_secs(60)));
            };
            process
                .spawn("main", run)
                .expect("the system starts a thread");
        }
        assert_eq!(world.run().failure, None);
        let fences = locked(&fences);
        fences.clone()
    }

    fn lock(locks: &LockManager) -> u64 {
        let guard = locks.lock("a").expect("the server answers");
        guard.fence()
    }

    /// The exception of the front page of the library. The process cannot know more: its connections are dead, so nothing
    /// tells it of the loss before a renewal is late.
    #[test]
    fn a_mutex_that_lingers_keeps_its_fences_until_the_process_knows_of_a_loss_of_data() {
        let fences = fences_of(&[
            |world, locks, fences| {
                while locks.stats().lingering == 0 {
                    lock(locks);
                    sleep(Duration::from_millis(10));
                }
                {
                    let mut state = world.state();
                    let now = state.now;
                    assert!(now < Duration::from_secs(1), "the other process asks then");
                    state.kill(0, 0);
                    state.restart(0, now, false);
                }
                sleep(Duration::from_secs(2));
                let unaware = lock(locks);
                sleep(Duration::from_secs(15));
                locked(fences).extend([unaware, lock(locks)]);
            },
            |_, locks, fences| {
                sleep(Duration::from_secs(1));
                let fence = lock(locks);
                locked(fences).push(fence);
            },
        ]);
        let [of_other, unaware, aware] = fences[..] else {
            panic!("a program has ended early: {fences:?}");
        };
        assert!(unaware < of_other, "the lease of before did not linger");
        assert!(aware > of_other);
    }
}
