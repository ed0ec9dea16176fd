//! The fences of a quorum.
//!
//! # The rule
//!
//! 1. The client proposes `c`, a reading of its clock. It sends the request to all nodes.
//! 2. A node that is free answers `f = max(last + 1, c)`, with `c` clamped to its own time ± [`Bounds::margin`]. It
//!    reserves a block: its `last` becomes the end of the block, at most the node's time plus the margin, but at least
//!    `f`. The answer is `f` and that end.
//! 3. The client chooses a majority of the answers: equal ones if there are enough, otherwise the smallest. The fence
//!    `F` is the largest chosen `f`.
//! 4. If each chosen node has reserved at least `F`, the grant stands. Its block ends at the smallest chosen end.
//! 5. Otherwise the client asks each chosen node whose reservation is too short to reserve up to the end of the block.
//!    A node does so only if this owner still holds the lock there. If one does not, the attempt has failed.
//! 6. A release names the last fence that was used, and `f` and the end of the node's own answer in step 2. If this
//!    owner still holds the lock and `last` is still that end, the node lowers `last` to the last fence that was used,
//!    but never below `f`. A withdrawal has used no fence, so it lowers `last` to `f`. After a raise nothing is given
//!    back: a late copy of the raise could bring its end back.
//!
//! 7. A holder may join a node at any time. The node refuses if another owner holds the lock there. Otherwise this owner
//!    holds it there, and the node raises `last` at least to the end of the block, however far that end is from the
//!    node's time. A node to which a join was sent gets nothing back.
//!
//! # Why fences rise
//!
//! Let A be granted before the first write of B, which is the first time that a node grants a request of B. The two
//! chosen majorities share a node. It held the end of A's block before A's grant stood, and its `last` never falls
//! below a fence that A has used. So its answer to B is larger than each fence of A, and B's fence is at least that
//! answer.
//!
//! If the shared node has crashed since, it has forgotten A's block. Two things help, each alone:
//!
//! * It refuses until its clock has passed every fence that it can have forgotten. This needs clocks that are near each
//!   other, and records that are not ahead of them.
//! * In a rolling restart a node crashes only while a majority of the other nodes counts for the holder. Each counted
//!   node holds the end of A's block, because a join raises the record to it. So the shared node can be any of these.
//!
//! If a node to which a join was sent got fences back, the join could arrive between two copies of the release, after
//! another owner has used those fences. It would raise `last` to the end that the second copy names.
//!
//! # What the model leaves out
//!
//! Leases and their clocks. A key can vanish at any moment, which includes its expiry. So two guards may hold the lock
//! at the same time here, and their fences must still be in order.
//!
//! One coincidence: after a release, a late copy of the request reserves fences up to the same end as the request did.
//! A late copy of the release would then take back the fences that another owner has used in between. The release has
//! lowered `last`, so the copy begins at a larger fence. It ends at the same fence only if both reservations end at the
//! margin, and the node's clock reads the same time. That clock counts microseconds, and goes on while another owner
//! comes and goes. The clock of the model stands still between two ticks. So a node does not execute such a copy,
//! unless the bounds say so ([`Bounds::clock_stands_still`]).
//!
//! # Replies and nodes
//!
//! A client needs no step to receive a reply: at each choice it has the replies that any of the nodes have sent. If a
//! node has executed a request twice by then, the client acts on the first reply or on the second. So lost replies and
//! late ones are included. The nodes are sorted after each step, because only their states tell them apart.

use stateright::{Model, Property};

use crate::majority;

/// The largest number of attempts.
pub const MOST: usize = 3;

/// The rule that the model follows. All but the first are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The rule above.
    Right,
    /// Nodes count 1, 2, 3 …, and the client takes the largest answer without writing it back.
    PlainCounters,
    /// A node outside of the chosen ones counts in place of one that lacks the fence, without holding the fence either.
    CountsUnchosenNodes,
    /// The chosen nodes must hold the fence, and not the end of the block.
    HoldsOnlyTheFence,
    /// A node takes back what the client says, without a look at its record and at the holder.
    TakesBackUnchecked,
    /// A node believes the client's clock, however far it is from the node's time.
    Unclamped,
    /// A join raises the record at most to the node's time plus the margin.
    ClampsJoins,
    /// A node to which a join was sent gets unused fences back.
    GivesBackAfterJoin,
}

