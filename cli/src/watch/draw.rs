//! The picture of a [`State`].
//!
//! ```text
//! the number of locks, the order, the filter, the age of the data, the pattern
//! the table: a row a lock
//! the pane, if it is open: the holders and the queue of the selected lock
//! the question to the user, if there is one
//! the problem of the server or the newest message, if there is one
//! the most important keys
//! ```

use std::env;
use std::fmt::Write as _;
use std::ops::Range;
use std::time::{Duration, Instant};

use leasehold::Kind;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Padding, Paragraph, Row as Cells, Table, Wrap};

use super::row::{Held, Row, Waits, counted, part};
use super::state::{Prompt, Sort, State};
use crate::output::{safe, span};

/// The keys that `?` shows.
const KEYS: [(&str, &str); 12] = [
    ("↑ ↓ j k", "move the cursor"),
    ("PgUp PgDn", "move it by a page"),
    ("Home End", "move it to an end"),
    ("Enter", "open or close the queue"),
    ("s", "sort by the next column"),
    ("/", "filter: name, label, note"),
    ("Esc", "close, or clear the filter"),
    ("r", "ask the holders to release"),
    ("f", "release by force"),
    ("q", "close the queue, or quit"),
    ("Ctrl-C", "quit"),
    ("?", "show these keys"),
];
/// The bars of an eighth of a column to seven eighths.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
/// Stands where there is no value.
const NONE: &str = "-";

/// Whether colours may be used: see <https://no-color.org/>.
#[derive(Clone, Copy)]
pub struct Colours(bool);

impl Colours {
    pub fn of_environment() -> Self {
        Self(env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()))
    }

    /// Returns a style of a colour, if there are colours.
    fn of(self, colour: Color) -> Style {
        let style = Style::new();
        if self.0 { style.fg(colour) } else { style }
    }
}

/// Returns the number of locks that fit on the screen.
pub fn rows_that_fit(area: Rect, state: &State) -> usize {
    let [_, table, ..] = areas(area, state, 1);
    usize::from(table.height.saturating_sub(1))
}

/// Returns the areas of the heading, the table, the pane, the prompt, the status of this height, and the keys.
fn areas(area: Rect, state: &State, status: u16) -> [Rect; 6] {
    let pane = match (state.pane, state.selected()) {
        (Some(_), Some(row)) => {
            // The heading, the border, and the line for waiters that have no name here.
            let lines = row.holders.len().max(1) + row.waiting.len() + 4;
            u16::try_from(lines)
                .unwrap_or(u16::MAX)
                .min(area.height / 2)
        }
        _ => 0,
    };
    let prompt = match &state.prompt {
        None => 0,
        Some(Prompt::Filter { .. }) => 1,
        Some(_) if area.width < 60 => 6,
        Some(_) => 5,
    };
    Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(pane),
        Constraint::Length(prompt),
        Constraint::Length(status),
        Constraint::Length(1),
    ])
    .areas(area)
}

pub fn draw(frame: &mut Frame, state: &State, colours: Colours, now: Instant) {
    let status = status(state, colours, now);
    // The words of a line may leave some room.
    let columns = status
        .as_ref()
        .map_or(0, |(text, _)| text.chars().count() * 8 / 7);
    let height = columns
        .div_ceil(usize::from(frame.area().width).max(1))
        .min(3) as u16;
    let [heading_area, table, pane, prompt, status_area, keys] = areas(frame.area(), state, height);
    frame.render_widget(heading(state, now), heading_area);
    draw_table(frame, table, state, colours, now);
    if let (Some(line), Some(row)) = (state.pane, state.selected()) {
        draw_pane(frame, pane, (row, line), colours, now);
    }
    if let Some(question) = &state.prompt {
        frame.render_widget(question_of(question, &state.filter, colours), prompt);
    }
    if let Some(status) = status {
        let (text, style) = status;
        let status = Paragraph::new(text).style(style).wrap(Wrap { trim: true });
        frame.render_widget(status, status_area);
    }
    frame.render_widget(key_line(state), keys);
    if state.help {
        draw_help(frame);
    }
}

