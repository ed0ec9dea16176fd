//! `release` takes a lock from its holder, and `request` asks the holder to release it.

use std::io::{self, IsTerminal, Write};
use std::num::NonZeroUsize;

use clap::Args;
use leasehold::Holder;

use crate::exit::{Failure, USAGE};
use crate::output::{age, complain, print, safe, span};
use crate::servers::Servers;
use crate::show;

/// The status if nobody holds the lock, or somebody else does.
const NOT_HELD: u8 = 1;

/// Takes a lock from its holder (`force_release` of the library)
///
/// The holder reads that it has lost the lock, and the next waiter gets it. Use it for a holder that hangs, because work that
/// still goes on is not stopped. If there are several holders, name one by its number in `status`. These numbers change as holders
/// come and go, so a script names the owner, which `status --json` has.
#[derive(Args)]
pub struct Release {
    /// Take the lock from the holder with this number in `status`
    #[arg(long, value_name = "N", conflicts_with_all = ["all", "owner"])]
    holder: Option<NonZeroUsize>,
    /// Take the lock from each of its holders
    #[arg(long, conflicts_with = "owner")]
    all: bool,
    /// Take the lock from the holder with this owner
    #[arg(long, value_name = "OWNER")]
    owner: Option<String>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// The name of the lock
    #[arg(value_name = "NAME")]
    name: String,
}

/// Asks the holder of a lock to release it (`request_release` of the library)
///
/// `leasehold run` prints the reason, and a program with the library can listen for it. The lock goes on until the holder
/// releases it.
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
    let (name, shown) = (&options.name, safe(&options.name));
    let locks = servers.connect()?;
    let mut holders = locks.inspect(name)?.map_or(Vec::new(), |it| it.holders);
    show::number(&mut holders);
    let holders = chosen(options, holders)?;
    let Some(first) = holders.first() else {
        let text = match options {
            Release {
                holder: Some(number),
                ..
            } => format!("{shown} has no holder {number}"),
            Release { owner: Some(_), .. } => format!("{shown} is not held by that owner"),
            _ => format!("nobody holds {shown}"),
        };
        complain(&text);
        return Ok(NOT_HELD);
    };
    let question = match holders.len() {
        1 => format!(
            "Take {shown} from {}? Its work may still go on.",
            described(first)
        ),
        count => {
            let all: Vec<_> = holders.iter().map(described).collect();
            let all = all.join(", ");
            format!("Take {shown} from {count} holders: {all}? Their work may still go on.")
        }
    };
    if !options.yes && !confirmed(&question)? {
        complain("nothing was released");
        return Ok(NOT_HELD);
    }
    let mut released = 0;
    for holder in &holders {
        if locks.force_release(name, &holder.owner)? {
            released += 1;
        } else {
            complain(&format!(
                "{} did not hold {shown} any more",
                show::who(holder)
            ));
        }
    }
    match released {
        0 => Ok(NOT_HELD),
        1 => say(&format!("{shown} was released\n")),
        _ => say(&format!(
            "{shown} was released: {released} holders lost it\n"
        )),
    }
}

/// Returns the holders that lose the lock.
fn chosen(options: &Release, holders: Vec<Holder>) -> Result<Vec<Holder>, Failure> {
    let is_chosen = |(number, holder): &(usize, Holder)| match (&options.owner, options.holder) {
        (Some(owner), _) => holder.owner == *owner,
        (None, Some(chosen)) => *number == chosen.get(),
        (None, None) => true,
    };
    let numbered = (1..).zip(holders);
    let chosen: Vec<_> = numbered.filter(is_chosen).collect();
    if chosen.len() > 1 && !options.all {
        let all: Vec<_> = chosen
            .iter()
            .map(|(number, holder)| format!("{number} is {}", described(holder)))
            .collect();
        let text = format!(
            "{} has several holders: {}. Pass --holder N or --all",
            safe(&options.name),
            all.join(", ")
        );
        return Err(Failure::new(USAGE, text));
    }
    Ok(chosen.into_iter().map(|(_, holder)| holder).collect())
}

/// Returns a holder as a person knows it: `web-1:17281 ("build 7", for 12s)`.
fn described(holder: &Holder) -> String {
    let note = holder.note.as_ref().map(|note| format!("\"{note}\""));
    let since = holder
        .since
        .map(|since| format!("for {}", span(age(since))));
    let facts: Vec<_> = note.into_iter().chain(since).collect();
    let who = show::who(holder);
    if facts.is_empty() {
        return safe(who);
    }
    safe(&format!("{who} ({})", facts.join(", ")))
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
