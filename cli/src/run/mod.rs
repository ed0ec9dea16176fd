//! `run`: a command that runs under a lock, and that ends before the lock does.
//! `elect` is the same for the lock of a leader.
//!
//! # The processes
//!
//! | process | process group | task |
//! | --- | --- | --- |
//! | `leasehold run …`, the *front* | that of the shell's job | acquires, renews and releases the lock; passes signals on |
//! | the *keeper*, a child of the front | its own | starts the command, and ends it and all its descendants in time |
//! | the *command*, a child of the keeper | that of the front in a session with a terminal, otherwise its own | the work of the user |
//!
//! The front starts itself as the keeper. So the command also ends if the front is killed, or stopped for longer than its
//! lease. Both are *child subreapers*: a descendant whose parent has ended becomes the keeper's child, wherever it moved
//! itself (`setsid`), or the front's once the keeper has died. `descendants` tells how they end all of them.
//!
//! 1. The front acquires the lock, before it starts any process.
//! 2. The front starts the keeper with one end of a socket pair as standard input, and sends it its own standard input.
//!    A socket is the one way to pass a descriptor on without `unsafe`.
//! 3. The keeper starts this program as the *starter*, in the command's group, and tells the front its number. The starter asks the
//!    kernel to kill it when the keeper dies, and checks that the keeper still lives. It has blocked all signals.
//! 4. The front passes on what signals came until then, and sends the deadline of the lease. It sends the deadline again whenever
//!    a renewal has moved it. A deadline is a time of `CLOCK_BOOTTIME`, which the processes of a machine share and which runs
//!    through suspend. With `--max`, a deadline is at most the end of that time, which the keeper knows from its start.
//! 5. At the first deadline the keeper sends the starter its standard input. The starter unblocks the signals and calls `exec`: it
//!    becomes the command. So the command never runs without a deadline, and gets a key of the terminal once, even if it was
//!    pressed while the command began: two pending signals of a kind are one.
//! 6. The command ends. The keeper ends what it left behind, unless `--let-live` spares it, reports the status and exits.
//! 7. The front releases the lock, and exits with that status.
//!
//! # The terminal
//!
//! A shell puts each job into a process group, and a terminal lets one group read it, and sends the signals of its keys to
//! that group: the *foreground*. The other processes of the front's job are in its group, such as the `cat` of
//! `cat | leasehold run x -- wc`, or the script that runs `leasehold`. So the command is there too, as it would be without
//! `leasehold`, and nobody hands the terminal over. The keeper is elsewhere, because a signal that stops or kills the job must
//! not stop the keeper. Once the command has started, the keeper leaves the session too.
//!
//! | event | whom the kernel or the shell tells | so the front |
//! | --- | --- | --- |
//! | ^C, `^\` | all of the group | waits for the command, and does not pass the signal on |
//! | ^Z; a read of the terminal by a job in the background | all of the group | stops like any process. Renewals stop with it. |
//! | `fg`, `bg` | all of the group | goes on |
//! | the command stops itself alone, as `ssh` does after `~^Z` | the keeper, as its parent | stops itself, so that the shell sees a stopped job |
//! | the terminal hangs up | The kernel tells the leader of the session, which may be the front, and mostly a shell. The shell tells the group. | passes HUP on: the command may get it twice |
//! | a process signals the group, as `kill %1` does | all of the group | passes it on: it cannot tell that from a signal to itself alone, so the command may get it twice |
//! | a process signals the front | the front | passes it on |
//!
//! Nobody presses keys for a cron job or a service. Without a terminal the command leads a group of its own: a signal to the
//! front's group reaches the command once, and KILL reaches all of the command's group at one moment.
//!
//! # What ends the command
//!
//! | event | the keeper |
//! | --- | --- |
//! | the *last moment*: half a second before the lease is over, or a tenth of what is left of a short one | KILL |
//! | the *warning*: `--grace` before the last moment of a lease, but at most a third of that lease | TERM, and KILL at the last moment |
//! | `--grace` before the last moment of `--max`, however short the lease is | TERM, and KILL at the last moment |
//! | the front says that the lock is lost | TERM, and KILL after `--grace`, or at the last moment if that comes first |
//! | the socket ends: the front has died | TERM, and KILL after `--grace`, or at the last moment if that comes first |
//! | the command has ended, and descendants are left after a second | TERM, and KILL after `--grace`, or at the last moment if that comes first. With `--let-live` the keeper exits at once, and leaves them. |
//!
//! TERM goes to the command's own group, if it leads one, and to each descendant outside of it. CONT follows TERM, because some
//! of them may be stopped, and KILL comes in rounds until nobody is left. `--on-loss kill` has no TERM, and with `--on-loss ignore`
//! only the last two rows end the command.
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
mod systemd;
mod terminal;
mod waiter;

use std::ffi::OsString;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use rustix::fs::{FileType, Mode, OFlags, fcntl_setfl, lstat, open, stat};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use rustix::time::{ClockId, clock_gettime};

use self::held::Schedule;
use crate::exit::BUSY;

