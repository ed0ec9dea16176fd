//! The knowledge of the screen. Keys and news change it. This module draws nothing, and sends nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::mem;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::row::{Held, Row};
use super::scan::{News, Order};
use crate::output::safe;

/// The time between two looks at the selected lock, and the shortest one while the selection moves.
const LOOKS: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(100)];
/// How long a message stays.
const MESSAGE: Duration = Duration::from_secs(10);
/// More rows than this are sorted at most once a second.
const MANY_ROWS: usize = 5_000;
/// The answer to the question before a release by force.
const YES: &str = "yes";

/// The effect of a key outside of the state.
#[derive(Debug, PartialEq)]
pub enum Action {
    Quit,
    Order(Order),
}

/// The order of the rows. Equal rows are in the order of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    Name,
    /// The lock that is held for longest comes first.
    HeldFor,
    /// The lock whose lease ends first comes first.
    TimeLeft,
    /// The lock with the longest queue comes first.
    Waiters,
}

impl Sort {
    fn next(self) -> Self {
        match self {
            Self::Name => Self::HeldFor,
            Self::HeldFor => Self::TimeLeft,
            Self::TimeLeft => Self::Waiters,
            Self::Waiters => Self::Name,
        }
    }
}

/// A line that the user types.
#[derive(Debug)]
pub enum Prompt {
    /// The filter, which applies at each key. Escape brings the earlier filter back.
    Filter { earlier: String },
    /// Why the holders of this lock are asked to release it.
    Reason { name: String, text: String },
    /// The word [`YES`], to take this lock from this owner.
    Force {
        name: String,
        owner: String,
        who: String,
        text: String,
    },
}

/// A lock, and the number of the newest scan in which it was read.
#[derive(Debug)]
struct Known {
    row: Rc<Row>,
    scan: u64,
}

pub struct State {
    pub pattern: String,
    pub sort: Sort,
    pub filter: String,
    pub prompt: Option<Prompt>,
    /// Whether the keys are shown.
    pub help: bool,
    /// The line of the queue pane on which the cursor is: the holders, and then the queue. `None`: the pane is closed.
    pub pane: Option<usize>,
    /// Why the newest request of the scanner failed.
    pub problem: Option<String>,
    message: Option<(String, Instant)>,

    rows: BTreeMap<String, Known>,
    /// The rows that the filter lets through, sorted.
    view: Vec<Rc<Row>>,
    /// When the view was made, and whether something has changed since.
    view_at: Option<Instant>,
    is_changed: bool,
    /// The place of the cursor in the view.
    cursor: usize,
    /// The lock that the cursor follows. `None` until the user has moved or used the cursor: it stays at the top.
    followed: Option<String>,
    /// The number of rows that fit on the screen.
    page: usize,

    /// The number of the scan that runs, and its beginning.
    scan: u64,
    running: Option<Instant>,
    /// The beginning of the newest scan that has read everything. No row is older.
    complete: Option<Instant>,
    /// The lock of the last look, and its time.
    looked: Option<(String, Instant)>,
    is_looking: bool,
    /// The number of requests of the user that have no answer.
    unanswered: u32,
}

impl State {
    pub fn new(pattern: &str) -> Self {
        Self {
            pattern: safe(pattern),
            sort: Sort::Name,
            filter: String::new(),
            prompt: None,
            help: false,
            pane: None,
            problem: None,
            message: None,
            rows: BTreeMap::new(),
            view: Vec::new(),
            view_at: None,
            is_changed: false,
            cursor: 0,
            followed: None,
            page: 1,
            scan: 0,
            running: None,
            complete: None,
            looked: None,
            is_looking: false,
            unanswered: 0,
        }
    }

    /// Returns the rows that are shown, in their order.
    pub fn view(&self) -> &[Rc<Row>] {
        &self.view
    }

    /// Returns the place of the cursor in the view.
    pub fn cursor(&self) -> usize {
        self.cursor
    }

    pub fn selected(&self) -> Option<&Rc<Row>> {
        self.view.get(self.cursor)
    }

    /// Returns the number of all locks.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// Returns how old the oldest row can be. `None`: the first scan has not ended.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.complete?))
    }

    /// Returns the newest message, unless it is old.
    pub fn message(&self, now: Instant) -> Option<&str> {
        let (text, at) = self.message.as_ref()?;
        (now.saturating_duration_since(*at) < MESSAGE).then_some(text)
    }

    pub fn awaits_answer(&self) -> bool {
        self.unanswered > 0
    }

    pub fn set_page(&mut self, rows: usize) {
        self.page = rows.max(1);
    }

    /// Returns the order for a look at the selected lock, if it is time for one.
    pub fn next_look(&mut self, now: Instant) -> Option<Order> {
        let name = &self.selected()?.name;
        let due = self.looked.as_ref().is_none_or(|(last, at)| {
            let wait = if last == name { LOOKS[0] } else { LOOKS[1] };
            now.saturating_duration_since(*at) >= wait
        });
        if self.is_looking || !due {
            return None;
        }
        let name = name.clone();
        self.looked = Some((name.clone(), now));
        self.is_looking = true;
        Some(Order::Look(name))
    }
}

