//! Whether servers answer, each on a new connection.

use std::time::Duration;

use crate::error::Failure;
use crate::net::deadline::Deadline;
use crate::net::login::log_in;
use crate::net::refusal::unavailable;
use crate::net::route::Route;
use crate::panics::survived;
use crate::sys::thread::{self, BlockingQueue};
use crate::sys::{Arc, Time};
use crate::wire::Command;

/// The address of a server, and the time of a round trip or its failure.
pub(crate) type Pinged = (Arc<str>, Result<Duration, Failure>);

/// Pings servers. Returns the results in the order of the servers.
pub(crate) fn all(routes: Vec<Route>) -> Vec<Pinged> {
    let mut pings: Vec<_> = as_they_answer(routes).collect();
    pings.sort_by_key(|(number, _)| *number);
    pings.into_iter().map(|(_, pinged)| pinged).collect()
}

/// Pings servers, all at the same time, each on a short-lived thread, because it may hang. Returns the results as they come,
/// with the numbers of the servers.
pub(crate) fn as_they_answer(routes: Vec<Route>) -> impl Iterator<Item = (usize, Pinged)> {
    let results = Arc::new(BlockingQueue::new(routes.len()));
    let all = routes.len();
    for (number, route) in routes.into_iter().enumerate() {
        let (server, of_thread) = (Arc::clone(&route.server.address), Arc::clone(&results));
        let started = thread::spawn("", move || {
            let panicked = || Err(unavailable("the ping panicked"));
            let result = survived(|| ping(&route)).unwrap_or_else(panicked);
            of_thread.push((number, (Arc::clone(&route.server.address), result)));
        });
        if let Err(error) = started {
            let words = format!("no thread could be started to ask it: {error}");
            results.push((number, (server, Err(unavailable(words)))));
        }
    }
    (0..all).map_while(move |_| results.pop())
}

/// Pings a server on a new connection. Returns the time of the round trip.
fn ping(route: &Route) -> Result<Duration, Failure> {
    let mut open = log_in(route, &mut Deadline::default())?;
    let begun = Time::now();
    let answer = open.request(&Command::new("PING"), Deadline::after(route.io_timeout));
    let took = begun.elapsed();
    route.accepted(answer.map_err(|fault| route.broken(fault))?)?;
    Ok(took)
}
