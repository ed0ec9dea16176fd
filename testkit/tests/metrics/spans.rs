//! A subscriber that keeps all spans.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Metadata, Subscriber, dispatcher};

/// A span as it was recorded.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub kind: &'static str,
    pub parent: Option<u64>,
    pub fields: BTreeMap<&'static str, String>,
    pub was_entered: bool,
    pub is_closed: bool,
}

/// The spans. The number of a span is its index plus one.
static SPANS: Mutex<Vec<Recorded>> = Mutex::new(Vec::new());

static INSTALLED: LazyLock<()> = LazyLock::new(|| {
    dispatcher::set_global_default(Dispatch::new(Keeper)).expect("it is the only one");
});

thread_local! {
    /// The spans that the thread is in.
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Keeps the spans from now on.
pub fn install() {
    LazyLock::force(&INSTALLED);
}

/// Returns the spans of a lock, in the order in which they began.
pub fn of(lock: &str) -> Vec<Recorded> {
    let is_of = |span: &&Recorded| span.fields.get("name").is_some_and(|name| name == lock);
    spans().iter().filter(is_of).cloned().collect()
}

fn spans() -> MutexGuard<'static, Vec<Recorded>> {
    SPANS.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Keeper;

impl Subscriber for Keeper {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let current = ENTERED.with_borrow(|entered| entered.last().copied());
        let parent = attributes.parent().map(Id::into_u64);
        let mut span = Recorded {
            kind: attributes.metadata().name(),
            parent: parent.or(current.filter(|_| attributes.is_contextual())),
            fields: BTreeMap::new(),
            was_entered: false,
            is_closed: false,
        };
        attributes.record(&mut span);
        span.may_panic("new");
        let mut spans = spans();
        spans.push(span);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        let mut spans = spans();
        let span = &mut spans[id.into_u64() as usize - 1];
        values.record(span);
        span.may_panic("record");
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, id: &Id) {
        spans()[id.into_u64() as usize - 1].was_entered = true;
        ENTERED.with_borrow_mut(|entered| entered.push(id.into_u64()));
    }

    fn exit(&self, _: &Id) {
        ENTERED.with_borrow_mut(Vec::pop);
    }

    fn try_close(&self, id: Id) -> bool {
        let mut spans = spans();
        let span = &mut spans[id.into_u64() as usize - 1];
        span.is_closed = true;
        span.may_panic("close");
        true
    }
}

impl Recorded {
    /// Panics in this step of the span of a lock with the name "panics in" and the step.
    fn may_panic(&self, step: &str) {
        let name = self.fields.get("name");
        let panics = name.is_some_and(|name| *name == format!("panics in {step}"));
        assert!(!panics, "on purpose");
    }
}

impl Visit for Recorded {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}
