//! Connections by TLS. The certificates in this folder are from an authority that no system trusts:
//!
//! | files | |
//! | --- | --- |
//! | `server` | for `localhost` alone; also valid for clients, because nodes of a cluster connect to each other |
//! | `client` | for clients alone |
//! | `expired` | as `server`, but it has expired |
//! | `other`, `stranger` | another authority, and its certificate for clients |
//! | `own` | an authority for `localhost`, which a server may show itself |
//! | `nameless`, `version1` | its certificates for servers, with `localhost` as the common name, and no subjectAltName. The second has no extension at all |
//!
//! They are valid for a hundred years. The keys of the first two authorities were deleted.

#![allow(
    clippy::incompatible_msrv,
    reason = "only the library is compiled with the oldest Rust"
)]

use leasehold_test_support as support;

mod certificates;

use std::env;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use leasehold::{Error, LeaseState, LockManager, LostCause};

use support::{
    Fault, MASTER, PATIENCE, Proxy, Role, Server, build, is_ok, locking, manager, name, secs,
    slot_of, task, wait_until,
};

/// The variable with the authorities that a process trusts, in place of the system's.
const TRUSTED: &str = "SSL_CERT_FILE";
/// The time limit of connecting, and of a request.
const IO: Duration = secs(2);
const LONG: Duration = secs(600);

