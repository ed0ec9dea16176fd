//! A server fails before its replica has received the lock. The replica takes over without the lock, so two clients
//! hold it. That is true of every lock on one Redis, also of leasehold. But leasehold has a fence.

use std::time::Duration;

use redis::Connection;
use shared::{Server, wait_until};

use crate::claims::{heading, naive, ours};
use crate::naive::take;
use crate::stage::{Outcome, Stage, locks};
use crate::store::Store;

const NAME: &str = "failover";
const LEASE: Duration = Duration::from_mins(1);

pub fn run(stage: &Stage) -> Outcome {
    heading("A replica without the lock takes over");
    let (server, replica) = (Server::start("")?, Server::start("")?);
    let (mut before, mut after) = (server.connect()?, replica.connect()?);
    follow(&mut after, "127.0.0.1", &server.port().to_string())?;
    wait_until("the replica is up to date", || {
        let report: String = redis::cmd("INFO").arg("replication").query(&mut after)?;
        Ok(report.contains("master_link_status:up"))
    })?;

    // The link breaks: the replica follows a server that does not exist, so later writes do not reach it.
    follow(&mut after, "127.0.0.1", "1")?;
    let naive_first = take(&mut before, "failover:naive", "first", 60_000)?;
    let one = locks(&server.url())?;
    let first = one.mutex(NAME).lease(LEASE).lock()?;

    drop(server); // Killed.
    follow(&mut after, "NO", "ONE")?;
    let naive_second = take(&mut after, "failover:naive", "second", 60_000)?;
    naive(
        naive_first && naive_second,
        "the new server does not have the lock: two clients hold it",
    )?;
    let two = locks(&replica.url())?;
    let second = two.mutex(NAME).lease(LEASE).try_lock()?;
    let second = second.ok_or("the new server had the lock")?;
    ours(
        first.check().is_ok() && second.check().is_ok(),
        "no better: two guards read `Held`, because one Redis lost the lock",
    )?;

    let mut store = Store::new(stage.redis()?, &stage.name("failover:store"));
    let (old, new) = (first.fence(), second.fence());
    let written = store.write("the second's", new)?;
    let refused = !store.write("the first's", old)?;
    ours(
        old < new && written && refused,
        &format!("but the fence orders them: the store refused {old} after {new}"),
    )
}

/// Makes a server follow another. With `NO ONE` it becomes a master.
fn follow(replica: &mut Connection, host: &str, port: &str) -> Outcome {
    Ok(redis::cmd("REPLICAOF").arg(host).arg(port).exec(replica)?)
}
