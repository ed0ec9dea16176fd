//! The wakeup thread: one subscription to messages for all delegates of a process.
//!
//! A script that hands a lock over, or wants a waiter to ask again, publishes that owner on the channel of its process.
//! The wakeup thread of that process looks the owner up in a register, and wakes its delegate. If the message grants the
//! lock ([`GrantMessage`]), the delegate gets the grant too.
//!
//! All processes also subscribe to one common channel. On it, `force_release` publishes the owner that it removed, and
//! `request_release` its requests. [`messages`] says what they mean.
//!
//! | state of the subscription | a delegate | next state |
//! | --- | --- | --- |
//! | not started | starts the thread | subscribing; no subscription, if the thread cannot be started |
//! | subscribing, for at most 250 ms after the first wait | does not queue in Redis, and polls every 50 ms | ready; no subscription, if the try fails or takes longer |
//! | ready | queues under the channel, and sleeps until a message or its poll | no subscription, if the connection ends, or another one leads to another server |
//! | no subscription | queues without a channel, and polls within its pickup window | ready, if a later try succeeds |
//!
//! A process without a subscription must queue too, because other processes hand the lock over only to the queue, and a
//! process that only polls might never find the lock free.
//!
//! No wake-up is lost:
//!
//! 1. A delegate enters the register before it sends the request that queues it. If the message arrives before the
//!    delegate sleeps, the delegate does not sleep ([`Parker`]).
//! 2. At each change to or from "ready", the thread first sets the state, and then wakes all delegates in the register.
//!    They ask again, and so queue under the right channel.
//! 3. A delegate can miss such a change: it built its request before the change, and entered the register after it.
//!    When the reply comes, it compares the channel of its request with the state. If they differ, it asks again at
//!    once.
//! 4. A message may reach a channel without a subscriber, before 2 or 3. Then the script skips that waiter. The
//!    waiter's next request queues it again.
//!
//! | step | the thread ([`run`]) |
//! | --- | --- |
//! | 1 | connects and subscribes |
//! | 2 | handles each message, until the connection ends or the engine is dropped |
//! | 3 | notes and reports the end of the subscription |
//! | 4 | pauses, and goes on with 1; or ends with the engine |

mod messages;

use std::time::Duration;

use uuid::Uuid;

use crate::engine::Engine;
use crate::engine::attempt::poll::SubscriptionState;
use crate::engine::observe::events::{Events, Unreached};
use crate::error::{Chain, Failure, FailureKind};
use crate::event::Connection;
use crate::logging;
use crate::name::{BROKEN, CHANNEL_PREFIX};
use crate::net::pubsub::PubSubEvent;
use crate::panics::survived;
use crate::server::Store;
use crate::sys::hash::HashMap;
use crate::sys::random::jittered;
use crate::sys::thread::Parker;
use crate::sys::{
    Arc, AtomicU8, AtomicU64, Condvar, Machine, Mutex, MutexGuard, Ordering, Time, Weak,
};
use crate::wire::GrantMessage;

/// The time for which delegates wait for the first subscription before they queue in Redis. A longer time would let the
/// processes that queue get the lock first.
const FIRST_TRY: Duration = Duration::from_millis(250);

/// The first pause after a failed subscription. Each further pause is twice as long. After a subscription that has
/// lasted for `LONGEST_PAUSE`, the pauses begin with this one again.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause after a transient failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after a failure that is not transient: a permission or a command that is missing now will probably
/// be missing a second later.
const AFTER_REFUSAL: Duration = Duration::from_secs(60);

const NOT_YET: u8 = 0;
const READY: u8 = 1;
const NO_SUBSCRIPTION: u8 = 2;

pub(crate) struct Wakeup {
    /// The channel of this process.
    channel: Arc<str>,
    /// One of the three constants above.
    subscription: AtomicU8,
    /// The time until which delegates wait for the first subscription, in nanoseconds of the clock.
    first_try_until: AtomicU64,
    register: Mutex<Register>,
    /// Notified if the engine is dropped.
    stopping: Condvar,
}

