//! No exit of the front frees the lock while a process of its command lives. `run/mod.rs` has the table of the exits.
//!
//! Each process of the command holds the file `alive` locked, by a descriptor that it inherits. The test waits for the same
//! lock in Redis, and tries that file as soon as it has it. So it sees each process that lives at that moment.
//!
//! strace refuses the system calls. A machine without it does not try those exits.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::{env, thread};

use leasehold::LockManager;
use rustix::net::sockopt::socket_type;
use rustix::net::{Shutdown, SocketType, shutdown};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, getuid, kill_process, pidfd_getfd, pidfd_open,
};

use crate::support::{Fault, PATIENCE, Proxy, Server, manager, wait_until};
use crate::terminal;
use crate::work::{Running, Work, start, state, stop, take, wait_until_dead};

/// The descriptor that all processes of the command inherit. TERM may come before the script says what it does then.
const ALIVE: &str = "trap '' HUP TERM; exec 9>>alive; flock -s 9; trap - TERM;";

/// Processes that ignore TERM: the command, its child, and a grandchild in a session of its own.
const FAMILY: &str = r#"trap "" TERM; sleep 1000 & (setsid sleep 1000 &)"#;
const ON: &str = "here it; while :; do sleep 0.1; done";
const UNTIL_GO: &str = "here it; while [ ! -e go ]; do sleep 0.01; done; exit 5";
/// A short grace, and a lease after which the lock is free, but longer than a busy machine stands still.
const SHORT: [&str; 4] = ["--lease", "10s", "--grace", "100ms"];
/// A short grace, and a lease that outlasts each test.
const LONG: [&str; 4] = ["--lease", "10m", "--grace", "100ms"];

/// Runs another program as the user `nobody`.
const AS_NOBODY: [&str; 3] = ["setpriv", "--reuid=65534", "--clear-groups"];
/// A command of root that goes on as another user. It ends by itself if a failed test leaves it on the machine.
const NOBODY: &str = "here it; exec setpriv --reuid=65534 --clear-groups sleep 60";

/// A process that forks and exits, again and again, so that no listing of processes shows it for long. It ends by itself too.
const CHAIN: &str = r"perl -e '$end = time + 20; while (time < $end) { exit if fork }' &";
/// The same, and each process is in a session of its own.
const CHAIN_OF_SESSIONS: &str =
    r"perl -MPOSIX -e '$end = time + 20; while (time < $end) { exit if fork; POSIX::setsid() }' &";

macro_rules! named {
    ($($exit:ident),* $(,)?) => { [$((stringify!($exit), $exit as fn())),*] };
}

/// The exits that `.ci/long` repeats beside a load.
const EXITS: [(&str, fn()); 21] = named![
    a_refused_thread_ends_nothing_or_comes_first,
    a_panic_of_the_front_keeps_the_lock,
    a_refused_message_keeps_the_lock,
    a_keeper_that_dies_frees_the_lock_last,
    a_keeper_that_dies_without_a_word_may_have_started_the_command,
    a_keeper_that_dies_takes_no_process_of_another_program_along,
    a_keeper_that_is_stopped_does_not_let_the_command_outlive_the_lease,
    a_server_that_hangs_frees_the_lock_last,
    max_ends_the_command_before_the_lock_is_free,
    a_front_that_is_killed_keeps_the_lock,
    a_front_that_is_killed_ends_a_command_that_ignores_losses,
    a_front_that_is_stopped_keeps_the_lock,
    a_socket_that_closes_frees_the_lock_last,
    processes_left_behind_end_without_a_pidfd,
    a_front_that_is_killed_keeps_the_lock_without_a_pidfd,
    all_end_without_a_list_of_children,
    a_chain_of_forks_ends_with_the_command,
    a_chain_of_forks_ends_after_the_keeper,
    a_chain_of_forks_ends_after_the_front,
    a_command_that_changes_its_user_ends_unless_both_die,
    a_process_below_one_of_another_user_ends,
];

