//! Joins: how a holder gets the votes of nodes that had none for it.
//!
//! # The rule
//!
//! A guard has begun with a majority of votes, as in [`crate::votes`]. There are `n` nodes, and `q` are a majority.
//!
//! 1. While the guard is valid, its owner may send a join to a node without a vote. If the key is free, the node sets it
//!    for a lease. If the key is this owner's already, the node takes that for success. If the key is another owner's,
//!    or the node has been up for less than the restart delay, the node writes nothing and refuses.
//! 2. A node that accepted is a *candidate*. It counts for no deadline. It becomes a vote if `q` nodes that count as
//!    votes confirm a renewal that was sent after the answer to the join arrived. The guard must still be valid then.
//!    The deadline of the new vote counts from the last request that the node has confirmed.
//! 3. A vote that no renewal confirms keeps its deadline. When that has passed, the node may be joined.
//! 4. "Gone" (the key is not there, or is another owner's) ends a vote and a candidacy. If "gone" arrives while a join
//!    to that node has no answer, it voids that answer.
//! 5. A node that said "gone" before its vote had run out is not joined again by that owner. If its server has restarted
//!    since, it may be joined.
//! 6. A node is joined only if it has answered every earlier request of this owner that can make the key: the request
//!    for the lock, and other joins. If its server has restarted, those requests have ended with their connections.
//! 7. `force_release` asks each node to remove the owner's key. It repeats its round until one removes nothing. It
//!    reports success if `n − q + 1` nodes said "not held" in that round. A round takes less than a lease.
//!
//! [`crate::fences`] has the rules for the fences of a node that is joined.
//!
//! # Why a loss ends the guard within a lease
//!
//! Owner A has the guard. Other keys of A have vanished, and at the time `g` owner B holds `q` nodes.
//!
//! * By rule 6, no request that can make A's key is on its way to a node that answered A's join or counts as A's vote. So
//!   if such a node confirms a renewal, A's key has been there since that answer.
//! * Take the first candidate that becomes a vote of A by a join which the node executed after `g`. `q` votes have
//!   confirmed a renewal that was sent after that. One of them is a node that B held at `g`. There A's key was made
//!   after `g`, by a join. So that node became a vote before the first candidate did, which is a contradiction.
//! * So none of the nodes that B held at `g` confirms a renewal of a vote of A that was sent after `g`. A has too few
//!   votes a lease after `g`.
//!
//! The same holds for `force_release`, with the `n − q + 1` nodes that said "not held" in place of B's nodes. There A's
//! key must not vanish between two of these answers. See [`Bounds::vanishes_while_forced`].
//!
//! # An example of rule 6
//!
//! A holds `orders:42` on the nodes 1 and 2. Node 3 has not answered A's request for the lock. A joins node 3 over
//! another connection, and node 3 becomes a vote. Then A's keys on the nodes 2 and 3 vanish. B gets the lock there, and
//! releases it. Now A's old request reaches node 3, and makes A's key again. Nodes 1 and 3 confirm each renewal of A,
//! and A never learns of B.
//!
//! # What the model leaves out
//!
//! Fences; how the guard began; the end of the guard, after which none of these properties can be broken; renewals and
//! joins by rivals. Differences in the rate of clocks: see [`crate::votes`].
//!
//! # Replies and nodes
//!
//! The holder receives a confirmation at once or never. To receive it later is never worse for the holder's rivals than
//! one of these two. "Gone" and the answers to joins may arrive late and in any order. A rival acts on each answer at
//! once, because its guard then begins as early as possible. The nodes are sorted after each step, because only their
//! states tell them apart.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::majority;

/// The largest number of rivals.
pub const MOST: usize = 2;

/// The rule that the model follows. All but the first are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The rule above.
    Right,
    /// The answer to a join is a vote at once.
    CountsAtOnce,
    /// A candidate becomes a vote by a renewal that was sent before the answer to the join arrived, in the round of the
    /// join.
    CountsInTheSameRound,
    /// A node that has said "gone" before its vote had run out is joined again.
    JoinsAfterGone,
    /// The answer to a join counts although the node has said "gone" since the join was sent.
    CountsVoidedAnswers,
    /// A node is joined although it has not answered an earlier request that can make the key.
    JoinsUnanswered,
}

