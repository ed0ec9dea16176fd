//! The votes and deadlines of a quorum.
//!
//! # The rule
//!
//! 1. A client sends its request to all nodes at a time `t`. A node that is free grants it: its key lives for a lease
//!    from the moment of execution. The client counts the lease of that node from `t`.
//! 2. With a majority of grants the guard is valid until the q-th latest deadline of its nodes.
//! 3. A renewal raises the life of a key that this owner still has. It never creates one. A confirmation moves the
//!    deadline of that node, counted from the time at which the renewal was sent.
//! 4. A node that answers "gone" loses its vote, for ever. A node that grants only after the guard has begun gets no
//!    vote: another owner may have held that node's lock since the client's request, and with it a majority.
//! 5. A client without a majority withdraws its owner on all nodes. Its next round has a new owner.
//! 6. A node that has been up for less than the restart delay grants and renews nothing. No lease is longer than that
//!    delay.
//!
//! # Why one guard at most is valid
//!
//! Two majorities share a node. While the deadline of that node lasts for one owner, its key lives, or the node has
//! lost its data and refuses everybody.
//!
//! # What the model leaves out
//!
//! Fences; differences in the rate of clocks (the library takes 1 % and 2 ms off each deadline). The nodes are sorted
//! after each step, because only their states tell them apart.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::majority;

/// The largest number of clients.
pub const MOST: usize = 3;

/// The rule that the model follows. All but the first are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The rule above.
    Right,
    /// A renewal makes a key that is not there.
    RenewalCreates,
    /// The answer "gone" leaves the vote until its deadline.
    GoneKeepsVote,
    /// A node that grants after the guard has begun gets a vote.
    LateGrantVotes,
    /// The next round of a client has the same owner, although the last one sent a release.
    SameOwner,
}

/// The bounds of a search.
#[derive(Clone, Debug)]
pub struct Bounds<const N: usize> {
    /// The rule.
    pub rule: Rule,
    /// How many clients there are, at most [`MOST`].
    pub clients: usize,
    /// How often a client asks.
    pub rounds: u8,
    /// How often a guard is renewed.
    pub renewals: u8,
    /// How many of the clients renew, the first ones.
    pub renewing: usize,
    /// How many of the clients, the first ones, neither give up nor release.
    pub patient: usize,
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
    /// How many requests are executed twice.
    pub repeats: u8,
}

impl<const N: usize> Bounds<N> {
    /// Returns small bounds of a rule.
    #[must_use]
    pub fn new(rule: Rule) -> Self {
        Self {
            rule,
            clients: 2,
            rounds: 1,
            renewals: 0,
            renewing: MOST,
            patient: 0,
            lease: 2,
            restart_delay: 2,
            ticks: 2,
            crashes: 0,
            vanishing: 0,
            repeats: 0,
        }
    }
}

/// A client, and the round in which it asks. No two rounds share an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(u8, u8);

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Verb {
    Acquire,
    Renew,
    Release,
}

/// A request on its way to a node. It may be executed at any time from now on, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    owner: Owner,
    verb: Verb,
    sent: u8,
}

/// A reply on its way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reply {
    owner: Owner,
    /// The time of the request, if the node holds the lock for this owner.
    confirms: Option<u8>,
}

/// A node's vote, as a client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Vote {
    None,
    /// The node holds the lock until then.
    Until(u8),
    /// The node said that the lock is gone.
    Gone,
}

/// A node, what each client knows of it, and the requests and replies on their way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node {
    /// The owner, and when its key expires.
    key: Option<(Owner, u8)>,
    /// Until when the node refuses everything.
    refuses_until: u8,
    votes: [Vote; MOST],
    /// Whether the node has said "gone" to a client, whatever the rule makes of that.
    has_said_gone: [bool; MOST],
    requests: BTreeSet<Request>,
    replies: BTreeSet<Reply>,
}

