//! What every placement of layers takes at least, several chunks per rank, with split backward passes or with traffic at
//! both ends of the step ([`super::ends`]): the linear programme over the chains of passes of the schedule.
//!
//! A schedule of fixed lists takes as long as its longest chain of passes, and a chain's length is linear in the
//! layers of the chunks. So the least makespan is the least time that no chain exceeds. There are too many chains
//! to list; those that matter are found as cutting planes (Kelley 1960): between the answer to the chains known so
//! far and the split that is to be judged, schedules are simulated, and their longest chains added. Where that leaves
//! too much open, chunks hold whole numbers of layers: splits that no chain rules out are walked through
//! ([`super::walk`]), and where those are too many, HiGHS branches on layers and on what ranks hold: short of memory, it
//! is whole layers that do not fit. Every step ends with a proven bound. With one chunk per rank whole layers come first
//! ([`super::ranks`]).
//!
//! Short chunks wait for one another, which whole layers show sooner by which stretches of them chunks may hold
//! ([`super::stretches`]): that comes before programmes where kinds of layers alternate, and after them too where they do not.
//!
//! Problems of one shape have the same chains, and in the answer to one the same chains are long as in another's: what
//! one found is what the next begins with, weights of chains included.
//!
//! Memory counts with every state of micro-batches in flight, recomputation way by way.

use std::borrow::Cow;
use std::collections::HashSet;

use highs::{Col, HighsModelStatus, HighsSolutionStatus, Model, RowProblem, Sense, SolvedModel};

use super::caps::{self, Caps};
use super::ends::{Duals, Margins};
use super::reach;
use super::relax::Relaxation;
use super::stretches::{Clauses, Narrowing};
use super::walk::{self, Chunks, Shown, Walk};
use super::{Assignment, Block, Choice, Evaluation, Fixed, Problem, Traffic, Way, evaluate};
use crate::cost::schedule::{Chain, Load, Shape, Simulator};
use crate::plan::Schedule;
use crate::units::Picos;

/// Runs of layers up to which their order is kept; beyond, layers of a kind may lie anywhere, but for how far their share
/// of any stretch of layers is from that of all.
const MOST_RUNS: usize = 4;
/// Rounds of cutting planes, and those of pipelines of more than [`MANY_CHUNKS`] unless whole layers are asked for.
const ROUNDS: usize = 4;
const FEW_ROUNDS: usize = 1;
/// Rounds of programmes over whole layers that are small and stand for one way to recompute.
const WHOLE_ROUNDS: usize = 12;
const MANY_CHUNKS: usize = 64;
/// A round that gains less is the last.
const LITTLE: f64 = 1e-3;
/// Chains per chunk from which on a programme over whole layers is often decided without branching.
const ENOUGH_CHAINS: f64 = 1.5;
/// Chains per chunk beyond which a programme takes longer than more chains are worth.
const MANY_CHAINS: usize = 5;
/// Programmes over whole layers per problem, and pivots times chains times chunks of them, about a second's work.
const MOST_WHOLE: usize = 60;
const MOST_WORK: u64 = 80_000_000;
/// By how much less work is done where order is given up: more columns say less there.
const UNORDERED: u64 = 40;
/// Answers whose weights are kept for programmes of the same shape.
const MOST_WEIGHTS: usize = 4;
/// Where schedules are simulated: shares of the way from the split that is judged to the programme's answer. Near
/// the former chains hold for many splits, near the latter they cut most off.
const SHARES: [f64; 4] = [0.02, 0.1, 0.3, 1.0];
/// By how much longer one chunk takes in the schedules that show chains through each.
const LONGER: f64 = 1.5;
/// Steps that walks of a problem may be expected to take, three quarters of a second; and passes of one split that are
/// simulated in the time of one.
const STEPS: u64 = 3_000_000;
const PASSES_PER_STEP: u64 = 12;
/// Steps of narrowing.
const NARROW_STEPS: u64 = 5 * STEPS;
/// After this part of what all are allowed a programme is given up unless it has begun; and the part of all steps and
/// programmes that are worth it where those of another of the shape were in vain.
const GLANCE: u64 = 4;
/// Steps for ways like that of the plan, before anything else, where layers have an order that programmes over whole layers
/// know: those decide most. Of ten plans of 70B on 5,376 three take more than a third of them.
const FIRST_STEPS: u64 = STEPS + STEPS / 6;
/// Passes that are simulated in the time of a step, each of as many splits as are simulated at once.
const LANE_PASSES_PER_STEP: u64 = 24;
/// How many times as many they may take that were expected to end within them, one walk no more than that of the usual work
/// or all that was asked for.
const BEGUN: u64 = 3;
/// Weights of rows that are summed up in that time before a walk begins.
const WEIGHTS_PER_STEP: u64 = 128;
/// Bytes of a rank that are not told apart, in ten-thousandths of its limit: far more than rounding.
pub(super) const BYTE_SLACK: f64 = 1e-6;
/// Unless more work is asked for, whole layers on [`MANY_CHUNKS`] or more are tried only where the bound is above this
/// share of what is tolerable: of 44 plans of 14 to 32 chunks, of the scenarios and of DeepSeek-V3 and Maverick, none was
/// proved from below .907, and more chunks take longer.
const WORTH_A_TRY: f64 = 0.88;
/// Parts of a family whose programme no row of memory binds are tried from this share of what is tolerable on: of nine plans
/// of 70B on 5,376 that were at .915 to .967 none was proved by parts from below, and trying them took two thirds of the time.
const WORTH_PARTS: f64 = 0.96;
/// Nodes of a search tree, and those where parts of a family are searched next or a node is dear; so that answers do
/// not depend on the machine's load. Seconds are the last resort.
const NODES: i32 = 300;
const FEW_NODES: i32 = 1;
const SECONDS: f64 = 10.0;
/// What is reached of a plan's time, but for this, is enough for the next of the same shape.
const LESS: f64 = 2e-3;
/// HiGHS' tolerance of reduced costs; bounds are lowered by more.
const TOLERANCE: f64 = 1e-7;
pub(super) const SHRINK: f64 = 1.0 - TOLERANCE;
/// What is proved of many ways one after the other is lower than their goal by that often.
const NEAR: f64 = 1.0 - 1e-5;

/// What is to be judged.
#[derive(Debug, Clone, Copy)]
pub struct Judged<'a> {
    /// Order of the passes of the problem.
    pub shape: Shape,
    /// Layers of the chunks.
    pub layers: &'a [u32],
    /// What all of them recompute.
    pub recompute: Choice,
    /// What ranks gather before their passes and reduce behind them, where that is to count.
    pub traffic: Option<&'a Traffic>,
    /// Its passes, with what comes before and behind them: nothing above is of interest.
    pub passes: Picos,
    /// From here on a bound need not be the highest.
    pub enough: Picos,
    /// Below this a bound is worth programmes over whole layers.
    pub tolerable: Picos,
    /// From here on it need not be higher with more than the usual work; and how many times that.
    pub asked: Picos,
    pub effort: u32,
}

/// What is known from a problem of the same shape.
#[derive(Debug, Clone)]
pub struct Known {
    chains: Vec<Chain>,
    clauses: Clauses,
    weights: Vec<Duals>,
    /// Share of the judged time that the bound was, without programmes over whole layers.
    reached: f64,
    /// Whether narrowing was given up where it had all steps that were left, and whether all of the usual work was in vain: less
    /// of either is worth it for others.
    hard: bool,
    vain: bool,
}

/// A proof of what no step of an assignment of a problem goes below, with what comes before and behind its passes.
/// [`Problem::tail`] does not count. Programmes over whole layers end when it is told to stop.
pub struct Proof<'a> {
    search: Search<'a>,
    families: Vec<Family>,
    /// What is proved.
    least: Picos,
    /// [`Known::reached`] of the problem that showed this one something.
    reached: f64,
    /// [`Known::vain`].
    vain: bool,
}

