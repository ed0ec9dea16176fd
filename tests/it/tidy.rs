//! Rules of the library that neither the compiler nor clippy checks. The tests parse the files; they do not count test code.
//! Only rule 6 is for the program in `src/bin/`.
//!
//! 1. A file uses only its own layer and lower layers: see `layer`.
//! 2. Modules of one folder do not use each other in a circle. A module stands for itself and all modules below it, so
//!    a module and the modules below it may use each other: they are one module to all others.
//! 3. Only `sys/` touches the machine: time, threads, shared memory, random numbers, hashes, connections and processes.
//!    Clippy cannot check that: it does not distinguish `std::sync::Arc` from the re-export `crate::sys::Arc`.
//! 4. Only `store/` uses `script/`, which encodes messages for the redis crate. Other files use the messages.
//! 5. A file has at most `LONGEST_FILE` lines, but for the files of `MAY_BE_LONGER`.
//! 6. No file has a note to do something later. Clippy checks the macros `todo!` and `unimplemented!`.
//! 7. Each Lua script documents its arguments, its reply, and why it may be repeated.
//! 8. No two types have one name.
//! 9. No module uses an item that a module above it defines. So a folder's own file uses its modules, and they do not
//!    use it. An item that several of them need is in a module beside them.
//! 10. ARCHITECTURE.md names only methods that exist.
//! 11. A Lua script uses the keys of `KEYS` alone, and makes no name of a key. Otherwise it would fail in a cluster.
//! 12. `src/` and its folders have at most `MOST_LINES`. `cargo test --test it tidy::lines -- --nocapture` prints them.

mod syntax;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use syntax::{Module, Source, Tree};

/// Returns the layer of a module right below the root, or `None` if the module has no layer yet.
fn layer(module: &str) -> Option<u32> {
    Some(match module {
        "error" | "name" | "owner" | "sys" | "logging" | "panics" => 1,
        "config" | "event" | "stats" | "claim" | "cancel" | "message" => 2,
        "core" => 3,
        "script" => 4,
        "store" => 5,
        "engine" => 6,
        "guard" => 7,
        "lock" => 8,
        "manager" | "builder" | "admin" => 9,
        "fuzzing" | "testing" => TOP_LAYER,
        _ => return None,
    })
}

/// The layer of `lib.rs`, and so of what it re-exports.
const TOP_LAYER: u32 = 10;

const LONGEST_FILE: usize = 700;

/// One state table is one file, however long it is: its rows stand at the arms of `impl Attempt`.
const MAY_BE_LONGER: [&str; 1] = ["core/attempt.rs"];

static TREE: LazyLock<Tree> = LazyLock::new(|| Tree::new(&files("rs")));

// 1. Layers.