/// The state of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Asking,
    Holding,
}

/// A client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    phase: Phase,
    /// How often it has asked.
    round: u8,
    /// When its last guard began. Zero if it had none.
    granted: u8,
    /// How many guards had begun by then.
    order: u8,
    /// Whether a majority of the nodes had its key at that moment. Keys may have vanished after the nodes replied.
    was_held: bool,
    renewals: u8,
}

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State<const N: usize> {
    now: u8,
    nodes: [Node; N],
    clients: Vec<Client>,
    crashed: u8,
    vanished: u8,
    repeated: u8,
}

/// A step from one state to the next. A node has its index among the sorted nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A client sends its request to all nodes.
    Ask(usize),
    /// A node executes a request. `true`: the request stays on its way, and is executed again.
    Execute(usize, Request, bool),
    /// A client receives a reply.
    Receive(usize, Reply),
    /// A client has a majority.
    Grant(usize),
    /// A holder sends renewals to all nodes.
    Renew(usize),
    /// A client gives up, or releases its guard.
    End(usize),
    /// A node crashes, and starts again without data.
    Crash(usize),
    /// A key vanishes.
    Vanish(usize),
    /// Time goes on.
    Tick,
}

impl<const N: usize> State<N> {
    /// Returns when a client's guard is lost: the q-th latest of its votes.
    fn deadline(&self, client: usize) -> u8 {
        let mut deadlines = self.nodes.each_ref().map(|node| match node.votes[client] {
            Vote::Until(deadline) => deadline,
            Vote::None | Vote::Gone => 0,
        });
        deadlines.sort_unstable();
        deadlines[N - majority(N)]
    }

    fn is_valid(&self, client: usize) -> bool {
        self.clients[client].phase == Phase::Holding && self.now < self.deadline(client)
    }

    /// Returns the clients whose guards are valid.
    fn valid(&self) -> impl Iterator<Item = usize> {
        (0..self.clients.len()).filter(|client| self.is_valid(*client))
    }
}

impl<const N: usize> Bounds<N> {
    fn owner(&self, client: usize, state: &State<N>) -> Owner {
        let round = match self.rule {
            Rule::SameOwner => 0,
            _ => state.clients[client].round,
        };
        Owner(client as u8, round)
    }

    /// Returns whether a client waits for replies to this owner.
    fn is_live(&self, owner: Owner, state: &State<N>) -> bool {
        let client = usize::from(owner.0);
        self.owner(client, state) == owner && state.clients[client].phase != Phase::Idle
    }

    fn send(&self, state: &mut State<N>, client: usize, verb: Verb) {
        let (owner, sent) = (self.owner(client, state), state.now);
        for node in &mut state.nodes {
            node.requests.insert(Request { owner, verb, sent });
        }
    }

    /// Executes a request. Returns the reply.
    fn execute(&self, node: &mut Node, request: Request, now: u8) -> Option<Reply> {
        let is_own = node.key.is_some_and(|(owner, _)| owner == request.owner);
        if request.verb == Verb::Release {
            if is_own {
                node.key = None;
            }
            return None;
        }
        let creates = request.verb == Verb::Acquire || self.rule == Rule::RenewalCreates;
        let holds = is_own || creates && node.key.is_none() && now >= node.refuses_until;
        if holds {
            let until = node.key.map_or(0, |(_, until)| until);
            node.key = Some((request.owner, until.max(now + self.lease)));
        }
        Some(Reply {
            owner: request.owner,
            confirms: holds.then_some(request.sent),
        })
    }

