//! The front: it acquires the lock, and serves the keeper until the command has ended.
//!
//! The main thread blocks on one channel for everything that can happen. A thread reads the signals into it, another the
//! keeper's messages, and one for each lock the requests to release it.
//!
//! | signal | while the front waits for the lock | while the command runs |
//! | --- | --- | --- |
//! | HUP, INT, QUIT, TERM, USR1, USR2, ALRM | ends the wait | goes to the command's group |
//! | TSTP | stops the front | goes to the command's group |
//! | CONT | | the group gets the terminal, if the front has it, and CONT |
//! | WINCH | | goes to the command's group |

use std::fs;
use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, select_biased, unbounded};
use leasehold::{Cancel, Error, Lease, LockManager, Lost};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;
use rustix::process::{
    Pid, WaitOptions, getpid, getppid, getsid, kill_current_process_group, kill_process,
    set_child_subreaper, wait,
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use super::held::{Held, Wanted};
use super::keeper::ROUNDS;
use super::messages::{FromKeeper, ToKeeper, hear_keeper, pair, send_descriptor, tell_keeper};
use super::report::{self, Report};
use super::terminal::Terminal;
use super::{KEEPER, OnLoss, Options, SELF, descendants};
use crate::exit::{Failure, LOST, SYSTEM, USAGE};
use crate::servers::Servers;
use crate::signals::{self, ENDING, PASSED_ON_TOO};

/// The longest time between two looks at the lease: a twentieth of it, within these bounds.
const LOOKS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// How long the keeper may take, beyond the grace, to end the command after a loss. Then the front kills all processes: the
/// keeper may be stopped.
const KEEPER_TIME: Duration = Duration::from_secs(1);
/// How long the front waits for the last release when it ends.
const FLUSH: Duration = Duration::from_secs(2);
/// How long the front waits for its line about the holder to vanish.
const ERASE: Duration = Duration::from_millis(100);

/// An event for the main thread.
enum Happened {
    Signal(Signal),
    /// `None`: the keeper has ended.
    Keeper(Option<FromKeeper>),
    /// Somebody asks for a lock, and why.
    Requested(String, String),
}

/// How the command ended.
struct Ended {
    /// `None` if the keeper died, and did not say.
    status: Option<u8>,
    lost: Option<Lost>,
    /// Whether the keeper ended the command, because the lease or `--max` was nearly over.
    was_warned: bool,
    has_started: bool,
}

pub fn main(servers: &Servers, options: &Options) -> Result<u8, Failure> {
    let is_plain = !options.shared && !options.exclusive && options.permits.is_none();
    if options.names.len() > 1 && !is_plain {
        let text = "--shared, --exclusive and --permits are for one name";
        return Err(Failure::new(USAGE, text));
    }
    if options.max.is_some() && options.on_loss == OnLoss::Ignore {
        let text = "--max ends the command, and --on-loss ignore lets it go on: choose one";
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
    // Its own messages must not stop this process if it is in the background, whatever `stty tostop` says.
    let mut output = SigSet::empty();
    output.add(Signal::SIGTTOU);
    output
        .thread_block()
        .map_err(|error| Failure::system("cannot receive signals", error))?;
    // Each thread that starts later inherits the blocked signals.
    let passed_on = ENDING.into_iter().chain(PASSED_ON_TOO);
    let signals = signals::receive(passed_on.chain([Signal::SIGCHLD]))?;
    let report = Report::new(options);
    let status = run(servers, options, &report, signals);
    report.finish();
    status
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
    );

    let locks = connect(servers, options)?;
    let begun = Instant::now();
    let acquired = wait_for(&locks, options, &cancel, report);
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
            let text = format!(
                "{} is held by others, and nothing ran",
                options.names.join(", ")
            );
            report.tell(
                "busy",
                &text,
                json!({ "waited": begun.elapsed().as_secs_f64() }),
            );
            return Ok(options.busy_status);
        }
        Ok(Some(held)) => held,
    };
    report.log("acquired", granted(&held, begun.elapsed()));

    let ended = Front::start(options, &held, report)?.serve(&held, &happens, happened);
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
    // The keeper ends the command in time. The limit of the library would only release the lock.
    builder = builder.max_hold(None);
    if let Some(note) = &options.note {
        builder = builder.note(note);
    }
    // One lock needs one connection, and a release another.
    Ok(builder.pool_size(2).build()?)
}

/// Starts a thread that passes signals to the main thread, and ends its wait for the lock.
fn receive_signals(
    signals: SignalFd,
    happened: Sender<Happened>,
    cancel: Cancel,
    waits: Arc<AtomicBool>,
) {
    thread::spawn(move || {
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
    });
}

