//! A row: its rounds, and their results.

use std::time::Duration;

use crate::Result;
use crate::cores::Cores;
use crate::server::{Server, Tally};

const COMMANDS_PER_GUARD: &str = "commands_per_guard";

/// A piece of work, and its mark.
#[derive(Clone, Copy)]
pub struct Row {
    pub work: &'static str,
    /// A description of the limit.
    pub limit: &'static str,
    pub unit: &'static str,
    /// The mark for the ratio of ours to the limit, with a core for each side.
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

/// The setting of a row.
pub struct Bench<'a> {
    pub work: &'static str,
    pub server: &'a Server,
    pub cores: &'a Cores,
    pub rounds: u32,
    pub quick: bool,
}

/// The result of a row.
#[derive(Default)]
pub struct Measured {
    pub rounds: Vec<Round>,
    /// Further figures. Those with a bound are marks too.
    pub figures: Vec<Figure>,
}

/// The values of both sides in one round.
#[derive(Clone, Copy)]
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

    /// Returns a name for the limit's side of a round.
    pub fn bare_name(&self, round: u32) -> String {
        format!("bare:{}:{round}", self.work)
    }

    /// Returns the duration of a piece of work.
    pub fn time(&self, full: Duration) -> Duration {
        if self.quick { full / 5 } else { full }
    }

    /// Returns the number of repetitions of a piece of work.
    pub fn count(&self, full: usize) -> usize {
        if self.quick { full / 5 } else { full }
    }

    /// Returns a name that no other round has.
    pub fn name(&self, round: u32) -> String {
        format!("{}:{round}", self.work)
    }

    /// Lets the two sides take turns, and gives each the number of its round. The first round warms up and does not
    /// count. The side that begins changes with every round.
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

    /// Adds the number of commands that the server ran for each guard, without a bound.
    pub fn counted(self, tally: &Tally) -> Self {
        self.beside(COMMANDS_PER_GUARD, tally.commands_per_guard())
    }

    /// Adds the number of commands that the server ran for each guard.
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

    /// Returns the quartiles of the rounds' ratios. The second is the median.
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

/// Returns the value below which a part of the values lies, interpolated between two values. Returns NaN without
/// values.
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
