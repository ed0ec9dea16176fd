//! The world of a test: its time, its processes and threads, and its servers.
//!
//! A body never reads another clock, and waits only by the methods of the world. In the simulated world nothing is late but
//! messages, which take at most 3 ms. So a bound is what `lib.rs` promises, and a few round trips ([`World::within`]).

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, TryRecvError};
use leasehold::{Builder, LockManager};
use leasehold_simulator::{LinkFault, Refusal, Refused, Role, Topology};
pub(crate) use leasehold_test_support::{ms, secs};

use crate::redis::{Redis, ServersOf};

/// How long a body waits for what must happen.
const PATIENCE: Duration = secs(300);
/// The pauses between two looks at a condition, if nothing happens meanwhile. They grow with the wait.
const PAUSES: std::ops::RangeInclusive<Duration> = ms(1)..=ms(100);

/// What a world is made of.
pub(crate) trait Machinery: Send + Sync {
    fn topology(&self) -> Topology;
    /// Returns the time since the begin.
    fn now(&self) -> Duration;
    fn instant(&self) -> Instant;
    fn time_of_day(&self) -> SystemTime;
    /// Returns how late something may come that is due after `bound`.
    fn tolerance(&self) -> Duration;
    fn pass(&self, length: Duration);
    /// Blocks for at most `limit`, until something may have happened.
    fn glance(&self, limit: Duration);
    /// Blocks until `flag` is raised.
    fn wait_for_flag(&self, flag: &AtomicBool);
    fn raise(&self, flag: &AtomicBool);
    fn unique(&self, what: &str) -> String;
    fn start_process(&self) -> usize;
    /// Returns settings for a process.
    fn builder(&self, process: usize) -> Builder;
    fn build(&self, process: usize, builder: Builder) -> leasehold::Result<LockManager>;
    fn spawn(&self, process: usize, run: Box<dyn FnOnce() + Send>);
    fn servers(&self) -> usize;
    fn execute(&self, server: usize, command: &[&str]) -> redis::RedisResult<redis::Value>;
    /// Returns settings for a user of the servers.
    fn builder_of(&self, process: usize, user: &str, password: &str) -> Builder;
    fn fault(&self, fault: Fault);
    /// Returns the servers that may have the keys of a name, the master in front.
    fn members(&self, name: &str) -> Vec<usize>;
    /// Returns how many writes a server has received whole.
    fn received(&self, server: usize) -> u64;
    /// Returns how often processes have tried to connect to a server.
    fn connects(&self, server: usize) -> u64;
    /// Returns how many lines all processes have written to the log, without those for debugging.
    fn log_lines(&self) -> u64;
    /// Returns how much the links of a process for one use, or for all, have lost since their fault began.
    fn lost_by(&self, process: usize, role: Option<Role>) -> u64;
    /// Adds servers until a quorum has this number of nodes.
    fn make_nodes(&self, count: usize);
    /// Returns how much the links between a process and a server have lost since their fault began.
    fn lost_at(&self, process: usize, server: usize) -> u64;
    /// Makes a manager that sends nothing yet.
    fn build_lazy(&self, process: usize, builder: Builder) -> leasehold::Result<LockManager>;
    /// Returns how late a thread may wake up.
    fn oversleeps(&self) -> Duration;
}

