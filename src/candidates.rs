//! The space of layouts: which degrees, batches, flags and shardings a job could use.
//!
//! Layouts come in three nested steps so that a search need not list them: a [`Group`] fixes the
//! degrees and the micro-batch, a cell adds what the cost of a layer depends on ([`Space::cells`]), and
//! a layout adds an [`Order`] and a sharding ([`Space::layouts`]). Every layout has one
//! spelling: an axis without effect is pinned.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;

use crate::cost::CellKey;
use crate::cost::model::Flags;
use crate::cost::schedule::interleave_group;
use crate::frameworks::{
    COMMON_RULES, Capabilities, Context, ExpertTensor, Reach, Refusal, SequenceParallel, ShardGroups, Target,
    legal, legal_within, mtp_stands_alone,
};
use crate::plan::{ContextComm, CudaGraphs, Dispatcher, Layout, Module, Offload, Place, Recompute, Schedule};
use crate::spec::cluster::Architecture;

/// Largest tensor- and context-parallel degree that is tried unless a restriction says otherwise.
pub const MAX_DEGREE: u32 = 64;
/// Largest micro-batch that is tried unless a restriction says otherwise.
pub const MAX_MICRO_BATCH: u32 = 64;

/// What values of one axis are allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Axis {
    /// Only these, if given.
    pub only: Option<Vec<u32>>,
    /// At most this, if given.
    pub max: Option<u32>,
}

impl Axis {
    /// One value alone.
    #[must_use]
    pub fn exactly(value: u32) -> Self {
        Self { only: Some(vec![value]), max: None }
    }

    /// Whether a value may be used; `ceiling` holds where nothing was said.
    #[must_use]
    pub fn admits(&self, value: u32, ceiling: u32) -> bool {
        match &self.only {
            Some(only) => only.contains(&value) && self.max.is_none_or(|max| value <= max),
            None => value <= self.max.unwrap_or(ceiling),
        }
    }
}

/// What forbids a split of GPUs over tensor, context and pipeline ranks and replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SplitLost {
    /// The framework has not the kind of parallelism.
    Framework,
    /// The user's restrictions.
    Restrictions,
    /// A tensor- or context-parallel degree above [`MAX_DEGREE`] that nobody asked for.
    Degree,
    /// More stages than layers and ends alone on theirs.
    Stages,
    /// The replicas do not divide the batch.
    Batch {
        /// How many they are.
        replicas: u32,
    },
    /// No micro-batch and accumulation are left that the user allows.
    MicroBatches,
    /// No degrees of experts are left.
    Experts,
    /// Rules of the framework on degrees.
    Rules,
    /// More chunks than layers, ends and multi-token-prediction modules in all numbers of virtual stages that the user
    /// allows.
    Chunks,
    /// Schedules, virtual stages, flags or stages of sharding.
    Layouts,
}

/// What the user fixed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restrictions {
    /// TP.
    pub tensor_parallel: Axis,
    /// PP.
    pub pipeline_parallel: Axis,
    /// VPP.
    pub virtual_stages: Axis,
    /// DP.
    pub data_parallel: Axis,
    /// CP.
    pub context_parallel: Axis,
    /// EP.
    pub expert_parallel: Axis,
    /// ETP.
    pub expert_tensor_parallel: Axis,
    /// Sequences per micro-batch.
    pub micro_batch_size: Axis,
    /// Micro-batches per step and pipeline.
    pub gradient_accumulation_steps: Axis,
    /// ZeRO stage.
    pub zero_stage: Axis,
    /// Ranks that share the states, where they are sharded; 0 stands for all replicas.
    pub shard_group: Axis,
    /// Recomputation; `Selective` means exactly this set.
    pub recompute: Option<Vec<Recompute>>,
    /// Schedules.
    pub schedule: Option<Vec<Schedule>>,
    /// Places of state and activations; none means on the GPU only.
    pub offload: Option<Vec<Offload>>,
    /// Sequence parallelism, where tensor parallelism has any use for it.
    pub sequence_parallel: Option<Vec<bool>>,
    /// Overlap of tensor-parallel communication, where there is some.
    pub tensor_overlap: Option<Vec<bool>>,
    /// Overlap of data-parallel communication, where there is some.
    pub data_overlap: Option<Vec<bool>>,
    /// Overlap of expert-parallel communication, where there is some.
    pub expert_overlap: Option<Vec<bool>>,
    /// Shared experts beside the exchange, where they can be; they are unless all that is left is off.
    pub shared_overlap: Option<Vec<bool>>,
    /// How attention crosses context-parallel ranks, where there are several.
    pub context_comm: Option<Vec<ContextComm>>,
    /// How tokens reach experts, where they leave their rank.
    pub dispatcher: Option<Vec<Dispatcher>>,
    /// Multi-token prediction on a stage of its own.
    pub mtp_standalone: Option<Vec<bool>>,
    /// CUDA graphs.
    pub cuda_graphs: Option<Vec<CudaGraphs>>,
}

