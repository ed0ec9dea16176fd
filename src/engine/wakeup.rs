//! The listener: one connection for all waits of a process.
//!
//! Whoever hands a lock over publishes the new owner on the channel of that owner's process. The thread here
//! looks the owner up and wakes the delegate that waits under it.
//!
//! It also hears the one channel of all processes on which the owners are published whose locks an operator has
//! broken, and then has Redis asked about that owner ([`super::operators`]).
//!
//! | state | a wait | next state |
//! | --- | --- | --- |
//! | not started | starts the thread | subscribing; no subscription, if the thread cannot be started |
//! | subscribing, for at most 250 ms after the first wait | may not queue, and polls every 50 ms | ready; no subscription, if the try fails or takes longer |
//! | ready | queues under the channel, and sleeps until a message or its poll | no subscription, if the connection ends |
//! | no subscription | queues without a channel, and polls within its pickup window | ready, if a later try succeeds |
//!
//! A process without a subscription must queue all the same: a busy process beside it gives the lock away only to the
//! queue, so a process that only polls would never find the lock free.
//!
//! Why no wake-up is lost:
//!
//! 1. A delegate is in the register before it sends the request that queues it. A message that arrives before the
//!    delegate sleeps sets its flag, and the sleep is over before it began.
//! 2. At each change to or from "ready" all delegates in the register are woken, after the state was set. They ask again,
//!    and so name the right channel.
//! 3. A delegate may miss that: it made its request before the change, and entered the register after it. When the answer
//!    comes, it compares the channel of its request with the state, and if they differ, asks again at once.
//! 4. A message that was sent to a channel without a listener, before 2 or 3, wakes nobody: the script that sent it then
//!    passes the waiter over, and the waiter's next request queues it again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::clock::Time;
use crate::core::attempt::SubscriptionState;
use crate::engine::Engine;
use crate::engine::events::Notice;
use crate::error::{Chain, Failure, FailureKind};
use crate::event::Connection;
use crate::logging;
use crate::name::{BROKEN, CHANNEL_PREFIX};
use crate::panics::survived;
use crate::store::PubSubEvent;
use crate::sync::{
    Arc, AtomicBool, AtomicU8, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, Thread, Weak,
    thread,
};

/// Pauses between tries to subscribe; each is twice the one before, until a subscription has lasted for the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after a failure that does not pass: a right or a command that the server does not have now, it is
/// unlikely to have a second later.
const AFTER_REFUSAL: Duration = Duration::from_secs(60);
/// How long waits hold back from queueing for the first subscription. Longer, and they would give a lock up to those who
/// queue.
const FIRST_TRY: Duration = Duration::from_millis(250);
/// No sleep of a delegate is longer, so that a resume from suspend is noticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

const NOT_YET: u8 = 0;
const READY: u8 = 1;
const NO_SUBSCRIPTION: u8 = 2;

pub(crate) struct Wakeup {
    /// The one channel of this process.
    channel: Arc<str>,
    subscription: AtomicU8,
    /// Until when the first subscription is waited for, in the clock's nanoseconds.
    first_try_until: AtomicU64,
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
    /// Whether the log has the warning that the thread could not be started.
    warned: bool,
}