/// News.
impl State {
    pub fn on_news(&mut self, news: News, now: Instant) {
        match news {
            News::Began => {
                self.scan += 1;
                self.running = Some(now);
            }
            News::Seen(row) => {
                self.problem = None;
                self.put(row);
            }
            News::Ended => {
                self.problem = None;
                self.complete = self.running;
                self.is_changed = true;
                let mut rows = mem::take(&mut self.rows);
                // The clerk tells of the end of a lock whose pane is open.
                rows.retain(|name, known| known.scan == self.scan || self.is_open(name));
                self.rows = rows;
            }
            News::Failed(text) => self.problem = Some(text),
            News::Looked(name, row) => {
                self.is_looking = false;
                match (row, self.rows.get(&name)) {
                    (Some(row), _) => self.put(row),
                    (None, Some(known)) if self.is_open(&name) => {
                        self.put(known.row.as_free(now));
                    }
                    (None, _) => {
                        self.is_changed |= self.rows.remove(&name).is_some();
                    }
                }
            }
            News::LookFailed(text) => {
                self.is_looking = false;
                self.problem = Some(text);
            }
            News::Done(text) | News::Refused(text) => {
                self.unanswered = self.unanswered.saturating_sub(1);
                self.say(text, now);
                // The answer has changed the lock.
                self.looked = None;
            }
        }
    }

    fn put(&mut self, mut row: Row) {
        let earlier = self.rows.remove(&row.name);
        // The scanner and the clerk send rows side by side.
        if let Some(earlier) = &earlier {
            row.learn_from(&earlier.row);
        }
        let known = Known {
            scan: self.scan,
            row: Rc::new(row),
        };
        self.rows.insert(known.row.name.clone(), known);
        self.is_changed = true;
    }

    fn say(&mut self, text: impl Into<String>, now: Instant) {
        self.message = Some((text.into(), now));
    }

    /// Filters and sorts the rows, if they have changed. The cursor stays on its lock, or else in its place.
    pub fn arrange(&mut self, now: Instant) {
        let is_early = self.view_at.is_some_and(|at| {
            self.rows.len() > MANY_ROWS
                && now.saturating_duration_since(at) < Duration::from_secs(1)
        });
        if self.is_changed && !is_early {
            self.view_at = Some(now);
            self.arrange_now();
        }
    }

    fn arrange_now(&mut self) {
        self.is_changed = false;
        let filter = self.filter.to_lowercase();
        let rows = self.rows.values().map(|known| &known.row);
        self.view = rows.filter(|row| row.matches(&filter)).cloned().collect();
        match self.sort {
            Sort::Name => {}
            Sort::HeldFor => self
                .view
                .sort_by_key(|row| (row.since().is_none(), row.since())),
            Sort::TimeLeft => self.view.sort_by_key(|row| {
                let ends_at = row.next_to_end().and_then(|it| it.ends_at);
                (ends_at.is_none(), ends_at)
            }),
            Sort::Waiters => self.view.sort_by_key(|row| Reverse(row.waiters)),
        }
        let Some(followed) = &self.followed else {
            self.cursor = 0;
            return;
        };
        let place = self.view.iter().position(|row| row.name == *followed);
        if place.is_none() {
            self.pane = None;
        }
        self.select(place.unwrap_or(self.cursor));
    }

    /// Puts the cursor on a row, or on the last one if there is no such row. The cursor follows the lock there.
    fn select(&mut self, place: usize) {
        self.cursor = place.min(self.view.len().saturating_sub(1));
        self.followed = self.selected().map(|row| row.name.clone());
    }

    /// Returns whether the pane shows this lock.
    fn is_open(&self, name: &str) -> bool {
        self.pane.is_some() && self.followed.as_deref() == Some(name)
    }
}

