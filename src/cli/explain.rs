//! `autoplan explain` and `autoplan compare`.

use std::io::Write;

use comfy_table::CellAlignment;
use serde_json::json;

use super::check::{note_wrong_statements, verify};
use super::export::command_line;
use super::fix::choices_of;
use super::import::{LaunchArgs, Launched, kind_of, own_job};
use super::lines::Lines;
use super::no_plan::reasons;
use super::options::{JobArgs, framework, gpu_counts};
use super::output::{
    by, gpu_hours, item_name, layout_json, left_out, money, percent, plain_table, seconds, width,
};
use super::progress::Bar;
use super::warnings::{self, Leaned, holds_too_much};
use super::{Ending, Failure, stages};
use crate::cost::advice::BatchRamp;
use crate::cost::goodput::Goodput;
use crate::cost::money::{RunCost, goodput_of, run_cost, step_cost};
use crate::cost::roofline::Ceiling;
use crate::cost::step::Prediction;
use crate::explain::advice::{ACHIEVABLE_MFU, Advice, RampAdvice, Reference, advice, ramp_advice};
use crate::explain::{Outcome, Standing, standing};
use crate::frameworks::changes::{Change, Settings, Written};
use crate::frameworks::export::{ExportRequest, Format as Files};
use crate::frameworks::{Target, legal_plan};
use crate::plan::{Offload, Plan};
use crate::planner::{Offloading, Prepared, Solution, Task};
use crate::search::{Answer, Request};
use crate::spec;
use crate::spec::job::{Job, Routing, Training};
use crate::spec::saved::SavedPlan;
use crate::units::{Bytes, Picos, Seconds, spaced};

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Options of `autoplan explain`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// A saved plan (- reads it from standard input); a launch script of Megatron-LM or a DeepSpeed configuration, with
    /// --cluster; or a model, to explain the best plan under the given --fix options.
    what: String,
    /// The cluster, where the first argument is a model.
    cluster: Option<String>,
    /// The cluster, where the first argument is a launch script or a DeepSpeed configuration.
    #[arg(long = "cluster", value_name = "CLUSTER", conflicts_with = "cluster")]
    on: Option<String>,
    /// GPUs, where the first argument is no saved plan; a launch script may say it itself.
    #[arg(long, short = 'g')]
    gpus: Option<String>,
    #[command(flatten)]
    launch: LaunchArgs,
    #[command(flatten)]
    job: JobArgs,
    /// Sequences per step of the recipe whose learning rate you know: advises on the plan's batch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    reference_batch: Option<u32>,
    /// Peak learning rate of that recipe.
    #[arg(long, value_name = "RATE", requires = "reference_batch", value_parser = rate)]
    learning_rate: Option<f64>,
    /// Warm-up steps of that recipe.
    #[arg(long, value_name = "STEPS", requires = "reference_batch", value_parser = clap::value_parser!(u64).range(1..1 << 40))]
    warm_up: Option<u64>,
    /// A global batch that grows over the first samples, as START:INCREMENT:SAMPLES (--rampup-batch-size of
    /// Megatron-LM): what it costs with this plan's layout.
    #[arg(long, value_name = "RAMP")]
    batch_ramp: Option<BatchRamp>,
    /// Skip the search for better plans.
    #[arg(long)]
    alone: bool,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Options of `autoplan compare`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// A saved plan; - reads it from standard input.
    first: String,
    /// Another.
    second: String,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// The task that a saved plan was made for.
pub(crate) fn task_of(saved: &SavedPlan) -> Result<Task, Failure> {
    let (target, _, _) = framework(&saved.framework)?;
    let (_, profile_name, profile) = framework(&saved.profile)?;
    Ok(Task {
        model: saved.model.clone(),
        machine: saved.machine(),
        job: saved.job.clone(),
        target,
        profile,
        profile_name,
        restrictions: crate::candidates::Restrictions::default(),
        pricing: saved.price,
    })
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "expected a learning rate, such as 3e-4".into())
}

