//! The two stories. The first process lets the others go on, so things happen in the same order in every run.

use shared::Server;

use crate::Outcome;
use crate::link::Link;
use crate::part::TURNS;
use crate::process::Process;
use crate::record::{Line, Record};

/// Two processes take turns.
pub fn hand_over(server: &Server) -> Outcome<Vec<Line>> {
    let (mut record, url) = (Record::new(), server.url());
    let mut a = Process::start("A", "take_turns", &url, &record.sender)?;
    let mut b = Process::start("B", "take_turns", &url, &record.sender)?;
    a.go_on()?;
    record.wait_for("A", &["acquired"], 1)?;
    b.go_on()?;
    record.wait_for("B", &["contended"], 1)?;
    a.go_on()?;
    // The first turn of B is not longer than the others.
    b.go_on()?;
    record.wait_for("A", &["released"], TURNS)?;
    record.wait_for("B", &["released"], TURNS)?;
    a.end()?;
    b.end()?;
    Ok(record.lines)
}

/// The link of the holder A is cut while B waits.
pub fn loss(server: &Server) -> Outcome<Vec<Line>> {
    let (mut record, link) = (Record::new(), Link::to(server)?);
    let mut a = Process::start("A", "lose", &link.url(), &record.sender)?;
    let mut b = Process::start("B", "take_turns", &server.url(), &record.sender)?;
    a.go_on()?;
    record.wait_for("A", &["acquired"], 1)?;
    b.go_on()?;
    record.wait_for("B", &["contended"], 1)?;
    record.wait_for("A", &["renewed", "lost"], 1)?;
    link.cut();
    record.add("cut")?;
    record.wait_for("A", &["held"], 1)?;
    record.wait_for("A", &["lost"], 1)?;
    record.wait_for("B", &["acquired"], 1)?;
    Ok(record.lines)
}
