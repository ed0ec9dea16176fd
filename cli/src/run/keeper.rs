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
    Pid, Signal, WaitStatus, getpgid, getpid, kill_process, kill_process_group,
    set_child_subreaper, setpgid, setsid,
};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::descendants::{self, Process, ROUNDS};
use super::messages::{
    End, FromKeeper, ToKeeper, hear_front, pair, receive_descriptor, send_descriptor, tell_front,
};
use super::{LET_LIVE, OnLoss, SELF, STARTER, Time, dying_time, nanoseconds, now};
use crate::exit::{Failure, SYSTEM, USAGE};
use crate::signals;

/// How long descendants may live on after the command before they get TERM. A pipe behind it may still have to write.
const LEFTOVER_TIME: Duration = Duration::from_secs(1);

struct Keeper {
    socket: OwnedFd,
    timer: OwnedFd,
    on_loss: OnLoss,
    grace: Duration,
    /// The last moment of `--max`, or `Time::MAX`.
    max: Time,
    /// The command's process.
    command: Pid,
    /// The socket of the starter, and the standard input for which it waits. `None` once the command may begin.
    held_back: Option<(OwnedFd, OwnedFd)>,
    /// The front's group, if the command is in it. Otherwise the command leads a group of its own.
    joined: Option<Pid>,
    /// Whether what the command leaves behind lives on.
    lets_live: bool,
    /// How the command ended, once it has.
    end: Option<End>,
    /// When TERM goes out, because the lease is nearly over.
    warning: Option<Time>,
    /// The last moment: when KILL goes out because the lease is nearly over.
    kill_by: Option<Time>,
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

/// Arguments: the action after a loss, the grace in milliseconds, when the time of `--max` ends, the group for the command (0
/// for its own), `LET_LIVE` or nothing, and the command. Standard input is the socket.
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
    let end: Time = argument()
        .and_then(|text| text.parse().ok())
        .ok_or_else(wrong)?;
    let group: i32 = argument()
        .and_then(|text| text.parse().ok())
        .ok_or_else(wrong)?;
    let lets_live = argument().ok_or_else(wrong)? == LET_LIVE;

    let failed = |error| Failure::system("cannot keep the command", error);
    let socket = rustix::io::dup(rustix::stdio::stdin()).map_err(failed)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).map_err(failed)?;
    // Tools show this name in place of that of `/proc/self/exe`. Without it, all else works.
    let _ = rustix::thread::set_name(c"leasehold");
    // The keeper must outlive the front, whatever signals the front gets.
    let signals = signals::receive(nix::sys::signal::Signal::iterator())?;
    set_child_subreaper(Some(getpid())).map_err(failed)?;
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC).map_err(failed)?;
    try_calls(&timer).map_err(|error| Failure::system("cannot keep the command", error))?;
    let stdin = receive_descriptor(&socket)
        .map_err(|error| Failure::system("cannot take the standard input over", error))?;
    let failed = |error| Failure::system("cannot start the command", error);
    let (starter, its_end) = pair().map_err(failed)?;
    let command = Command::new(SELF)
        .arg0("leasehold")
        .arg(STARTER)
        .arg(getpid().as_raw_nonzero().to_string())
        .args(arguments)
        .stdin(Stdio::from(its_end))
        .process_group(group)
        .spawn()
        .map_err(failed)?;
    let command = Pid::from_child(&command);
    if let Some(group) = Pid::from_raw(group) {
        leave_session(group);
    }
    tell_front(&socket, FromKeeper::Started(command.as_raw_nonzero().get()));
    let keeper = Keeper {
        socket,
        timer,
        on_loss,
        grace: Duration::from_millis(grace),
        max: last_moment(end),
        command,
        held_back: Some((starter, stdin)),
        joined: Pid::from_raw(group),
        lets_live,
        end: None,
        warning: None,
        kill_by: None,
        kill_at: None,
        leftovers_end: None,
        has_warned: false,
        round: ROUNDS[0],
        is_front_gone: false,
    };
    Ok(keeper.run(&signals))
}

/// Leaves the session of the terminal. A group that nobody of its session could continue is not stopped by ^Z, such as below
/// `ssh -t HOST leasehold run …`. The kernel takes a parent in another group for somebody who could.
fn leave_session(front: Pid) {
    // The leader of a group cannot leave the session, so this process joins the front's group for a moment.
    if setpgid(None, Some(front)).is_ok() && setsid().is_err() {
        let _ = setpgid(None, None);
    }
}

