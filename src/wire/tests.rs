//! The requests as text, and answers that no process may believe.

use std::time::Duration;

use super::*;
use crate::config::Settings;
use crate::name::{LockKey, Target};
use crate::owner::{self, MARK, MAX_TAIL};
use crate::sys::{Arc, Machine};
use crate::wire::script::SCRIPTS;
use crate::write::Write;

fn target(name: &str) -> Target {
    LockKey::new("", name).expect("a name").into()
}

fn acquire() -> Ask {
    Ask::once("lh1:u:l".into(), 1, Duration::from_nanos(10_000_001), 1)
}

/// Returns this lock, as requests name it.
fn id(kind: LockKind, target: &Target) -> LockId<'_> {
    LockId { kind, target }
}

#[test]
fn the_mark_of_the_scripts_is_the_mark_of_the_names() {
    let value = include_str!("lua/value.lua");
    assert!(value.contains(&format!("local MARK = '{MARK}'")));
}

#[test]
fn no_owner_is_as_long_as_the_part_of_a_value_that_scripts_read() {
    let longest = owner::generate(&Machine::default(), &"x".repeat(MAX_TAIL)).len() + "!~!".len();
    let value = include_str!("lua/value.lua");
    let (_, read) = value
        .split_once("local MOST_OF_VALUE = ")
        .expect("it is set");
    let (read, _) = read.split_once('\n').expect("a line");
    let read: usize = read.parse().expect("a number");
    assert!(longest < read);
    // The usual case of these scripts does without value.lua.
    for script in [
        include_str!("lua/mutex_release.lua"),
        include_str!("lua/multi_release.lua"),
    ] {
        assert!(script.contains(&format!("0, {})", read - 1)));
    }
    let longest_shown = format!("LONGEST_OF_OTHERS = {longest}, 1024");
    assert!(include_str!("lua/inspect.lua").contains(&longest_shown));
}

fn parts(command: &Command) -> Vec<String> {
    let value = redis::parse_redis_value(&command.packed()).expect("an array");
    redis::from_redis_value(value).expect("texts")
}

#[test]
fn names_and_owners_are_never_script_text() {
    let script_settings = ScriptSettings::new(&Settings::default());
    let ask = acquire();
    let odd = target("'..redis.call('FLUSHALL')..'");
    let request = Request::Ask(id(LockKind::Mutex, &odd), &ask);
    let command = encode(&request, &script_settings).by_text();
    let parts = parts(&command);
    assert_eq!(parts[0], "EVAL");
    assert!(!parts[1].contains("FLUSHALL"));
    assert_eq!(parts[2], "4");
    assert_eq!(parts[3], odd.first().key());
}

/// The server answers `TRYAGAIN` for a missing companion in a slot that is being moved.
#[test]
fn renewal_and_plain_release_declare_the_locks_key_alone() {
    let script_settings = ScriptSettings::new(&Settings::default());
    let keys = |request: Request<'_>| {
        let command = encode(&request, &script_settings);
        parts(&command).swap_remove(2)
    };
    let owner: Arc<str> = "lh1:u:l".into();
    let key = target("n").first().clone();
    let renewal = Renewal {
        kind: LockKind::Mutex,
        key: &key,
        owner: owner.to_string(),
        units: 1,
        lease: Duration::from_secs(1),
        may_join: false,
    };
    assert_eq!(keys(Request::Renew(&[renewal.clone(), renewal])), "2");
    let target = target("n");
    let release = End::new(owner, 1, How::Release);
    let keep = End {
        kept_for: Duration::from_secs(1),
        ..release.clone()
    };
    for (kind, end) in [
        (LockKind::Mutex, &release),
        (LockKind::Mutex, &keep),
        (LockKind::Write, &keep),
    ] {
        assert_eq!(keys(Request::End(id(kind, &target), end)), "1");
    }
}