#[test]
fn a_file_uses_its_own_layer_and_lower_ones() {
    let bad = "
        // use crate::manager;
        use crate::{sys::Time, engine::{Engine, names::Entry as E}, store};
        fn f(_: crate::guard::Lease) -> crate::Error {
            'c: loop {}
            \"crate::lock\"; f::<'_>(r#\"crate::admin\"#);
            assert!(x, super::super::manager::y());
        }
        macro_rules! m { () => { $crate::builder::b!() }; }
        #[cfg(test)]
        mod tests { use crate::manager::LockManager; fn t() { if a { b[1]; } } }
        impl T { #[cfg(test)] fn t() { crate::manager::m(); } }
        use crate::config;
    ";
    let higher = |path| uses_of_higher_layers(&Tree::new(&[(path, bad)]));
    assert_eq!(
        higher("core/queue.rs"),
        [
            "core/queue.rs uses engine::Engine",
            "core/queue.rs uses engine::names::Entry",
            "core/queue.rs uses store",
            "core/queue.rs uses guard::Lease",
            "core/queue.rs uses Error",
            "core/queue.rs uses manager::y",
        ]
    );
    assert_eq!(higher("sys/real.rs").len(), 7);
    assert_eq!(higher("manager.rs"), ["manager.rs uses Error"]);
    assert_eq!(higher("lib.rs"), [""; 0]);
    assert_eq!(higher("new/mod.rs"), ["new/mod.rs has no layer"]);

    assert_eq!(uses_of_higher_layers(&TREE), [""; 0]);
}

fn uses_of_higher_layers(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for source in tree.sources() {
        let own = match source.module.first() {
            Some(module) => layer(module),
            None => Some(TOP_LAYER),
        };
        let Some(own) = own else {
            found.push(format!("{} has no layer", source.path));
            continue;
        };
        for path in tree.paths_of(source) {
            let used = path.first().and_then(|module| layer(module));
            if used.unwrap_or(TOP_LAYER) > own {
                found.push(format!("{} uses {}", source.path, path.join("::")));
            }
        }
    }
    found
}

// 2. Circles.

#[test]
fn modules_of_one_folder_use_each_other_in_no_circle() {
    let in_circles = |files: &[(&str, &str)]| circles(&Tree::new(files));
    // Two modules, by an import and by a path.
    let two = [
        ("a/b.rs", "use super::c::C;"),
        ("a/c.rs", "fn f() -> crate::a::b::B {}"),
    ];
    assert_eq!(in_circles(&two), ["a: b, c"]);
    assert_eq!(in_circles(&two[..1]), [""; 0]);
    // A ring of three, of which one is used by a module outside of the ring.
    let ring = [
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "use crate::{c::C, d::D};"),
        ("c.rs", "fn f() { assert!(crate::a::A.is_b()); }"),
        ("d.rs", "use crate::sys::Arc;"),
        ("e.rs", "use crate::a::A;"),
    ];
    assert_eq!(in_circles(&ring), [": a, b, c"]);
    // A re-export of the module above hides the circle, or a module below does.
    let hidden = [
        ("a/mod.rs", "mod b; mod c; pub(crate) use b::B;"),
        ("a/b.rs", "use super::c::C;"),
        ("a/c.rs", "mod d;"),
        ("a/c/d.rs", "use crate::a::B;"),
    ];
    assert_eq!(in_circles(&hidden), ["a: b, c"]);
    // A module and the modules below it are one.
    let nested = [
        ("a/mod.rs", "mod b; pub(crate) struct A(b::B);"),
        ("a/b.rs", "use super::A;"),
    ];
    assert_eq!(in_circles(&nested), [""; 0]);
    // Test code may use any module.
    let tests = [
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "#[cfg(test)] mod tests;"),
        ("b/tests.rs", "mod more;"),
        ("b/tests/more.rs", "use crate::a::A;"),
    ];
    assert_eq!(in_circles(&tests), [""; 0]);

    assert_eq!(circles(&TREE), [""; 0]);
}

/// Returns each set of siblings that all reach each other, as `folder: module, module`.
fn circles(tree: &Tree) -> Vec<String> {
    let uses = tree.siblings();
    let reached: BTreeMap<_, _> = uses.keys().map(|from| (from, reach(&uses, from))).collect();
    let mut found = BTreeSet::new();
    for (from, to) in &reached {
        if !to.contains(*from) {
            continue;
        }
        let ring = to
            .iter()
            .filter(|to| reached.get(to).is_some_and(|back| back.contains(*from)));
        let names: Vec<_> = ring
            .filter_map(|module| module.last())
            .map(String::as_str)
            .collect();
        let folder = from[..from.len() - 1].join("::");
        found.insert(format!("{folder}: {}", names.join(", ")));
    }
    found.into_iter().collect()
}

/// Returns the modules that one uses, and those that they use.
fn reach(uses: &BTreeMap<Module, BTreeSet<Module>>, from: &Module) -> BTreeSet<Module> {
    let mut reached = BTreeSet::new();
    let mut unseen = vec![from];
    while let Some(module) = unseen.pop() {
        for used in uses.get(module).into_iter().flatten() {
            if reached.insert(used.clone()) {
                unseen.push(used);
            }
        }
    }
    reached
}

// 3. The machine.

