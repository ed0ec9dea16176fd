//! A terminal for a program under test: a pseudo-terminal, a thread that reads what the program writes, and a screen.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcgetpgrp, tcsetwinsize};
use vt100::Parser;

use crate::support::{PATIENCE, ms};

/// A terminal, and the program that it controls. Dropping it kills the program.
pub(crate) struct Terminal {
    /// The end of the terminal on which a person would type. `None`: the terminal has hung up.
    master: Option<Arc<File>>,
    screen: Arc<Mutex<Parser>>,
    program: Child,
}

impl Terminal {
    /// Starts a program in a new session, with a new terminal of this size as its controlling terminal. Uses only the
    /// program, the arguments and the variables of `command`.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "a test starts a command once"
    )]
    #[track_caller]
    pub(crate) fn start(command: Command, rows: u16, columns: u16) -> Self {
        let (master, slave) = open();
        tcsetwinsize(&master, size(rows, columns)).expect("it is a terminal");
        let program = spawn(&command, &slave);
        drop(slave);
        let master = Arc::new(File::from(master));
        let screen = Arc::new(Mutex::new(Parser::new(rows, columns, 0)));
        let (input, shown) = (Arc::downgrade(&master), Arc::clone(&screen));
        thread::spawn(move || show(&input, &shown));
        Self {
            master: Some(master),
            screen,
            program,
        }
    }

    /// Types a text. `\r` is Enter, and `\x1b` Escape.
    #[track_caller]
    pub(crate) fn send(&self, text: &str) {
        let typed = self.master().write_all(text.as_bytes());
        typed.expect("the terminal is open");
    }

    /// Changes the size, of which the kernel tells the program.
    #[track_caller]
    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        self.parser().set_size(rows, columns);
        tcsetwinsize(self.master(), size(rows, columns)).expect("it is a terminal");
    }

    /// Returns the text on the screen, without spaces at the ends of lines.
    pub(crate) fn screen(&self) -> String {
        let text = self.parser().screen().contents();
        let lines: Vec<_> = text.lines().map(str::trim_end).collect();
        lines.join("\n")
    }

    /// Blocks until the screen meets a condition, and returns it.
    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, is_met: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let screen = self.screen();
            if is_met(&screen) {
                return screen;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "it was never shown: {what}\n{screen}"
            );
            // Between two looks at the condition.
            thread::sleep(ms(1));
        }
    }

    /// Returns whether the terminal is as a shell expects it: the first screen with a cursor, line by line, with echo.
    pub(crate) fn is_restored(&self) -> bool {
        let modes = tcgetattr(self.master()).expect("a terminal").local_modes;
        let parser = self.parser();
        let screen = parser.screen();
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
            && !screen.alternate_screen()
            && !screen.hide_cursor()
    }

    /// Returns whether the terminal collects whole lines, as it does for programs other than a shell.
    pub(crate) fn collects_lines(&self) -> bool {
        let modes = tcgetattr(self.master()).expect("a terminal").local_modes;
        modes.contains(LocalModes::ICANON)
    }

    /// Returns whether the group of the program itself is in the foreground: a shell that waits for a line.
    pub(crate) fn is_program_in_front(&self) -> bool {
        let leader = tcgetpgrp(self.master()).map(|leader| leader.as_raw_nonzero().get());
        leader.is_ok_and(|leader| leader.cast_unsigned() == self.pid())
    }

    /// Returns the name of the process that leads the group in the foreground, unless that is the program itself.
    pub(crate) fn job_in_front(&self) -> Option<String> {
        let leader = tcgetpgrp(self.master()).ok()?.as_raw_nonzero().get();
        if leader.cast_unsigned() == self.pid() {
            return None;
        }
        let name = fs::read_to_string(format!("/proc/{leader}/comm")).ok()?;
        Some(name.trim_end().to_owned())
    }

    /// Blocks until the program has ended.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.program.try_wait().expect("it is our child") {
                return status;
            }
            let screen = self.screen();
            assert!(begun.elapsed() < PATIENCE, "it never ends\n{screen}");
            // Between two looks at the condition.
            thread::sleep(ms(1));
        }
    }

    /// Returns the process ID of the program, which is also that of its session and of its process group.
    pub(crate) fn pid(&self) -> u32 {
        self.program.id()
    }

    /// Closes the terminal, as a person closes a window.
    pub(crate) fn hang_up(&mut self) {
        self.master = None;
    }

    fn master(&self) -> &File {
        self.master.as_deref().expect("it has not hung up")
    }

    fn parser(&self) -> MutexGuard<'_, Parser> {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// Opens a terminal that controls no process yet, and returns the end of a person and that of programs.
pub(crate) fn open() -> (OwnedFd, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).expect("a terminal");
    unlockpt(&master).expect("it is ours");
    let slave = ioctl_tiocgptpeer(&master, flags).expect("its other end");
    (master, slave)
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// Starts a program by `setsid`, which makes the terminal the controlling one. `setsid` then becomes the program, because
/// it leads no process group.
fn spawn(command: &Command, slave: &OwnedFd) -> Child {
    let mut setsid = Command::new("setsid");
    setsid.arg("-c").arg(command.get_program());
    setsid.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => setsid.env(name, value),
            None => setsid.env_remove(name),
        };
    }
    let end = || Stdio::from(slave.try_clone().expect("a descriptor"));
    setsid.env("TERM", "xterm-256color");
    setsid.stdin(end()).stdout(end()).stderr(end());
    setsid.spawn().expect("setsid of util-linux")
}

/// Shows what the program writes, until no process has the terminal open, or the terminal hangs up.
fn show(master: &Weak<File>, screen: &Mutex<Parser>) {
    let mut written = [0; 4096];
    while let Some(master) = master.upgrade() {
        let mut ready = [PollFd::new(&master, PollFlags::IN)];
        let wait = Timespec::try_from(ms(20)).expect("it is short");
        if !poll(&mut ready, Some(&wait)).is_ok_and(|count| count > 0) {
            continue;
        }
        let Ok(length @ 1..) = (&*master).read(&mut written) else {
            return;
        };
        let mut screen = screen.lock().unwrap_or_else(PoisonError::into_inner);
        screen.process(&written[..length]);
    }
}