fn heading(state: &State, now: Instant) -> Paragraph<'static> {
    let (shown, all) = (state.view().len(), state.count());
    let count = if shown == all {
        counted(all as u64, "lock")
    } else {
        format!("{shown} of {}", counted(all as u64, "lock"))
    };
    let sort = match state.sort {
        Sort::Name => "by name",
        Sort::HeldFor => "by held for",
        Sort::TimeLeft => "by time left",
        Sort::Waiters => "by waiters",
    };
    let age = match state.age(now) {
        None => "first scan".to_owned(),
        Some(age) => format!("≤{} old", whole(age)),
    };
    let mut text = format!(" {count}  {sort}  {age}  {}", state.pattern);
    if !state.filter.is_empty() {
        text = format!(
            " {count}  /{}  {sort}  {age}  {}",
            state.filter, state.pattern
        );
    }
    Paragraph::new(text).style(Modifier::REVERSED)
}

/// Returns a time span without fractions of a second, rounded up.
fn whole(time: Duration) -> String {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    match seconds {
        0..60 => format!("{seconds}s"),
        _ => span(Duration::from_secs(seconds)),
    }
}

/// A column of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Name,
    Kind,
    Holder,
    Note,
    HeldFor,
    Bar(u16),
    Left,
    Waiters,
}

impl Column {
    /// Returns the columns that fit into a width.
    fn fitting(width: u16) -> &'static [Self] {
        use Column::{Bar, HeldFor, Holder, Kind, Left, Name, Note, Waiters};
        match width {
            0..36 => &[Name, Left, Waiters],
            36..50 => &[Name, HeldFor, Left, Waiters],
            50..60 => &[Name, HeldFor, Bar(6), Left, Waiters],
            60..90 => &[Name, Holder, HeldFor, Bar(6), Left, Waiters],
            90..120 => &[Name, Kind, Holder, HeldFor, Bar(10), Left, Waiters],
            _ => &[Name, Kind, Holder, Note, HeldFor, Bar(12), Left, Waiters],
        }
    }

    fn width(self) -> Constraint {
        match self {
            Self::Name => Constraint::Fill(3),
            Self::Holder | Self::Note => Constraint::Fill(2),
            Self::Kind => Constraint::Length(12),
            Self::HeldFor => Constraint::Length(8),
            Self::Bar(width) => Constraint::Length(width),
            Self::Left => Constraint::Length(7),
            Self::Waiters => Constraint::Length(5),
        }
    }

    fn heading(self) -> &'static str {
        match self {
            Self::Name => "NAME",
            Self::Kind => "KIND",
            Self::Holder => "HOLDER",
            Self::Note => "NOTE",
            Self::HeldFor => "HELD FOR",
            Self::Bar(_) => "LEASE",
            Self::Left => "LEFT",
            Self::Waiters => "QUEUE",
        }
    }

    /// Returns whether the rows are in the order of this column.
    fn is_sorted(self, sort: Sort) -> bool {
        matches!(
            (self, sort),
            (Self::Name, Sort::Name)
                | (Self::HeldFor, Sort::HeldFor)
                | (Self::Left, Sort::TimeLeft)
                | (Self::Waiters, Sort::Waiters)
        )
    }

    fn cell(self, row: &Row, colours: Colours, now: Instant) -> Cell<'static> {
        let holder = row.next_to_end();
        let dim = Style::new().add_modifier(Modifier::DIM);
        let text = match self {
            Self::Name => safe(&row.name),
            Self::Kind => row.kind_text(),
            Self::Holder => return holder_cell(row, dim),
            Self::Note => holder.and_then(|it| it.note.clone()).unwrap_or_default(),
            Self::HeldFor => ago(row.since(), now),
            Self::Bar(width) => return bar_cell(holder, width, colours, now),
            Self::Left => return left_cell(row, colours, now),
            Self::Waiters if row.waiters == 0 => return Cell::new(NONE).style(dim),
            Self::Waiters => row.waiters.to_string(),
        };
        Cell::new(text)
    }
}

fn holder_cell(row: &Row, dim: Style) -> Cell<'static> {
    if let Kind::RateLimiter { permits, per, .. } = row.kind {
        return Cell::new(format!("{permits} per {}", span(per)));
    }
    let Some(holder) = row.holders.first() else {
        let text = if row.waiters > 0 {
            "goes to a waiter"
        } else {
            "free"
        };
        return Cell::new(text).style(dim);
    };
    let mut text = holder.who().to_owned();
    if holder.is_kept {
        text.insert_str(0, "kept: ");
    }
    if row.holders.len() > 1 {
        let _ = write!(text, " +{}", row.holders.len() - 1);
    }
    let style = if holder.is_kept || holder.label.is_none() {
        dim
    } else {
        Style::new()
    };
    Cell::new(text).style(style)
}

