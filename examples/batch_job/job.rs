//! The job. It does its steps in order, and finishes each step that it begins.

use std::error::Error;

use leasehold::{Lost, Mutex, Receiver};

use crate::progress::Progress;

pub const STEPS: u32 = 10;

/// The steps of one run: from `start` to before `end`.
pub struct Run {
    pub start: u32,
    pub end: u32,
    pub fence: u64,
}

/// Does the rest of the job. Stops early if the lock is lost.
pub fn run(
    mutex: &Mutex,
    progress: &mut Progress,
    mut step: impl FnMut(u32, &Receiver<Lost>) -> Result<(), Box<dyn Error>>,
) -> Result<Run, Box<dyn Error>> {
    // The guard belongs to this scope. However the scope ends, by `?` or by a panic, the lock is released.
    let guard = mutex.lock()?;
    let lost = guard.on_lost();
    let start = progress.done()?;
    let mut run = Run {
        start,
        end: start,
        fence: guard.fence(),
    };
    while run.end < STEPS {
        // The check is between two steps, so that no step is left half done.
        if let Ok(loss) = lost.try_recv() {
            println!("  stopped before step {}: {loss}", run.end);
            break;
        }
        step(run.end, &lost)?;
        println!("  step {} is done", run.end);
        run.end += 1;
    }
    // The finished steps count. If another run has committed meanwhile, `commit` refuses this older fence.
    if !progress.commit(run.end, run.fence)? {
        return Err("a newer run has committed".into());
    }
    println!(
        "  committed {} steps of {STEPS} by fence {}",
        run.end, run.fence
    );
    Ok(run)
}