/// The paths by which code reaches the machine.
const OF_THE_MACHINE: [&str; 21] = [
    "Uuid::new_v4",
    "crossbeam_channel::Select",
    "crossbeam_channel::after",
    "crossbeam_channel::select",
    "crossbeam_channel::tick",
    "forkguard",
    "rustix",
    "scheduled_thread_pool",
    "socket2",
    "std::collections::HashMap",
    "std::collections::HashSet",
    "std::env",
    "std::hash::DefaultHasher",
    "std::hash::RandomState",
    "std::net",
    "std::os",
    "std::process",
    "std::sync",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
];
/// The methods that block on a channel of another crate. Inside, threads wait on what `sys` has.
const BLOCKING: [&str; 3] = ["recv", "recv_deadline", "recv_timeout"];
/// Imports that would hide such a path.
const WHOLE: [&str; 7] = [
    "std::*",
    "std::collections",
    "std::collections::*",
    "std::hash",
    "std::hash::*",
    "std::time",
    "std::time::*",
];
/// Parts of these that are plain data.
const PLAIN: [&str; 2] = ["std::net::IpAddr", "std::net::SocketAddr"];
/// Where a module may use one of these all the same: r2d2 needs a thread of that crate, and the deadline of a program is an `Instant`.
const MAY_USE: [(&str, &str); 2] = [
    ("store::server::places", "scheduled_thread_pool"),
    ("lock", "std::time::Instant"),
];

#[test]
fn only_one_module_touches_the_machine() {
    let found = |path, text: &str| uses_of_the_machine(&Source::new(path, text));
    for bad in [
        "use std::sync::Arc;",
        "use std::{fmt, thread};",
        "use core::sync::atomic::AtomicBool;",
        "fn f() { std::thread::yield_now() }",
        "fn f() { assert!(::std::thread::panicking()) }",
        "use std::{collections::HashMap, fmt};",
        "use std::time::{Duration, Instant};",
        "fn f() { uuid::Uuid::new_v4() }",
        "fn f() { Uuid::new_v4() }",
        "use rustix::event::poll;",
        "fn f(_: std::net::TcpStream) {}",
        "use scheduled_thread_pool::ScheduledThreadPool;",
        "use std::time;",
        "use std::collections::*;",
        "fn f(lost: Receiver<Lost>) { lost.recv().ok(); }",
        "use crossbeam_channel::select;",
    ] {
        assert_eq!(found("core/queue.rs", bad).len(), 1, "{bad}");
        assert_eq!(found("sys/thread.rs", bad), [""; 0], "{bad}");
        assert_eq!(found("testing/node.rs", bad), [""; 0], "{bad}");
    }
    let good = "use crate::sys::{Arc, thread}; use std::time::Duration; use std::net::IpAddr;";
    assert_eq!(found("guard.rs", good), [""; 0]);
    let deadline = "fn f(_: std::time::Instant) {}";
    assert_eq!(found("lock/mutex.rs", deadline), [""; 0]);
    assert_eq!(found("store/api.rs", deadline).len(), 1);

    for source in TREE.sources() {
        assert_eq!(uses_of_the_machine(source), [""; 0], "{}", source.path);
    }
}

