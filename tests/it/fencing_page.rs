//! Checks docs/fencing.md: its SQL and its output are those of the example `fencing`, and its scripts run in Redis, taken
//! from the text of the page. The documentation tests run its Rust.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::mpsc::channel;
use std::thread;

use leasehold::{LockGuard, LockManager};

use crate::support::{name, secs, shared};

static PAGE: LazyLock<String> = LazyLock::new(|| read("docs/fencing.md"));

fn read(path: &str) -> String {
    let path = Path::new(crate::ROOT).join(path);
    fs::read_to_string(path).expect("it is text")
}

/// Returns the first code block of a language on the page.
#[track_caller]
fn code(language: &str) -> &'static str {
    let (_, rest) = PAGE
        .split_once(&format!("```{language}\n"))
        .expect("there is such a block");
    rest.split_once("```").expect("the block ends").0
}

/// Returns whether the example printed what the page shows, but for the fences, which follow the time.
pub(crate) fn shows(stdout: &str) -> bool {
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines();
        let without_fences = lines.map(|line| line.split(" Its fence is ").next());
        without_fences.flatten().map(str::to_owned).collect()
    };
    lines(stdout) == lines(code("text"))
}

#[test]
fn the_sql_is_that_of_the_example() {
    let files = ["tables", "write", "read", "append"];
    let files = files.map(|file| read(&format!("examples/fencing/{file}.sql")));
    assert_eq!(code("sql"), files.join("\n"));
}

/// How the data of a test is kept. The page has a script to read and one to write it.
#[derive(Clone, Copy)]
enum Data {
    Text,
    Hash,
}

/// The reply to a fence that is too old.
#[derive(Debug, PartialEq)]
struct TooOld;

/// A value that keeps its fence by the scripts of the page.
struct Fenced {
    data: Data,
    keys: Vec<String>,
}

impl Fenced {
    fn new(data: Data) -> Self {
        let key = format!("{{{}}}", name("fenced"));
        let keys = match data {
            Data::Text => vec![key.clone(), format!("{key}:fence")],
            Data::Hash => vec![key],
        };
        Self { data, keys }
    }

    /// Runs the script of the page that begins with this comment.
    #[track_caller]
    fn run<T: redis::FromRedisValue>(&self, comment: &str, arguments: &[&str]) -> T {
        let kind = match self.data {
            Data::Text => "a string",
            Data::Hash => "a hash",
        };
        let first = format!("-- A {comment} of {kind}");
        let mut blocks = PAGE.split("```lua\n").skip(1);
        let script = blocks.find(|block| block.starts_with(&first));
        let (script, _) = script
            .and_then(|block| block.split_once("```"))
            .unwrap_or_else(|| panic!("the page has no script {first:?}"));
        let keys = self.keys.iter().map(String::as_str);
        let number = self.keys.len().to_string();
        let command = ["EVAL", script, &number].into_iter().chain(keys);
        let command: Vec<_> = command.chain(arguments.iter().copied()).collect();
        shared().ask(&command)
    }

    fn write(&self, fence: u64, value: &str) -> bool {
        self.run("write", &[&fence.to_string(), value])
    }

    /// Reads for a later write.
    fn read(&self, fence: u64) -> Result<Option<String>, TooOld> {
        let reply: Vec<Option<String>> = self.run("read", &[&fence.to_string()]);
        match &reply[..] {
            [Some(number), value] if number == "1" => Ok(value.clone()),
            [Some(number)] if number == "0" => Err(TooOld),
            _ => panic!("{reply:?}"),
        }
    }

    /// Reads without a fence.
    fn value(&self) -> Option<String> {
        match self.data {
            Data::Text => shared().ask(&["GET", &self.keys[0]]),
            Data::Hash => shared().ask(&["HGET", &self.keys[0], "value"]),
        }
    }

