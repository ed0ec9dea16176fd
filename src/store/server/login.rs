//! Connecting and logging in.
//!
//! 1. The socket connects.
//! 2. AUTH and SELECT go out in one write, which is one round trip. Each is left out if it is not needed.
//! 3. The first connection of a route asks the server about itself: see [`server_info`].
//!
//! No request was sent yet. So a failure in any of these steps is certain: nothing was executed.

use redis::Value;

use crate::config::Server;
use crate::error::{Failure, FailureKind, Outcome, ServerMode};
use crate::script::Command;
use crate::store::server::errors::RequestError;
use crate::store::server::refusal::{refusal, refused_database, refused_login};
use crate::store::server::route::{Budget, Route};
use crate::store::server::server_info;
use crate::store::transport::socket::{Socket, TransportError};
use crate::sync::Ordering;

/// Reads an error answer to a step of the login.
type Refused = fn(&Server, redis::ServerError) -> Failure;

/// Connects and logs in. The first connection of a route asks the server about itself.
///
/// A server may leave that question without an answer, if something on the way swallows it. If such a server answers a
/// PING on a new connection, nobody asks it again. If it does not, the next connection asks.
pub(crate) fn connect(route: &Route, budget: &Budget) -> Result<Socket, Failure> {
    let mut open = log_in(route, budget)?;
    if route.asked_about_itself.swap(true, Ordering::Relaxed) {
        return Ok(open);
    }
    let mut ask = |command: &Command| {
        // The other half of the time is for a new connection, if there is no answer.
        let answered = open.request(command, budget.left(route.io_timeout) / 2);
        match answered.map_err(RequestError::of)? {
            // In such a state, such as loading, the server answers no request.
            Value::ServerError(error) => match refusal(&route.server, error.clone()) {
                failure if failure.is_transient() => Err(RequestError::Answered(failure)),
                _ => Ok(Value::ServerError(error)),
            },
            value => Ok(value),
        }
    };
    let connected = match server_info::ask_about_itself(&route.server.address, &mut ask) {
        Ok(None) => Ok(open),
        Ok(Some(ServerMode::Cluster)) if route.is_of_a_cluster => Ok(open),
        Ok(Some(_)) if route.is_of_a_cluster => Err(Failure::plain(
            FailureKind::NotACluster,
            Outcome::NotExecuted,
            "its mode",
        )),
        Ok(Some(mode)) => Err(Failure::unsupported(mode)),
        Err(RequestError::Answered(failure)) => Err(failure),
        Err(_) => log_in_to_a_server(route, budget),
    };
    if connected.is_err() {
        route.asked_about_itself.store(false, Ordering::Relaxed);
    }
    connected
}

/// Connects, logs in, and sends a PING to find out whether the server answers.
fn log_in_to_a_server(route: &Route, budget: &Budget) -> Result<Socket, Failure> {
    let mut open = log_in(route, budget)?;
    match open.request(&Command::new("PING"), budget.left(route.io_timeout)) {
        Ok(_) => Ok(open),
        Err(fault) => Err(certain(route.broken(fault))),
    }
}

/// Connects and logs in.
pub(crate) fn log_in(route: &Route, budget: &Budget) -> Result<Socket, Failure> {
    let login = route.server.info.redis_settings();
    let limit = budget.left(route.connect_timeout);
    let mut open = Socket::connect(route.server.info.addr(), &route.resolver, limit)
        .map_err(|error| certain(route.broken(TransportError::Io(error))))?;
    let (mut commands, mut refused) = (Vec::new(), Vec::<Refused>::new());
    if login.password().is_some() || login.username().is_some() {
        let mut auth = Command::new("AUTH");
        if let Some(user) = login.username() {
            auth.arg(user);
        }
        // A user may have no password. Without AUTH, the server would treat this connection as the user `default`.
        let password = login.password().unwrap_or_default();
        commands.push(auth.arg(password).to_owned());
        refused.push(refused_login);
    }
    if login.db() != 0 {
        commands.push(Command::new("SELECT").arg(login.db()).to_owned());
        refused.push(refused_database);
    }
    // If the server rejects AUTH, it rejects SELECT too, so the first error answer counts.
    let heard = |number: usize, answer| match answer {
        Value::Okay => Ok(()),
        Value::ServerError(error) => {
            route.cuts.note_answer(&error);
            Err(refused[number](&route.server, error))
        }
        _ => {
            let words = "the answer to the login is not OK";
            Err(Failure::plain(
                FailureKind::Protocol,
                Outcome::NotExecuted,
                words,
            ))
        }
    };
    open.requests(&commands, budget.left(route.io_timeout), heard)
        .map_err(|fault| certain(route.broken(fault)))??;
    Ok(open)
}

/// Returns the same failure of a request that was certainly not executed.
fn certain(failure: Failure) -> Failure {
    Failure {
        outcome: Outcome::NotExecuted,
        ..failure
    }
}
