//! The events of locks, on their way to the listener and to the log.
//!
//! | event | the calling thread | the events thread |
//! | --- | --- | --- |
//! | granted, passed on, waits, handed over, released | logs it at DEBUG; queues it if there is a listener | calls the listener |
//! | lost, held for long | queues it if there is a listener or the program wants warnings | logs it at WARN; calls the listener |
//! | any other | queues it if there is a listener | calls the listener |
//!
//! The thread is the one place in which a listener's code runs:
//!
//! | state | event | next |
//! | --- | --- | --- |
//! | not started | something is queued | a queue is made and the thread started; if that fails the event is dropped and counted, and the next one tries again |
//! | running | the queue is full | the event is dropped and counted |
//! | running | the logger or the listener panics | the panic is caught, and the thread goes on |
//! | running | the engine goes | the queue has no sender any more: the thread tells what is left, and ends |
//!
//! A caller never waits: not for the listener, which has the thread to itself, nor for the thread, which holds nothing
//! while it calls. Events are put in with no mutex held, by the thread that brings them about and before any other can
//! act on them: so they come in order. The watch thread queues warnings and logs nothing, because a logger may block.

use std::fmt;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use once_cell::sync::OnceCell;

use crate::engine::Engine;
use crate::engine::process_lease::ProcessLease;
use crate::error::{Error, Lost};
#[cfg(doc)]
use crate::event::Listener;
use crate::event::{Connection, Event, SharedListener};
use crate::logging::{self, Level};
use crate::panics::survived;
use crate::stats::Count;
use crate::sync::{Arc, Mutex, thread};

/// How many events wait for the listener; the documentation of [`Listener`] names it.
const QUEUE: usize = 4096;

pub(crate) struct Events {
    /// Whether there is a listener, which wants every event.
    listens: bool,
    /// The listener, until the thread takes it.
    listener: Mutex<Option<SharedListener>>,
    /// The way to the thread, once it runs.
    queue: OnceCell<Sender<Notice>>,
    dropped: Count,
}

/// What the thread works with.
struct EventsThread {
    queue: Receiver<Notice>,
    listener: Option<SharedListener>,
}

/// A guard, for a while after its end.
pub(crate) struct GuardInfo {
    pub(crate) name: Arc<str>,
    pub(crate) owner: Arc<str>,
    pub(crate) fence: u64,
}

/// A lease, for a while after its end.
pub(crate) struct LeaseInfo {
    pub(crate) name: Arc<str>,
    pub(crate) owner: Arc<str>,
}

impl GuardInfo {
    pub(crate) fn of(engine: &Engine, process_lease: &ProcessLease, fence: u64) -> Self {
        let LeaseInfo { name, owner } = LeaseInfo::of(engine, process_lease);
        Self { name, owner, fence }
    }
}

impl LeaseInfo {
    pub(crate) fn of(engine: &Engine, process_lease: &ProcessLease) -> Self {
        Self {
            name: process_lease.entry.target.name().into(),
            owner: engine.owner_of(process_lease),
        }
    }
}

/// An [`Event`] on its way to the thread.
pub(crate) enum Notice {
    Acquired(GuardInfo, Duration),
    Contended(Arc<str>, Option<Arc<str>>),
    PassedOn(GuardInfo, Duration),
    HandedOver(LeaseInfo),
    Released(GuardInfo, Duration),
    HeldLong(GuardInfo, Duration),
    Renewed(LeaseInfo, Duration),
    AtRisk(LeaseInfo, Duration),
    Lost(Lost, Arc<str>),
    Unreachable(Connection, Error),
    Recovered(Connection),
}

impl Events {
    pub(crate) fn new(listener: Option<SharedListener>) -> Self {
        Self {
            listens: listener.is_some(),
            listener: Mutex::new(listener),
            queue: OnceCell::new(),
            dropped: Count::default(),
        }
    }

    /// Returns whether there is a listener.
    pub(crate) fn is_wanted(&self) -> bool {
        self.listens
    }