/// A `run` that somebody else waits for.
struct Exit {
    work: Work,
    front: Running,
    /// Between the front and the server.
    link: Proxy,
}

/// Whether the session has a terminal. Then the command is in the front's group, and otherwise in its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Session {
    Terminal,
    NoTerminal,
}

fn in_each_session(ends: impl Fn(Session) + Sync) {
    thread::scope(|scope| {
        scope.spawn(|| ends(Session::Terminal));
        ends(Session::NoTerminal);
    });
}

/// Runs the command, and `leave` once somebody waits for its lock. Returns the end of the front.
#[track_caller]
fn leave(by: &[&str], options: &[&str], script: &str, leave: impl FnOnce(&Exit)) -> ExitStatus {
    leave_in(Session::NoTerminal, by, options, script, leave)
}

#[track_caller]
fn leave_in(
    session: Session,
    by: &[&str],
    options: &[&str],
    script: &str,
    leave: impl FnOnce(&Exit),
) -> ExitStatus {
    let server = Server::start();
    let link = Proxy::to(&server);
    let work = Work::new(&link.url());
    let everybody = Permissions::from_mode(0o777);
    fs::set_permissions(&work.dir, everybody).expect("the directory exists");
    let log = File::create_new(work.dir.join("log")).expect("the directory exists");
    let setsid: &[&str] = match session {
        Session::Terminal => &["setsid", "-c"],
        Session::NoTerminal => &["setsid"],
    };
    let by = [setsid, by, &["env"]].concat();
    let (_person, terminal) = terminal::open();
    let script = format!("{ALIVE} {script}");
    let locks = manager(&server.url());
    let lock = work.lock.clone();
    let alive = work.dir.join("alive");
    thread::scope(|scope| {
        let mut command = work.run_by(&by, options, &script);
        if session == Session::Terminal {
            command.stdin(terminal);
        }
        let front = start(command.stderr(log));
        let it = work.pid("it");
        let alive = File::open(alive).expect("the command has made it");
        let nobody_lives = scope.spawn(move || nobody_lives(&locks, &lock, &alive));
        server.raw().wait_until_queued(&work.lock, 1);
        let mut exit = Exit { work, front, link };
        leave(&exit);
        let status = exit.front.end();
        let nobody_lives = nobody_lives.join().expect("it has not panicked");
        assert!(nobody_lives, "{}", exit.work.text("log"));
        wait_until_dead(&[it]);
        status
    })
}

/// Waits for the lock, and returns whether nobody held the file at that moment.
fn nobody_lives(locks: &LockManager, lock: &str, alive: &File) -> bool {
    let guard = locks.try_lock_for(lock, 2 * PATIENCE);
    let guard = guard.expect("the server is there");
    let is_free = alive.try_lock().is_ok();
    drop(guard.expect("the first gives it up"));
    is_free
}

/// Returns a call of `strace` that changes system calls of the program, or `None` if this machine has no strace.
fn strace<'a>(arguments: &[&'a str]) -> Option<Vec<&'a str>> {
    let mut tried = Command::new("strace");
    tried.args(["-o", "/dev/null", "true"]);
    let works = tried.stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        println!("this machine has no strace, so its refusals are not tried");
        return None;
    }
    // `-D` lets the program keep its parent and its number.
    Some([&["strace", "-D", "-o", "/dev/null"], arguments].concat())
}

/// Returns whether this process may change its user.
fn is_root() -> bool {
    let is_root = getuid().is_root();
    if !is_root {
        println!("only root can change the user");
    }
    is_root
}

fn end_command(exit: &Exit) {
    File::create_new(exit.work.dir.join("go")).expect("the directory exists");
}

fn kill_front(exit: &Exit) {
    exit.front.signal(Signal::KILL);
    wait_until_nobody_lives(exit);
}

