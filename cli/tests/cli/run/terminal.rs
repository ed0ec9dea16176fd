//! `run` in a terminal, below a shell with job control. `shells` has what `run` shares with the command alone.

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

/// Alone, such a command would not hear of it, and neither would the shell.
#[test]
fn a_command_that_has_left_its_group_is_interrupted() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let shell = shell(&work);
    let script = r#"trap "exit 5" INT; echo begun; while :; do sleep 0.01; done"#;
    // `setsid` forks in the leader of a group alone.
    shell.send(&format!("run $LOCK -- setsid sh -c '{script}'\r"));
    shell.wait_for("its begin", |screen| screen.contains("begun"));
    shell.send("\x03");
    shell.wait_for("a prompt", |screen| screen.ends_with('>'));
    shell.send("echo status $?\r");
    shell.wait_for("its status", |screen| screen.contains("status 5"));
}

/// As below `ssh -t HOST leasehold run …`: nobody could continue it.
#[test]
fn a_command_without_a_shell_does_not_stop() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let script = r#"echo begun; read -r line; echo "<$line>""#;
    let mut terminal = Terminal::start(work.run(&[], script), 30, 150);
    terminal.wait_for("its begin", |screen| screen.contains("begun"));
    terminal.send("\x1ahello\r");
    terminal.wait_for("its line", |screen| screen.contains("<hello>"));
    assert_eq!(terminal.wait().code(), Some(0));
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
fn an_interrupt_ends_the_loop_around_a_wait() {
    let server = Server::start();
    let locks = manager(&server.url());
    let work = Work::new(&server.url());
    let _guard = locks.lock(&work.lock).expect("it is free");
    let shell = shell(&work);
    // bash does not end a loop around a function, whatever ended in it.
    let program = env!("CARGO_BIN_EXE_leasehold");
    shell.send(&format!("while :; do {program} run $LOCK -- true; done\r"));
    server.raw().wait_until_queued(&work.lock, 1);
    wait_for_job(&shell);
    shell.send("\x03");
    server.raw().wait_until_queued(&work.lock, 0);
    shell.send("echo status $?\r");
    shell.wait_for("the status", |screen| screen.contains("status 130"));
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
