//! Variables by which systemd tells a service its own process. A program ignores what they announce, such as sockets or the
//! watchdog, if they name another process. So the command gets its own number in place of the front's.

use std::env;
use std::process::{self, Command};

/// For sockets, for the watchdog, and the process itself.
const VARIABLES: [&str; 3] = ["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"];
/// Stands for the command, whose number the front cannot know.
const COMMAND: &str = "command";

/// Returns the variables that name this process, with the command in its place. The others were not meant for `leasehold`, or
/// are left from a process before it.
pub fn of_command() -> impl Iterator<Item = (&'static str, &'static str)> {
    let own = process::id().to_string();
    let is_own = move |name: &&str| env::var_os(name).is_some_and(|value| *value == *own);
    let variables = VARIABLES.into_iter().filter(is_own);
    variables.map(|name| (name, COMMAND))
}

/// Puts the number of this process into the variables that name the command, which this process becomes.
pub fn name_this_process(command: &mut Command) {
    for name in VARIABLES {
        if env::var_os(name).is_some_and(|value| value == COMMAND) {
            command.env(name, process::id().to_string());
            if name == "LISTEN_PID" {
                // It identifies the front's process too, and no program needs it.
                command.env_remove("LISTEN_PIDFDID");
            }
        }
    }
}
