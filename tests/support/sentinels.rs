//! A Sentinel set: a master, its replicas, and the sentinels that watch them.

use std::fs;
use std::path::PathBuf;
use std::thread::{self, ScopedJoinHandle};

use leasehold::{Builder, LockManager};
use redis::Value;

use super::server::dir_of_servers;
use super::{Raw, Server, build, name, secs, wait_until};

/// The name of the master.
pub const MASTER: &str = "mine";
const REPLICAS: usize = 2;
const SENTINELS: usize = 3;

/// The time after which the sentinels call a master dead, in ms. A busy machine must not look like a dead master.
const DOWN_AFTER_MS: u32 = 2_000;

/// One master, two replicas, and three sentinels. Dropping it ends them.
pub struct Sentinels {
    servers: Vec<Server>,
    sentinels: Vec<Sentinel>,
}

/// The settings of a set.
#[derive(Clone, Copy)]
pub struct SetOptions<'a> {
    pub passwords: Option<Passwords<'a>>,
    /// The time after which the sentinels call a master dead.
    pub down_after_ms: u32,
}

impl Default for SetOptions<'_> {
    fn default() -> Self {
        Self {
            passwords: None,
            down_after_ms: DOWN_AFTER_MS,
        }
    }
}

/// The passwords of the sentinels and of the servers.
#[derive(Clone, Copy)]
pub struct Passwords<'a> {
    pub of_sentinels: &'a str,
    pub of_servers: &'a str,
}

struct Sentinel {
    server: Server,
    /// Its configuration, which it writes itself.
    file: PathBuf,
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        fs::remove_file(&self.file).ok();
    }
}

impl Sentinels {
    /// Starts all of them, and waits until the sentinels know the servers and each other.
    #[track_caller]
    pub fn start() -> Self {
        Self::with(SetOptions::default())
    }

    /// Starts a set whose sentinels do not call the master dead within a test. They still fail over by hand.
    #[track_caller]
    pub fn without_failover() -> Self {
        Self::with(SetOptions {
            down_after_ms: 3_600_000,
            ..SetOptions::default()
        })
    }

    /// Starts a set with these settings.
    #[track_caller]
    pub fn with(set_options: SetOptions<'_>) -> Self {
        let passwords = set_options.passwords;
        let mut options = vec![
            "--repl-diskless-sync-delay",
            "0",
            "--repl-ping-replica-period",
            "1",
        ];
        if let Some(passwords) = passwords {
            options.extend(["--requirepass", passwords.of_servers]);
            options.extend(["--masterauth", passwords.of_servers]);
        }
        let master = Server::with(&options);
        let port = master.port().to_string();
        let of_replica = [&["--replicaof", "127.0.0.1", &port], &*options].concat();
        let mut servers = vec![master];
        servers.extend(in_parallel(REPLICAS, || Server::with(&of_replica)));
        let sentinels = in_parallel(SENTINELS, || Sentinel::of(&port, set_options));
        let set = Self { servers, sentinels };
        let password = passwords.map(|passwords| passwords.of_servers);
        let master = Raw::new(&with_password(&set.servers[0].url(), password));
        wait_until("the replicas are in sync", || {
            replicas_of(&master) == REPLICAS
        });
        let password = passwords.map(|passwords| passwords.of_sentinels);
        for url in set.urls() {
            let sentinel = Raw::new(&with_password(&url, password));
            wait_until_known(&sentinel, REPLICAS);
        }
        set
    }

    /// Takes the first master out of the set. Its owner ends it.
    pub fn take_master(&mut self) -> Server {
        self.servers.remove(0)
    }

    pub fn urls(&self) -> Vec<String> {
        self.sentinels().map(Server::url).collect()
    }

    /// Returns settings for a busy machine.
    pub fn builder(&self) -> Builder {
        let builder = LockManager::sentinel(self.urls(), MASTER);
        builder.connect_timeout(secs(20)).io_timeout(secs(15))
    }

    #[track_caller]
    pub fn manager(&self) -> LockManager {
        build(self.builder())
    }

