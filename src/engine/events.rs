//! The way of the events to the listener and the log.
//!
//! | event | the thread that causes it | the events thread |
//! | --- | --- | --- |
//! | acquired, passed on, contended, handed over, released | logs it at DEBUG; queues it if there is a listener | calls the listener |
//! | lost, held long | queues it if there is a listener, or warnings are logged | logs it at WARN; calls the listener |
//! | any other | queues it if there is a listener | calls the listener |
//!
//! The listener is called only by the events thread:
//!
//! | state | event | result |
//! | --- | --- | --- |
//! | not started | an event must be queued | the thread is started; if that fails, the event is dropped and counted, and the next event tries again |
//! | running | the queue is full | the event is dropped and counted |
//! | running | the logger or the listener panics | the thread catches the panic, and goes on |
//! | running | the engine is dropped | the thread handles the rest of the queue, and ends |
//!
//! No other thread ever waits for the listener, because the queue never blocks. The thread that causes an event queues
//! it before another thread can act on the change. So the events of a lock stay in order. The watch thread queues
//! warnings and logs nothing, because a logger may block.

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
use crate::store::NodeReport;
use crate::sync::{Arc, Mutex, thread};

/// The length of the queue. The documentation of [`Listener`] states it.
const QUEUE: usize = 4096;

pub(crate) struct Events {
    /// Whether there is a listener.
    listens: bool,
    /// The listener, until the thread takes it.
    listener: Mutex<Option<SharedListener>>,
    /// The sending end of the queue, once the thread runs.
    queue: OnceCell<Sender<Notice>>,
    /// The number of dropped events.
    dropped: Count,
}

/// The state of the events thread.
struct EventsThread {
    queue: Receiver<Notice>,
    listener: Option<SharedListener>,
}

/// The data of a guard for an event. It may outlive the guard.
pub(crate) struct GuardInfo {
    pub(crate) name: Arc<str>,
    pub(crate) owner: Arc<str>,
    pub(crate) fence: u64,
}

/// The data of a lease for an event. It may outlive the lease.
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

/// An [`Event`] with owned data, in the queue.
pub(crate) enum Notice {
    Acquired(GuardInfo, Duration),
    Contended(Arc<str>, Option<Arc<str>>),
    PassedOn(GuardInfo, Duration),
    HandedOver(LeaseInfo),
    Released(GuardInfo, Duration),
    Lingers(LeaseInfo, Duration),
    HeldLong(GuardInfo, Duration),
    Renewed(LeaseInfo, Duration),
    AtRisk(LeaseInfo, Duration),
    Lost(Lost, Arc<str>),
    Unreachable(Connection, Option<Arc<str>>, Error),
    Recovered(Connection, Option<Arc<str>>),
}

/// The servers that one of leasehold's threads does not reach, by their places in the store.
#[derive(Default)]
pub(crate) struct Unreached(Vec<usize>);

impl Unreached {
    /// Takes in what the store reports of a server. Returns the event if the server was reached before and is not
    /// reached now, or the reverse.
    pub(crate) fn note(&mut self, connection: Connection, report: NodeReport) -> Option<Notice> {
        let Self(places) = self;
        let known = places.iter().position(|place| *place == report.place);
        match (known, report.failure) {
            (None, Some(failure)) => {
                places.push(report.place);
                let error = failure.into_error(None);
                Some(Notice::Unreachable(connection, report.node, error))
            }
            (Some(known), None) => {
                places.swap_remove(known);
                Some(Notice::Recovered(connection, report.node))
            }
            (None, None) | (Some(_), Some(_)) => None,
        }
    }
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

    /// Queues an event for the listener, if there is one. The caller must hold no mutex.
    pub(crate) fn tell(&self, notice: impl FnOnce() -> Notice) {
        if self.listens {
            self.put(notice());
        }
    }

    /// Logs an event at DEBUG on the calling thread, and queues it for the listener. The caller must hold no mutex.
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

    /// Queues an event for the log, at WARN, and for the listener. The caller must hold no mutex.
    pub(crate) fn warn(&self, notice: impl FnOnce() -> Notice) {
        if self.listens || logging::is_wanted(Level::Warn) {
            self.put(notice());
        }
    }

