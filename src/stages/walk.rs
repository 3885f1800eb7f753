//! Every split of whole layers, chunk by chunk in model order, as far as linear rows allow: what proves that no split
//! is faster where fractions of layers say too little.
//!
//! A row is a sum over layers, each with the weight of its chunk and sort, that must not exceed a number. After some
//! chunks are filled, the layers that are left weigh at least what they do in the lightest split over the other chunks,
//! and each of these takes only so many ([`super::reach`]).

use super::reach::Reach;

/// A sum over layers that stays below a number.
#[derive(Debug, Clone)]
pub(super) struct Row {
    /// The number.
    pub most: f64,
    /// By chunk and sort: what a layer weighs.
    pub each: Vec<f64>,
    /// Whether the number is that of [`Shown::Lower`].
    pub lowers: bool,
}

/// What a complete split shows.
#[cfg_attr(not(feature = "milp"), expect(dead_code, reason = "rows are added where chains are certified"))]
pub(super) enum Shown {
    /// Nothing that rules out others.
    Nothing,
    /// A row that other splits like it break.
    Row(Row),
    /// From here on the numbers of rows that it concerns are lower by so much.
    Lower(f64),
    /// No others need to be seen.
    Enough,
}

/// How a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// All splits were seen or ruled out.
    Complete,
    /// It took too many steps, what was seen was enough, or it was told to.
    Stopped,
}

/// Rows that may be added on the way.
const MORE_ROWS: usize = 192;
/// Numbers of the table of lightest splits, 8 MB of them: there is no room for more rows.
const MOST_NUMBERS: usize = 2 << 20;
/// Chunks and ranks of which it takes a step to see how far they reach: so counted, three million steps took .6 to .9 s.
const REACHED_PER_STEP: usize = 48;
/// Steps between two questions whether to stop: some hundredths of a second.
const UNASKED: u64 = 1 << 16;
/// How often it is tried how long a walk takes: a hundredth of the steps that walks have.
#[cfg(feature = "milp")]
const PROBES: u32 = 64;
/// Rows that are looked at together.
const LANES: usize = 8;

/// Chunks that are filled in model order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunks<'a> {
    /// Sort of every layer, and how many sorts there are.
    pub order: &'a [u8],
    pub sorts: usize,
    /// By chunk: the fewest layers, and whether it takes any.
    pub least: &'a [(u32, bool)],
    /// By chunk.
    pub ranks: &'a [u32],
}

impl Chunks<'_> {
    /// What the lightest split weighs that puts the layers from each on into the chunks from each on, by chunk and layer;
    /// infinite where there is none. `each` is as in [`Row::each`].
    pub fn lightest(&self, each: &[f64]) -> Vec<f64> {
        let (layers, count) = (self.order.len(), self.least.len());
        let width = layers + 1;
        let mut table = vec![f64::INFINITY; (count + 1) * width];
        table[count * width + layers] = 0.0;
        let weight = |k: usize, layer: usize| each[k * self.sorts + usize::from(self.order[layer])];
        // The same where a chunk has its fewest layers already.
        let mut more = vec![0.0; width];
        for (k, &(least, open)) in self.least.iter().enumerate().rev() {
            let (own, after) = table[k * width..].split_at_mut(width);
            if !open {
                own.copy_from_slice(&after[..width]);
                continue;
            }
            more[layers] = after[layers];
            for layer in (0..layers).rev() {
                more[layer] = after[layer].min(weight(k, layer) + more[layer + 1]);
            }
            let least = least as usize;
            for layer in 0..width.saturating_sub(least) {
                let fewest: f64 = (layer..layer + least).map(|layer| weight(k, layer)).sum();
                own[layer] = fewest + more[layer + least];
            }
        }
        table
    }
}

/// What a chunk with some layers leaves.
enum Next {
    Open,
    Closed,
    /// Nothing, nor does it with more.
    Full,
}