fn left_cell(row: &Row, colours: Colours, now: Instant) -> Cell<'static> {
    if let Some(wait) = wait_of_limiter(row, now) {
        let text = if wait.is_zero() {
            "open".to_owned()
        } else {
            span(wait)
        };
        return Cell::new(text);
    }
    match row.next_to_end() {
        None => Cell::new(NONE),
        Some(holder) => Cell::new(left(holder, now)).style(of_lease(holder, colours, now)),
    }
}

/// Returns how long a call of a rate limiter would wait. `None`: it is no rate limiter.
fn wait_of_limiter(row: &Row, now: Instant) -> Option<Duration> {
    let Kind::RateLimiter { retry_after, .. } = row.kind else {
        return None;
    };
    Some(retry_after.saturating_sub(now.saturating_duration_since(row.read_at)))
}

fn left(holder: &Held, now: Instant) -> String {
    match holder.left(now) {
        None => "forever".to_owned(),
        // The next reading shows whether the holder has renewed it.
        Some(left) if left.is_zero() => "ended".to_owned(),
        Some(left) => span(left),
    }
}

fn ago(since: Option<Instant>, now: Instant) -> String {
    since.map_or(NONE.to_owned(), |since| {
        span(now.saturating_duration_since(since))
    })
}

fn bar_cell(holder: Option<&Held>, width: u16, colours: Colours, now: Instant) -> Cell<'static> {
    holder.map_or_else(Cell::default, |holder| {
        Cell::new(bar(holder.part_left(now), width)).style(of_lease(holder, colours, now))
    })
}

/// Returns the colour of a lease. A healthy holder renews its lease when a third is over, so less than half is late.
fn of_lease(holder: &Held, colours: Colours, now: Instant) -> Style {
    colours.of(match holder.part_left(now) {
        _ if holder.is_kept => Color::Cyan,
        0.5.. => Color::Green,
        0.33.. => Color::Yellow,
        _ => Color::Red,
    })
}

