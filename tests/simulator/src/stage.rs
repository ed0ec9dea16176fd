//! A world for the body of a test, which decides what happens: it starts processes and threads, and makes faults.
//!
//! The seed decides the rest: which thread runs next, how long messages take, and in how many pieces they come. No thread
//! stands still for a while, no clock drifts, and no message takes longer than 3 ms. So what a body says about time is exact,
//! but for the round trips.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use leasehold::{Builder, LockManager};
use leasehold_testing::memory::Refusal;

use crate::clock::Clock;
use crate::network::{LinkFault, Network, Role, SimulatedServer, host};
use crate::process::Process;
use crate::random::Random;
use crate::replication::{Links, PORT};
use crate::schedule::{BEGAN_AT, ReplicationPlan, Topology};
use crate::trace::Trace;
use crate::world::{Place, ProcessState, World, locked};

/// How long a message to a replica takes.
const REPLICATES_IN: std::ops::Range<Duration> =
    Duration::from_micros(100)..Duration::from_millis(2);
/// Threads of the library go on while a request of theirs may come, which is for two leases at most.
const THREADS_END_WITHIN: Duration = Duration::from_secs(15 * 60);
/// When a server is up again that was stopped without an end.
const NEVER: Duration = Duration::from_secs(1_000_000);
/// For how long a master goes on that has a successor and is well. The clients learn earlier of the successor.
const GOES_ON_FOR: Duration = Duration::from_secs(8);

/// A world, from inside one of its threads.
#[derive(Clone)]
pub struct Stage {
    world: Arc<World>,
    topology: Topology,
    managers: Arc<Mutex<Vec<LockManager>>>,
}

/// How the run of a body went.
#[derive(Debug)]
pub struct Outcome {
    /// What failed, or `None`.
    pub failure: Option<String>,
    /// A hash of all events, their times and their order.
    pub hash: u64,
    /// A line for each event, if they were kept.
    pub trace: Vec<String>,
}

impl Stage {
    /// Runs a body in a world of its own.
    pub fn run(
        seed: u64,
        topology: Topology,
        keeps_trace: bool,
        body: impl FnOnce(&Self) + Send + 'static,
    ) -> Outcome {
        let clocks = vec![Clock::new(BEGAN_AT, 0); topology.servers()];
        let world = Arc::new(World::new(
            Random::new(seed, 1),
            Trace::new(keeps_trace),
            Vec::new(),
            Network::new(clocks, Links::new(REPLICATES_IN), None),
        ));
        {
            let mut state = world.state();
            state.has_hiccups = false;
            state.threads_end_within = THREADS_END_WITHIN;
        }
        ReplicationPlan::of_all(topology).begin(topology, &world);
        let stage = Self {
            world: Arc::clone(&world),
            topology,
            managers: Arc::default(),
        };
        let own = stage.start_process();
        let inside = stage.clone();
        stage.spawn(own, move || {
            body(&inside);
            inside.end();
        });
        let course = world.run();
        if course.failure.is_none() {
            world.state().network.end();
        } else {
            // The threads are still there, perhaps with a mutex of a manager, so its drop would wait for ever.
            std::mem::forget(stage);
        }
        Outcome {
            failure: course.failure,
            hash: course.hash,
            trace: course.lines,
        }
    }

    /// Starts a process, and returns its number.
    #[must_use]
    pub fn start_process(&self) -> usize {
        let mut state = self.world.state();
        let number = state.processes.len();
        // Each machine has booted at another time.
        let shown = Duration::from_secs(1_000 * (number as u64 + 1));
        let process = ProcessState::new(Clock::new(shown, 0), BEGAN_AT);
        state.processes.push(process);
        number
    }

    /// Makes a manager of a process.
    ///
    /// # Errors
    ///
    /// As [`Builder::build`].
    pub fn build(&self, process: usize, builder: Builder) -> leasehold::Result<LockManager> {
        let built = self.process(process).builder(builder).build()?;
        locked(&self.managers).push(built.clone());
        Ok(built)
    }

