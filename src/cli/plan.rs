//! `autoplan plan`.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::check::verify;
use super::options::{GpuCounts, JobArgs, gpu_counts, inexpressible};
use super::output::{self, Format, PlannedPhase, Report, Section};
use super::progress::Bar;
use super::remedies::Bounds;
use super::{Ending, Failure, better_numbers};
use crate::cost::money::phased_cost;
use crate::planner::{Offloading, Prepared, Solution, Task};
#[cfg(feature = "milp")]
use crate::search::MOST_EFFORT;
use crate::search::{Answer, Observer, Request, Stop};
use crate::spec::job::Phase;
use crate::spec::{self, Machine};
use crate::units::{Dollars, Seconds};

/// Searches that go on at once: each takes some tens of megabytes.
const AT_ONCE: usize = 4;

/// Proofs that take at least so long are told apart from the search.
const TELLING: Duration = Duration::from_millis(500);

/// Options of `autoplan plan`.
#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    /// A shipped model's name (see `autoplan models`), a .ron file, or a Hugging Face config.json.
    model: String,
    /// A shipped cluster's name (see `autoplan clusters`) or a .ron file; several with commas.
    cluster: String,
    /// GPUs: N, a list A,B,C, or a range A..B: every number of whole nodes, or where those are more than 32, the ones
    /// that are products of 2, 3, 5 and 7.
    #[arg(long, short = 'g', allow_negative_numbers = true)]
    gpus: String,
    #[command(flatten)]
    job: JobArgs,
    /// One phase of the run as SEQUENCE:BATCH:TOKENS, such as 8192:2048:14T; several for a run that changes its
    /// context. Each phase is planned for itself; --seq-len, --global-batch and --tokens do not apply.
    #[arg(long, value_name = "PHASE", conflicts_with_all = [
        "global_batch", "seq_len", "tokens", "deadline", "budget_usd", "gpus_at_most", "top", "per_layout", "pick",
        "time_limit", "objective", "timings",
    ])]
    phase: Vec<Phase>,
    /// What is best.
    #[arg(long, value_enum, default_value = "time")]
    objective: Objective,
    /// How many kinds of plans to print; a kind is one combination of TP, PP, CP, EP and ETP.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    top: u32,
    /// How many layouts of one kind to print.
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    per_layout: u32,
    /// Print or save the N-th of these plans alone.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pick: Option<u32>,
    /// The run must end within this time: 30d. Needs --tokens.
    #[arg(long, requires = "tokens", allow_hyphen_values = true)]
    deadline: Option<Seconds>,
    /// The run may cost this many dollars: 5e6 or 5M. Needs --tokens.
    #[arg(long, value_name = "USD", requires = "tokens", value_parser = dollars, allow_hyphen_values = true)]
    budget_usd: Option<Dollars>,
    /// Stop searching after this time and print the best so far with its gap: 10s.
    #[arg(long)]
    time_limit: Option<Seconds>,
    /// Evaluate every layout, whatever the bounds say: minutes, and hours of large spaces, which --time-limit ends.
    #[arg(long)]
    exhaustive: bool,
    /// Compare even splits of the layers over the stages only.
    #[arg(long)]
    even_stages: bool,
    /// Print and save splits as they were ranked. Else layers of the first ten plans and of a picked one are moved between chunks where that
    /// makes them faster, and may be recomputed in another way; which plans those are, and their order, is decided, and
    /// proved, without.
    #[arg(long)]
    as_ranked: bool,
    /// Do up to so many times the usual work to prove how little another split of the layers could gain: as far as 2%, where
    /// that can be reached, instead of 5%. Faster splits may be found on the way, so that what is printed may change. For
    /// each plan whose proof is hard it takes about as many seconds of a core; those of up to ten plans are proved.
    #[cfg(feature = "milp")]
    #[arg(
        long,
        value_name = "TIMES",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_EFFORT)),
        conflicts_with = "even_stages"
    )]
    prove: u32,
    /// Print the layers, time and memory of every stage of each plan.
    #[arg(long)]
    stages: bool,
    /// Leave GPUs idle where that is faster; says how many.
    #[arg(long)]
    gpus_at_most: bool,
    /// Threads; the answer does not depend on it.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// Print wall time with the answer.
    #[arg(long)]
    timings: bool,
}