/// Blocks until nobody of the command lives, long before the lease is over. Then takes the lock away, so that the test need
/// not wait for the end of the lease.
fn wait_until_nobody_lives(exit: &Exit) {
    let alive = exit.work.dir.join("alive");
    wait_until("nobody of the command lives", || {
        let alive = File::open(&alive).expect("the command has made it");
        alive.try_lock().is_ok()
    });
    take(&manager(exit.work.url()), &exit.work.lock);
}

fn kill_keeper(exit: &Exit) {
    kill_process(exit.front.keeper(), Signal::KILL).expect("it lives");
}

#[test]
fn a_refused_thread_ends_nothing_or_comes_first() {
    let server = &Server::start();
    // A front has fewer threads, and each try refuses all after its number.
    let statuses: Vec<i32> = thread::scope(|scope| {
        let refused = (1..=12).map(|number| scope.spawn(move || refuse_threads(number, server)));
        let refused: Vec<_> = refused.collect();
        let ended = refused.into_iter().map(ScopedJoinHandle::join);
        ended
            .filter_map(|it| it.expect("it has not panicked"))
            .collect()
    });
    if let [first, .., last] = statuses[..] {
        assert_eq!((first, last), (71, 5), "{statuses:?}");
    }
}

fn refuse_threads(number: usize, server: &Server) -> Option<i32> {
    let refusal = format!("inject=clone,clone3:error=EAGAIN:when={number}+");
    let by = strace(&["-e", "trace=clone,clone3", "-e", &refusal])?;
    let work = Work::new(&server.url());
    let script = format!("{ALIVE} {FAMILY}; here it; sleep 0.3; exit 5");
    let mut first = start(&mut work.run_by(&by, &["--grace", "100ms"], &script));
    wait_until("the command runs, or nothing does", || {
        work.has("it") || first.has_ended()
    });
    if work.has("it") {
        let alive = File::open(work.dir.join("alive")).expect("the command has made it");
        let nobody_lives = nobody_lives(&manager(&server.url()), &work.lock, &alive);
        assert!(nobody_lives, "thread {number}");
    }
    let status = first.status();
    // 69 is a refused thread of the library.
    let is_right = if work.has("it") {
        status == 5
    } else {
        matches!(status, 69 | 71)
    };
    assert!(is_right, "thread {number}: status {status}");
    Some(status)
}

#[test]
fn a_refused_call_ends_the_run_before_the_command_starts() {
    let server = &Server::start();
    let calls = [
        "getdents64",
        "kill",
        "prctl",
        "recvmsg",
        "sendmsg",
        "signalfd4",
        "socketpair",
        "timerfd_create",
        "timerfd_settime",
        "wait4",
    ];
    thread::scope(|scope| {
        for call in calls {
            scope.spawn(move || {
                // Without a rule for it, a container's seccomp profile refuses a call with this error.
                let refusal = format!("inject={call}:error=EPERM");
                let Some(by) = strace(&["-f", "-e", &refusal]) else {
                    return;
                };
                let work = Work::new(&server.url());
                let status = start(&mut work.run_by(&by, &[], "here it")).status();
                assert_eq!((status, work.has("it")), (71, false), "{call}");
            });
        }
    });
}

#[test]
fn a_panic_of_the_front_keeps_the_lock() {
    // A write reports more bytes than it got. The third of a thread is a line about somebody who asks for the lock: the ones
    // before it tell of the grant and of the command's process, which has not begun by then.
    let Some(by) = strace(&["-f", "-e", "inject=write:retval=4096:when=3"]) else {
        return;
    };
    let options = ["--json", "--lease", "10m", "--grace", "2s"];
    let status = leave(&by, &options, &format!("{FAMILY}; {ON}"), |exit| {
        let asked = manager(exit.work.url()).request_release(&exit.work.lock, "a deploy");
        assert!(asked.expect("it answers"));
        wait_until("the thread of messages panics", || {
            exit.work.text("log").contains("thread 'messages'")
        });
        wait_until_nobody_lives(exit);
    });
    assert_eq!(status.code(), Some(70));
}

