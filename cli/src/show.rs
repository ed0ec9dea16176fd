//! `status` and `list` show the holders of locks, and the waiters.
//!
//! On a terminal they print a table for people, which fits its width. In a pipe each holder is a line of fields, separated by
//! tabs, with times in seconds. With `--json` each lock is an object, a line each. A lock that cannot be shown has a row too,
//! and hides no other.

use std::io::{self, IsTerminal};
use std::time::{Duration, SystemTime};

use clap::Args;
use leasehold::{Error, Fired, Holder, Kind, LockInfo, LockManager, Mode, Waiting};
use serde_json::{Value, json};

use crate::exit::{Failure, WRONG_TYPE};
use crate::output::{self, age, complain, print, span};
use crate::servers::Servers;

/// The status of `--check` if a lock is free.
const FREE: u8 = 1;

/// Shows who holds locks, and who waits for them
#[derive(Args)]
pub struct Status {
    /// Print a JSON object for each lock
    #[arg(long)]
    json: bool,
    /// Print nothing: the exit status is 0 if all these locks are taken, and 1 if one is free
    #[arg(long, conflicts_with = "json")]
    check: bool,
    /// The names of the locks
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

/// Lists all locks that are held or waited for
///
/// Scans the whole database, up to 2,000 keys at a time, unless the pattern is one name.
#[derive(Args)]
pub struct List {
    /// Print a JSON object for each lock
    #[arg(long)]
    json: bool,
    /// Names to list: * stands for any text, ? for any character, as in SCAN of Redis
    #[arg(default_value = "*", value_name = "PATTERN")]
    pattern: String,
}

/// A lock that was asked for.
struct Seen {
    name: String,
    /// `None`: it is free, and nobody waits.
    lock: Result<Option<LockInfo>, Failure>,
    /// The last fire of a job that runs once.
    fired: Result<Option<Fired>, Failure>,
}

impl Seen {
    fn new(name: String, lock: leasehold::Result<Option<LockInfo>>) -> Self {
        let lock = lock.map_err(Failure::from).map(|lock| {
            let mut lock = lock?;
            number(&mut lock.holders);
            Some(lock)
        });
        let fired = Ok(None);
        Self { name, lock, fired }
    }

    /// Adds the last fire, for which a quorum has no place.
    fn with_fire(mut self, locks: &LockManager) -> Self {
        if self.lock.is_ok() {
            self.fired = match locks.once(&self.name).last() {
                Err(Error::Unsupported { .. }) => Ok(None),
                last => last.map_err(Failure::from),
            };
        }
        self
    }

    fn failure(&self) -> Option<&Failure> {
        self.lock.as_ref().err().or(self.fired.as_ref().err())
    }

