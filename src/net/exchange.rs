//! One exchange over several connections: the commands are written to all of them, and then the answers are read as they
//! come. So a server that fails or hangs delays no answer of another server.
//!
//! A server answers its commands in their order. So a connection notes which commands have no answer yet, and which of
//! these answers are *late*: the exchange of their commands has ended, and nobody waits for them. Late answers are dropped
//! when they come, and none is taken for the answer to a later command.
//!
//! | state of a connection | event | next state |
//! | --- | --- | --- |
//! | idle | commands are written | asked |
//! | idle | before the next use anything is unread: the end of the connection, or all or a part of an answer | failed |
//! | asked | an answer that is not the last | asked |
//! | asked | the last answer | idle |
//! | asked | `NOSCRIPT`: the server does not know the digest of a script | asked: this command and those after it are written again, with the texts of their scripts. The answers to the first copies are late |
//! | asked | the exchange ends | late |
//! | late | the last answer: it is dropped | idle |
//! | late | commands are written, if the user of the connection wants that | asked; the late answers come first |
//! | late | before the next use the oldest answer is overdue | failed |
//! | any | the socket fails | failed: nothing more is read or written |
//!
//! The user of an exchange decides when a connection is opened, which connections it waits for and until when, and what
//! an answer and a failure mean:
//!
//! | user | opens a connection | ends before all have answered | writes on a late connection |
//! | --- | --- | --- | --- |
//! | a call on a quorum ([`crate::quorum`]) | on a separate thread, one at a time for each node | when the votes decide | yes: a release must follow its acquire |

use std::collections::VecDeque;
use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;

use crate::net::deadline::{Deadline, Phase};
use crate::net::socket::{Socket, TransportError};
use crate::sys::Time;
use crate::sys::net::readable;
use crate::wire::Command;

/// The time limit of a read on a socket that has something to read. The operating system may be wrong about that.
const READ_WITHIN: Duration = Duration::from_millis(1);

/// A connection, and the commands on it that have no answer yet. `T` is what its user notes about a command.
pub(crate) struct Pipeline<T> {
    socket: Socket,
    /// The time limit of a write.
    write_within: Duration,
    /// In the order in which they were written.
    unanswered: VecDeque<Unanswered<T>>,
    /// Why the last read has failed. It counts after the answers that came before.
    fault: Option<TransportError>,
}

/// A command that has no answer yet, or has just been answered.
pub(crate) struct Unanswered<T> {
    command: Command,
    pub(crate) sent: Time,
    /// Whether nobody waits for the answer.
    pub(crate) is_late: bool,
    pub(crate) about: T,
}

/// The part of an exchange that is its user's.
pub(crate) trait Exchange {
    type About: Default;

    /// Takes in the answers that were read. Returns until when to wait for more. Returns `None` if there are enough.
    fn take_in(&mut self) -> Option<Time>;

    /// Returns the connections that are asked.
    fn asked(&mut self) -> impl Iterator<Item = &mut Pipeline<Self::About>>;
}

/// Reads answers until there are enough, or the time is over.
pub(crate) fn run(exchange: &mut impl Exchange) {
    let mut is_last = false;
    while let Some(until) = exchange.take_in() {
        if is_last {
            break;
        }
        // This thread may have had no CPU time until now, so it looks once more after the time.
        is_last = Time::now() >= until;
        read_ready(exchange.asked(), until);
    }
}

/// Waits until there is something to read, or until then. Reads what has come.
pub(crate) fn read_ready<'p, T: Default + 'p>(
    pipelines: impl Iterator<Item = &'p mut Pipeline<T>>,
    until: Time,
) {
    let mut pipelines: SmallVec<[_; 8]> = pipelines.collect();
    let streams = pipelines.iter().map(|pipeline| pipeline.socket.bytes());
    let ready = readable(streams, until);
    for (pipeline, is_ready) in pipelines.iter_mut().zip(ready) {
        if is_ready {
            pipeline.read();
        }
    }
}

impl<T: Default> Pipeline<T> {
    /// Makes an idle connection, on which each write may take `write_within`.
    pub(crate) fn new(socket: Socket, write_within: Duration) -> Self {
        Self {
            socket,
            write_within,
            unanswered: VecDeque::new(),
            fault: None,
        }
    }

    /// Returns the socket of an idle connection.
    pub(crate) fn into_socket(self) -> Socket {
        self.socket
    }