/// Keys.
impl State {
    pub fn on_key(&mut self, key: KeyEvent, now: Instant) -> Option<Action> {
        let has_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if has_control && key.code == KeyCode::Char('c') {
            return Some(Action::Quit);
        }
        if self.prompt.is_some() {
            return self.on_key_of_prompt(key, now);
        }
        self.message = None;
        if self.help {
            self.help = false;
            return None;
        }
        if let Some(step) = self.step_of(key.code) {
            self.step(step);
            return None;
        }
        match key.code {
            KeyCode::Char('q') if self.pane.is_none() => return Some(Action::Quit),
            KeyCode::Char('q') => self.pane = None,
            KeyCode::Esc if self.pane.is_some() => self.pane = None,
            KeyCode::Esc => self.set_filter(String::new()),
            KeyCode::Enter => {
                self.select(self.cursor);
                let is_open = self.pane.is_some();
                self.pane = (!is_open && self.selected().is_some()).then_some(0);
            }
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.arrange_now();
            }
            KeyCode::Char('/') => {
                let earlier = self.filter.clone();
                self.prompt = Some(Prompt::Filter { earlier });
            }
            KeyCode::Char('r') => self.begin_request(now),
            KeyCode::Char('f') => self.begin_force(now),
            KeyCode::Char('?') => self.help = true,
            _ => {}
        }
        None
    }

    /// Returns by how many rows a key moves the cursor.
    fn step_of(&self, key: KeyCode) -> Option<isize> {
        let page = isize::try_from(self.page).unwrap_or(isize::MAX);
        Some(match key {
            KeyCode::Down | KeyCode::Char('j') => 1,
            KeyCode::Up | KeyCode::Char('k') => -1,
            KeyCode::PageDown => page,
            KeyCode::PageUp => -page,
            KeyCode::Home => isize::MIN,
            KeyCode::End => isize::MAX,
            _ => return None,
        })
    }

    /// Moves the cursor of the pane, or else that of the list.
    fn step(&mut self, step: isize) {
        if let (Some(line), Some(row)) = (self.pane, self.selected()) {
            let last = (row.holders.len() + row.waiting.len()).saturating_sub(1);
            self.pane = Some(line.saturating_add_signed(step).min(last));
        } else {
            self.select(self.cursor.saturating_add_signed(step));
        }
    }

    fn set_filter(&mut self, filter: String) {
        self.filter = filter;
        self.arrange_now();
    }

    fn begin_request(&mut self, now: Instant) {
        match self.selected().map(Rc::clone) {
            Some(row) if row.holders.is_empty() => self.say("nobody holds it", now),
            Some(row) => {
                let (name, text) = (row.name.clone(), String::new());
                self.prompt = Some(Prompt::Reason { name, text });
            }
            None => {}
        }
    }

    fn begin_force(&mut self, now: Instant) {
        let Some(row) = self.selected().map(Rc::clone) else {
            return;
        };
        let holder: Option<&Held> = match (self.pane, &row.holders[..]) {
            (_, []) => return self.say("nobody holds it", now),
            (_, [holder]) => Some(holder),
            (Some(line), holders) => holders.get(line),
            (None, _) => None,
        };
        let Some(holder) = holder else {
            self.select(self.cursor);
            self.pane.get_or_insert(0);
            return self.say("select one of the holders, and press f again", now);
        };
        self.prompt = Some(Prompt::Force {
            name: row.name.clone(),
            owner: holder.owner.clone(),
            who: holder.who().to_owned(),
            text: String::new(),
        });
    }

    fn on_key_of_prompt(&mut self, key: KeyEvent, now: Instant) -> Option<Action> {
        match key.code {
            KeyCode::Esc => {
                match self.prompt.take() {
                    Some(Prompt::Filter { earlier }) => self.set_filter(earlier),
                    _ => self.say("nothing was sent", now),
                }
                None
            }
            KeyCode::Enter => self.end_prompt(now),
            code => {
                let has_control = key.modifiers.contains(KeyModifiers::CONTROL);
                let text = match self.prompt.as_mut()? {
                    Prompt::Filter { .. } => &mut self.filter,
                    Prompt::Reason { text, .. } | Prompt::Force { text, .. } => text,
                };
                match code {
                    KeyCode::Char('u') if has_control => text.clear(),
                    KeyCode::Char(c) if !has_control => text.push(c),
                    KeyCode::Backspace => drop(text.pop()),
                    _ => {}
                }
                if matches!(self.prompt, Some(Prompt::Filter { .. })) {
                    self.arrange_now();
                }
                None
            }
        }
    }

    /// Returns what the user has confirmed.
    fn end_prompt(&mut self, now: Instant) -> Option<Action> {
        let order = match self.prompt.take()? {
            Prompt::Filter { .. } => return None,
            Prompt::Reason { name, text } if !text.trim().is_empty() => Order::Request {
                name,
                why: text.trim().to_owned(),
            },
            Prompt::Force {
                name,
                owner,
                who,
                text,
            } if text == YES => Order::Force { name, owner, who },
            Prompt::Reason { .. } => {
                self.say("nothing was sent: no reason was given", now);
                return None;
            }
            Prompt::Force { .. } => {
                self.say("nothing was released: the answer was not yes", now);
                return None;
            }
        };
        self.unanswered += 1;
        Some(Action::Order(order))
    }
}

