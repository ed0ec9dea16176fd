//! The commands of sorted sets.

use std::cmp::Ordering;

use super::arguments::{Arguments, CommandError, float, float_text};
use super::keyspace::{Keyspace, Stored};
use super::lists::{places, positive};
use super::resp::Resp;
use super::sorted_set::SortedSet;

fn as_sorted_set(stored: &mut Stored) -> Option<&mut SortedSet> {
    match stored {
        Stored::SortedSet(members) => Some(members),
        _ => None,
    }
}

/// `ZADD key [NX | XX] [GT | LT] [CH] [INCR] score member [score member ...]`.
pub(super) fn add(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    let (mut counts_changed, mut increments) = (false, false);
    let mut number = 2;
    loop {
        match arguments.option(number).as_str() {
            "NX" => nx = true,
            "XX" => xx = true,
            "GT" => gt = true,
            "LT" => lt = true,
            "CH" => counts_changed = true,
            "INCR" => increments = true,
            _ => break,
        }
        number += 1;
    }
    let pairs = arguments.from(number).chunks_exact(2);
    if pairs.len() == 0 || !pairs.remainder().is_empty() {
        return Err(CommandError::syntax());
    }
    let refused = |text: &str| Err(CommandError::new(text));
    if nx && xx {
        return refused("ERR XX and NX options at the same time are not compatible");
    }
    if gt && (nx || lt) || lt && nx {
        return refused("ERR GT, LT, and/or NX options at the same time are not compatible");
    }
    if increments && pairs.len() > 1 {
        return refused("ERR INCR option supports a single increment-element pair");
    }
    let scores: Vec<_> = (0..pairs.len())
        .map(|pair| arguments.score(number + 2 * pair))
        .collect::<Result<_, _>>()?;
    let key = arguments.get(1);
    let exists = keys.get_as(key, as_sorted_set)?.is_some();
    if xx && !exists {
        return Ok(if increments { Resp::Nil } else { Resp::Int(0) });
    }
    let new = || Stored::SortedSet(SortedSet::default());
    let members = keys.get_or_insert(key, new, as_sorted_set)?;
    let (mut added, mut changed, mut last) = (0, 0, None);
    for (pair, score) in pairs.zip(scores) {
        let member = &pair[1];
        let before = members.score(member);
        let score = match before {
            Some(before) if increments => before + score,
            _ => score,
        };
        if score.is_nan() {
            return refused("ERR resulting score is not a number (NaN)");
        }
        let is_refused = match before {
            None => xx,
            Some(before) => nx || gt && score <= before || lt && score >= before,
        };
        if is_refused {
            continue;
        }
        last = Some(score);
        if before != Some(score) {
            members.insert(member, score);
            added += usize::from(before.is_none());
            changed += 1;
        }
    }
    keys.remove_if_empty(key);
    if increments {
        return Ok(Resp::or_nil(last.map(float_text)));
    }
    Ok(Resp::count(if counts_changed { changed } else { added }))
}

/// `ZINCRBY key number member`: a `ZADD` with an option.
pub(super) fn incr_by(
    keys: &mut Keyspace,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let [key, number, member] = [1, 2, 3].map(|number| arguments.get(number));
    let words = [b"ZADD", key, b"INCR", number, member];
    add(keys, &Arguments(&words.map(<[u8]>::to_vec)))
}

/// `ZREM key member [member ...]`.
pub(super) fn rem(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let key = arguments.get(1);
    let Some(members) = keys.get_as(key, as_sorted_set)? else {
        return Ok(Resp::Int(0));
    };
    let asked = arguments.from(2).iter();
    let removed = asked.filter(|member| members.remove(member)).count();
    keys.remove_if_empty(key);
    Ok(Resp::count(removed))
}

/// `ZCARD key`.
pub(super) fn card(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let members = keys.get_as(arguments.get(1), as_sorted_set)?;
    Ok(Resp::count(members.map_or(0, |members| members.len())))
}

/// `ZSCORE key member`.
pub(super) fn score(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let members = keys.get_as(arguments.get(1), as_sorted_set)?;
    let score = members.and_then(|members| members.score(arguments.get(2)));
    Ok(Resp::or_nil(score.map(float_text)))
}

/// `ZPOPMIN key [count]` and `ZPOPMAX key [count]`.
pub(super) fn pop(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let count = match arguments.len() {
        2 => 1,
        3 => positive(arguments, 2)?,
        _ => return Err(CommandError::syntax()),
    };
    let key = arguments.get(1);
    let Some(members) = keys.get_as(key, as_sorted_set)? else {
        return Ok(Resp::Array(Vec::new()));
    };
    let mut popped = Vec::new();
    for _ in 0..count {
        let next = match arguments.name().as_str() {
            "zpopmin" => members.pop_first(),
            _ => members.pop_last(),
        };
        let Some((member, score)) = next else {
            break;
        };
        popped.push(Resp::Bulk(member));
        popped.push(Resp::bulk(float_text(score)));
    }
    keys.remove_if_empty(key);
    Ok(Resp::Array(popped))
}

