//! Signals as values that a thread reads, in place of handlers.

use std::fs;
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::exit::Failure;

/// The signals that end a wait for the lock, and that `run` passes on.
pub const ENDING: [Signal; 7] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
];

/// A signal that has arrived.
pub struct Arrived {
    pub signal: Signal,
    /// Whether the kernel sent it, and no process.
    pub is_of_kernel: bool,
}

/// Blocks signals in this thread and in those that it starts later, and returns where they can be read. A signal that
/// this process inherited as ignored, as `nohup` has it, stays ignored. That is not for CHLD: if it is ignored, the kernel
/// keeps no exit status of a child.
pub fn receive(signals: impl IntoIterator<Item = Signal>) -> Result<SignalFd, Failure> {
    // A signal with a handler is not ignored, and `exec` gives CHLD its default again.
    let handled = signal_hook::flag::register(Signal::SIGCHLD as i32, Arc::default());
    handled.map_err(|error| Failure::system("cannot receive signals", error))?;
    let ignored = ignored();
    let set: SigSet = signals
        .into_iter()
        .filter(|signal| ignored >> (*signal as i32 - 1) & 1 == 0)
        .collect();
    let failed = |error| Failure::system("cannot receive signals", error);
    set.thread_block().map_err(failed)?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(failed)
}

/// Returns the next signal that has arrived. A child that ended or stopped is the signal CHLD.
pub fn next(signals: &SignalFd) -> Option<Arrived> {
    let info = signals.read_signal().ok()??;
    Some(Arrived {
        signal: Signal::try_from(i32::try_from(info.ssi_signo).ok()?).ok()?,
        // SI_USER is 0, and the other codes of processes are negative.
        is_of_kernel: info.ssi_code > 0,
    })
}

/// Blocks until a signal has arrived.
pub fn wait(signals: &SignalFd) -> Option<Arrived> {
    loop {
        if let Some(arrived) = next(signals) {
            return Some(arrived);
        }
        if !wait_for_any(signals) {
            return None;
        }
    }
}

/// Blocks until a signal can be read. Returns whether it could wait.
pub fn wait_for_any(signals: &SignalFd) -> bool {
    loop {
        let descriptor = signals.as_fd();
        let mut polled = [rustix::event::PollFd::new(
            &descriptor,
            rustix::event::PollFlags::IN,
        )];
        match rustix::event::poll(&mut polled, None) {
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Ends this process by a signal that [`receive`] has blocked. So its parent sees the signal in place of a status. Returns only
/// in process 1 of a container, which no signal of its own ends.
pub fn die_of(signal: Signal) {
    // QUIT would write a core, and the command has written its own.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    // To this thread alone, because the thread that reads signals would take one to the process.
    let _ = raise(signal);
    let mut unblocked = SigSet::empty();
    unblocked.add(signal);
    let _ = unblocked.thread_unblock();
}

/// Returns the signals that this process ignores, a bit each.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
