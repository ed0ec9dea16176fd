//! Connecting and logging in.
//!
//! 1. The socket connects.
//! 2. AUTH and SELECT go out in one write, which is one round trip. Each is left out if it is not needed.
//! 3. The first connection of a route asks the server about itself: see [`server_info`].
//!
//! No request was sent yet. So a failure in any of these steps is certain: nothing was executed.

use std::time::Duration;

use redis::Value;

use crate::config::Server;
use crate::error::{Failure, FailureKind, Outcome, ServerMode};
use crate::message::Request;
use crate::script::{self, Command};
use crate::store::server::refusal::{refusal, refused_database, refused_login};
use crate::store::server::route::Route;
use crate::store::server::server_info;
use crate::store::transport::socket::Socket;
use crate::store::{Deadline, Phase};
use crate::sys::{Ordering, Time};

/// Reads an error answer to a step of the login.
type Refused = fn(&Server, redis::ServerError) -> Failure;

/// Connects and logs in. The first connection of a route asks the server about itself.
///
/// A server may leave that question without an answer, if something on the way swallows it. If such a server answers a
/// PING on a new connection, nobody asks it again. If it does not, the next connection asks.
pub(crate) fn connect(route: &Route, deadline: &mut Deadline<'_>) -> Result<Socket, Failure> {
    let mut open = log_in(route, deadline)?;
    if route.asked_about_itself.swap(true, Ordering::Relaxed) {
        return Ok(open);
    }
    let mut ask = |command: &Command| {
        // The other half of the time is for a new connection, if there is no answer.
        let half = deadline.phase(Phase::LogIn, route.io_timeout).left() / 2;
        let answered = open.request(command, deadline.phase(Phase::LogIn, half));
        match answered.map_err(|_| None)? {
            // In such a state, such as loading, the server answers no request.
            Value::ServerError(error) => match refusal(&route.server, error.clone()) {
                failure if failure.is_transient() => Err(Some(failure)),
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
        Err(Some(failure)) => Err(failure),
        // No answer came.
        Err(None) => log_in_to_a_server(route, deadline),
    };
    if connected.is_err() {
        route.asked_about_itself.store(false, Ordering::Relaxed);
    }
    connected
}

/// Connects, logs in, and sends a PING to find out whether the server answers.
fn log_in_to_a_server(route: &Route, deadline: &mut Deadline<'_>) -> Result<Socket, Failure> {
    let mut open = log_in(route, deadline)?;
    let time = deadline.phase(Phase::LogIn, route.io_timeout);
    let answered = open.request(&Command::new("PING"), time);
    answered.map_err(|fault| route.broken(fault).with(Outcome::NotExecuted))?;
    Ok(open)
}

/// Connects and logs in.
pub(crate) fn log_in(route: &Route, deadline: &mut Deadline<'_>) -> Result<Socket, Failure> {
    let login = route.server.info.redis_settings();
    let certain = |fault| route.broken(fault).with(Outcome::NotExecuted);
    let time = deadline.phase(Phase::Connect, route.connect_timeout);
    let mut open = Socket::connect(&route.server, &route.resolver, time).map_err(certain)?;
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
    let time = deadline.phase(Phase::LogIn, route.io_timeout);
    let answers = open.requests(&commands, time).map_err(certain)?;
    // If the server rejects AUTH, it rejects SELECT too, so the first error answer counts.
    for (answer, refused) in answers.into_iter().zip(refused) {
        match answer {
            Value::Okay => {}
            Value::ServerError(error) => {
                route.data_loss_signs.note_answer(&error);
                return Err(refused(&route.server, error));
            }
            _ => {
                let words = "the answer to the login is not OK";
                return Err(Failure::plain(
                    FailureKind::Protocol,
                    Outcome::NotExecuted,
                    words,
                ));
            }
        }
    }
    Ok(open)
}

/// Connects, logs in, and has the server load the script of renewals. Each of these steps has its own time limit. Returns
/// what the last step took.
pub(crate) fn connect_for_renewals(route: &Route) -> Result<(Socket, Duration), Failure> {
    let mut open = connect(route, &mut Deadline::default())?;
    // An empty renewal by digest, and in the same write by text, which loads the script. On a slow link the first lease
    // would have no time for another round trip.
    let by_digest = script::encode(&Request::Renew(&[]), &route.script_settings);
    let by_text = by_digest.by_text();
    let begun = Time::now();
    let asked = open.requests(&[by_digest, by_text], Deadline::after(route.io_timeout));
    let answers = asked.map_err(|fault| route.broken(fault))?;
    for answer in answers.into_iter().skip(1) {
        route.accepted(answer)?;
    }
    Ok((open, begun.elapsed()))
}