    /// Takes a reply in.
    fn receive(&self, node: &mut Node, reply: Reply, phase: Phase) {
        let client = usize::from(reply.owner.0);
        let vote = &mut node.votes[client];
        let may_vote = phase == Phase::Asking || self.rule == Rule::LateGrantVotes;
        match (reply.confirms, *vote) {
            // "Gone" is for ever. A refusal before the grant is not about a key that this owner has.
            (Some(_), Vote::Gone) | (None, Vote::None) => {}
            (Some(_), Vote::None) if !may_vote => {}
            (Some(sent), Vote::None) => *vote = Vote::Until(sent + self.lease),
            (Some(sent), Vote::Until(until)) => *vote = Vote::Until(until.max(sent + self.lease)),
            (None, Vote::Until(_) | Vote::Gone) => {
                node.has_said_gone[client] = true;
                if self.rule != Rule::GoneKeepsVote {
                    *vote = Vote::Gone;
                }
            }
        }
    }

    /// Ends a guard or an attempt, and only then sends the releases.
    fn end(&self, state: &mut State<N>, client: usize) {
        let owner = self.owner(client, state);
        self.send(state, client, Verb::Release);
        state.clients[client].phase = Phase::Idle;
        state.clients[client].renewals = 0;
        for node in &mut state.nodes {
            node.votes[client] = Vote::None;
            node.has_said_gone[client] = false;
            node.replies.retain(|reply| reply.owner != owner);
        }
    }

    /// Ends each guard whose deadline has passed. A loss is final.
    fn end_lost(&self, state: &mut State<N>) {
        for client in 0..state.clients.len() {
            if state.clients[client].phase == Phase::Holding && !state.is_valid(client) {
                self.end(state, client);
            }
        }
    }

    /// Drops the requests that can have no effect any more, and sorts the nodes.
    fn normalize(&self, state: &mut State<N>) {
        let live: Vec<Owner> = (0..state.clients.len())
            .map(|client| self.owner(client, state))
            .filter(|owner| self.is_live(*owner, state))
            .collect();
        for node in &mut state.nodes {
            if node.refuses_until <= state.now {
                node.refuses_until = 0;
            }
            let may_create = |verb| {
                verb == Verb::Acquire || verb == Verb::Renew && self.rule == Rule::RenewalCreates
            };
            let creating: Vec<Owner> = node
                .requests
                .iter()
                .filter(|it| may_create(it.verb))
                .map(|it| it.owner)
                .collect();
            let holder = node.key.map(|(owner, _)| owner);
            node.requests.retain(|request| {
                may_create(request.verb)
                    || holder == Some(request.owner)
                    || creating.contains(&request.owner)
                    || request.verb == Verb::Renew && live.contains(&request.owner)
            });
        }
        state.nodes.sort_unstable();
    }
}

/// Exclusion.
pub const ONE: &str = "at most one guard is valid";
/// A holder whose key vanished learns of that in time.
pub const ENDS: &str = "no guard is valid a lease after another owner got a majority";
/// A vote that was taken back does not count.
pub const TOLD: &str = "no guard is valid if too many nodes for a majority have said gone";
/// The search is not empty.
pub const GRANTED: &str = "each client has had a guard";

impl<const N: usize> Model for Bounds<N> {
    type State = State<N>;
    type Action = Action;

    fn init_states(&self) -> Vec<State<N>> {
        let client = Client {
            phase: Phase::Idle,
            round: 0,
            granted: 0,
            order: 0,
            was_held: false,
            renewals: 0,
        };
        vec![State {
            now: 1,
            nodes: std::array::from_fn(|_| Node {
                key: None,
                refuses_until: 0,
                votes: [Vote::None; MOST],
                has_said_gone: [false; MOST],
                requests: BTreeSet::new(),
                replies: BTreeSet::new(),
            }),
            clients: vec![client; self.clients],
            crashed: 0,
            vanished: 0,
            repeated: 0,
        }]
    }

