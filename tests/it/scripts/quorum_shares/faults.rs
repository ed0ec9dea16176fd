//! Keys of another type, full memory and missing rights.

use std::slice;

use redis::Value;

use super::{NAME, READERS, Request, WRITERS, acquire, acquire_free, is_writer, lapse, release};
use crate::scripts::fences::Unused;
use crate::scripts::{Redis, code, once, once_heard};
use crate::support::companions_of;

#[test]
fn a_companion_of_another_type_blocks_an_acquire_and_no_release() {
    let ([reader, other, ..], [writer, ..]) = (READERS, WRITERS);
    let blocks = |redis: &mut Redis, spoiled: &String, who, waits| {
        let () = redis.ask(&["FLUSHALL"]);
        redis.spoil(spoiled);
        let clock = redis.now_us();
        let acquire = Request::Acquire { who, waits, clock };
        assert_eq!(code(acquire.send(redis)), "WRONGTYPE", "{spoiled}");
        let keys: Vec<String> = redis.ask(&["KEYS", "*"]);
        assert_eq!(&keys[..], slice::from_ref(spoiled), "the script wrote");

        // An expired lease is listed. Its units must be free even if the script fails later.
        let () = redis.ask(&["FLUSHALL"]);
        for reader in [reader, other] {
            acquire_free(redis, reader);
        }
        lapse(redis, other);
        redis.spoil(spoiled);
        assert!(acquire.send(redis).is_err() || who == writer);
        let () = redis.ask(&["DEL", spoiled]);
        release(redis, reader);
        acquire_free(redis, writer);
    };
    let does_not_block = |redis: &mut Redis, spoiled: &String, who, withdraws| {
        let () = redis.ask(&["FLUSHALL"]);
        let reserved = acquire_free(redis, who);
        redis.spoil(spoiled);
        let unused = Some(Unused { used: 0, reserved }).filter(|_| is_writer(who));
        let release = Request::Release {
            who,
            unused,
            withdraws,
        };
        assert_eq!(release.must_send(redis), Value::Int(1), "{spoiled}");
        assert!(!redis.exists(NAME));
        assert_eq!(release.must_send(redis), Value::Int(0), "{spoiled}");
        assert!(redis.exists(spoiled), "it is another client's");
    };
    once(|redis| {
        for spoiled in &companions_of(NAME) {
            for who in [reader, writer] {
                for withdraws_or_waits in [false, true] {
                    blocks(redis, spoiled, who, withdraws_or_waits);
                    does_not_block(redis, spoiled, who, withdraws_or_waits);
                }
            }
        }
    });
}

#[test]
fn a_key_that_is_no_reader_writer_lock_is_left_alone() {
    let who = READERS[0];
    let semaphore = ["ZADD", NAME, "99999999999999", "1 lh1:9:x", "-4", "=of"];
    let semaphore = [&semaphore[..], &["-1", "=used"]].concat();
    for (key, is_lock) in [
        (&["SET", NAME, "lh1:9:x"][..], false),
        (&["ZADD", NAME, "1", "x"], false),
        (&semaphore, true),
    ] {
        once(|redis| {
            let () = redis.ask(key);
            let before: Vec<u8> = redis.ask(&["DUMP", NAME]);
            let (waits, clock) = (true, redis.now_us());
            let acquire = Request::Acquire { who, waits, clock };
            assert_eq!(code(acquire.send(redis)), "WRONGTYPE");
            for withdraws in [false, true] {
                let unused = None;
                let release = Request::Release {
                    who,
                    unused,
                    withdraws,
                };
                let released = release.send(redis);
                if is_lock {
                    assert_eq!(released, Ok(Value::Int(0)));
                } else {
                    assert_eq!(code(released), "WRONGTYPE");
                }
            }
            assert_eq!(redis.ask::<Vec<u8>>(&["DUMP", NAME]), before);
            let keys: Vec<String> = redis.ask(&["KEYS", "*"]);
            assert_eq!(keys, [NAME]);
        });
    }
}

