//! Oracles for stage balancing that share nothing with the solvers: layer-by-layer arithmetic, every
//! composition of the layers, every recompute choice, an event simulation.

use autoplan::stages::{Assignment, Choice, Evaluation, Freedom, Objective, Problem, evaluate};

/// A small deterministic generator (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Uniform in `low..=high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }
    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

/// All ways to give `layers` to `least.len()` chunks.
pub fn compositions(layers: u32, least: &[(u32, u32)], visit: &mut impl FnMut(&[u32])) {
    fn step(left: u32, bounds: &[(u32, u32)], chosen: &mut Vec<u32>, visit: &mut impl FnMut(&[u32])) {
        let Some((&(low, high), rest)) = bounds.split_first() else {
            if left == 0 {
                visit(chosen);
            }
            return;
        };
        let need: u32 = rest.iter().map(|b| b.0).sum();
        for n in low..=high.min(left.saturating_sub(need)) {
            chosen.push(n);
            step(left - n, rest, chosen, visit);
            chosen.pop();
        }
    }
    step(layers, least, &mut Vec::new(), visit);
}

/// All recompute choices that the problem lists.
pub fn choices(problem: &Problem) -> Vec<Choice> {
    let offered = |mode: &u16| problem.modes[usize::from(*mode)].offered;
    let modes = (0..problem.modes.len() as u16).filter(offered).map(Choice::Mode);
    let blocks = problem.block.into_iter().flat_map(|b| (b.counts.0..=b.counts.1).map(Choice::Block));
    modes.chain(blocks).collect()
}

/// The value of an assignment under an objective.
pub fn value(evaluation: &Evaluation, objective: Objective) -> u64 {
    match objective {
        Objective::Chain => evaluation.chain.0,
        Objective::Closed => evaluation.closed.0,
    }
}

/// Calls `visit` with every assignment that fits.
pub fn every_assignment(problem: &Problem, mut visit: impl FnMut(&Assignment, &Evaluation)) {
    let pipeline = &problem.pipeline;
    let ranks = pipeline.ranks as usize;
    let all = choices(problem);
    let bounds: Vec<(u32, u32)> = (0..problem.fixed.len())
        .map(|k| match &problem.fixed[k] {
            fixed if fixed.closed => (0, 0),
            fixed if fixed.optional => (0, problem.layer_count()),
            _ => (problem.min_layers, problem.layer_count()),
        })
        .collect();
    let free = if problem.freedom == Freedom::Global { 1 } else { ranks };
    let combinations = all.len().pow(free as u32);
    compositions(problem.layer_count(), &bounds, &mut |layers| {
        for code in 0..combinations {
            let choice = |rank: usize| {
                let digit = if free == 1 { 0 } else { rank as u32 };
                all[code / all.len().pow(digit) % all.len()]
            };
            let recompute = pipeline.rank_of_chunk.iter().map(|&rank| choice(rank as usize)).collect();
            let assignment = Assignment { layers: layers.to_vec(), recompute };
            if let Ok(evaluation) = evaluate(problem, &assignment) {
                visit(&assignment, &evaluation);
            }
        }
    });
}

/// The least value and the lexicographically smallest counts that reach it, by trying everything.
pub fn best(problem: &Problem, objective: Objective) -> Option<(u64, Vec<u32>)> {
    let mut best: Option<(u64, Vec<u32>)> = None;
    every_assignment(problem, |assignment, evaluation| {
        let candidate = (value(evaluation, objective), assignment.layers.clone());
        if best.as_ref().is_none_or(|known| candidate < *known) {
            best = Some(candidate);
        }
    });
    best
}

/// Memory of every rank, and forward and backward time of every chunk, added up layer by layer.
pub fn by_hand(problem: &Problem, assignment: &Assignment) -> (Vec<u64>, Vec<u64>, Vec<u64>) {
    let order: Vec<usize> =
        problem.runs.iter().flat_map(|run| vec![usize::from(run.kind); run.count as usize]).collect();
    let chunks = problem.fixed.len();
    let (mut forward, mut backward) = (vec![0; chunks], vec![0; chunks]);
    let mut memory = Vec::new();
    for rank in 0..problem.pipeline.ranks {
        let on_rank: Vec<usize> =
            (0..chunks).filter(|&k| problem.pipeline.rank_of_chunk[k] == rank).collect();
        let mut held = problem.rank_bytes.0;
        let (mut transients, mut gathered, mut groups) = (vec![0], vec![0], vec![false; 64]);
        let mut kept = vec![0; chunks];
        for &k in &on_rank {
            let fixed = &problem.fixed[k];
            forward[k] = fixed.forward.0;
            backward[k] = fixed.backward.0;
            held += fixed.held.0;
            transients.push(fixed.transient.0);
            gathered.push(fixed.gathered.0);
            kept[k] = fixed.kept.0;
            if fixed.recomputes {
                let mode = match assignment.recompute[k] {
                    Choice::Mode(mode) => mode,
                    Choice::Block(_) => problem.block.unwrap().rest,
                };
                let beside = problem.modes[usize::from(mode)].beside;
                backward[k] += beside.extra.0;
                kept[k] += beside.kept.0;
                transients.push(beside.transient.0);
            }
            let touch = |groups: &mut Vec<bool>, bits: u64| {
                for (group, touched) in groups.iter_mut().enumerate() {
                    *touched |= bits >> group & 1 == 1;
                }
            };
            touch(&mut groups, fixed.touches);
            let start: u32 = assignment.layers[..k].iter().sum();
            for at in 0..assignment.layers[k] {
                let q = order[(start + at) as usize];
                let (kind, mode) = (
                    &problem.kinds[q],
                    match assignment.recompute[k] {
                        Choice::Mode(mode) => mode,
                        Choice::Block(n) if at < n => problem.block.unwrap().full,
                        Choice::Block(_) => problem.block.unwrap().rest,
                    },
                );
                let mode = &problem.modes[usize::from(mode)];
                forward[k] += kind.forward.0;
                backward[k] += kind.backward.0 + mode.extra[q].0;
                held += kind.held.0;
                if at % mode.group == 0 {
                    kept[k] += mode.kept[q].0;
                }
                transients.push(mode.transient[q].0);
                gathered.push(kind.gathered.0);
                touch(&mut groups, kind.touches);
            }
        }
        let order = &problem.pipeline.orders[rank as usize];
        let in_flight = order
            .in_flight
            .chunks(on_rank.len())
            .map(|counts| counts.iter().zip(&on_rank).map(|(&n, &k)| u64::from(n) * kept[k]).sum::<u64>());
        let shared: u64 = (0..problem.shared.len()).filter(|&g| groups[g]).map(|g| problem.shared[g].0).sum();
        memory.push(
            held + in_flight.max().unwrap()
                + transients.iter().max().unwrap()
                + gathered.iter().max().unwrap()
                + shared,
        );
    }
    (memory, forward, backward)
}
