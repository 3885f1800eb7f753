//! Which layers go on which pipeline stage, and what each stage recomputes: one problem type, one
//! solution type, and independent solvers.
//!
//! The problem is plain integers and knows nothing of GPUs, models or frameworks. Layers come in model
//! order as runs of identical neighbours; they are cut into `pipeline_parallel * virtual_stages` chunks;
//! chunk `k` lives on rank [`Pipeline::rank_of_chunk`]`[k]`. What a schedule does to time and memory is
//! data as well ([`Pipeline`]).
//!
//! * [`dp`]: what the search calls: exact for one chunk per rank, in microseconds; for several chunks
//!   a short list of good splits.
//! * `milp`: the integer programme, solved by HiGHS: an independent check, and bounds with proof.
//! * `chains`: what every split takes at least, with proof, several chunks per rank or with traffic at both ends of
//!   the step (`ends`).
//! * `ranks`: the same of whole layers, one chunk per rank; `stretches`: several, by what chunks may hold.
//! * `descent`: a fast split found by simulation; `fitting`: one that has the memory, several chunks per rank; `walk`:
//!   every split that no chain rules out.
//! * [`evaluate`]: what a given assignment costs; both solvers are judged by it.
//! * [`layout`]: the result in the words of launch flags.

#[cfg(feature = "milp")]
mod caps;
#[cfg(feature = "milp")]
pub mod chains;
mod chunked;
mod descent;
pub mod dp;
#[cfg(feature = "milp")]
mod ends;
mod fitting;
pub mod layout;
mod loads;
#[cfg(feature = "milp")]
pub mod milp;
mod modes;
pub mod pipeline;
#[cfg(feature = "milp")]
mod ranks;
mod reach;
pub mod relax;
mod rounding;
mod splits;
#[cfg(feature = "milp")]
mod stretches;
mod tables;
mod walk;

use crate::units::{Bytes, Picos};

pub use crate::layers::Run;
pub(crate) use chunked::KnownSplits;
pub(crate) use descent::{Move, shortening, simulated_passes};
pub use dp::{Balancer, Outcome};
pub use modes::Modes;
pub use pipeline::{Pipeline, RankOrder, Weights, in_flight, steady};
pub use splits::{Makespan, Splits, Spread};

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

/// Most kinds of layers that a problem may hold.
pub const MAX_KINDS: usize = 16;

/// A value for every kind of layers; few models have more than are kept without allocating.
pub type PerKind<T> = SmallVec<[T; 4]>;

/// What one layer of a kind costs on one rank, whatever it recomputes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kind {
    /// Forward pass of one micro-batch.
    pub forward: Picos,
    /// Backward pass of one micro-batch without recomputation.
    pub backward: Picos,
    /// The part of it that computes weight gradients, which need not be waited for.
    pub weight: Picos,
    /// Bytes that the layer holds for the whole step: weights, gradients, optimizer states.
    pub held: Bytes,
    /// Bytes that the largest layer of a rank needs once (a gathered unit of sharded weights).
    pub gathered: Bytes,
    /// Groups of [`Problem::shared`] that the layer touches, as bits.
    pub touches: u64,
}

/// One way to recompute: by kind, as in [`Problem::kinds`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mode {
    /// Backward time on top of [`Kind::backward`] per micro-batch.
    pub extra: PerKind<Picos>,
    /// Bytes kept per micro-batch in flight (of a group of [`Mode::group`] layers).
    pub kept: PerKind<Bytes>,
    /// Bytes that the largest layer of a rank needs once while it runs its backward pass.
    pub transient: PerKind<Bytes>,
    /// What it does to [`Fixed::recomputes`].
    pub beside: LayerMode,
    /// Consecutive layers of a chunk that keep one input together: 1, or `n` of "full, uniform, n".
    /// Beyond 1, `kept` is the same for all kinds.
    pub group: u32,
    /// Whole chunks may use it; otherwise it is there for [`Block`], or is one of [`Problem::hopeless`].
    pub offered: bool,
}

