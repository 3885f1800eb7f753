//! What a rank may hold: of each of its chunks a class of stretches, together.

use smallvec::SmallVec;

use super::classes::{Classes, Stretches};

/// What is counted of layers: those of each sort, all of them, and their time. A split has all of each.
type Measures = SmallVec<[f32; 6]>;

/// Time counts in millionths of that of all layers.
const MILLION: f64 = 1e6;
/// By how much sums may be off: of layers less than one, of such millionths far more than rounding.
const ROUNDING: f64 = 0.5;

/// What is counted of the layers of classes, and of all layers.
pub struct Scale {
    by_class: Vec<Measures>,
    all: Vec<f64>,
}

impl Scale {
    /// Of a model with layers of these sorts, which may come twice.
    pub fn new(stretches: &Stretches, order: &[u8], sorts: &[[f64; 2]]) -> Self {
        let different = order.iter().map(|&sort| usize::from(sort) + 1).max().unwrap_or(0);
        let mut all = vec![0; different];
        order.iter().for_each(|&sort| all[usize::from(sort)] += 1);
        let time = |counts: &[u32]| -> f64 {
            counts
                .iter()
                .zip(sorts)
                .map(|(&n, [forward, backward])| f64::from(n) * (forward + backward))
                .sum()
        };
        let whole = time(&all).max(f64::MIN_POSITIVE);
        let measures = |counts: &[u32]| -> Vec<f64> {
            let sum = f64::from(counts.iter().sum::<u32>());
            if counts.len() == 1 {
                return vec![sum];
            }
            let counted = counts.iter().map(|&n| f64::from(n));
            counted.chain([sum, MILLION * time(counts) / whole]).collect()
        };
        // All splits have the same layers, whatever of them is recomputed.
        let of_class = |counts: &Vec<u32>| {
            let (own, recomputed) = counts.split_at(different);
            let more = recomputed.iter().copied().chain(std::iter::repeat(0));
            let counts: Vec<u32> = own.iter().zip(more).map(|(&own, more)| own + more).collect();
            measures(&counts).into_iter().map(|n| n as f32).collect()
        };
        Self { by_class: stretches.counts.iter().map(of_class).collect(), all: measures(&all) }
    }

    fn width(&self) -> usize {
        self.all.len()
    }
}

/// The least and the most that some fillings hold.
#[derive(Clone, Default)]
pub struct Span {
    least: Measures,
    most: Measures,
}

/// Ways to fill the chunks of a rank.
pub struct Fillings {
    pub chunks: Vec<usize>,
    classes: Vec<u8>,
    measures: Vec<f32>,
}

impl Fillings {
    pub fn new(chunks: Vec<usize>) -> Self {
        Self { chunks, classes: Vec::new(), measures: Vec::new() }
    }

    /// Adds one that is none of those before it.
    pub fn add(&mut self, classes: &[u8], scale: &Scale) {
        self.classes.extend(classes);
        let sum =
            |at: usize| classes.iter().map(|&class| scale.by_class[usize::from(class)][at]).sum::<f32>();
        self.measures.extend((0..scale.width()).map(sum));
    }

    pub fn len(&self) -> usize {
        self.classes.len() / self.chunks.len()
    }

    /// Classes by chunk of the rank.
    pub fn classes(&self, at: u32) -> &[u8] {
        &self.classes[at as usize * self.chunks.len()..][..self.chunks.len()]
    }

    fn measures<'a>(&'a self, scale: &Scale, at: u32) -> &'a [f32] {
        &self.measures[at as usize * scale.width()..][..scale.width()]
    }

    /// Leaves those of some whose chunks have classes that are left to them.
    pub fn keep(&self, some: &mut Vec<u32>, left: &[Classes]) {
        let possible =
            |at: u32| self.classes(at).iter().zip(left).all(|(&class, left)| left >> class & 1 == 1);
        some.retain(|&at| possible(at));
    }

    /// Classes of some, by chunk of the rank.
    pub fn used(&self, some: &[u32]) -> SmallVec<[Classes; 4]> {
        let mut used: SmallVec<[Classes; 4]> = smallvec::smallvec![0; self.chunks.len()];
        for &at in some {
            used.iter_mut().zip(self.classes(at)).for_each(|(used, &class)| *used |= 1 << class);
        }
        used
    }

    /// Of some.
    pub fn span(&self, scale: &Scale, some: &[u32]) -> Span {
        let mut span = Span {
            least: smallvec::smallvec![f32::INFINITY; scale.width()],
            most: smallvec::smallvec![0.0; scale.width()],
        };
        for &at in some {
            let own = self.measures(scale, at).iter();
            for ((least, most), &n) in span.least.iter_mut().zip(&mut span.most).zip(own) {
                (*least, *most) = (least.min(n), most.max(n));
            }
        }
        span
    }
}

/// The least and the most that ranks hold together.
pub struct Sums {
    least: SmallVec<[f64; 6]>,
    most: SmallVec<[f64; 6]>,
}

impl Sums {
    pub fn new<'a>(spans: impl Iterator<Item = &'a Span>, scale: &Scale) -> Self {
        let zeros: SmallVec<[f64; 6]> = smallvec::smallvec![0.0; scale.width()];
        let mut sums = Self { least: zeros.clone(), most: zeros };
        for span in spans {
            sums.least.iter_mut().zip(&span.least).for_each(|(sum, &n)| *sum += f64::from(n));
            sums.most.iter_mut().zip(&span.most).for_each(|(sum, &n)| *sum += f64::from(n));
        }
        sums
    }

    /// Whether they may hold all layers.
    pub fn may_be_all(&self, scale: &Scale) -> bool {
        let spans = self.least.iter().zip(&self.most);
        spans
            .zip(&scale.all)
            .all(|((&least, &most), &all)| (least - ROUNDING..=most + ROUNDING).contains(&all))
    }

    /// Leaves those of some fillings of a rank beside which others may hold the rest; whether that are fewer.
    pub fn keep(&self, fillings: &Fillings, some: &mut Vec<u32>, span: &Span, scale: &Scale) -> bool {
        // What a rank may hold, from the least to the most.
        let within: SmallVec<[(f32, f32); 6]> = (0..scale.width())
            .map(|at| {
                let fewest = scale.all[at] - (self.most[at] - f64::from(span.most[at])) - ROUNDING;
                let most = scale.all[at] - (self.least[at] - f64::from(span.least[at])) + ROUNDING;
                (fewest as f32, most as f32)
            })
            .collect();
        let mut spans = span.least.iter().zip(&span.most).zip(&within);
        if spans.all(|((least, most), (from, to))| from <= least && most <= to) {
            return false;
        }
        let before = some.len();
        some.retain(|&at| {
            let own = fillings.measures(scale, at).iter().zip(&within);
            own.into_iter().all(|(n, (from, to))| (from..=to).contains(&n))
        });
        some.len() < before
    }
}