impl PlanArgs {
    /// Without the solver there is nothing to prove with.
    fn effort(&self) -> u32 {
        #[cfg(feature = "milp")]
        return self.prove;
        #[cfg(not(feature = "milp"))]
        return 1;
    }

    /// The plan that is picked, if one is that the search can bring.
    fn pick(&self) -> Result<Option<usize>, Failure> {
        let Some(pick) = self.pick else { return Ok(None) };
        let (top, each) = (self.top, self.per_layout);
        if pick > top.saturating_mul(each) {
            let brought = if each == 1 {
                format!("--top {top}")
            } else {
                format!("--top {top} with --per-layout {each}")
            };
            return Err(Failure::Usage(format!(
                "--pick {pick}: {brought} brings fewer plans; --top {} brings enough",
                pick.div_ceil(each)
            )));
        }
        Ok(Some(pick as usize))
    }

    /// Who asks for long proofs waits from the beginning.
    fn bar(&self, limit: Option<Duration>) -> Bar {
        let bar = Bar::new(limit);
        if self.effort() > 1 { bar.at_once() } else { bar }
    }
}

/// What is best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Objective {
    /// Tokens per second of the whole job.
    Time,
    /// Dollars per token.
    Cost,
}

/// The integer programme looks at so many of the printed plans, and moves look for better splits of these.
pub(super) const VERIFIED: usize = 10;

fn dollars(text: &str) -> Result<Dollars, String> {
    let number = text.strip_suffix("USD").unwrap_or(text).trim_end();
    let (number, factor) = [("k", 1e3), ("M", 1e6), ("B", 1e9)]
        .into_iter()
        .find_map(|(unit, factor)| Some((number.strip_suffix(unit)?, factor)))
        .unwrap_or((number, 1.0));
    let number = number.parse::<f64>().ok().map(|number| number * factor);
    number
        .filter(|n| n.is_finite() && *n > 0.0)
        .map(Dollars)
        .ok_or_else(|| "expected dollars above 0, such as 5e6 or 5M".into())
}

/// GPU counts at and below one that are worth trying when some may stay idle.
pub(crate) fn at_most(gpus: u32, per_node: u32) -> Vec<u32> {
    let nodes = (gpus / per_node).max(1);
    // What is left of a node stays idle.
    let gpus = if gpus > per_node { nodes * per_node } else { gpus };
    let mut counts = vec![gpus];
    // Whole nodes, largest first; a sixth fewer at most, or nothing near would divide anything.
    let whole = (nodes - nodes / 6..=nodes)
        .rev()
        .filter(|&n| n > 0 && better_numbers::smooth(n))
        .map(|n| n * per_node);
    counts.extend(whole.filter(|&n| n < gpus).take(4));
    if gpus < per_node {
        counts.extend((1..gpus).rev().filter(|&n| n.is_power_of_two()).take(1));
    }
    counts
}

