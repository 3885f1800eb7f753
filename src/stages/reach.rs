//! How many layers chunks can still take, each row by itself: where sums of rows leave room for fractions of layers,
//! whole layers may not fit.

use super::walk::{Chunks, Row};

/// Rows by which it is seen what a chunk or a rank can take.
const ROWS: usize = 8;
/// What rounding may take from a row.
const SLACK: f64 = 1e-6;

/// What chunks and ranks can take.
#[derive(Default)]
pub(super) struct Reach {
    /// By chunk; of those that take no layers, none.
    chunks: Vec<Option<Vec<Narrow>>>,
    ranks: Vec<Rank>,
}

/// A row that the layers of a chunk fill.
struct Narrow {
    row: usize,
    /// By layer: what those before it weigh on the chunk.
    before: Vec<f64>,
    beside: Vec<f64>,
}

struct Rank {
    /// Those that take layers.
    chunks: Vec<usize>,
    full: Vec<Full>,
}

/// A row that the layers of a rank fill.
struct Full {
    row: usize,
    /// By how many of the rank's chunks are left, and number of layers: what those weigh at least.
    lightest: Vec<Vec<f64>>,
    beside: Vec<f64>,
}

impl Reach {
    /// By the rows of which layers fill most.
    pub fn new(chunks: Chunks<'_>, rows: &[Row]) -> Self {
        let count = chunks.least.len();
        // Where a layer counts less than nothing, others make room.
        let rows = rows.iter().enumerate().filter(|(_, row)| row.each.iter().all(|&each| each >= 0.0));
        let rows: Vec<(usize, &Row)> = rows.collect();
        let fullest = |own: &[usize]| {
            let share = |row: &Row| {
                let all =
                    |k: usize| chunks.order.iter().map(|&sort| chunks.weight(row, k, sort)).sum::<f64>();
                own.iter().map(|&k| all(k)).fold(f64::INFINITY, f64::min) / row.most.max(f64::MIN_POSITIVE)
            };
            let shares = rows.iter().map(|&(at, row)| (share(row), at, row));
            let mut fullest: Vec<(f64, usize, &Row)> = shares.filter(|(share, ..)| *share > 1.0).collect();
            fullest.sort_by(|(a, at, _), (b, other, _)| b.total_cmp(a).then(at.cmp(other)));
            fullest.truncate(ROWS);
            fullest.into_iter().map(|(_, at, row)| (at, row))
        };
        let narrow = |k: usize| {
            let own = fullest(&[k]).map(|(at, row)| {
                let mut sum = 0.0;
                let each = chunks.order.iter().map(|&sort| {
                    sum += chunks.weight(row, k, sort);
                    sum
                });
                let before = std::iter::once(0.0).chain(each).collect();
                Narrow { row: at, before, beside: chunks.beside(row, &[k]) }
            });
            chunks.least[k].1.then(|| own.collect())
        };
        let ranks = chunks.ranks.iter().max().map_or(0, |&last| last + 1);
        let rank = |rank: u32| {
            let own: Vec<usize> =
                (0..count).filter(|&k| chunks.ranks[k] == rank && chunks.least[k].1).collect();
            let full = fullest(&own).map(|(at, row)| Full {
                row: at,
                lightest: chunks.lightest_of(row, &own),
                beside: chunks.beside(row, &own),
            });
            Rank { full: full.collect(), chunks: own }
        };
        Self { chunks: (0..count).map(narrow).collect(), ranks: (0..ranks).map(rank).collect() }
    }

    /// Whether the chunks from `k` on can take all layers from `from` on, where so much is left of every row: not if that
    /// is more than all ranks can take, whichever layers they are, nor if it ends before the last where each chunk takes
    /// what it can.
    pub fn takes_all(&self, k: usize, from: usize, left: impl Fn(usize) -> f64) -> bool {
        let Some(layers) = self.layers() else { return true };
        let mut all = 0;
        for rank in &self.ranks {
            let open = rank.chunks.len() - rank.chunks.partition_point(|&own| own < k);
            let mut most = layers;
            for full in &rank.full {
                let left = left(full.row) - full.beside[k] + SLACK;
                let lightest = &full.lightest[open];
                while most > 0 && lightest[most] > left {
                    most -= 1;
                }
            }
            all += most;
            if all >= layers - from {
                break;
            }
        }
        if all < layers - from {
            return false;
        }
        let mut to = from;
        for narrow in self.chunks.iter().skip(k).flatten() {
            if to == layers {
                break;
            }
            let mut end = layers;
            for (at, narrow) in narrow.iter().enumerate() {
                let before = &narrow.before;
                let most = left(narrow.row) - narrow.beside[k] + before[to] + SLACK;
                if at == 0 {
                    end = to;
                    while end < layers && before[end + 1] <= most {
                        end += 1;
                    }
                }
                while end > to && before[end] > most {
                    end -= 1;
                }
            }
            to = end;
        }
        to == layers
    }

