//! How many whole layers ranks can hold at most if no row of a programme is to exceed its number: what one rank
//! cannot take, the others must, and what they cannot take it must.

/// A sum of columns that stays below a number.
#[derive(Debug, Clone)]
pub(super) struct Row {
    /// The number.
    pub most: f64,
    /// By rank and sort: what a layer counts at least.
    pub each: Vec<f64>,
}

/// Fewest and most layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub fewest: u32,
    pub most: u32,
}

/// Spans of a pipeline's ranks.
#[derive(Debug, Clone)]
pub(super) struct Caps {
    sorts: usize,
    /// Layers of every sort.
    counts: Vec<u32>,
    /// By rank and sort.
    by_sort: Vec<Span>,
    /// By rank, all sorts together.
    all: Vec<Span>,
}

/// Rounding must not lower what fits.
const SLACK: f64 = 1e-7;
/// Rounds of tightening; usually two change something.
const ROUNDS: usize = 8;

impl Caps {
    /// Ranks that hold so many layers at least, of sorts with so many.
    pub fn new(counts: Vec<u32>, fewest: impl Iterator<Item = u32>) -> Self {
        let total = counts.iter().sum();
        let all: Vec<Span> = fewest.map(|fewest| Span { fewest, most: total }).collect();
        let own = counts.iter().map(|&most| Span { fewest: 0, most });
        let by_sort = all.iter().flat_map(|_| own.clone()).collect();
        Self { sorts: counts.len(), counts, by_sort, all }
    }

    /// Tightens all spans by some rows; whether anything is possible.
    pub fn tighten(&mut self, rows: &[Row]) -> bool {
        for _ in 0..ROUNDS {
            let before = self.clone();
            if !(rows.iter().all(|row| self.tighten_by(row)) && self.share()) {
                return false;
            }
            if before.by_sort == self.by_sort && before.all == self.all {
                break;
            }
        }
        true
    }

    /// Of a rank, by sort.
    pub fn of(&self, rank: usize) -> &[Span] {
        &self.by_sort[rank * self.sorts..][..self.sorts]
    }

    fn tighten_by(&mut self, row: &Row) -> bool {
        let sorts = self.sorts;
        let cheapest = |each: &[f64]| each.iter().copied().fold(f64::INFINITY, f64::min);
        let least = |caps: &Self, rank: usize, each: &[f64]| {
            let own: f64 =
                caps.of(rank).iter().zip(each).map(|(span, each)| f64::from(span.fewest) * each).sum();
            own.max(f64::from(caps.all[rank].fewest) * cheapest(each))
        };
        let leasts: Vec<f64> =
            row.each.chunks_exact(sorts).enumerate().map(|(rank, each)| least(self, rank, each)).collect();
        let free = row.most - leasts.iter().sum::<f64>();
        let slack = (row.most.abs() + 1.0) * SLACK;
        if free < -slack {
            return false;
        }
        for (rank, each) in row.each.chunks_exact(sorts).enumerate() {
            let free = free + leasts[rank] + slack;
            let fit = |each: f64, most: u32| {
                if each > 0.0 { (free / each).min(f64::from(most)) as u32 } else { most }
            };
            let span = &mut self.all[rank];
            span.most = fit(cheapest(each), span.most);
            for (span, &each) in self.by_sort[rank * sorts..].iter_mut().zip(each) {
                span.most = fit(each, span.most);
            }
        }
        true
    }

    /// What others cannot hold, a rank must; whether that is possible.
    fn share(&mut self) -> bool {
        let sorts = self.sorts;
        for at in 0..self.all.len() {
            let own = self.of(at);
            let (fewest, most) = own.iter().fold((0, 0), |(a, b), span| (a + span.fewest, b + span.most));
            let span = &mut self.all[at];
            *span = Span { fewest: span.fewest.max(fewest), most: span.most.min(most) };
            let all = *span;
            for span in &mut self.by_sort[at * sorts..][..sorts] {
                let others = (fewest - span.fewest, most - span.most);
                span.most = span.most.min(all.most.saturating_sub(others.0));
                span.fewest = span.fewest.max(all.fewest.saturating_sub(others.1));
            }
        }
        let total: u32 = self.counts.iter().sum();
        let held = |spans: &mut dyn Iterator<Item = &mut Span>, count: u32| -> bool {
            let mut spans: Vec<&mut Span> = spans.collect();
            let most: u32 = spans.iter().map(|span| span.most).sum();
            let fewest: u32 = spans.iter().map(|span| span.fewest).sum();
            for span in &mut spans {
                let own = **span;
                span.fewest = own.fewest.max((count + own.most).saturating_sub(most));
                span.most = own.most.min((count + own.fewest).saturating_sub(fewest));
            }
            most >= count && fewest <= count && spans.iter().all(|span| span.fewest <= span.most)
        };
        if !held(&mut self.all.iter_mut(), total) {
            return false;
        }
        for sort in 0..sorts {
            let mut own = self.by_sort.iter_mut().skip(sort).step_by(sorts);
            if !held(&mut own, self.counts[sort]) {
                return false;
            }
        }
        true
    }
}