#[cfg(test)]
mod tests {
    use leasehold::Mode;

    use super::super::row::before;
    use super::*;

    fn held(owner: &str, at: Instant, ttl: u64) -> Held {
        Held {
            owner: owner.to_owned(),
            label: Some(format!("label of {owner}")),
            note: Some(format!("note of {owner}")),
            fence: Some(7),
            since: Some(at),
            ends_at: Some(at + Duration::from_secs(ttl)),
            lease: Duration::from_secs(ttl),
            is_kept: false,
            mode: Mode::Exclusive,
            nodes: 0,
        }
    }

    fn row(name: &str, holders: Vec<Held>, waiters: u64, now: Instant) -> Row {
        Row {
            name: name.to_owned(),
            kind: leasehold::Kind::Mutex,
            read_at: now,
            holders,
            waiters,
            waiting: Vec::new(),
        }
    }

    /// A state after a scan that read `a`, `b` and `c`. They are in another order by each column.
    fn scanned(now: Instant) -> State {
        let mut state = State::new("*");
        let rows = [
            row("a", vec![held("1", now, 30)], 1, now),
            row(
                "b",
                vec![held("2", before(now, Duration::from_secs(9)), 60)],
                2,
                now,
            ),
            row(
                "c",
                vec![held("3", before(now, Duration::from_secs(5)), 10)],
                0,
                now,
            ),
        ];
        scan(&mut state, rows, now);
        state
    }

    fn scan(state: &mut State, rows: impl IntoIterator<Item = Row>, now: Instant) {
        state.on_news(News::Began, now);
        for row in rows {
            state.on_news(News::Seen(row), now);
        }
        state.on_news(News::Ended, now);
        state.arrange(now);
    }

    fn names(state: &State) -> String {
        state.view().iter().map(|row| row.name.as_str()).collect()
    }

    /// Types a text. A line feed is Enter, and `\x1b` Escape. Returns what the last key does.
    fn typed(state: &mut State, text: &str) -> Option<Action> {
        let keys = text.chars().map(|c| match c {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            c => KeyCode::Char(c),
        });
        let press = |code| state.on_key(KeyEvent::from(code), Instant::now());
        keys.map(press).last().flatten()
    }

    #[test]
    fn a_row_vanishes_when_a_whole_scan_has_not_seen_it() {
        let now = Instant::now();
        let mut state = scanned(now);
        state.on_news(News::Began, now);
        state.on_news(News::Failed("no answer".to_owned()), now);
        state.arrange(now);
        assert_eq!(names(&state), "abc");
        assert_eq!(state.problem.as_deref(), Some("no answer"));
        let later = now + Duration::from_secs(4);
        scan(
            &mut state,
            [row("c", vec![held("3", now, 10)], 0, now)],
            later,
        );
        assert_eq!(names(&state), "c");
        assert_eq!(state.problem, None);
        assert_eq!(state.age(later), Some(Duration::ZERO));
    }

    #[test]
    fn s_sorts_by_one_column_after_the_other() {
        let mut state = scanned(Instant::now());
        for sorted in ["abc", "bca", "cab", "bac", "abc"] {
            assert_eq!(names(&state), sorted);
            typed(&mut state, "s");
        }
    }

    #[test]
    fn the_cursor_follows_its_lock_after_it_was_moved() {
        let now = Instant::now();
        let mut state = scanned(now);
        typed(&mut state, "s");
        assert_eq!(state.cursor(), 0);
        typed(&mut state, "jj");
        assert_eq!(state.selected().map(|row| &*row.name), Some("a"));
        typed(&mut state, "ss");
        assert_eq!(state.selected().map(|row| &*row.name), Some("a"));
        // The lock has gone: the cursor stays in its place.
        scan(
            &mut state,
            [row("b", Vec::new(), 2, now), row("c", Vec::new(), 0, now)],
            now,
        );
        assert_eq!(state.selected().map(|row| &*row.name), Some("c"));
    }

    #[test]
    fn the_filter_applies_at_each_key_and_escape_brings_the_earlier_one_back() {
        let mut state = scanned(Instant::now());
        typed(&mut state, "/LABEL of 2");
        assert_eq!(names(&state), "b");
        typed(&mut state, "\n/x");
        assert_eq!(names(&state), "");
        typed(&mut state, "\x1b");
        assert_eq!(names(&state), "b");
        typed(&mut state, "\x1b");
        assert_eq!(names(&state), "abc");
        typed(&mut state, "/NOTE of 3");
        assert_eq!(names(&state), "c");
    }

