//! Threads that a failing test does not wait for, and their state in the system.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::{self, Scope, ScopedJoinHandle};

use crossbeam_channel::{Receiver, Sender, unbounded};
use leasehold::{LockGuard, Mutex, Result};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::{PATIENCE, stalls, wait_until};

/// Blocks until something is received, which must happen within [`PATIENCE`].
#[track_caller]
pub(crate) fn received<T>(from: &Receiver<T>, or_else: &str) -> T {
    stalls::watch();
    match from.recv_timeout(PATIENCE) {
        Ok(value) => value,
        Err(error) => panic!("{or_else}: {error}; {}", stalls::noticed()),
    }
}

/// The result of a thread. Unlike a scoped thread, the thread does not keep a failing test from ending.
pub struct Task<T>(Receiver<T>);

impl<T> Task<T> {
    /// Returns the result of the thread, which must end in time.
    #[track_caller]
    pub fn end(self) -> T {
        received(&self.0, "the thread panicked, or never ends")
    }
}

/// Runs `f` on a thread. Its stack is small, so that a thousand threads can run.
#[track_caller]
pub fn task<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Task<T> {
    let (sender, receiver) = unbounded();
    thread::Builder::new()
        .stack_size(256 * 1024)
        // If no receiver is left, the test has failed already.
        .spawn(move || sender.send(f()).ok())
        .expect("a thread");
    Task(receiver)
}

/// Does the same, and returns when the thread sleeps. So a test can make threads queue in a known order.
#[track_caller]
pub fn task_asleep<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Task<T> {
    let (sender, receiver) = unbounded();
    let task = task(move || {
        send_own_directory(&sender);
        f()
    });
    wait_until_asleep(&receiver);
    task
}

/// Does the same with a thread that may borrow.
#[track_caller]
pub fn asleep<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    f: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    let (sender, receiver) = unbounded();
    let thread = scope.spawn(move || {
        send_own_directory(&sender);
        f()
    });
    wait_until_asleep(&receiver);
    thread
}

fn send_own_directory(sender: &Sender<PathBuf>) {
    let me = fs::read_link("/proc/thread-self").expect("the thread's own directory");
    sender.send(me).expect("it is received");
}

#[track_caller]
fn wait_until_asleep(directory: &Receiver<PathBuf>) {
    let directory = Path::new("/proc").join(directory.recv().expect("it is sent"));
    wait_until("the thread sleeps", || {
        state(&directory).expect("the thread has not ended") == 'S'
    });
}

/// Sends SIGSTOP or another signal to a process.
///
/// After SIGSTOP, blocks until all threads of a child of this process have stopped: on a busy machine they run on for a
/// while. For another process, such as a server, blocks until its first thread has stopped: redis-server executes commands
/// on that thread.
///
/// This function does not read `/proc/PID/task`. At the end of a process the kernel forgets its files in `/proc` that were
/// read. With many files that took seconds of CPU time on a busy machine, and no other thread ran meanwhile.
#[track_caller]
pub fn signal(pid: Pid, signal: Signal) {
    kill_process(pid, signal).expect("the process is ours");
    if signal == Signal::STOP {
        let process = Path::new("/proc").join(pid.as_raw_nonzero().to_string());
        let how = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        wait_until("the process is stopped", || {
            match waitid(WaitId::Pid(pid), how) {
                Ok(status) => status.is_some(),
                Err(Errno::CHILD) => state(&process).expect("the process is there") == 'T',
                Err(error) => panic!("{error}"),
            }
        });
    }
}

/// Returns the state letter of a thread, or of the first thread of a process. `directory` is that of either in `/proc`.
fn state(directory: &Path) -> Option<char> {
    let stat = fs::read_to_string(directory.join("stat")).ok()?;
    // The name before the state is in brackets, and may contain brackets.
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Locks on a thread.
#[track_caller]
pub fn locking(mutex: &Mutex) -> Task<Result<LockGuard>> {
    let mutex = mutex.clone();
    task(move || mutex.lock())
}

/// Locks on a thread, and returns when the thread sleeps.
#[track_caller]
pub fn locking_asleep(mutex: &Mutex) -> Task<Result<LockGuard>> {
    let mutex = mutex.clone();
    task_asleep(move || mutex.lock())
}

/// Returns the names of leasehold's threads in this process.
pub fn own_threads() -> Vec<String> {
    fs::read_dir("/proc/self/task")
        .expect("the process's own directory")
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .map(|name| name.trim_end().to_owned())
        .filter(|name| name.starts_with("leasehold"))
        .collect()
}