    /// Tells the listener, if there is one. Called with no mutex held.
    pub(crate) fn tell(&self, notice: impl FnOnce() -> Notice) {
        if self.listens {
            self.put(notice());
        }
    }

    /// Logs a step of a lock at DEBUG on the calling thread, and tells the listener. Called with no mutex held.
    pub(crate) fn step(&self, notice: impl FnOnce() -> Notice) {
        let is_logged = logging::is_wanted(Level::Debug);
        if self.listens || is_logged {
            let notice = notice();
            if is_logged {
                logging::debug!("{notice}");
            }
            if self.listens {
                self.put(notice);
            }
        }
    }

    /// Has the events thread log a warning, and tells the listener. Called with no mutex held.
    pub(crate) fn warn(&self, notice: impl FnOnce() -> Notice) {
        if self.listens || logging::is_wanted(Level::Warn) {
            self.put(notice());
        }
    }

    /// Returns how many were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    fn put(&self, notice: Notice) {
        let sent = match self.queue.get_or_try_init(|| self.start()) {
            Ok(queue) => queue.try_send(notice).is_ok(),
            Err(_) => false,
        };
        if !sent {
            self.dropped.add(1);
        }
    }

    /// Starts the thread, which takes the listener with it.
    fn start(&self) -> std::io::Result<Sender<Notice>> {
        let (sender, queue) = crossbeam_channel::bounded(QUEUE);
        let listener = self.listener.lock().clone();
        let events_thread = EventsThread { queue, listener };
        thread::Builder::new()
            .name("leasehold-events".into())
            .spawn(move || events_thread.run())?;
        *self.listener.lock() = None;
        Ok(sender)
    }
}

impl EventsThread {
    /// The main loop of the thread.
    fn run(self) {
        let mut has_panicked = false;
        for notice in self.queue {
            if let Notice::Lost(..) | Notice::HeldLong(..) = notice {
                logging::warning!("{notice}");
            }
            let Some(SharedListener(listener)) = &self.listener else {
                continue;
            };
            let tell = || listener.on_event(&notice.event());
            if survived(tell).is_none() && !std::mem::replace(&mut has_panicked, true) {
                logging::error!("a listener panicked; it will be called again");
            }
        }
    }
}

/// The text of the log record.
impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquired(GuardInfo { name, owner, fence }, waited) => write!(
                f,
                "lock {name:?}: granted after {waited:?}, fence {fence}, owner {owner:?}"
            ),
            Self::Contended(name, Some(holder)) => {
                write!(f, "lock {name:?}: waiting, held by {holder:?}")
            }
            Self::Contended(name, None) => write!(f, "lock {name:?}: waiting"),
            Self::PassedOn(GuardInfo { name, owner, fence }, waited) => write!(
                f,
                "lock {name:?}: passed on in memory after {waited:?}, fence {fence}, owner {owner:?}"
            ),
            Self::HandedOver(LeaseInfo { name, owner }) => {
                write!(
                    f,
                    "lock {name:?}: handed over to the next waiter by {owner:?}"
                )
            }
            Self::Released(GuardInfo { name, owner, fence }, held) => write!(
                f,
                "lock {name:?}: released after {held:?}, fence {fence}, owner {owner:?}"
            ),
            Self::HeldLong(GuardInfo { name, owner, fence }, held) => write!(
                f,
                "lock {name:?}: held for {held:?} by {owner:?}, fence {fence}"
            ),
            Self::Renewed(LeaseInfo { name, owner }, remaining) => {
                write!(
                    f,
                    "lock {name:?}: renewed for {remaining:?}, owner {owner:?}"
                )
            }
            Self::AtRisk(LeaseInfo { name, owner }, remaining) => write!(
                f,
                "lock {name:?}: its renewal is overdue, {remaining:?} left, owner {owner:?}"
            ),
            Self::Lost(lost, owner) => {
                write!(f, "{lost} (fence {}, owner {owner:?})", lost.fence)
            }
            Self::Unreachable(connection, error) => {
                write!(f, "connection {connection:?} is out of reach: {error}")
            }
            Self::Recovered(connection) => write!(f, "connection {connection:?} works again"),
        }
    }
}

