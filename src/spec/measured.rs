//! Published and own measurements: rows of a CSV file with the columns of
//! `results/published/measured.csv`. Cells are read when asked for; what cannot be read is a reason to
//! skip a row, never a failure of the file.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Cursor, Read};
use std::str::FromStr;
use std::sync::Arc;

/// Reads rows one by one.
pub struct MeasuredReader {
    csv: csv::Reader<Cursor<Vec<u8>>>,
    /// Columns of the header, named or not.
    width: usize,
    columns: Arc<BTreeMap<String, usize>>,
    record: csv::StringRecord,
}

/// One row.
#[derive(Debug, Clone)]
pub struct MeasuredRow {
    columns: Arc<BTreeMap<String, usize>>,
    record: csv::StringRecord,
    line: u64,
}

/// A file that is no measured table at all.
#[derive(Debug, thiserror::Error)]
pub enum MeasuredError {
    /// Not readable as CSV text.
    #[error("line {line}: not a CSV table: {message}")]
    Csv {
        /// Line, counted from 1.
        line: u64,
        /// What the reader says.
        message: String,
    },
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Read(#[from] std::io::Error),
    /// Text of two bytes a letter.
    #[error("this is UTF-16 text; expected UTF-8, as `iconv -f UTF-16 -t UTF-8` makes of it")]
    Utf16,
    /// A header whose columns are separated by something else than commas.
    #[error("the columns are separated by {0}; expected commas")]
    Separator(&'static str),
    /// A header with none of the columns that every prediction needs.
    #[error("the header has none of the columns {}, which every prediction needs", NEEDED.join(", "))]
    Columns,
    /// A name that two columns have.
    #[error("the header names the column {0} twice")]
    Twice(String),
    /// A row whose cells may all be those of another column.
    #[error("line {line}: the row has more cells than the header has columns ({columns})")]
    Wide {
        /// Line, counted from 1.
        line: u64,
        /// Columns of the header.
        columns: usize,
    },
}

/// A cell that holds something else than its column takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{column} is `{text}`; expected {expected}")]
pub struct UnreadableCell {
    /// Column.
    pub column: String,
    /// Text.
    pub text: String,
    /// What the column takes.
    pub expected: String,
}

/// Columns that every prediction needs.
const NEEDED: [&str; 8] =
    ["gpu", "gpus", "layers", "hidden", "heads", "seq_len", "global_batch", "framework_family"];

/// Columns that have a meaning (docs/measured.md), beside [`NEEDED`]; others are left alone.
const OTHER_COLUMNS: &[&str] = &[
    "id",
    "quality",
    "training",
    "optimizer",
    "source",
    "source_where",
    "framework",
    "model",
    "arch_notes",
    "ffn_hidden",
    "kv_heads",
    "vocab",
    "experts",
    "topk",
    "moe_ffn",
    "params_b",
    "gpus_per_node",
    "interconnect",
    "precision",
    "tp",
    "sp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "etp",
    "dp",
    "zero_stage",
    "micro_batch",
    "recompute",
    "pp_schedule",
    "overlap_notes",
    "step_time_s",
    "step_time_kind",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu_pct",
    "hfu_pct",
    "peak_mem_gb",
    "oom",
    "notes",
    "inferred",
    "head_dim",
    "gated_mlp",
    "tied_embeddings",
    "vocab_assumed",
    "first_k_dense",
    "moe_every",
    "shared_expert_ffn",
    "mtp_layers",
    "mla_q_lora",
    "mla_kv_lora",
    "mla_qk_nope",
    "mla_qk_rope",
    "mla_v_dim",
    "attn_window",
    "attn_window_every",
    "hybrid_layers",
    "ssm_state",
    "attn_kernel",
    "nvlink_domain",
    "nic_gbps_per_gpu",
    "shard_group",
    "grad_accum_dtype",
    "pp_layout",
    "tp_overlap",
    "dp_overlap",
    "pp_overlap",
    "ep_overlap",
    "cuda_graphs",
    "compiled",
    "offload",
    "lora_rank",
    "lora_target",
    "packed",
    "moe_routing",
    "token_drop",
    "expert_capacity",
    "mem_kind",
    "mem_unit",
    "same_run_as",
];

/// Every column that has a meaning.
pub fn known_columns() -> impl Iterator<Item = &'static str> {
    NEEDED.into_iter().chain(OTHER_COLUMNS.iter().copied())
}

impl MeasuredReader {
    /// Reads the header.
    ///
    /// # Errors
    /// When the text is no CSV, or has none of the columns that every prediction needs. Where some are missing, their cells
    /// count as empty.
    pub fn new(mut input: impl Read) -> Result<Self, MeasuredError> {
        let mut bytes = Vec::new();
        input.read_to_end(&mut bytes)?;
        if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
            return Err(MeasuredError::Utf16);
        }
        // Of two bytes between lines the reader counts one to the next line.
        bytes = lines_alike(bytes);
        let mut csv = csv::ReaderBuilder::new().flexible(true).from_reader(Cursor::new(bytes));
        let headers = csv.headers().map_err(|e| broken(&e))?;
        let width = headers.len();
        let name = |text: &str| text.trim_start_matches('\u{feff}').trim().to_ascii_lowercase();
        let columns: BTreeMap<String, usize> =
            headers.iter().enumerate().map(|(at, text)| (name(text), at)).collect();
        if !NEEDED.into_iter().any(|column| columns.contains_key(column)) {
            let header = headers.as_slice();
            let separated = |by| header.split(by).any(|column| NEEDED.contains(&name(column).as_str()));
            return Err(match () {
                () if separated(';') => MeasuredError::Separator("semicolons"),
                () if separated('\t') => MeasuredError::Separator("tabs"),
                () => MeasuredError::Columns,
            });
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) =
            headers.iter().map(name).find(|name| !name.is_empty() && !seen.insert(name.clone()))
        {
            return Err(MeasuredError::Twice(twice));
        }
        Ok(Self { csv, width, columns: Arc::new(columns), record: csv::StringRecord::new() })
    }

