//! A plan with everything that it was made for, as one RON file: what `plan --format ron` prints and
//! `explain`, `check`, `compare` and `export` read.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::cluster::{Accelerator, Cluster};
use super::diagnostic::{SpecError, parse_ron};
use super::job::Job;
use super::json::{self, Object, Value};
use super::model::{Fault, Model};
use super::shipped::Kind;
use super::{Machine, STANDARD_INPUT, read_standard_input, read_text};
use crate::cost::money::Pricing;
use crate::cost::step::Prediction;
use crate::plan::{Chunk, Layout, Plan};
use crate::units::Bytes;

/// The schema version that this build reads and writes.
pub const SCHEMA: u32 = 1;

/// A plan with its model, machine and job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPlan {
    /// Version of this format; see [`SCHEMA`].
    pub schema: u32,
    /// Version of autoplan that wrote it.
    pub autoplan: String,
    /// The command that made it; empty: not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// The plan's one-line name.
    pub name: String,
    /// Framework it was made for.
    pub framework: String,
    /// Run-time profile that predicted it.
    pub profile: String,
    /// Seconds of a step, as predicted.
    pub predicted_step_s: f64,
    /// Allocated bytes on the fullest GPU, as predicted.
    pub predicted_allocated: Bytes,
    /// Degrees, batch, sharding, flags.
    pub layout: Layout,
    /// Layers and recomputation per chunk, in model order.
    pub chunks: Vec<Chunk>,
    /// The job.
    pub job: Job,
    /// What a GPU-hour is taken to cost, as `--price` has it.
    #[serde(default, skip_serializing_if = "is_on_demand", with = "as_text")]
    pub price: Pricing,
    /// The model.
    pub model: Model,
    /// The cluster.
    pub cluster: Cluster,
    /// Its accelerator.
    pub accelerator: Accelerator,
}

fn is_on_demand(price: &Pricing) -> bool {
    *price == Pricing::OnDemand
}

