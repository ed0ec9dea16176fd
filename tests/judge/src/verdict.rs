//! Whether some order of its calls explains a history. Stateright's `LinearizabilityTester` decides that.
//!
//! Its search takes exponential time, so it gets the history in parts. A history is cut wherever no call is open that may
//! still take effect: then each call of before comes before each call of later, in every order. And the models are made so
//! that their state there is the same after every order that they allow (`Model::goes_on`). So an order of the whole is an
//! order of each part from that state, one behind the other, and nothing is lost by the cuts.

use std::cell::Cell;
use std::collections::BTreeMap;

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

use crate::history::{Event, History, Kind};
use crate::models::{Lock, LockAnswer, LockCall, Model, Register, RegisterAnswer, RegisterCall};

/// How many steps of a model the search of a part may take. A usual part takes a few hundred.
const MOST_STEPS: u64 = 200_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accepted,
    Rejected,
    /// The search would take too long.
    Undecided,
}

/// A call, its answer if there is one, and the places of both.
struct Call<M: Model> {
    process: u64,
    op: M::Op,
    invoked: usize,
    returned: Option<(usize, M::Ret)>,
}

/// Judges a history.
///
/// # Errors
///
/// It has an event that its model does not know, or an answer without a call.
pub fn judge(history: &History) -> Result<Verdict, String> {
    if history.is_of_lock {
        let calls = calls(&history.events, of_lock)?;
        Ok(judge_calls(Lock::default(), &calls))
    } else {
        let calls = calls(&history.events, of_register)?;
        Ok(judge_calls(Register::default(), &calls))
    }
}

/// What the model has to explain of a call, or `None` if the model allows it in any case.
type Step<M> = Option<(
    <M as SequentialSpec>::Op,
    Option<<M as SequentialSpec>::Ret>,
)>;

/// Pairs the events, and leaves out calls without an effect.
fn calls<M: Model>(
    events: &[Event],
    step: fn(&Event, Option<&Event>) -> Result<Step<M>, String>,
) -> Result<Vec<Call<M>>, String> {
    let mut open = BTreeMap::new();
    let mut pairs = Vec::new();
    for (place, event) in events.iter().enumerate() {
        if event.kind == Kind::Invoke {
            open.insert(event.process, pairs.len());
            pairs.push((place, None));
        } else {
            let call = open.remove(&event.process);
            let call = call.ok_or(format!("no call has this answer: {event:?}"))?;
            pairs[call].1 = Some(place);
        }
    }
    let mut calls = Vec::new();
    for (invoked, end) in pairs {
        let end = end.map(|place| (place, &events[place]));
        if end.is_some_and(|(_, event)| event.kind == Kind::Fail) {
            continue;
        }
        let end = end.filter(|(_, event)| event.kind == Kind::Ok);
        let step = step(&events[invoked], end.map(|(_, event)| event))?;
        calls.extend(step.map(|(op, ret)| Call {
            process: events[invoked].process,
            op,
            invoked,
            returned: end.zip(ret).map(|((place, _), ret)| (place, ret)),
        }));
    }
    Ok(calls)
}

/// Without an answer, an acquire gave no guard to anybody, and a released guard is looked at no more: the effect of either
/// could only forbid something.
fn of_lock(call: &Event, answer: Option<&Event>) -> Result<Step<Lock>, String> {
    let Some(answer) = answer else {
        return Ok(None);
    };
    let fence = *answer
        .value
        .first()
        .ok_or(format!("no fence: {answer:?}"))?;
    let is_promised = answer.is_promised;
    let (op, ret) = match call.call.as_str() {
        "acquire" => (
            LockCall::Acquire,
            LockAnswer::Granted { fence, is_promised },
        ),
        "look" if answer.is_held => (LockCall::Look(fence), LockAnswer::Held),
        "look" => (LockCall::Look(fence), LockAnswer::Lost),
        "told" | "release" => (LockCall::Over(fence), LockAnswer::Lost),
        _ => return Err(format!("no call of a lock: {call:?}")),
    };
    Ok(Some((op, Some(ret))))
}

fn of_register(call: &Event, answer: Option<&Event>) -> Result<Step<Register>, String> {
    match (call.call.as_str(), &call.value[..], answer) {
        // It writes the value with which the model begins.
        ("write", [0], _) | ("read", _, None) => Ok(None),
        ("read", _, Some(answer)) => {
            let value = answer
                .value
                .first()
                .ok_or(format!("no value: {answer:?}"))?;
            Ok(Some((
                RegisterCall::Read,
                Some(RegisterAnswer::Value(*value)),
            )))
        }
        ("cas", [old, new], answer) if new > old => {
            let op = RegisterCall::CompareAndSet(*old, *new);
            Ok(Some((op, answer.map(|_| RegisterAnswer::Done))))
        }
        _ => Err(format!("no call of a register: {call:?}")),
    }
}

/// A call, and its answer if the event is that.
type Half<'a, M> = (&'a Call<M>, Option<&'a <M as SequentialSpec>::Ret>);

/// Returns the events in their order.
fn in_order<M: Model>(calls: &[Call<M>]) -> Vec<Half<'_, M>> {
    let mut events = Vec::new();
    for call in calls {
        events.push((call.invoked, (call, None)));
        events.extend((call.returned.as_ref()).map(|(place, ret)| (*place, (call, Some(ret)))));
    }
    events.sort_by_key(|(place, _)| *place);
    events.into_iter().map(|(_, event)| event).collect()
}

