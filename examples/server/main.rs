//! A threaded HTTP server on two machines, which locks the account that a request changes. A busy account replies
//! 503.
//!
//! `cargo run --example server`, with a Redis on this machine; `REDIS_URL` names another. The example is its own
//! client, and listens on the loopback only.
//!
//! - `accounts`: a deposit, under the lock of its account
//! - `handler`, `service`: the handling of a request, and the threads that do it
//! - `client`: the client

mod accounts;
mod client;
mod handler;
mod service;

use std::{env, error::Error, process, thread, time::Duration};

use leasehold::LockManager;

use crate::accounts::{Accounts, CLOSING};
use crate::client::{Answer, deposit, deposit_often};
use crate::service::Service;

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const CLIENTS: u64 = 8;
const DEPOSITS: u64 = 10;

fn main() -> Result {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let bank = format!("server:{}", process::id());
    let mut accounts = Accounts::open(&url, &bank)?;
    let services = [Service::start(&url, &bank)?, Service::start(&url, &bank)?];
    let machines = [services[0].address()?, services[1].address()?];

    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| thread::spawn(move || deposit_often(&machines, &["ann", "bob"], DEPOSITS)))
        .collect();
    for client in clients {
        client.join().expect("it does not panic")?;
    }
    let due = CLIENTS * DEPOSITS * 2; // On each machine.
    let balances = [accounts.balance("ann")?, accounts.balance("bob")?];
    if balances != [due; 2] {
        return Err(format!("an update was lost: {balances:?}").into());
    }
    println!("2 machines made {due} deposits to each account for {CLIENTS} clients, none lost.");

    let guard = LockManager::connect(&url)?.lock(accounts.lock_name("ann"))?;
    let answer = deposit(machines[0], "ann", Duration::from_millis(100))?;
    println!("Another client has locked ann's account. A deposit gets, after 0.1 s: {answer}.");
    refused(&answer, "the account is busy")?;

    // `close` ends the waits of these requests.
    let waiting = machines
        .map(|machine| thread::spawn(move || deposit(machine, "ann", Duration::from_hours(1))));
    for service in services {
        service.wait_for_request()?;
        service.stop()?;
    }
    for (machine, client) in (1..).zip(waiting) {
        let answer = client.join().expect("it does not panic")?;
        println!("A deposit may wait for an hour, but machine {machine} closes: {answer}.");
        refused(&answer, CLOSING)?;
    }
    guard.release()?;
    if accounts.balance("ann")? != due {
        return Err("a deposit was refused, and changed the balance".into());
    }
    println!("Ann still has {due}. So no refused deposit was made, and each may be sent again.");
    accounts.remove(&["ann", "bob"])
}

fn refused(answer: &Answer, reason: &str) -> Result {
    if answer.status != 503 || answer.text != reason || answer.retry_after.is_none() {
        return Err(format!("it should have been 503 {reason}, with a Retry-After").into());
    }
    Ok(())
}
