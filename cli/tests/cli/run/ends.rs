//! The command ends before the lock does, whatever happens to the processes and to the server.

use std::fs::{self, File};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::SystemTime;

use leasehold::LockManager;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Sentinels, Server, manager, secs, wait_until};
use crate::work::{Running, Work, start, state, stop, wait_until_dead};

/// Starts four processes: the script, its child in the background, one in a new session, and one whose parent has
/// ended and which has closed its streams. The last three ignore TERM.
const FAMILY: &str = r#"
trap "" TERM
one() { sh -c "trap '' TERM; echo \$\$ >.$1 && mv .$1 $1; while :; do sleep 0.1; done"; }
one child &
setsid sh -c 'trap "" TERM; echo $$ >.session && mv .session session; while :; do sleep 0.1; done' &
sh -c "setsid sh -c 'echo \$\$ >.orphan && mv .orphan orphan; while :; do sleep 0.1; done' <&- >&- 2>&- &"
here parent
"#;
const MEMBERS: [&str; 4] = ["parent", "child", "session", "orphan"];

fn family(work: &Work) -> Vec<Pid> {
    MEMBERS.iter().map(|member| work.pid(member)).collect()
}

fn starts_family(work: &Work, options: &[&str], last: &str) -> (Running, Vec<Pid>) {
    let running = work.start(options, &format!("{FAMILY}{last}"));
    let pids = family(work);
    (running, pids)
}

const ON: &str = "while :; do sleep 0.1; done";

#[test]
fn all_descendants_end_with_the_command() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let log = File::create_new(work.dir.join("log")).expect("the directory exists");
    let script = format!("{FAMILY}while [ ! -e go ]; do sleep 0.01; done; exit 6");
    let mut running = start(work.run(&["--grace", "100ms"], &script).stderr(log));
    let pids = family(&work);
    File::create_new(work.dir.join("go")).expect("the directory exists");
    assert_eq!(running.status(), 6);
    assert!(pids.iter().all(|pid| state(*pid).is_none()));
    assert!(work.text("log").contains("left"), "{}", work.text("log"));
}

#[test]
fn all_descendants_end_if_leasehold_is_killed() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let (mut running, pids) = starts_family(&work, &["--grace", "100ms"], ON);
    let keeper = running.keeper();
    running.signal(Signal::KILL);
    running.end();
    wait_until_dead(&pids);
    wait_until_dead(&[keeper]);
}

#[test]
fn all_descendants_end_if_the_keeper_is_killed() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let (mut running, pids) = starts_family(&work, &[], ON);
    kill_process(running.keeper(), Signal::KILL).expect("it lives");
    assert_eq!(running.status(), 70);
    assert!(pids.iter().all(|pid| state(*pid).is_none()));
    assert_eq!(
        manager(&server.url())
            .inspect(&work.lock)
            .expect("it answers"),
        None
    );
}

#[test]
fn all_descendants_end_after_a_loss_if_the_keeper_is_stopped() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let (mut running, pids) = starts_family(&work, &["--grace", "100ms"], ON);
    let keeper = running.keeper();
    stop(keeper);
    take(&manager(&server.url()), &work.lock);
    assert_eq!(running.status(), 70);
    wait_until_dead(&pids);
    wait_until_dead(&[keeper]);
}

#[test]
fn the_command_ends_if_both_are_killed() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let mut running = work.start(&[], "here it; exec sleep 1000");
    let it = work.pid("it");
    let keeper = running.keeper();
    // Stopped first, so that neither can act on the other's death.
    stop(keeper);
    running.signal(Signal::KILL);
    kill_process(keeper, Signal::KILL).expect("it lives");
    running.end();
    wait_until_dead(&[it, keeper]);
}

#[test]
fn all_descendants_end_by_the_deadline_if_leasehold_is_stopped() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let (mut running, pids) = starts_family(&work, &["--lease", "10s"], ON);
    running.signal(Signal::STOP);
    wait_until_dead(&pids);
    running.signal(Signal::CONT);
    assert_eq!(running.status(), 70);
}

/// Checks that the command gets TERM before its lease is over.
#[track_caller]
fn ends_in_time(server: &Server, stop: impl FnOnce(&Server)) {
    let work = Work::new(&server.url());
    let script = format!("trap 'here term; exit 0' TERM; here it; {ON}");
    let mut running = work.start(&["--lease", "12s"], &script);
    work.pid("it");
    let begun = SystemTime::now();
    stop(server);
    assert_eq!(running.status(), 70);
    let written = fs::metadata(work.dir.join("term")).and_then(|file| file.modified());
    let ended = written.expect("it got TERM").duration_since(begun);
    assert!(ended.is_ok_and(|it| it < secs(12)));
}

