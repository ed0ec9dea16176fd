//! The processes of a row: this program, started again with a [`Job`].
//!
//! 1. A child prepares its work before the clock starts, and writes `ready`.
//! 2. When all children are ready, the parent writes a question to each of them, as a line.
//! 3. A child answers with a line of numbers. If the question is to work, the child works first.
//! 4. A child ends when its standard input ends. Dropping the fleet kills the children. If the parent is killed, its
//!    server ends, and so do the children's connections.

use std::env;
use std::io::{self, BufRead, BufReader, Lines, Write};
use std::process::{self, Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::Result;

const READY: &str = "ready";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Ours,
    Limit,
}

/// The work of a child.
#[derive(Clone, Debug)]
pub struct Job {
    pub work: String,
    pub side: Side,
    /// The URL of the server, or the URLs of the nodes of a quorum.
    pub url: String,
    /// The name of the lock, or the first part of the locks' names.
    pub name: String,
    pub count: u64,
    pub ms: u64,
}

impl Job {
    pub fn from_words(words: &[String]) -> Result<Self, String> {
        let [work, side, url, name, count, ms] = words else {
            return Err("a child is given six words".to_owned());
        };
        let number = |word: &String| word.parse().map_err(|_| format!("{word:?} is no number"));
        Ok(Self {
            work: work.clone(),
            side: if side == "ours" {
                Side::Ours
            } else {
                Side::Limit
            },
            url: url.clone(),
            name: name.clone(),
            count: number(count)?,
            ms: number(ms)?,
        })
    }

    fn to_words(&self) -> [String; 6] {
        let side = match self.side {
            Side::Ours => "ours",
            Side::Limit => "limit",
        };
        [
            self.work.clone(),
            side.to_owned(),
            self.url.clone(),
            self.name.clone(),
            self.count.to_string(),
            self.ms.to_string(),
        ]
    }
}

/// The children of one job.
pub struct Fleet(Vec<Member>);

struct Member {
    child: Child,
    questions: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Fleet {
    /// Starts children, and waits until all are ready.
    pub fn start(job: &Job, children: usize) -> Result<Self> {
        let members = (0..children).map(|_| Member::start(job));
        let mut fleet = Self(members.collect::<Result<_>>()?);
        for member in &mut fleet.0 {
            let line = member.hear()?;
            if line != READY {
                return Err(format!("a child is not ready: {line:?}").into());
            }
        }
        Ok(fleet)
    }

    /// Asks all children at once, and waits for every answer.
    pub fn ask(&mut self, question: &str) -> Result<Vec<Vec<u64>>> {
        for member in &mut self.0 {
            writeln!(member.questions, "{question}")?;
        }
        self.0.iter_mut().map(Member::numbers).collect()
    }

    /// Asks the only child.
    pub fn ask_one(&mut self, question: &str) -> Result<Vec<u64>> {
        self.ask(question)?
            .pop()
            .ok_or_else(|| "there is no child".into())
    }
}

impl Member {
    fn start(job: &Job) -> Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .arg("--child")
            .args(job.to_words())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (questions, answers) = pipes.ok_or("a child without pipes")?;
        Ok(Self {
            child,
            questions,
            answers: BufReader::new(answers).lines(),
        })
    }

    fn hear(&mut self) -> Result<String> {
        let line = self.answers.next().ok_or("a child has ended")?;
        Ok(line?)
    }

    fn numbers(&mut self) -> Result<Vec<u64>> {
        let line = self.hear()?;
        Ok(line.split(' ').map(str::parse).collect::<Result<_, _>>()?)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The function that answers the questions of the parent.
pub type Answer = Box<dyn FnMut(&str) -> Result<Vec<u64>>>;

/// Answers questions in a child until an error ends it. The child does not release its locks then, because nothing
/// measures that.
pub fn serve(mut answer: Answer) -> Result<()> {
    println!("{READY}");
    for question in io::stdin().lines() {
        let numbers: Vec<_> = answer(&question?)?.iter().map(u64::to_string).collect();
        println!("{}", numbers.join(" "));
    }
    process::exit(0)
}
