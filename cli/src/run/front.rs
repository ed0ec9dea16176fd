//! The front: it acquires the lock, and serves the keeper until the command has ended.
//!
//! The main thread blocks on one channel for everything that can happen. A thread reads the signals into it, and another the
//! keeper's messages. Both have started when the keeper starts: after that the front starts nothing, and no failure makes
//! it drop the guard. The table in `run` has its exits.
//!
//! | signal | while the front waits for the lock | while the command runs |
//! | --- | --- | --- |
//! | HUP, TERM, USR1, USR2, ALRM | ends the wait | goes to the command's group |
//! | INT, QUIT by another process | ends the wait | goes to the command's group |
//! | INT, QUIT by a key of the terminal | ends the wait | The command has it too, because it is in this process's group. |
//! | TSTP, TTIN, CONT and all others | does to this process what it does to any | the same |
//!
//! After INT or QUIT a shell looks at how its child ended. If the signal killed the child, the shell ends the list, the loop or
//! the script; if not, the child has dealt with the signal, and the shell goes on. An exit status of 130 is not the same to it.
//! So if the signal ends the wait or kills the command, the front gives the lock up, and then dies of the same signal. Martin
//! Cracauer explains it in [Proper handling of SIGINT/SIGQUIT](https://www.cons.org/cracauer/sigint.html).

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use std::{fs, panic, process, thread};

use crossbeam_channel::{Receiver, Sender, bounded, select_biased, unbounded};
use leasehold::{Cancel, Error, Fired, Lease, LockManager, Lost, ReleaseRequest};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;
use rustix::process::{Pid, getpgid, getpgrp, getpid, kill_process, set_child_subreaper};
use serde_json::json;

use super::descendants::{self, Process, ROUNDS};
use super::held::{Held, Wanted};
use super::messages::{End, FromKeeper, ToKeeper, hear_keeper, pair, send_descriptor, tell_keeper};
use super::report::Report;
use super::systemd;
use super::terminal::Terminal;
use super::waiter::{NESTED, Waiter, nested};
use super::{KEEPER, LET_LIVE, OnLoss, Options, SELF, Time, dying_time, nanoseconds, now};
use crate::deployment::Deployment;
use crate::exit::{Failure, LEFT, LOST, MAX, SYSTEM, USAGE};
use crate::servers::Servers;
use crate::signals::{self, Arrived, ENDING};

/// The longest time between two looks at the lease: a twentieth of it, within these bounds.
const LOOKS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// How long the keeper may take, beyond the grace, to end the command after a loss. Then the front kills all processes, because
/// the keeper may be stopped.
const KEEPER_TIME: Duration = Duration::from_secs(1);
/// How long the front waits for the last release when it ends.
const FLUSH: Duration = Duration::from_secs(2);
/// How long the front waits for its line about the holder to vanish.
const ERASE: Duration = Duration::from_millis(100);

/// The exit status after a panic: nothing ran, or since the keeper was started, the command was ended.
static STATUS_OF_PANIC: AtomicU8 = AtomicU8::new(SYSTEM);

