//! Claims, while requests of the guard or of an adoption are without an answer.

use leasehold_simulator::{LinkFault, Topology};

use crate::matrix::{Subject, subject_bodies};
use crate::subject::{is_unreachable, lost};
use crate::world::{World, secs};

pub(crate) const BODIES: Subject = (
    "detached",
    &[Topology::Single, Topology::Cluster],
    subject_bodies![
        a_claim_has_a_new_owner_if_a_request_of_the_old_one_may_come_late,
        each_adoption_without_an_answer_is_repeated_by_the_next_call,
    ],
);

/// A late request of the guard's owner would take the lock again, after the adopter has released it.
fn a_claim_has_a_new_owner_if_a_request_of_the_old_one_may_come_late(world: &World) {
    let redis = world.redis();
    for (name, is_cut, adopts) in [
        ("undisturbed", false, true),
        ("late", true, true),
        ("late-again", true, false),
    ] {
        let name = world.name(name);
        let (locks, other) = (world.build(|it| it.io_timeout(secs(2))), world.manager());
        let theirs = other.lock(&name).expect("it is free");
        let mutex = locks.mutex(&name).lease(secs(60));
        let (ask, asked) = (world.flag(), world.flag());
        let asking = {
            let (ask, asked) = (ask.clone(), asked.clone());
            locks.thread(move || {
                let guard = mutex.lock().expect("it becomes free");
                asked.raise();
                ask.wait();
                (guard.owner().to_owned(), guard.fence(), guard.detach())
            })
        };
        redis.wait_until_queued(&name, 1);
        if is_cut {
            locks.strike(LinkFault::LoseAnswers);
            locks.wait_until_struck();
            world.pass(secs(4));
            locks.heal();
        }
        theirs.release().expect("it is held");
        asked.wait();
        if !adopts {
            locks.strike(LinkFault::LoseRequests);
        }
        ask.raise();
        let (owner, fence, claim) = asking.end();
        locks.heal();
        assert_eq!(claim.fence(), fence);
        assert_eq!(claim.owner() != owner, is_cut && adopts, "{name}");
        let adopted = other.adopt(&claim).expect("nobody else has");
        assert!(adopted.fence() > fence);
        adopted.release().expect("it is held");
        assert!(locks.close(secs(30)), "something is left to send");
        assert!(!redis.exists(&name));
    }
}

fn each_adoption_without_an_answer_is_repeated_by_the_next_call(world: &World) {
    let name = world.name("twice");
    let (owner, locks) = (world.manager(), world.build(|it| it.io_timeout(secs(2))));
    let claim = owner.lock(&name).expect("it is free").detach();
    // A server that lacks the script replies with an error first.
    drop(locks.adopt(&owner.lock("first").expect("it is free").detach()));
    locks.strike(LinkFault::LoseAnswers);
    let both = [(); 2].map(|()| {
        let (manager, claim) = (locks.clone(), claim.clone());
        locks.thread(move || manager.adopt(&claim).map(drop))
    });
    for adopting in both {
        let failed = adopting.end();
        assert!(failed.as_ref().is_err_and(is_unreachable), "{failed:?}");
    }
    locks.heal();
    let adopted = locks.adopt(&claim).expect("one of the two has it");
    assert!(adopted.fence() > claim.fence());
    // Its owner is not used again, neither while the guard lives nor after it.
    lost(locks.adopt(&claim));
    adopted.release().expect("it is held");
    lost(locks.adopt(&claim));
    assert!(locks.try_lock(&name).expect("asked").is_some());
}
