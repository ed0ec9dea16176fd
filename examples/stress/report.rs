//! The result of a run, for people and for programs.

use std::fmt;
use std::io;
use std::time::Duration;

use serde_json::{Value, json};

use crate::fleet::{Fleet, Member, State};
use crate::ledger::Ledger;
use crate::options::Options;
use crate::progress::grouped;
use crate::waits::Waits;

pub struct Report {
    threads: u32,
    names: u32,
    processes: Vec<Process>,
    guards: u64,
    /// The time from the common start until the last guard ended.
    took: Duration,
    waits: Waits,
    /// The commands that the server ran meanwhile, if it counts them.
    commands: Option<u64>,
    /// The guards that the processes counted, less the updates in the ledger.
    lost_updates: i64,
    fence_violations: u64,
    lost_leases: u64,
    errors: u64,
}

/// One process of the run.
struct Process {
    pid: u32,
    guards: u64,
    /// The process's guards, over the mean of all processes that lived to the end.
    share: Option<f64>,
    /// How the process died.
    death: Option<String>,
}

impl Report {
    pub fn new(
        options: &Options,
        fleet: &Fleet,
        ledger: &Ledger,
        start: Duration,
        commands: Option<u64>,
    ) -> io::Result<Self> {
        let mut report = Self {
            threads: options.threads,
            names: options.names,
            processes: Vec::with_capacity(fleet.members().len()),
            guards: 0,
            took: Duration::ZERO,
            waits: Waits::default(),
            commands,
            lost_updates: 0,
            fence_violations: 0,
            lost_leases: 0,
            errors: 0,
        };
        for (index, member) in (0..).zip(fleet.members()) {
            report.add(index, member, ledger, start)?;
        }
        report.guards = report.processes.iter().map(|process| process.guards).sum();
        report.lost_updates = report.guards.cast_signed() - ledger.updates()?.cast_signed();
        report.divide();
        Ok(report)
    }

    /// Returns whether the lock and all calls were correct.
    ///
    /// A killed process is no fault of the lock. A lost lease does no harm if its guard knew of the loss.
    pub fn is_sound(&self) -> bool {
        self.lost_updates == 0 && self.fence_violations == 0 && self.errors == 0
    }

    pub fn to_json(&self) -> Value {
        let shares = || self.processes.iter().filter_map(|process| process.share);
        json!({
            "threads": self.threads,
            "processes": self.processes.len(),
            "guards": self.guards,
            "seconds": self.took.as_secs_f64(),
            "guards_per_s": self.guards_per_second(),
            "wait_p50_us": self.waits.quantile(500).as_micros() as u64,
            "wait_p99_us": self.waits.quantile(990).as_micros() as u64,
            "wait_max_us": self.waits.longest().as_micros() as u64,
            "commands_per_guard": self.commands_per_guard(),
            "min_share": shares().reduce(f64::min),
            "max_share": shares().reduce(f64::max),
            "lost_updates": self.lost_updates,
            "fence_violations": self.fence_violations,
            "lost_leases": self.lost_leases,
            "errors": self.errors,
            "processes_died": self.died(),
        })
    }

    fn add(
        &mut self,
        index: u32,
        member: &Member,
        ledger: &Ledger,
        start: Duration,
    ) -> io::Result<()> {
        let (guards, death) = match &member.state {
            State::Finished(share) => {
                self.took = self.took.max(share.ended.saturating_sub(start));
                self.waits.merge(&share.waits);
                self.fence_violations += share.fence_violations;
                self.lost_leases += share.lost_leases;
                self.errors += share.errors;
                (share.guards, None)
            }
            State::Died(death) => {
                self.errors += u64::from(!death.is_killed());
                (ledger.updates_by(index)?, Some(death.to_string()))
            }
            State::Starting | State::Ready => unreachable!("the report comes when all is over"),
        };
        self.processes.push(Process {
            pid: member.pid,
            guards,
            share: None,
            death,
        });
        Ok(())
    }

    /// Sets the share of each process.
    fn divide(&mut self) {
        let living = || {
            self.processes
                .iter()
                .filter(|process| process.death.is_none())
        };
        let (count, guards) = (living().count() as u64, living().map(|p| p.guards).sum());
        for process in &mut self.processes {
            if process.death.is_none() {
                process.share = ratio(process.guards * count, guards);
            }
        }
    }

    fn guards_per_second(&self) -> Option<f64> {
        ratio(self.guards, self.took.as_micros() as u64).map(|per_us| per_us * 1e6)
    }

    fn commands_per_guard(&self) -> Option<f64> {
        ratio(self.commands?, self.guards)
    }

    fn died(&self) -> usize {
        let died = |process: &&Process| process.death.is_some();
        self.processes.iter().filter(died).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = |figure: Option<f64>, digits| match figure {
            Some(figure) => format!("{figure:.digits$}"),
            None => "–".to_owned(),
        };
        let of = |number: u64, one, many| {
            format!(
                "{} {}",
                grouped(number),
                if number == 1 { one } else { many }
            )
        };

        writeln!(
            f,
            "{} of {} on {}\n",
            of(self.processes.len() as u64, "process", "processes"),
            of(self.threads.into(), "thread", "threads"),
            of(self.names.into(), "lock", "locks"),
        )?;
        let per_second = self.guards_per_second().unwrap_or_default().round();
        let lines = [
            (
                "guards",
                format!(
                    "{} in {:.2?}, {} a second",
                    grouped(self.guards),
                    self.took,
                    grouped(per_second),
                ),
            ),
            (
                "wait",
                format!(
                    "p50 {:.1?}, p99 {:.1?}, longest {:.1?}",
                    self.waits.quantile(500),
                    self.waits.quantile(990),
                    self.waits.longest(),
                ),
            ),
            (
                "server commands",
                format!("{} a guard", known(self.commands_per_guard(), 3)),
            ),
            ("lost updates", self.lost_updates.to_string()),
            ("fence violations", grouped(self.fence_violations)),
            ("lost leases", grouped(self.lost_leases)),
            ("errors", grouped(self.errors)),
            ("processes died", self.died().to_string()),
        ];
        for (what, how_much) in lines {
            writeln!(f, "  {what:<18}{how_much}")?;
        }

        writeln!(f, "\n  {:<10}{:>14}{:>8}", "process", "guards", "share")?;
        for process in &self.processes {
            let death = match &process.death {
                Some(death) => format!("  {death}"),
                None => String::new(),
            };
            writeln!(
                f,
                "  {:<10}{:>14}{:>8}{}",
                process.pid,
                grouped(process.guards),
                known(process.share, 2),
                death,
            )?;
        }
        let faults: Vec<_> = [
            ("updates were lost", self.lost_updates != 0),
            ("fences were out of order", self.fence_violations != 0),
            ("calls failed", self.errors != 0),
        ]
        .into_iter()
        .filter_map(|(fault, is_so)| is_so.then_some(fault))
        .collect();
        if faults.is_empty() {
            writeln!(
                f,
                "\nsound: no update was lost, and every fence was newer than the one before"
            )
        } else {
            writeln!(f, "\nNOT SOUND: {}", faults.join(", "))
        }
    }
}

/// Returns `None` if the divisor is zero.
#[expect(clippy::cast_precision_loss, reason = "these are read to three digits")]
fn ratio(dividend: u64, divisor: u64) -> Option<f64> {
    (divisor != 0).then(|| dividend as f64 / divisor as f64)
}