/// The register of delegates, guarded by its mutex.
#[derive(Default)]
struct Register {
    /// The delegates by owner.
    sleepers: HashMap<Arc<str>, Arc<Sleeper>>,
    running: bool,
    stopped: bool,
    /// Whether the log has the warning that the thread could not be started.
    warned: bool,
}

/// What a message says to its owner: that Redis has given it the lock. `None`: it must ask Redis.
pub(super) type Message = Option<GrantMessage>;

/// A delegate in the register.
struct Sleeper {
    parker: Arc<Parker>,
    /// The first message for its owner since its last sleep that grants the lock, or else another one, without a grant.
    message: Mutex<Option<Message>>,
}

/// A delegate's registration. Dropping it ends the registration.
pub(crate) struct Waker {
    wakeup: Arc<Wakeup>,
    owner: Arc<str>,
    sleeper: Arc<Sleeper>,
}

impl Wakeup {
    /// `process` is an identifier that no other process has.
    pub(super) fn new(process: Uuid) -> Self {
        Self {
            channel: format!("{CHANNEL_PREFIX}{process}").into(),
            subscription: AtomicU8::new(NOT_YET),
            first_try_until: AtomicU64::new(Time::NEVER.as_nanos()),
            register: Mutex::default(),
            stopping: Condvar::new(),
        }
    }

    /// Returns the state of the subscription at `now`.
    pub(crate) fn subscription(&self, now: Time) -> SubscriptionState {
        match self.subscription.load(Ordering::SeqCst) {
            READY => SubscriptionState::Ready(Arc::clone(&self.channel)),
            NOT_YET if now.as_nanos() < self.first_try_until.load(Ordering::SeqCst) => {
                SubscriptionState::NotYet
            }
            _ => SubscriptionState::NoSubscription,
        }
    }

    /// Starts the thread by `spawn` if it does not run.
    pub(super) fn start(&self, now: Time, spawn: impl FnOnce() -> std::io::Result<()>) {
        if self.subscription.load(Ordering::SeqCst) == READY {
            return;
        }
        let mut register = self.register.lock();
        if register.running || register.stopped {
            return;
        }
        let until = (now + FIRST_TRY).as_nanos();
        self.first_try_until.fetch_min(until, Ordering::SeqCst);
        match spawn() {
            Ok(()) => register.running = true,
            Err(error) => self.not_started(register, &error),
        }
    }

    /// Notes that the thread could not be started. Delegates go on without a subscription, and each of their sleeps
    /// tries again to start the thread.
    fn not_started(&self, mut register: MutexGuard<'_, Register>, error: &std::io::Error) {
        let warned = std::mem::replace(&mut register.warned, true);
        drop(register);
        self.note_no_subscription();
        if !warned {
            logging::warning!("the wakeup thread could not be started, so waits poll: {error}");
        }
    }

