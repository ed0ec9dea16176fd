//! Which reply may come from a replica.

use super::*;
use crate::message::{AcquireMode, Ask, Gone, LockKind, NotReleased};
use crate::name::{LockKey, Target};

fn acquire(channel: Option<&str>) -> Verb {
    Verb::Acquire {
        ask: Ask {
            owner: "o".into(),
            units: 1,
            lease: Duration::from_secs(1),
            fences: 1,
            shareable_owner: None,
            channel: channel.map(Into::into),
            nonce: None,
        },
        mode: AcquireMode::TakeFree,
    }
}

/// A replica rejects each write. So only a reply to a request that wrote nothing may come from one.
#[test]
fn a_reply_that_proves_a_write_is_that_of_a_master() {
    let target = Target::from(LockKey::new("", "n").expect("a name"));
    let release = Verb::Release {
        owner: "o".into(),
        units: 1,
    };
    let (waits, tries) = (acquire(Some("c")), acquire(None));
    let about = |verb| Request::Lock {
        kind: LockKind::Mutex,
        target: &target,
        verb,
    };
    let granted = Reply::Granted {
        fence: 1,
        count: None,
        rest: Vec::new(),
        contended: false,
    };
    let held = Reply::Held {
        ttl: None,
        holder: "h".into(),
        handed_over: false,
    };
    let done = Renewed::Done { contended: false };
    let gone = Renewed::Gone(Gone::Removed);
    let not_owner = Reply::NotOwner(Gone::Taken);
    for (request, reply, expected) in [
        (about(&tries), granted, false),
        (about(&tries), held.clone(), true),
        // The script enters a waiter in the queue.
        (about(&waits), held, false),
        (about(&release), Reply::Released, false),
        (about(&release), Reply::HandedOver, false),
        (about(&release), Reply::Contended, true),
        (about(&release), not_owner.clone(), true),
        (Request::Renew(&[]), Reply::Renewed(vec![done, done]), false),
        (Request::Renew(&[]), Reply::Renewed(vec![done, gone]), true),
        (
            Request::Release(&[]),
            Reply::Each(vec![Ok(Reply::Released), Err(NotReleased::Refused)]),
            false,
        ),
        (
            Request::Release(&[]),
            Reply::Each(vec![Ok(not_owner)]),
            true,
        ),
        (Request::Ping, Reply::Pong, true),
    ] {
        let found = may_come_from_a_replica(&request, &reply);
        assert_eq!(found, expected, "{request:?}: {reply:?}");
    }
}
