//! The door to the library for a machine of a test. The test kit (`testkit/`) and `tests/simulator` make such machines, and a
//! manager runs on one by [`Builder::on`](crate::Builder::on). None of it is public API: it changes with the library.

use std::io;

use crate::sys::{Arc, Machine};
use crate::wire::SCRIPTS;

pub mod fuzz;

pub use crate::name::slot_of;
pub use crate::sys::test_machine::{
    MovedByTest, TestMachine, TestNetwork, TestScheduler, TestStream,
};
pub use crate::sys::thread::sleep;
pub use crate::sys::{LONGEST_SLEEP, Time};

/// Takes the network from a manager of the test kit for ever. Returns false if it is no such manager.
#[must_use]
pub fn kill(manager: &crate::LockManager) -> bool {
    manager.engine.client.machine().kill()
}

/// Starts a thread on this machine, with this name.
///
/// # Errors
///
/// The system refuses the thread.
pub fn spawn(
    machine: Arc<dyn TestMachine>,
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    Machine::new(machine).spawn(name, run)
}

/// Returns the text of a script, by the name of its file in `src/wire/lua` without the extension.
///
/// # Panics
///
/// There is no such script.
#[must_use]
pub fn script(name: &str) -> &'static str {
    let script = SCRIPTS.iter().find(|script| script.name == name);
    script.expect("a script").text()
}
