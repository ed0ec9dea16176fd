//! The ways to a server: a socket, TLS, and the login of a quorum.

use crate::out;
use crate::support::{Raw, Server, name};

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
fn the_nodes_of_a_quorum_share_a_login() {
    let nodes = [(); 3].map(|()| Server::with(&["--requirepass", PASSWORD]));
    let url = format!("redis+quorum://default:{PASSWORD}@{}/1", hosts(&nodes));
    let output = doctor(&url, "&restart_delay=0s&node_timeout=5s");
    ends_with(&output, 0);
    says(&output, "rights", "ok", &["user default"]);
    assert!(!out(&output).contains(PASSWORD));
}