/// The nodes when the guard begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// All nodes have granted the request for the lock.
    AllVote,
    /// A majority has. The others have not answered.
    OthersAreLate,
    /// A majority has. The others were down, and the request was not written to them.
    OthersWereDown,
    /// All nodes vote, but those outside of a majority were joined before they had answered the request for the lock.
    /// Only [`Rule::JoinsUnanswered`] leads to such a guard.
    OthersWereJoinedUnanswered,
}

/// The bounds of a search.
#[derive(Clone, Debug)]
pub struct Bounds<const N: usize> {
    /// The rule.
    pub rule: Rule,
    /// How the guard may begin.
    pub begins: Vec<Begin>,
    /// How many rivals ask for the lock, at most [`MOST`].
    pub rivals: usize,
    /// How many rounds of renewals the holder sends.
    pub renewals: u8,
    /// How many joins the holder sends.
    pub joins: u8,
    /// The length of a lease, in ticks.
    pub lease: u8,
    /// For how many ticks a node refuses everything after a crash.
    pub restart_delay: u8,
    /// How often time goes on.
    pub ticks: u8,
    /// How many nodes crash, and lose their data.
    pub crashes: u8,
    /// How many keys vanish.
    pub vanishing: u8,
    /// Whether confirmations of renewals may be lost.
    pub loses_confirmations: bool,
    /// Whether an operator calls `force_release`.
    pub forces: bool,
    /// Whether a key may vanish during the round in which `force_release` succeeds. A node that is joined after its
    /// answer may then hold the lock in place of a node that is asked later.
    pub vanishes_while_forced: bool,
}

impl<const N: usize> Bounds<N> {
    /// Returns small bounds of a rule.
    #[must_use]
    pub fn new(rule: Rule) -> Self {
        Self {
            rule,
            begins: vec![Begin::AllVote, Begin::OthersAreLate, Begin::OthersWereDown],
            rivals: 1,
            renewals: 2,
            joins: 1,
            lease: 2,
            restart_delay: 2,
            ticks: 2,
            crashes: 0,
            vanishing: 0,
            loses_confirmations: true,
            forces: false,
            vanishes_while_forced: false,
        }
    }
}

/// The owner of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Owner {
    Holder,
    Rival(u8),
}

/// A request of the holder on its way to a node. It may be executed at any time from now on, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Request {
    /// The request for the lock, which this node had not answered when the guard began.
    Ask,
    /// A renewal.
    Renew {
        /// The number of its round, from 1 on.
        round: u8,
        /// When it was sent.
        sent: u8,
    },
    /// A join.
    Join {
        /// The number of the last round before it, if the rule asks for that number.
        round: u8,
        /// When it was sent.
        sent: u8,
    },
}

/// A reply on its way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reply {
    /// The round and the time of the join that succeeded. `None`: a renewal found the key gone.
    joined: Option<(u8, u8)>,
    /// Whether the node has crashed since.
    is_of_old_run: bool,
}

/// The holder's knowledge of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Vote {
    /// The node has not answered the request for the lock.
    Asked,
    /// The node has no vote.
    None {
        /// Whether the node has said "gone" while its vote lasted.
        is_barred: bool,
    },
    /// A join has no answer yet.
    Joining {
        /// Whether the node has said "gone" since the join was sent.
        is_void: bool,
    },
    /// A node that was joined, and counts for no deadline.
    Candidate {
        until: u8,
        /// The last round that it has confirmed.
        confirmed: u8,
        /// The last round that was sent before the answer to the join arrived.
        since: u8,
    },
    /// A vote.
    Until { until: u8, confirmed: u8 },
}

/// The request of a rival to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Ask {
    NotExecuted,
    /// The node has granted it.
    Granted,
    /// Its answer does not matter any more.
    Over,
}