    fn is_taken(&self) -> bool {
        let Ok(Some(lock)) = &self.lock else {
            return false;
        };
        match lock.kind {
            Kind::RateLimiter { retry_after, .. } => !retry_after.is_zero(),
            _ => true,
        }
    }
}

/// Puts the holders of a lock into the order in which they are numbered, from 1. Redis has them in the order in which their
/// leases end, which changes with each renewal.
pub fn number(holders: &mut [Holder]) {
    holders.sort_by(|a, b| (&a.label, &a.owner).cmp(&(&b.label, &b.owner)));
}

pub fn status(servers: &Servers, options: &Status) -> Result<u8, Failure> {
    let locks = servers.connect()?;
    let inspect = |name: &String| {
        let seen = Seen::new(name.clone(), locks.inspect(name));
        if options.check {
            seen
        } else {
            seen.with_fire(&locks)
        }
    };
    let seen: Vec<_> = options.names.iter().map(inspect).collect();
    if !options.check {
        show(&seen, options.json)?;
    }
    // One name that cannot be shown hides no other.
    let mut failed = None;
    for failure in seen.iter().filter_map(Seen::failure) {
        complain(&failure.text);
        failed.get_or_insert(failure.status);
    }
    let is_free = options.check && !seen.iter().all(Seen::is_taken);
    Ok(failed.unwrap_or(if is_free { FREE } else { 0 }))
}

pub fn list(servers: &Servers, options: &List) -> Result<u8, Failure> {
    let locks = servers.connect()?;
    let mut seen = Vec::new();
    let mut failed = None;
    for lock in locks.list(&options.pattern) {
        match lock {
            Ok(lock) => seen.push(Seen::new(lock.name.clone(), Ok(Some(lock)))),
            Err(error) => failed = Some(error),
        }
    }
    seen.sort_by(|a, b| a.name.cmp(&b.name));
    show(&seen, options.json)?;
    failed.map_or(Ok(0), |error| Err(error.into()))
}

fn show(seen: &[Seen], as_json: bool) -> Result<(), Failure> {
    let now = SystemTime::now();
    let text = if as_json {
        let objects = seen.iter().map(|it| {
            let lock = it.lock.as_ref().ok().and_then(Option::as_ref);
            let mut object = object(&it.name, lock, now);
            if let Err(failure) = &it.lock {
                object["kind"] = json!(not_shown(failure).replace(' ', "_"));
                object["error"] = json!(failure.text);
            }
            match &it.fired {
                Ok(Some(fired)) => {
                    let moment = |moment| humantime::format_rfc3339_millis(moment).to_string();
                    let (fire, at) = (moment(fired.fire), moment(fired.at));
                    object["last_fire"] = json!({ "fire": fire, "at": at, "label": fired.label });
                }
                Ok(None) => {}
                Err(failure) => object["last_fire"] = json!({ "error": failure.text }),
            }
            object
        });
        objects.fold(String::new(), |lines, object| {
            lines + &format!("{object}\n")
        })
    } else if io::stdout().is_terminal() {
        let rows: Vec<_> = seen.iter().flat_map(|it| rows(it, Style::People)).collect();
        // Few locks are jobs that run once.
        let is_shown = |field| field != FIRE || rows.iter().any(|row| row[field] != "-");
        let (headings, fields): (Vec<_>, Vec<_>) = COLUMNS
            .iter()
            .filter(|(_, field)| is_shown(*field))
            .copied()
            .unzip();
        let pick = |row: &Vec<String>| fields.iter().map(|field| row[*field].clone()).collect();
        let rows: Vec<_> = rows.iter().map(pick).collect();
        output::aligned(&headings, &rows, output::width(io::stdout()))
    } else {
        let rows: Vec<_> = seen.iter().flat_map(|it| rows(it, Style::Fields)).collect();
        output::fields(&rows)
    };
    print(&text).map_err(|error| Failure::system("cannot write", error))
}

/// The columns of the table: the heading of each, and the place of its field in a line. The last ones are cut first.
const COLUMNS: [(&str, usize); 11] = [
    ("NAME", 0),
    ("#", 9),
    ("KIND", 1),
    ("HOLDER", 2),
    ("HELD", 3),
    ("LEFT", 4),
    ("WAITING", 7),
    ("LAST FIRE", FIRE),
    ("NOTE", 6),
    ("FENCE", 5),
    ("OWNER", 8),
];

/// The place of the last fire in a line.
const FIRE: usize = 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    People,
    Fields,
}

impl Style {
    fn time(self, time: Option<Duration>) -> String {
        match (self, time) {
            (_, None) => "-".to_owned(),
            (Self::People, Some(time)) => span(time),
            (Self::Fields, Some(time)) => format!("{:.3}", time.as_secs_f64()),
        }
    }
}

/// Returns a row for each holder, or one row without a holder.
fn rows(seen: &Seen, style: Style) -> Vec<Vec<String>> {
    let fire = match &seen.fired {
        Ok(Some(fired)) => humantime::format_rfc3339_seconds(fired.fire).to_string(),
        Ok(None) => "-".to_owned(),
        Err(_) => "unknown".to_owned(),
    };
    let mut rows = rows_of_holders(seen, style);
    for row in &mut rows {
        row.push(fire.clone());
    }
    rows
}

fn rows_of_holders(seen: &Seen, style: Style) -> Vec<Vec<String>> {
    let none = || "-".to_owned();
    let name = &seen.name;
    let info = match &seen.lock {
        Ok(Some(info)) => info,
        Ok(None) => return vec![row(name, "free", None, none(), style)],
        Err(failure) => return vec![row(name, not_shown(failure), None, none(), style)],
    };
    let kind = kind(&info.kind);
    let waiting = match (style, info.waiting.as_slice()) {
        (Style::Fields, _) | (_, []) => info.waiters.to_string(),
        (Style::People, waiting) => {
            let shown: Vec<_> = waiting.iter().take(3).map(waiter).collect();
            let more = if info.waiters > 3 { ", …" } else { "" };
            format!("{}: {}{more}", info.waiters, shown.join(", "))
        }
    };
    if info.holders.is_empty() {
        return vec![row(name, &kind, None, waiting, style)];
    }
    let holders = (1..).zip(&info.holders);
    holders
        .map(|holder| row(name, &kind, Some(holder), waiting.clone(), style))
        .collect()
}

