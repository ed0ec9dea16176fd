//! Two processes hand a lock to each other. Then a process loses a lock, because its link to Redis is cut.
//!
//! `cargo run --example timeline`, with a `redis-server` in PATH. The example starts its own server, and prints each
//! event of the lock with its time. `scripts/pictures` draws `docs/hand-over.svg` and `docs/loss.svg` from these lines.
//!
//! The exit status is 0 only if each holder read `Held` for the last time before the next process got the lock.
//!
//! - `stories`: the order in which things happen
//! - `part`: the parts of the processes, and the lines that they print
//! - `record`, `process`: the lines of all processes
//! - `link`: the link that is cut

mod link;
mod part;
mod process;
mod record;
mod stories;

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, error::Error};

use shared::Server;

use crate::record::Line;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => {
            let server = Server::start("")?;
            show("hand-over", stories::hand_over(&server)?)?;
            show("loss", stories::loss(&server)?)
        }
        [part, url] => part::play(part, url),
        _ => Err("usage: timeline".into()),
    }
}

/// Prints the lines of a story in the order of their times, and checks them.
fn show(story: &str, mut lines: Vec<Line>) -> Outcome {
    lines.sort_by_key(|line| line.at_us);
    let start = lines.first().ok_or("nothing happened")?.at_us;
    for line in &lines {
        let ms = Duration::from_micros(line.at_us - start).as_secs_f64() * 1e3;
        let (process, what, fence) = (line.process, &line.what, line.fence);
        let fence = fence.map_or(String::new(), |fence| format!("  fence {fence}"));
        println!("{story:<9} {ms:>9.3} ms  {process}  {what:<11}{fence}");
    }
    check(&lines)
}

/// Checks that no two guards overlap. Each guard begins at the latest when its event does, and ends at the earliest when
/// its thread read `Held` for the last time.
fn check(lines: &[Line]) -> Outcome {
    let of = |what: &'static str| lines.iter().filter(move |line| line.what == what);
    let mut grants: Vec<_> = of("acquired").collect();
    grants.sort_by_key(|grant| grant.fence);
    if grants.len() < 2 {
        return Err("only one guard got the lock".into());
    }
    for two in grants.windows(2) {
        let (holder, next) = (two[0], two[1]);
        let held = of("held").find(|held| held.fence == holder.fence);
        let held = held.ok_or("a guard did not end")?;
        if holder.fence == next.fence || held.at_us >= next.at_us {
            return Err(format!("the guard after fence {:?} came too early", holder.fence).into());
        }
    }
    Ok(())
}

fn now_us() -> Outcome<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(u64::try_from(now.as_micros())?)
}
