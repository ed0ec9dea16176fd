//! The only logger of the test process. It prints every record, so that `.ci/run` can search for secrets, and sends
//! it to each test that wants it.

use std::fmt::Write;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, Once, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;

use log::{Level, LevelFilter, Log, Metadata, Record};

/// A record of the log.
#[derive(Clone, Debug)]
pub struct Logged {
    pub level: Level,
    pub target: String,
    /// The name of the thread that logged it.
    pub thread: String,
    pub text: String,
}

/// The texts that tests want, each with the receiver of the records that contain it.
static WANTED: Mutex<Vec<(String, Sender<Logged>)>> = Mutex::new(Vec::new());

/// When the first record came.
static BEGUN: OnceLock<Instant> = OnceLock::new();

struct Output;

impl Log for Output {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let logged = Logged {
            level: record.level(),
            target: record.target().into(),
            thread: thread::current().name().unwrap_or_default().into(),
            text: record.args().to_string(),
        };
        // Seconds, to compare the times of lines.
        let begun = BEGUN.get_or_init(Instant::now);
        let mut line = String::new();
        writeln!(
            line,
            "log: {:.3} {} {} [{}] {}",
            begun.elapsed().as_secs_f64(),
            logged.level,
            logged.target,
            logged.thread,
            logged.text
        )
        .expect("a write to a string succeeds");
        // One write, so that no other output comes in between.
        eprint!("{line}");
        let mut wanted = WANTED.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.retain(|(text, sender)| {
            !logged.text.contains(text) || sender.send(logged.clone()).is_ok()
        });
    }

    fn flush(&self) {}
}

/// Installs the logger. Each way to a server's URL calls this, so it runs before the first record.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        log::set_logger(&Output).expect("there is no other");
        log::set_max_level(LevelFilter::Trace);
    });
}

/// Returns a receiver of all records from now on that contain `text`.
pub fn logged(text: &str) -> Receiver<Logged> {
    let (sender, receiver) = channel();
    let mut wanted = WANTED.lock().unwrap_or_else(PoisonError::into_inner);
    wanted.push((text.into(), sender));
    receiver
}
