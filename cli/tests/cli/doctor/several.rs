//! Quorums, Sentinel sets and Clusters.

use crate::support::{
    Cluster, MASTER, Nodes, Passwords, Raw, Sentinels, Server, SetOptions, with_password,
};
use crate::{out, output};

use super::{PASSWORD, doctor, ends_with, has_no_keys, healthy, says};

/// Returns the hosts of servers, as the URL of several has them.
pub(super) fn hosts<'a>(servers: impl IntoIterator<Item = &'a Server>) -> String {
    let hosts = servers
        .into_iter()
        .map(|server| format!("127.0.0.1:{}", server.port()));
    hosts.collect::<Vec<_>>().join(",")
}

#[test]
fn a_quorum_needs_no_persistence_and_one_time() {
    let nodes = Nodes::start_each(3, Server::with_clock);
    let url = format!("redis+quorum://{}", hosts(nodes.servers()));
    // New nodes vote at once.
    let at_once = "&restart_delay=0s&node_timeout=5s";
    let well = doctor(&url, at_once);
    ends_with(&well, 0);
    for words in [
        "apart, to within",
        "a node of a quorum that restarts does not vote",
    ] {
        assert!(out(&well).contains(words), "{}", out(&well));
    }
    nodes.servers()[1].set_clock_ahead(3_600);
    let apart = doctor(&url, at_once);
    ends_with(&apart, 1);
    let address = format!("127.0.0.1:{}", nodes.servers()[1].port());
    says(&apart, "clocks", "warn", &[&address, "ahead of", "Fences"]);
    for node in nodes.raw().nodes() {
        let keys: Vec<String> = node.ask(&["KEYS", "*"]);
        assert!(
            keys.iter().all(|key| key == "leasehold:restart_delay"),
            "{keys:?}"
        );
    }
    nodes.servers()[1].set_clock_ahead(0);
    nodes.servers()[1].kill();
    let without = doctor(&url, at_once);
    ends_with(&without, 1);
    says(&without, "connection", "warn", &["majority"]);
    says(&without, "lock", "ok", &[]);
    nodes.servers()[2].kill();
    ends_with(&doctor(&url, at_once), 2);
}

#[test]
fn a_node_that_is_named_twice_is_bad() {
    let servers = [healthy(), healthy()];
    let again = servers[0].port();
    let url = format!("redis+quorum://{},localhost:{again}", hosts(&servers));
    let output = doctor(&url, "&restart_delay=0s&node_timeout=5s");
    ends_with(&output, 2);
    says(&output, "nodes", "bad", &["are one server"]);
}

/// The servers behind the sentinels have a login of their own.
#[test]
fn a_failover_that_may_lose_locks_is_a_warning() {
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
    let of_sentinels = format!("&sentinel_pass={}", passwords.of_sentinels);
    let found = doctor(&url, &of_sentinels);
    ends_with(&found, 1);
    says(
        &found,
        "replicas",
        "warn",
        &["2 in step", "failover", "replicas=1"],
    );
    for check in ["rights", "proxy", "lock"] {
        says(&found, check, "ok", &[]);
    }
    assert!(!out(&found).contains(PASSWORD));
    says(
        &doctor(&url, &format!("{of_sentinels}&replicas=1")),
        "replicas",
        "ok",
        &["2 in step"],
    );
    // An acquire waits for the third replica for one `io_timeout`.
    let impatient = "replicas=3&io_timeout=3s&connect_timeout=20s";
    let too_many = output(&format!("{url}?{impatient}{of_sentinels}"), &["doctor"]);
    ends_with(&too_many, 2);
    says(&too_many, "replicas", "bad", &["wants 3"]);
    let mut servers = sentinels
        .servers()
        .map(|server| with_password(&server.url(), Some(PASSWORD)));
    let master = servers.next().expect("it is the first");
    has_no_keys(&Raw::new(&format!("{master}1")));
    let output = doctor(&servers.next().expect("a replica"), "");
    ends_with(&output, 2);
    says(&output, "mode", "bad", &["replica", "redis+sentinel"]);
}

#[test]
fn each_master_of_a_cluster_is_checked() {
    let nodes = Cluster::without_failover();
    let url = format!("redis+cluster://{}", hosts(nodes.servers()));
    let output = doctor(&url, "");
    // They have no replicas and keep no data.
    ends_with(&output, 1);
    for server in nodes.servers() {
        let address = format!("127.0.0.1:{}", server.port());
        let text = out(&output);
        let lines = text.lines().filter(|line| line.contains(&address));
        let is_well = |check: &str| {
            let mut lines = lines.clone();
            lines.any(|line| line.starts_with("ok") && line.contains(&format!(" {check} ")))
        };
        for check in ["mode", "rights", "scripts", "expiry", "proxy"] {
            assert!(is_well(check), "{check}: {text}");
        }
        has_no_keys(&server.raw());
    }
    says(&output, "lock", "ok", &[]);
    let alone = doctor(&nodes.servers()[0].url(), "");
    ends_with(&alone, 2);
    says(&alone, "mode", "bad", &["redis+cluster://"]);
}
