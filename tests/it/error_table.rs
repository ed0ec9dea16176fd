//! The error for each reply of a server, row by row of the table in the documentation of [`Error`].

use std::collections::{HashMap, HashSet};
use std::thread;

use leasehold::{Error, ErrorKind, LockManager};

use crate::support::{
    Answer, Hostile, PATIENCE, Server, Words, at_last, impatient, in_time, locking, locking_asleep,
    lost, manager, name, patient, secs, shared, to_scripts, wait_until,
};

/// A server's reply, its error, and whether a wait that has begun goes on.
type Row = (&'static str, Becomes, bool);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Becomes {
    Unavailable,
    Denied,
    WrongType,
    Unsupported,
    Protocol,
}

use Becomes::{Denied, Protocol, Unavailable, Unsupported, WrongType};

/// The first word of a reply finds its row in the documentation.
const ROWS: [Row; 25] = [
    ("NOAUTH Authentication required.", Denied, false),
    (
        "WRONGPASS invalid username-password pair or user is disabled.",
        Denied,
        false,
    ),
    (
        "NOPERM this user has no permissions to run the 'evalsha' command",
        Denied,
        false,
    ),
    (
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        WrongType,
        false,
    ),
    (
        "LOADING Redis is loading the dataset in memory",
        Unavailable,
        true,
    ),
    ("BUSY Redis is busy running a script.", Unavailable, true),
    (
        "READONLY You can't write against a read only replica.",
        Unavailable,
        true,
    ),
    (
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to",
        Unavailable,
        true,
    ),
    (
        "OOM command not allowed when used memory > 'maxmemory'.",
        Unavailable,
        true,
    ),
    (
        "NOREPLICAS Not enough good replicas to write.",
        Unavailable,
        true,
    ),
    ("MASTERDOWN Link with MASTER is down", Unavailable, true),
    ("CLUSTERDOWN The cluster is down", Unavailable, true),
    (
        "TRYAGAIN Multiple keys request during rehashing of slot",
        Unavailable,
        true,
    ),
    ("ERR max number of clients reached", Unavailable, true),
    // Servers before 7.0 report the error of a command in a script like this.
    (
        "ERR Error running script (call to f_1): @user_script:1: -OOM command not allowed",
        Unavailable,
        true,
    ),
    (
        "ERR Error running script (call to f_1): @user_script:1: WRONGTYPE Operation",
        WrongType,
        false,
    ),
    // A missing right for a command of a script: Redis 7.0, and servers since Redis 7.2.
    (
        "ERR The user executing the script can't run this command or subcommand script: 8e, on @user_script:1.",
        Denied,
        false,
    ),
    (
        "ERR ACL failure in script: User user has no permissions to run the 'set' command script: 8e, on @user_script:1.",
        Denied,
        false,
    ),
    // A server replies like this to a long request before the login.
    (
        "ERR Protocol error: unauthenticated multibulk length",
        Denied,
        false,
    ),
    (
        "ERR unknown command 'EVALSHA', with args beginning with: 'OOM'",
        Protocol,
        false,
    ),
    ("NOSCRIPT No matching script.", Protocol, false),
    ("MOVED 1234 127.0.0.1:7001", Unsupported, false),
    ("ASK 1234 127.0.0.1:7001", Unsupported, false),
    (
        "CROSSSLOT Keys in request don't hash to the same slot",
        Unsupported,
        false,
    ),
    ("WHATEVER it may be", Protocol, false),
];

fn became(error: &Error) -> Becomes {
    match error {
        Error::Unavailable { .. } => Unavailable,
        Error::Denied { .. } => Denied,
        Error::WrongType { .. } => WrongType,
        Error::Unsupported { .. } => Unsupported,
        Error::Protocol { .. } => Protocol,
        other => panic!("none of the table's: {other:?}"),
    }
}

fn line(text: &str) -> Answer {
    Answer::Say(format!("-{text}\r\n").into_bytes())
}

const SILENT: &str = "does not reply in time";