    /// Columns that every prediction needs and the header has not.
    pub fn missing_columns(&self) -> impl Iterator<Item = &'static str> {
        NEEDED.into_iter().filter(|column| !self.columns.contains_key(*column))
    }

    /// Rows of the whole table, read or not. Nothing but the ends of records is looked for, which takes a fraction of
    /// the time that reading them does.
    #[must_use]
    pub fn rows(&self) -> usize {
        let text = self.csv.get_ref().get_ref().as_slice();
        let mut csv = csv::ReaderBuilder::new().flexible(true).from_reader(text);
        let mut record = csv::ByteRecord::new();
        let mut rows = 0;
        while let Ok(true) = csv.read_byte_record(&mut record) {
            rows += 1;
        }
        rows
    }

    /// Columns of the header without a meaning, in alphabetical order.
    pub fn unknown_columns(&self) -> impl Iterator<Item = &str> {
        let known = |name: &str| name.is_empty() || known_columns().any(|column| column == name);
        self.columns.keys().map(String::as_str).filter(move |name| !known(name))
    }
}

/// Text with one byte between lines.
fn lines_alike(bytes: Vec<u8>) -> Vec<u8> {
    if !bytes.contains(&b'\r') {
        return bytes;
    }
    let next = bytes.iter().skip(1).map(Some).chain([None]);
    let kept = bytes.iter().zip(next).filter(|(byte, next)| **byte != b'\r' || *next != Some(&b'\n'));
    kept.map(|(byte, _)| *byte).collect()
}

fn broken(error: &csv::Error) -> MeasuredError {
    let line = error.position().map_or(1, csv::Position::line);
    MeasuredError::Csv { line, message: error.to_string() }
}

impl Iterator for MeasuredReader {
    type Item = Result<MeasuredRow, MeasuredError>;
    fn next(&mut self) -> Option<Self::Item> {
        match self.csv.read_record(&mut self.record) {
            Ok(false) => None,
            Ok(true) => {
                let line = self.record.position().map_or(0, csv::Position::line);
                if self.record.iter().skip(self.width).any(|cell| !cell.trim().is_empty()) {
                    return Some(Err(MeasuredError::Wide { line, columns: self.width }));
                }
                Some(Ok(MeasuredRow { columns: self.columns.clone(), record: self.record.clone(), line }))
            }
            Err(error) => Some(Err(broken(&error))),
        }
    }
}

fn unreadable(column: &str, text: &str, expected: impl Into<String>) -> UnreadableCell {
    UnreadableCell {
        column: column.to_owned(),
        text: text.chars().take(40).collect(),
        expected: expected.into(),
    }
}

impl MeasuredRow {
    /// Line of the file, counted from 1.
    #[must_use]
    pub fn line(&self) -> u64 {
        self.line
    }
    /// Text of a cell; none where the column or the text is missing.
    #[must_use]
    pub fn text(&self, column: &str) -> Option<&str> {
        let text = self.record.get(*self.columns.get(column)?)?.trim();
        (!text.is_empty()).then_some(text)
    }
    /// Text of a cell, empty where it is missing.
    #[must_use]
    pub fn text_or_empty(&self, column: &str) -> &str {
        self.text(column).unwrap_or("")
    }
    /// A whole number; `8.0` counts as one.
    ///
    /// # Errors
    /// When the cell holds something else.
    pub fn whole<T: FromStr + TryFrom<u64>>(&self, column: &str) -> Result<Option<T>, UnreadableCell> {
        let Some(text) = self.text(column) else { return Ok(None) };
        if let Ok(number) = text.parse() {
            return Ok(Some(number));
        }
        let whole = text.parse::<f64>().ok().filter(|x| x.fract() == 0.0 && (0.0..1e15).contains(x));
        match whole.and_then(|x| T::try_from(x as u64).ok()) {
            Some(number) => Ok(Some(number)),
            None => Err(unreadable(column, text, "a whole number in range")),
        }
    }
    /// A positive finite number.
    ///
    /// # Errors
    /// When the cell holds something else.
    pub fn positive(&self, column: &str) -> Result<Option<f64>, UnreadableCell> {
        self.number(column, |x| x.is_finite() && x > 0.0, || "a positive number".into())
    }
    /// A number within bounds, both included.
    ///
    /// # Errors
    /// When the cell holds something else.
    pub fn between(&self, column: &str, low: f64, high: f64) -> Result<Option<f64>, UnreadableCell> {
        self.number(column, |x| low <= x && x <= high, || format!("a number from {low:e} to {high:e}"))
    }
    fn number(
        &self,
        column: &str,
        accepts: impl Fn(f64) -> bool,
        expected: impl Fn() -> String,
    ) -> Result<Option<f64>, UnreadableCell> {
        let Some(text) = self.text(column) else { return Ok(None) };
        match text.parse() {
            Ok(number) if accepts(number) => Ok(Some(number)),
            _ => Err(unreadable(column, text, expected())),
        }
    }
    /// A flag: `1` or `0`, none where unstated.
    ///
    /// # Errors
    /// When the cell holds something else.
    pub fn flag(&self, column: &str) -> Result<Option<bool>, UnreadableCell> {
        let Some(text) = self.text(column) else { return Ok(None) };
        match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" => Ok(Some(true)),
            "0" | "false" | "no" => Ok(Some(false)),
            _ => Err(unreadable(column, text, "1 or 0")),
        }
    }
}
