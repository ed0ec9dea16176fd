//! The server of the model: one name, in Rust, with the rules of the scripts.

use std::collections::VecDeque;
use std::time::Duration;

use crate::message::{AcquireMode, Ask, Gone, GrantMessage, Keep, Nonce, Reply, Verb};
use crate::sys::{Arc, Time};

/// The pickup window.
pub(super) const PICKUP_WINDOW: Duration = Duration::from_secs(1);
/// How long a waiter stays in the queue after it was last seen.
pub(super) const LIFE: Duration = Duration::from_secs(3);

/// The state that the scripts keep in Redis for one name.
#[derive(Clone, Debug, Default)]
pub(super) struct Server {
    /// The owner, whether its value is marked, and when the key expires.
    pub(super) lock: Option<(Arc<str>, bool, Time)>,
    last_fence: u64,
    pub(super) queue: VecDeque<Waiter>,
    /// The messages that were published: the owner, and a grant.
    pub(super) published: Vec<(Arc<str>, Option<GrantMessage>)>,
    /// The owners whose process has no subscription now.
    pub(super) deaf: Vec<Arc<str>>,
}

/// An owner in the queue.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    owner: Arc<str>,
    pub(super) seen: Time,
    has_channel: bool,
    nonce: Option<Nonce>,
}

impl Server {
    pub(super) fn expire(&mut self, now: Time) {
        if self.lock.as_ref().is_some_and(|(_, _, end)| *end <= now) {
            self.lock = None;
        }
    }

    fn fences(&mut self, now: Time, count: u64) -> u64 {
        let first = (self.last_fence + 1).max(now.as_nanos() / 1000);
        self.last_fence = first + count - 1;
        first
    }

    fn leave(&mut self, owner: &Arc<str>) {
        self.queue.retain(|waiter| waiter.owner != *owner);
    }

    /// Makes the next waiter that is awake the holder, and publishes a message to it. Stops at `me`. The message is a grant
    /// if the script `may_grant`. Passes over a waiter that was silent for longer than its pickup window.
    fn hand_to_next(&mut self, me: &Arc<str>, may_grant: bool, now: Time) -> Option<Arc<str>> {
        let mut place = 0;
        while let Some(waiter) = self.queue.get(place) {
            if waiter.owner != *me && self.is_passed_over(waiter, now) {
                place += 1;
                continue;
            }
            let waiter = self.queue.remove(place)?;
            let head = waiter.owner;
            if head == *me {
                return Some(head);
            }
            let has_subscriber = !waiter.has_channel || !self.deaf.contains(&head);
            if !has_subscriber {
                // It may listen at a replica: the message counts nobody, and arrives.
                self.published.push((Arc::clone(&head), None));
            }
            if now.since(waiter.seen) <= PICKUP_WINDOW && has_subscriber {
                let nonce = waiter.nonce.filter(|_| may_grant);
                let grant = nonce.map(|nonce| GrantMessage {
                    nonce,
                    fence: self.fences(now, 1),
                });
                self.give(&head, now + PICKUP_WINDOW);
                if waiter.has_channel {
                    self.published.push((Arc::clone(&head), grant));
                }
                return Some(head);
            }
        }
        None
    }

    fn is_passed_over(&self, waiter: &Waiter, now: Time) -> bool {
        let silence = now.since(waiter.seen);
        let is_deaf = waiter.has_channel && self.deaf.contains(&waiter.owner);
        silence > PICKUP_WINDOW && silence <= LIFE && !is_deaf
    }

    fn give(&mut self, owner: &Arc<str>, until: Time) {
        self.lock = Some((Arc::clone(owner), !self.queue.is_empty(), until));
    }

    fn release(&mut self, owner: &Arc<str>, now: Time) -> Reply {
        match &self.lock {
            Some((holder, _, _)) if holder == owner => {
                let nobody = Arc::from("");
                let to = self.hand_to_next(&nobody, true, now);
                if to.is_none() {
                    self.lock = None;
                    return Reply::Released;
                }
                Reply::HandedOver
            }
            Some(_) => Reply::NotOwner(Gone::Taken),
            None => Reply::NotOwner(Gone::Removed),
        }
    }