/// Returns a bar for a part from 0 to 1.
fn bar(part: f64, width: u16) -> String {
    #[allow(clippy::cast_sign_loss, reason = "the product is positive")]
    let eighths = (part * f64::from(width) * 8.0).ceil() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

fn draw_table(frame: &mut Frame, area: Rect, state: &State, colours: Colours, now: Instant) {
    let columns = Column::fitting(area.width);
    let view = state.view();
    if view.is_empty() && state.age(now).is_some() {
        let text = if state.count() == 0 {
            "no locks"
        } else {
            "no lock matches the filter"
        };
        frame.render_widget(Paragraph::new(format!("\n {text}")), area);
        return;
    }
    let height = usize::from(area.height.saturating_sub(1));
    let shown = window(view.len(), state.cursor(), height);
    let heading = columns.iter().map(|column| {
        let is_sorted = column.is_sorted(state.sort);
        let style = if is_sorted {
            Modifier::UNDERLINED
        } else {
            Modifier::empty()
        };
        Cell::new(Span::styled(column.heading(), style))
    });
    let rows = view[shown.clone()].iter().zip(shown).map(|(row, place)| {
        let cells = columns.iter().map(|column| column.cell(row, colours, now));
        Cells::new(cells).style(of_cursor(place == state.cursor()))
    });
    let widths = columns.iter().map(|column| column.width());
    let table = Table::new(rows, widths)
        .header(Cells::new(heading).style(Modifier::BOLD))
        .column_spacing(1);
    frame.render_widget(table, area);
}

fn of_cursor(is_selected: bool) -> Style {
    if is_selected {
        Modifier::REVERSED.into()
    } else {
        Style::new()
    }
}

/// Returns the rows that are shown: the cursor is in the middle, except near an end.
fn window(rows: usize, cursor: usize, height: usize) -> Range<usize> {
    let first = cursor.saturating_sub(height / 2);
    let first = first.min(rows.saturating_sub(height));
    first..rows.min(first + height)
}

/// Draws the holders and the queue of a lock. The cursor is on this line of both.
fn draw_pane(
    frame: &mut Frame,
    area: Rect,
    selected: (&Row, usize),
    colours: Colours,
    now: Instant,
) {
    let (row, line) = selected;
    let title = format!(
        " {} · {} · {} waiting ",
        safe(&row.name),
        row.kind_text(),
        row.waiters
    );
    let block = Block::bordered()
        .title(title)
        .padding(Padding::horizontal(1))
        .border_style(colours.of(Color::Cyan));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let wide = inner.width >= 80;
    let holders = row
        .holders
        .iter()
        .map(|holder| of_holder(holder, row.kind, now));
    let waiting = row.waiting.iter().enumerate();
    let waiting = waiting.map(|(place, waits)| of_waiter(place, waits, row.kind, now));
    let mut lines: Vec<_> = holders.chain(waiting).collect();
    let cursor = line.min(lines.len().saturating_sub(1));
    let unnamed = row.waiters.saturating_sub(row.waiting.len() as u64);
    if unnamed > 0 {
        lines.push(vec![String::new(), format!("and {unnamed} more")]);
    }
    if lines.is_empty() {
        let text = match wait_of_limiter(row, now) {
            None => "free".to_owned(),
            Some(Duration::ZERO) => "A call is admitted now.".to_owned(),
            Some(wait) => format!("A call is admitted in {}.", span(wait)),
        };
        frame.render_widget(Paragraph::new(text), inner);
        return;
    }
    let shown = window(
        lines.len(),
        cursor,
        usize::from(inner.height.saturating_sub(1)),
    );
    let rows = lines[shown.clone()]
        .iter()
        .zip(shown)
        .map(|(cells, place)| {
            let style = of_cursor(place == cursor);
            Cells::new(cells.iter().map(|cell| Cell::new(cell.clone()))).style(style)
        });
    let mut widths = vec![
        Constraint::Length(5),
        Constraint::Fill(3),
        Constraint::Length(8),
        Constraint::Length(7),
        Constraint::Length(9),
    ];
    if wide {
        widths.extend([Constraint::Length(17), Constraint::Fill(2)]);
    }
    let heading = ["", "PROCESS", "FOR", "LEFT", "PART", "FENCE", "NOTE"];
    let table = Table::new(rows, widths)
        .header(Cells::new(heading).style(Modifier::BOLD))
        .column_spacing(1);
    frame.render_widget(table, inner);
}

fn of_holder(holder: &Held, kind: Kind, now: Instant) -> Vec<String> {
    let mut note = holder.note.clone().unwrap_or_default();
    if holder.nodes > 0 {
        note = format!("on {} {note}", counted(holder.nodes as u64, "node"));
    }
    vec![
        if holder.is_kept { "kept" } else { "holds" }.to_owned(),
        holder.who().to_owned(),
        ago(holder.since, now),
        left(holder, now),
        part(holder, kind),
        holder
            .fence
            .map_or(NONE.to_owned(), |fence| fence.to_string()),
        note,
    ]
}

fn of_waiter(place: usize, waits: &Waits, kind: Kind, now: Instant) -> Vec<String> {
    vec![
        format!("{:>5}", place + 1),
        waits.who().to_owned(),
        ago(Some(waits.since), now),
        String::new(),
        waits.wants(kind),
    ]
}

fn question_of<'a>(prompt: &'a Prompt, filter: &'a str, colours: Colours) -> Paragraph<'a> {
    let (question, text, colour) = match prompt {
        Prompt::Filter { .. } => {
            return Paragraph::new(Line::from(vec![Span::raw(format!("/{filter}")), cursor()]));
        }
        Prompt::Reason { name, text } => (
            format!("Ask the holders of {} to release it. Why?", safe(name)),
            text,
            Color::Yellow,
        ),
        Prompt::Force {
            name, who, text, ..
        } => (
            format!(
                "Take {} from {who}? The work of {who} goes on without the lock. Type yes.",
                safe(name)
            ),
            text,
            Color::Red,
        ),
    };
    let answer = Line::from(vec![Span::raw(format!("> {}", end_of(text))), cursor()]);
    let block = Block::bordered().border_style(colours.of(colour));
    Paragraph::new(vec![answer, Line::from(question)])
        .wrap(Wrap { trim: true })
        .block(block)
}

/// Returns the end of a text that the user types, so that it fits into the narrowest screens.
fn end_of(text: &str) -> String {
    let skipped = text.chars().count().saturating_sub(30);
    text.chars().skip(skipped).collect()
}

fn cursor() -> Span<'static> {
    Span::styled(" ", Modifier::REVERSED)
}

