//! A process of one thread, beside two processes of many busy threads that want the same name all the time.
//!
//! The lone thread waits for the quanta of both others before each of its guards. Figures beside its median wait show
//! the same work with a fixed quantum of 50 ms, the longest one of a program that sets none.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{LockManager, Mutex};

use crate::Result;
use crate::fleet::{Answer, Fleet, Job, Side};
use crate::row::{Bench, Measured, median};
use crate::team::{Team, per_second, turns};

const BUSY_PROCESSES: usize = 2;
const BUSY_THREADS: u64 = 10;
const TIME: Duration = Duration::from_secs(3);
/// The mark for the median wait of the lone thread.
const MEDIAN_WAIT_MS: f64 = 15.0;
const LONG_QUANTUM: Duration = Duration::from_millis(50);

/// The result of one side in one round.
struct Run {
    median_wait_ms: f64,
    longest_wait_ms: f64,
    /// The guards of all processes in a second.
    per_second: f64,
}

pub fn measure(bench: &Bench) -> Result<Measured> {
    let (mut ours, mut long) = (Vec::new(), Vec::new());
    let rounds = bench.interleave(
        |round| {
            ours.push(run(bench, Side::Ours, bench.name(round))?);
            Ok(ours[ours.len() - 1].median_wait_ms)
        },
        |round| {
            long.push(run(bench, Side::Limit, bench.bare_name(round))?);
            Ok(MEDIAN_WAIT_MS)
        },
    )?;
    let of = |runs: &[Run], figure: fn(&Run) -> f64| median(runs.iter().skip(1).map(figure));
    Ok(Measured::new(rounds)
        .beside("longest_wait_ms", of(&ours, |run| run.longest_wait_ms))
        .beside("guards_per_second", of(&ours, |run| run.per_second))
        .beside(
            "quantum_50_median_wait_ms",
            of(&long, |run| run.median_wait_ms),
        )
        .beside(
            "quantum_50_longest_wait_ms",
            of(&long, |run| run.longest_wait_ms),
        )
        .beside(
            "quantum_50_guards_per_second",
            of(&long, |run| run.per_second),
        ))
}

/// Runs one side of one round.
fn run(bench: &Bench, side: Side, name: String) -> Result<Run> {
    let time = bench.time(TIME);
    let busy = Job {
        work: bench.work.to_owned(),
        side,
        url: bench.url().to_owned(),
        name,
        count: BUSY_THREADS,
        ms: time.as_millis() as u64,
    };
    let lone = Job {
        count: 1,
        ..busy.clone()
    };
    let mut busy = Fleet::start(&busy, BUSY_PROCESSES)?;
    let mut lone = Fleet::start(&lone, 1)?;
    let (busy, lone) = thread::scope(|scope| {
        let busy = scope.spawn(|| busy.ask("go"));
        let lone = lone.ask_one("go");
        (busy.join(), lone)
    });
    let busy = busy.map_err(|_| "a thread panicked")??;
    let lone = lone?;
    let [own, median_us, longest_us] = lone[..] else {
        return Err("the lone thread answers with three numbers".into());
    };
    let guards = own + busy.iter().map(|answer| answer[0]).sum::<u64>();
    Ok(Run {
        median_wait_ms: median_us as f64 / 1_000.0,
        longest_wait_ms: longest_us as f64 / 1_000.0,
        per_second: per_second(guards, time),
    })
}

/// Serves a busy process, which reports its number of guards, or the process of the lone thread. That one also reports
/// its median wait and its longest wait, in µs.
pub fn serve(job: &Job) -> Result<Answer> {
    let builder = LockManager::single(&job.url);
    let builder = match job.side {
        Side::Ours => builder,
        Side::Limit => builder.quantum(LONG_QUANTUM),
    };
    let (mutex, time) = (
        builder.build()?.mutex(&job.name),
        Duration::from_millis(job.ms),
    );
    if job.count == 1 {
        return Ok(Box::new(move |_| wait_alone(&mutex, time)));
    }
    let team = Team::ready(job.count as usize, move |_| {
        let mutex = mutex.clone();
        Ok(move |start: Instant| turns(start, time, || Ok(mutex.lock()?.release()?)))
    })?;
    let mut team = Some(team);
    Ok(Box::new(move |_| {
        let team = team.take().ok_or("the threads have had their turns")?;
        Ok(vec![team.run()?.0])
    }))
}

/// Takes turns for `time`. Returns the number of turns, the median wait and the longest wait.
fn wait_alone(mutex: &Mutex, time: Duration) -> Result<Vec<u64>> {
    let mut waits = Vec::new();
    let own = turns(Instant::now(), time, || {
        let asked = Instant::now();
        let guard = mutex.lock()?;
        waits.push(asked.elapsed().as_micros() as u64);
        Ok(guard.release()?)
    })?;
    waits.sort_unstable();
    let longest = waits.last().ok_or("the lone thread has had no turn")?;
    Ok(vec![own, waits[waits.len() / 2], *longest])
}