/// Blocks until the lock is held. On a terminal, a thread shows meanwhile who holds it.
fn wait_for(
    locks: &LockManager,
    options: &Options,
    cancel: &Cancel,
    report: &Report,
) -> leasehold::Result<Option<Held>> {
    let wanted = Wanted::new(locks, options, cancel);
    let (ended, until) = bounded::<()>(0);
    let (shows, has_shown) = bounded::<()>(0);
    if report.shows_waits() {
        let (locks, names) = (locks.clone(), options.names.clone());
        thread::spawn(move || {
            let _shows = shows;
            report::show_wait(&locks, &names, &until);
        });
    } else {
        drop(shows);
    }
    let acquired = wanted.acquire(options);
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
    terminal: Option<Terminal>,
    /// The command's group, once it has started.
    command: Option<Pid>,
    /// Whether the command gets the terminal when the shell gives it to this process. A command that writes to a pipe gets it
    /// only after it has read from it: behind the pipe there may be a pager.
    shares_terminal: bool,
    /// The deadline that the keeper knows, in nanoseconds of `CLOCK_BOOTTIME`.
    deadline: i64,
    /// When `--max` is over, by the same clock.
    end: Option<i64>,
    /// The children that this process had before the keeper, of the program that it replaced by `exec`.
    others: Vec<i32>,
    /// The time between TERM and KILL. `None` if a loss does not end the command.
    grace: Option<Duration>,
    /// When the front kills all processes, because it has lost the lock and the keeper has not ended them.
    kill_at: Option<Instant>,
    ended: Ended,
}

impl<'a> Front<'a> {
    /// Starts the keeper. Steps 2 and 3 of the protocol.
    fn start(options: &Options, held: &Held, report: &'a Report) -> Result<Self, Failure> {
        let failed = |error| Failure::system("cannot start the keeper", error);
        // So that this process inherits the command's descendants if the keeper dies.
        set_child_subreaper(Some(getpid())).map_err(|error| failed(error.into()))?;
        let terminal = Terminal::open();
        let shares_terminal = io::stdout().is_terminal();
        let is_foreground = shares_terminal && terminal.as_ref().is_some_and(Terminal::is_ours);
        let others = descendants::all();
        let end = options
            .max
            .map(|max| boot_time().saturating_add(nanoseconds(max)));
        let (keeper, its_end) = pair().map_err(failed)?;
        send_descriptor(&keeper, rustix::stdio::stdin()).map_err(failed)?;
        let leases = held.leases();
        let lines =
            |of: &dyn Fn(&Lease) -> String| leases.iter().map(of).collect::<Vec<_>>().join("\n");
        Command::new(SELF)
            .arg0("leasehold")
            .arg(KEEPER)
            .arg(format!("{:?}", options.on_loss))
            .arg(options.grace.as_millis().to_string())
            .arg(if is_foreground { "1" } else { "0" })
            .args(&options.command)
            .env("LEASEHOLD_NAME", lines(&|lease| lease.name().to_owned()))
            .env("LEASEHOLD_FENCE", lines(&|lease| lease.fence().to_string()))
            .env("LEASEHOLD_OWNER", leases[0].owner())
            .stdin(Stdio::from(its_end))
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let mut front = Self {
            report,
            keeper,
            terminal,
            shares_terminal,
            others,
            command: None,
            deadline: 0,
            grace: (options.on_loss != OnLoss::Ignore).then_some(options.grace),
            kill_at: None,
            end,
            ended: Ended {
                status: None,
                lost: None,
                was_warned: false,
                has_started: false,
            },
        };
        // The keeper starts the command after this.
        front.send_deadline(held);
        Ok(front)
    }

    /// Blocks until the command and all its descendants have ended.
    fn serve(
        mut self,
        held: &Held,
        happens: &Receiver<Happened>,
        happened: Sender<Happened>,
    ) -> Ended {
        for lease in held.leases() {
            let (name, requests) = (lease.name().to_owned(), lease.on_requested());
            let happened = happened.clone();
            // The channel is disconnected when the lease ends.
            thread::spawn(move || {
                for request in requests {
                    let _ = happened.send(Happened::Requested(name.clone(), request.why));
                }
            });
        }
        thread::scope(|scope| {
            let keeper = self.keeper.try_clone();
            scope.spawn(move || {
                let message = |keeper: &OwnedFd| hear_keeper(keeper);
                loop {
                    let message = keeper.as_ref().ok().and_then(message);
                    // The main thread ends after it has heard that the keeper has.
                    let _ = happened.send(Happened::Keeper(message));
                    if message.is_none() {
                        return;
                    }
                }
            });
            self.wait(held, happens);
        });
        if let (Some(terminal), Some(command)) = (&self.terminal, self.command) {
            terminal.take_from(command);
        }
        self.ended
    }

