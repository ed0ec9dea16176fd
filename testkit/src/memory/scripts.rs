//! The commands of scripts. While a script runs, the server's time stands still, and no other command runs.

use super::arguments::{Arguments, CommandError};
use super::resp::Resp;
use super::state::ServerState;

/// `EVAL script number-of-keys [key ...] [argument ...]`.
pub(super) fn eval(
    server: &mut ServerState,
    connection: u64,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let (keys, argv) = keys_and_argv(arguments)?;
    let digest = server.scripts.load(arguments.get(1))?;
    run(server, connection, &digest, keys, argv)
}

/// `EVALSHA digest number-of-keys [key ...] [argument ...]`.
pub(super) fn eval_sha(
    server: &mut ServerState,
    connection: u64,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let (keys, argv) = keys_and_argv(arguments)?;
    let digest = String::from_utf8_lossy(arguments.get(1)).to_lowercase();
    run(server, connection, &digest, keys, argv)
}

/// The keys of a script, and its other arguments.
type KeysAndArgv<'a> = (&'a [Vec<u8>], &'a [Vec<u8>]);

fn keys_and_argv<'a>(arguments: &Arguments<'a>) -> Result<KeysAndArgv<'a>, CommandError> {
    let rest = arguments.from(3);
    let Ok(count) = usize::try_from(arguments.int(2)?) else {
        return Err(CommandError::new("ERR Number of keys can't be negative"));
    };
    rest.split_at_checked(count)
        .ok_or_else(|| CommandError::new("ERR Number of keys can't be greater than number of args"))
}

/// `SCRIPT LOAD script`, `SCRIPT EXISTS digest [digest ...]`, `SCRIPT FLUSH`.
pub(super) fn script(
    server: &mut ServerState,
    _: u64,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let scripts = &mut server.scripts;
    match (arguments.option(1).as_str(), arguments.len()) {
        ("LOAD", 3) => scripts.load(arguments.get(2)).map(Resp::bulk),
        ("EXISTS", 3..) => {
            let digests = arguments.from(2).iter();
            let digests = digests.map(|digest| String::from_utf8_lossy(digest).to_lowercase());
            let exist = digests.map(|digest| Resp::flag(scripts.is_loaded(&digest)));
            Ok(Resp::Array(exist.collect()))
        }
        ("FLUSH", 2 | 3) => {
            scripts.forget_all();
            Ok(Resp::ok())
        }
        _ => Err(CommandError::unknown_subcommand(arguments)),
    }
}

fn run(
    server: &mut ServerState,
    connection: u64,
    digest: &str,
    keys: &[Vec<u8>],
    argv: &[Vec<u8>],
) -> Result<Resp, CommandError> {
    let script = server.scripts.get(digest);
    let script =
        script.ok_or_else(|| CommandError::new("NOSCRIPT No matching script. Please use EVAL."))?;
    let execute = server.execute_for_script;
    script.run(keys, argv, |words| {
        execute(server, connection, &Arguments(words))
    })
}