/// Advice for people; it says of itself that it is no prediction.
fn advice_text(advice: &Advice, out: &mut impl Write) -> Result<(), Failure> {
    let word = |ceiling: Ceiling| match ceiling {
        Ceiling::Compute => "compute",
        Ceiling::Memory => "memory",
        Ceiling::Network => "the network",
    };
    writeln!(out, "\nadvice (rules of thumb, no prediction):")?;
    let p = &advice.products;
    writeln!(
        out,
        "  matrix products: {:.0} FLOPs a byte of memory traffic, ridge {:.0}: {} binds",
        p.flops_per_byte,
        p.ridge,
        word(p.ceiling)
    )?;
    if let Some(g) = &advice.gradients {
        writeln!(
            out,
            "  gradients: {:.0} FLOPs of the step a byte on the network, ridge {:.0}: {} binds",
            g.flops_per_byte,
            g.ridge,
            word(g.ceiling)
        )?;
    }
    let w = &advice.walls;
    let gpus = if w.least_gpus == 1 { "GPU" } else { "GPUs" };
    write!(out, "  at least: the states alone need {} {gpus}", w.least_gpus)?;
    if let (Some(petaflops), Some(days)) = (w.petaflop_days, w.days_at_achievable_mfu) {
        let share = percent(ACHIEVABLE_MFU);
        write!(out, "; {petaflops:.0} PFLOP/s-days, {days:.1} days at {share} of peak without losses")?;
    }
    let of = if advice.waste_of_run { "" } else { " a step" };
    let wasted = if advice.waste.share > 0.0 {
        let (share, dollars) = (percent(advice.waste.share), money(advice.waste.dollars));
        format!("at {:.0}% MFU it would cost {share} less, by {dollars}{of}; ", ACHIEVABLE_MFU * 100.0)
    } else {
        String::new()
    };
    writeln!(out, "\n  money: {wasted}a point of MFU is worth {}{of}", money(advice.waste.per_mfu_point))?;
    let n = &advice.precision;
    writeln!(
        out,
        "  numbers: gradients in {} reach from {:.1e} to {:.1e}; the loss needs {} scale",
        n.backward.name,
        n.smallest_normal,
        n.largest,
        if n.loss_scaling { "a" } else { "no" }
    )?;
    if let Some(ramp) = &advice.ramp {
        ramp_text(ramp, out)?;
    }
    if let Some(batch) = &advice.batch {
        write!(out, "{batch}")?;
    }
    if let Some(s) = &advice.schedule {
        writeln!(
            out,
            "  schedule: {:.2e} at step {}, {:.2e} half-way, {:.2e} at step {}",
            s.at(s.warm_up_steps),
            s.warm_up_steps,
            s.at(s.steps / 2),
            s.at(s.steps),
            s.steps
        )?;
    }
    Ok(())
}

/// A batch ramp for people: its stages, a few of them where there are many, and what it adds.
fn ramp_text(advice: &RampAdvice, out: &mut impl Write) -> Result<(), Failure> {
    const SHOWN: usize = 8;
    let (stages, cost) = (&advice.stages, &advice.cost);
    let days = |time: Seconds| format!("{:.2} days", time.0 / 86_400.0);
    writeln!(
        out,
        "  batch ramp {}: {} tokens below the full batch take {} instead of {}, {} more ({:+.1} %)",
        advice.ramp,
        cost.tokens,
        days(cost.ramp),
        days(cost.full_batch),
        money(cost.extra_dollars),
        100.0 * (cost.ramp / cost.full_batch - 1.0)
    )?;
    let every = stages.len().div_ceil(SHOWN);
    for stage in stages.iter().step_by(every.max(1)) {
        writeln!(
            out,
            "    batch {}: accumulation {}, {} a step",
            stage.global_batch_size,
            stage.gradient_accumulation_steps,
            seconds(stage.step)
        )?;
    }
    Ok(())
}

