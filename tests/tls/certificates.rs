//! Certificates that a program gives: by `Builder::tls`, or by the files in a URL. No test of this module relies on the
//! certificates that the system trusts, and each server asks for a certificate of the client.

use std::fs;
use std::process::Command;

use leasehold::{Builder, Error, LockManager, Tls};

use super::{IO, LONG, MASTER, Server, build, cluster, file, secs, sentinel, wait_until};

/// The names of the files in a URL: the roots, the certificate of this process, and its key.
fn files(roots: &str, client: &str) -> String {
    let [roots, cert, key] = [roots, &format!("{client}.pem"), &format!("{client}.key")].map(file);
    format!("cacert={roots}&cert={cert}&key={key}")
}

/// Starts a server that accepts only clients with a certificate.
fn demanding(certificate: &str) -> (Server, u16) {
    let [pem, key] = ["pem", "key"].map(|kind| file(&format!("{certificate}.{kind}")));
    let authority = file("authority.pem");
    let started = Server::with_tls(&pem, &key, &["--tls-ca-cert-file", &authority]);
    demand(&started.0);
    started
}

fn demand(server: &Server) {
    let set = ["CONFIG", "SET", "tls-auth-clients", "yes"];
    let () = server.raw().ask(&set);
}

fn ours() -> Tls {
    Tls::default()
        .roots_file(file("authority.pem"))
        .client_files(file("client.pem"), file("client.key"))
}

#[track_caller]
fn locks_by(builder: Builder) {
    let locks = build(builder.connect_timeout(secs(20)).io_timeout(secs(20)));
    for name in ["a", "b", "c", "d"] {
        let guard = locks.mutex(name).lease(LONG).lock().expect("it is free");
        guard.release().expect("it is held");
    }
}

#[test]
fn a_program_brings_its_roots_and_its_certificate() {
    let (_server, port) = demanding("server");
    let url = format!("rediss://localhost:{port}/");
    locks_by(LockManager::single(&url).tls(ours()));
    let [roots, cert, key] = ["authority.pem", "client.pem", "client.key"].map(file);
    let read = |path: &String| fs::read(path).expect("a file");
    let by_text = Tls::default()
        .roots_pem(read(&file("other.pem")))
        .roots_pem(read(&roots))
        .client_pem(read(&cert), read(&key));
    let shown = format!("{by_text:?}");
    assert!(!shown.contains("KEY") && !shown.contains(&key), "{shown}");
    locks_by(LockManager::single(&url).tls(by_text));
    let in_one = [read(&cert), read(&key)].concat();
    let both = Tls::default()
        .roots_file(&roots)
        .client_pem(in_one.clone(), in_one);
    locks_by(LockManager::single(&url).tls(both));
}

#[test]
fn a_url_names_the_files_for_each_topology() {
    let given = files("authority.pem", "client");
    let (_server, port) = demanding("server");
    let by_url = |url: String| locks_by(LockManager::from_url(&url).expect("a URL"));
    by_url(format!("rediss://localhost:{port}/?lease=20s&{given}"));

    let others = [demanding("server"), demanding("server")];
    let nodes = format!("localhost:{},localhost:{}", others[0].1, others[1].1);
    by_url(format!(
        "rediss+quorum://localhost:{port},{nodes}/?restart_delay=0s&{given}"
    ));

    let (_server, port) = demanding("server");
    let (_sentinel, sentinel_port, _settings) = sentinel(port);
    by_url(format!(
        "rediss+sentinel://localhost:{sentinel_port}/{MASTER}?{given}"
    ));

    let nodes = cluster();
    for (node, _) in &nodes {
        demand(node);
    }
    by_url(format!("rediss+cluster://localhost:{}?{given}", nodes[0].1));
}