/// An event for the main thread.
enum Happened {
    Signal(Arrived),
    /// `None`: the keeper has ended.
    Keeper(Option<FromKeeper>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Limit {
    Lease,
    /// `--max`, or `max_hold` of the URL.
    Max,
}

/// How the command ended.
struct Ended {
    /// `None` if the keeper died, and did not say.
    end: Option<End>,
    /// The last signal of INT and QUIT that this process got.
    interrupt: Option<Signal>,
    lost: Option<Lost>,
    /// The time that was nearly over when the keeper ended the command.
    in_time_for: Option<Limit>,
    /// Whether the keeper ended processes that the command had left behind.
    left_processes: bool,
    /// Whether the keeper has said that the command has started.
    has_started: bool,
    /// The exit status of the keeper, unless a signal killed it.
    keeper_status: Option<i32>,
}

pub fn main(servers: &Servers, mut options: Options) -> Result<u8, Failure> {
    let is_plain = !options.shared && !options.exclusive && options.permits.is_none();
    if options.names.len() > 1 && options.schedule().is_some() {
        let text = "--once-every and --fire are for one name";
        return Err(Failure::new(USAGE, text));
    }
    if options.names.len() > 1 && !is_plain {
        let text = "--shared, --exclusive and --permits are for one name";
        return Err(Failure::new(USAGE, text));
    }
    options.job.take_text();
    let deployment = Deployment::read(servers.url()?);
    options.job.max = options.job.max.or(deployment.max_hold);
    if options.job.max.is_some() && options.job.on_loss == OnLoss::Ignore {
        let text = "--max (or max_hold of the URL) ends the command, and --on-loss ignore lets it go on: choose one";
        return Err(Failure::new(USAGE, text));
    }
    if options.job.max == Some(Duration::ZERO) {
        return Err(Failure::new(USAGE, "--max must be longer than zero"));
    }
    if options
        .job
        .max
        .is_some_and(|max| options.job.grace() >= max)
    {
        let text = "--grace is a part of --max, so it must be shorter";
        return Err(Failure::new(USAGE, text));
    }
    if options.names.iter().any(|name| name.contains('\n')) {
        return Err(Failure::new(USAGE, "a name must have no line break"));
    }
    // The keeper finds the processes that it must end there.
    let number = fs::read_link("/proc/self").unwrap_or_default();
    if number.to_str() != Some(&getpid().as_raw_nonzero().to_string()) {
        let text = "/proc is missing, or is that of other processes (unshare has --mount-proc)";
        return Err(Failure::new(SYSTEM, text));
    }
    end_by_panics();
    // Its own messages must not stop this process if it is in the background, whatever `stty tostop` says.
    let mut output = SigSet::empty();
    output.add(Signal::SIGTTOU);
    output
        .thread_block()
        .map_err(|error| Failure::system("cannot receive signals", error))?;
    // Each thread that starts later inherits the blocked signals.
    let signals = signals::receive(ENDING.into_iter().chain([Signal::SIGCHLD]))?;
    let report = Report::new(&options)
        .map_err(|error| Failure::system("cannot start a thread for messages", error))?;
    if let Some(warning) = servers.warning() {
        report.tell("password_shown", warning, json!({}));
    }
    let exit = run(servers, &options, &report, signals);
    report.finish();
    if let Ok(Exit::Signal(signal)) = exit {
        signals::die_of(signal);
    }
    Ok(exit?.status())
}

/// How this process ends.
#[derive(Clone, Copy)]
enum Exit {
    Status(u8),
    /// By this signal.
    Signal(Signal),
}

impl Exit {
    /// Returns the exit status, as a shell has it.
    fn status(self) -> u8 {
        match self {
            Self::Status(status) => status,
            Self::Signal(signal) => 128 + signal as u8,
        }
    }
}

/// Makes each panic end this process without unwinding. So the guard is not dropped: the keeper ends the command, and the lock
/// stays until its lease is over. That is right whichever thread it was, even one of the library that would survive it.
fn end_by_panics() {
    let show = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        show(panic);
        process::exit(STATUS_OF_PANIC.load(Ordering::SeqCst).into());
    }));
}