/// Runs `explain`.
pub(crate) fn explain(args: &ExplainArgs) -> Result<Ending, Failure> {
    let bar = Bar::new(None);
    let path = std::path::Path::new(&args.what);
    let kind = kind_of(path)?;
    if let (Some(cluster), Some(_)) = (&args.cluster, &kind) {
        return Err(Failure::Usage(format!(
            "{}: a launch takes its cluster as --cluster {cluster}",
            args.what
        )));
    }
    if kind.is_none() {
        args.launch.hand_nothing(&args.what)?;
    }
    let mut ramp = args.batch_ramp;
    // As the launch that is explained has them.
    let mut settings: Option<Settings> = None;
    let mut read = json!({});
    let (task, plan) = match args.cluster.as_ref().or(args.on.as_ref()) {
        None if kind.is_some() => {
            return Err(Failure::Usage(format!(
                "{}: a launch needs --cluster, such as --cluster dgx-h100",
                args.what
            )));
        }
        Some(cluster) if let Some(kind) = kind => {
            own_job(&args.what, "a launch", &args.job.beside_a_launch())?;
            let machine = spec::load_cluster(cluster)?;
            let counts = args.gpus.as_ref().map(|gpus| gpu_counts(gpus, machine.cluster.gpus_per_node));
            let counts = counts.transpose()?.map(|asked| asked.counts);
            let gpus = match counts.as_deref() {
                None => None,
                Some([gpus]) => Some(*gpus),
                Some(_) => return Err(Failure::Usage("explain takes one number of GPUs".into())),
            };
            let architecture = Some(machine.accelerator.architecture);
            let sizes = (gpus, args.job.seq_len);
            let mut launched = Launched::read(path, kind, sizes, architecture, &args.launch)?;
            launched.note_nodes(&machine);
            launched.print_notes();
            read = json!({ "assumed": launched.assumed, "not_understood": launched.unknown });
            ramp = ramp.or(launched.ramp);
            settings = Some(std::mem::take(&mut launched.settings));
            launched.job.tokens = args.job.tokens;
            launched.job.memory_limit = args.job.memory_limit;
            launched.job.routing = args.job.routing.unwrap_or(launched.job.routing);
            launched.job.packed = args.job.packed.clone();
            let mut task = launched.task(machine, args.job.framework.as_deref())?;
            task.pricing = args.job.price.unwrap_or_default();
            (task, launched.plan)
        }
        Some(cluster) => {
            let machine = spec::load_cluster(cluster)?;
            let script = ["sh", "bash", "slurm", "sbatch", "args", "txt"];
            let extension = path.extension().and_then(|extension| extension.to_str());
            if extension.is_some_and(|extension| script.contains(&extension)) && !path.exists() {
                return Err(Failure::Usage(format!("{}: there is no such file", args.what)));
            }
            if SavedPlan::is_one(path) {
                return Err(Failure::Usage(format!(
                    "{}: a saved plan names its cluster: explain it without one",
                    args.what
                )));
            }
            spec::load_model(&args.what)?;
            let Some(gpus) = &args.gpus else {
                return Err(Failure::Usage("a model and a cluster need --gpus as well".into()));
            };
            if let Some(option) = args.launch.given().first() {
                let what = &args.what;
                return Err(Failure::Usage(format!("{what} is a model, and {option} is for launches")));
            }
            let counts = gpu_counts(gpus, machine.cluster.gpus_per_node)?.counts;
            let [gpus] = counts.as_slice() else {
                return Err(Failure::Usage("explain takes one number of GPUs".into()));
            };
            super::plan::whole_nodes(&machine, *gpus)?;
            let task = args.job.task(&args.what, &machine, *gpus)?;
            let prepared = task.prepare();
            let mut solution = prepared.solve(&Request { top: 1, verified: 1, ..Request::default() }, &bar);
            solution.take_polished();
            let Solution { answer, offloading } = solution;
            verify(&prepared, &answer.found)?;
            if matches!(offloading, Offloading::Needed) && !answer.found.is_empty() {
                anstream::eprintln!("note: nothing fits without offload; the plan offloads");
            }
            let Some(best) = answer.found.first() else {
                bar.clear();
                return refused(&prepared, &answer, args.format);
            };
            let plan = best.plan.clone();
            (task, plan)
        }
        None if !path.exists() && spec::load_model(&args.what).is_ok() => {
            return Err(Failure::Usage(format!(
                "{}: a model needs a cluster and --gpus as well, such as `autoplan explain {0} dgx-h100 --gpus 64`",
                args.what
            )));
        }
        None => {
            let gpus = args.gpus.is_some().then_some("--gpus");
            let given = gpus.into_iter().chain(args.job.beside_a_plan()).chain(args.launch.given());
            let given: Vec<&str> = given.collect();
            own_job(&args.what, "a saved plan", &given)?;
            let (saved, plan) = SavedPlan::load(&args.what)?;
            let mut task = task_of(&saved)?;
            note_wrong_statements(&args.what, &saved, &plan, &task.prepare().predict(&plan));
            task.pricing = args.job.price.unwrap_or(task.pricing);
            task.job.tokens = args.job.tokens.or(task.job.tokens);
            (task, plan)
        }
    };
    let prepared = task.prepare();
    let prediction = prepared.predict(&plan);
    let place = (!args.alone).then(|| standing(&prepared, &plan, &bar));
    let reference = Reference {
        batch: args.reference_batch,
        learning_rate: args.learning_rate,
        warm_up_steps: args.warm_up,
    };
    let mut advice = advice(&prepared, &plan, &prediction, reference);
    if let Some(ramp) = ramp {
        match ramp_advice(&prepared, &plan, &prediction, ramp) {
            Ok(priced) => advice.ramp = Some(priced),
            // The script's own ramp is no reason to leave its plan unexplained.
            Err(refusal) if args.batch_ramp.is_none() => {
                anstream::eprintln!("note: --rampup-batch-size: {refusal}");
            }
            Err(refusal) => return Err(Failure::Usage(format!("--batch-ramp {ramp}: {refusal}"))),
        }
        // What is advised below has to run it as well.
        let best = place.as_ref().and_then(|place| place.best.as_ref()).filter(|best| best.plan != plan);
        if let Some(best) = best
            && let Err(refusal) = ramp_advice(&prepared, &best.plan, &best.prediction, ramp)
        {
            anstream::eprintln!("note: {} does not run the batch ramp {ramp} as it is: {refusal}", best.plan);
        }
    }
    bar.clear();
    let mut out = std::io::stdout().lock();
    match args.format {
        Format::Json => {
            let mut value = breakdown_json(&prepared, &plan, &prediction, place.as_ref(), settings.as_ref());
            value["notes"] = json!(warnings::with_job(&prepared, &plan, &prediction));
            value["advice"] = serde_json::to_value(&advice).unwrap_or_default();
            for (name, notes) in read.as_object().into_iter().flatten() {
                value[name] = notes.clone();
            }
            writeln!(out, "{}", serde_json::to_string_pretty(&value).unwrap_or_default())?;
        }
        Format::Table => {
            breakdown(&prepared, &plan, &prediction, &mut out)?;
            let mut warnings = warnings::with_job(&prepared, &plan, &prediction);
            if let Some(leaned) = Leaned::of(&prepared, &prediction) {
                warnings.push(format!(
                    "leaning: as measured runs like it do in the median, the plan takes {leaned}"
                ));
            }
            if !warnings.is_empty() {
                writeln!(Lines::new(&mut out, width()), "\n{}", warnings.join("\n"))?;
            }
            if let Some(place) = &place {
                place_text(place, &prepared, (&plan, &prediction), settings.as_ref(), &mut out)?;
            }
            advice_text(&advice, &mut out)?;
        }
    }
    Ok(Ending::Done)
}

