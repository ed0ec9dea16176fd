//! The arguments of a command, and the errors of commands.

/// The error of a command: a code, and a text behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandError(pub(super) String);

impl CommandError {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(super) fn wrong_type() -> Self {
        Self::new("WRONGTYPE Operation against a key holding the wrong kind of value")
    }

    pub(super) fn syntax() -> Self {
        Self::new("ERR syntax error")
    }

    pub(super) fn wrong_number(command: &str) -> Self {
        Self(format!(
            "ERR wrong number of arguments for '{command}' command"
        ))
    }

    /// Returns the error of a command whose second word is not known, or has another number of arguments.
    pub(super) fn unknown_subcommand(arguments: &Arguments<'_>) -> Self {
        let word = String::from_utf8_lossy(arguments.get(1));
        Self(format!(
            "ERR unknown subcommand or wrong number of arguments for '{word}'"
        ))
    }

    pub(super) fn not_an_integer() -> Self {
        Self::new("ERR value is not an integer or out of range")
    }
}

/// The name of a command, and its arguments. The name has the number 0.
pub(super) struct Arguments<'a>(pub(super) &'a [Vec<u8>]);

impl<'a> Arguments<'a> {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns an argument that is there by the number of arguments that the command takes.
    pub(super) fn get(&self, number: usize) -> &'a [u8] {
        &self.0[number]
    }

    pub(super) fn from(&self, number: usize) -> &'a [Vec<u8>] {
        self.0.get(number..).unwrap_or_default()
    }

    /// Returns the name of the command in lower case.
    pub(super) fn name(&self) -> String {
        String::from_utf8_lossy(self.get(0)).to_lowercase()
    }

    /// Returns an argument in upper case, as the names of options are compared. Returns an empty text if there is none.
    pub(super) fn option(&self, number: usize) -> String {
        let argument = self.0.get(number).map(Vec::as_slice);
        String::from_utf8_lossy(argument.unwrap_or_default()).to_uppercase()
    }

    pub(super) fn int(&self, number: usize) -> Result<i64, CommandError> {
        let argument = self.0.get(number).ok_or_else(CommandError::syntax)?;
        int(argument).ok_or_else(CommandError::not_an_integer)
    }

    pub(super) fn score(&self, number: usize) -> Result<f64, CommandError> {
        let score = float(self.get(number));
        score.ok_or_else(|| CommandError::new("ERR value is not a valid float"))
    }
}

/// Reads an integer as Redis does: it has no plus, no leading zero, and no space.
pub(super) fn int(bytes: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let int: i64 = text.parse().ok()?;
    (int.to_string() == text).then_some(int)
}

/// Reads a number such as `1.5`, `1e3` or `-inf`.
pub(super) fn float(bytes: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let float: f64 = text.parse().ok()?;
    (!float.is_nan()).then_some(float)
}

/// Writes a number as Redis writes scores: an integer has no point.
pub(super) fn float_text(float: f64) -> String {
    if float.is_infinite() {
        return if float > 0.0 { "inf" } else { "-inf" }.into();
    }
    float.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_one_form() {
        for (text, expected) in [
            ("0", Some(0)),
            ("-12", Some(-12)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("+1", None),
            ("01", None),
            ("-0", None),
            (" 1", None),
            ("1.0", None),
            ("", None),
        ] {
            assert_eq!(int(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn scores_are_written_without_a_needless_point() {
        for (score, text) in [
            (1_795_601_905_898_810.0, "1795601905898810"),
            (-0.5, "-0.5"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float_text(score), text);
        }
    }
}