impl Notice {
    fn event(&self) -> Event<'_> {
        match self {
            Self::Acquired(GuardInfo { name, owner, fence }, waited) => Event::Acquired {
                name,
                owner,
                fence: *fence,
                waited: *waited,
            },
            Self::Contended(name, holder) => Event::Contended {
                name,
                holder: holder.as_deref(),
            },
            Self::PassedOn(GuardInfo { name, owner, fence }, waited) => Event::PassedOn {
                name,
                owner,
                fence: *fence,
                waited: *waited,
            },
            Self::HandedOver(LeaseInfo { name, owner }) => Event::HandedOver { name, owner },
            Self::Released(GuardInfo { name, owner, fence }, held) => Event::Released {
                name,
                owner,
                fence: *fence,
                held: *held,
            },
            Self::HeldLong(GuardInfo { name, owner, fence }, held) => Event::HeldLong {
                name,
                owner,
                fence: *fence,
                held: *held,
            },
            Self::Renewed(LeaseInfo { name, owner }, remaining) => Event::Renewed {
                name,
                owner,
                remaining: *remaining,
            },
            Self::AtRisk(LeaseInfo { name, owner }, remaining) => Event::AtRisk {
                name,
                owner,
                remaining: *remaining,
            },
            Self::Lost(lost, owner) => Event::Lost { lost, owner },
            Self::Unreachable(connection, error) => Event::Unreachable {
                connection: *connection,
                error,
            },
            Self::Recovered(connection) => Event::Recovered {
                connection: *connection,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Far longer than anything here takes, so that only a hang runs into it.
    const PATIENCE: Duration = Duration::from_secs(20);

    fn events(listener: impl crate::event::Listener) -> Events {
        Events::new(Some(SharedListener(Arc::new(listener))))
    }

    fn contended(number: usize) -> Notice {
        Notice::Contended(number.to_string().into(), None)
    }

    fn number(event: &Event<'_>) -> usize {
        match event {
            Event::Contended { name, .. } => name.parse().expect("a number"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_full_queue_drops_and_counts_and_keeps_the_order_of_the_rest() {
        let (go_on, gate) = mpsc::channel::<()>();
        let (told, heard) = mpsc::channel();
        let (reached, at_gate) = mpsc::channel();
        let gate = Mutex::new(gate);
        let events = events(move |event: &Event<'_>| {
            reached.send(()).ok();
            gate.lock().recv().ok();
            told.send(number(event)).ok();
        });
        events.tell(|| contended(0));
        at_gate.recv_timeout(PATIENCE).expect("it is told");
        // The first is at hand, and the queue empty.
        for number in 1..=QUEUE + 3 {
            events.tell(|| contended(number));
        }
        assert_eq!(events.dropped(), 3);
        // The other end goes; what is left is told, and then the thread ends.
        drop(events);
        drop(go_on);
        for expected in 0..=QUEUE {
            assert_eq!(heard.recv_timeout(PATIENCE), Ok(expected));
        }
        let gone = heard.recv_timeout(PATIENCE);
        assert_eq!(gone, Err(mpsc::RecvTimeoutError::Disconnected));
    }

    #[test]
    fn a_panic_is_survived() {
        let (told, heard) = mpsc::channel();
        let events = events(move |event: &Event<'_>| {
            told.send(number(event)).ok();
            std::panic::resume_unwind(Box::new(()));
        });
        for number in 0..3 {
            events.tell(|| contended(number));
            assert_eq!(heard.recv_timeout(PATIENCE), Ok(number));
        }
        assert_eq!(events.dropped(), 0);
    }

    #[test]
    fn without_a_listener_and_a_logger_nothing_is_made() {
        // No unit test installs a logger, so no level is wanted.
        assert!(!logging::is_wanted(Level::Error));
        let events = Events::new(None);
        events.tell(|| unreachable!("nobody wants it"));
        events.step(|| unreachable!("nobody wants it"));
        events.warn(|| unreachable!("nobody wants it"));
        assert!(events.queue.get().is_none());
    }
}
