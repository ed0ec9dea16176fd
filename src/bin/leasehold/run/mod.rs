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
//! lease. The keeper is a *child subreaper*: a descendant whose parent has ended becomes the keeper's child, wherever it
//! moved itself (`setsid`). So the keeper finds all of them.
//!
//! 1. The front acquires the lock. Until then there is no other process.
//! 2. The front starts the keeper with one end of a socket pair as standard input, and sends it its own standard input.
//!    A socket is the one way to pass a descriptor on without `unsafe`.
//! 3. The front sends the deadline of the lease, and sends it again whenever a renewal has moved it. A deadline is a time
//!    of `CLOCK_BOOTTIME`, which the processes of a machine share and which runs through suspend. With `--max`, a deadline
//!    is at most the end of that time.
//! 4. The keeper waits for the first deadline, so the command never runs without one. Then the keeper starts this program as the *starter*, in a new process group. The starter makes that group the
//!    foreground group of the terminal, if the front was in it. It asks the kernel to kill it when the keeper dies,
//!    checks that the keeper still lives, and calls `exec`. So the starter becomes the command.
//! 5. The command ends. The keeper ends what it left behind, reports its status and exits.
//! 6. The front releases the lock, and exits with that status.
//!
//! # What ends the command
//!
//! | event | the keeper |
//! | --- | --- |
//! | *warning*: a third of the lease is left, or `--grace` if that is less | TERM, and KILL at the deadline |
//! | the front says that the lock is lost | TERM, and KILL after `--grace`, or at the deadline if that comes first |
//! | the socket ends: the front has died | TERM, and KILL after `--grace`, or at the deadline if that comes first |
//! | the command has ended, and descendants are left after a second | TERM, and KILL after `--grace`, or at the deadline if that comes first |
//! | the deadline | KILL |
//!
//! TERM and KILL go to the command's group, and to each descendant outside of it. CONT follows TERM, for processes that
//! are stopped. `--on-loss kill` has no TERM. With `--on-loss ignore`, neither a loss nor a deadline ends the command.
//!
//! If the keeper dies, the kernel kills the command. The front is a subreaper too: it kills the other descendants. It does so
//! also if the keeper has not ended the command in time after a loss. If both die at once, only the command ends. A process of
//! another user, as `sudo` starts one, gets no signal from them.

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnLoss {
    Term,
    Kill,
    Ignore,
}

/// Parses a time, such as `1h 30m`.
fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
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