impl Restrictions {
    /// Names of the axes, as in `--fix`, on which nothing is left.
    #[must_use]
    pub fn contradictions(&self) -> Vec<&'static str> {
        let axes = [
            ("tp", &self.tensor_parallel),
            ("pp", &self.pipeline_parallel),
            ("vpp", &self.virtual_stages),
            ("dp", &self.data_parallel),
            ("cp", &self.context_parallel),
            ("ep", &self.expert_parallel),
            ("etp", &self.expert_tensor_parallel),
            ("mb", &self.micro_batch_size),
            ("ga", &self.gradient_accumulation_steps),
            ("zero", &self.zero_stage),
            ("shard", &self.shard_group),
        ];
        let empty = |axis: &&(&str, &Axis)| {
            axis.1.only.as_ref().is_some_and(|only| !only.iter().any(|&value| axis.1.admits(value, u32::MAX)))
        };
        let mut names: Vec<&'static str> = axes.iter().filter(empty).map(|axis| axis.0).collect();
        // Groups of several ranks share states at a stage of sharding alone.
        let (stages, groups) = (&self.zero_stage.only, &self.shard_group.only);
        let unsharded = stages.as_ref().is_some_and(|stages| stages.iter().all(|&stage| stage == 0));
        if unsharded && groups.as_ref().is_some_and(|groups| groups.iter().all(|&group| group > 1)) {
            names.push("shard");
        }
        let lists = [
            ("recompute", self.recompute.as_ref().map(Vec::len)),
            ("schedule", self.schedule.as_ref().map(Vec::len)),
            ("offload", self.offload.as_ref().map(Vec::len)),
            ("sp", self.sequence_parallel.as_ref().map(Vec::len)),
            ("tp-overlap", self.tensor_overlap.as_ref().map(Vec::len)),
            ("dp-overlap", self.data_overlap.as_ref().map(Vec::len)),
            ("ep-overlap", self.expert_overlap.as_ref().map(Vec::len)),
            ("shared-overlap", self.shared_overlap.as_ref().map(Vec::len)),
            ("cp-comm", self.context_comm.as_ref().map(Vec::len)),
            ("dispatcher", self.dispatcher.as_ref().map(Vec::len)),
            ("mtp", self.mtp_standalone.as_ref().map(Vec::len)),
            ("graphs", self.cuda_graphs.as_ref().map(Vec::len)),
        ];
        names.extend(lists.iter().filter(|list| list.1 == Some(0)).map(|list| list.0));
        names
    }

    /// Names of the flags of which something is asked that only a model with experts can have, each with whether it takes
    /// shared ones.
    #[must_use]
    pub fn of_experts(&self) -> Vec<(&'static str, bool)> {
        let on = |only: &Option<Vec<bool>>| only.as_ref().is_some_and(|only| !only.contains(&false));
        let recomputes = |module: Module| {
            let with = |one: &Recompute| matches!(one, Recompute::Selective(some) if some.has(module));
            self.recompute.as_ref().is_some_and(|only| !only.is_empty() && only.iter().all(with))
        };
        let flags = [
            ("dispatcher", false, self.dispatcher.is_some()),
            ("ep-overlap", false, on(&self.expert_overlap)),
            ("shared-overlap", true, on(&self.shared_overlap)),
            ("recompute=selective:moe", false, recomputes(Module::Moe)),
            ("recompute=selective:moe_act", false, recomputes(Module::MoeActivation)),
            ("recompute=selective:shared_experts", true, recomputes(Module::SharedExperts)),
        ];
        flags.into_iter().filter(|flag| flag.2).map(|(name, of_shared, _)| (name, of_shared)).collect()
    }
}

/// Whether a restriction on a flag admits a value; where the flag has no effect it says nothing.
fn admits<T: PartialEq>(only: &Option<Vec<T>>, effect: bool, value: &T) -> bool {
    !effect || only.as_ref().is_none_or(|only| only.contains(value))
}

/// Degrees, micro-batch and accumulation: what fixes a group of layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// TP.
    pub tensor_parallel: u32,
    /// CP.
    pub context_parallel: u32,
    /// PP.
    pub pipeline_parallel: u32,
    /// DP.
    pub data_parallel: u32,
    /// EP.
    pub expert_parallel: u32,
    /// ETP.
    pub expert_tensor_parallel: u32,
    /// Sequences per micro-batch.
    pub micro_batch_size: u32,
    /// Micro-batches.
    pub micro_batches: u32,
}

impl Group {
    /// The group of a layout.
    #[must_use]
    pub fn of(layout: &Layout) -> Self {
        Self {
            tensor_parallel: layout.tensor_parallel,
            context_parallel: layout.context_parallel,
            pipeline_parallel: layout.pipeline_parallel,
            data_parallel: layout.data_parallel,
            expert_parallel: layout.expert_parallel,
            expert_tensor_parallel: layout.expert_tensor_parallel,
            micro_batch_size: layout.micro_batch_size,
            micro_batches: layout.gradient_accumulation_steps,
        }
    }
}

/// In which order passes go through which chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order {
    /// Schedule.
    pub schedule: Schedule,
    /// VPP.
    pub virtual_stages: u32,
    /// [`Layout::mtp_standalone`].
    pub mtp_standalone: bool,
}

impl Order {
    /// One chunk per rank.
    pub const PLAIN: Self = Self::one(Schedule::OneFOneB);

    /// One chunk per rank under a schedule.
    #[must_use]
    pub const fn one(schedule: Schedule) -> Self {
        Self { schedule, virtual_stages: 1, mtp_standalone: false }
    }
}