fn run(
    servers: &Servers,
    options: &Options,
    report: &Report,
    signals: SignalFd,
) -> Result<Exit, Failure> {
    let (happened, happens) = unbounded();
    let cancel = Cancel::new();
    let signals = Arc::new(Signals {
        arrived: signals,
        happened: Mutex::new(happened.clone()),
        cancel: cancel.clone(),
        waits: AtomicBool::new(true),
    });
    signals.start()?;

    let locks = connect(servers, options)?;
    let waiter = Waiter::new(&locks, report, servers.url()?);
    let (begun, asked_at) = (Instant::now(), SystemTime::now());
    let wait = match options.job.wait {
        _ if options.job.no_wait => Duration::ZERO,
        Some(wait) => wait,
        None => Duration::MAX,
    };
    let around = waiter.held_around().filter(|_| {
        // Another permit may get free.
        !wait.is_zero() && options.permits.is_none_or(|(n, k)| 2 * n > k)
    });
    // A wait for the own end would have none.
    let wait = around.map_or(wait, |_| Duration::ZERO);
    let wanted = Wanted::new(&locks, options, &cancel);
    let acquired = wait_for(&waiter, &wanted, wait);
    signals.waits.store(false, Ordering::SeqCst);
    let held = match acquired {
        Err(Error::Cancelled) => {
            // Otherwise this process could end before it has left the queue.
            let _ = locks.close(FLUSH);
            let signal = happens.try_iter().find_map(|it| match it {
                Happened::Signal(Arrived { signal, .. }) => {
                    ENDING.contains(&signal).then_some(signal)
                }
                Happened::Keeper(_) => None,
            });
            let signal = signal.expect("nothing else cancels the wait");
            return Ok(if is_interrupt(signal) {
                Exit::Signal(signal)
            } else {
                Exit::Status(Exit::Signal(signal).status())
            });
        }
        Err(error) => return Err(error.into()),
        Ok(None) => {
            if let Some(name) = around {
                let text = format!(
                    "{name} is held by the `leasehold run` around this one, which would wait for its own end: nothing ran"
                );
                return Err(Failure::new(USAGE, text));
            }
            if let Some(fired) = wanted.done(asked_at)? {
                tell_done(report, &options.names[0], &fired);
                return Ok(Exit::Status(0));
            }
            waiter.tell_busy(begun.elapsed());
            return Ok(Exit::Status(options.job.busy_status));
        }
        Ok(Some(held)) => held,
    };
    report.log("acquired", granted(&held, begun.elapsed()));

    let ended = Front::start(options, &held, report, happened)?.serve(&held, &happens, &signals);
    // The lock is given up only here, because the command and all its descendants have ended. If one of them had to be killed,
    // the job does not count as done, because that one may have had work left.
    let succeeded = ended.end.map(End::status) == Some(0)
        && ended.in_time_for.is_none()
        && !ended.left_processes;
    if options.at_least_on_success.is_some() && !succeeded {
        held.leases().iter().for_each(Lease::forget_min_hold);
    }
    let released = held.release(succeeded);
    // A release that could not be sent is sent again, and the lock's time runs out otherwise.
    let _ = locks.close(FLUSH);
    let status = conclude(options, report, &ended, &released);
    let killed_by = ended.interrupt.filter(|signal| {
        ended.end == Some(End::Killed(*signal as u8)) && status == Exit::Signal(*signal).status()
    });
    Ok(killed_by.map_or(Exit::Status(status), Exit::Signal))
}

fn connect(servers: &Servers, options: &Options) -> Result<LockManager, Failure> {
    let mut builder = servers.builder()?;
    if let Some(lease) = options.job.lease {
        builder = builder.lease(lease);
    }
    if let Some(at_least) = options.at_least.or(options.at_least_on_success) {
        builder = builder.min_hold(at_least);
    }
    // The keeper ends the command in time, by --max. The limit of the library would only release the lock.
    builder = builder.max_hold(None);
    if let Some(note) = &options.job.note {
        builder = builder.note(note);
    }
    // One lock needs one connection, and a release another. The first request connects, so a server that is down at the start
    // is waited for like one that goes down later.
    Ok(builder.pool_size(2).build_lazy()?)
}

/// The way of signals to the main thread.
struct Signals {
    arrived: SignalFd,
    happened: Mutex<Sender<Happened>>,
    /// Ends the wait for the lock.
    cancel: Cancel,
    waits: AtomicBool,
}

impl Signals {
    /// Starts the thread that sends signals to the main thread, and ends its wait for the lock.
    fn start(self: &Arc<Self>) -> Result<(), Failure> {
        let signals = Arc::clone(self);
        let receive = move || {
            while signals::wait_for_any(&signals.arrived) {
                signals.send_all();
            }
        };
        let started = thread::Builder::new().name("signals".into()).spawn(receive);
        started.map_err(|error| Failure::system("cannot start a thread for signals", error))?;
        Ok(())
    }

    /// Sends all signals that have arrived. None is on its way when this returns.
    fn send_all(&self) {
        let happened = self.happened.lock();
        let happened = happened.unwrap_or_else(PoisonError::into_inner);
        while let Some(arrived) = signals::next(&self.arrived) {
            let cancels = self.waits.load(Ordering::SeqCst) && ENDING.contains(&arrived.signal);
            // A lock that is granted now may not hear of the cancel. Then the command gets this signal. At the end of the main
            // thread nobody listens any more.
            let _ = happened.send(Happened::Signal(arrived));
            if cancels {
                self.cancel.cancel();
            }
        }
    }
}