/// Runs the command.
pub(crate) fn run(args: &PlanArgs) -> Result<Ending, Failure> {
    if let Some(threads) = args.threads {
        let built = rayon::ThreadPoolBuilder::new().num_threads(threads as usize).build_global();
        built.map_err(|e| Failure::Usage(format!("--threads {threads}: {e}")))?;
    }
    if !args.phase.is_empty() {
        return phases(args);
    }
    let mut machines: Vec<(&str, Machine)> = Vec::new();
    for name in args.cluster.split(',') {
        if machines.iter().all(|(known, _)| *known != name) {
            machines.push((name, spec::load_cluster(name)?));
        }
    }
    let limit = match args.time_limit {
        Some(limit) if limit.0 <= 0.0 => return Err(Failure::Usage("--time-limit must be positive".into())),
        limit => limit.map(|l| Duration::from_secs_f64(l.0.min(1e9))),
    };
    if args.deadline.is_some_and(|deadline| deadline.0 <= 0.0) {
        return Err(Failure::Usage("--deadline must be positive".into()));
    }
    let pick = args.pick()?;
    let bar = args.bar(limit);
    let mut request = Request {
        top: args.top as usize,
        per_class: args.per_layout as usize,
        exhaustive: args.exhaustive,
        even_stages: args.even_stages,
        verified: VERIFIED,
        effort: args.effort(),
        ..Request::default()
    };
    let mut tasks: Vec<(String, Task)> = Vec::new();
    let (mut unable, mut notes): (Vec<String>, Vec<String>) = Default::default();
    for (name, machine) in &machines {
        let GpuCounts { mut counts, note } = gpu_counts(&args.gpus, machine.cluster.gpus_per_node)?;
        if counts.is_empty() {
            unable.push(format!("{name}: {}", note.unwrap_or_default()));
            continue;
        }
        notes.extend(note.filter(|note| !notes.contains(note)));
        if args.gpus_at_most {
            counts = counts.iter().flat_map(|&n| at_most(n, machine.cluster.gpus_per_node)).collect();
            counts.sort_unstable();
            counts.dedup();
        }
        for gpus in counts {
            let task = whole_nodes(machine, gpus).and_then(|()| args.job.task(&args.model, machine, gpus));
            match task {
                Ok(task) => tasks.push(((*name).to_owned(), task)),
                // What one of several clusters cannot do is no reason to say nothing of the others.
                Err(Failure::Usage(reason)) if machines.len() > 1 => unable.push(format!("{name}: {reason}")),
                Err(failure) => return Err(failure),
            }
        }
    }
    if tasks.is_empty() && !unable.is_empty() {
        return Err(Failure::Usage(unable.join("\nerror: ")));
    }
    for reason in notes.iter().chain(&unable) {
        anstream::eprintln!("note: {reason}");
    }
    if tasks.len() == 1 {
        // A plan that is picked is printed as the first ones are.
        request.picked = pick.map(|number| number - 1);
    } else if !args.job.price.unwrap_or_default().electricity_extra() {
        // Of each choice of GPUs the fastest plan is printed; the others cost more, unless they need less power.
        (request.top, request.per_class, request.verified) = (1, 1, 1);
    }
    let prepared: Vec<_> = tasks.iter().map(|(name, task)| (name, task.prepare())).collect();
    let sections = solve_all(&prepared, &request, args.as_ranked, &bar)?;
    bar.clear();
    let empty = sections.iter().all(|s| s.answer.found.is_empty());
    let interrupted = sections.iter().any(|s| s.answer.stop == Stop::Interrupted);
    let better_numbers = || match (tasks.as_slice(), sections.as_slice()) {
        ([(_, task)], [section]) if !interrupted => {
            let found = better_numbers::better_numbers(task, section, &request, &bar);
            bar.clear();
            found
        }
        _ => Vec::new(),
    };
    let report = Report {
        sections: &sections,
        model: &args.model,
        job: &args.job,
        objective: args.objective,
        bounds: Bounds { deadline: args.deadline, budget: args.budget_usd },
        top: args.top as usize * args.per_layout as usize,
        pick,
        verified: request.verified,
        stages: args.stages,
        effort: args.effort(),
        even_stages: args.even_stages,
        as_ranked: args.as_ranked,
        asked: if args.gpus_at_most { args.gpus.parse().ok() } else { None },
        wall: args.timings.then(|| bar.elapsed()),
        better_numbers: &better_numbers,
        bar: &bar,
    };
    let printed = output::print(&report, args.format)?;
    if let Some(reason) = tasks.first().filter(|_| !empty).and_then(|(_, task)| inexpressible(task)) {
        anstream::eprintln!("note: these plans are predictions only, they cannot be exported: {reason}");
    }
    let cut_short = sections.iter().flat_map(|section| &section.answer.found).any(|found| found.cut_short);
    if interrupted || cut_short {
        let optimal = sections.iter().all(|section| section.answer.optimality_gap == 0.0);
        anstream::eprintln!(
            "note: {} ended the {}",
            bar.stopped_by(),
            match (empty, printed) {
                (true, _) => "search before it found a plan",
                (false, false) => "search before it found a plan that keeps the deadline and the budget",
                (false, true) if !interrupted => {
                    "proofs of how near splits are to the fastest, and the search for faster ones: the plans are all there"
                }
                (false, true) if optimal => "search: the first plan is the best, those behind it may not be",
                (false, true) => "search: the plans are the best so far",
            }
        );
    }
    // Who reads a table has it before they are sought.
    if args.format != Format::Json {
        better_numbers().iter().for_each(|better| anstream::eprintln!("note: {better}"));
    }
    let proved = bar.proved_for();
    let proving = match proved >= TELLING {
        true => {
            format!(", of which {:.1} s to prove how near splits are to the fastest", proved.as_secs_f64())
        }
        false => String::new(),
    };
    anstream::eprintln!("searched in {:.3} s{proving}", bar.elapsed().as_secs_f64());
    Ok(if printed { Ending::Done } else { Ending::Negative })
}

