//! `watch`: all locks that match a pattern, live on a full screen.
//!
//! # The threads
//!
//! | thread | task | sends |
//! | --- | --- | --- |
//! | *screen*, the main thread | reads keys, keeps the [`State`], draws it; never waits for Redis | an [`Order`] to the clerk |
//! | *scanner* | lists the locks again and again, within a budget of keys a second | [`News`] to the screen |
//! | *clerk* | executes one order after the other | [`News`] to the screen, one for each order |
//! | *signals* | waits for a signal that ends the program | the signal to the screen |
//!
//! 1. The scanner sends `Began`, a `Seen` for each lock, and `Ended`; or `Failed`, a pause, and `Began` again.
//! 2. At `Ended` the screen drops the rows that were not seen since `Began`.
//! 3. The screen orders a `Look` at the selected lock when the selection moves, and then about once a second. It orders
//!    no further look before the clerk has answered. So a server that does not answer fills no queue.
//! 4. A key may make the screen order a `Request` or a `Force`. The clerk answers with `Done` or `Refused`.
//! 5. When the user quits, at a signal, or when the terminal fails, the screen restores the terminal. It waits for the answer to a `Request` or a
//!    `Force` for at most [`LAST_WAIT`], and prints it. The other threads end with the process.
//! 6. If the process still runs some time after a signal, the signals thread ends it. When a terminal hangs up, crossterm
//!    reads its end again and again, so the screen thread never returns.

mod draw;
mod row;
mod scan;
mod state;

use std::io::{self, IsTerminal};
use std::mem;
use std::process;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::Args;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use leasehold::LockManager;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::exit::{Failure, SYSTEM, USAGE};
use crate::output;
use crate::servers::Servers;
use crate::signals::{self, ENDING};
use draw::Colours;
use scan::{News, Order};
use state::{Action, State};

/// The time between two pictures while no key is pressed. Times on the screen count on by tenths of a second.
const TICK: Duration = Duration::from_millis(100);
/// How long the program waits at its end for an answer that the user wants to know.
const LAST_WAIT: Duration = Duration::from_secs(3);
/// How long the screen thread may take to restore the terminal after a signal, and how long it waits for one after an error.
const RESTORE: Duration = Duration::from_secs(1);

/// Shows all locks live on the screen
///
/// Each lock has a row with its holder, the time since the grant, the rest of the lease, and the length of the queue. The
/// key ? shows all keys: to sort, to filter, to see the queue of a lock, to ask the holders to release, and to release by
/// force. Reads at most 1,000 locks a second. Shows a rate limiter if PATTERN is its name.
#[derive(Args)]
pub struct Options {
    /// Which locks: `*` is any text, `?` any character, `[a-c]` one of these characters
    #[arg(default_value = "*")]
    pattern: String,
    /// The time from the beginning of a scan to the next
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = leasehold::parse_time)]
    every: Duration,
}

pub fn main(servers: &Servers, options: &Options) -> Result<u8, Failure> {
    if !io::stdout().is_terminal() {
        let text = "`watch` draws on a terminal: use `leasehold list` for a file or a pipe";
        return Err(Failure::new(USAGE, text));
    }
    // Before any thread starts, because each thread inherits the blocked signals.
    let signals = receive_signals(signals::receive(ENDING)?);
    let locks = servers.connect()?;
    let (tell, news) = unbounded();
    let (order, orders) = unbounded();

    let mut screen = Screen {
        threads: start_threads(&locks, options, &tell, orders),
        state: State::new(&options.pattern),
        colours: Colours::of_environment(),
        news,
        order,
        signals,
    };
    let status = ratatui::try_init()
        .map_err(|error| no_terminal(&error))
        .and_then(|mut terminal| {
            let status = screen.serve(&mut terminal);
            // It fails on a terminal that has hung up. ratatui's drop would print that error to the same terminal, and panic.
            let _ = terminal.show_cursor();
            mem::forget(terminal);
            status
        });
    let _ = ratatui::try_restore();
    screen.await_last_answer();
    status
}

