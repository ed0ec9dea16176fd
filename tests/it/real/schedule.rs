//! One schedule: the processes, the faults, and the end.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{self, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal};

use super::checks::{Facts, Findings, Loss};
use super::plan::{PROCESSES, Plan, ProcessFault};
use super::program::REGISTERS;
use super::record::{Micros, NO_GRANT, Record, now};
use super::register::Register;
use super::stage::{Stage, Struck};
use super::{NOT_RUN, TASK, Task, if_well};
use crate::support::{PATIENCE, Raw, ms, signal};

/// The sums of several schedules, or the counts of one.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) schedules: u64,
    /// The grants of names: a multi-lock has three.
    pub(super) grants: u64,
    pub(super) hand_overs: u64,
    pub(super) refusals: u64,
    pub(super) losses: u64,
    pub(super) rejected_writes: u64,
    pub(super) unfenced_corruptions: u64,
    pub(super) with_pauses: u64,
    pub(super) corrupted_with_pauses: u64,
    pub(super) longest_wait: Duration,
    pub(super) errors: BTreeMap<String, u64>,
    pub(super) faults: BTreeMap<String, u64>,
    pub(super) exceptions: BTreeMap<&'static str, u64>,
    /// The seeds with broken rules.
    pub(super) violations: Vec<(u64, String)>,
}

/// A process of a schedule. Dropping it kills it.
struct Running {
    process: process::Child,
    /// Closing it tells the process that the faults are over.
    stdin: Option<ChildStdin>,
}

/// The faults of the servers.
#[derive(Default)]
struct Troubles {
    struck: Vec<Struck>,
    /// How many of the planned faults came.
    faults: usize,
    /// The masters after the last fault.
    masters: Vec<u16>,
    /// The begin of the last fault, if the servers did not do what it needs, or did not recover from it.
    ill_from: Option<Micros>,
}

/// A schedule that runs.
struct Run<'a> {
    plan: &'a Plan,
    stage: &'a Stage,
    url: String,
    register: &'a str,
    record: PathBuf,
}

impl Plan {
    /// Runs the schedule. `register` is the URL of the server of the registers.
    pub(super) fn run(&self, stage: &Stage, register: &str) -> Counts {
        let directory = PathBuf::from("/dev/shm");
        let directory = if directory.is_dir() {
            directory
        } else {
            env::temp_dir()
        };
        let file = format!(
            "leasehold-real-{}-{:?}-{}",
            process::id(),
            self.topology,
            self.seed
        );
        let run = Run {
            plan: self,
            stage,
            url: stage.url(),
            register,
            record: directory.join(file),
        };
        let counts = run.run();
        if counts.violations.is_empty() {
            fs::remove_file(&run.record).ok();
        } else {
            println!("{self:?}: its record is {}", run.record.display());
        }
        counts
    }
}