/// Which splits there are.
pub(super) struct Walk<'a> {
    chunks: Chunks<'a>,
    /// By chunk: the next that takes layers.
    next_open: Vec<Option<usize>>,
    /// Fewest layers of all chunks from each on.
    reserved: Vec<u32>,
    /// Rows, and how many there is room for.
    rows: usize,
    room: usize,
    lowers: Vec<f64>,
    /// By chunk, sort and row: what a layer weighs there.
    each: Vec<f64>,
    /// By chunk, layer and row: [`Chunks::lightest`], or a little less: half the memory.
    rest: Vec<f32>,
    /// By chunk and row: what the layers before it leave of the number; infinite where there is no row yet.
    left: Vec<f64>,
    reach: Reach,
    /// By chunk: the row that ruled it out last.
    recent: Vec<usize>,
    split: Vec<u32>,
    steps: u64,
    /// Steps that a look at a chunk counts as, beside one, and a complete split.
    each_reach: u64,
    each_split: u64,
    stop: &'a dyn Fn() -> bool,
    /// Steps that were left when it was asked last.
    asked: u64,
}

impl<'a> Walk<'a> {
    /// Splits of layers into chunks; rows hold for all of them, the first of them where there is no room for all. To see a
    /// complete split takes as long as `each_split` steps. It ends early when it is told to stop.
    pub fn new(chunks: Chunks<'a>, rows: &[Row], each_split: u64, stop: &'a dyn Fn() -> bool) -> Self {
        let (count, sorts, layers) = (chunks.least.len(), chunks.sorts, chunks.order.len());
        let splits = (count + 1) * (layers + 1);
        let room = (rows.len() + MORE_ROWS).min(MOST_NUMBERS / splits).max(1).next_multiple_of(LANES);
        let mut reserved = vec![0; count + 1];
        let mut next_open = vec![None; count];
        let mut next = None;
        for (k, &(least, open)) in chunks.least.iter().enumerate().rev() {
            reserved[k] = reserved[k + 1] + least;
            next_open[k] = next;
            next = if open { Some(k) } else { next };
        }
        let stated = room.saturating_sub(MORE_ROWS / 2).max(LANES);
        let rows = &rows[..stated.min(rows.len())];
        let reach = Reach::new(chunks, rows);
        let mut walk = Self {
            chunks,
            next_open,
            reserved,
            rows: 0,
            room,
            lowers: vec![0.0; room],
            each: vec![0.0; count * sorts * room],
            rest: vec![0.0; splits * room],
            left: vec![f64::INFINITY; (count + 1) * room],
            recent: vec![0; count + 1],
            split: vec![0; count],
            steps: 0,
            each_reach: reach.places().div_ceil(REACHED_PER_STEP) as u64,
            each_split,
            stop,
            asked: 0,
            reach,
        };
        rows.iter().for_each(|row| walk.add(row));
        walk
    }

    /// Sees every split that no row rules out, in at most so many steps, of which it leaves the rest.
    pub fn run(&mut self, steps: &mut u64, seen: &mut impl FnMut(&[u32]) -> Shown) -> End {
        if self.is_short_of_layers() {
            return End::Complete;
        }
        self.steps = *steps;
        let complete = self.rules_out(0, 0).is_some() || self.fill(0, 0, seen);
        *steps = self.steps;
        if complete { End::Complete } else { End::Stopped }
    }

    /// Whether chunks need more layers than there are.
    fn is_short_of_layers(&self) -> bool {
        self.reserved[0] as usize > self.chunks.order.len()
    }

    /// Adds a row, unless there are too many.
    fn add(&mut self, row: &Row) {
        if self.rows == self.room {
            return;
        }
        let (r, room, Chunks { order, sorts, least, .. }) = (self.rows, self.room, self.chunks);
        self.rows += 1;
        self.lowers[r] = f64::from(u8::from(row.lowers));
        for (at, &weight) in row.each.iter().enumerate() {
            self.each[at * room + r] = weight;
        }
        for (at, &weight) in self.chunks.lightest(&row.each).iter().enumerate() {
            self.rest[at * room + r] = at_most(weight);
        }
        // In the middle of a walk: what is placed so far.
        self.left[r] = row.most;
        let mut order = order.iter();
        for k in 0..least.len() {
            let own = order.by_ref().take(self.split[k] as usize);
            let own: f64 = own.map(|&sort| row.each[k * sorts + usize::from(sort)]).sum();
            self.left[(k + 1) * room + r] = self.left[k * room + r] - own;
        }
    }