/// What a way to recompute does to one layer, or adds to a chunk's [`Fixed`] costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LayerMode {
    /// Extra backward time per micro-batch.
    pub extra: Picos,
    /// Bytes kept per micro-batch in flight, of one group of layers.
    pub kept: Bytes,
    /// Bytes needed once during the backward pass: the rank pays the largest of all of them.
    pub transient: Bytes,
}

impl LayerMode {
    /// The least of both.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        Self {
            extra: self.extra.min(other.extra),
            kept: self.kept.min(other.kept),
            transient: self.transient.min(other.transient),
        }
    }

    /// Whether it is cheaper than another in nothing.
    #[must_use]
    pub fn no_better(&self, other: &Self) -> bool {
        self.extra >= other.extra && self.kept >= other.kept && self.transient >= other.transient
    }
}

/// Whole-layer recomputation of the first layers of a chunk; modules beside layers do as the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Mode of the recomputed layers, an index into [`Problem::modes`].
    pub full: u16,
    /// Mode of the other layers.
    pub rest: u16,
    /// Fewest and most recomputed layers of a chunk to try, at least 1.
    pub counts: (u32, u32),
    /// Whether it is not offered, as the modes of [`Problem::hopeless`] are not.
    pub hopeless: bool,
}

/// Whether stages may differ in what they recompute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freedom {
    /// One mode, or one count of recomputed layers per chunk, for the whole model (stock Megatron).
    Global,
    /// Every rank its own.
    PerStage,
}

/// What a chunk costs beside its layers: embedding, head, loss, multi-token prediction, host time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fixed {
    /// Forward pass of one micro-batch.
    pub forward: Picos,
    /// Backward pass of one micro-batch.
    pub backward: Picos,
    /// As [`Kind::weight`].
    pub weight: Picos,
    /// Bytes held for the whole step.
    pub held: Bytes,
    /// Bytes kept per micro-batch in flight.
    pub kept: Bytes,
    /// Bytes needed once, at the peak (logits); the rank pays the largest of these and of its layers'.
    pub transient: Bytes,
    /// As [`Kind::gathered`].
    pub gathered: Bytes,
    /// As [`Kind::touches`].
    pub touches: u64,
    /// Modules beside layers recompute as the layers do: [`Mode::beside`] comes on top.
    pub recomputes: bool,
    /// The chunk holds no decoder layers (a head, or multi-token prediction, alone on a stage).
    pub closed: bool,
    /// The chunk may hold none: its own work is enough for a stage.
    pub optional: bool,
}

/// Time before the first or after the last pass of a rank: its data-parallel traffic as far as it stays exposed, as
/// the largest of lines over the layers of that rank (and zero).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tail {
    /// The lines.
    pub lines: Vec<Line>,
}

/// `constant + sum over layers of per_layer[kind]`, in picoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Line {
    /// Whatever the layers.
    pub constant: i64,
    /// By kind.
    pub per_layer: Vec<i64>,
}

impl Tail {
    /// The tail of a rank with so many layers of each kind.
    #[must_use]
    pub fn at(&self, counts: &[u32]) -> u64 {
        let line = |line: &Line| {
            let layers = line.per_layer.iter().zip(counts).map(|(&each, &n)| each * i64::from(n));
            u64::try_from(line.constant + layers.sum::<i64>()).unwrap_or(0)
        };
        self.lines.iter().map(line).max().unwrap_or(0)
    }

    /// One that is no more than both of a rank together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        if self.lines.is_empty() || other.lines.is_empty() {
            return Self { lines: [self.lines.as_slice(), &other.lines].concat() };
        }
        let sum = |a: &Line, b: &Line| Line {
            constant: a.constant + b.constant,
            per_layer: a.per_layer.iter().zip(&b.per_layer).map(|(a, b)| a + b).collect(),
        };
        let sum = &sum;
        let lines = self.lines.iter().flat_map(|a| other.lines.iter().map(move |b| sum(a, b)));
        Self { lines: lines.collect() }
    }
}

