//! `run` and `flock` beside the command alone, in each shell. docs/cli.md has the table.
//!
//! A situation is a line of shell, and what a person or another process does meanwhile. The processes leave marks, which are
//! files in the directory `m`. People are used to the marks of the command alone in their shell, so `run` must leave the same.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::process::{Signal, getpgid, kill_process_group};

use crate::support::{Server, wait_until};
use crate::terminal::Terminal;
use crate::work::{Running, Work, has_stopped, start, state, write_program};

const PAGE: &str = include_str!("../../../../docs/cli.md");

/// The commands of the situations. Each writes its number to the file `it`, and `here` marks its begin.
const PROGRAMS: [(&str, &str); 10] = [
    ("until-begun", "until [ -e m/begun ]; do sleep 0.01; done"),
    ("sleeps", "here; exec sleep 1000"),
    (
        "reads",
        "here; while read -r line; do echo >m/got-$line; done",
    ),
    ("answers", "here; read -r line; echo got-$line"),
    ("waits", "here; until_go; echo >m/done"),
    // The end of a script that leads its session hangs the terminal up.
    (
        "catches",
        "trap '' HUP; trap 'n=$((n+1)); echo >m/caught$n' INT TERM; here; until_go; echo >m/done",
    ),
    ("hears", "trap 'echo >m/hung-up; exit' HUP; here; until_go"),
    ("stops", "here; kill -TSTP $$; echo >m/resumed"),
    (
        "asks",
        "./until-begun; stty -echo </dev/tty; echo >m/asked; read -r line </dev/tty; stty echo </dev/tty; echo $line",
    ),
    (
        "pages",
        "read -r line </dev/tty; echo >m/got-$line; cat >m/page",
    ),
];
const FUNCTIONS: &str = "#!/bin/sh
here() { echo $$ >.it; mv .it it; echo >m/begun; }
until_go() { while [ ! -e go ]; do sleep 0.01; done; }
";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tool {
    None,
    Run,
    Flock,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Somebody types the line at a prompt.
    Prompt,
    /// The line is a script that runs in a terminal.
    Script,
    /// The line is a script that runs without a terminal.
    NoTerminal,
}