/// Nothing is sharded.
pub const UNSHARDED: Shards = (0, 1, false);

/// How states are sharded: ZeRO stage, shard group, overlap with computation.
pub type Shards = (u8, u32, bool);

/// All layouts of one job under one framework.
#[derive(Debug, Clone)]
pub struct Space<'a> {
    target: Target,
    capabilities: &'static Capabilities,
    context: &'a Context,
    restrictions: &'a Restrictions,
    /// What divides the number of GPUs, ascending, and the shardings of so many ranks.
    shardings: Vec<(u32, Vec<Shards>)>,
    /// The flags that cells may have, by which degrees are above one.
    flags: [Flags; 8],
    /// The same without graphs that no layout of the job may have.
    possible_flags: [Flags; 8],
}

/// Divisors of `n`, ascending.
#[must_use]
pub fn divisors(n: u32) -> Vec<u32> {
    let mut low = Vec::new();
    let mut high = Vec::new();
    let mut d = 1;
    while u64::from(d) * u64::from(d) <= u64::from(n) {
        if n % d == 0 {
            low.push(d);
            if d != n / d {
                high.push(n / d);
            }
        }
        d += 1;
    }
    low.extend(high.into_iter().rev());
    low
}

impl<'a> Space<'a> {
    /// The space of a job under a framework.
    #[must_use]
    pub fn new(target: Target, context: &'a Context, restrictions: &'a Restrictions) -> Self {
        let none = || std::array::from_fn(|_| Flags::default());
        let capabilities = target.capabilities();
        let (flags, possible_flags, shardings) = (none(), none(), Vec::new());
        let mut space =
            Self { target, capabilities, context, restrictions, shardings, flags, possible_flags };
        let ranks = divisors(context.gpus).into_iter();
        space.shardings = ranks.map(|ranks| (ranks, space.shardings_of(ranks))).collect();
        space.flags = std::array::from_fn(|at| space.flags_where(at & 1 > 0, at & 2 > 0, at & 4 > 0));
        space.possible_flags = std::array::from_fn(|at| {
            let mut flags = space.flags[at].clone();
            flags.cuda_graphs.retain(|&graphs| !space.forbids_graphs(graphs));
            flags
        });
        space
    }