/// Data-parallel traffic at both ends of a step that the passes of its own rank do not hide.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Traffic {
    /// By rank: weights gathered before its first pass, counted from the beginning of the step.
    pub gathers: Vec<Tail>,
    /// By rank: gradients reduced after its last pass.
    pub reduces: Vec<Tail>,
}

impl Traffic {
    /// Whether it is of so many ranks and kinds of layers.
    #[must_use]
    pub fn is_of(&self, ranks: usize, kinds: usize) -> bool {
        let of = |tails: &[Tail]| {
            let mut lines = tails.iter().flat_map(|tail| &tail.lines);
            tails.len() == ranks && lines.all(|line| line.per_layer.len() == kinds)
        };
        of(&self.gathers) && of(&self.reduces)
    }
}

/// What is to be balanced.
#[derive(Debug, Clone)]
pub struct Problem {
    /// Ranks, chunks and the order of passes.
    pub pipeline: Arc<Pipeline>,
    /// Kinds of layers, at most [`MAX_KINDS`].
    pub kinds: Vec<Kind>,
    /// The layers in model order.
    pub runs: Arc<[Run]>,
    /// Ways to recompute, at least one.
    pub modes: Modes,
    /// Recomputation of the first layers of every chunk, where the framework has it.
    pub block: Option<Block>,
    /// Modes that are not offered, because nothing of interest uses them, and yet say whether anything fits:
    /// where nothing does, ranks with several chunks are relieved.
    pub hopeless: Range<u16>,
    /// Whether ranks may differ in recomputation.
    pub freedom: Freedom,
    /// What chunks cost beside their layers; one entry per chunk, in model order.
    pub fixed: Vec<Fixed>,
    /// Bytes of every rank whatever it holds.
    pub rank_bytes: Bytes,
    /// Bytes of groups that a rank pays once if anything on it touches them (at most 64 groups).
    pub shared: Vec<Bytes>,
    /// Bytes that a rank may use.
    pub limit: Bytes,
    /// Exposed latency between the end of a pass and the start of the next on a neighbouring rank.
    pub hop: Picos,
    /// Fewest decoder layers of a chunk that is neither [`Fixed::closed`] nor [`Fixed::optional`].
    pub min_layers: u32,
    /// Data-parallel tail of the first rank, where it matters.
    pub tail: Option<Tail>,
}

/// What layers and ends of a [`Problem`] cost: all that those of one line of layouts differ in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Costs {
    kinds: Vec<Kind>,
    fixed: Vec<Fixed>,
}

/// What a chunk recomputes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Choice {
    /// All its layers in one mode, an index into [`Problem::modes`].
    Mode(u16),
    /// Its first `n` layers wholly ([`Block`]).
    Block(u32),
}

/// Where the layers are and what they recompute; one entry per chunk, in model order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assignment {
    /// Decoder layers.
    pub layers: Vec<u32>,
    /// Recomputation.
    pub recompute: Vec<Choice>,
}

impl Assignment {
    /// So many layers by chunk, all of which recompute alike.
    #[must_use]
    pub fn uniform(layers: &[u32], recompute: Choice) -> Self {
        Self { layers: layers.to_vec(), recompute: vec![recompute; layers.len()] }
    }

    /// The same after a move of layers.
    pub(crate) fn after(&self, pairs: &Move) -> Self {
        let mut moved = self.clone();
        descent::make(pairs, &mut moved.layers);
        moved
    }
}

impl Choice {
    /// The way of which it is one.
    #[must_use]
    pub fn way(self) -> Way {
        match self {
            Self::Mode(mode) => Way::Mode(mode),
            Self::Block(_) => Way::Block,
        }
    }
}

/// What an assignment costs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Evaluation {
    /// Forward pass of one micro-batch, per chunk.
    pub forward: Vec<Picos>,
    /// Backward pass of one micro-batch with recomputation, per chunk.
    pub backward: Vec<Picos>,
    /// Peak bytes per rank.
    pub memory: Vec<Bytes>,
    /// Exposed data-parallel tail.
    pub tail: Picos,
    /// Lower bound on the makespan of the schedule from the chains of dependent passes (the larger of
    /// the chain and the busy bound), tail included.
    pub bound: Picos,
    /// What solvers minimise: for one chunk per rank the chain bound without the busy bound, for
    /// several [`Evaluation::bound`] itself.
    pub chain: Picos,
    /// The closed form: `(m-1) max t + sum t`, or `m max t + (p-1)/(p v) sum t`, tail included.
    pub closed: Picos,
}

