//! Rules of this crate that no compiler keeps.

use std::fs;
use std::path::{Path, PathBuf};

/// The floors: a file uses lower ones, and its own. `None` where somebody has added a module without a place.
fn floor(module: &str) -> Option<u32> {
    Some(match module {
        "error" | "name" | "clock" | "process" | "sync" | "random" | "logging" | "panics" => 1,
        "config" | "event" | "stats" | "claim" | "cancel" => 2,
        "script" => 3,
        "core" => 4,
        "store" => 5,
        "engine" => 6,
        "guard" => 7,
        "lock" => 8,
        "manager" | "builder" | "admin" => 9,
        "lib" | "fuzzing" => 10,
        _ => return None,
    })
}

/// What stands before that which is compiled for tests only.
const TEST: &str = "#[cfg(test)]";

const LONGEST_FILE: usize = 600;

/// A source file.
struct Source {
    /// From `src/` on.
    path: String,
    /// Its text without comments, the insides of strings, and what is compiled for tests only. It has the same
    /// lines.
    code: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.into(),
            code: without_tests(&bare(text)),
        }
    }

    /// The module right under the crate that it belongs to.
    fn module(&self) -> &str {
        let first = self.path.split('/').next().unwrap_or_default();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    fn uses_of_higher_floors(&self) -> Vec<String> {
        if self.path.starts_with("bin/") {
            // A program: the public face only, so nothing of the inside at all.
            return paths(&self.code, "crate");
        }
        let Some(own) = floor(self.module()) else {
            return vec![format!("{}: a module without a floor", self.module())];
        };
        paths(&self.code, "crate")
            .into_iter()
            // What is no module is exported from the top.
            .filter(|path| floor(head(path)).unwrap_or(10) > own)
            .collect()
    }

    fn uses_of_the_standard_library(&self) -> Vec<String> {
        if self.path == "sync.rs" {
            return Vec::new();
        }
        paths(&self.code, "std")
            .into_iter()
            .filter(|path| ["sync", "thread"].contains(&head(path)))
            .collect()
    }

    /// A record that is logged past `logging` would have another target, and a panic of the logger would not be caught.
    fn uses_of_the_logger(&self) -> Vec<String> {
        if self.path == "logging.rs" {
            return Vec::new();
        }
        paths(&self.code, "log")
    }

    /// How many lines are not for tests only.
    fn length(&self) -> usize {
        let end = self.code.trim_end().len();
        self.code[..end].lines().count()
    }
}

fn notes_to_self(text: &str) -> Vec<&'static str> {
    // Each in two parts, so that this file is not one of the offenders.
    let notes = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("to", "do!"),
        concat!("unimpl", "emented!"),
    ];
    notes
        .into_iter()
        .filter(|note| text.contains(note))
        .collect()
}

/// The files that a file declares as modules for tests only: `#[cfg(test)] mod tests;`.
fn test_files(path: &str, bare: &str) -> Vec<String> {
    let dir = match path.strip_suffix(".rs") {
        Some("lib") => "",
        Some(stem) => stem
            .strip_suffix("mod")
            .unwrap_or(stem)
            .trim_end_matches('/'),
        None => return Vec::new(),
    };
    bare.match_indices(TEST)
        .filter_map(|(at, _)| {
            let item = bare[at + TEST.len()..].trim_start();
            let name = item.split_once("mod ")?.1.split_once(';')?.0;
            // Of a module with a body the name would be far too long.
            let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_');
            is_name.then(|| format!("{dir}/{name}").trim_start_matches('/').to_owned())
        })
        .flat_map(|stem| [format!("{stem}.rs"), format!("{stem}/mod.rs")])
        .collect()
}

fn head(path: &str) -> &str {
    path.split("::").next().unwrap_or_default()
}

