//! Situations in which people have reported faults of `flock`, `consul lock`, `etcdctl lock` and other programs that run a
//! command. docs/FAULTS.md has the reports.

use std::fs;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;

use crate::support::{Server, manager};
use crate::terminal::Terminal;
use crate::work::{Work, start, wait_until_dead};
use crate::{err, out};

/// Returns a script of bash in the directory of the test. `run` stands for `leasehold run` with the lock of the test.
fn bash(work: &Work, script: &str) -> Command {
    let program = env!("CARGO_BIN_EXE_leasehold");
    let run = format!("run() {{ {program} run {} -- \"$@\"; }}", work.lock);
    let mut command = Command::new("env");
    command
        .args([
            "--default-signal",
            "bash",
            "-c",
            &format!("{run}\n{script}"),
        ])
        .current_dir(&work.dir)
        .env_remove("REDIS_URL")
        .env("LEASEHOLD_URL", work.url())
        .stdin(Stdio::null());
    command
}

/// Runs the script to its end.
#[track_caller]
fn output(work: &Work, script: &str) -> Output {
    let output = bash(work, script).output().expect("bash was found");
    let is_free = manager(work.url()).inspect(&work.lock);
    assert_eq!(is_free.expect("it answers"), None, "the lock is still held");
    output
}

/// Returns what the script has written, which ends with success.
#[track_caller]
fn written(script: &str) -> Vec<u8> {
    let server = Server::start();
    let output = output(&Work::new(&server.url()), script);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    output.stdout
}

/// It was reported as <https://github.com/hashicorp/consul/issues/1621> and <https://github.com/hashicorp/consul/issues/776>.
#[test]
fn arguments_reach_the_command_as_they_are() {
    let arguments =
        r#"'a  b' '' '*' '$HOME' "it's" $'two\nlines' '"q"' 'back\slash' -v --wait 5 -- --help"#;
    let script = format!("run printf '[%s]\\n' {arguments}");
    let plain = format!("printf '[%s]\\n' {arguments}");
    assert_eq!(written(&script), written(&plain));
}

/// An argument is bytes, such as the name of a file from an older system.
///
/// It was reported as <https://github.com/nolabs-ai/nono/issues/1504>.
#[test]
fn an_argument_that_is_no_text_reaches_the_command() {
    assert_eq!(written(r"run printf '%s' $'caf\xe9 \xff'"), b"caf\xe9 \xff");
}

/// It was reported as <https://github.com/suzuki-shunsuke/github-comment/issues/169>.
#[test]
fn a_loop_over_lines_keeps_its_input() {
    let script = r#"printf 'a\nb\nc\n' | while read -r line; do run echo "$line"; done"#;
    assert_eq!(written(script), b"a\nb\nc\n");
}

/// The shell becomes `leasehold`, which so has a child that it has not started. The child ends before the command does.
///
/// It was reported as <https://github.com/containers/bubblewrap/pull/146>.
#[test]
fn the_end_of_a_child_of_the_shell_is_not_that_of_the_command() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let program = env!("CARGO_BIN_EXE_leasehold");
    let command = "sh -c 'cat >read; exit 3'";
    let script = format!(
        "exec {program} run {} -- {command} < <(echo line)",
        work.lock
    );
    let output = output(&work, &script);
    assert_eq!(output.status.code(), Some(3), "{}", err(&output));
    assert_eq!(work.text("read"), "line");
}

/// A server such as uWSGI blocks signals, and a program that it starts inherits that.
///
/// It was reported as <https://github.com/antirez/hping/issues/61> and <https://github.com/ralphlange/procServ/issues/48>.
#[test]
fn a_signal_that_was_blocked_at_the_start_ends_the_command_and_the_wait() {
    let server = Server::start();
    for is_held in [false, true] {
        let work = Work::new(&server.url());
        let locks = manager(&server.url());
        let guard = is_held.then(|| locks.lock(&work.lock).expect("it is free"));
        let blocked = ["env", "--block-signal=TERM,CHLD,CONT,ALRM"];
        let script = "here it; exec sleep 1000";
        let mut running = start(&mut work.run_by(&blocked, &[], script));
        if is_held {
            server.raw().wait_until_queued(&work.lock, 1);
        } else {
            work.pid("it");
        }
        running.signal(Signal::TERM);
        assert_eq!(running.status(), 143);
        drop(guard);
    }
    // A shell would end the blocking itself.
    let program = env!("CARGO_BIN_EXE_leasehold");
    let run = format!("{program} run n -- grep SigBlk /proc/self/status");
    let mask = written(&format!("env --block-signal=TERM,ALRM {run}"));
    assert_eq!(mask, b"SigBlk:\t0000000000000000\n");
}

