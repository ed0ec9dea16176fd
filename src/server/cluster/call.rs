//! A request on the caller's thread: the state table of [`super`].
//!
//! The time of a request, with its pauses, ends with the caller's. It is at most `io_timeout`. It is at most a quarter of
//! the lease that the request asks for, because the lease counts from before the request.

use std::time::Duration;

use crate::error::{Failure, FailureKind, Outcome};
use crate::net::deadline::Deadline;
use crate::net::refusal::was_cut;
use crate::owner::MARK;
use crate::server::Answer;
use crate::server::cluster::master::Master;
use crate::server::cluster::renewals::{about, batch_of, take_results};
use crate::server::cluster::state::Shared;
use crate::server::link::Link;
use crate::sys::{Arc, thread};
use crate::wire::{End, How, LockKind, Reply, Request};

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
            | Request::Once { key, .. } => self.ask(key.slot(), request, deadline),
            Request::Commit(commit) => self.ask(commit.locks[0].slot(), request, deadline),
            Request::Renew(_) | Request::Release(_) => self.batch(request, deadline),
            Request::Inspect { keys, named } => self.inspect(keys, *named, deadline),
            Request::Scan { from, .. } => self.scan(*from, request, deadline),
            // Only the renewal thread sends it, on its own connection.
            Request::KeepRecords(_) => Err(Failure::another_question()),
        }
    }

    /// Sends a request about names of one slot to the owner of the slot, and follows redirections.
    pub(super) fn ask(
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
            let is_asking = moving_to.is_some();
            let (failure, master) = match self.ask_once(slot, moving_to.take(), request, deadline) {
                Ok(answer) => {
                    return Ok(Answer {
                        resent: answer.resent || is_uncertain,
                        ..answer
                    });
                }
                Err(failed) => failed,
            };
            is_uncertain |= failure.outcome != Outcome::NotExecuted;
            // The owner that cannot be reached, and whose place another may take.
            let mut gone = None;
            match (failure.kind, failure.redirect(), &master) {
                (FailureKind::Moved, Some(to), Some(master)) => {
                    self.redirected(master, to, true);
                    redirections += 1;
                }
                (FailureKind::Ask, Some(to), Some(master)) => {
                    moving_to = Some(self.redirected(master, to, false));
                    redirections += 1;
                }
                (FailureKind::TryAgain | FailureKind::ClusterDown, ..) => {
                    redirections = REDIRECTED_AT_ONCE + 1;
                }
                (_, _, Some(master))
                    if waits_for_a_master(request, deadline) && was_cut(&failure) =>
                {
                    redirections = REDIRECTED_AT_ONCE + 1;
                    gone = Some(master).filter(|_| !is_asking);
                }
                _ => return Err(uncertain(failure, is_uncertain)),
            }
            if redirections <= REDIRECTED_AT_ONCE {
                continue;
            }
            // No connection is held here.
            moving_to = None;
            let left = pauses.left().min(deadline.left());
            if left.is_zero() || deadline.is_over() {
                return Err(uncertain(no_more(failure), is_uncertain));
            }
            match gone {
                Some(gone) => self.wait_for_another(slot, gone, pause.min(left)),
                None => thread::sleep(pause.min(left)),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
            redirections = 0;
        }
    }

    /// Sends a request once: to the node to which its slot is moving, or to the owner. Returns with a failure the node
    /// that was asked.
    fn ask_once(
        &self,
        slot: u16,
        moving_to: Option<Arc<Master>>,
        request: &Request<'_>,
        mut deadline: Deadline<'_>,
    ) -> Result<Answer, (Failure, Option<Arc<Master>>)> {
        let is_asking = moving_to.is_some();
        let master = match moving_to {
            Some(master) => master,
            None => self
                .owner(slot, &mut deadline)
                .map_err(|failure| (failure, None))?,
        };
        let answer = self.on_link(&master, deadline, |link, deadline| {
            link.is_asking = is_asking;
            link.call(request, deadline)
        });
        let answer = answer.and_then(|answer| master.check_in_use().map(|()| answer));
        answer.map_err(|failure| (failure, Some(master)))
    }

    /// Blocks for a pause, or until the slot has another owner than this.
    fn wait_for_another(&self, slot: u16, gone: &Arc<Master>, pause: Duration) {
        let replaced = self.finder.wait(Deadline::after(pause), |findings| {
            let owner = findings.found()?.owner(slot)?;
            (!Arc::ptr_eq(owner, gone)).then_some(())
        });
        // Without another owner the pause is over.
        replaced.ok();
    }

    /// Returns the owner of a slot. Waits for the map.
    pub(super) fn owner(
        &self,
        slot: u16,
        deadline: &mut Deadline<'_>,
    ) -> Result<Arc<Master>, Failure> {
        let map = self.map(deadline)?;
        map.owner(slot).cloned().ok_or_else(|| {
            self.finder.check_again();
            let words = format!("no node of the cluster has slot {slot}");
            Failure::plain(FailureKind::ClusterDown, Outcome::NotExecuted, words)
        })
    }

    /// Does `work` on a pooled connection of a master.
    pub(super) fn on_link<T>(
        &self,
        master: &Master,
        mut deadline: Deadline<'_>,
        work: impl FnOnce(&mut Link, &mut Deadline<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let pool = master.pool(&self.routes.threads);
        let link = pool.and_then(|pool| pool.check_out(&mut deadline));
        let done = link.and_then(|mut link| {
            link.is_asking = false;
            work(&mut link, &mut deadline)
        });
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
        let whole = self.routes.settings.io_timeout;
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
        if slots.iter().all(|slot| *slot == slots[0]) {
            let slot = slots.first().copied().unwrap_or_default();
            match self.ask(slot, request, deadline) {
                Err(failure) if is_split(&failure, slots.len()) => {}
                whole => return whole,
            }
        }
        let mut resent = false;
        for (number, slot) in slots.into_iter().enumerate() {
            let answer = about(request, &[number], |one| self.ask(slot, one, deadline))?;
            resent |= answer.resent;
            take_results(&mut reply, &[number], answer.reply)?;
        }
        Ok(Answer { reply, resent })
    }
}