/// The bounds of a search.
#[derive(Clone, Debug)]
pub struct Bounds<const N: usize> {
    /// The rule.
    pub rule: Rule,
    /// How many attempts there are, at most [`MOST`].
    pub attempts: usize,
    /// How many fences an attempt asks for.
    pub block: u8,
    /// The clocks that an attempt may have.
    pub clocks: Vec<u8>,
    /// The records that a node may have at the beginning, from attempts before.
    pub records: Vec<u8>,
    /// The time of each node at the beginning.
    pub times: [u8; N],
    /// How far a fence may be from a node's time.
    pub margin: u8,
    /// How often all node times go on by one.
    pub ticks: u8,
    /// How many keys vanish.
    pub vanishing: u8,
    /// How many nodes crash, and lose their records.
    pub crashes: u8,
    /// For how many ticks a node refuses all requests after a crash.
    pub restart_delay: u8,
    /// How many requests are executed twice.
    pub repeats: u8,
    /// How many joins are sent.
    pub joins: u8,
    /// Whether a node crashes only while a majority of the other nodes counts for a holder.
    pub is_rolling: bool,
    /// Whether a node's clock may stand still while another owner comes and goes.
    pub clock_stands_still: bool,
}

impl<const N: usize> Bounds<N> {
    /// Returns small bounds of a rule, with synchronous clocks.
    #[must_use]
    pub fn new(rule: Rule) -> Self {
        Self {
            rule,
            attempts: 2,
            block: 2,
            clocks: vec![4, 6],
            records: vec![0, 6],
            times: [5; N],
            margin: 2,
            ticks: 0,
            vanishing: 0,
            crashes: 0,
            restart_delay: 0,
            repeats: 0,
            joins: 0,
            is_rolling: false,
            clock_stands_still: false,
        }
    }
}

/// The fences that a node has reserved for an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reserved {
    fence: u8,
    end: u8,
}

/// A request of an attempt to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Exchange {
    NotSent,
    InFlight,
    /// The node has executed it. `None`: it refused.
    Executed(Option<Reserved>),
    /// The node has executed it, and the attempt has ended since.
    Over,
}

/// The release of an attempt at one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Release {
    NotSent,
    /// It gives back what the client knows to be reserved.
    InFlight(Option<Reserved>),
    /// The node has executed it. A late copy would give the same back.
    Executed(Option<Reserved>),
    /// No copy of it can have an effect any more.
    Over,
}

/// The join of an attempt to one node, with the end of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Join {
    NotSent,
    InFlight(u8),
    /// The node has executed it.
    Executed(u8),
    /// The node has executed it, and executes no copy of it.
    Over,
}

/// The requests of one attempt to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Requests {
    ask: Exchange,
    raise: Exchange,
    join: Join,
    release: Release,
    /// Whether the client has chosen the node's answer.
    is_chosen: bool,
}

/// A node, and the requests on their way to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node {
    time: u8,
    /// For how many ticks the node refuses everything.
    refuses: u8,
    /// The last fence that is reserved.
    last: u8,
    /// The attempt that holds the lock.
    holder: Option<u8>,
    requests: [Requests; MOST],
}

/// The state of an attempt. No two attempts share an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    NotBegun,
    Asking,
    /// Waits until the chosen nodes hold the end of the block.
    Raising,
    Granted,
    /// Released, or given up.
    Ended,
}

/// An attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    phase: Phase,
    clock: u8,
    fence: u8,
    /// The end of the block.
    end: u8,
    /// The last fence that a guard has. Zero before the grant.
    used: u8,
    /// The attempts that were granted before the first write of this one, one bit each. `None` before that write.
    granted_before: Option<u8>,
    /// The attempts that were granted before this one was.
    granted_earlier: u8,
}

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State<const N: usize> {
    nodes: [Node; N],
    attempts: Vec<Attempt>,
    ticks: u8,
    vanished: u8,
    crashed: u8,
    repeated: u8,
    joins: u8,
    /// How many requests were granted. Beyond the margin each of them reserves one fence, however little time has
    /// passed.
    grants: u8,
}