/// A row of the table.
struct Situation {
    place: Place,
    /// `RUN` stands for the tool with its arguments. The command alone has neither.
    line: &'static str,
    steps: &'static [Step],
    /// The text of the table for the command alone and for `run`.
    outcome: &'static str,
    /// The marks of the command alone, in bash.
    marks: &'static str,
    /// The text of the table for `flock`, and its steps and marks in all shells. `None`: all as for the command alone.
    flock: Option<(&'static str, &'static [Step], &'static str)>,
}

#[derive(Clone, Copy)]
enum Step {
    /// Waits for a mark.
    Mark(&'static str),
    /// Presses a key.
    Key(&'static str),
    /// Types a line for a process that reads the terminal.
    Type(&'static str),
    /// Waits until the job stands still and the shell has the terminal, and types `fg`. A shell continues no job that it
    /// takes for a running one, and the process that it has started may stop later than the command.
    Fg,
    /// Waits until the command stands still, and marks that the shell does not have the terminal.
    Hangs,
    /// Waits until the command has ended.
    Dead,
    /// Makes the file for which the command waits.
    Go,
    HangUp,
    /// Waits until the shell has the terminal.
    Back,
    /// Waits until a job has the terminal. A shell may discard what was typed before it gave the terminal away.
    Job,
    /// Sends TERM to the process group, and waits until the command hears it.
    TermGroup,
}

use Place::{NoTerminal, Prompt, Script};
use Step::{Back, Dead, Fg, Go, HangUp, Hangs, Job, Key, Mark, TermGroup, Type};

const BEGUN: Step = Mark("begun");
const CTRL_C: Step = Key("\x03");
const CTRL_D: Step = Key("\x04");
const CTRL_Z: Step = Key("\x1a");
const CTRL_BACKSLASH: Step = Key("\x1c");

const CATCHES: [Step; 5] = [BEGUN, CTRL_C, Mark("caught1"), Go, Mark("done")];
const READS: [Step; 6] = [
    BEGUN,
    Type("one"),
    Mark("got-one"),
    Type("two"),
    Mark("got-two"),
    CTRL_D,
];

static SITUATIONS: [Situation; 27] = [
    Situation {
        place: Prompt,
        line: "RUN ./sleeps; echo >m/next",
        steps: &[BEGUN, CTRL_C, Dead],
        outcome: "^C ends the list.",
        marks: "begun end",
        flock: None,
    },
    Situation {
        place: Prompt,
        line: "for i in 1 2 3; do RUN ./sleeps; echo >m/next; done",
        steps: &[BEGUN, CTRL_C, Dead],
        outcome: "^C ends the loop.",
        marks: "begun end",
        flock: None,
    },
    Situation {
        place: Prompt,
        line: "RUN ./sleeps; echo >m/next",
        steps: &[BEGUN, CTRL_BACKSLASH, Dead],
        outcome: "`^\\` ends the list in zsh and fish. bash, dash and busybox go on.",
        marks: "begun end next",
        flock: None,
    },
    Situation {
        place: Prompt,
        line: "RUN ./catches; echo >m/next",
        steps: &CATCHES,
        outcome: "A command that catches ^C gets it once and goes on. Then the list goes on.",
        marks: "begun caught1 done end next",
        flock: Some((
            "The list ends, and the command goes on behind the prompt.",
            &CATCHES,
            "begun caught1 done end",
        )),
    },
    Situation {
        place: Prompt,
        line: "RUN ./reads",
        steps: &[BEGUN, CTRL_Z, Fg, Type("one"), Mark("got-one"), CTRL_D],
        outcome: "^Z stops the job, and `fg` continues it.",
        marks: "begun end got-one",
        flock: None,
    },
    Situation {
        place: Prompt,
        line: "RUN ./reads &",
        steps: &[BEGUN, Fg, Type("one"), Mark("got-one"), CTRL_D],
        outcome: "A job in the background stops when it reads the terminal, and `fg` continues it.",
        marks: "begun end got-one",
        flock: None,
    },
    Situation {
        place: Prompt,
        line: "RUN ./stops",
        steps: &[BEGUN, Fg, Mark("resumed")],
        outcome: "A command that stops itself, as `ssh` does after `~^Z`, stops the job.",
        marks: "begun end resumed",
        flock: Some((
            "The shell does not notice, and waits.",
            &[BEGUN, Hangs],
            "begun hangs",
        )),
    },
    Situation {
        place: Prompt,
        line: "cat | RUN ./reads",
        steps: &READS,
        outcome: "The process before the pipe reads the terminal.",
        marks: "begun end got-one got-two",
        flock: None,
    },
    Situation {
        place: Prompt,
        line: "./asks | RUN ./reads",
        steps: &[Mark("asked"), Type("one"), Mark("got-one")],
        outcome: "The process before the pipe asks for a password, without an echo.",
        marks: "asked begun end got-one",
        flock: None,
    },
    Situation {
        place: Prompt,
        line: "RUN ./waits | ./pages",
        steps: &[BEGUN, Job, Type("one"), Mark("got-one"), Go, Mark("done")],
        outcome: "A pager behind the pipe reads the terminal.",
        marks: "begun done end got-one page",
        flock: None,
    },
    Situation {
        place: Prompt,
        line: "v=$(RUN ./answers); echo >m/$v",
        steps: &[BEGUN, Type("one"), Mark("got-one")],
        outcome: "A command in `$(…)` reads the terminal.",
        marks: "begun end got-one",
        flock: None,
    },
    Situation {
        place: Prompt,
        line: "v=$(RUN ./sleeps); echo >m/next",
        steps: &[BEGUN, CTRL_C, Dead],
        outcome: "^C in `$(…)` ends the list.",
        marks: "begun end",
        flock: None,
    },
    Situation {
        place: Prompt,
        line: "RUN ./hears",
        steps: &[BEGUN, HangUp, Mark("hung-up")],
        outcome: "The command hears that the terminal has hung up.",
        marks: "begun hung-up",
        flock: None,
    },
    Situation {
        place: Prompt,
        line: "nohup RUN ./waits >/dev/null 2>&1 &",
        steps: &[BEGUN, HangUp, Go, Mark("done")],
        outcome: "`nohup` lets it go on after that.",
        marks: "begun done",
        flock: None,
    },
    Situation {
        place: Prompt,
        line: "setsid -w RUN ./catches; echo >m/next",
        steps: &[BEGUN, CTRL_C, Back, Go, Mark("done")],
        outcome: "After `setsid`, ^C does not reach the command.",
        marks: "begun done end",
        flock: None,
    },
    Situation {
        place: Script,
        line: "RUN ./sleeps; echo >m/next",
        steps: &[BEGUN, CTRL_C],
        outcome: "^C ends the script by INT.",
        marks: "begun killed-2",
        flock: None,
    },
    Situation {
        place: Script,
        line: "for i in 1 2 3; do RUN ./sleeps; echo >m/next; done",
        steps: &[BEGUN, CTRL_C],
        outcome: "^C ends the loop and the script.",
        marks: "begun killed-2",
        flock: None,
    },
    Situation {
        place: Script,
        line: "RUN ./sleeps; echo >m/next",
        steps: &[BEGUN, CTRL_BACKSLASH],
        outcome: "`^\\` ends the script in dash and fish. bash, zsh and busybox go on.",
        marks: "begun next status-0",
        flock: None,
    },
    Situation {
        place: Script,
        line: "RUN ./sleeps | cat; echo >m/next",
        steps: &[BEGUN, CTRL_C],
        outcome: "^C ends the pipeline and the script.",
        marks: "begun killed-2",
        flock: None,
    },
    Situation {
        place: Script,
        line: "RUN ./catches; echo >m/next",
        steps: &CATCHES,
        outcome: "If the command catches ^C, bash goes on. The other shells end the script after the command.",
        marks: "begun caught1 done next status-0",
        flock: Some((
            "Each shell ends the script before the command.",
            &CATCHES,
            "begun caught1 done killed-2",
        )),
    },
    Situation {
        place: Script,
        line: "trap 'echo >m/trapped' INT; RUN ./sleeps; echo >m/next",
        steps: &[BEGUN, CTRL_C],
        outcome: "The script's own `trap` runs after the command, and the script goes on.",
        marks: "begun next status-0 trapped",
        flock: None,
    },
    Situation {
        place: Script,
        line: "cat | RUN ./reads; echo >m/next",
        steps: &READS,
        outcome: "The process before the pipe reads the terminal.",
        marks: "begun got-one got-two next status-0",
        flock: None,
    },
    Situation {
        place: NoTerminal,
        line: "RUN ./catches & ./until-begun; kill $!; wait; echo >m/next",
        steps: &[Mark("caught1"), Go, Mark("done")],
        outcome: "TERM to the process that the script has started reaches the command.",
        marks: "begun caught1 done next status-0",
        flock: Some((
            "`flock` ends, and the command is not told.",
            &[Mark("next"), Go, Mark("done")],
            "begun done next status-0",
        )),
    },
    Situation {
        place: NoTerminal,
        line: "RUN ./catches; echo >m/next",
        steps: &[BEGUN, TermGroup, Go, Mark("done")],
        outcome: "TERM to the process group reaches the command once.",
        marks: "begun caught1 done killed-15",
        flock: None,
    },
    Situation {
        place: NoTerminal,
        line: "v=$(echo hello | RUN cat | tr a-z A-Z); echo >m/$v",
        steps: &[],
        outcome: "Pipes go through.",
        marks: "HELLO status-0",
        flock: None,
    },
    Situation {
        place: NoTerminal,
        line: "RUN sh -c 'exit 3'; echo >m/exited-$?",
        steps: &[],
        outcome: "The status is that of the command.",
        marks: "exited-3 status-0",
        flock: None,
    },
    Situation {
        place: NoTerminal,
        line: "RUN sh -c 'kill -KILL $$'; echo >m/exited-$?",
        steps: &[],
        outcome: "The status is 137 if KILL ended the command.",
        marks: "exited-137 status-0",
        flock: None,
    },
];

#[derive(Clone, Copy)]
struct Shell {
    program: &'static [&'static str],
    /// The options of a shell with a prompt, which reads no configuration.
    prompt: &'static [&'static str],
}

const BASH: Shell = Shell {
    program: &["bash"],
    prompt: &["--norc", "--noprofile", "-i"],
};
const OTHERS: [Shell; 4] = [
    Shell {
        program: &["dash"],
        prompt: &["-i"],
    },
    Shell {
        program: &["zsh", "-f"],
        // Without its line editor, it reads lines as they were typed.
        prompt: &["-i", "+Z"],
    },
    FISH,
    Shell {
        program: &["busybox", "sh"],
        prompt: &["-i"],
    },
];
const FISH: Shell = Shell {
    program: &["fish", "-N"],
    prompt: &["--private", "-i"],
};

impl Shell {
    /// Translates a line.
    fn line(self, line: &str) -> String {
        if self.program != FISH.program {
            return line.to_owned();
        }
        let pairs = [
            ("; do ", "; "),
            ("; done", "; end"),
            ("v=$(", "set v ("),
            ("$?", "$status"),
            ("$!", "$last_pid"),
        ];
        pairs
            .iter()
            .fold(line.to_owned(), |line, (from, to)| line.replace(from, to))
    }
}

/// A shell that runs.
enum Session {
    Terminal(Terminal),
    NoTerminal(Running),
}

/// One situation, in one shell, with one tool.
struct Scene<'a> {
    what: String,
    work: Work,
    session: Session,
    situation: &'a Situation,
}

impl<'a> Scene<'a> {
    fn start(shell: Shell, situation: &'a Situation, tool: Tool, programs: &Work) -> Self {
        let url = programs.url();
        let work = Work::new(url);
        fs::create_dir(work.dir.join("m")).expect("the directory exists");
        for (name, _) in PROGRAMS {
            symlink(programs.dir.join(name), work.dir.join(name)).expect("it is new");
        }
        symlink(env!("CARGO_BIN_EXE_leasehold"), work.dir.join("leasehold")).expect("it is new");
        let run = match tool {
            Tool::None => String::new(),
            Tool::Run => format!("./leasehold run --lease 10m {} -- ", work.lock),
            Tool::Flock => "flock ./lock ".to_owned(),
        };
        let line = shell.line(&situation.line.replace("RUN ", &run));
        fs::write(work.dir.join("script"), format!("{line}\n")).expect("the directory exists");
        let what = format!("{} {:?}: {line}", shell.program[0], situation.outcome);

        let mut command = Command::new("env");
        command.args(["--default-signal", "-C"]).arg(&work.dir);
        if situation.place == NoTerminal {
            command.arg("setsid");
        }
        command.args(shell.program);
        match situation.place {
            Prompt => command.args(shell.prompt),
            Script | NoTerminal => command.arg("script"),
        };
        command
            .env("LEASEHOLD_URL", url)
            .env("HOME", &work.dir)
            .env("PS1", "> ")
            .env_remove("REDIS_URL");
        let session = if situation.place == NoTerminal {
            let null = Stdio::null;
            command.stdin(null()).stdout(null()).stderr(null());
            Session::NoTerminal(start(&mut command))
        } else {
            Session::Terminal(Terminal::start(command, 30, 150))
        };
        let scene = Self {
            what,
            work,
            session,
            situation,
        };
        if situation.place == Prompt {
            scene.wait_until("a prompt", || {
                !scene.terminal().screen().is_empty() && scene.terminal().is_program_in_front()
            });
            scene.terminal().send(&format!("{line}\r"));
        }
        scene
    }