#[test]
fn hostile_replies_are_refused_not_believed() {
    /// A time in microseconds, in 1970.
    const TIME: i64 = 1_000_000_000_000;
    let (target, ask) = (target("n"), acquire());
    let request = Request::Ask(id(LockKind::Mutex, &target), &ask);
    for value in [
        Value::Nil,
        Value::Okay,
        Value::Int(0),
        Value::Int(-5),
        // The answer to a release.
        Value::Int(1),
        Value::Int(TIME - 1),
        Value::Array(vec![]),
        Value::Array(vec![Value::Int(TIME + 5), Value::Int(3)]),
        Value::Array(vec![Value::Int(0), Value::Int(1), Value::Int(1)]),
        // Larger than the numbers that a script counts exactly.
        Value::Int(1 << 53),
        Value::Int(i64::MAX),
        // The fences of two names.
        Value::Array([TIME + 5, TIME + 6, 0].map(Value::Int).into()),
    ] {
        let failure = decode(&request, value.clone()).expect_err("no grant");
        assert_eq!(failure.kind, FailureKind::Protocol, "{value:?}");
    }
    let release = End::new("lh1:u:l".into(), 1, How::Release);
    let request = Request::End(id(LockKind::Mutex, &target), &release);
    assert!(decode(&request, Value::Int(7)).is_err());
    // Each name must have one fence.
    let keys = ["a", "b"].map(|name| LockKey::new("", name).expect("a name"));
    let target = Target::all(keys.into()).expect("two names");
    let request = Request::Ask(id(LockKind::Multi, &target), &ask);
    for (fences, is_one_each) in [(&[5][..], false), (&[5, 6], true), (&[5, 6, 7], false)] {
        let parts = fences.iter().map(|fence| TIME + fence).chain([0]);
        let reply = decode(&request, Value::Array(parts.map(Value::Int).collect()));
        assert_eq!(reply.is_ok(), is_one_each, "{fences:?}");
    }
    assert!(decode(&Request::Renew(&[]), Value::Array(vec![Value::Int(1)])).is_err());
}

#[test]
fn records_are_read_whole_or_not_at_all() {
    let key = LockKey::new("", "n").expect("a name");
    let record = |parts: [&str; 4]| {
        let parts = parts.map(|part| Value::BulkString(part.into()));
        Value::Array(parts.into())
    };
    let read = |value| {
        decode(
            &Request::Once {
                key: &key,
                done: None,
            },
            value,
        )
    };
    let now_us = 9;
    assert_eq!(
        read(record(["", "", "", "9"])).ok(),
        Some(Reply::Record(Recorded { last: None, now_us }))
    );
    let last = Some((0, "lh1:u:l".to_owned(), 8));
    assert_eq!(
        read(record(["0", "lh1:u:l", "8", "9"])).ok(),
        Some(Reply::Record(Recorded { last, now_us }))
    );
    for hostile in [
        Value::Int(1),
        Value::Nil,
        Value::Array(vec![]),
        Value::Array([5, 6, 7, 8].map(Value::Int).into()),
        record(["", "", "", ""]),
        record(["5", "o", "", "9"]),
        record(["5", "o", "-1", "9"]),
        record(["0x5", "o", "8", "9"]),
        // Larger than the numbers that a script counts exactly.
        record(["9007199254740992", "o", "8", "9"]),
        record(["5", "o", "8", "18446744073709551615"]),
    ] {
        let failure = read(hostile.clone()).expect_err("no record");
        assert_eq!(failure.kind, FailureKind::Protocol, "{hostile:?}");
    }
    let done = Some(Done {
        owner: OWNER,
        fire_us: 5,
        keep_for: LEASE,
    });
    let said = |value| decode(&Request::Once { key: &key, done }, value);
    assert_eq!(said(Value::Int(1)).ok(), Some(Reply::Recorded));
    for hostile in [Value::Int(2), Value::Okay, record(["5", "o", "8", "9"])] {
        assert!(said(hostile.clone()).is_err(), "{hostile:?}");
    }
}