/// One end of a range of scores, such as `5`, `(5` or `-inf`.
struct Bound {
    score: f64,
    is_exclusive: bool,
}

impl Bound {
    fn read(text: &[u8]) -> Result<Self, CommandError> {
        let (text, is_exclusive) = match text {
            [b'(', rest @ ..] => (rest, true),
            text => (text, false),
        };
        let score = float(text);
        let score = score.ok_or_else(|| CommandError::new("ERR min or max is not a float"))?;
        Ok(Self {
            score,
            is_exclusive,
        })
    }

    fn is_below(&self, score: f64) -> bool {
        let order = self.score.partial_cmp(&score);
        order == Some(Ordering::Less) || order == Some(Ordering::Equal) && !self.is_exclusive
    }

    fn is_above(&self, score: f64) -> bool {
        let order = self.score.partial_cmp(&score);
        order == Some(Ordering::Greater) || order == Some(Ordering::Equal) && !self.is_exclusive
    }
}

/// The options of a range.
#[derive(Default)]
struct RangeOptions {
    by_score: bool,
    is_reversed: bool,
    with_scores: bool,
    /// How many members are left out first, and how many are returned at most. A negative number stands for all.
    limit: Option<(i64, i64)>,
}

impl RangeOptions {
    fn read(arguments: &Arguments<'_>) -> Result<Self, CommandError> {
        let name = arguments.name();
        let is_zrange = name == "zrange";
        let mut options = Self {
            by_score: name.ends_with("byscore"),
            ..Self::default()
        };
        let mut number = 4;
        while number < arguments.len() {
            match arguments.option(number).as_str() {
                "WITHSCORES" => options.with_scores = true,
                "BYSCORE" if is_zrange => options.by_score = true,
                "REV" if is_zrange => options.is_reversed = true,
                "LIMIT" if number + 2 < arguments.len() => {
                    options.limit = Some((arguments.int(number + 1)?, arguments.int(number + 2)?));
                    number += 2;
                }
                _ => return Err(CommandError::syntax()),
            }
            number += 1;
        }
        // A limit of -1 members is none.
        if options.limit.is_some_and(|(_, count)| count != -1) && !options.by_score {
            return Err(CommandError::new(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ));
        }
        Ok(options)
    }
}

/// Returns the members of a range, with their scores.
fn chosen(
    keys: &mut Keyspace,
    arguments: &Arguments<'_>,
    options: &RangeOptions,
) -> Result<Vec<(Vec<u8>, f64)>, CommandError> {
    let key = arguments.get(1);
    Ok(if options.by_score {
        let (mut min, mut max) = (
            Bound::read(arguments.get(2))?,
            Bound::read(arguments.get(3))?,
        );
        if options.is_reversed {
            std::mem::swap(&mut min, &mut max);
        }
        let members = keys.get_as(key, as_sorted_set)?;
        let members = members.into_iter().flat_map(|members| members.iter());
        let within = members.filter(|(_, score)| min.is_below(*score) && max.is_above(*score));
        let mut within: Vec<_> = within
            .map(|(member, score)| (member.clone(), score))
            .collect();
        if options.is_reversed {
            within.reverse();
        }
        let (offset, count) = options.limit.unwrap_or((0, -1));
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        within.into_iter().skip(offset).take(count).collect()
    } else {
        let (start, stop) = (arguments.int(2)?, arguments.int(3)?);
        let members = keys.get_as(key, as_sorted_set)?;
        let members = members.into_iter().flat_map(|members| members.iter());
        let mut all: Vec<_> = members
            .map(|(member, score)| (member.clone(), score))
            .collect();
        if options.is_reversed {
            all.reverse();
        }
        all.drain(places(all.len(), start, stop)).collect()
    })
}

/// `ZREMRANGEBYRANK key start stop` and `ZREMRANGEBYSCORE key min max`.
pub(super) fn rem_range(
    keys: &mut Keyspace,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let chosen = chosen(keys, arguments, &RangeOptions::read(arguments)?)?;
    let members = keys.get_as(arguments.get(1), as_sorted_set)?;
    if let Some(members) = members {
        for (member, _) in &chosen {
            members.remove(member);
        }
        keys.remove_if_empty(arguments.get(1));
    }
    Ok(Resp::count(chosen.len()))
}

/// `ZRANGE key start stop [BYSCORE] [REV] [LIMIT offset count] [WITHSCORES]`, and `ZRANGEBYSCORE`.
pub(super) fn range(keys: &mut Keyspace, arguments: &Arguments<'_>) -> Result<Resp, CommandError> {
    let options = RangeOptions::read(arguments)?;
    let chosen = chosen(keys, arguments, &options)?;
    let parts = chosen.into_iter().flat_map(|(member, score)| {
        let score = options.with_scores.then(|| Resp::bulk(float_text(score)));
        [Some(Resp::Bulk(member)), score]
    });
    Ok(Resp::Array(parts.flatten().collect()))
}
