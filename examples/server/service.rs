//! The server of one machine: a few threads, each with a connection to the accounts, and one lock manager.

use std::net::SocketAddr;
use std::sync::{Arc, atomic::Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use leasehold::LockManager;
use tiny_http::Server;

use crate::Result;
use crate::accounts::Accounts;
use crate::handler::{Handler, Waiting};

const THREADS: usize = 4;

pub struct Service {
    server: Arc<Server>,
    locks: LockManager,
    waiting: Waiting,
    threads: Vec<JoinHandle<()>>,
}

impl Service {
    pub fn start(url: &str, bank: &str) -> Result<Self> {
        let patient = LockManager::single(url).io_timeout(Duration::from_secs(10));
        let mut service = Self {
            server: Arc::new(Server::http("127.0.0.1:0")?),
            locks: patient.build()?,
            waiting: Waiting::default(),
            threads: Vec::new(),
        };
        for _ in 0..THREADS {
            let accounts = Accounts::open(url, bank)?;
            let mut handler = Handler::new(accounts, &service.locks, &service.waiting);
            let server = Arc::clone(&service.server);
            service.threads.push(thread::spawn(move || {
                for request in server.incoming_requests() {
                    handler.answer(request);
                }
            }));
        }
        Ok(service)
    }

    pub fn address(&self) -> Result<SocketAddr> {
        Ok(self
            .server
            .server_addr()
            .to_ip()
            .ok_or("not on a network")?)
    }

    /// Blocks until a request waits for its lock, or is about to.
    pub fn wait_for_request(&self) -> Result {
        for _ in 0..60_000 {
            if self.waiting.load(Ordering::Relaxed) > 0 {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Err("no request came".into())
    }

    /// Ends the waits of requests, which reply 503, and then the threads.
    pub fn stop(self) -> Result {
        let all_released = self.locks.close(Duration::from_secs(10));
        for _ in &self.threads {
            // Each call wakes one thread.
            self.server.unblock();
        }
        for thread in self.threads {
            thread.join().map_err(|_| "a handler panicked")?;
        }
        all_released
            .then_some(())
            .ok_or_else(|| "a release was not sent in time".into())
    }
}
