//! `autoplan export`.

use std::io::Write;
use std::path::PathBuf;

use super::check::note_wrong_statements;
use super::explain::task_of;
use super::options::inexpressible;
use super::progress::Bar;
use super::{Ending, Failure, files, warnings};
use crate::cost::goodput::goodput;
use crate::cost::step::Prediction as Predicted;
use crate::frameworks::Target;
use crate::frameworks::export::{
    Checkpoints, Destination, EXPRESSIBLE, ExportRequest, Format, Prediction, export_or_nearest, one_line,
    quote,
};
use crate::frameworks::megatron::TRAINING;
use crate::frameworks::profile::Profile;
use crate::plan::Plan;
use crate::planner::{Prepared, Task};
use crate::spec::saved::SavedPlan;

/// Options of `autoplan export`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// A saved plan: what `autoplan plan --format ron` printed; - reads it from standard input.
    plan: String,
    /// Where to: megatron, bridge, deepspeed, megatron-deepspeed, torchtitan, accelerate, slurm, kubernetes.
    #[arg(long)]
    to: Destination,
    /// Folder for the files; - prints them.
    #[arg(long, short = 'o', value_name = "DIR", default_value = "-")]
    output: PathBuf,
    /// A whole script, or the arguments alone.
    #[arg(long, value_enum, default_value = "script")]
    format: Kind,
    /// Overwrite existing files.
    #[arg(long)]
    force: bool,
}

/// How much is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Ready to run.
    Script,
    /// The list of arguments.
    Args,
}