fn uses_of_the_machine(source: &Source) -> Vec<String> {
    let module = source.module.join("::");
    let is_exempt = |name: &&str| source.module.first().is_some_and(|first| first == *name);
    if ["sys"].iter().chain(&TEST_CODE).any(is_exempt) {
        return Vec::new();
    }
    let is_below = |path: &str, above: &str| {
        let rest = path.strip_prefix(above);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let libraries = [
        "Uuid",
        "alloc",
        "core",
        "crossbeam_channel",
        "forkguard",
        "rustix",
        "scheduled_thread_pool",
        "socket2",
        "std",
        "uuid",
    ];
    let used = libraries
        .into_iter()
        .flat_map(|library| source.paths_from(library))
        .filter(|path| {
            let path = match path.split_once("::") {
                Some(("core" | "alloc", rest)) => format!("std::{rest}"),
                Some(("uuid", rest)) => rest.to_owned(),
                _ => path.clone(),
            };
            let touches = OF_THE_MACHINE.iter().any(|of_it| is_below(&path, of_it))
                || WHOLE.contains(&&*path);
            let is_plain = PLAIN.iter().any(|plain| is_below(&path, plain));
            let is_allowed =
                |(by, what): &(&str, &str)| is_below(&module, by) && is_below(&path, what);
            touches && !is_plain && !MAY_USE.iter().any(is_allowed)
        });
    let called = source.called.iter().cloned();
    let waits = called.filter(|method| BLOCKING.contains(&method.as_str()));
    used.chain(waits).collect()
}

// 4. The encoding of messages.

#[test]
fn only_the_store_encodes_messages() {
    for bad in ["use redis::Value;", "use crate::script::{By, Wire};"] {
        let encoding = |path| uses_of_encoding(&Tree::new(&[(path, bad)]));
        assert_ne!(encoding("core/queue.rs"), [""; 0], "{bad}");
        assert_ne!(encoding("message/call.rs"), [""; 0], "{bad}");
        assert_eq!(encoding("store/topology/link.rs"), [""; 0], "{bad}");
        assert_eq!(encoding("script/mutex.rs"), [""; 0], "{bad}");
    }
    assert_eq!(uses_of_encoding(&TREE), [""; 0]);
}

fn uses_of_encoding(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for source in tree.sources() {
        let module = source.module.first().map_or("", String::as_str);
        if ["script", "store", "fuzzing"].contains(&module) {
            continue;
        }
        let own = tree.paths_of(source);
        let scripts = own
            .iter()
            .filter(|path| path.first().is_some_and(|it| it == "script"));
        found.extend(scripts.map(|path| format!("{} uses {}", source.path, path.join("::"))));
        // The redis crate reads the URLs of servers.
        if module != "config" {
            let foreign = source.paths_from("redis");
            found.extend(
                foreign
                    .iter()
                    .map(|path| format!("{} uses {path}", source.path)),
            );
        }
    }
    found
}

// 5. The length of files.

#[test]
fn no_file_is_long() {
    let lines = "fn f() {}\n".repeat(LONGEST_FILE);
    let tests = "#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n";
    let long = |text: &str| too_long(&Tree::new(&[("a.rs", text)]));
    assert_eq!(long(&(lines.clone() + tests)), [""; 0]);
    assert_eq!(long(&(lines.clone() + "\n")), ["a.rs has 701 lines"]);
    let exception = Tree::new(&[(MAY_BE_LONGER[0], &(lines + "\n"))]);
    assert_eq!(too_long(&exception), [""; 0]);

    assert_eq!(too_long(&TREE), [""; 0]);
}

fn too_long(tree: &Tree) -> Vec<String> {
    let sources = tree
        .sources()
        .iter()
        .filter(|source| source.lines > LONGEST_FILE)
        .filter(|source| !MAY_BE_LONGER.contains(&&*source.path));
    sources
        .map(|Source { path, lines, .. }| format!("{path} has {lines} lines"))
        .collect()
}

// 6. Notes.

#[test]
fn no_note_to_do_something_later_is_left() {
    let bad = concat!("// TO", "DO: more\n// FIX", "ME\nfn f() {}");
    assert_eq!(notes(bad).len(), 2);

    let command_line = files_in("src/bin", "rs");
    for (path, text) in files("rs").iter().chain(&files("lua")).chain(&command_line) {
        assert_eq!(notes(text), [""; 0], "{path}");
    }
}

fn notes(text: &str) -> Vec<&'static str> {
    // Each is written in two parts, so that a search for notes does not find this line.
    let notes = [concat!("TO", "DO"), concat!("FIX", "ME")];
    notes
        .into_iter()
        .filter(|note| text.contains(note))
        .collect()
}

// 7. The heads of the Lua scripts.

