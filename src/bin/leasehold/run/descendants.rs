//! The descendants of this process, as `/proc` shows them.

use std::collections::HashMap;
use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// A process, as `/proc/PID/stat` shows it.
struct Process {
    parent: i32,
    group: i32,
    is_zombie: bool,
}

/// Sends a signal to each descendant outside of a process group, and returns their number with those in the group.
///
/// A process may end, and its number may go to a stranger, between the look and the signal. So each process is opened
/// first, and then looked at again: if it is a descendant then, the open process is that descendant.
///
/// Spares some processes, and their descendants.
pub fn signal(signal: Option<Signal>, but_group: Option<Pid>, spared: &[i32]) -> usize {
    let but_group = but_group.map(|group| group.as_raw_nonzero().get());
    let open: Vec<_> = of(getpid(), &processes(), spared)
        .into_iter()
        .filter_map(|pid| {
            Some((
                pid,
                pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?,
            ))
        })
        .collect();
    let now = processes();
    let still = of(getpid(), &now, spared);
    let mut count = 0;
    for (pid, process) in open {
        if !still.contains(&pid) {
            continue;
        }
        count += 1;
        if let Some(signal) = signal.filter(|_| Some(now[&pid].group) != but_group) {
            // The process may have ended since.
            let _ = pidfd_send_signal(process, signal);
        }
    }
    count
}

/// Returns all descendants of this process that live now.
pub fn all() -> Vec<i32> {
    of(getpid(), &processes(), &[])
}

/// Returns the living descendants of a process.
fn of(ancestor: Pid, all: &HashMap<i32, Process>, spared: &[i32]) -> Vec<i32> {
    let ancestor = ancestor.as_raw_nonzero().get();
    let is_below = |mut pid: i32| {
        // No chain of parents is longer than the number of processes.
        for _ in 0..all.len() {
            match all.get(&pid) {
                _ if spared.contains(&pid) => return false,
                Some(process) if process.parent == ancestor => return true,
                Some(process) => pid = process.parent,
                None => return false,
            }
        }
        false
    };
    let living = all.iter().filter(|(_, process)| !process.is_zombie);
    living
        .map(|(pid, _)| *pid)
        .filter(|pid| is_below(*pid))
        .collect()
}

fn processes() -> HashMap<i32, Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: i32| {
        Some((
            pid,
            parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?,
        ))
    })
    .collect()
}

/// Parses `pid (name) state parent group …`. The name may hold spaces and brackets.
fn parse(stat: &str) -> Option<Process> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split(' ');
    let state = fields.next()?;
    Some(Process {
        parent: fields.next()?.parse().ok()?,
        group: fields.next()?.parse().ok()?,
        is_zombie: matches!(state, "Z" | "X"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_hides_no_field() {
        let process = parse("7 (a) (b) R c) S 3 5 5 0").expect("it is valid");
        assert_eq!(
            (process.parent, process.group, process.is_zombie),
            (3, 5, false)
        );
        assert!(parse("7 (a) Z 3 7 7").expect("it is valid").is_zombie);
        assert!(parse("7 (a").is_none());
    }

    #[test]
    fn a_process_whose_ancestors_have_gone_is_no_descendant() {
        let process = |parent| Process {
            parent,
            group: 1,
            is_zombie: false,
        };
        let all = [
            (2, process(1)),
            (3, process(2)),
            (5, process(4)),
            (6, process(6)),
        ];
        let all = all.into();
        let below = |spared: &[i32]| {
            let mut below = of(Pid::INIT, &all, spared);
            below.sort_unstable();
            below
        };
        assert_eq!(below(&[]), [2, 3]);
        assert_eq!(below(&[3]), [2]);
        assert_eq!(below(&[2]), [0; 0]);
    }
}