/// Blocks until the lock is held. Meanwhile a thread tells who holds it.
fn wait_for(waiter: &Waiter, wanted: &Wanted, wait: Duration) -> leasehold::Result<Option<Held>> {
    let (ended, until) = bounded::<()>(0);
    let (shows, has_shown) = bounded::<()>(0);
    let waiter = waiter.clone();
    // Without the thread, the wait is not told.
    let _ = thread::Builder::new().spawn(move || {
        let _shows = shows;
        waiter.tell(&until);
    });
    let acquired = wanted.acquire(wait);
    drop(ended);
    // So that the line is gone before the command writes. A terminal that takes no text must not delay the command.
    let _ = has_shown.recv_timeout(ERASE);
    acquired
}

fn tell_done(report: &Report, name: &str, fired: &Fired) {
    let moment = |moment| humantime::format_rfc3339_seconds(moment).to_string();
    let (fire, at) = (moment(fired.fire), moment(fired.at));
    let by = fired.label.as_deref().unwrap_or("another client");
    let text = format!("{name} of {fire} was done by {by} at {at}, and nothing ran");
    report.tell(
        "done",
        &text,
        json!({ "fire": fire, "at": at, "label": fired.label }),
    );
}

fn granted(held: &Held, waited: Duration) -> serde_json::Value {
    let leases = held.leases();
    json!({
        "fences": leases.iter().map(Lease::fence).collect::<Vec<_>>(),
        "owner": leases[0].owner(),
        "waited": waited.as_secs_f64(),
    })
}

struct Front<'a> {
    report: &'a Report,
    keeper: OwnedFd,
    /// The process of the keeper.
    keeper_process: Pid,
    /// Whether the command is in the group of this process. Otherwise it leads a group of its own.
    shares_group: bool,
    /// The command's process, once it has started.
    command: Option<Pid>,
    /// When the lease, or the time of `--max`, is over.
    deadline: Time,
    /// Whether the keeper has been told this deadline.
    knows_deadline: bool,
    /// When `--max` is over.
    end: Option<Time>,
    /// The descendants that this process had before the keeper, of the program that it replaced by `exec`. Nothing tells an
    /// orphan that they leave later from one of the command.
    others: Vec<Process>,
    /// The time between TERM and KILL. `None` if a loss does not end the command.
    grace: Option<Duration>,
    /// Whether the keeper's end of the socket has closed.
    keeper_has_ended: bool,
    /// When the keeper is late with the deadline, half of the dying time before it.
    kill_by: Time,
    /// When the keeper is late after a loss.
    kill_at: Option<Instant>,
    /// The time until the next round of KILL. `None` until this process kills all, because the keeper has died or is late.
    round: Option<Duration>,
    ended: Ended,
}

impl<'a> Front<'a> {
    /// Starts the keeper: step 2 of the protocol.
    fn start(
        options: &Options,
        held: &Held,
        report: &'a Report,
        happened: Sender<Happened>,
    ) -> Result<Self, Failure> {
        let failed = |error| Failure::system("cannot start the keeper", error);
        // So that this process inherits the command's descendants if the keeper dies.
        set_child_subreaper(Some(getpid())).map_err(|error| failed(error.into()))?;
        descendants::try_calls().map_err(failed)?;
        let others = descendants::living(&[]).map_err(failed)?;
        let shares_group = Terminal::open().is_some();
        let group = if shares_group {
            getpgrp().as_raw_nonzero().get()
        } else {
            0
        };
        let end = options
            .job
            .max
            .map(|max| now().saturating_add(nanoseconds(max)));
        let (keeper, its_end) = pair().map_err(failed)?;
        hear(keeper.try_clone().map_err(failed)?, happened).map_err(failed)?;
        send_descriptor(&keeper, rustix::stdio::stdin()).map_err(failed)?;
        let leases = held.leases();
        let lines =
            |of: &dyn Fn(&Lease) -> String| leases.iter().map(of).collect::<Vec<_>>().join("\n");
        let keeper_process = Command::new(SELF)
            .arg0("leasehold")
            .arg(KEEPER)
            .arg(format!("{:?}", options.job.on_loss))
            .arg(options.job.grace().as_millis().to_string())
            .arg(end.unwrap_or(Time::MAX).to_string())
            .arg(group.to_string())
            .arg(if options.job.let_live { LET_LIVE } else { "" })
            .args(&options.job.command)
            .env("LEASEHOLD_NAME", lines(&|lease| lease.name().to_owned()))
            .env("LEASEHOLD_FENCE", lines(&|lease| lease.fence().to_string()))
            .env("LEASEHOLD_OWNER", leases[0].owner())
            .env(NESTED, nested(leases))
            .envs(systemd::of_command())
            .stdin(Stdio::from(its_end))
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        STATUS_OF_PANIC.store(LOST, Ordering::SeqCst);
        let mut front = Self {
            report,
            keeper,
            keeper_process: Pid::from_child(&keeper_process),
            shares_group,
            others,
            command: None,
            deadline: 0,
            knows_deadline: true,
            grace: (options.job.on_loss != OnLoss::Ignore).then_some(options.job.grace()),
            keeper_has_ended: false,
            kill_by: Time::MAX,
            kill_at: None,
            round: None,
            end,
            ended: Ended {
                end: None,
                interrupt: None,
                lost: None,
                in_time_for: None,
                left_processes: false,
                has_started: false,
                keeper_status: None,
            },
        };
        front.send_deadline(held);
        Ok(front)
    }