/// Solves all tasks, some at once: of each much goes into one plan, which keeps one thread at work.
fn solve_all<'a>(
    tasks: &'a [(&'a String, Prepared<'a>)],
    request: &Request,
    as_ranked: bool,
    bar: &Bar,
) -> Result<Vec<Section<'a>>, Failure> {
    let order = spread_out(tasks.len());
    let solve = |turn: usize, at: usize| -> Result<Section<'a>, Failure> {
        let (cluster, prepared) = &tasks[at];
        let mut solution = if turn > 0 && bar.stop() {
            Solution { answer: Answer::unsearched(), offloading: Offloading::Left }
        } else {
            prepared.solve(request, &bar.turn(turn + 1, tasks.len()))
        };
        if !as_ranked {
            solution.take_polished();
        }
        let Solution { answer, offloading } = solution;
        verify(prepared, &answer.found)?;
        Ok(Section { cluster: (*cluster).clone(), prepared, answer, offloading })
    };
    // What fails in one search ends the others, a panic as well.
    struct EndsAll<'a>(&'a AtomicUsize, usize);
    impl Drop for EndsAll<'_> {
        fn drop(&mut self) {
            self.0.store(self.1, Ordering::Relaxed);
        }
    }
    let turns = AtomicUsize::new(0);
    let work = || -> Vec<_> {
        let next = || {
            let turn = turns.fetch_add(1, Ordering::Relaxed);
            let &at = order.get(turn)?;
            let failed = EndsAll(&turns, order.len());
            let section = solve(turn, at);
            if section.is_ok() {
                std::mem::forget(failed);
            }
            Some((at, section))
        };
        std::iter::from_fn(next).collect()
    };
    let others = rayon::current_num_threads().min(AT_ONCE).min(tasks.len()).saturating_sub(1);
    let mut solved = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..others).map(|_| scope.spawn(work)).collect();
        let joined =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        let mut solved = work();
        solved.extend(joined.flatten());
        solved
    });
    solved.sort_by_key(|(at, _)| *at);
    solved.into_iter().map(|(_, section)| section).collect()
}

/// So many numbers from 0 in an order of which every beginning is from all over them: the first, the last, and what halves
/// the widest gap.
fn spread_out(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = [Some(0), count.checked_sub(1)].into_iter().flatten().collect();
    order.truncate(count);
    let mut gaps: VecDeque<(usize, usize)> = VecDeque::from([(0, count.saturating_sub(1))]);
    while let Some((from, to)) = gaps.pop_front() {
        let middle = from.midpoint(to);
        if middle > from {
            order.push(middle);
            gaps.extend([(from, middle), (middle, to)]);
        }
    }
    order
}

