//! `bench`.

use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;

use crate::support::{Cluster, Raw, Server};
use crate::{err, out, output};

/// Settings for a busy machine.
const CALM: &str = "io_timeout=30s&connect_timeout=20s";

#[track_caller]
fn has_no_keys(server: &Raw) {
    let keys: Vec<String> = server.ask(&["KEYS", "*"]);
    assert_eq!(keys, [""; 0]);
}

#[test]
fn pairs_and_hand_overs_are_measured_and_no_key_stays() {
    let server = Server::start();
    let nodes = Cluster::without_failover();
    let hosts = nodes
        .servers()
        .iter()
        .map(|server| format!("127.0.0.1:{}", server.port()));
    let hosts = hosts.collect::<Vec<_>>().join(",");
    let sizes = ["--threads", "2", "--names", "3", "--seconds", "1"];
    let bench = |url: String, options: &[&str]| {
        output(&url, &[&["bench", "--yes"], options, &sizes[..]].concat())
    };
    let of_server = format!("{}?{CALM}&prefix=billing:&min_hold=3s", server.url());
    let of_cluster = format!("redis+cluster://{hosts}?{CALM}");
    let (plain, json) = thread::scope(|scope| {
        let plain = scope.spawn(|| bench(of_server, &[]));
        let json = bench(of_cluster, &["--json"]);
        (plain.join().expect("it has not panicked"), json)
    });
    assert_eq!(plain.status.code(), Some(0), "{}", err(&plain));
    for words in [
        "uncontended: 2 threads, 3 names",
        " pairs/s   p50 ",
        "hand-overs/s",
        "####",
    ] {
        assert!(out(&plain).contains(words), "{}", out(&plain));
    }
    let object: Value = serde_json::from_str(&out(&json)).expect("an object");
    let parts = object["parts"].as_array().expect("parts");
    assert_eq!(parts.len(), 3);
    for part in parts {
        assert!(part["per_second"].as_f64() > Some(0.0), "{part}");
        assert!(
            part["times"]["p50_us"].as_f64() <= part["times"]["max_us"].as_f64(),
            "{part}"
        );
    }
    for server in [&server].into_iter().chain(nodes.servers()) {
        has_no_keys(&server.raw());
    }
}

#[test]
fn nothing_is_written_without_a_yes() {
    let server = Server::start();
    let refused = output(&server.url(), &["bench"]);
    assert_eq!(refused.status.code(), Some(64));
    assert!(err(&refused).contains("--yes"), "{}", err(&refused));
    let few = ["bench", "--yes", "--threads", "4", "--names", "2"];
    let refused = output(&server.url(), &few);
    assert_eq!(refused.status.code(), Some(64));
    assert!(err(&refused).contains("--names"), "{}", err(&refused));
    // `script` runs a command on a terminal.
    let asked = Command::new("script")
        .args([
            "-qec",
            concat!(env!("CARGO_BIN_EXE_leasehold"), " bench"),
            "/dev/null",
        ])
        .env("LEASEHOLD_URL", server.url())
        .stdin(Stdio::null())
        .output()
        .expect("a terminal by `script`, of the package bsdutils");
    let said = out(&asked);
    assert_eq!(asked.status.code(), Some(64), "{said}");
    let address = format!("127.0.0.1:{}", server.port());
    for words in [
        &*address,
        "leasehold-bench:",
        "[y/N]",
        "nothing was written",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let calls: String = server.raw().ask(&["INFO", "commandstats"]);
    assert!(!calls.contains("cmdstat_set:"), "{calls}");
    has_no_keys(&server.raw());
}