    /// The framework.
    #[must_use]
    pub fn target(&self) -> Target {
        self.target
    }
    /// What the framework has.
    #[must_use]
    pub fn capabilities(&self) -> &'static Capabilities {
        self.capabilities
    }
    /// The facts that rules ask for.
    #[must_use]
    pub fn context(&self) -> &'a Context {
        self.context
    }
    /// What the user fixed.
    #[must_use]
    pub fn restrictions(&self) -> &'a Restrictions {
        self.restrictions
    }

    /// Why the framework cannot run the job at all, whatever the layout.
    #[must_use]
    pub fn job_refusal(&self) -> Option<Refusal> {
        let group = self.one_gpu();
        let layout = layout_of(&group, &self.plain_cell(&group), Order::PLAIN, UNSHARDED);
        legal_within(self.target, self.context, &layout, Reach::Job).err()
    }

    /// Nothing split: every replica on one GPU.
    fn one_gpu(&self) -> Group {
        Group {
            tensor_parallel: 1,
            context_parallel: 1,
            pipeline_parallel: 1,
            data_parallel: self.context.gpus,
            expert_parallel: 1,
            expert_tensor_parallel: 1,
            micro_batch_size: 1,
            micro_batches: 1,
        }
    }

    /// Every group that some layout could belong to.
    #[must_use]
    pub fn groups(&self) -> Vec<Group> {
        let possible = |g: &Group| self.degrees_rule(g).is_none() && self.count(g) > 0;
        self.degrees().into_par_iter().filter(possible).collect()
    }

    /// The rules that forbid degrees, each with how many combinations of them it does; most first.
    #[must_use]
    pub fn forbidden_degrees(&self) -> Vec<(&'static str, u64)> {
        let mut count: BTreeMap<&'static str, u64> = BTreeMap::new();
        for rule in self.degrees().iter().filter_map(|g| self.degrees_rule(g)) {
            *count.entry(rule).or_default() += 1;
        }
        let mut rules: Vec<(&'static str, u64)> = count.into_iter().collect();
        rules.sort_by_key(|(rule, count)| (Reverse(*count), *rule));
        rules
    }

    /// How one of the layouts breaks a rule, in words; none where none of those that are looked at does.
    #[must_use]
    pub fn example_of(&self, rule: &str) -> Option<String> {
        /// Layouts after which no further degrees are tried: what many layouts break is found long before.
        const LOOKED_AT: u64 = 1_000_000;
        let rule = COMMON_RULES.iter().chain(self.target.rules()).find(|one| one.name == rule)?;
        let broken = |layout: &Layout| (rule.check)(self.capabilities, self.context, layout).err();
        let (mut seen, mut example) = (0, None);
        for g in &self.degrees() {
            if rule.reach == Reach::Group {
                example = broken(&layout_of(g, &self.plain_cell(g), Order::PLAIN, UNSHARDED));
            } else if self.degrees_rule(g).is_none() {
                seen += self.count(g);
                self.cells(g, |cell| {
                    if example.is_none() {
                        self.orders(g, |order| {
                            let mut layouts =
                                self.shardings(g).iter().map(|&shards| layout_of(g, &cell, order, shards));
                            example = example.or_else(|| layouts.find_map(|layout| broken(&layout)));
                        });
                    }
                });
            }
            if example.is_some() || seen > LOOKED_AT {
                break;
            }
        }
        example.map(|broken| broken.in_words())
    }

    /// All ways to split the job's GPUs over tensor, context and pipeline ranks and replicas that lead to no layout, by
    /// what forbids them.
    #[must_use]
    pub fn splits_lost(&self) -> BTreeMap<SplitLost, u64> {
        let gpus = self.context.gpus;
        // Of every split how far its degrees come.
        let mut come: BTreeMap<(u32, u32, u32), Option<SplitLost>> = BTreeMap::new();
        for group in self.degrees() {
            let split = (group.tensor_parallel, group.context_parallel, group.pipeline_parallel);
            let lost = match self.degrees_rule(&group) {
                Some(_) => Some(SplitLost::Rules),
                None if self.count(&group) > 0 => None,
                None if self.too_many_chunks(&group) => Some(SplitLost::Chunks),
                None => Some(SplitLost::Layouts),
            };
            let known = come.entry(split).or_insert(lost);
            *known = (*known).zip(lost).map(|(known, lost)| known.max(lost));
        }
        let mut count = BTreeMap::new();
        for t in divisors(gpus) {
            for cp in divisors(gpus / t) {
                for p in divisors(gpus / t / cp) {
                    let lost = match (self.replicas(t, cp, p), come.get(&(t, cp, p))) {
                        (Err(lost), _) => Some(lost),
                        (Ok(_), Some(lost)) => *lost,
                        (Ok(d), None) if self.micro_batches(d).next().is_none() => {
                            Some(SplitLost::MicroBatches)
                        }
                        (Ok(_), None) => Some(SplitLost::Experts),
                    };
                    if let Some(lost) = lost {
                        *count.entry(lost).or_default() += 1;
                    }
                }
            }
        }
        count
    }

    /// Numbers of replicas of all splits of the GPUs, whether they divide the batch or not; sorted.
    #[must_use]
    pub fn possible_replicas(&self) -> Vec<u32> {
        let gpus = self.context.gpus;
        let mut found = BTreeSet::new();
        for t in divisors(gpus) {
            for cp in divisors(gpus / t) {
                found.extend(divisors(gpus / t / cp).into_iter().filter_map(
                    |p| match self.replicas(t, cp, p) {
                        Ok(replicas) | Err(SplitLost::Batch { replicas }) => Some(replicas),
                        Err(_) => None,
                    },
                ));
            }
        }
        found.into_iter().collect()
    }

    /// Micro-batches with their accumulations that the user allows so many replicas, which divide the batch.
    fn micro_batches(&self, replicas: u32) -> impl Iterator<Item = (u32, u32)> {
        let r = self.restrictions;
        let per_replica = self.context.global_batch_size / replicas;
        divisors(per_replica).into_iter().map(move |b| (b, per_replica / b)).filter(|&(b, m)| {
            r.micro_batch_size.admits(b, MAX_MICRO_BATCH) && r.gradient_accumulation_steps.admits(m, u32::MAX)
        })
    }

    /// Replicas of a split of the job's GPUs, or why it is none.
    fn replicas(&self, t: u32, cp: u32, p: u32) -> Result<u32, SplitLost> {
        let (r, k, c) = (self.restrictions, self.capabilities, self.context);
        let d = c.gpus / t / cp / p;
        let missing = (t > 1 && !k.tensor_parallel)
            || (cp > 1 && k.context_comms.is_empty())
            || (p > 1 && !k.pipeline_parallel);
        let asked = r.tensor_parallel.admits(t, u32::MAX)
            && r.context_parallel.admits(cp, u32::MAX)
            && r.pipeline_parallel.admits(p, u32::MAX)
            && r.data_parallel.admits(d, u32::MAX);
        match () {
            () if missing => Err(SplitLost::Framework),
            () if !asked => Err(SplitLost::Restrictions),
            () if !r.tensor_parallel.admits(t, MAX_DEGREE) || !r.context_parallel.admits(cp, MAX_DEGREE) => {
                Err(SplitLost::Degree)
            }
            () if p > self.most_chunks(self.mtp_places(p).contains(&true)) => Err(SplitLost::Stages),
            () if c.global_batch_size % d != 0 => Err(SplitLost::Batch { replicas: d }),
            () => Ok(d),
        }
    }

    /// All degrees, micro-batches and accumulations whose products are the job's.
    fn degrees(&self) -> Vec<Group> {
        let (r, c) = (self.restrictions, self.context);
        let gpus = c.gpus;
        let mut groups = Vec::new();
        if !r.contradictions().is_empty() || self.job_refusal().is_some() {
            return groups;
        }
        let expert_degrees: Vec<u32> = match c.moe.first() {
            Some(moe) => divisors(u32::try_from(moe.experts).unwrap_or(1)),
            None => vec![1],
        };
        for t in divisors(gpus) {
            for cp in divisors(gpus / t) {
                for p in divisors(gpus / t / cp) {
                    let Ok(d) = self.replicas(t, cp, p) else { continue };
                    for (b, m) in self.micro_batches(d) {
                        for &e in &expert_degrees {
                            if !r.expert_parallel.admits(e, u32::MAX) {
                                continue;
                            }
                            self.expert_tensor(t, cp * d * t, e, |et| {
                                groups.push(Group {
                                    tensor_parallel: t,
                                    context_parallel: cp,
                                    pipeline_parallel: p,
                                    data_parallel: d,
                                    expert_parallel: e,
                                    expert_tensor_parallel: et,
                                    micro_batch_size: b,
                                    micro_batches: m,
                                });
                            });
                        }
                    }
                }
            }
        }
        groups
    }

    fn expert_tensor(&self, t: u32, block: u32, e: u32, mut each: impl FnMut(u32)) {
        if !self.context.has_experts() {
            return each(1);
        }
        if block % e != 0 {
            return;
        }
        let options = match self.capabilities.expert_tensor {
            ExpertTensor::One => vec![1],
            ExpertTensor::Tensor => vec![t],
            // Beyond TP an expert would be cut finer than attention: never seen, and never useful.
            ExpertTensor::Free => divisors(t),
        };
        for et in options {
            if (block / e) % et == 0 && self.restrictions.expert_tensor_parallel.admits(et, MAX_DEGREE) {
                each(et);
            }
        }
    }

    /// The rule that a layout breaks of those that look at so much of it.
    #[must_use]
    pub fn broken(&self, layout: &Layout, reach: Reach) -> Option<&'static str> {
        legal_within(self.target, self.context, layout, reach).err().map(|refusal| refusal.rule)
    }

    /// The rule that forbids the degrees of a group, if one does.
    fn degrees_rule(&self, group: &Group) -> Option<&'static str> {
        let cell = self.plain_cell(group);
        self.broken(&layout_of(group, &cell, Order::PLAIN, UNSHARDED), Reach::Group)
    }

    /// A cell of a group with every flag at its plainest.
    #[must_use]
    pub fn plain_cell(&self, g: &Group) -> CellKey {
        let k = self.capabilities;
        CellKey {
            tensor_parallel: g.tensor_parallel,
            context_parallel: g.context_parallel,
            expert_parallel: g.expert_parallel,
            expert_tensor_parallel: g.expert_tensor_parallel,
            micro_batch_size: g.micro_batch_size,
            sequence_parallel: g.tensor_parallel > 1 && k.sequence_parallel != SequenceParallel::Never,
            context_comm: k.context_comms.first().copied().unwrap_or(ContextComm::Ring),
            dispatcher: if self.context.has_experts() { k.dispatchers.first().copied() } else { None },
            tensor_overlap: false,
            expert_overlap: false,
            shared_overlap: false,
            cuda_graphs: CudaGraphs::None,
            offload: Offload::NONE,
        }
    }

    /// The flags that cells of a group may have, before the framework's rules.
    #[must_use]
    pub fn flags(&self, g: &Group) -> &Flags {
        &self.flags[degrees_above_one(g)]
    }

    /// The same without graphs that no layout of the job may have.
    #[must_use]
    pub fn possible_flags(&self, g: &Group) -> &Flags {
        &self.possible_flags[degrees_above_one(g)]
    }

    /// The flags of cells whose tensor, context and expert parallelism are above one, or are not.
    fn flags_where(&self, tensor: bool, context: bool, expert: bool) -> Flags {
        let k = self.capabilities;
        let experts = self.context.has_experts();
        let sequence: &[bool] = match (tensor, k.sequence_parallel) {
            (false, _) | (_, SequenceParallel::Never) => &[false],
            (true, SequenceParallel::Always) => &[true],
            (true, SequenceParallel::Optional) => &[true, false],
        };
        let overlaps = |on: bool| choices(k.tensor_overlap && tensor && on);
        let r = self.restrictions;
        let tensor_flags = sequence
            .iter()
            .flat_map(|&on| overlaps(on).iter().map(move |&overlap| (on, overlap)))
            .filter(|(on, overlap)| {
                admits(&r.sequence_parallel, tensor, on) && admits(&r.tensor_overlap, tensor, overlap)
            });
        let dispatchers: Vec<Option<Dispatcher>> = if !experts {
            vec![None]
        } else if !expert && k.dispatchers.len() > 1 {
            // Nothing is sent: one name stands for all.
            vec![Some(Dispatcher::AllToAll)]
        } else {
            let all = if r.dispatcher.is_some() { k.dispatchers } else { k.default_dispatchers };
            // The two libraries take as long as each other: on Blackwell DeepEP runs nowhere that HybridEP does
            // not, and some frameworks refuse it there. It is tried if it is asked for.
            let needless = |d: Dispatcher| {
                d == Dispatcher::DeepEp
                    && r.dispatcher.is_none()
                    && all.contains(&Dispatcher::HybridEp)
                    && self.context.hardware.architecture == Architecture::Blackwell
            };
            let admitted = |d: &&Dispatcher| admits(&r.dispatcher, expert, *d) && !needless(**d);
            all.iter().filter(admitted).copied().map(Some).collect()
        };
        // A router exists only beside experts.
        let graph = |graph: &CudaGraphs| {
            (experts || *graph != CudaGraphs::AttentionRouter) && admits(&r.cuda_graphs, true, graph)
        };
        let exchange = experts && expert;
        let expert_overlap = choices(k.expert_overlap && exchange).iter().copied();
        let comm = |comm: &ContextComm| admits(&r.context_comm, true, comm);
        Flags {
            tensor: tensor_flags.collect(),
            context_comms: if context {
                k.context_comms.iter().copied().filter(comm).collect()
            } else {
                vec![ContextComm::Ring]
            },
            dispatchers,
            expert_overlap: expert_overlap.filter(|on| admits(&r.expert_overlap, exchange, on)).collect(),
            shared_overlap: k.shared_overlap
                && expert
                && self.context.has_shared_experts()
                && admits(&r.shared_overlap, true, &true),
            cuda_graphs: k.cuda_graphs.iter().copied().filter(graph).collect(),
        }
    }

    /// Every cell of a group.
    pub fn cells(&self, g: &Group, mut each: impl FnMut(CellKey)) {
        let plain = self.plain_cell(g);
        let flags = self.flags(g);
        let offloads = match &self.restrictions.offload {
            Some(offloads) => offloads.as_slice(),
            None => &[Offload::NONE],
        };
        for &(sequence_parallel, tensor_overlap) in &flags.tensor {
            for &context_comm in &flags.context_comms {
                for &dispatcher in &flags.dispatchers {
                    for &expert_overlap in &flags.expert_overlap {
                        for &cuda_graphs in &flags.cuda_graphs {
                            for &offload in offloads {
                                each(CellKey {
                                    sequence_parallel,
                                    tensor_overlap,
                                    context_comm,
                                    dispatcher,
                                    expert_overlap,
                                    // It never costs time: a choice that is made, not searched.
                                    shared_overlap: flags.shared_overlap
                                        && !expert_overlap
                                        && dispatcher != Some(Dispatcher::AllGather),
                                    cuda_graphs,
                                    offload,
                                    ..plain
                                });
                            }
                        }
                    }
                }
            }
        }
    }

    /// The rule that forbids every layout of a cell, if one does.
    #[must_use]
    pub fn cell_rule(&self, g: &Group, cell: &CellKey) -> Option<&'static str> {
        self.broken(&layout_of(g, cell, Order::PLAIN, UNSHARDED), Reach::Cell)
    }

    /// A cell that comes before another, costs exactly as much and is legal with all that this one is: the two
    /// libraries that dispatch tokens are predicted alike.
    #[must_use]
    pub fn twin(&self, g: &Group, cell: &CellKey) -> Option<CellKey> {
        let first = Some(Dispatcher::DeepEp);
        if cell.dispatcher != Some(Dispatcher::HybridEp) || !self.flags(g).dispatchers.contains(&first) {
            return None;
        }
        Some(CellKey { dispatcher: first, ..*cell }).filter(|twin| self.cell_rule(g, twin).is_none())
    }

    /// Whether a rule forbids a kind of CUDA graph in every layout of the job. Such a rule asks for nothing
    /// else, so that it forbids it on one GPU, where all else is legal.
    fn forbids_graphs(&self, cuda_graphs: CudaGraphs) -> bool {
        let group = self.one_gpu();
        let plain = self.plain_cell(&group);
        self.cell_rule(&group, &CellKey { cuda_graphs: CudaGraphs::None, ..plain }).is_none()
            && self.cell_rule(&group, &CellKey { cuda_graphs, ..plain }).is_some()
    }

    /// The rule by which the framework does not run passes in an order, with or without overlap of the
    /// experts' exchange, whatever dispatches their tokens.
    #[must_use]
    pub fn order_rule(&self, g: &Group, order: Order, expert_overlap: bool) -> Option<&'static str> {
        let plain = self.plain_cell(g);
        let mut rules = self.flags(g).dispatchers.iter().map(|&dispatcher| {
            let cell = CellKey { dispatcher, expert_overlap, ..plain };
            let layout = layout_of(g, &cell, order, UNSHARDED);
            self.broken(&layout, Reach::Order).or_else(|| self.broken(&layout, Reach::Exchange))
        });
        let first = rules.next()??;
        rules.all(|rule| rule.is_some()).then_some(first)
    }

    /// Every order of a group.
    pub fn orders(&self, g: &Group, mut each: impl FnMut(Order)) {
        for schedule in self.schedules(g) {
            for &mtp_standalone in self.mtp_places(g.pipeline_parallel) {
                let order = |virtual_stages| Order { schedule, virtual_stages, mtp_standalone };
                self.virtual_stages(g, order(1), |v| each(order(v)));
            }
        }
    }

    /// Whether multi-token prediction is, or may be, standalone on so many stages.
    #[must_use]
    pub fn mtp_places(&self, stages: u32) -> &'static [bool] {
        let layout = Layout { pipeline_parallel: stages, mtp_standalone: true, ..Layout::ONE };
        let can = mtp_stands_alone(self.capabilities, self.context, &layout).is_ok();
        let admits = |on: bool| admits(&self.restrictions.mtp_standalone, true, &on);
        match (admits(false), can && admits(true)) {
            (true, true) => &[false, true],
            (true, false) => &[false],
            (false, true) => &[true],
            (false, false) => &[],
        }
    }

    /// Every sharding of a group: ZeRO stage, shard group, overlap with computation.
    #[must_use]
    pub fn shardings(&self, g: &Group) -> &[Shards] {
        let ranks = g.data_parallel * g.context_parallel;
        let known = self.shardings.binary_search_by_key(&ranks, |(ranks, _)| *ranks);
        known.map_or(&[], |at| self.shardings[at].1.as_slice())
    }

    fn shardings_of(&self, ranks: u32) -> Vec<Shards> {
        let mut shardings = Vec::new();
        for &zero in self.zero_stages(ranks) {
            if self.admits_stage(zero, ranks) {
                let groups = self.shard_groups(zero, ranks).into_iter();
                for shard in groups.filter(|&group| self.admits_group(zero, group, ranks)) {
                    shardings.extend(self.overlaps(zero, ranks).map(|on| (zero, shard, on)));
                }
            }
        }
        shardings
    }

    /// The rule that forbids to shard the states of a group in a way, if one does.
    #[must_use]
    pub fn sharding_rule(&self, g: &Group, offload: Offload, shards: Shards) -> Option<&'static str> {
        let cell = CellKey { offload, ..self.plain_cell(g) };
        let layout = layout_of(g, &cell, Order::PLAIN, shards);
        if shards_nothing(&layout) {
            return Some(SHARDS_NOTHING);
        }
        self.broken(&layout, Reach::Sharding)
    }

    /// The rule that forbids a layout whatever its recomputation, if one does.
    #[must_use]
    pub fn rule_against(&self, layout: &Layout) -> Option<&'static str> {
        if shards_nothing(layout) {
            return Some(SHARDS_NOTHING);
        }
        legal(self.target, self.context, layout).err().map(|refusal| refusal.rule)
    }

    /// Every layout of a cell, or the rule that forbids it.
    pub fn layouts(&self, g: &Group, cell: &CellKey, mut each: impl FnMut(Result<Layout, &'static str>)) {
        let shardings = self.shardings(g);
        self.orders(g, |order| {
            for &shards in shardings {
                let layout = layout_of(g, cell, order, shards);
                each(self.rule_against(&layout).map_or(Ok(layout), Err));
            }
        });
    }

    /// Number of layouts of a group before the framework's rules, without listing them.
    #[must_use]
    pub fn count(&self, g: &Group) -> u64 {
        let flags = self.flags(g);
        let offloads = self.restrictions.offload.as_ref().map_or(1, Vec::len);
        let cells = flags.tensor.len()
            * flags.context_comms.len()
            * flags.dispatchers.len()
            * flags.expert_overlap.len()
            * flags.cuda_graphs.len()
            * offloads;
        cells as u64 * self.layouts_per_cell(g)
    }

    /// Number of layouts of each cell of a group before the framework's rules.
    #[must_use]
    pub fn layouts_per_cell(&self, g: &Group) -> u64 {
        let mut orders = 0;
        self.orders(g, |_| orders += 1);
        orders * self.shardings(g).len() as u64
    }

    fn zero_stages(&self, ranks: u32) -> &'static [u8] {
        let axis = &self.restrictions.zero_stage;
        // One rank shards nothing, whatever the framework does where there are several; what lets states leave it is open.
        if axis.only.is_some() || axis.max.is_some() || ranks == 1 {
            self.capabilities.zero_stages
        } else {
            self.capabilities.default_zero_stages
        }
    }

    fn admits_stage(&self, zero: u8, ranks: u32) -> bool {
        // Only what may be sharded may be offloaded, be it over one rank: see [`shards_nothing`].
        let offloads = |offloads: &Vec<Offload>| offloads.iter().any(|offload| offload.moves_states());
        self.restrictions.zero_stage.admits(u32::from(zero), 3)
            && (ranks > 1 || zero == 0 || self.restrictions.offload.as_ref().is_some_and(offloads))
    }

    fn admits_group(&self, zero: u8, group: u32, ranks: u32) -> bool {
        let only = &self.restrictions.shard_group;
        // Where nothing is sharded, every rank is a group of its own, unless that was asked for by its stage.
        let asked = zero == 0 && self.restrictions.zero_stage.only.is_some();
        asked || only.admits(group, ranks) || group == ranks && only.admits(0, ranks)
    }

    fn shard_groups(&self, zero: u8, ranks: u32) -> Vec<u32> {
        match (zero, self.capabilities.shard_groups) {
            (0, _) => vec![1],
            (_, ShardGroups::Whole) | (1 | 2, ShardGroups::DivisorsAtStage3) => vec![ranks],
            _ if ranks == 1 => vec![1],
            // A shard group of one is stage 0 by another name.
            _ => divisors(ranks).into_iter().filter(|&s| s > 1).collect(),
        }
    }

    /// Data-parallel overlap: which choices there are. At stage 3 what moves during the passes overlaps with them, and
    /// nothing is gained where the rest does not: it is off only where the user says so.
    fn overlaps(&self, zero: u8, ranks: u32) -> impl Iterator<Item = bool> + '_ {
        let only = &self.restrictions.data_overlap;
        let all = choices(self.capabilities.data_overlap && ranks > 1).iter().copied();
        let all = all.take(if zero == 3 && only.is_none() { 1 } else { 2 });
        all.filter(move |on| admits(only, ranks > 1, on))
    }

    fn schedules(&self, g: &Group) -> impl Iterator<Item = Schedule> + '_ {
        let single = g.pipeline_parallel == 1;
        self.capabilities.schedules.iter().copied().filter(move |schedule| {
            self.restrictions.schedule.as_ref().is_none_or(|only| only.contains(schedule))
                // Without a pipeline all schedules are one.
                && (!single || *schedule == Schedule::OneFOneB)
        })
    }

    /// Every chunk holds a layer, or an end alone where the framework has that; modules that predict further tokens are at
    /// the last end or an end by themselves.
    fn most_chunks(&self, mtp_standalone: bool) -> u32 {
        let alone = 2 + u32::from(mtp_standalone);
        self.context.layers + if self.capabilities.empty_stages { alone } else { 0 }
    }

    fn most_virtual_stages(&self, g: &Group, mtp_standalone: bool) -> u32 {
        self.most_chunks(mtp_standalone) / g.pipeline_parallel
    }

    fn too_many_chunks(&self, g: &Group) -> bool {
        let standalone = self.mtp_places(g.pipeline_parallel).contains(&true);
        let most = self.most_virtual_stages(g, standalone).max(1);
        let only = self.restrictions.virtual_stages.only.as_ref();
        only.is_some_and(|only| only.iter().all(|&v| v > most))
    }

    fn virtual_stages(&self, g: &Group, order: Order, mut each: impl FnMut(u32)) {
        let admits = |v| self.restrictions.virtual_stages.admits(v, u32::MAX);
        let most = self.most_virtual_stages(g, order.mtp_standalone);
        match order.schedule {
            Schedule::Interleaved => {
                if g.pipeline_parallel < 2 || interleave_group(g.pipeline_parallel, g.micro_batches).is_none()
                {
                    return;
                }
                (2..=most).filter(|&v| admits(v)).for_each(each);
            }
            Schedule::ZeroBubbleV | Schedule::DualPipe if !admits(2) || most < 2 => {}
            Schedule::ZeroBubbleV | Schedule::DualPipe => each(2),
            _ if admits(1) && most > 0 => each(1),
            _ => {}
        }
    }
}