    /// Keeps the lock from all processes for a while (`min_hold`), and wakes the first live waiter.
    fn keep(&mut self, keep: &Keep, now: Time) -> Reply {
        let kept: Arc<str> = format!("{}~", keep.owner).into();
        let may_have_waiters = match &self.lock {
            Some((holder, is_marked, _)) if *holder == keep.owner => {
                let is_marked = *is_marked;
                self.lock = Some((kept, false, now + keep.life));
                is_marked
            }
            // A repeat.
            Some((holder, ..)) if *holder == kept => true,
            Some(_) => return Reply::NotOwner(Gone::Taken),
            None => return Reply::NotOwner(Gone::Removed),
        };
        if may_have_waiters && !keep.wakes {
            return Reply::Contended;
        }
        if may_have_waiters {
            self.wake_head(now);
        }
        Reply::Released
    }

    fn wake_head(&mut self, now: Time) {
        let mut place = 0;
        while let Some(head) = self.queue.get(place) {
            if self.is_passed_over(head, now) {
                place += 1;
                continue;
            }
            let is_deaf = head.has_channel && self.deaf.contains(&head.owner);
            if now.since(head.seen) <= PICKUP_WINDOW && !is_deaf {
                if head.has_channel {
                    self.published.push((Arc::clone(&head.owner), None));
                }
                return;
            }
            self.queue.remove(place);
        }
    }

    fn ask(&mut self, ask: &Ask, mode: AcquireMode, now: Time) -> Reply {
        if self.lock.is_none() && mode == AcquireMode::TakeFree {
            self.lock = Some((Arc::clone(&ask.owner), false, now + ask.lease));
            let fence = self.fences(now, ask.fences);
            return Reply::Granted {
                fence,
                count: None,
                rest: Vec::new(),
                contended: false,
            };
        }
        if self.lock.is_none() {
            let head = self.hand_to_next(&ask.owner, false, now);
            let head = head.unwrap_or_else(|| Arc::clone(&ask.owner));
            if head == ask.owner {
                self.give(&head, now + ask.lease);
                let fence = self.fences(now, ask.fences);
                let contended = !self.queue.is_empty();
                return Reply::Granted {
                    fence,
                    count: None,
                    rest: Vec::new(),
                    contended,
                };
            }
        }
        let Some((holder, marked, end)) = &mut self.lock else {
            unreachable!("it was given away just now");
        };
        if *holder == ask.owner {
            *end = (*end).max(now + ask.lease);
            let contended = *marked;
            self.leave(&ask.owner);
            let fence = self.fences(now, ask.fences);
            return Reply::Granted {
                fence,
                count: None,
                rest: Vec::new(),
                contended,
            };
        }
        let reply = Reply::Held {
            ttl: Some(end.since(now)),
            holder: Arc::clone(holder),
            handed_over: false,
        };
        if let Some(channel) = &ask.channel {
            *marked = true;
            self.join(ask, channel, now);
        }
        reply
    }

    fn join(&mut self, ask: &Ask, channel: &str, now: Time) {
        let waiter = Waiter {
            owner: Arc::clone(&ask.owner),
            seen: now,
            has_channel: !channel.is_empty(),
            nonce: ask.nonce,
        };
        match self.queue.iter_mut().find(|other| other.owner == ask.owner) {
            Some(earlier) => *earlier = waiter,
            None => self.queue.push_back(waiter),
        }
    }

    pub(super) fn execute(&mut self, verb: &Verb, now: Time) -> Reply {
        self.expire(now);
        match verb {
            Verb::Acquire { ask, mode } => self.ask(ask, *mode, now),
            Verb::TakeOver { ask, from, .. } => {
                let ours = matches!(&self.lock, Some((holder, _, _)) if holder == from);
                if !ours {
                    return self.ask(ask, AcquireMode::QueueFirst, now);
                }
                if let (Some(channel), false) = (&ask.channel, self.queue.is_empty()) {
                    self.join(ask, channel, now);
                }
                match self.hand_to_next(&ask.owner, true, now) {
                    Some(head) if head != ask.owner => Reply::Held {
                        ttl: Some(PICKUP_WINDOW),
                        holder: head,
                        handed_over: true,
                    },
                    _ => {
                        let fence = self.fences(now, ask.fences);
                        self.lock = Some((Arc::clone(&ask.owner), false, now + ask.lease));
                        Reply::Granted {
                            fence,
                            count: None,
                            rest: Vec::new(),
                            contended: false,
                        }
                    }
                }
            }
            Verb::Release { owner, .. } => match &self.lock {
                Some((holder, true, _)) if holder == owner => Reply::Contended,
                _ => self.release(owner, now),
            },
            Verb::HandOver { owner, .. } => self.release(owner, now),
            Verb::Keep(keep) => self.keep(keep, now),
            Verb::Withdraw { owner, .. } => {
                self.leave(owner);
                self.release(owner, now)
            }
        }
    }
}
