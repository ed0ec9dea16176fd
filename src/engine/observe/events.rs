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

#[cfg(doc)]
use crate::event::Listener;
use crate::event::{Connection, Event, EventKind, SharedListener};
use crate::logging::{self, Level};
use crate::net::route::NodeReport;
use crate::panics::survived;
use crate::stats::Count;
use crate::sys::thread::BlockingQueue;
use crate::sys::{Arc, AtomicBool, Machine, Mutex, Ordering};

/// The length of the queue. The documentation of [`Listener`] states it.
const QUEUE: usize = 4096;

pub(crate) struct Events {
    /// Whether there is a listener.
    listens: bool,
    /// The listener, until the thread takes it.
    listener: Mutex<Option<SharedListener>>,
    queue: Arc<BlockingQueue<Event<'static>>>,
    is_running: AtomicBool,
    machine: Machine,
    /// The number of dropped events.
    dropped: Count,
}

/// The servers that one of leasehold's threads does not reach, by their places in the store.
#[derive(Default)]
pub(crate) struct Unreached(Vec<usize>);

impl Unreached {
    /// Notes what the store reports of a server. Returns the event if the server was reached before and is not
    /// reached now, or the reverse.
    pub(crate) fn note(
        &mut self,
        connection: Connection,
        report: NodeReport,
    ) -> Option<Event<'static>> {
        let Self(places) = self;
        let node = report.node.map(|node| node.to_string().into());
        let known = places.iter().position(|place| *place == report.place);
        let kind = match (known, report.failure) {
            (None, Some(failure)) => {
                places.push(report.place);
                EventKind::Unreachable {
                    connection,
                    node,
                    error: failure.into_error(None),
                }
            }
            (Some(known), None) => {
                places.swap_remove(known);
                EventKind::Recovered { connection, node }
            }
            (None, None) | (Some(_), Some(_)) => return None,
        };
        Some(Event::of_connection(kind))
    }
}

impl Events {
    pub(crate) fn new(listener: Option<SharedListener>, machine: Machine) -> Self {
        Self {
            listens: listener.is_some(),
            listener: Mutex::new(listener),
            queue: Arc::new(BlockingQueue::new(QUEUE)),
            is_running: AtomicBool::new(false),
            machine,
            dropped: Count::default(),
        }
    }

    /// Returns whether there is a listener.
    pub(crate) fn is_wanted(&self) -> bool {
        self.listens
    }

    /// Queues an event for the listener, if there is one. The caller must hold no mutex.
    pub(crate) fn tell(&self, event: impl FnOnce() -> Event<'static>) {
        if self.listens {
            self.put(event());
        }
    }

    /// Logs an event at DEBUG on the calling thread, and queues it for the listener. The caller must hold no mutex.
    pub(crate) fn step(&self, event: impl FnOnce() -> Event<'static>) {
        let is_logged = logging::is_wanted(Level::Debug);
        if self.listens || is_logged {
            let event = event();
            if is_logged {
                logging::debug!("{event}");
            }
            if self.listens {
                self.put(event);
            }
        }
    }

    /// Queues an event for the log, at WARN, and for the listener. The caller must hold no mutex.
    pub(crate) fn warn(&self, event: impl FnOnce() -> Event<'static>) {
        if self.listens || logging::is_wanted(Level::Warn) {
            self.put(event());
        }
    }

    /// Returns the number of dropped events.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Queues an event, or counts it as dropped.
    fn put(&self, event: Event<'static>) {
        let runs = self.is_running.load(Ordering::Acquire) || self.start().is_ok();
        if !(runs && self.queue.push(event)) {
            self.dropped.add(1);
        }
    }

    /// Starts the thread, which takes the listener, unless it runs.
    fn start(&self) -> std::io::Result<()> {
        let mut listener = self.listener.lock();
        if !self.is_running.load(Ordering::Acquire) {
            let (queue, of_thread) = (Arc::clone(&self.queue), listener.clone());
            let run = move || run(&queue, of_thread.as_ref());
            self.machine.spawn("leasehold-events", run)?;
            *listener = None;
            self.is_running.store(true, Ordering::Release);
        }
        Ok(())
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Handles events until the queue is empty and the engine is dropped.
fn run(queue: &BlockingQueue<Event<'static>>, listener: Option<&SharedListener>) {
    let mut has_panicked = false;
    while let Some(event) = queue.pop() {
        let is_warned_of = matches!(
            event.kind,
            EventKind::Lost { .. } | EventKind::HeldLong { .. } | EventKind::WaitsLong { .. }
        );
        if is_warned_of {
            logging::warning!("{event}");
        }
        let Some(SharedListener(listener)) = listener else {
            continue;
        };
        let tell = || listener.on_event(&event);
        if survived(tell).is_none() && !std::mem::replace(&mut has_panicked, true) {
            logging::error!("the event listener panicked; it will be called again");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// A time limit far longer than any step takes, so that only a hang reaches it.
    const PATIENCE: Duration = Duration::from_secs(20);

    fn events(listener: impl crate::event::Listener) -> Events {
        Events::new(Some(SharedListener(Arc::new(listener))), Machine::default())
    }

    fn contended(number: usize) -> Event<'static> {
        let kind = EventKind::Contended { holder: None };
        Event::of_lock(&number.to_string(), None, kind)
    }

    fn number(event: &Event<'_>) -> usize {
        let name = event.name.as_deref();
        name.and_then(|name| name.parse().ok()).expect("a number")
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
        let events = Events::new(None, Machine::default());
        events.tell(|| unreachable!("it is not wanted"));
        events.step(|| unreachable!("it is not wanted"));
        events.warn(|| unreachable!("it is not wanted"));
        assert!(!events.is_running.load(Ordering::Acquire));
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
            let event = unreached.note(Connection::Renewal, report(place, is_reached));
            let kind = event.as_ref().map(|event| event.kind.as_str());
            assert_eq!(kind, expected, "{place} {is_reached}");
        }
    }
}