/// Faults that are no error reply: a description, the error, whether a wait goes on, and the reply that causes it.
fn faults() -> [(&'static str, Becomes, bool, Answer); 5] {
    [
        (
            "closes or resets it",
            Unavailable,
            true,
            Answer::Close(Vec::new()),
        ),
        (
            "half",
            Unavailable,
            true,
            Answer::Close(b"$5\r\nab".to_vec()),
        ),
        (SILENT, Unavailable, true, Answer::Say(Vec::new())),
        (
            "garbage",
            Protocol,
            false,
            Answer::Say(b"garbage\r\n".to_vec()),
        ),
        (
            "no answer to it",
            Protocol,
            false,
            Answer::Say(b"+OK\r\n".to_vec()),
        ),
    ]
}

/// Returns a manager. It gives up soon on a silent server; all other servers may be slow on a busy machine.
fn locks_of(hostile: &Hostile, text: &str) -> LockManager {
    let builder = match text {
        SILENT => impatient(&hostile.url()),
        _ => patient(&hostile.url()),
    };
    at_last(|| builder.clone().build())
}

type Answered = (String, Becomes, bool, Answer);

fn all() -> Vec<Answered> {
    let rows = ROWS.map(|(text, error, goes_on)| (text.to_owned(), error, goes_on, line(text)));
    let faults = faults().map(|(what, error, on, answer)| (what.to_owned(), error, on, answer));
    rows.into_iter().chain(faults).collect()
}

/// The first request of a call is not retried, whatever the time limit of the call is.
#[test]
fn the_first_answer_is_the_error_at_once() {
    let server = Server::start();
    let hostile = Hostile::before(&server);
    for (text, expected, _, answer) in all() {
        let locks = locks_of(&hostile, &text);
        hostile.answers(to_scripts(answer));
        let lock = locks.mutex("n");
        let outcomes = in_time(move || {
            let waits = [
                lock.lock().map(drop),
                lock.try_lock_for(secs(600)).map(drop),
            ];
            let tries = [lock.try_lock().map(drop), lock.with(secs(600), |_| ())];
            [waits, tries].concat()
        });
        for outcome in outcomes {
            let error = outcome.expect_err(&text);
            assert_eq!(became(&error), expected, "{text}: {error:?}");
            assert_eq!(error.is_retryable(), expected == Unavailable);
            // The server is unsupported for every lock, so the text names no lock.
            let names_it = error.to_string().starts_with("lock \"n\": ");
            assert_eq!(names_it, expected != Unsupported, "{error}");
        }
        hostile.behaves();
        drop(at_last(|| locks.lock("n")));
    }
}

/// A wait that has begun goes on or ends, for the thread that asks and for a thread behind it.
#[test]
fn a_wait_that_has_begun_goes_on_or_ends() {
    let server = Server::start();
    let rows = all();
    // A few rows at a time, because on a busy machine their first requests would come late.
    for some in rows.chunks(6) {
        thread::scope(|scope| {
            for row in some {
                scope.spawn(|| goes_on_or_ends(&server, row));
            }
        });
    }
}

fn goes_on_or_ends(server: &Server, (text, expected, goes_on, answer): &Answered) {
    let hostile = Hostile::before(server);
    let locks = locks_of(&hostile, text);
    let name = name("row");
    let guard = manager(&server.url()).lock(&name).expect("it is free");
    let fence = guard.fence();
    let asks = locking(&locks.mutex(&name));
    server.raw().wait_until_queued(&name, 1);
    let behind = locking_asleep(&locks.mutex(&name));
    let before = hostile.answered();
    hostile.answers(to_scripts(answer.clone()));
    if *goes_on {
        wait_until("it asks again and again", || {
            hostile.answered() > before + 2
        });
        hostile.behaves();
        guard.release().expect("it was held until now");
    }
    for waiting in [asks, behind] {
        match waiting.end() {
            Ok(next) if *goes_on => assert!(next.fence() > fence, "{text}"),
            Err(error) if !*goes_on => assert_eq!(became(&error), *expected, "{text}"),
            outcome => panic!("{text}: {outcome:?}"),
        }
    }
}

/// The server replies like this to one client too many, and closes the connection.
#[test]
fn a_server_with_too_many_clients_is_unavailable() {
    let server = Server::start();
    let hostile = Hostile::before(&server);
    let (locks, holder) = (manager(&hostile.url()), manager(&server.url()));
    let guard = holder.lock("n").expect("it is free");
    let waiting = locking(&locks.mutex("n"));
    server.raw().wait_until_queued("n", 1);
    hostile.answers(|words: &Words| {
        Answer::Close(match words {
            [] => b"-ERR max number of clients reached\r\n".to_vec(),
            _ => Vec::new(),
        })
    });
    let (first, before) = (locks.mutex("other"), hostile.answered());
    for outcome in in_time(move || [first.lock().map(drop), first.try_lock().map(drop)]) {
        assert!(
            matches!(outcome, Err(Error::Unavailable { .. })),
            "{outcome:?}"
        );
    }
    guard.release().expect("it was held until now");
    wait_until("the wait goes on", || hostile.answered() > before + 6);
    hostile.behaves();
    drop(waiting.end().expect("it becomes free"));
}

/// A loss is final for its guard or claim: a loop that retries while the error is retryable runs once.
#[test]
fn a_loop_that_retries_does_not_repeat_after_a_loss() {
    let redis = shared();
    let (locks, name) = (manager(redis.url()), name("retry"));
    let claim = locks.lock(&name).expect("it is free").detach();
    drop(locks.adopt(&claim).expect("nobody has adopted it"));
    let mut adoptions = 0;
    let error = retried(|| {
        adoptions += 1;
        locks.adopt(&claim).map(drop)
    });
    assert_eq!((adoptions, error.is_retryable()), (1, false), "{error:?}");
    lost::<()>(Err(error));

    let mut runs = 0;
    let error = retried(|| {
        locks.with_lock(&name, PATIENCE, |_| {
            runs += 1;
            let () = redis.ask(&["DEL", &name]);
        })
    });
    assert_eq!((runs, error.is_retryable()), (1, false), "{error:?}");
    lost::<()>(Err(error));
}

/// Repeats a call while its error is retryable, and returns the last error.
fn retried(mut call: impl FnMut() -> Result<(), Error>) -> Error {
    let mut last = None;
    for _ in 0..5 {
        match call() {
            Ok(()) => panic!("it was lost"),
            Err(error) if error.is_retryable() => last = Some(error),
            Err(error) => return error,
        }
    }
    last.expect("it was called")
}

/// Every way to log in returns the error that the server gave for the password.
#[test]
fn a_failed_login_returns_the_reason() {
    let server = Server::start();
    let hostile = Hostile::before(&server);
    let url = hostile.url().replace("//", "//user:s3cret@") + "3";
    for (text, expected, _) in ROWS {
        for refused in ["AUTH", "SELECT"] {
            hostile.answers(move |words| match words {
                [verb, ..] if verb == refused.as_bytes() => line(text),
                [verb, ..] if verb == b"AUTH" => Answer::Say(b"+OK\r\n".to_vec()),
                _ => Answer::Pass,
            });
            let built = LockManager::single(&url).connect_timeout(secs(10));
            let error = built.build().expect_err(text);
            assert_eq!(became(&error), expected, "{refused}: {text}: {error:?}");
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("s3cret"), "{shown}");
        }
    }
}