#[test]
fn every_script_documents_its_arguments_and_why_it_may_be_repeated() {
    let good =
        "-- Does.\n--\n-- KEYS  1\n-- ARGV  1\n-- Reply 1\n-- Idempotent because it is.\nreturn 1";
    assert_eq!(missing("script/a.lua", good), [""; 0]);
    for part in ["KEYS", "ARGV", "Reply", "dempotent because"] {
        assert_eq!(missing("script/a.lua", &good.replace(part, "")), [part]);
    }
    // The head ends at the first line that is no comment.
    let late = format!("return 1\n{good}");
    assert_eq!(missing("script/a.lua", &late).len(), 4);
    assert_eq!(missing("script/queue.lua", good).len(), 1);
    assert_eq!(missing("script/queue.lua", "-- A\n-- Shared: b").len(), 1);
    assert_eq!(missing("script/mutex_acquire.lua", good).len(), 1);

    for (path, text) in files("lua") {
        assert_eq!(missing(&path, &text), [""; 0], "{path}");
    }
}

/// Returns what the head of a script does not say.
fn missing(path: &str, text: &str) -> Vec<&'static str> {
    let head: String = text
        .lines()
        .take_while(|line| line.starts_with("--"))
        .collect::<Vec<_>>()
        .join("\n");
    let file = path.rsplit('/').next().unwrap_or_default();
    let wanted: &[_] = match file {
        // Parts of several scripts.
        "record.lua"
        | "fence.lua"
        | "value.lua"
        | "queue.lua"
        | "queue_next.lua"
        | "queue_waiter.lua"
        | "gap.lua"
        | "recall.lua"
        | "batch.lua"
        | "share.lua"
        | "quorum_force_release.lua"
        | "quorum_keep.lua"
        | "quorum_fence.lua"
        | "quorum_share.lua"
        | "quorum_turn.lua" => &["-- Shared: "],
        // The second half of other scripts.
        "mutex_acquire_held.lua" | "mutex_acquire.lua" => {
            &["KEYS, ARGV and reply as in mutex_acquire_free.lua"]
        }
        "mutex_hand_over.lua" => &["KEYS, ARGV and reply as in mutex_hand_over_by_message.lua"],
        "multi_acquire.lua" => &["KEYS, ARGV and reply as in multi_acquire_free.lua"],
        "multi_release.lua" => &["KEYS, ARGV and reply as in multi_release_plain.lua"],
        "share_acquire.lua" => &["KEYS, ARGV and reply as in share_acquire_free.lua"],
        "share_release.lua" => &["KEYS, ARGV and reply as in share_release_plain.lua"],
        "quorum_acquire.lua" => &["KEYS, ARGV and reply as in quorum_acquire_free.lua"],
        "quorum_release.lua" => &["KEYS, ARGV and reply as in quorum_release_plain.lua"],
        _ => &["KEYS", "ARGV", "Reply", "dempotent because"],
    };
    wanted
        .iter()
        .copied()
        .filter(|part| !head.contains(part) || (part.starts_with("--") && !head.starts_with(part)))
        .collect()
}

// 8. The names of types.

#[test]
fn no_two_types_have_one_name() {
    let twice = |files: &[(&str, &str)]| types_of_one_name(&Tree::new(files));
    let files = [
        (
            "a.rs",
            "struct A; enum B {} impl T for A { type Output = u8; }",
        ),
        (
            "b.rs",
            "type A = u8; fn f() { struct B; } #[cfg(test)] mod tests { struct C; }",
        ),
        ("c.rs", "trait C { type Output; } #[cfg(test)] struct D;"),
        ("sys/locks.rs", "struct D;"),
        ("d.rs", "struct D;"),
    ];
    assert_eq!(twice(&files), ["A: a.rs, b.rs", "B: a.rs, b.rs"]);
    assert_eq!(
        twice(&[("a.rs", "struct A; mod b { struct A; }")]),
        ["A: a.rs, a.rs"]
    );

    assert_eq!(types_of_one_name(&TREE), [""; 0]);
}

fn types_of_one_name(tree: &Tree) -> Vec<String> {
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    // `sys::locks` has the names of the standard library, which it stands for.
    for source in tree
        .sources()
        .iter()
        .filter(|source| source.path != "sys/locks.rs")
    {
        for name in &source.types {
            files.entry(name).or_default().push(&source.path);
        }
    }
    let twice = files.into_iter().filter(|(_, files)| files.len() > 1);
    twice
        .map(|(name, files)| format!("{name}: {}", files.join(", ")))
        .collect()
}