/// Returns the text of the status, and its style.
fn status(state: &State, colours: Colours, now: Instant) -> Option<(String, Style)> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    if let Some(problem) = &state.problem {
        return Some((problem.clone(), colours.of(Color::Red).patch(bold)));
    }
    Some((state.message(now)?.to_owned(), bold))
}

fn key_line(state: &State) -> Paragraph<'static> {
    let keys = match (&state.prompt, state.pane) {
        (Some(_), _) => " Enter: done  Esc: cancel",
        (None, Some(_)) => " q close  r request  f force  ? keys",
        (None, None) => " ? keys  q quit  Enter queue  s sort  / filter  r request  f force",
    };
    Paragraph::new(keys).style(Modifier::DIM)
}

fn draw_help(frame: &mut Frame) {
    let area = frame.area();
    let (width, height) = (area.width.min(40), area.height.min(KEYS.len() as u16 + 2));
    let [area] = Layout::horizontal([Constraint::Length(width)])
        .flex(ratatui::layout::Flex::Center)
        .areas(area);
    let [area] = Layout::vertical([Constraint::Length(height)])
        .flex(ratatui::layout::Flex::Center)
        .areas(area);
    let rows = KEYS.map(|(key, does)| Cells::new([key, does]));
    let table = Table::new(rows, [Constraint::Length(9), Constraint::Fill(1)])
        .block(Block::bordered().title(" keys "));
    frame.render_widget(Clear, area);
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use leasehold::Mode;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Buffer;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    use super::super::row::before;
    use super::super::scan::News;
    use super::*;

    fn state(now: Instant) -> State {
        let held = |label: Option<&str>, ttl, mode| Held {
            owner: label.unwrap_or("foreign").to_owned(),
            label: label.map(str::to_owned),
            note: Some("nightly".to_owned()),
            fence: Some(41),
            since: Some(before(now, Duration::from_secs(65))),
            ends_at: ttl,
            lease: Duration::from_secs(30),
            is_kept: label == Some("kept"),
            mode,
            nodes: 0,
        };
        let row = |name: &str, kind, holders: Vec<Held>| Row {
            name: name.to_owned(),
            kind,
            read_at: now,
            holders,
            waiters: 102,
            waiting: vec![Waits {
                label: Some("second".to_owned()),
                since: before(now, Duration::from_secs(12)),
                units: 1,
            }],
        };
        let ttl = Some(now + Duration::from_secs(15));
        let limiter = Kind::RateLimiter {
            permits: 5,
            per: Duration::from_secs(1),
            retry_after: Duration::ZERO,
        };
        let semaphore = Kind::Semaphore { permits: 5 };
        let mut state = State::new("*");
        let permits = |label| held(Some(label), ttl, Mode::Permits(2));
        let exclusive = |label, ttl| vec![held(label, ttl, Mode::Exclusive)];
        state.on_news(News::Began, now);
        for row in [
            row("a\u{1b}[2Jb", Kind::Mutex, exclusive(Some("first"), ttl)),
            row("foreign", Kind::Mutex, exclusive(None, None)),
            row("kept", Kind::RwLock, exclusive(Some("kept"), ttl)),
            row("limiter", limiter, vec![]),
            row(
                "permits",
                semaphore,
                vec![permits("first"), permits("third")],
            ),
        ] {
            state.on_news(News::Seen(row), now);
        }
        state.on_news(News::Ended, now);
        state.arrange(now);
        state
    }

    fn drawn(state: &State, width: u16, height: u16, colours: bool, now: Instant) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
        let drawn = terminal.draw(|frame| draw(frame, state, Colours(colours), now));
        drawn.expect("a picture").buffer.clone()
    }

    fn lines(buffer: &Buffer) -> Vec<String> {
        let width = usize::from(buffer.area.width);
        let text = |line: &[ratatui::buffer::Cell]| -> String {
            let text: String = line.iter().map(ratatui::buffer::Cell::symbol).collect();
            text.trim_end().to_owned()
        };
        buffer.content.chunks(width).map(text).collect()
    }

    #[test]
    fn each_kind_of_lock_has_its_row() {
        let now = Instant::now();
        let lines = lines(&drawn(&state(now), 100, 10, true, now));
        for (line, expected) in lines[2..].iter().zip([
            [
                "a\u{fffd}[2Jb",
                "mutex",
                "first",
                "1m 5s",
                "█████ ",
                "15s",
                "102",
            ],
            [
                "foreign",
                "mutex",
                "another client",
                "1m 5s",
                "██████████",
                "forever",
                "102",
            ],
            [
                "kept",
                "writer",
                "kept: kept",
                "1m 5s",
                "█████ ",
                "15s",
                "102",
            ],
            ["limiter", "limiter", "5 per 1.0s", "-", "", "open", "102"],
            [
                "permits",
                "4/5 permits",
                "first +1",
                "1m 5s",
                "█████ ",
                "15s",
                "102",
            ],
        ]) {
            for part in expected {
                assert!(line.contains(part), "{part} is not in {line}");
            }
        }
    }

    #[test]
    fn times_count_on_between_two_readings() {
        let now = Instant::now();
        let state = state(now);
        let later = now + Duration::from_secs(5);
        let at = |now| lines(&drawn(&state, 100, 10, true, now))[2].clone();
        assert!(at(later).contains("1m 10s") && at(later).contains("10s"));
        assert!(at(now + Duration::from_secs(15)).contains("ended"));
    }

    #[test]
    fn every_size_shows_the_name_and_the_time_that_is_left() {
        let now = Instant::now();
        let mut state = state(now);
        for with_pane in [false, true] {
            for width in (20..200).step_by(7) {
                let lines = lines(&drawn(&state, width, 12, true, now));
                let row = lines.iter().find(|line| line.starts_with("kept"));
                let row = row.expect("it has a row");
                assert!(row.contains("15s") && row.contains("102"), "{row}");
            }
            // Too small for anything, but it draws.
            drawn(&state, 1, 1, true, now);
            drawn(&state, 8, 3, true, now);
            if !with_pane {
                state.on_key(KeyEvent::from(KeyCode::Enter), now);
            }
        }
    }

    #[test]
    fn the_pane_shows_holders_then_waiters_and_the_number_of_the_others() {
        let now = Instant::now();
        let mut state = state(now);
        state.on_key(KeyEvent::from(KeyCode::Enter), now);
        let lines = lines(&drawn(&state, 120, 20, true, now));
        let place = |text: &str| {
            let found = lines.iter().position(|line| line.contains(text));
            found.unwrap_or_else(|| panic!("{text} is missing: {lines:#?}"))
        };
        assert!(place("102 waiting") < place("holds first"));
        assert!(place("holds first") < place("1 second"));
        assert!(place("1 second") < place("and 101 more"));
        assert!(lines[place("holds first")].contains("41"), "its fence");
    }

    #[test]
    fn a_long_problem_is_shown_whole() {
        let now = Instant::now();
        let mut state = state(now);
        let problem = "the server is unavailable: the connection to 127.0.0.1:6379 failed: refused";
        state.on_news(News::Failed(problem.to_owned()), now);
        for width in [40, 60, 100] {
            let text = lines(&drawn(&state, width, 20, true, now)).join(" ");
            assert!(text.contains(problem), "{text}");
        }
    }

    #[test]
    fn no_colour_is_used_if_the_user_wants_none() {
        let now = Instant::now();
        let state = state(now);
        let has_colour = |colours| {
            let buffer = drawn(&state, 100, 20, colours, now);
            let mut cells = buffer.content.iter();
            cells.any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
        };
        assert!(has_colour(true) && !has_colour(false));
    }

    #[test]
    fn a_bar_is_as_long_as_its_part() {
        assert_eq!(bar(1.0, 4), "████");
        assert_eq!(bar(0.5, 4), "██");
        assert_eq!(bar(0.51, 4), "██▏");
        assert_eq!(bar(0.0, 4), "");
    }
}
