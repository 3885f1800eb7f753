//! Regression of the best plans: plans every scenario again and says what changed against the stored
//! result, why, and by which items.
//!
//! Nothing here knows how plans are found: a [`Planner`] does that. Nothing here prints: a [`Report`]
//! renders itself as text.

pub mod scenario;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rayon::prelude::*;
use serde::Serialize;

use crate::results::{Objective, Outcome, Planned, ReadError, Scenario, Store, StoredResult};
use crate::units::{Bytes, Picos};
use crate::validate::baseline::Worse;

/// Relative difference below which two costs are the same number.
const EQUAL: f64 = 1e-9;

/// Items that make up less than this share of all movement are not named.
const NAMED_SHARE: f64 = 0.05;

/// How far a prediction may move before it is reported, where nothing else is said.
pub const TOLERANCE: f64 = 0.0005;

/// Finds and prices plans.
pub trait Planner: Sync {
    /// Plans a scenario.
    ///
    /// # Errors
    /// The scenario cannot be planned at all: a model that is gone, a broken file.
    fn plan(&self, scenario: &Scenario) -> Result<Outcome, String>;

    /// Prices a stored plan of a scenario by today's model.
    ///
    /// # Errors
    /// Why the plan is not possible any more.
    fn price(&self, scenario: &Scenario, planned: &Planned) -> Result<Planned, String>;
}

/// Hears of progress; calls come from many threads.
pub trait Observer: Sync {
    /// A scenario is done.
    fn finished(&self, scenario: &str);
}

/// Hears nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {
    fn finished(&self, _: &str) {}
}

/// What happened to a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The same plan at the same cost, within the tolerance.
    Same,
    /// Another plan at the same cost.
    EqualCost,
    /// A cheaper plan.
    Better,
    /// A dearer plan.
    Worse,
    /// The same plan; its prediction moved by more than the tolerance.
    Moved,
    /// A plan where there was none.
    FeasibleNow,
    /// No plan where there was one.
    InfeasibleNow,
    /// Nothing was stored.
    New,
    /// A stored result whose scenario is not listed.
    Orphan,
    /// The stored file cannot be used.
    Unreadable,
    /// The scenario cannot be planned.
    Failed,
    /// A defect of autoplan.
    Internal,
}

impl Verdict {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::EqualCost => "other plan, equal cost",
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Moved => "prediction moved",
            Self::FeasibleNow => "feasible now",
            Self::InfeasibleNow => "infeasible now",
            Self::New => "new",
            Self::Orphan => "no such scenario",
            Self::Unreadable => "unreadable result",
            Self::Failed => "cannot be planned",
            Self::Internal => "internal error",
        }
    }
}

/// Why the best plan is another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The stored plan costs what it did; the search found another.
    Search,
    /// The prediction of the stored plan moved.
    CostModel,
    /// The stored plan is not possible any more.
    Refused(String),
}

/// A figure that moved.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ItemChange {
    /// Name of the item.
    pub item: String,
    /// Its unit: `s`, `B` or `USD/h`.
    pub unit: &'static str,
    /// Stored.
    pub before: f64,
    /// Today.
    pub after: f64,
}

impl ItemChange {
    fn text(&self) -> String {
        let show = |value: f64| match self.unit {
            "s" => Picos((value * 1e12).round() as u64).to_string(),
            "B" => Bytes::from_f64(value).to_string(),
            unit => format!("{value:.4}{unit}"),
        };
        let relative = if self.before == 0.0 {
            "new".to_owned()
        } else {
            format!("{:+.1} %", 100.0 * (self.after / self.before - 1.0))
        };
        format!("{} {} -> {} ({relative})", self.item, show(self.before), show(self.after))
    }
}

/// A plan in a report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shown {
    /// One-line name.
    pub plan: String,
    /// Cluster.
    pub cluster: String,
    /// GPUs.
    pub gpus: u32,
    /// Step time.
    pub step_time_s: f64,
    /// Dollars of a step.
    pub usd_per_step: f64,
    /// Fullest rank.
    pub memory_bytes: u64,
}

impl From<&Planned> for Shown {
    fn from(planned: &Planned) -> Self {
        Self {
            plan: planned.plan.clone(),
            cluster: planned.cluster.clone(),
            gpus: planned.gpus,
            step_time_s: Picos(planned.step_time_ps).seconds().0,
            usd_per_step: planned.usd_per_step,
            memory_bytes: planned.memory_bytes,
        }
    }
}

