//! Two registers for each name, in a Redis in memory that no fault meets: numbers that holders increase. Each reads one, works for
//! a while, and writes one more.
//!
//! The plain one takes each write. The fenced one is read and written by the scripts of docs/fencing.md, taken from that page.

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_testing::memory::MemoryServer;

/// The scripts of the page that write and read a string.
static SCRIPTS: LazyLock<[&str; 2]> = LazyLock::new(|| {
    let page = include_str!("../../../docs/fencing.md");
    let mut blocks = page.split("```lua\n").skip(1);
    let mut next = || blocks.next()?.split("```").next();
    [next(), next()].map(|script| script.expect("the page has these scripts"))
});
/// A write that looks at no fence.
const STALE: &str = "redis.call('SET', KEYS[1], ARGV[2]) return 1";
/// Nothing there depends on the time.
const NOW: Duration = Duration::ZERO;

pub(crate) struct Registers {
    server: MemoryServer,
    write: &'static str,
}

/// The values that a holder has read.
#[derive(Clone, Copy)]
pub(crate) struct Read {
    pub(crate) plain: u64,
    /// `None` if the fence was too small.
    pub(crate) fenced: Option<u64>,
}

impl Read {
    /// Returns what the holder takes for the value of the fenced register. One whose read was rejected goes on all the same.
    pub(crate) fn value(self) -> u64 {
        self.fenced.unwrap_or(self.plain)
    }
}

impl Registers {
    pub(crate) fn new(takes_stale_writes: bool) -> Self {
        let write = SCRIPTS[0];
        Self {
            server: MemoryServer::start("registers".into(), NOW),
            write: if takes_stale_writes { STALE } else { write },
        }
    }

    /// Returns both values.
    pub(crate) fn values(&mut self, name: &str) -> Read {
        Read {
            plain: self.value(&plain(name)),
            fenced: Some(self.value(&fenced(name))),
        }
    }

    /// Reads both values for a later write. The fenced register takes smaller fences no more.
    pub(crate) fn read(&mut self, name: &str, fence: u64) -> Read {
        let is_taken = self.run(SCRIPTS[1], name, &[&fence.to_string()]);
        let values = self.values(name);
        Read {
            fenced: values.fenced.filter(|_| is_taken),
            ..values
        }
    }

    /// Writes one more than was read. Returns whether the fenced register takes it.
    pub(crate) fn write(&mut self, name: &str, fence: u64, read: Read) -> bool {
        let next = (read.plain + 1).to_string();
        self.execute(&["SET", &plain(name), &next]);
        let next = (read.value() + 1).to_string();
        self.run(self.write, name, &[&fence.to_string(), &next])
    }

    /// Executes a script for the fenced register. Returns whether its reply begins with 1.
    fn run(&mut self, script: &str, name: &str, arguments: &[&str]) -> bool {
        let (value, fence) = (fenced(name), format!("{}:fence", fenced(name)));
        let mut command = vec!["EVAL", script, "2", &value, &fence];
        command.extend(arguments);
        self.execute(&command) == Some(1)
    }

    fn value(&mut self, key: &str) -> u64 {
        self.execute(&["GET", key]).unwrap_or_default()
    }

    /// Returns the first number of the answer.
    fn execute(&mut self, command: &[&str]) -> Option<u64> {
        let answer = String::from_utf8(self.server.execute(command, NOW));
        let answer = answer.expect("it is text");
        let is_data = |line: &&str| !line.starts_with(['*', '$']);
        let first = answer.lines().find(is_data)?;
        first.trim_start_matches(':').parse().ok()
    }
}

fn plain(name: &str) -> String {
    format!("{{{name}}}:plain")
}

fn fenced(name: &str) -> String {
    format!("{{{name}}}:fenced")
}