impl<'a> Proof<'a> {
    /// Nothing is proved yet. What comes of it is not above the judged time, if that fits.
    #[must_use]
    pub fn new(
        problem: &'a Problem,
        judged: Judged<'a>,
        known: Option<&Known>,
        stop: &'a dyn Fn() -> bool,
    ) -> Self {
        let of_problem =
            |traffic: &&Traffic| traffic.is_of(problem.pipeline.orders.len(), problem.kinds.len());
        let judged = Judged { traffic: judged.traffic.filter(of_problem), ..judged };
        let mut ways = Vec::new();
        let mut relaxation = Relaxation::default();
        relaxation.ways(problem, judged.passes, &mut ways);
        relaxation.prepare(problem);
        let mut floor = |way| relaxation.bound_of(problem, way, judged.passes).unwrap_or(judged.passes);
        let ways: Family = ways.into_iter().map(|way| (floor(way), way)).collect();
        Self {
            search: Search::new(problem, judged, known, stop),
            families: families_of(problem, judged.recompute, ways),
            least: Picos::ZERO,
            reached: known.map_or(1.0, |known| known.reached * (1.0 - LESS)),
            vain: false,
        }
    }

    /// What chains of passes show, shared out in parts of layers; and what that shows of problems of the same shape.
    pub fn quickly(&mut self) -> (Picos, Known) {
        let Judged { passes, enough, tolerable, .. } = self.search.judged;
        self.least =
            self.search.least_of_all(&self.families, enough.min(passes.scale(self.reached).max(tolerable)));
        let known = Known {
            chains: self.search.chains.clone(),
            clauses: self.search.clauses.clone(),
            weights: self.search.weights.clone(),
            reached: self.least.0 as f64 / passes.0.max(1) as f64,
            hard: false,
            vain: false,
        };
        (self.least, known)
    }

    /// The fastest split that fits and was seen by the way, if one is faster than what was judged.
    #[must_use]
    pub fn faster(&self) -> Option<Assignment> {
        let Search { fastest, judged, .. } = &self.search;
        fastest.as_ref().filter(|(time, _)| *time < judged.passes).map(|(_, split)| split.clone())
    }

    /// The chains by which stretches of layers were ruled out are known as well, and whether work was in vain.
    pub fn teach(&self, known: &mut Known) {
        known.clauses = self.search.clauses.clone();
        known.hard = self.search.hard;
        known.vain = self.vain;
    }

    /// What whole layers show beside that, as far as it is asked for. What is judged may be another split than before, of
    /// the same problem: its layers, times and effort count, while traffic stays that of [`Proof::new`].
    pub fn closely(&mut self, judged: Judged<'a>) -> Picos {
        let search = &mut self.search;
        if (search.stop)() {
            return self.least;
        }
        search.judged = Judged { traffic: search.judged.traffic, ..judged };
        let ways = std::mem::take(&mut self.families).into_iter().flatten().collect();
        self.families = families_of(search.problem, judged.recompute, ways);
        let near = judged.tolerable.scale(WORTH_A_TRY);
        let hopeful = search.problem.chunks() < MANY_CHUNKS || self.least > near || judged.effort > 1;
        if self.least < judged.tolerable && hopeful {
            search.allow(1);
            self.least = self.least.max(search.least_of_all(&self.families, judged.tolerable));
            self.vain = self.least < judged.tolerable.scale(NEAR);
        }
        // What the usual work shows stays: more of it goes other ways.
        if judged.effort > 1 {
            search.allow(judged.effort);
            for goal in [judged.tolerable, judged.asked] {
                if self.least < goal.scale(NEAR) {
                    self.least = self.least.max(search.least_of_all(&self.families, goal));
                }
                if self.least < goal.scale(NEAR) {
                    break;
                }
            }
        }
        self.least
    }
}

/// Forward passes, whole backward passes and weight gradients, by chunk; and reductions behind passes, by rank.
type Times = [Vec<f64>; 4];

/// Ways to recompute, each with what is known of it.
type Family = Vec<(Picos, Way)>;

/// Ways to recompute that are one programme, beside a split that recomputes in one of them.
fn families_of(problem: &Problem, judged: Choice, ways: Family) -> Vec<Family> {
    // Ways that recompute no less are one: it is mostly time that rules them out. The others mostly lack memory.
    let (alike, other): (Family, Family) = ways.into_iter().partition(|&(_, way)| {
        let Choice::Mode(mode) = judged else { return false };
        let judged = &problem.modes[usize::from(mode)];
        problem.modes_of(way).iter().all(|&part| {
            let part = &problem.modes[part];
            part.beside.extra >= judged.beside.extra
                && part.extra.iter().zip(&judged.extra).all(|(extra, judged)| extra >= judged)
        })
    });
    let (mut modes, mixed): (Family, Family) =
        other.into_iter().partition(|(_, way)| matches!(way, Way::Mode(_)));
    // Neighbours keep about as much: what lacks memory with the least of some does with each.
    modes.sort_by_key(|&(floor, way)| (kept(problem, way), floor));
    let mut families = vec![alike, modes];
    families.extend(mixed.into_iter().map(|one| vec![one]));
    families.retain(|family| !family.is_empty());
    families.sort_by_key(|family| family.iter().map(|(floor, _)| *floor).min());
    families
}

/// Whether the order of layers is kept.
fn ordered(problem: &Problem) -> bool {
    problem.runs.len() <= MOST_RUNS
}

/// Bytes that all layers keep per micro-batch, in the first mode of a way.
fn kept(problem: &Problem, way: Way) -> u64 {
    let mode = &problem.modes[problem.modes_of(way)[0]];
    problem
        .runs
        .iter()
        .map(|run| u64::from(run.count) * mode.kept[usize::from(run.kind)].0 / u64::from(mode.group))
        .sum()
}

/// Chains found so far: they hold for all ways to recompute.
struct Search<'a> {
    problem: &'a Problem,
    judged: Judged<'a>,
    simulator: Simulator,
    chains: Vec<Chain>,
    known: HashSet<Chain>,
    /// Those that ruled out stretches of layers.
    clauses: Clauses,
    /// Of the latest programmes' answers.
    weights: Vec<Duals>,
    /// The fastest split that was seen and fits, with what comes before and behind its passes.
    fastest: Option<(Picos, Assignment)>,
    /// Whether the first schedules are simulated.
    started: bool,
    /// Programmes over whole layers that may still be solved.
    whole: usize,
    /// Pivots of such programmes times chains times chunks.
    work: u64,
    /// Steps that further walks may be expected to take.
    steps: u64,
    /// Steps that narrowing may still take, of so many; whether it comes before programmes, until it was stopped there; and whether it
    /// has seen all of the family that is judged, ways together.
    narrow_steps: u64,
    narrow_allowed: u64,
    narrows_first: bool,
    narrowed: bool,
    /// [`Known::hard`], of another problem; then of this as well.
    hard: bool,
    /// [`Known::vain`], of another problem.
    vain: bool,
    /// How many times the usual work is done.
    effort: u32,
    /// Whether whole layers showed no more than parts of them for the latest programme, and no row of memory bound those.
    stuck: bool,
    stop: &'a dyn Fn() -> bool,
}

impl<'a> Search<'a> {
    fn new(
        problem: &'a Problem,
        judged: Judged<'a>,
        known: Option<&Known>,
        stop: &'a dyn Fn() -> bool,
    ) -> Self {
        let mut chains = known.map_or_else(|| listed(problem, false), |known| known.chains.clone());
        let weights = known.map_or_else(Vec::new, |known| known.weights.clone());
        let clauses = known.map_or_else(Clauses::default, |known| known.clauses.clone());
        let (hard, vain) = known.map_or((false, false), |known| (known.hard, known.vain));
        let started = known.is_some();
        let mut known: HashSet<Chain> = chains.iter().cloned().collect();
        if judged.traffic.is_some() && !problem.pipeline.split_backward {
            chains.extend(listed(problem, true).into_iter().filter(|chain| known.insert(chain.clone())));
        }
        Self {
            problem,
            judged,
            simulator: Simulator::default(),
            chains,
            known,
            clauses,
            weights,
            fastest: None,
            started,
            whole: 0,
            work: 0,
            steps: STEPS,
            narrow_steps: 0,
            narrow_allowed: 0,
            narrows_first: false,
            narrowed: false,
            hard,
            vain,
            effort: 1,
            stuck: false,
            stop,
        }
    }

