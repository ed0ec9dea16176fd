//! Readers, writers and permits.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use redis::Value;

use super::mutexes::MOST_PASSED;
use super::{CLAIM, Check, LEASE, LIFE, Redis, STALL, owner, run};

/// The units that a writer takes.
const ALL: u64 = 4_294_967_295;

const SHARE_RELEASE: &str = script!(
    "share_release_plain.lua",
    "value.lua",
    "queue.lua",
    "queue_waiter.lua",
    "queue_next.lua",
    "share.lua",
    "share_release.lua"
);
const FORCE_RELEASE: &str = script!(
    "value.lua",
    "queue.lua",
    "queue_waiter.lua",
    "queue_next.lua",
    "share.lua",
    "force_release.lua"
);
const INSPECT: &str = script!("value.lua", "inspect.lua");
const SHARE_ACQUIRE: &str = script!(
    "record.lua",
    "fence.lua",
    "share_acquire_free.lua",
    "value.lua",
    "value.lua",
    "queue.lua",
    "queue_waiter.lua",
    "queue_next.lua",
    "share.lua",
    "share_acquire.lua"
);

#[derive(Clone, Copy, Debug)]
enum Act {
    /// The owner asks. With `true` it waits, otherwise it tries.
    Acquire(usize, bool),
    Release(usize),
    Withdraw(usize),
    /// An operator breaks the owner's lock.
    Break(usize),
    Renew(usize),
    /// The lease of a holder expires, and no script has noticed it yet.
    Lapse(usize),
    /// Sets the last poll of a waiter back: by more than its pickup window, or by more than its life if `true`.
    Tire(usize, bool),
    /// One owner ends, and another takes over.
    TakeOver(usize, usize),
}

const OWNERS: usize = 7;

