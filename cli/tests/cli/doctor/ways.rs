//! The ways to a server: a socket, TLS, and the logins of each topology.

use crate::out;
use crate::support::{MASTER, Passwords, Raw, Sentinels, Server, SetOptions, name};

use super::several::hosts;
use super::{PASSWORD, doctor, ends_with, says};

#[test]
fn a_unix_socket_is_an_address() {
    let dir = std::env::temp_dir().join(name("doctor").replace(':', "-"));
    let socket = dir.to_str().expect("a plain path");
    let password = format!("a {PASSWORD}");
    let _server = Server::keeping_data(&["--unixsocket", socket, "--requirepass", &password]);
    let login = format!("&user=default&pass=a%20{PASSWORD}&db=3");
    let output = doctor(&format!("unix://{socket}"), &login);
    ends_with(&output, 0);
    says(&output, "proxy", "ok", &[socket]);
    assert!(!out(&output).contains(PASSWORD));
    std::fs::remove_file(socket).ok();
}

#[test]
fn a_server_with_tls_may_demand_a_certificate() {
    let file = |name| format!("{}/../tests/tls/{name}", env!("CARGO_MANIFEST_DIR"));
    let [roots, cert, key] = ["authority.pem", "client.pem", "client.key"].map(file);
    let options = [
        ["--tls-ca-cert-file", &roots],
        ["--appendonly", "yes"],
        ["--requirepass", PASSWORD],
    ];
    let (server, port) =
        Server::with_tls(&file("server.pem"), &file("server.key"), &options.concat());
    let plain = server.url().replace("//", &format!("//:{PASSWORD}@"));
    let () = Raw::new(&plain).ask(&["CONFIG", "SET", "tls-auth-clients", "yes"]);
    let url = format!("rediss://:{PASSWORD}@localhost:{port}/2");
    let output = doctor(&url, &format!("&cacert={roots}&cert={cert}&key={key}"));
    ends_with(&output, 0);
    says(&output, "latency", "ok", &["p50"]);
    assert!(!out(&output).contains(PASSWORD));
    // Without the certificate of this process.
    let output = doctor(&url, &format!("&cacert={roots}"));
    ends_with(&output, 2);
    says(&output, "connection", "bad", &["certificate"]);
}

#[test]
fn the_servers_behind_sentinels_have_a_login_of_their_own() {
    let passwords = Passwords {
        of_sentinels: "s3cret-of-sentinels",
        of_servers: PASSWORD,
    };
    let sentinels = Sentinels::with(SetOptions {
        passwords: Some(passwords),
        down_after_ms: 3_600_000,
    });
    let hosts = hosts(sentinels.sentinels());
    let url = format!("redis+sentinel://:{PASSWORD}@{hosts}/{MASTER}/1");
    let output = doctor(&url, &format!("&sentinel_pass={}", passwords.of_sentinels));
    // A failover may lose locks.
    ends_with(&output, 1);
    says(&output, "rights", "ok", &[]);
    says(&output, "proxy", "ok", &[]);
    assert!(!out(&output).contains(PASSWORD));
}

#[test]
fn the_nodes_of_a_quorum_share_a_login() {
    let nodes = [(); 3].map(|()| Server::with(&["--requirepass", PASSWORD]));
    let url = format!("redis+quorum://default:{PASSWORD}@{}/1", hosts(&nodes));
    let output = doctor(&url, "&restart_delay=0s&node_timeout=5s");
    ends_with(&output, 0);
    says(&output, "rights", "ok", &["user default"]);
    assert!(!out(&output).contains(PASSWORD));
}