    /// Allows for programmes over whole layers, so many times the usual work.
    fn allow(&mut self, effort: u32) {
        let share = |less: bool| if less && effort == 1 { GLANCE } else { 1 };
        let (all, narrowing) = (share(self.vain), share(self.vain || self.hard));
        self.effort = effort;
        self.whole = MOST_WHOLE * effort as usize / all as usize;
        self.work = 0;
        self.steps = STEPS * u64::from(effort) / all;
        // More of it is worth less than more of the others: what the usual narrowing shows was seen.
        self.narrow_steps = NARROW_STEPS.max(NARROW_STEPS / GLANCE * u64::from(effort)) / narrowing;
        self.narrow_allowed = self.narrow_steps;
        self.narrows_first = effort == 1;
    }

    /// A bound on all assignments; above `goal` it need not be the highest.
    fn least_of_all(&mut self, families: &[Family], goal: Picos) -> Picos {
        families.iter().fold(self.judged.passes, |least, family| {
            let enough = goal.min(least);
            let open = family.iter().filter(|(floor, _)| *floor < enough);
            let open: Vec<Way> = open.map(|(_, way)| *way).collect();
            let judged = open.contains(&self.judged.recompute.way());
            let first = self.narrows_first;
            self.narrowed = false;
            // Other ways mostly lack memory, which shows soonest way by way.
            if first
                && !judged
                && !open.is_empty()
                && let Some(narrowed) = self.narrow_family(&open, 1, enough)
            {
                return least.min(narrowed);
            }
            let bound = self.least_of(family, goal, least);
            if bound >= enough.scale(SHRINK) {
                return bound;
            }
            // Programmes that know the order of layers had the first word, others may have the last.
            let tried = first && !ordered(self.problem);
            let narrowed = match (judged, self.narrowed) {
                (true, true) if open.len() > 1 => self.narrow_family(&open, 1, enough),
                (true, false) if !tried => self.narrow_family(&open, open.len(), enough),
                (false, _) if !first => self.narrow_family(&open, 1, enough),
                _ => None,
            };
            narrowed.map_or(bound, |narrowed| bound.max(narrowed))
        })
    }

    /// [`Search::narrow`] of some ways, so many together, not above the ceiling: together they need the least of what each keeps.
    fn narrow_family(&mut self, ways: &[Way], together: usize, ceiling: Picos) -> Option<Picos> {
        if self.narrow_steps == 0 {
            return None;
        }
        ways.chunks(together).try_fold(ceiling, |least, some| {
            let programme = Programme::new(self.problem, self.judged, some);
            Some(least.min(self.narrow(&programme, ceiling, u64::MAX)?))
        })
    }

    /// After it was told to stop, no more programmes over whole layers are solved.
    fn heed_stop(&mut self) {
        if self.whole > 0 && (self.stop)() {
            self.whole = 0;
        }
    }

    /// The lesser of `least` and a bound on all assignments that recompute in some ways. They are one programme if
    /// that says enough, else halves of them are; or with more work each way, which takes more of it and shows more.
    fn least_of(&mut self, ways: &[(Picos, Way)], goal: Picos, least: Picos) -> Picos {
        self.heed_stop();
        let enough = goal.min(least);
        let (open, closed): (Family, Family) = ways.iter().partition(|(floor, _)| *floor < enough);
        let least = closed.iter().map(|(floor, _)| *floor).fold(least, Picos::min);
        let Some(floor) = open.iter().map(|(floor, _)| *floor).min() else { return least };
        let ways: Vec<Way> = open.iter().map(|(_, way)| *way).collect();
        // Where nothing fits, nothing is below.
        let bound = self.least(&Programme::new(self.problem, self.judged, &ways), floor, enough);
        let bound = bound.map_or(least, |bound| bound.min(least));
        // Parts of a family may differ from it in memory alone.
        let hopeless = self.stuck && self.effort == 1 && bound < enough.scale(WORTH_PARTS);
        if bound >= enough.scale(SHRINK) || ways.len() == 1 || self.whole == 0 || hopeless {
            return bound;
        }
        let together = if self.effort > 1 { 1 } else { open.len().div_ceil(2) };
        open.chunks(together).fold(least, |least, some| self.least_of(some, goal, least))
    }

    /// A bound on all assignments that recompute in the programme's ways, of which one is known; none if nothing
    /// fits.
    fn least(&mut self, programme: &Programme, known: Picos, enough: Picos) -> Option<Picos> {
        self.stuck = false;
        let priced = self.weights.iter().map(|weights| programme.weighted(&self.chains, weights));
        let known = priced.fold(known, Picos::max);
        if known >= enough {
            return Some(known);
        }
        let (mut known, pipeline) = (known, &*self.problem.pipeline);
        if pipeline.chunks_per_rank == 1 && !pipeline.split_backward {
            known = known.max(programme.least_of_ranks(known, self.judged.passes));
            if known >= enough.scale(SHRINK) {
                return Some(known);
            }
        }
        if self.narrows_first && programme.ways.contains(&self.judged.recompute.way()) {
            let most = if programme.ordered { FIRST_STEPS } else { u64::MAX };
            let narrowed = self.narrow(programme, enough, most);
            self.narrows_first = narrowed.is_some();
            self.narrowed = narrowed.is_some();
            known = known.max(narrowed.unwrap_or_default());
            // What was seen of several ways together need not fit with any of them.
            if narrowed.is_some() && (!programme.several() || known >= enough.scale(SHRINK)) {
                return Some(known);
            }
        }
        let centre = programme.passes_of(self.judged.layers);
        let many = programme.many();
        let rounds = if many && self.whole == 0 { FEW_ROUNDS } else { ROUNDS };
        if self.looks_for_chains() && !std::mem::replace(&mut self.started, true) {
            let even = |times: &[f64]| times.iter().sum::<f64>() / times.len().max(1) as f64;
            self.look_along(&centre.clone().map(|times| vec![even(&times); times.len()]));
            self.look(&centre);
        }
        let mut bound = known;
        let decides = self.chains.len() as f64 >= ENOUGH_CHAINS * self.problem.chunks() as f64;
        if many && self.whole > 0 && decides {
            match self.solve_whole(programme, enough, FEW_NODES) {
                Solved::None => return Some(bound.max(enough.scale(SHRINK))),
                Solved::Bound(least, _) => bound = bound.max(least),
                Solved::Failed => {}
            }
        }
        let (mut model, columns) = programme.model(&self.chains, None)?;
        let (first, mut rows) = (self.chains.len(), 0);
        let (margins, memory) = (programme.margin_rows().len(), programme.memory().len());
        let mut stated = first;
        let mut weights = None;
        let mut roomy = true;
        for round in 0..=rounds {
            let solved = solve(model)?;
            match solved.status() {
                HighsModelStatus::Optimal => {}
                HighsModelStatus::Infeasible => return None,
                _ => break,
            }
            let before = bound;
            bound = bound.max(programme.picos(solved.objective_value()));
            let answer = solved.get_solution();
            let duals = answer.dual_rows();
            if round == 0 {
                rows = duals.len();
            }
            roomy = duals[first + margins..][..memory].iter().all(|dual| dual.abs() < TOLERANCE);
            let shown = programme.weights(duals, first, &duals[rows..]);
            // Whole layers in order take no less than fractions of them.
            bound = bound.max(programme.weighted(&self.chains, &shown));
            weights = Some(shown);
            let stalls = self.whole == 0 && round > 0 && bound < before.scale(1.0 + LITTLE);
            if bound >= enough || round == rounds || stalls || !self.looks_for_chains() {
                break;
            }
            let answer = programme.passes_at(answer.columns());
            self.look_between(&centre, &answer);
            if self.whole > 0 {
                self.look_along(&answer);
            }
            if self.chains.len() == stated {
                break;
            }
            model = Model::from(solved);
            for chain in &self.chains[stated..] {
                let (most, terms) = programme.row(chain);
                model.try_add_row(..=most, terms.into_iter().map(|(at, n)| (columns[at], n))).ok()?;
            }
            stated = self.chains.len();
        }
        if self.weights.len() < MOST_WEIGHTS {
            self.weights.extend(weights);
        }
        if bound >= enough {
            return Some(bound);
        }
        if self.whole > 0
            && self.looks_for_chains()
            && let Some(least) = self.walk(programme, enough)
        {
            return Some(bound.max(least));
        }
        let parts = bound;
        let nodes = if many && programme.several() { FEW_NODES } else { NODES };
        let few = self.effort == 1 && (many || programme.several());
        for _ in 0..if few { FEW_ROUNDS } else { WHOLE_ROUNDS * self.effort as usize } {
            self.heed_stop();
            if self.whole == 0 {
                break;
            }
            let (least, answer) = match self.solve_whole(programme, enough, nodes) {
                Solved::None => return Some(bound.max(enough.scale(SHRINK))),
                Solved::Bound(least, answer) => (least, answer),
                Solved::Failed => break,
            };
            bound = bound.max(least);
            self.stuck = roomy && bound == parts;
            let Some(answer) = answer.filter(|_| bound < enough && self.looks_for_chains()) else { break };
            let stated = self.chains.len();
            let answer = programme.passes_at(&answer);
            self.look_between(&centre, &answer);
            self.look_along(&answer);
            if self.chains.len() == stated {
                break;
            }
        }
        Some(bound)
    }

