//! A client with a minimal HTTP.

use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use crate::Result;

pub struct Answer {
    pub status: u16,
    pub retry_after: Option<u64>,
    pub text: String,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, self.text)?;
        self.retry_after
            .map_or(Ok(()), |after| write!(f, ", retry after {after} s"))
    }
}

/// Asks once for a deposit of 1.
pub fn deposit(address: SocketAddr, account: &str, wait: Duration) -> Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    write!(
        stream,
        "POST /accounts/{account}/deposit?wait_ms={} HTTP/1.1\r\n\
         Host: {address}\r\nContent-Length: 1\r\nConnection: close\r\n\r\n1",
        wait.as_millis()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    parse(&answer).ok_or_else(|| format!("not a reply: {answer:?}").into())
}

/// Makes `times` deposits of 1 into each account on each machine.
pub fn deposit_often(machines: &[SocketAddr], accounts: &[&str], times: u64) -> Result {
    for _ in 0..times {
        for machine in machines {
            for account in accounts {
                deposit_at_last(*machine, account)?;
            }
        }
    }
    Ok(())
}

/// Repeats the request while the reply says when to retry.
fn deposit_at_last(machine: SocketAddr, account: &str) -> Result {
    loop {
        let answer = deposit(machine, account, Duration::from_secs(10))?;
        match (answer.status, answer.retry_after) {
            (200, _) => return Ok(()),
            (503, Some(seconds)) => thread::sleep(Duration::from_secs(seconds)),
            _ => return Err(answer.to_string().into()),
        }
    }
}

fn parse(answer: &str) -> Option<Answer> {
    let (head, text) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.split(' ').next()?;
    let retry_after = head
        .lines()
        .find_map(|line| line.strip_prefix("Retry-After: "));
    Some(Answer {
        status: status.parse().ok()?,
        retry_after: retry_after.and_then(|seconds| seconds.parse().ok()),
        text: text.to_owned(),
    })
}
