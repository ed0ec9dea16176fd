//! Whether servers answer: each is asked on a short-lived thread, because it may hang.

use std::time::Duration;

use crate::error::Failure;
use crate::panics::survived;
use crate::script::Command;
use crate::store::server::errors::unavailable;
use crate::store::server::login::log_in;
use crate::store::server::route::Route;
use crate::store::{Deadline, Pinged};
use crate::sys::queue::BlockingQueue;
use crate::sys::{Arc, Time, thread};

/// Pings servers, all at the same time. Returns the results in the order of the servers.
pub(crate) fn ping_all(routes: Vec<Route>) -> Vec<Pinged> {
    let results = Arc::new(BlockingQueue::new(routes.len()));
    let mut pings: Vec<Pinged> = Vec::with_capacity(routes.len());
    let mut asked = 0;
    for (number, route) in routes.into_iter().enumerate() {
        let (server, of_thread) = (Arc::clone(&route.server.address), Arc::clone(&results));
        let started = thread::spawn("", move || {
            let panicked = || Err(unavailable("the ping panicked"));
            of_thread.push((number, survived(|| ping(&route)).unwrap_or_else(panicked)));
        });
        asked += usize::from(started.is_ok());
        let why = started
            .err()
            .map_or_else(String::new, |error| error.to_string());
        pings.push((
            server,
            Err(unavailable(format!(
                "no thread could be started to ask it: {why}"
            ))),
        ));
    }
    for (number, result) in (0..asked).map_while(|_| results.pop()) {
        pings[number].1 = result;
    }
    pings
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