impl Run<'_> {
    fn run(&self) -> Counts {
        let mut counts = Counts {
            schedules: 1,
            ..Counts::default()
        };
        let (mut troubles, healed_at, wrong) = thread::scope(|scope| {
            let processes = scope.spawn(|| self.trouble_processes());
            let troubles = self.trouble_servers();
            let mut running = processes.join().expect("the processes run");
            // Each process hears of the end, and then each ends.
            for process in &mut running {
                process.stdin = None;
            }
            let healed_at = now();
            let wrong = running.into_iter().filter_map(|it| it.end().err());
            (troubles, healed_at, wrong.collect::<Vec<_>>())
        });
        let are_ill = troubles.ill_from.is_some();
        match troubles.ill_from {
            // The servers may do anything until the end.
            Some(from) => troubles.struck.push(Struck::lost_all(from)),
            None => troubles.note_failover(self),
        }
        let record = Record::read(&self.record);
        let findings = Findings::of(&record, &self.facts(&troubles.struck, &record));
        let mut violations = findings.violations;
        if are_ill {
            violations.retain(|what| !what.contains(NO_GRANT));
        } else {
            violations.extend(wrong);
            violations.extend(self.left_keys());
        }
        let mut register = Register::at(self.register);
        for name in REGISTERS {
            let outcome = register.take(&self.plan.name(name));
            counts.rejected_writes += outcome.rejected;
            counts.unfenced_corruptions += outcome.corrupted;
            if outcome.lost > 0 {
                violations.push(format!("the fenced register of {name} has lost an update"));
            }
        }
        // The servers may have been ill after some of them.
        for strike in self.plan.server_faults.iter().take(troubles.faults) {
            *counts.faults.entry(strike.kind.to_string()).or_default() += 1;
        }
        let mut paused = false;
        for strike in &self.plan.process_faults {
            *counts.faults.entry(strike.kind.to_string()).or_default() += 1;
            paused |= strike.kind == ProcessFault::Pause;
        }
        counts.with_pauses = u64::from(paused);
        counts.corrupted_with_pauses = u64::from(paused && counts.unfenced_corruptions > 0);
        counts.grants = record.holds.len() as u64;
        counts.hand_overs = findings.hand_overs;
        counts.refusals = record.refused;
        counts.losses = record.lost;
        let waits = record.calls.iter().map(|(called, ended)| {
            let begun = healed_at.max(*called);
            Duration::from_micros(ended.saturating_sub(begun))
        });
        counts.longest_wait = waits.max().unwrap_or_default();
        counts.errors = record.failed;
        counts.exceptions = findings.exceptions;
        if are_ill {
            counts.exceptions.insert(NOT_RUN, 1);
        }
        let of_seed = violations.into_iter().map(|what| (self.plan.seed, what));
        counts.violations = of_seed.collect();
        counts
    }

    fn start(&self, number: u32) -> Running {
        let task = Task {
            topology: self.plan.topology,
            seed: self.plan.seed,
            number,
            record: self.record.display().to_string(),
            register: self.register.to_owned(),
            url: self.url.clone(),
        };
        let mut process = Command::new(env::current_exe().expect("this binary"))
            .args(["--exact", "real::program::program", "--nocapture", "-q"])
            .env(TASK, task.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("this binary runs");
        let stdin = process.stdin.take();
        Running { process, stdin }
    }

    /// Starts the processes, and stops and kills them. Returns those that run in the end.
    fn trouble_processes(&self) -> Vec<Running> {
        let mut numbers = 0..;
        let mut start = || self.start(numbers.next().expect("there are enough"));
        let mut running: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
        for strike in &self.plan.process_faults {
            thread::sleep(strike.after);
            let target = usize::try_from(strike.target % PROCESSES).expect("small");
            match strike.kind {
                ProcessFault::Pause => {
                    let pid = running[target].pid();
                    signal(pid, Signal::STOP);
                    thread::sleep(strike.length);
                    signal(pid, Signal::CONT);
                }
                ProcessFault::Kill => running[target] = start(),
            }
        }
        // The last process has some time, too.
        thread::sleep(ms(500));
        running
    }

    fn trouble_servers(&self) -> Troubles {
        let mut troubles = Troubles {
            masters: self.stage.masters(self.plan),
            ..Troubles::default()
        };
        // The processes begin meanwhile.
        thread::sleep(ms(400));
        for strike in &self.plan.server_faults {
            thread::sleep(strike.after);
            troubles.note_failover(self);
            let from = now();
            let Some(struck) = if_well(|| self.stage.strike(self.plan, *strike)) else {
                troubles.ill_from = Some(from);
                return troubles;
            };
            troubles.struck.push(struck);
            troubles.faults += 1;
            troubles.masters = self.stage.masters(self.plan);
        }
        troubles
    }

    fn facts(&self, struck: &[Struck], record: &Record) -> Facts {
        let lease = u64::try_from(self.plan.lease.as_micros()).expect("it is short");
        let loss = |it: &Struck| {
            // The clock of a server may have been ahead.
            let mut fences = BTreeMap::<String, u64>::new();
            for hold in record.holds.iter().filter(|hold| hold.granted <= it.until) {
                let largest = fences.entry(hold.name.clone()).or_default();
                *largest = hold.fence.max(*largest);
            }
            Loss {
                from: it.from,
                until: it.until + lease,
                wall_clock: wall_clock_at(it.until),
                fences,
            }
        };
        Facts {
            lease: self.plan.lease,
            losses: (struck.iter().filter(|it| it.lost_locks))
                .map(loss)
                .collect(),
            silences: struck.iter().filter_map(|it| it.silence).collect(),
        }
    }

    /// Returns what is wrong about the keys in the end.
    fn left_keys(&self) -> Option<String> {
        let servers = self.stage.with_keys();
        let pattern = format!("*{}*", self.plan.name(""));
        let keys = |server: &Raw| {
            let keys = server.try_ask::<Vec<String>>(&["KEYS", &pattern]);
            keys.unwrap_or_default()
        };
        for server in &servers {
            for key in keys(server) {
                // Another node of a Cluster answers with a redirection.
                if server.try_ask::<i64>(&["PTTL", &key]) == Ok(-1) {
                    return Some(format!("{key} has no time to live"));
                }
            }
        }
        let begun = Instant::now();
        loop {
            let mut left = servers.iter().flat_map(keys);
            let is_lock =
                |key: &String| !key.ends_with(":lh:fence") && !key.ends_with(":lht:fence");
            let key = left.find(is_lock)?;
            if begun.elapsed() > PATIENCE {
                return Some(format!("{key} is left in Redis"));
            }
            thread::sleep(ms(50));
        }
    }
}

impl Troubles {
    /// Notes a failover since the last fault, which a busy machine may cause.
    fn note_failover(&mut self, run: &Run<'_>) {
        if self.masters != run.stage.masters(run.plan) {
            let from = self.struck.last().map_or(0, |it| it.until);
            self.struck.push(Struck::lost_all(from));
        }
    }
}

impl Running {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Waits for the end of the process.
    ///
    /// # Errors
    ///
    /// It has failed, or does not end.
    fn end(mut self) -> Result<(), String> {
        let limit = PATIENCE * 2;
        let begun = Instant::now();
        loop {
            match self.process.try_wait().expect("it is ours") {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("a process has ended by {status}")),
                None if begun.elapsed() > limit => {
                    return Err("a process does not end".to_owned());
                }
                None => thread::sleep(ms(5)),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Returns the time of day in µs at a time of the clock that the processes share.
fn wall_clock_at(at: Micros) -> u64 {
    let passed = now() - at;
    let wall = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("it is past 1970");
    u64::try_from(wall.as_micros()).expect("it is before 2500") - passed
}

impl Counts {
    pub(super) fn add(&mut self, other: Self) {
        self.schedules += other.schedules;
        self.grants += other.grants;
        self.hand_overs += other.hand_overs;
        self.refusals += other.refusals;
        self.losses += other.losses;
        self.rejected_writes += other.rejected_writes;
        self.unfenced_corruptions += other.unfenced_corruptions;
        self.with_pauses += other.with_pauses;
        self.corrupted_with_pauses += other.corrupted_with_pauses;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        for (kind, count) in other.errors {
            *self.errors.entry(kind).or_default() += count;
        }
        for (kind, count) in other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        for (kind, count) in other.exceptions {
            *self.exceptions.entry(kind).or_default() += count;
        }
        self.violations.extend(other.violations);
    }
}