/// Nothing is left under the restrictions: says what refuses it.
fn refused(prepared: &Prepared, answer: &Answer, format: Format) -> Result<Ending, Failure> {
    let mut out = std::io::stdout().lock();
    let (counters, reasons) = (&answer.counters, reasons(prepared, answer));
    if format == Format::Json {
        let value = json!({
            "plan": null, "candidates": counters.candidates, "pruned": counters.pruned, "reasons": reasons,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&value).unwrap_or_default())?;
        return Ok(Ending::Negative);
    }
    writeln!(out, "no plan; `autoplan plan` looks for ways out")?;
    for reason in reasons {
        writeln!(out, "  {reason}")?;
    }
    Ok(Ending::Negative)
}

fn breakdown(prepared: &Prepared, plan: &Plan, p: &Prediction, out: &mut impl Write) -> Result<(), Failure> {
    let task = prepared.task;
    let job = &task.job;
    writeln!(
        out,
        "{} on {} x {}, batch {} x {} tokens{}, {} {} under {} (profile {})",
        task.model.name,
        job.gpus,
        task.machine.accelerator.name,
        job.global_batch_size,
        job.sequence_length,
        job.packed.as_ref().map_or(String::new(), |packed| format!(" packed from {packed}")),
        job.precision.name(),
        job.optimizer.name(),
        task.target,
        task.profile_name,
    )?;
    writeln!(out, "{plan}")?;
    if let Err(refusal) = legal_plan(task.target, &prepared.context, plan) {
        writeln!(out, "{refusal}")?;
    }
    let rates = prepared.rates(plan, p);
    let [low, high] = p.step_range();
    writeln!(
        out,
        "\nstep {} ± {:.0}% (95% of runs: {} to {}), {:.0} tokens/s/GPU, MFU {} (whole attention square counted: {}), HFU {}",
        seconds(p.step().seconds()),
        p.interval.sigma * 100.0,
        seconds(low.seconds()),
        seconds(high.seconds()),
        rates.tokens_per_s_per_gpu,
        percent(rates.mfu),
        percent(rates.mfu_full_attention),
        percent(rates.hfu)
    )?;
    let total = p.step();
    let mut table = plain_table(&["where the time goes (busiest rank)", "", "share", ""], 1);
    for (name, time) in p.times.iter().filter(|(_, time)| time.0 > 0) {
        let share = time.0 as f64 / total.0 as f64;
        table.add_row([
            format!("  {}", item_name(name, &prepared.layers)),
            seconds(time.seconds()),
            percent(share),
            "#".repeat((share * 40.0).round() as usize),
        ]);
    }
    if let Some(column) = table.column_mut(3) {
        column.set_cell_alignment(CellAlignment::Left);
    }
    writeln!(out, "\n{table}")?;
    if plan.layout().pipeline_parallel > 1 {
        writeln!(out, "  {}", stages::idle(prepared, plan, p))?;
    }

    let limit = prepared.cost().memory_limit();
    let mut table = plain_table(
        &[
            "memory, GB",
            "weights",
            "gradients",
            "optimizer",
            "activations",
            "transient",
            "pools",
            "buffers",
            "total",
            "free",
        ],
        1,
    );
    let gb = |bytes: crate::units::Bytes| format!("{:.2}", bytes.gigabytes());
    // Neighbouring ranks that hold the same are one row.
    let mut from = 0;
    for r in 0..p.memory.len() {
        if r + 1 < p.memory.len() && p.memory[r + 1] == p.memory[from] {
            continue;
        }
        let m = &p.memory[from];
        let ranks = if from == r { format!("  rank {r}") } else { format!("  ranks {from}-{r}") };
        let free = limit.0 as f64 - m.total().0 as f64;
        table.add_row([
            ranks,
            gb(m.weights),
            gb(m.gradients),
            gb(m.optimizer),
            gb(m.activations),
            gb(m.transient),
            gb(m.pools),
            gb(m.buffers),
            gb(m.total()),
            format!("{:.2}", free / 1e9),
        ]);
        from = r + 1;
    }
    writeln!(out, "\n{table}")?;
    let [least, most] = p.allocated_range().map(|bytes| bytes.gigabytes());
    writeln!(
        out,
        "  {:.1} GB on the fullest rank ± {:.0}% (95% of runs: {least:.1} to {most:.1} GB); {:.0}% of runs like it fit{}",
        p.allocated.gigabytes(),
        p.memory_interval.sigma * 100.0,
        prepared.cost().chance_to_fit(p) * 100.0,
        if limit > prepared.cost().device_limit() { " a GPU with room for as much as the limit" } else { "" },
    )?;
    writeln!(
        out,
        "  limit {:.1} GB allocated; the allocator usually holds {:.1} GB, nvidia-smi shows {:.1} GB; the plan {}",
        limit.gigabytes(),
        p.reserved.gigabytes(),
        p.device.gigabytes(),
        match (prepared.cost().fits(p), p.allocated <= limit) {
            (true, _) if holds_too_much(prepared, p) => "fits if the allocator lets it (below)",
            (true, _) => "fits as predicted",
            (false, true) if p.allocated > prepared.cost().device_limit() => {
                "DOES NOT FIT: within the limit, but not the GPU"
            }
            (false, _) => "DOES NOT FIT",
        },
    )?;

    let (off, host) = (&p.off_gpu, &task.machine.cluster.host);
    if off.host() > Bytes::ZERO {
        writeln!(
            out,
            "  host memory of the fullest node: states {}, activations {}; {} of {}",
            spaced(off.states),
            spaced(off.activations),
            spaced(off.host()),
            spaced(host.memory)
        )?;
    }
    if off.drives > Bytes::ZERO {
        let size = host.nvme.map_or(Bytes::ZERO, |(size, _)| size);
        writeln!(
            out,
            "  local drives of the fullest node: states {} of {}",
            spaced(off.drives),
            spaced(size)
        )?;
    }

    if plan.chunks().len() > 1 {
        writeln!(out, "\n{}", stages::table(prepared, plan, p, None))?;
        if let Some(ranks) = stages::ranks(plan, p, None) {
            writeln!(out, "{ranks}")?;
        }
        writeln!(out, "  layout {}", stages::layout(prepared, plan))?;
    }

    let run = prepared.run(p);
    let cost = step_cost(&run);
    writeln!(
        out,
        "\nmoney: {} a GPU-hour, {} a step, {} per trillion tokens without losses; {} a step",
        money(crate::units::Dollars(cost.per_gpu_hour.0)),
        money(cost.per_step),
        money(cost.per_trillion_tokens),
        spaced(cost.energy_per_step),
    )?;
    if let Some(tokens) = job.tokens {
        match run_cost(&run, tokens) {
            Ok(c) => {
                writeln!(
                    out,
                    "the run: {tokens} tokens in {} steps, {:.1} days, {} ({} per trillion tokens), {} GPU-hours, losses included",
                    c.steps,
                    c.days,
                    money(c.dollars.total),
                    money(c.per_trillion_tokens),
                    gpu_hours(c.gpu_hours),
                )?;
                run_items(out, &c)?;
            }
            Err(error) => writeln!(out, "the run: {error}")?,
        }
        return Ok(());
    }
    // How much of the time trains does not depend on how long the run is.
    match goodput_of(&run) {
        Ok(g) => {
            writeln!(
                out,
                "  goodput {}: a failure every {}, {} to restart; --tokens gives days and dollars",
                percent(g.effective_training_time_ratio),
                spaced(g.mean_time_between_failures),
                spaced(g.restart),
            )?;
            checkpoints(out, &g)?;
        }
        Err(error) => writeln!(out, "  {error}")?,
    }
    Ok(())
}