    /// The least time of all splits, if a walk sees or rules out all; above `ceiling` it need not be the highest.
    fn walk(&mut self, programme: &Programme, ceiling: Picos) -> Option<Picos> {
        let (problem, shape) = (self.problem, self.judged.shape);
        // Every row begins with a table by chunk and layer, some with one by all pairs of layers.
        let (rows, count) = (self.chains.len() as u64, problem.chunks() as u64);
        let layers = u64::from(problem.layer_count());
        let begin = (2 * rows + reach::ROWS as u64 * layers) * count * layers / WEIGHTS_PER_STEP;
        if self.steps <= begin {
            return None;
        }
        self.steps -= begin;
        let order = programme.order();
        let chunks = Chunks {
            order: &order,
            sorts: programme.sorts.len(),
            least: &programme.fewest(),
            ranks: &problem.pipeline.rank_of_chunk,
        };
        let unit = programme.time_unit;
        let mut lowest = ceiling;
        let row = |chain: &Chain, lowest: Picos| {
            let (most, each) = programme.by_layer(programme.sum(chain));
            let longest = lowest.saturating_sub(programme.least_margin(chain.end));
            walk::Row { most: most + longest.0 as f64 / unit, each, lowers: true }
        };
        let mut rows: Vec<walk::Row> = Vec::new();
        for weights in &self.weights {
            let (least, mut each) = programme.average(&self.chains, weights);
            // Perhaps none is recomputed wholly.
            each.truncate(problem.chunks() * programme.sorts.len());
            rows.push(walk::Row { most: ceiling.0 as f64 / unit - least, each, lowers: true });
        }
        let memory = programme.memory().into_iter().map(|row| programme.by_layer(row));
        rows.extend(memory.map(|(most, each)| walk::Row { most: most + BYTE_SLACK, each, lowers: false }));
        // The latest say most, and there may not be room for all.
        rows.extend(self.chains.iter().rev().map(|chain| row(chain, ceiling)));
        // Simulated once, and once more for its chain.
        let each = (2 * super::descent::simulated_passes(&problem.pipeline) / PASSES_PER_STEP).max(32);
        let most = STEPS * BEGUN.max(u64::from(self.effort));
        let Self { simulator, known, chains, steps, stop, fastest, .. } = self;
        let mut walk = Walk::new(chunks, &rows, each, *stop);
        if walk.expected_steps(steps) > *steps as f64 {
            return None;
        }
        // What is expected says little of the splits that are seen, and mostly too little: what is begun should end.
        let allowed = (*steps * BEGUN).min(most);
        let mut left = allowed;
        let end = walk.run(&mut left, &mut |split| {
            let Some((time, times)) = programme.time_of(split, shape, simulator, fastest) else {
                return Shown::Nothing;
            };
            if time < lowest {
                let by = (lowest - time).0 as f64 / unit;
                lowest = time;
                return Shown::Lower(by);
            }
            // Chains stay for programmes: not more than those take.
            if chains.len() >= MANY_CHAINS * problem.chunks() {
                return Shown::Nothing;
            }
            let [forward, backward, weight, after] = &times;
            let load = Load { forward, backward, weight, hop: problem.hop };
            let chain = simulator.longest_chain(shape, load, after);
            if !known.insert(chain.clone()) {
                return Shown::Nothing;
            }
            chains.push(chain.clone());
            Shown::Row(row(&chain, lowest))
        });
        *steps -= (allowed - left).div_ceil(BEGUN).min(*steps);
        (end == walk::End::Complete).then(|| lowest.scale(SHRINK))
    }

    /// The same of an interleaved schedule, by the stretches of layers that chunks may hold, in at most so many steps.
    fn narrow(&mut self, programme: &Programme, ceiling: Picos, most: u64) -> Option<Picos> {
        let (problem, shape) = (self.problem, self.judged.shape);
        if self.narrow_steps == 0 || shape.schedule != Schedule::Interleaved || shape.virtual_stages == 1 {
            return None;
        }
        let average = |weights: &Duals| {
            let (least, each) = programme.average(&self.chains, weights);
            walk::Row { most: ceiling.0 as f64 / programme.time_unit - least, each, lowers: true }
        };
        let averages: Vec<walk::Row> = self.weights.iter().map(average).collect();
        // The first rank ends last.
        let margin = programme.least_margin(0);
        let each = super::descent::simulated_passes(&problem.pipeline) / LANE_PASSES_PER_STEP;
        let glance = self.narrow_allowed.min(most) / GLANCE;
        let Self { simulator, clauses, stop, fastest, .. } = self;
        let mut lowest = ceiling;
        let mut left = self.narrow_steps.min(most);
        let given = left;
        let mut complete = true;
        for recomputed in programme.recomputed_by_chunk() {
            let division = programme.division(shape, recomputed as usize, &averages);
            let below = lowest.saturating_sub(margin);
            let Some(mut narrowing) = Narrowing::new(&division, below, each.max(32), *stop) else {
                complete = false;
                break;
            };
            narrowing.clauses = std::mem::take(clauses);
            complete = narrowing.run(&mut left, glance, &mut |split| {
                let (time, _) = programme.time_of(split, shape, simulator, fastest)?;
                lowest = lowest.min(time);
                Some(lowest.saturating_sub(margin))
            }) == walk::End::Complete;
            *clauses = std::mem::take(&mut narrowing.clauses);
            if !complete || narrowing.recomputes_all() {
                break;
            }
        }
        self.narrow_steps -= given - left;
        self.hard |= !complete && most == u64::MAX;
        complete.then(|| lowest.scale(SHRINK))
    }

    /// Solves the programme over whole layers, as far as a ceiling and so many nodes.
    fn solve_whole(&mut self, programme: &Programme, ceiling: Picos, nodes: i32) -> Solved {
        self.whole -= 1;
        let Some(caps) = programme.caps(&self.chains, ceiling) else { return Solved::None };
        let whole = Whole { ceiling, caps, nodes };
        let solved = programme.model(&self.chains, Some(whole)).and_then(|(model, _)| solve(model));
        let Some(solved) = solved else { return Solved::Failed };
        let pivots = solved.int_info_value(c"simplex_iteration_count").map_or(0, i64::unsigned_abs);
        self.work = self.work.saturating_add(pivots * (self.chains.len() * self.problem.chunks()) as u64);
        let most = if programme.ordered { MOST_WORK } else { MOST_WORK / UNORDERED };
        if self.work > most * u64::from(self.effort) {
            self.whole = 0;
        }
        if solved.status() == HighsModelStatus::Infeasible {
            return Solved::None;
        }
        let dual = solved.double_info_value(c"mip_dual_bound").unwrap_or(0.0);
        let bound = programme.picos(if dual.is_finite() { dual } else { 0.0 });
        let found = solved.primal_solution_status() == HighsSolutionStatus::Feasible;
        Solved::Bound(bound, found.then(|| solved.get_solution().columns().to_vec()))
    }

    /// Adds the longest chains at some durations but for one chunk that takes longer, chunk by chunk; unless there are
    /// many already.
    fn look_along(&mut self, times: &Times) {
        if self.chains.len() >= MANY_CHAINS * self.problem.chunks() {
            return;
        }
        for chunk in 0..self.problem.chunks() {
            let mut times = times.clone();
            times[..3].iter_mut().for_each(|times| times[chunk] *= LONGER);
            self.look(&times);
        }
    }

