//! A request on the caller's thread: the state table of [`super`].
//!
//! The time of a request, with its pauses, ends with the caller's. It is at most `io_timeout`. It is at most a quarter of
//! the lease that the request asks for, because the lease counts from before the request.
//!
//! Some requests concern several slots:
//!
//! | request | the nodes that are asked |
//! | --- | --- |
//! | ping | all masters at once, until one answers |
//! | renewals and releases | the owner of each slot. While a slot moves, each name works alone, so it is sent alone |
//! | inspect | the owner of each name's slot |
//! | scan | all masters, one after another, in the order of their first slots |
//!
//! A cursor of a scan names the place of the master in that order, and its process. If another process is there, because
//! of a failover or a restart, its scan starts again. If there are other masters at the end than at the beginning, or in
//! another order, all are scanned again. The caller drops the locks that come again.

use std::time::Duration;

use crate::error::{Failure, FailureKind, Outcome};
use crate::name::LockKey;
use crate::net::deadline::Deadline;
use crate::net::login::ping_as_they_answer;
use crate::net::pool::Pool;
use crate::net::refusal::{unavailable, was_cut};
use crate::owner::MARK;
use crate::server::Answer;
use crate::server::cluster::Shared;
use crate::server::cluster::map::SlotMap;
use crate::server::cluster::master::Master;
use crate::server::cluster::renewals::{batch_of, one_of, take_result};
use crate::server::link::Link;
use crate::sys::hash::{DefaultHasher, Hash, Hasher};
use crate::sys::{Arc, Time};
use crate::wire::{Cursor, End, How, LockKind, Reply, Request};

/// The first pause before a request is sent again. Each further pause is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// How often a request is redirected in a row before it pauses.
const REDIRECTED_AT_ONCE: u32 = 2;

impl Shared {
    pub(super) fn call(
        self: &Arc<Self>,
        request: &Request<'_>,
        deadline: Deadline<'_>,
    ) -> Result<Answer, Failure> {
        match request {
            Request::Ping => self.ping(deadline),
            Request::Ask(lock, _) | Request::End(lock, _) => {
                let slot = lock.target.first().slot();
                or_release_alone(request, &mut |request| self.ask(slot, request, deadline))
            }
            Request::Adopt { key, .. }
            | Request::RateLimit { key, .. }
            | Request::ForceRelease { key, .. }
            | Request::Publish { key, .. }
            | Request::Once { key, .. }
            | Request::Leader { key, .. } => self.ask(key.slot(), request, deadline),
            Request::Commit(commit) => self.ask(commit.locks[0].slot(), request, deadline),
            Request::Renew(_) | Request::Release(_) => self.batch(request, deadline),
            Request::Inspect { keys, named } => self.inspect(keys, *named, deadline),
            Request::Scan { from, .. } => self.scan(*from, request, deadline),
            // Only the renewal thread sends it, on its own connection.
            Request::KeepRecords(_) => Err(Failure::another_question()),
        }
    }