/// Returns whether a request is that of a thread that waits for a lock. Only such a request waits for a new master. The
/// callers of all others get the failure at once.
fn waits_for_a_master(request: &Request<'_>, deadline: Deadline<'_>) -> bool {
    deadline.is_of_a_wait && matches!(request, Request::Ask(..))
}

/// Returns whether a request about several names of one slot must be sent name by name, because the slot is moving.
pub(super) fn is_split(failure: &Failure, names: usize) -> bool {
    let is_moving = matches!(
        failure.kind,
        FailureKind::TryAgain | FailureKind::SlotMoves | FailureKind::Ask
    );
    names > 1 && is_moving
}

/// Returns the failure of a request that is not redirected any more. It is transient.
fn no_more(failure: Failure) -> Failure {
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

fn uncertain(failure: Failure, is_uncertain: bool) -> Failure {
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
    use crate::config::{ClusterNodes, Settings};
    use crate::name::{LockKey, Target};
    use crate::server::cluster::Cluster;
    use crate::server::cluster::map::SlotMap;
    use crate::server::cluster::map::tests::table;
    use crate::server::cluster::master::Address;
    use crate::server::cluster::state::tests::publish_first;
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
        let urls = ["redis://127.0.0.1:1/".to_owned()];
        let nodes = ClusterNodes::new(&urls, &settings).expect("a URL");
        let shared = Arc::clone(&Cluster::new(nodes, &settings).expect("threads").shared);
        let known = table(&[("a", 1, 5, (0, 16_383))], &[]);
        let make = &mut |_: &Address| {
            shared.routes.new_master(&Address {
                host: "127.0.0.1".into(),
                port: node.port,
            })
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
        assert_eq!(map.all_masters().count(), 1 + 8);
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
        let [old, new] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let ports = [&old, &new].map(|it| it.local_addr().expect("it is bound").port());
        // Longer than any machine starves the test.
        let hour = Duration::from_secs(60 * 60);
        let settings = Settings {
            connect_timeout: hour,
            io_timeout: hour,
            ..Settings::default()
        };
        let urls = ["redis://127.0.0.1:1/".to_owned()];
        let nodes = ClusterNodes::new(&urls, &settings).expect("a URL");
        let shared = Arc::clone(&Cluster::new(nodes, &settings).expect("threads").shared);
        let target = Target::from(LockKey::new("", "n").expect("a name"));
        let slot = target.first().slot();
        let known = table(
            &[("a", 1, 5, (0, slot)), ("b", 2, 6, (slot + 1, slot + 1))],
            &[],
        );
        let make = &mut |address: &Address| {
            let master = shared.routes.new_master(&Address {
                host: "127.0.0.1".into(),
                port: ports[usize::from(address.port) - 1],
            });
            // No test is about the question of the first connection.
            master
                .route
                .asked_about_itself
                .store(true, Ordering::Relaxed);
            master
        };
        publish_first(&shared, SlotMap::after(None, &known, make));
        let release = End::new("o".into(), 1, How::Release);
        let call = || {
            let lock = LockId {
                kind: LockKind::Mutex,
                target: &target,
            };
            let request = Request::End(lock, &release);
            shared.call(&request, Deadline::after(hour))
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
                let moved = format!("-MOVED {slot} 127.0.0.1:{}\r\n", ports[1]);
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