fn judge_calls<M: Model>(model: M, calls: &[Call<M>]) -> Verdict {
    let (mut before, mut now) = (model.clone(), model);
    let (mut part, mut open) = (Vec::new(), 0);
    let mut verdict = Verdict::Accepted;
    for (call, ret) in in_order(calls) {
        part.push((call, ret));
        match ret {
            None if call.returned.is_some() => open += 1,
            None => {}
            Some(ret) => {
                open -= 1;
                now.goes_on(&call.op, ret);
            }
        }
        let is_over = |(call, _): &Half<'_, M>| call.returned.is_some() || now.is_over(&call.op);
        if open == 0 && part.iter().all(is_over) {
            match judge_part(before, &part) {
                Verdict::Accepted => {}
                Verdict::Rejected => return Verdict::Rejected,
                Verdict::Undecided => verdict = Verdict::Undecided,
            }
            before = now.clone();
            part.clear();
        }
    }
    match judge_part(before, &part) {
        Verdict::Accepted => verdict,
        other => other,
    }
}

fn judge_part<M: Model>(model: M, part: &[Half<'_, M>]) -> Verdict {
    STEPS.set(0);
    let mut tester = LinearizabilityTester::new(Counted(model));
    for (call, ret) in part {
        let noted = match ret {
            None => tester.on_invoke(call.process, call.op.clone()),
            Some(ret) => tester.on_return(call.process, (*ret).clone()),
        };
        noted.expect("a process does one thing after the other");
    }
    if tester.is_consistent() {
        Verdict::Accepted
    } else if STEPS.get() > MOST_STEPS {
        Verdict::Undecided
    } else {
        Verdict::Rejected
    }
}

thread_local! {
    /// The steps of the present search.
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// A model that allows nothing more after so many steps, which ends the search.
#[derive(Clone)]
struct Counted<M>(M);

impl<M: Model> SequentialSpec for Counted<M> {
    type Op = M::Op;
    type Ret = M::Ret;

    fn invoke(&mut self, op: &M::Op) -> M::Ret {
        self.0.invoke(op)
    }

    fn is_valid_step(&mut self, op: &M::Op, ret: &M::Ret) -> bool {
        STEPS.set(STEPS.get() + 1);
        STEPS.get() <= MOST_STEPS && self.0.is_valid_step(op, ret)
    }
}

#[cfg(test)]
mod tests {
    use leasehold_simulator::random::Random;

    use super::*;

    /// Makes a call, with its answer if it has one.
    type Maker<M> = fn(
        &mut Random,
    ) -> (
        <M as SequentialSpec>::Op,
        Option<<M as SequentialSpec>::Ret>,
    );

    /// Returns some calls, of which each is made by a process of its own.
    fn calls_of<M: Model>(random: &mut Random, some: Maker<M>) -> Vec<Call<M>> {
        let count = random.within(2..8) as usize;
        let mut places: Vec<_> = (0..2 * count).collect();
        // Some calls come one after the other, and others at once.
        for place in 1..places.len() {
            places.swap(place, place - random.index(4.min(place)));
        }
        let calls = places.chunks(2).zip(0..).map(|(places, process)| {
            let (op, ret) = some(random);
            let (invoked, returned) = (places[0].min(places[1]), places[0].max(places[1]));
            let returned = ret.map(|ret| (returned, ret));
            Call {
                process,
                op,
                invoked,
                returned,
            }
        });
        calls.collect()
    }

    /// Compares the verdicts with those on whole histories.
    fn check_cuts<M: Model + Default>(some: Maker<M>) {
        let mut random = Random::new(41, 0);
        let mut counts = [0, 0];
        for _ in 0..4_000 {
            let calls = calls_of::<M>(&mut random, some);
            let whole = judge_part(M::default(), &in_order(&calls));
            assert_eq!(judge_calls(M::default(), &calls), whole);
            counts[usize::from(whole == Verdict::Accepted)] += 1;
        }
        assert!(counts[0] > 100 && counts[1] > 100, "{counts:?}");
    }

    #[test]
    fn the_verdict_on_a_lock_is_that_without_cuts() {
        check_cuts::<Lock>(|random| {
            let fence = random.within(1..6);
            let is_promised = !random.one_in(4);
            let granted = LockAnswer::Granted { fence, is_promised };
            match random.within(0..4) {
                0 | 1 => (LockCall::Acquire, Some(granted)),
                2 => (LockCall::Look(fence), Some(LockAnswer::Held)),
                _ => (LockCall::Over(fence), Some(LockAnswer::Lost)),
            }
        });
    }

    #[test]
    fn the_verdict_on_a_register_is_that_without_cuts() {
        check_cuts::<Register>(|random| {
            let value = random.within(0..4);
            let done = Some(RegisterAnswer::Done).filter(|_| !random.one_in(4));
            match random.within(0..2) {
                0 => (RegisterCall::Read, Some(RegisterAnswer::Value(value))),
                _ => (RegisterCall::CompareAndSet(value, value + 1), done),
            }
        });
    }
}