/// Which flags have an effect in a group goes by this.
fn degrees_above_one(g: &Group) -> usize {
    let above =
        [g.tensor_parallel, g.context_parallel, g.expert_parallel].map(|degree| usize::from(degree > 1));
    above[0] | above[1] << 1 | above[2] << 2
}

/// Both choices of a flag, the better one first, or only "off" where the flag does not exist.
fn choices(exists: bool) -> &'static [bool] {
    if exists { &[true, false] } else { &[false] }
}

/// The layout of a cell with everything that a cell leaves open.
#[must_use]
pub fn layout_of(
    g: &Group,
    cell: &CellKey,
    Order { schedule, virtual_stages, mtp_standalone }: Order,
    (zero_stage, shard_group, data_overlap): Shards,
) -> Layout {
    Layout {
        tensor_parallel: g.tensor_parallel,
        pipeline_parallel: g.pipeline_parallel,
        virtual_stages,
        context_parallel: g.context_parallel,
        expert_parallel: g.expert_parallel,
        expert_tensor_parallel: g.expert_tensor_parallel,
        data_parallel: g.data_parallel,
        sequence_parallel: cell.sequence_parallel,
        micro_batch_size: g.micro_batch_size,
        gradient_accumulation_steps: g.micro_batches,
        zero_stage,
        shard_group,
        schedule,
        context_comm: cell.context_comm,
        dispatcher: cell.dispatcher,
        tensor_overlap: cell.tensor_overlap,
        data_overlap,
        expert_overlap: cell.expert_overlap,
        shared_overlap: cell.shared_overlap,
        mtp_standalone,
        cuda_graphs: cell.cuda_graphs,
        offload: cell.offload,
    }
}

