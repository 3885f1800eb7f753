//! Cells of a row: what they may hold, and what is assumed where they are empty.

use std::str::FromStr;

use crate::spec::measured::{MeasuredRow, UnreadableCell, known_columns};
use crate::spec::model::Fault;
use crate::spec::shipped::nearest;

/// Why a row was not predicted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Skip {
    /// A cell that prediction needs is empty.
    #[error("{0} is not stated")]
    Missing(&'static str),
    /// A cell cannot be read.
    #[error(transparent)]
    Cell(#[from] UnreadableCell),
    /// Text without a meaning here.
    #[error("{what} `{text}` is not known{} (one of {})", guess(.text, .choices), .choices.join(", "))]
    Unknown {
        /// Which column.
        what: &'static str,
        /// Its text.
        text: String,
        /// What it takes.
        choices: Vec<&'static str>,
    },
    /// A number beyond what is accepted.
    #[error("{what} is {found}; at most {most} is accepted")]
    TooLarge {
        /// Which column, or what follows from several.
        what: &'static str,
        /// The number.
        found: u64,
        /// The largest that is accepted.
        most: u32,
    },
    /// Stated fields contradict each other.
    #[error("{0}")]
    Contradiction(String),
    /// Something the model does not cover.
    #[error("{0}")]
    Unsupported(&'static str),
}

/// A message without what differs from row to row: numbers, and what is quoted from the first quote to the last.
#[must_use]
pub fn without_particulars(message: &str) -> String {
    let mut message = message.to_owned();
    if let Some((first, last)) =
        message.find('`').zip(message.rfind('`')).filter(|(first, last)| first < last)
    {
        message.replace_range(first + 1..last, "…");
    }
    let mut plain = String::with_capacity(message.len());
    for c in message.chars() {
        match c {
            '0'..='9' if plain.ends_with('N') => {}
            '0'..='9' => plain.push('N'),
            c => plain.push(c),
        }
    }
    plain
}

/// The nearest of the choices, as a question; nothing where none is near.
fn guess(text: &str, choices: &[&str]) -> String {
    nearest(text, choices.iter().copied())
        .first()
        .map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

impl Skip {
    /// The kind of fault: the reason without the texts and numbers of the row, so that rows with the same fault have the
    /// same one.
    #[must_use]
    pub fn kind(&self) -> String {
        match self {
            Self::Cell(cell) => format!("{} cannot be read; expected {}", cell.column, cell.expected),
            Self::Unknown { what, .. } => format!("{what} is not known"),
            Self::TooLarge { what, most, .. } => format!("{what} is more than {most}"),
            Self::Contradiction(text) => without_particulars(text),
            Self::Missing(_) | Self::Unsupported(_) => self.to_string(),
        }
    }
    pub(super) fn unknown(
        what: &'static str,
        text: &str,
        choices: impl IntoIterator<Item = &'static str>,
    ) -> Self {
        let text = text.chars().take(40).collect();
        Self::Unknown { what, text, choices: choices.into_iter().collect() }
    }
    pub(super) fn of_fault(fault: Fault) -> Self {
        Self::Contradiction(format!("{}: {}", fault.field, fault.message))
    }
}

/// Most passes of chunks, over all ranks and micro-batches, of an interleaved schedule that is simulated: each
/// is remembered until the end of the step.
pub(super) const MOST_PASSES: u32 = 1 << 22;

/// A number that was checked before anything is counted or allocated by it.
pub(super) fn at_most(what: &'static str, found: u64, most: u32) -> Result<u32, Skip> {
    u32::try_from(found).ok().filter(|n| *n <= most).ok_or(Skip::TooLarge { what, found, most })
}

/// Reads cells and notes what had to be assumed.
pub(super) struct Cells<'r> {
    pub(super) row: &'r MeasuredRow,
    pub(super) assumed: Vec<&'static str>,
}

impl Cells<'_> {
    /// A number above 0, if the row states one.
    pub(super) fn stated<T: FromStr + TryFrom<u64> + Default + PartialEq>(
        &self,
        column: &'static str,
    ) -> Result<Option<T>, Skip> {
        match self.row.whole(column)? {
            Some(number) if number == T::default() => Err(Skip::Contradiction(format!("{column} is 0"))),
            number => Ok(number),
        }
    }
    pub(super) fn need(&self, column: &'static str) -> Result<u64, Skip> {
        self.stated(column)?.ok_or(Skip::Missing(column))
    }
    /// A number from 1 to `most` that the row has to state.
    pub(super) fn size(&self, column: &'static str, most: u32) -> Result<u32, Skip> {
        at_most(column, self.need(column)?, most)
    }
    /// A number from 0 to `most`, or `default` where the row states none.
    pub(super) fn count(&self, column: &'static str, default: u32, most: u32) -> Result<u32, Skip> {
        self.row.whole(column)?.map_or(Ok(default), |found| at_most(column, found, most))
    }
    pub(super) fn or(&mut self, column: &'static str, default: u64) -> Result<u64, Skip> {
        match self.row.whole(column)? {
            Some(number) => Ok(number),
            None => {
                self.assumed.push(column);
                Ok(default)
            }
        }
    }
    pub(super) fn degree(&mut self, column: &'static str, default: u64) -> Result<u32, Skip> {
        let number = self.or(column, default)?;
        match u32::try_from(number) {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(Skip::Contradiction(format!("{column} is {number}"))),
        }
    }
    /// Notes what nothing else does of the columns that bear on the run: those with a default that the row leaves empty,
    /// and those that it names as not stated by its source.
    pub(super) fn unstated(&mut self, bears: impl Fn(&str) -> bool) {
        let row = self.row;
        let empty =
            DEFAULTED.into_iter().filter(|column| row.text(column).is_none() || *column == "framework");
        let inferred = row.text_or_empty("inferred").split_whitespace();
        let inferred = inferred.filter_map(|word| known_columns().find(|column| *column == word));
        for column in empty.chain(inferred) {
            if bears(column) && !self.assumed.contains(&column) {
                self.assumed.push(column);
            }
        }
    }
    pub(super) fn flag(&mut self, column: &'static str, default: bool) -> Result<bool, Skip> {
        Ok(self.row.flag(column)?.unwrap_or_else(|| {
            self.assumed.push(column);
            default
        }))
    }
}

/// What an assumption is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// Sizes of the model, and what of it is trained.
    Model,
    /// Degrees, schedule, sharding, micro-batch, recomputation, number format.
    Plan,
    /// GPUs, nodes and network.
    Machine,
    /// What the framework does at run time: overlap, kernels, graphs, dispatcher, routing, its release.
    Runtime,
    /// What a reading of memory counts.
    Reading,
}