    fn layers(&self) -> Option<usize> {
        self.chunks.iter().flatten().flatten().map(|narrow| narrow.before.len() - 1).next()
    }
}

impl Chunks<'_> {
    /// What a layer weighs.
    fn weight(&self, row: &Row, k: usize, sort: u8) -> f64 {
        row.each[k * self.sorts + usize::from(sort)]
    }

    /// By chunk: what the fewest layers of those from it on weigh, but for some.
    fn beside(&self, row: &Row, but: &[usize]) -> Vec<f64> {
        let mut beside = vec![0.0; self.least.len() + 1];
        for (k, &(least, _)) in self.least.iter().enumerate().rev() {
            let lightest = self.order.iter().map(|&sort| self.weight(row, k, sort)).reduce(f64::min);
            let own = if but.contains(&k) { 0.0 } else { f64::from(least) * lightest.unwrap_or(0.0) };
            beside[k] = beside[k + 1] + own;
        }
        beside
    }

    /// What layers weigh at least on some chunks, by how many of these are left, and number of layers.
    fn lightest_of(&self, row: &Row, own: &[usize]) -> Vec<Vec<f64>> {
        let mut all = vec![vec![0.0]];
        for first in (0..own.len()).rev() {
            let least = |&sort: &u8| own[first..].iter().map(|&k| self.weight(row, k, sort)).reduce(f64::min);
            let each: Vec<f64> = self.order.iter().map(|sort| least(sort).unwrap_or(0.0)).collect();
            let (windows, after) = (windows(&each), &all[all.len() - 1]);
            let lightest = |n: usize| {
                let split = |own: usize| Some(windows[own] + after.get(n - own)?);
                (0..=n).filter_map(split).fold(f64::INFINITY, f64::min)
            };
            let lightest = (0..windows.len()).map(lightest).collect();
            all.push(lightest);
        }
        all[0].resize(self.order.len() + 1, f64::INFINITY);
        all
    }
}

/// By number of layers: what the lightest that follow each other weigh.
fn windows(each: &[f64]) -> Vec<f64> {
    let of = |n: usize| each.windows(n).map(|some| some.iter().sum::<f64>()).fold(f64::INFINITY, f64::min);
    std::iter::once(0.0).chain((1..=each.len()).map(of)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits of the layers from `from` on into the chunks from `k` on.
    fn splits(least: &[(u32, bool)], left: u32) -> Vec<Vec<u32>> {
        let Some((&(least, open), rest)) = least.split_first() else {
            return if left == 0 { vec![Vec::new()] } else { Vec::new() };
        };
        let counts = least..=if open { left } else { 0 };
        let with = |n: u32| splits(rest, left - n).into_iter().map(move |rest| [vec![n], rest].concat());
        counts.filter(|&n| n <= left).flat_map(with).collect()
    }

    /// Where it says that not all layers are taken, every split breaks a row; and it says so where no sum of rows does.
    #[test]
    fn what_is_not_taken_fits_nowhere() {
        let mut state = 1_u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let (mut taken, mut fits, mut refused) = (0, 0, 0);
        for _ in 0..2_000 {
            let sorts = 1 + below(3) as usize;
            let order: Vec<u8> = (0..3 + below(6)).map(|_| below(sorts as u64) as u8).collect();
            let count = 2 + below(4) as usize;
            let least: Vec<(u32, bool)> = (0..count)
                .map(|_| {
                    let open = below(8) > 0;
                    (if open { below(2) as u32 } else { 0 }, open)
                })
                .collect();
            let ranks: Vec<u32> = (0..count).map(|k| k as u32 % 2).collect();
            let mut rows = Vec::new();
            for _ in 0..1 + below(4) {
                let each = (0..count * sorts).map(|_| (below(14) as f64 - 1.0).max(0.0)).collect();
                rows.push(Row { most: below(50) as f64, each, lowers: false });
            }
            let chunks = Chunks { order: &order, sorts, least: &least, ranks: &ranks };
            let all = splits(&least, order.len() as u32);
            let weigh = |row: &Row, split: &[u32]| -> f64 {
                let at = split.iter().enumerate().flat_map(|(k, &n)| (0..n).map(move |_| k));
                at.zip(&order).map(|(k, &sort)| chunks.weight(row, k, sort)).sum()
            };
            let any = all.iter().any(|split| rows.iter().all(|row| weigh(row, split) <= row.most));
            let takes = Reach::new(chunks, &rows).takes_all(0, 0, |row| rows[row].most);
            assert!(takes || !any, "{order:?} {least:?} {rows:?}");
            // Each row by itself allows some split.
            let each = |row: &Row| all.iter().any(|split| weigh(row, split) <= row.most);
            taken += usize::from(takes);
            fits += usize::from(any);
            refused += usize::from(!takes && rows.iter().all(each));
        }
        assert!(fits > 300 && taken < 2 * fits && refused > 20, "{fits} {taken} {refused}");
    }
}
