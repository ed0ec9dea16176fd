//! Parts that several examples and benches share.
//!
//! - `server`: a throwaway server, which ends with the program that started it
//! - `sentinels`, `cluster`: throwaway servers that belong together
//! - `topology`: the servers that a command line names
//! - `masters`: the figures of those servers

#![allow(
    clippy::missing_errors_doc,
    reason = "an example ends with any error of its servers"
)]

mod cluster;
mod masters;
mod sentinels;
mod server;
mod topology;

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

pub use cluster::Cluster;
pub use masters::{Figures, Masters};
pub use sentinels::{MASTER, Sentinels};
pub use server::{Poller, Server};
pub use topology::{TOPOLOGY_HELP, Topology};

/// The result of most functions here.
pub type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The time limit of anything that servers must do, on a busy machine.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Blocks until a condition is true, which must happen in time.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !condition()? {
        if begun.elapsed() > PATIENCE {
            return Err(format!("it did not happen in time: {what}").into());
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