    /// Adds the longest chains at durations between some and others.
    fn look_between(&mut self, from: &Times, to: &Times) {
        for share in SHARES {
            let between = |at: usize| {
                from[at]
                    .iter()
                    .zip(&to[at])
                    .map(|(from, to)| from + share * (to - from))
                    .collect::<Vec<f64>>()
            };
            self.look(&[between(0), between(1), between(2), between(3)]);
        }
    }

    /// Of other schedules only the chains that their balancing problem lists are known.
    fn looks_for_chains(&self) -> bool {
        let Shape { schedule, virtual_stages, .. } = self.judged.shape;
        schedule.splits_backward() || schedule == Schedule::Interleaved && virtual_stages > 1
    }

    /// Adds the longest chain at some durations.
    fn look(&mut self, times: &Times) {
        let [forward, backward, weight, after] =
            times.each_ref().map(|times| times.iter().map(|&t| Picos(t.max(0.0) as u64)).collect::<Vec<_>>());
        let load = Load { forward: &forward, backward: &backward, weight: &weight, hop: self.problem.hop };
        let chain = self.simulator.longest_chain(self.judged.shape, load, &after);
        if self.known.insert(chain.clone()) {
            self.chains.push(chain);
        }
    }
}

/// The chains that a balancing problem has by rank: through its work, its first backward pass and its last forward
/// pass ([`super::Pipeline::chain_and_bound`]): to the end of the first rank, or `short` to that of the rank itself.
pub(super) fn listed(problem: &Problem, short: bool) -> Vec<Chain> {
    let pipeline = &*problem.pipeline;
    let (n, m) = (problem.chunks(), pipeline.micro_batches);
    let changes = |to: usize| {
        (1..=to).filter(|&k| pipeline.rank_of_chunk[k] != pipeline.rank_of_chunk[k - 1]).count() as u64
    };
    let mut list = Vec::new();
    for order in &pipeline.orders {
        let (first, last) = (order.chunks[0] as usize, order.chunks[order.chunks.len() - 1] as usize);
        let mut work = Chain::none(n);
        work.forward[..first].fill(1);
        order.chunks.iter().for_each(|&k| work.forward[k as usize] += m);
        order.chunks.iter().for_each(|&k| work.backward[k as usize] += m);
        work.hops = changes(first);
        if pipeline.split_backward {
            list.push(Chain { end: pipeline.rank_of_chunk[first], ..work });
            continue;
        }
        work.backward[..first].fill(1);
        work.hops *= 2;
        let hops = 2 * changes(n - 1) - changes(last) + changes(first);
        let mut turn = Chain { forward: vec![1; n], hops, ..Chain::none(n) };
        turn.backward[last..].iter_mut().for_each(|n| *n += 1);
        turn.backward[..first].iter_mut().for_each(|n| *n += 1);
        let mut mirror =
            Chain { forward: turn.backward.clone(), backward: turn.forward.clone(), hops, ..Chain::none(n) };
        for (chain, rest) in
            [(&mut turn, &order.after_first_backward), (&mut mirror, &order.before_last_forward)]
        {
            for (&k, weights) in order.chunks.iter().zip(rest) {
                chain.forward[k as usize] += weights.forward;
                chain.backward[k as usize] += weights.backward;
            }
        }
        let mut own = [work, turn, mirror];
        if short {
            for chain in &mut own {
                chain.backward[..first].iter_mut().for_each(|n| *n -= 1);
                chain.hops -= changes(first);
                chain.end = pipeline.rank_of_chunk[first];
            }
        }
        list.extend(own);
    }
    list
}

fn solve(mut model: Model) -> Option<SolvedModel> {
    model.make_quiet();
    model.try_solve().ok()
}

/// What a programme over whole layers shows.
enum Solved {
    /// Nothing is below the ceiling.
    None,
    /// Nothing is below this; and an answer, if one was found.
    Bound(Picos, Option<Vec<f64>>),
    Failed,
}

/// What makes a programme one over whole layers.
struct Whole {
    /// Nothing above is of interest.
    ceiling: Picos,
    /// What ranks hold below it.
    caps: Caps,
    /// Nodes of the search tree.
    nodes: i32,
}

/// Whether a split fits.
enum Fit {
    /// That depends on how it is recomputed.
    Open,
    Never,
    /// With what it costs.
    As(Evaluation, Choice),
}

/// Layers that count as one sort: a run, or where order is given up all of a kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sort {
    pub kind: usize,
    pub count: u32,
    /// Passes of one layer, recomputed as little as the way allows, and its weight gradients.
    forward: f64,
    backward: f64,
    weight: f64,
    held: f64,
    kept: f64,
    /// What recomputing the layer wholly adds to its backward pass, and to what it keeps, under block recomputation.
    whole: Option<(f64, f64)>,
}

impl Sort {
    /// Forward and backward pass of one layer.
    pub(super) fn passes(&self) -> [f64; 2] {
        [self.forward, self.backward]
    }

    /// The same if it is recomputed wholly, under block recomputation.
    pub(super) fn recomputed(&self) -> Option<[f64; 2]> {
        self.whole.map(|(extra, _)| [self.forward, self.backward + extra])
    }
}

/// A row: a sum of columns that stays below a number.
pub(super) type Row = (f64, Vec<(usize, f64)>);

/// The programme of a family of ways to recompute, without its chains. Columns are layers by chunk and sort, of these those
/// recomputed wholly, then the end of all passes and reductions, the wait for weights, ends and reductions of ranks
/// ([`super::ends`]) and what else there is.
pub(super) struct Programme<'a> {
    pub problem: &'a Problem,
    /// [`Problem::fixed`], with the least of what the ways do beside layers.
    pub fixed: Cow<'a, [Fixed]>,
    pub sorts: Vec<Sort>,
    pub margins: Option<Margins<'a>>,
    block: bool,
    ordered: bool,
    /// Ways to recompute that it stands for.
    ways: Vec<Way>,
    /// Picoseconds and bytes of one unit, so that numbers stay where floating point is at ease.
    pub time_unit: f64,
    byte_unit: f64,
    /// Transient of any layer, at least.
    transient: u64,
}

impl<'a> Programme<'a> {
    /// The programme of some ways to recompute: every layer as cheap as in any of them.
    fn new(problem: &'a Problem, judged: Judged<'a>, ways: &[Way]) -> Self {
        let block: Option<Block> = problem.block.filter(|_| ways == [Way::Block]);
        let modes: Vec<usize> = match block {
            Some(block) => vec![usize::from(block.rest)],
            None => ways.iter().flat_map(|&way| problem.modes_of(way)).collect(),
        };
        let least =
            |of: &dyn Fn(usize) -> f64| modes.iter().map(|&mode| of(mode)).fold(f64::INFINITY, f64::min);
        let kept = |mode: usize, q: usize| {
            problem.modes[mode].kept[q].0 as f64 / f64::from(problem.modes[mode].group)
        };
        let extra = |mode: usize, q: usize| problem.modes[mode].extra[q].0 as f64;
        let sort = |kind: usize, count: u32| Sort {
            kind,
            count,
            forward: problem.kinds[kind].forward.0 as f64,
            backward: problem.kinds[kind].backward.0 as f64 + least(&|mode| extra(mode, kind)),
            weight: problem.kinds[kind].weight.0 as f64,
            held: problem.kinds[kind].held.0 as f64,
            kept: least(&|mode| kept(mode, kind)),
            whole: block.map(|block| {
                let (full, rest) = (usize::from(block.full), usize::from(block.rest));
                (extra(full, kind) - extra(rest, kind), kept(full, kind) - kept(rest, kind))
            }),
        };
        let ordered = ordered(problem);
        let mut sorts: Vec<Sort> = Vec::new();
        for run in &*problem.runs {
            let kind = usize::from(run.kind);
            match sorts.iter_mut().find(|sort| !ordered && sort.kind == kind) {
                Some(sort) => sort.count += run.count,
                None => sorts.push(sort(kind, run.count)),
            }
        }
        let fixed = problem.fixed_in(ways);
        let ends: u64 = fixed.iter().map(|f| f.forward.0 + f.backward.0).sum();
        let layers: f64 = sorts.iter().map(|s| f64::from(s.count) * (s.forward + s.backward)).sum();
        let pipeline = &*problem.pipeline;
        let busy = (ends as f64 + layers) * pipeline.micro_batches as f64 / f64::from(pipeline.ranks);
        let transients = block.map(|block| usize::from(block.full)).into_iter().chain(modes.iter().copied());
        let transients = transients
            .flat_map(|mode| sorts.iter().map(move |sort| problem.modes[mode].transient[sort.kind].0));
        let mut programme = Self {
            problem,
            fixed,
            margins: None,
            block: block.is_some(),
            ordered,
            ways: ways.to_vec(),
            // Where traffic takes longest, it is what numbers are measured by.
            time_unit: (busy.max(judged.traffic.map_or(0.0, |_| judged.passes.0 as f64)) / 1e4).max(1.0),
            byte_unit: (problem.limit.0 as f64 / 1e4).max(1.0),
            transient: transients.min().unwrap_or(0),
            sorts,
        };
        if let Some(traffic) = judged.traffic {
            let [forward, backward, ..] = programme.passes_of(judged.layers);
            let counts = programme.by_rank(judged.layers);
            let returns = !problem.pipeline.split_backward;
            let margins = Margins::new(traffic, [&forward, &backward], problem.hop, &counts, returns);
            programme.margins = Some(margins);
        }
        programme
    }