#[test]
fn a_leader_is_read_whole_or_not_at_all() {
    let key = LockKey::new("", "n").expect("a name");
    let read = |value| {
        let lead = Lead::Read { channel: "" };
        decode(&Request::Leader { key: &key, lead }, value)
    };
    let text = |text: &str| Value::BulkString(text.into());
    let holder = |left_ms: i64, rest: &[&str]| {
        let rest = rest.iter().map(|part| text(part));
        Value::Array(
            [text("o"), Value::Int(left_ms)]
                .into_iter()
                .chain(rest)
                .collect(),
        )
    };
    let seen = |left_ms, number, value: Option<(u64, &str)>| {
        Some(Reply::Leader(Some(SeenLeader {
            owner: "o".to_owned(),
            left: Duration::from_millis(left_ms),
            number,
            value: value.map(|(fence, value)| (fence, value.to_owned())),
        })))
    };
    assert_eq!(read(Value::Array(vec![])).ok(), Some(Reply::Leader(None)));
    assert_eq!(read(holder(7, &[])).ok(), seen(7, 0, None));
    assert_eq!(read(holder(7, &["2"])).ok(), seen(7, 2, None));
    assert_eq!(
        read(holder(7, &["2", "5", ""])).ok(),
        seen(7, 2, Some((5, "")))
    );
    // Without a time to live, it is the key of another client.
    assert_eq!(read(holder(-1, &[])).ok(), seen(0, 0, None));
    for hostile in [
        Value::Nil,
        Value::Int(1),
        Value::Array(vec![text("o")]),
        Value::Array(vec![text("o"), text("7")]),
        holder(7, &["x"]),
        holder(7, &["1", "5"]),
        holder(7, &["1", "-5", "v"]),
        // Larger than the numbers that a script counts exactly.
        holder(7, &["1", "9007199254740992", "v"]),
        holder(7, &["1", "5", "v", "more"]),
    ] {
        let failure = read(hostile.clone()).expect_err("no leader");
        assert_eq!(failure.kind, FailureKind::Protocol, "{hostile:?}");
    }
    let lead = Lead::Write {
        owner: OWNER,
        fence: 5,
        number: 1,
        value: None,
    };
    let said = |value| decode(&Request::Leader { key: &key, lead }, value);
    assert_eq!(said(Value::Int(1)).ok(), Some(Reply::Recorded));
    for (code, gone) in [(0, Gone::Removed), (-1, Gone::Taken)] {
        assert_eq!(said(Value::Int(code)).ok(), Some(Reply::NotOwner(gone)));
    }
    assert!(said(Value::Int(2)).is_err() && said(holder(7, &[])).is_err());
}

/// The arguments of the requests in `requests.txt`.
const OWNER: &str = "lh1:owner:l";
const OTHER: &str = "lh1:other:l";
const LEASE: Duration = Duration::from_secs(30);
const CLOCK: u64 = 1_700_000_000_000_000;
const BLOCK: Option<GiveBack> = Some(GiveBack { used: 5, last: 9 });