/// Tries the calls on which the end of the command depends. All others fail where they are first used, which is before the
/// command starts.
fn try_calls(timer: &OwnedFd) -> std::io::Result<()> {
    descendants::try_calls()?;
    set_timer(timer, 0)?;
    poll(&mut [], Some(&Timespec::default()))?;
    Ok(())
}

impl Keeper {
    /// Returns the command's exit status, once it and all its descendants have ended, or those that may live on are left.
    fn run(mut self, signals: &SignalFd) -> u8 {
        loop {
            while signals::next(signals).is_some() {}
            let is_childless = descendants::reap(|pid, status| self.child_changed(pid, status));
            // All that has arrived comes before what is due: after a pause, a later deadline may be among it, or a loss.
            while self.has_message() {
                self.hear();
            }
            // Those that TERM was sent to, for a loss or `--max`, must still end before the lock does.
            let is_left = self.lets_live && self.kill_at.is_none() && !self.has_warned;
            if is_childless || (is_left && self.end.is_some()) {
                // The command was a child until `reap` took its status.
                let end = self.end.unwrap_or(End::Exited(SYSTEM));
                tell_front(&self.socket, FromKeeper::Ended(end));
                return end.status();
            }
            self.act(now());
            self.sleep(signals);
        }
    }

    fn child_changed(&mut self, child: Pid, status: WaitStatus) {
        if child != self.command || self.end.is_some() {
            // A descendant whose parent had ended.
            return;
        }
        let stop = status.stopping_signal().and_then(Signal::from_named_raw);
        // Not STOP: a person who sends that will continue the command by hand, and the front keeps the lock meanwhile.
        let is_of_job_control = matches!(stop, Some(Signal::TSTP | Signal::TTIN | Signal::TTOU));
        if is_of_job_control && self.joined.is_some() {
            tell_front(&self.socket, FromKeeper::Stopped);
        }
        let number = |number: i32| number.try_into().unwrap_or(u8::MAX);
        let exited = status.exit_status().map(number).map(End::Exited);
        let killed = status.terminating_signal().map(number).map(End::Killed);
        let Some(end) = exited.or(killed) else {
            return;
        };
        self.end = Some(end);
        self.leftovers_end = Some(after(now(), LEFTOVER_TIME));
    }

