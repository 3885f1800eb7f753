//! The accuracy page: tables in Markdown, and plots of predicted against measured as SVG.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use plotters::prelude::*;

use super::constants::Measurand;
use super::goals::{About, Goal, Unit};
use super::misses::{Remark, explained, parts};
use super::sets::{NOISE, NamedSet};
use super::{Coverage, ErrorStatistics, ErrorTable, MemoryVerdicts, RankedGroup, Report, RowReport, counted};
use crate::frameworks::error_bars::ErrorBars;

/// A page and its pictures, by file name.
#[derive(Debug, Clone)]
pub struct Page {
    /// Markdown.
    pub markdown: String,
    /// SVG files that it shows.
    pub pictures: Vec<(String, String)>,
}

/// Why a plot could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw {0}: {1}")]
pub struct PlotError(&'static str, String);

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// Makes the page of a report. `constants` lists the fitted constants with the rows they came from.
///
/// # Errors
/// When a plot cannot be drawn.
pub fn page(report: &Report, constants: &str) -> Result<Page, PlotError> {
    let s = &report.summary;
    let mut md = String::new();
    let _ = writeln!(
        md,
        "# Accuracy\n\nPredictions against published measurements. `./x run --release -- validate --page docs` makes this \
         page from `results/published/measured.csv`; every number of its tables is computed. What is said of rows in \
         words stands in `results/published/remarks.ron` and `src/validate/sets.rs`. Errors are of seconds per step and \
         of bytes, as shares of what was measured; medians and means are of absolute errors; bias is the median of \
         signed ones (positive: predicted slow, or large).\n\n\
         Grade A rows were read in full and their figures agree with each other; of B some part is missing or noisy; C is \
         coarse. Memory is what a row says it read: bytes of tensors (also where it does not say), what the allocator reserved, \
         or what `nvidia-smi` showed. Classes of `inputs` say what of a row is assumed: filled from the framework's defaults, taken \
         for something near, or named by the table as not stated by the source. Hardly a source says whether gradients overlap, so that \
         nearly nothing is complete; what is assumed of the run time (overlap, kernels, graphs, dispatcher, routing, release, what a reading of memory \
         counts) weighs less than what is assumed of the machine, the plan or the model. Sources are called by the prefixes of their rows' ids, [listed](#sources) at the end; those of one publication are left out together.\n"
    );
    let _ = writeln!(
        md,
        "{} rows, {} predicted, {} repeat another row's run and count once. Skipped rows, by reason:\n",
        s.rows, s.predicted, s.repeated
    );
    md.push_str("| reason | rows |\n|---|--:|\n");
    for kind in &s.skipped {
        let _ = writeln!(md, "| {} | {} |", kind.reason.replace('|', "\\|"), kind.rows);
    }
    let _ = writeln!(
        md,
        "\n{} constants were fitted to these rows ([listed](#fitted-constants) below). The columns under *left out* show the \
         same rows with {} of them fitted again without the row's own source, nor any of the same publication: constants that nothing else informs fall back to \
         their priors. The other {} are held: they stand in code, are shared by the machines' files or decide the plan that a row \
         is read as, and *left out* still contains what their rows said.",
        s.fitted_constants,
        s.fitted_constants - s.held_constants,
        s.held_constants
    );
    if let Some(e) = s.of_other_sources {
        let _ = writeln!(
            md,
            "\nNo constant at all was fitted to the sources of {} rows with a step time: they are off by {} in the median, {} in the \
             mean, nine in ten by less than {} (bias {:+.1}%). They are few, and mostly of frameworks and machines that nothing else \
             here describes.",
            e.rows,
            percent(e.median),
            percent(e.mean),
            percent(e.p90),
            e.bias * 100.0
        );
    }
    goals(&mut md, &s.goals);
    missed(&mut md, report);
    let left_out = s.left_out.as_ref();
    md.push_str("\n## Step time\n\n");
    errors(&mut md, &s.step_time, left_out.map(|l| &l.step_time));
    md.push_str("\n![predicted against measured step time](step-time.svg)\n");
    printed_rates(&mut md, s);
    md.push_str("\n## Peak memory\n\n");
    errors(&mut md, &s.memory, left_out.map(|l| &l.memory));
    md.push_str("\n![predicted against measured memory](memory.svg)\n");
    verdicts(&mut md, s.out_of_memory, left_out.map(|l| l.out_of_memory));
    named_sets(&mut md, &s.named_sets);
    ranking(&mut md, report);
    weak(&mut md, report);
    let _ = writeln!(
        md,
        "\n## Error bars\n\nEvery prediction carries two intervals from the residuals of its class: one standard deviation, \
         and what holds 95.4% of the runs. The residuals are those with a run's own source left out of the fit, since no constant was \
         fitted to the run that is to be planned, or those as fitted where these are wider. Where one source describes a framework, \
         that is what the priors alone reach, which is more than what a run on the same framework elsewhere has to expect. \
         A class that one source describes is no narrower than the next wider class of its framework that several do. \
         Bars know no side: `autoplan plan` says so where most runs of a framework on a generation of GPUs took longer, or less, than \
         predicted, by 5% and more in the median. \
         Tails are heavier than a normal distribution's (weak spots and noisy sweeps make \
         them up), so that no one width holds both shares: the second is mostly wider than twice the first, and the first \
         is the geometric mean of what holds 68.3% and of half of the second, or the former where that is wider. Where constants \
         were fitted to a run's own source, more than 68% are inside one standard deviation: bars are for runs that nothing was fitted to. \
         Step times that printed rates say count in classes, but no constant was fitted to them. Where nobody measured a framework on a \
         generation of GPUs, with or without experts, {} come on top, in squares: what predictions lose when constants are \
         fitted without a run's own source. Runs there that are too few for a class widen the bar to their own errors where one of them \
         lies outside of it. Some runs are special whatever the framework: adapters, fine-tuning, sequences of 16,384 \
         tokens and more, tensor parallelism across domains, GPUs that PCIe alone joins, rows of grade C. They have the bars of all \
         such runs at least, where at least two publications have twelve, and what predictions lose on top where a framework has fewer than three. \
         Hardly a row below has that on top. Peak memory has intervals by the same rule, whatever \
         the generation of GPUs; readings of one model and plan that differ in accumulation alone and have one value count once, and a class \
         of all frameworks rests on at least two sources. A framework that was read too seldom with experts has its interval \
         without them. One whose memory nobody read, with or without experts, has that of all frameworks, and {} on top, in squares.",
        percent(ErrorBars::shipped().transfer),
        percent(ErrorBars::shipped().memory_transfer)
    );
    let times = [s.coverage, s.left_out_inside_shipped, s.left_out_coverage];
    let memory = [s.memory_coverage, s.left_out_memory_inside_shipped, s.left_out_memory_coverage];
    inside(&mut md, "measured step times", times);
    let rates = [s.rates_coverage, None, s.left_out_rates_coverage];
    if s.rates_coverage.is_some() {
        inside(&mut md, "step times that printed rates say", rates);
    }
    inside(&mut md, "measured memory", memory);
    if !constants.trim().is_empty() {
        let _ = writeln!(md, "\n## Fitted constants\n\n{}", constants.trim());
    }
    sources(&mut md, &report.rows);
    let pictures = vec![
        ("step-time.svg".to_owned(), scatter(&report.rows, Plot::StepTime)?),
        ("memory.svg".to_owned(), scatter(&report.rows, Plot::Memory)?),
        ("ranking.svg".to_owned(), ranks(&s.ranking.groups)?),
    ];
    Ok(Page { markdown: md, pictures })
}

/// Times that printed rates say.
fn printed_rates(md: &mut String, summary: &super::Summary) {
    if summary.by_rates.is_empty() {
        return;
    }
    md.push_str(
        "\n### Printed rates\n\nSome rows print TFLOP/s of a GPU, or a share of its BF16 peak, and no time. What such a rate counts is \
         the source's convention; the step time that it says under it is compared here: no constant was fitted to these rows, and no \
         goal is about them. Error bars know of them ([below](#error-bars)), and what is wrong with them, or with us, stands among the \
         [weak spots](#weak-spots). The runs with natural routing are all of this kind.\n\n",
    );
    let by = BTreeMap::from([("printed rates", summary.by_rates.clone())]);
    errors(md, &ErrorTable { all: None, by }, None);
}

fn verdicts(md: &mut String, v: MemoryVerdicts, left_out: Option<MemoryVerdicts>) {
    md.push_str(
        "\n## Out of memory or not\n\nAgainst what the device can hold, not the planner's cautious default.",
    );
    if left_out.is_some() {
        md.push_str(" Behind a slash: with the row's own source left out of the fit.");
    }
    let both = |of: fn(MemoryVerdicts) -> String| match left_out {
        Some(apart) => format!("{} / {}", of(v), of(apart)),
        None => of(v),
    };
    let _ = writeln!(
        md,
        "\n\n| | predicted to fit | predicted not to fit |\n|---|--:|--:|\n| ran | {} | {} |\n| ran out of memory | {} | {} |\n\n\
         {} of the verdicts are right; {} of the runs that ran are called impossible.",
        both(|v| v.ran_fits.to_string()),
        both(|v| v.ran_rejected.to_string()),
        both(|v| v.failed_fits.to_string()),
        both(|v| v.failed_rejected.to_string()),
        both(|v| percent(v.right())),
        both(|v| percent(v.called_impossible()))
    );
}

fn shown(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Share => percent(value),
        Unit::Correlation => format!("{value:.2}"),
        Unit::Count => format!("{value:.0}"),
    }
}