/// A request that a node executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request for the lock.
    Ask,
    /// A request to reserve up to the end of the block.
    Raise,
    /// A join.
    Join,
    /// A release.
    Release,
}

/// A step from one state to the next. A node has its index among the sorted nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The attempt sends its request to all nodes, with this clock.
    Begin(usize, u8),
    /// A node executes a request of an attempt.
    Execute(usize, usize, Kind),
    /// A node executes a request again. `true`: the client has lost the first reply, and acts on the second. Otherwise
    /// it acts on the first.
    Repeat(usize, usize, Kind, bool),
    /// The client chooses these nodes, one bit each. It is granted, or raises.
    Choose(usize, u8),
    /// The raised nodes have answered: the attempt is granted.
    Confirm(usize),
    /// The holder sends a join to a node.
    Join(usize, usize),
    /// The next guard of the process takes a fence of the block.
    Take(usize),
    /// The guard is released, or the attempt given up. `true`: the client has the replies of all nodes, and otherwise
    /// those of the chosen nodes alone.
    End(usize, bool),
    /// A key vanishes.
    Vanish(usize),
    /// A node crashes, and starts again without data.
    Crash(usize),
    /// Time goes on.
    Tick,
}

impl Requests {
    const NONE: Self = Self {
        ask: Exchange::NotSent,
        raise: Exchange::NotSent,
        join: Join::NotSent,
        release: Release::NotSent,
        is_chosen: false,
    };

    /// Returns what the node has reserved for the attempt, by the replies on which the client acts.
    fn reserved(&self) -> Option<Reserved> {
        let Exchange::Executed(Some(asked)) = self.ask else {
            return None;
        };
        match self.raise {
            Exchange::Executed(Some(raised)) => Some(Reserved {
                end: raised.end,
                ..asked
            }),
            _ => Some(asked),
        }
    }
}

impl<const N: usize> Bounds<N> {
    /// Executes a request for the lock.
    fn ask(&self, node: &mut Node, who: usize, clock: u8) -> Option<Reserved> {
        let is_free = node.holder.is_none_or(|holder| usize::from(holder) == who);
        if !is_free || node.refuses > 0 {
            return None;
        }
        node.holder = Some(who as u8);
        if self.rule == Rule::PlainCounters {
            node.last += 1;
            return Some(Reserved {
                fence: node.last,
                end: node.last,
            });
        }
        let (low, high) = (
            node.time.saturating_sub(self.margin),
            node.time + self.margin,
        );
        let proposed = match self.rule {
            Rule::Unclamped => clock,
            _ => clock.clamp(low, high),
        };
        let fence = (node.last + 1).max(proposed);
        let end = (fence + self.block - 1).min(high).max(fence);
        node.last = end;
        Some(Reserved { fence, end })
    }

    /// Executes a request to reserve up to the end of the attempt's block.
    fn raise(&self, node: &mut Node, who: usize, attempt: &Attempt) -> Option<Reserved> {
        if node.holder != Some(who as u8) || node.refuses > 0 {
            return None;
        }
        let to = match self.rule {
            Rule::HoldsOnlyTheFence => attempt.fence,
            _ => (attempt.fence + self.block - 1).min(attempt.fence.max(node.time + self.margin)),
        };
        node.last = node.last.max(to);
        Some(Reserved {
            fence: attempt.fence,
            end: node.last,
        })
    }

    /// Executes a join.
    fn join(&self, node: &mut Node, who: usize, end: u8) {
        let is_free = node.holder.is_none_or(|holder| usize::from(holder) == who);
        if !is_free || node.refuses > 0 {
            return;
        }
        node.holder = Some(who as u8);
        let end = match self.rule {
            Rule::ClampsJoins => end.min(node.time + self.margin),
            _ => end,
        };
        node.last = node.last.max(end);
    }