/// A node, what the holder knows of it, and the requests and replies on their way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub struct Node {
    /// The owner, and when its key expires.
    key: Option<(Owner, u8)>,
    /// Until when the node refuses everything.
    refuses_until: u8,
    vote: Vote,
    /// Whether the node has crashed since it was joined or asked.
    has_restarted: bool,
    /// Whether the node has said "gone", and has not been joined since.
    has_said_gone: bool,
    requests: BTreeSet<Request>,
    replies: BTreeSet<Reply>,
    asks: [Ask; MOST],
    /// Whether it has answered "not held" in this round of `force_release`.
    is_not_held: bool,
    /// Whether `force_release` has taken a vote there in this tick.
    is_taken: bool,
}

/// A rival. It acts on each answer at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rival {
    /// When it asked. Zero before.
    sent: u8,
    /// When a majority of the nodes had its key. Zero before.
    held: u8,
    /// Whether it has given up, or released its guard.
    has_ended: bool,
}

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State<const N: usize> {
    now: u8,
    nodes: [Node; N],
    rivals: Vec<Rival>,
    /// How many rounds of renewals were sent.
    rounds: u8,
    joins: u8,
    /// Whether a candidate has become a vote.
    has_joined: bool,
    crashed: u8,
    vanished: u8,
    /// For how many ticks this round of `force_release` has lasted.
    round_age: u8,
    /// Whether a key has vanished in this round.
    is_disturbed: bool,
    /// When `force_release` has ended the lease.
    forced: Option<u8>,
}

/// A step from one state to the next. A node has its index among the sorted nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The holder sends renewals to all nodes with a vote, a candidacy or a join.
    Renew,
    /// The holder sends a join to a node.
    Join(usize),
    /// A node executes a request of the holder. `true`: the reply is lost if it is a confirmation.
    Execute(usize, Request, bool),
    /// The holder receives a reply.
    Receive(usize, Reply),
    /// A node executes the request of a rival.
    Ask(usize, usize),
    /// A node executes the release of a rival.
    Release(usize),
    /// A node executes `force_release`.
    Force(usize),
    /// A node crashes, and starts again without data.
    Crash(usize),
    /// A key vanishes.
    Vanish(usize),
    /// Time goes on.
    Tick,
}

impl Node {
    fn is_held_by(&self, owner: Owner) -> bool {
        self.key.is_some_and(|(holder, _)| holder == owner)
    }

    /// Returns whether the holder counts this node's vote.
    fn counts(&self, now: u8) -> bool {
        matches!(self.vote, Vote::Until { until, .. } if now < until)
    }
}

impl<const N: usize> State<N> {
    /// Returns when the holder's guard is lost: the q-th latest of its votes.
    fn deadline(&self) -> u8 {
        let mut deadlines = self.nodes.each_ref().map(|node| match node.vote {
            Vote::Until { until, .. } => until,
            _ => 0,
        });
        deadlines.sort_unstable();
        deadlines[N - majority(N)]
    }

    /// Returns whether the holder's guard is valid.
    fn is_valid(&self) -> bool {
        self.now < self.deadline()
    }

    /// Ends a rival. Its keys stay until they are released or expire.
    fn end(&mut self, who: usize) {
        self.rivals[who].has_ended = true;
        for node in &mut self.nodes {
            if node.asks[who] == Ask::Granted {
                node.asks[who] = Ask::Over;
            }
        }
    }