    /// Makes a manager of a process, which sends nothing yet.
    ///
    /// # Errors
    ///
    /// As [`Builder::build_lazy`].
    pub fn build_lazy(&self, process: usize, builder: Builder) -> leasehold::Result<LockManager> {
        let built = self.process(process).builder(builder).build_lazy()?;
        locked(&self.managers).push(built.clone());
        Ok(built)
    }

    /// Returns settings for the servers of this world.
    pub fn builder(&self) -> Builder {
        if self.topology == Topology::Quorum {
            return Topology::quorum_of(self.servers());
        }
        self.topology.builder()
    }

    /// Adds servers until a quorum has this number of nodes.
    pub fn make_nodes(&self, count: usize) {
        let servers = &mut self.world.state().network.servers;
        while servers.len() < count {
            servers.push(SimulatedServer::new(servers.len(), Clock::new(BEGAN_AT, 0)));
        }
    }

    /// Starts a thread of a process. Its panic fails the run.
    ///
    /// # Panics
    ///
    /// Panics if the system has no more threads.
    pub fn spawn(&self, process: usize, run: impl FnOnce() + Send + 'static) {
        let world = Arc::clone(&self.world);
        let guarded = move || {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
                world.fail(text_of(&*panic).to_owned());
            }
        };
        let started = self.process(process).spawn("test", guarded);
        started.expect("the system starts a thread");
    }

    /// Returns the time since the begin.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.world.state().now
    }

    /// Returns the same by the clock of programs.
    #[must_use]
    pub fn instant(&self) -> Instant {
        self.world.began_at + self.now()
    }

    /// Returns the time of day.
    #[must_use]
    pub fn time_of_day(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + BEGAN_AT + self.now()
    }

    /// Makes the calling thread sleep.
    pub fn pass(&self, length: Duration) {
        self.world.wait(Place::Nowhere, Some(length));
    }

    /// Blocks until some time has passed, for at most `limit`, and no thread can run at that moment.
    pub fn pass_to_quiet(&self, limit: Duration) {
        self.world.wait(Place::Quiet, Some(limit));
    }

    /// Blocks until [`wake`](Self::wake) is called for this place. No other thread runs between the call and the wait.
    pub fn wait_at(&self, place: usize) {
        self.world.wait(Place::Address(place), None);
    }

    pub fn wake(&self, place: usize) {
        self.world.wake(place, true);
    }

    #[must_use]
    pub fn topology(&self) -> Topology {
        self.topology
    }

    /// Returns the number of servers that have keys of locks. They are the first ones.
    #[must_use]
    pub fn servers(&self) -> usize {
        match self.topology {
            Topology::Single | Topology::Sentinel => 1,
            Topology::Cluster => 3,
            Topology::Quorum => self.world.state().network.servers.len(),
        }
    }

    /// Returns settings for the servers of this world, for a user.
    pub fn builder_of(&self, user: &str, password: &str) -> Builder {
        let url = |server| format!("redis://{user}:{password}@{}:{PORT}", host(server));
        match self.topology {
            Topology::Single | Topology::Sentinel => LockManager::single(&url(0)),
            Topology::Cluster => LockManager::cluster([url(0)]),
            Topology::Quorum => LockManager::quorum((0..self.servers()).map(url)),
        }
    }

    /// Executes a command at once, as an operator on the machine of the server does. Returns the bytes of the answer.
    #[must_use]
    pub fn execute(&self, server: usize, command: &[&str]) -> Vec<u8> {
        self.world.state().operate(server, command)
    }

    /// Lets no thread of a process run until [`go_on`](Self::go_on).
    pub fn pause(&self, process: usize) {
        self.world.state().processes[process].paused_until = NEVER;
    }

    pub fn go_on(&self, process: usize) {
        let mut state = self.world.state();
        state.processes[process].paused_until = state.now;
    }

    /// Kills a process. The servers notice it at once.
    pub fn kill(&self, process: usize) {
        let mut state = self.world.state();
        state.processes[process].is_crashed = true;
        state.end_connections_of(process);
    }

    /// Makes a server do nothing until [`end_stall`](Self::end_stall).
    pub fn stall(&self, server: usize) {
        self.world.state().stall(server, NEVER);
    }

    pub fn end_stall(&self, server: usize) {
        let mut state = self.world.state();
        state.end_stall(server);
        state.tell_role(server);
    }

    /// Restarts a server, with its data or without.
    pub fn restart(&self, server: usize, has_data: bool) {
        let mut state = self.world.state();
        let now = state.now;
        state.restart(server, now, has_data);
        state.network.servers[server].down_until = now;
        state.tell_role(server);
    }

    /// Stops a server, until a restart.
    pub fn stop(&self, server: usize) {
        self.restart(server, true);
        self.world.state().network.servers[server].down_until = NEVER;
    }

    /// Moves the clock of a server.
    pub fn set_clock(&self, server: usize, by: Duration, is_back: bool) {
        let mut state = self.world.state();
        let now = state.now;
        let server = &mut state.network.servers[server];
        if is_back {
            server.set_back(now, by);
        } else {
            server.jump(now, by);
        }
    }

    /// Makes a server refuse commands, or no longer.
    pub fn refuse(&self, server: usize, refusal: Option<Refusal>) {
        let mut state = self.world.state();
        state.network.servers[server].server.state().refuse(refusal);
    }

    /// Makes a server a replica of a master that does not exist, or a master again. It keeps its data.
    pub fn demote(&self, server: usize, is_replica: bool) {
        let mut state = self.world.state();
        let now = state.now;
        let its = &mut state.network.servers[server];
        let time = its.clock.read(now);
        if is_replica {
            its.server.state().follow((host(99), PORT), time);
        } else {
            its.server.state().lead();
        }
    }

    /// Makes the links that a process uses for something, or all of them, lose something, or no longer.
    pub fn lose(&self, process: usize, role: Option<Role>, fault: Option<LinkFault>) {
        self.world.state().lose(process, role, fault);
    }

    /// Returns how many pieces the fault of such links has taken.
    #[must_use]
    pub fn lost_by(&self, process: usize, role: Option<Role>) -> u64 {
        self.world.state().lost_by(process, role)
    }

    /// Makes a server say this to each further client, and close the connection, or admit all.
    pub fn greet(&self, server: usize, greeting: Option<&'static [u8]>) {
        self.world.state().network.servers[server].greeting = greeting;
    }

    /// Makes all that is sent on the open connections of a process vanish, without a sign at either end.
    pub fn forget_connections(&self, process: usize) {
        self.world.state().forget(process);
    }

    /// Cuts all connections of a process to a server. Both ends learn of it.
    pub fn cut(&self, process: usize, server: usize) {
        self.world.state().cut(process, server);
    }

    /// Cuts one of the open connections of a process: its first, its second, and so on.
    pub fn cut_one(&self, process: usize, which: usize) {
        self.world.state().cut_one(process, which);
    }

    /// Returns the servers that may have the keys of a name, the master in front.
    #[must_use]
    pub fn members(&self, name: &str) -> Vec<usize> {
        let state = self.world.state();
        let master = state.network.masters_of(name)[0];
        let groups = &state.network.groups;
        let group = groups.iter().find(|group| group.master == master);
        let members = group.map_or(&[][..], |group| &group.members);
        let others = members.iter().copied().filter(|it| *it != master);
        [master].into_iter().chain(others).collect()
    }

    /// Makes a replica the master, with what it has. The others learn of it one after the other, as in `failover`.
    pub fn promote(&self, replica: usize) {
        self.world.state().promote(replica, GOES_ON_FOR);
    }

    /// Begins to move the slot of a key to another master. Half of the time passes before the first key moves.
    ///
    /// # Panics
    ///
    /// Panics if another slot moves, or a master that was replaced does not know of it yet.
    pub fn move_slot(&self, key: &str, length: Duration) {
        let has_begun = self.world.state().move_slot(key, length);
        assert!(has_begun, "another move or a failover is under way");
    }

    /// Lets nothing arrive between a process and a server, or lets all arrive that is on its way.
    pub fn block(&self, process: usize, server: usize, is_blocked: bool) {
        let mut state = self.world.state();
        if is_blocked {
            state.block(process, server, NEVER);
        } else {
            state.unblock(process, server);
        }
    }

    /// Lets a replica get nothing from its master, or all that is on its way.
    pub fn lag(&self, replica: usize, is_late: bool) {
        let mut state = self.world.state();
        if is_late {
            state.lag(replica, NEVER);
        } else {
            state.end_lag(replica);
        }
    }

    /// Lets a server or a sentinel learn of no failover, or of those that it has missed.
    pub fn cut_off(&self, server: usize, is_cut_off: bool) {
        let mut state = self.world.state();
        if is_cut_off {
            state.network.cut_off.insert(server);
        } else {
            state.network.cut_off.remove(&server);
        }
    }

    /// Makes a sentinel name a server, which becomes a master beside the true one, as the master.
    pub fn misname(&self, sentinel: usize, server: usize) {
        let mut state = self.world.state();
        state.end_link(server);
        let its = &mut state.network.servers[server];
        its.follows = None;
        its.server.state().lead();
        let epoch = state.network.servers[sentinel].knows_epoch;
        state.watch(sentinel, server, server, epoch);
    }

    /// Returns how many writes a server has received whole.
    #[must_use]
    pub fn received(&self, server: usize) -> u64 {
        self.world.state().network.servers[server].received
    }

    /// Makes the address of a server lead to another one. Open connections stay.
    pub fn redirect(&self, from: usize, to: usize) {
        self.world.state().network.leads_to.insert(from, to);
    }

    /// Returns how often processes have tried to connect to a server.
    #[must_use]
    pub fn connects(&self, server: usize) -> u64 {
        self.world.state().network.servers[server].connects
    }

    /// Returns how many lines the threads of all processes have written to the log.
    #[must_use]
    pub fn log_lines(&self) -> u64 {
        self.world.log_lines.load(Ordering::Relaxed)
    }

    /// Makes the links between a process and a server lose something, or ends those of which something may be lost.
    pub fn lose_at(&self, process: usize, server: usize, fault: Option<LinkFault>) {
        self.world.state().lose_at(process, server, fault);
    }

    /// Returns how many pieces the fault of these links has taken.
    #[must_use]
    pub fn lost_at(&self, process: usize, server: usize) -> u64 {
        self.world.state().lost_at(process, server)
    }

    /// Ends the connections between a process and a server for the process alone. What it has sent still arrives.
    pub fn abandon(&self, process: usize, server: usize) {
        self.world.state().abandon(process, server);
    }

    /// Sets how many further threads a process may start; `None` is any number.
    pub fn limit_threads(&self, process: usize, threads: Option<u64>) {
        self.world.state().processes[process].threads_left = threads;
    }

    /// Sets the time of day of a process.
    pub fn set_time_of_day(&self, process: usize, by: Duration, is_back: bool) {
        let began_at = &mut self.world.state().processes[process].began_at;
        *began_at = if is_back {
            began_at.saturating_sub(by)
        } else {
            *began_at + by
        };
    }

    fn process(&self, number: usize) -> Process {
        Process {
            world: Arc::clone(&self.world),
            number,
        }
    }

    /// Ends all waits, so that all threads can end.
    fn end(&self) {
        let processes = {
            let mut state = self.world.state();
            for process in &mut state.processes {
                process.paused_until = Duration::ZERO;
            }
            state.heal_all();
            state.processes.len()
        };
        for process in 0..processes {
            self.world.process_finished(process);
        }
        for manager in locked(&self.managers).drain(..) {
            let _ = manager.close(Duration::ZERO);
        }
    }
}

/// Returns the message of a panic.
fn text_of(panic: &(dyn Any + Send)) -> &str {
    match panic.downcast_ref::<String>() {
        Some(text) => text,
        None => panic.downcast_ref().copied().unwrap_or("a panic"),
    }
}
