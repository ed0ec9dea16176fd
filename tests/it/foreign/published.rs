//! Clients that these tests do not run: redsync, bsm/redislock, ShedLock and Redisson. The tests send the commands that their
//! sources show, and so do not cover their waits, their connections, or several servers.
//!
//! | client | source |
//! | --- | --- |
//! | redsync 4.17.0 | <https://github.com/go-redsync/redsync/blob/v4.17.0/scripts.go>, `mutex.go`, `redis/redigo/redigo.go` |
//! | bsm/redislock 0.10.0 | <https://github.com/bsm/redislock/blob/v0.10.0/obtain.lua>, `refresh.lua`, `release.lua` |
//! | ShedLock 7.9.0 | <https://github.com/lukas-krecan/ShedLock/blob/shedlock-parent-7.9.0/providers/redis/shedlock-support-redis/src/main/java/net/javacrumbs/shedlock/provider/redis/support/InternalRedisLockProvider.java> |
//! | Redisson 4.7.0 | <https://github.com/redisson/redisson/blob/redisson-4.7.0/redisson/src/main/java/org/redisson/RedissonLock.java>, `RedissonBucket.java` |

use leasehold::Error;
use redis::Value;

use super::name;
use crate::support::{Raw, build, locking, manager, patient, secs, shared};

/// The commands that acquire, extend and release a client's lock. `KEY` stands for the key, `TOKEN` for the value of the
/// holder, and `MS` for the time to live.
type Commands = [&'static [&'static str]; 3];

const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
const EXTEND: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0";

/// redsync; ShedLock with `safeUpdate`; `setIfAbsent` and `compareAndSet` of Redisson's `RBucket`, which cannot extend.
const PLAIN: Commands = [
    &["SET", "KEY", "TOKEN", "NX", "PX", "MS"],
    &["EVAL", EXTEND, "1", "KEY", "TOKEN", "MS"],
    &["EVAL", RELEASE, "1", "KEY", "TOKEN"],
];

/// A holder may acquire again with its own token.
const BSM_OBTAIN: &str = "if redis.call('msetnx', KEYS[1], ARGV[1]) == 0 then
    if redis.call('getrange', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then return false end
    redis.call('mset', KEYS[1], ARGV[1])
end
return redis.call('pexpire', KEYS[1], ARGV[2])";
const BSM_REFRESH: &str = "if redis.call('mget', KEYS[1])[1] ~= ARGV[1] then return false end
return redis.call('pexpire', KEYS[1], ARGV[2])";
const BSM_RELEASE: &str = "if redis.call('mget', KEYS[1])[1] ~= ARGV[1] then return false end
return redis.call('del', KEYS[1])";

const BSM: Commands = [
    &["EVAL", BSM_OBTAIN, "1", "KEY", "TOKEN", "MS"],
    &["EVAL", BSM_REFRESH, "1", "KEY", "TOKEN", "MS"],
    &["EVAL", BSM_RELEASE, "1", "KEY", "TOKEN"],
];

/// `RLock`: `ARGV[1]` is the holder, and the reply is nil when it has the lock.
const REDISSON_LOCK: &str =
    "if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
    redis.call('hincrby', KEYS[1], ARGV[1], 1)
    redis.call('pexpire', KEYS[1], ARGV[2])
    return nil
end
return redis.call('pttl', KEYS[1])";
const REDISSON_UNLOCK: &str = "if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return nil end
if redis.call('hincrby', KEYS[1], ARGV[1], -1) == 0 then redis.call('del', KEYS[1]) end return 1";

/// Sends a command of a client.
fn send(redis: &Raw, key: &str, command: &[&'static str]) -> redis::RedisResult<Value> {
    let filled = command.iter().map(|word| match *word {
        "KEY" => key,
        "TOKEN" => "their token",
        "MS" => "600000",
        other => other,
    });
    redis.try_ask(&filled.collect::<Vec<_>>())
}

/// Does the same, and returns whether the client has the lock.
#[track_caller]
fn has_it(redis: &Raw, key: &str, command: &[&'static str]) -> bool {
    match send(redis, key, command).expect("Redis replies") {
        Value::Okay | Value::Int(1) => true,
        Value::Nil | Value::Int(0) => false,
        other => panic!("{command:?}: {other:?}"),
    }
}

#[test]
fn each_excludes_ours_and_is_excluded() {
    let redis = shared();
    // The second is ShedLock's prefix.
    for (client, prefix) in [(PLAIN, ""), (PLAIN, "job-lock:default:"), (BSM, "")] {
        let [acquire, extend, release] = client;
        let locks = [(); 2].map(|()| build(patient(redis.url()).prefix(prefix)));
        let name = name("published");
        let key = format!("{prefix}{name}");
        assert!(has_it(redis, &key, acquire));
        assert_eq!(redis.ask::<String>(&["TYPE", &key]), "string");
        assert!(locks[0].try_lock(&name).expect("Redis replies").is_none());
        let waiting = locking(&locks[0].mutex(&name));
        redis.wait_until_queued(&key, 1);
        assert_eq!(redis.get(&key).as_deref(), Some("their token"));
        assert!(has_it(redis, &key, extend));
        assert!(redis.ttl(&key) > Some(secs(500)));
        assert!(has_it(redis, &key, release));
        let guard = waiting.end().expect("it becomes free");
        let refused = || {
            assert!(client.iter().all(|command| !has_it(redis, &key, command)));
            assert_eq!(redis.owner(&key).as_deref(), Some(guard.owner()));
            assert!(redis.ttl(&key) <= Some(secs(30)));
        };
        refused();
        let waiting = locking(&locks[1].mutex(&name));
        redis.wait_until_queued(&key, 1);
        refused();
        guard.release().expect("it was held until now");
        let guard = waiting.end().expect("it becomes free");
        guard.release().expect("it was held until now");
        assert!(has_it(redis, &key, acquire));
    }
}

#[test]
fn a_lock_of_redisson_and_ours_fail_on_each_others_key() {
    let (redis, key) = (shared(), name("redisson"));
    let locks = manager(redis.url());
    let acquire: &[_] = &["EVAL", REDISSON_LOCK, "1", "KEY", "TOKEN", "MS"];
    let release: &[_] = &["EVAL", REDISSON_UNLOCK, "1", "KEY", "TOKEN"];
    assert_eq!(send(redis, &key, acquire), Ok(Value::Nil));
    assert_eq!(redis.ask::<String>(&["TYPE", &key]), "hash");
    let error = locks.lock(&key).expect_err("it is held");
    assert!(matches!(error, Error::WrongType { .. }), "{error:?}");
    let shown = error.to_string().replace(&key, "orders:42");
    let page = include_str!("../../../docs/moving.md");
    assert!(page.contains(&shown), "{shown}");
    assert_eq!(send(redis, &key, release), Ok(Value::Int(1)));
    let guard = locks.lock(&key).expect("it is free");
    for command in [acquire, release] {
        let error = send(redis, &key, command).expect_err("ours has it");
        assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    }
    guard.release().expect("it was held until now");
}
