//! The starter: it becomes the command.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::SigSet;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::stdio::{dup2_stdin, stdin};

use super::messages::receive_descriptor;
use super::systemd;
use crate::exit::{CANNOT_RUN, Failure, NOT_FOUND};

/// Arguments: the keeper's process, and the command. The keeper has started this process in the command's group, from its
/// main thread: the kernel sends the signal below when that *thread* ends. Standard input is a socket, by which the keeper sends the
/// command's standard input when it may begin.
pub fn main(mut arguments: impl Iterator<Item = OsString>) -> Result<u8, Failure> {
    let wrong = || Failure::new(crate::exit::USAGE, "this form is for `leasehold run` alone");
    let keeper = arguments
        .next()
        .and_then(|text| Pid::from_raw(text.to_str()?.parse().ok()?))
        .ok_or_else(wrong)?;
    let command = arguments.next().ok_or_else(wrong)?;

    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Failure::system("cannot tie the command to its keeper", error))?;
    // The keeper may have died before the line above.
    if getppid() != Some(keeper) {
        return Err(Failure::system(
            "cannot run the command",
            "its keeper has died",
        ));
    }
    receive_descriptor(stdin())
        .and_then(|of_command| Ok(dup2_stdin(of_command)?))
        .map_err(|error| Failure::system("cannot run the command", error))?;
    // The keeper has blocked all signals, and `exec` keeps that. Those that have come since are taken now.
    SigSet::empty()
        .thread_set_mask()
        .map_err(|error| Failure::system("cannot receive signals", error))?;
    let mut program = Command::new(&command);
    systemd::name_this_process(&mut program);
    let error = program.args(arguments).exec();
    let status = match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => CANNOT_RUN,
    };
    let text = format!(
        "cannot run {}: {error}",
        std::path::Path::new(&command).display()
    );
    Err(Failure::new(status, text))
}
