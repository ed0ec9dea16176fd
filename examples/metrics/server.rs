//! The server: a thread for each connection. `GET /ACCOUNT` works under the lock of an account.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use leasehold::LockManager;
use metrics_exporter_prometheus::PrometheusHandle;

use crate::Result;

/// The account that has its own series. There are few such names, and they are known beforehand: a series for each account
/// would be too much for Prometheus.
pub const BUSIEST: &str = "ann";

#[derive(Clone)]
pub struct Server {
    pub locks: LockManager,
    pub metrics: PrometheusHandle,
}

impl Server {
    /// Answers requests until the process ends. Keeps the exporter's memory small, also if nobody scrapes.
    pub fn run(&self, listener: &TcpListener) {
        let metrics = self.metrics.clone();
        thread::spawn(move || {
            loop {
                thread::sleep(Duration::from_secs(5));
                metrics.run_upkeep();
            }
        });
        for stream in listener.incoming().flatten() {
            let server = self.clone();
            // The client may have closed the connection.
            thread::spawn(move || server.answer(stream).ok());
        }
    }

    fn answer(&self, mut stream: TcpStream) -> Result {
        let mut request = BufReader::new(stream.try_clone()?);
        let mut first = String::new();
        request.read_line(&mut first)?;
        // The rest of the head says nothing of use.
        let mut line = String::from("-");
        while !line.trim().is_empty() {
            line.clear();
            request.read_line(&mut line)?;
        }
        let account = first.strip_prefix("GET /").unwrap_or_default();
        let account = account.split(' ').next().unwrap_or_default();
        let (status, text) = match account {
            "metrics" => ("200 OK", self.metrics.render()),
            account => match self.work(account) {
                Ok(text) => ("200 OK", text.to_owned()),
                Err(error) => ("503 Service Unavailable", error.to_string()),
            },
        };
        let length = text.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{text}"
        )?;
        Ok(())
    }

    /// Works under the lock of an account, for at most 10 s.
    fn work(&self, account: &str) -> leasehold::Result<&'static str> {
        let limit = Duration::from_secs(10);
        let Some(guard) = self.locks.try_lock_for(account, limit)? else {
            return Ok("the account is busy");
        };
        // This is the work.
        thread::sleep(Duration::from_millis(1));
        guard.release()?;
        Ok("done")
    }
}
