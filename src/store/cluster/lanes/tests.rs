//! Lanes to servers that hang, and that close connections.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use super::super::Cluster;
use super::*;
use crate::config::{ClusterNodes, Settings};
use crate::script::Command;
use crate::store::frame::Frame;
use crate::sync::AtomicBool;

/// A server that answers each command with its last word, unless it is held.
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
fn ask(lanes: &mut Lanes, shared: &ClusterState, masters: &[Arc<Master>], word: &str) -> Vec<bool> {
    let parts: Vec<_> = masters
        .iter()
        .map(|master| Part {
            master: Arc::clone(master),
            is_asking: false,
        })
        .collect();
    let words = |number: usize| format!("{word} {number}");
    let how = Exchange {
        encode: &|number| Command::new("ECHO").arg(words(number)).to_owned(),
        limit: Duration::from_secs(20),
        is_gain: false,
    };
    let answers = lanes.exchange(shared, &parts, &how).answers;
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
fn a_lane_that_hangs_is_left_out_until_it_answers() {
    let settings = Settings::default();
    let nodes = ClusterNodes::new(&["redis://127.0.0.1:1/".to_owned()], &settings);
    let cluster = Cluster::new(nodes.expect("a URL"), &settings);
    let shared = &cluster.shared;
    let servers = [Echo::start(), Echo::start()];
    let masters = servers
        .each_ref()
        .map(|server| shared.routes.new_master(&server.address));
    let mut lanes = Lanes::new().expect("a pair of sockets");
    let mut words = (0..).map(|number: u32| number.to_string());
    let mut ask_both = |lanes: &mut Lanes| {
        let word = words.next().expect("there is no end");
        ask(lanes, shared, &masters, &word)
    };
    let wait = |lanes: &mut Lanes, ask: &mut dyn FnMut(&mut Lanes) -> Vec<bool>| {
        let begun = Instant::now();
        while ask(lanes) != [true, true] {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "they never answer"
            );
        }
    };
    lanes.open(&masters, Duration::from_secs(20));
    wait(&mut lanes, &mut ask_both);
    for _ in 0..3 {
        servers[1].is_held.store(true, Ordering::SeqCst);
        // On a busy machine the other may be late too.
        let begun = Instant::now();
        while ask_both(&mut lanes) != [true, false] {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "it never answers"
            );
        }
        assert!(masters[1].is_suspected.load(Ordering::SeqCst));
        servers[1].is_held.store(false, Ordering::SeqCst);
        wait(&mut lanes, &mut ask_both);
        assert!(!masters[1].is_suspected.load(Ordering::SeqCst));
    }
}

/// The connection of an earlier exchange is used once more before its end is noticed.
#[test]
fn a_lane_whose_connection_was_closed_is_opened_again() {
    let settings = Settings::default();
    let nodes = ClusterNodes::new(&["redis://127.0.0.1:1/".to_owned()], &settings);
    let cluster = Cluster::new(nodes.expect("a URL"), &settings);
    let shared = &cluster.shared;
    let server = Echo::start();
    let masters = [shared.routes.new_master(&server.address)];
    let mut lanes = Lanes::new().expect("a pair of sockets");
    let begun = Instant::now();
    let is_answered = |lanes: &mut Lanes, word: &str| {
        while ask(lanes, shared, &masters, word) != [true] {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "it never answers"
            );
        }
    };
    is_answered(&mut lanes, "first");
    let lane = lanes.by_address.values_mut().next().expect("it was used");
    let LaneState::Open(open) = &mut lane.state else {
        panic!("it has just answered");
    };
    // The server ends a connection on which it gets nonsense.
    open.socket
        .write(b"+nonsense\r\n", Duration::from_secs(1))
        .expect("it is open");
    is_answered(&mut lanes, "second");
}

/// A process that only holds leases must learn that a master is gone.
#[test]
fn a_master_that_refuses_connections_is_suspected_and_not_waited_for() {
    let settings = Settings::default();
    let nodes = ClusterNodes::new(&["redis://127.0.0.1:1/".to_owned()], &settings);
    let cluster = Cluster::new(nodes.expect("a URL"), &settings);
    let shared = &cluster.shared;
    let refusing = Address {
        host: "127.0.0.1".into(),
        port: 1,
    };
    let master = [shared.routes.new_master(&refusing)];
    let mut lanes = Lanes::new().expect("a pair of sockets");
    assert_eq!(ask(&mut lanes, shared, &master, "first"), [false]);
    assert!(master[0].is_suspected.load(Ordering::SeqCst));
    // The lane opens again in the background, and the exchange does not wait for that.
    assert_eq!(ask(&mut lanes, shared, &master, "second"), [false]);
    let lane = lanes.by_address.values().next().expect("it was used");
    assert!(lane.failure.is_some() && !lane.is_waited_for());
}
