//! `autoplan survey`: what each choice costs, from every plan with equal stages.

use std::io::Write;
use std::time::Duration;

use comfy_table::{CellAlignment, Table};
use serde_json::{Value, json};

use super::fix::{CONTEXT_COMMS, DISPATCHERS, GRAPHS, SCHEDULES};
use super::models::group;
use super::options::{JobArgs, MOST_GPUS, number_of_gpus};
use super::output::{percent, premises, seconds, whereabouts};
use super::plan::whole_nodes;
use super::progress::Bar;
use super::{Ending, Failure};
use crate::candidates::Space;
use crate::plan::{Offload, Plan};
use crate::planner::Prepared;
use crate::spec;
use crate::survey::{Axis, Best, RECOMPUTE_KINDS, Share, Survey, Surveyor, even_chunks};
use crate::units::Seconds;

/// Options of `autoplan survey`.
#[derive(Debug, clap::Args)]
// Of runs, and refused.
#[command(mut_arg("tokens", |tokens| tokens.hide(true)), mut_arg("price", |price| price.hide(true)))]
pub(crate) struct SurveyArgs {
    /// A shipped model's name (see `autoplan models`), a .ron file, or a Hugging Face config.json.
    model: String,
    /// A shipped cluster's name (see `autoplan clusters`) or a .ron file.
    cluster: String,
    /// GPUs.
    #[arg(long, short = 'g', value_parser = one_number)]
    gpus: u32,
    #[command(flatten)]
    job: JobArgs,
    /// Stop after this time and say what was seen: a sample of the space.
    #[arg(long)]
    time_limit: Option<Seconds>,
    /// Threads; what is seen does not depend on it.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Axes in the order in which they are shown, with their names.
const AXES: [(Axis, &str); 17] = [
    (Axis::TensorParallel, "tp"),
    (Axis::PipelineParallel, "pp"),
    (Axis::VirtualStages, "vpp"),
    (Axis::ContextParallel, "cp"),
    (Axis::ExpertParallel, "ep"),
    (Axis::ExpertTensorParallel, "etp"),
    (Axis::MicroBatchSize, "mb"),
    (Axis::ZeroStage, "zero"),
    (Axis::ShardGroup, "shard group"),
    (Axis::Recompute, "recompute"),
    (Axis::Schedule, "schedule"),
    (Axis::TensorOverlap, "tp-overlap"),
    (Axis::DataOverlap, "dp-overlap"),
    (Axis::ExpertOverlap, "ep-overlap"),
    (Axis::Dispatcher, "dispatcher"),
    (Axis::ContextComm, "cp-comm"),
    (Axis::CudaGraphs, "graphs"),
];

/// A value as `--fix` takes it.
fn named(axis: Axis, value: u32) -> String {
    fn of<T: Copy>(names: &[(&'static str, T)], value: u32, number: fn(T) -> u32) -> String {
        let name = names.iter().find(|(_, choice)| number(*choice) == value);
        name.map_or("-", |(name, _)| name).to_owned()
    }
    match axis {
        Axis::Recompute => RECOMPUTE_KINDS.get(value as usize).copied().unwrap_or("-").to_owned(),
        Axis::Schedule => of(&SCHEDULES, value, |choice| choice as u32),
        Axis::Dispatcher => of(&DISPATCHERS, value, |choice| choice as u32),
        Axis::ContextComm => of(&CONTEXT_COMMS, value, |choice| choice as u32),
        Axis::CudaGraphs => of(&GRAPHS, value, |choice| choice as u32),
        Axis::TensorOverlap | Axis::DataOverlap | Axis::ExpertOverlap => {
            if value == 1 { "on" } else { "off" }.to_owned()
        }
        _ => value.to_string(),
    }
}

/// The name of a plan with equal stages.
fn plan_of(prepared: &Prepared, best: &Best) -> Option<Plan> {
    let job = &prepared.task.job;
    let layers = prepared.layers.count();
    let chunks = even_chunks(layers, best.layout.chunk_count(), best.recompute);
    Plan::new(best.layout, chunks, job.gpus, job.global_batch_size, layers).ok()
}

fn one_number(text: &str) -> Result<u32, String> {
    number_of_gpus(text).ok_or_else(|| format!("expected one number of GPUs from 1 to {MOST_GPUS}"))
}

/// Runs the command.
pub(crate) fn run(args: &SurveyArgs) -> Result<Ending, Failure> {
    if let Some(threads) = args.threads {
        let built = rayon::ThreadPoolBuilder::new().num_threads(threads as usize).build_global();
        built.map_err(|e| Failure::Usage(format!("--threads {threads}: {e}")))?;
    }
    let limit = match args.time_limit {
        Some(limit) if limit.0 <= 0.0 => return Err(Failure::Usage("--time-limit must be positive".into())),
        limit => limit.map(|l| Duration::from_secs_f64(l.0.min(1e9))),
    };
    if args.job.tokens.is_some() || args.job.price.is_some() {
        return Err(Failure::Usage(
            "a survey is of steps, not of runs and their dollars: leave --tokens and --price to `autoplan plan`".into(),
        ));
    }
    if args.cluster.contains(',') {
        return Err(Failure::Usage(format!("{}: a survey is of one cluster", args.cluster)));
    }
    let machine = spec::load_cluster(&args.cluster)?;
    whole_nodes(&machine, args.gpus)?;
    let task = args.job.task(&args.model, &machine, args.gpus)?;
    if task.restrictions.offload.as_ref().is_some_and(|all| all.iter().any(|one| *one != Offload::NONE)) {
        return Err(Failure::Usage("a survey keeps everything on the GPUs: leave --fix offload out".into()));
    }
    let prepared = task.prepare();
    let cost = prepared.cost();
    let space = Space::new(task.target, &prepared.context, &task.restrictions);
    let bar = Bar::new(limit);
    let survey = Surveyor { cost: &cost, layers: &prepared.layers, space: &space }.run(&bar);
    let wall = bar.elapsed();
    bar.clear();
    let mut out = std::io::stdout().lock();
    match args.format {
        Format::Table => table(&prepared, &args.job, &survey, &mut out)?,
        Format::Json => writeln!(
            out,
            "{}",
            serde_json::to_string_pretty(&as_json(&prepared, &survey)).unwrap_or_default()
        )?,
    }
    let rate = survey.tally.all.plans as f64 / wall.as_secs_f64().max(1e-9);
    anstream::eprintln!("evaluated in {:.3} s, {:.1} million plans a second", wall.as_secs_f64(), rate / 1e6);
    Ok(if survey.tally.all.best.is_some() { Ending::Done } else { Ending::Negative })
}

/// Most values of an axis that have a line of their own.
const SHOWN: usize = 9;

/// Values of an axis with their plans.
type Values<'a> = Vec<(u32, &'a Share)>;

/// The values of an axis with the fastest plans, in order, and the others.
fn shown(all: Values<'_>) -> (Values<'_>, Values<'_>) {
    let mut steps: Vec<u64> =
        all.iter().map(|(_, share)| share.best.map_or(u64::MAX, |best| best.step.0)).collect();
    steps.sort_unstable();
    let last = if steps.len() > SHOWN + 1 { steps[SHOWN - 1] } else { u64::MAX };
    let mut left = SHOWN;
    all.into_iter().partition(|(_, share)| {
        let one = last == u64::MAX || left > 0 && share.best.is_some_and(|best| best.step.0 <= last);
        left -= usize::from(one && last < u64::MAX);
        one
    })
}

/// Step of the best plan of a share, and by how much it is behind the best of all.
fn beside(share: &Share, best: &Best) -> [String; 2] {
    match &share.best {
        Some(own) if own.step == best.step => [seconds(own.step.seconds()), String::new()],
        Some(own) => {
            let behind = own.step.0 as f64 / best.step.0 as f64 - 1.0;
            [seconds(own.step.seconds()), percent(behind)]
        }
        None => ["none fits".to_owned(), String::new()],
    }
}

/// Factors on the best step within which plans are counted.
const WITHIN: [(f64, &str); 4] = [(1.02, "2%"), (1.05, "5%"), (1.1, "10%"), (1.25, "25%")];

fn table(prepared: &Prepared, given: &JobArgs, survey: &Survey, out: &mut dyn Write) -> Result<(), Failure> {
    let tally = &survey.tally;
    let task = prepared.task;
    writeln!(
        out,
        "{}, batch {} x {} tokens",
        whereabouts(task),
        task.job.global_batch_size,
        task.job.sequence_length
    )?;
    writeln!(out, "{}", premises(task, given))?;
    let stopped = survey.seen < survey.groups;
    if stopped {
        writeln!(
            out,
            "stopped: a sample of {} of {} combinations of degrees and micro-batch; what is best of it, and by how much others are behind, depends on it",
            group(survey.seen as u64),
            group(survey.groups as u64)
        )?;
    }
    writeln!(
        out,
        "{} plans with equal stages and one way to recompute, {}: {} fit",
        group(tally.all.plans),
        if stopped { "all of the sample" } else { "all evaluated" },
        group(tally.all.fitting)
    )?;
    if tally.without_closed_form > 0 {
        writeln!(
            out,
            "left out: {} layouts with V-shaped schedules, which have no closed form, or with multi-token prediction on a stage of its own",
            group(tally.without_closed_form)
        )?;
    }
    let Some(best) = &tally.all.best else {
        if tally.all.plans == 0 {
            writeln!(out, "nothing was evaluated; `autoplan plan` looks at all layouts and splits")?;
            return Ok(());
        }
        writeln!(out, "none fits: `autoplan plan` says what binds, and the ways out")?;
        return Ok(());
    };
    if let Some(plan) = plan_of(prepared, best) {
        writeln!(out, "best: {plan}, {}", seconds(best.step.seconds()))?;
    }
    let within: Vec<String> = WITHIN
        .iter()
        .map(|(factor, name)| format!("{} within {name}", group(tally.within(*factor))))
        .collect();
    writeln!(out, "of the best: {}", within.join(", "))?;
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["axis", "value", "plans", "fit", "best step", "behind the best"]);
    for (axis, name) in AXES {
        if tally.of(axis).count() < 2 {
            continue;
        }
        let mut name = name;
        let (shown, others) = shown(tally.of(axis).collect());
        for (value, share) in shown {
            let fit = share.fitting as f64 / share.plans.max(1) as f64;
            let [step, behind] = beside(share, best);
            // The name of an axis once.
            let name = std::mem::take(&mut name);
            table.add_row([name, &named(axis, value), &group(share.plans), &percent(fit), &step, &behind]);
        }
        if !others.is_empty() {
            let plans: u64 = others.iter().map(|(_, share)| share.plans).sum();
            let fitting: u64 = others.iter().map(|(_, share)| share.fitting).sum();
            let first = others
                .iter()
                .map(|(_, share)| *share)
                .min_by_key(|share| share.best.map_or(u64::MAX, |best| best.step.0));
            let [step, behind] = first.map_or_else(Default::default, |share| beside(share, best));
            let fit = fitting as f64 / plans.max(1) as f64;
            let many = format!("{} others", others.len());
            table.add_row(["", &many, &group(plans), &percent(fit), &step, &behind]);
        }
    }
    for column in 1..6 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    writeln!(out, "{table}")?;
    writeln!(
        out,
        "Steps are closed forms; `autoplan plan` simulates its plans and moves layers between stages."
    )?;
    if tally.of(Axis::VirtualStages).count() > 1 {
        writeln!(
            out,
            "Of several virtual stages they are a percent or two off, and up to 12% where chunks differ most."
        )?;
    }
    Ok(())
}

fn as_json(prepared: &Prepared, survey: &Survey) -> Value {
    let tally = &survey.tally;
    let best = |best: &Option<Best>| match best {
        Some(best) => json!({
            "step_time_s": best.step.seconds().0, "recompute": best.recompute, "plan": best.layout,
            "name": plan_of(prepared, best).map(|plan| plan.to_string()),
        }),
        None => Value::Null,
    };
    let axes = AXES.iter().map(|(axis, name)| {
        let values = tally.of(*axis).map(|(value, share)| {
            json!({
                "value": named(*axis, value), "plans": share.plans, "fitting": share.fitting,
                "best": best(&share.best),
            })
        });
        ((*name).to_owned(), Value::Array(values.collect()))
    });
    let within = WITHIN.iter().map(|(factor, _)| json!({"factor": factor, "plans": tally.within(*factor)}));
    let task = prepared.task;
    json!({
        "model": task.model.name, "cluster": task.machine.cluster.name, "gpus": task.job.gpus,
        "framework": task.target.name(), "profile": task.profile_name,
        "groups": survey.groups, "groups_seen": survey.seen, "plans": tally.all.plans,
        "fitting": tally.all.fitting, "layouts_refused": tally.refused,
        "layouts_without_closed_form": tally.without_closed_form, "best": best(&tally.all.best),
        "within": within.collect::<Vec<Value>>(), "axes": Value::Object(axes.collect()),
    })
}
