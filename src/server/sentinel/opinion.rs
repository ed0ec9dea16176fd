//! The answers of the sentinels about a master, and the choice that follows from them.
//!
//! Each failover has a *config epoch*, which is larger than those of all failovers before it. So of two masters, the
//! one with the larger epoch is the later one. See <https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/>.

use std::fmt;

use redis::Value;

/// The answer of one sentinel: where it believes the master to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Opinion {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) epoch: u64,
}

impl fmt::Display for Opinion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Opinion {
    /// Returns whether both name the same address.
    pub(super) fn is_at(&self, other: &Self) -> bool {
        (&self.host, self.port) == (&other.host, other.port)
    }

    /// Reads the answers to `SENTINEL GET-MASTER-ADDR-BY-NAME` and `SENTINEL MASTER`. Returns `None` if one has another
    /// form.
    ///
    /// During a failover the second answer still has the old address, but the new epoch already.
    pub(super) fn of(address: &Value, facts: &Value) -> Option<Self> {
        // RESP2 has no maps: the fields and their values alternate.
        let (Value::Array(address), Value::Array(parts)) = (address, facts) else {
            return None;
        };
        let text = |value: &Value| match value {
            Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        };
        let value = |name: &str| {
            let mut pairs = parts.chunks_exact(2);
            let pair = pairs.find(|pair| text(&pair[0]).as_deref() == Some(name))?;
            text(&pair[1])
        };
        let [host, port] = address.as_slice() else {
            return None;
        };
        Some(Self {
            host: text(host).filter(|host| is_host(host))?,
            port: text(port)?.parse().ok().filter(|port| *port > 0)?,
            epoch: value("config-epoch")?.parse().ok()?,
        })
    }
}

/// Returns whether a text can be a host. It goes into messages.
fn is_host(text: &str) -> bool {
    const LONGEST: usize = 253;
    let is_fit = |c: char| !c.is_control() && !c.is_whitespace();
    !text.is_empty() && text.len() <= LONGEST && text.chars().all(is_fit)
}

/// The result of the answers of the sentinels to one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// This may be the master. The server must say so itself.
    Master(Opinion),
    /// A majority names this master, whose epoch is before that of the last one.
    Outdated(Opinion),
    /// No majority agrees yet.
    Open,
}

/// Chooses the server that may be the master. `last` is the last master. `is_over`: no further answer comes.
///
/// | the answers | the choice |
/// | --- | --- |
/// | a majority names the same address with the same epoch, not lower than that of the last master | that server |
/// | a majority names the address of the last master with a lower epoch, because the epochs have begun anew | that server |
/// | a majority names another one with a lower epoch | none |
/// | no majority agrees, and no sentinel names an epoch above that of the last master | the last master |
/// | others: a failover may be under way | none |
pub(super) fn choose(
    opinions: &[Option<Opinion>],
    last: Option<&Opinion>,
    is_over: bool,
) -> Choice {
    let last_epoch = last.map_or(0, |last| last.epoch);
    match agreed(opinions) {
        Some(opinion)
            if opinion.epoch < last_epoch && !last.is_some_and(|last| last.is_at(opinion)) =>
        {
            return Choice::Outdated(opinion.clone());
        }
        Some(opinion) => return Choice::Master(opinion.clone()),
        None => {}
    }
    let mut answers = opinions.iter().flatten();
    let knows_later = answers.any(|opinion| opinion.epoch > last_epoch);
    match last.filter(|_| is_over && !knows_later) {
        Some(last) => Choice::Master(last.clone()),
        None => Choice::Open,
    }
}

