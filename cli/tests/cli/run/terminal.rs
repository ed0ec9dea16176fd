//! `run` in a terminal, below a shell with job control.

use std::process::Command;

use crate::support::{Server, build, manager, settings_of, wait_until};
use crate::terminal::Terminal;
use crate::work::Work;

/// Starts a shell in the directory of the test. The lock is `$LOCK`, and `run` stands for `leasehold run`.
fn shell(work: &Work) -> Terminal {
    let mut command = Command::new("env");
    command.args(["--default-signal", "bash", "--norc", "--noprofile", "-i"]);
    command
        .env("LEASEHOLD_URL", work.url())
        .env("LOCK", &work.lock)
        .env("PS1", ". ")
        .env("PROMPT_COMMAND", "")
        .env_remove("REDIS_URL");
    let terminal = Terminal::start(command, 30, 150);
    terminal.wait_for("a prompt", |screen| screen.ends_with('.'));
    // The screen then has only what the commands print.
    terminal.send(&format!(
        "PS1='> '; cd {}; run() {{ {} run \"$@\"; }}; stty -echo; clear\r",
        work.dir.display(),
        env!("CARGO_BIN_EXE_leasehold")
    ));
    terminal.wait_for("an empty screen", |screen| screen == ">");
    terminal
}

/// Blocks until a job of the shell has the terminal. Before that, the shell reads the keys.
fn wait_for_job(shell: &Terminal) {
    wait_until("a job has the terminal", || {
        shell.collects_lines() && shell.job_in_front().is_some()
    });
}

/// Types a line for the job.
fn type_line(shell: &Terminal, line: &str) {
    wait_for_job(shell);
    shell.send(&format!("{line}\r"));
}

#[test]
fn the_command_reads_the_terminal_and_gets_its_interrupts() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let shell = shell(&work);
    let script = r#"trap "echo interrupted; exit 5" INT; echo begun; read -r line; echo "<$line>"; while :; do sleep 0.01; done"#;
    shell.send(&format!("run $LOCK -- sh -c '{script}'; echo status $?\r"));
    shell.wait_for("its begin", |screen| screen.contains("begun"));
    type_line(&shell, "hello");
    shell.wait_for("its line", |screen| screen.contains("<hello>"));
    shell.send("\x03");
    shell.wait_for("its end", |screen| {
        screen.contains("interrupted") && screen.contains("status 5")
    });
}

#[test]
fn a_job_can_be_stopped_and_continued() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let shell = shell(&work);
    let script = r#"echo begun; read -r line; echo "<$line>"; exit 6"#;
    // The shell must see all processes of the job stop.
    shell.send(&format!(
        "run --lease 10m $LOCK -- sh -c '{script}' | cat; echo status ${{PIPESTATUS[0]}}\r"
    ));
    shell.wait_for("its begin", |screen| screen.contains("begun"));
    // The shell may give the terminal to the job once more, after the command had it.
    wait_until("the command has the terminal", || {
        shell.job_in_front().is_some_and(|leader| leader == "sh")
    });
    shell.send("\x1a");
    shell.wait_for("the stop", |screen| {
        screen.contains("Stopped") && screen.ends_with('>')
    });
    shell.send("jobs | wc -l; fg >/dev/null; echo status ${PIPESTATUS[0]}\r");
    shell.wait_for("one job", |screen| screen.ends_with("\n1"));
    type_line(&shell, "hello");
    shell.wait_for("its end", |screen| {
        screen.contains("<hello>") && screen.ends_with('>')
    });
}

#[test]
fn a_pager_behind_the_command_keeps_the_terminal() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let shell = shell(&work);
    let script = "echo begun >&2; while [ ! -e go ]; do sleep 0.01; done";
    let pager = r#"(read -r line </dev/tty; echo "<$line>")"#;
    shell.send(&format!("run $LOCK -- sh -c '{script}' | {pager}\r"));
    shell.wait_for("its begin", |screen| screen.contains("begun"));
    type_line(&shell, "hello");
    shell.wait_for("its line", |screen| screen.contains("<hello>"));
    std::fs::write(work.dir.join("go"), "").expect("the directory exists");
    shell.wait_for("a prompt", |screen| {
        screen.ends_with('>') && !screen.ends_with("<hello>")
    });
}

#[test]
fn a_job_in_the_background_stops_when_it_reads_and_goes_on_in_the_foreground() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let shell = shell(&work);
    shell.send("run --lease 10m $LOCK -- sh -c 'read -r line; echo \"<$line>\"' &\r");
    wait_until("the job has stopped", || {
        shell.send("jobs\r");
        shell.screen().contains("Stopped")
    });
    shell.send("clear; fg\r");
    shell.wait_for("the job in the foreground", |screen| {
        screen.contains("run --lease")
    });
    type_line(&shell, "hello");
    shell.wait_for("its line", |screen| screen.contains("<hello>"));
}

#[test]
fn a_wait_can_be_stopped_and_continued_and_interrupted() {
    let server = Server::start();
    let locks = manager(&server.url());
    let work = Work::new(&server.url());
    let _guard = locks.lock(&work.lock).expect("it is free");
    let shell = shell(&work);
    shell.send("run $LOCK -- true; echo status $?\r");
    server.raw().wait_until_queued(&work.lock, 1);
    wait_for_job(&shell);
    shell.send("\x1a");
    shell.wait_for("the stop", |screen| {
        screen.contains("Stopped") && screen.ends_with('>')
    });
    shell.send("clear; fg\r");
    shell.wait_for("the wait", |screen| screen.contains("waiting for"));
    wait_for_job(&shell);
    shell.send("\x03");
    shell.wait_for("the end", |screen| screen.ends_with('>'));
    shell.send("echo status $?\r");
    shell.wait_for("the status", |screen| screen.contains("status 130"));
    server.raw().wait_until_queued(&work.lock, 0);
}

#[test]
fn the_command_hears_of_a_change_of_the_window() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let shell = shell(&work);
    let script = r#"trap "stty size" WINCH; echo begun; while [ ! -e go ]; do sleep 0.01; done"#;
    shell.send(&format!("run $LOCK -- sh -c '{script}'\r"));
    shell.wait_for("its begin", |screen| screen.contains("begun"));
    shell.resize(20, 100);
    shell.wait_for("the new size", |screen| screen.contains("20 100"));
    std::fs::write(work.dir.join("go"), "").expect("the directory exists");
    shell.wait_for("a prompt", |screen| screen.ends_with('>'));
}

#[test]
fn a_wait_shows_the_holder_and_the_place_in_the_queue() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let holder = build(settings_of(&server.url()).label("db1:7").note("build 7"));
    let guard = holder.lock(&work.lock).expect("it is free");
    let shell = shell(&work);
    shell.send("run $LOCK -- echo granted\r");
    let shown = shell.wait_for("the holder", |screen| screen.contains("place 1 of 1"));
    let holder = "held by db1:7 (\"build 7\") for ";
    assert!(shown.contains(holder), "{shown}");
    guard.release().expect("it is held");
    let after = shell.wait_for("the grant", |screen| {
        screen.contains("granted") && screen.ends_with('>')
    });
    assert!(!after.contains("waiting for"), "the line is gone: {after}");
}
