//! A link to the server that can be cut. After that it carries nothing, and neither end is notified.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::{io, thread};

use shared::Server;

use crate::Outcome;

pub struct Link {
    address: SocketAddr,
    is_cut: Arc<AtomicBool>,
}

impl Link {
    pub fn to(server: &Server) -> Outcome<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let link = Self {
            address: listener.local_addr()?,
            is_cut: Arc::default(),
        };
        let (server, is_cut) = (server.address(), Arc::clone(&link.is_cut));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                carry(&client, &server, &is_cut).ok();
            }
        });
        Ok(link)
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    pub fn cut(&self) {
        self.is_cut.store(true, SeqCst);
    }
}

/// Carries the bytes of a connection in both directions, by two threads.
fn carry(client: &TcpStream, server: &str, is_cut: &Arc<AtomicBool>) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    for (from, to) in [(client, &server), (&server, client)] {
        to.set_nodelay(true)?;
        let (from, to, is_cut) = (from.try_clone()?, to.try_clone()?, Arc::clone(is_cut));
        thread::spawn(move || carry_one_way(from, to, &is_cut));
    }
    Ok(())
}

fn carry_one_way(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool) -> io::Result<()> {
    let mut bytes = [0; 16 << 10];
    loop {
        let count = from.read(&mut bytes)?;
        if count == 0 {
            return to.shutdown(std::net::Shutdown::Write);
        }
        if !is_cut.load(SeqCst) {
            to.write_all(&bytes[..count])?;
        }
    }
}
