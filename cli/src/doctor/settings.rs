//! The checks of the settings and the state of a server, as its [`Facts`] has them.

use super::facts::Facts;
use super::finding::Finding;
use crate::deployment::{Deployment, Topology};
use crate::server::Problem;

/// A replica that was not heard of for longer is late, in seconds.
const LATE_REPLICA: u64 = 10;
/// leasehold needs at least this version of Redis.
const OLDEST: (u32, u32) = (6, 2);

pub fn check(facts: &Facts, deployment: &Deployment) -> Vec<Finding> {
    if let Err(problem) = &facts.info {
        // CONFIG GET may have an answer for these two.
        return vec![no_info(problem), eviction(facts), idle_connections(facts)];
    }
    vec![
        program(facts),
        mode(facts, deployment),
        eviction(facts),
        persistence(facts, deployment),
        replicas(facts, deployment),
        active_active(facts),
        idle_connections(facts),
    ]
}

fn no_info(problem: &Problem) -> Finding {
    match problem {
        Problem::Denied(_) => Finding::skip(
            "server",
            "this user may not send INFO: version, mode, persistence and replicas are unknown",
            "Give the user the right +info.",
        ),
        _ => Finding::warn(
            "server",
            format!("INFO has no answer: {problem}"),
            "A proxy may stand in between, such as twemproxy or Envoy, or INFO is renamed. So the server's \
             mode, persistence and replicas are unknown.",
            "Connect to the server itself, without a proxy. Do not rename INFO.",
        ),
    }
}

fn program(facts: &Facts) -> Finding {
    let (name, version) = facts.program();
    let found = format!("{name} {version}");
    let mut parts = version.split('.').map(str::parse);
    let number = match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    };
    if ["Redis", "KeyDB"].contains(&name) && number.is_some_and(|number| number < OLDEST) {
        return Finding::warn(
            "server",
            found,
            "leasehold needs Redis 6.2 or later, and is not tested with this version.",
            "Upgrade the server.",
        );
    }
    match name {
        "Redis" | "Valkey" => Finding::ok("server", found),
        _ => Finding::warn(
            "server",
            found,
            "leasehold is tested with Redis and Valkey only. The other checks show what this server does differently.",
            "Test your program with this server, or use Redis or Valkey.",
        ),
    }
}

fn mode(facts: &Facts, deployment: &Deployment) -> Finding {
    let mode = facts
        .info("redis_mode")
        .or_else(|| facts.info("server_mode"));
    let mode = mode.unwrap_or("of an unknown mode");
    let role = facts.info("role").unwrap_or("of an unknown role");
    let found = format!("{mode}, {role}");
    let is_for_clusters = deployment.topology == Topology::Cluster;
    match (mode, role) {
        ("sentinel", _) => Finding::bad(
            "mode",
            "a sentinel",
            "A sentinel holds no locks.",
            "Write the URL as redis+sentinel://host1,host2,host3/NAME-OF-THE-MASTER.",
        ),
        ("cluster", _) if !is_for_clusters => Finding::bad(
            "mode",
            found,
            "The server is a node of a Redis Cluster. The URL is not that of a cluster, so no lock can be acquired.",
            "Write the URL as redis+cluster://host1,host2,host3.",
        ),
        (_, "slave" | "replica") => Finding::bad(
            "mode",
            found,
            "The server is a replica. It rejects writes, so no lock can be acquired.",
            "Name the master in the URL, or its sentinels by redis+sentinel://.",
        ),
        _ => Finding::ok("mode", found),
    }
}