/// The rule that leaves out layouts of which [`shards_nothing`] holds.
const SHARDS_NOTHING: &str = "one-rank";

/// Whether the states of a single rank are called sharded: no plan needs that, but where it lets them leave the GPU.
fn shards_nothing(layout: &Layout) -> bool {
    let ranks = layout.data_parallel * layout.context_parallel;
    ranks == 1 && layout.zero_stage > 0 && !layout.offload.moves_states()
}

/// Offload choices for `--fix offload=...` and for remedies.
pub const OFFLOADS: [(&str, Offload); 8] = [
    ("none", Offload::NONE),
    ("optimizer", Offload { optimizer: Place::Cpu, ..Offload::NONE }),
    ("optimizer-nvme", Offload { optimizer: Place::Nvme, ..Offload::NONE }),
    ("parameters", Offload { optimizer: Place::Cpu, parameters: Place::Cpu, activations: false }),
    (
        "parameters+optimizer-nvme",
        Offload { optimizer: Place::Nvme, parameters: Place::Cpu, activations: false },
    ),
    ("parameters-nvme", Offload { optimizer: Place::Nvme, parameters: Place::Nvme, activations: false }),
    ("activations", Offload { activations: true, ..Offload::NONE }),
    ("optimizer+activations", Offload { optimizer: Place::Cpu, parameters: Place::Gpu, activations: true }),
];