    fn actions(&self, state: &State<N>, actions: &mut Vec<Action>) {
        for (who, client) in state.clients.iter().enumerate() {
            match client.phase {
                Phase::Idle if client.round < self.rounds => {
                    // Clients begin in the order of their numbers: they are all alike.
                    if who == 0 || state.clients[who - 1].round > 0 {
                        actions.push(Action::Ask(who));
                    }
                }
                Phase::Idle => {}
                Phase::Asking => {
                    if state.now < state.deadline(who) {
                        actions.push(Action::Grant(who));
                    }
                    if who >= self.patient {
                        actions.push(Action::End(who));
                    }
                }
                Phase::Holding => {
                    if who < self.renewing && client.renewals < self.renewals {
                        actions.push(Action::Renew(who));
                    }
                    if who >= self.patient {
                        actions.push(Action::End(who));
                    }
                }
            }
        }
        for (at, node) in state.nodes.iter().enumerate() {
            for request in &node.requests {
                actions.push(Action::Execute(at, *request, false));
                if state.repeated < self.repeats {
                    actions.push(Action::Execute(at, *request, true));
                }
            }
            actions.extend(node.replies.iter().map(|reply| Action::Receive(at, *reply)));
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
            Action::Ask(client) => {
                state.clients[client].round += 1;
                state.clients[client].phase = Phase::Asking;
                self.send(&mut state, client, Verb::Acquire);
            }
            Action::Execute(at, request, again) => {
                let is_live = self.is_live(request.owner, &state);
                let node = &mut state.nodes[at];
                if again {
                    state.repeated += 1;
                } else {
                    node.requests.remove(&request);
                }
                let reply = self.execute(node, request, now);
                node.replies.extend(reply.filter(|_| is_live));
            }
            Action::Receive(at, reply) => {
                let phase = state.clients[usize::from(reply.owner.0)].phase;
                state.nodes[at].replies.remove(&reply);
                self.receive(&mut state.nodes[at], reply, phase);
                self.end_lost(&mut state);
            }
            Action::Grant(client) => {
                state.clients[client].phase = Phase::Holding;
                let before = state.clients.iter().map(|client| client.order).max();
                state.clients[client].granted = now;
                state.clients[client].order = before.unwrap_or(0) + 1;
                let owner = self.owner(client, &state);
                let has_key = |node: &&Node| node.key.is_some_and(|(holder, _)| holder == owner);
                let holding = state.nodes.iter().filter(has_key).count();
                state.clients[client].was_held = holding >= majority(N);
            }
            Action::Renew(client) => {
                state.clients[client].renewals += 1;
                self.send(&mut state, client, Verb::Renew);
            }
            Action::End(client) => self.end(&mut state, client),
            Action::Crash(at) => {
                state.crashed += 1;
                let node = &mut state.nodes[at];
                (node.key, node.refuses_until) = (None, now + self.restart_delay);
            }
            Action::Vanish(at) => {
                state.vanished += 1;
                state.nodes[at].key = None;
            }
            Action::Tick => {
                state.now += 1;
                for node in &mut state.nodes {
                    node.key = node.key.filter(|(_, until)| now + 1 < *until);
                }
                self.end_lost(&mut state);
            }
        }
        self.normalize(&mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE, |model: &Self, state: &State<N>| {
                // While a key has vanished, a holder and another owner may both be right by what they know.
                model.vanishing > 0 || state.valid().count() <= 1
            }),
            Property::always(ENDS, |model: &Self, state: &State<N>| {
                state.valid().all(|client| {
                    let order = state.clients[client].order;
                    let is_later = |other: &&Client| other.order > order && other.was_held;
                    let mut later = state.clients.iter().filter(is_later);
                    later.all(|other| state.now < other.granted + model.lease)
                })
            }),
            Property::always(TOLD, |_, state: &State<N>| {
                state.valid().all(|client| {
                    let said = state.nodes.iter().filter(|node| node.has_said_gone[client]);
                    said.count() <= N - majority(N)
                })
            }),
            Property::sometimes(GRANTED, |_, state: &State<N>| {
                state.clients.iter().all(|client| client.granted > 0)
            }),
        ]
    }
}