/// Where the days and the dollars of a run go, checkpoints, failures and energy.
fn run_items(out: &mut impl Write, c: &RunCost) -> std::io::Result<()> {
    let mut table = plain_table(&["  where", "days", "dollars"], 1);
    let (time, dollars) = (&c.time, &c.dollars);
    for (name, time, dollars) in [
        ("training", time.training, dollars.training),
        ("stragglers", time.stragglers, dollars.stragglers),
        ("checkpoints", time.checkpoints, dollars.checkpoints),
        ("lost work", time.lost_work, dollars.lost_work),
        ("restarts", time.restarts, dollars.restarts),
    ] {
        table.add_row([format!("  {name}"), format!("{:.2}", time.0 / 86_400.0), money(dollars)]);
    }
    if dollars.electricity.0 > 0.0 {
        table.add_row(["  electricity".to_owned(), String::new(), money(dollars.electricity)]);
    }
    writeln!(out, "{table}")?;
    let g = &c.goodput;
    writeln!(
        out,
        "  goodput {}: a failure every {} ({:.1} in the run, {} each), {} to restart",
        percent(g.effective_training_time_ratio),
        spaced(g.mean_time_between_failures),
        c.failures,
        money(c.per_failure),
        spaced(g.restart),
    )?;
    checkpoints(out, g)?;
    let e = &c.energy;
    writeln!(
        out,
        "  energy {}: accelerators {}, hosts {}, building {}; {} at the tariff{}",
        spaced(e.total),
        spaced(e.accelerators),
        spaced(e.hosts),
        spaced(e.building),
        money(e.price),
        if dollars.electricity.0 > 0.0 { ", billed on top" } else { ", contained in the price" },
    )
}