/// Returns a command on one line. It names a script by its file in place of the digest.
fn line(command: &Command) -> String {
    let mut words = parts(command);
    let [of_digest, of_text] = [false, true].map(|is_text| {
        let word = words.get(1).cloned();
        SCRIPTS.iter().find(|script| {
            let command = script.command(0);
            let command = if is_text { command.by_text() } else { command };
            parts(&command).get(1) == word.as_ref()
        })
    });
    if let Some(script) = of_digest.or(of_text) {
        script.name.clone_into(&mut words[1]);
    }
    let quoted = words.iter().map(|word| {
        if word.is_empty() || word.contains(' ') {
            format!("'{word}'")
        } else {
            word.clone()
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// Returns each request with fixed arguments: what it is, and its command.
fn all_requests() -> Vec<(String, Command)> {
    let settings = ScriptSettings::new(&Settings::default());
    let ms = Duration::from_millis;
    let with_gap = ScriptSettings::new(&Settings {
        poller_gap: Some(ms(20)),
        ..Settings::default()
    });
    let of_a_cluster = settings.clone().of_a_cluster();
    let mut all = Vec::new();
    for (where_, settings) in [
        ("", &settings),
        ("with a gap, ", &with_gap),
        ("in a cluster, ", &of_a_cluster),
    ] {
        for (kind, target, units) in kinds() {
            let lock = id(kind, &target);
            for (what, ask) in asks(units) {
                let request = Request::Ask(lock, &ask);
                let what = format!("{where_}{kind:?}, {what}");
                if let Some(plain) = encode_plain(&request, settings) {
                    all.push((format!("{what}, plain"), plain));
                }
                all.push((what, encode(&request, settings)));
            }
            for (what, end) in ends(units) {
                let what = format!("{where_}{kind:?}, {what}");
                all.push((what, encode(&Request::End(lock, &end), settings)));
            }
        }
    }
    all.extend(other_requests(&settings));
    all.extend(requests_about_leaders(&settings));
    all.extend(node_requests(&settings));
    all
}

fn kinds() -> [(LockKind, Target, u32); 5] {
    let keys = ["n", "{t}m"].map(|name| LockKey::new("p:", name).expect("a name"));
    let one = || Target::from(keys[0].clone());
    let two = Target::all(keys.to_vec()).expect("two names");
    [
        (LockKind::Mutex, one(), 1),
        (LockKind::Read, one(), 1),
        (LockKind::Write, one(), ALL),
        (LockKind::Semaphore { total_units: 5 }, one(), 2),
        (LockKind::Multi, two, 1),
    ]
}

fn ask(units: u32) -> Ask {
    Ask {
        pickup_window: lifetime::pickup_window(LEASE, Duration::from_secs(1)),
        ..Ask::once(OWNER.into(), units, LEASE, 1)
    }
}

/// Returns each request for a lock, and its forms: from a free lock, from the queue, and in place of another owner.
fn asks(units: u32) -> Vec<(&'static str, Ask)> {
    let nonce = format!("{OWNER} {:032x} 1", 0xa1_u128);
    let (_, grant) = GrantMessage::of(nonce.as_bytes()).expect("a message");
    let channel = || Some(Arc::from("leasehold:c"));
    let asks = [
        ("a try", ask(units)),
        (
            "a try without a fence",
            Ask {
                fences: 0,
                ..ask(units)
            },
        ),
        (
            "a wait without a channel",
            Ask {
                channel: Some("".into()),
                ..ask(units)
            },
        ),
        (
            "a wait with a block of fences",
            Ask {
                channel: channel(),
                fences: 50,
                ..ask(units)
            },
        ),
        (
            "a wait for a message",
            Ask {
                channel: channel(),
                nonce: grant.map(|grant| grant.nonce),
                fences: 50,
                shareable_owner: Some(OTHER.into()),
                ..ask(units)
            },
        ),
    ];
    let mut all = Vec::new();
    for (what, ask) in asks {
        let in_queue = Ask {
            takes_free: false,
            ..ask.clone()
        };
        all.extend([(what, ask), (what, in_queue.clone())]);
        for give_back in [None, BLOCK] {
            let ending = Some(End {
                give_back,
                ..End::new(OTHER.into(), units, How::HandOver)
            });
            let ask = in_queue.clone();
            all.push((what, Ask { ending, ..ask }));
        }
    }
    all
}

/// Returns each end of an owner.
fn ends(units: u32) -> [(&'static str, End); 7] {
    let end = |how, kept_ms, give_back| End {
        kept_for: Duration::from_millis(kept_ms),
        give_back,
        ..End::new(OWNER.into(), units, how)
    };
    [
        ("hand over", end(How::HandOver, 0, None)),
        ("hand over", end(How::HandOver, 0, BLOCK)),
        ("release", end(How::Release, 0, None)),
        ("withdraw", end(How::Withdraw, 0, None)),
        ("keep", end(How::Release, 700, None)),
        ("keep and wake", end(How::HandOver, 700, None)),
        ("keep and give back", end(How::HandOver, 700, BLOCK)),
    ]
}

fn adopt(fencing: bool, shortens: bool) -> Adopt {
    Adopt {
        owner: OWNER.into(),
        lease: LEASE,
        from: OTHER.into(),
        last: 7,
        fencing,
        shortens,
    }
}

fn other_requests(settings: &ScriptSettings) -> Vec<(String, Command)> {
    let kinds = kinds();
    let mut renewals = Vec::new();
    for (kind, target, units) in &kinds {
        renewals.extend(target.keys().iter().map(|key| Renewal {
            kind: *kind,
            key,
            owner: OWNER.to_owned(),
            units: *units,
            lease: LEASE,
            may_join: false,
        }));
    }
    let releases = [OWNER, OTHER].map(|owner| End::new(owner.into(), 1, How::Release));
    let lock = id(LockKind::Mutex, &kinds[0].1);
    let releases = [0, 1].map(|number| (lock, &releases[number]));
    let (key, keys) = (kinds[0].1.first(), kinds[4].1.keys());
    let request = RateRequest {
        permits: 3,
        per: Duration::from_nanos(1_001),
        taken: 1,
        patience: Duration::from_millis(2),
    };
    let writes = [
        Write::new("HSET", "p:n:d").arg("left").arg(17),
        Write::new("DEL", "p:n:r"),
    ];
    let commit = Commit {
        locks: keys,
        owner: OWNER,
        units: 0,
        writes: &writes,
    };
    let done = Some(Done {
        owner: OWNER,
        fire_us: CLOCK,
        keep_for: LEASE,
    });
    let from = Cursor {
        at: 17,
        ..Cursor::START
    };
    let (adopts, shortens) = (adopt(true, false), adopt(false, true));
    [
        ("ping", Request::Ping),
        ("renew", Request::Renew(&renewals)),
        ("keep records", Request::KeepRecords(&renewals)),
        ("release many", Request::Release(&releases)),
        ("commit", Request::Commit(&commit)),
        ("record", Request::Once { key, done }),
        ("read the record", Request::Once { key, done: None }),
        ("rate limit", Request::RateLimit { key, request }),
        (
            "adopt",
            Request::Adopt {
                key,
                adopt: &adopts,
            },
        ),
        (
            "adopt without a fence",
            Request::Adopt {
                key,
                adopt: &shortens,
            },
        ),
        ("inspect", Request::Inspect { keys, named: true }),
        (
            "inspect what a scan found",
            Request::Inspect { keys, named: false },
        ),
        (
            "scan",
            Request::Scan {
                from,
                prefix: "p*:",
                pattern: "a*",
            },
        ),
        ("force release", Request::ForceRelease { key, owner: OWNER }),
        (
            "publish",
            Request::Publish {
                key,
                message: "request o 1 why",
            },
        ),
    ]
    .map(|(what, request)| (what.to_owned(), encode(&request, settings)))
    .into()
}

fn requests_about_leaders(settings: &ScriptSettings) -> Vec<(String, Command)> {
    let [(_, target, _), ..] = kinds();
    let key = target.first();
    let lead = |value| {
        let lead = Lead::Write {
            owner: OWNER,
            fence: CLOCK,
            number: 1,
            value,
        };
        Request::Leader { key, lead }
    };
    let reads = |channel| {
        let lead = Lead::Read { channel };
        Request::Leader { key, lead }
    };
    [
        ("proclaim", lead(Some("10.0.0.7:80"))),
        ("take the value back", lead(None)),
        ("read the leader", reads("")),
        ("observe the leader", reads("leasehold:c")),
    ]
    .map(|(what, request)| (what.to_owned(), encode(&request, settings)))
    .into()
}

fn node_requests(settings: &ScriptSettings) -> Vec<(String, Command)> {
    let mut all = Vec::new();
    let mut add = |kind: LockKind, what: &str, command| {
        all.push((format!("a node, {kind:?}, {what}"), command));
    };
    for (kind, target, units) in kinds() {
        if matches!(kind, LockKind::Semaphore { .. }) {
            continue;
        }
        let lock = id(kind, &target);
        // A writer that becomes a reader.
        let ending = (kind == LockKind::Read).then(|| End::new(OTHER.into(), ALL, How::HandOver));
        let waits = Ask {
            channel: Some("leasehold:c".into()),
            ending,
            ..ask(units)
        };
        let (owner, fences) = ((OWNER, units), vec![8; target.keys().len()]);
        let keys = || target.keys().iter();
        add(
            kind,
            "a try",
            quorum::acquire(lock, &ask(units), CLOCK, settings),
        );
        add(
            kind,
            "a wait",
            quorum::acquire(lock, &waits, CLOCK, settings),
        );
        add(
            kind,
            "raise",
            quorum::raise(lock, owner, &fences, 50, settings),
        );
        add(
            kind,
            "join",
            quorum::join(kind, keys(), owner, LEASE, &fences, settings),
        );
        let sent = |(_, end): &(_, End)| end.how != How::Release;
        for (what, end) in ends(units).into_iter().filter(sent) {
            add(kind, what, quorum::end(lock, &end, settings));
        }
    }
    let [(kind, target, _), ..] = kinds();
    let key = target.first();
    for (fencing, shortens) in [(true, true), (false, false)] {
        let adopt = adopt(fencing, shortens);
        add(kind, "adopt", quorum::adopt(key, &adopt, CLOCK, settings));
    }
    add(
        kind,
        "force release",
        quorum::force_release(key, OWNER, settings),
    );
    let (delay, kept) = (Duration::from_secs(60), Duration::from_secs(600));
    add(
        kind,
        "note the restart delay",
        quorum::note_restart_delay("p:d", delay, kept),
    );
    all
}

/// Two requests of one write must have no key in common, and they are compared by their first keys.
#[test]
fn only_asks_for_locks_of_one_name_and_their_ends_go_out_with_those_of_other_calls() {
    let end = End::new(OWNER.into(), 1, How::HandOver);
    for (kind, target, units) in kinds() {
        let lock = id(kind, &target);
        let is_one = kind != LockKind::Multi;
        assert_eq!(reader(&Request::Ask(lock, &ask(units))).is_some(), is_one);
        assert_eq!(reader(&Request::End(lock, &end)).is_some(), is_one);
    }
    assert!(reader(&Request::Ping).is_none());
    assert!(reader(&Request::Release(&[])).is_none());
}

/// A request with other bytes may be another request to a server, or to a node that another version of this crate uses. So
/// a change of `requests.txt` is a change of the wire format. Only the names of scripts may change freely.
#[test]
fn every_request_has_the_bytes_that_it_had() {
    let lines = all_requests().into_iter();
    let lines = lines.map(|(what, command)| format!("{what}: {}", line(&command)));
    let lines = lines.collect::<Vec<_>>().join("\n") + "\n";
    let kept = include_str!("requests.txt");
    if lines != kept {
        let new = std::env::temp_dir().join("requests.txt");
        std::fs::write(&new, &lines).expect("a file");
        let (line, _) = std::iter::zip(lines.lines(), kept.lines())
            .find(|(one, other)| one != other)
            .unwrap_or_default();
        panic!(
            "{} has all requests now, and this one is new: {line}",
            new.display()
        );
    }
}