fn file(name: &str) -> String {
    format!("{}/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Starts a server with a TLS port, and returns both.
fn server() -> (Server, u16) {
    server_with(&[])
}

fn server_with(options: &[&str]) -> (Server, u16) {
    Server::with_tls(&file("server.pem"), &file("server.key"), options)
}

/// Runs a test of this module in a child process that trusts the authority, because trust belongs to a process.
#[track_caller]
fn trusting(test: &str, body: fn()) {
    let authority = file("authority.pem");
    if env::var_os(TRUSTED).is_some_and(|trusted| *trusted == *authority) {
        return body();
    }
    let run = Command::new(env::current_exe().expect("this binary"))
        .args(["--exact", test, "--nocapture"])
        .env(TRUSTED, authority)
        .output()
        .expect("this binary runs");
    let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && said.contains("1 passed"), "{said}");
}

/// Returns the error of a manager of this URL, which ends by itself.
#[track_caller]
fn refused(url: &str) -> Error {
    let builder = LockManager::single(url).connect_timeout(IO).io_timeout(IO);
    let locked = task(move || builder.build().and_then(|locks| locks.lock("n"))).end();
    locked.expect_err("it is no server to be trusted")
}

#[track_caller]
fn is_unavailable(url: &str) {
    let error = refused(url);
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

/// Checks that a manager of this URL fails because of a certificate, for a reason that contains `why`.
#[track_caller]
fn has_no_certificate(url: &str, why: &str) {
    let error = refused(url);
    assert!(
        matches!(error, Error::Config { option: "tls", .. }),
        "{error:?}"
    );
    assert!(!error.is_retryable());
    let said = error.to_string();
    assert!(said.contains(why) && said.contains("localhost"), "{said}");
}

#[test]
fn urls_that_trust_anybody_or_lack_a_key_are_refused() {
    for (url, expected) in [
        ("rediss://localhost/#insecure", "invalid `url`"),
        ("rediss://localhost/?cert=a", "`cert` and `key` go together"),
    ] {
        let error = LockManager::connect(url).expect_err("it is refused");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let files = "rediss+quorum://localhost:1,localhost:2,localhost:3/?cert=a&key=b&cacert=c";
    let error = LockManager::connect(files).expect_err("there are no such files");
    assert!(!error.to_string().contains("go together"), "{error}");
}

#[test]
fn locks_are_taken_waited_for_and_renewed() {
    trusting("locks_are_taken_waited_for_and_renewed", || {
        let (server, port) = server();
        let (raw, plain) = (server.raw(), manager(&server.url()));
        let locks = manager(&format!("rediss://localhost:{port}/"));
        let first = plain.mutex("n").lease(LONG).lock().expect("it is free");
        let waiter = locking(&locks.mutex("n").lease(secs(6)));
        raw.wait_until_queued("n", 1);
        let channel = raw.channel("n", &raw.queue("n")[0]);
        assert_eq!(raw.listeners(&channel), 1, "it waits for a message");
        first.release().expect("it was held until now");
        let second = waiter.end().expect("it becomes free");
        raw.wait_until_renewed("n", 2);
        assert!(plain.try_lock("n").expect("Redis replies").is_none());
        second.release().expect("it was held until now");
        assert!(!raw.exists("n"));
    });
}

#[test]
fn threads_take_turns_on_a_connection() {
    trusting("threads_take_turns_on_a_connection", || {
        let (server, port) = server();
        let raw = server.raw();
        let url = format!("rediss://localhost:{port}/");
        let locks = build(LockManager::single(&url).pool_size(1));
        let lock_and_release = |name: &str| {
            for _ in 0..50 {
                let guard = locks.mutex(name).lease(LONG).lock();
                let guard = guard.expect("it is free");
                let holder = raw.get(name);
                assert_eq!(holder.as_deref(), Some(guard.owner()), "not its grant");
                guard.release().expect("it was held until now");
            }
        };
        thread::scope(|scope| {
            for number in 0..16 {
                let lock_and_release = &lock_and_release;
                scope.spawn(move || lock_and_release(&format!("n{number}")));
            }
        });
    });
}

#[test]
fn only_a_certificate_with_the_name_of_the_url_is_trusted() {
    trusting(
        "only_a_certificate_with_the_name_of_the_url_is_trusted",
        || {
            let (_server, port) = server();
            has_no_certificate(&format!("rediss://127.0.0.1:{port}/"), "not valid for name");
        },
    );
}

/// This process trusts only the authorities of the system.
#[test]
fn an_unknown_authority_is_not_trusted() {
    let (_server, port) = server();
    has_no_certificate(&format!("rediss://localhost:{port}/"), "UnknownIssuer");
}

/// By TLS 1.3 the client learns of it after its handshake.
#[test]
fn a_server_that_wants_a_certificate_of_the_client_is_not_asked_again() {
    trusting(
        "a_server_that_wants_a_certificate_of_the_client_is_not_asked_again",
        || {
            for (version, why) in [
                ("TLSv1.2", "HandshakeFailure"),
                ("TLSv1.3", "CertificateRequired"),
            ] {
                let authority = file("authority.pem");
                let options = ["--tls-ca-cert-file", &authority, "--tls-protocols", version];
                let (server, port) = server_with(&options);
                let () = server
                    .raw()
                    .ask(&["CONFIG", "SET", "tls-auth-clients", "yes"]);
                has_no_certificate(&format!("rediss://localhost:{port}/"), why);
            }
        },
    );
}

/// By TLS 1.3 the server sends them after its handshake. They are no answers.
#[test]
fn session_tickets_make_no_connection_useless() {
    trusting("session_tickets_make_no_connection_useless", || {
        let (server, port) = server_with(&["--tls-protocols", "TLSv1.3"]);
        let locks = build(LockManager::single(&format!("rediss://localhost:{port}/")));
        let raw = server.raw();
        let accepted = || -> u64 {
            let report: String = raw.ask(&["INFO", "stats"]);
            let mut lines = report.lines();
            let accepted = lines.find_map(|line| line.strip_prefix("total_connections_received:"));
            let accepted = accepted.expect("it is reported");
            accepted.parse().expect("a number")
        };
        let lock_and_release = || {
            let guard = locks.mutex("n").renew(false).lock();
            guard.expect("it is free").release().expect("it is held");
        };
        lock_and_release();
        let before = accepted();
        for _ in 0..50 {
            lock_and_release();
        }
        // The question itself opens some.
        assert!(accepted() < before + 10, "a connection for each call");
    });
}

/// The proxy repeats the last records, which no connection can decrypt twice, or sends the beginning of a record.
#[test]
fn an_encrypted_connection_with_something_unread_is_not_used() {
    trusting(
        "an_encrypted_connection_with_something_unread_is_not_used",
        || {
            let (_server, port) = server();
            let proxy = Proxy::to_port(port);
            let locks = build(LockManager::single(&over(&proxy)).io_timeout(secs(20)));
            let mutex = locks.mutex("n").lease(LONG).renew(false);
            for length in [usize::MAX, 5, 1] {
                drop(mutex.lock().expect("it is free"));
                assert!(proxy.repeat_answers(length) > 0, "no connection is open");
                drop(mutex.lock().expect("on another connection"));
            }
        },
    );
}

#[test]
fn tls_and_plain_ports_are_not_mixed_up() {
    let (server, port) = server();
    let error = refused(&format!("rediss://localhost:{}/", server.port()));
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let said = format!("{error:#}");
    assert!(said.contains("which the server may not speak"), "{said}");
    // It closes the connection, and may have sent an alert before.
    let error = refused(&format!("redis://localhost:{port}/"));
    match &error {
        Error::Unavailable { .. } => {}
        Error::Denied { .. } => {
            assert!(format!("{error:#}").contains("it speaks TLS"), "{error:?}");
        }
        _ => panic!("{error:?}"),
    }
}

/// Some answer a handshake, and others refuse each connection.
#[test]
fn a_server_without_tls_that_says_something_is_quoted() {
    const NO_TLS: &str = "it speaks no TLS, so its URL must begin with redis";
    for (said, is_denied, text) in [
        (
            "-DENIED Redis is running in protected mode.\r\n",
            true,
            ": DENIED Redis is running in protected mode",
        ),
        (
            "-ERR max number of clients reached\r\n",
            false,
            ": ERR max number of clients reached",
        ),
        (
            "-ERR Protocol error: unbalanced quotes in request\r\n",
            true,
            ": ERR Protocol error",
        ),
        ("HTTP/1.1 400 Bad Request\r\n\r\n", true, ""),
    ] {
        let listener = TcpListener::bind("localhost:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        // It ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a client");
                stream.write_all(said.as_bytes()).ok();
            }
        });
        let error = refused(&format!("rediss://localhost:{port}/"));
        assert_eq!(
            matches!(error, Error::Denied { .. }),
            is_denied,
            "{error:?}"
        );
        let shown = format!("{error:#}");
        assert!(shown.contains(&format!("{NO_TLS}{text}")), "{shown}");
    }
}

