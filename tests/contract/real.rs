//! A world of real servers, in real time, for the same bodies.
//!
//! Each process is a manager. If there is one server, it is behind a proxy of its own: a process that is killed is one whose
//! connections end, and that makes no new ones, so the others see the same. [`can_show`] says which bodies need more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use leasehold::{Builder, LockManager};
use leasehold_simulator::{LinkFault, Role, Topology};
use leasehold_test_support as support;
use support::{Nodes, Proxy, Server};

use crate::world::{Fault, Machinery, locked, ms, secs};

/// How late a busy machine may be.
const TOLERANCE: Duration = secs(20);

/// The bodies that a world of real servers cannot show, each with the reason.
const SIMULATED_ONLY: &[(&str, &str)] = &[
    (
        "a_lease_that_ended_during_a_suspend_is_lost_at_once",
        "it stops processes for an hour",
    ),
    (
        "what_was_over_during_a_suspend_ends_after_it",
        "it stops processes for minutes",
    ),
    (
        "a_waiter_that_stalls_keeps_its_place_beside_dead_ones",
        "it stops processes",
    ),
    (
        "hung_waiters_delay_others_by_one_pickup_window_together",
        "it stops processes",
    ),
    (
        "a_holder_that_was_stopped_past_its_lease_knows_it",
        "it stops a process: tests/it/process_ends.rs does so with a real one",
    ),
    (
        "a_lock_that_has_expired_does_not_touch_that_of_the_other_side",
        "it stops a process",
    ),
    (
        "a_server_that_refuses_for_a_while_costs_nothing",
        "the Redis in memory is told what it refuses: tests/it/outages.rs shows each cause",
    ),
    (
        "a_wait_believes_no_answer_from_before_a_failure",
        "the Redis in memory is told what it refuses",
    ),
    (
        "full_memory_refuses_only_new_locks",
        "the Redis in memory is told what it refuses: tests/it/outages.rs shows the cause",
    ),
    (
        "a_write_after_a_pause_has_a_smaller_fence_than_the_next_holder",
        "it stops a process",
    ),
    (
        "a_holder_that_was_paused_past_its_lease_writes_nothing",
        "it stops a process: tests/it/foreign/pauses.rs does so with real ones",
    ),
    (
        "a_register_that_holders_commit_loses_no_update",
        "it stops processes: tests/it/foreign/pauses.rs does so with real ones",
    ),
    (
        "a_commit_that_was_cut_is_not_sent_again",
        "it cuts a connection between a request and its answer",
    ),
    (
        "a_repeated_release_lengthens_no_min_hold",
        "the lock stays for seconds, and a busy machine may look later",
    ),
    (
        "a_free_lock_with_a_waiter_is_shown_without_a_holder",
        "it stops a process, so that its waiter does not poll",
    ),
    (
        "a_share_that_has_run_out_is_not_shown",
        "it stops a process, so that it releases nothing",
    ),
    (
        "a_guard_that_is_not_dropped_is_renewed_until_its_process_ends",
        "five leases must pass",
    ),
    (
        "a_short_wait_outlasts_a_queued_release",
        "a busy machine may take longer than 100 ms",
    ),
    (
        "a_wait_that_ends_after_the_release_of_a_kept_lock_ends_as_held",
        "the wait must end within a round trip after the release",
    ),
    (
        "a_queued_release_is_lost_with_its_process",
        "two leases must pass",
    ),
    (
        "a_killed_holder_delays_others_by_its_short_lease",
        "its lease must be renewed within 100 ms",
    ),
    (
        "a_cancel_that_meets_a_grant_leaves_no_orphan",
        "it needs messages of about one length",
    ),
    (
        "a_cancel_that_meets_a_hand_over_costs_nobody_a_turn",
        "it needs messages of about one length",
    ),
];

/// The bodies whose processes need proxies. Only a world of one server has them.
const BEHIND_PROXIES: &[&str] = &[
    "a_cancelled_call_inside_of_a_request_ends_with_it",
    "a_commit_that_was_cut_is_not_sent_again",
    "a_killed_holder_delays_others_by_its_lease",
    "a_killed_sharer_costs_the_others_nothing",
    "a_late_commit_finds_no_later_guard_of_its_owner",
    "a_queued_release_whose_answer_was_lost_is_repeated",
    "killed_waiters_delay_nobody",
    "the_companions_of_a_killed_waiter_expire",
];

/// Returns whether a world of real servers can show a body.
pub(crate) fn can_show(behaviour: &str, topology: Topology) -> bool {
    let needs_proxies = BEHIND_PROXIES.contains(&behaviour);
    SIMULATED_ONLY.iter().all(|(one, _)| *one != behaviour)
        && (topology == Topology::Single || !needs_proxies)
}

