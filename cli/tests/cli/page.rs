//! Runs the commands of docs/cli.md.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{Server, manager, name, wait_until};
use crate::work::{start, write_program};
use crate::{err, out, output};

const PAGE: &str = include_str!("../../../docs/cli.md");
/// The programs of the recipes.
const PROGRAMS: [&str; 9] = [
    "consume", "deploy", "import", "lead", "migrate", "reindex", "report", "serve", "settle",
];

/// Waits until a process hears what is asked of holders. A holder misses a `leasehold request` that comes earlier.
const UNTIL_HEARD: &str = r#"
until_heard() {
    local subscribers=0 port=${LEASEHOLD_URL##*:}
    exec 3<>"/dev/tcp/127.0.0.1/${port%/}"
    until [ "$subscribers" -gt 0 ]; do
        printf 'PUBSUB NUMSUB leasehold:broken\r\n' >&3
        read -r -u 3; read -r -u 3; read -r -u 3
        IFS=$':\r' read -r -u 3 _ subscribers
    done
}"#;

/// Returns the code blocks of the page, each with its language.
fn blocks() -> Vec<(&'static str, &'static str)> {
    let blocks = PAGE.split("```").skip(1).step_by(2);
    blocks.filter_map(|block| block.split_once('\n')).collect()
}

/// Makes a directory with `leasehold` and the programs of the recipes, which print their names.
fn programs() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name("page").replace(':', "-"));
    fs::create_dir_all(&dir).expect("the directory for tests exists");
    for program in PROGRAMS {
        let text = format!("#!/bin/sh\necho ran {program} with $LEASEHOLD_FENCE\n");
        write_program(&dir.join(program), &text);
    }
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_leasehold"), dir.join("leasehold"))
        .expect("it is new");
    dir
}

/// Runs a script with those programs, and returns all its output.
fn bash(script: &str, url: &str, programs: &Path) -> Output {
    let path = std::env::var("PATH").expect("it is set");
    Command::new("bash")
        .args(["-c", &format!("exec 2>&1\n{script}")])
        .env_remove("REDIS_URL")
        .env("LEASEHOLD_URL", url)
        .env("PATH", format!("{}:{path}", programs.display()))
        .output()
        .expect("the tests need bash")
}