    /// Blocks until the command and all its descendants have ended.
    fn serve(mut self, held: &Held, happens: &Receiver<Happened>, signals: &Signals) -> Ended {
        let mut losses = held.on_lost();
        let names = held.leases().iter().map(|lease| lease.name().to_owned());
        let requests = held.leases().iter().map(Lease::on_requested);
        let requests: Vec<_> = names.zip(requests).collect();
        while !self.all_have_ended() {
            self.send_deadline(held);
            self.show(&requests);
            select_biased! {
                recv(losses) -> lost => {
                    if let Ok(lost) = lost {
                        self.lost(lost);
                    }
                    losses = crossbeam_channel::never();
                }
                recv(happens) -> it => match it {
                    Ok(Happened::Keeper(Some(FromKeeper::Started(pid)))) => {
                        // The command has blocked all signals until it gets its first deadline. One that the terminal has sent
                        // until now goes to it once more, because it may have come before the process: to the command both are one.
                        signals.send_all();
                        for it in happens.try_iter() {
                            self.happened(it);
                        }
                        self.started(pid);
                    }
                    Ok(it) => self.happened(it),
                    Err(_) => self.keeper_has_ended = true,
                },
                default(self.time_to_look(held)) => {}
            }
        }
        // A key reaches this process before the kernel tells of the command's end, but the thread that reads it may be late.
        signals.send_all();
        for it in happens.try_iter() {
            match it {
                Happened::Signal(Arrived { signal, .. }) if is_interrupt(signal) => {
                    self.ended.interrupt = Some(signal);
                }
                Happened::Signal(_) | Happened::Keeper(_) => {}
            }
        }
        self.ended
    }

    /// Takes the ends of children, kills all if that is due, and returns whether the keeper and all that it has started have
    /// ended.
    fn all_have_ended(&mut self) -> bool {
        let is_childless = descendants::reap(|child, status| {
            if child == self.keeper_process {
                self.ended.keeper_status = status.exit_status();
            }
        });
        if is_childless || self.ended.end.is_some() {
            // The last messages of the keeper may still be on their way.
            return self.keeper_has_ended;
        }
        let Some(round) = self.round.or_else(|| self.begins_to_kill()) else {
            return false;
        };
        self.round = Some((round * 2).min(ROUNDS[1]));
        let own_group = self.command.filter(|_| !self.shares_group);
        let has_child = descendants::kill(own_group, &self.others);
        // Beside the others, this process never gets childless. But dead children count here, and none was taken meanwhile.
        self.keeper_has_ended && !has_child && !self.others.is_empty()
    }

    /// Returns the time until the second round of KILL if this process must kill all from now on.
    fn begins_to_kill(&self) -> Option<Duration> {
        let is_late = self.kill_at.is_some_and(|at| at <= Instant::now())
            || (self.grace.is_some() && self.kill_by <= now());
        if !is_late && !self.keeper_has_ended {
            return None;
        }
        if self.ended.has_started {
            let text = if self.keeper_has_ended {
                "the keeper has died, so the command is killed"
            } else {
                "the keeper has not ended the command in time, so both are killed"
            };
            self.report.fail("keeper_died", text, json!({}));
        }
        Some(ROUNDS[0])
    }

