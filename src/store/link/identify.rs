//! A request whose reply counts only if it is that of a master, and of a known process of it.
//!
//! A command without keys, such as SCAN, is executed by each node of a cluster, also by a replica. And a cursor of SCAN
//! has a meaning only for the process that gave it.

use redis::Value;

use super::Link;
use crate::error::{Failure, FailureKind, Outcome};
use crate::message::{Reply, Request};
use crate::script::{self, Command};
use crate::store::refusal::refusal;
use crate::store::route::Budget;
use crate::store::sentinel::check_role;
use crate::store::shared::PooledConnection;
use crate::sync::Arc;

impl Link<'_> {
    /// Sends a request, and returns the reply of a master, and the number of its process: the first 16 digits of its
    /// `run_id`.
    pub(crate) fn call_identified(
        &mut self,
        request: &Request<'_>,
        budget: &Budget,
    ) -> Result<(Reply, u64), Failure> {
        let (route, reused) = (Arc::clone(&self.route), self.connection.is_open());
        let commands = [
            Command::new("INFO").arg("server").to_owned(),
            Command::new("ROLE"),
            script::encode(request, &route.script_settings).by_text(),
        ];
        if !reused {
            let socket = self.connect(budget)?;
            self.connection.open(socket, self.master);
        }
        let mut answers = Vec::new();
        let heard = |_, answer| match answer {
            Value::ServerError(error) => {
                route.cuts.note_answer(&error);
                Err(refusal(&route.server, error))
            }
            answer => {
                answers.push(answer);
                Ok(())
            }
        };
        match self
            .connection
            .requests(&commands, budget.left(route.io_timeout), heard)
        {
            // The request only reads.
            Err(_) if reused => return self.call_identified(request, budget),
            Err(fault) => return Err(route.broken(fault)),
            Ok(answered) => answered?,
        }
        let [report, role, value] =
            <[Value; 3]>::try_from(answers).map_err(|_| Failure::another_question())?;
        check_role(&route, role).inspect_err(|_| self.connection.end(PooledConnection::retire))?;
        let run = run(&report).ok_or_else(|| {
            let words = "the server does not report its run_id";
            Failure::plain(FailureKind::Protocol, Outcome::NotExecuted, words)
        })?;
        let reply = script::decode(request, value)?;
        Ok((reply, run))
    }
}

/// Reads the first 16 digits of the `run_id`.
fn run(report: &Value) -> Option<u64> {
    let Value::BulkString(report) = report else {
        return None;
    };
    let report = String::from_utf8_lossy(report);
    let id = report.lines().find_map(|line| line.strip_prefix("run_id:"));
    u64::from_str_radix(id?.get(..16)?, 16).ok()
}