// 9. Uses of modules above.

#[test]
fn no_module_uses_an_item_of_a_module_above() {
    let above = |files: &[(&str, &str)]| uses_of_modules_above(&Tree::new(files));
    let files = [
        (
            "a/mod.rs",
            "mod b; mod c; pub(crate) use b::B; pub(crate) struct A; #[cfg(test)] mod tests;",
        ),
        (
            "a/b.rs",
            "use super::A; pub(crate) struct B; mod d { use super::B; }",
        ),
        (
            "a/c.rs",
            "use super::B; use crate::a::b::B as C; #[cfg(test)] mod tests { use crate::a::A; }",
        ),
        ("a/tests.rs", "use super::*;"),
        (
            "a/b/e.rs",
            "fn f() { crate::a::g(); assert!(super::super::c::h()); }",
        ),
    ];
    assert_eq!(above(&files), ["a::b uses a::A", "a::b::e uses a::g"]);

    assert_eq!(uses_of_modules_above(&TREE), [""; 0]);
}

fn uses_of_modules_above(tree: &Tree) -> Vec<String> {
    let found = tree.uses_of_modules_above().into_iter();
    found
        .map(|(from, _, path)| format!("{} uses {path}", from.join("::")))
        .collect()
}

// 10. Methods that ARCHITECTURE.md names.

#[test]
fn every_method_that_the_architecture_names_exists() {
    let files = [(
        "a.rs",
        "impl<T> A<T> { fn f() {} #[cfg(test)] fn g() {} } enum B { C }",
    )];
    let tree = Tree::new(&files);
    let missing = |page| missing_methods(&tree, page);
    assert_eq!(missing("`A::f` `B::C` `A` a::b `a::b`"), [""; 0]);
    assert_eq!(
        missing("`A::g`, and `A::h()` of `B::f`"),
        ["A::g", "A::h", "B::f"]
    );

    let page = include_str!("../../ARCHITECTURE.md");
    assert_eq!(missing_methods(&TREE, page), [""; 0]);
}

/// Returns each `Type::method` of a page that is not in the tree.
fn missing_methods(tree: &Tree, page: &str) -> Vec<String> {
    let sources = tree.sources().iter();
    let members: BTreeSet<_> = sources.flat_map(|source| &source.members).collect();
    let code = page.split('`').skip(1).step_by(2);
    let named = code.filter_map(|code| {
        let name: &str = code.split(['(', ' ']).next()?;
        let is_method = name.starts_with(char::is_uppercase) && name.matches("::").count() == 1;
        is_method.then(|| name.to_owned())
    });
    named.filter(|name| !members.contains(name)).collect()
}

// 11. Keys of Lua scripts.

/// Commands whose first argument is no key.
const WITHOUT_KEYS: [&str; 3] = ["TIME", "PUBLISH", "PUBSUB"];

#[test]
fn every_key_of_a_script_is_passed_in_keys() {
    for good in [
        "redis.call('GET', KEYS[i + 1])",
        "redis.pcall('DEL', lock, queue)",
        "redis.call('DEL', unpack(keys))",
        "redis.call('PUBLISH', 'a:' .. b, c)",
        "redis.call('SET', lock, owner .. MARK)",
        "-- redis.call('GET', lock .. ':fence')",
    ] {
        assert_eq!(keys_that_are_made(good), [""; 0], "{good}");
    }
    for bad in [
        "redis.call('GET', KEYS[1] .. ':fence')",
        "redis.pcall('GET', 'leasehold:' .. lock)",
        "redis.call('GET', ARGV[1])",
        "redis.call('GET', name_of(lock))",
        "local fence = lock .. ':fence' redis.call('GET', lock)",
        "local fence = 'fence:' .. KEYS[2]",
    ] {
        assert_ne!(keys_that_are_made(bad), [""; 0], "{bad}");
    }
    for (path, text) in files("lua") {
        assert_eq!(keys_that_are_made(&text), [""; 0], "{path}");
    }
}