/// What solvers minimise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Objective {
    /// [`Evaluation::chain`].
    Chain,
    /// [`Evaluation::closed`].
    Closed,
}

/// How a whole model may recompute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// All layers in one mode.
    Mode(u16),
    /// As many whole layers of every chunk as it takes.
    Block,
    /// Every rank as it needs.
    PerRank,
}

/// Why an assignment is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The assignment's lists do not have one entry per chunk.
    #[error("{found} chunks, but the pipeline has {expected}")]
    Chunks {
        /// Entries given.
        found: usize,
        /// Chunks of the pipeline.
        expected: usize,
    },
    /// Layers are lost or invented.
    #[error("{found} layers placed, but the model has {expected}")]
    Layers {
        /// Layers placed.
        found: u64,
        /// Layers of the model.
        expected: u64,
    },
    /// A chunk has fewer layers than allowed, or any where it must have none.
    #[error("chunk {chunk} holds {layers} layers")]
    ChunkSize {
        /// Which chunk.
        chunk: usize,
        /// Its layers.
        layers: u32,
    },
    /// A recompute choice that the problem does not offer.
    #[error("chunk {chunk} recomputes in a way that is not offered")]
    Choice {
        /// Which chunk.
        chunk: usize,
    },
    /// Ranks (or, under [`Freedom::Global`], the model) mix recompute choices.
    #[error("chunk {chunk} recomputes otherwise than the chunks it must agree with")]
    Mixed {
        /// Which chunk.
        chunk: usize,
    },
    /// A rank needs more memory than it has.
    #[error("rank {rank} needs {need} but has {limit}")]
    Memory {
        /// Which rank.
        rank: usize,
        /// Peak bytes.
        need: Bytes,
        /// Bytes it may use.
        limit: Bytes,
    },
}

/// A problem that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProblemError {
    /// A table has the wrong length or an index points nowhere.
    #[error("malformed balancing problem: {0}")]
    Malformed(&'static str),
    /// Times are so long that sums of picoseconds could overflow.
    #[error("a step of this problem exceeds two weeks; times cannot be summed in picoseconds")]
    TooLong,
}

impl Problem {
    /// Number of decoder layers.
    #[must_use]
    pub fn layer_count(&self) -> u32 {
        self.runs.iter().map(|run| run.count).sum()
    }

    /// The modes that a way to recompute consists of.
    #[must_use]
    pub fn modes_of(&self, way: Way) -> Vec<usize> {
        let block = self.block.map(|block| [usize::from(block.rest), usize::from(block.full)]);
        let offered = |at: &usize| self.modes[*at].offered;
        match way {
            Way::Mode(mode) => vec![usize::from(mode)],
            Way::Block => block.into_iter().flatten().collect(),
            Way::PerRank => {
                (0..self.modes.len()).filter(offered).chain(block.into_iter().flatten()).collect()
            }
        }
    }

    /// What a way to recompute adds at least to the fixed costs of a chunk with modules that do as the layers.
    #[must_use]
    pub fn beside(&self, way: Way) -> LayerMode {
        let of = |mode: usize| self.modes[mode].beside;
        match (way, self.block) {
            (Way::Mode(mode), _) => of(usize::from(mode)),
            (Way::Block, Some(block)) => of(usize::from(block.rest)),
            _ => self.modes_of(way).into_iter().map(of).reduce(LayerMode::least).unwrap_or_default(),
        }
    }