/// Returns the fields of a line. The holder has its number.
fn row(
    name: &str,
    kind: &str,
    holder: Option<(usize, &Holder)>,
    waiting: String,
    style: Style,
) -> Vec<String> {
    let none = || "-".to_owned();
    let number = holder.map_or_else(none, |(number, _)| number.to_string());
    let holder = holder.map(|(_, holder)| holder);
    let by = |holder: &Holder| {
        let label = who(holder);
        match holder.mode {
            _ if holder.kept => format!("{label} (has ended; kept)"),
            Mode::Read => format!("{label} (reads)"),
            Mode::Permits(n) if n != 1 => format!("{label} ({n} permits)"),
            _ => label.to_owned(),
        }
    };
    let text = |of: fn(&Holder) -> Option<String>| holder.and_then(of).unwrap_or_else(none);
    vec![
        name.to_owned(),
        kind.to_owned(),
        holder.map_or_else(none, by),
        style.time(holder.and_then(|it| it.since).map(age)),
        style.time(holder.and_then(|it| it.ttl)),
        text(|it| it.fence.map(|fence| fence.to_string())),
        text(|it| it.note.clone()),
        waiting,
        text(|it| Some(owner(it))),
        number,
    ]
}

/// Returns what stands in place of the kind of a lock that cannot be shown.
fn not_shown(failure: &Failure) -> &'static str {
    match failure.status {
        WRONG_TYPE => "no lock",
        _ => "unknown",
    }
}

/// Returns the holder for people.
pub fn who(holder: &Holder) -> &str {
    holder.label.as_deref().unwrap_or("another client")
}

/// Returns the owner as it may be shown. The value of another program may be a secret.
fn owner(holder: &Holder) -> String {
    match (&holder.label, holder.owner.len()) {
        (Some(_), _) => holder.owner.clone(),
        // Its bytes were no UTF-8, and some were replaced.
        (None, _) if holder.owner.contains('\u{fffd}') => "another program's value".to_owned(),
        (None, length) => format!("another program's value, {length} bytes"),
    }
}

fn waiter(waiting: &Waiting) -> String {
    let label = waiting.label.as_deref().unwrap_or("another client");
    format!("{label} ({})", span(age(waiting.since)))
}

fn kind(kind: &Kind) -> String {
    match kind {
        Kind::Mutex => "mutex".to_owned(),
        Kind::RwLock => "rwlock".to_owned(),
        Kind::Semaphore { permits } => format!("semaphore of {permits}"),
        Kind::RateLimiter { permits, per, .. } => format!("{permits} per {}", span(*per)),
        _ => "unknown".to_owned(),
    }
}

/// Returns the object of a lock: times are in seconds, moments as RFC 3339 has them.
pub fn object(name: &str, info: Option<&LockInfo>, now: SystemTime) -> Value {
    let Some(info) = info else {
        return json!({ "name": name, "kind": null, "holders": [], "waiters": 0, "waiting": [] });
    };
    let since = |moment: SystemTime| humantime::format_rfc3339_millis(moment).to_string();
    let ago = |moment: SystemTime| now.duration_since(moment).unwrap_or_default().as_secs_f64();
    let holder = |(number, holder): (usize, &Holder)| {
        let (mode, units) = match holder.mode {
            Mode::Read => ("read", None),
            Mode::Permits(n) => ("permits", Some(n)),
            _ => ("exclusive", None),
        };
        json!({
            "number": number,
            // That of another program may be a secret.
            "owner": holder.label.as_ref().map(|_| &holder.owner),
            "label": holder.label,
            "note": holder.note,
            "fence": holder.fence,
            "mode": mode,
            "permits": units,
            "since": holder.since.map(since),
            "held_for": holder.since.map(ago),
            "ttl": holder.ttl.map(|ttl| ttl.as_secs_f64()),
            "kept": holder.kept,
            "nodes": holder.nodes.iter().map(AsRef::as_ref).collect::<Vec<&str>>(),
        })
    };
    let waiter = |waiter: &Waiting| {
        json!({
            "label": waiter.label,
            "since": since(waiter.since),
            "waiting_for": ago(waiter.since),
            "units": waiter.units,
        })
    };
    let mut object = json!({
        "name": name,
        "kind": "unknown",
        "holders": (1..).zip(&info.holders).map(holder).collect::<Vec<_>>(),
        "waiters": info.waiters,
        "waiting": info.waiting.iter().map(waiter).collect::<Vec<_>>(),
    });
    match info.kind {
        Kind::Mutex => object["kind"] = json!("mutex"),
        Kind::RwLock => object["kind"] = json!("rwlock"),
        Kind::Semaphore { permits } => {
            object["kind"] = json!("semaphore");
            object["permits"] = json!(permits);
        }
        Kind::RateLimiter {
            permits,
            per,
            retry_after,
        } => {
            object["kind"] = json!("rate_limiter");
            object["permits"] = json!(permits);
            object["per"] = json!(per.as_secs_f64());
            object["retry_after"] = json!(retry_after.as_secs_f64());
        }
        _ => {}
    }
    object
}
