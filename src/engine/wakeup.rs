//! The listener: one connection for all waits of a process.
//!
//! Whoever hands a lock over publishes the new owner on the channel of that owner's process. The thread here
//! looks the owner up and wakes the delegate that waits under it.
//!
//! It also hears the one channel of all processes on which the owners are published whose locks an operator has
//! broken, and then has Redis asked about that owner ([`super::operators`]).
//!
//! | state | a wait | leaves it |
//! | --- | --- | --- |
//! | not started | starts the thread | at the first wait |
//! | not yet | may not queue, and polls; one that is queued keeps its place by polling | when SUBSCRIBE is confirmed: all who wait ask at once |
//! | ready | sleeps until a message or its poll | when the connection breaks |
//! | denied | queues without a channel and polls often | when a later try is allowed |
//!
//! Why no wake-up is lost: a delegate is in the register before it sends the request that queues it, and the
//! request names a channel only while the subscription to it is confirmed. A message that arrives before the
//! delegate sleeps sets its flag, and the sleep is over before it began.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::core::attempt::Hearing;
use crate::engine::Engine;
use crate::engine::events::Notice;
use crate::error::{Failure, FailureKind};
use crate::event::Connection;
use crate::logging;
use crate::name::{BROKEN, CHANNEL_PREFIX};
use crate::panics::survived;
use crate::store::Heard;
use crate::sync::{Arc, AtomicBool, AtomicU8, Condvar, Mutex, Ordering, Thread, Weak, thread};

/// Pauses between tries to subscribe; each is twice the one before, until a subscription has lasted for the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long to wait before asking again for what was denied.
const AFTER_DENIAL: Duration = Duration::from_mins(1);
/// No sleep of a delegate is longer, so that a resume from suspend is noticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

const NOT_YET: u8 = 0;
const READY: u8 = 1;
const DENIED: u8 = 2;

pub(crate) struct Wakeup {
    /// The one channel of this process.
    channel: Arc<str>,
    hearing: AtomicU8,
    register: Mutex<Register>,
    stopping: Condvar,
}

/// Guarded by the wakeup's mutex.
#[derive(Default)]
struct Register {
    /// Who sleeps, by owner.
    sleepers: HashMap<Arc<str>, Arc<Sleeper>>,
    running: bool,
    stopped: bool,
}

struct Sleeper {
    thread: Thread,
    woken: AtomicBool,
    /// Whether it was by a message for it alone.
    called: AtomicBool,
}

/// A delegate's place in the register; dropping it leaves.
pub(crate) struct Waker {
    wakeup: Arc<Wakeup>,
    owner: Arc<str>,
    sleeper: Arc<Sleeper>,
}

impl Wakeup {
    pub(crate) fn new(unique: uuid::Uuid) -> Self {
        Self {
            channel: format!("{CHANNEL_PREFIX}{unique}").into(),
            hearing: AtomicU8::new(NOT_YET),
            register: Mutex::default(),
            stopping: Condvar::new(),
        }
    }

    pub(crate) fn hearing(&self) -> Hearing {
        match self.hearing.load(Ordering::SeqCst) {
            READY => Hearing::Ready(Arc::clone(&self.channel)),
            DENIED => Hearing::Denied,
            _ => Hearing::NotYet,
        }
    }

    fn is_ready(&self) -> bool {
        self.hearing.load(Ordering::SeqCst) == READY
    }

    /// Starts the thread if there is none.
    pub(crate) fn start(self: &Arc<Self>, engine: &Engine) {
        if self.is_ready() {
            return;
        }
        let mut register = self.register.lock();
        if register.running || register.stopped {
            return;
        }
        let (wakeup, store) = (Arc::clone(self), Arc::clone(&engine.store));
        let (chance, engine_of) = (Arc::clone(&engine.chance), engine.me.clone());
        let events = Arc::downgrade(&engine.events);
        let tell = move |notice| {
            if let Some(events) = events.upgrade() {
                events.tell(|| notice);
            }
        };
        let started = thread::Builder::new()
            .name("leasehold-wakeup-0".into())
            .spawn(move || wakeup.run(&*store, &*chance, &engine_of, &tell));
        match started {
            Ok(_) => register.running = true,
            // The waits go on by polling, and the next one tries again.
            Err(error) => {
                drop(register);
                logging::warning!("the listener thread could not be started: {error}");
            }
        }
    }

