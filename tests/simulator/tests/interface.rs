//! Each public call and each setting is drawn in some schedules, or has a reason why it is not.

use std::collections::BTreeSet;
use std::path::Path;

/// The methods that schedules call, by their type.
const DRAWN: [(&str, &str); 21] = [
    (
        "Builder",
        "background_release build_lazy connect_timeout fence_memory io_timeout label lease listener max_hold min_hold \
         node_timeout outage_limit pool_size poller_gap quantum renew replicas restart_delay wait_through_outages \
         warn_after warn_wait_after",
    ),
    (
        "LockManager",
        "adopt close cluster election force_release inspect list lock multi mutex once ping quorum rate_limiter reentrant_mutex \
         request_release run rwlock semaphore sentinel single stats try_lock try_lock_for with_lock",
    ),
    (
        "Lease",
        "check extend fence name on_lost on_requested owner remaining state",
    ),
    ("LockGuard", "commit detach release"),
    ("WriteGuard", "commit downgrade release"),
    ("ReadGuard", "release"),
    ("Permit", "count release"),
    ("MultiGuard", "commit extend leases on_lost release state"),
    ("OnceGuard", "done fire"),
    (
        "Mutex",
        "adopt cancel_with fencing lease lock max_hold min_hold renew run try_lock try_lock_for with",
    ),
    (
        "ReentrantMutex",
        "cancel_with lease lock max_hold min_hold renew try_lock try_lock_for",
    ),
    (
        "RwLock",
        "cancel_with lease max_hold min_hold reader renew writer",
    ),
    ("Reader", "lock try_lock try_lock_for"),
    ("Writer", "lock try_lock try_lock_for"),
    (
        "Semaphore",
        "cancel_with fencing lease max_hold min_hold permits renew",
    ),
    ("Permits", "lock try_lock try_lock_for"),
    (
        "MultiLock",
        "cancel_with lease lock max_hold min_hold renew try_lock try_lock_for",
    ),
    (
        "Once",
        "cancel_with claim claim_every claim_for last lease max_hold min_hold renew",
    ),
    (
        "Election",
        "campaign campaign_for cancel_with leader lease observe try_campaign",
    ),
    ("Leadership", "proclaim resign"),
    (
        "RateLimiter",
        "acquire acquire_many cancel_with try_acquire try_acquire_for try_acquire_many try_acquire_many_for",
    ),
];

/// Why schedules do not call the others: the types, the methods, and the reason.
const NOT_DRAWN: [(&str, &str, &str); 14] = [
    (
        "Builder",
        "build",
        "it fails if a server is down: the contract has it. `build_lazy` makes the same manager",
    ),
    (
        "Builder",
        "credentials node_credentials password password_file username tls metric_names",
        "logins, encryption and figures: the contract, `tests/it`, `tests/tls` and `testkit/tests`",
    ),
    (
        "Builder",
        "database prefix note",
        "they change the texts of requests alone: the unit tests of names and of connections",
    ),
    (
        "Builder",
        "fencing",
        "it sets the default of the handles' option, which is drawn",
    ),
    (
        "LockManager",
        "connect connect_lazy from_url",
        "URLs: the unit tests of the builder, and the fuzz target `urls`",
    ),
    (
        "Mutex ReentrantMutex MultiLock RwLock Semaphore",
        "try_lock_until try_read_until try_write_until try_acquire_until try_acquire_many_until",
        "it is `try_lock_for` with what is left until then, by the macro `ways`",
    ),
    (
        "RwLock",
        "read try_read try_read_for write try_write try_write_for",
        "`Reader` and `Writer` are the same calls by the trait `Lock`",
    ),
    (
        "Semaphore",
        "acquire try_acquire try_acquire_for acquire_many try_acquire_many try_acquire_many_for",
        "`Permits` is the same call by the trait `Lock`",
    ),
    (
        "ReentrantMutex MultiLock RwLock Semaphore",
        "with run with_read run_read with_write run_write with_permit run_permit with_permits run_permits",
        "closures are drawn for the mutex; the macro `ways` makes them of the calls that are drawn",
    ),
    (
        "ReentrantMutex MultiLock RwLock Once",
        "fencing",
        "drawn for the mutex and the semaphore: others could only be looked at for exclusion",
    ),
    (
        "Mutex ReentrantMutex RwLock Semaphore MultiLock Once",
        "note",
        "it is a part of the owner's text: the contract looks at it",
    ),
    (
        "Mutex ReentrantMutex RwLock Semaphore MultiLock Once Election RateLimiter Permits Reader Writer",
        "name",
        "it returns the handle's text",
    ),
    (
        "ReentrantGuard",
        "commit release",
        "its guards are dropped; the contract has both for each kind",
    ),
    (
        "LockGuard ReadGuard WriteGuard Permit MultiGuard ReentrantGuard Lease Once",
        "check remaining missing_nodes forget_min_hold keep_for",
        "`check` and `remaining` are those of the lease, which are drawn; the others are looked at by the contract",
    ),
];

/// What every type has by a derive, or by the standard library's traits.
const OF_STD: [&str; 7] = ["clone", "fmt", "eq", "hash", "deref", "drop", "default"];

/// Returns the types whose methods count, and these methods.
fn public() -> BTreeSet<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("tests/public_api.txt")).expect("the interface");
    let method = |line: &str| {
        let path = line.strip_prefix("pub fn leasehold::")?.split('(').next()?;
        let (of, name) = path.split_once("::")?;
        let name = name.split('<').next()?;
        let is_meant = DRAWN.iter().any(|(it, _)| *it == of) || of == "ReentrantGuard";
        (is_meant && !OF_STD.contains(&name)).then(|| (of.to_owned(), name.to_owned()))
    };
    text.lines().filter_map(method).collect()
}

fn drawn() -> BTreeSet<(String, String)> {
    let of = |(of, names): &(&str, &str)| {
        let of = (*of).to_owned();
        let names = names.split_whitespace().map(str::to_owned);
        names
            .map(move |name| (of.clone(), name))
            .collect::<Vec<_>>()
    };
    DRAWN.iter().flat_map(of).collect()
}

#[test]
fn each_public_call_is_drawn_or_has_a_reason() {
    let (public, drawn) = (public(), drawn());
    assert!(public.len() > 150, "{}", public.len());
    let has_reason = |(of, name): &&(String, String)| {
        let has = |words: &str, word: &str| words.split_whitespace().any(|it| it == word);
        let mut reasons = NOT_DRAWN.iter();
        reasons.any(|(types, names, _)| has(types, of) && has(names, name))
    };
    let silent: Vec<_> = public
        .difference(&drawn)
        .filter(|it| !has_reason(it))
        .collect();
    assert!(
        silent.is_empty(),
        "neither drawn nor with a reason: {silent:?}"
    );
    let unknown: Vec<_> = drawn.difference(&public).collect();
    assert!(
        unknown.is_empty(),
        "drawn, and not of the interface: {unknown:?}"
    );
}

/// The table says so, and the sources must have the call.
#[test]
fn the_sources_have_each_call_that_is_drawn() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = ["workload.rs", "schedule.rs", "checks.rs"].map(|file| sources.join(file));
    let text = files
        .map(|file| std::fs::read_to_string(file).expect("a source"))
        .concat();
    for (of, name) in drawn() {
        let calls = [format!(".{name}("), format!("{of}::{name}")];
        assert!(calls.iter().any(|call| text.contains(call)), "{of}::{name}");
    }
}
