//! A thread that does tasks at their times, one after another.
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | planned | its time has come, and no other task runs | running |
//! | running | it returns, or panics | done |
//! | planned | the owner of the thread is dropped | dropped; the thread ends |

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use crate::panics::survived;
#[cfg(feature = "seam")]
use crate::sys::test_machine::MovedByTest;
use crate::sys::{Arc, Condvar, Machine, Mutex, Time};

/// How often the thread looks at the clock, at least: a machine may have been suspended.
const LOOK_EVERY: Duration = Duration::from_secs(3);

type Task = Box<dyn FnOnce() + Send>;

/// The owner of the thread. Its drop ends the thread, after the task that runs.
pub(crate) struct TaskThread(Arc<Tasks>);

/// The tasks of a thread.
#[derive(Default)]
pub(crate) struct Tasks {
    machine: Machine,
    state: Mutex<TasksState>,
    changed: Condvar,
}

#[derive(Default)]
struct TasksState {
    /// By their times, and in the order in which they were planned.
    planned: BTreeMap<(Time, u64), Task>,
    next_number: u64,
    /// Whether a task runs.
    works: bool,
    is_over: bool,
}

impl TaskThread {
    /// Starts the thread.
    pub(crate) fn start(name: &str) -> io::Result<Self> {
        let tasks = Arc::new(Tasks {
            machine: Machine::here(),
            ..Tasks::default()
        });
        #[cfg(feature = "seam")]
        {
            let weak = Arc::downgrade(&tasks);
            tasks.machine.register(weak);
        }
        let of_thread = Arc::clone(&tasks);
        tasks.machine.spawn(name, move || of_thread.work())?;
        Ok(Self(tasks))
    }

    /// Returns the tasks, to plan more of them.
    pub(crate) fn tasks(&self) -> &Arc<Tasks> {
        &self.0
    }
}

impl Drop for TaskThread {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_over = true;
        let planned = std::mem::take(&mut state.planned);
        drop(state);
        self.0.changed.notify_all();
        drop(planned);
    }
}

impl Tasks {
    /// Plans a task, after a pause.
    pub(crate) fn after(&self, pause: Duration, task: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        if state.is_over {
            return;
        }
        let number = state.next_number;
        state.next_number += 1;
        state
            .planned
            .insert((self.machine.now() + pause, number), Box::new(task));
        self.changed.notify_all();
    }

    fn work(&self) {
        let mut state = self.state.lock();
        while !state.is_over {
            let next = state.planned.first_entry();
            let left = next
                .as_ref()
                .map_or(LOOK_EVERY, |next| next.key().0.since(self.machine.now()));
            match next {
                Some(next) if left.is_zero() => {
                    let task = next.remove();
                    state.works = true;
                    drop(state);
                    survived(task);
                    state = self.state.lock();
                    state.works = false;
                }
                _ => state = self.changed.wait_for(state, left.min(LOOK_EVERY)),
            }
        }
    }
}

/// The tasks of a manager of the test kit, whose clock a test moves.
#[cfg(feature = "seam")]
impl MovedByTest for Tasks {
    fn look_at_the_clock(&self) {
        // A thread that has looked and does not sleep yet holds the mutex.
        drop(self.state.lock());
        self.changed.notify_all();
    }

    fn busy_part(&self) -> Option<&'static str> {
        self.sends_by_itself()
            .then_some("the upkeep of connections that is due")
    }

    fn sends_by_itself(&self) -> bool {
        let state = self.state.lock();
        let next = state.planned.first_key_value();
        let is_due = next.is_some_and(|((due, _), _)| *due <= self.machine.now());
        !state.is_over && (state.works || is_due)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::thread;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60 * 60);

    #[test]
    fn tasks_are_done_at_their_times_and_the_thread_outlives_their_panics() {
        let owner = TaskThread::start("").expect("a thread");
        let tasks = Arc::downgrade(owner.tasks());
        let (done, order) = channel();
        let begun = Time::now();
        for (name, ms) in [("last", 30), ("first", 0), ("second", 0)] {
            let done = done.clone();
            owner.tasks().after(Duration::from_millis(ms), move || {
                done.send((name, begun.elapsed()))
                    .expect("the test listens");
                panic!("on purpose");
            });
        }
        let next = || order.recv_timeout(PATIENCE).expect("it is done");
        assert_eq!(next().0, "first");
        assert_eq!(next().0, "second");
        let (name, after) = next();
        assert_eq!(name, "last");
        assert!(after >= Duration::from_millis(30));
        // The drop of the owner drops the planned tasks too.
        owner.tasks().after(PATIENCE * 10, move || drop(done));
        drop(owner);
        let ended = order.recv_timeout(PATIENCE);
        assert_eq!(ended, Err(RecvTimeoutError::Disconnected));
        while tasks.strong_count() > 0 {
            assert!(begun.elapsed() < PATIENCE, "the thread does not end");
            thread::yield_now();
        }
    }
}
