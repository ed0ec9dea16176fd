//! Commands about the server and the connection.

use super::arguments::{Arguments, CommandError};
use super::glob;
use super::resp::Resp;
use super::state::ServerState;
use super::users::DEFAULT;

/// How many databases a server has.
const DATABASES: usize = 16;

/// The version of Redis that the server says it has.
const VERSION: &str = "7.4.0";

/// The settings that `CONFIG GET` shows.
const SETTINGS: [(&str, &str); 3] = [
    ("databases", "16"),
    ("maxmemory", "0"),
    ("maxmemory-policy", "noeviction"),
];

/// `PING [message]`. On a connection with subscriptions the answer has the form of a message.
pub(super) fn ping(
    server: &mut ServerState,
    connection: u64,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let message = match arguments.from(1) {
        [] => None,
        [message] => Some(message.clone()),
        _ => {
            let text = "ERR wrong number of arguments for 'ping' command";
            return Err(CommandError::new(text));
        }
    };
    if server.is_subscribed(connection) {
        let message = Resp::bulk(message.unwrap_or_default());
        return Ok(Resp::Array(vec![Resp::bulk("pong"), message]));
    }
    Ok(message.map_or_else(|| Resp::Status("PONG".into()), Resp::Bulk))
}

/// `ECHO message`.
pub(super) fn echo(
    _: &mut ServerState,
    _: u64,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    Ok(Resp::bulk(arguments.get(1)))
}

/// `SELECT database`.
pub(super) fn select(
    server: &mut ServerState,
    connection: u64,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let database = usize::try_from(arguments.int(1)?).ok();
    let database = database.filter(|database| *database < DATABASES);
    let database = database.ok_or_else(|| CommandError::new("ERR DB index is out of range"))?;
    if let Some(connection) = server.peers.get_mut(&connection) {
        connection.database = database;
    }
    Ok(Resp::ok())
}

/// `TIME`: seconds and microseconds.
pub(super) fn time(
    server: &mut ServerState,
    _: u64,
    _: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let (seconds, micros) = (server.now.as_secs(), server.now.subsec_micros());
    let parts = [seconds.to_string(), micros.to_string()];
    Ok(Resp::Array(parts.map(Resp::bulk).into()))
}

/// `INFO [section ...]`, with the fields that clients of locks read.
pub(super) fn info(
    server: &mut ServerState,
    _: u64,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let uptime = match server.now.checked_sub(server.started_at) {
        Some(uptime) => uptime.as_secs().to_string(),
        // The clock was set back.
        None => format!(
            "-{}",
            server.started_at.saturating_sub(server.now).as_secs()
        ),
    };
    let mode = match (&server.cluster, &server.watched) {
        (Some(_), _) => "cluster",
        (None, Some(_)) => "sentinel",
        (None, None) => "standalone",
    };
    let sections = [
        (
            "Server",
            format!(
                "redis_version:{VERSION}\r\nredis_mode:{mode}\r\nrun_id:{}\r\nuptime_in_seconds:{uptime}\r\n",
                server.run_id
            ),
        ),
        (
            "Memory",
            "maxmemory:0\r\nmaxmemory_policy:noeviction\r\n".into(),
        ),
        ("Replication", server.replication.info()),
    ];
    let asked: Vec<_> = (1..arguments.len())
        .map(|number| arguments.option(number))
        .collect();
    let is_asked = |name: &str| {
        let all = ["DEFAULT", "ALL", "EVERYTHING"];
        let mut asked_for = asked.iter().map(String::as_str);
        asked.is_empty()
            || asked_for.any(|one| one.eq_ignore_ascii_case(name) || all.contains(&one))
    };
    let shown = sections.iter().filter(|(name, _)| is_asked(name));
    let shown: Vec<_> = shown
        .map(|(name, fields)| format!("# {name}\r\n{fields}"))
        .collect();
    Ok(Resp::bulk(shown.join("\r\n")))
}

/// `CONFIG GET pattern [pattern ...]`.
pub(super) fn config(
    _: &mut ServerState,
    _: u64,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    if arguments.option(1) != "GET" || arguments.len() < 3 {
        return Err(CommandError::unknown_subcommand(arguments));
    }
    let patterns = arguments.from(2);
    let is_asked = |name: &str| {
        let mut patterns = patterns.iter();
        patterns.any(|pattern| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
    };
    let found = SETTINGS.iter().filter(|(name, _)| is_asked(name));
    let parts = found.flat_map(|(name, value)| [Resp::bulk(*name), Resp::bulk(*value)]);
    Ok(Resp::Array(parts.collect()))
}

/// `FLUSHALL`.
pub(super) fn flush_all(
    server: &mut ServerState,
    _: u64,
    _: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    for keys in server.databases.values_mut() {
        keys.clear();
    }
    Ok(Resp::ok())
}

/// `ACL SETUSER user [rule ...]`, and `ACL DELUSER user`.
pub(super) fn acl(
    server: &mut ServerState,
    _: u64,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    match (arguments.option(1).as_str(), arguments.from(2)) {
        ("SETUSER", [name, rules @ ..]) => {
            server.users.set(&String::from_utf8_lossy(name), rules)?;
            Ok(Resp::ok())
        }
        ("DELUSER", [name]) => {
            let removed = server.users.remove(&String::from_utf8_lossy(name));
            Ok(Resp::flag(removed))
        }
        _ => Err(CommandError::unknown_subcommand(arguments)),
    }
}

/// `AUTH [user] password`.
pub(super) fn auth(
    server: &mut ServerState,
    connection: u64,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let (name, password) = match arguments.from(1) {
        [_] if !server.users.needs_password(DEFAULT) => {
            return Err(CommandError::new(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
                 configuration is correct?",
            ));
        }
        [password] => (DEFAULT.to_owned(), password),
        [name, password] => (String::from_utf8_lossy(name).into_owned(), password),
        _ => return Err(CommandError::syntax()),
    };
    let is_right = server.users.may_log_in(&name, password);
    match server.peers.get_mut(&connection).filter(|_| is_right) {
        Some(peer) => {
            peer.user = Some(name);
            Ok(Resp::ok())
        }
        None => Err(CommandError::new(
            "WRONGPASS invalid username-password pair or user is disabled.",
        )),
    }
}