/// Runs the command.
pub(crate) fn run(args: &ExportArgs) -> Result<Ending, Failure> {
    let print = args.output.as_os_str() == "-";
    if !print {
        files::check_folder(&args.output)?;
    }
    let (saved, plan) = SavedPlan::load(&args.plan)?;
    let lists = [Destination::Framework(Target::Megatron), Destination::Framework(Target::MegatronDeepSpeed)];
    if args.format == Kind::Args && !lists.contains(&args.to) {
        let message = "--format args: only megatron and megatron-deepspeed take a list of arguments";
        return Err(Failure::Usage(message.into()));
    }
    // A file may have been edited: what is written out is predicted and verified anew.
    let saved_for = task_of(&saved)?;
    note_wrong_statements(&args.plan, &saved, &plan, &saved_for.prepare().predict(&plan));
    let to = args.to.of_plan(&saved.model, &saved.job, &plan);
    if to != args.to {
        anstream::eprintln!(
            "note: {} pipeline stages run in {}: written for it",
            plan.layout().pipeline_parallel,
            to.target()
        );
    }
    let target = to.target();
    let (profile_name, profile) = Profile::of(target);
    let task = match (saved_for.target == target, to) {
        (true, _) if saved_for.profile_name == profile_name => saved_for,
        (true, _) | (false, Destination::Framework(_)) => {
            let (made_for, as_before) = (saved_for.target, &saved_for.profile_name);
            anstream::eprintln!(
                "note: the plan was made for {made_for}, predicted as {as_before}; predicted anew for {target}, as {profile_name}"
            );
            Task { target, profile, profile_name, ..saved_for }
        }
        (false, Destination::Slurm | Destination::Kubernetes) => {
            return Err(Failure::Usage(format!(
                "this script is written around {target}, and {} holds a plan for {}{}; `autoplan plan --framework \
                 {target}` finds plans for it",
                args.plan,
                saved_for.target,
                if saved_for.target.exports() {
                    format!(", whose own launcher `--to {}` writes", saved_for.target)
                } else {
                    String::new()
                }
            )));
        }
    };
    let prepared = task.prepare();
    let predicted = prepared.predict(&plan);
    let command = match one_line(&saved.command) {
        planned if planned.is_empty() => command_line(),
        planned => format!("{planned}\n{}", command_line()),
    };
    let mut notes = warnings::with_job(&prepared, &plan, &predicted);
    notes.extend(warnings::risk(&prepared, &predicted));
    let request = ExportRequest {
        model: &saved.model,
        job: &saved.job,
        cluster: &saved.cluster,
        accelerator: &saved.accelerator,
        plan: &plan,
        prediction: Some(Prediction {
            step_time: predicted.step().seconds(),
            memory: predicted.allocated,
            checkpoints: checkpoints(&prepared, &predicted),
            notes: &notes,
        }),
        version: concat!("autoplan ", env!("CARGO_PKG_VERSION")),
        command: &command,
        format: match args.format {
            Kind::Script => Format::Script,
            Kind::Args => Format::Args,
        },
    };
    if let Some(reason) = inexpressible(&task) {
        return Err(Failure::Usage(reason));
    }
    if !print {
        files::check_place(&args.output.join(to.main_file(&request)), args.force)?;
    }
    let fits = |plan: &Plan| prepared.cost().fits(&prepared.predict(plan));
    let exported = export_or_nearest(to, &request, &fits).map_err(|mut refusal| {
        // No change of a plan is a way out where the job itself cannot be written out.
        let hopeless = !target.exports() || [EXPRESSIBLE, TRAINING.name].contains(&refusal.rule);
        let searched = refusal.nearest.is_none() && !hopeless;
        if searched {
            refusal.nearest = nearest(&prepared, &plan).map(Box::new);
        }
        let hint = if refusal.rule == TRAINING.name {
            "; no target writes adapters out".to_owned()
        } else if !target.exports() {
            format!("; --to of those that are: {}", Destination::names().join(", "))
        } else if searched && refusal.nearest.is_none() {
            format!("; no plan for this job was found that it accepts and that fits: `autoplan plan --framework {target}` says why")
        } else {
            format!("; `autoplan plan --framework {target}` finds plans that it accepts")
        };
        Failure::Usage(format!("{refusal}{hint}"))
    })?;
    if !prepared.cost().fits(&predicted) {
        let way_out = match nearest(&prepared, &plan) {
            Some(plan) => format!(
                "the nearest plan that does is {plan}; `autoplan plan --framework {target}` finds others"
            ),
            None => format!(
                "no plan for this job was found that does: `autoplan plan --framework {target}` says why"
            ),
        };
        return Err(Failure::Usage(format!(
            "{}: the plan does not fit: {:.1} GB on the fullest GPU under {target}, of {:.1} GB; {way_out}",
            args.plan,
            predicted.allocated.gigabytes(),
            prepared.cost().memory_limit().gigabytes(),
        )));
    }
    let report = prepared.check(&plan, &predicted);
    if !report.passed() {
        return Err(Failure::Usage(format!("{}: the plan does not hold\n{report}", args.plan)));
    }
    if let Some(assumed) = request.assumed() {
        anstream::eprintln!("note: the prediction assumes {assumed}");
    }
    if print {
        let mut out = std::io::stdout().lock();
        for (i, file) in exported.iter().enumerate() {
            if exported.len() > 1 {
                writeln!(out, "{}==> {} <==", if i > 0 { "\n" } else { "" }, file.name)?;
            }
            write!(out, "{}", file.text)?;
        }
        return Ok(Ending::Done);
    }
    let paths: Vec<_> = exported.iter().map(|file| args.output.join(&file.name)).collect();
    let written = exported.iter().zip(&paths).map(|(file, path)| files::Written {
        path,
        text: &file.text,
        executable: file.executable,
    });
    files::write_all(&written.collect::<Vec<_>>(), args.force)?;
    for path in &paths {
        anstream::eprintln!("wrote {}", path.display());
    }
    Ok(Ending::Done)
}

/// The nearest plan that the framework of a task accepts, by search.
fn nearest(prepared: &Prepared, plan: &Plan) -> Option<Plan> {
    let bar = Bar::new(None);
    let found = prepared.nearest_accepted(plan.layout(), &bar);
    bar.clear();
    found
}

/// The checkpoint interval that loses least.
fn checkpoints(prepared: &Prepared, predicted: &Predicted) -> Option<Checkpoints> {
    let run = prepared.run(predicted);
    let goodput = goodput(run.cluster, run.gpus, run.step.seconds(), &run.checkpointing).ok()?;
    Some(Checkpoints {
        steps: goodput.checkpoint_interval_steps,
        interval: goodput.interval,
        between_failures: goodput.mean_time_between_failures,
    })
}

/// The command as it was typed, quoted for a shell.
pub(crate) fn command_line() -> String {
    let mut words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let mut said = vec!["autoplan".to_owned()];
    while let Some(word) = words.next() {
        // How many threads work changes no answer.
        if word == "--threads" {
            words.next();
        } else if !word.starts_with("--threads=") {
            said.push(quote(&word));
        }
    }
    one_line(&said.join(" "))
}