    /// Returns the number of dropped events.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Queues an event, or counts it as dropped.
    fn put(&self, notice: Notice) {
        let sent = match self.queue.get_or_try_init(|| self.start()) {
            Ok(queue) => queue.try_send(notice).is_ok(),
            Err(_) => false,
        };
        if !sent {
            self.dropped.add(1);
        }
    }

    /// Starts the thread, which takes the listener.
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
    /// Handles events until the queue is empty and the engine is dropped.
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
                logging::error!("the event listener panicked; it will be called again");
            }
        }
    }
}

/// Writes the text of the log record.
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
                "lock {name:?}: handed on in memory after {waited:?}, fence {fence}, owner {owner:?}"
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
            Self::Lingers(LeaseInfo { name, owner }, remaining) => write!(
                f,
                "lock {name:?}: lingers for {remaining:?}, owner {owner:?}"
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
            Self::Unreachable(connection, _, error) => {
                write!(f, "connection {connection:?} is out of reach: {error}")
            }
            Self::Recovered(connection, _) => write!(f, "connection {connection:?} works again"),
        }
    }
}

impl Notice {
    /// Returns the event for the listener.
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
            Self::Lingers(LeaseInfo { name, owner }, remaining) => Event::Lingers {
                name,
                owner,
                remaining: *remaining,
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
            Self::Unreachable(connection, node, error) => Event::Unreachable {
                connection: *connection,
                node: node.as_deref(),
                error,
            },
            Self::Recovered(connection, node) => Event::Recovered {
                connection: *connection,
                node: node.as_deref(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A time limit far longer than any step takes, so that only a hang reaches it.
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
        let (called, calls) = mpsc::channel();
        let (reached, at_gate) = mpsc::channel();
        let gate = Mutex::new(gate);
        let events = events(move |event: &Event<'_>| {
            reached.send(()).ok();
            gate.lock().recv().ok();
            called.send(number(event)).ok();
        });
        events.tell(|| contended(0));
        at_gate
            .recv_timeout(PATIENCE)
            .expect("the listener is called");
        // The listener has the first event, and the queue is empty.
        for number in 1..=QUEUE + 3 {
            events.tell(|| contended(number));
        }
        assert_eq!(events.dropped(), 3);
        // The thread handles the rest of the queue, and then ends.
        drop(events);
        drop(go_on);
        for expected in 0..=QUEUE {
            assert_eq!(calls.recv_timeout(PATIENCE), Ok(expected));
        }
        let gone = calls.recv_timeout(PATIENCE);
        assert_eq!(gone, Err(mpsc::RecvTimeoutError::Disconnected));
    }

    #[test]
    fn the_thread_survives_a_panic_of_the_listener() {
        let (called, calls) = mpsc::channel();
        let events = events(move |event: &Event<'_>| {
            called.send(number(event)).ok();
            std::panic::resume_unwind(Box::new(()));
        });
        for number in 0..3 {
            events.tell(|| contended(number));
            assert_eq!(calls.recv_timeout(PATIENCE), Ok(number));
        }
        assert_eq!(events.dropped(), 0);
    }

    #[test]
    fn without_a_listener_and_a_logger_no_event_is_made() {
        // No unit test installs a logger, so no level is wanted.
        assert!(!logging::is_wanted(Level::Error));
        let events = Events::new(None);
        events.tell(|| unreachable!("it is not wanted"));
        events.step(|| unreachable!("it is not wanted"));
        events.warn(|| unreachable!("it is not wanted"));
        assert!(events.queue.get().is_none());
    }

    #[test]
    fn each_server_has_one_event_for_a_change() {
        let report = |place, is_reached: bool| NodeReport {
            place,
            node: Some(format!("server {place}").into()),
            failure: (!is_reached).then(crate::error::Failure::too_late),
        };
        let mut unreached = Unreached::default();
        for (place, is_reached, expected) in [
            (0, true, None),
            (0, false, Some("unreachable")),
            (1, false, Some("unreachable")),
            (0, false, None),
            (0, true, Some("recovered")),
            (0, true, None),
            (1, true, Some("recovered")),
        ] {
            let notice = unreached.note(Connection::Renewal, report(place, is_reached));
            let kind = notice.as_ref().map(|notice| notice.event().kind());
            assert_eq!(kind, expected, "{place} {is_reached}");
        }
    }
}
