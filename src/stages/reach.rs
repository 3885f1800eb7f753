//! How many layers chunks can still take, each row by itself: where sums of rows leave room for fractions of layers,
//! whole layers may not fit.

use std::cell::Cell;

use super::walk::{Chunks, Row};

/// Rows by which it is seen what a chunk or a rank can take: with 4, walks take up to four times the steps; with 24, up
/// to a third fewer, each for twice the time.
pub(super) const ROWS: usize = 8;
/// What rounding may take from a row: sums are at most some millions.
const SLACK: f64 = 1e-6;

/// What chunks and ranks can take.
pub(super) struct Reach {
    layers: usize,
    /// By chunk: the rows that its layers fill; none of chunks that take no layers.
    chunks: Vec<Option<Filling>>,
    /// Ranks with chunks that take layers: which those are, and the rows that their layers fill.
    ranks: Vec<(Vec<usize>, Filling)>,
}

/// A number for each of some rows.
type Each = [f64; ROWS];

/// Rows that layers of a chunk or of a rank fill: several at once, of which the fullest counts.
struct Filling {
    /// The same row several times where there are fewer; none at all where none is filled.
    rows: Option<[usize; ROWS]>,
    /// What layers weigh. By layer, those before it, on a chunk; by number of a rank's chunks that are left, and of layers, at
    /// least so many on those.
    weights: Vec<Each>,
    /// [`Chunks::beside`] these chunks.
    beside: Vec<Each>,
    /// What fitted last.
    last: Cell<usize>,
}

impl Filling {
    /// `of` a row: what its layers weigh, and what others weigh beside.
    fn new(rows: &[(usize, &Row)], of: impl Fn(&Row) -> (Vec<f64>, Vec<f64>)) -> Self {
        let (weights, beside): (Vec<_>, Vec<_>) = rows.iter().map(|(_, row)| of(row)).unzip();
        let at = |lane: usize| lane % rows.len().max(1);
        let each = |lists: Vec<Vec<f64>>| -> Vec<Each> {
            let count = lists.first().map_or(0, Vec::len);
            (0..count).map(|n| std::array::from_fn(|lane| lists[at(lane)][n])).collect()
        };
        Self {
            rows: (!rows.is_empty()).then(|| std::array::from_fn(|lane| rows[at(lane)].0)),
            weights: each(weights),
            beside: each(beside),
            last: Cell::new(0),
        }
    }

    /// What rows leave for layers, before some chunk.
    fn left(&self, rows: &[usize; ROWS], k: usize, left: &impl Fn(usize) -> f64) -> Each {
        std::array::from_fn(|lane| left(rows[lane]) - self.beside[k][lane] + SLACK)
    }
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
            fullest.into_iter().map(|(_, at, row)| (at, row)).collect::<Vec<_>>()
        };
        let of_chunk = |k: usize| {
            let filling =
                || Filling::new(&fullest(&[k]), |row| (chunks.before(row, k), chunks.beside(row, &[k])));
            chunks.least[k].1.then(filling)
        };
        let ranks = chunks.ranks.iter().max().map_or(0, |&last| last + 1);
        let of_rank = |rank: u32| {
            let own = |&k: &usize| chunks.ranks[k] == rank && chunks.least[k].1;
            let own: Vec<usize> = (0..count).filter(own).collect();
            let lightest = |row: &Row| (chunks.lightest_of(row, &own).concat(), chunks.beside(row, &own));
            let filling = Filling::new(&fullest(&own), lightest);
            (own, filling)
        };
        Self {
            layers: chunks.order.len(),
            chunks: (0..count).map(of_chunk).collect(),
            ranks: (0..ranks).map(of_rank).filter(|(own, _)| !own.is_empty()).collect(),
        }
    }

    /// Chunks and ranks that are looked at.
    pub fn places(&self) -> usize {
        self.chunks.len() + self.ranks.len()
    }

    /// False only if no split of the layers from `from` on over the chunks from `k` on keeps all rows, of which so much is
    /// `left`: they are more than all ranks can take, whichever layers those are, or chunks that take what they can one
    /// after the other end before the last.
    pub fn takes_all(&self, k: usize, from: usize, left: impl Fn(usize) -> f64) -> bool {
        let mut all = 0;
        for (chunks, filling) in &self.ranks {
            let open = chunks.len() - chunks.partition_point(|&own| own < k);
            all += match &filling.rows {
                _ if open == 0 => 0,
                None => self.layers,
                Some(rows) => {
                    let own = &filling.weights[open * (self.layers + 1)..][..=self.layers];
                    fitting(own, &filling.left(rows, k, &left), &filling.last)
                }
            };
            if all >= self.layers - from {
                break;
            }
        }
        if all < self.layers - from {
            return false;
        }
        let mut to = from;
        for filling in self.chunks.iter().skip(k).flatten() {
            if to == self.layers {
                break;
            }
            let Some(rows) = &filling.rows else { return true };
            let mut most = filling.left(rows, k, &left);
            most.iter_mut().zip(&filling.weights[to]).for_each(|(most, before)| *most += before);
            to = to.max(fitting(&filling.weights, &most, &filling.last));
        }
        to == self.layers
    }
}

