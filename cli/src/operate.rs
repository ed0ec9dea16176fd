//! `release` takes a lock from its holder, and `request` asks the holder to release it.

use std::io::{self, IsTerminal, Write};

use clap::Args;

use crate::exit::{Failure, USAGE};
use crate::output::{complain, print, safe};
use crate::servers::Servers;

/// The status if nobody holds the lock, or somebody else does.
const NOT_HELD: u8 = 1;

/// Takes a lock from its holder
///
/// The holder reads that it has lost the lock, and the next waiter gets it. Use it for a holder that hangs: work that still
/// goes on is not stopped. `leasehold status NAME` shows the owner.
#[derive(Args)]
pub struct Release {
    /// The owner, as `status` shows it: only this holder loses the lock
    #[arg(long, value_name = "OWNER")]
    owner: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// The name of the lock
    #[arg(value_name = "NAME")]
    name: String,
}

/// Asks the holder of a lock to release it
///
/// A program hears that if it listens to `Lease::on_requested`; `leasehold run` prints it. The lock goes on until the holder releases it.
#[derive(Args)]
pub struct Request {
    /// The reason, which the holder reads
    #[arg(long, value_name = "TEXT")]
    why: String,
    /// The name of the lock
    #[arg(value_name = "NAME")]
    name: String,
}

pub fn release(servers: &Servers, options: &Release) -> Result<u8, Failure> {
    let Release { owner, name, .. } = options;
    if !options.yes {
        let question = format!(
            "Take {} from {}? Its work may still go on.",
            safe(name),
            safe(owner)
        );
        if !confirmed(&question)? {
            complain("nothing was released");
            return Ok(NOT_HELD);
        }
    }
    let locks = servers.connect()?;
    if locks.force_release(name, owner)? {
        say(&format!("{} was released\n", safe(name)))
    } else {
        complain(&format!("{} is not held by that owner", safe(name)));
        Ok(NOT_HELD)
    }
}

pub fn request(servers: &Servers, options: &Request) -> Result<u8, Failure> {
    let locks = servers.connect()?;
    if locks.request_release(&options.name, &options.why)? {
        say(&format!(
            "the holder of {} was asked\n",
            safe(&options.name)
        ))
    } else {
        complain(&format!("nobody holds {}", safe(&options.name)));
        Ok(NOT_HELD)
    }
}

fn say(text: &str) -> Result<u8, Failure> {
    print(text).map_err(|error| Failure::system("cannot write", error))?;
    Ok(0)
}

/// Asks a question on the terminal. Anything but `yes` is no.
pub fn confirmed(question: &str) -> Result<bool, Failure> {
    let failed = |error| Failure::system("cannot ask", error);
    if !io::stdin().is_terminal() {
        return Err(Failure::new(USAGE, "no terminal to ask on: pass --yes"));
    }
    write!(io::stderr(), "{question} Type yes: ").map_err(failed)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(failed)?;
    Ok(answer.trim() == "yes")
}