/// Rust without its comments and the insides of its strings: they become spaces, and lines stay lines.
fn bare(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(length) = string(rest, out.last()) {
            length
        } else {
            out.push(bytes[at]);
            at += 1;
            continue;
        };
        let blank = |byte: &u8| if *byte == b'\n' { b'\n' } else { b' ' };
        out.extend(bytes[at..at + length].iter().map(blank));
        at += length;
    }
    String::from_utf8(out).expect("whole characters are copied or blanked")
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    loop {
        let rest = &text.as_bytes()[at..];
        match rest {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] if depth == 1 => return at + 2,
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            [] => return at,
            _ => at += 1,
        }
    }
}

/// The length of the string or character that `text` begins with, if it does.
fn string(text: &str, before: Option<&u8>) -> Option<usize> {
    let bytes = text.as_bytes();
    let in_a_word = before.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    match bytes[0] {
        b'r' if !in_a_word || before == Some(&b'b') => {
            let hashes = text[1..].len() - text[1..].trim_start_matches('#').len();
            let opened = text[1 + hashes..].strip_prefix('"')?;
            let close = format!("\"{}", &text[1..=hashes]);
            let length = opened.find(&close).unwrap_or(opened.len() - close.len());
            Some(2 + hashes + length + close.len())
        }
        b'"' => Some(quoted(bytes, b'"')),
        // A lifetime has no second quote right behind its first character.
        b'\'' if bytes.get(1) == Some(&b'\\') => Some(quoted(bytes, b'\'')),
        b'\'' => {
            let character = text[1..].chars().next()?;
            let end = 1 + character.len_utf8();
            (bytes.get(end) == Some(&b'\'')).then_some(end + 1)
        }
        _ => None,
    }
}

fn quoted(bytes: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// Bare code without the items under `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    let mut out = code.to_owned();
    while let Some(start) = out.find(TEST) {
        let item = &out[start..];
        let mut depth = 0;
        let end = item.char_indices().find_map(|(at, c)| {
            match c {
                '{' | '(' | '[' => depth += 1,
                '}' | ')' | ']' => depth -= 1,
                _ => {}
            }
            let over = at >= TEST.len() && depth == 0 && (c == '}' || c == ';');
            over.then_some(at + 1)
        });
        let end = start + end.unwrap_or(item.len());
        let blank: String = out[start..end]
            .chars()
            .filter_map(|c| match c {
                '\n' => Some('\n'),
                _ => None,
            })
            .collect();
        out.replace_range(start..end, &blank);
    }
    out
}

/// All paths in bare code that begin with `root`, groups spelt out, without `root` itself.
fn paths(code: &str, root: &str) -> Vec<String> {
    let start = format!("{root}::");
    let mut found = Vec::new();
    for (at, _) in code.match_indices(&start) {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$' || c == ':') {
            // The end of another word, or of another path: `$crate` is for whoever uses a macro.
            continue;
        }
        tree(&code[at + start.len()..], "", &mut found);
    }
    found
}

/// Spells out one tree of paths. Returns what is behind it.
fn tree<'a>(code: &'a str, stem: &str, found: &mut Vec<String>) -> &'a str {
    let code = code.trim_start();
    if let Some(mut group) = code.strip_prefix('{') {
        loop {
            group = group.trim_start();
            if let Some(rest) = group.strip_prefix('}') {
                return rest;
            }
            if let Some(rest) = group.strip_prefix(',') {
                group = rest;
                continue;
            }
            let rest = tree(group, stem, found);
            if rest.len() == group.len() {
                return rest;
            }
            group = rest;
        }
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '*';
    let end = code.find(|c| !is_word(c)).unwrap_or(code.len());
    let (word, rest) = code.split_at(end);
    let stem = format!("{stem}{word}");
    if let Some(deeper) = rest.trim_start().strip_prefix("::") {
        return tree(deeper, &format!("{stem}::"), found);
    }
    found.push(stem);
    match rest.trim_start().strip_prefix("as ") {
        Some(alias) => alias.trim_start().trim_start_matches(is_word),
        None => rest,
    }
}