#[test]
fn connecting_to_a_silent_server_ends_in_time() {
    trusting("connecting_to_a_silent_server_ends_in_time", || {
        let (_server, port) = server();
        for fault in [Fault::LoseRequests, Fault::LoseAnswers, Fault::HalfOpen] {
            let proxy = Proxy::to_port(port);
            proxy.strike(Role::Pool, fault);
            is_unavailable(&over(&proxy));
        }
    });
}

#[test]
fn a_slow_link_carries_a_lock_and_a_dead_one_loses_it() {
    trusting("a_slow_link_carries_a_lock_and_a_dead_one_loses_it", || {
        let (server, port) = server();
        let proxy = Proxy::to_port(port);
        proxy.strike(Role::Pool, Fault::Drip);
        // Each read of the handshake becomes up to 64 pieces, and each takes a millisecond or more.
        let locks = build(LockManager::single(&over(&proxy)).io_timeout(secs(20)));
        let mutex = locks.mutex("n").lease(secs(30)).renew(false);
        mutex
            .lock()
            .expect("it is free")
            .release()
            .expect("it is held");
        proxy.heal();
        let raw = server.raw();
        let guard = locks.mutex("n").lease(secs(6)).lock();
        let guard = guard.expect("it is free");
        let losses = guard.on_lost();
        raw.wait_until_renewed("n", 1);
        proxy.strike(Role::Pool, Fault::HalfOpen);
        let loss = losses.recv_timeout(PATIENCE).expect("it is notified");
        assert_eq!(loss.cause, LostCause::Expired);
        assert_eq!(guard.state(), LeaseState::Lost);
    });
}