/// The first argument of the keeper.
pub const KEEPER: &str = "--leasehold-keeper";
/// The argument that lets the keeper leave the command's processes.
const LET_LIVE: &str = "let-live";
/// The first argument of the starter.
pub const STARTER: &str = "--leasehold-starter";
/// The time between TERM and KILL, unless an option says otherwise.
const GRACE: Duration = Duration::from_secs(10);
/// The longest time of an option.
const LONGEST: Duration = Duration::from_secs(10 * 366 * 86_400);
/// The shortest and the longest time of `--once-every`.
const PERIODS: [Duration; 2] = [
    Duration::from_secs(1),
    Duration::from_secs(2 * 365 * 86_400),
];
/// This program, even if its file was replaced since it started.
const SELF: &str = "/proc/self/exe";

/// Runs a command under a lock
///
/// Waits for the lock, runs COMMAND, and releases the lock. If the lock is lost, the command is ended. Several names are
/// locked at once. The command finds LEASEHOLD_NAME, LEASEHOLD_FENCE and LEASEHOLD_OWNER in its environment.
#[derive(Args)]
pub struct Options {
    /// The names of the locks
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    job: Job,
    /// Lock a reader-writer lock (`RwLock` of the library) as one of its readers
    #[arg(long, conflicts_with_all = ["exclusive", "permits"])]
    shared: bool,
    /// Lock a reader-writer lock as its writer
    #[arg(long, conflicts_with = "permits")]
    exclusive: bool,
    /// Take N of the K permits of a semaphore
    #[arg(long, value_name = "N/K", value_parser = permits)]
    permits: Option<(u32, u32)>,
    /// Keep the lock for at least this time, even if the command ends earlier: the library's `min_hold`
    #[arg(long, visible_alias = "min-hold", value_name = "TIME", value_parser = time, hide_short_help = true)]
    at_least: Option<Duration>,
    /// The same, but a command whose status is not 0 frees the lock at once, so that a host that waits tries again. The time
    /// must be longer than the --wait of the others
    #[arg(long, value_name = "TIME", value_parser = time, hide_short_help = true, conflicts_with = "at_least")]
    at_least_on_success: Option<Duration>,
    /// Run the command once in each TIME, such as 1d, on the host that comes first. If its status is not 0, a host that still
    /// waits tries again, or the next start. So wait for longer than the job and a lease: a host that gave up earlier does not
    /// try again, and with --no-wait none does
    #[arg(long, value_name = "TIME", value_parser = period, hide_short_help = true,
        conflicts_with_all = ["fire", "shared", "exclusive", "permits", "at_least", "at_least_on_success"])]
    once_every: Option<Duration>,
    /// The same for one time of the schedule, as `date -u +%FT%TZ` writes it, or in seconds since 1970
    #[arg(long, value_name = "TIME", value_parser = fire, hide_short_help = true,
        conflicts_with_all = ["shared", "exclusive", "permits", "at_least", "at_least_on_success"])]
    fire: Option<SystemTime>,
    /// What a leader publishes.
    #[arg(skip)]
    value: Option<String>,
}

/// Runs a command while this process is the leader
///
/// Waits until nobody else leads, publishes VALUE, such as an address, and runs COMMAND. When the command ends, this process
/// resigns. If it does not lead any more, the command is ended. `leasehold leader NAME` prints the value elsewhere.
#[derive(Args)]
pub struct Elect {
    /// What this process publishes while it leads: at most 200 bytes
    #[arg(long)]
    value: String,
    /// The name of the election
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    job: Job,
}

/// How long to wait for a lock, and the command that runs under it, whatever its kind.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is an option without a value"
)]
#[derive(Args)]
struct Job {
    /// How long to wait for the lock, such as 30s, or a number of seconds [default: without end]. With
    /// wait_through_outages=true in the URL it covers servers that are down at the start
    #[arg(short, long, value_name = "TIME", value_parser = wait, conflicts_with = "no_wait")]
    wait: Option<Duration>,
    /// Give up at once if the lock is held
    #[arg(short, long)]
    no_wait: bool,
    /// How long the lock outlives a crash of this machine [default: that of the URL, else 30s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    lease: Option<Duration>,
    /// End the command so that the lock is held for at most this time [default: max_hold of the URL]
    #[arg(long, visible_alias = "max-hold", value_name = "TIME", value_parser = time)]
    max: Option<Duration>,
    /// How the command ends if the lock is lost: by TERM and then KILL, by KILL at once, or not at all
    #[arg(
        long,
        value_name = "ACTION",
        default_value = "term",
        hide_short_help = true
    )]
    on_loss: OnLoss,
    /// The time between TERM and KILL [default: 10s, or a third of --max if that is less]
    #[arg(long, value_name = "TIME", value_parser = time, hide_short_help = true)]
    grace: Option<Duration>,
    /// Let processes live that the command leaves behind, such as a daemon: without the lock
    #[arg(long)]
    let_live: bool,
    /// The exit status if others held the lock for the whole wait
    #[arg(short = 'E', long, value_name = "N", default_value_t = BUSY)]
    busy_status: u8,
    /// A text that `status` shows beside the holder
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Print nothing but errors
    #[arg(short, long, conflicts_with_all = ["json", "json_fd"])]
    quiet: bool,
    /// Print events on standard error, a JSON object a line
    #[arg(long, hide_short_help = true)]
    json: bool,
    /// Print these events on descriptor N in place of standard error
    #[arg(long, value_name = "N", value_parser = descriptor, hide_short_help = true)]
    json_fd: Option<Arc<File>>,
    /// Run this text by `sh -c`, in place of COMMAND
    #[arg(short = 'c', value_name = "TEXT", conflicts_with = "command")]
    text: Option<OsString>,
    /// The command, after `--`
    #[arg(last = true, required_unless_present = "text", value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Options {
    /// Returns which fire the command is for, if it runs once for each.
    fn schedule(&self) -> Option<Schedule> {
        let every = self.once_every.map(Schedule::Every);
        self.fire.map(Schedule::At).or(every)
    }
}

