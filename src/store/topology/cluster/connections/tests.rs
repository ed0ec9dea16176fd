//! Connections to masters that hang, and that close connections.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use super::super::Cluster;
use super::*;
use crate::config::{ClusterNodes, Settings};
use crate::script::Command;
use crate::store::transport::frame::Frame;
use crate::sys::AtomicBool;
use std::thread;

/// A server that answers each command with its last word, unless it is held. QUIT ends the connection.
struct Echo {
    address: Address,
    is_held: Arc<AtomicBool>,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = Address {
            host: "127.0.0.1".into(),
            port: listener.local_addr().expect("it is bound").port(),
        };
        let is_held = Arc::new(AtomicBool::new(false));
        let held = Arc::clone(&is_held);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, held) = (stream.expect("a connection"), Arc::clone(&held));
                thread::spawn(move || answer(stream, &held));
            }
        });
        Self { address, is_held }
    }
}

fn answer(mut stream: TcpStream, is_held: &AtomicBool) {
    let (mut received, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(read @ 1..) = stream.read(&mut piece) {
        received.extend_from_slice(&piece[..read]);
        while let Ok(Some(end)) = Frame::default().end(&received, 1 << 20) {
            let command = redis::parse_redis_value(&received[..end]);
            received.drain(..end);
            let Ok(Value::Array(words)) = command else {
                return;
            };
            let Some(Value::BulkString(word)) = words.last() else {
                return;
            };
            if word == b"QUIT" {
                return;
            }
            while is_held.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            let head = format!("${}\r\n", word.len());
            let line = [head.as_bytes(), word, b"\r\n"].concat();
            if stream.write_all(&line).is_err() {
                return;
            }
        }
    }
}

/// Sends a word that was never sent before to each master. Returns whether each has answered with that word.
fn ask(
    connections: &mut MasterConnections,
    shared: &ClusterState,
    masters: &[Arc<Master>],
    word: &str,
) -> Vec<bool> {
    let words = |number: usize| format!("{word} {number}");
    let part = |(number, master): (usize, &Arc<Master>)| Part {
        master: Arc::clone(master),
        is_asking: false,
        command: Command::new("ECHO").arg(words(number)).to_owned(),
    };
    let parts: Vec<_> = masters.iter().enumerate().map(part).collect();
    let limit = Duration::from_secs(20);
    let answers = connections.exchange(shared, &parts, limit, false).answers;
    let answers = answers.into_iter().enumerate();
    answers
        .map(|(number, answer)| match answer {
            Ok(answer) => {
                assert_eq!(answer, Value::BulkString(words(number).into_bytes()));
                true
            }
            Err(failure) => {
                assert_eq!(failure.kind, FailureKind::Unavailable);
                false
            }
        })
        .collect()
}

#[test]
fn a_master_that_hangs_is_left_out_until_it_answers() {
    let settings = Settings::default();
    let nodes = ClusterNodes::new(&["redis://127.0.0.1:1/".to_owned()], &settings);
    let cluster = Cluster::new(nodes.expect("a URL"), &settings).expect("threads");
    let shared = &cluster.shared;
    let servers = [Echo::start(), Echo::start()];
    let masters = servers
        .each_ref()
        .map(|server| shared.routes.new_master(&server.address));
    let mut connections = MasterConnections::new().expect("a pair of sockets");
    let mut words = (0..).map(|number: u32| number.to_string());
    let mut ask_both = |connections: &mut MasterConnections| {
        let word = words.next().expect("there is no end");
        ask(connections, shared, &masters, &word)
    };
    let wait = |connections: &mut MasterConnections,
                ask: &mut dyn FnMut(&mut MasterConnections) -> Vec<bool>| {
        let begun = Time::now();
        while ask(connections) != [true, true] {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "they never answer"
            );
        }
    };
    connections.open(&masters, Duration::from_secs(20));
    wait(&mut connections, &mut ask_both);
    for _ in 0..3 {
        servers[1].is_held.store(true, Ordering::SeqCst);
        // On a busy machine the other may be late too.
        let begun = Time::now();
        while ask_both(&mut connections) != [true, false] {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "it never answers"
            );
        }
        assert!(masters[1].is_suspected.load(Ordering::SeqCst));
        servers[1].is_held.store(false, Ordering::SeqCst);
        wait(&mut connections, &mut ask_both);
        assert!(!masters[1].is_suspected.load(Ordering::SeqCst));
    }
}

/// The connection of an earlier exchange is used once more before its end is noticed.
#[test]
fn a_connection_that_the_master_closed_is_opened_again() {
    let settings = Settings::default();
    let nodes = ClusterNodes::new(&["redis://127.0.0.1:1/".to_owned()], &settings);
    let cluster = Cluster::new(nodes.expect("a URL"), &settings).expect("threads");
    let shared = &cluster.shared;
    let server = Echo::start();
    let masters = [shared.routes.new_master(&server.address)];
    let mut connections = MasterConnections::new().expect("a pair of sockets");
    let begun = Time::now();
    let is_answered = |connections: &mut MasterConnections, word: &str| {
        while ask(connections, shared, &masters, word) != [true] {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "it never answers"
            );
        }
    };
    is_answered(&mut connections, "first");
    let connection = connections.by_address.values_mut().next();
    let ConnectionState::Open(open) = &mut connection.expect("it was used").state else {
        panic!("it has just answered");
    };
    let quit = Command::new("QUIT");
    open.tell(quit, SentPart::Asking).expect("it is open");
    open.unanswered().clear();
    is_answered(&mut connections, "second");
}

/// A process that only holds leases must learn that a master is gone.
#[test]
fn a_master_that_refuses_connections_is_suspected_and_not_waited_for() {
    let settings = Settings::default();
    let nodes = ClusterNodes::new(&["redis://127.0.0.1:1/".to_owned()], &settings);
    let cluster = Cluster::new(nodes.expect("a URL"), &settings).expect("threads");
    let shared = &cluster.shared;
    let refusing = Address {
        host: "127.0.0.1".into(),
        port: 1,
    };
    let master = [shared.routes.new_master(&refusing)];
    let mut connections = MasterConnections::new().expect("a pair of sockets");
    assert_eq!(ask(&mut connections, shared, &master, "first"), [false]);
    assert!(master[0].is_suspected.load(Ordering::SeqCst));
    // The connection opens again in the background, and the exchange does not wait for that.
    assert_eq!(ask(&mut connections, shared, &master, "second"), [false]);
    let connection = connections.by_address.values().next();
    let connection = connection.expect("it was used");
    assert!(connection.failure.is_some() && !connection.is_waited_for());
}
