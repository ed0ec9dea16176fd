//! One row: rounds in turns, and what comes of them.

use std::time::Duration;

use crate::Result;
use crate::cores::Cores;
use crate::server::{Server, Tally};

const COMMANDS_PER_GUARD: &str = "commands_per_guard";

/// One piece of work, and what it is to reach.
pub struct Row {
    pub work: &'static str,
    /// What the limit is, for people.
    pub limit: &'static str,
    pub unit: &'static str,
    /// What the ratio of ours to the limit is to reach.
    pub must: Must,
    pub rounds: u32,
    pub measure: fn(&Bench) -> Result<Measured>,
}

#[derive(Clone, Copy, Debug)]
pub enum Must {
    AtLeast(f64),
    AtMost(f64),
}

impl Must {
    pub fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }

    pub fn mark(self) -> f64 {
        match self {
            Self::AtLeast(mark) | Self::AtMost(mark) => mark,
        }
    }
}

/// What a row is measured with.
pub struct Bench<'a> {
    pub work: &'static str,
    pub server: &'a Server,
    pub cores: &'a Cores,
    pub rounds: u32,
    pub quick: bool,
}

/// What was measured.
#[derive(Default)]
pub struct Measured {
    pub rounds: Vec<Round>,
    /// Further figures; those with a bound are part of what is to be reached.
    pub figures: Vec<Figure>,
}

/// What the two sides reached, one after the other.
pub struct Round {
    pub ours: f64,
    pub limit: f64,
}

pub struct Figure {
    pub name: &'static str,
    pub value: f64,
    pub must: Option<Must>,
}

impl Bench<'_> {
    pub fn url(&self) -> &str {
        self.server.url()
    }

    /// A name for the limit's side of a round.
    pub fn bare_name(&self, round: u32) -> String {
        format!("bare:{}:{round}", self.work)
    }

    /// How long something is done for.
    pub fn time(&self, full: Duration) -> Duration {
        if self.quick { full / 5 } else { full }
    }

    /// How often something is done.
    pub fn count(&self, full: usize) -> usize {
        if self.quick { full / 5 } else { full }
    }

    /// A name that no other round has.
    pub fn name(&self, round: u32) -> String {
        format!("{}:{round}", self.work)
    }

    /// Lets the two sides take turns. The first round warms up and does not count; then the one that begins changes
    /// from round to round. Each is told the number of its round.
    pub fn interleave(
        &self,
        mut ours: impl FnMut(u32) -> Result<f64>,
        mut limit: impl FnMut(u32) -> Result<f64>,
    ) -> Result<Vec<Round>> {
        let mut rounds = Vec::new();
        for round in 0..=self.rounds {
            let (ours, limit) = if round % 2 == 0 {
                let ours = ours(round)?;
                (ours, limit(round)?)
            } else {
                let limit = limit(round)?;
                (ours(round)?, limit)
            };
            if round > 0 {
                rounds.push(Round { ours, limit });
            }
        }
        Ok(rounds)
    }
}

impl Measured {
    pub fn new(rounds: Vec<Round>) -> Self {
        Self {
            rounds,
            figures: Vec::new(),
        }
    }

    /// Adds a figure with a bound.
    pub fn bounded(mut self, name: &'static str, value: f64, must: Must) -> Self {
        let must = Some(must);
        self.figures.push(Figure { name, value, must });
        self
    }

    /// Adds a figure that only explains.
    pub fn beside(mut self, name: &'static str, value: f64) -> Self {
        let must = None;
        self.figures.push(Figure { name, value, must });
        self
    }

    /// Adds how many commands the server ran for each guard, where there is no bound on it.
    pub fn counted(self, tally: &Tally) -> Self {
        self.beside(COMMANDS_PER_GUARD, tally.commands_per_guard())
    }

    /// Adds how many commands the server ran for each guard.
    pub fn counted_to(self, tally: &Tally, most: f64) -> Self {
        let each = tally.commands_per_guard();
        self.bounded(COMMANDS_PER_GUARD, each, Must::AtMost(most))
    }

    pub fn ours(&self) -> f64 {
        median(self.rounds.iter().map(|round| round.ours))
    }

    pub fn limit(&self) -> f64 {
        median(self.rounds.iter().map(|round| round.limit))
    }

    /// The quartiles of the rounds' ratios; the second is their median.
    pub fn ratios(&self) -> [f64; 3] {
        let ratios: Vec<_> = self
            .rounds
            .iter()
            .map(|round| round.ours / round.limit)
            .collect();
        [0.25, 0.5, 0.75].map(|part| quantile(ratios.clone(), part))
    }

    pub fn meets(&self, must: Must) -> bool {
        let [_, ratio, _] = self.ratios();
        let figures = self.figures.iter();
        must.is_met(ratio)
            && figures
                .filter_map(|figure| Some((figure.value, figure.must?)))
                .all(|(value, must)| must.is_met(value))
    }
}

pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    quantile(values.into_iter().collect(), 0.5)
}

/// What such a part of the values lies below, between two of them where it must; not a number where there are none.
#[allow(clippy::cast_sign_loss, reason = "a place is not negative")]
pub fn quantile(mut values: Vec<f64>, part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else {
        return f64::NAN;
    };
    let place = last as f64 * part;
    let below = place.floor() as usize;
    let (low, high) = (values[below], values[(below + 1).min(last)]);
    low + (high - low) * place.fract()
}
