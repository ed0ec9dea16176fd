//! `run`: a command that runs under a lock, and that ends before the lock does.
//!
//! # The processes
//!
//! | process | process group | task |
//! | --- | --- | --- |
//! | `leasehold run …`, the *front* | that of the shell's job | acquires, renews and releases the lock; passes signals on |
//! | the *keeper*, a child of the front | its own | starts the command, and ends it and all its descendants in time |
//! | the *command*, a child of the keeper | its own | the work of the user |
//!
//! The front starts itself as the keeper. So the command also ends if the front is killed, or stopped for longer than its
//! lease. Both are *child subreapers*: a descendant whose parent has ended becomes the keeper's child, wherever it moved
//! itself (`setsid`), or the front's once the keeper has died. `descendants` tells how they end all of them.
//!
//! 1. The front acquires the lock, before it starts any process.
//! 2. The front starts the keeper with one end of a socket pair as standard input, and sends it its own standard input.
//!    A socket is the one way to pass a descriptor on without `unsafe`.
//! 3. The front sends the deadline of the lease, and sends it again whenever a renewal has moved it. A deadline is a time
//!    of `CLOCK_BOOTTIME`, which the processes of a machine share and which runs through suspend. With `--max`, a deadline
//!    is at most the end of that time.
//! 4. The keeper waits for the first deadline, so the command never runs without one. Then the keeper starts this program
//!    as the *starter*, in a new process group. The starter makes that group the foreground group of the terminal, if the
//!    front was in it. It asks the kernel to kill it when the keeper dies, checks that the keeper still lives, and calls
//!    `exec`. So the starter becomes the command.
//! 5. The command ends. The keeper ends what it left behind, reports its status and exits.
//! 6. The front releases the lock, and exits with that status.
//!
//! # What ends the command
//!
//! | event | the keeper |
//! | --- | --- |
//! | the *last moment*: half a second before the lease is over, or a tenth of what is left of a short one | KILL |
//! | the *warning*: `--grace` before the last moment, but at most a third of the lease | TERM, and KILL at the last moment |
//! | the front says that the lock is lost | TERM, and KILL after `--grace`, or at the last moment if that comes first |
//! | the socket ends: the front has died | TERM, and KILL after `--grace`, or at the last moment if that comes first |
//! | the command has ended, and descendants are left after a second | TERM, and KILL after `--grace`, or at the last moment if that comes first |
//!
//! TERM goes to the command's group, and to each descendant outside of it. CONT follows TERM, for processes that are
//! stopped. KILL comes in rounds until nobody is left. `--on-loss kill` has no TERM. With `--on-loss ignore`, only the last
//! two rows end the command.
//!
//! # How the front ends, and when the lock is free
//!
//! The front gives the lock up in one line, after the command and all its descendants have ended. Each other way out of the
//! process leaves the lock to its lease, and the keeper's last moment comes before that. So before the keeper runs, the front
//! has started all its threads and tried each system call on which the rest depends.
//!
//! | exit of the front | who ends the processes | when the lock is free |
//! | --- | --- | --- |
//! | a thread or a system call is refused before the command starts | nothing has started | at once; the status is 71, or 69 if the library needed it |
//! | the command has ended | the keeper, before it reports the status | after that report |
//! | a signal of the user: it is passed on | the command itself, and then as above | after the keeper's report |
//! | a system call is refused later, such as the one that sends a deadline | the keeper, at the last moment that it knows | after the keeper's report |
//! | the keeper dies, or the socket closes while both live | the kernel kills the command with the keeper, and the front the keeper and the rest | once the front has no child left, but those that it had before; the status is 70 |
//! | the keeper is stopped, and the lease not renewed | the front, a quarter of a second before the lease is over | once its lease is over |
//! | the lock is taken away | the keeper after the grace, or the front a second later | at once |
//! | a panic, in any thread of the front | the keeper, since the socket ends | once its lease is over; the status is 70 |
//! | KILL, or any other signal that ends a process | the keeper, since the socket ends | once its lease is over |
//! | STOP, for longer than the lease | the keeper, at the last moment | once its lease is over |
//!
//! A process of another user, as `sudo` starts one, gets no signal unless `run` is root's. The keeper and the front wait for
//! it, with the lock, as for any other. If the front and the keeper die at once, the kernel kills the command, unless it has
//! changed its user, group or capabilities since its start, and nobody ends its descendants.