    /// A row that is broken however the chunks from `k` on are filled with the layers from `from` on.
    fn rules_out(&mut self, k: usize, from: usize) -> Option<usize> {
        let room = self.room;
        let left = &self.left[k * room..][..room];
        let rest = &self.rest[(k * (self.chunks.order.len() + 1) + from) * room..][..room];
        let over = |r: usize| f64::from(rest[r]) > left[r];
        if over(self.recent[k]) {
            return Some(self.recent[k]);
        }
        for first in (0..self.rows.next_multiple_of(LANES)).step_by(LANES) {
            let mut any = false;
            for lane in first..first + LANES {
                any |= over(lane);
            }
            if any && let Some(found) = (first..first + LANES).find(|&r| over(r)) {
                self.recent[k] = found;
                return Some(found);
            }
        }
        None
    }

    fn most_layers(&self, k: usize, from: usize) -> u32 {
        if self.chunks.least[k].1 {
            (self.chunks.order.len() - from) as u32 - self.reserved[k + 1]
        } else {
            0
        }
    }

    /// No layers on a chunk.
    fn empty(&mut self, k: usize) {
        let room = self.room;
        self.left.copy_within(k * room..(k + 1) * room, (k + 1) * room);
    }

    /// One more layer on a chunk.
    fn put(&mut self, k: usize, layer: usize) {
        let (room, Chunks { order, sorts, .. }) = (self.room, self.chunks);
        let own = &self.each[(k * sorts + usize::from(order[layer])) * room..][..self.rows];
        let left = &mut self.left[(k + 1) * room..][..self.rows];
        left.iter_mut().zip(own).for_each(|(left, own)| *left -= own);
    }

    /// Whether a chunk can hold so many layers.
    fn next(&mut self, k: usize, from: usize, n: u32) -> Next {
        let (room, Chunks { order, sorts, least, .. }) = (self.room, self.chunks);
        let (to, last) = (from + n as usize, k + 1 == least.len());
        if n < least[k].0 || last && to < order.len() {
            return Next::Closed;
        }
        self.steps = self.steps.saturating_sub(1);
        if let Some(row) = self.rules_out(k + 1, to) {
            // More layers here, where they weigh no less than next to it, break it as well: from any split that has one
            // more, that can be moved there.
            let weight = |k: usize, sort: usize| self.each[(k * sorts + sort) * room + row];
            let heavy = |next| (0..sorts).all(|sort| weight(k, sort) >= weight(next, sort));
            return if self.next_open[k].is_some_and(heavy) { Next::Full } else { Next::Closed };
        }
        if last {
            return Next::Open;
        }
        self.steps = self.steps.saturating_sub(self.each_reach);
        let left = &self.left[(k + 1) * room..][..room];
        if self.reach.takes_all(k + 1, to, |row| left[row]) { Next::Open } else { Next::Closed }
    }

    /// Asks from time to time.
    fn told_to_stop(&mut self) -> bool {
        if self.asked.abs_diff(self.steps) < UNASKED {
            return false;
        }
        self.asked = self.steps;
        (self.stop)()
    }

    /// Fills the chunks from `k` on with the layers from `from` on; false if it was stopped.
    fn fill(&mut self, k: usize, from: usize, seen: &mut impl FnMut(&[u32]) -> Shown) -> bool {
        let last = k + 1 == self.split.len();
        let most = self.most_layers(k, from);
        self.empty(k);
        for n in 0..=most {
            self.split[k] = n;
            if self.steps == 0 || self.told_to_stop() {
                return false;
            }
            match self.next(k, from, n) {
                Next::Open if last => {
                    self.steps = self.steps.saturating_sub(self.each_split);
                    match seen(&self.split) {
                        Shown::Nothing => {}
                        Shown::Enough => return false,
                        Shown::Row(row) => self.add(&row),
                        Shown::Lower(by) => {
                            for left in self.left.chunks_exact_mut(self.room) {
                                left.iter_mut()
                                    .zip(&self.lowers)
                                    .for_each(|(left, lowers)| *left -= lowers * by);
                            }
                        }
                    }
                }
                Next::Open => {
                    if !self.fill(k + 1, from + n as usize, seen) {
                        return false;
                    }
                }
                Next::Closed => {}
                Next::Full => break,
            }
            if n < most {
                self.put(k, from + n as usize);
            }
        }
        self.split[k] = 0;
        true
    }
}