/// The sentinel and the server have TLS, and are known by the name in their certificate.
#[test]
fn a_master_behind_a_sentinel_is_reached_by_tls() {
    trusting("a_master_behind_a_sentinel_is_reached_by_tls", || {
        let (server, port) = server();
        let (_sentinel, sentinel_port, _settings) = sentinel(port);
        let url = format!("rediss://localhost:{sentinel_port}/");
        let locks = build(
            LockManager::sentinel([url], MASTER)
                .connect_timeout(PATIENCE)
                .io_timeout(secs(20)),
        );
        let guard = locks.mutex("n").lease(secs(6)).lock();
        let guard = guard.expect("it is free");
        let (raw, plain) = (server.raw(), manager(&server.url()));
        let waiter = locking(&plain.mutex("n"));
        raw.wait_until_renewed("n", 1);
        guard.release().expect("it is held");
        drop(waiter.end().expect("it becomes free"));
        // The address that the sentinel names has no certificate.
        let by_address = format!("rediss://127.0.0.1:{sentinel_port}/");
        let refused = LockManager::sentinel([by_address], MASTER).connect_timeout(IO);
        let refused = refused.build().expect_err("it has another name");
        assert!(
            matches!(refused, Error::Config { option: "tls", .. }),
            "{refused:?}"
        );
    });
}

/// The settings of a sentinel, in a file that its drop removes.
struct SettingsFile(PathBuf);

impl Drop for SettingsFile {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

/// Starts a sentinel with TLS that watches the server at this port. Returns it and its port.
fn sentinel(port: u16) -> (Server, u16, SettingsFile) {
    let path = env::temp_dir().join(name("sentinel").replace(':', "-"));
    let text = format!(
        "sentinel resolve-hostnames yes\nsentinel announce-hostnames yes\n\
         sentinel monitor {MASTER} localhost {port} 1\n"
    );
    fs::write(&path, text).expect("a file");
    let authority = file("authority.pem");
    let options = [
        path.to_str().expect("a path"),
        "--sentinel",
        "--tls-replication",
        "yes",
        "--tls-ca-cert-file",
        &authority,
    ];
    let (sentinel, sentinel_port) = server_with(&options);
    (sentinel, sentinel_port, SettingsFile(path))
}

#[test]
fn the_masters_of_a_cluster_are_reached_by_tls() {
    trusting("the_masters_of_a_cluster_are_reached_by_tls", || {
        let nodes = cluster();
        let url = format!("rediss://localhost:{}/", nodes[0].1);
        let locks = build(
            LockManager::cluster([url])
                .connect_timeout(PATIENCE)
                .io_timeout(secs(20)),
        );
        let names = ["a", "b", "c", "d", "e", "f"];
        for (number, (node, _)) in nodes.iter().enumerate() {
            let is_here = |name: &&&str| usize::from(slot_of(name)) / 8192 == number;
            let name = names.iter().find(is_here).expect("one of the names");
            let mutex = locks.mutex(*name).lease(secs(6));
            let guard = mutex.lock().expect("it is free");
            let waiter = locking(&mutex);
            node.raw().wait_until_renewed(name, 1);
            guard.release().expect("it is held");
            drop(waiter.end().expect("it becomes free"));
        }
    });
}

/// Starts a Cluster of two masters. The nodes name each other by the name in their certificates.
fn cluster() -> [(Server, u16); 2] {
    let authority = file("authority.pem");
    let options = [
        "--cluster-enabled",
        "yes",
        "--tls-cluster",
        "yes",
        "--tls-ca-cert-file",
        &authority,
        "--cluster-announce-hostname",
        "localhost",
        "--cluster-preferred-endpoint-type",
        "hostname",
    ];
    let nodes = [server_with(&options), server_with(&options)];
    for (node, (slots, epoch)) in nodes
        .iter()
        .zip([(["0", "8191"], "1"), (["8192", "16383"], "2")])
    {
        let raw = node.0.raw();
        let () = raw.ask(&["CLUSTER", "SET-CONFIG-EPOCH", epoch]);
        let () = raw.ask(&["CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1]]);
    }
    let port = nodes[1].1.to_string();
    let () = nodes[0]
        .0
        .raw()
        .ask(&["CLUSTER", "MEET", "127.0.0.1", &port]);
    wait_until("both nodes know each other by name", || {
        nodes.iter().all(|(node, _)| {
            let known: String = node.raw().ask(&["CLUSTER", "NODES"]);
            is_ok(node) && known.matches(",localhost").count() == nodes.len()
        })
    });
    nodes
}

/// Returns the TLS URL of a proxy. The proxy sees only encrypted bytes, so each connection counts as one of the pool.
fn over(proxy: &Proxy) -> String {
    proxy
        .url()
        .replace("redis://127.0.0.1", "rediss://localhost")
}