/// What goes wrong, or is right again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// No thread of a process runs.
    PauseProcess(usize),
    ResumeProcess(usize),
    KillProcess(usize),
    /// A server does nothing.
    PauseServer(usize),
    ResumeServer(usize),
    /// A server is down, and keeps its data.
    StopServer(usize),
    /// A server begins again, with its data or without.
    StartServer {
        server: usize,
        has_data: bool,
    },
    SetClock {
        server: usize,
        by: Duration,
        is_back: bool,
    },
    /// The links of a process for one use, or for all, lose something, or are whole again.
    Links(usize, Option<Role>, Option<LinkFault>),
    /// The connections of a process to a server end.
    Cut {
        process: usize,
        server: usize,
    },
    /// One of the open connections of a process ends: its first, its second, and so on.
    CutOne {
        process: usize,
        which: usize,
    },
    /// The server refuses commands, or no longer.
    Refuse(usize, Option<Refusal>),
    /// The server is a replica of a master that does not exist, or a master again.
    Demote(usize, bool),
    /// The replica becomes the master, with what it has.
    Promote(usize),
    /// The slot of a key begins to move to another master, for about this time.
    MoveSlot(&'static str, Duration),
    /// Nothing arrives between a process and a server, or all does.
    Block {
        process: usize,
        server: usize,
        is_blocked: bool,
    },
    /// The replica gets nothing from its master, or all of it.
    Lag(usize, bool),
    /// The server or sentinel learns of no failover, or of those that it has missed.
    CutOff(usize, bool),
    /// The sentinel names a master beside the true one.
    Misname {
        sentinel: usize,
        server: usize,
    },
    /// The links between a process and a server lose something. Or they are whole again, and the connections of which
    /// something may be lost end.
    LinksTo {
        process: usize,
        server: usize,
        fault: Option<LinkFault>,
    },
    /// The connections of a process to a server end, but what it has sent still arrives.
    Abandon {
        process: usize,
        server: usize,
    },
    /// The server admits no further client, or as many as there come.
    Fill(usize, bool),
    /// The server says this to each further client, and closes the connection. Or it admits all.
    Greet(usize, Option<&'static [u8]>),
    /// The process has another time of day.
    SetTimeOfDay {
        process: usize,
        by: Duration,
        is_back: bool,
    },
    /// New connections to a server reach another one.
    Redirect {
        from: usize,
        to: usize,
    },
    /// All that is sent on the open connections of a process vanishes, without a sign at either end.
    ForgetConnections(usize),
    /// The process may start this number of further threads, or any number.
    LimitThreads(usize, Option<u64>),
}

/// The world of a test.
#[derive(Clone)]
pub(crate) struct World(Arc<dyn Machinery>);

/// A manager of a process of its own.
#[derive(Clone)]
pub(crate) struct Locks {
    manager: LockManager,
    process: usize,
    world: World,
}

/// The result of a thread.
pub(crate) struct Task<T> {
    result: Arc<Mutex<Option<T>>>,
    world: World,
}

/// What a thread waits for, until another raises it.
#[derive(Clone)]
pub(crate) struct Flag {
    is_raised: Arc<AtomicBool>,
    world: World,
}

impl World {
    pub(crate) fn new(machinery: impl Machinery + 'static) -> Self {
        Self(Arc::new(machinery))
    }

    pub(crate) fn topology(&self) -> Topology {
        self.0.topology()
    }

    /// Returns a name that no other test uses.
    pub(crate) fn name(&self, what: &str) -> String {
        self.0.unique(what)
    }

    /// Returns the time since the begin of the test.
    pub(crate) fn now(&self) -> Duration {
        self.0.now()
    }

    /// Returns the same time by the clock of programs.
    pub(crate) fn instant(&self) -> Instant {
        self.0.instant()
    }

    pub(crate) fn time_of_day(&self) -> SystemTime {
        self.0.time_of_day()
    }

    /// Makes the thread sleep.
    pub(crate) fn pass(&self, length: Duration) {
        self.0.pass(length);
    }

    /// Makes the thread sleep until this time.
    pub(crate) fn pass_until(&self, at: Duration) {
        self.pass(at.saturating_sub(self.now()));
    }

    /// Returns the latest time for what is due after `bound`: in the simulated world a few round trips later.
    pub(crate) fn within(&self, bound: Duration) -> Duration {
        bound + self.0.tolerance()
    }

    /// Returns the latest time for what happens at `bound` inside a process, without a message: in the simulated world
    /// less than 1 µs later.
    pub(crate) fn promptly(&self, bound: Duration) -> Duration {
        bound + self.0.oversleeps()
    }

    /// Returns the latest time for the grant to a waiter of a lock that comes free at `bound`. On a quorum it comes free at
    /// one node after the other, so the votes may be split. Then the waiter asks again, at the latest with its next poll.
    pub(crate) fn granted_by(&self, bound: Duration) -> Duration {
        match self.topology() {
            Topology::Quorum => self.within(bound + secs(1)),
            _ => self.within(bound),
        }
    }

    /// Blocks until a condition is true.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let begun = self.now();
        while !condition() {
            let waited = self.now().saturating_sub(begun);
            assert!(waited < PATIENCE, "it never came: {what}");
            self.0
                .glance((waited / 50).clamp(*PAUSES.start(), *PAUSES.end()));
        }
    }

    /// Blocks until there is a message.
    #[track_caller]
    pub(crate) fn recv<T>(&self, from: &Receiver<T>) -> T {
        self.recv_or_end(from).expect("a message")
    }

    /// Blocks until there is a message, or the end of the channel. Then returns `None`.
    #[track_caller]
    pub(crate) fn recv_or_end<T>(&self, from: &Receiver<T>) -> Option<T> {
        let mut received = None;
        self.until("a message, or the end of the channel", || {
            received = match from.try_recv() {
                Ok(message) => Some(Some(message)),
                Err(TryRecvError::Disconnected) => Some(None),
                Err(TryRecvError::Empty) => None,
            };
            received.is_some()
        });
        received.expect("it was waited for")
    }

    pub(crate) fn flag(&self) -> Flag {
        Flag {
            is_raised: Arc::default(),
            world: self.clone(),
        }
    }

    /// Returns a manager of a new process.
    #[track_caller]
    pub(crate) fn manager(&self) -> Locks {
        self.build(|builder| builder)
    }

    /// Does the same with other settings.
    #[track_caller]
    pub(crate) fn build(&self, change: impl FnOnce(Builder) -> Builder) -> Locks {
        let process = self.0.start_process();
        self.manager_of(process, change(self.0.builder(process)))
    }

    /// Tries to make a manager of a new process. The settings may be others than those for the servers of this world.
    pub(crate) fn try_build(
        &self,
        change: impl FnOnce(Builder) -> Builder,
    ) -> leasehold::Result<Locks> {
        let process = self.0.start_process();
        let manager = self.0.build(process, change(self.0.builder(process)))?;
        Ok(Locks {
            manager,
            process,
            world: self.clone(),
        })
    }

    /// Tries to make a manager of a new process that may start only so many threads.
    pub(crate) fn try_build_with_threads(&self, threads: u64) -> leasehold::Result<Locks> {
        let process = self.0.start_process();
        self.fault(Fault::LimitThreads(process, Some(threads)));
        let manager = self.0.build(process, self.0.builder(process))?;
        Ok(Locks {
            manager,
            process,
            world: self.clone(),
        })
    }

    /// Returns a manager of a new process, which sends nothing yet.
    #[track_caller]
    pub(crate) fn build_lazy(&self, change: impl FnOnce(Builder) -> Builder) -> Locks {
        let process = self.0.start_process();
        let builder = change(self.0.builder(process));
        let built = self.0.build_lazy(process, builder);
        Locks {
            manager: built.expect("the settings are right"),
            process,
            world: self.clone(),
        }
    }

    /// Returns a manager with the rights of a user of the only server.
    #[track_caller]
    pub(crate) fn manager_as(&self, user: &str, password: &str) -> Locks {
        self.build_as(user, password, |builder| builder)
    }

    /// Does the same with other settings.
    #[track_caller]
    pub(crate) fn build_as(
        &self,
        user: &str,
        password: &str,
        change: impl FnOnce(Builder) -> Builder,
    ) -> Locks {
        let process = self.0.start_process();
        let builder = self.0.builder_of(process, user, password);
        self.manager_of(process, change(builder))
    }

    #[track_caller]
    fn manager_of(&self, process: usize, builder: Builder) -> Locks {
        let built = self.0.build(process, builder);
        Locks {
            manager: built.expect("the server is there"),
            process,
            world: self.clone(),
        }
    }

    /// Returns the servers as an operator sees them.
    pub(crate) fn redis(&self) -> Redis {
        Redis::to(ServersOf::new(self, 0..self.servers()))
    }

    /// Returns one server as an operator sees it.
    pub(crate) fn redis_at(&self, server: usize) -> Redis {
        Redis::to(ServersOf::new(self, [server]))
    }

    /// Returns the server that has the keys of a name.
    pub(crate) fn master(&self, name: &str) -> usize {
        self.0.members(name)[0]
    }

    /// Returns the replicas of that server, as the last failover has left them.
    pub(crate) fn replicas(&self, name: &str) -> Vec<usize> {
        self.0.members(name).split_off(1)
    }

    /// Returns how many writes a server has received whole.
    pub(crate) fn received(&self, server: usize) -> u64 {
        self.0.received(server)
    }

    /// Returns how often processes have tried to connect to a server.
    pub(crate) fn connects(&self, server: usize) -> u64 {
        self.0.connects(server)
    }

    /// Returns how many lines all processes have written to the log, without those for debugging.
    pub(crate) fn log_lines(&self) -> u64 {
        self.0.log_lines()
    }

    /// Adds servers, for a quorum or for an address that will lead elsewhere, until there are so many. Managers that are built later have all of them.
    pub(crate) fn make_nodes(&self, count: usize) {
        self.0.make_nodes(count);
    }

    /// Returns the number of servers that have keys of locks.
    pub(crate) fn servers(&self) -> usize {
        self.0.servers()
    }

    pub(crate) fn execute(
        &self,
        server: usize,
        command: &[&str],
    ) -> redis::RedisResult<redis::Value> {
        self.0.execute(server, command)
    }

    pub(crate) fn fault(&self, fault: Fault) {
        self.0.fault(fault);
    }

    fn each_server(&self, fault: impl Fn(usize) -> Fault) {
        (0..self.servers()).for_each(|server| self.fault(fault(server)));
    }

    /// Makes all servers do nothing.
    pub(crate) fn pause_servers(&self) {
        self.each_server(Fault::PauseServer);
    }

    pub(crate) fn resume_servers(&self) {
        self.each_server(Fault::ResumeServer);
    }

    /// Stops all servers. They keep their data.
    pub(crate) fn stop_servers(&self) {
        self.each_server(Fault::StopServer);
    }

    pub(crate) fn start_servers(&self) {
        self.each_server(|server| Fault::StartServer {
            server,
            has_data: true,
        });
    }

    /// Restarts all servers without their data.
    pub(crate) fn restart_servers_empty(&self) {
        self.each_server(|server| Fault::StartServer {
            server,
            has_data: false,
        });
    }

    /// Makes the only server refuse commands by this error.
    pub(crate) fn refuse(&self, what: Refused, error: &'static str) {
        self.fault(Fault::Refuse(0, Some(Refusal { what, error })));
    }

    pub(crate) fn refuse_nothing(&self) {
        self.fault(Fault::Refuse(0, None));
    }

    /// Makes the only server a replica of a master that does not exist, or a master again.
    pub(crate) fn demote(&self, is_replica: bool) {
        self.fault(Fault::Demote(0, is_replica));
    }

    /// Sets the clock of the only server forward.
    pub(crate) fn set_clock_forward(&self, by: Duration) {
        self.fault(Fault::SetClock {
            server: 0,
            by,
            is_back: false,
        });
    }

    pub(crate) fn set_clock_back(&self, by: Duration) {
        self.fault(Fault::SetClock {
            server: 0,
            by,
            is_back: true,
        });
    }
}

