//! The command ends before the lock does, whatever happens to the processes and to the server.

use std::fs::File;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Server, manager, wait_until};
use crate::work::{Work, start, state, stop, take, wait_until_dead};

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

const ON: &str = "while :; do sleep 0.1; done";

fn family(work: &Work) -> Vec<Pid> {
    MEMBERS.iter().map(|member| work.pid(member)).collect()
}

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

/// A daemon that a deploy starts.
const DAEMON: &str = "setsid sh -c 'echo $$ >.daemon; mv .daemon daemon; exec sleep 1000' </dev/null >/dev/null 2>&1 &
    until [ -e daemon ]; do sleep 0.01; done;";

#[test]
fn a_command_that_succeeded_and_left_a_process_behind_has_its_own_status() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let log = File::create_new(work.dir.join("log")).expect("the directory exists");
    let mut running = start(work.run(&["--quiet"], DAEMON).stderr(log));
    let daemon = work.pid("daemon");
    assert_eq!(running.status(), 73);
    assert!(state(daemon).is_none());
    let told = work.text("log");
    assert!(told.contains("left a process behind"), "{told}");
    assert!(told.contains("--let-live"), "{told}");
}

#[test]
fn a_daemon_may_outlive_its_command_without_the_lock() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let mut running = work.start(&["--let-live"], &format!("{DAEMON} exit 6"));
    assert_eq!(running.status(), 6);
    let daemon = work.pid("daemon");
    let held = manager(&server.url()).inspect(&work.lock);
    assert_eq!(held.expect("it answers"), None);
    assert!(state(daemon).is_some());
    kill_process(daemon, Signal::KILL).expect("it lives");
}

/// TERM ends the command, and the daemon ignores it.
#[test]
fn no_daemon_outlives_a_loss() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let options = ["--let-live", "--lease", "10s", "--grace", "100ms"];
    let mut running = work.start(
        &options,
        &format!("trap '' TERM; {DAEMON} trap - TERM; here it; {ON}"),
    );
    work.pid("it");
    take(&manager(&server.url()), &work.lock);
    assert_eq!(running.status(), 70);
    assert!(state(work.pid("daemon")).is_none());
}

/// The lease is half a minute, and the grace nearly an hour.
#[test]
fn the_time_of_max_has_its_whole_grace() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let log = File::create_new(work.dir.join("log")).expect("the directory exists");
    let options = ["--max", "1h", "--grace", "3599s"];
    let mut running = start(work.run(&options, ON).stderr(log));
    // KILL would come an hour later.
    assert_eq!(running.status(), 78);
    assert!(work.text("log").contains("--max"), "{}", work.text("log"));
}

#[test]
fn the_command_ends_if_both_are_killed() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let mut running = work.start(&[], "here it; exec sleep 1000");
    let it = work.pid("it");
    running.kill_with_keeper();
    wait_until_dead(&[it]);
}

/// The holder learns of the loss when it renews the lease.
#[test]
fn a_loss_ends_each_command_unless_it_is_to_be_ignored() {
    let server = Server::start();
    let locks = manager(&server.url());
    let run = |options: &[&str], script: &str| {
        let work = Work::new(&server.url());
        let log = File::create_new(work.dir.join("log")).expect("the directory exists");
        let options = [&["--lease", "10s", "--json"], options].concat();
        let running = start(work.run(&options, script).stderr(log));
        (work, running)
    };
    let on_term = format!("trap 'here term; exit 5' TERM; here it; {ON}");
    let deaf = format!("{FAMILY}{ON}");
    let mut stopped = run(&[], &on_term);
    let mut killed = run(&["--on-loss", "kill"], &on_term);
    let go = "here it; while [ ! -e go ]; do sleep 0.01; done; exit 7";
    let mut ignored = run(&["--on-loss", "ignore"], go);
    let [mut deaf, mut without_keeper] = [(); 2].map(|()| run(&["--grace", "100ms"], &deaf));

    let it = stopped.0.pid("it");
    stop(it);
    killed.0.pid("it");
    let goes_on = ignored.0.pid("it");
    let families = [&deaf.0, &without_keeper.0].map(family).concat();
    let keeper = without_keeper.1.keeper();
    stop(keeper);
    for (work, _) in [&stopped, &killed, &ignored, &deaf, &without_keeper] {
        take(&locks, &work.lock);
    }

    assert_eq!(stopped.1.status(), 70);
    assert!(stopped.0.has("term"), "it got TERM, and CONT after it");
    assert_eq!(killed.1.status(), 70);
    assert!(!killed.0.has("term"));
    assert_eq!(deaf.1.status(), 70);
    assert_eq!(without_keeper.1.status(), 70);
    wait_until_dead(&families);
    wait_until_dead(&[keeper]);
    wait_until("the loss is told", || {
        ignored.0.text("log").contains("\"lost\"")
    });
    assert!(state(goes_on).is_some());
    File::create_new(ignored.0.dir.join("go")).expect("the directory exists");
    assert_eq!(ignored.1.status(), 7);
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

/// No signal that it sends itself ends process 1.
#[test]
fn an_interrupted_process_1_exits() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let script = "kill -INT 1; while :; do sleep 0.01; done";
    let mut running = start(&mut work.run_by(&namespace, &[], script));
    assert_eq!(running.status(), 130);
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
        "9000000000000000000",
        "0",
        "",
        "sh",
        "-c",
        "echo $$ >it",
    ]);
    keeper.current_dir(&work.dir).stdin(keepers);
    let mut keeper = start(&mut keeper);
    send_standard_input(&ours);
    // The front dies before it has sent the deadline, so the starter is killed.
    drop(ours);
    assert_eq!(keeper.status(), 128 + 9);
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

/// It was reported as <https://github.com/util-linux/util-linux/pull/4014>.
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