/// One scenario of a report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// Name of the scenario.
    pub scenario: String,
    /// What happened.
    pub verdict: Verdict,
    /// Relative change of the objective; positive is dearer.
    pub change: Option<f64>,
    /// The stored best plan.
    pub before: Option<Shown>,
    /// Today's best plan.
    pub after: Option<Shown>,
    /// Why the plan is another one.
    pub cause: Option<Cause>,
    /// Items that moved, largest first; of the stored plan where it could be priced again.
    pub items: Vec<ItemChange>,
    /// A sentence for people.
    pub message: String,
    /// Its file.
    pub file: String,
    /// The file was written.
    pub written: bool,
    /// The file could not be written.
    pub write_error: Option<String>,
}

impl Entry {
    fn new(scenario: String, verdict: Verdict, message: String, file: String) -> Self {
        Self {
            scenario,
            verdict,
            change: None,
            before: None,
            after: None,
            cause: None,
            items: Vec::new(),
            message,
            file,
            written: false,
            write_error: None,
        }
    }

    /// The scenario became dearer or impossible.
    #[must_use]
    pub fn is_worse(&self) -> bool {
        match self.verdict {
            Verdict::Worse | Verdict::InfeasibleNow => true,
            Verdict::Moved => self.change.is_some_and(|change| change > 0.0),
            _ => false,
        }
    }

    /// Anything but the same plan or the same cost.
    #[must_use]
    pub fn is_change(&self) -> bool {
        !matches!(self.verdict, Verdict::Same | Verdict::EqualCost)
    }

    fn is_input_error(&self) -> bool {
        matches!(self.verdict, Verdict::Unreadable | Verdict::Failed) || self.write_error.is_some()
    }
}

/// What fails a regression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum FailOn {
    /// Every change.
    #[default]
    Any,
    /// Dearer and impossible plans.
    Worse,
}

/// Options of a regression.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Relative change of a prediction that is not reported.
    pub tolerance: f64,
    /// Write changed results.
    pub update: bool,
    /// The scenarios are a selection: stored results of others are not orphans.
    pub partial: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { tolerance: TOLERANCE, update: false, partial: false }
    }
}

/// The result of a regression.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Scenarios in the order of their list, then orphans by name.
    pub scenarios: Vec<Entry>,
    /// Classes of measured runs that are predicted worse than before, by more than the margin.
    pub accuracy: Vec<Worse>,
    /// Relative change that is not reported.
    pub tolerance: f64,
}

/// The figure that an objective minimises.
fn value(objective: Objective, planned: &Planned) -> f64 {
    match objective {
        Objective::Time => planned.step_time_ps as f64,
        Objective::Cost => planned.usd_per_step,
    }
}

fn relative(before: f64, after: f64) -> f64 {
    if before == after { 0.0 } else { after / before - 1.0 }
}

fn same_plan(a: &Planned, b: &Planned) -> bool {
    (&a.cluster, a.gpus, &a.layout, &a.chunks) == (&b.cluster, b.gpus, &b.layout, &b.chunks)
}

/// Items whose movement matters, largest first.
fn moved_items(
    before: &BTreeMap<String, u64>,
    after: &BTreeMap<String, u64>,
    unit: &'static str,
) -> Vec<ItemChange> {
    let scale = if unit == "s" { 1e-12 } else { 1.0 };
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let value = |items: &BTreeMap<String, u64>, name| items.get(name).copied().unwrap_or_default();
    let mut changes: Vec<(u64, ItemChange)> = names
        .into_iter()
        .map(|name| {
            let (from, to) = (value(before, name), value(after, name));
            let change = ItemChange {
                item: name.clone(),
                unit,
                before: from as f64 * scale,
                after: to as f64 * scale,
            };
            (from.abs_diff(to), change)
        })
        .filter(|(difference, _)| *difference > 0)
        .collect();
    // Names are sorted already and the sort is stable.
    changes.sort_by_key(|(difference, _)| std::cmp::Reverse(*difference));
    let all: f64 = changes.iter().map(|(difference, _)| *difference as f64).sum();
    changes.retain(|(difference, _)| *difference as f64 >= NAMED_SHARE * all);
    changes.into_iter().map(|(_, change)| change).collect()
}

