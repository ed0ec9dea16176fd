//! Finding the addresses of a host within a time limit.
//!
//! The system's lookup of a name has no time limit that a caller can set: if no name server answers, it blocks for 5 to 10 s
//! or longer. So the lookup runs on a separate thread, and each caller waits for at most its own limit. An IP address needs
//! neither a lookup nor a thread.
//!
//! The states of a name, by host and port:
//!
//! | state | a caller | the thread `leasehold-dns` of the name |
//! | --- | --- | --- |
//! | idle | begins a lookup, starts the thread, and waits: the name is in flight | does not exist |
//! | in flight | waits for the result of this lookup | looks up, gives the result to all callers, makes the name idle or found, and ends |
//! | found | gets the result, for 10 s, or for 1 s if it is an error; then the name is idle | does not exist |
//!
//! * If the deadline of a caller passes, the caller returns [`TimedOut`](io::ErrorKind::TimedOut). The lookup goes on,
//!   and later callers wait for it. So a name server that does not answer costs one thread for each name.
//! * At most [`MOST_NAMES`] names are in flight or found. A cluster may redirect to any number of them.
//! * If the thread cannot be started, or if the lookup panics, the result is an error for all callers that wait.
//! * A lookup that was too slow for a caller makes the name found. Otherwise a name server that always takes longer than
//!   the limit would lead neither to a connection nor to the reason why there is none. After any other lookup the name
//!   is idle, and the next caller looks up anew, because the name may lead to another address by then.
//!
//! The addresses come in the order of the system, but the one that has accepted last comes first. An example: `localhost`
//! is `::1` before `127.0.0.1`, and a firewall drops what is sent to `::1`. Then only the first connection waits for the
//! head start of `::1` ([`ByteStream::connect`](crate::sys::net::ByteStream::connect)).
//!
//! Each [`Route`](crate::net::route::Route) has its own resolver. A static one could deadlock after a fork: the child would
//! wait for a thread, or for the owner of a mutex, that only the parent has. A child does not use its parent's routes.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use once_cell::sync::OnceCell;

use crate::panics::survived;
use crate::sys::net::look_up;
use crate::sys::{Arc, Condvar, Mutex, Time, thread};

/// Finds the addresses of hosts. No other mutex is taken under its mutex.
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    /// The names that are not idle.
    names: Mutex<BTreeMap<Name, NameLookup>>,
    /// Notified at the end of each lookup.
    ended: Condvar,
    /// The address that has accepted last, of each host whose first one did not.
    worked: Mutex<BTreeMap<String, IpAddr>>,
}

/// A host name and a port.
type Name = (String, u16);

/// How many names are in flight or found at a time: more than most clusters have nodes.
const MOST_NAMES: usize = 256;
/// How many hosts [`Resolver::worked`] keeps.
const MOST_WORKED: usize = 1_000;

/// How long a name is found, by the result of its lookup.
const FOUND_FOR: Duration = Duration::from_secs(10);
const FAILED_FOR: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct NameLookup {
    lookup: Arc<Lookup>,
    /// Whether the lookup was too slow for a caller.
    was_slow: bool,
    /// When the name becomes idle, once it is found.
    idle_at: Option<Time>,
}

/// A lookup, which has its result from its end on. The result is set under the mutex of [`Resolver::names`].
type Lookup = OnceCell<Result<Vec<SocketAddr>, Arc<io::Error>>>;

impl Resolver {
    /// Returns the addresses of a host. Blocks until they are found, but at most until `deadline`.
    pub(crate) fn resolve(
        self: &Arc<Self>,
        host: &str,
        port: u16,
        deadline: Time,
    ) -> io::Result<Vec<SocketAddr>> {
        let find = |(host, port): &Name| look_up(host, *port);
        self.resolve_by(find, start, (host, port), deadline)
    }