    /// Executes a release, which gives unused fences back.
    fn release(&self, node: &mut Node, who: usize, attempt: &Attempt, reserved: Option<Reserved>) {
        let is_held = node.holder == Some(who as u8);
        if is_held {
            node.holder = None;
        }
        let Some(reserved) = reserved else {
            return;
        };
        let kept = attempt.used.max(reserved.fence);
        if self.rule == Rule::TakesBackUnchecked {
            node.last = kept;
        } else if is_held && node.last == reserved.end {
            node.last = kept.min(node.last);
        }
    }

    /// Returns whether a copy of a request, executed after its release, would reserve up to the same end as the request
    /// did, because the node's clock reads the same time.
    fn finds_the_same_time(&self, node: &Node, who: usize, attempt: &Attempt) -> bool {
        let Release::Executed(Some(reserved)) = node.requests[who].release else {
            return false;
        };
        let copy = self.ask(&mut node.clone(), who, attempt.clock);
        reserved.end == node.time + self.margin && copy.is_some_and(|it| it.end == reserved.end)
    }

    /// Returns the end of the block, if the grant stands.
    fn end_of_block(&self, state: &State<N>, who: usize) -> Option<u8> {
        let attempt = &state.attempts[who];
        let all = state.nodes.iter().map(|node| &node.requests[who]);
        let holds = |requests: &Requests| requests.reserved().filter(|it| it.end >= attempt.fence);
        let mut chosen = all.clone().filter(|requests| requests.is_chosen);
        let end = match self.rule {
            Rule::PlainCounters => Some(attempt.fence),
            Rule::CountsUnchosenNodes => {
                let others = all.clone().filter(|it| !it.is_chosen);
                let others = others.filter(|it| it.reserved().is_some());
                let holding = chosen.filter(|it| holds(it).is_some());
                // Each node that holds the fence holds the end of the block. So this rule is wrong in one thing only.
                let end = all.filter_map(holds).map(|it| it.end).min();
                end.filter(|_| holding.count() + others.count() >= majority(N))
            }
            Rule::HoldsOnlyTheFence => {
                let all = chosen.all(|it| holds(it).is_some());
                all.then_some(u8::MAX)
            }
            Rule::Right
            | Rule::TakesBackUnchecked
            | Rule::Unclamped
            | Rule::ClampsJoins
            | Rule::GivesBackAfterJoin => {
                chosen.try_fold(u8::MAX, |least, it| Some(least.min(holds(it)?.end)))
            }
        };
        end.map(|end| end.min(attempt.fence + self.block - 1))
    }

    /// Executes a request. The client acts on this reply if `is_used`, and if it has not chosen the node by an earlier
    /// one.
    fn execute(&self, state: &mut State<N>, who: usize, at: usize, kind: Kind, is_used: bool) {
        let granted = state.granted();
        let attempt = &mut state.attempts[who];
        let is_over = attempt.phase == Phase::Ended;
        let node = &mut state.nodes[at];
        let executed = |reply| match reply {
            _ if is_over => Exchange::Over,
            reply => Exchange::Executed(reply),
        };
        match kind {
            Kind::Ask => {
                let reply = self.ask(node, who, attempt.clock);
                let requests = &mut node.requests[who];
                let is_chosen = requests.is_chosen && matches!(requests.ask, Exchange::Executed(_));
                if is_used && !is_chosen {
                    requests.ask = executed(reply);
                }
                if reply.is_some() {
                    state.grants += 1;
                    if !is_over {
                        attempt.granted_before.get_or_insert(granted);
                    }
                }
            }
            Kind::Raise => {
                let reply = self.raise(node, who, attempt);
                if is_used {
                    node.requests[who].raise = executed(reply);
                }
            }
            Kind::Join => {
                if let Join::InFlight(end) | Join::Executed(end) = node.requests[who].join {
                    self.join(node, who, end);
                    node.requests[who].join = Join::Executed(end);
                }
            }
            Kind::Release => {
                if let Release::InFlight(reserved) | Release::Executed(reserved) =
                    node.requests[who].release
                {
                    self.release(node, who, attempt, reserved);
                    node.requests[who].release = Release::Executed(reserved);
                }
            }
        }
    }
}