    /// Column of the layers of a sort on a chunk.
    pub(super) fn layers(&self, chunk: usize, sort: usize) -> usize {
        chunk * self.sorts.len() + sort
    }

    /// Column of those that are recomputed wholly.
    fn whole(&self, chunk: usize, sort: usize) -> usize {
        self.problem.chunks() * self.sorts.len() + self.layers(chunk, sort)
    }

    /// Column of the end of all passes and reductions.
    pub(super) fn flush(&self) -> usize {
        self.problem.chunks() * self.sorts.len() * if self.block { 2 } else { 1 }
    }

    /// How many layers of every chunk block recomputation may recompute: as many as it takes.
    fn recomputed_by_chunk(&self) -> std::ops::RangeInclusive<u32> {
        match self.problem.block {
            Some(Block { counts: (fewest, most), .. }) if self.block => {
                fewest..=most.min(self.problem.layer_count()).max(fewest)
            }
            _ => 0..=0,
        }
    }

    fn several(&self) -> bool {
        self.ways.len() > 1
    }

    fn many(&self) -> bool {
        self.problem.chunks() > MANY_CHUNKS
    }

    /// Column of the wait for weights.
    pub(super) fn wait(&self) -> usize {
        self.flush() + 1
    }

    /// A value of the objective as a bound.
    fn picos(&self, value: f64) -> Picos {
        // Every column that is as large as the answer may be off by the tolerance.
        let columns = 1 + self.margins.as_ref().map_or(0, Margins::columns);
        Picos((value.max(0.0) * (1.0 - TOLERANCE * columns as f64) * self.time_unit) as u64)
    }

    /// Passes of all chunks of a split, as little recomputed as the way allows.
    fn passes_of(&self, layers: &[u32]) -> Times {
        let order = self.problem.runs.iter().flat_map(|run| (0..run.count).map(|_| usize::from(run.kind)));
        let mut order = order.filter_map(|kind| self.sorts.iter().find(|sort| sort.kind == kind));
        let mut times = Times::default();
        for (fixed, &n) in self.fixed.iter().zip(layers) {
            let mut own = [fixed.forward, fixed.backward, fixed.weight].map(|time| time.0 as f64);
            for sort in order.by_ref().take(n as usize) {
                own[0] += sort.forward;
                own[1] += sort.backward;
                own[2] += sort.weight;
            }
            times.iter_mut().zip(own).for_each(|(times, own)| times.push(own));
        }
        if self.margins.is_some() {
            let counts = self.by_rank(layers);
            times[3] = self.reductions(|rank, kind| f64::from(counts[rank][kind]));
        }
        times
    }

    /// What a split takes, recomputed as little as it takes, and its passes; none if it does not fit. Of several ways it is the
    /// least of each, and which of them fits is not known. If it is known, the fastest so far is kept.
    fn time_of(
        &self,
        split: &[u32],
        shape: Shape,
        simulator: &mut Simulator,
        fastest: &mut Option<(Picos, Assignment)>,
    ) -> Option<(Picos, [Vec<Picos>; 4])> {
        let picos = |times: Vec<f64>| times.into_iter().map(|time| Picos(time as u64)).collect::<Vec<_>>();
        let mut times = self.passes_of(split).map(picos);
        let fit = self.fit(split);
        match fit {
            Fit::Open => {}
            Fit::Never => return None,
            Fit::As(ref costs, _) => {
                times[0].clone_from(&costs.forward);
                times[1].clone_from(&costs.backward);
            }
        }
        let [forward, backward, weight, _] = &times;
        let makespan = simulator.run(shape, Load { forward, backward, weight, hop: self.problem.hop });
        let time = self.step_of(split, makespan, &simulator.starts, &simulator.ends);
        if let Fit::As(_, recompute) = fit
            && fastest.as_ref().is_none_or(|(least, _)| time < *least)
        {
            *fastest = Some((time, Assignment::uniform(split, recompute)));
        }
        Some((time, times))
    }

    /// How a split fits, where the programme stands for one way to recompute that all chunks have in common: recomputed
    /// as little as it takes.
    fn fit(&self, split: &[u32]) -> Fit {
        let problem = self.problem;
        let choices = match (self.ways.as_slice(), problem.block) {
            ([Way::Mode(mode)], _) => vec![Choice::Mode(*mode)],
            ([Way::Block], Some(block)) => {
                let most = split.iter().copied().max().unwrap_or(0).max(block.counts.0);
                (block.counts.0..=block.counts.1.min(most)).map(Choice::Block).collect()
            }
            _ => return Fit::Open,
        };
        let fitting = choices.into_iter().find_map(|choice| {
            let costs = evaluate(problem, &Assignment::uniform(split, choice)).ok()?;
            Some(Fit::As(costs, choice))
        });
        fitting.unwrap_or(Fit::Never)
    }

    /// [`Programme::passes_of`] an answer.
    fn passes_at(&self, values: &[f64]) -> Times {
        let mut times = Times::default();
        for (chunk, fixed) in self.fixed.iter().enumerate() {
            let mut own = [fixed.forward, fixed.backward, fixed.weight].map(|time| time.0 as f64);
            for (at, sort) in self.sorts.iter().enumerate() {
                let n = values.get(self.layers(chunk, at)).copied().unwrap_or(0.0);
                own[0] += n * sort.forward;
                own[1] += n * sort.backward;
                own[2] += n * sort.weight;
                if let Some((extra, _)) = sort.whole {
                    own[1] += extra * values.get(self.whole(chunk, at)).copied().unwrap_or(0.0);
                }
            }
            times.iter_mut().zip(own).for_each(|(times, own)| times.push(own));
        }
        let orders = &self.problem.pipeline.orders;
        let layers =
            |chunk: &u32, at: usize| values.get(self.layers(*chunk as usize, at)).copied().unwrap_or(0.0);
        times[3] = self.reductions(|rank, kind| {
            let sorts = self.sorts.iter().enumerate().filter(|(_, sort)| sort.kind == kind);
            sorts.map(|(at, _)| orders[rank].chunks.iter().map(|k| layers(k, at)).sum::<f64>()).sum()
        });
        times
    }

    /// A chain is over by the end of its rank.
    fn row(&self, chain: &Chain) -> Row {
        let (most, mut terms) = self.sum(chain);
        terms.push((self.end(chain.end as usize), -1.0));
        (most, terms)
    }