    /// Does the same by a function that replaces the system's lookup. `start` starts the thread on which it runs.
    fn resolve_by(
        self: &Arc<Self>,
        find: impl FnOnce(&Name) -> io::Result<Vec<SocketAddr>> + Send + 'static,
        start: fn(Box<dyn FnOnce() + Send>) -> io::Result<()>,
        (host, port): (&str, u16),
        deadline: Time,
    ) -> io::Result<Vec<SocketAddr>> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let name = (host.to_owned(), port);
        let (lookup, is_new) = self.join(&name)?;
        if is_new {
            let (resolver, own_lookup, own_name) =
                (Arc::clone(self), Arc::clone(&lookup), name.clone());
            let started = start(Box::new(move || {
                let panicked = || Err(io::Error::other("the lookup of the host panicked"));
                let result = survived(|| find(&own_name)).unwrap_or_else(panicked);
                resolver.end(&own_name, &own_lookup, result);
            }));
            if let Err(error) = started {
                // The kind of this error is usually `WouldBlock`, which says nothing about a connection.
                let words = format!("no thread could be started to look up the host: {error}");
                // Other callers may wait for this lookup already.
                self.end(&name, &lookup, Err(io::Error::other(words)));
            }
        }
        let mut addresses = self.wait(&name, &lookup, deadline)?;
        if let Some(worked) = self.worked.lock().get(host) {
            addresses.sort_by_key(|address| address.ip() != *worked);
        }
        Ok(addresses)
    }

    /// Notes which of the addresses of a host has accepted, to return it first.
    pub(crate) fn has_accepted(&self, host: &str, addresses: &[SocketAddr], which: SocketAddr) {
        if addresses.first() == Some(&which) {
            return;
        }
        let mut worked = self.worked.lock();
        if worked.len() >= MOST_WORKED {
            worked.clear();
        }
        worked.insert(host.to_owned(), which.ip());
    }

    /// Returns the lookup of a name that is in flight or found, or a new one, and whether it is new.
    fn join(&self, name: &Name) -> io::Result<(Arc<Lookup>, bool)> {
        let mut names = self.names.lock();
        let now = Time::now();
        names.retain(|_, state| state.idle_at.is_none_or(|at| now < at));
        if let Some(state) = names.get(name) {
            return Ok((Arc::clone(&state.lookup), false));
        }
        if names.len() >= MOST_NAMES {
            return Err(io::Error::other("too many lookups of hosts have not ended"));
        }
        let lookup = Arc::<Lookup>::default();
        let state = NameLookup {
            lookup: Arc::clone(&lookup),
            was_slow: false,
            idle_at: None,
        };
        names.insert(name.clone(), state);
        Ok((lookup, true))
    }

    /// Ends a lookup, and gives its result to all callers that wait for it.
    fn end(&self, name: &Name, lookup: &Lookup, result: io::Result<Vec<SocketAddr>>) {
        let mut names = self.names.lock();
        match names.get_mut(name) {
            Some(state) if state.was_slow => {
                let found_for = if result.is_ok() {
                    FOUND_FOR
                } else {
                    FAILED_FOR
                };
                state.idle_at = Some(Time::now() + found_for);
            }
            _ => drop(names.remove(name)),
        }
        // A lookup ends once, so it has no result yet.
        lookup.set(result.map_err(Arc::new)).ok();
        drop(names);
        self.ended.notify_all();
    }

    /// Blocks until the lookup of a name has ended, but at most until `deadline`, and returns its result.
    fn wait(&self, name: &Name, lookup: &Lookup, deadline: Time) -> io::Result<Vec<SocketAddr>> {
        let mut names = self.names.lock();
        loop {
            match lookup.get() {
                Some(Ok(addresses)) => return Ok(addresses.clone()),
                Some(Err(error)) => return Err(io::Error::new(error.kind(), Arc::clone(error))),
                None => {}
            }
            let left = deadline.since(Time::now());
            if left.is_zero() {
                if let Some(state) = names.get_mut(name) {
                    state.was_slow = true;
                }
                let words = "the lookup of the host took too long";
                return Err(io::Error::new(io::ErrorKind::TimedOut, words));
            }
            names = self.ended.wait_for(names, left);
        }
    }
}

