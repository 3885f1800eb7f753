//! Stretches of layers that take as long as one another.

/// Most layers of a stretch that are told apart: those of a chunk are bits of a number.
const MOST_LAYERS: usize = u64::BITS as usize - 1;
/// Most classes: those of a chunk are bits of a number as well.
const MOST_CLASSES: usize = u128::BITS as usize;

/// Some classes, each a bit.
pub type Classes = u128;

/// The bits of a number.
pub fn bits(mut of: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = (of != 0).then(|| of.trailing_zeros() as usize);
        of &= of.wrapping_sub(1);
        first
    })
}

/// Which classes these are, the shortest first.
pub fn each(of: Classes) -> impl Iterator<Item = usize> {
    let half = u64::BITS as usize;
    bits(of as u64).chain(bits((of >> half) as u64).map(move |at| half + at))
}

/// The longest of some classes.
pub fn longest(of: Classes) -> usize {
    of.checked_ilog2().unwrap_or(0) as usize
}

/// Stretches of layers with the same number of every sort, recomputed or not, those that take longest last.
pub struct Stretches {
    /// Layers of the model.
    pub layers: usize,
    /// By first layer and number: the class; [`NONE`] of what takes too long.
    class: Vec<u8>,
    /// Of a class: layers, layers of each sort, and both passes in picoseconds.
    pub lengths: Vec<u32>,
    pub counts: Vec<Vec<u32>>,
    pub passes: Vec<[f64; 2]>,
    /// Of a class: it, and those of which no pass takes less.
    pub above: Vec<Classes>,
}

const NONE: u8 = u8::MAX;

impl Stretches {
    /// All stretches that take less than so many picoseconds; none where there are too many to tell apart. `order`, `sorts` and
    /// `recomputed` are as in [`super::Division`].
    pub fn new(order: &[u8], sorts: &[[f64; 2]], recomputed: usize, below: f64) -> Option<Self> {
        let layers = order.len();
        let again = if recomputed > 0 { sorts.len() / 2 } else { 0 };
        let mut seen: Vec<(f64, Vec<u32>)> = Vec::new();
        let mut place = vec![None; (layers + 1) * (MOST_LAYERS + 1)];
        for from in 0..=layers {
            let mut counts = vec![0; sorts.len()];
            for n in 0..=layers - from {
                if n > 0 {
                    let sort = usize::from(order[from + n - 1]);
                    counts[if n <= recomputed { sort + again } else { sort }] += 1;
                }
                let [forward, backward] = sum(&counts, sorts);
                if forward + backward >= below {
                    break;
                }
                if n > MOST_LAYERS {
                    return None;
                }
                let at = seen.iter().position(|(_, other)| *other == counts).unwrap_or_else(|| {
                    seen.push((forward + backward, counts.clone()));
                    seen.len() - 1
                });
                place[from * (MOST_LAYERS + 1) + n] = Some(at);
            }
        }
        if seen.len() > MOST_CLASSES {
            return None;
        }
        let mut sorted: Vec<usize> = (0..seen.len()).collect();
        sorted.sort_by(|&a, &b| seen[a].0.total_cmp(&seen[b].0));
        let mut rank = vec![NONE; seen.len()];
        sorted.iter().enumerate().for_each(|(class, &at)| rank[at] = class as u8);
        let counts: Vec<Vec<u32>> = sorted.iter().map(|&at| seen[at].1.clone()).collect();
        let passes: Vec<[f64; 2]> = counts.iter().map(|counts| sum(counts, sorts)).collect();
        let no_less = |own: &[f64; 2]| {
            let longer =
                passes.iter().enumerate().filter(|(_, other)| other[0] >= own[0] && other[1] >= own[1]);
            longer.fold(0, |bits: Classes, (class, _)| bits | 1 << class)
        };
        Some(Self {
            layers,
            class: place.into_iter().map(|at| at.map_or(NONE, |at: usize| rank[at])).collect(),
            lengths: counts.iter().map(|counts| counts.iter().sum()).collect(),
            above: passes.iter().map(no_less).collect(),
            counts,
            passes,
        })
    }

    /// How many classes there are.
    pub fn count(&self) -> usize {
        self.passes.len()
    }

    /// Class of the stretch of so many layers from one on, if it does not take too long.
    pub fn class(&self, from: usize, layers: usize) -> Option<usize> {
        let class = self.class[from * (MOST_LAYERS + 1) + layers];
        (class != NONE).then_some(usize::from(class))
    }