/// The shell reads until nobody has the pipe.
///
/// It was reported as <https://github.com/ddev/ddev/issues/732>.
#[test]
fn the_output_of_a_command_ends_with_the_command() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let script =
        "read=$(run sh -c 'sleep 1000 & echo started'); echo \"$read\" >.read; mv .read read";
    let mut running = start(&mut bash(&work, script));
    assert_eq!(work.text("read"), "started");
    running.end();
}

/// Such a script runs in a shell, and below `flock` or `env`, which all give it to `sh`.
///
/// It was reported as <https://github.com/crashappsec/chalk/issues/120>.
#[test]
fn a_script_without_an_interpreter_runs() {
    let script = "echo 'echo \"ran $1\"' >script; chmod +x script; run ./script here";
    assert_eq!(written(script), b"ran here\n");
}

/// It was reported as <https://github.com/gravitational/gravity/issues/1911>.
#[test]
fn a_directory_that_is_gone_prevents_no_command() {
    let script = "mkdir gone; cd gone; rmdir ../gone; run echo ran; cd ..";
    assert_eq!(written(script), b"ran\n");
}

/// It was reported as <https://github.com/etcd-io/etcd/issues/10840>.
#[test]
fn the_command_has_the_environment_of_its_caller() {
    let odd = r"export ODD=$'two\nlines' EMPTY= LEASEHOLD_OTHER=1 NAME='a b'; cd .";
    let own = "^(_|LEASEHOLD_NAME|LEASEHOLD_FENCE|LEASEHOLD_OWNER|LEASEHOLD_NESTED|PWD|OLDPWD|SHLVL|LEASEHOLD_URL)=";
    let listed = |how: &str| {
        let script = format!("{odd}\n{how}env -0 | sort -z | grep -zvE '{own}' | tr '\\0' ';'");
        String::from_utf8(written(&script)).expect("it is text")
    };
    let inside = listed("run ");
    assert_eq!(inside, listed(""));
    assert!(inside.contains("ODD=two\nlines;"), "{inside}");
}

/// `timeout` makes a group of its own, which is not in the foreground: what takes the terminal from there is stopped.
///
/// It was reported as <https://github.com/google/gvisor/issues/862> and <https://github.com/arighi/virtme-ng/pull/453>.
#[test]
fn a_script_in_a_terminal_may_limit_the_time_of_a_run() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let program = env!("CARGO_BIN_EXE_leasehold");
    let run = format!("timeout 1000 {program} run {} -- echo ran", work.lock);
    let mut script = Command::new("env");
    script.args(["--default-signal", "sh", "-c"]);
    script.arg(format!("{run}; echo status $?"));
    script
        .env_remove("REDIS_URL")
        .env("LEASEHOLD_URL", work.url());
    let terminal = Terminal::start(script, 24, 150);
    let is_over = |screen: &str| screen.contains("status 0");
    assert_eq!(terminal.wait_for("its end", is_over), "ran\nstatus 0");
}

/// An agent in a session of its own, with no descriptor of its caller, such as `ssh-agent`.
///
/// It was reported as <https://github.com/ceph/ceph-qa-suite/pull/583> and <https://github.com/brooklyncentral/clocker/pull/382>.
#[test]
fn an_agent_that_a_command_leaves_behind_keeps_no_lock() {
    let server = Server::start();
    let work = Work::new(&server.url());
    let agent = "setsid sh -c 'echo $$ >.agent; mv .agent agent; exec sleep 1000' <&- >&- 2>&- &";
    let script = format!("{agent}\nuntil [ -e agent ]; do sleep 0.01; done");
    fs::write(work.dir.join("script"), script).expect("the directory exists");
    let output = output(&work, "run sh script");
    wait_until_dead(&[work.pid("agent")]);
    // Whatever it says of the agent that it has ended.
    assert!(output.status.code().is_some(), "{}", out(&output));
}