pub(crate) struct Real {
    topology: Topology,
    began: Instant,
    servers: Servers,
    /// The proxy of each process, if there is one server.
    proxies: Mutex<HashMap<usize, Proxy>>,
    processes: AtomicUsize,
    /// How far the clock of the server is ahead, in seconds.
    ahead: Mutex<i64>,
    flags: (Mutex<()>, Condvar),
}

enum Servers {
    One(Server),
    Several(Nodes),
}

impl Real {
    /// Starts the servers.
    pub(crate) fn new(topology: Topology) -> Self {
        let of = |topology| {
            let mut nodes = None;
            support::on(topology, || nodes = Some(support::start_servers()));
            Servers::Several(nodes.expect("it was called"))
        };
        Self {
            topology,
            began: Instant::now(),
            servers: match topology {
                Topology::Single => Servers::One(Server::keeping_data_with_clock()),
                Topology::Quorum => of(support::Topology::Quorum),
                Topology::Sentinel => of(support::Topology::Sentinel),
                Topology::Cluster => of(support::Topology::Cluster),
            },
            proxies: Mutex::default(),
            processes: AtomicUsize::new(0),
            ahead: Mutex::new(0),
            flags: (Mutex::new(()), Condvar::new()),
        }
    }

    fn servers(&self) -> &[Server] {
        match &self.servers {
            Servers::One(server) => std::slice::from_ref(server),
            Servers::Several(nodes) => nodes.servers(),
        }
    }

    fn with_proxy<T>(&self, process: usize, f: impl FnOnce(&Proxy) -> T) -> T {
        f(&locked(&self.proxies)[&process])
    }

    /// Returns the URL of the only server behind a new proxy.
    fn url_behind_proxy(&self, process: usize) -> String {
        let proxy = Proxy::to(&self.servers()[0]);
        let url = proxy.url();
        locked(&self.proxies).insert(process, proxy);
        url
    }
}