pub mod front;
pub mod keeper;
pub mod starter;

mod descendants;
mod held;
mod messages;
mod report;
mod terminal;

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::time::{ClockId, clock_gettime};

use crate::exit::BUSY;

/// The first argument of the keeper.
pub const KEEPER: &str = "--leasehold-keeper";
/// The first argument of the starter.
pub const STARTER: &str = "--leasehold-starter";
/// The longest time of an option.
const LONGEST: Duration = Duration::from_secs(10 * 366 * 86_400);
/// This program, even if its file was replaced since it started.
const SELF: &str = "/proc/self/exe";

/// Runs a command under a lock
///
/// Waits for the lock, runs COMMAND, and releases the lock. If the lock is lost, the command is ended. Several names are
/// locked at once. The command finds LEASEHOLD_NAME, LEASEHOLD_FENCE and LEASEHOLD_OWNER in its environment.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is an option without a value"
)]
#[derive(Args)]
pub struct Options {
    /// How long to wait for the lock, such as 30s [default: without end]
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "no_wait")]
    wait: Option<Duration>,
    /// Give up at once if the lock is held
    #[arg(long)]
    no_wait: bool,
    /// How long the lock outlives a crash of this machine [default: that of the URL, else 30s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    lease: Option<Duration>,
    /// Lock a reader-writer lock as one of its readers
    #[arg(long, conflicts_with_all = ["exclusive", "permits"])]
    shared: bool,
    /// Lock a reader-writer lock as its writer
    #[arg(long, conflicts_with = "permits")]
    exclusive: bool,
    /// Take N of the K permits of a semaphore
    #[arg(long, value_name = "N/K", value_parser = permits)]
    permits: Option<(u32, u32)>,
    /// Keep the lock for at least this time, even if the command ends earlier
    #[arg(long, value_name = "TIME", value_parser = time)]
    at_least: Option<Duration>,
    /// End the command so that the lock is held for at most this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    max: Option<Duration>,
    /// How the command ends if the lock is lost: by TERM and then KILL, by KILL at once, or not at all
    #[arg(long, value_name = "ACTION", default_value = "term")]
    on_loss: OnLoss,
    /// The time between TERM and KILL
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    grace: Duration,
    /// The exit status if others held the lock for the whole wait
    #[arg(long, value_name = "N", default_value_t = BUSY)]
    busy_status: u8,
    /// A text that `status` shows beside the holder
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Print nothing but errors
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
    /// Print events on standard error, a JSON object a line
    #[arg(long)]
    json: bool,
    /// The names of the locks
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// The command, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A time of `CLOCK_BOOTTIME`, in nanoseconds.
type Time = i64;

fn now() -> Time {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn nanoseconds(span: Duration) -> Time {
    Time::try_from(span.as_nanos()).unwrap_or(Time::MAX)
}

/// How long before the end of a lease KILL goes out, if this much of the lease is left now. A killed process ends when it
/// gets the processor.
fn dying_time(left: Duration) -> Duration {
    Duration::from_millis(500).min(left / 10)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnLoss {
    Term,
    Kill,
    Ignore,
}

/// Parses a time, such as `1h30m`.
fn time(text: &str) -> Result<Duration, String> {
    let time = leasehold::parse_time(text).map_err(|error| error.to_string())?;
    if time > LONGEST {
        return Err("a time of at most 10 years is needed".to_owned());
    }
    Ok(time)
}

fn permits(text: &str) -> Result<(u32, u32), String> {
    let parsed = text
        .split_once('/')
        .and_then(|(n, k)| Some((n.parse().ok()?, k.parse().ok()?)));
    match parsed {
        Some((n, k)) if 0 < n && n <= k => Ok((n, k)),
        _ => Err("expected N/K, such as 1/3 for one of three permits".to_owned()),
    }
}