/// Where certificates are sought, it is first seen whether a walk is short.
#[cfg(feature = "milp")]
impl Walk<'_> {
    /// About how many steps the whole walk takes, but for complete splits: most are ruled out by what others show. Of the
    /// steps that there are it leaves the rest. At random from one chunk to the next, every choice stands for all that
    /// there were (Knuth 1975; the random numbers are those of his MMIX).
    pub fn expected_steps(&mut self, steps: &mut u64) -> f64 {
        if self.is_short_of_layers() {
            return 0.0;
        }
        self.steps = *steps;
        let (mut random, mut all) = (1_u64, 0.0);
        for _ in 0..PROBES {
            let (mut from, mut stands_for) = (0, 1.0);
            for k in 0..self.split.len() {
                let choices = self.choices(k, from);
                stands_for *= choices.len() as f64;
                all += stands_for;
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let Some(&n) = choices.get((random >> 33) as usize % choices.len().max(1)) else { break };
                self.empty(k);
                (0..n as usize).for_each(|layer| self.put(k, from + layer));
                from += n as usize;
            }
        }
        *steps = self.steps;
        all / f64::from(PROBES) * (1 + self.each_reach) as f64
    }

    /// Numbers of layers of a chunk, of those from `from` on, that leave others open.
    fn choices(&mut self, k: usize, from: usize) -> Vec<u32> {
        let most = self.most_layers(k, from);
        let mut choices = Vec::new();
        self.empty(k);
        for n in 0..=most {
            match self.next(k, from, n) {
                Next::Open => choices.push(n),
                Next::Closed => {}
                Next::Full => break,
            }
            if n < most {
                self.put(k, from + n as usize);
            }
        }
        choices
    }
}