    /// What layers add to a chain, and less what it takes whatever they are.
    pub(super) fn sum(&self, chain: &Chain) -> Row {
        let unit = self.time_unit;
        // What all chunks share counts for the whole model, which is the same for all splits.
        let shared = |counts: &[u64]| counts.iter().copied().min().unwrap_or(0);
        let (forward, backward) = (shared(&chain.forward), shared(&chain.backward));
        let weight = chain.weight.iter().copied().min().unwrap_or(0);
        let mut constant = chain.hops as f64 * self.problem.hop.0 as f64;
        for sort in &self.sorts {
            let each =
                forward as f64 * sort.forward + backward as f64 * sort.backward + weight as f64 * sort.weight;
            constant += f64::from(sort.count) * each;
        }
        let mut terms = Vec::new();
        for (chunk, fixed) in self.fixed.iter().enumerate() {
            let (f, b, w) = (chain.forward[chunk], chain.backward[chunk], chain.weight[chunk]);
            constant += f as f64 * fixed.forward.0 as f64 + b as f64 * fixed.backward.0 as f64;
            constant += w as f64 * fixed.weight.0 as f64;
            for (at, sort) in self.sorts.iter().enumerate() {
                let more = (f - forward) as f64 * sort.forward
                    + (b - backward) as f64 * sort.backward
                    + (w - weight) as f64 * sort.weight;
                if more > 0.0 {
                    terms.push((self.layers(chunk, at), more / unit));
                }
                if let Some((extra, _)) = sort.whole.filter(|_| b > 0) {
                    terms.push((self.whole(chunk, at), b as f64 * extra / unit));
                }
            }
        }
        (-constant / unit, terms)
    }

    /// The model with so many chains, its first rows; then come the margins.
    fn model(&self, chains: &[Chain], whole: Option<Whole>) -> Option<(Model, Vec<Col>)> {
        let problem = self.problem;
        let mut stated = RowProblem::default();
        let mut columns: Vec<Col> = Vec::new();
        for _ in 0..if self.block { 2 } else { 1 } {
            for fixed in &problem.fixed {
                for sort in &self.sorts {
                    let most = if fixed.closed { 0.0 } else { f64::from(sort.count) };
                    let whole = whole.is_some() && self.ordered;
                    columns.push(stated.add_column_with_integrality(0.0, 0.0..=most, whole));
                }
            }
        }
        columns.extend([stated.add_column(1.0, 0.0..), stated.add_column(1.0, 0.0..)]);
        let ends = self.margins.as_ref().map_or(0, Margins::columns);
        columns.extend((0..ends).map(|_| stated.add_column(0.0, 0.0..)));
        let mut rows: Vec<Row> = chains.iter().map(|chain| self.row(chain)).collect();
        rows.extend(self.margin_rows());
        rows.extend(self.memory());
        for (chunk, fixed) in problem.fixed.iter().enumerate() {
            let all = (0..self.sorts.len()).map(|at| (self.layers(chunk, at), -1.0)).collect();
            rows.push((-f64::from(problem.least(chunk)), all));
            if self.block && !fixed.closed {
                rows.extend(self.recomputed(chunk));
            }
        }
        for (most, terms) in rows {
            stated.add_row(..=most, terms.into_iter().map(|(at, n)| (columns[at], n)));
        }
        for (at, sort) in self.sorts.iter().enumerate() {
            let count = f64::from(sort.count);
            let all = (0..problem.chunks()).map(|chunk| (columns[self.layers(chunk, at)], 1.0));
            stated.add_row(count..=count, all);
        }
        if self.ordered {
            self.keep_order(&mut stated, &columns, whole.is_some());
        } else {
            self.keep_shares(&mut stated, &columns);
            if whole.is_some() {
                self.whole_chunks(&mut stated, &columns);
            }
        }
        let ceiling = whole.as_ref().map_or(f64::INFINITY, |whole| whole.ceiling.0 as f64 / self.time_unit);
        if let Some(Whole { caps, .. }) = &whole {
            stated.add_row(..=ceiling, [(columns[self.flush()], 1.0), (columns[self.wait()], 1.0)]);
            for (rank, order) in problem.pipeline.orders.iter().enumerate() {
                for at in 0..self.sorts.len() {
                    let span = caps.of(rank)[at];
                    let span = f64::from(span.fewest)..=f64::from(span.most);
                    let sum = stated.add_column_with_integrality(0.0, span, self.ordered);
                    let own = order.chunks.iter().map(|&k| (columns[self.layers(k as usize, at)], 1.0));
                    stated.add_row(0.0..=0.0, own.chain([(sum, -1.0)]));
                }
            }
        }
        let mut model = stated.try_optimise(Sense::Minimise).ok()?;
        model.make_quiet();
        let set = [
            model.try_set_option("threads", 1).is_ok(),
            model.try_set_option("parallel", "off").is_ok(),
            model.try_set_option("random_seed", 7).is_ok(),
            model.try_set_option("time_limit", SECONDS).is_ok(),
            model.try_set_option("mip_max_nodes", whole.map_or(NODES, |whole| whole.nodes)).is_ok(),
            // An answer shows the chains that forbid it; it need not be the best.
            model.try_set_option("mip_max_improving_sols", 1).is_ok(),
            model.try_set_option("mip_allow_restart", false).is_ok(),
            model.try_set_option("mip_rel_gap", 1e-3).is_ok(),
            model.try_set_option("mip_heuristic_run_feasibility_jump", false).is_ok(),
            // What is above the ceiling is not searched. Its row is needed all the same: no bound that is read goes beyond.
            model.try_set_option("objective_bound", ceiling).is_ok(),
            // Mostly there is nothing to find, and these prove nothing.
            model.try_set_option("mip_heuristic_effort", 0.0).is_ok(),
            model.try_set_option("mip_heuristic_run_root_reduced_cost", false).is_ok(),
            model.try_set_option("mip_heuristic_run_rens", false).is_ok(),
            model.try_set_option("mip_heuristic_run_rins", false).is_ok(),
            model.try_set_option("mip_detect_symmetry", false).is_ok(),
        ];
        debug_assert!(set.iter().all(|&ok| ok), "HiGHS knows these options: {set:?}");
        Some((model, columns))
    }

    /// A run appears on a chunk only if the runs before it are complete by then.
    fn keep_order(&self, stated: &mut RowProblem, columns: &[Col], whole: bool) {
        for at in 1..self.sorts.len() {
            let (before, own) = (f64::from(self.sorts[at - 1].count), f64::from(self.sorts[at].count));
            let mut earlier: Option<Col> = None;
            for chunk in 0..self.problem.chunks() {
                let started = stated.add_column_with_integrality(0.0, 0.0..=1.0, whole);
                stated.add_row(..=0.0, [(columns[self.layers(chunk, at)], 1.0), (started, -own)]);
                let done = (0..=chunk).map(|k| (columns[self.layers(k, at - 1)], 1.0));
                stated.add_row(0.0.., done.chain([(started, -before)]));
                if let Some(earlier) = earlier {
                    stated.add_row(0.0.., [(started, 1.0), (earlier, -1.0)]);
                }
                earlier = Some(started);
            }
        }
    }

    /// Chunks and ranks hold whole numbers of layers.
    fn whole_chunks(&self, stated: &mut RowProblem, columns: &[Col]) {
        let all = f64::from(self.problem.layer_count());
        let mut chunks: Vec<Col> = Vec::new();
        for chunk in 0..self.problem.chunks() {
            let sum = stated.add_integer_column(0.0, 0.0..=all);
            let own = (0..self.sorts.len()).map(|at| (columns[self.layers(chunk, at)], 1.0));
            stated.add_row(0.0..=0.0, own.chain([(sum, -1.0)]));
            chunks.push(sum);
        }
        for order in &self.problem.pipeline.orders {
            let sum = stated.add_integer_column(0.0, 0.0..=all);
            let own = order.chunks.iter().map(|&k| (chunks[k as usize], 1.0));
            stated.add_row(0.0..=0.0, own.chain([(sum, -1.0)]));
        }
    }

    /// A chunk is a stretch of layers: of each sort it has about the share that all layers have.
    fn keep_shares(&self, stated: &mut RowProblem, columns: &[Col]) {
        let order: Vec<usize> =
            self.problem.runs.iter().flat_map(|run| (0..run.count).map(|_| usize::from(run.kind))).collect();
        for (at, sort) in self.sorts.iter().enumerate() {
            let share = f64::from(sort.count) / order.len() as f64;
            // How far prefixes are from their share: a stretch is the difference of two.
            let (mut ahead, mut most, mut least) = (0.0_f64, 0.0_f64, 0.0_f64);
            for &kind in &order {
                ahead += f64::from(u8::from(kind == sort.kind)) - share;
                (most, least) = (most.max(ahead), least.min(ahead));
            }
            let apart = most - least;
            for chunk in 0..self.problem.chunks() {
                let term = |other: usize| {
                    let own = f64::from(u8::from(other == at));
                    (columns[self.layers(chunk, other)], own - share)
                };
                let terms: Vec<(Col, f64)> = (0..self.sorts.len()).map(term).collect();
                stated.add_row(-apart..=apart, terms);
            }
        }
    }