    /// What chunks cost beside their layers, at least, where the model recomputes in one of some ways.
    #[must_use]
    pub fn fixed_in(&self, ways: &[Way]) -> Cow<'_, [Fixed]> {
        let with = |fixed: &Fixed, beside: LayerMode| Fixed {
            backward: fixed.backward + beside.extra,
            kept: fixed.kept + beside.kept,
            transient: fixed.transient.max(beside.transient),
            recomputes: false,
            ..*fixed
        };
        match ways.iter().map(|&way| self.beside(way)).reduce(LayerMode::least) {
            Some(beside) if self.recomputes_beside() => {
                let all = self.fixed.iter();
                all.map(|fixed| if fixed.recomputes { with(fixed, beside) } else { *fixed }).collect()
            }
            _ => Cow::Borrowed(&self.fixed),
        }
    }

    /// Whether modules beside layers recompute as these do, somewhere.
    #[must_use]
    pub fn recomputes_beside(&self) -> bool {
        // They stand near the end.
        self.fixed.iter().rev().any(|fixed| fixed.recomputes)
    }

    /// Number of chunks.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.pipeline.rank_of_chunk.len()
    }

    /// What its layers and ends cost.
    #[must_use]
    pub fn costs(&self) -> Costs {
        Costs { kinds: self.kinds.clone(), fixed: self.fixed.clone() }
    }

    /// Whether these are what its layers and ends cost.
    #[must_use]
    pub fn costs_are(&self, costs: &Costs) -> bool {
        self.kinds == costs.kinds && self.fixed == costs.fixed
    }

    /// Whether its layers and ends differ from such in nothing but bytes that are held, and hold no fewer of them anywhere:
    /// with all else the same, what does not fit there does not fit here.
    #[must_use]
    pub fn holds_no_less(&self, costs: &Costs) -> bool {
        let kind = |(own, other): (&Kind, &Kind)| {
            let more = own.held >= other.held && own.gathered >= other.gathered;
            more && Kind { held: other.held, gathered: other.gathered, ..*own } == *other
        };
        let end = |(own, other): (&Fixed, &Fixed)| {
            let more = own.held >= other.held && own.gathered >= other.gathered;
            more && Fixed { held: other.held, gathered: other.gathered, ..*own } == *other
        };
        let counts = (self.kinds.len(), self.fixed.len());
        counts == (costs.kinds.len(), costs.fixed.len())
            && self.kinds.iter().zip(&costs.kinds).all(kind)
            && self.fixed.iter().zip(&costs.fixed).all(end)
    }

    /// Fewest layers that a chunk may hold.
    #[must_use]
    pub fn least(&self, chunk: usize) -> u32 {
        let fixed = &self.fixed[chunk];
        if fixed.closed || fixed.optional { 0 } else { self.min_layers }
    }

    /// Which chunks are bare of ends, and of what is paid once per rank.
    pub fn bare(&self) -> impl Fn(usize) -> bool + '_ {
        let endless =
            |fixed: &&Fixed| fixed.held == Bytes::ZERO && fixed.kept == Bytes::ZERO && !fixed.recomputes;
        let least = self.fixed.iter().filter(endless).map(|fixed| fixed.forward).min();
        move |chunk| {
            let fixed = &self.fixed[chunk];
            endless(&fixed) && Some(fixed.forward) == least
        }
    }

    /// Checks that every table fits every other and that no sum can overflow.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn check(&self) -> Result<(), ProblemError> {
        let bad = |what| Err(ProblemError::Malformed(what));
        let kinds = self.kinds.len();
        if kinds > MAX_KINDS {
            return bad("more than 16 kinds of layers");
        }
        if self.runs.iter().any(|run| run.count == 0 || usize::from(run.kind) >= kinds) {
            return bad("a run is empty or of an unknown kind");
        }
        let orders = &self.pipeline.orders;
        if orders.len() != self.pipeline.ranks as usize
            || orders.iter().any(|o| o.chunks.is_empty() || o.in_flight.len() % o.chunks.len() != 0)
        {
            return bad("a rank has no chunk or no count of micro-batches in flight");
        }
        if self.fixed.len() != self.chunks() {
            return bad("fixed costs are not one per chunk");
        }
        if self.block.is_none_or(|block| block.hopeless) && !self.modes.any_offered() {
            return bad("no way to recompute, not even none");
        }
        let most_of_modes = self.modes.most(kinds)?;
        let most_beside = self.modes.most_beside();
        if let Some(block) = self.block {
            let modes = self.modes.len();
            let (full, rest) = (usize::from(block.full), usize::from(block.rest));
            if full >= modes || rest >= modes {
                return bad("block recomputation uses an unknown mode");
            }
            if self.modes[full].group != 1 || self.modes[rest].group != 1 {
                return bad("block recomputation of grouped layers");
            }
            if self.modes[full].extra.iter().zip(&self.modes[rest].extra).any(|(full, rest)| full < rest) {
                return bad("whole-layer recomputation takes less time than the other layers' mode");
            }
            if block.counts.0 == 0 {
                return bad("block recomputation of no layer");
            }
        }
        let hopeless = usize::from(self.hopeless.start)..usize::from(self.hopeless.end);
        if self.modes.get(hopeless).is_none_or(|modes| modes.iter().any(|mode| mode.offered)) {
            return bad("a hopeless mode is offered or unknown");
        }
        if self.shared.len() > 64 {
            return bad("more than 64 shared groups");
        }
        if self.tail.iter().flat_map(|tail| &tail.lines).any(|line| line.per_layer.len() != kinds) {
            return bad("a tail line does not list every kind");
        }
        // Everything on one rank at once, in 128 bits, must leave room for a factor of 8.
        let in_flight = u128::from(self.pipeline.most_in_flight);
        let mut counts = [0_u128; MAX_KINDS];
        for run in &*self.runs {
            counts[usize::from(run.kind)] += u128::from(run.count);
        }
        let mut time = 0;
        let mut bytes = u128::from(self.rank_bytes.0);
        let layers = self.kinds.iter().zip(most_of_modes).zip(counts).filter(|of| of.1 > 0);
        for ((kind, most), count) in layers {
            time +=
                count * (u128::from(kind.forward.0) + u128::from(kind.backward.0) + u128::from(most.extra));
            bytes += count * (u128::from(kind.held.0) + u128::from(most.kept) * in_flight)
                + u128::from(most.transient)
                + u128::from(kind.gathered.0);
        }
        for fixed in &self.fixed {
            time += u128::from(fixed.forward.0) + u128::from(fixed.backward.0) + u128::from(self.hop.0) * 4;
            bytes += u128::from(fixed.held.0)
                + u128::from(fixed.kept.0) * in_flight
                + u128::from(fixed.transient.0)
                + u128::from(fixed.gathered.0);
            if fixed.recomputes {
                time += u128::from(most_beside.extra.0);
                bytes += u128::from(most_beside.kept.0) * in_flight + u128::from(most_beside.transient.0);
            }
        }
        bytes += self.shared.iter().map(|group| u128::from(group.0)).sum::<u128>();
        let step = time * u128::from(self.pipeline.micro_batches + 1);
        if step * u128::from(self.pipeline.chunks_per_rank) > u128::from(u64::MAX / 8) {
            return Err(ProblemError::TooLong);
        }
        if bytes > u128::from(u64::MAX / 8) {
            return bad("bytes beyond what 64 bits can sum");
        }
        Ok(())
    }

    /// The even split: equal counts, and where they do not come out, one layer more on the first
    /// chunks that take any; of fewer layers than chunks, on those first that must hold one.
    #[must_use]
    pub fn even_layers(&self) -> Vec<u32> {
        let chunks = self.chunks();
        let must: u32 = (0..chunks).map(|chunk| self.least(chunk)).sum();
        let mut more = self.layer_count().saturating_sub(must);
        let optional = self.fixed.iter().filter(|fixed| fixed.optional && !fixed.closed).count() as u32;
        if self.min_layers > 0 && must <= self.layer_count() && more < optional {
            let layers = |chunk: usize| match self.least(chunk) {
                0 if more > 0 && !self.fixed[chunk].closed => {
                    more -= 1;
                    1
                }
                least => least,
            };
            return (0..chunks).map(layers).collect();
        }
        let open = self.fixed.iter().filter(|fixed| !fixed.closed).count() as u32;
        let layers = self.layer_count();
        let (each, more) = (layers.checked_div(open).unwrap_or(0), layers.checked_rem(open).unwrap_or(0));
        let mut seen = 0;
        self.fixed
            .iter()
            .map(|fixed| {
                if fixed.closed {
                    return 0;
                }
                seen += 1;
                each + u32::from(seen <= more)
            })
            .collect()
    }
}