/// What moved between two predictions of one plan.
fn moves(before: &Planned, after: &Planned, tolerance: f64) -> Vec<ItemChange> {
    let mut items = moved_items(&before.time_ps, &after.time_ps, "s");
    if relative(before.memory_bytes as f64, after.memory_bytes as f64).abs() > tolerance {
        items.extend(moved_items(&before.memory, &after.memory, "B"));
    }
    let price =
        |p: &Planned| p.usd_per_step / (Picos(p.step_time_ps).seconds().0 / 3600.0 * f64::from(p.gpus));
    let (from, to) = (price(before), price(after));
    if relative(from, to).abs() > 1e-6 {
        items.push(ItemChange { item: "price_per_gpu_hour".into(), unit: "USD/h", before: from, after: to });
    }
    items
}

fn percent(change: f64) -> String {
    format!("{:+.2} %", 100.0 * change)
}

fn list(items: &[ItemChange]) -> String {
    items.iter().map(ItemChange::text).collect::<Vec<_>>().join(", ")
}

/// Compares a stored outcome with today's; `price` prices the stored plan by today's model.
fn compare(
    entry: &mut Entry,
    objective: Objective,
    stored: &Outcome,
    fresh: &Outcome,
    tolerance: f64,
    price: impl FnOnce(&Planned) -> Result<Planned, String>,
) {
    let (before, after) = match (stored, fresh) {
        (Outcome::Infeasible { .. }, Outcome::Infeasible { reason }) => {
            entry.verdict = Verdict::Same;
            entry.message = format!("still infeasible: {reason}");
            return;
        }
        (Outcome::Infeasible { reason }, Outcome::Planned { best, .. }) => {
            entry.verdict = Verdict::FeasibleNow;
            entry.after = Some(best.into());
            entry.message = format!("{} fits; before: {reason}", best.plan);
            return;
        }
        (Outcome::Planned { best, .. }, Outcome::Infeasible { reason }) => {
            entry.verdict = Verdict::InfeasibleNow;
            entry.before = Some(best.into());
            entry.message = format!("{reason}; before: {}", best.plan);
            match price(best) {
                Err(why) => {
                    let _ = write!(entry.message, ", which is refused now: {why}");
                    entry.cause = Some(Cause::Refused(why));
                }
                // The stored plan is still possible: the search has lost it.
                Ok(_) => entry.cause = Some(Cause::Search),
            }
            return;
        }
        (Outcome::Planned { best: before, .. }, Outcome::Planned { best: after, .. }) => (before, after),
    };
    let change = relative(value(objective, before), value(objective, after));
    entry.before = Some(before.into());
    entry.after = Some(after.into());
    entry.change = Some(change);
    if same_plan(before, after) {
        let memory = relative(before.memory_bytes as f64, after.memory_bytes as f64);
        if change.abs() <= tolerance && memory.abs() <= tolerance {
            entry.verdict = Verdict::Same;
            entry.message = after.plan.clone();
        } else {
            entry.verdict = Verdict::Moved;
            entry.items = moves(before, after, tolerance);
            entry.message = format!("{} {}: {}", after.plan, percent(change), list(&entry.items));
        }
        return;
    }
    let names = format!("{} instead of {}", after.plan, before.plan);
    let (cause, equal) = match price(before) {
        Err(why) => (Cause::Refused(why), EQUAL),
        Ok(today) => {
            if relative(value(objective, before), value(objective, &today)).abs() > EQUAL {
                entry.items = moves(before, &today, tolerance);
                (Cause::CostModel, tolerance)
            } else {
                (Cause::Search, EQUAL)
            }
        }
    };
    let why = match &cause {
        Cause::Search if change > EQUAL => {
            "the search missed the stored plan, whose prediction is unchanged".into()
        }
        Cause::Search => "the search found another; the stored plan's prediction is unchanged".into(),
        Cause::CostModel => format!("the stored plan's prediction moved: {}", list(&entry.items)),
        Cause::Refused(why) => format!("the stored plan is refused now: {why}"),
    };
    entry.cause = Some(cause);
    entry.verdict = if change.abs() <= equal {
        Verdict::EqualCost
    } else if change < 0.0 {
        Verdict::Better
    } else {
        Verdict::Worse
    };
    entry.message = format!("{names} ({}); {why}", percent(change));
}

