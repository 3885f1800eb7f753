//! Stage times added up from prices, and the step from stages, replay and tail.

use super::holdings::{Count, Holdings};
use super::replay::{Durations, Replay};
use super::{Ledger, Sequence, rank_of, spans};
use crate::cost::model::CostModel;
use crate::cost::schedule::{Load, chain_bound};
use crate::cost::step::{ITEM_NAMES, Prediction, StepItem, shape};
use crate::cost::{CellCosts, CellKey, EndCost, Further, Hop, ITEMS, Item, OffloadedInput, Sharding, Times};
use crate::layers::Layers;
use crate::plan::{Layout, Module, Plan, Recompute};
use crate::units::Picos;

/// Prices of one layout: what the verifier takes over.
pub(super) struct Prices {
    cell: CellCosts,
    /// Multi-token prediction and head stand apart.
    standalone: bool,
    sharding: Sharding,
    hop: Hop,
    /// Index of each block of [`Sequence::blocks`] in the price list.
    kinds: Vec<usize>,
}

impl Prices {
    pub(super) fn new(cost: &CostModel<'_>, layout: &Layout, layers: &Layers, sequence: &Sequence) -> Self {
        let kind = |block: &&crate::spec::model::Block| {
            layers.kinds.iter().position(|kind| kind.block == **block).unwrap_or_default()
        };
        Self {
            cell: cost.cell(&CellKey::from(layout)),
            standalone: layout.mtp_standalone,
            sharding: cost.sharding(layout),
            hop: cost.hop(layout),
            kinds: sequence.blocks.iter().map(kind).collect(),
        }
    }
    pub(super) fn parameters_of_layer(&self, block: usize) -> Count {
        Count(self.cell.layers[self.kinds[block]].parameters.0)
    }
    /// What stands beside layers, in model order.
    pub(super) fn ends(&self) -> Vec<&EndCost> {
        match self.cell.standalone.as_ref().filter(|_| self.standalone) {
            Some([further, head]) => vec![&self.cell.embedding, further, head],
            None => vec![&self.cell.embedding, &self.cell.head],
        }
    }

    /// Picoseconds of messages between chunk `k` and the next in each of their passes, which both pay.
    fn message(&self, k: usize, chunks: usize) -> u64 {
        let longer = self.standalone && k + 2 == chunks;
        self.hop.busy.0 + if longer { self.hop.further.0 } else { 0 }
    }

    /// Picoseconds of some traffic or update of so many parameters.
    fn of(&self, count: &Count, rate: impl Fn(&crate::cost::PerParameter) -> f64) -> f64 {
        self.sharding.classes.iter().zip(count.0).map(|(class, n)| n as f64 * rate(class)).sum()
    }

    /// What sharded weights and gradients add to a pass that computes for `compute`: the traffic that
    /// hides behind nothing.
    fn exposed(&self, traffic: f64, compute: u64, hidden: f64) -> u64 {
        let traffic = traffic.round();
        if traffic == 0.0 {
            return 0;
        }
        let compute_time = compute as f64;
        let Some(overlap) = self.sharding.micro_overlap else {
            return (traffic - (compute_time * hidden).floor()).max(0.0) as u64;
        };
        // Full overlap slows computation down, and some computation hides nothing.
        let share = (traffic / compute_time.max(1.0)).min(1.0);
        let slowed = compute_time * (1.0 + overlap.slow * share);
        let waited = traffic + overlap.tail * compute_time;
        (slowed.max(waited) - compute_time).round().max(0.0) as u64
    }

    /// Forward and backward time of a unit of weights, its own traffic included.
    fn unit(&self, count: &Count, forward: &Times, backward: &Times) -> [[u64; ITEMS]; 2] {
        let numbers = |times: &Times| times.0.map(|time| time.0);
        let (mut f, mut b) = (numbers(forward), numbers(backward));
        let gather = self.of(count, |class| class.micro_gather);
        let reduce = self.of(count, |class| class.micro_reduce);
        let (gather_hidden, reduce_hidden) = (self.sharding.hidden_share.1, self.sharding.hidden_share.0);
        f[Item::Sharding as usize] += self.exposed(gather, f.iter().sum(), gather_hidden);
        let compute = numbers(backward).iter().sum();
        b[Item::Sharding as usize] += self.exposed(reduce, compute, reduce_hidden);
        [f, b]
    }

    /// Extra backward time of a module that predicts further tokens: with what is beside its layer where it runs again as
    /// a whole.
    fn again(&self, kind: usize, further: &Further, recompute: Recompute) -> [u64; ITEMS] {
        let mut again = self.extra(kind, recompute, 0);
        if matches!(recompute, Recompute::FullUniform(_)) {
            join(&mut again, &further.full_extra.0.map(|time| time.0));
        }
        again
    }

