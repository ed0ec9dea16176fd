//! The switches of the master, as a sentinel announces them.

use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use shared::{Result, Server};

/// When the master was switched.
pub struct Switches(Arc<Mutex<Vec<Instant>>>);

impl Switches {
    /// Prints each switch, from now on until the sentinel ends.
    pub fn start(sentinel: &Server) -> Result<Self> {
        let connection = sentinel.connect()?;
        let all = Arc::<Mutex<Vec<Instant>>>::default();
        let (subscribed, is_subscribed) = channel();
        thread::spawn({
            let all = Arc::clone(&all);
            // An error means that the sentinel has ended.
            move || listen(connection, &all, &subscribed).ok()
        });
        is_subscribed.recv()?;
        Ok(Self(all))
    }

    /// Prints the parts of a time in which nobody could lock.
    pub fn explain(&self, gap: &Range<Instant>) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = all.iter().rfind(|switch| gap.contains(switch));
        let switched = *last.unwrap_or(&gap.end);
        let of_servers = switched - gap.start;
        let of_leasehold = gap.end - switched;
        println!("nobody could lock for {:.2?}:", gap.end - gap.start);
        println!("  {of_servers:.2?} until the master was switched");
        println!("  {of_leasehold:.2?} until leasehold had a lock on the new master");
    }
}

fn listen(
    mut connection: redis::Connection,
    all: &Mutex<Vec<Instant>>,
    subscribed: &Sender<()>,
) -> Result<()> {
    connection.set_read_timeout(None)?;
    let mut messages = connection.as_pubsub();
    messages.subscribe("+switch-master")?;
    subscribed.send(())?;
    loop {
        let message: String = messages.get_message()?.get_payload()?;
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Instant::now());
        // The name, and host and port of the old and of the new master.
        let words: Vec<_> = message.split(' ').collect();
        if let [_, old, old_port, new, new_port] = words[..] {
            println!("the master is switched from {old}:{old_port} to {new}:{new_port}");
        }
    }
}