    /// Sends what is due.
    fn act(&mut self, now: Time) {
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        let (warning, kill_by) = self.times_of_lease();
        if (is_due(warning) || is_due(kill_by)) && !self.has_warned && self.kill_at.is_none() {
            self.has_warned = true;
            let is_max = is_due(Some(self.warning_of_max()));
            tell_front(&self.socket, FromKeeper::Warned { is_max });
        }
        if is_due(kill_by) || is_due(self.kill_at) {
            self.kill();
        } else if is_due(warning) {
            self.end(self.grace);
        } else if is_due(self.leftovers_end) && self.kill_at.is_none() {
            // There is one, whatever `/proc` shows.
            let left = descendants::living(&[]).map_or(1, |living| living.len().max(1));
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
        // The starter has blocked all signals.
        let grace = self.held_back.as_ref().map_or(grace, |_| Duration::ZERO);
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

    /// Returns the group that the command leads, if it does.
    fn own_group(&self) -> Option<Pid> {
        self.joined.is_none().then_some(self.command)
    }

    /// Sends a signal to the command's own group, and to all descendants outside of it.
    fn send(&self, signal: Signal) {
        // Once the command is reaped, strangers may get its number.
        let group = self.own_group().filter(|_| self.end.is_none());
        if let Some(group) = group {
            let _ = kill_process_group(group, signal);
        }
        let is_outside = |it: &Process| group.is_none_or(|group| !it.is_in(group));
        descendants::signal(signal, is_outside, &[]);
    }

    /// Sends a round of KILL.
    fn kill(&mut self) {
        // This works even if `/proc` cannot be read, for want of a descriptor.
        if self.end.is_none() {
            let _ = kill_process(self.command, Signal::KILL);
            if let Some(group) = self.own_group() {
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
        descendants::kill(self.own_group(), &[]);
        self.round = (self.round * 2).min(ROUNDS[1]);
    }

    /// Passes a signal of the user on to the command's group, and once the command has ended, to all that it has left.
    fn pass_on(&self, signal: Signal) {
        if self.end.is_some() {
            descendants::signal(signal, |_| true, &[]);
        } else if self.joined.is_none() {
            let _ = kill_process_group(self.command, signal);
        } else if let Ok(group) = getpgid(Some(self.command)) {
            // Mostly the front is in that group, and so may be the rest of a pipeline and the script.
            descendants::signal(signal, |it| it.is_in(group), &[]);
        }
    }

    fn hear(&mut self) {
        match hear_front(&self.socket) {
            Some(ToKeeper::Deadline(at)) => {
                self.set_deadline(at);
                if let Some((starter, stdin)) = self.held_back.take() {
                    // A starter that has died gets none.
                    let _ = send_descriptor(&starter, stdin.as_fd());
                }
            }
            Some(ToKeeper::Lost) if self.on_loss == OnLoss::Ignore => {
                // There is no lease to end before.
                (self.warning, self.kill_by) = (None, None);
            }
            // These times stay: the rest of the lease may be shorter than the grace.
            Some(ToKeeper::Lost) => self.end(self.grace_of_loss()),
            Some(ToKeeper::Signal(signal)) => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    self.pass_on(signal);
                }
            }
            None => {
                self.is_front_gone = true;
                self.end(self.grace_of_loss());
            }
        }
    }

    fn set_deadline(&mut self, at: Time) {
        let kill_by = last_moment(at);
        // Renewals need most of a lease. Nobody renews the time of `--max`.
        let grace = self.grace_of_loss().min(time_until(at) / 3);
        let warning = kill_by - nanoseconds(grace);
        self.kill_by = Some(kill_by.min(self.max));
        self.warning = Some(warning.min(self.warning_of_max()));
    }

    fn warning_of_max(&self) -> Time {
        self.max.saturating_sub(nanoseconds(self.grace_of_loss()))
    }

    /// Returns when TERM and KILL go out because of the lease. A command that goes on after a loss gets them only if the
    /// front has died before.
    fn times_of_lease(&self) -> (Option<Time>, Option<Time>) {
        if self.on_loss == OnLoss::Ignore && !self.is_front_gone {
            return (None, None);
        }
        (self.warning, self.kill_by)
    }

    /// Returns when the next thing is due. Zero is never.
    fn next(&self) -> Time {
        let (warning, kill_by) = self.times_of_lease();
        let first = [warning, self.leftovers_end];
        let first = first
            .into_iter()
            .flatten()
            .min()
            .filter(|_| self.kill_at.is_none());
        let next = [kill_by, self.kill_at, first].into_iter().flatten().min();
        // KILL is repeated until all have ended.
        next.map_or(0, |at| at.max(after(now(), self.round)))
    }

    /// Blocks until the next thing is due, or something has happened.
    fn sleep(&self, signals: &SignalFd) {
        // Without a timer the keeper would sleep through the deadline. If it dies, the front kills all at once.
        set_timer(&self.timer, self.next()).expect("it could be set before");
        let (signals, timer, socket) = (signals.as_fd(), self.timer.as_fd(), self.socket.as_fd());
        let mut polled = vec![
            PollFd::new(&signals, PollFlags::IN),
            PollFd::new(&timer, PollFlags::IN),
        ];
        if !self.is_front_gone {
            polled.push(PollFd::new(&socket, PollFlags::IN));
        }
        // After a failure, the loop looks at everything again.
        let _ = poll(&mut polled, None);
    }

    /// Returns whether the front has sent something, or has died just now.
    fn has_message(&self) -> bool {
        let socket = self.socket.as_fd();
        let mut polled = [PollFd::new(&socket, PollFlags::IN)];
        !self.is_front_gone
            && poll(&mut polled, Some(&Timespec::default())).is_ok()
            && !polled[0].revents().is_empty()
    }
}

/// Returns when KILL goes out if the lease ends at this time.
fn last_moment(end: Time) -> Time {
    end.saturating_sub(nanoseconds(dying_time(time_until(end))))
}

fn time_until(at: Time) -> Duration {
    Duration::from_nanos(at.saturating_sub(now()).try_into().unwrap_or(0))
}

/// Sets the timer to a time. Zero is never.
fn set_timer(timer: &OwnedFd, at: Time) -> std::io::Result<()> {
    let spec = Itimerspec {
        it_interval: Timespec::default(),
        it_value: Timespec {
            tv_sec: at / 1_000_000_000,
            tv_nsec: at % 1_000_000_000,
        },
    };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &spec)?;
    Ok(())
}

fn after(time: Time, span: Duration) -> Time {
    time.saturating_add(nanoseconds(span))
}