    fn fence(&self) -> Option<String> {
        match self.data {
            Data::Text => shared().ask(&["GET", &self.keys[1]]),
            Data::Hash => shared().ask(&["HGET", &self.keys[0], "fence"]),
        }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        let keys = self.keys.iter().map(String::as_str);
        let command: Vec<_> = ["DEL"].into_iter().chain(keys).collect();
        let () = shared().ask(&command);
    }
}

#[test]
fn the_scripts_for_redis_reject_an_older_fence() {
    for data in [Data::Text, Data::Hash] {
        let fenced = Fenced::new(data);
        let largest = (1 << 53) - 1;
        assert_eq!(fenced.read(1), Ok(None), "nothing is there");
        assert!(fenced.write(1, "first"));
        assert!(fenced.write(largest - 1, "second"));
        // A number of Lua has each fence exactly.
        assert!(fenced.write(largest, "third"));
        assert!(!fenced.write(largest - 1, "late"));
        assert_eq!(fenced.read(largest - 1), Err(TooOld));
        assert_eq!(fenced.read(largest), Ok(Some("third".to_owned())));
        assert!(fenced.write(largest, "fourth"));
        assert_eq!(fenced.value().as_deref(), Some("fourth"));
        assert_eq!(fenced.fence(), Some(largest.to_string()));
    }
}

/// Two holders add 1, and one of them is paused between its read and its write. Returns whether the paused holder could write,
/// and the sum.
fn add_with_a_pause(
    fenced: &Fenced,
    read: fn(&Fenced, u64) -> Result<Option<String>, TooOld>,
) -> (bool, u64) {
    let locks = || {
        let builder = LockManager::single(shared().url()).lease(secs(60));
        builder.build().expect("the server answers")
    };
    let lock_name = name("account");
    let read = |guard: &LockGuard| -> u64 {
        let value = read(fenced, guard.fence()).expect("the fence is the largest");
        value.map_or(0, |value| value.parse().expect("a number"))
    };
    let write =
        |guard: &LockGuard, sum: u64| -> bool { fenced.write(guard.fence(), &sum.to_string()) };
    let (a_has_read, is_read) = channel();
    let (b_has_read, goes_on) = channel::<()>();
    let (a, b) = (locks(), locks());
    let is_accepted = thread::scope(|scope| {
        let name_of_a = lock_name.clone();
        let a = scope.spawn(move || {
            let guard = a.lock(name_of_a).expect("it is free");
            let sum = read(&guard);
            let owner = guard.owner().to_owned();
            a_has_read.send(owner).expect("B listens");
            // The pause. It ends when B has read, and has not written yet.
            goes_on.recv().expect("B has read");
            write(&guard, sum + 1)
        });
        let owner = is_read.recv().expect("A has read");
        // As if the lease of A had ended.
        let is_removed = b.force_release(&lock_name, &owner);
        assert!(is_removed.expect("the server answers"), "A holds it");
        let guard = b.lock(&lock_name).expect("it is free");
        let sum = read(&guard);
        b_has_read.send(()).expect("A is paused");
        let is_accepted = a.join().expect("no panic");
        assert!(write(&guard, sum + 1), "B holds the lock");
        is_accepted
    });
    let sum = fenced.value().expect("B has written");
    (is_accepted, sum.parse().expect("a number"))
}

#[test]
fn a_holder_that_is_paused_between_its_read_and_its_write_loses_no_update() {
    for data in [Data::Text, Data::Hash] {
        let fenced = Fenced::new(data);
        let (is_accepted, sum) = add_with_a_pause(&fenced, Fenced::read);
        assert_eq!((is_accepted, sum), (false, 1), "A was told to stop");
        // With a read that raises no fence, A is told that its update counts, and B overwrites it.
        let fenced = Fenced::new(data);
        let (is_accepted, sum) = add_with_a_pause(&fenced, |fenced, _| Ok(fenced.value()));
        assert_eq!((is_accepted, sum), (true, 1), "the pause shows nothing");
    }
}