/// What is missing in the head of a script.
fn missing(path: &str, text: &str) -> Vec<&'static str> {
    let head: String = text
        .lines()
        .take_while(|line| line.starts_with("--"))
        .collect::<Vec<_>>()
        .join("\n");
    let file = path.rsplit('/').next().unwrap_or_default();
    let wanted: &[_] = match file {
        // Parts of several scripts.
        "fence.lua" | "value.lua" | "queue.lua" | "gap.lua" | "share.lua" => &["-- Shared: "],
        // The second half of others.
        "mutex_wait.lua" => &["KEYS, ARGV and reply as in mutex_take.lua"],
        _ => &["KEYS", "ARGV", "Reply", "dempotent because"],
    };
    wanted
        .iter()
        .copied()
        .filter(|part| !head.contains(part) || (part.starts_with("--") && !head.starts_with(part)))
        .collect()
}

fn files(extension: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    collect(&root, &mut found);
    let mut files: Vec<_> = found
        .into_iter()
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .map(|path| {
            let text = fs::read_to_string(&path).expect("it is text");
            let path = path.strip_prefix(&root).expect("it is in there");
            (path.to_string_lossy().into_owned(), text)
        })
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no .{extension} in {}", root.display());
    files
}

fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// All sources but those for tests only.
fn sources() -> Vec<Source> {
    let files = files("rs");
    let for_tests: Vec<_> = files
        .iter()
        .flat_map(|(path, text)| test_files(path, &bare(text)))
        .collect();
    files
        .iter()
        .filter(|(path, _)| !for_tests.contains(path) && !is_below(path, &for_tests))
        .map(|(path, text)| Source::new(path, text))
        .collect()
}

/// Whether it is a module of one of these: `a/tests/b.rs` of `a/tests.rs`.
fn is_below(path: &str, modules: &[String]) -> bool {
    let stems = modules
        .iter()
        .filter_map(|module| module.strip_suffix(".rs"));
    stems
        .map(|stem| stem.strip_suffix("/mod").unwrap_or(stem))
        .any(|stem| {
            path.strip_prefix(stem)
                .is_some_and(|rest| rest.starts_with('/'))
        })
}

