//! The front: it acquires the lock, and serves the keeper until the command has ended.
//!
//! The main thread blocks on one channel for everything that can happen. A thread reads the signals into it, and another the
//! keeper's messages. Both have started when the keeper starts: after that the front starts nothing, and no failure makes
//! it drop the guard. The table in `run` has its exits.
//!
//! | signal | while the front waits for the lock | while the command runs |
//! | --- | --- | --- |
//! | HUP, INT, QUIT, TERM, USR1, USR2, ALRM | ends the wait | goes to the command's group |
//! | TSTP | stops the front | goes to the command's group |
//! | CONT | | the group gets the terminal, if the front has it, and CONT |
//! | WINCH | | goes to the command's group |

use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};
use std::{fs, panic, process, thread};

use crossbeam_channel::{Receiver, Sender, bounded, select_biased, unbounded};
use leasehold::{Cancel, Error, Lease, LockManager, Lost, ReleaseRequest};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;
use rustix::process::{
    Pid, getpid, getppid, getsid, kill_current_process_group, kill_process, set_child_subreaper,
};
use serde_json::json;

use super::descendants::{self, Process, ROUNDS};
use super::held::{Held, Wanted};
use super::messages::{FromKeeper, ToKeeper, hear_keeper, pair, send_descriptor, tell_keeper};
use super::report::Report;
use super::systemd;
use super::terminal::Terminal;
use super::waiter::{NESTED, Waiter, nested};
use super::{KEEPER, OnLoss, Options, SELF, Time, dying_time, nanoseconds, now};
use crate::deployment::Deployment;
use crate::exit::{Failure, LOST, MAX, SYSTEM, USAGE};
use crate::servers::Servers;
use crate::signals::{self, ENDING, PASSED_ON_TOO};

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
    Signal(Signal),
    /// `None`: the keeper has ended.
    Keeper(Option<FromKeeper>),
}

/// How the command ended.
struct Ended {
    /// `None` if the keeper died, and did not say.
    status: Option<u8>,
    lost: Option<Lost>,
    /// Whether the keeper ended the command, because the lease was nearly over.
    was_warned: bool,
    /// The same for the time of `--max`.
    was_too_long: bool,
    /// Whether the keeper has said that the command has started.
    has_started: bool,
    /// The exit status of the keeper, unless a signal killed it.
    keeper_status: Option<i32>,
}