/// What is known of one scenario after planning it, and the outcome where the file should hold another.
fn examine(
    scenario: &Scenario,
    store: &Store,
    planner: &dyn Planner,
    options: &Options,
) -> (Entry, Option<Outcome>) {
    let name = scenario.name();
    let file = store.path(&name).display().to_string();
    let entry = |verdict, message| Entry::new(name.clone(), verdict, message, file.clone());
    let planned = catch_unwind(AssertUnwindSafe(|| planner.plan(scenario)));
    let fresh = match planned {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(why)) => return (entry(Verdict::Failed, why), None),
        Err(panic) => return (entry(Verdict::Internal, panic_text(panic.as_ref())), None),
    };
    let stored = match store.read(&name) {
        Ok(Some(stored)) => stored,
        Ok(None) => {
            let mut entry = entry(Verdict::New, describe(&fresh));
            entry.after = best(&fresh).map(Shown::from);
            return (entry, Some(fresh));
        }
        Err(ReadError { error, replaceable }) => {
            let replaced = options.update && replaceable;
            let verdict = if replaced { Verdict::New } else { Verdict::Unreadable };
            let mut entry = entry(verdict, error.to_string());
            entry.after = best(&fresh).map(Shown::from);
            if replaced {
                entry.message = format!("replaces an unusable file ({error}): {}", describe(&fresh));
            }
            return (entry, replaceable.then_some(fresh));
        }
    };
    let mut entry = entry(Verdict::Same, String::new());
    let price = |planned: &Planned| planner.price(scenario, planned);
    let compared = catch_unwind(AssertUnwindSafe(|| {
        compare(&mut entry, scenario.objective, &stored.outcome, &fresh, options.tolerance, price);
    }));
    if let Err(panic) = compared {
        entry.verdict = Verdict::Internal;
        entry.message = panic_text(panic.as_ref());
        return (entry, None);
    }
    // The version of the program alone is no reason to write a file.
    let changed = stored.outcome != fresh;
    (entry, changed.then_some(fresh))
}

fn best(outcome: &Outcome) -> Option<&Planned> {
    match outcome {
        Outcome::Planned { best, .. } => Some(best),
        Outcome::Infeasible { .. } => None,
    }
}

fn describe(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Planned { best, .. } => best.plan.clone(),
        Outcome::Infeasible { reason } => format!("infeasible: {reason}"),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
}

/// Plans all scenarios in parallel and compares them with the stored results; writes what changed if
/// the options say so. The report does not depend on the number of threads.
#[must_use]
pub fn regress(
    scenarios: &[Scenario],
    store: &Store,
    planner: &dyn Planner,
    options: &Options,
    observer: &dyn Observer,
) -> Report {
    let examined: Vec<(Entry, Option<Outcome>)> = scenarios
        .par_iter()
        .map(|scenario| {
            let examined = examine(scenario, store, planner, options);
            observer.finished(&examined.0.scenario);
            examined
        })
        .collect();
    let mut entries = Vec::with_capacity(examined.len());
    for (scenario, (mut entry, outcome)) in scenarios.iter().zip(examined) {
        if let (true, Some(outcome)) = (options.update, outcome) {
            let result = StoredResult { tool: tool(), scenario: scenario.clone(), outcome };
            match store.write(&result) {
                Ok(written) => entry.written = written,
                Err(error) => entry.write_error = Some(error.to_string()),
            }
        }
        entries.push(entry);
    }
    if !options.partial {
        let listed: BTreeSet<&str> = entries.iter().map(|entry| entry.scenario.as_str()).collect();
        match store.names() {
            Ok(names) => {
                let orphans: Vec<Entry> = names
                    .into_iter()
                    .filter(|name| !listed.contains(name.as_str()))
                    .map(|name| {
                        let file = store.path(&name).display().to_string();
                        let message = "a result of no listed scenario: delete the file, or list it".into();
                        Entry::new(name, Verdict::Orphan, message, file)
                    })
                    .collect();
                entries.extend(orphans);
            }
            Err(error) => entries.push(Entry::new(
                "results".into(),
                Verdict::Unreadable,
                error.to_string(),
                String::new(),
            )),
        }
    }
    Report { scenarios: entries, accuracy: Vec::new(), tolerance: options.tolerance }
}

fn tool() -> String {
    format!("autoplan {}", env!("CARGO_PKG_VERSION"))
}

impl Report {
    /// 0: same or equal cost. 1: something changed (as far as `fail_on` cares) or accuracy fell.
    /// 2: a file or scenario could not be used or written. 70: a defect of autoplan.
    #[must_use]
    pub fn exit_code(&self, fail_on: FailOn) -> u8 {
        let any = |test: &dyn Fn(&Entry) -> bool| self.scenarios.iter().any(test);
        if any(&|entry| entry.verdict == Verdict::Internal) {
            return 70;
        }
        if any(&Entry::is_input_error) {
            return 2;
        }
        let failed = match fail_on {
            FailOn::Any => any(&Entry::is_change),
            FailOn::Worse => any(&Entry::is_worse),
        };
        u8::from(failed || !self.accuracy.is_empty())
    }