/// Returns the reason of the error that the first request of a manager gets.
#[track_caller]
fn refused(builder: Builder) -> String {
    let locks = builder.connect_timeout(IO).io_timeout(IO).build();
    match locks.and_then(|locks| locks.lock("n").map(drop)) {
        Err(error @ Error::Config { option: "tls", .. }) => {
            assert!(!error.is_retryable());
            error.to_string()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_other_certificate_is_accepted_by_either_side() {
    let (_server, port) = demanding("server");
    let (_expired, expired_port) = demanding("expired");
    let at = |port: u16, given: &str| {
        let url = format!("rediss://localhost:{port}/?{given}");
        LockManager::from_url(&url).expect("a URL")
    };
    let roots = |name: &str| format!("cacert={}", file(name));
    for (builder, why) in [
        (at(port, &roots("authority.pem")), "CertificateRequired"),
        (at(port, &files("authority.pem", "stranger")), "Unknown"),
        (at(port, &files("other.pem", "client")), "UnknownIssuer"),
        (
            at(expired_port, &files("authority.pem", "client")),
            "expired",
        ),
        // Roots of the program take the place of the system's.
        (at(port, ""), "UnknownIssuer"),
    ] {
        let said = refused(builder);
        assert!(said.contains(why), "{why}: {said}");
    }
}

/// The files are read again a minute after the last read, which is longer than the lease.
#[test]
fn files_that_are_replaced_after_the_server_are_read_at_the_next_refusal() {
    let dir = std::env::temp_dir().join(format!("leasehold-tls-new-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a directory");
    let [cert, key] = ["tls.crt", "tls.key"].map(|name| dir.join(name));
    let identity = |name: &str| {
        for (kind, path) in [("pem", &cert), ("key", &key)] {
            fs::copy(file(&format!("{name}.{kind}")), path).expect("a file");
        }
    };
    let [pem, server_key] = ["server.pem", "server.key"].map(file);
    let options = ["--tls-ca-cert-file", &file("other.pem")];
    let (server, port) = Server::with_tls(&pem, &server_key, &options);
    demand(&server);
    identity("stranger");
    let tls = Tls::default()
        .roots_file(file("authority.pem"))
        .client_files(&cert, &key);
    let url = format!("rediss://localhost:{port}/");
    let locks = build(LockManager::single(&url).tls(tls));
    let guard = locks.mutex("held").lease(secs(20)).lock();
    let guard = guard.expect("it is free");

    let raw = server.raw();
    let set = ["CONFIG", "SET", "tls-ca-cert-file", &file("authority.pem")];
    let () = raw.ask(&set);
    for kind in ["normal", "pubsub"] {
        let _: u64 = raw.ask(&["CLIENT", "KILL", "TYPE", kind]);
    }
    let refused = locks.try_lock("other");
    assert!(
        matches!(refused, Err(Error::Config { option: "tls", .. })),
        "{refused:?}"
    );
    identity("client");
    let is_accepted = || locks.try_lock("other").is_ok();
    wait_until("the files are read again", is_accepted);
    guard.check().expect("a second is less than the lease");
    raw.wait_until_renewed("held", 2);
    guard.release().expect("it was never lost");
    fs::remove_dir_all(&dir).ok();
}

#[test]
fn an_error_of_certificates_says_what_to_do() {
    let start = |name: &str| {
        let [pem, key] = ["pem", "key"].map(|kind| file(&format!("{name}.{kind}")));
        Server::with_tls(&pem, &key, &[])
    };
    let servers = ["own", "nameless", "version1", "expired", "server"].map(start);
    let [own, nameless, version1, expired, server] = servers.each_ref().map(|(_, port)| *port);
    let (_demanding, demanding) = demanding("server");
    let trusting = |host: &str, port: u16, roots: &str, more: &str| {
        let url = format!("rediss://{host}:{port}/?cacert={}{more}", file(roots));
        LockManager::from_url(&url).expect("a URL")
    };
    let stranger = ["cert=stranger.pem", "key=stranger.key"].map(|it| {
        let (name, path) = it.split_once('=').expect("both");
        format!("&{name}={}", file(path))
    });
    for (builder, what_to_do, why) in [
        (
            trusting("localhost", own, "own.pem", ""),
            "the server shows the certificate of an authority (CA:TRUE), as `openssl req -x509` makes it; sign a \
             certificate for the server with it, by the lines in docs/operating.md",
            "CaUsedAsEndEntity",
        ),
        (
            trusting("localhost", nameless, "own.pem", ""),
            "the server's certificate has no subjectAltName",
            "not valid for name",
        ),
        (
            trusting("localhost", version1, "own.pem", ""),
            "the server's certificate has no subjectAltName",
            "UnsupportedCertVersion",
        ),
        (
            trusting("localhost", expired, "authority.pem", ""),
            "the server's certificate has expired; renew it",
            "expired",
        ),
        (
            trusting("localhost", server, "other.pem", ""),
            "no trusted root has signed the server's certificate",
            "UnknownIssuer",
        ),
        (
            trusting("127.0.0.1", server, "authority.pem", ""),
            "the server's certificate is for other hosts",
            "not valid for name",
        ),
        (
            trusting("localhost", demanding, "authority.pem", ""),
            "the server wants a certificate of this client",
            "CertificateRequired",
        ),
        (
            trusting("localhost", demanding, "authority.pem", &stranger.concat()),
            "the server does not trust the certificate of this client",
            "received fatal alert",
        ),
    ] {
        let said = refused(builder);
        let says = format!("invalid `tls`: {what_to_do}");
        assert!(
            said.starts_with(&says) && said.contains(why),
            "{what_to_do}: {said}"
        );
        // The host and the reason of the library follow.
        assert!(said.contains(": the connection to "), "{said}");
    }
}

/// The page makes an authority and a certificate for a server by these commands.
#[test]
fn the_commands_of_the_page_make_certificates_that_work() {
    if Command::new("openssl").arg("version").output().is_err() {
        println!("there is no openssl");
        return;
    }
    let page = format!("{}/../../docs/operating.md", env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(page).expect("it is text");
    let commands = page
        .split("```sh\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let commands = commands.expect("the commands");
    let (commands, starts) = commands
        .split_once("redis-server")
        .expect("the last starts a server");
    assert!(
        starts.contains("--tls-cert-file redis.crt --tls-key-file redis.key"),
        "{starts}"
    );
    let commands = commands.replace("redis.example.com,IP:10.0.0.5", "localhost");
    let dir = std::env::temp_dir().join(format!("leasehold-tls-page-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a directory");
    let ran = Command::new("sh")
        .args(["-ec", &commands])
        .current_dir(&dir)
        .output();
    let ran = ran.expect("a shell");
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    let made = |name: &str| dir.join(name).to_str().expect("a path").to_owned();
    let options = ["--tls-ca-cert-file", &made("ca.crt")];
    let (_server, port) = Server::with_tls(&made("redis.crt"), &made("redis.key"), &options);
    let url = format!("rediss://localhost:{port}/?cacert={}", made("ca.crt"));
    locks_by(LockManager::from_url(&url).expect("a URL"));
    fs::remove_dir_all(&dir).ok();
}

#[test]
fn certificates_that_cannot_be_used_are_refused_before_anything_is_sent() {
    // Nothing listens there.
    let url = "rediss://localhost:1/";
    let [authority, cert, key, other] =
        ["authority.pem", "client.pem", "client.key", "stranger.key"].map(file);
    for (tls, why) in [
        (
            Tls::default().roots_file("/no/such/file"),
            "the file of the roots, /no/such/file",
        ),
        (Tls::default().roots_pem("no PEM"), "have no certificate"),
        (Tls::default().roots_file(&key), "have no certificate"),
        (
            Tls::default().client_files(&cert, &other),
            "the client certificate and its key",
        ),
        (
            Tls::default().client_files(&cert, &authority),
            "no private key",
        ),
        (
            Tls::default().client_files(&key, &key),
            "have no certificate",
        ),
    ] {
        let said = refused(LockManager::single(url).tls(tls));
        assert!(said.contains(why), "{why}: {said}");
    }
    let said = refused(LockManager::single("redis://localhost:1/").tls(ours()));
    assert!(said.contains("localhost:1 has no TLS"), "{said}");
    let nodes = ["rediss://localhost:1/", "redis://localhost:2/"];
    let said = refused(LockManager::quorum(nodes).tls(ours()));
    assert!(said.contains("localhost:2 has no TLS"), "{said}");
}