#[test]
fn full_memory_rejects_an_acquire_and_no_release() {
    let ([reader, other, next, _], [writer, ..]) = (READERS, WRITERS);
    let reject = |redis: &mut Redis, rejected: &[usize]| {
        let () = redis.ask(&["CONFIG", "SET", "maxmemory", "1"]);
        let before: Option<Vec<u8>> = redis.ask(&["DUMP", NAME]);
        for &who in rejected {
            let (waits, clock) = (true, redis.now_us());
            let request = Request::Acquire { who, waits, clock };
            assert_eq!(code(request.send(redis)), "OOM", "{who}");
        }
        assert_eq!(redis.ask::<Option<Vec<u8>>>(&["DUMP", NAME]), before);
    };
    // A free lock, without a record and with one.
    once(|redis| reject(redis, &[reader, writer]));
    once(|redis| {
        acquire_free(redis, writer);
        release(redis, writer);
        reject(redis, &[reader, writer]);
        assert!(!redis.exists(NAME));
    });
    // Held by readers, of which one repeats its request, and by a writer.
    once(|redis| {
        for who in [reader, other] {
            acquire_free(redis, who);
        }
        reject(redis, &[writer, next, other]);
        assert_eq!(redis.queue(NAME), [""; 0]);
        for who in [reader, other] {
            assert_eq!(release(redis, who), Value::Int(1));
        }
        assert!(!redis.exists(NAME));
    });
    once_heard(|redis, _| {
        acquire_free(redis, writer);
        acquire(redis, reader, true);
        reject(redis, &[writer, reader, other]);
        assert_eq!(release(redis, writer), Value::Int(3));
        assert!(!redis.exists(NAME));
    });
    // An expired lease is freed, and then Redis allows the script to write.
    once(|redis| {
        acquire_free(redis, writer);
        lapse(redis, writer);
        let () = redis.ask(&["CONFIG", "SET", "maxmemory", "1"]);
        acquire_free(redis, reader);
        assert_eq!(release(redis, reader), Value::Int(1));
    });
}

/// The user of Redis may not read the waiters.
#[test]
fn a_missing_right_keeps_no_lock_from_its_release() {
    let ([reader, ..], [writer, ..]) = (READERS, WRITERS);
    once(|redis| {
        acquire_free(redis, writer);
        acquire(redis, reader, true);
        let released = redis.without("hget", |redis| release(redis, writer));
        assert_eq!(released, Value::Int(1));
        assert!(!redis.exists(NAME));
        // A withdrawal that releases nothing reports the error.
        let (who, unused, withdraws) = (writer, None, true);
        let withdraw = Request::Release {
            who,
            unused,
            withdraws,
        };
        let reply = redis.without("hget", |redis| withdraw.send(redis));
        assert!(reply.is_err(), "{reply:?}");
    });
}

/// The user of Redis may not use one of the commands.
#[test]
fn a_missing_right_leaves_no_lock_behind() {
    let ([reader, ..], [writer, ..]) = (READERS, WRITERS);
    let for_all = [
        "time",
        "exists",
        "zscore",
        "zrange",
        "zrangebyscore",
        "zcard",
        "zadd",
        "zrem",
        "hget",
        "hlen",
        "hdel",
    ];
    let for_readers = [&for_all[..], &["get"]].concat();
    let for_writers = [&for_all[..], &["set"]].concat();
    once(|redis| {
        for (who, commands) in [(reader, &for_readers), (writer, &for_writers)] {
            for command in commands {
                let () = redis.ask(&["FLUSHALL"]);
                acquire_free(redis, WRITERS[1]);
                acquire(redis, who, true);
                let () = redis.ask(&["DEL", NAME]);
                let (waits, clock) = (true, 0);
                let request = Request::Acquire { who, waits, clock };
                let reply = redis.without(command, |redis| request.send(redis));
                assert!(reply.is_err(), "{command} is not used");
                assert!(!redis.exists(NAME), "{command}");
            }
        }
    });
}