fn act() -> impl Strategy<Value = Act> {
    let who = || 0..OWNERS;
    prop_oneof![
        8 => (who(), prop::bool::weighted(0.8)).prop_map(|(who, waits)| Act::Acquire(who, waits)),
        4 => who().prop_map(Act::Release),
        1 => who().prop_map(Act::Withdraw),
        1 => who().prop_map(Act::Break),
        1 => who().prop_map(Act::Renew),
        1 => who().prop_map(Act::Lapse),
        1 => (who(), any::<bool>()).prop_map(|(who, dead)| Act::Tire(who, dead)),
        2 => (who(), who()).prop_map(|(from, to)| Act::TakeOver(from, to)),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    Now,
    Tired,
    Dead,
}

/// The model of a lock with `of` units: its holders, those of them whose lease expired, and its waiters in order.
struct Shares {
    of: u64,
    units: [u64; OWNERS],
    held: BTreeSet<usize>,
    run_out: BTreeSet<usize>,
    waiting: Vec<(usize, Seen)>,
    /// The last fence of a writer or a permit.
    fence: u64,
    blocks: BTreeMap<usize, (u64, u64)>,
}

impl Shares {
    fn used(&self) -> u64 {
        self.held.iter().map(|who| self.units[*who]).sum()
    }

    fn fits(&self, who: usize) -> bool {
        self.used() + self.units[who] <= self.of
    }

    /// Drops expired holders, as each request does first. Returns whether one was a writer.
    fn prune(&mut self) -> bool {
        let gone = std::mem::take(&mut self.run_out);
        let wrote = gone.iter().any(|who| self.units[*who] == ALL);
        self.held.retain(|who| !gone.contains(who));
        wrote
    }

    fn drop(&mut self, who: usize, wrote: &mut bool) -> bool {
        let held = self.held.remove(&who);
        *wrote |= held && self.units[who] == ALL;
        held
    }

    fn leave(&mut self, who: usize) {
        self.waiting.retain(|(other, _)| *other != who);
    }

    /// Grants waiters what is free. Returns whether any waiter but `me` was granted, and whether none must wait but those
    /// that were passed over.
    fn advance(&mut self, me: Option<usize>, wrote: bool) -> (bool, bool) {
        let before = self.held.clone();
        let seen_by = |who: usize, seen: Seen| if Some(who) == me { Seen::Now } else { seen };
        if wrote {
            for (who, seen) in self.waiting.clone() {
                if self.units[who] == 1 && seen_by(who, seen) == Seen::Now {
                    self.leave(who);
                    self.held.insert(who);
                }
            }
        }
        let mut place = 0;
        let mut is_past_all = true;
        while let Some(&(who, seen)) = self.waiting.get(place) {
            match seen_by(who, seen) {
                Seen::Dead => self.leave(who),
                Seen::Tired => place += 1,
                Seen::Now if self.fits(who) => {
                    self.leave(who);
                    self.held.insert(who);
                }
                Seen::Now => {
                    is_past_all = false;
                    break;
                }
            }
        }
        let given = self
            .held
            .iter()
            .any(|who| !before.contains(who) && Some(*who) != me);
        (given, is_past_all)
    }

    fn acquire(&mut self, who: usize, waits: bool, wrote: bool) {
        if self.held.contains(&who) {
            self.leave(who);
        } else if self.waiting.is_empty() && self.fits(who) {
            self.held.insert(who);
        } else if waits {
            match self.waiting.iter_mut().find(|(other, _)| *other == who) {
                Some((_, seen)) => *seen = Seen::Now,
                None => self.waiting.push((who, Seen::Now)),
            }
        }
        let (_, is_past_all) = self.advance(Some(who), wrote);
        if is_past_all && !self.held.contains(&who) && self.fits(who) {
            self.leave(who);
            self.held.insert(who);
        }
    }
}

const NAME: &str = "n";

// The function is long because it has one arm for each act.
#[allow(clippy::too_many_lines)]
fn shares(redis: &mut Redis, of: u64, units: [u64; OWNERS], history: &[Act]) -> Check {
    let mut model = Shares {
        of,
        units,
        held: BTreeSet::new(),
        run_out: BTreeSet::new(),
        waiting: Vec::new(),
        fence: 0,
        blocks: BTreeMap::new(),
    };
    for (step, act) in history.iter().enumerate() {
        let before: BTreeMap<String, u64> =
            redis.ask(&["ZRANGEBYSCORE", NAME, "1", "+inf", "WITHSCORES"]);
        match *act {
            Act::Acquire(who, waits) => {
                let known = model.prune();
                model.acquire(who, waits, known);
                let reply = share_acquire(redis, &model, who, waits, None);
                granted(&mut model, who, &reply)?;
            }
            Act::TakeOver(from, to) => {
                // Only writers take over, and only for an owner that neither holds nor waits.
                let is_new = !model.held.contains(&to) && model.waiting.iter().all(|w| w.0 != to);
                if of != ALL || units[from] != ALL || from == to || !is_new {
                    continue;
                }
                let mut wrote = model.prune();
                let dropped = model.drop(from, &mut wrote);
                let reply = share_acquire(redis, &model, to, true, Some(from));
                model.blocks.remove(&from);
                if units[to] == ALL {
                    model.acquire(to, true, wrote);
                } else if dropped {
                    model.held.insert(to);
                    model.advance(Some(to), wrote);
                } else {
                    // A request that finds expired holders grants the waiters.
                    model.advance(None, wrote);
                    prop_assert_eq!(&reply, &Value::Int(-1));
                }
                granted(&mut model, to, &reply)?;
            }
            Act::Release(who) | Act::Withdraw(who) => {
                let mut wrote = model.prune();
                let withdraws = matches!(act, Act::Withdraw(_));
                if withdraws {
                    model.leave(who);
                }
                let dropped = model.drop(who, &mut wrote);
                let (given, _) = model.advance(None, wrote);
                let (used, last) = match model.blocks.remove(&who) {
                    // The block has ten fences. This uses one of them, or two.
                    Some((first, last)) if dropped => {
                        model.fence = model.fence.max(first + 1);
                        ((first + 1).to_string(), last.to_string())
                    }
                    _ => Default::default(),
                };
                let withdraws = if withdraws { "1" } else { "0" };
                let units = units[who].to_string();
                let life = LIFE.to_string();
                let reply = redis.eval(
                    SHARE_RELEASE,
                    &[NAME],
                    &[&owner(who), &used, &last, &life, "0", withdraws, &units],
                );
                let expected = match (dropped, given) {
                    (false, _) => 0,
                    (true, false) => 1,
                    (true, true) => 3,
                };
                prop_assert_eq!(reply, Value::Int(expected), "step {}", step);
            }
            Act::Break(who) => {
                let mut dropped = false;
                // If there is no holder, the script changes nothing.
                if !model.held.is_empty() {
                    let mut wrote = model.prune();
                    dropped = model.drop(who, &mut wrote);
                    model.advance(None, wrote);
                }
                model.blocks.remove(&who);
                let args = [&owner(who), "broken", &LIFE.to_string(), "0"];
                let reply = redis.eval(FORCE_RELEASE, &[NAME], &args);
                prop_assert_eq!(reply, Value::Int(i64::from(dropped)), "step {}", step);
            }
            Act::Renew(who) => {
                let reply = renew(redis, who, units[who]);
                let holds = model.held.contains(&who) && !model.run_out.contains(&who);
                prop_assert_eq!(reply, [i64::from(holds)], "step {}", step);
            }
            Act::Lapse(who) => {
                if model.held.contains(&who) {
                    let share = format!("{} {}", units[who], owner(who));
                    let () = redis.ask(&["ZADD", NAME, "XX", "1", &share]);
                    model.run_out.insert(who);
                    model.blocks.remove(&who);
                }
                continue;
            }
            Act::Tire(who, dead) => {
                if let Some((_, seen)) = model.waiting.iter_mut().find(|(w, _)| *w == who) {
                    let ms = if dead { LIFE * 2 } else { STALL };
                    *seen = if dead { Seen::Dead } else { Seen::Tired };
                    redis.age(NAME, &owner(who), ms);
                }
                continue;
            }
        }
        agrees(redis, &model, step)?;
        // No lease was shortened.
        let after: BTreeMap<String, u64> =
            redis.ask(&["ZRANGEBYSCORE", NAME, "1", "+inf", "WITHSCORES"]);
        for (share, end) in &after {
            prop_assert!(before.get(share).is_none_or(|before| before <= end));
        }
    }
    Ok(())
}

#[test]
fn units_go_to_the_caller_if_a_script_can_pass_over_no_more_waiters() {
    super::once(|redis| {
        let life = LIFE.to_string();
        let ask = |redis: &mut Redis, who: usize, channel: &str| {
            let me = owner(who);
            let args = [
                &*me, LEASE, "1", "600000", "permits", channel, CLAIM, &life, "0", "1", "1", "",
                "", "", "",
            ];
            redis.eval(SHARE_ACQUIRE, &[NAME], &args)
        };
        let is_held =
            |reply: &Value| matches!(reply, Value::Array(parts) if parts[0] == Value::Int(0));
        let last = MOST_PASSED + 1;
        for who in 0..=last {
            ask(redis, who, "");
        }
        for who in 1..last {
            redis.age(NAME, &owner(who), STALL);
        }
        let release = [&*owner(0), "", "", &life, "0", "0", "1"];
        assert_eq!(redis.eval(SHARE_RELEASE, &[NAME], &release), Value::Int(1));
        assert!(!is_held(&ask(redis, last, "")));
        assert_eq!(redis.queue(NAME).len(), MOST_PASSED);
        // A try passes no waiter that is awake.
        assert!(is_held(&ask(redis, 1, "")));
        let () = redis.ask(&["DEL", NAME]);
        assert!(is_held(&ask(redis, last + 1, "-")));
    });
}

/// The first waiter counts against two units, and the second one against five. One try has three, and one has five.
#[test]
fn each_owner_counts_the_units_in_use_against_its_own_number() {
    super::once(|redis| {
        let life = LIFE.to_string();
        let ask = |redis: &mut Redis, who: usize, channel: &str, of: &str| {
            let me = owner(who);
            let args = [
                &*me, LEASE, "1", "600000", "permits", channel, CLAIM, &life, "0", "1", of, "", "",
                "", "",
            ];
            redis.eval(SHARE_ACQUIRE, &[NAME], &args)
        };
        // The reply without the other number.
        let plain = |reply: Value| match reply {
            Value::Array(mut parts) if parts[0] == Value::Int(-2) => {
                (Some(parts[1].clone()), parts.remove(2))
            }
            reply => (None, reply),
        };
        let is_held =
            |reply: &Value| matches!(reply, Value::Array(parts) if parts[0] == Value::Int(0));
        for who in [0, 1] {
            let (others, reply) = plain(ask(redis, who, "-", "2"));
            assert!(others.is_none() && !is_held(&reply));
        }
        let (others, reply) = plain(ask(redis, 2, "-", "3"));
        assert_eq!(others, Some(Value::Int(2)));
        assert!(!is_held(&reply));
        let (others, reply) = plain(ask(redis, 3, "", "2"));
        assert_eq!(others, Some(Value::Int(3)));
        assert!(is_held(&reply));
        // Nobody passes the first waiter.
        for (who, channel) in [(4, ""), (5, "-")] {
            assert!(is_held(&plain(ask(redis, who, channel, "5")).1));
        }
        assert_eq!(redis.queue(NAME), [3, 4].map(owner));
        let holds = |redis: &mut Redis, who: usize| {
            let score: Option<f64> = redis.ask(&["ZSCORE", NAME, &format!("1 {}", owner(who))]);
            score.is_some()
        };
        for (released, is_let_in) in [(0, false), (1, true)] {
            let release = [&*owner(released), "", "", &life, "0", "0", "1"];
            redis.eval(SHARE_RELEASE, &[NAME], &release);
            assert_eq!([3, 4].map(|who| holds(redis, who)), [is_let_in; 2]);
        }
    });
}

/// The key lives for as long as the longest lease.
#[test]
fn a_renewal_for_a_short_time_does_not_shorten_a_longer_lease() {
    super::once(|redis| {
        let life = LIFE.to_string();
        for who in [0, 1] {
            let args = [
                &*owner(who),
                LEASE,
                "1",
                "600000",
                "permits",
                "-",
                CLAIM,
                &life,
                "0",
                "1",
                "2",
                "",
                "",
                "",
                "",
            ];
            redis.eval(SHARE_ACQUIRE, &[NAME], &args);
        }
        assert_eq!(renew_for(redis, 1, 1, "1000"), [1]);
        let left: u64 = redis.ask(&["PTTL", NAME]);
        let lease: u64 = LEASE.parse().expect("ms");
        assert!(left > lease / 2, "{left} ms");
        assert_eq!(renew(redis, 0, 1), [1]);
    });
}

fn renew(redis: &mut Redis, who: usize, units: u64) -> Vec<i64> {
    renew_for(redis, who, units, LEASE)
}

fn renew_for(redis: &mut Redis, who: usize, units: u64, lease: &str) -> Vec<i64> {
    let mut renew = redis::cmd("EVAL");
    renew
        .arg(script!("batch.lua", "renew.lua"))
        .arg(1)
        .arg(NAME);
    renew.arg(owner(who)).arg(lease).arg(units);
    renew.query(&mut redis.0).expect("it never fails")
}

fn share_acquire(
    redis: &mut Redis,
    model: &Shares,
    who: usize,
    waits: bool,
    from: Option<usize>,
) -> Value {
    let how = match (model.of, model.units[who]) {
        (ALL, ALL) => "write",
        (ALL, _) => "read",
        _ => "permits",
    };
    let block = from.and_then(|from| model.blocks.get(&from));
    let (used, last) = block.map_or_else(Default::default, |(first, last)| {
        (first.to_string(), last.to_string())
    });
    redis.eval(
        SHARE_ACQUIRE,
        &[NAME],
        &[
            &owner(who),
            LEASE,
            if how == "read" { "1" } else { "10" },
            "600000",
            how,
            if waits { "" } else { "-" },
            CLAIM,
            &LIFE.to_string(),
            "0",
            &model.units[who].to_string(),
            &model.of.to_string(),
            &from.map(owner).unwrap_or_default(),
            &used,
            &last,
            "",
        ],
    )
}

/// Checks that the reply agrees with the model, and that fences rise.
fn granted(model: &mut Shares, who: usize, reply: &Value) -> Check {
    let fence = match reply {
        Value::Int(fence) if *fence > 0 => Some(*fence),
        Value::Array(parts) => match parts.as_slice() {
            [Value::Int(fence), Value::Int(1)] => {
                prop_assert!(!model.waiting.is_empty());
                Some(*fence)
            }
            [Value::Int(0), ..] => None,
            other => panic!("{other:?}"),
        },
        Value::Int(-1) => None,
        other => panic!("{other:?}"),
    };
    prop_assert_eq!(fence.is_some(), model.held.contains(&who), "{:?}", reply);
    if let Some(fence) = fence.and_then(|fence| u64::try_from(fence).ok()) {
        if model.of == ALL && model.units[who] == 1 {
            prop_assert!(fence >= model.fence, "an older fence");
            model.fence = fence;
        } else {
            prop_assert!(fence > model.fence, "a fence was repeated");
            model.fence = fence;
            model.blocks.insert(who, (fence, fence + 9));
        }
    }
    Ok(())
}

/// The holders with their units, and the waiters in their order.
type Inspected = (BTreeSet<(String, u64)>, Vec<String>);

/// Returns what `inspect` shows.
fn inspect(redis: &mut Redis) -> Result<Inspected, TestCaseError> {
    type Holders = Vec<(String, u64, u64, u64)>;
    type Waiters = Vec<(String, u64, u64)>;
    type Shown = (u64, Option<String>, usize, Holders, Waiters);
    let reply = redis.eval(INSPECT, &[NAME], &["named"]);
    let [shown]: [Option<Shown>; 1] =
        redis::from_redis_value(reply).expect("the reply has this form");
    let Some((_, _, count, holders, waiting)) = shown else {
        return Ok(Default::default());
    };
    let all = holders.len();
    let holders: BTreeSet<_> = holders
        .into_iter()
        .map(|(owner, _, units, _)| (owner, units))
        .collect();
    prop_assert_eq!(holders.len(), all, "somebody is shown twice");
    prop_assert_eq!(waiting.len(), count, "there are few waiters");
    let waiting = waiting.into_iter().map(|(owner, ..)| owner);
    Ok((holders, waiting.collect()))
}

fn agrees(redis: &mut Redis, model: &Shares, step: usize) -> Check {
    prop_assert!(model.used() <= model.of, "step {}: too many", step);
    let waiting: Vec<_> = model.waiting.iter().map(|(who, _)| owner(*who)).collect();
    prop_assert_eq!(
        redis.queue(NAME),
        waiting.clone(),
        "step {}: who waits",
        step
    );
    let seen = inspect(redis)?;
    let holding = model.held.difference(&model.run_out);
    let holding: BTreeSet<_> = holding
        .map(|who| (owner(*who), model.units[*who]))
        .collect();
    prop_assert_eq!(seen, (holding, waiting), "step {}", step);
    let mut all: BTreeMap<String, i64> = redis.ask(&["ZRANGE", NAME, "0", "-1", "WITHSCORES"]);
    if model.held.is_empty() {
        prop_assert!(all.is_empty(), "step {}: {:?}", step, all);
        return Ok(());
    }
    prop_assert_eq!(all.remove("=of"), Some(-model.of.cast_signed()));
    prop_assert_eq!(all.remove("=used"), Some(-model.used().cast_signed()));
    let held: BTreeSet<_> = model
        .held
        .iter()
        .map(|who| format!("{} {}", model.units[*who], owner(*who)))
        .collect();
    prop_assert_eq!(
        all.keys().cloned().collect::<BTreeSet<_>>(),
        held,
        "step {}",
        step
    );
    // The key expires with its last lease, give or take the resolution of the clock.
    let last = all.values().max().copied().unwrap_or_default();
    let goes = redis.expiry(NAME);
    prop_assert!(goes + 2 > last, "step {}: {} before {}", step, goes, last);
    Ok(())
}

#[test]
fn readers_and_writers_agree_with_a_plain_model() {
    let units = [1, ALL, 1, ALL, 1, ALL, 1];
    run(
        300,
        prop::collection::vec(act(), 1..60),
        |redis, history| shares(redis, ALL, units, &history),
    );
}

#[test]
fn permits_agree_with_a_plain_model() {
    let units = [1, 2, 3, 1, 4, 2, 1];
    run(
        300,
        prop::collection::vec(act(), 1..60),
        |redis, history| shares(redis, 4, units, &history),
    );
}