/// Counts of layers by kind in a stretch of the model.
pub(crate) type Counts = [u32; MAX_KINDS];

/// What an assignment costs, or why it is not one.
///
/// # Errors
/// The first [`Violation`], memory last.
pub fn evaluate(problem: &Problem, assignment: &Assignment) -> Result<Evaluation, Violation> {
    let mut evaluation = Evaluation::default();
    evaluate_into(problem, assignment, &mut evaluation)?;
    Ok(evaluation)
}

/// [`evaluate`] into an existing value, so that a search need not allocate. After an error the value
/// holds whatever had been computed.
///
/// # Errors
/// As [`evaluate`].
pub fn evaluate_into(
    problem: &Problem,
    assignment: &Assignment,
    into: &mut Evaluation,
) -> Result<(), Violation> {
    let ranks = measure(problem, assignment, into)?;
    let chunks = problem.chunks();
    for (order, rank) in problem.pipeline.orders.iter().zip(&ranks) {
        // Read once, as there may be many states.
        let own: SmallVec<[u64; 32]> =
            order.chunks.iter().map(|&chunk| into.memory[chunk as usize].0).collect();
        let need = problem.rank_bytes.0
            + rank.held
            + order.most_kept(&own)
            + rank.transient
            + rank.gathered
            + shared_bytes(&problem.shared, rank.touches);
        into.memory.push(Bytes(need));
    }
    into.memory.drain(..chunks);
    match into.memory.iter().position(|&need| need > problem.limit) {
        Some(rank) => Err(Violation::Memory { rank, need: into.memory[rank], limit: problem.limit }),
        None => Ok(()),
    }
}