/// The documentation of [`Error`] has the same table.
#[test]
fn the_documented_table_is_this_one() {
    let page = include_str!("../../src/error/public.rs");
    let documented: Vec<(&str, &str, bool)> = page
        .lines()
        .filter_map(|line| {
            let cells: Vec<_> = line.strip_prefix("/// | ")?.split(" | ").collect();
            let &[server, error, wait, retryable] = &cells[..] else {
                return None;
            };
            let error = variant(error)?;
            // A wait goes on after exactly the errors that a program may retry.
            assert_eq!(
                yes(retryable.trim_end_matches(" |")),
                wait == "goes on",
                "{server}"
            );
            assert_eq!(
                retryable_variants(page).get(error),
                Some(&(wait == "goes on"))
            );
            Some((server, error, wait == "goes on"))
        })
        .collect();
    assert!(documented.len() >= 8, "{documented:?}");
    let words = |text: &'static str| match text.split_once(' ') {
        // The documentation describes this reply with these words.
        Some(("ERR", "max number of clients reached")) => "`maxclients`",
        Some((code, _)) => code,
        None => text,
    };
    let spoken = [
        ("refuses the connection", Unavailable, true),
        ("closes or resets it", Unavailable, true),
        (SILENT, Unavailable, true),
        ("sends anything else", Protocol, false),
    ];
    let rows = ROWS.map(|(text, error, goes_on)| (words(text), error, goes_on));
    let mut found = HashSet::new();
    for (what, error, goes_on) in rows.into_iter().chain(spoken) {
        if ["ERR", "WHATEVER", "NOSCRIPT"].contains(&what) {
            continue;
        }
        let row = documented.iter().find(|(server, ..)| server.contains(what));
        let row = row.unwrap_or_else(|| panic!("{what} is not documented"));
        assert_eq!((row.1, row.2), (&*format!("{error:?}"), goes_on), "{what}");
        found.insert(what);
    }
    // Each code that the documentation names is tested here.
    for (server, ..) in documented {
        for code in server.split('`').skip(1).step_by(2) {
            let is_one = code.chars().all(|c| c.is_ascii_uppercase());
            assert!(!is_one || found.contains(code), "{code} is not tested");
        }
    }
}