/// What the prefixes of ids stand for.
fn sources(md: &mut String, rows: &[RowReport]) {
    let mut named: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    let mut publications: BTreeMap<&str, &str> = BTreeMap::new();
    let mut together: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.labels.source.is_empty()) {
        let labels = &row.labels;
        named.entry(&labels.source).or_insert((0, &labels.published)).0 += 1;
        publications.insert(&labels.source, &labels.publication);
        together.entry(&labels.publication).or_default().insert(&labels.source);
    }
    if named.is_empty() {
        return;
    }
    md.push_str(
        "\n## Sources\n\n| prefix | rows predicted | published as | left out with |\n|---|--:|---|---|\n",
    );
    for (prefix, (rows, name)) in named {
        let others: Vec<&str> = publications
            .get(prefix)
            .and_then(|publication| together.get(publication))
            .map_or_else(Vec::new, |all| all.iter().copied().filter(|other| *other != prefix).collect());
        let _ = writeln!(
            md,
            "| {prefix} | {rows} | {} | {} |",
            name.replace('|', "\\|"),
            if others.is_empty() { "-".to_owned() } else { others.join(", ") }
        );
    }
}

/// What holds each missed goal back.
fn missed(md: &mut String, report: &Report) {
    let of = |left_out: bool| {
        let misses =
            move |goal: &&Goal| if left_out { goal.met_left_out() == Some(false) } else { !goal.met() };
        report.summary.goals.iter().filter(misses).map(move |goal| (goal, left_out))
    };
    let all: Vec<(&Goal, bool)> = of(false).chain(of(true)).collect();
    if all.is_empty() {
        return;
    }
    md.push_str(
        "\nWhat holds the missed ones back: parts of the rows, those first without which the goal would stand best. What is \
         wrong with them, or with us, is said under [weak spots](#weak-spots), [ranking](#ranking) and [error \
         bars](#error-bars).\n",
    );
    for (goal, left_out) in all {
        let what = if matches!(goal.about, About::Tau | About::Regret) { "group" } else { "source" };
        let _ = writeln!(
            md,
            "\n| {}{}: {what} | rows | by itself | goal without it |\n|---|--:|--:|--:|",
            goal.name,
            if left_out { ", left out" } else { "" }
        );
        for part in parts(report, goal, left_out) {
            let (own, without) = (shown(goal.unit, part.own), shown(goal.unit, part.without));
            let _ = writeln!(md, "| {} | {} | {own} | {without} |", part.name.replace('|', ", "), part.rows);
        }
    }
}

