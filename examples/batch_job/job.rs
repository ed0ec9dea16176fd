//! The job. It does its steps in order; a step that was begun is ended.

use std::error::Error;

use leasehold::{Lost, Mutex, Receiver};

use crate::progress::Progress;

pub const STEPS: u32 = 10;

/// What one run did: the steps from `start` to before `end`.
pub struct Run {
    pub start: u32,
    pub end: u32,
    pub fence: u64,
}

/// Does what is left of the job, or as much as the lock lasts for.
pub fn run(
    mutex: &Mutex,
    progress: &mut Progress,
    mut step: impl FnMut(u32, &Receiver<Lost>) -> Result<(), Box<dyn Error>>,
) -> Result<Run, Box<dyn Error>> {
    // The guard is of this scope: however it is left, by `?` or by a panic, the lock is released.
    let guard = mutex.lock()?;
    let lost = guard.on_lost();
    let start = progress.done()?;
    let mut run = Run {
        start,
        end: start,
        fence: guard.fence(),
    };
    while run.end < STEPS {
        // Asked between two steps, so that none is left half done.
        if let Ok(loss) = lost.try_recv() {
            println!("  stopped before step {}: {loss}", run.end);
            break;
        }
        step(run.end, &lost)?;
        println!("  step {} is done", run.end);
        run.end += 1;
    }
    // What is done is done. Had another run committed meanwhile, it would refuse this older fence.
    if !progress.commit(run.end, run.fence)? {
        return Err("another run has gone on".into());
    }
    println!(
        "  committed {} steps of {STEPS} by fence {}",
        run.end, run.fence
    );
    Ok(run)
}
