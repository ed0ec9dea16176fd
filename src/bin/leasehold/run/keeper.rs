//! The keeper: it starts the command, and ends it and all its descendants in time. The table in `run` says when.
//!
//! It has one thread, which blocks in `poll` on the socket, the signals and a timer. It never waits for the front, and
//! knows the time by its own clock.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, set_child_subreaper, wait,
};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use super::messages::{FromKeeper, ToKeeper, hear_front, receive_descriptor, tell_front};
use super::{OnLoss, SELF, STARTER, descendants};
use crate::exit::{Failure, SYSTEM, USAGE};
use crate::signals;

/// The time between two rounds of KILL, at first and at most: a process may have forked since the last look. A process that
/// cannot be ended, such as one of another user, must not cost all the CPU time.
pub(super) const ROUNDS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// How long descendants may live on after the command before they get TERM. A pipe behind it may still have to write.
const LEFTOVER_TIME: Duration = Duration::from_secs(1);

/// A time of `CLOCK_BOOTTIME`, in nanoseconds.
type Time = i64;

struct Keeper {
    socket: OwnedFd,
    timer: OwnedFd,
    on_loss: OnLoss,
    grace: Duration,
    /// The command's process, which is the leader of its group. `None` once it has ended: from then on, strangers may get
    /// its number.
    command: Option<Pid>,
    /// The exit status of the command, once it has ended.
    status: Option<u8>,
    /// When the lease is nearly over. TERM goes out then.
    warning: Option<Time>,
    /// When the lease is over. KILL goes out then.
    deadline: Option<Time>,
    /// When KILL goes out because TERM has.
    kill_at: Option<Time>,
    /// When descendants of a command that has ended get TERM.
    leftovers_end: Option<Time>,
    /// Whether the front knows that the lease ends the command.
    has_warned: bool,
    /// The time until the next round of KILL.
    round: Duration,
    is_front_gone: bool,
}

/// Arguments: the action after a loss, the grace in milliseconds, whether the command gets the terminal, and the command.
/// Standard input is the socket.
pub fn main(mut arguments: impl Iterator<Item = OsString>) -> Result<u8, Failure> {
    let mut argument = || arguments.next()?.into_string().ok();
    let wrong = || Failure::new(USAGE, "this form is for `leasehold run` alone");
    let on_loss = match argument().as_deref() {
        Some("Term") => OnLoss::Term,
        Some("Kill") => OnLoss::Kill,
        Some("Ignore") => OnLoss::Ignore,
        _ => return Err(wrong()),
    };
    let grace = argument()
        .and_then(|text| text.parse().ok())
        .ok_or_else(wrong)?;
    let foreground = argument().ok_or_else(wrong)?;

    let failed = |error| Failure::system("cannot keep the command", error);
    let socket = rustix::io::dup(rustix::stdio::stdin()).map_err(failed)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).map_err(failed)?;
    // Tools show this name in place of that of `/proc/self/exe`. Without it, all else works.
    let _ = rustix::thread::set_name(c"leasehold");
    // The keeper must outlive the front, whatever signals the front gets.
    let signals = signals::receive(nix::sys::signal::Signal::iterator())?;
    set_child_subreaper(Some(getpid())).map_err(failed)?;
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC).map_err(failed)?;
    let stdin = receive_descriptor(&socket)
        .map_err(|error| Failure::system("cannot take the standard input over", error))?;
    // The command must not run without a deadline, even if the front dies or is stopped now.
    let Some(ToKeeper::Deadline(deadline)) = hear_front(&socket) else {
        return Err(Failure::system(
            "cannot run the command",
            "leasehold has died",
        ));
    };
    let command = Command::new(SELF)
        .arg0("leasehold")
        .arg(STARTER)
        .arg(getpid().as_raw_nonzero().to_string())
        .arg(foreground)
        .args(arguments)
        .stdin(Stdio::from(stdin))
        .process_group(0)
        .spawn()
        .map_err(|error| Failure::system("cannot start the command", error))?;
    let command = Pid::from_child(&command);
    tell_front(&socket, FromKeeper::Started(command.as_raw_nonzero().get()));
    let mut keeper = Keeper {
        socket,
        timer,
        on_loss,
        grace: Duration::from_millis(grace),
        command: Some(command),
        status: None,
        warning: None,
        deadline: None,
        kill_at: None,
        leftovers_end: None,
        has_warned: false,
        round: ROUNDS[0],
        is_front_gone: false,
    };
    keeper.set_deadline(deadline);
    Ok(keeper.run(&signals))
}

impl Keeper {
    /// Returns the command's exit status, once it and all its descendants have ended.
    fn run(mut self, signals: &SignalFd) -> u8 {
        loop {
            let is_childless = self.reap();
            if is_childless {
                // The command was a child until `reap` took its status.
                let status = self.status.unwrap_or(SYSTEM);
                tell_front(&self.socket, FromKeeper::Ended(status));
                return status;
            }
            self.act(now());
            self.set_timer();
            // A failed `poll` says that nothing has arrived, and the loop looks at everything again.
            let (hears_front, has_signal) = self.poll(signals);
            if has_signal {
                while signals::next(signals).is_some() {}
            }
            if hears_front {
                self.hear();
            }
        }
    }