impl Locks {
    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    /// Runs `f` on a thread of the process.
    pub(crate) fn thread<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Task<T> {
        let result = Arc::new(Mutex::new(None));
        let told = Arc::clone(&result);
        let run = move || {
            let value = f();
            *locked(&told) = Some(value);
        };
        self.world.0.spawn(self.process, Box::new(run));
        Task {
            result,
            world: self.world.clone(),
        }
    }

    /// Lets no thread of the process run until [`resume`](Self::resume).
    pub(crate) fn pause(&self) {
        self.world.fault(Fault::PauseProcess(self.process));
    }

    /// Lets the process start any number of threads.
    pub(crate) fn lift_thread_limit(&self) {
        self.world.fault(Fault::LimitThreads(self.process, None));
    }

    pub(crate) fn resume(&self) {
        self.world.fault(Fault::ResumeProcess(self.process));
    }

    /// Kills the process. The servers notice it at once.
    pub(crate) fn kill(&self) {
        self.world.fault(Fault::KillProcess(self.process));
    }

    /// Makes the links of the process lose something.
    pub(crate) fn strike(&self, fault: LinkFault) {
        self.world
            .fault(Fault::Links(self.process, None, Some(fault)));
    }

    /// Makes the links that the process uses for something lose something.
    pub(crate) fn strike_on(&self, role: Role, fault: LinkFault) {
        self.world
            .fault(Fault::Links(self.process, Some(role), Some(fault)));
    }