    /// Block recomputation takes at least one layer of a chunk, and none that it does not have.
    fn recomputed(&self, chunk: usize) -> Vec<Row> {
        let sorts = 0..self.sorts.len();
        let own =
            sorts.clone().map(|at| (0.0, vec![(self.whole(chunk, at), 1.0), (self.layers(chunk, at), -1.0)]));
        let all = sorts.map(|at| (self.whole(chunk, at), -1.0)).collect();
        let least = if self.problem.least(chunk) > 0 { -1.0 } else { 0.0 };
        own.chain([(least, all)]).collect()
    }

    /// Sort of every layer.
    pub(super) fn order(&self) -> Vec<u8> {
        let runs = self.problem.runs.iter().enumerate();
        let sort = |(run, kind): (usize, usize)| {
            if self.ordered { run } else { self.sorts.iter().position(|sort| sort.kind == kind).unwrap_or(0) }
        };
        let layers = runs.flat_map(|(at, run)| {
            std::iter::repeat_n(sort((at, usize::from(run.kind))) as u8, run.count as usize)
        });
        layers.collect()
    }

    /// By chunk, the fewest layers, and whether it takes any.
    pub(super) fn fewest(&self) -> Vec<(u32, bool)> {
        let fixed = self.problem.fixed.iter().enumerate();
        fixed.map(|(k, fixed)| (self.problem.least(k), !fixed.closed)).collect()
    }

    /// A row with what a layer counts at least, by chunk and sort, whether recomputed or not.
    pub(super) fn by_layer(&self, (most, terms): Row) -> (f64, Vec<f64>) {
        let layers = self.problem.chunks() * self.sorts.len();
        let mut each = vec![0.0; layers];
        for (at, n) in terms {
            if at < layers {
                each[at] += n;
            } else if self.block && at < self.flush() {
                // A layer that is recomputed wholly may count less.
                each[at - layers] += n.min(0.0);
            }
        }
        (most, each)
    }

    /// What layers count, column by column.
    pub(super) fn by_column(&self, terms: Vec<(usize, f64)>) -> Vec<f64> {
        let mut columns = vec![0.0; self.flush()];
        terms.into_iter().filter(|&(at, _)| at < self.flush()).for_each(|(at, n)| columns[at] += n);
        columns
    }

    /// Layers of each kind by rank.
    fn by_rank(&self, split: &[u32]) -> Vec<Vec<u32>> {
        let problem = self.problem;
        let mut counts = vec![vec![0; problem.kinds.len()]; problem.pipeline.orders.len()];
        let mut order = problem.runs.iter().flat_map(|run| (0..run.count).map(|_| usize::from(run.kind)));
        for (&n, &rank) in split.iter().zip(&problem.pipeline.rank_of_chunk) {
            order.by_ref().take(n as usize).for_each(|kind| counts[rank as usize][kind] += 1);
        }
        counts
    }

    /// What a split takes, with what comes before and behind its passes.
    fn step_of(&self, split: &[u32], makespan: Picos, starts: &[Picos], ends: &[Picos]) -> Picos {
        let Some(margins) = &self.margins else { return makespan };
        let (wait, flush) = margins.of(&self.by_rank(split), starts, ends);
        wait + flush
    }

    /// What chains of such weights take on average whatever the split, and what each layer adds by chunk and sort, then what it
    /// adds to that if it is recomputed wholly.
    fn average(&self, chains: &[Chain], weights: &Duals) -> (f64, Vec<f64>) {
        let mut least = 0.0;
        let mut each = vec![0.0; self.flush()];
        let rows = chains.iter().map(|chain| self.sum(chain)).zip(weights.chains.iter().copied());
        let margins = self.margin_rows().into_iter().zip(self.balanced(chains, weights));
        for ((most, terms), weight) in rows.chain(margins).filter(|(_, weight)| *weight > 0.0) {
            least -= weight * most;
            for (at, n) in terms {
                // Columns beyond do not count.
                if let Some(each) = each.get_mut(at) {
                    *each += weight * n;
                }
            }
        }
        (least, each)
    }

    /// What chains of such weights take at least on average, in any split.
    fn weighted(&self, chains: &[Chain], weights: &Duals) -> Picos {
        let (mut least, each) = self.average(chains, weights);
        let (order, chunks) = (self.order(), self.fewest());
        let chunks = Chunks {
            order: &order,
            sorts: self.sorts.len(),
            least: &chunks,
            ranks: &self.problem.pipeline.rank_of_chunk,
        };
        least += chunks.lightest(&each)[0];
        self.picos(least)
    }

    /// What ranks hold if the makespan is below a ceiling; none if it cannot be.
    fn caps(&self, chains: &[Chain], ceiling: Picos) -> Option<Caps> {
        let problem = self.problem;
        let orders = &problem.pipeline.orders;
        let fewest = |chunks: &[u32]| chunks.iter().map(|&k| problem.least(k as usize)).sum();
        let counts = self.sorts.iter().map(|sort| sort.count).collect();
        let mut caps = Caps::new(counts, orders.iter().map(|order| fewest(order.chunks.as_slice())));
        let chains = chains.iter().map(|chain| {
            let (most, terms) = self.sum(chain);
            let longest = ceiling.saturating_sub(self.least_margin(chain.end));
            (most + longest.0 as f64 / self.time_unit, terms)
        });
        let by_rank = |row: Row| {
            let (most, by_chunk) = self.by_layer(row);
            let mut each = Vec::with_capacity(orders.len() * self.sorts.len());
            for order in orders {
                let open = || order.chunks.iter().filter(|&&k| !problem.fixed[k as usize].closed);
                let cheapest = |at: usize| {
                    open().map(|&k| by_chunk[self.layers(k as usize, at)]).reduce(f64::min).unwrap_or(0.0)
                };
                each.extend((0..self.sorts.len()).map(cheapest));
            }
            caps::Row { most, each }
        };
        let rows: Vec<caps::Row> = chains.chain(self.memory()).map(by_rank).collect();
        caps.tighten(&rows).then_some(caps)
    }

    /// Every rank has the memory in every state of its micro-batches in flight.
    pub(super) fn memory(&self) -> Vec<Row> {
        let problem = self.problem;
        let mut rows = Vec::new();
        for order in &problem.pipeline.orders {
            let holds_any = order.chunks.iter().any(|&k| problem.least(k as usize) > 0);
            let (mut bytes, mut transient, mut gathered) = (problem.rank_bytes.0, 0, 0);
            for &k in &order.chunks {
                let fixed = &self.fixed[k as usize];
                bytes += fixed.held.0;
                transient = transient.max(fixed.transient.0);
                gathered = gathered.max(fixed.gathered.0);
            }
            if holds_any {
                transient = transient.max(self.transient);
                let least = self.sorts.iter().map(|sort| problem.kinds[sort.kind].gathered.0).min();
                gathered = gathered.max(least.unwrap_or(0));
            }
            let steady = (bytes + transient + gathered) as f64;
            for counts in order.states() {
                let (mut ends, mut all) = (0.0, 0.0_f64);
                let mut terms = Vec::new();
                for (&k, &n) in order.chunks.iter().zip(counts) {
                    let (chunk, n) = (k as usize, f64::from(n));
                    ends += n * self.fixed[chunk].kept.0 as f64;
                    for (at, sort) in self.sorts.iter().enumerate() {
                        let each = sort.held + n * sort.kept;
                        all = all.max(each);
                        terms.push((self.layers(chunk, at), each / self.byte_unit));
                        if let Some((_, kept)) = sort.whole {
                            terms.push((self.whole(chunk, at), n * kept / self.byte_unit));
                        }
                    }
                }
                let free = problem.limit.0 as f64 - steady - ends;
                if all * f64::from(problem.layer_count()) > free {
                    rows.push((free / self.byte_unit, terms));
                }
            }
        }
        rows
    }
}