    /// How many scenarios had each verdict: `60 same, 2 better, 1 worse`.
    #[must_use]
    pub fn counts(&self) -> String {
        let mut counts: BTreeMap<Verdict, usize> = BTreeMap::new();
        for entry in &self.scenarios {
            *counts.entry(entry.verdict).or_default() += 1;
        }
        let parts: Vec<String> =
            counts.iter().map(|(verdict, count)| format!("{count} {}", verdict.words())).collect();
        let scenarios = self.scenarios.len();
        let noun = if scenarios == 1 { "scenario" } else { "scenarios" };
        format!("{scenarios} {noun}: {}", if parts.is_empty() { "none".into() } else { parts.join(", ") })
    }

    /// A summary for the message of the commit that holds the written files.
    #[must_use]
    pub fn commit_message(&self) -> String {
        let written = self.scenarios.iter().filter(|entry| entry.written).count();
        let mut text = format!(
            "Best plans: {written} of {} results change\n\n{}\n",
            self.scenarios.len(),
            self.counts()
        );
        for entry in self.scenarios.iter().filter(|entry| entry.written && entry.verdict != Verdict::Same) {
            let change = entry.change.map(|change| format!(" {}", percent(change))).unwrap_or_default();
            let _ = writeln!(text, "- {}: {}{change}", entry.scenario, entry.verdict.words());
        }
        // Files that are written though the plan is the same: predictions within the tolerance, versions.
        for entry in self.scenarios.iter().filter(|entry| entry.written && entry.verdict == Verdict::Same) {
            let _ = writeln!(
                text,
                "- {}: {}, figures within the tolerance",
                entry.scenario,
                entry.verdict.words()
            );
        }
        for class in &self.accuracy {
            let _ = writeln!(text, "- accuracy fell: {}: {}", class.class, errors(class));
        }
        text
    }

    /// A table for people: everything that is not the same, then the counts.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::new();
        let width = self.scenarios.iter().map(|entry| entry.scenario.len()).max().unwrap_or(0);
        for entry in self.scenarios.iter().filter(|e| e.verdict != Verdict::Same || e.write_error.is_some()) {
            let _ =
                writeln!(text, "{:width$}  {:22}  {}", entry.scenario, entry.verdict.words(), entry.message);
            if let Some(error) = &entry.write_error {
                let _ = writeln!(text, "{:width$}  {:22}  {error}", "", "not written");
            }
        }
        for class in &self.accuracy {
            let _ = writeln!(text, "{:width$}  {:22}  {}", class.class, "accuracy fell", errors(class));
        }
        if !text.is_empty() {
            text.push('\n');
        }
        let _ = writeln!(text, "{}", self.counts());
        text
    }

    /// Annotations for GitHub Actions, then the counts.
    #[must_use]
    pub fn github(&self) -> String {
        let mut text = String::new();
        for entry in &self.scenarios {
            let level = match entry.verdict {
                Verdict::Same if entry.write_error.is_none() => continue,
                Verdict::EqualCost | Verdict::New => "notice",
                Verdict::Better | Verdict::FeasibleNow | Verdict::Orphan => "warning",
                Verdict::Moved if !entry.is_worse() => "warning",
                _ => "error",
            };
            let mut message = format!("{}: {}", entry.scenario, entry.message);
            if let Some(error) = &entry.write_error {
                let _ = write!(message, "\n{error}");
            }
            let _ = writeln!(
                text,
                "::{level} file={},title={}::{}",
                property(&entry.file),
                property(entry.verdict.words()),
                data(&message)
            );
        }
        for class in &self.accuracy {
            let message = format!("{}: {}", class.class, errors(class));
            let _ = writeln!(text, "::error title=accuracy fell::{}", data(&message));
        }
        let _ = writeln!(text, "{}", self.counts());
        text
    }

    /// The whole report as JSON.
    ///
    /// # Errors
    /// Never for a report that [`regress`] made.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

/// A figure of a class, before and now.
fn errors(class: &Worse) -> String {
    let show = |error: f64| format!("{:.2} %", 100.0 * error);
    let now = class.now.map_or("no rows".into(), show);
    format!("{} {} -> {now}", class.figure, show(class.before))
}

/// Escapes the message of a workflow command.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a property of a workflow command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
