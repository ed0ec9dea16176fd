//! What a lock and a register do if one call follows another.

use std::fmt::Debug;

use stateright::semantics::SequentialSpec;

/// A model whose state is known wherever no call is open.
pub trait Model: SequentialSpec<Op: Clone + Debug, Ret: Clone + Debug + PartialEq> + Clone {
    /// Goes on to the state that is left by calls of which this one was the last or not: the same one in each order that the
    /// model allows.
    fn goes_on(&mut self, op: &Self::Op, ret: &Self::Ret);

    /// Returns whether a call can take effect no more.
    fn is_over(&self, op: &Self::Op) -> bool;
}

/// A lock with fences.
///
/// | call | is right if | and then |
/// | --- | --- | --- |
/// | acquire → fence | the fence is larger than `last` | it is `last`. It is also `turn`, if exclusion is promised to the guard |
/// | look at a fence → held | it is `turn` | |
/// | look at a fence → lost, told of its loss, release | always | `turn` is larger than this fence |
///
/// So a lease may be over at any time, without an event: then the next grant takes the turn.
#[derive(Clone, Debug, Default)]
pub struct Lock {
    /// The largest fence.
    last: u64,
    /// The only fence whose guard may read `Held`. Of a guard that is over, it is one more.
    turn: u64,
}

#[derive(Clone, Debug)]
pub enum LockCall {
    Acquire,
    Look(u64),
    /// The guard is released, or its holder is told that it is lost.
    Over(u64),
}

#[derive(Clone, Debug, PartialEq)]
pub enum LockAnswer {
    Granted { fence: u64, is_promised: bool },
    Held,
    Lost,
}

impl SequentialSpec for Lock {
    type Op = LockCall;
    type Ret = LockAnswer;

    /// Only for a call whose answer nobody has, and of a lock the judge leaves these out.
    fn invoke(&mut self, op: &LockCall) -> LockAnswer {
        let answer = match op {
            LockCall::Acquire => LockAnswer::Granted {
                fence: self.last + 1,
                is_promised: false,
            },
            LockCall::Look(_) | LockCall::Over(_) => LockAnswer::Lost,
        };
        self.goes_on(op, &answer);
        answer
    }

    fn is_valid_step(&mut self, op: &LockCall, answer: &LockAnswer) -> bool {
        let is_right = match (op, answer) {
            (LockCall::Acquire, LockAnswer::Granted { fence, .. }) => *fence > self.last,
            (LockCall::Look(fence), LockAnswer::Held) => *fence == self.turn,
            _ => true,
        };
        self.goes_on(op, answer);
        is_right
    }
}

impl Model for Lock {
    /// Both numbers only rise, so the order does not matter.
    fn goes_on(&mut self, op: &LockCall, answer: &LockAnswer) {
        match (op, answer) {
            (LockCall::Acquire, LockAnswer::Granted { fence, is_promised }) => {
                self.last = self.last.max(*fence);
                self.turn = self.turn.max(if *is_promised { *fence } else { 0 });
            }
            (LockCall::Look(fence) | LockCall::Over(fence), LockAnswer::Lost) => {
                self.turn = self.turn.max(fence + 1);
            }
            _ => {}
        }
    }

    fn is_over(&self, _op: &LockCall) -> bool {
        true
    }
}

/// A register that holders of a lock increase: read, and compare-and-set from the value that was read to a larger one.
#[derive(Clone, Debug, Default)]
pub struct Register {
    value: u64,
}

#[derive(Clone, Debug)]
pub enum RegisterCall {
    Read,
    CompareAndSet(u64, u64),
}

#[derive(Clone, Debug, PartialEq)]
pub enum RegisterAnswer {
    Value(u64),
    Done,
    /// Of a call whose answer nobody has.
    NotDone,
}

impl SequentialSpec for Register {
    type Op = RegisterCall;
    type Ret = RegisterAnswer;

    fn invoke(&mut self, op: &RegisterCall) -> RegisterAnswer {
        match op {
            RegisterCall::Read => RegisterAnswer::Value(self.value),
            RegisterCall::CompareAndSet(old, new) if self.value == *old => {
                self.value = *new;
                RegisterAnswer::Done
            }
            RegisterCall::CompareAndSet(..) => RegisterAnswer::NotDone,
        }
    }
}

impl Model for Register {
    /// In each order that is allowed the value rises, and the last one is the largest.
    fn goes_on(&mut self, op: &RegisterCall, answer: &RegisterAnswer) {
        self.value = match (op, answer) {
            (RegisterCall::Read, RegisterAnswer::Value(value)) => self.value.max(*value),
            (RegisterCall::CompareAndSet(_, new), RegisterAnswer::Done) => self.value.max(*new),
            _ => self.value,
        };
    }

    /// The value never comes back.
    fn is_over(&self, op: &RegisterCall) -> bool {
        matches!(op, RegisterCall::CompareAndSet(old, _) if *old < self.value)
    }
}