/// Bytes of a rank, beside what it keeps per micro-batch.
#[derive(Debug, Clone, Copy, Default)]
struct RankBytes {
    held: u64,
    /// Largest working set, and largest unit that is gathered.
    transient: u64,
    gathered: u64,
    /// Groups of which it holds what is paid once.
    touches: u64,
}

/// [`evaluate_into`] whatever the memory: in its place are the bytes kept per micro-batch of every chunk, and the rest by rank
/// is returned.
fn measure(
    problem: &Problem,
    assignment: &Assignment,
    into: &mut Evaluation,
) -> Result<SmallVec<[RankBytes; 32]>, Violation> {
    check_shape(problem, assignment)?;
    let pipeline = &*problem.pipeline;
    let chunks = problem.chunks();
    into.forward.clear();
    into.backward.clear();
    into.memory.clear();
    let (mut run, mut used) = (0, 0);
    let mut first_rank = Counts::default();
    let mut ranks: SmallVec<[RankBytes; 32]> =
        SmallVec::from_elem(RankBytes::default(), pipeline.ranks as usize);
    for chunk in 0..chunks {
        let fixed = &problem.fixed[chunk];
        let rank = pipeline.rank_of_chunk[chunk] as usize;
        let (mut forward, mut backward, mut kept) = (fixed.forward.0, fixed.backward.0, fixed.kept.0);
        let state = &mut ranks[rank];
        state.held += fixed.held.0;
        state.transient = state.transient.max(fixed.transient.0);
        state.gathered = state.gathered.max(fixed.gathered.0);
        state.touches |= fixed.touches;
        let mut left = assignment.layers[chunk];
        let (mut whole, full, rest) = match (assignment.recompute[chunk], problem.block) {
            (Choice::Block(n), Some(block)) => (n, usize::from(block.full), usize::from(block.rest)),
            (Choice::Mode(mode), _) => (0, usize::from(mode), usize::from(mode)),
            (Choice::Block(_), None) => return Err(Violation::Choice { chunk }),
        };
        if fixed.recomputes {
            let beside = problem.modes[rest].beside;
            backward += beside.extra.0;
            kept += beside.kept.0;
            state.transient = state.transient.max(beside.transient.0);
        }
        let group = problem.modes[rest].group;
        if group > 1 && left > 0 {
            kept += u64::from(left.div_ceil(group)) * problem.modes[rest].kept[0].0;
        }
        while left > 0 {
            let this = &problem.runs[run];
            let q = usize::from(this.kind);
            let kind = &problem.kinds[q];
            let mut take = left.min(this.count - used);
            let mode = if whole > 0 {
                take = take.min(whole);
                whole -= take;
                &problem.modes[full]
            } else {
                &problem.modes[rest]
            };
            let n = u64::from(take);
            forward += n * kind.forward.0;
            backward += n * (kind.backward.0 + mode.extra[q].0);
            if group == 1 {
                kept += n * mode.kept[q].0;
            }
            state.held += n * kind.held.0;
            state.transient = state.transient.max(mode.transient[q].0);
            state.gathered = state.gathered.max(kind.gathered.0);
            state.touches |= kind.touches;
            if rank == 0 {
                first_rank[q] += take;
            }
            left -= take;
            used += take;
            if used == this.count {
                (run, used) = (run + 1, 0);
            }
        }
        into.forward.push(Picos(forward));
        into.backward.push(Picos(backward));
        into.memory.push(Bytes(kept));
    }
    into.tail = Picos(problem.tail.as_ref().map_or(0, |tail| tail.at(&first_rank)));
    let (chain, bound) = pipeline.chain_and_bound(&into.forward, &into.backward, problem.hop);
    into.chain = chain + into.tail;
    into.bound = bound + into.tail;
    into.closed = pipeline.closed_form(&into.forward, &into.backward) + into.tail;
    Ok(ranks)
}

