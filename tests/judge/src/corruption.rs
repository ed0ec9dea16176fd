//! Copies of histories that say something else, which no order explains any more.
//!
//! | corruption | why no order explains it |
//! | --- | --- |
//! | the fences of two grants are swapped | one call began after the other had its answer, and now has the smaller fence |
//! | a fence is repeated | two grants have it, and each grant has a larger one than all grants before it |
//! | a late look reads `Held` | it begins after a later guard was granted, while exclusion was promised |
//! | an update is lost | two writes go on from one value, which never comes back, because each write makes it larger |
//! | a write is moved | it comes after somebody has seen a larger value than the one from which it goes on |

use leasehold_simulator::random::Random;

use crate::history::{Event, History, Kind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corruption {
    FencesSwapped,
    FenceRepeated,
    LateLook,
    LostUpdate,
    MovedWrite,
}

impl Corruption {
    pub const ALL: [Self; 5] = [
        Self::FencesSwapped,
        Self::FenceRepeated,
        Self::LateLook,
        Self::LostUpdate,
        Self::MovedWrite,
    ];

    /// Returns a corrupted copy, or `None` if the history has no place for it.
    #[must_use]
    pub fn of(self, history: &History, random: &mut Random) -> Option<History> {
        let name = match self {
            Self::FencesSwapped | Self::FenceRepeated | Self::LateLook => "acquire",
            Self::LostUpdate | Self::MovedWrite => "cas",
        };
        let is_meant = |(_, (_, later)): &(Places, Places)| {
            self != Self::LateLook || history.events[*later].is_promised
        };
        let mut places = pairs(&history.events, name);
        places.retain(is_meant);
        if places.is_empty() {
            return None;
        }
        let (first, second) = *random.pick(&places);
        let mut corrupted = history.clone();
        let events = &mut corrupted.events;
        match self {
            Self::FencesSwapped => swap_fences(events, first, second),
            Self::FenceRepeated => repeat_fence(events, first, second),
            Self::LateLook => look_late(events, first, second),
            Self::LostUpdate => lose_update(events, first, second),
            Self::MovedWrite => move_write(events, first, second),
        }
        Some(corrupted)
    }
}

/// The places of a call and of its answer.
type Places = (usize, usize);

/// Returns the successful calls of this name, each with each one that began after its answer.
fn pairs(events: &[Event], name: &str) -> Vec<(Places, Places)> {
    let named = (0..events.len()).filter(|it| events[*it].call == name);
    let calls: Vec<Places> = named
        .filter(|it| events[*it].kind == Kind::Invoke)
        .filter_map(|invoked| {
            let mut later = (invoked + 1)..events.len();
            let end = later.find(|it| events[*it].process == events[invoked].process)?;
            (events[end].kind == Kind::Ok).then_some((invoked, end))
        })
        .collect();
    let mut pairs = Vec::new();
    for first in &calls {
        let later = calls.iter().filter(|second| second.0 > first.1);
        pairs.extend(later.map(|second| (*first, *second)));
    }
    pairs
}

fn swap_fences(events: &mut [Event], (_, first): Places, (_, second): Places) {
    let earlier = events[first].value.clone();
    events[first].value = std::mem::replace(&mut events[second].value, earlier);
}

fn repeat_fence(events: &mut [Event], (_, first): Places, (_, second): Places) {
    let value = events[first].value.clone();
    events[second].value = value;
}

/// The holder of the first grant looks after the second one.
fn look_late(events: &mut Vec<Event>, (_, first): Places, (_, second): Places) {
    let process = unused(events);
    let [invoked, answered] = [Kind::Invoke, Kind::Ok].map(|kind| Event {
        process,
        kind,
        call: "look".into(),
        value: events[first].value.clone(),
        is_held: kind == Kind::Ok,
        is_promised: true,
    });
    insert(events, second + 1, [invoked, answered]);
}

/// The second write goes on from the value of before the first one.
fn lose_update(events: &mut [Event], (_, first): Places, second: Places) {
    let value = events[first].value.clone();
    for place in [second.0, second.1] {
        events[place].value.clone_from(&value);
    }
}

/// The first write comes after the second one, which has gone on from a larger value.
fn move_write(events: &mut Vec<Event>, first: Places, (_, second): Places) {
    let process = unused(events);
    let moved = [first.0, first.1].map(|place| Event {
        process,
        ..events[place].clone()
    });
    insert(events, second + 1, moved);
    events.remove(first.1);
    events.remove(first.0);
}

fn insert(events: &mut Vec<Event>, place: usize, more: [Event; 2]) {
    let rest = events.split_off(place);
    events.extend(more);
    events.extend(rest);
}

/// Returns the number of a process that the history does not have.
fn unused(events: &[Event]) -> u64 {
    let most = events.iter().map(|event| event.process).max();
    most.map_or(0, |most| most + 1)
}
