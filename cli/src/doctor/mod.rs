//! `doctor`: finds what is wrong with the servers for locks, says the meaning, and says how to mend it.
//!
//! 1. [`Deployment`] reads from the URL what the servers must fulfil, such as the number of replicas.
//! 2. [`LockManager::ping`] names the servers. One that does not answer is `bad`.
//! 3. A thread for each server makes the checks of that server, in the order of the output. A check sends commands by
//!    [`Server`], and returns its findings.
//! 4. The checks of all servers together follow: `together`.
//!
//! | module | its checks |
//! | --- | --- |
//! | `settings` | the facts of INFO and CONFIG GET, which `facts` reads: version, mode, eviction, persistence, replicas, active-active replication |
//! | `rights` | the commands, keys and channels of this user, for each kind of lock |
//! | `scripts` | scripts run, and are atomic; keys live as long as they should |
//! | `link` | proxies, the latency, the clock |
//! | `together` | the clocks of the nodes, and a lock from its acquire to its release |
//!
//! On a terminal, standard error shows the step meanwhile, because each round trip of a long way counts.
//!
//! A check whose commands this user may not send is skipped. So is a check that the server cannot answer.

mod facts;
mod finding;
mod link;
mod rights;
mod scripts;
mod settings;
mod together;

use std::env;
use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use clap::Args;
use leasehold::{Error, LockManager, Ping};
use uuid::Uuid;

use crate::deployment::{Deployment, Topology};
use crate::exit::Failure;
use crate::output;
use crate::server::Server;
use crate::servers::Servers;

use facts::Facts;
use finding::{Finding, Level};
use together::Node;

/// How long the last release may take.
const CLOSING: Duration = Duration::from_secs(5);
/// How long a key of a check lives if the check cannot remove it, in ms.
const TTL_MS: &str = "10000";

/// Finds what is wrong with the servers for locks, and says how to mend it
///
/// Each check is `ok`, `warn` or `bad`, or `skip` if this user may not look. A server that cannot be reached
/// is `bad`, so the status is 2 and not 69. A node of a quorum that cannot be reached is `warn`.
///
/// The checks write a few keys and one lock. These have random names behind the prefix, and are gone at the end. On a
/// quorum the note of the restart delay stays, as after any use.
///
/// Exit status: 0 if nothing is wrong, 1 with a warning, 2 if locks are not safe or do not work.
#[derive(Args)]
pub struct Options {
    /// Print an object of JSON for each finding
    #[arg(long)]
    json: bool,
}

pub fn main(servers: &Servers, options: &Options) -> Result<u8, Failure> {
    let deployment = Deployment::read(servers.url()?);
    let locks = servers.builder()?.build_lazy()?;
    let findings = examine(&locks, &deployment);
    output::passing("");
    // The last release may still be on its way.
    let _ = locks.close(CLOSING);
    let text = if options.json {
        finding::json(&findings)
    } else {
        let is_unset = |name| env::var_os(name).is_none_or(|value| value.is_empty());
        let has_colour = io::stdout().is_terminal() && is_unset("NO_COLOR");
        finding::lines(&findings, has_colour, output::width(io::stdout()))
    };
    output::print(&text).map_err(|error| Failure::system("cannot write", error))?;
    Ok(match findings.iter().map(|finding| finding.level).max() {
        Some(Level::Bad) => 2,
        Some(Level::Warn) => 1,
        _ => 0,
    })
}

fn examine(locks: &LockManager, deployment: &Deployment) -> Vec<Finding> {
    output::passing("finding the servers …");
    let pings = match locks.ping() {
        Ok(pings) => pings,
        Err(error) => return vec![not_reached(&error, deployment)],
    };
    let (mut findings, mut nodes) = (Vec::new(), Vec::new());
    thread::scope(|scope| {
        let examine = |ping: Ping| scope.spawn(move || examine_server(deployment, &ping));
        let threads: Vec<_> = pings.into_iter().map(examine).collect();
        for thread in threads {
            let (found, node) = thread.join().expect("a check does not panic");
            findings.extend(found);
            nodes.extend(node);
        }
    });
    // Without these, a lock of a trial could not be released.
    let is_needed = |finding: &Finding| ["rights", "scripts"].contains(&finding.check);
    let mut needed = findings.iter().filter(|finding| is_needed(finding));
    let can_lock = needed.all(|finding| finding.level < Level::Bad);
    output::passing("trying a lock …");
    findings.extend(together::check(locks, deployment, &nodes, can_lock));
    findings
}

/// Makes the checks of a server. Returns what the checks of all servers together need, if the server can be reached.
fn examine_server(deployment: &Deployment, ping: &Ping) -> (Vec<Finding>, Option<Node>) {
    let address = &*ping.server;
    if let Err(error) = &ping.result {
        return (vec![not_reached(error, deployment).at(address)], None);
    }
    let server = Server {
        address,
        deployment,
    };
    let step = |what: &str| output::passing(&format!("{address}: checking {what} …"));
    step("the settings");
    let facts = Facts::read(&server);
    let mut findings = settings::check(&facts, deployment);
    step("the clock");
    let (clock, offset) = link::clock(&server);
    findings.push(clock);
    step("the rights");
    findings.extend(rights::check(&server));
    step("the scripts");
    findings.extend(scripts::check(&server, &facts));
    step("for proxies");
    findings.push(link::proxies(&server));
    step("the latency");
    findings.push(link::latency(&server));
    let node = Node {
        address: address.to_owned(),
        run_id: facts.info("run_id").map(str::to_owned),
        offset,
    };
    let findings = findings.into_iter().map(|finding| finding.at(address));
    (findings.collect(), Some(node))
}

/// Returns a key that no other program uses. On a cluster, it is one of this master's, if one is found.
fn new_key(server: &Server<'_>) -> String {
    const TRIES: usize = 64;
    let deployment = server.deployment;
    let key = || format!("{}leasehold-doctor:{}", deployment.prefix, Uuid::new_v4());
    if deployment.topology != Topology::Cluster {
        return key();
    }
    let keys: Vec<String> = (0..TRIES).map(|_| key()).collect();
    let commands: Vec<[&str; 2]> = keys.iter().map(|key| ["EXISTS", key]).collect();
    let commands: Vec<&[&str]> = commands.iter().map(<[_; 2]>::as_slice).collect();
    let answers = server.ask_all(&commands).unwrap_or_default();
    let own = answers.iter().position(|(answer, _)| answer.is_ok());
    keys[own.unwrap_or(0)].clone()
}

/// Returns the finding of a server that does not answer. A quorum works without a few of its nodes.
fn not_reached(error: &Error, deployment: &Deployment) -> Finding {
    let (level, means) = match deployment.topology {
        Topology::Quorum => (
            Level::Warn,
            "This node cannot vote. Locks work as long as a majority of the nodes can.",
        ),
        Topology::Cluster => (Level::Bad, "The locks of this master do not work."),
        Topology::Single | Topology::Sentinel => (Level::Bad, "Locks do not work."),
    };
    let mend =
        "Check the address, the port, the login and the firewall, and whether the server runs.";
    Finding::new("connection", level, format!("{error:#}"), means, mend)
}