    #[test]
    fn a_release_by_force_needs_the_word_yes() {
        let mut state = scanned(Instant::now());
        for no in ["f\n", "fno\n", "fYES\n", "fyes!\n", "fyes\x1b"] {
            assert_eq!(typed(&mut state, no), None);
        }
        assert!(!state.awaits_answer());
        let force = Order::Force {
            name: "a".to_owned(),
            owner: "1".to_owned(),
            who: "label of 1".to_owned(),
        };
        assert_eq!(typed(&mut state, "fyes\n"), Some(Action::Order(force)));
        assert!(state.awaits_answer());
        state.on_news(News::Done("took a".to_owned()), Instant::now());
        assert!(!state.awaits_answer());
    }

    /// The question names the holder of the moment at which it was asked. So does the order.
    #[test]
    fn a_release_by_force_never_hits_a_later_holder() {
        let now = Instant::now();
        let mut state = scanned(now);
        typed(&mut state, "fye");
        scan(
            &mut state,
            [row("a", vec![held("later", now, 30)], 0, now)],
            now,
        );
        let Some(Action::Order(Order::Force { owner, .. })) = typed(&mut state, "s\n") else {
            panic!("it was confirmed");
        };
        assert_eq!(owner, "1");
    }

    #[test]
    fn one_of_several_holders_must_be_selected() {
        let now = Instant::now();
        let mut state = State::new("*");
        let holders = vec![held("1", now, 30), held("2", now, 30)];
        scan(&mut state, [row("a", holders, 0, now)], now);
        assert_eq!(typed(&mut state, "f"), None);
        assert!(state.prompt.is_none() && state.pane == Some(0));
        let Some(Action::Order(Order::Force { owner, .. })) = typed(&mut state, "jfyes\n") else {
            panic!("it was confirmed");
        };
        assert_eq!(owner, "2");
    }

    #[test]
    fn a_request_needs_a_reason() {
        let mut state = scanned(Instant::now());
        assert_eq!(typed(&mut state, "r \n"), None);
        let request = Order::Request {
            name: "a".to_owned(),
            why: "drain".to_owned(),
        };
        assert_eq!(typed(&mut state, "rdrain\n"), Some(Action::Order(request)));
    }

    #[test]
    fn q_closes_the_pane_first_and_is_a_letter_in_a_prompt() {
        let mut state = scanned(Instant::now());
        assert_eq!(typed(&mut state, "\nq"), None);
        assert_eq!(typed(&mut state, "/q\n"), None);
        assert_eq!(typed(&mut state, "q"), Some(Action::Quit));
    }

    #[test]
    fn one_look_is_on_its_way_at_a_time() {
        let now = Instant::now();
        let mut state = scanned(now);
        assert_eq!(state.next_look(now), Some(Order::Look("a".to_owned())));
        let later = now + LOOKS[0] * 2;
        assert_eq!(state.next_look(later), None);
        state.on_news(News::Looked("a".to_owned(), None), later);
        state.arrange(later);
        assert_eq!(names(&state), "bc");
        assert_eq!(state.next_look(later), Some(Order::Look("b".to_owned())));
    }

    #[test]
    fn a_lock_that_becomes_free_keeps_its_pane() {
        let now = Instant::now();
        let mut state = scanned(now);
        typed(&mut state, "\n");
        state.on_news(News::Looked("a".to_owned(), None), now);
        scan(&mut state, [], now);
        scan(&mut state, [], now);
        assert_eq!(names(&state), "a");
        assert!(state.view()[0].holders.is_empty() && state.pane.is_some());
        typed(&mut state, "q");
        scan(&mut state, [], now);
        assert_eq!(names(&state), "");
    }

    #[test]
    fn the_length_of_a_lease_is_the_longest_time_to_live_of_its_holder() {
        let now = Instant::now();
        let mut state = scanned(now);
        scan(
            &mut state,
            [row("a", vec![held("1", now, 15)], 0, now)],
            now,
        );
        let half = state.view()[0].holders[0].part_left(now);
        assert!((half - 0.5).abs() < 0.01);
        // Another holder may have another lease.
        scan(
            &mut state,
            [row("a", vec![held("2", now, 15)], 0, now)],
            now,
        );
        let whole = state.view()[0].holders[0].part_left(now);
        assert!((whole - 1.0).abs() < 0.01);
    }
}