/// What is known of rows that are far off.
fn weak(md: &mut String, report: &Report) {
    let (rows, remarks) = (counted(&report.rows), Remark::shipped());
    let shown: Vec<_> = remarks
        .iter()
        .filter_map(|remark| {
            let (errors, left_out) = remark.errors(&rows);
            Some((remark, errors?, left_out))
        })
        .collect();
    if shown.is_empty() {
        return;
    }
    let far = |of| explained(&rows, &remarks, of);
    let (times, memory) = (far(Measurand::StepTime), far(Measurand::Memory));
    let _ = writeln!(
        md,
        "\n## Weak spots\n\nRows that predictions are far off, with what is wrong with them or with us. {} step times are more \
         than 10% off: {} of them fall under an entry most of whose rows are, {} more under one most of whose rows are right, or among \
         the noisy rows above, and {} under none. Of {} memory readings as far off these are {}, {} and {}.\n\n\
         | rows | of | number | median | mean | worst | left out: median | wrong | why |\n|---|---|--:|--:|--:|--:|--:|---|---|",
        times.far,
        times.remarked,
        times.among_others,
        times.far - times.remarked - times.among_others,
        memory.far,
        memory.remarked,
        memory.among_others,
        memory.far - memory.remarked - memory.among_others,
    );
    for (remark, errors, left_out) in shown {
        let which = match remark.rows.as_str() {
            "" => remark.source.clone(),
            rows => format!("{}, {rows}", remark.source),
        };
        let of = match remark.of {
            Measurand::StepTime if remark.by_rate => "printed rate",
            Measurand::StepTime => "step time",
            Measurand::Memory => "memory",
        };
        let when = if remark.left_out { ", left out" } else { "" };
        let _ = writeln!(
            md,
            "| {which} | {of}{when} | {} | {} | {} | {} | {} | {} | {} |",
            errors.rows,
            percent(errors.median),
            percent(errors.mean),
            percent(errors.worst),
            left_out.map_or_else(|| "-".to_owned(), |errors| percent(errors.median)),
            remark.wrong.name(),
            remark.why
        );
    }
}