fn start(look_up: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    thread::spawn("leasehold-dns", look_up)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use crate::config::Server;

    use super::*;
    use crate::net::deadline::Deadline;
    use crate::net::socket::Socket;

    /// The time for which a test waits for an event that comes at once if the code is right and the machine is not starved.
    const PATIENCE: Duration = Duration::from_secs(60 * 60);
    /// A time limit that passes in a test.
    const SHORT: Duration = Duration::from_millis(20);
    const NAME: (&str, u16) = ("redis.test", 6379);

    type Found = io::Result<Vec<SocketAddr>>;

    fn address(last: u8) -> SocketAddr {
        ([192, 0, 2, last], NAME.1).into()
    }

    fn kind(found: Found) -> Option<io::ErrorKind> {
        found.err().map(|error| error.kind())
    }

    /// Resolves `name` within `limit` by `look_up`.
    fn resolve(
        resolver: &Arc<Resolver>,
        name: (&str, u16),
        limit: Duration,
        look_up: impl FnOnce(&Name) -> Found + Send + 'static,
    ) -> Found {
        resolver.resolve_by(look_up, start, name, Time::now() + limit)
    }

    /// A lookup that a caller on another thread has begun. It hangs until the test ends it.
    struct HungLookup {
        end: Sender<fn() -> Found>,
        caller: Receiver<Found>,
    }

    impl HungLookup {
        /// Returns when the lookup runs.
        fn begin(resolver: &Arc<Resolver>) -> Self {
            let (end, ended) = channel::<fn() -> Found>();
            let (running, runs) = channel();
            let caller = caller(resolver, move |_| {
                running.send(()).expect("the test waits");
                ended.recv_timeout(PATIENCE).expect("the test ends it")()
            });
            runs.recv_timeout(PATIENCE).expect("it runs");
            Self { end, caller }
        }

        fn end(self, result: fn() -> Found) -> Receiver<Found> {
            self.end.send(result).expect("the lookup hangs");
            self.caller
        }
    }

    /// Resolves [`NAME`] on a thread.
    fn caller(
        resolver: &Arc<Resolver>,
        look_up: impl FnOnce(&Name) -> Found + Send + 'static,
    ) -> Receiver<Found> {
        let (sender, found) = channel();
        let resolver = Arc::clone(resolver);
        // A test that failed does not wait for the result.
        std::thread::spawn(move || {
            sender
                .send(resolve(&resolver, NAME, PATIENCE, look_up))
                .ok()
        });
        found
    }

    /// Returns when `callers` callers have joined the lookup of [`NAME`].
    fn wait_until_joined(resolver: &Resolver, callers: usize) {
        let begun = Time::now();
        // The map and the thread of the lookup share it too.
        let is_joined = || {
            let names = resolver.names.lock();
            let sharing = names.values().map(|state| Arc::strong_count(&state.lookup));
            sharing.sum::<usize>() == callers + 2
        };
        while !is_joined() {
            assert!(begun.elapsed() < PATIENCE, "not all callers share a lookup");
            std::thread::yield_now();
        }
    }

    fn result(caller: &Receiver<Found>) -> Found {
        let result = caller.recv_timeout(PATIENCE / 2);
        result.expect("the caller returns long before its deadline")
    }

    #[test]
    fn a_lookup_that_hangs_ends_at_the_callers_deadline() {
        let resolver = Arc::default();
        let (_open, never) = channel::<()>();
        let begun = Time::now();
        let found = resolve(&resolver, NAME, SHORT, move |_| {
            never.recv_timeout(PATIENCE).ok();
            Ok(vec![address(1)])
        });
        let took = begun.elapsed();
        assert_eq!(kind(found), Some(io::ErrorKind::TimedOut));
        assert!((SHORT..PATIENCE / 2).contains(&took), "{took:?}");
    }

    #[test]
    fn connecting_has_one_limit_with_the_lookup() {
        let resolver = Arc::default();
        let hung = HungLookup::begin(&resolver);
        let server = Server::parse(&format!("redis://{}:{}/", NAME.0, NAME.1)).expect("a URL");
        let begun = Time::now();
        let failed = Socket::connect(&server, &resolver, Deadline::after(SHORT)).err();
        let took = begun.elapsed();
        assert!(failed.is_some_and(|fault| fault.is_timeout()));
        assert!((SHORT..PATIENCE / 2).contains(&took), "{took:?}");
        hung.end(|| Ok(Vec::new()));
    }

    #[test]
    fn callers_share_a_lookup_in_flight() {
        let resolver = Arc::default();
        let first = HungLookup::begin(&resolver);
        let second = caller(&resolver, |_| Ok(vec![address(2)]));
        wait_until_joined(&resolver, 2);
        // A caller without time for the result begins no lookup either.
        let third = resolve(&resolver, NAME, SHORT, |_| Ok(vec![address(3)]));
        assert_eq!(kind(third), Some(io::ErrorKind::TimedOut));
        let first = first.end(|| Ok(vec![address(1)]));
        for caller in [first, second] {
            assert_eq!(result(&caller).expect("it is found"), [address(1)]);
        }
    }

    #[test]
    fn an_error_reaches_all_callers_with_its_kind_and_text() {
        let resolver = Arc::default();
        let first = HungLookup::begin(&resolver);
        let second = caller(&resolver, |_| Ok(vec![address(2)]));
        wait_until_joined(&resolver, 2);
        let first = first.end(|| Err(io::Error::new(io::ErrorKind::NotFound, "no such host")));
        for caller in [first, second] {
            let error = result(&caller).expect_err("the lookup failed");
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
            assert_eq!(error.to_string(), "no such host");
        }
    }

    #[test]
    fn a_call_after_the_end_of_a_lookup_looks_up_anew() {
        let resolver = Arc::default();
        for last in [1, 2] {
            let found = resolve(&resolver, NAME, PATIENCE, move |_| Ok(vec![address(last)]));
            assert_eq!(found.expect("it is found"), [address(last)]);
        }
    }

    #[test]
    fn a_result_that_came_too_late_is_for_the_next_caller() {
        let resolver = Arc::default();
        let first = HungLookup::begin(&resolver);
        let second = resolve(&resolver, NAME, SHORT, |_| Ok(vec![address(2)]));
        assert_eq!(kind(second), Some(io::ErrorKind::TimedOut));
        let first = first.end(|| Ok(vec![address(1)]));
        result(&first).expect("it is found");
        let third = resolve(&resolver, NAME, SHORT, |_| panic!("it was found"));
        assert_eq!(third.expect("it was found"), [address(1)]);
        // The result gets old.
        for state in resolver.names.lock().values_mut() {
            assert!(state.idle_at > Some(Time::now()));
            state.idle_at = Some(Time::now());
        }
        let fourth = resolve(&resolver, NAME, PATIENCE, |_| Ok(vec![address(4)]));
        assert_eq!(fourth.expect("it is found"), [address(4)]);
    }

    #[test]
    fn lookups_that_hang_are_limited() {
        let resolver = Arc::default();
        let (open, never) = crossbeam_channel::bounded::<()>(0);
        let kinds = (0..2 * MOST_NAMES).map(|number| {
            let never = never.clone();
            let hang = move |_: &Name| {
                never.recv().ok();
                Ok(vec![address(1)])
            };
            kind(resolve(
                &resolver,
                (&format!("h{number}"), 1),
                Duration::ZERO,
                hang,
            ))
        });
        let kinds: Vec<_> = kinds.collect();
        let (hang, refused) = kinds.split_at(MOST_NAMES);
        assert!(
            hang.iter()
                .all(|kind| *kind == Some(io::ErrorKind::TimedOut))
        );
        assert!(
            refused
                .iter()
                .all(|kind| *kind == Some(io::ErrorKind::Other))
        );
        drop(open);
    }

    /// Otherwise no caller would ever learn why a name server that is always slow finds nothing.
    #[test]
    fn an_error_that_came_too_late_is_for_the_next_caller() {
        let resolver = Arc::default();
        let first = HungLookup::begin(&resolver);
        let second = resolve(&resolver, NAME, SHORT, |_| Ok(vec![address(2)]));
        assert_eq!(kind(second), Some(io::ErrorKind::TimedOut));
        let first = first.end(|| Err(io::ErrorKind::NotFound.into()));
        result(&first).expect_err("the lookup failed");
        // The error may get old before this thread runs.
        for state in resolver.names.lock().values_mut() {
            state.idle_at = state.idle_at.map(|at| at + PATIENCE);
        }
        let third = resolve(&resolver, NAME, SHORT, |_| panic!("it has failed"));
        assert_eq!(kind(third), Some(io::ErrorKind::NotFound));
        for state in resolver.names.lock().values_mut() {
            state.idle_at = Some(Time::now());
        }
        let fourth = resolve(&resolver, NAME, PATIENCE, |_| Ok(vec![address(4)]));
        assert_eq!(fourth.expect("it is found"), [address(4)]);
    }

    #[test]
    fn names_and_ports_are_looked_up_apart() {
        let resolver = Arc::default();
        let hung = HungLookup::begin(&resolver);
        for name in [("other.test", NAME.1), (NAME.0, NAME.1 + 1)] {
            let found = resolve(&resolver, name, PATIENCE, |(host, port)| {
                assert_eq!(std::thread::current().name(), Some("leasehold-dns"));
                Err(io::Error::other(format!("{host}:{port}")))
            });
            let error = found.expect_err("the lookup failed");
            assert_eq!(error.to_string(), format!("{}:{}", name.0, name.1));
        }
        hung.end(|| Ok(Vec::new()));
    }

    /// Fails, because no address space has room for the stack.
    fn cannot_start(look_up: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let thread = std::thread::Builder::new().stack_size(usize::MAX / 4 + 1);
        thread.spawn(look_up).map(drop)
    }

    #[test]
    fn the_address_that_has_accepted_comes_first() {
        let resolver = Arc::default();
        let order_of = |host, order: [u8; 3]| {
            let found = move |_: &Name| Ok(order.map(address).to_vec());
            resolve(&resolver, (host, NAME.1), PATIENCE, found).expect("it is found")
        };
        let first = order_of("a", [1, 2, 3]);
        assert_eq!(first, [1, 2, 3].map(address));
        resolver.has_accepted("a", &first, address(3));
        assert_eq!(order_of("a", [1, 2, 3]), [3, 1, 2].map(address));
        assert_eq!(order_of("b", [1, 2, 3]), [1, 2, 3].map(address));
        // The name leads elsewhere now.
        assert_eq!(order_of("a", [4, 5, 6]), [4, 5, 6].map(address));
        let third = order_of("a", [1, 2, 3]);
        resolver.has_accepted("a", &third, address(2));
        assert_eq!(order_of("a", [1, 2, 3]), [2, 1, 3].map(address));
        for number in 0..3 * MOST_WORKED {
            resolver.has_accepted(&number.to_string(), &first, address(3));
        }
        assert!(resolver.worked.lock().len() <= MOST_WORKED);
    }

    #[test]
    fn an_ip_address_starts_no_thread() {
        let resolver = Arc::default();
        for (host, ip) in [
            ("192.0.2.1", IpAddr::from([192, 0, 2, 1])),
            ("::1", IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])),
        ] {
            let no_lookup = |_: &Name| panic!("an address was looked up");
            let deadline = Time::now() + PATIENCE;
            let found =
                Resolver::resolve_by(&resolver, no_lookup, cannot_start, (host, 1), deadline);
            assert_eq!(found.expect("an address"), [SocketAddr::new(ip, 1)]);
        }
    }

    #[test]
    fn a_thread_that_cannot_be_started_is_an_error_and_leaves_no_lookup() {
        let resolver = Arc::default();
        let deadline = Time::now() + PATIENCE;
        let look_up = |_: &Name| Ok(vec![address(1)]);
        let failed = Resolver::resolve_by(&resolver, look_up, cannot_start, NAME, deadline);
        assert_eq!(kind(failed), Some(io::ErrorKind::Other));
        let found = resolve(&resolver, NAME, PATIENCE, |_| Ok(vec![address(2)]));
        assert_eq!(found.expect("it is found"), [address(2)]);
    }

    #[test]
    fn a_lookup_that_panics_is_an_error_for_all_its_callers() {
        let resolver = Arc::default();
        let first = HungLookup::begin(&resolver);
        let second = caller(&resolver, |_| Ok(vec![address(2)]));
        wait_until_joined(&resolver, 2);
        let first = first.end(|| panic!("on purpose"));
        for caller in [first, second] {
            let error = result(&caller).expect_err("the lookup panicked");
            assert!(error.to_string().contains("panicked"), "{error}");
        }
        let found = resolve(&resolver, NAME, PATIENCE, |_| Ok(vec![address(3)]));
        assert_eq!(found.expect("it is found"), [address(3)]);
    }

    #[test]
    fn the_systems_lookup_finds_this_machine() {
        let resolver = Arc::<Resolver>::default();
        let found = resolver.resolve("localhost", 1, Time::now() + PATIENCE);
        let found = found.expect("each system knows this name");
        let is_local = |it: &SocketAddr| it.ip().is_loopback() && it.port() == 1;
        assert!(!found.is_empty() && found.iter().all(is_local), "{found:?}");
    }
}