#[test]
fn a_file_uses_lower_floors_and_its_own() {
    let bad = "
        // use crate::manager;
        use crate::{clock::Time, engine::{Engine, names::Entry as E}, store};
        fn f(_: crate::guard::Lease) -> crate::Error { \"crate::lock\"; 'c'; f::<'_>(r#\"crate::admin\"#) }
        #[cfg(test)]
        mod tests { use crate::manager::LockManager; fn t() { if a { b[1]; } } }
        use crate::config;
    ";
    let found = Source::new("core/queue.rs", bad).uses_of_higher_floors();
    assert_eq!(
        found,
        [
            "engine::Engine",
            "engine::names::Entry",
            "store",
            "guard::Lease",
            "Error"
        ]
    );
    assert_eq!(
        Source::new("clock.rs", bad).uses_of_higher_floors().len(),
        6
    );
    assert_eq!(
        Source::new("novelty/mod.rs", "")
            .uses_of_higher_floors()
            .len(),
        1
    );
    assert!(
        Source::new("manager.rs", bad.replace("Error", "x::Y").as_str())
            .uses_of_higher_floors()
            .contains(&"x::Y".to_owned())
    );

    let with_files = "#[cfg(test)]\nmod tests;\n#[cfg(test)] pub(crate) mod m { }\nmod n;";
    let declared = |path: &str| test_files(path, with_files);
    assert_eq!(declared("lib.rs"), ["tests.rs", "tests/mod.rs"]);
    assert_eq!(declared("a.rs"), ["a/tests.rs", "a/tests/mod.rs"]);
    assert_eq!(declared("a/mod.rs"), ["a/tests.rs", "a/tests/mod.rs"]);
    assert_eq!(declared("a/b.rs"), ["a/b/tests.rs", "a/b/tests/mod.rs"]);
    assert!(is_below("a/tests/b.rs", &declared("a.rs")));
    assert!(!is_below("a/test.rs", &declared("a.rs")));
    assert!(!is_below("a/testsuite/b.rs", &declared("a.rs")));

    for source in sources() {
        let higher = source.uses_of_higher_floors();
        assert!(higher.is_empty(), "{} uses {higher:?}", source.path);
    }
}

#[test]
fn only_one_file_knows_the_standard_librarys_threads() {
    for bad in [
        "use std::sync::Arc;",
        "use std::{fmt, thread};",
        "fn f() { std::thread::yield_now() }",
        "use std::{collections::HashMap, sync::{Mutex, atomic::AtomicBool}};",
    ] {
        let found = Source::new("core/queue.rs", bad).uses_of_the_standard_library();
        assert!(!found.is_empty(), "{bad}");
        let found = Source::new("sync.rs", bad).uses_of_the_standard_library();
        assert!(found.is_empty(), "{bad}");
    }
    let good = "use crate::sync::{Arc, thread}; use std::time::Duration;";
    assert!(
        Source::new("guard.rs", good)
            .uses_of_the_standard_library()
            .is_empty()
    );

    for source in sources() {
        let own = source.uses_of_the_standard_library();
        assert!(own.is_empty(), "{} uses std::{own:?}", source.path);
    }
}

#[test]
fn only_one_module_logs() {
    for bad in ["log::warn!(\"x\");", "use log::{Level, warn};"] {
        let found = Source::new("engine/watch.rs", bad).uses_of_the_logger();
        assert!(!found.is_empty(), "{bad}");
        let found = Source::new("logging.rs", bad).uses_of_the_logger();
        assert!(found.is_empty(), "{bad}");
    }
    for source in sources() {
        let own = source.uses_of_the_logger();
        assert!(own.is_empty(), "{} uses log::{own:?}", source.path);
    }
}

#[test]
fn no_file_is_long() {
    let lines = |n| "fn f() {}\n".repeat(n);
    let tests = "#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n";
    assert_eq!(Source::new("a.rs", &lines(601)).length(), 601);
    assert_eq!(Source::new("a.rs", &(lines(7) + tests)).length(), 7);

    for source in sources() {
        let length = source.length();
        assert!(length <= LONGEST_FILE, "{}: {length} lines", source.path);
    }
}

#[test]
fn nothing_is_left_to_do() {
    let bad = concat!("// TO", "DO: more\nfn f() { to", "do!() }");
    assert_eq!(notes_to_self(bad).len(), 2);

    for (path, text) in files("rs").iter().chain(&files("lua")) {
        let notes = notes_to_self(text);
        assert!(notes.is_empty(), "{path}: {notes:?}");
    }
}

#[test]
fn every_script_says_what_it_is_called_with_and_why_it_may_be_repeated() {
    let good =
        "-- Does.\n--\n-- KEYS  1\n-- ARGV  1\n-- Reply 1\n-- Idempotent because it is.\nreturn 1";
    assert!(missing("script/a.lua", good).is_empty());
    for part in ["KEYS", "ARGV", "Reply", "dempotent because"] {
        assert_eq!(missing("script/a.lua", &good.replace(part, "")), [part]);
    }
    // In its head, and not somewhere below.
    let late = format!("return 1\n{good}");
    assert_eq!(missing("script/a.lua", &late).len(), 4);
    assert_eq!(missing("script/queue.lua", good).len(), 1);
    assert_eq!(missing("script/queue.lua", "-- A\n-- Shared: b").len(), 1);
    assert_eq!(missing("script/mutex_wait.lua", good).len(), 1);

    for (path, text) in files("lua") {
        let missing = missing(&path, &text);
        assert!(missing.is_empty(), "{path} does not say {missing:?}");
    }
}