    /// Takes the ends and stops of all children. Returns whether there are no more children.
    fn reap(&mut self) -> bool {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        loop {
            match wait(options) {
                Ok(Some((pid, status))) if Some(pid) == self.command => {
                    self.command_changed(status);
                }
                // A descendant whose parent had ended.
                Ok(Some(_)) => {}
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
    }

    fn command_changed(&mut self, status: WaitStatus) {
        if let Some(signal) = status.stopping_signal() {
            tell_front(&self.socket, FromKeeper::Stopped(signal));
        }
        let killed = status.terminating_signal().map(|signal| 128 + signal);
        let Some(status) = status.exit_status().or(killed) else {
            return;
        };
        self.command = None;
        self.status = Some(status.try_into().unwrap_or(u8::MAX));
        self.leftovers_end = Some(after(now(), LEFTOVER_TIME));
    }

    /// Sends what is due.
    fn act(&mut self, now: Time) {
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        if (is_due(self.warning) || is_due(self.deadline))
            && !self.has_warned
            && self.kill_at.is_none()
        {
            self.has_warned = true;
            tell_front(&self.socket, FromKeeper::Warned);
        }
        if is_due(self.deadline) || is_due(self.kill_at) {
            self.send(Signal::KILL);
            self.round = (self.round * 2).min(ROUNDS[1]);
        } else if is_due(self.warning) {
            self.end(self.grace);
        } else if is_due(self.leftovers_end) && self.kill_at.is_none() {
            let left = descendants::signal(None, None, &[]);
            let left = left.try_into().unwrap_or(i64::MAX);
            tell_front(&self.socket, FromKeeper::Left(left));
            self.end(self.grace);
        }
    }

    /// Begins to end the command and its descendants: sends TERM, and sets the time of KILL. Without a grace, only KILL
    /// follows.
    fn end(&mut self, grace: Duration) {
        if self.kill_at.is_some() {
            return;
        }
        self.kill_at = Some(after(now(), grace));
        if !grace.is_zero() {
            self.send(Signal::TERM);
            self.send(Signal::CONT);
        }
    }

    fn grace_of_loss(&self) -> Duration {
        match self.on_loss {
            OnLoss::Kill => Duration::ZERO,
            OnLoss::Term | OnLoss::Ignore => self.grace,
        }
    }

    /// Sends a signal to the command's group and to all descendants outside of it.
    fn send(&self, signal: Signal) {
        if let Some(group) = self.command {
            // The group is never empty: its leader has not been reaped.
            let _ = kill_process_group(group, signal);
        }
        descendants::signal(Some(signal), self.command, &[]);
    }

    fn hear(&mut self) {
        match hear_front(&self.socket) {
            Some(ToKeeper::Deadline(at)) => self.set_deadline(at),
            Some(ToKeeper::Lost) if self.on_loss == OnLoss::Ignore => {}
            // The deadline stays: the rest of the lease may be shorter than the grace.
            Some(ToKeeper::Lost) => self.end(self.grace_of_loss()),
            Some(ToKeeper::Signal(signal)) => {
                match (self.command, Signal::from_named_raw(signal)) {
                    (Some(group), Some(signal)) => {
                        let _ = kill_process_group(group, signal);
                    }
                    // The command has ended, and its descendants work on.
                    (None, signal) => {
                        descendants::signal(signal, None, &[]);
                    }
                    (_, None) => {}
                }
            }
            None => {
                self.is_front_gone = true;
                self.end(self.grace_of_loss());
            }
        }
    }

    fn set_deadline(&mut self, at: Time) {
        if self.on_loss == OnLoss::Ignore {
            return;
        }
        let left = Duration::from_nanos(u64::try_from(at - now()).unwrap_or(0));
        self.deadline = Some(at);
        self.warning = Some(at - nanoseconds(self.grace_of_loss().min(left / 3)));
    }

    /// Sets the timer to the next thing to do.
    fn set_timer(&self) {
        let now = now();
        let first = [self.warning, self.leftovers_end];
        let first = first
            .into_iter()
            .flatten()
            .min()
            .filter(|_| self.kill_at.is_none());
        let next = [self.deadline, self.kill_at, first]
            .into_iter()
            .flatten()
            .min();
        // KILL is repeated until all have ended.
        let next = next.map_or(0, |at| at.max(after(now, self.round)));
        let at = Timespec {
            tv_sec: next / 1_000_000_000,
            tv_nsec: next % 1_000_000_000,
        };
        let never = Timespec::default();
        let spec = Itimerspec {
            it_interval: never,
            it_value: at,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec)
            .expect("the time is valid, and the timer was made");
    }

    /// Blocks until something has happened. Returns whether the front has sent something or died, and whether a signal
    /// has arrived.
    fn poll(&self, signals: &SignalFd) -> (bool, bool) {
        let (signals, timer) = (signals.as_fd(), self.timer.as_fd());
        let socket = self.socket.as_fd();
        let mut polled = vec![
            PollFd::new(&signals, PollFlags::IN),
            PollFd::new(&timer, PollFlags::IN),
        ];
        if !self.is_front_gone {
            polled.push(PollFd::new(&socket, PollFlags::IN));
        }
        if poll(&mut polled, None).is_err() {
            return (false, false);
        }
        let has = |index: usize| polled.get(index).is_some_and(|it| !it.revents().is_empty());
        (has(2), has(0))
    }
}

fn now() -> Time {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn after(time: Time, span: Duration) -> Time {
    time.saturating_add(nanoseconds(span))
}

fn nanoseconds(span: Duration) -> Time {
    Time::try_from(span.as_nanos()).unwrap_or(Time::MAX)
}