fn checkpoints(out: &mut impl Write, g: &Goodput) -> std::io::Result<()> {
    writeln!(
        out,
        "  a checkpoint of {} every {} ({} steps; Young {}, Daly {}): written in {} at {}, training stops for {}",
        spaced(g.checkpoint_bytes),
        spaced(g.interval),
        g.checkpoint_interval_steps,
        spaced(g.young),
        spaced(g.daly),
        spaced(g.checkpoint_write),
        spaced(g.checkpoint_bandwidth),
        spaced(g.checkpoint_blocking),
    )
}

/// What to change in the framework's own settings to get from one plan to another; nothing where it cannot
/// express one of them.
fn setting_changes(prepared: &Prepared, from: &Plan, to: &Plan, settings: Option<&Settings>) -> Vec<Change> {
    let task = prepared.task;
    let command = command_line();
    let request = |plan| ExportRequest {
        model: &task.model,
        job: &task.job,
        cluster: &task.machine.cluster,
        accelerator: &task.machine.accelerator,
        plan,
        prediction: None,
        version: "",
        command: &command,
        format: Files::Args,
    };
    if !task.target.exports() {
        return Vec::new();
    }
    let Ok(written) = Written::new(task.target, &request(from), &request(to)) else { return Vec::new() };
    let Some(settings) = settings else { return written.changes() };
    if task.target == Target::Megatron {
        let plan = (to.layout(), task.model.layer_count());
        return written.changes_of_command(settings, plan, task.machine.accelerator.architecture);
    }
    written.changes_of(settings)
}

fn place_text(
    place: &Standing,
    prepared: &Prepared,
    (plan, p): (&Plan, &Prediction),
    settings: Option<&Settings>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let own = p.step();
    let fits = prepared.cost().fits(p);
    match &place.best {
        Some(best) if best.plan != *plan && (best.prediction.step() < own || !fits) => {
            // Of this plan's step, as in the table below.
            let gain = 1.0 - best.prediction.step().0 as f64 / own.0 as f64;
            let verdict = match (fits, gain >= 0.0) {
                (true, _) => format!("better by {} of the step", by(gain)),
                (false, true) => format!("fits, and is faster by {} of the step", by(gain)),
                (false, false) => format!("fits, slower by {} of the step", by(-gain)),
            };
            let apart = (best.prediction.step().0 as f64 / own.0 as f64).ln().abs();
            let tie = if apart < p.interval.difference { ", inside the error of the prediction" } else { "" };
            writeln!(
                out,
                "\n{verdict}{tie}: {} ({}, {:.1} GB, fits {:.0}%)",
                best.plan,
                seconds(best.prediction.step().seconds()),
                best.prediction.allocated.gigabytes(),
                prepared.cost().chance_to_fit(&best.prediction) * 100.0,
            )?;
            let changes = differences(prepared, plan, &best.plan);
            if !changes.is_empty() {
                writeln!(out, "  to change: {}", changes.join(", "))?;
            }
            let settings = setting_changes(prepared, plan, &best.plan, settings);
            if !settings.is_empty() {
                writeln!(out, "  settings of {} to change:", prepared.task.target)?;
                for change in settings {
                    writeln!(out, "    {change}")?;
                }
            }
        }
        Some(best) => {
            let left = left_out(prepared, best.plan.layout().offload != Offload::NONE);
            let left = if left.is_empty() { left } else { format!(" ({left})") };
            // Layers of the best are moved after the ranking, and the plan need not be of the space itself.
            match &place.same {
                None => writeln!(out, "\nnothing in the space is faster{left}")?,
                Some((plan, time)) => {
                    let time = seconds(time.seconds());
                    writeln!(
                        out,
                        "\nfaster with the same degrees and ZeRO stage: {plan} ({time}); nothing else in the space is{left}"
                    )?;
                }
            }
        }
        None if !fits => writeln!(out, "\nno plan of this job fits; `autoplan plan` says what would help")?,
        None => {}
    }
    if place.changes.is_empty() {
        return Ok(());
    }
    let mut table = plain_table(
        &[
            "one change, other degrees and ZeRO stage held, layers moved",
            "step",
            "against this",
            "best plan with it",
        ],
        1,
    );
    let row = |what: String, plan: &Plan, time: Picos| {
        let ratio = time.0 as f64 / own.0 as f64 - 1.0;
        [what, seconds(time.seconds()), format!("{:+.1}%", ratio * 100.0), plan.to_string()]
    };
    if let Some((plan, time)) = &place.same {
        table.add_row(row("  none: its degrees, other settings".into(), plan, *time));
    }
    for change in &place.changes {
        let what = format!("  {} {} -> {}", change.axis, change.from, change.to);
        match &change.outcome {
            Outcome::Plan(plan, time) => {
                table.add_row(row(what, plan, *time));
            }
            Outcome::Nothing(reasons) => {
                let why = reasons.first().map_or("no such layout exists".to_owned(), |(reason, n)| {
                    format!("none: {n} layouts fell to {reason}")
                });
                table.add_row([what, "-".into(), "-".into(), why]);
            }
        }
    }
    if let Some(column) = table.column_mut(3) {
        column.set_cell_alignment(CellAlignment::Left);
    }
    writeln!(out, "\n{table}")?;
    Ok(())
}

