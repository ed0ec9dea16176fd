//! A history, as its file has it: see docs/evidence/README.md.

use std::collections::BTreeMap;

/// An event of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub process: u64,
    pub kind: Kind,
    /// What is called: the word behind `:f`.
    pub call: String,
    /// The numbers of `:value`. There is none if it is `nil`.
    pub value: Vec<u64>,
    /// Whether a look says `:held`.
    pub is_held: bool,
    /// Whether exclusion is promised to a guard that is granted.
    pub is_promised: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Invoke,
    Ok,
    Fail,
    Info,
}

/// A history, and which model judges it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    pub name: String,
    pub is_of_lock: bool,
    /// Whether nothing protects the register but the lock, so that a pause may break it.
    pub is_plain: bool,
    pub events: Vec<Event>,
}

impl History {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// A line is no event.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (head, lines) = text.split_once('\n').ok_or("there is no line")?;
        let head = fields(head.trim_start_matches([';', ' ']));
        let is = |key, value| head.get(key).is_some_and(|its| its == value);
        let event = |line: &str| parse_event(line).ok_or(format!("this is no event: {line}"));
        Ok(Self {
            name: (head.get(":name")).map_or(String::new(), |it| it.trim_matches('"').to_owned()),
            is_of_lock: is(":model", ":lock-with-fences"),
            is_plain: is(":object", ":plain"),
            events: lines.lines().map(event).collect::<Result<_, _>>()?,
        })
    }
}

/// Returns the entries of a map of one line. A value may be a vector, but no map.
fn fields(line: &str) -> BTreeMap<String, String> {
    let inner = line.trim().trim_start_matches('{').trim_end_matches('}');
    let field = |field: &str| {
        let (key, value) = field.trim().split_once(' ')?;
        Some((key.to_owned(), value.to_owned()))
    };
    inner.split(',').filter_map(field).collect()
}

fn parse_event(line: &str) -> Option<Event> {
    let fields = fields(line);
    let value = fields.get(":value")?.trim_matches(['[', ']']);
    let numbers = value.split(' ').filter_map(|word| word.parse().ok());
    Some(Event {
        process: fields.get(":process")?.parse().ok()?,
        kind: match fields.get(":type")?.as_str() {
            ":invoke" => Kind::Invoke,
            ":ok" => Kind::Ok,
            ":fail" => Kind::Fail,
            ":info" => Kind::Info,
            _ => return None,
        },
        call: fields.get(":f")?.trim_start_matches(':').to_owned(),
        value: numbers.collect(),
        is_held: value.ends_with(" :held"),
        is_promised: fields.get(":promised").is_none_or(|it| it == "true"),
    })
}