/// Returns the places at which a script uses a key that is not simply one of `KEYS`.
fn keys_that_are_made(text: &str) -> Vec<String> {
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"));
    let code = code.collect::<Vec<_>>().join("\n");
    let is_name = |text: &str| {
        text.chars()
            .all(|letter| letter.is_alphanumeric() || letter == '_')
    };
    let calls = ["redis.call('", "redis.pcall('"];
    let calls = calls.into_iter().flat_map(|call| code.split(call).skip(1));
    let keys = calls.filter_map(|call| {
        let (command, rest) = call.split_once('\'')?;
        let key = rest.strip_prefix(", ")?;
        (!WITHOUT_KEYS.contains(&command)).then_some(key)
    });
    let (mut names, mut made) = (BTreeSet::from(["KEYS"]), Vec::new());
    for key in keys {
        let end = key.find([',', ')', '\n']).unwrap_or(key.len());
        let key = key[..end].trim();
        let list = key.strip_prefix("unpack(").unwrap_or(key);
        if list.starts_with("KEYS[") && list.ends_with(']') {
        } else if is_name(list) {
            names.insert(list);
        } else {
            made.push(key.to_owned());
        }
    }
    // A text that is made of a key may be the name of another one.
    for part in code.split("..").collect::<Vec<_>>().windows(2) {
        let before = part[0].trim_end();
        let before = match before.strip_suffix(']') {
            Some(indexed) => indexed.rsplit('[').nth(1).unwrap_or(indexed),
            None => before,
        };
        let before = before
            .rsplit(|letter: char| !letter.is_alphanumeric() && letter != '_')
            .next();
        let after = part[1].trim_start();
        let after = after
            .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
            .next();
        made.extend(
            [before, after]
                .into_iter()
                .flatten()
                .filter(|name| names.contains(name))
                .map(|name| format!("a text made of {name}")),
        );
    }
    made
}

// 12. The number of lines.

/// The most lines outside of test code, of `src/` (`""`) and of folders in it. A change that needs more must say why a
/// user wants it.
const MOST_LINES: [(&str, usize); 4] = [
    ("", 37_570),
    ("store", 14_050),
    ("engine", 7_600),
    ("lock", 1_700),
];
/// The modules of the fuzzer and of the test kit, which are test code too.
const TEST_CODE: [&str; 5] = [
    "fuzzing",
    "moved_by_test",
    "of_test",
    "test_machine",
    "testing",
];
const MOST_LINES_OF_LUA: usize = 2_420;

#[test]
fn lines_of_code_stay_within_their_limits() {
    let code = || {
        let sources = TREE.sources().iter();
        let is_of_tests = |it: &String| TEST_CODE.contains(&it.as_str());
        sources.filter(move |source| !source.module.iter().any(is_of_tests))
    };
    for (folder, most) in MOST_LINES {
        let inside = code().filter(|source| {
            folder.is_empty() || source.module.first().is_some_and(|it| it == folder)
        });
        let lines: usize = inside.map(|source| source.lines).sum();
        println!("src/{folder}: {lines} of at most {most} lines");
        assert!(
            lines <= most,
            "src/{folder} has {lines} lines, and may have {most}"
        );
    }
    let lua = files("lua");
    let lines: usize = lua.iter().map(|(_, text)| text.lines().count()).sum();
    println!("Lua: {lines} of at most {MOST_LINES_OF_LUA} lines");
    assert!(lines <= MOST_LINES_OF_LUA, "{lines} lines of Lua");
}

/// Returns the files of the library with an extension, each by its path below `src/`, and its text.
fn files(extension: &str) -> Vec<(String, String)> {
    let mut files = files_in("src", extension);
    files.retain(|(path, _)| !path.starts_with("bin/"));
    files
}

fn files_in(folder: &str, extension: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut found = Vec::new();
    let mut directories = vec![root.clone()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|it| it == extension) {
                let text = fs::read_to_string(&path).expect("a source is text");
                let path = path.strip_prefix(&root).expect("it is below the folder");
                found.push((path.to_string_lossy().into_owned(), text));
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no .{extension} in {}", root.display());
    found
}
