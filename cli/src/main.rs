//! `leasehold`, the command line: locks for scripts, cron jobs and people on call. docs/cli.md is its manual.
//!
//! Each subcommand is a module with a function that returns the exit status, or a [`Failure`] with its status and text.
//! All of them use the public API of the library only; `doctor` and `bench` also send their own commands, by `server`.

#![allow(
    clippy::doc_markdown,
    reason = "clap prints the comments of options as help"
)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "the command line needs Linux: it watches its processes by signalfd, timerfd and pidfd"
);

mod bench;
mod deployment;
mod doctor;
mod exit;
mod figures;
mod leader;
mod operate;
mod output;
mod pages;
mod run;
mod server;
mod servers;
mod show;
mod signals;
mod watch;

use std::process::ExitCode;
use std::{env, panic};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{FromArgMatches, Parser, Subcommand};

use exit::{Failure, LOST, USAGE};
use servers::Servers;

/// Runs commands under distributed locks on Redis, and shows who holds them
#[derive(Parser)]
#[command(name = "leasehold", version, max_term_width = 100)]
struct Arguments {
    #[command(flatten)]
    servers: Servers,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Options),
    Elect(run::Elect),
    Leader(leader::Options),
    Status(show::Status),
    List(show::List),
    Watch(watch::Options),
    #[command(visible_alias = "force-release")]
    Release(operate::Release),
    #[command(visible_alias = "request-release")]
    Request(operate::Request),
    Doctor(doctor::Options),
    Bench(bench::Options),
    Completions(pages::Completions),
    Man(pages::Man),
}

fn main() -> ExitCode {
    // A panic would have the status 101. The thread has told of it by now.
    let status = panic::catch_unwind(status).unwrap_or(LOST);
    ExitCode::from(status)
}

/// Runs the subcommand, and returns the exit status.
fn status() -> u8 {
    let mut arguments = env::args_os().skip(1);
    let result = match arguments.next() {
        // The two forms in which `leasehold run` starts itself.
        Some(first) if first == run::KEEPER => run::keeper::main(arguments),
        Some(first) if first == run::STARTER => run::starter::main(arguments),
        _ => parse().and_then(execute),
    };
    result.unwrap_or_else(|failure| {
        output::complain(&failure.text);
        failure.status
    })
}

/// Parses the command line. Text that was asked for, such as the help, is printed here and ends the process.
fn parse() -> Result<Arguments, Failure> {
    let matches = pages::command().try_get_matches();
    let parsed = matches.and_then(|matches| Arguments::from_arg_matches(&matches));
    parsed.map_err(|mut error| {
        let status = match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => 0,
            _ => USAGE,
        };
        hint_at_separator(&mut error);
        // A closed output is no reason for another status.
        let _ = error.print();
        std::process::exit(status.into())
    })
}

/// Adds the missing `--` to the message about `leasehold run NAME COMMAND`, which has a second name and no command, and
/// about an option of such a command. The same for `elect`.
fn hint_at_separator(error: &mut clap::Error) {
    let usage = error.get(ContextKind::Usage).map(ToString::to_string);
    let usage = usage.unwrap_or_default();
    let is_of = |subcommand| usage.contains(&format!("leasehold {subcommand} "));
    let Some(subcommand) = ["run", "elect"].into_iter().find(|it| is_of(*it)) else {
        return;
    };
    let kinds = [
        ErrorKind::MissingRequiredArgument,
        ErrorKind::UnknownArgument,
    ];
    if kinds.contains(&error.kind()) && !env::args_os().any(|it| it == "--") {
        let tip = format!("the command stands behind `--`: leasehold {subcommand} NAME -- COMMAND");
        let tips = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tips);
    }
}

fn execute(arguments: Arguments) -> Result<u8, Failure> {
    let servers = &arguments.servers;
    // These say it as their options want it.
    let is_run = matches!(arguments.command, Command::Run(_) | Command::Elect(_));
    if let Some(warning) = servers.warning().filter(|_| !is_run) {
        output::complain(warning);
    }
    match arguments.command {
        Command::Run(options) => run::front::main(servers, options),
        Command::Elect(options) => run::front::main(servers, options.into()),
        Command::Leader(options) => leader::main(servers, &options),
        Command::Status(options) => show::status(servers, &options),
        Command::List(options) => show::list(servers, &options),
        Command::Watch(options) => watch::main(servers, &options),
        Command::Release(options) => operate::release(servers, &options),
        Command::Request(options) => operate::request(servers, &options),
        Command::Doctor(options) => doctor::main(servers, &options),
        Command::Bench(options) => bench::main(servers, &options),
        Command::Completions(options) => pages::completions(&options),
        Command::Man(options) => pages::man(&options),
    }
}
