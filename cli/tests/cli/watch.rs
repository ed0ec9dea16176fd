//! `watch`.

use std::time::Duration;

use leasehold::{Admission, Builder, LockManager};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{PATIENCE, Server, build, locking, manager, ms, secs, wait_until};
use crate::terminal::Terminal;
use crate::{err, leasehold, output};

/// A lease that outlasts each test.
const LEASE: Duration = secs(600);
/// A lease whose holder soon learns of a loss: when it renews the lease, after a third of this time.
const SHORT_LEASE: Duration = secs(12);
/// The time limit of connecting, and of a request, on a busy machine.
const IO: Duration = secs(20);

fn url(server: &Server) -> String {
    let io = IO.as_secs();
    format!("{}?connect_timeout={io}s&io_timeout={io}s", server.url())
}

/// Watches with time limits for a busy machine.
#[track_caller]
fn watch(server: &Server, arguments: &[&str]) -> Terminal {
    let mut command = leasehold(&url(server));
    command.args(["watch", "--every", "100ms"]).args(arguments);
    Terminal::start(command, 24, 100)
}

/// Returns a manager of a process that has this label.
#[track_caller]
fn process(server: &Server, label: &str) -> LockManager {
    build(settings(server).label(label).lease(LEASE))
}

/// Returns the same, for a test that takes locks away.
#[track_caller]
fn renewing_process(server: &Server, label: &str) -> LockManager {
    build(settings(server).label(label).lease(SHORT_LEASE))
}

fn settings(server: &Server) -> Builder {
    let settings = LockManager::single(&server.url());
    settings.connect_timeout(IO).io_timeout(IO)
}

/// Returns the line of a screen that begins with a text.
fn line<'a>(screen: &'a str, start: &str) -> Option<&'a str> {
    screen.lines().find(|line| line.starts_with(start))
}

fn has_line(screen: &str, start: &str) -> bool {
    line(screen, start).is_some()
}

/// Returns whether the texts stand in the screen one behind the other.
fn has_in_order(screen: &str, texts: &[&str]) -> bool {
    let places: Option<Vec<_>> = texts.iter().map(|text| screen.find(text)).collect();
    places.is_some_and(|places| places.is_sorted())
}

#[test]
fn a_lock_has_a_row_while_it_is_held() {
    let server = Server::start();
    let terminal = watch(&server, &["orders:*"]);
    terminal.wait_for("an empty list", |screen| screen.contains("no locks"));
    let locks = process(&server, "billing-1");
    let _other = locks.lock("mails").expect("it is free");
    let guard = locks.lock("orders:42").expect("it is free");
    let screen = terminal.wait_for("the lock", |screen| has_line(screen, "orders:42"));
    let row = line(&screen, "orders:42").expect("it was there");
    assert!(row.contains("mutex") && row.contains("billing-1"), "{row}");
    assert!(!has_line(&screen, "mails"), "{screen}");
    terminal.resize(10, 40);
    terminal.wait_for("a narrow picture", |screen| {
        let is_narrow = screen.lines().all(|line| line.chars().count() <= 40);
        is_narrow && has_line(screen, "orders:42") && !screen.contains("HOLDER")
    });
    terminal.resize(40, 150);
    terminal.wait_for("a wide picture", |screen| {
        has_line(screen, "orders:42") && screen.lines().count() == 40
    });
    terminal.send("?");
    terminal.wait_for("the keys", |screen| screen.contains("release by force"));
    terminal.send("?");
    guard.release().expect("it is held");
    terminal.wait_for("no lock", |screen| {
        !has_line(screen, "orders:42") && !screen.contains("release by force")
    });
}

#[test]
fn the_pane_shows_the_holder_and_the_queue_in_order() {
    let server = Server::start();
    let raw = server.raw();
    let held = process(&server, "first").lock("n").expect("it is free");
    let second = locking(&process(&server, "second").mutex("n"));
    raw.wait_until_queued("n", 1);
    let third = locking(&process(&server, "third").mutex("n"));
    raw.wait_until_queued("n", 2);
    let terminal = watch(&server, &[]);
    terminal.wait_for("the lock", |screen| has_line(screen, "n "));
    terminal.send("\r");
    terminal.wait_for("the queue", |screen| {
        has_in_order(screen, &["2 waiting", "holds first", "1 second", "2 third"])
    });
    held.release().expect("it is held");
    let held = second.end().expect("it becomes free");
    terminal.wait_for("the shorter queue", |screen| {
        has_in_order(screen, &["1 waiting", "holds second", "1 third"])
    });
    held.release().expect("it is held");
    drop(third.end().expect("it becomes free"));
    terminal.wait_for("a free lock", |screen| screen.contains("0 waiting"));
    terminal.send("q");
    terminal.wait_for("an empty list", |screen| screen.contains("no locks"));
}

#[test]
fn a_holder_receives_a_request_with_its_reason() {
    let server = Server::start();
    let guard = process(&server, "worker-1").lock("n").expect("it is free");
    let requests = guard.on_requested();
    let terminal = watch(&server, &[]);
    terminal.wait_for("the lock", |screen| has_line(screen, "n "));
    // A process that has just begun to subscribe may miss the first.
    let mut why = None;
    wait_until("the request arrives", || {
        terminal.send("rhost a is drained\r");
        terminal.wait_for("an answer", |screen| {
            screen.contains("asked the holders of n")
        });
        why = requests.recv_timeout(ms(200)).ok().map(|it| it.why);
        why.is_some()
    });
    assert_eq!(why.as_deref(), Some("host a is drained"));
    assert!(guard.check().is_ok(), "a request takes nothing");
}

