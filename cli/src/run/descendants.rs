//! The descendants of this process: how the keeper and the front signal them, and how they kill them.
//!
//! Both are *child subreapers*: a descendant whose parent has ended becomes their own child. Two rules follow from it.
//!
//! * **Only children tell that nobody is left**, as [`reap`] and [`kill`] see them. A process that forks and exits between
//!   two reads of `/proc` is in no listing, and its child is in none either. But the kernel makes that child a child of this
//!   process before the parent's end can be seen here, so there is no moment without a child.
//! * **KILL goes to children first.** Until this process has waited for a child, nobody else gets the child's number, so
//!   the signal hits no stranger, and needs no look that a quick fork could outrun. The orphans of a killed child are
//!   children in the next round.
//!
//! Then KILL goes to the rest of the tree as `/proc` shows it, because a child of another user cannot be killed, and those
//! below it can. TERM and the signals of the user go to the tree alone. They may miss a process, because KILL follows.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::time::Duration;
use std::{fs, iter};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group,
    pidfd_open, pidfd_send_signal, test_kill_process, wait,
};

/// The time between two rounds of KILL, at first and at most. The end of a child begins a round at once, so these are for
/// children that do not end, such as those of another user, which must not cost all the CPU time.
pub const ROUNDS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// A process, as `/proc/PID/stat` shows it.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    pid: Pid,
    parent: Option<Pid>,
    group: Option<Pid>,
    /// The time of its start. Two processes of one number differ in it.
    started: u64,
    is_zombie: bool,
    is_stopped: bool,
}

/// Tries each call that this module needs. A system that refuses one then does so before the command starts.
pub fn try_calls() -> io::Result<()> {
    numbers()?;
    children()?;
    test_kill_process(getpid())?;
    match wait(WaitOptions::NOHANG) {
        Ok(_) | Err(Errno::CHILD) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Takes the ends and stops of children, and hands them to `changed`. Returns whether this process has no child any more,
/// and so no descendant.
pub fn reap(mut changed: impl FnMut(Pid, WaitStatus)) -> bool {
    loop {
        match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) => changed(pid, status),
            Ok(None) => return false,
            // Any other error says nothing about children.
            Err(error) => return error == Errno::CHILD,
        }
    }
}

/// Returns all descendants that `/proc` shows alive, but not the spared ones, nor those below them.
pub fn living(spared: &[Process]) -> io::Result<Vec<Process>> {
    let all: HashMap<_, _> = numbers()?
        .into_iter()
        .filter_map(|pid| Some((pid, look_at(pid).ok()??)))
        .collect();
    Ok(below(getpid(), &all, spared))
}

/// Sends a signal to those living descendants that are meant.
pub fn signal(signal: Signal, is_meant: impl Fn(&Process) -> bool, spared: &[Process]) {
    let living = living(spared).unwrap_or_default();
    for process in living.iter().filter(|process| is_meant(process)) {
        process.signal(signal);
    }
}

/// Returns whether a process stands still because of a signal.
pub fn is_stopped(process: Pid) -> bool {
    look_at(process).is_ok_and(|seen| seen.is_some_and(|seen| seen.is_stopped))
}

/// Kills the command's own group, if it has one, and all descendants that are not spared. Returns whether this process has a
/// child that is not spared, alive or dead.
pub fn kill(group: Option<Pid>, spared: &[Process]) -> bool {
    let has_child = kill_children(group, spared);
    signal(Signal::KILL, |_| true, spared);
    has_child
}

/// Kills each child that is not spared, and the group if a child is in it. Returns whether there is such a child.
///
/// The group is killed as a whole, because no process of it can fork its way out of that: the kernel fails a fork while KILL
/// is pending. The child, even a dead one, keeps the group's number from going to strangers.
fn kill_children(group: Option<Pid>, spared: &[Process]) -> bool {
    let Ok(children) = children() else {
        return true;
    };
    let mut has_child = false;
    for child in children {
        // `/proc` may hide a process of another user (`hidepid`). It is a child all the same.
        let seen = look_at(child).ok().flatten();
        if seen.is_some_and(|seen| spared.iter().any(|it| it.is(&seen))) {
            continue;
        }
        has_child = true;
        let its_group = seen.and_then(|seen| seen.group);
        if let Some(group) = group.filter(|group| its_group == Some(*group)) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = kill_process(child, Signal::KILL);
    }
    has_child
}

impl Process {
    pub fn is_in(&self, group: Pid) -> bool {
        self.group == Some(group)
    }

    /// Returns whether the two were seen of one process.
    fn is(&self, other: &Self) -> bool {
        (self.pid, self.started) == (other.pid, other.started)
    }

    /// Sends a signal to this process, unless it has ended since it was seen.
    ///
    /// A number that was opened stays that of the opened process, so the second look decides whom the signal reaches. Kernels
    /// before 5.3, gVisor and older seccomp profiles have no pidfd. There the number could go to a stranger between the look
    /// and the signal, but only if all other numbers were used up in these microseconds.
    fn signal(&self, signal: Signal) {
        let open = pidfd_open(self.pid, PidfdFlags::empty());
        if !look_at(self.pid).is_ok_and(|now| now.is_some_and(|now| now.is(self))) {
            return;
        }
        match open.and_then(|open| pidfd_send_signal(open, signal)) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(_) => drop(kill_process(self.pid, signal)),
        }
    }
}