/// Bytes of the touched groups.
pub(crate) fn shared_bytes(shared: &[Bytes], touched: u64) -> u64 {
    let mut bits = touched;
    let mut sum = 0;
    while bits != 0 {
        sum += shared.get(bits.trailing_zeros() as usize).map_or(0, |bytes| bytes.0);
        bits &= bits - 1;
    }
    sum
}

fn check_shape(problem: &Problem, assignment: &Assignment) -> Result<(), Violation> {
    let chunks = problem.chunks();
    for found in [assignment.layers.len(), assignment.recompute.len()] {
        if found != chunks {
            return Err(Violation::Chunks { found, expected: chunks });
        }
    }
    let found = assignment.layers.iter().map(|&n| u64::from(n)).sum();
    let expected = u64::from(problem.layer_count());
    if found != expected {
        return Err(Violation::Layers { found, expected });
    }
    let pipeline = &*problem.pipeline;
    for (chunk, &layers) in assignment.layers.iter().enumerate() {
        if layers < problem.least(chunk) || layers > 0 && problem.fixed[chunk].closed {
            return Err(Violation::ChunkSize { chunk, layers });
        }
        let choice = assignment.recompute[chunk];
        let offered = match (choice, problem.block) {
            (Choice::Mode(mode), _) => problem.modes.get(usize::from(mode)).is_some_and(|mode| mode.offered),
            (Choice::Block(n), Some(block)) => {
                !block.hopeless && (block.counts.0..=block.counts.1).contains(&n)
            }
            (Choice::Block(_), None) => false,
        };
        if !offered {
            return Err(Violation::Choice { chunk });
        }
        let agrees_with = match problem.freedom {
            Freedom::Global => 0,
            Freedom::PerStage => {
                let rank = pipeline.rank_of_chunk[chunk] as usize;
                pipeline.orders[rank].chunks[0] as usize
            }
        };
        if choice != assignment.recompute[agrees_with] {
            return Err(Violation::Mixed { chunk });
        }
    }
    Ok(())
}
