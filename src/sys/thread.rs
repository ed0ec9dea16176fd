//! Threads, their sleep until another one wakes them, and a queue between them. Each thread runs on the machine of the one
//! that has started it.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::thread::Builder;

#[cfg(not(feature = "seam"))]
pub(crate) use std::thread::sleep;

use super::machine::Machine;
#[cfg(feature = "seam")]
pub use super::of_test::thread::sleep;
use super::time::{LONGEST_SLEEP, Time};
use super::{Condvar, Mutex};

/// Starts a thread with this name, or with none if it is empty.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    Machine::here().spawn(name, run)
}

/// Starts a thread that ends at once.
///
/// # Errors
///
/// Returns the error of the system if it starts no further thread, for a caller whose own library would panic then.
pub(crate) fn try_one() -> io::Result<()> {
    Machine::here().may_start_thread()?;
    // A thread that ends at once has nothing to say.
    Builder::new().spawn(|| {})?.join().ok();
    Ok(())
}

impl Machine {
    /// Starts a thread on this machine.
    pub(crate) fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.may_start_thread()?;
        let mut thread = Builder::new();
        if !name.is_empty() {
            thread = thread.name(name.to_owned());
        }
        thread.spawn(self.running(run)).map(drop)
    }

    /// Makes a function run on this machine, whatever thread calls it.
    pub(crate) fn running<F: FnOnce()>(&self, run: F) -> impl FnOnce() + use<F> {
        let machine = self.clone();
        #[cfg(feature = "seam")]
        let scheduled = super::of_test::thread::ScheduledThread::plan(self);
        move || {
            let _entered = machine.enter();
            #[cfg(feature = "seam")]
            if let Some(scheduled) = &scheduled {
                scheduled.begin();
            }
            run();
            #[cfg(feature = "seam")]
            drop(scheduled);
        }
    }
}

/// The place where one thread sleeps until another thread of the library wakes it.
///
/// It takes the place of `std::thread::park`, because that token is the program's. An `unpark` by the program would end a wait
/// for a lock for nothing, and the wait would take the token from the thread's next `park`.
#[derive(Default)]
pub(crate) struct Parker {
    state: Mutex<Parked>,
    woken: Condvar,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Parked {
    #[default]
    Awake,
    Asleep,
    /// Another thread has woken it since it last slept.
    Woken,
}

impl Parker {
    /// Sleeps until a wake, or until then. Returns at once after a wake since the last sleep.
    pub(crate) fn sleep_until(&self, machine: &Machine, until: Time) {
        let mut state = self.state.lock();
        while *state != Parked::Woken {
            let left = (until != Time::NEVER).then(|| until.since(machine.now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            *state = Parked::Asleep;
            state = match left {
                None => self.woken.wait(state),
                Some(left) => self.woken.wait_for(state, left.min(LONGEST_SLEEP)),
            };
        }
        *state = Parked::Awake;
    }

    /// Ends the sleep of the thread, or else its next one.
    pub(crate) fn wake(&self) {
        let before = mem::replace(&mut *self.state.lock(), Parked::Woken);
        // The mutex is free again, so the thread need not wait for it. If nobody sleeps, this saves the system call.
        if before == Parked::Asleep {
            self.woken.notify_one();
        }
    }

    /// Returns whether the thread sleeps, and was not woken.
    #[cfg(feature = "seam")]
    pub(crate) fn is_asleep(&self) -> bool {
        *self.state.lock() == Parked::Asleep
    }
}

/// A queue of limited length, which one thread reads, and any thread writes.
pub(crate) struct BlockingQueue<T> {
    state: Mutex<QueueState<T>>,
    /// Notified if there is something to read, and when the queue is closed.
    changed: Condvar,
    longest: usize,
}

struct QueueState<T> {
    items: VecDeque<T>,
    is_closed: bool,
}

impl<T> BlockingQueue<T> {
    /// Makes a queue of at most this length.
    pub(crate) fn new(longest: usize) -> Self {
        Self {
            state: Mutex::new(QueueState {
                items: VecDeque::new(),
                is_closed: false,
            }),
            changed: Condvar::new(),
            longest,
        }
    }

    /// Adds an item at the end, without blocking. Returns false if the queue is full.
    pub(crate) fn push(&self, item: T) -> bool {
        let mut state = self.state.lock();
        let has_room = state.items.len() < self.longest;
        if has_room {
            state.items.push_back(item);
        }
        drop(state);
        self.changed.notify_one();
        has_room
    }

    /// Takes out the first item. Blocks while there is none. Returns `None` if there is none and the queue is closed.
    pub(crate) fn pop(&self) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            let item = state.items.pop_front();
            if item.is_some() || state.is_closed {
                return item;
            }
            state = self.changed.wait(state);
        }
    }

    /// Makes the reader end when the queue is empty.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_sleep_ends_by_a_wake_and_takes_no_token_of_the_program() {
        let (parker, machine) = (Parker::default(), Machine::default());
        thread::current().unpark();
        for _ in 0..2 {
            parker.wake();
            parker.sleep_until(&machine, Time::NEVER);
            let until = machine.now() + Duration::from_millis(5);
            parker.sleep_until(&machine, until);
            assert!(machine.now() >= until, "the token has ended the sleep");
        }
        // It would block without the token.
        thread::park();
    }

    #[test]
    fn a_reader_gets_all_items_in_order_and_then_the_end() {
        let queue = BlockingQueue::new(3);
        thread::scope(|scope| {
            let read = scope.spawn(|| std::iter::from_fn(|| queue.pop()).collect::<Vec<_>>());
            for number in 0..100 {
                while !queue.push(number) {
                    thread::yield_now();
                }
            }
            queue.close();
            let read = read.join().expect("no panic");
            assert!(read.into_iter().eq(0..100));
        });
        assert!((0..3).all(|number| queue.push(number)));
        assert!(!queue.push(3), "it is full");
    }
}
