//! Handles a request: `POST /accounts/ID/deposit?wait_ms=N`, with the amount as the body.

use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::LockManager;
use tiny_http::{Header, Method, Request, Response};

use crate::Result;
use crate::accounts::{Accounts, Deposit};

/// The number of requests that wait for a lock or hold one.
pub type Waiting = Arc<AtomicUsize>;

pub struct Handler {
    accounts: Accounts,
    locks: LockManager,
    waiting: Waiting,
}

impl Handler {
    pub fn new(accounts: Accounts, locks: &LockManager, waiting: &Waiting) -> Self {
        Self {
            accounts,
            locks: locks.clone(),
            waiting: Arc::clone(waiting),
        }
    }

    pub fn answer(&mut self, mut request: Request) {
        let response = match parse(&mut request) {
            None => Response::from_string("there is no such page").with_status_code(404),
            Some((account, amount, wait)) => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                let deposit = self.accounts.deposit(&self.locks, &account, amount, wait);
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                respond(deposit)
            }
        };
        // The client may have closed the connection.
        request.respond(response).ok();
    }
}

fn respond(deposit: Result<Deposit>) -> Response<Cursor<Vec<u8>>> {
    match deposit {
        Ok(Deposit::Done { balance }) => Response::from_string(balance.to_string()),
        Ok(Deposit::NotNow(reason)) => {
            let after = Header::from_bytes("Retry-After", "1").expect("it is a header");
            let response = Response::from_string(reason).with_status_code(503);
            response.with_header(after)
        }
        Err(error) => Response::from_string(error.to_string()).with_status_code(500),
    }
}

fn parse(request: &mut Request) -> Option<(String, u64, Duration)> {
    let path = request.url().strip_prefix("/accounts/")?;
    let (account, wait_ms) = path.split_once("/deposit?wait_ms=")?;
    let (account, wait_ms) = (account.to_owned(), wait_ms.parse().ok()?);
    if *request.method() != Method::Post {
        return None;
    }
    let mut amount = String::new();
    request.as_reader().read_to_string(&mut amount).ok()?;
    let amount = amount.parse().ok()?;
    Some((account, amount, Duration::from_millis(wait_ms)))
}