/// Returns whether a line is what the page shows. `…` stands for any text.
fn matches(shown: &str, line: &str) -> bool {
    let Some((first, others)) = shown.split_once('…') else {
        return shown == line;
    };
    let Some(mut rest) = line.strip_prefix(first) else {
        return false;
    };
    let (between, last) = others.rsplit_once('…').unwrap_or(("", others));
    for part in between.split('…') {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[test]
fn dots_of_the_page_stand_for_any_text() {
    for (shown, line, expected) in [
        ("a", "a", true),
        ("a", "ab", false),
        ("a…", "a b", true),
        ("a … c", "a b c", true),
        ("a … c", "a b d", false),
        ("a …:…, c … e", "a b:1, c d e", true),
        ("a …:…, c … e", "a b1, c d e", false),
        ("a …:…, c … e", "a b:1, c d f", false),
    ] {
        assert_eq!(matches(shown, line), expected, "{shown} / {line}");
    }
}

/// Runs the commands of a session, and returns the lines that the page shows and that were not printed. Panics if another
/// line was printed.
fn missing_lines(session: &'static str, programs: &Path) -> Vec<&'static str> {
    let server = Server::start();
    let (commands, mut expected): (Vec<_>, Vec<_>) =
        session.lines().partition(|line| line.starts_with("$ "));
    let commands: Vec<_> = commands.into_iter().map(|line| &line[2..]).collect();
    let commands = commands
        .join("\n")
        .replace("\nleasehold request", "\nuntil_heard\nleasehold request");
    let output = bash(
        &format!("{UNTIL_HEARD}\n{commands}"),
        &server.url(),
        programs,
    );
    // Two processes write to the same pipe, in either order.
    for line in out(&output).lines() {
        let place = expected.iter().position(|shown| matches(shown, line));
        let place = place.unwrap_or_else(|| panic!("{line:?} is not in the page:\n{session}"));
        expected.remove(place);
    }
    expected
}

#[test]
fn the_sessions_of_the_page_print_what_it_shows() {
    let programs = programs();
    let sessions: Vec<_> = blocks()
        .into_iter()
        .filter(|(language, _)| *language == "console")
        .collect();
    assert!(sessions.len() >= 5, "{}", sessions.len());
    for (_, session) in sessions {
        let missing = missing_lines(session, &programs);
        assert!(missing.is_empty(), "{missing:?} is missing:\n{session}");
    }
    fs::remove_dir_all(programs).expect("it was made");
}

#[test]
fn the_recipes_of_the_page_run_their_programs() {
    let server = Server::start();
    let programs = programs();
    let mut run = Vec::new();
    for (language, block) in blocks() {
        for line in block.lines().filter(|_| language != "console") {
            let line = line.replace(['[', ']'], "").replace(", ", " ");
            let mut begins = ["leasehold run ", "leasehold elect "].iter();
            let Some(begin) = begins.find_map(|begin| line.find(begin)) else {
                continue;
            };
            let command = line[begin..].split(" && ").next().expect("it is not empty");
            let output = bash(command, &server.url(), &programs);
            assert!(output.status.success(), "{command}: {}", out(&output));
            let printed = out(&output);
            let program = printed.split(' ').nth(1).expect("its name").to_owned();
            assert!(printed.starts_with("ran "), "{command}: {printed}");
            run.push(program);
        }
    }
    run.sort();
    assert_eq!(
        run,
        [
            "consume", "deploy", "import", "lead", "migrate", "reindex", "report", "settle"
        ]
    );
    fs::remove_dir_all(programs).expect("it was made");
}

/// Returns the first block of the page that begins with this text.
fn block(language: &str, begin: &str) -> &'static str {
    let mut blocks = blocks().into_iter();
    let found = blocks.find(|(its, block)| *its == language && block.starts_with(begin));
    found.expect("the page has it").1
}

/// Only the time, the directory of `leasehold` and the place of the file are not as on the page. The namespaces have nothing
/// of the machine's own cron.
#[test]
#[ignore = "root and the package cron: .ci/long runs it"]
fn the_crontab_of_the_page_works_in_a_real_cron() {
    let server = Server::start();
    let programs = programs();
    let begun = programs.join("begun");
    let report = format!("#!/bin/sh\necho $LEASEHOLD_FENCE >{}\n", begun.display());
    fs::write(programs.join("report"), report).expect("it can be written");
    let url = programs.join("url");
    // Cron would end the line at this character.
    fs::write(&url, format!("{}?note=build%207\n", server.url())).expect("it can be written");
    let lines = block("crontab", "PATH=")
        .replace("/home/app/.cargo/bin", &programs.display().to_string())
        .replace("/etc/leasehold/url", &url.display().to_string())
        .replace("\n0 3 * * *", "\n* * * * *");
    let crontab = programs.join("crontab");
    fs::write(&crontab, &lines).expect("it can be written");
    let script = "mount -t tmpfs none /run && mount -t tmpfs none /etc/cron.d && \
        mount -t tmpfs none /var/spool/cron/crontabs && mount --bind /dev/null /etc/crontab && \
        crontab \"$1\" && exec cron -f";
    let mut cron = Command::new("unshare");
    cron.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    cron.args(["sh", "-c", script, "sh"]).arg(&crontab);
    cron.env_remove("REDIS_URL");
    let mut cron = start(&mut cron);
    wait_until("cron has run the program", || {
        assert!(!cron.has_ended(), "cron works, with:\n{lines}");
        fs::read_to_string(&begun).is_ok_and(|fence| fence.trim().parse::<u64>().is_ok())
    });
    let locks = manager(&server.url());
    wait_until("the lock is kept for the other host", || {
        let info = locks.inspect("nightly-report").expect("it answers");
        let mut holders = info.expect("it is kept").holders.into_iter();
        holders.any(|it| it.kept && it.note.as_deref() == Some("build 7"))
    });
    drop(cron);
    fs::remove_dir_all(programs).expect("it was made");
}

#[test]
#[ignore = "the package systemd: .ci/long runs it"]
fn systemd_accepts_the_unit_of_the_page() {
    let programs = programs();
    let unit = block("ini", "[Unit]").replace("/usr/local/bin", &programs.display().to_string());
    let lines = block("ini", "[Service]\nType=notify");
    let verify = |name: &str, unit: &str| {
        let path = programs.join(name);
        fs::write(&path, unit).expect("it can be written");
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--man=no"]).arg(&path);
        let output = verify.output().expect("it is installed");
        // What it ignores is told, with the status 0.
        (output.status.success(), err(&output))
    };
    let accepted = (true, String::new());
    assert_eq!(verify("plain.service", &unit), accepted);
    let notifies = format!("{unit}{lines}");
    assert_eq!(verify("notifies.service", &notifies), accepted);
    // The check itself can fail.
    let wrong = unit.replace("KillMode=", "KilMode=");
    assert_ne!(verify("wrong.service", &wrong), accepted);
    fs::remove_dir_all(programs).expect("it was made");
}

#[test]
fn the_page_has_the_exit_statuses_of_the_manual() {
    let manual = out(&output("", &["man"]));
    let (_, table) = manual
        .split_once(".SH \"EXIT STATUS\"\n")
        .expect("it has the section");
    let mut lines = table.lines().filter(|line| *line != ".TP");
    let mut rows = 0;
    while let (Some(status), Some(meaning)) = (lines.next(), lines.next()) {
        let row = format!("| {status} | {meaning} |");
        assert!(PAGE.replace('`', "").contains(&row), "{row}");
        rows += 1;
    }
    assert!(rows >= 10, "{rows}");
}