struct Sleeper {
    thread: Thread,
    woken: AtomicBool,
    /// Whether it was by a message for it alone.
    has_message: AtomicBool,
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
            subscription: AtomicU8::new(NOT_YET),
            first_try_until: AtomicU64::new(Time::NEVER.as_nanos()),
            register: Mutex::default(),
            stopping: Condvar::new(),
        }
    }

    pub(crate) fn subscription(&self, now: Time) -> SubscriptionState {
        match self.subscription.load(Ordering::SeqCst) {
            READY => SubscriptionState::Ready(Arc::clone(&self.channel)),
            NOT_YET if now.as_nanos() < self.first_try_until.load(Ordering::SeqCst) => {
                SubscriptionState::NotYet
            }
            _ => SubscriptionState::NoSubscription,
        }
    }

    /// Notes the state of the subscription. If that is news, all delegates ask again, and name the right channel.
    fn note(&self, subscription: u8) {
        if self.subscription.swap(subscription, Ordering::SeqCst) != subscription {
            self.wake_all();
        }
    }

    fn is_ready(&self) -> bool {
        self.subscription.load(Ordering::SeqCst) == READY
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
        let until = engine.now() + FIRST_TRY;
        self.first_try_until
            .fetch_min(until.as_nanos(), Ordering::SeqCst);
        let (wakeup, store) = (Arc::clone(self), Arc::clone(&engine.store));
        let (rng, engine_of) = (Arc::clone(&engine.rng), engine.weak_self.clone());
        let events = Arc::downgrade(&engine.events);
        let tell = move |notice| {
            if let Some(events) = events.upgrade() {
                events.tell(|| notice);
            }
        };
        let started = thread::Builder::new()
            .name("leasehold-wakeup-0".into())
            .spawn(move || wakeup.run(&*store, &*rng, &engine_of, &tell));
        match started {
            Ok(_) => register.running = true,
            Err(error) => self.not_started(register, &error),
        }
    }

    /// The waits go on without a subscription, and each sleep of a delegate tries again to start the thread.
    fn not_started(&self, mut register: MutexGuard<'_, Register>, error: &std::io::Error) {
        let warned = std::mem::replace(&mut register.warned, true);
        drop(register);
        self.note(NO_SUBSCRIPTION);
        if !warned {
            logging::warning!("the listener thread could not be started, so waits poll: {error}");
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
                has_message: AtomicBool::new(false),
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
            sleeper.has_message.store(true, Ordering::Release);
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
        rng: &dyn crate::random::Rng,
        engine: &Weak<Engine>,
        tell: &dyn Fn(Notice),
    ) {
        let mut pause = FIRST_PAUSE;
        let mut failing = false;
        let mut said_refused = false;
        let mut said_muted = false;
        loop {
            let mut subscribed: Option<Instant> = None;
            let mut hear = |heard: PubSubEvent<'_>| {
                match heard {
                    PubSubEvent::Muted(failure) => {
                        if !std::mem::replace(&mut said_muted, true) {
                            logging::warning!(
                                "the server does not let this user publish on {:?}, so other processes poll for \
                                 what this one hands over: {}",
                                self.channel,
                                Chain(&*failure.cause)
                            );
                        }
                    }
                    PubSubEvent::Subscribed => {
                        self.subscription.store(READY, Ordering::SeqCst);
                        subscribed = Some(Instant::now());
                        said_refused = false;
                        if std::mem::take(&mut failing) {
                            tell(Notice::Recovered(Connection::Wakeup));
                        }
                        // Whoever was handed a lock meanwhile was told in vain.
                        self.wake_all();
                    }
                    PubSubEvent::Message { channel, payload } => {
                        self.message(channel, payload, engine);
                    }
                    PubSubEvent::Silence => {}
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
                Err(failure) => {
                    self.note(NO_SUBSCRIPTION);
                    let is_transient = failure.is_transient();
                    if is_transient || said_refused {
                        logging::debug!("the listener starts again: {}", Chain(&*failure.cause));
                    } else {
                        said_refused = true;
                        logging::warning!(
                            "the server refused the subscription to {:?}, so waits poll: {}",
                            self.channel,
                            Chain(&*failure.cause)
                        );
                    }
                    let is_denied = failure.kind == FailureKind::Denied;
                    if !is_denied && !std::mem::replace(&mut failing, true) {
                        let error = failure.into_error(None);
                        tell(Notice::Unreachable(Connection::Wakeup, error));
                    }
                    // Each subscription has all who wait ask: one that is cut short again and again must not.
                    if subscribed.is_some_and(|since| since.elapsed() >= LONGEST_PAUSE) {
                        pause = FIRST_PAUSE;
                    }
                    if is_denied {
                        pause = AFTER_REFUSAL;
                    }
                    let longest = if is_transient {
                        LONGEST_PAUSE
                    } else {
                        AFTER_REFUSAL
                    };
                    let wait = crate::random::jittered(rng, pause.min(longest));
                    pause = (pause * 2).min(longest);
                    wait
                }
            };
            let mut register = self.register.lock();
            if !register.stopped && !wait.is_zero() {
                register = self.stopping.wait_for(register, wait);
            }
            if register.stopped {
                register.running = false;
                self.subscription.store(NO_SUBSCRIPTION, Ordering::SeqCst);
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
        self.sleeper.has_message.swap(false, Ordering::Acquire)
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
    use crate::message::Call;
    use crate::random::SystemRng;
    use crate::store::{Answer, DedicatedConnection, Limits, Store};

    const START: Time = Time::from_nanos(1 << 50);

    /// A store that only listens, as it is told to.
    struct Listening<F>(F);

    impl<F> Store for Listening<F>
    where
        F: Fn(&mut dyn FnMut(PubSubEvent<'_>) -> bool) -> Result<(), Failure> + Send + Sync,
    {
        fn call(&self, _: &Call<'_>, _: Limits<'_>) -> Result<Answer, Failure> {
            unreachable!("a listener asks nothing")
        }

        fn dedicated_connection(&self) -> Box<dyn DedicatedConnection> {
            unreachable!("a listener asks nothing")
        }

        fn listen(
            &self,
            _: &[&str],
            hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool,
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
        let message = |payload| PubSubEvent::Message {
            channel: "leasehold:its own",
            payload,
        };
        let store = Listening(|hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool| {
            let mut seen = seen.lock();
            for heard in [
                PubSubEvent::Subscribed,
                PubSubEvent::Silence,
                message(b"other"),
                message(b"nobody"),
                message(b"\xff"),
                // The connection broke unnoticed by this store, and is there again.
                PubSubEvent::Subscribed,
            ] {
                assert!(hear(heard));
                seen.push(were_woken());
            }
            wakeup.stop();
            Ok(())
        });
        wakeup.run(&store, &SystemRng::new(), &Weak::new(), &|_| {});
        let (none, all) = ([(false, false); 2], [(true, false); 2]);
        let one_called = [(false, false), (true, true)];
        assert_eq!(*seen.lock(), [all, none, one_called, none, none, all]);
        assert_eq!(
            wakeup.subscription(START),
            SubscriptionState::NoSubscription,
            "it has stopped"
        );
    }

    /// Runs the listener over a store that fails in these ways, one after the other, and then stops. Returns whether a
    /// delegate was woken after each.
    fn woken_by_failures(kinds: &[FailureKind]) -> (Arc<Wakeup>, Vec<bool>) {
        let wakeup = Arc::new(Wakeup::new(uuid::Uuid::nil()));
        let mut waker = None;
        wakeup.register(&mut waker, &"owner".into());
        let sleeper = Arc::clone(&waker.as_ref().expect("it is registered").sleeper);
        let (woken, left) = (Mutex::new(Vec::new()), Mutex::new(kinds.iter()));
        let was_woken = || sleeper.woken.swap(false, Ordering::SeqCst);
        let is_first = AtomicBool::new(true);
        let store = Listening(|_: &mut dyn FnMut(PubSubEvent<'_>) -> bool| {
            if !is_first.swap(false, Ordering::SeqCst) {
                woken.lock().push(was_woken());
            }
            let Some(kind) = left.lock().next() else {
                wakeup.stop();
                return Ok(());
            };
            Err(Failure::plain(*kind, false, "no subscription"))
        });
        wakeup.run(&store, &SystemRng::new(), &Weak::new(), &|_| {});
        let woken = woken.lock().clone();
        (Arc::clone(&wakeup), woken)
    }

    #[test]
    fn any_failure_to_subscribe_lets_waits_queue_without_a_channel() {
        for kind in [FailureKind::Unavailable, FailureKind::Protocol] {
            let (wakeup, woken) = woken_by_failures(&[kind, kind]);
            assert_eq!(
                wakeup.subscription(START),
                SubscriptionState::NoSubscription
            );
            // The second failure is no news.
            assert_eq!(woken, [true, false], "{kind:?}");
        }
    }

    #[test]
    fn a_subscription_that_ends_makes_those_who_named_it_ask_again() {
        let wakeup = Arc::new(Wakeup::new(uuid::Uuid::nil()));
        let mut waker = None;
        wakeup.register(&mut waker, &"owner".into());
        let sleeper = Arc::clone(&waker.as_ref().expect("it is registered").sleeper);
        let seen = Mutex::new(Vec::new());
        let store = Listening(|hear: &mut dyn FnMut(PubSubEvent<'_>) -> bool| {
            let was_woken = || sleeper.woken.swap(false, Ordering::SeqCst);
            seen.lock().push(was_woken());
            if seen.lock().len() == 2 {
                wakeup.stop();
                return Ok(());
            }
            hear(PubSubEvent::Subscribed);
            assert!(was_woken());
            assert!(matches!(
                wakeup.subscription(START),
                SubscriptionState::Ready(_)
            ));
            let words = "the connection is closed";
            Err(Failure::plain(FailureKind::Unavailable, false, words))
        });
        wakeup.run(&store, &SystemRng::new(), &Weak::new(), &|_| {});
        assert_eq!(*seen.lock(), [false, true]);
    }

    #[test]
    fn a_first_try_that_hangs_is_waited_for_only_briefly() {
        let wakeup = Wakeup::new(uuid::Uuid::nil());
        let long = START + Duration::from_hours(1);
        assert_eq!(
            wakeup.subscription(long),
            SubscriptionState::NotYet,
            "nobody waits yet"
        );
        let until = START + FIRST_TRY;
        wakeup
            .first_try_until
            .store(until.as_nanos(), Ordering::SeqCst);
        assert_eq!(wakeup.subscription(START), SubscriptionState::NotYet);
        assert_eq!(
            wakeup.subscription(until),
            SubscriptionState::NoSubscription
        );
    }

    #[test]
    fn without_its_thread_a_process_queues_without_a_channel() {
        let wakeup = Wakeup::new(uuid::Uuid::nil());
        let error = std::io::Error::from(std::io::ErrorKind::WouldBlock);
        wakeup.not_started(wakeup.register.lock(), &error);
        assert_eq!(
            wakeup.subscription(START),
            SubscriptionState::NoSubscription
        );
        assert!(wakeup.register.lock().warned);
    }
}
