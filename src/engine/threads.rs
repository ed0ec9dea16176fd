//! The loops of the watch thread and the wakeup thread. A loop stands above the part that it waits on and above the leases:
//! it takes what has happened from the one, and acts on it with the other. So neither part calls back.
//!
//! A loop holds the leases only while it acts, so that they end with the last handle and guard.

use std::time::Duration;

use crate::engine::lease::leases::Leases;
use crate::engine::lease::watch::{Due, Watch};
use crate::engine::observe::events::{Events, Unreached};
use crate::engine::wakeup::Wakeup;
use crate::error::{Chain, Failure, FailureKind, Outcome};
use crate::event::Connection;
use crate::logging;
use crate::name::BROKEN;
use crate::net::pubsub::PubSubEvent;
use crate::panics::survived;
use crate::server::Store;
use crate::sys::random::jittered;
use crate::sys::{Machine, Time, Weak};

/// The shortest time between two looks ahead of the watch thread. Each of them visits all leases of the span, renewed or not.
const LOOKS_EVERY: Duration = Duration::from_millis(250);
/// The first pause after a failed subscription. Each further pause is twice as long. After a subscription that has
/// lasted for `LONGEST_PAUSE`, the pauses begin with this one again.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause after a transient failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after a failure that is not transient: a permission or a command that is missing now will probably
/// be missing a second later.
const AFTER_REFUSAL: Duration = Duration::from_secs(60);

/// Runs the watch thread ([`crate::engine::lease::watch`]).
pub(super) fn watch(watch: &Watch, leases: &Weak<Leases>) {
    let mut looks_at = Time::from_nanos(0);
    while let Some(leases) = leases.upgrade() {
        let client = &leases.client;
        // A panic does not end the thread: all other leases are still in the timer queue.
        let round = || {
            let mut looks_after = None;
            if client.now() >= looks_at {
                looks_after = Some((Time::from_nanos(0), 0));
                looks_at = client.now() + LOOKS_EVERY;
            }
            loop {
                // 1. End all that is due.
                while let Some((due, now)) = watch.next(client) {
                    match due {
                        Due::Lost(process_lease, cause) => leases.lost(&process_lease, cause),
                        Due::Limit(limit) => limit.act(&leases, now),
                    }
                }
                // 2. Look ahead, at most four times a second. What has become due comes before the next part.
                let Some(after) = looks_after else { break };
                looks_after = watch.look_ahead(client, after);
            }
        };
        if survived(round).is_none() {
            logging::error!("the watch thread panicked and goes on");
        }
        // 3. Sleep until the next time, or end if nothing was registered for a while.
        let now = client.now();
        drop(leases);
        if !watch.rest(now) {
            return;
        }
    }
}

/// Runs the wakeup thread ([`crate::engine::wakeup`]).
pub(super) fn wakeup(
    wakeup: &Wakeup,
    store: &dyn Store,
    events: &Weak<Events>,
    leases: &Weak<Leases>,
) {
    let mut pause = FIRST_PAUSE;
    let mut unreached = Unreached::default();
    // Whether the log has the warning already: that the server refused the subscription, or the right to publish.
    let mut warned_of_refusal = false;
    let mut warned_of_muting = false;
    loop {
        // 1 and 2. Subscribe, and handle each event until the connection ends or the leases are dropped.
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
                    if let Some(notice) = wakeup.message(channel, payload) {
                        if let Some(leases) = leases.upgrade() {
                            leases.act_on(notice);
                        }
                    }
                }
                PubSubEvent::Silence => {}
            }
            !wakeup.is_stopped()
        };
        let listen = || store.listen(&[wakeup.channel(), BROKEN], &mut handle);
        let ended = survived(listen).unwrap_or_else(|| {
            let words = "the wakeup thread panicked";
            Err(Failure::plain(
                FailureKind::Unavailable,
                Outcome::NotExecuted,
                words,
            ))
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
        // 4. Pause, or end with the leases.
        if !wakeup.rest(wait) {
            return;
        }
    }
}