/// Refuses what no whole nodes of a machine give.
pub(super) fn whole_nodes(machine: &Machine, gpus: u32) -> Result<(), Failure> {
    let (name, per) = (&machine.cluster.name, machine.cluster.gpus_per_node);
    if let Some(most) = machine.cluster.max_gpus.filter(|&most| gpus > most) {
        return Err(Failure::Usage(format!("--gpus {gpus}: {name} has {most} GPUs")));
    }
    if gpus > per && gpus % per != 0 {
        let nodes = gpus / per;
        return Err(Failure::Usage(format!(
            "--gpus {gpus}: nodes of {name} have {per} GPUs each; the nearest counts are {} and {}",
            nodes * per,
            (nodes + 1) * per
        )));
    }
    Ok(())
}

/// Plans every phase of a run and totals them.
fn phases(args: &PlanArgs) -> Result<Ending, Failure> {
    if matches!(args.format, Format::Csv | Format::Ron) {
        return Err(Failure::Usage(
            "--format: phases are printed as table or json; csv and ron hold one plan's job, so plan each phase alone"
                .into(),
        ));
    }
    let machine = spec::load_cluster(&args.cluster)?;
    let counts = gpu_counts(&args.gpus, machine.cluster.gpus_per_node)?.counts;
    let [gpus] = counts.as_slice() else {
        return Err(Failure::Usage("phases take one cluster and one number of GPUs".into()));
    };
    whole_nodes(&machine, *gpus)?;
    let bar = args.bar(None);
    let request = Request {
        top: 1,
        verified: 1,
        effort: args.effort(),
        exhaustive: args.exhaustive,
        even_stages: args.even_stages,
        ..Request::default()
    };
    let mut tasks = Vec::new();
    for phase in &args.phase {
        let job = JobArgs {
            global_batch: Some(phase.global_batch_size),
            seq_len: Some(phase.sequence_length),
            tokens: Some(phase.tokens),
            ..args.job.clone()
        };
        tasks.push(job.task(&args.model, &machine, *gpus)?);
    }
    let prepared: Vec<_> = tasks.iter().map(Task::prepare).collect();
    let mut planned = Vec::new();
    for (&phase, prepared) in args.phase.iter().zip(&prepared) {
        let mut solution = prepared.solve(&request, &bar);
        if !args.as_ranked {
            solution.take_polished();
        }
        let Solution { answer, offloading } = solution;
        let Some(best) = answer.found.into_iter().next() else {
            bar.clear();
            anstream::eprintln!("no plan for the phase {phase}; plan it alone to see why");
            return Ok(Ending::Negative);
        };
        verify(prepared, std::slice::from_ref(&best))?;
        planned.push(PlannedPhase { phase, prepared, found: best, offloading });
    }
    bar.clear();
    let runs: Vec<_> = planned
        .iter()
        .map(|planned| (planned.prepared.run(&planned.found.prediction), planned.phase.tokens))
        .collect();
    let total = phased_cost(&runs).map_err(|e| Failure::Usage(e.to_string()))?;
    output::print_phases(args.format, &args.job, &planned, &total)?;
    Ok(Ending::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_beginning_is_from_all_over() {
        for count in 0..200 {
            let order = spread_out(count);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.iter().copied().eq(0..count), "{order:?}");
            // Nothing is further from what was searched than about twice as far as it must be.
            for searched in 2..=count {
                let mut some = order[..searched].to_vec();
                some.sort_unstable();
                let widest = some.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
                assert!(widest <= 2 * (count - 1).div_ceil(searched - 1), "{count} {some:?}");
            }
        }
        assert_eq!(spread_out(5), [0, 4, 2, 1, 3]);
    }
}