impl Subject {
    /// What a column is about.
    #[must_use]
    pub fn of(column: &str) -> Self {
        match column {
            "tp" | "sp" | "pp" | "vpp" | "cp" | "ep" | "etp" | "dp" | "zero_stage" | "shard_group"
            | "micro_batch" | "global_batch" | "seq_len" | "packed" | "recompute" | "precision"
            | "pp_schedule" | "pp_layout" | "offload" => Self::Plan,
            "gpu" | "gpus" | "gpus_per_node" | "nvlink_domain" | "nic_gbps_per_gpu" | "interconnect" => {
                Self::Machine
            }
            "framework_family" | "framework" | "attn_kernel" | "compiled" | "dispatcher" | "cuda_graphs"
            | "tp_overlap" | "dp_overlap" | "ep_overlap" | "cp_comm_type" | "moe_routing" | "token_drop"
            | "expert_capacity" | "overlap_notes" => Self::Runtime,
            "mem_kind" | "mem_unit" | "peak_mem_gb" | "step_time_s" | "tokens_per_s_per_gpu" => Self::Reading,
            _ => Self::Model,
        }
    }
}

/// Columns, and what `overlap_notes` and `framework` say, whose absence stands for a default that is not noted where they
/// are read. Columns of what a run need not have (experts, latent attention, windows, hybrid layers, prediction of further
/// tokens, offload, a smaller group to shard among) are not among them: without them it has none.
const DEFAULTED: [&str; 24] = [
    "training",
    "lora_target",
    "head_dim",
    "shared_expert_ffn",
    "first_k_dense",
    "moe_every",
    "mla_q_lora",
    "mla_qk_nope",
    "mla_qk_rope",
    "mla_v_dim",
    "ssm_state",
    "gpus_per_node",
    "nvlink_domain",
    "pp_schedule",
    "pp_layout",
    "cp_comm_type",
    "dp_overlap",
    "moe_routing",
    "token_drop",
    "attn_kernel",
    "compiled",
    "framework",
    "mem_kind",
    "mem_unit",
];

/// What the text of a cell means; none where it is empty.
pub(super) fn choice<T: Copy>(
    row: &MeasuredRow,
    column: &'static str,
    choices: &[(&'static str, T)],
) -> Result<Option<T>, Skip> {
    let Some(text) = row.text(column) else { return Ok(None) };
    match choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
        Some(&(_, meaning)) => Ok(Some(meaning)),
        None => Err(Skip::unknown(column, text, choices.iter().map(|(name, _)| *name))),
    }
}
