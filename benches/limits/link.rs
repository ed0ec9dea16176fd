//! A long link to a server: a proxy that delays every byte, in both directions.
//!
//! One thread of a direction reads, and notes when each piece must arrive. Another thread writes it then. So pieces that
//! follow each other closely are delayed by the same time, as on a real link.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use redis::{ConnectionAddr, IntoConnectionInfo};

use crate::Result;

/// The proxy. Its threads end with the program.
pub struct Link {
    url: String,
}

/// Bytes, and the instant at which they arrive at the other end.
type Piece = (Instant, Vec<u8>);

impl Link {
    /// Starts a proxy of the server with this URL. `delay` is the time of a packet in one direction.
    pub fn to(server: &str, delay: Duration) -> Result<Self> {
        let info = server.into_connection_info()?;
        let ConnectionAddr::Tcp(host, port) = info.addr().clone() else {
            return Err("the server of a link has a TCP address".into());
        };
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let url = format!("redis://{}/", listener.local_addr()?);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // A client that finds its connection closed reports an error, and the row with it.
                connect(client, (&host, port), delay).ok();
            }
        });
        Ok(Self { url })
    }

    pub fn url(&self) -> &str {
        &self.url
    }
}

/// Connects a client to the server, and carries their bytes in both directions.
fn connect(client: TcpStream, server: (&str, u16), delay: Duration) -> Result<()> {
    let server = TcpStream::connect(server)?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    carry(client.try_clone()?, server.try_clone()?, delay);
    carry(server, client, delay);
    Ok(())
}

/// Carries the bytes of one direction, until an end closes the connection.
fn carry(mut from: TcpStream, to: TcpStream, delay: Duration) {
    let (pieces, arriving) = mpsc::channel();
    thread::spawn(move || deliver(&arriving, to));
    thread::spawn(move || {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            let piece: Piece = (Instant::now() + delay, bytes[..length].to_vec());
            if pieces.send(piece).is_err() {
                break;
            }
        }
    });
}

/// Writes pieces when they must arrive.
fn deliver(arriving: &Receiver<Piece>, mut to: TcpStream) {
    for (at, bytes) in arriving {
        thread::sleep(at.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    to.shutdown(Shutdown::Both).ok();
}