    fn wait(&mut self, held: &Held, happens: &Receiver<Happened>) {
        let mut losses = held.on_lost();
        loop {
            self.send_deadline(held);
            if self.kill_at.is_some_and(|at| at <= Instant::now()) {
                self.end_all();
            }
            let left = held.leases().iter().map(Lease::remaining).min();
            let is_held = left.filter(|left| !left.is_zero());
            let look = is_held.map_or(LOOKS[1], |left| (left / 20).clamp(LOOKS[0], LOOKS[1]));
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
                    Ok(Happened::Requested(name, why)) => {
                        let text = format!("somebody asks for {name}: {why}");
                        self.report.tell("requested", &text, json!({ "name": name, "why": why }));
                    }
                    Ok(Happened::Keeper(None)) | Err(_) => {
                        if self.ended.status.is_none() {
                            self.end_all();
                        }
                        reap();
                        return;
                    }
                },
                default(look) => {}
            }
        }
    }

    /// Tells the keeper the deadline if it has moved.
    fn send_deadline(&mut self, held: &Held) {
        // The clock is read first: a pause between the two must not make the deadline later.
        let now = boot_time();
        let left = held.leases().iter().map(Lease::remaining).min();
        let lease_end = now.saturating_add(nanoseconds(left.unwrap_or_default()));
        let deadline = self.end.map_or(lease_end, |end| end.min(lease_end));
        // The same deadline differs by a few microseconds each time.
        if left.is_some_and(|left| !left.is_zero()) && deadline.abs_diff(self.deadline) > 1_000_000
        {
            self.deadline = deadline;
            tell_keeper(&self.keeper, ToKeeper::Deadline(deadline));
        }
    }

    fn lost(&mut self, lost: Lost) {
        tell_keeper(&self.keeper, ToKeeper::Lost);
        let now = Instant::now();
        self.kill_at = self
            .grace
            .and_then(|grace| now.checked_add(grace + KEEPER_TIME));
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
                self.ended.was_warned = true;
                if self.end == Some(self.deadline) {
                    let text = "the time of --max is nearly over, so the command is ended";
                    self.report.fail("max", text, json!({}));
                } else {
                    let text = "the lock is nearly lost, so the command is ended";
                    self.report.fail("at_risk", text, json!({}));
                }
            }
            FromKeeper::Left(processes) => {
                let text =
                    format!("the command left {processes} processes behind, which are ended");
                self.report
                    .tell("left_behind", &text, json!({ "processes": processes }));
            }
            FromKeeper::Ended(status) => self.ended.status = Some(status),
        }
    }

    /// Passes a signal on to the command's group.
    fn signal(&mut self, signal: Signal) {
        match signal {
            Signal::SIGCHLD => reap(),
            Signal::SIGCONT => self.continued(),
            _ => tell_keeper(&self.keeper, ToKeeper::Signal(signal as i32)),
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
                let _ = terminal.give_to(command);
            }
        }
        tell_keeper(&self.keeper, ToKeeper::Signal(Signal::SIGCONT as i32));
    }

    /// Kills the keeper, if it lives, and all that it has started.
    fn end_all(&self) {
        let mut round = ROUNDS[0];
        while descendants::signal(Some(rustix::process::Signal::KILL), None, &self.others) > 0 {
            reap();
            thread::sleep(round);
            round = (round * 2).min(ROUNDS[1]);
        }
    }
}

/// Returns whether no process of this session could continue this process: its parent is in another session, as under
/// `ssh -t HOST leasehold run …`.
fn is_without_shell() -> bool {
    let session = |process| getsid(process).ok();
    getppid().is_none_or(|parent| session(Some(parent)) != session(None))
}

/// The time of `CLOCK_BOOTTIME`, in nanoseconds.
fn boot_time() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn nanoseconds(span: Duration) -> i64 {
    i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)
}

/// Takes the ends of the keeper, and as process 1 of a container those of others' children.
fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
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
        Some(status) if options.on_loss == OnLoss::Ignore || !is_lost => status,
        Some(_) => LOST,
        None if ended.has_started => {
            report.fail(
                "keeper_died",
                "the keeper has died, and the command with it",
                json!({}),
            );
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