    /// Sends a request about names of one slot to the owner of the slot, and follows redirections.
    fn ask(
        &self,
        slot: u16,
        request: &Request<'_>,
        mut deadline: Deadline<'_>,
    ) -> Result<Answer, Failure> {
        let mut pauses = Deadline::after(self.patience(request));
        let (mut redirections, mut pause) = (0, FIRST_PAUSE);
        // The node that the last answer named by ASK.
        let mut moving_to: Option<Arc<Master>> = None;
        // Whether an earlier copy of the request may be executed.
        let mut is_uncertain = false;
        loop {
            let last_failover = self.finder.last_failover();
            let is_asking = moving_to.is_some();
            let owner = || {
                let map = self.map(&mut deadline)?;
                self.owner(&map, slot)
            };
            let master = moving_to.take().map_or_else(owner, Ok);
            let answer = master.as_ref().map_err(Failure::clone).and_then(|master| {
                let (mut time, route) = (deadline, &master.route);
                let answer = self.on_pool(master, |pool| {
                    Link::call_in_turn(pool, route, request, is_asking, &mut time)
                });
                answer.and_then(|answer| master.check_in_use().map(|()| answer))
            });
            let failure = match answer {
                Ok(answer) => {
                    return Ok(Answer {
                        resent: answer.resent || is_uncertain,
                        ..answer
                    });
                }
                Err(failure) => failure,
            };
            is_uncertain |= failure.outcome != Outcome::NotExecuted;
            if let (Some(to), Ok(master)) = (failure.redirect(), &master) {
                moving_to = self.redirected(master, failure.kind, to);
                redirections += 1;
                if redirections <= REDIRECTED_AT_ONCE {
                    continue;
                }
            } else {
                // A thread that waits for a lock waits for a new master too. The callers of all others get the failure at once.
                let is_waiting = deadline.is_of_a_wait && matches!(request, Request::Ask(..));
                let is_cut = master.is_ok() && was_cut(&failure);
                let passing = [FailureKind::TryAgain, FailureKind::ClusterDown];
                if !(passing.contains(&failure.kind) || is_waiting && is_cut) {
                    return Err(uncertain(failure, is_uncertain));
                }
            }
            // No connection is held here.
            moving_to = None;
            let left = pauses.left().min(deadline.left());
            if left.is_zero() || deadline.is_over() {
                return Err(uncertain(no_more(failure), is_uncertain));
            }
            self.pause(pause.min(left), last_failover);
            pause = (pause * 2).min(LONGEST_PAUSE);
            redirections = 0;
        }
    }

    /// Blocks for this time, or until the map has a new master since the last failover that the request knew of.
    fn pause(&self, length: Duration, known: Time) {
        let is_over = |_: &_| (self.finder.last_failover() > known).then_some(());
        // Without a new master its time is over.
        self.finder.wait(Deadline::after(length), is_over).ok();
    }

    /// Returns the owner of a slot by the map, which is read anew if it has none.
    pub(super) fn owner(&self, map: &SlotMap, slot: u16) -> Result<Arc<Master>, Failure> {
        map.owner(slot).cloned().ok_or_else(|| {
            self.finder.check_again();
            let words = format!("no node of the cluster has slot {slot}");
            Failure::plain(FailureKind::ClusterDown, Outcome::NotExecuted, words)
        })
    }