impl<const N: usize> State<N> {
    fn granted(&self) -> u8 {
        let granted = self.attempts.iter().enumerate();
        granted
            .filter(|(_, attempt)| attempt.used > 0)
            .fold(0, |mask, (who, _)| mask | 1 << who)
    }

    fn grant(&mut self, who: usize, end: u8) {
        let granted = self.granted();
        let attempt = &mut self.attempts[who];
        attempt.phase = Phase::Granted;
        attempt.end = end;
        attempt.used = attempt.fence;
        attempt.granted_earlier = granted;
    }

    /// Returns whether a majority of the other nodes counts for a holder.
    fn others_count(&self, at: usize) -> bool {
        let counts = |node: &Node, who: usize| {
            let requests = &node.requests[who];
            let is_joined = matches!(requests.join, Join::Executed(_) | Join::Over);
            node.holder == Some(who as u8) && (requests.is_chosen || is_joined)
        };
        let mut holders =
            (0..self.attempts.len()).filter(|who| self.attempts[*who].phase == Phase::Granted);
        holders.any(|who| {
            let others = self.nodes.iter().enumerate();
            let others = others.filter(|(other, node)| *other != at && counts(node, who));
            others.count() >= majority(N)
        })
    }

    /// Ends an attempt, and sends releases to all nodes.
    fn end(&mut self, who: usize, knows_all: bool, rule: Rule) {
        let attempt = &mut self.attempts[who];
        attempt.phase = Phase::Ended;
        attempt.end = 0;
        if attempt.used == 0 {
            attempt.granted_before = None;
        }
        for node in &mut self.nodes {
            let requests = &mut node.requests[who];
            let is_known = knows_all || requests.is_chosen;
            let gets_back = requests.join == Join::NotSent || rule == Rule::GivesBackAfterJoin;
            let answer = match requests.ask {
                Exchange::Executed(answer) if is_known && gets_back => answer,
                _ => None,
            };
            requests.release = Release::InFlight(answer);
            requests.is_chosen = false;
            for exchange in [&mut requests.ask, &mut requests.raise] {
                if matches!(exchange, Exchange::Executed(_)) {
                    *exchange = Exchange::Over;
                }
            }
        }
    }

    /// Drops the requests that can have no effect any more, and sorts the nodes.
    fn normalize(&mut self, bounds: &Bounds<N>) {
        let repeats = bounds.repeats - self.repeated;
        for node in &mut self.nodes {
            for (who, requests) in node.requests.iter_mut().enumerate() {
                // Otherwise the attempt needs a copy of its request to hold the lock here.
                let needs_no_copy = node.holder == Some(who as u8)
                    || requests.ask == Exchange::InFlight
                    || matches!(requests.join, Join::InFlight(_));
                let needed = u8::from(!needs_no_copy);
                let may_hold = repeats >= needed || bounds.rule == Rule::TakesBackUnchecked;
                let has_effect = match requests.release {
                    Release::InFlight(_) => may_hold,
                    // A copy of the release is one more.
                    Release::Executed(_) => repeats > needed,
                    Release::NotSent | Release::Over => true,
                };
                if !has_effect {
                    requests.release = Release::Over;
                }
                if matches!(requests.join, Join::Executed(_)) && repeats == 0 {
                    requests.join = Join::Over;
                }
                if requests.release != Release::NotSent && !may_hold {
                    requests.raise = Exchange::Over;
                }
            }
        }
        self.nodes.sort_unstable();
    }

    /// Returns all pairs of a granted attempt and one of those that `earlier` names, the earlier one first.
    fn pairs(&self, earlier: fn(&Attempt) -> u8) -> impl Iterator<Item = (&Attempt, &Attempt)> {
        let granted = self.attempts.iter().filter(|attempt| attempt.used > 0);
        granted.flat_map(move |later| {
            let mask = earlier(later);
            let before = self.attempts.iter().enumerate();
            before
                .filter(move |(who, _)| mask & 1 << who != 0)
                .map(move |(_, attempt)| (attempt, later))
        })
    }
}

/// Fences rise in real time. The first write of an attempt is the first time that a node grants its request.
pub const RISES: &str = "a guard has a larger fence than each one granted before its first write";
/// No reservation is far ahead of the clocks.
pub const NEAR: &str =
    "no reservation is ahead of the clocks by more than the margin and the grants";