    /// Extra backward time of a layer under a mode.
    fn extra(&self, kind: usize, recompute: Recompute, place: usize) -> [u64; ITEMS] {
        let layer = &self.cell.layers[kind];
        let mut extra = [0; ITEMS];
        let mut add = |times: &Times| {
            for (into, from) in extra.iter_mut().zip(times.0) {
                *into += from.0;
            }
        };
        match recompute {
            Recompute::None => {}
            Recompute::FullUniform(n) => {
                add(&layer.full_extra);
                extra[Item::Offload as usize] += input_moved(&layer.full_offloaded, u64::from(n.max(1)));
            }
            Recompute::FullBlock(n) => {
                if place < n as usize {
                    add(&layer.full_extra);
                    extra[Item::Offload as usize] += input_moved(&layer.full_offloaded, 1);
                }
            }
            Recompute::Selective(set) => {
                let whole = set.has(Module::Moe) && layer.modules.iter().any(|m| m.module == Module::Moe);
                for module in layer.modules.iter().filter(|m| set.has(m.module)) {
                    // Parts of a mixture of experts run again with the whole of it.
                    let part = matches!(module.module, Module::MoeActivation | Module::SharedExperts);
                    if !(whole && part) {
                        add(&module.extra);
                    }
                }
            }
        }
        extra
    }
}

/// A layer's share of the time in which nothing but the input of its group moves, down and up.
fn input_moved(input: &OffloadedInput, group: u64) -> u64 {
    let (moved, hidden) = (u128::from(input.moved.0), u128::from(input.hidden.0) * u128::from(group));
    let waits = if hidden < moved { 2 * moved - hidden } else { moved };
    waits.div_ceil(u128::from(group)) as u64
}

/// One chunk, per micro-batch, in picoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Stage {
    forward: [u64; ITEMS],
    backward: [u64; ITEMS],
    /// The part of `backward` that weight gradients take.
    weight: u64,
    messages: u64,
    /// Values that were rounded on their way here.
    rounded: u64,
}

/// All chunks, and what every rank holds.
pub(super) struct Stages {
    stages: Vec<Stage>,
    ranks: Vec<Count>,
    home: Vec<usize>,
}

fn join(into: &mut [u64; ITEMS], from: &[u64; ITEMS]) {
    into.iter_mut().zip(from).for_each(|(into, from)| *into += from);
}

impl Stages {
    pub(super) fn new(holdings: &Holdings, sequence: &Sequence, plan: &Plan, prices: &Prices) -> Self {
        let layout = plan.layout();
        let units: Vec<[[u64; ITEMS]; 2]> = (0..sequence.blocks.len())
            .map(|block| {
                let layer = &prices.cell.layers[prices.kinds[block]];
                prices.unit(holdings.of_layer(block), &layer.forward, &layer.backward)
            })
            .collect();
        let ends = holdings.of_ends().into_iter().zip(prices.ends());
        let ends: Vec<(usize, [[u64; ITEMS]; 2], u64)> = ends
            .map(|((chunk, count), end)| {
                (chunk, prices.unit(count, &end.forward, &end.backward), end.weight_gradient.0)
            })
            .collect();
        let home: Vec<usize> = (0..plan.chunks().len()).map(|k| rank_of(layout, k)).collect();
        let mut begun = vec![false; layout.pipeline_parallel as usize];
        let mut stages = Vec::with_capacity(home.len());
        for (k, span) in spans(plan).enumerate() {
            let mut stage = Stage { rounded: 2 + span.len() as u64, ..Stage::default() };
            for (place, &block) in sequence.order[span].iter().enumerate() {
                let [forward, backward] = &units[block];
                join(&mut stage.forward, forward);
                join(&mut stage.backward, backward);
                stage.weight += prices.cell.layers[prices.kinds[block]].weight_gradient.0;
                let recompute = plan.chunks()[k].recompute;
                join(&mut stage.backward, &prices.extra(prices.kinds[block], recompute, place));
            }
            for (_, [forward, backward], weight) in ends.iter().filter(|(chunk, ..)| *chunk == k) {
                stage.weight += weight;
                join(&mut stage.forward, forward);
                join(&mut stage.backward, backward);
            }
            if let (Some(modules), Some(further)) = (holdings.modules_on(k), &prices.cell.further) {
                let recompute = holdings.of_modules(plan.chunks()[k].recompute);
                let again = prices.again(prices.kinds[modules.block], further, recompute);
                (0..modules.count).for_each(|_| join(&mut stage.backward, &again));
            }
            // Host time of a micro-batch is paid where it first meets a rank.
            if !std::mem::replace(&mut begun[home[k]], true) {
                stage.forward[Item::Host as usize] += prices.cell.micro_batch_overhead.0;
            }
            // To the chunk before and to the next, if they live elsewhere.
            let crossings = k.saturating_sub(1)..(k + 1).min(home.len() - 1);
            let sent = crossings.filter(|&after| home[after] != home[after + 1]);
            stage.messages = sent.map(|after| prices.message(after, home.len())).sum();
            stages.push(stage);
        }
        Self { stages, ranks: holdings.of_ranks(sequence, plan), home }
    }