    /// Does `work` with the pool of a master.
    fn on_pool<T>(
        &self,
        master: &Master,
        work: impl FnOnce(&Pool<Link>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let done = master.pool(&self.routes).and_then(|pool| work(pool));
        match &done {
            Ok(_) => master.note_answer(),
            Err(failure) if failure.kind == FailureKind::TryAgain => master.note_answer(),
            Err(failure) if failure.is_of_the_connection() => self.suspect(master),
            Err(_) => {}
        }
        done.map_err(|failure| master.named(failure))
    }

    /// Returns how long a request may take with its pauses, in the caller's time: the top of this module.
    fn patience(&self, request: &Request<'_>) -> Duration {
        let whole = self.routes.first.io_timeout;
        match request {
            Request::Ask(_, ask) => whole.min(ask.lease / 4),
            Request::Adopt { adopt, .. } => whole.min(adopt.lease / 4),
            // The key alone can be deleted or kept while the slot moves.
            Request::End(lock, end) if alone(lock.kind, end).is_some() => Duration::ZERO,
            // Each key can be renewed or deleted alone.
            Request::Renew([_, _, ..]) | Request::Release([_, _, ..]) => Duration::ZERO,
            _ => whole,
        }
    }

    /// Sends a batch whole if its names share a slot, and otherwise, or while the slot moves, name by name.
    fn batch(&self, request: &Request<'_>, deadline: Deadline<'_>) -> Result<Answer, Failure> {
        let (slots, mut reply) = batch_of(request).ok_or_else(Failure::another_question)?;
        let mut resent = false;
        if slots.iter().all(|slot| *slot == slots[0]) {
            let slot = slots.first().copied().unwrap_or_default();
            match self.ask(slot, request, deadline) {
                Err(failure) if is_split(&failure, slots.len()) => {
                    // The batch was sent twice, and its first copy may have been executed.
                    resent = failure.outcome == Outcome::Unknown;
                }
                whole => return whole,
            }
        }
        for (number, slot) in slots.into_iter().enumerate() {
            let answer = self.ask(slot, &one_of(request, number), deadline)?;
            resent |= answer.resent;
            take_result(&mut reply, number, answer.reply)?;
        }
        Ok(Answer { reply, resent })
    }

    /// Asks all masters. Returns the first reply, or a failure.
    fn ping(&self, mut deadline: Deadline<'_>) -> Result<Answer, Failure> {
        let map = self.map(&mut deadline)?;
        let mut last = unavailable("the cluster has no master");
        for (number, (_, pong)) in ping_as_they_answer(map.routes()) {
            match pong {
                Ok(_) => return Ok(once(Reply::Pong)),
                // A wrong password tells more than a master that hangs.
                Err(failure) if last.is_transient() => last = map.masters()[number].named(failure),
                Err(_) => {}
            }
        }
        Err(last)
    }

    /// Inspects locks of any slots. Returns them in the order of the keys.
    fn inspect(
        &self,
        keys: &[LockKey],
        named: bool,
        deadline: Deadline<'_>,
    ) -> Result<Answer, Failure> {
        let mut all = Vec::with_capacity(keys.len());
        for key in keys {
            let keys = std::slice::from_ref(key);
            let request = Request::Inspect { keys, named };
            match self.ask(key.slot(), &request, deadline)?.reply {
                Reply::Inspected(one) => all.extend(one),
                _ => return Err(Failure::another_question()),
            }
        }
        Ok(once(Reply::Inspected(all)))
    }

    /// Lists some keys of one master.
    fn scan(
        &self,
        from: Cursor,
        request: &Request<'_>,
        mut deadline: Deadline<'_>,
    ) -> Result<Answer, Failure> {
        let map = self.map(&mut deadline)?;
        let masters = map.masters();
        let now = fingerprint(masters);
        let before = if from == Cursor::START {
            now
        } else {
            from.masters
        };
        let of_node = |node: u32, masters: u64| Cursor {
            node,
            masters,
            ..Cursor::START
        };
        let next_master = if from.node as usize + 1 < masters.len() {
            Some(of_node(from.node + 1, before))
        } else if now == before {
            None
        } else {
            Some(of_node(0, now))
        };
        let Some(master) = masters.get(from.node as usize) else {
            // The cluster has fewer masters than before.
            return Ok(page(Vec::new(), next_master));
        };
        let (reply, run) = self.on_pool(master, |pool| {
            let mut link = pool.check_out(&mut deadline)?;
            link.is_asking = false;
            link.call_identified(request, &mut deadline)
        })?;
        master.check_in_use()?;
        let Reply::Page { keys, next } = reply else {
            return Err(Failure::another_question());
        };
        if from.at != 0 && from.run != run {
            // The cursor was that of another process.
            let again = of_node(from.node, before);
            return Ok(page(Vec::new(), Some(again)));
        }
        let next = next.map(|next| Cursor {
            run,
            masters: before,
            ..next
        });
        Ok(page(keys, next.or(next_master)))
    }
}

/// Returns a number that other masters, or the same in another order, do not have. It is never 0.
fn fingerprint(masters: &[Arc<Master>]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for master in masters {
        (&master.address.host, master.address.port).hash(&mut hasher);
    }
    hasher.finish() | 1
}

fn page(keys: Vec<Vec<u8>>, next: Option<Cursor>) -> Answer {
    once(Reply::Page { keys, next })
}

fn once(reply: Reply) -> Answer {
    Answer {
        reply,
        resent: false,
    }
}

/// Returns whether a request about several names of one slot must be sent name by name, because the slot is moving.
fn is_split(failure: &Failure, names: usize) -> bool {
    let is_moving = matches!(
        failure.kind,
        FailureKind::TryAgain | FailureKind::SlotMoves | FailureKind::Ask
    );
    names > 1 && is_moving
}

/// Returns the failure of a request that is not redirected any more. It is transient.
pub(super) fn no_more(failure: Failure) -> Failure {
    match failure.kind {
        FailureKind::Moved | FailureKind::Ask => {
            let words = format!("the nodes of the cluster do not agree: {}", failure.cause);
            Failure::plain(FailureKind::SlotMoves, Outcome::NotExecuted, words)
        }
        FailureKind::TryAgain => Failure {
            kind: FailureKind::SlotMoves,
            ..failure
        },
        _ => failure,
    }
}

/// Returns the failure of a request. If an earlier copy may be executed, its outcome is unknown.
pub(super) fn uncertain(failure: Failure, is_uncertain: bool) -> Failure {
    match failure.outcome {
        Outcome::NotExecuted if is_uncertain => failure.with(Outcome::Unknown),
        _ => failure,
    }
}

/// Returns the form of an end that declares the lock's key alone, if there is one.
fn alone(kind: LockKind, end: &End) -> Option<End> {
    let has_form = kind == LockKind::Mutex || !end.kept_for.is_zero();
    (end.how == How::HandOver && has_form).then(|| End {
        how: How::Release,
        give_back: None,
        ..end.clone()
    })
}

/// Sends a request. If it hands a mutex over, or keeps a lock for a `min_hold`, and the slot is moving, sends the form
/// for the lock's key alone instead: no script can use the companions then, but a request for one key works. The waiters
/// learn of it when they poll.
pub(super) fn or_release_alone(
    request: &Request<'_>,
    send: &mut dyn FnMut(&Request<'_>) -> Result<Answer, Failure>,
) -> Result<Answer, Failure> {
    let first = send(request);
    let (&Request::End(lock, end), Err(failure)) = (request, &first) else {
        return first;
    };
    let Some(alone) = alone(lock.kind, end).filter(|_| failure.kind == FailureKind::SlotMoves)
    else {
        return first;
    };
    let before = failure.outcome != Outcome::NotExecuted;
    let mut send_alone = |end: &End| {
        let answer = send(&Request::End(lock, end))?;
        Ok(Answer {
            resent: answer.resent || before,
            ..answer
        })
    };
    let answer = send_alone(&alone)?;
    if answer.reply != Reply::Contended || !alone.is_plain() {
        return Ok(answer);
    }
    // The value is the owner and the mark.
    send_alone(&End {
        owner: format!("{}{MARK}", alone.owner).into(),
        ..alone
    })
}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    use std::io::{BufRead, BufReader};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::config::Settings;
    use crate::name::{LockKey, Target};
    use crate::server::cluster::map::tests::table;
    use crate::server::cluster::master::Address;
    use crate::server::cluster::tests::{at_two_servers, publish_first, shared};
    use crate::sys::Ordering;
    #[cfg(target_os = "linux")]
    use crate::sys::{AtomicU32, Time};
    use crate::wire::{Gone, LockId, Reply};

    /// Reads one request: all that comes before the client waits.
    fn read(line: &mut TcpStream) {
        let mut bytes = [0; 16 << 10];
        assert!(line.read(&mut bytes).expect("a request") > 0);
    }

    /// A node that redirects each request to another address of this machine, all of which lead to it, and counts its open
    /// connections.
    #[cfg(target_os = "linux")]
    struct Misleading {
        port: u16,
        slot: u16,
        redirections: AtomicU32,
        open: AtomicU32,
    }

    #[cfg(target_os = "linux")]
    impl Misleading {
        fn begin(slot: u16) -> Arc<Self> {
            let listener = TcpListener::bind("0.0.0.0:0").expect("a free port");
            let node = Arc::new(Self {
                port: listener.local_addr().expect("it is bound").port(),
                slot,
                redirections: AtomicU32::new(0),
                open: AtomicU32::new(0),
            });
            let serving = Arc::clone(&node);
            std::thread::spawn(move || {
                for line in listener.incoming().map_while(Result::ok) {
                    let node = Arc::clone(&serving);
                    node.open.fetch_add(1, Ordering::SeqCst);
                    std::thread::spawn(move || {
                        node.serve(&line);
                        node.open.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            });
            node
        }

        /// Answers until the connection ends.
        fn serve(&self, mut line: &TcpStream) -> Option<()> {
            let mut requests = BufReader::new(line);
            let mut next = move || {
                let mut text = String::new();
                let read = requests.read_line(&mut text);
                read.ok().filter(|read| *read > 0).map(|_| text)
            };
            loop {
                let words: usize = next()?.trim().strip_prefix('*')?.parse().ok()?;
                // Of each word a line has its length. A script has many lines, and no length.
                let verb = (next()?, next()?).1;
                let mut left = words - 1;
                while left > 0 {
                    let length: usize = next()?.trim().strip_prefix('$')?.parse().ok()?;
                    let mut read = 0;
                    while read < length + 2 {
                        read += next()?.len();
                    }
                    left -= 1;
                }
                let answer = match verb.trim() {
                    "ASKING" => "+OK\r\n".to_owned(),
                    verb if verb.starts_with("EVAL") || verb == "SET" => {
                        let number = self.redirections.fetch_add(1, Ordering::SeqCst) + 1;
                        let [_, _, high, low] = number.to_be_bytes();
                        let to = format!("127.1.{high}.{low}:{}", self.port);
                        format!("-ASK {} {to}\r\n", self.slot)
                    }
                    _ => "-ERR unknown command\r\n".to_owned(),
                };
                line.write_all(answer.as_bytes()).ok()?;
            }
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn redirections_to_ever_new_addresses_are_an_error_and_leave_few_pools() {
        let target = Target::from(LockKey::new("", "n").expect("a name"));
        let slot = target.first().slot();
        let node = Misleading::begin(slot);
        // Each call follows redirections for this long.
        let settings = Settings {
            io_timeout: Duration::from_millis(200),
            ..Settings::default()
        };
        let shared = shared(&settings);
        let known = table(&[("a", 1, 5, (0, 16_383))], &[]);
        let make = &mut |_: &Address| {
            let host = "127.0.0.1".into();
            let port = node.port;
            shared.routes.new_master(&Address { host, port })
        };
        publish_first(&shared, SlotMap::after(None, &known, make));
        let release = End::new("o".into(), 1, How::Release);
        let lock = LockId {
            kind: LockKind::Mutex,
            target: &target,
        };
        let request = Request::End(lock, &release);
        // On a busy machine a call may fail because its next connection takes too long.
        let mut has_said_why = false;
        while !has_said_why || node.redirections.load(Ordering::SeqCst) < 100 {
            let failed = shared.call(&request, Deadline::after(Duration::from_secs(20)));
            let failure = failed.expect_err("no node has the slot");
            has_said_why |= failure.kind == FailureKind::SlotMoves;
        }
        let map = shared.finder.found().expect("a map");
        assert_eq!(map.all().count(), 1 + 8);
        // Each pool has had one connection. Those that were dropped are closed.
        let begun = Time::now();
        while node.open.load(Ordering::SeqCst) > 1 + 8 {
            assert!(begun.elapsed() < Duration::from_secs(20), "pools are left");
            std::thread::yield_now();
        }
    }

    /// The master reads the release and closes the connection, and redirects the second copy.
    #[test]
    fn a_release_that_may_have_been_executed_follows_a_redirection() {
        let ([old, new], shared, target) = at_two_servers();
        let (slot, port) = (
            target.first().slot(),
            new.local_addr().expect("bound").port(),
        );
        let release = End::new("o".into(), 1, How::Release);
        let call = || {
            let lock = LockId {
                kind: LockKind::Mutex,
                target: &target,
            };
            let request = Request::End(lock, &release);
            shared.call(&request, Deadline::default())
        };
        let answer = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut line, _) = old.accept().expect("the link connects");
                read(&mut line);
                line.write_all(b":1\r\n").expect("it is connected");
                read(&mut line);
                drop(line);
                let (mut line, _) = old.accept().expect("the link connects again");
                read(&mut line);
                let moved = format!("-MOVED {slot} 127.0.0.1:{port}\r\n");
                line.write_all(moved.as_bytes()).expect("it is connected");
                let (mut line, _) = new.accept().expect("the link connects");
                read(&mut line);
                line.write_all(b":0\r\n").expect("it is connected");
            });
            assert_eq!(call().expect("it is answered").reply, Reply::Released);
            call().expect("it is answered")
        });
        assert_eq!(answer.reply, Reply::NotOwner(Gone::Removed));
        assert!(answer.resent, "the first copy may have released it");
    }
}
