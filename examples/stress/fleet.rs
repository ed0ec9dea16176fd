//! The processes of a run, as the parent sees them. The parent itself is the first.
//!
//! 1. The parent starts the children with pipes at their stdin and stdout.
//! 2. A child writes [`READY`] when all its threads are ready.
//! 3. When every child is ready or dead, the parent writes [`GO`] and the start, in microseconds of the common clock.
//! 4. A child writes its [`Share`] as one line of JSON, and ends.
//!
//! The parent does not wait for dead children: a child's stdout ends with it, and the thread that reads it tells the
//! parent. If the parent ends, its children's stdin ends, and so do they.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{self, Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use crate::load::Load;
use crate::options::Options;
use crate::share::Share;

pub const READY: &str = "ready";
pub const GO: &str = "go";

pub struct Fleet {
    members: Vec<Member>,
    news: Receiver<(usize, State)>,
    /// The sender of the threads that report on a member. It is kept, so that the channel outlives them.
    reporter: Sender<(usize, State)>,
}

pub struct Member {
    pub pid: u32,
    pub state: State,
    /// The child's stdin. It stays open while the parent lives.
    stdin: Option<ChildStdin>,
}

pub enum State {
    Starting,
    Ready,
    Finished(Share),
    /// The process ended without a result. Its updates are in the ledger, and its other counts are lost.
    Died(Death),
}

/// The exit status of a process, if the system reports it.
pub struct Death(Option<ExitStatus>);

impl Fleet {
    /// Starts the children.
    pub fn start(processes: u32, run: &str) -> io::Result<Self> {
        let (reporter, news) = mpsc::channel();
        let mut members = vec![Member {
            pid: process::id(),
            state: State::Ready,
            stdin: None,
        }];
        for index in 1..processes {
            let mut child = Options::child_command(index, run)?
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            members.push(Member {
                pid: child.id(),
                state: State::Starting,
                stdin: child.stdin.take(),
            });
            let (index, reporter) = (index as usize, reporter.clone());
            thread::spawn(move || attend(child, index, &reporter));
        }
        Ok(Self {
            members,
            news,
            reporter,
        })
    }

    /// Starts the load in all processes. This process comes last, because it is busy from then on.
    pub fn go(&mut self, load: Load, start: Duration) {
        for child in &mut self.members[1..] {
            if let Some(stdin) = &mut child.stdin {
                // If the write fails, the child is dead, and its own thread reports that.
                let _ = writeln!(stdin, "{GO} {}", start.as_micros());
            }
        }
        let reporter = self.reporter.clone();
        thread::spawn(move || {
            let share = load.run(start);
            // The receiver may be gone. Then nothing needs the result.
            let _ = reporter.send((0, State::Finished(share)));
        });
    }

    /// Waits for a report on one process. Returns a message if the process died.
    pub fn wait(&mut self, at_most: Duration) -> Option<String> {
        let (index, state) = self.news.recv_timeout(at_most).ok()?;
        let member = &mut self.members[index];
        member.state = state;
        match &member.state {
            State::Died(death) => Some(format!("process {} {death}", member.pid)),
            State::Starting | State::Ready | State::Finished(_) => None,
        }
    }

    pub fn is_ready(&self) -> bool {
        !self.any(|state| matches!(state, State::Starting))
    }

    pub fn is_over(&self) -> bool {
        !self.any(|state| matches!(state, State::Starting | State::Ready))
    }

    pub fn members(&self) -> &[Member] {
        &self.members
    }

    fn any(&self, is: impl Fn(&State) -> bool) -> bool {
        self.members.iter().any(|member| is(&member.state))
    }
}

impl Death {
    /// Returns whether a signal ended the process, rather than an error of its code.
    pub fn is_killed(&self) -> bool {
        self.0.is_some_and(|status| status.code().is_none())
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(status) => write!(f, "died: {status}"),
            None => f.write_str("died"),
        }
    }
}

/// Reports on one child until it has ended.
fn attend(mut child: Child, index: usize, reporter: &Sender<(usize, State)>) {
    let stdout = child
        .stdout
        .take()
        .expect("it was started with a pipe, and nobody else takes it");
    let mut finished = false;
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let state = if line == READY {
            State::Ready
        } else if let Some(share) = Share::parse(&line) {
            finished = true;
            State::Finished(share)
        } else {
            // The child was killed while it wrote this line.
            continue;
        };
        let _ = reporter.send((index, state));
    }
    let status = child.wait().ok();
    if !finished {
        let _ = reporter.send((index, State::Died(Death(status))));
    }
}