    /// Classes of the stretches of so many layers, each a bit, from one on.
    pub fn classes(&self, from: usize, lengths: u64) -> Classes {
        let row = &self.class[from * (MOST_LAYERS + 1)..][..=MOST_LAYERS];
        bits(lengths).fold(0, |all, n| all | 1 << row[n])
    }

    /// Numbers of layers, each a bit, whose stretch from a layer on does not take too long: at least `fewest`.
    pub fn lengths_from(&self, from: usize, fewest: usize) -> u64 {
        let row = &self.class[from * (MOST_LAYERS + 1)..][..=MOST_LAYERS];
        let short = row.iter().enumerate().skip(fewest).filter(|(_, class)| **class != NONE);
        short.fold(0, |lengths, (n, _)| lengths | 1 << n)
    }
}

fn sum(counts: &[u32], sorts: &[[f64; 2]]) -> [f64; 2] {
    [0, 1].map(|pass| counts.iter().zip(sorts).map(|(&n, each)| f64::from(n) * each[pass]).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_layers_may_be_recomputed() {
        // Layers a b a, of which the first of a stretch takes 10 more backward.
        let sorts = [[1.0, 2.0], [2.0, 3.0], [1.0, 12.0], [2.0, 13.0]];
        let of = Stretches::new(&[0, 1, 0], &sorts, 1, 30.0).unwrap();
        let class = of.class(0, 2).unwrap();
        assert_eq!((of.counts[class].as_slice(), of.passes[class]), ([0, 1, 1, 0].as_slice(), [3.0, 15.0]));
        // b a is another class than a b.
        let class = of.class(1, 2).unwrap();
        assert_eq!((of.counts[class].as_slice(), of.passes[class]), ([1, 0, 0, 1].as_slice(), [3.0, 15.0]));
        let class = of.class(0, 3).unwrap();
        assert_eq!(of.counts[class], [1, 1, 1, 0]);
    }

    #[test]
    fn stretches_with_the_same_layers_are_one_class() {
        // Layers a b a b c.
        let of = Stretches::new(&[0, 1, 0, 1, 2], &[[1.0, 2.0], [2.0, 3.0], [5.0, 1.0]], 0, 12.0).unwrap();
        assert_eq!(of.class(0, 2), of.class(1, 2));
        assert_ne!(of.class(0, 1), of.class(1, 1));
        // a b a takes 11, b a b 13.
        assert!(of.class(0, 3).is_some() && of.class(1, 3).is_none());
        assert_eq!(of.lengths_from(0, 1), 0b1110);
        let class = of.class(2, 2).unwrap();
        assert_eq!(
            (of.lengths[class], of.counts[class].as_slice(), of.passes[class]),
            (2, [1, 1, 0].as_slice(), [3.0, 5.0])
        );
        // Nothing, a, b, c, ab: as long, c forward and b backward; what takes longer in one pass only is not above.
        let (b, c) = (of.class(1, 1).unwrap(), of.class(4, 1).unwrap());
        assert!(of.above[b] >> c & 1 == 0 && of.above[c] >> b & 1 == 0);
        assert!(of.above[b] >> class & 1 == 1);
        assert_eq!(each(of.classes(0, 0b111)).count(), 3);
        assert!((1..of.count()).all(|at| {
            let total = |at: usize| of.passes[at].iter().sum::<f64>();
            total(at - 1) <= total(at)
        }));
    }

    #[test]
    fn classes_are_told_one_by_one() {
        let of: Classes = 1 | 1 << 5 | 1 << 63 | 1 << 64 | 1 << 127;
        assert!(each(of).eq([0, 5, 63, 64, 127]));
        assert_eq!((longest(of), each(0).count()), (127, 0));
    }

    #[test]
    fn too_many_are_not_told_apart() {
        assert!(Stretches::new(&[0; 80], &[[1.0, 1.0]], 0, 100.0).is_some());
        assert!(Stretches::new(&[0; 80], &[[1.0, 1.0]], 0, 130.0).is_none());
        let order: Vec<u8> = (0..60).map(|at| (at * at / 7 % 5) as u8).collect();
        let sorts: Vec<[f64; 2]> = (0..5).map(|sort| [f64::from(sort) + 1.0, 1.0]).collect();
        assert!(Stretches::new(&order, &sorts, 0, 200.0).is_none());
    }
}
