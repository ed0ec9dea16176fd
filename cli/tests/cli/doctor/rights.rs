//! The rights of the user.

use crate::out;
use crate::support::{Server, is_before_redis_7};

use super::{PASSWORD, doctor, ends_with, has_no_keys, healthy, lines_of, says};

/// The rights of a program that uses mutexes only, before their waits.
const OF_MUTEXES: &str = "+ping +info +select +eval +evalsha +get +getrange +exists +set +del +append +pttl +pexpire +time \
                          +hset +hget +hdel +zadd +zrem +zpopmin +zcard +zscore +zrange";

/// Makes a user with these rights. Returns the URL that logs in as this user.
fn user(server: &Server, rights: &str) -> String {
    let words = format!("ACL SETUSER app on >{PASSWORD} resetchannels {rights}");
    let () = server.raw().ask(&words.split(' ').collect::<Vec<_>>());
    server.url().replace("://", &format!("://app:{PASSWORD}@"))
}

#[test]
fn a_right_that_one_kind_of_lock_needs_is_missed_by_trying_it() {
    let server = healthy();
    let waits = "+subscribe +publish +pubsub|numsub";
    let url = user(&server, &format!("~* &leasehold:* {OF_MUTEXES} {waits}"));
    let output = doctor(&url, "");
    ends_with(&output, 1);
    says(
        &output,
        "rights",
        "warn",
        &[
            "app lacks +hlen +zrangebyscore +pexpireat",
            "semaphores",
            "ACL SETUSER app +hlen",
        ],
    );
    for words in ["for rate limiters", "for operators"] {
        assert!(out(&output).contains(words), "{}", out(&output));
    }
    // `doctor` itself misses rights here, which is no failure.
    let lines = lines_of(&output, "timeout");
    assert!(
        lines[0].starts_with("skip") && lines[1].contains("+config|get"),
        "{lines:?}"
    );
    says(&output, "lock", "ok", &[]);
    assert!(!out(&output).contains(PASSWORD));
    has_no_keys(&server.raw());
}

#[test]
fn a_right_that_each_lock_needs_is_missed_and_is_bad() {
    let server = healthy();
    let rights = OF_MUTEXES.replace(" +hset", "").replace(" +zadd", "");
    let url = user(&server, &format!("~* &leasehold:* {rights}"));
    let output = doctor(&url, "");
    ends_with(&output, 2);
    says(
        &output,
        "rights",
        "bad",
        &[
            "lacks +hset +zadd for mutexes",
            "ACL SETUSER app +hset +zadd",
        ],
    );
    assert!(out(&output).contains("lacks +subscribe +publish +pubsub|numsub for messages"));
    has_no_keys(&server.raw());
    let url = user(&server, "&leasehold:* +hset +zadd -set");
    let output = doctor(&url, "");
    ends_with(&output, 2);
    says(&output, "rights", "bad", &["lacks +set for mutexes"]);
    has_no_keys(&server.raw());
}

#[test]
fn rights_are_asked_for_where_the_server_has_acl_dryrun() {
    if is_before_redis_7() {
        return println!("Redis before 7 has no ACL DRYRUN");
    }
    let server = healthy();
    let url = user(&server, "~billing:* &other:* +@all -rpush");
    let output = doctor(&url, "&prefix=billing:");
    ends_with(&output, 2);
    // The keys beside a lock begin with a brace.
    says(
        &output,
        "rights",
        "bad",
        &["lacks ~billing:* ~{billing:*", "for mutexes"],
    );
    let text = out(&output);
    assert!(text.contains("lacks &leasehold:* for messages"), "{text}");
    assert!(text.contains("lacks +rpush for rate limiters"), "{text}");
    let url = user(&server, "~{billing:* &leasehold:* +rpush");
    says(
        &doctor(&url, "&prefix=billing:"),
        "rights",
        "ok",
        &["user app", "ACL DRYRUN"],
    );
    has_no_keys(&server.raw());
}
