//! The constants that were fitted to measured runs: where each stands, what it was taken for before the
//! fit, and the runs that it came from. The list is `results/constants.ron`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::frameworks::profile::Profile;
use crate::spec::cluster::Accelerator;
use crate::spec::ron_options;
use crate::spec::shipped;
use crate::units::Seconds;

/// The schema version that this build reads.
const SCHEMA: u32 = 1;

static LIST: &str = include_str!("../../results/constants.ron");

/// Every fitted constant.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constants {
    /// Version of this format.
    pub schema: u32,
    /// Fitted constants that stand in data files.
    pub fitted: Vec<Constant>,
    /// Fitted constants that are counted and never refitted.
    pub held: Vec<Held>,
    /// Constants from runs of our own, which published rows do not inform: `results/own`.
    pub own: Vec<Held>,
}

/// A fitted constant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// What it is.
    pub name: String,
    /// Its unit; the suffix of quantities that carry one.
    pub unit: String,
    /// `accelerators/NAME: field.field` or `profiles/NAME: field.field`, all with the same value.
    pub places: Vec<String>,
    /// The value to take without these runs: a data sheet, a paper, another framework.
    pub prior: f64,
    /// The prior comes from the same rows: an earlier model had found it there, or what they say of memory chose it.
    #[serde(default)]
    pub own_rows: bool,
    /// How far the prior is trusted, as one standard deviation of the logarithm.
    pub spread: f64,
    /// What it was fitted to.
    #[serde(default)]
    pub measured: Measurand,
    /// It was chosen by verdicts on memory, which have no slope to follow: it keeps its value as long as some of its rows
    /// are there, and takes its prior without them.
    #[serde(default)]
    pub by_verdicts: bool,
    /// Sources (prefixes of row ids) of the runs that it was fitted to.
    pub sources: Vec<String>,
}

/// What a constant was fitted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Measurand {
    /// Step times.
    #[default]
    StepTime,
    /// Peak memory, or verdicts on it.
    Memory,
}

/// A fitted constant that is never fitted again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// What it is.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// Its places, all with the same value.
    pub places: Vec<String>,
    /// Sources of the runs that it was fitted to.
    pub sources: Vec<String>,
    /// The runs, and why it is not fitted again.
    pub why: String,
}

/// Why the list does not match the data files.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstantsError {
    /// The list cannot be read.
    #[error("results/constants.ron: {0}")]
    List(String),
    /// A place does not exist or holds no number.
    #[error("{constant}: there is no number at `{place}`")]
    Place {
        /// Name of the constant.
        constant: String,
        /// Where it should be.
        place: String,
    },
    /// Two places of one constant differ.
    #[error("{constant}: `{place}` holds {found}, another place {other}")]
    Differ {
        /// Name of the constant.
        constant: String,
        /// Where.
        place: String,
        /// What is there.
        found: String,
        /// What the first place holds.
        other: String,
    },
}

impl Constants {
    /// The list that ships.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn shipped() -> Result<Self, ConstantsError> {
        let mut list: Self =
            ron_options().from_str(LIST).map_err(|e| ConstantsError::List(format!("{e}")))?;
        if list.schema != SCHEMA {
            return Err(ConstantsError::List(format!("schema {} is not known", list.schema)));
        }
        for constant in &mut list.fitted {
            constant.places = constant.places.iter().flat_map(|place| expand(place)).collect();
        }
        Ok(list)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.fitted.len() + self.held.len()
    }

    /// Sources that some constant was fitted to.
    #[must_use]
    pub fn sources(&self) -> BTreeSet<&str> {
        let fitted = self.fitted.iter().flat_map(|constant| &constant.sources);
        fitted.chain(self.held.iter().flat_map(|held| &held.sources)).map(String::as_str).collect()
    }
}

/// `profiles/*: ...` stands for that place in every profile.
fn expand(place: &str) -> Vec<String> {
    match place.strip_prefix("profiles/*") {
        Some(field) => Profile::names().map(|name| format!("profiles/{name}{field}")).collect(),
        None => vec![place.to_owned()],
    }
}

/// Profiles and accelerators as text-free trees, so that a constant can be changed by its place.
#[derive(Debug, Clone)]
pub struct Settings {
    profiles: BTreeMap<String, Value>,
    accelerators: BTreeMap<String, Value>,
}

