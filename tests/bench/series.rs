//! Pure. Interleaved measurements and their statistics.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// One subject's turn: the time of each call, and of all together.
pub struct Block {
    pub each: Vec<Duration>,
    pub wall: Duration,
}

/// One subject's blocks, in the order they were run.
#[derive(Default)]
pub struct Series(Vec<Block>);

/// Gives every subject a turn for each of `blocks`, in the reverse order for odd ones, so that whatever else the
/// machine does, and what it has left to do for the one before, falls on all of them alike; one series for each
/// subject, in the order given.
pub fn alternate<S>(
    subjects: &[S],
    blocks: Range<usize>,
    mut turn: impl FnMut(&S, usize) -> Block,
) -> Vec<Series> {
    let mut series: Vec<Series> = subjects.iter().map(|_| Series::default()).collect();
    for block in blocks {
        let forward = 0..subjects.len();
        let order: Vec<_> =
            if block % 2 == 0 { forward.collect() } else { forward.rev().collect() };
        for index in order {
            series[index].0.push(turn(&subjects[index], block));
        }
    }
    series
}

impl Series {
    /// Appends the blocks of a later run.
    pub fn extend(&mut self, later: Self) {
        self.0.extend(later.0);
    }

    /// In milliseconds.
    pub fn median(&self) -> f64 {
        self.percentile(50)
    }

    /// In milliseconds; the slowest call if there are fewer than a hundred.
    pub fn p99(&self) -> f64 {
        self.percentile(99)
    }

    /// Calls per second, over all turns.
    pub fn rate(&self) -> f64 {
        let calls: usize = self.0.iter().map(|block| block.each.len()).sum();
        let wall: Duration = self.0.iter().map(|block| block.wall).sum();
        calls as f64 / wall.as_secs_f64()
    }

    /// How many times the `floor`'s median this one is: the median over the blocks, each of which
    /// saw the same machine.
    pub fn times(&self, floor: &Self) -> f64 {
        let ratio = |(own, other): (&Block, &Block)| own.median() / other.median();
        middle(self.0.iter().zip(&floor.0).map(ratio).collect())
    }

    /// Which part of the `floor`'s rate this one reaches, by blocks as in [`Series::times`].
    pub fn part_of_rate(&self, floor: &Self) -> f64 {
        let rate = |block: &Block| block.each.len() as f64 / block.wall.as_secs_f64();
        middle(self.0.iter().zip(&floor.0).map(|(own, other)| rate(own) / rate(other)).collect())
    }

    /// How many milliseconds this median lies above the other, by blocks.
    pub fn above(&self, other: &Self) -> f64 {
        let above = |(own, other): (&Block, &Block)| own.median() - other.median();
        middle(self.0.iter().zip(&other.0).map(above).collect())
    }

    fn percentile(&self, percent: usize) -> f64 {
        let each = self.0.iter().flat_map(|block| &block.each);
        percentile(each.map(milliseconds).collect(), percent)
    }
}

/// Median and p99.
impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} / {:.2} ms", self.median(), self.p99())
    }
}

impl Block {
    fn median(&self) -> f64 {
        middle(self.each.iter().map(milliseconds).collect())
    }
}

pub fn milliseconds(time: &Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The median; for an even count the upper of the two in the middle.
pub fn middle(values: Vec<f64>) -> f64 {
    percentile(values, 50)
}

/// Of nothing: not a number.
pub fn percentile(mut values: Vec<f64>, percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (values.len() * percent / 100).min(values.len().saturating_sub(1));
    values.get(index).copied().unwrap_or(f64::NAN)
}