    fn wait_until(&self, what: &str, condition: impl FnMut() -> bool) {
        wait_until(&format!("{what}, in {}", self.what), condition);
    }

    fn terminal(&self) -> &Terminal {
        match &self.session {
            Session::Terminal(terminal) => terminal,
            Session::NoTerminal(_) => panic!("it has no terminal: {}", self.what),
        }
    }

    fn has(&self, mark: &str) -> bool {
        self.work.dir.join("m").join(mark).exists()
    }

    fn wait_until_stopped(&self) {
        let it = self.work.pid("it");
        self.wait_until("the command stands still", || state(it) == Some('T'));
    }

    fn wait_until_back(&self) {
        let terminal = self.terminal();
        self.wait_until("the shell has the terminal", || {
            terminal.is_program_in_front()
        });
    }

    fn take(&mut self, step: Step) {
        match step {
            Mark(mark) => self.wait_until(mark, || self.has(mark)),
            Key(key) => self.terminal().send(key),
            Type(line) => {
                self.wait_until("a terminal that collects lines", || {
                    self.terminal().collects_lines()
                });
                self.terminal().send(&format!("{line}\r"));
            }
            Fg => {
                let it = self.work.pid("it");
                let job = getpgid(Some(it)).expect("it lives");
                self.wait_until("the job stands still", || {
                    has_stopped(it) && has_stopped(job)
                });
                self.wait_until_back();
                self.terminal().send("fg\r");
                self.wait_until("the job has the terminal", || {
                    let goes_on = !self.terminal().is_program_in_front() && state(it) != Some('T');
                    state(it).is_none() || goes_on
                });
            }
            Hangs => {
                self.wait_until_stopped();
                if !self.terminal().is_program_in_front() {
                    File::create_new(self.work.dir.join("m/hangs")).expect("it is new");
                }
            }
            Dead => {
                let it = self.work.pid("it");
                self.wait_until("the end of the command", || state(it).is_none());
            }
            Go => drop(File::create_new(self.work.dir.join("go")).expect("it is new")),
            HangUp => self.hang_up(),
            Back => self.wait_until_back(),
            Job => self.wait_until("a job has the terminal", || {
                !self.terminal().is_program_in_front()
            }),
            TermGroup => {
                let Session::NoTerminal(shell) = &self.session else {
                    panic!("a job of this shell has its own group: {}", self.what);
                };
                kill_process_group(shell.pid(), Signal::TERM).expect("it lives");
                self.wait_until("the command hears it", || self.has("caught1"));
            }
        }
    }