fn eviction(facts: &Facts) -> Finding {
    let value = |of_info: &str, of_config| facts.info(of_info).or_else(|| facts.setting(of_config));
    let most = value("maxmemory", "maxmemory");
    let policy = value("maxmemory_policy", "maxmemory-policy");
    let (Some(most), Some(policy)) = (most, policy) else {
        let found = "neither INFO nor CONFIG GET says what happens when the memory is full";
        return Finding::skip(
            "eviction",
            found,
            "Give the user the right +config|get, if it lacks it.",
        );
    };
    if most == "0" {
        return Finding::ok(
            "eviction",
            format!("no memory limit, so no eviction (policy {policy})"),
        );
    }
    let found = format!("maxmemory {most}, policy {policy}");
    if policy != "noeviction" {
        return Finding::bad(
            "eviction",
            found,
            "When the memory is full, the server evicts keys that expire, and each lock is such a key. An evicted lock \
             is free for others, while its holder still works.",
            "Run CONFIG SET maxmemory-policy noeviction, then CONFIG REWRITE. Give a cache a server \
             of its own.",
        );
    }
    let (used, most) = (
        facts.number("used_memory"),
        most.parse().unwrap_or(u64::MAX),
    );
    if used / 9 >= most / 10 {
        return Finding::warn(
            "eviction",
            format!("{found}, of which {used} are used"),
            "The memory is nearly full. When it is full, the server rejects each acquire.",
            "Raise maxmemory, or remove data.",
        );
    }
    Finding::ok("eviction", found)
}

fn persistence(facts: &Facts, deployment: &Deployment) -> Finding {
    const CHECK: &str = "persistence";
    const MEND: &str = "Run CONFIG SET appendonly yes, then CONFIG REWRITE. The setting appendfsync everysec is enough.";
    let Some(is_aof) = facts.info("aof_enabled") else {
        return Finding::skip(
            CHECK,
            "INFO does not say",
            "Look at the server's own documentation.",
        );
    };
    let is_failing = |field| facts.info(field).is_some_and(|status| status != "ok");
    let stops = facts.setting("stop-writes-on-bgsave-error") != Some("no");
    let saves = facts.setting("save");
    if is_aof == "1" && is_failing("aof_last_write_status")
        || is_failing("rdb_last_bgsave_status") && stops && saves != Some("")
    {
        return Finding::bad(
            CHECK,
            "the server cannot write its data to the disk",
            "The server rejects writes in this state. So no lock can be acquired, renewed or released.",
            "Look at the server's log. The disk may be full, or the directory may not be writable.",
        );
    }
    if is_aof == "1" {
        return match facts.setting("appendfsync") {
            Some("no") => Finding::warn(
                CHECK,
                "append-only file, written to the disk whenever the system does that",
                "A crash of the machine loses the locks of about the last 30 s. Then two processes can hold one lock.",
                "Run CONFIG SET appendfsync everysec, then CONFIG REWRITE.",
            ),
            Some("always") => {
                Finding::ok(CHECK, "append-only file, written to the disk at each write")
            }
            Some(_) => Finding::ok(CHECK, "append-only file, written to the disk each second"),
            None => Finding::ok(CHECK, "append-only file"),
        };
    }
    if deployment.topology == Topology::Quorum {
        let found = "none is needed: a node of a quorum that restarts does not vote until its old leases have ended";
        return Finding::ok(CHECK, found);
    }
    match saves {
        Some("") => Finding::warn(
            CHECK,
            "none: no append-only file, no snapshots",
            "A restart of the server forgets all locks. Until their holders learn of the loss, others can acquire the \
             same locks.",
            MEND,
        ),
        _ => Finding::warn(
            CHECK,
            "no append-only file; at most snapshots",
            "A restart of the server forgets each lock that was acquired since the last snapshot. Until their holders \
             learn of the loss, others can acquire the same locks.",
            MEND,
        ),
    }
}

