//! The one logger of the test process: all that is logged, at every level, goes to the output, where `.ci/run` looks
//! for secrets, and to whichever test asks for it.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

use log::{Level, LevelFilter, Log, Metadata, Record};

/// A record, as a test is given it.
#[derive(Clone, Debug)]
pub(crate) struct Logged {
    pub(crate) level: Level,
    pub(crate) target: String,
    /// The name of the thread that logged it.
    pub(crate) thread: String,
    pub(crate) text: String,
}

/// Who is told of the records that hold a text.
static WANTED: Mutex<Vec<(String, Sender<Logged>)>> = Mutex::new(Vec::new());

/// Whether the logger panics.
static PANICS: AtomicBool = AtomicBool::new(false);

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
        let is_fatal = PANICS.load(Ordering::Relaxed) && record.target().starts_with("leasehold");
        if is_fatal {
            // Without the message of a panic, which would look like a failure and, with a backtrace, take seconds.
            std::panic::resume_unwind(Box::new("the logger's own"));
        }
        let mut line = String::new();
        writeln!(
            line,
            "log: {} {} [{}] {}",
            logged.level, logged.target, logged.thread, logged.text
        )
        .expect("a string takes all");
        // By one write, so that what others print does not come in between.
        eprint!("{line}");
        let mut wanted = WANTED.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.retain(|(text, sender)| {
            !logged.text.contains(text) || sender.send(logged.clone()).is_ok()
        });
    }

    fn flush(&self) {}
}

/// Lets everything be logged. It is called wherever a test comes by a server's URL, and so before anything is logged.
pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        log::set_logger(&Output).expect("there is no other");
        log::set_max_level(LevelFilter::Trace);
    });
}

/// From now on the logger of this process panics at every word of the crate's.
pub(super) fn panic_from_now_on() {
    PANICS.store(true, Ordering::Relaxed);
}

/// What is logged from now on with this text in it.
pub(crate) fn logged(text: &str) -> Receiver<Logged> {
    let (sender, receiver) = channel();
    let mut wanted = WANTED.lock().unwrap_or_else(PoisonError::into_inner);
    wanted.push((text.into(), sender));
    receiver
}
