//! Chains that ruled something out: what they rule out elsewhere is seen without simulating.

/// Most chains: with a quarter, walks of `benches/held.sh` take up to twice the steps.
const MOST: usize = 512;
/// Terms that are summed up at once.
const LANES: usize = 8;
/// By how much sums of 32 bits may be off.
const ROUNDING: f32 = 1e-5;

/// Chains, the latest that said something first: they hold whatever passes take.
#[derive(Debug, Clone, Default)]
pub struct Clauses {
    /// Messages, and how often the chain goes through the passes of chunks.
    chains: Vec<(f32, Passes)>,
}

/// A number for both passes of every chunk: forward passes, then backward passes, either filled up with nothing.
#[derive(Debug, Clone, Default)]
pub struct Passes(Vec<f32>);

impl Passes {
    /// Takes other numbers, by chunk.
    pub fn set(&mut self, passes: impl Iterator<Item = [f32; 2]> + Clone) {
        self.0.clear();
        for pass in 0..2 {
            self.0.extend(passes.clone().map(|own| own[pass]));
            self.0.resize(self.0.len().next_multiple_of(LANES), 0.0);
        }
    }

    /// Both of a chunk.
    pub fn of(&self, chunk: usize) -> [f32; 2] {
        [self.0[chunk], self.0[self.0.len() / 2 + chunk]]
    }

    /// Products with those of others, summed up.
    fn times(&self, other: &Self) -> f32 {
        let mut sums = [0.0; LANES];
        for (a, b) in self.0.chunks_exact(LANES).zip(other.0.chunks_exact(LANES)) {
            sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
        }
        sums.iter().sum()
    }

    /// The largest that is the sum of both products of a chunk.
    fn largest(&self, other: &Self) -> f32 {
        let mut largest = [0.0_f32; LANES];
        let [(forward, backward), (others, other_backward)] =
            [self, other].map(|of| of.0.split_at(of.0.len() / 2));
        let forward = forward.chunks_exact(LANES).zip(others.chunks_exact(LANES));
        let backward = backward.chunks_exact(LANES).zip(other_backward.chunks_exact(LANES));
        for ((a, b), (c, d)) in forward.zip(backward) {
            for (lane, largest) in largest.iter_mut().enumerate() {
                let sum = a[lane] * b[lane] + c[lane] * d[lane];
                *largest = if sum > *largest { sum } else { *largest };
            }
        }
        largest.into_iter().fold(0.0, f32::max)
    }
}

impl Clauses {
    pub fn len(&self) -> usize {
        self.chains.len()
    }

    /// Adds a chain of so many messages that goes so often through passes.
    pub fn add(&mut self, passes: impl Iterator<Item = [f32; 2]> + Clone, messages: f32) {
        let mut chain = if self.chains.len() < MOST {
            Passes::default()
        } else {
            self.chains.pop().unwrap_or_default().1
        };
        chain.set(passes);
        self.chains.insert(0, (messages, chain));
    }

    /// Tells `of` of every chain that takes too long, where a message takes `hop`, with what one chunk may take beyond some
    /// passes: what it leaves beside those, and how often it goes through passes. That says whether it ruled something out.
    /// False if one takes too long without.
    pub fn all(
        &mut self,
        (floors, beyond): (&Passes, &Passes),
        hop: f32,
        limit: f32,
        mut of: impl FnMut(f32, &Passes) -> bool,
    ) -> bool {
        for at in 0..self.chains.len() {
            let (messages, chain) = &self.chains[at];
            let left = limit - messages * hop - chain.times(floors) + limit * ROUNDING;
            if left <= 0.0 || chain.largest(beyond) >= left && of(left, chain) {
                self.chains[..=at].rotate_right(1);
            }
            if left <= 0.0 {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(of: &[[f32; 2]]) -> Passes {
        let mut passes = Passes::default();
        passes.set(of.iter().copied());
        passes
    }

    #[test]
    fn passes_are_summed_up_by_chunk() {
        let of: Vec<[f32; 2]> = (0..11).map(|k| [k as f32, 2.0]).collect();
        let (a, b) = (passes(&of), passes(&[[1.0, 10.0]; 11]));
        assert_eq!(a.of(7), [7.0, 2.0]);
        assert_eq!(a.times(&b), 55.0 + 220.0);
        assert_eq!(a.largest(&b), 10.0 + 20.0);
    }

    #[test]
    fn chains_that_say_something_come_first() {
        let mut clauses = Clauses::default();
        let floors = passes(&[[1.0, 2.0], [3.0, 4.0]]);
        clauses.add([[1.0, 0.0], [0.0, 1.0]].into_iter(), 2.0); // 15
        clauses.add([[0.0, 1.0], [1.0, 0.0]].into_iter(), 4.0); // 25
        let mut seen = Vec::new();
        let left = |seen: &mut Vec<f32>, left: f32| {
            seen.push(left.round());
            left > 80.0
        };
        let beyond = passes(&[[90.0, 90.0], [0.0, 0.0]]);
        assert!(clauses.all((&floors, &beyond), 5.0, 100.0, |own, _| left(&mut seen, own)));
        // The second spoke: it is asked first from there on.
        assert!(clauses.all((&floors, &beyond), 5.0, 100.0, |own, _| left(&mut seen, own)));
        assert_eq!(seen, [75.0, 85.0, 85.0, 75.0]);
        // Neither takes too long with so little more, or only the first.
        assert!(clauses.all((&floors, &passes(&[[70.0, 70.0], [0.0, 0.0]])), 5.0, 100.0, |_, _| panic!()));
        assert!(clauses.all((&floors, &passes(&[[0.0, 80.0], [0.0, 0.0]])), 5.0, 100.0, |own, _| own < 80.0));
        assert!(!clauses.all((&floors, &passes(&[])), 5.0, 24.0, |_, _| panic!()));
        assert!(clauses.all((&floors, &passes(&[])), 5.0, 26.0, |_, _| panic!()));
    }

    #[test]
    fn the_oldest_are_dropped() {
        let mut clauses = Clauses::default();
        for at in 0..MOST + 5 {
            clauses.add([[at as f32, 0.0]].into_iter(), 0.0);
        }
        assert_eq!(clauses.chains.len(), MOST);
        assert_eq!(clauses.chains[MOST - 1].1.of(0), [5.0, 0.0]);
    }
}