    /// Makes the links of the process whole again.
    pub(crate) fn heal(&self) {
        self.world.fault(Fault::Links(self.process, None, None));
    }

    /// Blocks until the fault of the links has taken something.
    #[track_caller]
    pub(crate) fn wait_until_struck(&self) {
        let lost = || self.world.0.lost_by(self.process, None) > 0;
        self.world.until("the links lose something", lost);
    }

    /// Blocks until the fault of such links has taken something.
    #[track_caller]
    pub(crate) fn wait_until_struck_on(&self, role: Role) {
        let lost = || self.struck_on(role) > 0;
        self.world.until("such a link loses something", lost);
    }

    /// Returns how much such links have lost since their fault began.
    pub(crate) fn struck_on(&self, role: Role) -> u64 {
        self.world.0.lost_by(self.process, Some(role))
    }

    /// Lets nothing arrive between the process and a server, or lets all arrive that is on its way.
    pub(crate) fn block(&self, server: usize, is_blocked: bool) {
        self.world.fault(Fault::Block {
            process: self.process,
            server,
            is_blocked,
        });
    }

    /// Ends the connections of the process to a server.
    pub(crate) fn cut(&self, server: usize) {
        self.world.fault(Fault::Cut {
            process: self.process,
            server,
        });
    }

    /// Ends one of the open connections of the process: its first, its second, and so on.
    pub(crate) fn cut_one(&self, which: usize) {
        self.world.fault(Fault::CutOne {
            process: self.process,
            which,
        });
    }

