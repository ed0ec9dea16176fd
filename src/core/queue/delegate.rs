//! The delegate's request, as the threads behind it see it.

/// A request of the delegate that Redis has not granted yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct DelegateRequest {
    /// The number of units that it asks for.
    pub(super) units: u32,
    pub(super) answer: DelegateReply,
}

/// The last answer to a delegate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DelegateReply {
    /// Redis has not answered yet, or the delegate has failed to ask since.
    None,
    /// "Held": Redis does not give this much of the lock.
    Held,
    /// "Held", and the delegate stands in the queue in Redis. No process gets past it, not even for fewer units.
    Queued,
}

impl DelegateRequest {
    pub(super) fn new(units: u32, answer: DelegateReply) -> Self {
        Self { units, answer }
    }

    /// Returns whether the last answer tells a thread that it cannot have `units` of the lock either.
    pub(super) fn answers(self, units: u32) -> bool {
        match self.answer {
            DelegateReply::None => false,
            DelegateReply::Held => units >= self.units,
            DelegateReply::Queued => true,
        }
    }
}