#[test]
fn the_command_ends_if_the_server_hangs() {
    let server = Server::start();
    ends_in_time(&server, Server::pause);
    server.resume();
}

#[test]
fn the_command_ends_if_the_server_dies() {
    let server = Server::start();
    ends_in_time(&server, Server::kill);
}

#[test]
fn the_command_goes_on_if_the_server_comes_back_in_time() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let mut running = work.start(&[], "here it; while [ ! -e go ]; do sleep 0.01; done");
    work.pid("it");
    server.pause();
    server.resume();
    server.raw().wait_until_renewed(&work.lock, 1);
    File::create_new(work.dir.join("go")).expect("the directory exists");
    assert_eq!(running.status(), 0);
}

#[test]
fn the_command_goes_on_through_a_failover() {
    let set = Sentinels::start();
    let hosts: Vec<_> = set
        .urls()
        .iter()
        .map(|url| url.replace("redis://", "").replace('/', ""))
        .collect();
    let url = format!(
        "redis+sentinel://{}/{}",
        hosts.join(","),
        crate::support::MASTER
    );
    let work = Work::new(&url);
    let mut running = work.start(
        &["--lease", "60s"],
        "here it; while [ ! -e go ]; do sleep 0.01; done",
    );
    work.pid("it");
    set.wait_until_replicated();
    let master = set.fail_over().raw();
    let mut last = i64::MAX;
    wait_until("the lease is renewed on the new master", || {
        // A new master closes its connections once.
        let left: i64 = master.try_ask(&["PTTL", &work.lock]).unwrap_or(last);
        let is_renewed = left > last;
        last = left;
        is_renewed
    });
    File::create_new(work.dir.join("go")).expect("the directory exists");
    assert_eq!(running.status(), 0);
}

/// Runs a script that gets TERM because its lock is taken away, and returns the status of the run.
#[track_caller]
fn status_after_a_loss(work: &Work, options: &[&str], script: &str) -> i32 {
    let mut running = work.start(options, script);
    work.pid("it");
    take(&manager(work.url()), &work.lock);
    running.status()
}

#[track_caller]
fn take(locks: &LockManager, name: &str) {
    let info = locks
        .inspect(name)
        .expect("it answers")
        .expect("it is held");
    assert!(
        locks
            .force_release(name, &info.holders[0].owner)
            .expect("it answers")
    );
}

#[test]
fn a_loss_ends_the_command_by_term() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let script = format!("trap 'here term; exit 5' TERM; here it; {ON}");
    assert_eq!(status_after_a_loss(&work, &[], &script), 70);
    assert!(work.has("term"));
}

#[test]
fn a_loss_ends_a_command_that_ignores_term_by_kill() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let (mut running, pids) = starts_family(&work, &["--grace", "100ms"], ON);
    take(&manager(&server.url()), &work.lock);
    assert_eq!(running.status(), 70);
    assert!(pids.iter().all(|pid| state(*pid).is_none()));
}

#[test]
fn a_loss_ends_a_stopped_command() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let script = format!("trap 'here term; exit 5' TERM; here it; {ON}");
    let mut running = work.start(&[], &script);
    let it = work.pid("it");
    stop(it);
    wait_until("it has stopped", || state(it) == Some('T'));
    take(&manager(&server.url()), &work.lock);
    assert_eq!(running.status(), 70);
    assert!(work.has("term"));
}

#[test]
fn on_loss_kill_sends_no_term() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let script = format!("trap 'here term' TERM; here it; {ON}");
    assert_eq!(
        status_after_a_loss(&work, &["--on-loss", "kill"], &script),
        70
    );
    assert!(!work.has("term"));
}

#[test]
fn on_loss_ignore_lets_the_command_go_on_beyond_its_lease() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let log = File::create_new(work.dir.join("log")).expect("the directory exists");
    let script = "here it; while [ ! -e go ]; do sleep 0.01; done; exit 7";
    let options = ["--on-loss", "ignore", "--lease", "10s", "--json"];
    let mut running = start(work.run(&options, script).stderr(log));
    let it = work.pid("it");
    server.kill();
    wait_until("the lock is lost", || work.text("log").contains("\"lost\""));
    assert!(state(it).is_some());
    File::create_new(work.dir.join("go")).expect("the directory exists");
    assert_eq!(running.status(), 7);
}

