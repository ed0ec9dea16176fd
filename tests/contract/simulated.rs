//! A world in simulated time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use leasehold::{Builder, LockManager};
use leasehold_simulator::{Role, Stage, Topology};

use crate::world::{Fault, Machinery, ms};

/// What a request and its answer take at most, each perhaps in several pieces, for a few requests in a row.
const ROUND_TRIPS: Duration = ms(60);

const FULL: &[u8] = b"-ERR max number of clients reached\r\n";

/// The clocks of processes round each sleep up to the next nanosecond.
const ROUNDING: Duration = Duration::from_micros(1);

pub(crate) struct Simulated {
    stage: Stage,
}

impl Simulated {
    pub(crate) fn new(stage: Stage) -> Self {
        Self { stage }
    }
}

impl Machinery for Simulated {
    fn topology(&self) -> Topology {
        self.stage.topology()
    }

    fn now(&self) -> Duration {
        self.stage.now()
    }

    fn instant(&self) -> Instant {
        self.stage.instant()
    }

    fn time_of_day(&self) -> SystemTime {
        self.stage.time_of_day()
    }

    fn tolerance(&self) -> Duration {
        ROUND_TRIPS
    }

    fn pass(&self, length: Duration) {
        self.stage.pass(length);
    }

    fn glance(&self, limit: Duration) {
        self.stage.pass_to_quiet(limit);
    }

    fn wait_for_flag(&self, flag: &AtomicBool) {
        while !flag.load(Ordering::SeqCst) {
            self.stage.wait_at(std::ptr::from_ref(flag).addr());
        }
    }

    fn raise(&self, flag: &AtomicBool) {
        self.stage.wake(std::ptr::from_ref(flag).addr());
    }

    /// The world has no other test.
    fn unique(&self, what: &str) -> String {
        what.to_owned()
    }

    fn start_process(&self) -> usize {
        self.stage.start_process()
    }

    fn builder(&self, _: usize) -> Builder {
        let builder = self.stage.builder();
        match self.topology() {
            // Its nodes vote at once after a restart, as new ones do.
            Topology::Quorum => builder.restart_delay(Duration::ZERO),
            _ => builder,
        }
    }

    fn build(&self, process: usize, builder: Builder) -> leasehold::Result<LockManager> {
        self.stage.build(process, builder)
    }

    fn spawn(&self, process: usize, run: Box<dyn FnOnce() + Send>) {
        self.stage.spawn(process, run);
    }

    fn servers(&self) -> usize {
        self.stage.servers()
    }

    fn execute(&self, server: usize, command: &[&str]) -> redis::RedisResult<redis::Value> {
        let answer = self.stage.execute(server, command);
        redis::parse_redis_value(&answer)?.extract_error()
    }

    fn builder_of(&self, _: usize, user: &str, password: &str) -> Builder {
        let builder = self.stage.builder_of(user, password);
        match self.topology() {
            // As above.
            Topology::Quorum => builder.restart_delay(Duration::ZERO),
            _ => builder,
        }
    }

    fn fault(&self, fault: Fault) {
        let stage = &self.stage;
        match fault {
            Fault::PauseProcess(process) => stage.pause(process),
            Fault::ResumeProcess(process) => stage.go_on(process),
            Fault::KillProcess(process) => stage.kill(process),
            Fault::PauseServer(server) => stage.stall(server),
            Fault::ResumeServer(server) => stage.end_stall(server),
            Fault::StopServer(server) => stage.stop(server),
            Fault::StartServer { server, has_data } => stage.restart(server, has_data),
            Fault::SetClock {
                server,
                by,
                is_back,
            } => stage.set_clock(server, by, is_back),
            Fault::Links(process, role, fault) => stage.lose(process, role, fault),
            Fault::Cut { process, server } => stage.cut(process, server),
            Fault::CutOne { process, which } => stage.cut_one(process, which),
            Fault::Refuse(server, refusal) => stage.refuse(server, refusal),
            Fault::Demote(server, is_replica) => stage.demote(server, is_replica),
            Fault::Promote(replica) => stage.promote(replica),
            Fault::MoveSlot(key, length) => stage.move_slot(key, length),
            Fault::Block {
                process,
                server,
                is_blocked,
            } => stage.block(process, server, is_blocked),
            Fault::Lag(replica, is_late) => stage.lag(replica, is_late),
            Fault::CutOff(server, is_cut_off) => stage.cut_off(server, is_cut_off),
            Fault::Misname { sentinel, server } => stage.misname(sentinel, server),
            Fault::LinksTo {
                process,
                server,
                fault,
            } => stage.lose_at(process, server, fault),
            Fault::Abandon { process, server } => stage.abandon(process, server),
            Fault::Fill(server, is_full) => {
                stage.greet(server, is_full.then_some(FULL));
            }
            Fault::Greet(server, greeting) => stage.greet(server, greeting),
            Fault::SetTimeOfDay {
                process,
                by,
                is_back,
            } => stage.set_time_of_day(process, by, is_back),
            Fault::Redirect { from, to } => stage.redirect(from, to),
            Fault::ForgetConnections(process) => stage.forget_connections(process),
            Fault::LimitThreads(process, threads) => stage.limit_threads(process, threads),
        }
    }

    fn members(&self, name: &str) -> Vec<usize> {
        self.stage.members(name)
    }

    fn received(&self, server: usize) -> u64 {
        self.stage.received(server)
    }

    fn connects(&self, server: usize) -> u64 {
        self.stage.connects(server)
    }

    fn log_lines(&self) -> u64 {
        self.stage.log_lines()
    }

    fn lost_by(&self, process: usize, role: Option<Role>) -> u64 {
        self.stage.lost_by(process, role)
    }

    fn make_nodes(&self, count: usize) {
        self.stage.make_nodes(count);
    }

    fn build_lazy(&self, process: usize, builder: Builder) -> leasehold::Result<LockManager> {
        self.stage.build_lazy(process, builder)
    }

    fn lost_at(&self, process: usize, server: usize) -> u64 {
        self.stage.lost_at(process, server)
    }

    fn oversleeps(&self) -> Duration {
        ROUNDING
    }
}