#[test]
fn a_panic_of_another_subcommand_has_the_status_of_a_failure_of_leasehold() {
    // A write reports more bytes than it got. The first one is about the URL.
    let Some(by) = strace(&["-e", "inject=write:retval=4096:when=1"]) else {
        return;
    };
    let mut status = Command::new(by[0]);
    status.args(&by[1..]).arg(env!("CARGO_BIN_EXE_leasehold"));
    status.args(["--url", "nonsense", "status", "n"]);
    let output = status.output().expect("strace works");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("panicked"), "{said}");
    assert_eq!(output.status.code(), Some(70), "{said}");
}

#[test]
#[ignore = "a lease of 10 s must run out: .ci/long runs it"]
fn a_refused_message_keeps_the_lock() {
    let mut tracer = None;
    let status = leave(&[], &SHORT, &format!("{FAMILY}; {ON}"), |exit| {
        // Without `-f`, strace traces the main thread alone, which sends the deadlines. The keeper gets no later one.
        let pid = exit.front.pid().to_string();
        let mut command = Command::new("strace");
        command.args(["-o", "/dev/null", "-e", "inject=sendto:error=ENOBUFS", "-p"]);
        let Ok(child) = command.arg(&pid).stderr(Stdio::null()).spawn() else {
            return kill_front(exit);
        };
        let mut strace = Running::from(child);
        wait_until("strace has attached, or may not", || {
            let status = fs::read_to_string(format!("/proc/{pid}/status"));
            strace.has_ended() || status.is_ok_and(|text| !text.contains("TracerPid:\t0\n"))
        });
        if strace.has_ended() {
            return kill_front(exit);
        }
        tracer = Some(strace);
    });
    if tracer.is_some() {
        assert_eq!(status.code(), Some(70));
    }
}

#[test]
fn a_keeper_that_dies_frees_the_lock_last() {
    in_each_session(|session| {
        let script = format!("{FAMILY}; {ON}");
        let status = leave_in(session, &[], &[], &script, kill_keeper);
        assert_eq!(status.code(), Some(70));
    });
}

#[test]
fn a_keeper_that_dies_without_a_word_may_have_started_the_command() {
    // Its first message is about the start. The first request of the front to the server is late too.
    let Some(by) = strace(&["-f", "-e", "inject=sendto:delay_enter=1000000:when=1"]) else {
        return;
    };
    let status = leave(&by, &[], &format!("{FAMILY}; {ON}"), kill_keeper);
    assert_eq!(status.code(), Some(70));
}

#[test]
fn a_keeper_that_dies_takes_no_process_of_another_program_along() {
    let other = [
        "sh",
        "-c",
        "sleep 60 & echo $! >.other; mv .other other; exec \"$@\"",
        "sh",
    ];
    let mut pid = None;
    let status = leave(&other, &[], &format!("{FAMILY}; {ON}"), |exit| {
        pid = Some(exit.work.pid("other"));
        kill_keeper(exit);
    });
    assert_eq!(status.code(), Some(70));
    let other = pid.expect("the shell has written it");
    assert!(state(other).is_some());
    kill_process(other, Signal::KILL).expect("it lives");
}

#[test]
#[ignore = "a lease of 10 s must run out: .ci/long runs it"]
fn a_keeper_that_is_stopped_does_not_let_the_command_outlive_the_lease() {
    let status = leave(
        &[],
        &["--lease", "10s"],
        &format!("{FAMILY}; {ON}"),
        |exit| {
            stop(exit.front.keeper());
            exit.link.strike_all(Fault::LoseRequests);
        },
    );
    assert_eq!(status.code(), Some(70));
}

/// The front notices, and the keeper knows when the lease is over.
#[test]
fn a_server_that_hangs_frees_the_lock_last() {
    let script = format!("trap 'here term; exit' TERM; {ON}");
    let status = leave(&[], &["--lease", "10s"], &script, |exit| {
        exit.link.strike_all(Fault::LoseRequests);
        exit.work.pid("term");
    });
    assert_eq!(status.code(), Some(70));
}

