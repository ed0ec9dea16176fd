//! The requests that concern several slots.
//!
//! | request | the nodes that are asked |
//! | --- | --- |
//! | ping | all masters at once, until one answers |
//! | inspect | the owner of each slot |
//! | scan | all masters, one after another, in the order of their first slots |
//!
//! A cursor of a scan names the place of the master in that order, and its process. If another process is there, because
//! of a failover or a restart, its scan starts again. If there are other masters at the end than at the beginning, or in
//! another order, all are scanned again. The caller drops the locks that come again.

use std::collections::BTreeMap;

use crate::error::Failure;
use crate::name::LockKey;
use crate::net::deadline::Deadline;
use crate::net::login::ping_as_they_answer;
use crate::net::refusal::unavailable;
use crate::server::Answer;
use crate::server::cluster::master::Master;
use crate::server::cluster::state::Shared;
use crate::sys::Arc;
use crate::sys::hash::{DefaultHasher, Hash, Hasher};
use crate::wire::{Cursor, Reply, Request, Seen};

impl Shared {
    /// Asks all masters. Returns the first reply, or a failure.
    pub(super) fn ping(&self, mut deadline: Deadline<'_>) -> Result<Answer, Failure> {
        let masters = self.map(&mut deadline)?.masters();
        let routes = masters.iter().map(|master| master.route.clone());
        let mut last = unavailable("the cluster has no master");
        for (number, (_, pong)) in ping_as_they_answer(routes.collect()) {
            match pong {
                Ok(_) => {
                    return Ok(Answer {
                        reply: Reply::Pong,
                        resent: false,
                    });
                }
                // A wrong password tells more than a master that hangs.
                Err(failure) if last.is_transient() => last = masters[number].named(failure),
                Err(_) => {}
            }
        }
        Err(last)
    }

    /// Inspects locks of any slots. Returns them in the order of the keys.
    pub(super) fn inspect(
        &self,
        keys: &[LockKey],
        named: bool,
        deadline: Deadline<'_>,
    ) -> Result<Answer, Failure> {
        let mut slots = BTreeMap::<u16, Vec<usize>>::new();
        for (number, key) in keys.iter().enumerate() {
            slots.entry(key.slot()).or_default().push(number);
        }
        let mut all: Vec<Option<Seen>> = vec![None; keys.len()];
        for (slot, numbers) in slots {
            let of_slot: Vec<_> = numbers.iter().map(|number| keys[*number].clone()).collect();
            let mut inspected = 0;
            // The reply may be about the first of the keys only.
            while inspected < of_slot.len() {
                let keys = &of_slot[inspected..];
                let request = Request::Inspect { keys, named };
                let Reply::Inspected(some) = self.ask(slot, &request, deadline)?.reply else {
                    return Err(Failure::another_question());
                };
                for seen in some {
                    let place = numbers.get(inspected).copied();
                    all[place.ok_or_else(Failure::another_question)?] = seen;
                    inspected += 1;
                }
            }
        }
        Ok(Answer {
            reply: Reply::Inspected(all),
            resent: false,
        })
    }

    /// Lists some keys of one master.
    pub(super) fn scan(
        &self,
        from: Cursor,
        request: &Request<'_>,
        mut deadline: Deadline<'_>,
    ) -> Result<Answer, Failure> {
        let map = self.map(&mut deadline)?;
        let masters = map.masters();
        let now = fingerprint(&masters);
        let before = if from == Cursor::START {
            now
        } else {
            from.masters
        };
        let of_node = |node: u32, masters: u64| Cursor {
            node,
            masters,
            ..Cursor::START
        };
        let next_master = if from.node as usize + 1 < masters.len() {
            Some(of_node(from.node + 1, before))
        } else if now == before {
            None
        } else {
            Some(of_node(0, now))
        };
        let Some(master) = masters.get(from.node as usize) else {
            // The cluster has fewer masters than before.
            return Ok(page(Vec::new(), next_master));
        };
        let (reply, run) = self.on_link(master, deadline, |link, deadline| {
            link.call_identified(request, deadline)
        })?;
        master.check_in_use()?;
        let Reply::Page { keys, next } = reply else {
            return Err(Failure::another_question());
        };
        if from.at != 0 && from.run != run {
            // The cursor was that of another process.
            let again = of_node(from.node, before);
            return Ok(page(Vec::new(), Some(again)));
        }
        let next = next.map(|next| Cursor {
            run,
            masters: before,
            ..next
        });
        Ok(page(keys, next.or(next_master)))
    }
}

/// Returns a number that other masters, or the same in another order, do not have. It is never 0.
fn fingerprint(masters: &[Arc<Master>]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for master in masters {
        (&master.address.host, master.address.port).hash(&mut hasher);
    }
    hasher.finish() | 1
}

fn page(keys: Vec<Vec<u8>>, next: Option<Cursor>) -> Answer {
    Answer {
        reply: Reply::Page { keys, next },
        resent: false,
    }
}