fn replicas(facts: &Facts, deployment: &Deployment) -> Finding {
    const CHECK: &str = "replicas";
    let all = facts.number("connected_slaves");
    let (mut online, mut late) = (0, 0);
    let mut behind = 0;
    let written = facts.number("master_repl_offset");
    for number in 0..all {
        let line = facts.info(&format!("slave{number}")).unwrap_or_default();
        let field = |name: &str| {
            let mut pairs = line.split(',').filter_map(|pair| pair.split_once('='));
            pairs.find(|(it, _)| *it == name).map(|(_, value)| value)
        };
        let seconds: u64 = field("lag").and_then(|lag| lag.parse().ok()).unwrap_or(0);
        let offset: u64 = field("offset")
            .and_then(|it| it.parse().ok())
            .unwrap_or(written);
        behind = behind.max(written.saturating_sub(offset));
        if field("state") != Some("online") || seconds > LATE_REPLICA {
            late += 1;
        } else {
            online += 1;
        }
    }
    let found = match all {
        0 => "none".to_owned(),
        _ => format!("{online} in step, {late} late or not in sync; at most {behind} bytes behind"),
    };
    let needed: u64 = facts
        .setting("min-replicas-to-write")
        .and_then(|number| number.parse().ok())
        .unwrap_or(0);
    let wanted = u64::from(deployment.replicas);
    if wanted > online || needed > online {
        return Finding::bad(
            CHECK,
            format!("{found}; the URL wants {wanted}, and min-replicas-to-write wants {needed}"),
            "Too few replicas confirm writes, so acquires fail.",
            "Start the replicas again, or lower `replicas` in the URL or min-replicas-to-write.",
        );
    }
    if late > 0 {
        return Finding::warn(
            CHECK,
            found,
            "A replica that is late lacks the newest locks. If it becomes the master, two processes can hold one lock.",
            "Look at the logs of the replicas, and at the network between them and the master.",
        );
    }
    if !deployment.fails_over() {
        return Finding::ok(CHECK, found);
    }
    match all {
        0 => Finding::warn(
            CHECK,
            "none",
            "If this master fails, nothing takes its place: its locks do not work until it runs again.",
            "Add a replica to each master.",
        ),
        _ if wanted == 0 && needed == 0 => Finding::warn(
            CHECK,
            format!("{found}; no acquire waits for them"),
            "A failover may lose the newest locks. Then two processes can hold one lock, until the first learns of it.",
            "Add replicas=1 to the URL, or set min-replicas-to-write 1. Let the data check the fence in any case.",
        ),
        _ => Finding::ok(CHECK, found),
    }
}

fn active_active(facts: &Facts) -> Finding {
    const CHECK: &str = "active-active";
    let (name, _) = facts.program();
    let is_set = facts.setting("active-replica").map(|value| value == "yes");
    if is_set == Some(true) || facts.info("role") == Some("active-replica") {
        return Finding::bad(
            CHECK,
            "active-replica yes",
            "Two masters accept writes, and each grants the same lock: the last write wins.",
            "Set active-replica no, and use one master with Sentinel, or a quorum of independent servers.",
        );
    }
    if name == "KeyDB" && is_set.is_none() {
        return Finding::skip(
            CHECK,
            "this user may not read the setting active-replica",
            "Give the user the right +config|get, or check that active-replica is no.",
        );
    }
    Finding::ok(CHECK, "no sign of a second master")
}

fn idle_connections(facts: &Facts) -> Finding {
    const CHECK: &str = "timeout";
    match (facts.setting("timeout"), &facts.settings) {
        (Some("0"), _) => Finding::ok(CHECK, "the server closes no idle connections"),
        (Some(seconds), _) => {
            let found = format!("the server closes connections that are idle for {seconds} s");
            if seconds.parse().unwrap_or(0) > 60 {
                return Finding::ok(CHECK, found);
            }
            Finding::warn(
                CHECK,
                found,
                "leasehold opens these connections again, which delays single requests.",
                "Run CONFIG SET timeout 0, then CONFIG REWRITE. A value above 60 will do too.",
            )
        }
        (None, Err(Problem::Denied(_))) => {
            let found = "this user may not send CONFIG GET";
            Finding::skip(CHECK, found, "Give the user the right +config|get.")
        }
        (None, _) => Finding::skip(
            CHECK,
            "CONFIG GET does not say",
            "Look at the server's own documentation.",
        ),
    }
}
