//! What a manager believes sentinels, and the servers that they name. `failovers` has the failovers.

use leasehold::{Error, LockManager, LostCause};
use leasehold_simulator::{Refusal, Refused, Topology};

use crate::failovers::locked_at_last;
use crate::matrix::{Subject, subject_bodies};
use crate::redis::fence_of;
use crate::world::{Fault, World, secs};

pub(crate) const BODIES: Subject = (
    "sentinel",
    &[Topology::Sentinel],
    subject_bodies![
        sentinels_that_hang_lie_or_are_dead_stop_no_lock,
        a_master_that_the_sentinels_do_not_know_is_an_error,
        an_error_names_the_server_that_failed_and_who_has_named_it,
        the_answers_of_a_demoted_master_are_not_believed,
    ],
);

const NAME: &str = "n";
const MASTER: usize = 0;
/// The last of the replicas.
const STRANGER: usize = 2;
const SENTINELS: [usize; 3] = [3, 4, 5];

fn sentinel_urls() -> [String; 3] {
    SENTINELS.map(url)
}

fn url(server: usize) -> String {
    format!("redis://10.0.0.{}:6379", server + 1)
}

fn sentinels_that_hang_lie_or_are_dead_stop_no_lock(world: &World) {
    let known = world.manager();
    let mut fence = locked_at_last(world, &known, NAME);
    let mut goes_on = |name: &str| {
        let begun = world.now();
        let next = locked_at_last(world, &world.manager(), NAME);
        assert!(world.now() <= world.within(begun), "{name}");
        assert!(next > fence, "{name}");
        fence = next;
    };
    let [first, second, third] = SENTINELS;
    // One hangs: the others are a majority.
    world.fault(Fault::PauseServer(first));
    goes_on("hangs");
    // One lies about the master.
    world.fault(Fault::ResumeServer(first));
    world.fault(Fault::Misname {
        sentinel: first,
        server: STRANGER,
    });
    let stranger = world.redis_at(STRANGER);
    let () = stranger.ask(&["FLUSHALL"]);
    goes_on("lies");
    assert!(!stranger.exists(&fence_of(NAME)));
    // With no majority alive, a manager goes on that knows the master, even if its connections break.
    world.fault(Fault::StopServer(second));
    world.fault(Fault::StopServer(third));
    known.cut(MASTER);
    assert!(locked_at_last(world, &known, NAME) > fence);
    assert!(!stranger.exists(&fence_of(NAME)));
    let begun = world.now();
    let new = world.try_build(|it| it.connect_timeout(secs(2)));
    let error = new.map(drop).expect_err("no majority names a master");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(world.now() <= world.within(begun + secs(2)));
}

fn a_master_that_the_sentinels_do_not_know_is_an_error(world: &World) {
    let unknown = world.try_build(|_| LockManager::sentinel(sentinel_urls(), "other"));
    let error = unknown.map(drop).expect_err("there is none");
    let is_of = |error: &Error, wrong: &str| matches!(error, Error::Config { option, .. } if *option == wrong);
    assert!(is_of(&error, "master"), "{error:?}");
    let dead = world.try_build(|_| LockManager::sentinel([url(99)], "mine"));
    let error = dead.map(drop).expect_err("nobody answers");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    // A server that is no sentinel does not answer as one.
    let wrong = world.try_build(|_| LockManager::sentinel([url(MASTER)], "mine"));
    let error = wrong.map(drop).expect_err("it is no sentinel");
    assert!(is_of(&error, "sentinels"), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("10.0.0.1:6379 is not a sentinel"), "{text}");
}

/// The sentinels are well, and the master is at an address that this process does not reach, for example.
fn an_error_names_the_server_that_failed_and_who_has_named_it(world: &World) {
    let says = |parts: &[&str]| {
        let built = world.try_build(|it| it.connect_timeout(secs(2)));
        let error = built.map(drop).expect_err("no master can be used");
        let said = format!("{error:#}");
        assert!(
            parts.iter().all(|part| said.contains(part)),
            "{parts:?}: {said}"
        );
        assert!(!said.contains("no sentinel"), "{said}");
    };
    // Two of the sentinels have answered by then, or all.
    let named = "6379 named 10.0.0.1:6379 as the master \"mine\"";
    world.fault(Fault::PauseServer(MASTER));
    says(&[named, "which has not answered yet"]);
    world.fault(Fault::ResumeServer(MASTER));
    world.fault(Fault::StopServer(MASTER));
    says(&[named, "the connection to 10.0.0.1:6379 failed"]);
    world.fault(Fault::StartServer {
        server: MASTER,
        has_data: true,
    });
    world.fault(Fault::Demote(MASTER, true));
    says(&[named, "10.0.0.1:6379 is not a master"]);
    world.fault(Fault::Demote(MASTER, false));
    // The sentinels do not agree.
    let [first, second, third] = SENTINELS;
    world.fault(Fault::Misname {
        sentinel: first,
        server: STRANGER,
    });
    world.fault(Fault::StopServer(third));
    says(&[
        "no majority of the sentinels names the same master \"mine\": 10.0.0.4:6379 names 10.0.0.3:6379; \
            10.0.0.5:6379 names 10.0.0.1:6379; the connection to 10.0.0.6:6379 failed",
    ]);
    // They refuse.
    for sentinel in [first, second] {
        let (what, error) = (Refused::All, "NOAUTH Authentication required.");
        world.fault(Fault::Refuse(sentinel, Some(Refusal { what, error })));
    }
    says(&["the server denies access: asking 10.0.0.", ":6379: NOAUTH"]);
}

/// A server that has become a replica has only the data of its master, and rejects writes.
fn the_answers_of_a_demoted_master_are_not_believed(world: &World) {
    let (locks, other) = (world.manager(), world.manager());
    locked_at_last(world, &locks, NAME);
    let mutex = locks.mutex(NAME).lease(secs(600));
    let guard = mutex.lock().expect("it is free");
    let () = world.redis_at(MASTER).ask(&["FLUSHALL"]);
    world.fault(Fault::Demote(MASTER, true));
    // It has neither the key nor a right to write: "gone" and "free" would be old or wrong.
    let is_unavailable = |error: &Error| matches!(error, Error::Unavailable { .. });
    let extended = guard.extend(secs(1200));
    assert!(extended.as_ref().is_err_and(is_unavailable), "{extended:?}");
    guard.check().expect("no master has said that it is lost");
    let tried = other.try_lock(NAME);
    assert!(tried.as_ref().is_err_and(is_unavailable), "{tried:?}");
    let seen = other.inspect(NAME);
    assert!(seen.as_ref().is_err_and(is_unavailable), "{seen:?}");
    // When it is a master again, its answers count.
    world.fault(Fault::Demote(MASTER, false));
    assert!(locked_at_last(world, &other, NAME) > guard.fence());
    world.until("the holder asks the master again", || {
        match guard.extend(secs(1200)) {
            Err(Error::Lost(loss)) => loss.cause == LostCause::Removed,
            Err(error) if is_unavailable(&error) => false,
            other => panic!("{other:?}"),
        }
    });
}
