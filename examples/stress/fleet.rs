//! The processes of a run, as the parent sees them. It is one of them itself, the first.
//!
//! 1. The parent starts the children with pipes at their stdin and stdout.
//! 2. A child writes [`READY`] once all its threads stand ready.
//! 3. When every child is ready or dead, the parent writes [`GO`] and the start, in microseconds of the common
//!    clock.
//! 4. A child writes its [`Share`] as one line of JSON, and ends.
//!
//! Nothing waits for the dead. However a child ends, so does its stdout, and the thread that reads it tells the
//! parent. However the parent ends, so does its children's stdin, and that ends them.

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
    /// Given to whoever has news of a member. Kept, so that the channel outlives them all.
    reporter: Sender<(usize, State)>,
}

pub struct Member {
    pub pid: u32,
    pub state: State,
    /// The child's stdin, kept open as the sign that its parent lives.
    stdin: Option<ChildStdin>,
}

pub enum State {
    Starting,
    Ready,
    Finished(Share),
    /// It ended without a result. Its updates are in the ledger; what else it counted is lost with it.
    Died(Death),
}

/// How a process ended, if the system says.
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

    /// Lets all of them go, this process last, since it is busy from then on.
    pub fn go(&mut self, load: Load, start: Duration) {
        for child in &mut self.members[1..] {
            if let Some(stdin) = &mut child.stdin {
                // If it cannot be told, it is dead, and that will be news of its own.
                let _ = writeln!(stdin, "{GO} {}", start.as_micros());
            }
        }
        let reporter = self.reporter.clone();
        thread::spawn(move || {
            let share = load.run(start);
            // Whoever no longer listens has no use for it.
            let _ = reporter.send((0, State::Finished(share)));
        });
    }

    /// Waits for news of one process, and puts it in words if it is a death.
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
    /// Whether somebody else ended the process, rather than an error of its own.
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

/// Tells of one child until it has ended.
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
            // Half a line: it was killed while it wrote.
            continue;
        };
        let _ = reporter.send((index, state));
    }
    let status = child.wait().ok();
    if !finished {
        let _ = reporter.send((index, State::Died(Death(status))));
    }
}