impl From<Elect> for Options {
    fn from(elect: Elect) -> Self {
        Self {
            names: vec![elect.name],
            job: elect.job,
            shared: false,
            exclusive: false,
            permits: None,
            at_least: None,
            at_least_on_success: None,
            once_every: None,
            fire: None,
            value: Some(elect.value),
        }
    }
}

impl Job {
    /// Puts the shell into the place of the command, if there is a text for it.
    fn take_text(&mut self) {
        if let Some(text) = self.text.take() {
            self.command = vec!["sh".into(), "-c".into(), text];
        }
    }

    /// Returns the time between TERM and KILL.
    fn grace(&self) -> Duration {
        self.grace.unwrap_or_else(|| {
            let third = self.max.map_or(Duration::MAX, |max| max / 3);
            GRACE.min(third)
        })
    }
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
    bounded(leasehold::parse_time(text).map_err(|error| error.to_string())?)
}

fn bounded(time: Duration) -> Result<Duration, String> {
    if time > LONGEST {
        return Err("a time of at most 10 years is needed".to_owned());
    }
    Ok(time)
}

/// Parses the time between two fires. Redis keeps a record for four of them, which is at most ten years.
fn period(text: &str) -> Result<Duration, String> {
    let period = time(text)?;
    if (PERIODS[0]..=PERIODS[1]).contains(&period) {
        return Ok(period);
    }
    Err("a time between a second and two years is needed".to_owned())
}

/// Parses a moment, in seconds since 1970 or as RFC 3339 has it.
fn fire(text: &str) -> Result<SystemTime, String> {
    let moment = match text.parse() {
        Ok(seconds) => SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)),
        Err(_) => humantime::parse_rfc3339(text).ok(),
    };
    moment.ok_or_else(|| {
        "expected a time such as 2026-11-29T03:00:00Z, or seconds since 1970".to_owned()
    })
}

/// Parses a time to wait. A bare number is one of seconds, as for `flock -w`.
fn wait(text: &str) -> Result<Duration, String> {
    match text.parse().map(Duration::try_from_secs_f64) {
        Ok(Ok(seconds)) => bounded(seconds),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => time(text),
    }
}

/// Opens a descriptor of this process again, or duplicates it, if it is a socket: those cannot be opened. Without `unsafe`
/// nothing can be written to a bare number.
fn descriptor(text: &str) -> Result<Arc<File>, String> {
    let number: u32 = text.parse().map_err(|_| "expected a number".to_owned())?;
    let reopen = || -> rustix::io::Result<File> {
        let path = format!("/proc/self/fd/{number}");
        // One for reading alone would be opened for writing here.
        if lstat(&path)?.st_mode & Mode::WUSR.bits() == 0 {
            return Err(Errno::BADF);
        }
        if FileType::from_raw_mode(stat(&path)?.st_mode) == FileType::Socket {
            let this = pidfd_open(getpid(), PidfdFlags::empty())?;
            let number = i32::try_from(number).map_err(|_| Errno::BADF)?;
            return Ok(pidfd_getfd(this, number, PidfdGetfdFlags::empty())?.into());
        }
        // A pipe that nobody reads would block the open.
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::empty())?;
        fcntl_setfl(&file, OFlags::APPEND)?;
        Ok(file.into())
    };
    let file = reopen().map_err(|error| format!("it cannot be written to: {error}"))?;
    Ok(Arc::new(file))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_date_or_seconds() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_834_800);
        for text in ["1795834800", "2026-11-28T03:00:00Z"] {
            assert_eq!(fire(text), Ok(at), "{text}");
        }
        for wrong in ["-1", "now", "2026-11-28", "2026-11-28T03:00:00", "1e9", ""] {
            assert!(fire(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_bare_number_is_a_wait_in_seconds() {
        let is = |text, ms| assert_eq!(wait(text), Ok(Duration::from_millis(ms)), "{text}");
        is("60", 60_000);
        is("0.05", 50);
        is("0", 0);
        is("1m30s", 90_000);
        for wrong in ["-1", "inf", "nan", "1e30", "1e10", "20y", "soon", ""] {
            assert!(wait(wrong).is_err(), "{wrong}");
        }
    }
}
