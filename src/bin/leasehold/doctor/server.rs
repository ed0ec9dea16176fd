//! One server, and the commands that the checks send to it.

use std::fmt;
use std::time::Duration;

use leasehold::{LockManager, RawReply};
use uuid::Uuid;

use crate::deployment::{Deployment, Topology};

/// How long a key of a check lives if the check cannot remove it, in ms.
pub const TTL_MS: &str = "10000";

/// A server, by its place in the order of [`LockManager::ping`].
#[derive(Clone, Copy)]
pub struct Server<'a> {
    pub locks: &'a LockManager,
    pub deployment: &'a Deployment,
    pub number: usize,
}

/// Why a command has no reply that a check can use.
#[derive(Clone, Debug)]
pub enum Problem {
    /// This user may not send the command.
    Denied(String),
    /// The server answers with another error.
    Refused(String),
    /// There is no answer, or one that makes no sense.
    Failed(String),
}

impl Problem {
    fn of(text: String) -> Self {
        if text.starts_with("NOPERM") {
            Self::Denied(text)
        } else {
            Self::Refused(text)
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Denied(text) | Self::Refused(text) | Self::Failed(text)) = self;
        f.write_str(text)
    }
}

/// A reply, or the error answer of the server.
pub type Answer = Result<RawReply, Problem>;

impl Server<'_> {
    /// Sends a command on a new connection.
    pub fn ask(&self, command: &[&str]) -> Answer {
        let mut answers = self.ask_all(&[command])?;
        answers
            .pop()
            .map_or_else(|| Err(Problem::Failed("no answer".to_owned())), |it| it.0)
    }

    /// Sends commands, one after the other on a new connection. Returns an answer for each, and the time of its round
    /// trip.
    pub fn ask_all(&self, commands: &[&[&str]]) -> Result<Vec<(Answer, Duration)>, Problem> {
        let answers = self.locks.raw_commands(self.number, commands);
        let answers = answers.map_err(|error| Problem::Failed(format!("{error:#}")))?;
        let answer = |(reply, took)| match reply {
            RawReply::Refused(text) => (Err(Problem::of(text)), took),
            reply => (Ok(reply), took),
        };
        Ok(answers.into_iter().map(answer).collect())
    }

    /// Returns a key that no other program uses. On a cluster, it is one of this master's, if one is found.
    pub fn key(&self) -> String {
        const TRIES: usize = 64;
        let key = || {
            format!(
                "{}leasehold-doctor:{}",
                self.deployment.prefix,
                Uuid::new_v4()
            )
        };
        if self.deployment.topology != Topology::Cluster {
            return key();
        }
        let keys: Vec<String> = (0..TRIES).map(|_| key()).collect();
        let commands: Vec<[&str; 2]> = keys.iter().map(|key| ["EXISTS", key]).collect();
        let commands: Vec<&[&str]> = commands.iter().map(<[_; 2]>::as_slice).collect();
        let answers = self.ask_all(&commands).unwrap_or_default();
        let own = answers.iter().position(|(answer, _)| answer.is_ok());
        keys[own.unwrap_or(0)].clone()
    }
}

/// Returns the text of a reply that is one.
pub fn text(reply: &RawReply) -> Option<&str> {
    match reply {
        RawReply::Text(text) => Some(text),
        _ => None,
    }
}