impl Machinery for Real {
    fn topology(&self) -> Topology {
        self.topology
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn instant(&self) -> Instant {
        Instant::now()
    }

    fn time_of_day(&self) -> SystemTime {
        SystemTime::now()
    }

    fn tolerance(&self) -> Duration {
        TOLERANCE
    }

    fn pass(&self, length: Duration) {
        // A body asks for time itself here.
        thread::sleep(length);
    }

    fn glance(&self, limit: Duration) {
        // The pause between two looks at a condition.
        thread::sleep(limit.min(ms(10)));
    }

    fn wait_for_flag(&self, flag: &AtomicBool) {
        let (mutex, raised) = &self.flags;
        let mut guard = locked(mutex);
        while !flag.load(Ordering::SeqCst) {
            guard = raised.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn raise(&self, _: &AtomicBool) {
        let (mutex, raised) = &self.flags;
        drop(locked(mutex));
        raised.notify_all();
    }

    fn unique(&self, what: &str) -> String {
        support::name(what)
    }

    fn start_process(&self) -> usize {
        self.processes.fetch_add(1, Ordering::Relaxed)
    }

    fn builder(&self, process: usize) -> Builder {
        match &self.servers {
            Servers::One(_) => support::patient(&self.url_behind_proxy(process)),
            Servers::Several(nodes) => nodes.builder(),
        }
    }

    fn builder_of(&self, process: usize, user: &str, password: &str) -> Builder {
        let url = self.url_behind_proxy(process);
        support::patient(&url.replace("//", &format!("//{user}:{password}@")))
    }

    fn build(&self, _: usize, builder: Builder) -> leasehold::Result<LockManager> {
        builder.build()
    }

    fn spawn(&self, _: usize, run: Box<dyn FnOnce() + Send>) {
        let thread = thread::Builder::new().stack_size(256 * 1024);
        thread.spawn(run).expect("a thread");
    }

    fn servers(&self) -> usize {
        self.servers().len()
    }

    fn execute(&self, server: usize, command: &[&str]) -> redis::RedisResult<redis::Value> {
        let client = redis::Client::open(self.servers()[server].url())?;
        let mut connection = client.get_connection_with_timeout(secs(30))?;
        connection.set_read_timeout(Some(secs(30)))?;
        redis::cmd(command[0])
            .arg(&command[1..])
            .query(&mut connection)
    }

    fn fault(&self, fault: Fault) {
        match fault {
            Fault::PauseServer(server) => self.servers()[server].pause(),
            Fault::ResumeServer(server) => self.servers()[server].resume(),
            Fault::StopServer(server) => self.servers()[server].kill_for_now(),
            Fault::StartServer {
                server,
                has_data: true,
            } => self.servers()[server].start_again(),
            Fault::StartServer { server, .. } => {
                self.servers()[server].kill();
                self.servers()[server].restart();
            }
            Fault::SetClock { by, is_back, .. } => {
                let by = i64::try_from(by.as_secs()).expect("it is short");
                let mut ahead = locked(&self.ahead);
                *ahead += if is_back { -by } else { by };
                self.servers()[0].set_clock_ahead(*ahead);
            }
            Fault::Links(process, role, fault) => {
                self.with_proxy(process, |proxy| match (role, fault.map(fault_of_proxy)) {
                    (None, Some(fault)) => proxy.strike_all(fault),
                    (Some(role), Some(fault)) => proxy.strike(role_of_proxy(role), fault),
                    (_, None) => proxy.heal(),
                });
            }
            Fault::KillProcess(process) => {
                self.with_proxy(process, |proxy| proxy.strike_all(support::Fault::Close));
            }
            Fault::Cut { server, .. } => {
                for of in ["normal", "pubsub"] {
                    let cut = self.execute(server, &["CLIENT", "KILL", "TYPE", of]);
                    cut.expect("the server is there");
                }
            }
            Fault::Demote(server, is_replica) => {
                let master = if is_replica {
                    ["127.0.0.1", "1"]
                } else {
                    ["NO", "ONE"]
                };
                let told = self.execute(server, &["REPLICAOF", master[0], master[1]]);
                told.expect("the server is there");
            }
            Fault::CutOne { which, .. } => {
                let of = ["normal", "pubsub"][which % 2];
                let cut = self.execute(
                    which % self.servers().len(),
                    &["CLIENT", "KILL", "TYPE", of],
                );
                cut.expect("the server is there");
            }
            // Such bodies are in the list of those that are only simulated, or are of one subject.
            Fault::PauseProcess(_)
            | Fault::ResumeProcess(_)
            | Fault::Refuse(..)
            | Fault::Promote(_)
            | Fault::MoveSlot(..)
            | Fault::Block { .. }
            | Fault::Lag(..)
            | Fault::CutOff(..)
            | Fault::Misname { .. }
            | Fault::LinksTo { .. }
            | Fault::Abandon { .. }
            | Fault::Fill(..)
            | Fault::Greet(..)
            | Fault::SetTimeOfDay { .. }
            | Fault::Redirect { .. }
            | Fault::ForgetConnections(_)
            | Fault::LimitThreads(..) => {
                unreachable!("only simulated servers do this: {fault:?}")
            }
        }
    }

    fn members(&self, _: &str) -> Vec<usize> {
        unreachable!("bodies of one subject are only simulated")
    }

    fn received(&self, _: usize) -> u64 {
        unreachable!("bodies of one subject are only simulated")
    }

    fn connects(&self, _: usize) -> u64 {
        unreachable!("bodies of one subject are only simulated")
    }

    fn log_lines(&self) -> u64 {
        unreachable!("bodies of one subject are only simulated")
    }

    fn lost_by(&self, process: usize, role: Option<Role>) -> u64 {
        self.with_proxy(process, |proxy| proxy.struck(role.map(role_of_proxy)))
    }

    fn make_nodes(&self, _: usize) {
        unreachable!("bodies of one subject are only simulated")
    }

    fn build_lazy(&self, _: usize, builder: Builder) -> leasehold::Result<LockManager> {
        builder.build_lazy()
    }

    fn lost_at(&self, _: usize, _: usize) -> u64 {
        unreachable!("bodies of one subject are only simulated")
    }

    fn oversleeps(&self) -> Duration {
        TOLERANCE
    }
}

fn fault_of_proxy(fault: LinkFault) -> support::Fault {
    match fault {
        LinkFault::LoseRequests => support::Fault::LoseRequests,
        LinkFault::LoseAnswers => support::Fault::LoseAnswers,
        LinkFault::LoseAll | LinkFault::HalfOpen => support::Fault::HalfOpen,
        LinkFault::Reset => support::Fault::Reset,
        LinkFault::Close => support::Fault::Close,
        LinkFault::Late(by) => support::Fault::Late(by.as_millis() as u64),
        LinkFault::Drip => support::Fault::Drip,
    }
}

fn role_of_proxy(role: Role) -> support::Role {
    match role {
        Role::Listener => support::Role::Listener,
        Role::Renewal => support::Role::Renewal,
        Role::Pool => support::Role::Pool,
    }
}
