//! The job of a row: number format, optimizer, what is trained and on which sequences.

use clap::ValueEnum;

use super::cells::{Cells, Skip, at_most, choice};
use super::framework::family;
use crate::frameworks::profile::Profile;
use crate::spec::cluster::Accelerator;
use crate::spec::job::{
    ExpertCapacity, Job, LARGEST_JOB, LEAST_CAPACITY, MOST_CAPACITY, MOST_SEQUENCES, Optimizer,
    PackedLengths, Precision, Routing, Training,
};
use crate::spec::measured::MeasuredRow;

/// Other names of number formats: of their scaling in Transformer Engine, and in full.
const OTHER_PRECISIONS: &[(&str, Precision)] = &[
    ("bfloat16", Precision::Bf16),
    ("float16", Precision::Fp16),
    ("fp8-cs", Precision::Fp8),
    ("fp8-ds", Precision::Fp8),
    ("fp8-delayed", Precision::Fp8),
    ("fp8-current", Precision::Fp8),
    ("fp8-hybrid", Precision::Fp8),
    ("fp8-tensorwise", Precision::Fp8),
    ("fp8-rowwise", Precision::Fp8),
    ("fp8-sc", Precision::Fp8Blockwise),
    ("fp8-block", Precision::Fp8Blockwise),
    ("fp8-subchannel", Precision::Fp8Blockwise),
    ("fp8-mx", Precision::Mxfp8),
    ("fp4", Precision::Nvfp4),
];

/// The number format, if the row states one.
pub(super) fn read_precision(row: &MeasuredRow) -> Result<Option<Precision>, Skip> {
    let Some(text) = row.text("precision") else { return Ok(None) };
    let name = text.to_ascii_lowercase().replace(['_', ' '], "-");
    let usual = || Precision::value_variants().iter().map(|p| (p.name(), *p));
    let known = usual().chain(OTHER_PRECISIONS.iter().copied()).find(|(known, _)| *known == name);
    known
        .map(|(_, precision)| Some(precision))
        .ok_or_else(|| Skip::unknown("precision", text, usual().map(|p| p.0)))
}

/// The optimizer of a row.
///
/// # Errors
/// A cell that names none.
pub(super) fn read_optimizer(row: &MeasuredRow) -> Result<Optimizer, Skip> {
    let Some(text) = row.text("optimizer") else { return Ok(Optimizer::Adamw) };
    let name = text.to_ascii_lowercase().replace(['_', ' '], "-");
    let usual = || Optimizer::value_variants().iter().map(|optimizer| (optimizer.name(), *optimizer));
    let known = usual().chain([("adam", Optimizer::Adamw)]).find(|(known, _)| *known == name);
    known
        .map(|(_, optimizer)| optimizer)
        .ok_or_else(|| Skip::unknown("optimizer", text, usual().map(|o| o.0)))
}

pub(super) fn read_job(cells: &mut Cells, profile: &Profile, accelerator: &Accelerator) -> Result<Job, Skip> {
    let row = cells.row;
    let gpus = cells.size("gpus", LARGEST_JOB)?;
    let global_batch_size = cells.size("global_batch", MOST_SEQUENCES)?;
    let sequence_length = cells.size("seq_len", MOST_SEQUENCES)?;
    let stated = read_precision(row)?;
    // Scales for every row are as fast as one for all, and unlike both in what they cost to find.
    if stated.is_none() || row.text("precision").is_some_and(|text| text.to_ascii_lowercase().contains("row"))
    {
        cells.assumed.push("precision");
    }
    let stated = stated.unwrap_or(profile.defaults.precision);
    let has = |precision: Precision| accelerator.rates.contains_key(&precision.format());
    let precision = match stated {
        // Blackwell emulates the one with the other (TransformerEngine: transformer_engine/common/transpose/
        // quantize_transpose_vector_blockwise.cu).
        Precision::Fp8Blockwise if !has(stated) && has(Precision::Mxfp8) => Precision::Mxfp8,
        _ => stated,
    };
    if !has(precision) {
        return Err(Skip::Contradiction(format!(
            "{} has no {} matrix products",
            accelerator.name,
            precision.name()
        )));
    }
    let rank = cells.stated("lora_rank")?;
    let adapters = Training::Lora { rank: at_most("lora_rank", rank.unwrap_or(16), 65_536)? };
    let trainings = [("pretrain", Training::Full), ("sft", Training::Full), ("lora", adapters)];
    let training = choice(row, "training", &trainings)?.unwrap_or(Training::Full);
    if training == adapters && rank.is_none() {
        cells.assumed.push("lora_rank");
    }
    let optimizer = read_optimizer(row)?;
    let routings = [("forced", Routing::Balanced), ("natural", Routing::Natural)];
    let routing = choice(row, "moe_routing", &routings)?.unwrap_or(Routing::Balanced);
    let packed = read_packed(cells, profile)?;
    let expert_capacity = read_capacity(cells, profile)?;
    Ok(Job {
        gpus,
        global_batch_size,
        sequence_length,
        precision,
        optimizer,
        training,
        memory_limit: None,
        tokens: None,
        routing,
        packed,
        expert_capacity,
    })
}

/// Most tokens that an expert takes, where tokens are dropped. How many that are is what the framework's recipes set, unless
/// the row says.
fn read_capacity(cells: &mut Cells, profile: &Profile) -> Result<Option<ExpertCapacity>, Skip> {
    let stated = cells.row.between("expert_capacity", LEAST_CAPACITY, MOST_CAPACITY)?;
    if stated.is_none() && cells.row.flag("token_drop")? != Some(true) {
        return Ok(None);
    }
    let usual = profile.defaults.token_drop;
    Ok(Some(match stated {
        Some(factor) => ExpertCapacity { factor, ..usual },
        None => {
            cells.assumed.push("expert_capacity");
            usual
        }
    }))
}

/// The documents that are packed into the sequences. Where the row does not say: none in pretraining, and in fine-tuning
/// what the framework's recipes pack.
fn read_packed(cells: &mut Cells, profile: &Profile) -> Result<Option<PackedLengths>, Skip> {
    let row = cells.row;
    match row.text("packed") {
        Some(text) if text.eq_ignore_ascii_case("none") => Ok(None),
        Some(text) => {
            let packed: PackedLengths =
                text.parse().map_err(|_| Skip::unknown("packed", text, ["none", "LENGTHxCOUNT,..."]))?;
            packed.validate().map_err(Skip::Contradiction)?;
            Ok(Some(packed))
        }
        None if row.text("training").is_none_or(|text| text.eq_ignore_ascii_case("pretrain")) => Ok(None),
        None => {
            cells.assumed.push("packed");
            let usual = profile.defaults.fine_tuning_documents.get(&family(row));
            Ok(usual.map(|&length| PackedLengths { lengths: vec![(length, 1)] }))
        }
    }
}