/// The documented exception.
pub const SMALLER: &str = "a grant that is decided after its key vanished may have a smaller fence";
/// The search is not empty.
pub const GRANTED: &str = "all attempts are granted";

impl<const N: usize> Model for Bounds<N> {
    type State = State<N>;
    type Action = Action;

    fn init_states(&self) -> Vec<State<N>> {
        let attempt = Attempt {
            phase: Phase::NotBegun,
            clock: 0,
            fence: 0,
            end: 0,
            used: 0,
            granted_before: None,
            granted_earlier: 0,
        };
        let state = State {
            nodes: self.times.map(|time| Node {
                time,
                refuses: 0,
                last: 0,
                holder: None,
                requests: [Requests::NONE; MOST],
            }),
            attempts: vec![attempt; self.attempts],
            ticks: 0,
            vanished: 0,
            crashed: 0,
            repeated: 0,
            joins: 0,
            grants: 0,
        };
        let mut states = vec![state];
        for node in 0..N {
            let with = |state: &State<N>, record: u8| {
                let mut state = state.clone();
                state.nodes[node].last = record;
                state
            };
            let all = states
                .iter()
                .flat_map(|state| self.records.iter().map(move |record| with(state, *record)));
            states = all.collect();
        }
        for state in &mut states {
            state.normalize(self);
        }
        states.dedup();
        states
    }