fn goals(md: &mut String, goals: &[Goal]) {
    if goals.is_empty() {
        return;
    }
    let missed = goals.iter().filter(|goal| !goal.met()).count();
    let _ = writeln!(
        md,
        "\n## Goals\n\nWhat this project set out to reach: {} of {} goals are met. With a row's own source left out, errors \
         should stay below one and a half times the bound (correlations above two thirds of it).\n\n\
         | goal | bound | reached | left out |\n|---|--:|--:|--:|",
        goals.len() - missed,
        goals.len()
    );
    for goal in goals {
        let sign = if goal.at_least { ">=" } else { "<=" };
        let verdict = |met: bool| if met { "" } else { " **missed**" };
        let left_out = goal.left_out.zip(goal.met_left_out()).map_or_else(
            || "-".to_owned(),
            |(value, met)| format!("{}{}", shown(goal.unit, value), verdict(met)),
        );
        let _ = writeln!(
            md,
            "| {} | {sign} {} | {}{} | {left_out} |",
            goal.name,
            shown(goal.unit, goal.bound),
            shown(goal.unit, goal.reached),
            verdict(goal.met())
        );
    }
}

fn errors(md: &mut String, table: &ErrorTable, left_out: Option<&ErrorTable>) {
    md.push_str("| class | rows | median | mean | P90 | worst | bias |");
    md.push_str(if left_out.is_some() { " left out: median | mean | P90 |\n" } else { "\n" });
    md.push_str("|---|--:|--:|--:|--:|--:|--:|");
    md.push_str(if left_out.is_some() { "--:|--:|--:|\n" } else { "\n" });
    let mut row = |name: &str, e: &ErrorStatistics, without: Option<&ErrorStatistics>| {
        let _ = write!(
            md,
            "| {name} | {} | {} | {} | {} | {} | {:+.1}% |",
            e.rows,
            percent(e.median),
            percent(e.mean),
            percent(e.p90),
            percent(e.worst),
            e.bias * 100.0
        );
        if let Some(e) = without {
            let _ = write!(md, " {} | {} | {} |", percent(e.median), percent(e.mean), percent(e.p90));
        }
        md.push('\n');
    };
    if let Some(all) = &table.all {
        row("**all**", all, left_out.and_then(|t| t.all.as_ref()));
    }
    for (dimension, classes) in &table.by {
        for (class, errors) in classes {
            let without = left_out.and_then(|t| t.by.get(dimension)?.get(class));
            row(&format!("{dimension}: {class}"), errors, without);
        }
    }
}

