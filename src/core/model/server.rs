//! The server of the model: one name, in Rust, with the rules of the scripts.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Time;
use crate::message::{Ask, Gone, Reply, Verb};
use crate::sync::Arc;

/// The pickup window.
const PICKUP_WINDOW: Duration = Duration::from_secs(1);
/// How long the queue's keys live after the last waiter joined it.
pub(super) const LIFE: Duration = Duration::from_secs(3);

/// The state that the scripts keep in Redis for one name.
#[derive(Debug, Default)]
pub(super) struct Server {
    /// The owner, whether its value is marked, and when the key expires.
    pub(super) lock: Option<(Arc<str>, bool, Time)>,
    last_fence: u64,
    /// The owners, when each was last seen, and whether it named a channel.
    pub(super) queue: VecDeque<(Arc<str>, Time, bool)>,
    /// The owners to which a message was published.
    pub(super) published: Vec<Arc<str>>,
    /// The owners whose process has no subscription now.
    pub(super) deaf: Vec<Arc<str>>,
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
        self.queue.retain(|(queued, ..)| queued != owner);
    }

    fn next_waiter(&mut self, me: &Arc<str>, max_silence: Duration, now: Time) -> Option<Arc<str>> {
        while let Some((head, seen, named)) = self.queue.pop_front() {
            if head == *me {
                return Some(head);
            }
            let has_subscriber = !named || !self.deaf.contains(&head);
            if now.since(seen) <= max_silence && has_subscriber {
                if named {
                    self.published.push(Arc::clone(&head));
                }
                return Some(head);
            }
        }
        None
    }

    fn give(&mut self, owner: &Arc<str>, until: Time) {
        self.lock = Some((Arc::clone(owner), !self.queue.is_empty(), until));
    }

    fn release(&mut self, owner: &Arc<str>, now: Time) -> Reply {
        match &self.lock {
            Some((holder, _, _)) if holder == owner => {
                let nobody = Arc::from("");
                match self.next_waiter(&nobody, LIFE, now) {
                    Some(head) => self.give(&head, now + PICKUP_WINDOW),
                    None => self.lock = None,
                }
                Reply::Released
            }
            Some(_) => Reply::NotOwner(Gone::Taken),
            None => Reply::NotOwner(Gone::Removed),
        }
    }

    fn ask(&mut self, ask: &Ask, at_once: bool, now: Time) -> Reply {
        if self.lock.is_none() && at_once {
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
            let head = self.next_waiter(&ask.owner, LIFE / 2, now);
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
            self.give(&head, now + PICKUP_WINDOW);
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
        };
        if let Some(channel) = &ask.channel {
            *marked = true;
            let named = !channel.is_empty();
            match self
                .queue
                .iter_mut()
                .find(|(owner, ..)| *owner == ask.owner)
            {
                Some(waiter) => (waiter.1, waiter.2) = (now, named),
                None => self.queue.push_back((Arc::clone(&ask.owner), now, named)),
            }
        }
        reply
    }

    pub(super) fn execute(&mut self, verb: &Verb, now: Time) -> Reply {
        self.expire(now);
        match verb {
            Verb::Acquire { ask, at_once } => self.ask(ask, *at_once, now),
            Verb::TakeOver { ask, from, .. } => {
                let ours = matches!(&self.lock, Some((holder, _, _)) if holder == from);
                if !ours {
                    return self.ask(ask, false, now);
                }
                match self.next_waiter(&ask.owner, LIFE, now) {
                    Some(head) if head != ask.owner => {
                        if let Some(channel) = &ask.channel {
                            let named = !channel.is_empty();
                            self.queue.push_back((Arc::clone(&ask.owner), now, named));
                        }
                        self.give(&head, now + PICKUP_WINDOW);
                        Reply::Held {
                            ttl: Some(PICKUP_WINDOW),
                            holder: head,
                        }
                    }
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
            Verb::Keep { .. } => unreachable!("no guard here has a min_hold"),
            Verb::Withdraw { owner, .. } => {
                self.leave(owner);
                self.release(owner, now)
            }
        }
    }
}