#[test]
fn max_ends_the_command_before_the_lock_is_free() {
    let script = format!("trap 'here term; exit' TERM; {ON}");
    in_each_session(|session| {
        let status = leave_in(session, &[], &["--max", "10s"], &script, |exit| {
            exit.work.pid("term");
        });
        assert_eq!(status.code(), Some(78));
    });
}

#[test]
fn a_front_that_is_killed_keeps_the_lock() {
    in_each_session(|session| {
        leave_in(session, &[], &LONG, &format!("{FAMILY}; {ON}"), kill_front);
    });
}

#[test]
fn a_front_that_is_killed_ends_a_command_that_ignores_losses() {
    let options = [&["--on-loss", "ignore"], &LONG[..]].concat();
    leave(&[], &options, &format!("{FAMILY}; {ON}"), kill_front);
}

#[test]
fn a_front_that_is_stopped_keeps_the_lock() {
    let status = leave(&[], &SHORT, &format!("{FAMILY}; {ON}"), |exit| {
        exit.front.signal(Signal::STOP);
        wait_until_dead(&[exit.work.pid("it")]);
        exit.front.signal(Signal::CONT);
    });
    assert_eq!(status.code(), Some(70));
}

#[test]
fn a_socket_that_closes_frees_the_lock_last() {
    let status = leave(&[], &[], &format!("{FAMILY}; {ON}"), |exit| {
        let pid = exit.front.pid();
        let open = pidfd_open(pid, PidfdFlags::empty()).expect("it lives");
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives");
        let numbers = descriptors.filter_map(|it| it.ok()?.file_name().to_str()?.parse().ok());
        let mut sockets = numbers
            .filter_map(|number| pidfd_getfd(&open, number, PidfdGetfdFlags::empty()).ok())
            .filter(|it| socket_type(it) == Ok(SocketType::SEQPACKET));
        let socket = sockets.next().expect("the front has it");
        shutdown(socket, Shutdown::Both).expect("it is a socket");
    });
    assert_eq!(status.code(), Some(70));
}

/// Checks that a process in a session of its own gets TERM although a call is refused.
#[track_caller]
fn left_behind_without(refusal: &str) {
    let Some(by) = strace(&["-f", "-e", refusal]) else {
        return;
    };
    let session = "trap \"echo >told; exit\" TERM; echo >ready; while :; do sleep 0.1; done";
    let script = format!("(setsid sh -c '{session}' &); {UNTIL_GO}");
    let status = leave(&by, &["--grace", "1h"], &script, |exit| {
        exit.work.text("ready");
        end_command(exit);
        exit.work.text("told");
    });
    assert_eq!(status.code(), Some(5));
}

#[test]
fn processes_left_behind_end_without_a_pidfd() {
    thread::scope(|scope| {
        scope.spawn(|| left_behind_without("inject=pidfd_open:error=ENOSYS"));
        left_behind_without("inject=pidfd_send_signal:error=EPERM");
    });
}

#[test]
fn a_front_that_is_killed_keeps_the_lock_without_a_pidfd() {
    let Some(by) = strace(&["-f", "-e", "inject=pidfd_open:error=ENOSYS"]) else {
        return;
    };
    leave(&by, &LONG, &format!("{FAMILY}; {ON}"), kill_front);
}

#[test]
fn all_end_without_a_list_of_children() {
    let refusal = [
        "-f",
        "-P",
        "/proc/thread-self/children",
        "-e",
        "inject=openat:error=ENOENT",
    ];
    let Some(by) = strace(&refusal) else {
        return;
    };
    let status = leave(&by, &[], &format!("{FAMILY}; {ON}"), kill_keeper);
    assert_eq!(status.code(), Some(70));
}

fn for_each_chain(ends: impl Fn(Session, &str) + Sync) {
    thread::scope(|scope| {
        scope.spawn(|| ends(Session::Terminal, CHAIN));
        scope.spawn(|| ends(Session::NoTerminal, CHAIN));
        ends(Session::NoTerminal, CHAIN_OF_SESSIONS);
    });
}