    fn actions(&self, state: &State<N>, actions: &mut Vec<Action>) {
        for (who, attempt) in state.attempts.iter().enumerate() {
            match attempt.phase {
                Phase::NotBegun => {
                    // Attempts begin in the order of their numbers: they are all alike.
                    if who == 0 || state.attempts[who - 1].phase != Phase::NotBegun {
                        actions.extend(self.clocks.iter().map(|clock| Action::Begin(who, *clock)));
                    }
                    continue;
                }
                Phase::Asking => {
                    let has_granted =
                        |node: &usize| state.nodes[*node].requests[who].reserved().is_some();
                    let granted = (0..N)
                        .filter(has_granted)
                        .fold(0u8, |mask, node| mask | 1 << node);
                    let sets = (0..1u8 << N).filter(|set| set.count_ones() as usize == majority(N));
                    let sets = sets.filter(|set| set & granted == *set);
                    actions.extend(sets.map(|set| Action::Choose(who, set)));
                    actions.push(Action::End(who, true));
                }
                Phase::Raising => {
                    if self.end_of_block(state, who).is_some() {
                        actions.push(Action::Confirm(who));
                    }
                    actions.push(Action::End(who, true));
                }
                Phase::Granted => {
                    if attempt.used < attempt.end {
                        actions.push(Action::Take(who));
                    }
                    if state.joins < self.joins {
                        let may_join =
                            |at: &usize| state.nodes[*at].requests[who].join == Join::NotSent;
                        actions.extend((0..N).filter(may_join).map(|at| Action::Join(who, at)));
                    }
                    actions.extend([Action::End(who, true), Action::End(who, false)]);
                }
                Phase::Ended => {}
            }
            for (at, node) in state.nodes.iter().enumerate() {
                let requests = &node.requests[who];
                for (kind, exchange) in [(Kind::Ask, requests.ask), (Kind::Raise, requests.raise)] {
                    match exchange {
                        Exchange::NotSent => {}
                        Exchange::InFlight => actions.push(Action::Execute(who, at, kind)),
                        Exchange::Executed(_) | Exchange::Over => {
                            let is_left_out = kind == Kind::Ask
                                && !self.clock_stands_still
                                && self.finds_the_same_time(node, who, attempt);
                            if state.repeated < self.repeats && !is_left_out {
                                actions.push(Action::Repeat(who, at, kind, true));
                                if exchange != Exchange::Over {
                                    actions.push(Action::Repeat(who, at, kind, false));
                                }
                            }
                        }
                    }
                }
                match requests.join {
                    Join::InFlight(_) => actions.push(Action::Execute(who, at, Kind::Join)),
                    Join::Executed(_) => actions.push(Action::Repeat(who, at, Kind::Join, true)),
                    Join::NotSent | Join::Over => {}
                }
                match requests.release {
                    Release::InFlight(_) => actions.push(Action::Execute(who, at, Kind::Release)),
                    // A copy that finds another holder has no effect.
                    Release::Executed(_)
                        if state.repeated < self.repeats && node.holder == Some(who as u8) =>
                    {
                        actions.push(Action::Repeat(who, at, Kind::Release, true));
                    }
                    _ => {}
                }
            }
        }
        for (at, node) in state.nodes.iter().enumerate() {
            if node.holder.is_some() && state.vanished < self.vanishing {
                actions.push(Action::Vanish(at));
            }
            if state.crashed < self.crashes && (!self.is_rolling || state.others_count(at)) {
                actions.push(Action::Crash(at));
            }
        }
        if state.ticks < self.ticks {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State<N>, action: Action) -> Option<State<N>> {
        let mut state = last.clone();
        match action {
            Action::Begin(who, clock) => {
                let attempt = &mut state.attempts[who];
                attempt.phase = Phase::Asking;
                attempt.clock = clock;
                for node in &mut state.nodes {
                    node.requests[who].ask = Exchange::InFlight;
                }
            }
            Action::Execute(who, at, kind) => self.execute(&mut state, who, at, kind, true),
            Action::Repeat(who, at, kind, is_used) => {
                state.repeated += 1;
                self.execute(&mut state, who, at, kind, is_used);
            }
            Action::Choose(who, set) => {
                let mut fence = 0;
                for (at, node) in state.nodes.iter_mut().enumerate() {
                    let requests = &mut node.requests[who];
                    requests.is_chosen = set & 1 << at != 0;
                    let chosen = requests.reserved().filter(|_| requests.is_chosen);
                    fence = chosen.map_or(fence, |it| fence.max(it.fence));
                }
                state.attempts[who].fence = fence;
                if let Some(end) = self.end_of_block(&state, who) {
                    state.grant(who, end);
                } else {
                    state.attempts[who].phase = Phase::Raising;
                    for node in &mut state.nodes {
                        let requests = &mut node.requests[who];
                        if requests.is_chosen && requests.reserved().is_none_or(|it| it.end < fence)
                        {
                            requests.raise = Exchange::InFlight;
                        }
                    }
                }
            }
            Action::Confirm(who) => {
                let end = self.end_of_block(&state, who)?;
                state.grant(who, end);
            }
            Action::Join(who, at) => {
                state.joins += 1;
                let end = state.attempts[who].end;
                state.nodes[at].requests[who].join = Join::InFlight(end);
            }
            Action::Take(who) => state.attempts[who].used += 1,
            Action::End(who, knows_all) => state.end(who, knows_all, self.rule),
            Action::Vanish(at) => {
                state.nodes[at].holder = None;
                state.vanished += 1;
            }
            Action::Crash(at) => {
                let node = &mut state.nodes[at];
                (node.holder, node.last, node.refuses) = (None, 0, self.restart_delay);
                state.crashed += 1;
            }
            Action::Tick => {
                state.ticks += 1;
                for node in &mut state.nodes {
                    node.time += 1;
                    node.refuses = node.refuses.saturating_sub(1);
                }
            }
        }
        state.normalize(self);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(RISES, |_, state: &State<N>| {
                let mut pairs = state.pairs(|attempt| attempt.granted_before.unwrap_or(0));
                pairs.all(|(before, later)| later.fence > before.used)
            }),
            Property::always(NEAR, |model: &Self, state: &State<N>| {
                let latest = state.nodes.iter().map(|node| node.time).max().unwrap_or(0);
                let most = latest + model.margin + state.grants;
                state.nodes.iter().all(|node| node.last <= most)
            }),
            Property::sometimes(SMALLER, |_, state: &State<N>| {
                let mut pairs = state.pairs(|attempt| attempt.granted_earlier);
                pairs.any(|(before, later)| later.fence <= before.used)
            }),
            Property::sometimes(GRANTED, |_, state: &State<N>| {
                state.attempts.iter().all(|attempt| attempt.used > 0)
            }),
        ]
    }
}
