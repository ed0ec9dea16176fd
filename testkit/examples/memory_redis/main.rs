//! A `redis-server` in memory: that of the test kit, at a port. `scripts/with-server memory` puts it in front of the real
//! one in PATH, so the tests of the contract that start servers start it.
//!
//! It knows the options of a server without settings, as the tests and `scripts/with-redis` give them. Any other option
//! ends it.

mod served;

use std::error::Error;
use std::fs::File;
use std::io::{Write, stdout};
use std::net::TcpListener;

use served::serve;

/// Options that change nothing here, each with its value.
const IGNORED: [&str; 6] = [
    "--appendonly",
    "--daemonize",
    "--dir",
    "--jemalloc-bg-thread",
    "--protected-mode",
    "--save",
];

fn main() -> Result<(), Box<dyn Error>> {
    let (mut address, mut port, mut log) = (String::new(), 0, None);
    let mut options = std::env::args().skip(1);
    while let Some(option) = options.next() {
        if option == "--version" {
            println!("Redis server v=7.4.0 in memory");
            return Ok(());
        }
        let value = options.next().ok_or("an option without a value")?;
        match option.as_str() {
            "--bind" => address = value,
            "--port" => port = value.parse()?,
            "--logfile" => log = Some(File::create(value)?),
            "--appendonly" if value != "no" => return Err("it keeps no data".into()),
            ignored if IGNORED.contains(&ignored) => {}
            _ => return Err(format!("a Redis in memory has no option {option}").into()),
        }
    }
    let mut log: Box<dyn Write> = match log {
        Some(file) => Box::new(file),
        None => Box::new(stdout()),
    };
    match TcpListener::bind((address.as_str(), port)) {
        Ok(listener) => {
            writeln!(log, "Server initialized\nReady to accept connections")?;
            log.flush()?;
            Ok(serve(&listener)?)
        }
        Err(error) => {
            writeln!(log, "Failed listening on port {port}: {error}")?;
            Err(error.into())
        }
    }
}