    pub fn sentinels(&self) -> impl Iterator<Item = &Server> {
        self.sentinels.iter().map(|sentinel| &sentinel.server)
    }

    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter()
    }

    /// Returns the server that a majority of the sentinels names as the master.
    #[track_caller]
    pub fn master(&self) -> &Server {
        let mut master = None;
        wait_until("the sentinels agree", || {
            let named = self.sentinels().map(|sentinel| {
                let address: (String, u16) =
                    sentinel
                        .raw()
                        .ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]);
                address.1
            });
            let named: Vec<_> = named.collect();
            master = self.servers.iter().find(|server| {
                let same = named.iter().filter(|port| **port == server.port());
                same.count() > SENTINELS / 2
            });
            master.is_some()
        });
        master.expect("they agree")
    }

    /// Has the sentinels make another server the master, while the old one runs. Returns the old one.
    #[track_caller]
    pub fn fail_over(&self) -> &Server {
        let old = self.master();
        let first = self.sentinels[0].server.raw();
        wait_until("the failover begins", || {
            first
                .try_ask::<()>(&["SENTINEL", "FAILOVER", MASTER])
                .is_ok()
        });
        self.wait_for_another_than(old);
        old
    }

    /// Starts the killed server on this port as a replica. Blocks until both replicas follow the master.
    #[track_caller]
    pub fn start_as_replica(&self, port: u16) {
        let mut servers = self.servers();
        let killed = servers.find(|server| server.port() == port);
        killed.expect("it is of the set").start_again();
        self.wait_until_well();
    }

    /// Blocks until both replicas follow the master, and the sentinels trust them.
    #[track_caller]
    pub fn wait_until_well(&self) {
        wait_until("both replicas follow", || {
            let master = self.master();
            let port = master.port().to_string();
            // In a failover the sentinels change the replicas themselves.
            let is_settled = |sentinel: &Server| {
                let settled = ("flags".to_owned(), "master".to_owned());
                facts(&sentinel.raw()).contains(&settled)
            };
            if !self.sentinels().all(is_settled) {
                return false;
            }
            let replicas = self
                .servers()
                .filter(|server| server.port() != master.port());
            for replica in replicas {
                let follow = ["REPLICAOF", "127.0.0.1", &port];
                replica.raw().try_ask::<()>(&follow).ok();
            }
            replicas_of(&master.raw()) == REPLICAS
        });
        for sentinel in self.sentinels() {
            wait_until("the sentinel trusts the replicas", || {
                let replicas = ["SENTINEL", "REPLICAS", MASTER];
                let known: Vec<Vec<String>> = sentinel.raw().ask(&replicas);
                let is_up = |facts: &Vec<String>| {
                    let mut facts = facts.chunks_exact(2);
                    facts.any(|fact| fact[0] == "flags" && fact[1] == "slave")
                };
                known.len() == REPLICAS && known.iter().all(is_up)
            });
        }
    }

    /// Blocks until a majority of the sentinels names another master.
    #[track_caller]
    pub fn wait_for_another_than(&self, old: &Server) {
        wait_until("there is a new master", || {
            self.master().port() != old.port()
        });
    }
}

impl Sentinel {
    fn of(port: &str, options: SetOptions<'_>) -> Self {
        let file = dir_of_servers().join(name("sentinel").replace(':', "-"));
        let of_passwords = options.passwords.map_or_else(String::new, |passwords| {
            let (of_sentinels, of_servers) = (passwords.of_sentinels, passwords.of_servers);
            format!(
                "requirepass {of_sentinels}\nsentinel sentinel-pass {of_sentinels}\n\
                 sentinel auth-pass {MASTER} {of_servers}\n"
            )
        });
        let down_after_ms = options.down_after_ms;
        let settings = format!(
            "sentinel monitor {MASTER} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {MASTER} {down_after_ms}\n\
             sentinel failover-timeout {MASTER} 4000\n\
             {of_passwords}"
        );
        fs::write(&file, settings).expect("a file");
        let server = Server::with(&[file.to_str().expect("a path"), "--sentinel"]);
        Self { server, file }
    }
}

/// Returns the number of replicas of a master.
fn replicas_of(master: &Raw) -> usize {
    let role: Value = master.ask(&["ROLE"]);
    match role {
        Value::Array(parts) => match &parts[2] {
            Value::Array(replicas) => replicas.len(),
            _ => 0,
        },
        _ => 0,
    }
}

/// Blocks until a sentinel knows this number of replicas, and all other sentinels.
#[track_caller]
fn wait_until_known(sentinel: &Raw, replicas: usize) {
    wait_until("the sentinel knows all", || {
        let facts = facts(sentinel);
        let is = |name: &str, number: usize| facts.contains(&(name.to_owned(), number.to_string()));
        is("num-slaves", replicas) && is("num-other-sentinels", SENTINELS - 1)
    });
}

/// Returns the URL with a password in it.
pub fn with_password(url: &str, password: Option<&str>) -> String {
    match password {
        Some(password) => url.replace("//", &format!("//:{password}@")),
        None => url.to_owned(),
    }
}

fn facts(sentinel: &Raw) -> Vec<(String, String)> {
    let words: Vec<String> = sentinel.ask(&["SENTINEL", "MASTER", MASTER]);
    let pairs = words.chunks_exact(2);
    pairs
        .map(|pair| (pair[0].clone(), pair[1].clone()))
        .collect()
}

fn in_parallel<T: Send>(count: usize, start: impl Fn() -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let starting: Vec<_> = (0..count).map(|_| scope.spawn(&start)).collect();
        let started = starting.into_iter().map(ScopedJoinHandle::join);
        started.map(|one| one.expect("it starts")).collect()
    })
}
