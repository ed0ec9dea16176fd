//! Commands that the command line makes itself, each call on a new connection.

use crate::error::on_a_line;
use crate::message::{RawAnswers, RawCall};
use crate::script::{self, Command};
use crate::store::Deadline;
use crate::store::server::errors::unavailable;
use crate::store::server::login::log_in;
use crate::store::server::route::Route;
use crate::sys::Time;

/// Sends the commands to the server of the call.
pub(crate) fn ask(routes: &[Route], call: RawCall<'_>) -> RawAnswers {
    let gone = || unavailable("there is no server of this number any more");
    let route = routes.get(call.server).ok_or_else(gone)?;
    let mut open = log_in(route, &mut Deadline::default())?;
    let ask = |words: &&[&str]| {
        let mut command = Command::default();
        command.arg(*words);
        let begun = Time::now();
        let answer = open.request(&command, Deadline::after(route.io_timeout));
        let took = begun.elapsed();
        let answer = answer.map_err(|fault| route.broken(fault))?;
        let hide = |text: &str| on_a_line(&route.server.without_password(text));
        Ok((script::raw_reply(answer, &hide), took))
    };
    call.commands.iter().map(ask).collect()
}