    /// Returns how long to wait for the next event.
    fn time_to_look(&self, held: &Held) -> Duration {
        let left = held.leases().iter().map(Lease::remaining).min();
        let is_held = left.filter(|left| !left.is_zero());
        let look = is_held.map_or(LOOKS[1], |left| (left / 20).clamp(LOOKS[0], LOOKS[1]));
        let late = self
            .kill_at
            .map(|at| at.saturating_duration_since(Instant::now()));
        self.round.or(late).map_or(look, |time| time.min(look))
    }

    /// Shows the requests to release that have arrived. Their channels do not wake this thread, so that a name costs no
    /// thread. A person can wait for the next look.
    fn show(&self, requests: &[(String, Receiver<ReleaseRequest>)]) {
        for (name, requests) in requests {
            for request in requests.try_iter() {
                let text = format!("somebody asks for {name}: {}", request.why);
                let fields = json!({ "name": name, "why": request.why });
                self.report.tell("requested", &text, fields);
            }
        }
    }

    /// Tells the keeper the deadline if it has moved, or could not be told before.
    fn send_deadline(&mut self, held: &Held) {
        // The clock is read first: a pause between the two must not make the deadline later.
        let now = now();
        let left = held.leases().iter().map(Lease::remaining).min();
        let lease_end = now.saturating_add(nanoseconds(left.unwrap_or_default()));
        let deadline = self.end.map_or(lease_end, |end| end.min(lease_end));
        // The same deadline differs by a few microseconds each time.
        if left.is_some_and(|left| !left.is_zero()) && deadline.abs_diff(self.deadline) > 1_000_000
        {
            let left = Duration::from_nanos(u64::try_from(deadline - now).unwrap_or(0));
            self.kill_by = deadline - nanoseconds(dying_time(left) / 2);
            self.deadline = deadline;
            self.knows_deadline = false;
        }
        if !self.knows_deadline && self.command.is_some() {
            // The first one starts the command. A keeper that is stopped for long may take no more. Then the next look tries again.
            self.knows_deadline = tell_keeper(&self.keeper, ToKeeper::Deadline(self.deadline));
        }
    }

    fn lost(&mut self, lost: Lost) {
        // If the keeper does not take it, this process kills all a little later.
        let _ = tell_keeper(&self.keeper, ToKeeper::Lost);
        let time = self.grace.map(|grace| grace + KEEPER_TIME);
        self.kill_at = self.kill_at.or_else(|| Instant::now().checked_add(time?));
        self.report.lost(&lost);
        self.ended.lost = Some(lost);
    }

    fn happened(&mut self, it: Happened) {
        match it {
            Happened::Signal(arrived) => self.got(&arrived),
            Happened::Keeper(Some(message)) => self.heard(message),
            Happened::Keeper(None) => self.keeper_has_ended = true,
        }
    }

    fn started(&mut self, command: i32) {
        self.command = Pid::from_raw(command);
        self.ended.has_started = true;
        self.report.log("started", json!({ "pid": command }));
    }

    fn heard(&mut self, message: FromKeeper) {
        match message {
            FromKeeper::Started(command) => self.started(command),
            FromKeeper::Stopped => self.stop(),
            FromKeeper::Warned { is_max } => {
                if is_max {
                    self.ended.in_time_for = Some(Limit::Max);
                    let text = "the longest time of the lock (--max, or max_hold of the URL) is nearly over, so the command \
                                is ended";
                    self.report.fail("max", text, json!({}));
                } else {
                    self.ended.in_time_for = Some(Limit::Lease);
                    let text = "the lock is nearly lost, so the command is ended";
                    self.report.fail("at_risk", text, json!({}));
                }
            }
            FromKeeper::Left(processes) => {
                self.ended.left_processes = true;
                let what = match processes {
                    1 => "a process behind, which is".to_owned(),
                    _ => format!("{processes} processes behind, which are"),
                };
                let text = format!("the command left {what} ended (--let-live would not)");
                let fields = json!({ "processes": processes });
                self.report.fail("left_behind", &text, fields);
            }
            FromKeeper::Ended(end) => self.ended.end = Some(end),
        }
    }

