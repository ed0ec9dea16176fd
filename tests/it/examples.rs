//! Runs each example. Its exit status shows whether it proves what it claims.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Cluster, Nodes, Sentinels, built, secs, shared};

/// The time limit of an example. Examples take some seconds, and give up after a minute.
const LIMIT: Duration = secs(240);

/// The examples whose settings are those of the URL. The default time limits are too short for a starved machine.
const OF_THE_URL: [&str; 8] = [
    "batch_job",
    "cron",
    "hand_on",
    "leader",
    "once",
    "operators",
    "quickstart",
    "rate_limit",
];

/// The lease of `stress` and `scale` here.
const LEASE: Duration = secs(3);

macro_rules! run {
    ($($example:ident)* ; $($slow:ident)*) => {
        const RUN: &[&str] = &[$(stringify!($example),)* $(stringify!($slow),)*];
        $(
            #[test]
            fn $example() {
                succeeds(stringify!($example));
            }
        )*
        $(
            #[test]
            #[ignore = "it waits for failovers and the ends of leases: .ci/long runs it"]
            fn $slow() {
                succeeds(stringify!($slow));
            }
        )*
    };
}

run! {
    batch_job
    cache_stampede
    commit
    cron
    hand_on
    inventory
    leader
    once
    operators
    quickstart
    rate_limit
    server
    timeline
    ;
    failover
    fencing
    pitfalls
    quorum
}

#[test]
#[ignore = "it starts three sets of servers, and the gate runs both beside one: .ci/long runs it"]
fn stress_and_scale_run_on_each_topology() {
    let set = Sentinels::start();
    run_both_on("--sentinel", &format!("mine={}", set.urls().join(",")));
    let cluster = Cluster::start();
    run_both_on("--cluster", &cluster.urls().join(","));
    let nodes = Nodes::start(3);
    run_both_on("--quorum", &nodes.urls().join(","));
}

#[test]
fn stress_and_scale_refuse_bad_servers() {
    let refused: [(&[&str], &str); _] = [
        (&["--sentinel", "redis://127.0.0.1:1/"], "MASTER=URL"),
        (&["--sentinel", "redis://h:p=1@127.0.0.1:1/"], "MASTER=URL"),
        (&["--sentinel", "=redis://127.0.0.1:1/"], "--sentinel"),
        (&["--sentinel", "mine="], "--sentinel"),
        (&["--cluster", ""], "--cluster"),
        (&["--cluster", "redis://127.0.0.1:1/,"], "--cluster"),
        (&["--quorum", "http://127.0.0.1:1/"], "--quorum"),
        (
            &[
                "--cluster",
                "redis://127.0.0.1:1/",
                "--quorum",
                "redis://127.0.0.1:2/",
            ],
            "exclude each other",
        ),
    ];
    for program in ["stress", "scale"] {
        for (arguments, reason) in refused {
            let output = run(&built(Path::new("examples").join(program)), arguments);
            let output = output.expect("it ends");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.code() == Some(2) && stderr.contains(reason),
                "{program} {arguments:?}: {}\n{stderr}",
                output.status
            );
        }
    }
}

/// Runs `stress` and `scale` with a small load on the servers that an option names.
#[track_caller]
fn run_both_on(option: &str, servers: &str) {
    let lease = LEASE.as_millis().to_string();
    let common = [
        "--json",
        "--seconds",
        "1",
        "--threads",
        "4",
        "--lease-ms",
        &lease,
        // The nodes of the quorum have just started.
        "--restart-delay-ms",
        "0",
        option,
        servers,
    ];
    for (program, own) in [("stress", ["--names", "3"]), ("scale", ["--leases", "100"])] {
        let output = run(
            &built(Path::new("examples").join(program)),
            &[&common[..], &own].concat(),
        );
        let output = output.expect("it ends");
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program}: {stdout}{stderr}");
    }
}

#[test]
fn every_example_is_run() {
    let root = Path::new(crate::ROOT).join("examples");
    for example in entries(&root) {
        let name = example.file_stem().and_then(|name| name.to_str());
        let name = name.expect("a name in UTF-8");
        // `scale` and `stress` load a whole machine, and have options and a report. `shared` is a library. `async` needs tokio, so
        // .ci/long runs it.
        if ["Cargo", "README", "async", "scale", "shared", "stress"].contains(&name) {
            continue;
        }
        // `metrics` needs a feature, so scripts/check-metrics runs it.
        let is_run = RUN.contains(&name) || name == "metrics";
        assert!(is_run, "{name} is not run by these tests");
    }
}

#[track_caller]
fn succeeds(example: &str) {
    let program = built(Path::new("examples").join(example));
    assert!(
        program.exists(),
        "there is no {}: run `cargo test`, which builds the examples",
        program.display()
    );
    let (status, output) = match run(&program, &[]) {
        Ok(output) => (output.status.to_string(), output),
        Err(output) => ("killed, since it did not end".into(), output),
    };
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && says_what_it_shows(example, &stdout),
        "{example}: {status}\n{stdout}{stderr}"
    );
}

/// Returns whether an example printed what a reader must learn from it, if there is a rule for it.
fn says_what_it_shows(example: &str, stdout: &str) -> bool {
    match example {
        "fencing" => crate::fencing_page::shows(stdout),
        // Two guards held the lock, so "ours held" alone would be false.
        "pitfalls" => stdout.ends_with("not over a failover: that needs the fence.\n"),
        // A line for each process, and no line of two processes.
        "rate_limit" => {
            let of_a_process = |line: &&str| line.starts_with("process ");
            let shown: Vec<_> = stdout.lines().filter(of_a_process).collect();
            shown.len() == 3
                && shown
                    .iter()
                    .all(|line| line.matches(" mails ").count() == 1)
        }
        _ => true,
    }
}

/// Returns the output of the program, or an error if the test had to kill it.
fn run(program: &Path, arguments: &[&str]) -> Result<Output, Output> {
    let mut url = shared().url().to_owned();
    if OF_THE_URL.iter().any(|name| program.ends_with(name)) {
        url += "?connect_timeout=2m&io_timeout=2m";
    }
    let process = Command::new(program)
        .args(arguments)
        .env("REDIS_URL", url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let pid = Pid::from_child(&process);
    let (sender, outputs) = channel();
    // A thread reads the output, because a read of a pipe has no time limit.
    thread::spawn(move || sender.send(process.wait_with_output()).ok());
    if let Ok(output) = outputs.recv_timeout(LIMIT) {
        return Ok(output.expect("its output is read"));
    }
    kill_process(pid, Signal::KILL).ok();
    let output = outputs
        .recv_timeout(LIMIT)
        .expect("its output ends with it");
    Err(output.expect("its output is read"))
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a directory");
    entries
        .map(|entry| entry.expect("an entry").path())
        .collect()
}