/// Returns the variant that a cell of a table in the documentation links to.
fn variant(cell: &str) -> Option<&str> {
    cell.split_once("](Error::")?.1.strip_suffix(')')
}

fn yes(cell: &str) -> bool {
    match cell {
        "yes" => true,
        "no" => false,
        other => panic!("neither yes nor no: {other:?}"),
    }
}

/// Returns each variant in the documented table of retryable errors, and whether it is retryable.
fn retryable_variants(page: &str) -> HashMap<&str, bool> {
    let (_, section) = page
        .split_once("/// # What is retryable")
        .expect("a heading");
    let (section, _) = section.split_once("/// # ").expect("another heading");
    section
        .lines()
        .filter_map(|line| {
            let cells: Vec<_> = line.strip_prefix("/// | ")?.split(" | ").collect();
            Some((variant(cells[0])?, yes(cells[1])))
        })
        .collect()
}

/// The documented table has a row for each variant, which agrees with `is_retryable`.
#[test]
fn each_documented_variant_is_retryable_or_not_as_it_says() {
    let page = include_str!("../../src/error/public.rs");
    let documented = retryable_variants(page);
    let kinds = [
        ErrorKind::Closed,
        ErrorKind::Cancelled,
        ErrorKind::Config,
        ErrorKind::InvalidName,
        ErrorKind::Lost,
        ErrorKind::Timeout,
        ErrorKind::Unavailable,
        ErrorKind::Denied,
        ErrorKind::WrongType,
        ErrorKind::NotReplicated,
        ErrorKind::NoQuorum,
        ErrorKind::Unsupported,
        ErrorKind::Protocol,
    ];
    let (_, variants) = page
        .split_once("pub enum ErrorKind {")
        .expect("it is there");
    let (variants, _) = variants.split_once("\n}").expect("it ends");
    let variants = variants
        .lines()
        .filter(|line| line.trim_end().ends_with(','));
    assert_eq!(variants.count(), kinds.len(), "a variant is not tested");
    for kind in kinds {
        let name = format!("{kind:?}");
        assert_eq!(documented.get(&*name), Some(&kind.is_retryable()), "{name}");
        // The name in metrics: `NotReplicated` is `not_replicated`.
        assert_eq!(kind.as_str().replace('_', ""), name.to_lowercase());
        assert_eq!(kind.to_string(), kind.as_str());
    }
    assert_eq!(documented.len(), kinds.len());
}