    fn hang_up(&mut self) {
        if let Session::Terminal(terminal) = &mut self.session {
            terminal.hang_up();
            terminal.wait();
        }
    }

    /// Goes through all steps, and returns the marks.
    fn play(mut self, steps: &[Step]) -> String {
        for step in steps {
            self.take(*step);
        }
        let is_hung_up = steps.iter().any(|step| matches!(step, HangUp | Hangs));
        let end = match &mut self.session {
            _ if is_hung_up => None,
            Session::Terminal(terminal) if self.situation.place == Prompt => {
                // The shell reads this after all that came before.
                terminal.send("echo >m/end\r");
                self.take(Mark("end"));
                None
            }
            Session::Terminal(terminal) => Some(terminal.wait()),
            Session::NoTerminal(shell) => Some(shell.end()),
        };
        let names = fs::read_dir(self.work.dir.join("m")).expect("it was made");
        let names = names.map(|name| name.expect("it can be read").file_name());
        let mut marks: Vec<_> = names
            .map(|name| name.to_string_lossy().into_owned())
            .chain(end.map(mark_of_end))
            .collect();
        marks.sort_unstable();
        marks.join(" ")
    }
}

fn mark_of_end(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("status-{code}"),
        (None, signal) => format!("killed-{}", signal.unwrap_or(0)),
    }
}