/// Returns the children of this process, those included that have ended and were not waited for. Only the main thread has
/// children, and it is the one that calls this and [`reap`], so none can vanish meanwhile.
fn children() -> io::Result<Vec<Pid>> {
    if let Ok(listed) = fs::read_to_string("/proc/thread-self/children") {
        return Ok(listed.split_whitespace().filter_map(number).collect());
    }
    // gVisor, and a kernel without CONFIG_PROC_CHILDREN, have no such file.
    let mut all = numbers()?;
    all.retain(|pid| {
        let seen = look_at(*pid).ok().flatten();
        seen.is_some_and(|seen| seen.parent == Some(getpid()))
    });
    Ok(all)
}

/// Returns the numbers of all processes.
fn numbers() -> io::Result<Vec<Pid>> {
    let names = fs::read_dir("/proc")?.map(|entry| Ok(entry?.file_name()));
    let names: Vec<_> = names.collect::<io::Result<_>>()?;
    Ok(names
        .iter()
        .filter_map(|name| number(name.to_str()?))
        .collect())
}

/// Parses the number of a process or a group. `/proc` has 0 or −1 for one that is outside of this namespace, or is just being
/// taken away.
fn number(text: &str) -> Option<Pid> {
    let number = text.parse().ok().filter(|number| *number > 0)?;
    Pid::from_raw(number)
}

/// Returns `None` if there is no such process.
fn look_at(pid: Pid) -> io::Result<Option<Process>> {
    let stat = match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        // It ended between the opening and the read.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error),
    };
    parse(pid, &stat)
        .map(Some)
        .ok_or_else(|| ErrorKind::InvalidData.into())
}

/// Parses `pid (name) state parent group …`. The name may hold spaces and brackets.
fn parse(pid: Pid, stat: &str) -> Option<Process> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let state = *fields.first()?;
    Some(Process {
        pid,
        parent: number(fields.get(1)?),
        group: number(fields.get(2)?),
        started: fields.get(19)?.parse().ok()?,
        is_zombie: matches!(state, "Z" | "X"),
        is_stopped: state == "T",
    })
}

/// Returns the living descendants of a process, but not the spared ones, nor those below them.
fn below(ancestor: Pid, all: &HashMap<Pid, Process>, spared: &[Process]) -> Vec<Process> {
    let parent = |process: &Process| all.get(&process.parent?).copied();
    let is_below = |process: &&Process| {
        // No line of ancestors is longer than the number of processes.
        let line = iter::successors(Some(**process), parent).take(all.len());
        let line: Vec<_> = line.collect();
        let is_spared = |it: &Process| spared.iter().any(|spared| spared.is(it));
        line.iter().any(|it| it.parent == Some(ancestor)) && !line.iter().any(is_spared)
    };
    let living = all.values().filter(|process| !process.is_zombie);
    living.filter(is_below).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(number: i32) -> Pid {
        Pid::from_raw(number).expect("it is not zero")
    }

    #[test]
    fn a_name_with_brackets_and_spaces_hides_no_field() {
        let times = "0 ".repeat(15);
        let stat = |name, state| format!("7 ({name}) {state} 3 5 5 {times}90 0 0");
        let process = parse(pid(7), &stat("a) (b) R c", "S")).expect("it is valid");
        assert_eq!(
            (process.parent, process.group),
            (Some(pid(3)), Some(pid(5)))
        );
        assert_eq!((process.started, process.is_zombie), (90, false));
        assert!(
            parse(pid(7), &stat("a", "Z"))
                .expect("it is valid")
                .is_zombie
        );
        let ends = parse(pid(7), &stat("a", "X").replace(" 3 5", " 0 -1"));
        let ends = ends.expect("it is valid");
        assert_eq!((ends.parent, ends.group), (None, None));
        assert!(
            parse(pid(7), &stat("a", "T"))
                .expect("it is valid")
                .is_stopped
        );
        assert!(parse(pid(7), "7 (a").is_none());
    }

    #[test]
    fn this_process_started_before_its_child() {
        let child = std::process::Command::new("true").spawn();
        let mut child = child.expect("every system has it");
        let seen = |pid| look_at(pid).expect("it can be read").expect("it is there");
        let (own, other) = (seen(getpid()), seen(Pid::from_child(&child)));
        assert_eq!(other.parent, Some(getpid()));
        assert!(own.started <= other.started && own.started > 0);
        child.wait().expect("it is a child");
    }

    #[test]
    fn a_process_whose_ancestors_have_gone_is_no_descendant() {
        let process = |(number, parent)| {
            let process = Process {
                pid: pid(number),
                parent: Pid::from_raw(parent),
                group: None,
                started: 1,
                is_zombie: false,
                is_stopped: false,
            };
            (process.pid, process)
        };
        let all: HashMap<_, _> = [(2, 1), (3, 2), (5, 4), (6, 6)].map(process).into();
        let below = |spared: &[i32]| {
            let spared: Vec<_> = spared.iter().map(|number| all[&pid(*number)]).collect();
            let below = below(Pid::INIT, &all, &spared);
            let mut below: Vec<_> = below
                .iter()
                .map(|it| it.pid.as_raw_nonzero().get())
                .collect();
            below.sort_unstable();
            below
        };
        assert_eq!(below(&[]), [2, 3]);
        assert_eq!(below(&[3]), [2]);
        assert_eq!(below(&[2]), [0; 0]);
    }
}
