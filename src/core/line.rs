//! The line of a name's queue: who waits in it, and in which order.

use std::collections::VecDeque;

use crate::core::queue::Wants;

/// Who waits, first come, first served; tickets rise from front to back. Most names never have anybody wait, so they
/// have no line either.
#[derive(Debug)]
pub(super) struct Line<W>(Option<Box<Waiters<W>>>);

#[derive(Debug)]
struct Waiters<W> {
    line: VecDeque<Waiting<W>>,
    next_ticket: u64,
}

#[derive(Debug)]
pub(super) struct Waiting<W> {
    ticket: u64,
    pub(super) wants: Wants,
    pub(super) waiter: W,
}

impl<W> Line<W> {
    pub(super) const fn new() -> Self {
        Self(None)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0
            .as_ref()
            .is_none_or(|waiters| waiters.line.is_empty())
    }

    pub(super) fn front(&self) -> Option<&Waiting<W>> {
        self.0.as_ref()?.line.front()
    }

    pub(super) fn pop_front(&mut self) -> Option<Waiting<W>> {
        self.0.as_mut()?.line.pop_front()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiting<W>> {
        self.0.iter().flat_map(|waiters| &waiters.line)
    }

    /// At the end. Returns the ticket.
    pub(super) fn push(&mut self, wants: Wants, waiter: W) -> u64 {
        let waiters = self.0.get_or_insert_with(|| {
            Box::new(Waiters {
                line: VecDeque::new(),
                next_ticket: 0,
            })
        });
        let ticket = waiters.next_ticket;
        waiters.next_ticket += 1;
        waiters.line.push_back(Waiting {
            ticket,
            wants,
            waiter,
        });
        ticket
    }

    pub(super) fn remove(&mut self, ticket: u64) -> Option<Waiting<W>> {
        let line = &mut self.0.as_mut()?.line;
        let index = line.binary_search_by_key(&ticket, |w| w.ticket).ok()?;
        line.remove(index)
    }

    /// Takes out all of whom `is_meant` says so.
    pub(super) fn take(&mut self, is_meant: impl Fn(&Waiting<W>) -> bool) -> Vec<W> {
        if !self.iter().any(&is_meant) {
            return Vec::new();
        }
        let Some(waiters) = &mut self.0 else {
            return Vec::new();
        };
        let all = std::mem::take(&mut waiters.line);
        let (taken, others): (VecDeque<_>, _) = all.into_iter().partition(is_meant);
        waiters.line = others;
        taken.into_iter().map(|w| w.waiter).collect()
    }
}