fn start_threads(
    locks: &LockManager,
    options: &Options,
    tell: &Sender<News>,
    orders: Receiver<Order>,
) -> [JoinHandle<()>; 2] {
    let (scanner, pattern, every) = (locks.clone(), options.pattern.clone(), options.every);
    let (to_screen, from_clerk) = (tell.clone(), tell.clone());
    let clerk = locks.clone();
    [
        thread::spawn(move || scan::scan(&scanner, &pattern, every, &to_screen)),
        thread::spawn(move || scan::execute(&clerk, &orders, &from_clerk)),
    ]
}

/// Starts the thread that waits for a signal, and that ends the process if the screen thread does not.
fn receive_signals(signals: SignalFd) -> Receiver<Signal> {
    let (tell, signalled) = bounded(1);
    thread::spawn(move || {
        let Some(signals::Arrived { signal, .. }) = signals::wait(&signals) else {
            return;
        };
        let _ = tell.send(signal);
        // Nobody can read the last answer on a terminal that has hung up.
        let last_wait = if signal == Signal::SIGHUP {
            Duration::ZERO
        } else {
            LAST_WAIT
        };
        thread::sleep(last_wait + RESTORE);
        process::exit(128 + signal as i32);
    });
    signalled
}

fn no_terminal(error: &io::Error) -> Failure {
    Failure::system("cannot use the terminal", error)
}

/// The main thread.
struct Screen {
    /// The scanner and the clerk. They end only by a panic.
    threads: [JoinHandle<()>; 2],
    state: State,
    colours: Colours,
    news: Receiver<News>,
    order: Sender<Order>,
    signals: Receiver<Signal>,
}

impl Screen {
    /// Draws and reacts, until the user quits or a signal arrives. Returns the exit status.
    fn serve(&mut self, terminal: &mut DefaultTerminal) -> Result<u8, Failure> {
        loop {
            self.hear()?;
            let now = Instant::now();
            if let Some(look) = self.state.next_look(now) {
                self.send(look);
            }
            let has_quit = self.draw(terminal, now).and_then(|()| self.take_keys());
            // A terminal that hangs up is an error and a signal, and either may come first.
            let patience = has_quit.as_ref().map_or(RESTORE, |_| Duration::ZERO);
            if let Ok(signal) = self.signals.recv_timeout(patience) {
                return Ok(u8::try_from(128 + signal as i32).unwrap_or(u8::MAX));
            }
            if has_quit.map_err(|error| no_terminal(&error))? {
                return Ok(0);
            }
        }
    }

    fn draw(&mut self, terminal: &mut DefaultTerminal, now: Instant) -> io::Result<()> {
        let (state, colours) = (&mut self.state, self.colours);
        terminal.draw(|frame| {
            state.set_page(draw::rows_that_fit(frame.area(), state));
            draw::draw(frame, state, colours, now);
        })?;
        Ok(())
    }

    /// Takes what the other threads have sent.
    fn hear(&mut self) -> Result<(), Failure> {
        if self.threads.iter().any(JoinHandle::is_finished) {
            // The panic has shown its message, and has restored the terminal.
            return Err(Failure::new(SYSTEM, "a thread of `watch` has panicked"));
        }
        let now = Instant::now();
        for news in self.news.try_iter() {
            self.state.on_news(news, now);
        }
        self.state.arrange(now);
        Ok(())
    }

    /// Waits for keys for at most a [`TICK`]. Returns whether the user quits.
    fn take_keys(&mut self) -> io::Result<bool> {
        let mut wait = TICK;
        while event::poll(wait)? {
            wait = Duration::ZERO;
            // Any other event, such as a new size, only needs a new picture.
            let Event::Key(key) = event::read()? else {
                continue;
            };
            if key.kind == KeyEventKind::Release {
                continue;
            }
            match self.state.on_key(key, Instant::now()) {
                Some(Action::Quit) => return Ok(true),
                Some(Action::Order(order)) => self.send(order),
                None => {}
            }
        }
        Ok(false)
    }

    fn send(&self, order: Order) {
        // A clerk that has panicked is noticed before the next picture.
        let _ = self.order.send(order);
    }

    /// Prints the answer to a request that is still on its way.
    fn await_last_answer(&mut self) {
        let until = Instant::now() + LAST_WAIT;
        while self.state.awaits_answer() {
            match self.news.recv_deadline(until) {
                Ok(News::Done(text) | News::Refused(text)) => {
                    output::complain(&text);
                    return;
                }
                Ok(_) => {}
                Err(_) => return output::complain("no answer came; the request may be executed"),
            }
        }
    }
}
