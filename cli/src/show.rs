//! `status` and `list` show the holders of locks, and the waiters.
//!
//! On a terminal they print a table for people. In a pipe each holder is a line of fields, separated by tabs, with times in
//! seconds. With `--json` each lock is an object, a line each.

use std::io::{self, IsTerminal};
use std::time::{Duration, SystemTime};

use clap::Args;
use leasehold::{Holder, Kind, LockInfo, Mode, Waiting};
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::output::{age, print, span, table};
use crate::servers::Servers;

/// Shows who holds locks, and who waits for them
#[derive(Args)]
pub struct Status {
    /// Print a JSON object for each lock
    #[arg(long)]
    json: bool,
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

/// A lock that was asked for. `None`: it is free, and nobody waits.
type Seen = (String, Option<LockInfo>);

pub fn status(servers: &Servers, options: &Status) -> Result<u8, Failure> {
    let locks = servers.connect()?;
    let inspect = |name: &String| Ok((name.clone(), locks.inspect(name)?));
    let seen: Vec<Seen> = options
        .names
        .iter()
        .map(inspect)
        .collect::<Result<_, Failure>>()?;
    show(&seen, options.json)
}

pub fn list(servers: &Servers, options: &List) -> Result<u8, Failure> {
    let locks = servers.connect()?;
    let named = |info: LockInfo| (info.name.clone(), Some(info));
    let listed = locks.list(&options.pattern).map(|info| Ok(named(info?)));
    let mut seen: Vec<Seen> = listed.collect::<Result<_, Failure>>()?;
    seen.sort_by(|(a, _), (b, _)| a.cmp(b));
    show(&seen, options.json)
}

fn show(seen: &[Seen], as_json: bool) -> Result<u8, Failure> {
    let now = SystemTime::now();
    let text = if as_json {
        let objects = seen
            .iter()
            .map(|(name, info)| object(name, info.as_ref(), now));
        objects.fold(String::new(), |lines, object| {
            lines + &format!("{object}\n")
        })
    } else {
        let style = if io::stdout().is_terminal() {
            Style::People
        } else {
            Style::Fields
        };
        let rows: Vec<_> = seen
            .iter()
            .flat_map(|(name, info)| rows(name, info.as_ref(), style))
            .collect();
        table(&HEADING, &rows)
    };
    print(&text).map_err(|error| Failure::system("cannot write", error))?;
    Ok(0)
}

const HEADING: [&str; 9] = [
    "NAME", "KIND", "HOLDER", "HELD", "LEFT", "FENCE", "NOTE", "WAITING", "OWNER",
];

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
fn rows(name: &str, info: Option<&LockInfo>, style: Style) -> Vec<Vec<String>> {
    let Some(info) = info else {
        return vec![row(name, "free", None, "-".to_owned(), style)];
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
    let holders = info.holders.iter();
    holders
        .map(|holder| row(name, &kind, Some(holder), waiting.clone(), style))
        .collect()
}

fn row(
    name: &str,
    kind: &str,
    holder: Option<&Holder>,
    waiting: String,
    style: Style,
) -> Vec<String> {
    let none = || "-".to_owned();
    let by = |holder: &Holder| {
        let label = holder.label.as_deref().unwrap_or("another client");
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
        text(|it| Some(it.owner.clone())),
    ]
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
    let holder = |holder: &Holder| {
        let (mode, units) = match holder.mode {
            Mode::Read => ("read", None),
            Mode::Permits(n) => ("permits", Some(n)),
            _ => ("exclusive", None),
        };
        json!({
            "owner": holder.owner,
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
        "holders": info.holders.iter().map(holder).collect::<Vec<_>>(),
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
