//! Shell scripts that `leasehold run` runs, and what they have written.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use leasehold::LockManager;
use rustix::process::{Pid, Signal, kill_process};

use crate::leasehold;
use crate::support::{PATIENCE, name, wait_until};

/// A directory for the files of a test, and a name for its lock.
pub struct Work {
    pub dir: PathBuf,
    pub lock: String,
    url: String,
}

impl Work {
    pub fn new(url: &str) -> Self {
        let lock = name("run");
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(lock.replace(':', "-"));
        fs::create_dir_all(&dir).expect("the directory for tests exists");
        Self {
            dir,
            lock,
            url: url.to_owned(),
        }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns `leasehold run OPTIONS LOCK -- sh -c SCRIPT`. The script runs in the directory. It has the function `here`,
    /// which writes the number of its process to a file.
    pub fn run(&self, options: &[&str], script: &str) -> Command {
        self.by("run", options, script)
    }

    /// The same for another subcommand than `run`.
    pub fn by(&self, subcommand: &str, options: &[&str], script: &str) -> Command {
        let here = "here() { echo $$ >.$1 && mv .$1 $1; }";
        let mut command = leasehold(&self.url);
        command
            .current_dir(&self.dir)
            .arg(subcommand)
            .args(options)
            .args([&self.lock, "--", "sh", "-c", &format!("{here}\n{script}")])
            .stdin(Stdio::null());
        command
    }

    /// Returns that command as the last arguments of another program, such as `strace`.
    pub fn run_by(&self, program: &[&str], options: &[&str], script: &str) -> Command {
        let inside = self.run(options, script);
        let mut command = Command::new(program[0]);
        command
            .args(&program[1..])
            .arg(inside.get_program())
            .args(inside.get_args())
            .current_dir(&self.dir)
            .env_remove("REDIS_URL")
            .env("LEASEHOLD_URL", &self.url)
            .stdin(Stdio::null());
        command
    }

    /// Starts `leasehold run`. It is killed when the value is dropped.
    #[track_caller]
    pub fn start(&self, options: &[&str], script: &str) -> Running {
        start(&mut self.run(options, script))
    }

    /// Blocks until the script has written a file, and returns its text without the last line's end.
    #[track_caller]
    pub fn text(&self, file: &str) -> String {
        let path = self.dir.join(file);
        let read = || fs::read_to_string(&path).ok();
        wait_until(&format!("the script has written {file}"), || {
            read().is_some()
        });
        read().unwrap_or_default().trim_end().to_owned()
    }

    /// Blocks until a process has called `here`, and returns its number.
    #[track_caller]
    pub fn pid(&self, file: &str) -> Pid {
        let number = self.text(file).parse().ok();
        number
            .and_then(Pid::from_raw)
            .expect("`here` writes a number")
    }

    pub fn has(&self, file: &str) -> bool {
        self.dir.join(file).exists()
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // A test that failed leaves its files for a look.
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// Writes a program by another process. If this one wrote it, the children that its threads start meanwhile would have the file
/// open, and the kernel executes no file that somebody may write.
#[track_caller]
pub fn write_program(path: &Path, text: &str) {
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("install of coreutils");
    let mut input = install.stdin.take().expect("a pipe");
    input.write_all(text.as_bytes()).expect("install reads");
    drop(input);
    let installed = install.wait().expect("it is a child");
    assert!(installed.success(), "{}", path.display());
}

/// A `leasehold` that runs.
pub struct Running(Child);

#[track_caller]
pub fn start(command: &mut Command) -> Running {
    Running(command.spawn().expect("the program was built"))
}

impl Running {
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    pub fn signal(&self, signal: Signal) {
        if signal == Signal::STOP {
            return stop(self.pid());
        }
        kill_process(self.pid(), signal).expect("it runs, or was not waited for");
    }

    /// Blocks until it has ended, and returns its exit status.
    #[track_caller]
    pub fn status(&mut self) -> i32 {
        self.end().code().expect("no signal ended it")
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("it is a child").is_some()
    }

    /// Blocks until it has ended.
    #[track_caller]
    pub fn end(&mut self) -> ExitStatus {
        let mut ended = None;
        wait_until("leasehold has ended", || {
            ended = self.0.try_wait().expect("it is a child");
            ended.is_some()
        });
        ended.expect("it has ended")
    }

    /// Returns the keeper.
    #[track_caller]
    pub fn keeper(&self) -> Pid {
        let is_keeper = |pid: &Pid| {
            let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline"));
            arguments.is_ok_and(|text| text.contains("\0--leasehold-keeper\0"))
        };
        let keeper = children(self.pid()).into_iter().find(is_keeper);
        keeper.expect("the command runs")
    }

    /// Kills the front and the keeper. Both are stopped first, so that neither acts on the other's death. The keeper goes
    /// first, because the kernel continues a stopped group whose parent dies.
    #[track_caller]
    pub fn kill_with_keeper(&mut self) {
        let keeper = self.keeper();
        stop(keeper);
        stop(self.pid());
        kill_process(keeper, Signal::KILL).expect("it lives");
        wait_until_dead(&[keeper]);
        self.signal(Signal::KILL);
        self.end();
    }
}

impl From<Child> for Running {
    fn from(child: Child) -> Self {
        Self(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the children of a process.
pub fn children(of: Pid) -> Vec<Pid> {
    let path = format!("/proc/{0}/task/{0}/children", of.as_raw_nonzero());
    let text = fs::read_to_string(path).unwrap_or_default();
    let numbers = text
        .split_whitespace()
        .filter_map(|number| number.parse().ok());
    numbers.filter_map(Pid::from_raw).collect()
}

/// Returns the letter of a process's state, or `None` if there is no such process. A dead process that nobody has waited
/// for does not count.
pub fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    (state != 'Z').then_some(state)
}

#[track_caller]
pub fn wait_until_dead(pids: &[Pid]) {
    let begun = Instant::now();
    while pids.iter().any(|pid| state(*pid).is_some()) {
        assert!(
            begun.elapsed() < PATIENCE,
            "{:?}",
            pids.iter().map(|it| (it, state(*it))).collect::<Vec<_>>()
        );
        std::thread::yield_now();
    }
}

/// Stops a process, and blocks until none of its threads runs. Until then they may act on what the test does next.
#[track_caller]
pub fn stop(pid: Pid) {
    kill_process(pid, Signal::STOP).expect("it lives");
    wait_until("all its threads have stopped", || has_stopped(pid));
}

/// Returns whether all threads of a process stand still. The kernel tells its parent of the last one.
pub fn has_stopped(pid: Pid) -> bool {
    let all = fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
    // A thread that has ended meanwhile has no state.
    let mut states = all.filter_map(|thread| {
        let stat = fs::read_to_string(thread.ok()?.path().join("stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    });
    states.all(|state| matches!(state, 'T' | 'Z' | 'X'))
}

/// Takes a lock from its holder.
#[track_caller]
pub fn take(locks: &LockManager, name: &str) {
    let info = locks.inspect(name).expect("it answers");
    let owner = &info.expect("it is held").holders[0].owner;
    assert!(locks.force_release(name, owner).expect("it answers"));
}