    /// Makes all that is sent on the open connections of the process vanish, as a router does that has forgotten them.
    pub(crate) fn forget_connections(&self) {
        self.world.fault(Fault::ForgetConnections(self.process));
    }

    /// Makes the links of the process to some servers lose something.
    pub(crate) fn strike_at(&self, servers: &[usize], fault: LinkFault) {
        self.set_links_to(servers, Some(fault));
    }

    /// Makes the links to these servers whole again. The connections of which something may be lost end.
    pub(crate) fn heal_at(&self, servers: &[usize]) {
        self.set_links_to(servers, None);
    }

    fn set_links_to(&self, servers: &[usize], fault: Option<LinkFault>) {
        for server in servers {
            self.world.fault(Fault::LinksTo {
                process: self.process,
                server: *server,
                fault,
            });
        }
    }

    /// Blocks until the fault of the links to a server has taken something.
    #[track_caller]
    pub(crate) fn wait_until_struck_at(&self, server: usize) {
        let lost = || self.struck_at(server) > 0;
        self.world.until("the link loses something", lost);
    }

    /// Returns how much the links to a server have lost since their fault began.
    pub(crate) fn struck_at(&self, server: usize) -> u64 {
        self.world.0.lost_at(self.process, server)
    }

    /// Ends the connections of the process to a server. What it has sent there still arrives.
    pub(crate) fn abandon(&self, server: usize) {
        self.world.fault(Fault::Abandon {
            process: self.process,
            server,
        });
    }

    /// Sets the time of day of the process.
    pub(crate) fn set_time_of_day(&self, by: Duration, is_back: bool) {
        self.world.fault(Fault::SetTimeOfDay {
            process: self.process,
            by,
            is_back,
        });
    }
}

impl Deref for Locks {
    type Target = LockManager;

    fn deref(&self) -> &LockManager {
        &self.manager
    }
}

impl<T> Task<T> {
    /// Returns the result of the thread, which must end.
    #[track_caller]
    pub(crate) fn end(self) -> T {
        self.world.until("the thread ends", || self.has_ended());
        locked(&self.result).take().expect("it has ended")
    }

    pub(crate) fn has_ended(&self) -> bool {
        locked(&self.result).is_some()
    }
}

impl Flag {
    pub(crate) fn raise(&self) {
        self.is_raised.store(true, Ordering::SeqCst);
        self.world.0.raise(&self.is_raised);
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.is_raised.load(Ordering::SeqCst)
    }

    pub(crate) fn wait(&self) {
        self.world.0.wait_for_flag(&self.is_raised);
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
