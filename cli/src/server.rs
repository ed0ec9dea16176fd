//! One server, and the commands that `doctor` and `bench` send to it themselves, by connections of the redis crate, because
//! the library sends only what is about locks.

use std::borrow::Cow;
use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use redis::{
    Client, ClientTlsConfig, Cmd, Connection, ConnectionAddr, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, TlsCertificates, Value,
};

use crate::deployment::Deployment;

/// A server, at an address that [`LockManager::ping`](leasehold::LockManager::ping) has named.
#[derive(Clone, Copy)]
pub struct Server<'a> {
    pub address: &'a str,
    pub deployment: &'a Deployment,
}

/// Why a command has no reply that a check can use. No text has the password.
#[derive(Clone, Debug)]
pub enum Problem {
    /// This user may not send the command.
    Denied(String),
    /// The server answers with another error.
    Refused(String),
    /// There is no answer, or one that makes no sense.
    Failed(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Denied(text) | Self::Refused(text) | Self::Failed(text)) = self;
        f.write_str(text)
    }
}

/// A reply, or the error answer of the server.
pub type Answer = Result<Value, Problem>;

/// A connection to a server.
pub struct Session<'a> {
    server: Server<'a>,
    connection: Connection,
}

impl Session<'_> {
    /// Sends a command. Returns the answer, and the time of the round trip.
    pub fn ask(&mut self, command: &[&str]) -> Result<(Answer, Duration), Problem> {
        self.server.ask_on(&mut self.connection, command)
    }

    /// Sends commands in one go, and then reads their answers: one round trip for all.
    pub fn ask_at_once(&mut self, commands: &[&[&str]]) -> Result<Vec<Answer>, Problem> {
        let packed = commands.iter().map(|words| packed(words));
        let packed: Vec<u8> = packed.flatten().collect();
        let sent = self.connection.send_packed_command(&packed);
        sent.map_err(|error| self.server.broken(&error))?;
        let answer = |_| self.server.answer(self.connection.recv_response());
        commands.iter().map(answer).collect()
    }
}

impl<'a> Server<'a> {
    /// Sends a command on a new connection.
    pub fn ask(&self, command: &[&str]) -> Answer {
        let (answer, _) = self.session()?.ask(command)?;
        answer
    }

    /// Sends commands, one after the other on a new connection. Returns an answer for each, and the time of its round
    /// trip.
    pub fn ask_all(&self, commands: &[&[&str]]) -> Result<Vec<(Answer, Duration)>, Problem> {
        let mut session = self.session()?;
        commands
            .iter()
            .map(|command| session.ask(command))
            .collect()
    }

    /// Connects and logs in.
    pub fn session(&self) -> Result<Session<'a>, Problem> {
        Ok(Session {
            server: *self,
            connection: self.connect()?,
        })
    }

    fn ask_on(
        &self,
        connection: &mut Connection,
        command: &[&str],
    ) -> Result<(Answer, Duration), Problem> {
        let begun = Instant::now();
        let sent = connection.send_packed_command(&packed(command));
        let reply = sent.and_then(|()| connection.recv_response());
        let took = begun.elapsed();
        Ok((self.answer(reply)?, took))
    }

    /// Returns the answer in a reply. A reply that is none is a failure of the connection.
    fn answer(&self, reply: Result<Value, RedisError>) -> Result<Answer, Problem> {
        Ok(match reply.map_err(|error| self.broken(&error))? {
            Value::ServerError(error) => {
                let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
                let text = self.without_password(&text);
                Err(if error.code() == "NOPERM" {
                    Problem::Denied(text)
                } else {
                    Problem::Refused(text)
                })
            }
            reply => Ok(reply),
        })
    }

    /// Connects and logs in, as the library does.
    fn connect(&self) -> Result<Connection, Problem> {
        let deployment = self.deployment;
        let open = || {
            let connection = self
                .client()?
                .get_connection_with_timeout(deployment.connect_timeout)?;
            connection.set_read_timeout(Some(deployment.io_timeout))?;
            connection.set_write_timeout(Some(deployment.io_timeout))?;
            Ok(connection)
        };
        let mut connection = open().map_err(|error| self.broken(&error))?;
        if deployment.tls.is_some() {
            // The handshake comes with the first command, and would count as its round trip.
            let _ = self.ask_on(&mut connection, &["PING"])?;
        }
        for command in deployment.login() {
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            let (answer, _) = self.ask_on(&mut connection, &words)?;
            // It is not quoted, because a server that does not know AUTH quotes the password, perhaps in part.
            if !matches!(answer, Ok(Value::Okay)) {
                let what = if words[0] == "AUTH" {
                    "login"
                } else {
                    "database"
                };
                return Err(Problem::Failed(format!("the server rejects the {what}")));
            }
        }
        Ok(connection)
    }

    /// Returns the client of this address. It sends nothing of its own: no login, and not the name of the redis crate, at
    /// which some proxies close the connection.
    fn client(&self) -> Result<Client, RedisError> {
        let tls = self.deployment.tls.as_ref();
        let (host, port) = self.address.rsplit_once(':').unwrap_or_default();
        // An address of IPv6 is in brackets.
        let host = host.trim_matches(['[', ']']).to_owned();
        let port = port.parse().unwrap_or_default();
        let address = if self.address.starts_with('/') {
            ConnectionAddr::Unix(self.address.into())
        } else if tls.is_some() {
            ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
        let info = address.into_connection_info()?.set_redis_settings(silent);
        let Some(tls) = tls else {
            return Client::open(info);
        };
        let client_tls = match &tls.client {
            None => None,
            Some((certificate, key)) => Some(ClientTlsConfig {
                client_cert: fs::read(certificate)?,
                client_key: fs::read(key)?,
            }),
        };
        let root_cert = tls.roots.as_ref().map(fs::read).transpose()?;
        let certificates = TlsCertificates {
            client_tls,
            root_cert,
        };
        Client::build_with_tls(info, certificates)
    }

    fn broken(&self, error: &RedisError) -> Problem {
        let why = if error.is_timeout() {
            "timed out".to_owned()
        } else {
            self.without_password(&error.to_string())
        };
        Problem::Failed(format!("the connection to {} failed: {why}", self.address))
    }

    /// Returns a text of the server with `<password>` in place of the password.
    fn without_password(&self, text: &str) -> String {
        match self.deployment.password.as_deref() {
            None | Some("") => text.to_owned(),
            Some(password) => text.replace(password, "<password>"),
        }
    }
}

/// Returns the bytes of a command.
fn packed(command: &[&str]) -> Vec<u8> {
    Cmd::new().arg(command).get_packed_command()
}

/// Returns the text of a reply that is one. Bytes that are no UTF-8 are replaced.
pub fn text(reply: &Value) -> Option<Cow<'_, str>> {
    match reply {
        Value::Okay => Some("OK".into()),
        Value::SimpleString(text) => Some(text.into()),
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_an_address_is_understood() {
        let deployment = &Deployment::read("redis://h");
        for (address, expected) in [
            ("h:6379", ConnectionAddr::Tcp("h".to_owned(), 6379)),
            ("[::1]:7", ConnectionAddr::Tcp("::1".to_owned(), 7)),
            ("/tmp/s", ConnectionAddr::Unix("/tmp/s".into())),
        ] {
            let client = Server {
                address,
                deployment,
            }
            .client()
            .expect("it is one");
            assert_eq!(*client.get_connection_info().addr(), expected);
        }
    }
}
