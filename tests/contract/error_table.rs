//! The error for each reply of a server, row by row of the table in the documentation of [`Error`].

use std::collections::HashSet;

use leasehold::{Error, ErrorKind};
use leasehold_simulator::{Refused, Topology};

use crate::matrix::{Subject, subject_bodies};
use crate::subject::Kind;
use crate::world::{World, secs};

pub(crate) const BODIES: Subject = (
    "error_table",
    &[Topology::Single],
    subject_bodies![
        the_first_answer_is_the_error_at_once,
        a_wait_that_has_begun_goes_on_or_ends,
        the_documented_table_is_this_one,
        each_kind_has_its_name_and_is_retryable_or_not,
    ],
);

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
const ROWS: [Row; 26] = [
    ("DENIED Redis is running in protected mode", Denied, false),
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

/// The first request of a call is not retried, whatever the time limit of the call is.
fn the_first_answer_is_the_error_at_once(world: &World) {
    let locks = world.manager();
    let lock = locks.mutex("n");
    drop(lock.lock().expect("it is free"));
    for (text, expected, _) in ROWS {
        world.refuse(Refused::All, text);
        let calls: [&dyn Fn() -> leasehold::Result<()>; 4] = [
            &|| lock.lock().map(drop),
            &|| lock.try_lock_for(secs(600)).map(drop),
            &|| lock.try_lock().map(drop),
            &|| lock.with(secs(600), |_| ()),
        ];
        for call in calls {
            let begun = world.now();
            let error = call().expect_err(text);
            assert!(world.now() <= world.within(begun), "{text}");
            assert_eq!(became(&error), expected, "{text}: {error:?}");
            assert_eq!(error.is_retryable(), expected == Unavailable);
            // The server is unsupported for every lock, so the text names no lock.
            let names_it = error.to_string().starts_with("lock \"n\": ");
            assert_eq!(names_it, expected != Unsupported, "{error}");
        }
        world.refuse_nothing();
        // Refusals of connections in the next two seconds would be one outage with these.
        world.pass(secs(3));
        drop(lock.lock().expect("it is free"));
    }
}

/// A wait that has begun goes on or ends, for the thread that asks and for a thread behind it.
fn a_wait_that_has_begun_goes_on_or_ends(world: &World) {
    for (number, (text, expected, goes_on)) in ROWS.into_iter().enumerate() {
        let name = world.name(&format!("row-{number}"));
        let locks = world.manager();
        let holder = Kind::Mutex
            .of(&world.manager(), &name)
            .lease(secs(60))
            .hold();
        let lock = Kind::Mutex.of(&locks, &name);
        let asks = lock.locking();
        world.redis().wait_until_queued(&name, 1);
        let behind = lock.locking_asleep();
        world.refuse(Refused::All, text);
        // Each polls once a second.
        world.pass(secs(5));
        world.refuse_nothing();
        if goes_on {
            assert!(asks.waits() && behind.waits(), "{text}");
            holder.release();
        }
        for waiting in [asks, behind] {
            match waiting.outcome() {
                Ok(_) if goes_on => waiting.release(),
                Err(error) if !goes_on => assert_eq!(became(&error), expected, "{text}"),
                outcome => panic!("{text}: {outcome:?}"),
            }
        }
    }
}

/// The documentation of [`Error`] has the same table.
fn the_documented_table_is_this_one(_: &World) {
    let page = include_str!("../../src/error/mod.rs");
    let documented: Vec<(&str, &str, bool)> = page
        .lines()
        .filter_map(|line| {
            let cells: Vec<_> = line.strip_prefix("/// | ")?.split(" | ").collect();
            let &[server, error, wait] = &cells[..] else {
                return None;
            };
            let error = variant(error)?;
            let goes_on = wait == "goes on |";
            let kind = KINDS.iter().find(|(kind, _)| format!("{kind:?}") == error);
            // A wait goes on after exactly the errors that a program may retry.
            let is_retryable = kind.map(|(_, is_retryable)| *is_retryable);
            assert_eq!(is_retryable, Some(goes_on), "{server}");
            Some((server, error, goes_on))
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
        ("does not reply in time", Unavailable, true),
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

/// Each kind, and whether a program may retry.
const KINDS: [(ErrorKind, bool); 15] = [
    (ErrorKind::Closed, false),
    (ErrorKind::Forked, false),
    (ErrorKind::Cancelled, false),
    (ErrorKind::Config, false),
    (ErrorKind::InvalidName, false),
    (ErrorKind::Lost, false),
    (ErrorKind::Denied, false),
    (ErrorKind::WrongType, false),
    (ErrorKind::Refused, false),
    (ErrorKind::Unsupported, false),
    (ErrorKind::Protocol, false),
    (ErrorKind::Timeout, true),
    (ErrorKind::Unavailable, true),
    (ErrorKind::NotReplicated, true),
    (ErrorKind::NoQuorum, true),
];

/// The name in metrics: `NotReplicated` is `not_replicated`.
fn each_kind_has_its_name_and_is_retryable_or_not(_: &World) {
    let page = include_str!("../../src/error/mod.rs");
    let (_, rows) = page.split_once("\nkinds! {").expect("it is there");
    let (rows, _) = rows.split_once("\n}").expect("it ends");
    let rows = rows.lines().filter(|line| line.trim_end().ends_with(';'));
    assert_eq!(rows.count(), KINDS.len(), "a variant is not tested");
    for (kind, is_retryable) in KINDS {
        assert_eq!(kind.is_retryable(), is_retryable, "{kind}");
        let name = format!("{kind:?}");
        assert_eq!(kind.as_str().replace('_', ""), name.to_lowercase());
        assert_eq!(kind.to_string(), kind.as_str());
    }
}
