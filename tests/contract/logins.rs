//! A server that refuses connections: how often a process with many leases, releases and calls tries to connect, what it
//! logs and tells, and how soon it sees that the server is back.

use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use leasehold::{Connection, Error, Event, EventKind, LeaseState};
use leasehold_simulator::{Refusal, Refused, Topology};

use crate::matrix::{Subject, subject_bodies};
use crate::subject::{Guard, Kind};
use crate::world::{Fault, Locks, World, ms, secs};

pub(crate) const BODIES: Subject = (
    "logins",
    &[Topology::Single, Topology::Cluster, Topology::Quorum],
    subject_bodies![a_changed_password_makes_no_storm_of_logins],
);

pub(crate) const BODIES_OF_ONE: Subject = (
    "logins",
    &[Topology::Single],
    subject_bodies![
        each_refusal_of_a_connection_is_told_once_and_costs_no_lease,
        an_hour_of_refusal_takes_a_login_a_second,
        rights_taken_from_many_leases_make_no_logins,
    ],
);

const USER: &str = "user";
const PASSWORD: &str = "us3r-s3cret";
const LEASE: Duration = secs(30);

/// The attempts to connect in the first seconds, in which the pauses grow. They begin at the time of a refusal, which may
/// be 0.1 ms.
const FIRST_ATTEMPTS: u64 = 60;
/// The attempts in a second to a node of a quorum, while somebody wants a majority: one every 50 ms.
const OF_A_NODE: u64 = 20;
/// Lines of the log about an outage and its end: of each server, by the renewal thread and the wakeup thread.
const LINES: u64 = 4;

/// A process with many leases.
struct Crowd {
    world: World,
    locks: Locks,
    guards: Vec<Guard>,
    /// The events about connections, with the connection.
    told: Receiver<(Connection, String)>,
    connects: u64,
    lines: u64,
}

impl Crowd {
    fn new(world: &World, leases: usize, lease: Duration) -> Self {
        on_each(
            world,
            &["reset", "on", &format!(">{PASSWORD}"), "~*", "&*", "+@all"],
        );
        let (tell, told) = unbounded();
        let locks = world.build_as(USER, PASSWORD, |it| {
            it.listener(move |event: &Event<'_>| {
                let (EventKind::Unreachable { connection, .. }
                | EventKind::Recovered { connection, .. }) = &event.kind
                else {
                    return;
                };
                tell.send((*connection, format!("{:?}", event.kind))).ok();
            })
        });
        let lock = |number| {
            Kind::Mutex
                .of(&locks, &format!("{number}"))
                .lease(lease)
                .lock()
        };
        let guards = (0..leases).map(|number| lock(number).expect("it is free"));
        let guards = guards.collect();
        Self {
            world: world.clone(),
            locks,
            guards,
            told,
            connects: connects(world),
            lines: world.log_lines(),
        }
    }

    /// Ends all connections of the process.
    fn cut(&self) {
        (0..self.world.servers()).for_each(|server| self.locks.cut(server));
    }

    /// Returns how often it has tried to connect since the last call, and how many lines it has logged.
    fn rates(&mut self) -> (u64, u64) {
        let (connects, lines) = (connects(&self.world), self.world.log_lines());
        let since = (connects - self.connects, lines - self.lines);
        (self.connects, self.lines) = (connects, lines);
        since
    }

    /// Returns the events of the renewal thread since the last call.
    fn told(&self) -> Vec<String> {
        let all = self.told.try_iter();
        let of_renewals = all.filter(|(connection, _)| *connection == Connection::Renewal);
        of_renewals.map(|(_, text)| text).collect()
    }

    #[track_caller]
    fn assert_all_held(&self) {
        // Each is renewed after a third of its lease, or a retry.
        self.world.pass(LEASE / 3);
        let is_held = |guard: &Guard| guard.lease().state() == LeaseState::Held;
        assert!(self.guards.iter().all(is_held));
    }
}

fn connects(world: &World) -> u64 {
    (0..world.servers())
        .map(|server| world.connects(server))
        .sum()
}

/// Changes the user on each server.
fn on_each(world: &World, rights: &[&str]) {
    for server in 0..world.servers() {
        let command = [&["ACL", "SETUSER", USER], rights].concat();
        world.execute(server, &command).expect("it is an operator");
    }
}