#[test]
fn a_release_by_force_needs_a_yes() {
    let server = Server::start();
    let guard = renewing_process(&server, "worker-1")
        .lock("n")
        .expect("it is free");
    let losses = guard.on_lost();
    let waiting = locking(&process(&server, "worker-2").mutex("n"));
    server.raw().wait_until_queued("n", 1);
    let terminal = watch(&server, &[]);
    terminal.wait_for("the lock", |screen| has_line(screen, "n "));
    terminal.send("f");
    terminal.wait_for("the question", |screen| {
        screen.contains("Take n from worker-1?")
    });
    terminal.send("no\r");
    terminal.wait_for("no question", |screen| {
        screen.contains("nothing was") && !screen.contains("Take n")
    });
    assert!(guard.check().is_ok() && losses.is_empty());
    terminal.send("fyes\r");
    terminal.wait_for("the answer", |screen| {
        screen.contains("took n from worker-1")
    });
    losses.recv_timeout(PATIENCE).expect("it is notified");
    let next = waiting.end().expect("it becomes free");
    terminal.wait_for("the next holder", |screen| {
        line(screen, "n ").is_some_and(|row| row.contains("worker-2"))
    });
    assert!(next.check().is_ok());
}

#[test]
fn every_kind_of_lock_has_a_row() {
    let server = Server::start();
    let locks = process(&server, "worker-1");
    let kept = locks.mutex("kept").min_hold(LEASE).lock();
    drop(kept.expect("it is free"));
    let permits = locks.semaphore("permits", 5);
    let _permits = permits.acquire_many(2).expect("there are permits");
    let writer = locks.rwlock("written");
    let _writer = writer.write().expect("it is free");
    let admission = locks.rate_limiter("calls", 1, LEASE).try_acquire();
    assert_eq!(admission.expect("Redis replies"), Admission::Admitted);
    // A name that this crate has locked before, and a client of another library after it.
    drop(locks.lock("foreign").expect("it is free"));
    let () = server.raw().ask(&["SET", "foreign", "a secret"]);
    let terminal = watch(&server, &[]);
    for (name, parts) in [
        ("foreign", ["mutex", "another client", "forever"]),
        ("kept", ["mutex", "kept: worker-1", "m "]),
        ("permits", ["2/5 permits", "worker-1", "m "]),
        ("written", ["writer", "worker-1", "m "]),
    ] {
        terminal.wait_for(name, |screen| {
            line(screen, name).is_some_and(|row| parts.iter().all(|part| row.contains(part)))
        });
    }
    assert!(!terminal.screen().contains("secret"), "a value");
    // A rate limiter has no lock, so only its name finds it.
    let terminal = watch(&server, &["calls"]);
    terminal.wait_for("the limiter", |screen| {
        line(screen, "calls").is_some_and(|row| row.contains("1 per 10m") && row.contains("9m "))
    });
    terminal.send("\r");
    terminal.wait_for("its wait", |screen| {
        screen.contains("A call is admitted in 9m")
    });
}

#[test]
fn the_screen_survives_an_outage_of_the_server() {
    let server = Server::start();
    let _guard = process(&server, "worker-1")
        .lock("before")
        .expect("it is free");
    let terminal = watch(&server, &[]);
    terminal.wait_for("the lock", |screen| has_line(screen, "before"));
    server.kill();
    let screen = terminal.wait_for("the problem", |screen| screen.contains("refused"));
    assert!(has_line(&screen, "before"), "{screen}");
    // The keys still work.
    terminal.send("/nothing\r");
    terminal.wait_for("no row", |screen| !has_line(screen, "before"));
    terminal.send("\x1b");
    server.restart();
    let _guard = manager(&server.url()).lock("after").expect("it is free");
    terminal.wait_for("the new lock", |screen| {
        has_line(screen, "after") && !has_line(screen, "before") && !screen.contains("refused")
    });
}

#[test]
fn the_terminal_is_restored_at_the_end() {
    let server = Server::start();
    for (end, status) in [("q", 0), ("\x03", 0), ("", 143)] {
        let mut terminal = watch(&server, &[]);
        terminal.wait_for("an empty list", |screen| screen.contains("no locks"));
        assert!(!terminal.is_restored(), "it draws");
        terminal.send(end);
        if end.is_empty() {
            let pid = i32::try_from(terminal.pid()).ok().and_then(Pid::from_raw);
            kill_process(pid.expect("a process"), Signal::TERM).expect("it is ours");
        }
        assert_eq!(terminal.wait().code(), Some(status));
        wait_until("it is restored", || terminal.is_restored());
        assert_eq!(terminal.screen(), "");
    }
}

#[test]
fn the_program_ends_without_a_terminal() {
    let server = Server::start();
    let mut terminal = watch(&server, &[]);
    terminal.wait_for("an empty list", |screen| screen.contains("no locks"));
    terminal.hang_up();
    assert_eq!(terminal.wait().code(), Some(129));

    let no_terminal = output(&server.url(), &["watch"]);
    assert_eq!(no_terminal.status.code(), Some(64));
    let text = err(&no_terminal);
    assert!(text.contains("leasehold list"), "{text}");
}