/// The nearest number of 32 bits that is not above another.
fn at_most(number: f64) -> f32 {
    let near = number as f32;
    if f64::from(near) > number { near.next_down() } else { near }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Small pseudo-random numbers.
    pub struct Random(pub u64);

    impl Random {
        pub fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % n
        }
    }

    /// Every split that begins like this one, by trying all counts.
    pub fn every_split(chunks: &[(u32, bool)], left: u32, split: &mut Vec<u32>, found: &mut Vec<Vec<u32>>) {
        let Some(&(least, open)) = chunks.get(split.len()) else {
            if left == 0 {
                found.push(split.clone());
            }
            return;
        };
        for n in least..=if open { left } else { 0 } {
            split.push(n);
            every_split(chunks, left - n, split, found);
            split.pop();
        }
    }

    /// What the layers of a split weigh, of the chunks that it has.
    pub fn sum(row: &Row, order: &[u8], sorts: usize, split: &[u32]) -> f64 {
        let mut order = order.iter();
        let mut of = |(chunk, &n): (usize, &u32)| {
            let own = order.by_ref().take(n as usize);
            own.map(|&sort| row.each[chunk * sorts + usize::from(sort)]).sum::<f64>()
        };
        split.iter().enumerate().map(&mut of).sum()
    }

    /// What is seen is what breaks no row, every split once; and rows that are added or lowered on the way rule out
    /// nothing that does not break them.
    #[test]
    fn a_walk_sees_what_no_row_rules_out() {
        let (mut seen_all, mut ruled_out, mut added_all) = (0, 0, 0);
        for seed in 0..400 {
            let mut random = Random(seed);
            let sorts = 1 + random.below(3) as usize;
            let order: Vec<u8> = (0..3 + random.below(6)).map(|_| random.below(sorts as u64) as u8).collect();
            let count = 2 + random.below(4) as usize;
            let mut chunk = |_| {
                let open = random.below(8) > 0;
                (if open { random.below(2) as u32 } else { 0 }, open)
            };
            let chunks: Vec<(u32, bool)> = (0..count).map(&mut chunk).collect();
            let row = |random: &mut Random| Row {
                most: random.below(40) as f64,
                each: (0..count * sorts).map(|_| random.below(12) as f64 - 2.0).collect(),
                lowers: random.below(2) == 0,
            };
            let rows: Vec<Row> = (0..1 + random.below(12)).map(|_| row(&mut random)).collect();
            let mut splits = Vec::new();
            every_split(&chunks, order.len() as u32, &mut Vec::new(), &mut splits);
            let ranks: Vec<u32> = (0..count).map(|_| random.below(3) as u32).collect();
            let whole = Chunks { order: &order, sorts, least: &chunks, ranks: &ranks };
            for row in &rows {
                let sums = splits.iter().map(|split| sum(row, &order, sorts, split));
                assert_eq!(whole.lightest(&row.each)[0], sums.fold(f64::INFINITY, f64::min), "seed {seed}");
            }
            let fits = |row: &Row, split: &[u32], less: f64| {
                let most = row.most - if row.lowers { less } else { 0.0 };
                sum(row, &order, sorts, split) <= most
            };
            let mut seen = Vec::new();
            let end = Walk::new(whole, &rows, 1, &|| false).run(&mut 1_000_000, &mut |split| {
                seen.push(split.to_vec());
                Shown::Nothing
            });
            assert_eq!(end, End::Complete);
            let breaks_none = |split: &&Vec<u32>| rows.iter().all(|row| fits(row, split, 0.0));
            let expected: Vec<Vec<u32>> = splits.iter().filter(breaks_none).cloned().collect();
            assert_eq!(seen, expected, "seed {seed}");
            seen_all += seen.len();
            ruled_out += splits.len() - seen.len();

            // On the way: rows that the split breaks, and numbers that fall.
            let (mut some, mut added, mut less) = (Vec::new(), Vec::new(), 0.0);
            let end = Walk::new(whole, &rows, 1, &|| false).run(&mut 1_000_000, &mut |split| {
                some.push(split.to_vec());
                if random.below(2) == 0 {
                    less += 1.0;
                    return Shown::Lower(1.0);
                }
                let mut more = row(&mut random);
                more.most = sum(&more, &order, sorts, split) - 1.0;
                // What was lowered before does not concern it.
                added.push(Row { most: more.most + if more.lowers { less } else { 0.0 }, ..more.clone() });
                Shown::Row(more)
            });
            assert_eq!(end, End::Complete);
            for split in splits.iter().filter(|split| !some.contains(split)) {
                let mut all = rows.iter().chain(&added);
                assert!(all.any(|row| !fits(row, split, less)), "seed {seed}: {split:?}");
            }
            added_all += added.len();
        }
        assert!(seen_all > 300 && ruled_out > 5_000 && added_all > 50, "{seen_all} {ruled_out} {added_all}");
    }

    /// What is kept in 32 bits is never more than what it stands for.
    #[test]
    fn numbers_are_rounded_down() {
        for number in [0.0, 0.1, -0.1, 1.0 / 3.0, 16_777_217.0, 8e10 + 1.0, -7.7e9] {
            let near = f64::from(at_most(number));
            assert!(near <= number && number - near <= 1.2e-7 * number.abs(), "{number} {near}");
        }
        for number in [1e40, -1e40, -1e-50, 1e-50, f64::INFINITY] {
            assert!(f64::from(at_most(number)) <= number, "{number}");
        }
    }

    /// It gives up rather than take too long.
    #[test]
    fn a_walk_stops_after_its_steps() {
        let chunks = Chunks { order: &[0; 12], sorts: 1, least: &[(0, true); 10], ranks: &[0; 10] };
        let (mut steps, mut seen) = (1_000, 0);
        let end = Walk::new(chunks, &[], 32, &|| false).run(&mut steps, &mut |_| {
            seen += 1;
            Shown::Nothing
        });
        assert_eq!((end, steps), (End::Stopped, 0));
        assert!(seen > 10 && seen < 1_000, "{seen}");
    }

    /// How long it takes is expected to within a few times, in few steps.
    #[cfg(feature = "milp")]
    #[test]
    fn it_is_known_about_how_long_a_walk_takes() {
        let chunks =
            Chunks { order: &[0; 16], sorts: 1, least: &[(0, true); 9], ranks: &[0, 1, 2, 0, 1, 2, 0, 1, 2] };
        let each = |rank: usize| (0..9).map(|k| if k % 3 == rank { 10.0 } else { 1.0 }).collect();
        let row = |most| move |rank: usize| Row { most, each: each(rank), lowers: true };
        for most in [66.0, 72.0, 90.0, 200.0] {
            let rows: Vec<Row> = (0..3).map(row(most)).collect();
            let (mut left, mut steps) = (10_000_000, 10_000_000);
            let expected = Walk::new(chunks, &rows, 1, &|| false).expected_steps(&mut left);
            let end = Walk::new(chunks, &rows, 1, &|| false).run(&mut steps, &mut |_| Shown::Nothing);
            let taken = (10_000_000 - steps) as f64;
            assert_eq!(end, End::Complete);
            assert!(10_000_000 - left < 100_000, "{left}");
            assert!(expected < 2.0 * taken && taken < 8.0 * expected, "{most}: {expected} {taken}");
        }
    }
}