/// What differs between the jobs of two plans, as `name from -> to`.
fn job_differences(a: &Task, b: &Task) -> Vec<String> {
    let facts = |task: &Task| {
        // Every field: none is forgotten that a job has.
        let Job {
            gpus,
            global_batch_size,
            sequence_length,
            precision,
            optimizer,
            training,
            memory_limit,
            tokens,
            routing,
            packed,
            expert_capacity,
        } = &task.job;
        let or = |text: Option<String>, otherwise: &str| text.unwrap_or_else(|| otherwise.to_owned());
        let training = match training {
            Training::Full => "all weights".to_owned(),
            Training::Lora { rank } => format!("lora of rank {rank}"),
        };
        let routing = match routing {
            Routing::Balanced => "balanced",
            Routing::Natural => "natural",
        };
        [
            ("model", task.model.name.clone()),
            ("cluster", task.machine.cluster.name.clone()),
            ("framework", task.profile_name.to_owned()),
            ("gpus", gpus.to_string()),
            ("global_batch", global_batch_size.to_string()),
            ("seq_len", sequence_length.to_string()),
            ("precision", precision.name().to_owned()),
            ("optimizer", optimizer.name().to_owned()),
            ("training", training),
            ("routing", routing.to_owned()),
            ("packed", or(packed.as_ref().map(ToString::to_string), "none")),
            ("expert_capacity", or(expert_capacity.map(|capacity| capacity.factor.to_string()), "none")),
            ("memory_limit", or(memory_limit.map(|limit| limit.to_string()), "default")),
            ("tokens", or(tokens.map(|tokens| tokens.to_string()), "none")),
            ("price", task.pricing.to_string()),
        ]
    };
    let pairs = facts(a).into_iter().zip(facts(b));
    pairs.filter(|(a, b)| a != b).map(|((name, a), (_, b))| format!("{name} {a} -> {b}")).collect()
}

/// What differs between two plans of a model, as `axis from -> to`.
fn differences(model: &Prepared, from: &Plan, to: &Plan) -> Vec<String> {
    let (a, b) = (choices_of(from.layout()), choices_of(to.layout()));
    let changed = a.iter().zip(&b).filter(|((_, one), (_, other))| one != other);
    let mut out: Vec<String> = changed
        .filter_map(|((name, one), (_, other))| {
            let (one, other) = (one.as_ref().ok()?, other.as_ref().ok()?);
            Some(format!("{name} {one} -> {other}"))
        })
        .collect();
    let mode = |plan: &Plan| plan.common_recompute().map_or_else(|| "mixed".to_owned(), |r| r.to_string());
    if mode(from) != mode(to) {
        out.push(format!("recompute {} -> {}", mode(from), mode(to)));
    }
    let layers = |plan: &Plan| plan.chunks().iter().map(|c| c.layers).collect::<Vec<_>>();
    if layers(from) != layers(to) && from.layout().chunk_count() == to.layout().chunk_count() {
        out.push(format!("layers {} -> {}", stages::layout(model, from), stages::layout(model, to)));
    }
    out
}

fn breakdown_json(
    prepared: &Prepared,
    plan: &Plan,
    p: &Prediction,
    place: Option<&Standing>,
    settings: Option<&Settings>,
) -> serde_json::Value {
    let mut value = super::output::prediction_json(prepared, plan, p);
    if let Some(place) = place {
        value["best"] = place.best.as_ref().map_or(serde_json::Value::Null, |best| {
            json!({
                "name": best.plan.to_string(), "plan": layout_json(best.plan.layout()),
                "step_time_s": best.prediction.step().seconds().0,
                "changes": differences(prepared, plan, &best.plan),
                "settings": setting_changes(prepared, plan, &best.plan, settings),
                "faster_by": p.step().0 as f64 / best.prediction.step().0 as f64 - 1.0,
            })
        });
        value["same_degrees"] = place.same.as_ref().map_or(
            serde_json::Value::Null,
            |(plan, time)| json!({ "name": plan.to_string(), "step_time_s": time.seconds().0 }),
        );
        value["changes"] = place
            .changes
            .iter()
            .map(|c| match &c.outcome {
                Outcome::Plan(plan, time) => json!({
                    "axis": c.axis, "from": c.from, "to": c.to, "name": plan.to_string(),
                    "step_time_s": time.seconds().0,
                }),
                Outcome::Nothing(reasons) => json!({
                    "axis": c.axis, "from": c.from, "to": c.to, "reasons": reasons,
                }),
            })
            .collect();
    }
    value
}