    /// Executes `force_release` at a node.
    fn force(&mut self, at: usize) {
        let now = self.now;
        let node = &mut self.nodes[at];
        if node.is_held_by(Owner::Holder) {
            node.key = None;
            node.is_taken |= node.counts(now);
            for node in &mut self.nodes {
                node.is_not_held = false;
            }
            (self.round_age, self.is_disturbed) = (0, false);
        } else {
            node.is_not_held = true;
        }
        let enough = N - majority(N) + 1;
        let not_held = self.nodes.iter().filter(|node| node.is_not_held).count();
        let taken = self.nodes.iter().filter(|node| node.is_taken).count();
        if taken >= enough || not_held >= enough {
            // The documented exception: nothing is claimed.
            let is_exempt = taken < enough && self.is_disturbed;
            self.forced = Some(if is_exempt { u8::MAX } else { now });
        }
        if self.forced.is_some() {
            for node in &mut self.nodes {
                (node.is_not_held, node.is_taken) = (false, false);
            }
            (self.round_age, self.is_disturbed) = (0, false);
        }
    }

    /// Makes votes of the candidates that a later round has confirmed.
    fn promote(&mut self) {
        while self.is_valid() {
            let now = self.now;
            let confirmed_by = |since: u8| {
                let confirms = |node: &&Node| {
                    node.counts(now)
                        && matches!(node.vote, Vote::Until { confirmed, .. } if confirmed > since)
                };
                self.nodes.iter().filter(confirms).count()
            };
            let found = self.nodes.iter().position(|node| {
                matches!(node.vote, Vote::Candidate { since, .. } if confirmed_by(since) >= majority(N))
            });
            let Some(at) = found else {
                return;
            };
            if let Vote::Candidate {
                until, confirmed, ..
            } = self.nodes[at].vote
            {
                self.nodes[at].vote = Vote::Until { until, confirmed };
                self.has_joined = true;
            }
        }
    }
}

impl<const N: usize> Bounds<N> {
    /// Returns whether the holder may join this node.
    fn may_join(&self, node: &Node, now: u8) -> bool {
        match node.vote {
            Vote::None { is_barred } => !is_barred,
            Vote::Until { until, .. } => until <= now,
            Vote::Asked => node.has_restarted || self.rule == Rule::JoinsUnanswered,
            Vote::Joining { .. } => node.has_restarted,
            Vote::Candidate { .. } => false,
        }
    }

    /// Executes a request of the holder.
    fn execute(&self, node: &mut Node, request: Request, is_lost: bool, now: u8) {
        let is_own = node.is_held_by(Owner::Holder);
        let is_free = node.key.is_none() && now >= node.refuses_until;
        let holds = is_own || is_free && !matches!(request, Request::Renew { .. });
        if holds {
            let until = node.key.map_or(0, |(_, until)| until);
            node.key = Some((Owner::Holder, until.max(now + self.lease)));
        }
        match request {
            Request::Ask => {
                if node.vote == Vote::Asked {
                    node.vote = Vote::None { is_barred: false };
                }
            }
            Request::Renew { round, sent } if holds => match &mut node.vote {
                Vote::Until { until, confirmed }
                | Vote::Candidate {
                    until, confirmed, ..
                } if !is_lost => {
                    *until = (*until).max(sent + self.lease);
                    *confirmed = (*confirmed).max(round);
                }
                _ => {}
            },
            Request::Renew { .. } => {
                node.replies.insert(Reply {
                    joined: None,
                    is_of_old_run: false,
                });
            }
            Request::Join { round, sent } => {
                if holds {
                    node.replies.insert(Reply {
                        joined: Some((round, sent)),
                        is_of_old_run: false,
                    });
                } else if matches!(node.vote, Vote::Joining { .. }) {
                    node.vote = Vote::None { is_barred: false };
                }
            }
        }
    }