impl Settings {
    /// What ships.
    #[must_use]
    pub fn shipped() -> Self {
        let profiles = Profile::names()
            .filter_map(|name| Some((name.to_owned(), serde_json::to_value(Profile::find(name)?).ok()?)))
            .collect();
        let accelerators = shipped::accelerators()
            .into_iter()
            .filter_map(|file| {
                let accelerator: Accelerator = ron_options().from_str(file.text).ok()?;
                Some((file.name.to_owned(), serde_json::to_value(accelerator).ok()?))
            })
            .collect();
        Self { profiles, accelerators }
    }

    fn node(&self, place: &str) -> Option<&Value> {
        let (tree, pointer) = self.tree(place)?;
        tree.pointer(&pointer)
    }

    fn tree(&self, place: &str) -> Option<(&Value, String)> {
        let (file, field) = place.split_once(": ")?;
        let (folder, name) = file.split_once('/')?;
        let trees = if folder == "profiles" { &self.profiles } else { &self.accelerators };
        Some((trees.get(name)?, format!("/{}", field.replace('.', "/"))))
    }

    /// The number at a place; times are in seconds.
    #[must_use]
    pub fn get(&self, place: &str) -> Option<f64> {
        match self.node(place)? {
            Value::String(text) => Seconds::parse(text).ok().map(|time| time.0),
            value => value.as_f64(),
        }
    }

    /// Puts a number at a place. A place that does not exist is left alone.
    pub fn set(&mut self, place: &str, number: f64) {
        let Some((_, pointer)) = self.tree(place) else { return };
        let Some((folder, name)) = place.split_once(": ").and_then(|(file, _)| file.split_once('/')) else {
            return;
        };
        let trees = if folder == "profiles" { &mut self.profiles } else { &mut self.accelerators };
        let Some(node) = trees.get_mut(name).and_then(|tree| tree.pointer_mut(&pointer)) else { return };
        *node = match node {
            Value::String(_) => Value::String(format!("{number}s")),
            _ => Value::from(number),
        };
    }

    /// The value of a constant.
    ///
    /// # Errors
    /// When a place does not exist, or its places differ.
    pub fn value(&self, constant: &Constant) -> Result<f64, ConstantsError> {
        let mut first = None;
        for place in &constant.places {
            let number = self.get(place).ok_or_else(|| ConstantsError::Place {
                constant: constant.name.clone(),
                place: place.clone(),
            })?;
            let other: f64 = *first.get_or_insert(number);
            if (number - other).abs() > 1e-9 * other.abs() {
                return Err(ConstantsError::Differ {
                    constant: constant.name.clone(),
                    place: place.clone(),
                    found: number.to_string(),
                    other: other.to_string(),
                });
            }
        }
        first.ok_or_else(|| ConstantsError::Place { constant: constant.name.clone(), place: String::new() })
    }

    /// A profile, as changed.
    #[must_use]
    pub fn profile(&self, name: &str) -> Option<Profile> {
        serde_json::from_value(self.profiles.get(name)?.clone()).ok()
    }

    /// An accelerator, as changed.
    #[must_use]
    pub fn accelerator(&self, name: &str) -> Option<Accelerator> {
        serde_json::from_value(self.accelerators.get(name)?.clone()).ok()
    }
}