    /// Returns whether no answer is missing.
    pub(crate) fn is_idle(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// Returns whether somebody waits for an answer.
    pub(crate) fn is_asked(&self) -> bool {
        self.unanswered.iter().rev().any(|missing| !missing.is_late)
    }

    /// Returns the commands that have no answer yet, the oldest first.
    pub(crate) fn unanswered(&mut self) -> &mut VecDeque<Unanswered<T>> {
        &mut self.unanswered
    }

    /// Returns whether an answer has been missing for this time.
    pub(crate) fn is_overdue(&self, after: Duration) -> bool {
        let oldest = self.unanswered.front();
        oldest.is_some_and(|oldest| Time::now().since(oldest.sent) >= after)
    }

    /// Looks at the connection before it is used. Gives the late answers that have come to `drop_answer`.
    ///
    /// # Errors
    ///
    /// Returns the reason why the connection has failed: also if an answer has been missing for `overdue_after`.
    pub(crate) fn look(
        &mut self,
        overdue_after: Duration,
        mut drop_answer: impl FnMut(Value, Unanswered<T>),
    ) -> Result<(), TransportError> {
        loop {
            while let Some((value, answered)) = self.take()? {
                drop_answer(value, answered);
            }
            if self.is_idle() {
                return self.socket.look();
            }
            if !readable([self.socket.bytes()], Time::now())[0] {
                break;
            }
            self.read();
        }
        // late: the oldest answer is overdue.
        if self.is_overdue(overdue_after) {
            return Err(Phase::Request.timed_out().into());
        }
        Ok(())
    }

    /// idle, or late: writes commands, for whose answers the caller waits.
    pub(crate) fn ask(
        &mut self,
        commands: impl IntoIterator<Item = (Command, T)>,
    ) -> Result<(), TransportError> {
        self.write(commands, false)
    }

    /// Writes a command for whose answer nobody waits.
    pub(crate) fn tell(&mut self, command: Command, about: T) -> Result<(), TransportError> {
        self.write([(command, about)], true)
    }

    fn write(
        &mut self,
        commands: impl IntoIterator<Item = (Command, T)>,
        is_late: bool,
    ) -> Result<(), TransportError> {
        let (sent, asked) = (Time::now(), self.unanswered.len());
        self.unanswered
            .extend(commands.into_iter().map(|(command, about)| Unanswered {
                command,
                sent,
                is_late,
                about,
            }));
        let new = self.unanswered.range(asked..).map(|new| &new.command);
        self.socket
            .send(new, &mut Deadline::after(self.write_within))
    }

    /// Returns the next answer that was read, and its command.
    pub(crate) fn take(&mut self) -> Result<Option<(Value, Unanswered<T>)>, TransportError> {
        let Some(value) = self.socket.take()? else {
            return self.fault.take().map_or(Ok(None), Err);
        };
        let Some(mut answered) = self.unanswered.pop_front() else {
            let words = "an answer without a command".to_owned();
            return Err(TransportError::Malformed(words));
        };
        // asked: `NOSCRIPT`. A text gets no such answer, so this happens once.
        if !answered.is_late && answered.command.is_by_digest() && is_no_script(&value) {
            let again: Vec<_> = std::iter::once(&mut answered)
                .chain(&mut self.unanswered)
                .filter(|first| !first.is_late)
                .map(|first| {
                    first.is_late = true;
                    (first.command.by_text(), std::mem::take(&mut first.about))
                })
                .collect();
            self.ask(again)?;
        }
        Ok(Some((value, answered)))
    }

    /// asked: the exchange ends. The answers that are missing are late from now on.
    pub(crate) fn give_up(&mut self) {
        for missing in &mut self.unanswered {
            missing.is_late = true;
        }
    }

    /// Reads a piece of the answers.
    fn read(&mut self) {
        match self.socket.read(&mut Deadline::after(READ_WITHIN)) {
            Err(fault) if !fault.is_timeout() => self.fault = Some(fault),
            _ => {}
        }
    }
}

/// Returns whether the server does not know the digest of a script.
fn is_no_script(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use crate::config::Server;

    use super::*;
    use crate::sys::Arc;
    use crate::wire::{self, Request, ScriptSettings};

    const SOON: Duration = Duration::from_secs(20);

    /// Returns a connection, and its other end.
    fn connection() -> (Pipeline<u32>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let server = Server::parse(&format!("redis://127.0.0.1:{port}/")).expect("a URL");
        let socket = Socket::connect(&server, &Arc::default(), Deadline::after(SOON));
        let socket = socket.expect("it listens");
        let (server, _) = listener.accept().expect("it has connected");
        (Pipeline::new(socket, SOON), server)
    }

    fn ping() -> Command {
        Command::new("PING")
    }

    /// Waits for the next answer. Returns the number of its command, and whether it is late.
    fn next(pipeline: &mut Pipeline<u32>) -> (u32, bool) {
        loop {
            if let Some((_, answered)) = pipeline.take().expect("it is open") {
                return (answered.about, answered.is_late);
            }
            read_ready(std::iter::once(&mut *pipeline), Time::now() + SOON);
        }
    }

    /// Reads these commands.
    fn expect(server: &mut TcpStream, commands: &[Command]) {
        let mut expected = Vec::new();
        for command in commands {
            command.pack(&mut expected);
        }
        let mut received = vec![0; expected.len()];
        server.read_exact(&mut received).expect("it is open");
        assert!(received == expected, "other commands");
    }

    #[test]
    fn a_late_answer_is_not_taken_for_that_to_a_later_command() {
        let (mut pipeline, mut server) = connection();
        pipeline.ask([(ping(), 1)]).expect("it is open");
        pipeline.give_up();
        assert!(!pipeline.is_asked() && !pipeline.is_idle());
        pipeline.ask([(ping(), 2)]).expect("it is open");
        pipeline.tell(ping(), 3).expect("it is open");
        server.write_all(b"+1\r\n+2\r\n+3\r\n").expect("it is open");
        let answers = [(); 3].map(|()| next(&mut pipeline));
        assert_eq!(answers, [(1, true), (2, false), (3, true)]);
        assert!(pipeline.is_idle());
    }

    #[test]
    fn after_noscript_that_command_and_those_behind_it_are_written_with_texts() {
        let (mut pipeline, mut server) = connection();
        let settings = ScriptSettings::new(SOON, SOON);
        let digest = || wire::encode(&Request::Renew(&[]), &settings);
        let commands = [(ping(), 1), (digest(), 2), (digest(), 3)];
        pipeline.ask(commands).expect("it is open");
        expect(&mut server, &[ping(), digest(), digest()]);
        let answers = b"+1\r\n-NOSCRIPT none\r\n+first copy\r\n";
        server.write_all(answers).expect("it is open");
        assert_eq!(next(&mut pipeline), (1, false));
        assert!(next(&mut pipeline).1 && next(&mut pipeline).1, "dropped");
        let text = digest().by_text();
        expect(&mut server, &[text.clone(), text]);
        server.write_all(b"+2\r\n+3\r\n").expect("it is open");
        assert_eq!(next(&mut pipeline), (2, false));
        assert_eq!(next(&mut pipeline), (3, false));
    }

    #[test]
    fn a_look_finds_an_overdue_answer_and_what_nobody_asked_for() {
        let (mut pipeline, mut server) = connection();
        let look = |pipeline: &mut Pipeline<u32>, after| pipeline.look(after, |_, _| {});
        assert!(look(&mut pipeline, Duration::ZERO).is_ok(), "it is idle");
        pipeline.ask([(ping(), 1)]).expect("it is open");
        pipeline.give_up();
        assert!(look(&mut pipeline, SOON).is_ok());
        let overdue = look(&mut pipeline, Duration::ZERO).expect_err("no answer");
        assert!(overdue.is_timeout());
        server.write_all(b"+1\r\n+more\r\n").expect("it is open");
        let fault = std::iter::repeat_with(|| look(&mut pipeline, SOON)).find_map(Result::err);
        assert!(matches!(fault, Some(TransportError::Malformed(_))));
        // A part of an answer is enough.
        let (mut pipeline, mut server) = connection();
        server.write_all(b"+").expect("it is open");
        let fault = std::iter::repeat_with(|| look(&mut pipeline, SOON)).find_map(Result::err);
        assert!(matches!(fault, Some(TransportError::Surplus)));
        let (mut pipeline, server) = connection();
        drop(server);
        let ended = std::iter::repeat_with(|| look(&mut pipeline, SOON)).find_map(Result::err);
        assert!(matches!(ended, Some(TransportError::NotSent)));
    }

    /// An exchange over one connection.
    struct Alone {
        pipeline: Pipeline<u32>,
        until: Time,
    }

    impl Exchange for Alone {
        type About = u32;

        fn take_in(&mut self) -> Option<Time> {
            let is_answered = self.pipeline.take().expect("it is open").is_some();
            (!is_answered).then_some(self.until)
        }

        fn asked(&mut self) -> impl Iterator<Item = &mut Pipeline<u32>> {
            std::iter::once(&mut self.pipeline)
        }
    }

    #[test]
    fn a_server_that_sends_byte_by_byte_gets_no_more_time() {
        let (mut pipeline, mut server) = connection();
        pipeline.ask([(ping(), 1)]).expect("it is open");
        let sending = std::thread::spawn(move || {
            server.write_all(b"$8000000\r\n").expect("it is open");
            while server.write_all(b"x").is_ok() {}
        });
        let until = Time::now() + Duration::from_millis(50);
        let mut alone = Alone { pipeline, until };
        run(&mut alone);
        assert!(alone.pipeline.is_asked() && Time::now() >= until);
        drop(alone);
        sending.join().expect("no panic");
    }

    #[test]
    fn an_answer_that_has_come_by_the_end_counts() {
        let (mut pipeline, mut server) = connection();
        pipeline.ask([(ping(), 1)]).expect("it is open");
        server.write_all(b"+1\r\n").expect("it is open");
        while !readable([pipeline.socket.bytes()], Time::now() + SOON)[0] {}
        let until = Time::now();
        let mut alone = Alone { pipeline, until };
        run(&mut alone);
        assert!(alone.pipeline.is_idle());
    }
}
