//! The options and the variables that say where the servers are, and the other options that cannot be used.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{Server, name, unused_url};
use crate::{err, leasehold, out};

/// The variables with a URL.
const VARIABLES: [&str; 3] = ["LEASEHOLD_URL", "LEASEHOLD_URL_FILE", "REDIS_URL"];
const NO_TEXT: &[u8] = b"redis://h/\xff";

/// Options, and variables with their values.
type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)]);

/// Files of a test.
struct Files(PathBuf);

impl Files {
    fn new() -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name("settings").replace(':', "-"));
        fs::create_dir_all(&dir).expect("the directory for tests exists");
        Self(dir)
    }

    /// Writes a file, and returns its path.
    fn write(&self, file: &str, text: impl AsRef<[u8]>) -> String {
        let path = self.0.join(file);
        fs::write(&path, text).expect("the directory exists");
        path.display().to_string()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the command line with these variables alone.
fn with<V: AsRef<OsStr>>(variables: &[(&str, V)]) -> Command {
    let mut command = leasehold("");
    for variable in VARIABLES {
        command.env_remove(variable);
    }
    for (name, value) in variables {
        command.env(name, value);
    }
    command
}

#[track_caller]
fn run(command: &mut Command, arguments: &[&str]) -> Output {
    command.args(arguments).output().expect("it was built")
}

#[track_caller]
fn is_refused(output: &Output, what: &str) {
    let said = err(output);
    assert_eq!(output.status.code(), Some(64), "{what}: {said}");
    assert_eq!(out(output), "", "{what}");
    assert_ne!(said, "", "{what}");
}

/// A server is there that would be used if the variable or the option counted as absent.
#[test]
fn a_setting_that_cannot_be_used_is_an_error_and_never_absent() {
    let server = Server::start();
    let url = server.url();
    let files = Files::new();
    let missing = files.0.join("missing").display().to_string();
    let directory = files.0.display().to_string();
    let empty = files.write("empty", "\n");
    let two_lines = files.write("two-lines", format!("{url}\n{url}\n"));
    let no_text = files.write("no-text", NO_TEXT);
    let command = ["run", "n", "--", "echo", "ran"];

    let variables: [(&str, &[u8]); 15] = [
        ("LEASEHOLD_URL", b""),
        ("LEASEHOLD_URL", b" "),
        ("LEASEHOLD_URL", NO_TEXT),
        ("LEASEHOLD_URL", b"nonsense"),
        ("LEASEHOLD_URL", b"redis://h/?no_such_setting=1"),
        ("LEASEHOLD_URL_FILE", b""),
        ("LEASEHOLD_URL_FILE", b"/\xff"),
        ("LEASEHOLD_URL_FILE", missing.as_bytes()),
        ("LEASEHOLD_URL_FILE", directory.as_bytes()),
        ("LEASEHOLD_URL_FILE", empty.as_bytes()),
        ("LEASEHOLD_URL_FILE", two_lines.as_bytes()),
        ("LEASEHOLD_URL_FILE", no_text.as_bytes()),
        ("REDIS_URL", b""),
        ("REDIS_URL", NO_TEXT),
        ("REDIS_URL", b"nonsense"),
    ];
    for (variable, value) in variables {
        let value = OsStr::from_bytes(value);
        let mut leasehold = with(&[("REDIS_URL", url.as_str())]);
        let output = run(leasehold.env(variable, value), &command);
        is_refused(&output, &format!("{variable}={}", value.display()));
    }
    let both = with(&VARIABLES.map(|variable| (variable, url.as_str())));
    is_refused(&run(&mut { both }, &command), "both variables");
    is_refused(&run(&mut with::<&str>(&[]), &command), "no variable");

    let used = ["--url", &url, "--url-file", &missing];
    let options: [(&[&str], &[u8]); 12] = [
        (&["--url"], b""),
        (&["--url"], NO_TEXT),
        (&["--url"], b"nonsense"),
        (&["--url-file"], b""),
        (&["--url-file"], missing.as_bytes()),
        (&["--url-file"], empty.as_bytes()),
        (&used, b"run"),
        (&["run", "--note"], NO_TEXT),
        (&["run", "--wait"], b""),
        (&["run", "--grace"], NO_TEXT),
        (&["run", "--busy-status"], b"256"),
        (&["run"], NO_TEXT),
    ];
    for (before, value) in options {
        let mut leasehold = with(&[("REDIS_URL", url.as_str())]);
        leasehold.args(before).arg(OsStr::from_bytes(value));
        let rest = if before.contains(&"run") || value == b"run" {
            &command[1..]
        } else {
            &command[..]
        };
        let value = OsStr::from_bytes(value).display();
        is_refused(&run(&mut leasehold, rest), &format!("{before:?} {value}"));
    }
}

/// The limit of the library would end the lock, and not the command.
#[test]
fn the_longest_hold_of_the_url_counts_as_that_of_the_option() {
    let server = Server::start();
    let url = format!("{}?max_hold=1h", server.url());
    let ignore = ["run", "--on-loss", "ignore", "n", "--", "echo", "ran"];
    let output = run(&mut with(&[("LEASEHOLD_URL", url)]), &ignore);
    is_refused(&output, "max_hold and --on-loss ignore");
    assert!(err(&output).contains("max_hold"), "{}", err(&output));
}

#[test]
fn each_way_to_name_the_servers_works_and_the_first_one_counts() {
    let server = Server::start();
    let url = &*server.url();
    let unused = &*unused_url();
    let files = Files::new();
    let file = &*files.write("url", format!("{url}\r\n"));
    let cases: [Case<'_>; 6] = [
        (&["--url", url], &[("LEASEHOLD_URL", unused)]),
        (&["--url", url], &[("LEASEHOLD_URL", "")]),
        (&["--url-file", file], &[("LEASEHOLD_URL", unused)]),
        (&[], &[("LEASEHOLD_URL", url), ("REDIS_URL", unused)]),
        (&[], &[("LEASEHOLD_URL_FILE", file), ("REDIS_URL", unused)]),
        (&[], &[("REDIS_URL", url)]),
    ];
    for (options, variables) in cases {
        let mut leasehold = with(variables);
        leasehold.args(options);
        let output = run(&mut leasehold, &["run", "n", "--", "echo", "ran"]);
        assert_eq!(
            out(&output),
            "ran\n",
            "{options:?} {variables:?}: {}",
            err(&output)
        );
    }
    // A file that can be read once. `doctor` needs the URL twice.
    let script = format!(
        "{} --url-file <(echo {url}) doctor --json | head -n 1",
        env!("CARGO_BIN_EXE_leasehold")
    );
    let output = Command::new("bash")
        .args(["-c", &script])
        .output()
        .expect("the tests need bash");
    assert!(out(&output).starts_with('{'), "{}", err(&output));
}

#[test]
fn a_password_in_the_command_line_is_warned_of_once() {
    let server = Server::with(&["--requirepass", "s3cret"]);
    let url = &*server.url().replace("//", "//:s3cret@");
    let warnings = |output: &Output| err(output).matches("--url-file").count();
    let command = ["n", "--", "true"];
    let of_run = |options: &[&str]| {
        let arguments = [&["--url", url, "run"], options, &command].concat();
        let output = run(&mut with::<&str>(&[]), &arguments);
        assert!(output.status.success(), "{}", err(&output));
        output
    };
    assert_eq!(warnings(&of_run(&[])), 1);
    assert_eq!(warnings(&of_run(&["--quiet"])), 0);
    let text = err(&of_run(&["--json"]));
    let events = text
        .lines()
        .map(|line| -> Value { serde_json::from_str(line).expect(line) });
    let shown = events.filter(|event| event["event"] == "password_shown");
    assert_eq!(shown.count(), 1, "{text}");
    // Each of the others says it in text.
    let output = run(&mut with::<&str>(&[]), &["--url", url, "doctor", "--json"]);
    assert_eq!(warnings(&output), 1, "{}", err(&output));

    let by_variable = with(&[("LEASEHOLD_URL", url)]);
    let output = run(&mut { by_variable }, &["status", "n"]);
    assert_eq!((output.status.code(), warnings(&output)), (Some(0), 0));
    let without = server.url();
    let output = run(&mut with::<&str>(&[]), &["--url", &without, "status", "n"]);
    assert_eq!(warnings(&output), 0, "it has no password: {}", err(&output));
}