    /// Registers the calling thread under `owner`, in place of the registration in `waker`.
    pub(crate) fn register<'a>(
        self: &Arc<Self>,
        waker: &'a mut Option<Waker>,
        owner: &Arc<str>,
    ) -> &'a Waker {
        if waker.as_ref().is_none_or(|waker| waker.owner != *owner) {
            let sleeper = Arc::new(Sleeper {
                parker: Arc::default(),
                message: Mutex::default(),
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
        waker.as_ref().expect("it was just set")
    }

    /// Wakes all registered threads.
    pub(crate) fn wake_all(&self) {
        let all: Vec<_> = self.register.lock().sleepers.values().cloned().collect();
        for sleeper in all {
            sleeper.parker.wake();
        }
    }

    /// Returns whether a thread is registered.
    #[cfg(feature = "seam")]
    pub(super) fn has_sleepers(&self) -> bool {
        !self.register.lock().sleepers.is_empty()
    }

    /// Returns whether each registered thread sleeps.
    #[cfg(feature = "seam")]
    pub(super) fn is_at_rest(&self) -> bool {
        let register = self.register.lock();
        let mut sleepers = register.sleepers.values();
        sleepers.all(|sleeper| sleeper.parker.is_asleep())
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.register.lock().stopped = true;
        self.stopping.notify_all();
    }

    /// Wakes the delegate that is registered under the owner that a message names, if there is one. Any client could have sent
    /// the message. So the delegate asks Redis, unless the message has its nonce.
    pub(super) fn wake(&self, payload: &[u8]) {
        let Some((owner, grant)) = GrantMessage::of(payload) else {
            return;
        };
        let sleeper = self.register.lock().sleepers.get(owner).cloned();
        if let Some(sleeper) = sleeper {
            // A later message never replaces a grant: every client that may subscribe has seen the nonce by then.
            let mut kept = sleeper.message.lock();
            if kept.flatten().is_none() {
                *kept = Some(grant);
            }
            drop(kept);
            sleeper.parker.wake();
        }
    }

    /// Notes the subscription. Messages sent before it are lost, so all delegates ask.
    pub(super) fn note_subscribed(&self) {
        self.subscription.store(READY, Ordering::SeqCst);
        self.wake_all();
    }

    /// Notes that there is none. If there was one, all delegates ask, so that they queue under the right channel.
    pub(super) fn note_no_subscription(&self) {
        if self.subscription.swap(NO_SUBSCRIPTION, Ordering::SeqCst) != NO_SUBSCRIPTION {
            self.wake_all();
        }
    }

    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.register.lock().stopped
    }

    /// Blocks the thread for `pause`. Returns false if it must end with the engine.
    pub(super) fn rest(&self, pause: Duration) -> bool {
        let mut register = self.register.lock();
        if !register.stopped && !pause.is_zero() {
            register = self.stopping.wait_for(register, pause);
        }
        if register.stopped {
            register.running = false;
            self.subscription.store(NO_SUBSCRIPTION, Ordering::SeqCst);
        }
        !register.stopped
    }
}

impl Waker {
    /// Returns the place where the thread sleeps.
    pub(super) fn parker(&self) -> &Arc<Parker> {
        &self.sleeper.parker
    }

    /// Sleeps until the thread is woken, or until then. Returns the grant in the message for the owner, if a message came.
    pub(super) fn wait(&self, machine: &Machine, until: Time) -> Option<Message> {
        self.sleeper.parker.sleep_until(machine, until);
        self.sleeper.message.lock().take()
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.wakeup.register.lock().sleepers.remove(&self.owner);
    }
}

impl Engine {
    /// Starts the wakeup thread if it does not run.
    pub(crate) fn subscribe(self: &Arc<Self>) {
        self.wakeup.start(self.client.now(), || {
            let (wakeup, store) = (Arc::clone(&self.wakeup), Arc::clone(&self.client.store));
            let (events, engine) = (Arc::downgrade(&self.client.events), Arc::downgrade(self));
            let run = move || run(&wakeup, &*store, &events, &engine);
            self.client.machine().spawn("leasehold-wakeup-0", run)
        });
    }
}