/// Renewals, releases and calls need a connection, and the password is wrong. Each half of a batch of renewals or releases
/// tried to log in for itself before, at once and without a pause.
fn a_changed_password_makes_no_storm_of_logins(world: &World) {
    let mut crowd = Crowd::new(world, 240, LEASE);
    let servers = world.servers() as u64;
    on_each(world, &["resetpass", ">another"]);
    crowd.cut();
    crowd.told();
    // These releases fail, each after an attempt of its own, and are repeated.
    let dropped = crowd.guards.split_off(160);
    let calls = dropped.len() as u64;
    drop(dropped);
    let time = 10;
    crowd.world.pass(secs(time));
    let (connects, lines) = crowd.rates();
    // Each guard that was dropped has a line of its own.
    let lines = lines - calls;
    let of_threads = match world.topology() {
        Topology::Quorum => OF_A_NODE,
        _ => 2,
    };
    assert!(
        connects <= servers * (FIRST_ATTEMPTS + time * of_threads + calls),
        "{connects}"
    );
    assert!((1..=servers * LINES).contains(&lines), "{lines}");
    let told = crowd.told();
    assert!((1..=servers as usize + 1).contains(&told.len()), "{told:?}");
    let says_why = |text: &String| text.contains("WRONGPASS");
    assert!(told.iter().all(says_why), "{told:?}");

    // A program that tries all the time makes one attempt with each try.
    let lock = Kind::Mutex.of(&crowd.locks, "wanted");
    let begun = world.now();
    for _ in 0..100 {
        let outcome = lock.try_lock();
        assert!(matches!(outcome, Err(Error::Denied { .. })), "{outcome:?}");
        world.pass(ms(10));
    }
    let (connects, lines) = crowd.rates();
    let time = world.now().saturating_sub(begun).as_secs() + 1;
    assert!(
        connects <= servers * (100 + (of_threads + 5) * time),
        "{connects} in {time} s"
    );
    assert_eq!(lines, 0);

    on_each(world, &["resetpass", &format!(">{PASSWORD}")]);
    let back_at = world.now();
    world.until("a call sees it", || lock.try_lock().is_ok());
    assert!(world.now() <= world.within(back_at + ms(100)));
    crowd.assert_all_held();
    let told = crowd.told();
    assert!((1..=servers as usize + 1).contains(&told.len()), "{told:?}");
    let are_of_the_end = |text: &String| text.starts_with("Recovered");
    assert!(told.iter().all(are_of_the_end), "{told:?}");
    let (_, lines) = crowd.rates();
    assert!(lines <= 2 * servers * LINES, "{lines}");
    crowd.guards.clear();
    assert!(crowd.locks.close(secs(30)), "something is left to send");
}

/// A way to refuse a connection, its end, and what is told of it.
type Way = (fn(&World), fn(&World), &'static str);

fn each_refusal_of_a_connection_is_told_once_and_costs_no_lease(world: &World) {
    const ALL_BY: fn(&World, &'static str) = |world, error| {
        let what = Refused::All;
        world.fault(Fault::Refuse(0, Some(Refusal { what, error })));
    };
    let ways: [Way; 6] = [
        (
            |world| on_each(world, &["off"]),
            |world| on_each(world, &["on"]),
            "WRONGPASS",
        ),
        // A proxy that has lost the login of its connections.
        (
            |world| ALL_BY(world, "NOAUTH Authentication required."),
            World::refuse_nothing,
            "rejects the login",
        ),
        (
            |world| ALL_BY(world, "DENIED Redis is running in protected mode."),
            World::refuse_nothing,
            "Unreachable",
        ),
        (
            |world| ALL_BY(world, "LOADING Redis is loading the dataset in memory"),
            World::refuse_nothing,
            "LOADING",
        ),
        (
            |world| world.fault(Fault::Fill(0, true)),
            |world| world.fault(Fault::Fill(0, false)),
            "max number of clients",
        ),
        (
            World::stop_servers,
            World::start_servers,
            "the connection to",
        ),
    ];
    let mut crowd = Crowd::new(world, 60, LEASE);
    for (begin, end, why) in ways {
        crowd.rates();
        crowd.told();
        begin(world);
        crowd.cut();
        let time = 15;
        world.pass(secs(time));
        let (connects, lines) = crowd.rates();
        assert!(connects <= FIRST_ATTEMPTS + 2 * time, "{why}: {connects}");
        assert!((1..=LINES).contains(&lines), "{why}: {lines}");
        let told = crowd.told();
        assert!(told.len() == 1 && told[0].contains(why), "{why}: {told:?}");
        end(world);
        crowd.assert_all_held();
        assert_eq!(crowd.told().len(), 1, "{why}");
    }
}

fn an_hour_of_refusal_takes_a_login_a_second(world: &World) {
    let hour = secs(3600);
    let mut crowd = Crowd::new(world, 40, hour * 3);
    // The renewals are due after a third of the lease.
    world.pass(secs(3_540));
    on_each(world, &["resetpass", ">another"]);
    crowd.cut();
    crowd.rates();
    crowd.told();
    let (received, requests) = (world.received(0), crowd.locks.stats().requests);
    world.pass(hour);
    let (connects, lines) = crowd.rates();
    let asked = world.received(0) - received;
    println!("{connects} attempts to connect, {asked} requests, {lines} lines");
    assert!(
        (3_000..3_600 + FIRST_ATTEMPTS).contains(&connects),
        "{connects}"
    );
    assert!(asked <= connects * 2, "{asked} arrived");
    assert!((1..=LINES).contains(&lines), "{lines}");
    assert_eq!(crowd.told().len(), 1);
    let requests = crowd.locks.stats().requests - requests;
    assert!(requests <= 5 * 3_600, "{requests}");
    on_each(world, &["resetpass", &format!(">{PASSWORD}")]);
    crowd.assert_all_held();
}

/// Such an answer is about one request, so a batch is sent again in halves. But not each of them on a new connection.
fn rights_taken_from_many_leases_make_no_logins(world: &World) {
    let mut crowd = Crowd::new(world, 120, LEASE);
    on_each(world, &["-evalsha", "-eval"]);
    let time = 20;
    world.pass(secs(time));
    let (connects, _) = crowd.rates();
    assert!(connects <= 2 * time, "{connects}");
    let told = crowd.told();
    assert!(told.is_empty(), "an answer is no outage: {told:?}");
    on_each(world, &["+evalsha", "+eval"]);
    crowd.assert_all_held();
}