/// A price as it is written on the command line.
mod as_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Pricing;

    pub fn serialize<S: Serializer>(price: &Pricing, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(price)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Pricing, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl SavedPlan {
    /// Collects a plan and its surroundings.
    #[must_use]
    pub fn new(
        (framework, profile): (&str, &str),
        model: &Model,
        machine: &Machine,
        job: &Job,
        plan: &Plan,
        prediction: &Prediction,
    ) -> Self {
        Self {
            schema: SCHEMA,
            autoplan: env!("CARGO_PKG_VERSION").to_owned(),
            command: String::new(),
            name: plan.to_string(),
            framework: framework.to_owned(),
            profile: profile.to_owned(),
            predicted_step_s: prediction.step().seconds().0,
            predicted_allocated: prediction.allocated,
            layout: *plan.layout(),
            chunks: plan.chunks().to_vec(),
            job: job.clone(),
            price: Pricing::default(),
            model: model.clone(),
            cluster: machine.cluster.clone(),
            accelerator: machine.accelerator.clone(),
        }
    }

    /// The same with the command that made it.
    #[must_use]
    pub fn made_by(mut self, command: String) -> Self {
        self.command = command;
        self
    }

    /// The same at another price.
    #[must_use]
    pub fn priced(mut self, price: Pricing) -> Self {
        self.price = price;
        self
    }

    /// The RON text of the plan.
    ///
    /// # Errors
    /// None in practice: every value has a text.
    pub fn to_text(&self) -> Result<String, ron::Error> {
        let style = ron::ser::PrettyConfig::new().depth_limit(4).struct_names(false).compact_arrays(true);
        super::ron_options().to_string_pretty(self, style)
    }

    /// Reads and checks a saved plan.
    ///
    /// # Errors
    /// Whatever is wrong with the file, its parts, or the plan's laws.
    pub fn from_text(source: &str, text: &str) -> Result<(Self, Plan), SpecError> {
        let saved: Self = parse_ron(source, text)?;
        if saved.schema != SCHEMA {
            let title = format!("a saved plan of schema {}; this build reads schema {SCHEMA}", saved.schema);
            return Err(SpecError::new(source, title));
        }
        saved.job.validate().map_err(|fault| SpecError::from_fault(source, text, &fault))?;
        if !(saved.predicted_step_s.is_finite() && saved.predicted_step_s >= 0.0) {
            let message = format!("expected seconds, found {}", saved.predicted_step_s);
            let fault = Fault { field: "predicted_step_s".into(), within: None, message };
            return Err(SpecError::from_fault(source, text, &fault));
        }
        saved.model.validate().map_err(|fault| SpecError::from_fault(source, text, &fault))?;
        saved.cluster.validate().map_err(|fault| SpecError::from_fault(source, text, &fault))?;
        saved.accelerator.validate().map_err(|fault| SpecError::from_fault(source, text, &fault))?;
        if let Some(message) = saved.accelerator.lacks(saved.job.precision) {
            let fault = Fault { field: "precision".into(), within: Some("job".into()), message };
            return Err(SpecError::from_fault(source, text, &fault));
        }
        let (gpus, batch) = (saved.job.gpus, saved.job.global_batch_size);
        let plan = Plan::new(saved.layout, saved.chunks.clone(), gpus, batch, saved.model.layer_count());
        let plan = plan.map_err(|law| SpecError::new(source, law.to_string()))?;
        saved.layout.schedule_runs().map_err(|law| SpecError::new(source, law.to_string()))?;
        Ok((saved, plan))
    }

    /// Reads a saved plan from a file, or from standard input for `-`.
    ///
    /// # Errors
    /// As [`Self::from_text`], and what is wrong with the file itself.
    pub fn load(path: &str) -> Result<(Self, Plan), SpecError> {
        let (source, text) = match path {
            "-" => (STANDARD_INPUT, read_standard_input()?),
            _ => (path, read_text(Path::new(path)).map_err(|error| shipped_instead(error, path))?),
        };
        match other_kind(&text) {
            None => Self::from_text(source, &text),
            Some(kind) => Err(SpecError::new(source, format!("no saved plan, but {kind}")).help(WHENCE)),
        }
    }

    /// Whether a file holds a saved plan, be it a faulty one.
    #[must_use]
    pub fn is_one(path: &Path) -> bool {
        path.is_file() && read_text(path).is_ok_and(|text| Self::is_text(&text))
    }

    /// Whether a text is a saved plan, be it a faulty one.
    #[must_use]
    pub fn is_text(text: &str) -> bool {
        other_kind(text).is_none() && kind_of(text) == Some(SAVED_PLAN)
    }

    /// Cluster and accelerator together.
    #[must_use]
    pub fn machine(&self) -> Machine {
        Machine { cluster: self.cluster.clone(), accelerator: self.accelerator.clone() }
    }
}

/// Where saved plans come from.
const WHENCE: &str =
    "`autoplan plan --format ron` prints a saved plan, and `autoplan import` makes one of a launch";

/// What is wrong with a file that is not there, and may be meant for something that ships.
fn shipped_instead(error: SpecError, argument: &str) -> SpecError {
    match Kind::of(argument) {
        Some(kind) if !Path::new(argument).exists() => {
            let title = format!("`{argument}` is {} that ships; a saved plan was expected", kind.called());
            SpecError::new("", title).help(WHENCE)
        }
        _ => error,
    }
}

/// How the output of `plan --format json` is called.
pub(super) const PRINTED: &str = "what `autoplan plan --format json` printed";

/// Whether a JSON object with such fields is that.
pub(super) fn is_printed(object: &Object) -> bool {
    let has = |name: &str| object.fields.iter().any(|field| field.name == name);
    has("plans") && (has("search") || has("searches")) || has("phases") && has("total")
}

/// Names of the outermost fields of a RON text whose lines hold one each, as such files are written.
fn fields(text: &str) -> Vec<&str> {
    let names = text.lines().filter_map(|line| Some(line.strip_prefix("    ")?.split_once(':')?.0));
    names.filter(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_')).collect()
}

/// How a saved plan is called.
pub(super) const SAVED_PLAN: &str = "a saved plan";

/// What a RON text holds, be it faulty: a saved plan, a model, a cluster or an accelerator.
pub(super) fn kind_of(text: &str) -> Option<&'static str> {
    let names = fields(text);
    match names.as_slice() {
        names if names.contains(&"layout") => Some(SAVED_PLAN),
        names if names.contains(&"hidden") && names.contains(&"vocabulary") => Some(Kind::Model.called()),
        names if names.contains(&"gpus_per_node") => Some(Kind::Cluster.called()),
        names if names.contains(&"rates") => Some(Kind::Accelerator.called()),
        _ => None,
    }
}

/// What a text seems to be that is no saved plan; none where it may be one.
fn other_kind(text: &str) -> Option<&'static str> {
    let start = text.trim_start();
    if start.is_empty() {
        return Some("an empty file, as is left where no plan was found");
    }
    // RON has attributes that begin as scripts do.
    if start.starts_with("#!") && !start.starts_with("#![") {
        return Some("a script");
    }
    if start.starts_with('{') {
        let value = json::parse(text).map(|top| top.value);
        let printed = matches!(&value, Ok(Value::Object(object)) if is_printed(object));
        return Some(if printed { PRINTED } else { "a JSON file" });
    }
    if !["(", "/", "#!["].iter().any(|mark| start.starts_with(mark)) {
        return Some(if text.contains("--") {
            "a launch script or a list of arguments"
        } else {
            "a text of another kind"
        });
    }
    kind_of(text).filter(|kind| *kind != SAVED_PLAN)
}