    /// Stops this process too if the command has stopped alone, as `ssh` does after `~^Z`. Only then does the shell take the
    /// terminal back. A key has stopped both, and by now the shell has continued both.
    fn stop(&self) {
        if self.command.is_some_and(descendants::is_stopped) {
            let _ = kill_process(getpid(), rustix::process::Signal::TSTP);
        }
    }

    /// Passes a signal on, unless the command has it already.
    fn got(&mut self, arrived: &Arrived) {
        let signal = arrived.signal;
        if is_interrupt(signal) {
            self.ended.interrupt = Some(signal);
            // A command that has left the group does not hear the keys.
            let is_here = |command| getpgid(Some(command)) == Ok(getpgrp());
            if arrived.is_of_kernel && self.command.is_some_and(is_here) {
                return;
            }
        }
        // The end of a child has ended the sleep of the main thread, which reaps.
        if signal == Signal::SIGCHLD {
            return;
        }
        let number = signal as i32;
        if !self.keeper_has_ended {
            // A keeper that has been stopped for long may take no more.
            let _ = tell_keeper(&self.keeper, ToKeeper::Signal(number));
        } else if let Some(signal) = rustix::process::Signal::from_named_raw(number) {
            // Those that this process cannot kill work on.
            descendants::signal(signal, |_| true, &self.others);
        }
    }
}

/// Starts a thread that reads the keeper's messages into the channel.
fn hear(keeper: OwnedFd, happened: Sender<Happened>) -> io::Result<()> {
    let hear = move || {
        loop {
            let message = hear_keeper(&keeper);
            // The main thread ends after it has heard that the keeper has.
            let _ = happened.send(Happened::Keeper(message));
            if message.is_none() {
                return;
            }
        }
    };
    thread::Builder::new().name("keeper".into()).spawn(hear)?;
    Ok(())
}

/// Returns whether shells look at how a child ended after this signal.
fn is_interrupt(signal: Signal) -> bool {
    matches!(signal, Signal::SIGINT | Signal::SIGQUIT)
}

fn conclude(
    options: &Options,
    report: &Report,
    ended: &Ended,
    released: &leasehold::Result<()>,
) -> u8 {
    let is_lost = ended.lost.is_some()
        || ended.in_time_for == Some(Limit::Lease)
        || matches!(released, Err(Error::Lost(_)));
    match (&ended.lost, released) {
        (None, Err(Error::Lost(lost))) => report.lost(lost),
        (_, Err(error)) if !matches!(error, Error::Lost(_)) => {
            let (event, text) = match error {
                _ if options.schedule().is_none() => (
                    "release_failed",
                    "the release failed, so the lock ends by its lease",
                ),
                Error::NotReplicated { .. } => (
                    "done_failed",
                    "the fire is recorded, but a failover may lose that",
                ),
                Error::Denied { .. } | Error::WrongType { .. } | Error::Unsupported { .. } => {
                    ("done_failed", "the fire is not recorded")
                }
                _ => ("done_failed", "whether the fire is recorded is not known"),
            };
            let fields = json!({ "error": format!("{error:#}") });
            report.fail(event, &format!("{text}: {error:#}"), fields);
        }
        _ => {}
    }
    let command_status = ended.end.map(End::status);
    let status = match command_status {
        Some(_) if is_lost && options.job.on_loss != OnLoss::Ignore => LOST,
        Some(_) if ended.in_time_for == Some(Limit::Max) => MAX,
        // The command is no success that counts.
        Some(0) if options.schedule().is_some() && released.is_err() => LOST,
        Some(0) if ended.left_processes => LEFT,
        Some(status) => status,
        None if ended.has_started => LOST,
        // It may have died between the start of the command and the message about it.
        None if ended.keeper_status != Some(SYSTEM.into()) => {
            report.fail("keeper_died", "the keeper has died", json!({}));
            LOST
        }
        None => {
            report.fail("not_started", "the command could not be started", json!({}));
            SYSTEM
        }
    };
    report.log(
        "ended",
        json!({ "status": status, "command_status": command_status }),
    );
    status
}