    /// Enters `owner`, in place of what `waker` stood for before.
    pub(crate) fn register<'a>(
        self: &Arc<Self>,
        waker: &'a mut Option<Waker>,
        owner: &Arc<str>,
    ) -> &'a Waker {
        if waker.as_ref().is_none_or(|waker| waker.owner != *owner) {
            let sleeper = Arc::new(Sleeper {
                thread: thread::current(),
                woken: AtomicBool::new(false),
                called: AtomicBool::new(false),
            });
            self.register
                .lock()
                .sleepers
                .insert(Arc::clone(owner), Arc::clone(&sleeper));
            *waker = Some(Waker {
                wakeup: Arc::clone(self),
                owner: Arc::clone(owner),
                sleeper,
            });
        }
        waker.as_ref().expect("it was put there just now")
    }

    pub(crate) fn wake_all(&self) {
        let all: Vec<_> = self.register.lock().sleepers.values().cloned().collect();
        for sleeper in all {
            sleeper.wake();
        }
    }

    pub(crate) fn stop(&self) {
        self.register.lock().stopped = true;
        self.stopping.notify_all();
    }

    fn wake(&self, owner: &[u8]) {
        let Ok(owner) = std::str::from_utf8(owner) else {
            return;
        };
        let sleeper = self.register.lock().sleepers.get(owner).cloned();
        if let Some(sleeper) = sleeper {
            sleeper.called.store(true, Ordering::Release);
            sleeper.wake();
        }
    }

    /// A message came: whose it is, asks; whoever sent it is not believed.
    pub(super) fn message(&self, channel: &str, owner: &[u8], engine: &Weak<Engine>) {
        if channel != BROKEN {
            self.wake(owner);
        } else if let (Some(engine), Ok(owner)) = (engine.upgrade(), std::str::from_utf8(owner)) {
            engine.ask_about(owner);
        }
    }

    fn is_stopped(&self) -> bool {
        self.register.lock().stopped
    }

    fn run(
        &self,
        store: &dyn crate::store::Store,
        chance: &dyn crate::random::Chance,
        engine: &Weak<Engine>,
        tell: &dyn Fn(Notice),
    ) {
        let mut pause = FIRST_PAUSE;
        let mut failing = false;
        let mut said_denied = false;
        let mut said_muted = false;
        loop {
            let mut subscribed: Option<Instant> = None;
            let mut hear = |heard: Heard<'_>| {
                match heard {
                    Heard::Muted(failure) => {
                        if !std::mem::replace(&mut said_muted, true) {
                            logging::warning!(
                                "the server does not let this user publish on {:?}, so other processes poll for \
                                 what this one hands over: {}",
                                self.channel,
                                failure.cause
                            );
                        }
                    }
                    Heard::Subscribed => {
                        self.hearing.store(READY, Ordering::SeqCst);
                        subscribed = Some(Instant::now());
                        said_denied = false;
                        if std::mem::take(&mut failing) {
                            tell(Notice::Recovered(Connection::Wakeup));
                        }
                        // Whoever was handed a lock meanwhile was told in vain.
                        self.wake_all();
                    }
                    Heard::Message { channel, payload } => {
                        self.message(channel, payload, engine);
                    }
                    Heard::Silence => {}
                }
                !self.is_stopped()
            };
            let listen = || store.listen(&[&self.channel, BROKEN], &mut hear);
            let ended = survived(listen).unwrap_or_else(|| {
                let words = "the listener panicked";
                Err(Failure::plain(FailureKind::Unavailable, false, words))
            });
            let wait = match ended {
                Ok(()) => Duration::ZERO,
                Err(failure) if failure.kind == FailureKind::Denied => {
                    self.hearing.store(DENIED, Ordering::SeqCst);
                    if !std::mem::replace(&mut said_denied, true) {
                        logging::warning!(
                            "the server does not allow the channel {:?}, so waits poll: {}",
                            self.channel,
                            failure.cause
                        );
                    }
                    self.wake_all();
                    AFTER_DENIAL
                }
                Err(failure) => {
                    self.hearing.store(NOT_YET, Ordering::SeqCst);
                    logging::debug!("the listener starts again: {}", failure.cause);
                    if !std::mem::replace(&mut failing, true) {
                        let error = failure.into_error(None);
                        tell(Notice::Unreachable(Connection::Wakeup, error));
                    }
                    // Each subscription has all who wait ask: one that is cut short again and again must not.
                    if subscribed.is_some_and(|since| since.elapsed() >= LONGEST_PAUSE) {
                        pause = FIRST_PAUSE;
                    }
                    let wait = crate::random::jittered(chance, pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    wait
                }
            };
            let mut register = self.register.lock();
            if !register.stopped && !wait.is_zero() {
                register = self.stopping.wait_for(register, wait);
            }
            if register.stopped {
                register.running = false;
                self.hearing.store(NOT_YET, Ordering::SeqCst);
                return;
            }
        }
    }
}

