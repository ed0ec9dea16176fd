//! A first-in, first-out queue whose members can leave it early, by their numbers.

use std::collections::VecDeque;

/// The members, first come, first served. Most names never have a waiting thread, so an unused queue allocates nothing.
#[derive(Debug)]
pub(super) struct WaitList<T>(Option<Box<WaitListMembers<T>>>);

#[derive(Debug)]
struct WaitListMembers<T> {
    /// The members with their numbers, which rise from front to back.
    members: VecDeque<(u64, T)>,
    next_number: u64,
}

impl<T> WaitList<T> {
    pub(super) const fn new() -> Self {
        Self(None)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.front().is_none()
    }

    pub(super) fn front(&self) -> Option<&T> {
        let (_, member) = self.0.as_ref()?.members.front()?;
        Some(member)
    }

    pub(super) fn pop_front(&mut self) -> Option<T> {
        let (_, member) = self.0.as_mut()?.members.pop_front()?;
        Some(member)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        let members = self.0.iter().flat_map(|numbers| &numbers.members);
        members.map(|(_, member)| member)
    }

    /// Adds a member at the end. Returns its number.
    pub(super) fn push(&mut self, member: T) -> u64 {
        let numbers = self.0.get_or_insert_with(|| {
            Box::new(WaitListMembers {
                members: VecDeque::new(),
                next_number: 0,
            })
        });
        let number = numbers.next_number;
        numbers.next_number += 1;
        numbers.members.push_back((number, member));
        number
    }

    /// Takes the member with this number out. Returns `None` if it has left.
    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let members = &mut self.0.as_mut()?.members;
        let index = members.binary_search_by_key(&number, |(other, _)| *other);
        let (_, member) = members.remove(index.ok()?)?;
        Some(member)
    }

    /// Takes out all members for which `is_meant` returns true, in their order.
    pub(super) fn take(&mut self, is_meant: impl Fn(&T) -> bool) -> Vec<T> {
        if !self.iter().any(&is_meant) {
            return Vec::new();
        }
        let Some(numbers) = &mut self.0 else {
            return Vec::new();
        };
        let all = std::mem::take(&mut numbers.members);
        let (taken, others): (VecDeque<_>, _) =
            all.into_iter().partition(|(_, member)| is_meant(member));
        numbers.members = others;
        taken.into_iter().map(|(_, member)| member).collect()
    }
}