#[test]
fn a_chain_of_forks_ends_with_the_command() {
    for_each_chain(|session, chain| {
        let script = format!("{chain} {UNTIL_GO}");
        let status = leave_in(session, &[], &["--grace", "100ms"], &script, end_command);
        assert_eq!(status.code(), Some(5));
    });
}

#[test]
fn a_chain_of_forks_ends_after_the_keeper() {
    for_each_chain(|session, chain| {
        let status = leave_in(session, &[], &[], &format!("{chain} {ON}"), kill_keeper);
        assert_eq!(status.code(), Some(70));
    });
}

#[test]
fn a_chain_of_forks_ends_after_the_front() {
    for_each_chain(|session, chain| {
        leave_in(session, &[], &LONG, &format!("{chain} {ON}"), kill_front);
    });
}

#[test]
fn a_command_that_changes_its_user_ends_unless_both_die() {
    if !is_root() {
        return;
    }
    let status = leave(&[], &[], NOBODY, |exit| {
        sleeps(exit.work.pid("it"));
        kill_keeper(exit);
    });
    assert_eq!(status.code(), Some(70));
    leave(&[], &LONG, NOBODY, |exit| {
        sleeps(exit.work.pid("it"));
        kill_front(exit);
    });

    // If both die, docs/cli.md says that it lives on.
    let server = Server::start();
    let work = Work::new(&server.url());
    let mut front = work.start(&[], NOBODY);
    let it = work.pid("it");
    sleeps(it);
    front.kill_with_keeper();
    assert!(state(it).is_some());
    kill_process(it, Signal::KILL).expect("it lives");
}

/// Blocks until the command has changed its user, and sleeps.
fn sleeps(it: Pid) {
    wait_until("the command sleeps", || {
        fs::read_to_string(format!("/proc/{it}/comm")).is_ok_and(|name| name == "sleep\n")
    });
}

#[test]
#[ignore = "a time of 10 s must run out: .ci/long runs it"]
fn a_process_below_one_of_another_user_ends() {
    let program = env!("CARGO_BIN_EXE_leasehold");
    let mut tried = Command::new(AS_NOBODY[0]);
    tried.args(&AS_NOBODY[1..]).args([program, "--version"]);
    if !is_root()
        || !tried
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|it| it.success())
    {
        println!("nobody cannot run {program}");
        return;
    }
    // Until the worker ends, its parent is root's, which nobody cannot kill. It ends by itself if the test fails.
    let script = "
        echo 'trap \"\" TERM; echo >works; exec sleep 60' >worker
        cp $(command -v setpriv) as-root; here it
        while [ ! -u as-root ]; do sleep 0.01; done
        ./as-root --reuid=0 sh -c 'setpriv --reuid=65534 setsid sh worker; true'";
    let options = ["--max", "10s", "--grace", "100ms"];
    let status = leave(&AS_NOBODY, &options, script, |exit| {
        let helper = exit.work.dir.join("as-root");
        std::os::unix::fs::chown(&helper, Some(0), Some(0)).expect("this is root");
        fs::set_permissions(&helper, Permissions::from_mode(0o4755)).expect("this is root");
        exit.work.text("works");
    });
    assert_eq!(status.code(), Some(70));
}

/// `.ci/long` runs this.
#[test]
#[ignore = "it takes an hour: .ci/long runs it"]
fn no_exit_frees_the_lock_beside_a_load_of_8() {
    let runs = env::var("LEASEHOLD_RUNS").map_or(1, |text| text.parse().expect("a number"));
    let mut load = Command::new("sh");
    load.args(["-c", "while :; do :; done"]);
    let _loads: Vec<Running> = (0..8).map(|_| start(&mut load)).collect();
    for (name, exit) in EXITS {
        let begun = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while begun.fetch_add(1, Ordering::Relaxed) < runs {
                        exit();
                    }
                });
            }
        });
        println!("{runs} runs of {name}");
    }
}