impl Sleeper {
    fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Waker {
    /// Sleeps until a message comes for its owner, or all are woken, or `limit` has passed, or a second; true where a
    /// message came.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        if !self.sleeper.woken.load(Ordering::Acquire) && !limit.is_zero() {
            thread::park_timeout(limit.min(LONGEST_SLEEP));
        }
        self.sleeper.woken.store(false, Ordering::Release);
        self.sleeper.called.swap(false, Ordering::Acquire)
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.wakeup.register.lock().sleepers.remove(&self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SystemChance;
    use crate::script::Call;
    use crate::store::{Answer, Limits, Line, Store};

    /// A store that only listens, as it is told to.
    struct Listening<F>(F);

    impl<F> Store for Listening<F>
    where
        F: Fn(&mut dyn FnMut(Heard<'_>) -> bool) -> Result<(), Failure> + Send + Sync,
    {
        fn call(&self, _: &Call<'_>, _: Limits) -> Result<Answer, Failure> {
            unreachable!("a listener asks nothing")
        }

        fn line(&self) -> Box<dyn Line> {
            unreachable!("a listener asks nothing")
        }

        fn listen(
            &self,
            _: &[&str],
            hear: &mut dyn FnMut(Heard<'_>) -> bool,
        ) -> Result<(), Failure> {
            (self.0)(hear)
        }
    }

    #[test]
    fn everybody_looks_up_at_each_subscription_and_one_at_a_message() {
        let wakeup = Arc::new(Wakeup::new(uuid::Uuid::nil()));
        let (mut one, mut other) = (None, None);
        wakeup.register(&mut one, &"one".into());
        wakeup.register(&mut other, &"other".into());
        let were_woken = || {
            [&one, &other].map(|waker: &Option<Waker>| {
                let waker = waker.as_ref().expect("it is registered");
                let was_woken = waker.sleeper.woken.swap(false, Ordering::SeqCst);
                (was_woken, waker.wait(Duration::ZERO))
            })
        };
        let seen = Mutex::new(Vec::new());
        let message = |payload| Heard::Message {
            channel: "leasehold:its own",
            payload,
        };
        let store = Listening(|hear: &mut dyn FnMut(Heard<'_>) -> bool| {
            let mut seen = seen.lock();
            for heard in [
                Heard::Subscribed,
                Heard::Silence,
                message(b"other"),
                message(b"nobody"),
                message(b"\xff"),
                // The connection broke unnoticed by this store, and is there again.
                Heard::Subscribed,
            ] {
                assert!(hear(heard));
                seen.push(were_woken());
            }
            wakeup.stop();
            Ok(())
        });
        wakeup.run(&store, &SystemChance::new(), &Weak::new(), &|_| {});
        let (none, all) = ([(false, false); 2], [(true, false); 2]);
        let called = [(false, false), (true, true)];
        assert_eq!(*seen.lock(), [all, none, called, none, none, all]);
        assert_eq!(wakeup.hearing(), Hearing::NotYet, "it has stopped");
    }
}