/// The last that fits of weights that grow with the number of layers; the first where none does. It is near the one that
/// was last found there, as a walk takes small steps.
fn fitting(weights: &[Each], most: &Each, last: &Cell<usize>) -> usize {
    let fits = |at: usize| {
        let over = weights[at].iter().zip(most).fold(false, |over, (weight, most)| over | (weight > most));
        !over
    };
    let mut at = last.get().min(weights.len() - 1);
    if fits(at) {
        while at + 1 < weights.len() && fits(at + 1) {
            at += 1;
        }
    } else {
        while at > 0 && !fits(at) {
            at -= 1;
        }
    }
    last.set(at);
    at
}

impl Chunks<'_> {
    /// What a layer weighs.
    fn weight(&self, row: &Row, k: usize, sort: u8) -> f64 {
        row.each[k * self.sorts + usize::from(sort)]
    }

    /// By layer, and behind the last: what those before it weigh on a chunk.
    fn before(&self, row: &Row, k: usize) -> Vec<f64> {
        let mut sum = 0.0;
        let each = self.order.iter().map(|&sort| {
            sum += self.weight(row, k, sort);
            sum
        });
        std::iter::once(0.0).chain(each).collect()
    }

    /// By chunk: what the fewest layers of those from it on weigh, but for some.
    fn beside(&self, row: &Row, but: &[usize]) -> Vec<f64> {
        let mut beside = vec![0.0; self.least.len() + 1];
        for (k, &(least, _)) in self.least.iter().enumerate().rev() {
            let lightest = row.each[k * self.sorts..][..self.sorts].iter().copied().reduce(f64::min);
            let own = if but.contains(&k) { 0.0 } else { f64::from(least) * lightest.unwrap_or(0.0) };
            beside[k] = beside[k + 1] + own;
        }
        beside
    }

    /// By how many of some chunks are left, and number of layers: what these weigh at least there.
    fn lightest_of(&self, row: &Row, own: &[usize]) -> Vec<Vec<f64>> {
        let layers = self.order.len();
        let none = std::iter::once(0.0).chain(std::iter::repeat_n(f64::INFINITY, layers));
        let mut all: Vec<Vec<f64>> = vec![none.collect()];
        for &k in own.iter().rev() {
            let before = self.before(row, k);
            // Any that follow each other.
            let own = |n: usize| {
                (n..=layers).map(|end| before[end] - before[end - n]).fold(f64::INFINITY, f64::min)
            };
            let own: Vec<f64> = (0..=layers).map(own).collect();
            let after = &all[all.len() - 1];
            let lightest =
                |n: usize| (0..=n).map(|here| own[here] + after[n - here]).fold(f64::INFINITY, f64::min);
            let lightest = (0..=layers).map(lightest).collect();
            all.push(lightest);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::walk::tests::{Random, every_split, sum};
    use super::*;

    /// Chunks with rows and what was put on the first of them, against every split of the rest: where it says that not all
    /// is taken, every split breaks a row. Rows fall after they were stated, as on a walk.
    #[test]
    fn what_is_not_taken_fits_nowhere() {
        let mut random = Random(1);
        let (mut fits, mut refused, mut taken) = (0, 0, 0);
        for case in 0..6_000 {
            let sorts = 1 + random.below(3) as usize;
            let order: Vec<u8> = (0..3 + random.below(6)).map(|_| random.below(sorts as u64) as u8).collect();
            let count = 2 + random.below(5) as usize;
            let open: Vec<bool> = (0..count).map(|_| random.below(8) > 0).collect();
            let least: Vec<(u32, bool)> =
                open.iter().map(|&open| (if open { random.below(3) as u32 } else { 0 }, open)).collect();
            let ranks: Vec<u32> = (0..count).map(|_| random.below(3) as u32).collect();
            let chunks = Chunks { order: &order, sorts, least: &least, ranks: &ranks };
            let rows: Vec<Row> = (0..1 + random.below(4))
                .map(|_| {
                    let heavy = random.below(3) as u32;
                    let lightest = if random.below(8) == 0 { -1.0 } else { 0.0 };
                    let mut weight = |at: usize| {
                        let most = if ranks[at / sorts] == heavy { 16 } else { 3 };
                        random.below(most) as f64 + lightest
                    };
                    let each = (0..count * sorts).map(&mut weight).collect();
                    Row { most: 4.0 + random.below(40) as f64, each, lowers: true }
                })
                .collect();
            let reach = Reach::new(chunks, &rows);
            let less = random.below(3) as f64;
            // The first chunks hold anything.
            let k = random.below(count as u64) as usize;
            let mut split: Vec<u32> = Vec::new();
            for &(least, open) in &least[..k] {
                let left = order.len() as u32 - split.iter().sum::<u32>();
                let n = least + random.below(3) as u32;
                split.push(if open { n.min(left) } else { 0 });
            }
            let from = split.iter().sum::<u32>();
            let mut all = Vec::new();
            every_split(&least, order.len() as u32 - from, &mut split.clone(), &mut all);
            let breaks = |row: &Row, split: &Vec<u32>| sum(row, &order, sorts, split) > row.most - less;
            let any = all.iter().any(|split| !rows.iter().any(|row| breaks(row, split)));
            let left = |row: usize| rows[row].most - less - sum(&rows[row], &order, sorts, &split);
            let takes = reach.takes_all(k, from as usize, left);
            assert!(takes || !any, "case {case}: {order:?} {least:?} {ranks:?} {rows:?} {split:?}");
            fits += usize::from(any);
            taken += usize::from(takes);
            // Each row by itself allows some split.
            refused +=
                usize::from(!takes && rows.iter().all(|row| all.iter().any(|split| !breaks(row, split))));
        }
        assert!(fits > 1_000 && taken < 5_000 && refused > 30, "{fits} {taken} {refused}");
    }

    /// Six layers on four chunks of two ranks, of which each takes two: chunk by chunk there is room for eight.
    #[test]
    fn ranks_take_no_more_than_they_can() {
        let chunks = Chunks { order: &[0; 6], sorts: 1, least: &[(0, true); 4], ranks: &[0, 1, 0, 1] };
        let row = |each: [f64; 4], most| Row { most, each: each.to_vec(), lowers: true };
        let rows = [row([1.0, 0.0, 1.0, 0.0], 2.5), row([0.0, 1.0, 0.0, 1.0], 2.5)];
        assert!(!Reach::new(chunks, &rows).takes_all(0, 0, |row| rows[row].most));
        assert!(Reach::new(chunks, &rows).takes_all(0, 0, |_| 3.0));
    }

    /// Two heavy layers in the middle go on one chunk, which takes but one of them; ranks could take them all.
    #[test]
    fn chunks_take_what_comes_next() {
        let chunks = Chunks { order: &[0, 1, 1, 0], sorts: 2, least: &[(1, true); 2], ranks: &[0, 1] };
        let each = [[1.0, 3.0, 0.0, 0.0], [0.0, 0.0, 1.0, 3.0]];
        let rows = each.map(|each| Row { most: 3.0, each: each.to_vec(), lowers: true });
        assert!(!Reach::new(chunks, &rows).takes_all(0, 0, |row| rows[row].most));
        assert!(Reach::new(chunks, &rows).takes_all(0, 0, |_| 4.0));
    }

    /// What a layer makes room for counts: a layer on each of two chunks breaks nothing.
    #[test]
    fn layers_that_make_room_are_seen() {
        let chunks = Chunks { order: &[0; 2], sorts: 1, least: &[(0, true); 2], ranks: &[0, 1] };
        let row = |each: [f64; 2]| Row { most: 1.0, each: each.to_vec(), lowers: true };
        let rows = [row([3.0, -2.0]), row([0.0, 1.0])];
        assert!(Reach::new(chunks, &rows).takes_all(0, 0, |row| rows[row].most));
        assert!(!Reach::new(chunks, &[row([3.0, 0.0]), row([0.0, 1.0])]).takes_all(0, 0, |_| 1.0));
    }
}