    /// Takes a reply in.
    fn receive(&self, node: &mut Node, reply: Reply, now: u8, rounds: u8) {
        let Some((round, sent)) = reply.joined else {
            match node.vote {
                Vote::Until { until, .. } | Vote::Candidate { until, .. } => {
                    node.has_said_gone = true;
                    let is_same_run = !reply.is_of_old_run && !node.has_restarted;
                    let is_barred = now < until && is_same_run && self.rule != Rule::JoinsAfterGone;
                    node.vote = Vote::None { is_barred };
                }
                Vote::Joining { .. } => {
                    node.has_said_gone = true;
                    node.vote = Vote::Joining { is_void: true };
                }
                Vote::None { .. } | Vote::Asked => {}
            }
            return;
        };
        let Vote::Joining { is_void } = node.vote else {
            return;
        };
        let counts = !is_void || self.rule == Rule::CountsVoidedAnswers;
        let until = sent + self.lease;
        node.vote = Vote::None { is_barred: false };
        if !counts || until <= now {
            return;
        }
        if !is_void {
            node.has_said_gone = false;
        }
        node.vote = match self.rule {
            Rule::CountsAtOnce => Vote::Until {
                until,
                confirmed: 0,
            },
            _ => Vote::Candidate {
                until,
                confirmed: 0,
                since: self.since(round, rounds),
            },
        };
    }

    /// Lets time go on.
    fn tick(&self, state: &mut State<N>) {
        state.now += 1;
        let now = state.now;
        for node in &mut state.nodes {
            node.key = node.key.filter(|(_, until)| now < *until);
            node.is_taken = false;
            if matches!(node.vote, Vote::Candidate { until, .. } if until <= now) {
                node.vote = Vote::None { is_barred: false };
            }
            if now >= node.refuses_until {
                node.refuses_until = 0;
            }
        }
        for who in 0..state.rivals.len() {
            let rival = &state.rivals[who];
            if rival.sent > 0 && now >= rival.sent + self.lease {
                state.end(who);
            }
        }
        if state.nodes.iter().any(|node| node.is_not_held) {
            state.round_age += 1;
            if state.round_age >= self.lease {
                (state.round_age, state.is_disturbed) = (0, false);
                for node in &mut state.nodes {
                    node.is_not_held = false;
                }
            }
        }
    }

    /// Returns since which round the answer to a join counts.
    fn since(&self, round: u8, rounds: u8) -> u8 {
        match self.rule {
            Rule::CountsInTheSameRound => round.saturating_sub(1),
            _ => rounds,
        }
    }

    /// Forgets what can have no effect any more, and sorts the nodes.
    fn normalize(&self, state: &mut State<N>) {
        let mut since = self.since(state.rounds, state.rounds);
        for node in &mut state.nodes {
            // Without a vote, the holder's key and requests are only in the way of others.
            let is_out = match node.vote {
                Vote::None { is_barred } => {
                    state.joins == self.joins || is_barred && state.crashed == self.crashes
                }
                _ => false,
            };
            if is_out {
                node.requests.clear();
                node.replies.clear();
            }
            if let Vote::Candidate { since: it, .. } = node.vote {
                since = since.min(it);
            }
            let in_flight = node.requests.iter().filter_map(|request| match request {
                Request::Join { round, .. } => Some(*round),
                _ => None,
            });
            let answered = node.replies.iter().filter_map(|reply| reply.joined);
            for round in in_flight.chain(answered.map(|(round, _)| round)) {
                since = since.min(self.since(round, state.rounds));
            }
        }
        for node in &mut state.nodes {
            match &mut node.vote {
                Vote::Until { confirmed, .. } | Vote::Candidate { confirmed, .. }
                    if *confirmed <= since =>
                {
                    *confirmed = 0;
                }
                _ => {}
            }
        }
        state.nodes.sort_unstable();
    }

    /// Executes the request of a rival.
    fn ask(&self, state: &mut State<N>, at: usize, who: usize) {
        let now = state.now;
        let rival = &mut state.rivals[who];
        if rival.sent == 0 {
            rival.sent = now;
        }
        let node = &mut state.nodes[at];
        node.asks[who] = Ask::Over;
        if node.key.is_some() || now < node.refuses_until {
            return;
        }
        node.key = Some((Owner::Rival(who as u8), now + self.lease));
        if rival.has_ended {
            return;
        }
        // Where keys vanish, a rival and the holder may both be right by what they know.
        if self.vanishing == 0 && !self.forces {
            node.asks[who] = Ask::Granted;
        }
        let holds = |node: &&Node| node.is_held_by(Owner::Rival(who as u8));
        if rival.held == 0 && state.nodes.iter().filter(holds).count() >= majority(N) {
            rival.held = now;
        }
    }
}