/// Returns the opinion that a majority of all sentinels has. There is at most one.
fn agreed(opinions: &[Option<Opinion>]) -> Option<&Opinion> {
    let needed = opinions.len() / 2 + 1;
    let supporters = |one: &Opinion| {
        opinions
            .iter()
            .flatten()
            .filter(|other| *other == one)
            .count()
    };
    opinions
        .iter()
        .flatten()
        .find(|one| supporters(one) >= needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opinion(port: u16, epoch: u64) -> Opinion {
        Opinion {
            host: "h".into(),
            port,
            epoch,
        }
    }

    #[test]
    fn the_address_and_the_epoch_come_from_two_answers() {
        let words = |all: &[&str]| {
            let words = all.iter().map(|word| Value::BulkString((*word).into()));
            Value::Array(words.collect())
        };
        // The old address is left over during a failover.
        let facts = words(&[
            "name",
            "mine",
            "ip",
            "old",
            "port",
            "1",
            "config-epoch",
            "7",
        ]);
        let of = |address: &[&str]| Opinion::of(&words(address), &facts);
        assert_eq!(of(&["h", "6379"]), Some(opinion(6379, 7)));
        for wrong in [
            &["h"][..],
            &["", "1"],
            &["h", "0"],
            &["h", "65536"],
            &["h", "x"],
            &["h", "1", "2"],
            &["h\nh", "1"],
        ] {
            assert_eq!(of(wrong), None, "{wrong:?}");
        }
        let address = words(&["h", "6379"]);
        for wrong in [
            words(&["config-epoch", "-1"]),
            words(&["config-epoch"]),
            words(&["name", "mine"]),
            Value::Nil,
            Value::Array(vec![Value::Int(1), Value::Int(2)]),
        ] {
            assert_eq!(Opinion::of(&address, &wrong), None, "{wrong:?}");
        }
        assert_eq!(Opinion::of(&Value::Nil, &facts), None);
    }

    #[test]
    fn a_majority_of_all_sentinels_must_agree_on_both() {
        let (old, new) = (opinion(1, 5), opinion(2, 6));
        let some = |one: &Opinion| Some(one.clone());
        for (opinions, expected) in [
            (vec![some(&new), some(&old), some(&new)], Some(&new)),
            (vec![some(&new), some(&old), None], None),
            (vec![some(&new), None, some(&new)], Some(&new)),
            (vec![some(&new), None, None], None),
            // The same address with different epochs is no agreement.
            (vec![some(&opinion(2, 5)), some(&new), None], None),
            (vec![some(&old)], Some(&old)),
            (vec![some(&old), some(&old), some(&new), some(&new)], None),
            (vec![None], None),
        ] {
            assert_eq!(agreed(&opinions), expected, "{opinions:?}");
        }
    }

    #[test]
    fn the_last_master_stays_unless_a_sentinel_knows_a_later_one() {
        let (older, last, later) = (opinion(1, 5), opinion(2, 6), opinion(3, 7));
        let some = |one: &Opinion| Some(one.clone());
        let master = |one: &Opinion| Choice::Master(one.clone());
        for (opinions, is_over, expected) in [
            (vec![some(&last), some(&last), None], false, master(&last)),
            (
                vec![some(&later), some(&later), None],
                false,
                master(&later),
            ),
            // The epoch never falls, whatever a majority says.
            (vec![some(&older); 3], true, Choice::Outdated(older.clone())),
            // Few have answered: more may come, or not.
            (vec![some(&last), None, None], false, Choice::Open),
            (vec![some(&last), None, None], true, master(&last)),
            (vec![None, None, None], true, master(&last)),
            (vec![some(&older), None, None], true, master(&last)),
            (vec![some(&later), None, None], true, Choice::Open),
            // The epochs have begun anew.
            (vec![some(&opinion(2, 0)); 3], true, master(&opinion(2, 0))),
            // An older epoch, and another address of the same epoch, are no sign of a failover.
            (vec![some(&last), some(&older), None], true, master(&last)),
            (
                vec![some(&last), some(&opinion(9, 6)), None],
                true,
                master(&last),
            ),
            (vec![some(&last), some(&later), None], true, Choice::Open),
        ] {
            let verdict = choose(&opinions, Some(&last), is_over);
            assert_eq!(verdict, expected, "{opinions:?} {is_over}");
        }
        let few = [some(&last), None, None];
        assert_eq!(choose(&few, None, true), Choice::Open, "no master is known");
    }
}