fn named_sets(md: &mut String, sets: &[NamedSet]) {
    if sets.is_empty() {
        return;
    }
    md.push_str(
        "\n## Rows that other planners report\n\nThe published table holds a part of these sets; `least rank \
         correlation` is Spearman's, within models of four and more rows. Behind a slash: with the set's own sources left out of \
         the fit.\n\n\
         | set | rows | mean | median | worst | least rank correlation | memory: mean, worst | peer |\n\
         |---|--:|--:|--:|--:|--:|--:|---|\n",
    );
    let both = |own: Option<String>, apart: Option<String>| match (own, apart) {
        (Some(own), Some(apart)) => format!("{own} / {apart}"),
        (own, _) => own.unwrap_or_else(|| "-".to_owned()),
    };
    let two_digits = |r: f64| format!("{r:.2}");
    let mean_and_worst = |e: ErrorStatistics| format!("{}, {}", percent(e.mean), percent(e.worst));
    for set in sets {
        let Some(e) = set.step_time else { continue };
        let _ = writeln!(
            md,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            set.name,
            e.rows,
            both(Some(percent(e.mean)), set.left_out.map(|e| percent(e.mean))),
            both(Some(percent(e.median)), set.left_out.map(|e| percent(e.median))),
            both(Some(percent(e.worst)), set.left_out.map(|e| percent(e.worst))),
            both(set.least_spearman.map(two_digits), set.left_out_spearman.map(two_digits)),
            both(set.memory.map(mean_and_worst), set.left_out_memory.map(mean_and_worst)),
            set.peer
        );
    }
}

fn ranking(md: &mut String, report: &Report) {
    let r = &report.summary.ranking;
    let (Some(tau), Some(regret)) = (r.mean_tau, r.mean_regret) else { return };
    let _ = writeln!(
        md,
        "\n## Ranking\n\nGroups of four and more plans of the same job on the same machine and release of the software; repeats count as one \
         run, noisy rows are aside. Tau is Kendall's rank correlation; \
         regret says how much slower the plan we would have picked was than the best one measured; in the last column \
         only plans that we predict to fit may be picked.\n\nMean tau {tau:.2}, mean regret {}; picks by time and memory \
         together that ran out of memory: {}.\n\n| group | runs | tau | regret | with memory |\n|---|--:|--:|--:|--:|",
        percent(regret),
        r.picks_out_of_memory.len()
    );
    for g in &r.groups {
        let _ = writeln!(
            md,
            "| {} | {} | {:.2} | {} | {} |",
            g.group.replace('|', ", "),
            g.runs,
            g.tau,
            percent(g.regret),
            g.regret_with_memory.map_or_else(|| "-".to_owned(), percent)
        );
    }
    for id in &r.picks_out_of_memory {
        let Some(row) = report.rows.iter().find(|row| row.id == *id) else { continue };
        let (plan, device) =
            (row.plan.as_deref().unwrap_or("-"), row.predicted_device_gb.unwrap_or_default());
        let _ = writeln!(
            md,
            "\nThe pick that ran out of memory: {id}, {plan}, {device:.1} GB predicted on the device."
        );
    }
    md.push_str("\n![tau by group](ranking.svg)\n");
    let all = &report.summary.ranking_of_all;
    if let (Some(tau), Some(regret)) = (all.mean_tau, all.mean_regret) {
        let _ = writeln!(
            md,
            "\nOver all {} groups, the noisy rows included: mean tau {tau:.2}, mean regret {}, picks that ran out of \
             memory {}. Noisy rows:\n",
            all.groups.len(),
            percent(regret),
            all.picks_out_of_memory.len()
        );
        for noise in &NOISE {
            let which = match noise.rows {
                "" => noise.source.to_owned(),
                rows => format!("{}, {rows}", noise.source),
            };
            let fitted = if noise.fitted { "" } else { " (no constant is fitted to them)" };
            let _ = writeln!(md, "- {which}{fitted}: {}", noise.why);
        }
    }
}

#[derive(Clone, Copy)]
enum Plot {
    StepTime,
    Memory,
}

