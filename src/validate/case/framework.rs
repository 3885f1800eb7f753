//! The framework of a row, its run-time profile and release.

use super::cells::Skip;
use crate::frameworks::profile::Profile;
use crate::spec::cluster::Architecture;
use crate::spec::measured::MeasuredRow;

/// Families of frameworks that are not named like a runtime profile.
const FAMILIES: [&str; 4] = ["megatron-bridge", "megatron-core", "megatron-lm", "flash-attn"];

/// Other names of frameworks, and of what is built on them and runs alike.
const OTHER_FAMILIES: &[(&str, &str)] = &[
    ("aleph-alpha-scaling", "aa-scaling"),
    ("automodel", "nemo-automodel"),
    ("composer", "llm-foundry"),
    ("mosaic", "llm-foundry"),
    ("mosaicml", "llm-foundry"),
    ("fms-fsdp", "pytorch-fsdp"),
    ("fsdp", "pytorch-fsdp"),
    ("fsdp1", "pytorch-fsdp"),
    ("fsdp2", "pytorch-fsdp"),
    ("pytorch", "pytorch-fsdp"),
    ("internlm", "internevo"),
    ("maxtext", "jax"),
    ("rosetta", "jax"),
    ("bridge", "megatron-bridge"),
    ("mbridge", "megatron-bridge"),
    ("megatron", "megatron-core"),
    ("mcore", "megatron-core"),
    // AMD's Primus and its fork of Megatron-LM run Megatron-Core.
    ("primus", "megatron-core"),
    ("primus-megatron", "megatron-core"),
    ("primus-torchtitan", "torchtitan"),
    ("nemo-framework", "nemo"),
    ("nemo-2.0", "nemo"),
    ("nemo2", "nemo"),
    ("deepspeed-zero", "deepspeed"),
    ("torchtitan-fsdp2", "torchtitan"),
];

/// Frameworks without a profile of their own, and the one whose runs are nearest to theirs: taken for it, and listed as
/// assumed.
const STAND_INS: &[(&str, &str)] = &[
    ("axolotl", "accelerate"),
    ("torchtune", "pytorch-fsdp"),
    ("transformers", "accelerate"),
    ("paxml", "jax"),
    // Eager PyTorch with sharded states, as DeepSpeed's.
    ("colossal-ai", "deepspeed"),
    ("colossalai", "deepspeed"),
];

/// The framework family of a row as it states it, in one spelling.
fn stated_family(row: &MeasuredRow) -> String {
    row.text_or_empty("framework_family").to_ascii_lowercase().replace(['_', ' '], "-")
}

/// The framework family of a row by its usual name; that of its stand-in where it has one.
pub(super) fn family(row: &MeasuredRow) -> String {
    let stated = stated_family(row);
    let others = OTHER_FAMILIES.iter().chain(STAND_INS);
    let usual = others.into_iter().find(|(other, _)| *other == stated).map(|(_, usual)| *usual);
    usual.map_or(stated, str::to_owned)
}

/// Whether a row's framework is taken for another.
pub(super) fn stands_in(row: &MeasuredRow) -> bool {
    let stated = stated_family(row);
    STAND_INS.iter().any(|(other, _)| *other == stated)
}

/// The runtime profile of a row.
pub(super) fn profile_name(row: &MeasuredRow, architecture: Architecture) -> Result<&'static str, Skip> {
    let families = || FAMILIES.into_iter().chain(Profile::names());
    let stated = row.text("framework_family").ok_or(Skip::Missing("framework_family"))?;
    let unfused = row.text("attn_kernel") == Some("unfused");
    let stage = row.text("zero_stage");
    Ok(match family(row).as_str() {
        "nemo" | "megatron-bridge" => "nemo",
        "megatron-core" => "megatron",
        "megatron-lm" => {
            let old =
                unfused || architecture == Architecture::Ampere && row.text("precision") == Some("fp16");
            if old { "megatron-2021" } else { "megatron" }
        }
        "megatron-deepspeed" => match stage {
            Some("3") => "megatron-deepspeed-zero3",
            Some(_) if unfused => "megatron-deepspeed-bloom",
            _ => "megatron-deepspeed-ddp",
        },
        "aa-scaling" if row.text_or_empty("attn_kernel").contains("rms") => "aa-scaling-rms",
        "torchtitan" if row.flag("compiled")? == Some(false) => "torchtitan-eager",
        "flash-attn" => "pytorch-fsdp",
        other => Profile::names()
            .find(|name| *name == other)
            .ok_or_else(|| Skip::unknown("framework_family", stated, families()))?,
    })
}

/// `24.07`, `25.11` and the like: year and month of a software release; `202412` and `2025-06` in names of files, too.
pub(super) fn release(row: &MeasuredRow) -> Option<(u32, u32)> {
    ["framework", "source_where"].into_iter().find_map(|column| {
        let text = row.text(column)?;
        let dated = text.split('_').find_map(|word| {
            let digits: String = word.split('-').collect();
            let (year, month) = (digits.get(..4)?.parse().ok()?, digits.get(4..)?.parse().ok()?);
            (digits.len() == 6 && (2020..2040).contains(&year) && (1..=12).contains(&month))
                .then_some((year, month))
        });
        if dated.is_some() {
            return dated;
        }
        text.split(|c: char| !(c.is_ascii_digit() || c == '.')).find_map(|word| {
            let mut parts = word.split('.');
            let (year, month) = (parts.next()?, parts.next()?);
            if year.len() != 2 || month.len() != 2 {
                return None;
            }
            let (year, month): (u32, u32) = (year.parse().ok()?, month.parse().ok()?);
            ((20..40).contains(&year) && (1..=12).contains(&month)).then_some((2000 + year, month))
        })
    })
}

/// Year and month of the paper that a row is from, by its arXiv number: `2411.05288`.
pub(super) fn of_paper(row: &MeasuredRow) -> Option<(u32, u32)> {
    let (_, number) = row.text("source")?.split_once("arXiv ")?;
    let (year, month): (u32, u32) = (number.get(..2)?.parse().ok()?, number.get(2..4)?.parse().ok()?);
    (number.get(4..5) == Some(".") && (1..=12).contains(&month)).then_some((2000 + year, month))
}
