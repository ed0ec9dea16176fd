//! The events thread: the one place in which a listener's code runs.
//!
//! | what | then |
//! | --- | --- |
//! | something happens, nobody listens | nothing: one branch |
//! | something happens | it is put into the queue, after the thread was started if there is none |
//! | the queue is full, or there is no thread to be had | it is dropped and counted |
//! | the thread finds something | it logs it where it is a warning, and calls the listener; a panic is caught |
//! | the engine goes | the queue has no other end any more: the thread tells what is left, and ends |
//!
//! Whoever puts something in never waits: not for the listener, which has the thread to itself, nor for the thread,
//! which holds nothing while it calls. Events are put in with no mutex held, by whoever brings them about and before
//! anybody else can act on them: so they come in order.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use crate::engine::Engine;
use crate::engine::tenure::Tenure;
use crate::error::{Error, Lost};
#[cfg(doc)]
use crate::event::Listener;
use crate::event::{Connection, Event, SharedListener};
use crate::logging::logged;
use crate::panics::survived;
use crate::stats::Count;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, thread};

/// How many events wait for the listener; the documentation of [`Listener`] names it.
const QUEUE: usize = 4096;

pub(crate) struct Events {
    /// Whether anybody wants to hear of everything, and not only of guards that are held for long.
    listens: bool,
    /// The way to the thread; none where there is nothing to tell.
    queue: Option<Sender<Notice>>,
    running: AtomicBool,
    /// What the thread is started with, until it is.
    begin: Mutex<Option<Outlet>>,
    dropped: Count,
}

/// What the thread works with.
#[derive(Clone)]
struct Outlet {
    queue: Receiver<Notice>,
    listener: Option<SharedListener>,
}

/// A guard, for a while after its end.
pub(crate) struct Guard {
    pub(crate) name: Arc<str>,
    pub(crate) owner: Arc<str>,
    pub(crate) fence: u64,
}

/// A lease, for a while after its end.
pub(crate) struct Lease {
    pub(crate) name: Arc<str>,
    pub(crate) owner: Arc<str>,
}

impl Guard {
    pub(crate) fn of(engine: &Engine, tenure: &Tenure, fence: u64) -> Self {
        let Lease { name, owner } = Lease::of(engine, tenure);
        Self { name, owner, fence }
    }
}

impl Lease {
    pub(crate) fn of(engine: &Engine, tenure: &Tenure) -> Self {
        Self {
            name: tenure.entry.target.name().into(),
            owner: engine.owner_of(tenure),
        }
    }
}

/// An [`Event`] on its way to the thread.
pub(crate) enum Notice {
    Acquired(Guard, Duration),
    Contended(Arc<str>, Option<Arc<str>>),
    PassedOn(Guard, Duration),
    HandedOver(Lease),
    Released(Guard, Duration),
    HeldLong(Guard, Duration),
    Renewed(Lease, Duration),
    AtRisk(Lease, Duration),
    Lost(Lost, Arc<str>),
    Unreachable(Connection, Error),
    Recovered(Connection),
}

impl Events {
    pub(crate) fn new(listener: Option<SharedListener>, warns: bool) -> Self {
        let listens = listener.is_some();
        let (queue, begin) = if listens || warns {
            let (sender, queue) = crossbeam_channel::bounded(QUEUE);
            (Some(sender), Some(Outlet { queue, listener }))
        } else {
            (None, None)
        };
        Self {
            listens,
            queue,
            running: AtomicBool::new(false),
            begin: Mutex::new(begin),
            dropped: Count::default(),
        }
    }

    /// Whether anybody listens.
    pub(crate) fn is_wanted(&self) -> bool {
        self.listens
    }

    /// Tells the listener, if there is one. Called with no mutex held.
    pub(crate) fn tell(&self, notice: impl FnOnce() -> Notice) {
        if self.listens {
            self.put(notice());
        }
    }

    /// Warns of a guard that is held for long, and tells the listener, if there is one.
    pub(crate) fn warn(&self, guard: Guard, held: Duration) {
        self.put(Notice::HeldLong(guard, held));
    }

    /// How many were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    fn put(&self, notice: Notice) {
        let Some(queue) = &self.queue else {
            return;
        };
        if !self.running.load(Ordering::Acquire) {
            self.start();
        }
        if queue.try_send(notice).is_err() {
            self.dropped.add(1);
        }
    }

    /// Where it cannot be started, the next event tries again.
    fn start(&self) {
        let mut begin = self.begin.lock();
        let Some(outlet) = begin.clone() else {
            return;
        };
        let started = thread::Builder::new()
            .name("leasehold-events".into())
            .spawn(move || outlet.run());
        if started.is_ok() {
            // From here on the thread alone has the queue's end, and the listener.
            *begin = None;
            self.running.store(true, Ordering::Release);
        }
    }
}

impl Outlet {
    /// The main loop of the thread.
    fn run(self) {
        let mut has_panicked = false;
        for notice in self.queue {
            let tell = || {
                let event = notice.event();
                if let Event::HeldLong {
                    name,
                    owner,
                    fence,
                    held,
                } = event
                {
                    log::warn!("lock {name:?}: held for {held:?} by {owner:?}, fence {fence}");
                }
                if let Some(SharedListener(listener)) = &self.listener {
                    listener.on_event(&event);
                }
            };
            if survived(tell).is_none() && !std::mem::replace(&mut has_panicked, true) {
                // The logger may be what panics.
                logged(|| log::error!("a listener, or the logger, panicked; it is called again"));
            }
        }
    }
}

impl Notice {
    fn event(&self) -> Event<'_> {
        match self {
            Self::Acquired(Guard { name, owner, fence }, waited) => Event::Acquired {
                name,
                owner,
                fence: *fence,
                waited: *waited,
            },
            Self::Contended(name, holder) => Event::Contended {
                name,
                holder: holder.as_deref(),
            },
            Self::PassedOn(Guard { name, owner, fence }, waited) => Event::PassedOn {
                name,
                owner,
                fence: *fence,
                waited: *waited,
            },
            Self::HandedOver(Lease { name, owner }) => Event::HandedOver { name, owner },
            Self::Released(Guard { name, owner, fence }, held) => Event::Released {
                name,
                owner,
                fence: *fence,
                held: *held,
            },
            Self::HeldLong(Guard { name, owner, fence }, held) => Event::HeldLong {
                name,
                owner,
                fence: *fence,
                held: *held,
            },
            Self::Renewed(Lease { name, owner }, remaining) => Event::Renewed {
                name,
                owner,
                remaining: *remaining,
            },
            Self::AtRisk(Lease { name, owner }, remaining) => Event::AtRisk {
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
        Events::new(Some(SharedListener(Arc::new(listener))), false)
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
    fn nobody_listens_and_nothing_is_made() {
        for warns in [false, true] {
            let events = Events::new(None, warns);
            events.tell(|| unreachable!("nobody wants it"));
            assert!(!events.running.load(Ordering::Relaxed));
        }
    }
}