/// How often what was measured lies inside its bars: as fitted, fitted without the row's source, and inside bars that this
/// source did not inform.
fn inside(md: &mut String, what: &str, coverage: [Option<Coverage>; 3]) {
    let _ = writeln!(
        md,
        "\n| {what} | inside one sigma | inside twice as much | inside what holds 95.4% |\n|---|--:|--:|--:|"
    );
    let names = [
        "as fitted, bars that ship",
        "fitted without the row's publication, bars that ship",
        "fitted without the row's publication, bars by the same rule from others alone",
    ];
    for (name, coverage) in names.into_iter().zip(coverage) {
        if let Some(Coverage { one_sigma, two_sigma, twice_one_sigma }) = coverage {
            let [one, two, twice] = [one_sigma, two_sigma, twice_one_sigma].map(percent);
            let _ = writeln!(md, "| {name} | {one} | {twice} | {two} |");
        }
    }
}

/// Colours that stay apart for colour-blind readers (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

/// Lines beside the diagonal are drawn where predictions are off by this share.
const GUIDE: f64 = 0.1;
/// Axes over more decades than this have marks at their powers of ten alone.
const MANY_DECADES: i32 = 6;

/// Ends of the line `y = factor * x` inside a square whose axes both go from `low` to `high`: the plotting library moves
/// what lies outside onto the frame, each axis by itself, which would turn the line.
fn guide(factor: f64, low: f64, high: f64) -> [(f64, f64); 2] {
    let from = low.max(low / factor);
    let to = high.min(high / factor);
    [(from, (from * factor).max(low)), (to, (to * factor).min(high))]
}

/// Marks of a logarithmic axis: 1, 2 and 5 of every decade.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let steps: &[f64] =
        if decades.end() - decades.start() > MANY_DECADES { &[1.0] } else { &[1.0, 2.0, 5.0] };
    decades
        .flat_map(|decade| {
            let power = 10f64.powi(decade.abs());
            // Quotients are exact to the last digit, so that labels are short; products with 0.1 are not.
            steps.iter().map(move |step| if decade < 0 { step / power } else { step * power })
        })
        .filter(|tick| (low..=high).contains(tick))
        .collect()
}

fn scatter(rows: &[RowReport], plot: Plot) -> Result<String, PlotError> {
    let what = match plot {
        Plot::StepTime => "step-time.svg",
        Plot::Memory => "memory.svg",
    };
    let mut classes: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for row in rows {
        let pair = match plot {
            Plot::StepTime => row.measured_step_s.zip(row.predicted_step_s),
            Plot::Memory => row.measured_mem_gb.zip(row.predicted_mem_gb),
        };
        let Some(pair) = pair.filter(|(x, y)| *x > 0.0 && *y > 0.0) else { continue };
        let class = row.labels.gpu.split('-').next().unwrap_or("").to_owned();
        match classes.iter_mut().find(|(name, _)| *name == class) {
            Some((_, points)) => points.push(pair),
            None => classes.push((class, vec![pair])),
        }
    }
    classes.sort_by(|a, b| b.1.len().cmp(&a.1.len()).then_with(|| a.0.cmp(&b.0)));
    let all = || classes.iter().flat_map(|(_, points)| points).flat_map(|&(x, y)| [x, y]);
    // Without points any range does.
    let low = all().reduce(f64::min).unwrap_or(1.0).max(1e-6) * 0.8;
    let high = all().fold(0.0, f64::max).max(low * 2.0) * 1.25;
    let mut svg = String::new();
    {
        let fail = |e: &dyn std::fmt::Display| PlotError(what, e.to_string());
        let root = SVGBackend::with_string(&mut svg, (760, 620)).into_drawing_area();
        root.fill(&WHITE).map_err(|e| fail(&e))?;
        let (x, y) = match plot {
            Plot::StepTime => ("measured, seconds per step", "predicted, seconds per step"),
            Plot::Memory => ("measured, GB", "predicted, GB"),
        };
        let axis = || (low..high).log_scale().with_key_points(ticks(low, high));
        let mut chart = ChartBuilder::on(&root)
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(axis(), axis())
            .map_err(|e| fail(&e))?;
        chart
            .configure_mesh()
            .x_desc(x)
            .y_desc(y)
            .light_line_style(WHITE)
            .bold_line_style(RGBColor(225, 225, 225))
            .x_label_formatter(&|v| format!("{v}"))
            .y_label_formatter(&|v| format!("{v}"))
            .draw()
            .map_err(|e| fail(&e))?;
        for (i, (class, points)) in classes.iter().enumerate() {
            let colour = COLOURS[i.min(COLOURS.len() - 1)];
            let dots = points.iter().map(|&p| Circle::new(p, 3, colour.mix(0.6).filled()));
            let series = chart.draw_series(dots).map_err(|e| fail(&e))?;
            series
                .label(format!("{class} ({})", points.len()))
                .legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
        }
        let off = format!("\u{b1}{:.0}%", GUIDE * 100.0);
        for (factor, shade, label) in
            [(1.0, 0, Some("as measured")), (1.0 + GUIDE, 130, Some(&off)), (1.0 - GUIDE, 130, None)]
        {
            let style = RGBColor(shade, shade, shade).stroke_width(1);
            let line = LineSeries::new(guide(factor, low, high), style);
            let series = chart.draw_series(line).map_err(|e| fail(&e))?;
            if let Some(label) = label {
                series.label(label).legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
            }
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.9))
            .border_style(RGBColor(200, 200, 200))
            .draw()
            .map_err(|e| fail(&e))?;
        root.present().map_err(|e| fail(&e))?;
    }
    Ok(svg)
}