    /// Compares every item of every chunk.
    pub(super) fn compare(&self, prediction: &Prediction, ledger: &mut Ledger) {
        for (k, (stage, found)) in self.stages.iter().zip(&prediction.chunks).enumerate() {
            let passes = [
                ("stage-forward", &stage.forward, &found.forward),
                ("stage-backward", &stage.backward, &found.backward),
            ];
            for (name, derived, found) in passes {
                for ((derived, found), item) in derived.iter().zip(found.0).zip(ITEM_NAMES) {
                    let what = || format!("chunk {k}, {item}, picoseconds");
                    ledger.near(name, what, *derived, found.0, stage.rounded);
                }
            }
            let what = || format!("chunk {k}, weight gradients, picoseconds");
            ledger.near("stage-backward", what, stage.weight, found.weight_gradient.0, 0);
            let what = || format!("chunk {k}, picoseconds");
            ledger.near("stage-messages", what, stage.messages, found.messages.0, 0);
        }
    }

    /// Durations to replay: the predicted ones if they are right (they may differ by roundings), so that
    /// the makespan can be compared to the picosecond.
    pub(super) fn durations(&self, prices: &Prices, prediction: &Prediction, ledger: &Ledger) -> Durations {
        let right = ["stage-forward", "stage-backward", "stage-messages"].iter().all(|n| ledger.passed(n));
        let mut durations = Durations {
            forward: Vec::new(),
            backward: Vec::new(),
            weight: Vec::new(),
            hop: prices.hop.latency.0,
        };
        for (stage, found) in self.stages.iter().zip(&prediction.chunks) {
            let (forward, backward) = if right {
                (found.forward.0.map(|t| t.0), found.backward.0.map(|t| t.0))
            } else {
                (stage.forward, stage.backward)
            };
            durations.forward.push(forward.iter().sum::<u64>() + stage.messages);
            durations.backward.push(backward.iter().sum::<u64>() + stage.messages);
            durations.weight.push(stage.weight);
        }
        durations
    }

    /// Compares the makespan, the items of the busiest rank, the bounds, the tail and the total.
    pub(super) fn compare_step(
        &self,
        layout: &Layout,
        durations: &Durations,
        run: &Replay,
        prices: &Prices,
        prediction: &Prediction,
        ledger: &mut Ledger,
    ) {
        let found = |item: usize| prediction.times.0[item].0;
        let (messages, bubble) = (StepItem::PipelineMessages as usize, StepItem::PipelineBubble as usize);
        let m = u64::from(layout.gradient_accumulation_steps);

        // The items up to the bubble tell how the busiest rank spends the makespan.
        let shown: u64 = (0..=bubble).map(found).sum();
        ledger.near("makespan", || "picoseconds".into(), run.makespan, shown, 0);
        let mut busy = vec![0u64; self.ranks.len()];
        for (k, &rank) in self.home.iter().enumerate() {
            busy[rank] += m * (durations.forward[k] + durations.backward[k]);
        }
        let most = busy.iter().copied().max().unwrap_or(0);
        let busiest = busy.iter().position(|&time| time == most).unwrap_or(0);
        let mut items = [0u64; ITEMS];
        let (mut sent, mut rounded) = (0, 0);
        for (stage, _) in self.stages.iter().zip(&self.home).filter(|&(_, &rank)| rank == busiest) {
            for (into, (f, b)) in items.iter_mut().zip(stage.forward.iter().zip(&stage.backward)) {
                *into += m * (f + b);
            }
            sent += 2 * m * stage.messages;
            rounded += 2 * m * stage.rounded;
        }
        for (item, derived) in items.into_iter().enumerate() {
            let what = || format!("rank {busiest}, {}, picoseconds", ITEM_NAMES[item]);
            ledger.near("bottleneck", what, derived, found(item), rounded);
        }
        ledger.near("bottleneck", || "messages, picoseconds".into(), sent, found(messages), 0);
        let idle = run.makespan.saturating_sub(most);
        ledger.near("bottleneck", || "bubble, picoseconds".into(), idle, found(bubble), 0);
        for (rank, (busy, idle)) in busy.iter().zip(prediction.idle().ranks).enumerate() {
            let derived = run.makespan.saturating_sub(*busy);
            ledger.near("idle", || format!("rank {rank}, picoseconds"), derived, idle.0, 0);
        }

        self.bounds(layout, durations, run, &busy, ledger);
        self.tail(run, prices, prediction, ledger);
    }