#[test]
fn max_ends_the_command_before_the_lock_is_released() {
    let server = Server::start();
    let locks = manager(&server.url());
    let work = Work::new(&server.url());
    // The command has four seconds between TERM and KILL for another process.
    let script = format!(
        "trap '{} status {} >seen; exit 0' TERM; here it; {ON}",
        env!("CARGO_BIN_EXE_leasehold"),
        work.lock
    );
    let mut running = work.start(&["--max", "12s"], &script);
    assert_eq!(running.status(), 70);
    // The command saw at TERM that its lock was held.
    assert!(work.text("seen").contains("mutex"), "{}", work.text("seen"));
    assert_eq!(locks.inspect(&work.lock).expect("it answers"), None);
}

#[test]
fn it_reaps_as_process_1() {
    let server = Server::start();
    let work = Work::new(&server.url());
    // Each `sh` ends before its child, whose parent then is the keeper.
    let script = "for i in 1 2 3 4 5; do sh -c 'sleep 0.05 &'; done; here it; sleep 0.3
        grep -s -l '^State:.Z' /proc/[0-9]*/status | wc -l >zombies; exit 8";
    let namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    assert_eq!(start(&mut work.run_by(&namespace, &[], script)).status(), 8);
    assert_eq!(work.text("zombies"), "0");
    assert_eq!(
        manager(&server.url())
            .inspect(&work.lock)
            .expect("it answers"),
        None
    );
}

#[test]
fn the_keeper_starts_no_command_without_a_deadline() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let (ours, keepers) = socket_pair();
    let mut keeper = std::process::Command::new(env!("CARGO_BIN_EXE_leasehold"));
    keeper.args([
        "--leasehold-keeper",
        "Term",
        "1000",
        "0",
        "sh",
        "-c",
        "echo $$ >it",
    ]);
    keeper.current_dir(&work.dir).stdin(keepers);
    let mut keeper = start(&mut keeper);
    send_standard_input(&ours);
    // The front dies before it has sent the deadline.
    drop(ours);
    assert_eq!(keeper.status(), 71);
    assert!(!work.has("it"));
}

fn socket_pair() -> (OwnedFd, OwnedFd) {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("descriptors")
}

fn send_standard_input(socket: &OwnedFd) {
    let stdin = std::io::stdin();
    let descriptors = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let letter = [IoSlice::new(b"i")];
    sendmsg(socket, &letter, &mut control, SendFlags::empty())
        .expect("the keeper has the other end");
}

#[test]
fn the_status_is_known_although_the_parent_ignored_the_end_of_children() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let inside = work.run(&[], "exit 3");
    let mut command = std::process::Command::new("env");
    command.arg("--ignore-signal=CHLD");
    command.args(inside.get_args().skip(1));
    command
        .current_dir(&work.dir)
        .env("LEASEHOLD_URL", server.url());
    assert_eq!(start(&mut command).status(), 3);
    assert_eq!(
        manager(&server.url())
            .inspect(&work.lock)
            .expect("it answers"),
        None
    );
}

#[test]
fn a_standard_error_that_nobody_reads_delays_nothing_for_long() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    // A pipe holds 64 KiB by default.
    writer
        .write_all(&vec![b'x'; 65_536])
        .expect("the pipe is open");
    let mut command = work.run(&["--json", "--lease", "10s"], "sleep 12; exit 3");
    let mut running = start(command.stderr(writer));
    drop(command);
    assert_eq!(running.status(), 3);
    assert_eq!(
        manager(&server.url())
            .inspect(&work.lock)
            .expect("it answers"),
        None
    );
    drop(reader);
}

#[test]
fn a_pipe_behind_the_command_has_time_to_write() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let script = "(sleep 0.1; cat >.log; mv .log log) <fifo & echo line >fifo";
    assert_eq!(
        work.start(&[], &format!("mkfifo fifo; {script}")).status(),
        0
    );
    assert_eq!(work.text("log"), "line");
}

#[test]
fn a_process_that_another_program_started_lives_on() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let script = format!(
        "sleep 1000 & echo $! >.it; mv .it it; exec {} run {} -- true",
        env!("CARGO_BIN_EXE_leasehold"),
        work.lock
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).current_dir(&work.dir);
    command.env("LEASEHOLD_URL", server.url());
    assert_eq!(start(&mut command).status(), 0);
    let it = work.pid("it");
    assert!(state(it).is_some());
    kill_process(it, Signal::KILL).expect("it lives");
}
