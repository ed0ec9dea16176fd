//! A child process that takes locks and can be killed. It runs this binary, with an environment variable set.
//!
//! The child reads one command a line, and answers each with one line. [`Session::answer`] has the commands.

use std::collections::HashMap;
use std::env;
use std::fmt::Display;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{self, ChildStdin, Command, Stdio};
use std::thread;
use std::time::Instant;

use crossbeam_channel::{Receiver, unbounded};
use leasehold::{Builder, LockManager};
use rustix::process::{Pid, Signal};

use super::{
    Guard, Kind, PATIENCE, Raw, at_last, doomed, log, ms, own_threads, patient, threads, wait_until,
};

/// The variable with the server's URL. If it is set, this process is a child.
const URL: &str = "LEASEHOLD_IT_CHILD";
/// The variable with the manager's settings: `key=value`, separated by spaces.
const SETTINGS: &str = "LEASEHOLD_IT_SETTINGS";
/// The start of each answer. Other lines are printed by the test harness.
const ANSWER: &str = "child says: ";

/// A child process, which is killed when this is dropped.
pub struct Child {
    process: process::Child,
    stdin: ChildStdin,
    answers: Receiver<String>,
}

impl Child {
    /// Starts a child with a manager that has the settings: see [`manager`].
    pub fn start(url: &str, settings: &str) -> Self {
        let mut process = Command::new(env::current_exe().expect("this binary"))
            .args(["--exact", "child", "--nocapture", "-q"])
            .env(URL, url)
            .env(SETTINGS, settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this binary runs");
        let stdin = process.stdin.take().expect("it is piped");
        let stdout = process.stdout.take().expect("it is piped");
        let (sender, answers) = unbounded();
        // A thread reads, because a read of a pipe has no time limit. The thread ends with the child.
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some((_, answer)) = line.split_once(ANSWER)
                    && sender.send(answer.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        let child = Self {
            process,
            stdin,
            answers,
        };
        assert_eq!(child.hear(), "ready");
        child
    }

    /// Sends a command, and does not wait for the answer.
    #[track_caller]
    pub fn say(&mut self, command: impl Display) {
        writeln!(self.stdin, "{command}").expect("the child listens");
    }

    /// Waits for the next answer.
    #[track_caller]
    pub fn hear(&self) -> String {
        threads::received(&self.answers, "the child says nothing")
    }

    /// Sends a command and waits for its answer.
    #[track_caller]
    pub fn ask(&mut self, command: impl Display) -> String {
        self.say(command);
        self.hear()
    }

    /// Takes a lock, and returns its fence.
    #[track_caller]
    pub fn lock(&mut self, name: &str) -> u64 {
        self.say(format_args!("lock {name}"));
        self.locked()
    }

    /// Blocks until the child has the lock that it waits for, and returns the fence.
    #[track_caller]
    pub fn locked(&self) -> u64 {
        let answer = self.hear();
        match answer.strip_prefix("locked ").map(str::parse) {
            Some(Ok(fence)) => fence,
            _ => panic!("not locked: {answer}"),
        }
    }

    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends it by SIGKILL. Returns when the system has closed its connections.
    pub fn kill(mut self) {
        self.end();
    }

    /// Returns the largest memory use of the child so far, in bytes.
    #[track_caller]
    pub fn peak_memory(&self) -> u64 {
        let status = format!("/proc/{}/status", self.process.id());
        let status = fs::read_to_string(status).expect("the child is there");
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .and_then(|peak| peak.trim().strip_suffix(" kB"));
        let peak: u64 = peak.and_then(|peak| peak.parse().ok()).expect("its peak");
        peak * 1024
    }

    /// Makes the child exit with all that it holds and waits for. Returns when the system has closed its connections.
    #[track_caller]
    pub fn exit(mut self) {
        self.say("exit");
        wait_until("the child exits", || {
            match self.process.try_wait().expect("it is ours") {
                Some(status) => {
                    assert_eq!(status.code(), Some(doomed::EXITED));
                    true
                }
                None => false,
            }
        });
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn signal(&self, signal: Signal) {
        threads::signal(self.pid(), signal);
    }

    fn end(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs the commands of a parent process. Does nothing if this process is no child. Each binary of tests with children has a
/// test of this name that calls it.
pub fn child() {
    let Ok(url) = env::var(URL) else {
        return;
    };
    log::install();
    let settings = env::var(SETTINGS).unwrap_or_default();
    let mut session = Session {
        raw: Raw::new(&url),
        manager: Some(at_last(|| builder(&url, &settings).build())),
        guards: HashMap::new(),
    };
    say("ready");
    for line in io::stdin().lines().map_while(Result::ok) {
        let words: Vec<_> = line.split(' ').collect();
        say(&session.answer(&words));
    }
}

fn say(answer: &str) {
    // One write, so that no other output comes in between.
    let line = format!("{ANSWER}{answer}\n");
    let mut stdout = io::stdout();
    stdout
        .write_all(line.as_bytes())
        .and_then(|()| stdout.flush())
        .expect("the parent listens");
}

fn builder(url: &str, settings: &str) -> Builder {
    let mut builder = patient(url);
    for setting in settings.split_whitespace() {
        let (key, value) = setting.split_once('=').expect("key=value");
        let number = || value.parse().expect("a number");
        builder = match key {
            "lease_ms" => builder.lease(ms(number())),
            "io_timeout_ms" => builder.io_timeout(ms(number())),
            _ => panic!("no such setting: {key}"),
        };
    }
    builder
}

struct Session {
    raw: Raw,
    manager: Option<LockManager>,
    guards: HashMap<String, Guard>,
}

impl Session {
    fn answer(&mut self, command: &[&str]) -> String {
        if let ["drop", threads] = command {
            return self.drop_everything(threads.parse().expect("a number"));
        }
        let done = doomed::answer(&self.raw, command);
        if let Some(answer) = done {
            return answer;
        }
        let manager = self.manager.as_ref().expect("it was not dropped");
        let [verb, name, rest @ ..] = command else {
            panic!("no such command: {command:?}");
        };
        let subject = Kind::Mutex.of(manager, name);
        match (*verb, rest) {
            // Waits for a lock and keeps it.
            ("lock", []) => match subject.lock() {
                Ok(guard) => keep(&mut self.guards, name, guard),
                Err(error) => format!("{error:?}"),
            },
            // Tries to take a lock, and waits for at most `wait_ms`.
            ("try", [wait_ms]) => {
                let wait = ms(wait_ms.parse().expect("a number"));
                match subject.try_lock_for(wait) {
                    Ok(Some(guard)) => keep(&mut self.guards, name, guard),
                    Ok(None) => "held".into(),
                    Err(error) => format!("{error:?}"),
                }
            }
            // Sets a key to the words, in one text, if it still holds the lock.
            ("commit", [key, words @ ..]) => {
                let guard = self.guards.get(*name).expect("it is held");
                let write = leasehold::Write::new("SET", *key).arg(words.join(" "));
                match guard.commit(&[write]) {
                    Ok(_) => "committed".into(),
                    Err(error) => format!("{error:?}"),
                }
            }
            ("release", []) => {
                let guard = self.guards.remove(*name).expect("it is held");
                match guard.release() {
                    Ok(()) => "released".into(),
                    Err(error) => format!("{error:?}"),
                }
            }
            _ => panic!("no such command: {command:?}"),
        }
    }

    /// Waits until this number of threads run. Drops the manager, then the guards, and answers with the threads from
    /// before, and those that do not end after that.
    fn drop_everything(&mut self, running: usize) -> String {
        let wait_for = |done: &dyn Fn(&[String]) -> bool| {
            let begun = Instant::now();
            let mut threads = own_threads();
            while !done(&threads) && begun.elapsed() < PATIENCE / 2 {
                thread::sleep(ms(1));
                threads = own_threads();
            }
            threads
        };
        // A thread has its name only after it has begun to run.
        let before = wait_for(&|threads| threads.len() == running);
        self.manager = None;
        self.guards.clear();
        let after = wait_for(&<[String]>::is_empty);
        format!("{before:?} -> {after:?}")
    }
}

fn keep(guards: &mut HashMap<String, Guard>, name: &str, guard: Guard) -> String {
    let answer = format!("locked {}", guard.fence());
    guards.insert(name.into(), guard);
    answer
}