/// Runs `compare`.
pub(crate) fn compare(args: &CompareArgs) -> Result<Ending, Failure> {
    if args.first == "-" && args.second == "-" {
        return Err(Failure::Usage("only one of two plans can come from standard input".into()));
    }
    let mut sides = Vec::new();
    for path in [&args.first, &args.second] {
        let (saved, plan) = SavedPlan::load(path)?;
        sides.push((path, task_of(&saved)?, saved, plan));
    }
    let prepared: Vec<_> = sides.iter().map(|(_, task, _, plan)| (task.prepare(), plan)).collect();
    let predictions: Vec<Prediction> =
        prepared.iter().map(|(prepared, plan)| prepared.predict(plan)).collect();
    for ((path, _, saved, plan), prediction) in sides.iter().zip(&predictions) {
        note_wrong_statements(path, saved, plan, prediction);
    }
    let mut out = std::io::stdout().lock();
    if args.format == Format::Json {
        let values: Vec<_> = prepared
            .iter()
            .zip(&predictions)
            .map(|((prepared, plan), p)| super::output::prediction_json(prepared, plan, p))
            .collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&values).unwrap_or_default())?;
        return Ok(Ending::Done);
    }
    for (which, (path, (prepared, plan))) in
        ["first", "second"].iter().zip([&args.first, &args.second].into_iter().zip(&prepared))
    {
        let (job, machine) = (&prepared.task.job, &prepared.task.machine);
        writeln!(
            out,
            "{which}, {path}: {} on {} x {}, batch {} x {} tokens: {plan}",
            prepared.task.model.name,
            job.gpus,
            machine.accelerator.name,
            job.global_batch_size,
            job.sequence_length
        )?;
    }
    let mut changes = job_differences(prepared[0].0.task, prepared[1].0.task);
    let (model, one, other) = (&prepared[0].0, prepared[0].1, prepared[1].1);
    changes.extend(differences(model, one, other));
    if changes.is_empty() {
        writeln!(
            out,
            "differs in nothing that is compared: job, degrees, recomputation and layers are the same"
        )?;
    } else {
        writeln!(out, "differs in: {}", changes.join(", "))?;
    }
    let mut table = plain_table(&["", "first", "second", "difference"], 1);
    let [a, b] = [&predictions[0], &predictions[1]];
    let signed =
        |x: f64, y: f64| if x > 0.0 { format!("{:+.1}%", (y / x - 1.0) * 100.0) } else { "-".into() };
    let (x, y) = (a.step().seconds(), b.step().seconds());
    table.add_row(["step".to_owned(), seconds(x), seconds(y), signed(x.0, y.0)]);
    for ((name, one), (_, two)) in a.times.iter().zip(b.times.iter()) {
        if one.0 + two.0 > 0 {
            let (one, two) = (one.seconds(), two.seconds());
            let change = (two.0 - one.0) / x.0 * 100.0;
            table.add_row([
                format!("  {}", item_name(name, &prepared[0].0.layers)),
                seconds(one),
                seconds(two),
                format!("{change:+.1}% of the first step"),
            ]);
        }
    }
    let rates = |i: usize| prepared[i].0.rates(prepared[i].1, &predictions[i]);
    let speed = |i: usize| rates(i).tokens_per_s_per_gpu;
    table.add_row([
        "tokens/s per GPU".to_owned(),
        format!("{:.0}", speed(0)),
        format!("{:.0}", speed(1)),
        signed(speed(0), speed(1)),
    ]);
    let points = |one: f64, two: f64| format!("{:+.1} points", (two - one) * 100.0);
    table.add_row([
        "MFU".to_owned(),
        percent(rates(0).mfu),
        percent(rates(1).mfu),
        points(rates(0).mfu, rates(1).mfu),
    ]);
    let usd = |i: usize| step_cost(&prepared[i].0.run(&predictions[i])).per_trillion_tokens;
    table.add_row([
        "$ per trillion tokens without losses".to_owned(),
        money(usd(0)),
        money(usd(1)),
        signed(usd(0).0, usd(1).0),
    ]);
    let gb = |p: &Prediction| p.allocated.gigabytes();
    table.add_row([
        "memory of the fullest GPU".to_owned(),
        format!("{:.1} GB", gb(a)),
        format!("{:.1} GB", gb(b)),
        signed(gb(a), gb(b)),
    ]);
    let fits = |i: usize| prepared[i].0.cost().chance_to_fit(&predictions[i]);
    let of_100 = |share: f64| format!("{:.0}%", share * 100.0);
    table.add_row(["fits".to_owned(), of_100(fits(0)), of_100(fits(1)), points(fits(0), fits(1))]);
    writeln!(out, "{table}")?;
    Ok(Ending::Done)
}