    fn bounds(
        &self,
        layout: &Layout,
        durations: &Durations,
        run: &Replay,
        busy: &[u64],
        ledger: &mut Ledger,
    ) {
        let picos = |times: &[u64]| times.iter().map(|&t| Picos(t)).collect::<Vec<_>>();
        let (forward, backward) = (picos(&durations.forward), picos(&durations.backward));
        let weight = picos(&durations.weight);
        let load =
            Load { forward: &forward, backward: &backward, weight: &weight, hop: Picos(durations.hop) };
        let chain = chain_bound(shape(layout), load).0;
        let through: u64 = durations.forward.iter().sum::<u64>() + durations.backward.iter().sum::<u64>()
            - durations.weight.iter().sum::<u64>();
        let longest = busy.iter().copied().max().unwrap_or(0);
        let bounds =
            [("chain", chain), ("one micro-batch all the way", through), ("work of one rank", longest)];
        for (name, bound) in bounds {
            let wanted = format!("at most {}", run.makespan);
            ledger.hold("bounds", bound <= run.makespan, || format!("bound: {name}"), wanted, bound);
        }
    }

    /// Traffic and update once per step, as far as nothing hides them, and what follows.
    fn tail(&self, run: &Replay, prices: &Prices, prediction: &Prediction, ledger: &mut Ledger) {
        let sharding = &prices.sharding;
        let ranks = self.ranks.len();
        let mut window = vec![[0u64; 2]; ranks];
        for (stage, &rank) in self.stages.iter().zip(&self.home) {
            window[rank][0] += stage.forward.iter().sum::<u64>();
            window[rank][1] += stage.backward.iter().sum::<u64>();
        }
        // Traffic in whole picoseconds with its latency; what a window of computation cannot hide.
        let exposed = |traffic: f64, latency: Picos, floor: f64, share: f64, window: u64| -> f64 {
            let traffic = traffic.round();
            if traffic == 0.0 {
                return 0.0;
            }
            let traffic = traffic + latency.0 as f64;
            if share <= 0.0 {
                return traffic;
            }
            let left = (traffic - share * window as f64).max(floor * traffic).max(0.0);
            left + sharding.interference * traffic
        };
        let (mut wait, mut flushed, mut update) = (0.0_f64, run.makespan as f64, 0.0_f64);
        for (rank, count) in self.ranks.iter().enumerate() {
            let floor = if rank == 0 { sharding.exposed_floor.0 } else { sharding.exposed_floor.1 };
            let gather = exposed(
                prices.of(count, |class| class.gather),
                sharding.latency.1,
                floor,
                sharding.hidden_share.1,
                window[rank][0],
            );
            let reduce = exposed(
                prices.of(count, |class| class.reduce),
                sharding.latency.0,
                floor,
                sharding.hidden_share.0,
                window[rank][1],
            );
            // Gathering may begin before the first input arrives; reducing, once the rank is done.
            wait = wait.max(gather - run.starts[rank] as f64);
            flushed = flushed.max(run.ends[rank] as f64 + reduce);
            update = update.max(prices.of(count, |class| class.update));
        }
        let fixed = sharding.step_overhead.0 as f64;
        let parts = [
            (StepItem::WeightGather, wait),
            (StepItem::GradientReduction, flushed - run.makespan as f64),
            (StepItem::OptimizerUpdate, update),
            (StepItem::StepOverhead, fixed),
        ];
        let steady = run.makespan as f64 + parts.iter().map(|(_, time)| time).sum::<f64>();
        let stragglers = (steady * (sharding.jitter - 1.0)).max(0.0);
        // Windows are sums of rounded times.
        let roundings: u64 = self.stages.iter().map(|stage| stage.rounded).sum();
        for (item, derived) in parts.into_iter().chain([(StepItem::Stragglers, stragglers)]) {
            let what = || format!("{}, picoseconds", ITEM_NAMES[item as usize]);
            let slack = 16 + 4 * roundings + (derived * 1e-12) as u64;
            let found = prediction.times.0[item as usize].0;
            ledger.near("tail", what, derived.round() as u64, found, slack);
        }
        let sum: u64 = prediction.times.0.iter().map(|time| time.0).sum();
        ledger.same("total", || "sum of items, picoseconds".into(), sum, prediction.step().0);
        let derived = (steady + stragglers).round() as u64;
        let slack = 64 + 16 * roundings + (derived as f64 * 1e-12) as u64;
        ledger.near("total", || "step, picoseconds".into(), derived, prediction.step().0, slack);
    }
}
