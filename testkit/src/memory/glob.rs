//! Patterns of keys and channels: `*`, `?`, `[a-c]`, `[^a]`, and `\` before a byte that stands for itself.

/// Returns whether a pattern matches the whole text.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let Some((first, rest)) = pattern.split_first() else {
        return text.is_empty();
    };
    match first {
        b'*' => (0..=text.len()).any(|skipped| matches(rest, &text[skipped..])),
        b'?' => !text.is_empty() && matches(rest, &text[1..]),
        b'[' => {
            let Some((byte, later)) = text.split_first() else {
                return false;
            };
            let (is_in, rest) = set(rest, *byte);
            is_in && matches(rest, later)
        }
        b'\\' if !rest.is_empty() => {
            text.first() == rest.first() && matches(&rest[1..], &text[1..])
        }
        byte => text.first() == Some(byte) && matches(rest, &text[1..]),
    }
}

/// Returns whether a byte is in the set that the pattern begins with, and the pattern behind the set.
fn set(mut pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    let is_inverted = pattern.first() == Some(&b'^');
    if is_inverted {
        pattern = &pattern[1..];
    }
    let mut is_in = false;
    loop {
        match pattern {
            // A set without an end ends with the pattern.
            [] => return (is_in != is_inverted, pattern),
            [b']', rest @ ..] => return (is_in != is_inverted, rest),
            [b'\\', escaped, rest @ ..] => {
                is_in |= *escaped == byte;
                pattern = rest;
            }
            [from, b'-', to, rest @ ..] => {
                let (from, to) = (from.min(to), from.max(to));
                is_in |= (*from..=*to).contains(&byte);
                pattern = rest;
            }
            [one, rest @ ..] => {
                is_in |= *one == byte;
                pattern = rest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_texts() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abbcd", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[c-a]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[\\]]", "]", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[ab", "a", true),
            ("a", "", false),
        ] {
            let found = matches(pattern.as_bytes(), text.as_bytes());
            assert_eq!(found, expected, "{pattern} {text}");
        }
    }
}