/// The list in Markdown: every constant with its value, unit, prior, and the rows it came from (`rows`,
/// in the order of the list).
///
/// # Errors
/// When a place of the list does not exist, or the places of one constant differ.
pub fn markdown(constants: &Constants, rows: &[usize]) -> Result<String, ConstantsError> {
    use std::fmt::Write;
    let settings = Settings::shipped();
    let mut md = format!(
        "{} constants were fitted to measured rows of {} sources; everything else comes from data sheets, papers and \
         frameworks' sources, named in the files. {} of them take another value where the rows of a source are left out; {} are \
         held, for the reasons given: what *left out* shows still contains what their rows said. `prior` is what is taken for a constant where its rows are left out; priors with a star come \
         from the same rows (an earlier model had found them there, or what the rows say of memory chose them), so that *left \
         out* leaves out less than all of what they said.\n\n\
         | constant | value | prior | unit | fitted to | rows | sources | place |\n|---|--:|--:|---|---|--:|---|---|\n",
        constants.count(),
        constants.sources().len(),
        constants.fitted.len(),
        constants.held.len()
    );
    for (i, constant) in constants.fitted.iter().enumerate() {
        let value = settings.value(constant)?;
        let _ = writeln!(
            md,
            "| {} | {} | {}{} | {} | {} | {} | {} | `{}`{} |",
            constant.name,
            short(value),
            short(constant.prior),
            if constant.own_rows { "\\*" } else { "" },
            constant.unit,
            match constant.measured {
                Measurand::StepTime => "step time",
                Measurand::Memory if constant.by_verdicts => "verdicts on memory",
                Measurand::Memory => "memory",
            },
            rows.get(i).map_or_else(|| "-".to_owned(), ToString::to_string),
            constant.sources.join(" "),
            constant.places.first().map_or("", String::as_str),
            and_more(&constant.places)
        );
    }
    let mut kept = |title: &str, list: &[Held]| {
        let _ = writeln!(md, "\n| {title} | place |\n|---|--:|---|---|---|---|");
        for held in list {
            let _ = writeln!(
                md,
                "| {} | {} | {} | {} | {} | `{}`{} |",
                held.name,
                short(held.value),
                held.unit,
                held.sources.join(" "),
                held.why,
                held.places.first().map_or("", String::as_str),
                and_more(&held.places)
            );
        }
    };
    kept("held constant | value | unit | sources | fitted to, and why it is held", &constants.held);
    kept(
        "constant of runs of our own | value | unit | runs (results/own) | what was measured",
        &constants.own,
    );
    Ok(md)
}

/// How many places there are beside the first.
fn and_more(places: &[String]) -> String {
    match places.len() {
        0 | 1 => String::new(),
        more => format!(" and {} more", more - 1),
    }
}

/// A number as people write it: times of microseconds and bytes of gigabytes with an exponent.
fn short(number: f64) -> String {
    if number != 0.0 && !(1e-2..1e6).contains(&number.abs()) {
        format!("{number:.3e}")
    } else {
        format!("{}", (number * 1e4).round() / 1e4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::refit::Refit;

    fn published() -> Vec<crate::validate::case::Case> {
        crate::validate::cases(include_str!("../../results/published/measured.csv").as_bytes()).unwrap()
    }

    #[test]
    fn the_printed_list_matches_the_data_files() {
        let list = Constants::shipped().unwrap();
        let cases = published();
        let rows = Refit::new(&list, &cases).unwrap().rows();
        for (constant, rows) in list.fitted.iter().zip(&rows) {
            assert!(*rows > 0, "{} was fitted to nothing", constant.name);
        }
        let printed = markdown(&list, &rows).unwrap();
        assert!(
            printed == include_str!("../../results/constants.md"),
            "write results/constants.md again: autoplan validate --constants"
        );
    }

    /// What is held stands in the data files with the value that is printed, or is named where it stands in code.
    #[test]
    fn held_constants_are_those_of_the_data_files() {
        let (settings, list) = (Settings::shipped(), Constants::shipped().unwrap());
        for held in list.held.iter().chain(&list.own) {
            assert!(
                !held.why.is_empty() && !held.sources.is_empty() && !held.places.is_empty(),
                "{}",
                held.name
            );
            for place in &held.places {
                let (file, field) = place.split_once(": ").unwrap();
                let found = match file.split_once('/') {
                    Some(("accelerators" | "profiles", _)) => settings.get(place),
                    Some(("clusters", name)) => {
                        let machine = crate::spec::load_cluster(name).unwrap();
                        let cluster = serde_json::to_value(&machine.cluster).unwrap();
                        let node = cluster.pointer(&format!("/{}", field.replace('.', "/"))).cloned();
                        let text = node.and_then(|node| node.as_str().map(str::to_owned)).unwrap_or_default();
                        crate::units::Bandwidth::parse(&text).ok().map(|rate| rate.0 / 1e9)
                    }
                    _ => continue,
                };
                assert!(found.is_some_and(|x| (x / held.value - 1.0).abs() < 1e-9), "{place}: {found:?}");
            }
        }
    }

    #[test]
    fn numbers_are_changed_in_place() {
        let mut settings = Settings::shipped();
        let place = "profiles/nanotron: host.step";
        let before = settings.get(place).unwrap();
        settings.set(place, 2.0 * before);
        assert_eq!(settings.profile("nanotron").unwrap().host.step.0, 2.0 * before);
        assert_eq!(settings.get("profiles/nanotron: host.nothing"), None);
    }
}