/// Exclusion.
pub const ONE: &str = "at most one guard is valid while no key vanishes";
/// A loss is bounded.
pub const ENDS: &str = "no guard is valid a lease after another owner got a majority";
/// "Gone" ends a vote.
pub const TOLD: &str = "no guard is valid if too many nodes for a majority have said gone";
/// `force_release` ends a lease: it has reported success, or it has taken `n − q + 1` votes within one tick.
pub const FORCED: &str = "no guard is valid a lease after force_release";
/// The search is not empty.
pub const GRANTED: &str = "a rival is granted";
/// A join succeeds.
pub const JOINED: &str = "a candidate becomes a vote";

impl<const N: usize> Model for Bounds<N> {
    type State = State<N>;
    type Action = Action;

    fn init_states(&self) -> Vec<State<N>> {
        let now = 1;
        let until = now + self.lease;
        let node = |vote, key, requests: &[Request]| Node {
            key,
            refuses_until: 0,
            vote,
            has_restarted: false,
            has_said_gone: false,
            requests: requests.iter().copied().collect(),
            replies: BTreeSet::new(),
            asks: [Ask::NotExecuted; MOST],
            is_not_held: false,
            is_taken: false,
        };
        let voting = node(
            Vote::Until {
                until,
                confirmed: 0,
            },
            Some((Owner::Holder, until)),
            &[],
        );
        let state = |begin: &Begin| {
            let (votes, other) = match begin {
                Begin::AllVote => (N, voting.clone()),
                Begin::OthersAreLate => (majority(N), node(Vote::Asked, None, &[Request::Ask])),
                Begin::OthersWereJoinedUnanswered => {
                    let mut other = voting.clone();
                    other.requests.insert(Request::Ask);
                    (majority(N), other)
                }
                Begin::OthersWereDown => (
                    majority(N),
                    node(Vote::None { is_barred: false }, None, &[]),
                ),
            };
            let which = |at| if at < votes { &voting } else { &other };
            let rival = Rival {
                sent: 0,
                held: 0,
                has_ended: false,
            };
            let mut state = State {
                now,
                nodes: std::array::from_fn(|at| which(at).clone()),
                rivals: vec![rival; self.rivals],
                rounds: 0,
                joins: 0,
                has_joined: false,
                crashed: 0,
                vanished: 0,
                round_age: 0,
                is_disturbed: false,
                forced: None,
            };
            self.normalize(&mut state);
            state
        };
        self.begins.iter().map(state).collect()
    }