fn ranks(groups: &[RankedGroup]) -> Result<String, PlotError> {
    let fail = |e: &dyn std::fmt::Display| PlotError("ranking.svg", e.to_string());
    let mut sorted: Vec<&RankedGroup> = groups.iter().collect();
    sorted.sort_by(|a, b| a.tau.total_cmp(&b.tau).then_with(|| a.group.cmp(&b.group)));
    let count = sorted.len().max(1) as i32;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (760, 300)).into_drawing_area();
        root.fill(&WHITE).map_err(|e| fail(&e))?;
        let mut chart = ChartBuilder::on(&root)
            .margin(16)
            .x_label_area_size(36)
            .y_label_area_size(56)
            .build_cartesian_2d(0..count, -1.0f64..1.05)
            .map_err(|e| fail(&e))?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_desc("groups of runs, worst to best; orange: the plan we would pick is over 2% slower than the best")
            .y_desc("Kendall's tau")
            .x_label_formatter(&|_| String::new())
            .light_line_style(WHITE)
            .bold_line_style(RGBColor(225, 225, 225))
            .x_labels(0)
            .draw()
            .map_err(|e| fail(&e))?;
        let bars = sorted.iter().enumerate().map(|(i, g)| {
            let i = i as i32;
            let colour = if g.regret <= 0.02 { COLOURS[0] } else { COLOURS[3] };
            let mut bar = Rectangle::new([(i, 0.0), (i + 1, g.tau)], colour.mix(0.8).filled());
            bar.set_margin(0, 0, 1, 1);
            bar
        });
        chart.draw_series(bars).map_err(|e| fail(&e))?;
        root.present().map_err(|e| fail(&e))?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn guides_stay_in_their_square_and_on_their_lines(
            low in 1e-3f64..10.0, wide in 2.0f64..1e4, factor in 0.6f64..1.6,
        ) {
            let high = low * wide;
            let ends = guide(factor, low, high);
            for (x, y) in ends {
                prop_assert!((low..=high).contains(&x) && (low..=high).contains(&y), "{x} {y}");
                prop_assert!((y / x / factor - 1.0).abs() < 1e-12, "{x} {y}");
            }
            // Each ends on the frame, on both sides.
            let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-12;
            prop_assert!(near(ends[0].0, low) || near(ends[0].1, low));
            prop_assert!(near(ends[1].0, high) || near(ends[1].1, high));
        }
    }

    #[test]
    fn marks_are_spread_over_the_whole_axis() {
        let of = |low, high| ticks(low, high).iter().map(f64::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!(of(1.9, 190.0), "2 5 10 20 50 100");
        assert_eq!(of(0.042, 1090.0), "0.05 0.1 0.2 0.5 1 2 5 10 20 50 100 200 500 1000");
        assert_eq!(of(0.5, 2e7), "1 10 100 1000 10000 100000 1000000 10000000");
    }
}