/// Plays all situations in a shell, and returns what is not as the table says.
fn play_all(shell: Shell) -> Vec<String> {
    let server = Server::start();
    let programs = Work::new(&server.url());
    for (name, script) in PROGRAMS {
        write_program(&programs.dir.join(name), &format!("{FUNCTIONS}{script}\n"));
    }
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(situation) = SITUATIONS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = wrong_marks(shell, situation, &programs);
                    wrong
                        .lock()
                        .expect("no thread panics with it")
                        .extend(found);
                }
            });
        }
    });
    wrong.into_inner().expect("no thread panicked with it")
}

/// Plays a situation with each tool, and returns what is not as the table says.
fn wrong_marks(shell: Shell, situation: &Situation, programs: &Work) -> Vec<String> {
    let play = |tool, steps| Scene::start(shell, situation, tool, programs).play(steps);
    let alone = play(Tool::None, situation.steps);
    let alone = alone.as_str();
    let run = play(Tool::Run, situation.steps);
    let (_, steps, flock_marks) = situation.flock.unwrap_or(("", situation.steps, alone));
    let flock = play(Tool::Flock, steps);

    let mut all = vec![
        ("run", run.as_str(), alone),
        ("flock", flock.as_str(), flock_marks),
    ];
    if shell.program == BASH.program {
        all.push(("alone", alone, situation.marks));
    }
    all.retain(|(_, left, expected)| left != expected);
    let what = |(tool, left, expected)| {
        let (shell, line) = (shell.program[0], situation.line);
        format!("{shell}, {tool}: {line}: {left} in place of {expected}")
    };
    all.into_iter().map(what).collect()
}

#[test]
fn run_is_like_the_command_alone_in_bash() {
    assert_eq!(play_all(BASH), [""; 0]);
}

#[test]
#[ignore = "a machine may lack these shells: .ci/long runs it"]
fn run_is_like_the_command_alone_in_other_shells() {
    for shell in OTHERS {
        assert_eq!(play_all(shell), [""; 0]);
    }
}

#[test]
fn the_page_has_the_table_of_shells() {
    for situation in &SITUATIONS {
        let line = situation.line.replace("./until-begun; ", "");
        let line = line.replace("./", "").replace(">m/", "");
        let line = line.replace('|', "\\|");
        let flock = situation.flock.map_or("the same", |(text, ..)| text);
        let row = format!("| `{line}` | {} | {flock} |", situation.outcome);
        assert!(PAGE.contains(&row), "{row}");
    }
}