    fn actions(&self, state: &State<N>, actions: &mut Vec<Action>) {
        // No property can be broken after the guard is lost.
        if !state.is_valid() {
            return;
        }
        if state.rounds < self.renewals {
            actions.push(Action::Renew);
        }
        for (at, node) in state.nodes.iter().enumerate() {
            for request in &node.requests {
                actions.push(Action::Execute(at, *request, false));
                let is_confirmed =
                    node.is_held_by(Owner::Holder) && matches!(request, Request::Renew { .. });
                if is_confirmed && self.loses_confirmations {
                    actions.push(Action::Execute(at, *request, true));
                }
            }
            actions.extend(node.replies.iter().map(|reply| Action::Receive(at, *reply)));
            for (who, rival) in state.rivals.iter().enumerate() {
                // Rivals begin in the order of their numbers: they are all alike.
                let may_ask = rival.sent > 0 || who == 0 || state.rivals[who - 1].sent > 0;
                if may_ask && node.asks[who] == Ask::NotExecuted {
                    actions.push(Action::Ask(at, who));
                }
            }
            if matches!(node.key, Some((Owner::Rival(_), _))) {
                actions.push(Action::Release(at));
            }
            if state.joins < self.joins && self.may_join(node, state.now) {
                actions.push(Action::Join(at));
            }
            if self.forces && state.forced.is_none() && !node.is_not_held {
                actions.push(Action::Force(at));
            }
            if state.crashed < self.crashes {
                actions.push(Action::Crash(at));
            }
            if state.vanished < self.vanishing && node.key.is_some() {
                actions.push(Action::Vanish(at));
            }
        }
        if state.now <= self.ticks {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State<N>, action: Action) -> Option<State<N>> {
        let mut state = last.clone();
        let now = state.now;
        match action {
            Action::Renew => {
                state.rounds += 1;
                let round = state.rounds;
                for node in &mut state.nodes {
                    if !matches!(node.vote, Vote::None { .. } | Vote::Asked) {
                        node.requests.insert(Request::Renew { round, sent: now });
                    }
                }
            }
            Action::Join(at) => {
                state.joins += 1;
                let round = match self.rule {
                    Rule::CountsInTheSameRound => state.rounds,
                    _ => 0,
                };
                let node = &mut state.nodes[at];
                node.requests.insert(Request::Join { round, sent: now });
                node.replies.retain(|reply| !reply.is_of_old_run);
                node.has_restarted = false;
                node.vote = Vote::Joining { is_void: false };
            }
            Action::Execute(at, request, is_lost) => {
                let node = &mut state.nodes[at];
                node.requests.remove(&request);
                self.execute(node, request, is_lost, now);
                state.promote();
            }
            Action::Receive(at, reply) => {
                let node = &mut state.nodes[at];
                node.replies.remove(&reply);
                self.receive(node, reply, now, state.rounds);
                state.promote();
            }
            Action::Ask(at, who) => self.ask(&mut state, at, who),
            Action::Release(at) => {
                if let Some((Owner::Rival(who), _)) = state.nodes[at].key {
                    state.end(usize::from(who));
                }
                state.nodes[at].key = None;
            }
            Action::Force(at) => state.force(at),
            Action::Crash(at) => {
                state.crashed += 1;
                let node = &mut state.nodes[at];
                (node.key, node.refuses_until) = (None, now + self.restart_delay);
                node.requests.clear();
                node.has_restarted = true;
                let replies = std::mem::take(&mut node.replies).into_iter();
                node.replies = replies
                    .map(|reply| Reply {
                        is_of_old_run: true,
                        ..reply
                    })
                    .collect();
                if let Vote::None { is_barred } = &mut node.vote {
                    *is_barred = false;
                }
            }
            Action::Vanish(at) => {
                state.vanished += 1;
                state.nodes[at].key = None;
                let is_in_round = state.nodes.iter().any(|node| node.is_not_held);
                state.is_disturbed |= is_in_round && !self.vanishes_while_forced;
            }
            Action::Tick => self.tick(&mut state),
        }
        self.normalize(&mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE, |model: &Self, state: &State<N>| {
                let granted = |who| {
                    let nodes = state.nodes.iter();
                    nodes.filter(|node| node.asks[who] == Ask::Granted).count()
                };
                let rivals = (0..model.rivals).filter(|who| granted(*who) >= majority(N));
                usize::from(state.is_valid()) + rivals.count() <= 1
            }),
            Property::always(ENDS, |model: &Self, state: &State<N>| {
                let mut rivals = state.rivals.iter().filter(|rival| rival.held > 0);
                !state.is_valid() || rivals.all(|rival| state.now < rival.held + model.lease)
            }),
            Property::always(TOLD, |_, state: &State<N>| {
                let said = state.nodes.iter().filter(|node| node.has_said_gone);
                !state.is_valid() || said.count() <= N - majority(N)
            }),
            Property::always(FORCED, |model: &Self, state: &State<N>| {
                let ended = |at: u8| state.now >= at.saturating_add(model.lease);
                !state.is_valid() || !state.forced.is_some_and(ended)
            }),
            Property::sometimes(GRANTED, |_, state: &State<N>| {
                state.rivals.iter().any(|rival| rival.held > 0)
            }),
            Property::sometimes(JOINED, |_, state: &State<N>| state.has_joined),
        ]
    }
}