pub fn main(servers: &Servers, mut options: Options) -> Result<u8, Failure> {
    let is_plain = !options.shared && !options.exclusive && options.permits.is_none();
    if options.names.len() > 1 && !is_plain {
        let text = "--shared, --exclusive and --permits are for one name";
        return Err(Failure::new(USAGE, text));
    }
    let deployment = Deployment::read(servers.url()?);
    options.max = options.max.or(deployment.max_hold);
    if options.max.is_some() && options.on_loss == OnLoss::Ignore {
        let text = "--max (or max_hold of the URL) ends the command, and --on-loss ignore lets it go on: choose one";
        return Err(Failure::new(USAGE, text));
    }
    if options.max == Some(Duration::ZERO) {
        return Err(Failure::new(USAGE, "--max must be longer than zero"));
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
    let passed_on = ENDING.into_iter().chain(PASSED_ON_TOO);
    let signals = signals::receive(passed_on.chain([Signal::SIGCHLD]))?;
    let report = Report::new(&options)
        .map_err(|error| Failure::system("cannot start a thread for messages", error))?;
    if let Some(warning) = servers.warning() {
        report.tell("password_shown", warning, json!({}));
    }
    let status = run(servers, &options, &report, signals);
    report.finish();
    status
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
) -> Result<u8, Failure> {
    let (happened, happens) = unbounded();
    let cancel = Cancel::new();
    let waits = Arc::new(AtomicBool::new(true));
    receive_signals(
        signals,
        happened.clone(),
        cancel.clone(),
        Arc::clone(&waits),
    )?;

    let locks = connect(servers, options)?;
    let waiter = Waiter::new(&locks, report, servers.url()?);
    let begun = Instant::now();
    let wait = match options.wait {
        _ if options.no_wait => Duration::ZERO,
        Some(wait) => wait,
        None => Duration::MAX,
    };
    let around = waiter.held_around().filter(|_| !wait.is_zero());
    // A wait for the own end would have none.
    let wait = around.map_or(wait, |_| Duration::ZERO);
    let wanted = Wanted::new(&locks, options, &cancel);
    let acquired = wait_for(&waiter, &wanted, wait);
    waits.store(false, Ordering::SeqCst);
    let held = match acquired {
        Err(Error::Cancelled) => {
            let signal = happens.try_iter().find_map(|it| match it {
                Happened::Signal(signal) if ENDING.contains(&signal) => Some(signal),
                _ => None,
            });
            // Only such a signal cancels the wait.
            let number = signal.map_or(0, |signal| signal as i32);
            return Ok(u8::try_from(128 + number).unwrap_or(u8::MAX));
        }
        Err(error) => return Err(error.into()),
        Ok(None) => {
            if let Some(name) = around {
                let text = format!(
                    "{name} is held by the `leasehold run` around this one, which would wait for its own end: nothing ran"
                );
                return Err(Failure::new(USAGE, text));
            }
            waiter.tell_busy(begun.elapsed());
            return Ok(options.busy_status);
        }
        Ok(Some(held)) => held,
    };
    report.log("acquired", granted(&held, begun.elapsed()));

    let ended = Front::start(options, &held, report, happened)?.serve(&held, &happens);
    // The one place where the lock is given up: the command and all its descendants have ended.
    let released = held.release();
    // A release that could not be sent is sent again, and the lock's time runs out otherwise.
    let _ = locks.close(FLUSH);
    Ok(conclude(options, report, &ended, &released))
}

fn connect(servers: &Servers, options: &Options) -> Result<LockManager, Failure> {
    let mut builder = servers.builder()?;
    if let Some(lease) = options.lease {
        builder = builder.lease(lease);
    }
    if let Some(at_least) = options.at_least {
        builder = builder.min_hold(at_least);
    }
    // The keeper ends the command in time, by --max. The limit of the library would only release the lock.
    builder = builder.max_hold(None);
    if let Some(note) = &options.note {
        builder = builder.note(note);
    }
    // One lock needs one connection, and a release another. The first request connects, so a server that is down at the start
    // is waited for like one that goes down later.
    Ok(builder.pool_size(2).build_unchecked()?)
}

/// Starts a thread that passes signals to the main thread, and ends its wait for the lock.
fn receive_signals(
    signals: SignalFd,
    happened: Sender<Happened>,
    cancel: Cancel,
    waits: Arc<AtomicBool>,
) -> Result<(), Failure> {
    let receive = move || {
        while let Some(signal) = signals::wait(&signals) {
            let waits = waits.load(Ordering::SeqCst);
            match signal {
                Signal::SIGTSTP if waits => {
                    let _ = kill_process(getpid(), rustix::process::Signal::STOP);
                    continue;
                }
                Signal::SIGCONT | Signal::SIGWINCH if waits => continue,
                _ => {}
            }
            // A lock that is granted now may not hear of the cancel. Then the command gets this signal.
            if happened.send(Happened::Signal(signal)).is_err() {
                return;
            }
            if waits && ENDING.contains(&signal) {
                cancel.cancel();
            }
        }
    };
    let started = thread::Builder::new().name("signals".into()).spawn(receive);
    started.map_err(|error| Failure::system("cannot start a thread for signals", error))?;
    Ok(())
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
    terminal: Option<Terminal>,
    /// The command's process and its group, once it has started.
    command: Option<Pid>,
    /// Whether the command gets the terminal when the shell gives it to this process. A command that writes to a pipe gets it
    /// only after it has read from it: behind the pipe there may be a pager.
    shares_terminal: bool,
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
    /// Starts the keeper. Steps 2 and 3 of the protocol.
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
        let terminal = Terminal::open();
        let shares_terminal = io::stdout().is_terminal();
        let is_foreground = shares_terminal && terminal.as_ref().is_some_and(Terminal::is_ours);
        let end = options
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
            .arg(format!("{:?}", options.on_loss))
            .arg(options.grace.as_millis().to_string())
            .arg(if is_foreground { "1" } else { "0" })
            .args(&options.command)
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
            terminal,
            shares_terminal,
            others,
            command: None,
            deadline: 0,
            knows_deadline: true,
            grace: (options.on_loss != OnLoss::Ignore).then_some(options.grace),
            keeper_has_ended: false,
            kill_by: Time::MAX,
            kill_at: None,
            round: None,
            end,
            ended: Ended {
                status: None,
                lost: None,
                was_warned: false,
                was_too_long: false,
                has_started: false,
                keeper_status: None,
            },
        };
        // The keeper starts the command after this.
        front.send_deadline(held);
        Ok(front)
    }

    /// Blocks until the command and all its descendants have ended.
    fn serve(mut self, held: &Held, happens: &Receiver<Happened>) -> Ended {
        self.wait(held, happens);
        if let (Some(terminal), Some(command)) = (&self.terminal, self.command) {
            terminal.take_from(command);
        }
        self.ended
    }

    fn wait(&mut self, held: &Held, happens: &Receiver<Happened>) {
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
                    Ok(Happened::Signal(signal)) => self.signal(signal),
                    Ok(Happened::Keeper(Some(message))) => self.heard(message),
                    Ok(Happened::Keeper(None)) | Err(_) => self.keeper_has_ended = true,
                },
                default(self.time_to_look(held)) => {}
            }
        }
    }

    /// Takes the ends of children, kills all if that is due, and returns whether the keeper and all that it has started have
    /// ended.
    fn all_have_ended(&mut self) -> bool {
        let is_childless = descendants::reap(|child, status| {
            if child == self.keeper_process {
                self.ended.keeper_status = status.exit_status();
            }
        });
        if is_childless || self.ended.status.is_some() {
            // The last messages of the keeper may still be on their way.
            return self.keeper_has_ended;
        }
        let Some(round) = self.round.or_else(|| self.begins_to_kill()) else {
            return false;
        };
        self.round = Some((round * 2).min(ROUNDS[1]));
        let has_child = descendants::kill(self.command, &self.others);
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
        if !self.knows_deadline {
            // A keeper that is stopped for long may take no more. Then the next look tries again.
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

    fn heard(&mut self, message: FromKeeper) {
        match message {
            FromKeeper::Started(pid) => {
                self.command = Pid::from_raw(pid);
                self.ended.has_started = true;
                self.report.log("started", json!({ "pid": pid }));
            }
            FromKeeper::Stopped(signal) => self.stopped(signal),
            FromKeeper::Warned => {
                if self.end == Some(self.deadline) {
                    self.ended.was_too_long = true;
                    let text = "the longest time of the lock (--max, or max_hold of the URL) is nearly over, so the command \
                                is ended";
                    self.report.fail("max", text, json!({}));
                } else {
                    self.ended.was_warned = true;
                    let text = "the lock is nearly lost, so the command is ended";
                    self.report.fail("at_risk", text, json!({}));
                }
            }
            FromKeeper::Left(processes) => {
                let text = match processes {
                    1 => "the command left a process behind, which is ended".to_owned(),
                    _ => format!("the command left {processes} processes behind, which are ended"),
                };
                self.report
                    .tell("left_behind", &text, json!({ "processes": processes }));
            }
            FromKeeper::Ended(status) => self.ended.status = Some(status),
        }
    }

    /// Passes a signal on to the command's group.
    fn signal(&mut self, signal: Signal) {
        match signal {
            // It has ended the sleep of the main thread, which reaps.
            Signal::SIGCHLD => {}
            Signal::SIGCONT => self.continued(),
            _ => self.pass_on(signal),
        }
    }

    /// The command has stopped. If it had the terminal, or wants it, this process stops too, so that the shell gets its
    /// terminal back and shows the job as stopped.
    fn stopped(&mut self, signal: i32) {
        let Some(terminal) = &self.terminal else {
            return;
        };
        let has_terminal = self.command.is_some_and(|command| terminal.is_of(command));
        let wants_terminal = signal == Signal::SIGTTIN as i32 || signal == Signal::SIGTTOU as i32;
        let is_ctrl_z = signal == Signal::SIGTSTP as i32 && terminal.is_ours();
        if wants_terminal && terminal.is_ours() {
            self.shares_terminal = true;
            self.continued();
        } else if has_terminal || wants_terminal || is_ctrl_z {
            if is_without_shell() {
                // Nobody could continue this process. A command that wants the terminal would only stop again.
                if !wants_terminal {
                    self.continued();
                }
                return;
            }
            // All processes of the job, such as a `cat` behind a pipe, and this one. Another signal than STOP would be
            // read here after the job is continued.
            let _ = kill_current_process_group(rustix::process::Signal::STOP);
            // Here the shell has continued the job. The signal CONT has arrived too.
        }
    }

    /// The shell continues the job: in the foreground if it has given it the terminal.
    fn continued(&mut self) {
        if let (Some(terminal), Some(command), true) =
            (&self.terminal, self.command, self.shares_terminal)
        {
            if terminal.is_ours() {
                let _ = terminal.hand_to(command);
            }
        }
        self.pass_on(Signal::SIGCONT);
    }

    fn pass_on(&self, signal: Signal) {
        let number = signal as i32;
        if !self.keeper_has_ended {
            // A keeper that has been stopped for long may take no more.
            let _ = tell_keeper(&self.keeper, ToKeeper::Signal(number));
        } else if let Some(signal) = rustix::process::Signal::from_named_raw(number) {
            // Those that this process cannot kill work on.
            descendants::signal(signal, None, &self.others);
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

/// Returns whether no process of this session could continue this process: its parent is in another session, as under
/// `ssh -t HOST leasehold run …`.
fn is_without_shell() -> bool {
    let session = |process| getsid(process).ok();
    getppid().is_none_or(|parent| session(Some(parent)) != session(None))
}

fn conclude(
    options: &Options,
    report: &Report,
    ended: &Ended,
    released: &leasehold::Result<()>,
) -> u8 {
    let is_lost =
        ended.lost.is_some() || ended.was_warned || matches!(released, Err(Error::Lost(_)));
    match (&ended.lost, released) {
        (None, Err(Error::Lost(lost))) => report.lost(lost),
        (_, Err(error)) if !matches!(error, Error::Lost(_)) => {
            let text = format!("the release failed, so the lock ends by its lease: {error:#}");
            report.fail(
                "release_failed",
                &text,
                json!({ "error": format!("{error:#}") }),
            );
        }
        _ => {}
    }
    let status = match ended.status {
        Some(_) if is_lost && options.on_loss != OnLoss::Ignore => LOST,
        Some(_) if ended.was_too_long => MAX,
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
        json!({ "status": status, "command_status": ended.status }),
    );
    status
}