/// Runs the wakeup thread. It holds the engine only while that handles a message, so that it ends with the last handle and
/// guard.
fn run(wakeup: &Wakeup, store: &dyn Store, events: &Weak<Events>, engine: &Weak<Engine>) {
    let mut pause = FIRST_PAUSE;
    let mut unreached = Unreached::default();
    // Whether the log has the warning already: that the server refused the subscription, or the right to publish.
    let mut warned_of_refusal = false;
    let mut warned_of_muting = false;
    loop {
        // 1 and 2. Subscribe, and handle each event until the connection ends or the engine is dropped.
        let mut subscribed: Option<Time> = None;
        let mut handle = |event: PubSubEvent<'_>| {
            match event {
                PubSubEvent::Node(report) => {
                    // Without the right to subscribe, the connection works all the same.
                    let is_denied = |failure: &Failure| {
                        failure.kind == FailureKind::Denied && !failure.of_connecting
                    };
                    if !report.failure.as_ref().is_some_and(is_denied) {
                        let event = unreached.note(Connection::Wakeup, report);
                        if let (Some(event), Some(events)) = (event, events.upgrade()) {
                            events.tell(|| event);
                        }
                    }
                }
                PubSubEvent::Muted(failure) => {
                    if !std::mem::replace(&mut warned_of_muting, true) {
                        logging::warning!(
                            "the server does not let this user publish on {:?}, so other processes poll for \
                             the locks that this process hands over: {}",
                            wakeup.channel(),
                            Chain(&*failure.cause)
                        );
                    }
                }
                PubSubEvent::Subscribed => {
                    wakeup.note_subscribed();
                    subscribed = Some(Time::now());
                    warned_of_refusal = false;
                }
                PubSubEvent::Message { channel, payload } => {
                    if let Some(engine) = engine.upgrade() {
                        engine.hear(channel, payload);
                    }
                }
                PubSubEvent::Silence => {}
            }
            !wakeup.is_stopped()
        };
        let listen = || store.listen(&[wakeup.channel(), BROKEN], &mut handle);
        let ended = survived(listen).unwrap_or_else(|| {
            let words = "the wakeup thread panicked";
            Err(Failure::not_executed(FailureKind::Unavailable, words))
        });
        // 3. Note and report the end of the subscription, and choose the pause.
        let wait = match ended {
            Ok(()) => Duration::ZERO,
            Err(failure) => {
                wakeup.note_no_subscription();
                let is_transient = failure.is_transient();
                if is_transient || warned_of_refusal {
                    logging::debug!(
                        "the wakeup thread subscribes again: {}",
                        Chain(&*failure.cause)
                    );
                } else {
                    warned_of_refusal = true;
                    logging::warning!(
                        "the server refused the subscription to {:?}, so waits poll: {}",
                        wakeup.channel(),
                        Chain(&*failure.cause)
                    );
                }
                // Each subscription makes all delegates ask. So if subscriptions keep ending early, the pauses must
                // still grow.
                if subscribed.is_some_and(|since| since.elapsed() >= LONGEST_PAUSE) {
                    pause = FIRST_PAUSE;
                }
                // A password that is wrong now may be right in a second, and a try is one login.
                let longest = if is_transient || failure.of_connecting {
                    LONGEST_PAUSE
                } else {
                    AFTER_REFUSAL
                };
                if longest == AFTER_REFUSAL && failure.kind == FailureKind::Denied {
                    pause = AFTER_REFUSAL;
                }
                let wait = jittered(&Machine::here(), pause.min(longest));
                pause = (pause * 2).min(longest);
                wait
            }
        };
        // 4. Pause, or end with the engine.
        if !wakeup.rest(wait) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Machine, Time};

    const START: Time = Time::from_nanos(1 << 50);

    fn new_wakeup() -> Wakeup {
        Wakeup::new(Uuid::nil())
    }

    #[test]
    fn a_later_message_replaces_no_grant() {
        let wakeup = Arc::new(new_wakeup());
        let mut waker = None;
        wakeup.register(&mut waker, &"owner".into());
        let waker = waker.expect("it is registered");
        let nonce = "0123456789abcdef".repeat(2);
        let heard = |fences: &[&str]| {
            for fence in fences {
                let text = ["owner ", &nonce, fence].concat();
                wakeup.wake(text.trim_end().as_bytes());
            }
            let message = waker.wait(&Machine::default(), Time::from_nanos(0));
            message.flatten().map(|grant| grant.fence)
        };
        assert_eq!(heard(&[""]), None);
        assert_eq!(heard(&["", " 7", " 9", ""]), Some(7));
        assert_eq!(heard(&[" 9"]), Some(9), "the next sleep begins anew");
    }

    #[test]
    fn delegates_wait_only_briefly_for_a_first_subscription_that_hangs() {
        let wakeup = new_wakeup();
        let long = START + Duration::from_hours(1);
        assert_eq!(
            wakeup.subscription(long),
            SubscriptionState::NotYet,
            "no thread waits yet"
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
        let wakeup = new_wakeup();
        let error = std::io::Error::from(std::io::ErrorKind::WouldBlock);
        wakeup.not_started(wakeup.register.lock(), &error);
        assert_eq!(
            wakeup.subscription(START),
            SubscriptionState::NoSubscription
        );
        assert!(wakeup.register.lock().warned);
    }
}
