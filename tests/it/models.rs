//! The shipped models: every total is exact.

use autoplan::layers::{Layers, embedding_parameters, parameter_count};
use autoplan::spec::model::Model;
use autoplan::spec::shipped;
use autoplan::spec::{load_model, model_from_text};
use proptest::prelude::*;

fn model(name: &str) -> Model {
    load_model(name).unwrap_or_else(|error| panic!("{}", error.render(false)))
}

/// Where a total comes from.
#[derive(Debug)]
enum From {
    /// Total of the released checkpoint on Hugging Face.
    Checkpoint,
    /// Counted by Hugging Face transformers (4.57.6 and 5.23.0) from the released config.json.
    Transformers,
    /// The sizes of the paper, summed by hand: a GPT layer has `12 h^2 + 13 h` weights.
    Paper,
    /// NVIDIA's or xAI's published architecture, summed by hand.
    Published,
}

/// Name, parameters, parameters that one token visits.
#[rustfmt::skip]
const TOTALS: &[(&str, u64, u64, From)] = &[
    ("gpt3-175b",                   174_604_259_328,   174_604_259_328, From::Paper),
    ("megatron-22b",                 22_074_273_792,    22_074_273_792, From::Paper),
    ("megatron-175b",               174_615_846_912,   174_615_846_912, From::Paper),
    ("megatron-530b",               529_600_819_200,   529_600_819_200, From::Paper),
    ("megatron-1t",               1_008_038_758_400, 1_008_038_758_400, From::Paper),
    ("llama2-7b",                     6_738_415_616,     6_738_415_616, From::Checkpoint),
    ("llama2-13b",                   13_015_864_320,    13_015_864_320, From::Checkpoint),
    ("llama2-70b",                   68_976_648_192,    68_976_648_192, From::Checkpoint),
    ("llama3.1-8b",                   8_030_261_248,     8_030_261_248, From::Checkpoint),
    ("llama3.1-70b",                 70_553_706_496,    70_553_706_496, From::Checkpoint),
    ("llama3.1-405b",               405_853_388_800,   405_853_388_800, From::Checkpoint),
    ("llama3.2-1b",                   1_235_814_400,     1_235_814_400, From::Checkpoint),
    ("llama3.2-3b",                   3_212_749_824,     3_212_749_824, From::Checkpoint),
    ("mistral-7b",                    7_241_732_096,     7_241_732_096, From::Checkpoint),
    ("mixtral-8x7b",                 46_702_792_704,    12_879_925_248, From::Checkpoint),
    ("mixtral-8x22b",               140_620_634_112,    39_152_031_744, From::Checkpoint),
    ("qwen2.5-7b",                    7_615_616_512,     7_615_616_512, From::Checkpoint),
    ("qwen2.5-32b",                  32_763_876_352,    32_763_876_352, From::Checkpoint),
    ("qwen2.5-72b",                  72_706_203_648,    72_706_203_648, From::Checkpoint),
    ("qwen2-57b-a14b",               57_408_658_944,    14_249_270_784, From::Transformers),
    ("qwen3-8b",                      8_190_735_360,     8_190_735_360, From::Checkpoint),
    ("qwen3-32b",                    32_762_123_264,    32_762_123_264, From::Checkpoint),
    ("qwen3-30b-a3b",                30_532_122_624,     3_353_032_704, From::Checkpoint),
    ("qwen3-235b-a22b",             235_093_634_560,    22_190_763_520, From::Checkpoint),
    ("qwen3-coder-480b-a35b",       480_154_875_392,    35_474_765_312, From::Checkpoint),
    ("gemma2-27b",                   27_227_128_320,    27_227_128_320, From::Checkpoint),
    ("gemma3-27b",                   27_009_346_304,    27_009_346_304, From::Transformers),
    ("deepseek-v2",                 235_741_434_880,    21_375_800_320, From::Checkpoint),
    ("deepseek-v2-lite",             15_706_484_224,     2_661_150_208, From::Checkpoint),
    ("deepseek-v3",                 671_026_419_200,    37_552_297_472, From::Transformers),
    ("kimi-k2",                   1_026_408_232_448,    32_861_500_928, From::Transformers),
    ("gpt-oss-20b",                  20_914_757_184,     4_187_440_704, From::Transformers),
    ("gpt-oss-120b",                116_829_156_672,     5_711_982_912, From::Transformers),
    ("glm4.5",                      352_797_829_024,    33_632_266_144, From::Transformers),
    ("glm4.5-air",                  106_852_251_264,    13_424_129_664, From::Transformers),
    ("nemotron4-15b",                15_628_775_424,    15_628_775_424, From::Published),
    ("nemotron4-340b",              341_029_195_776,   341_029_195_776, From::Published),
    ("nemotron-h-8b",                 8_100_852_736,     8_100_852_736, From::Transformers),
    ("nemotron-h-56b",               56_324_350_464,    56_324_350_464, From::Transformers),
    ("nemotron3-nano-30b-a3b",       31_577_940_288,     3_580_076_352, From::Transformers),
    ("grok-1",                      315_684_820_992,    83_756_587_008, From::Published),
    ("bloom-176b",                  176_247_271_424,   176_247_271_424, From::Checkpoint),
    ("falcon-180b",                 178_557_088_768,   178_557_088_768, From::Transformers),
    ("opt-175b",                    174_604_468_224,   174_604_468_224, From::Transformers),
    ("gpt-neox-20b",                 20_554_567_680,    20_554_567_680, From::Transformers),
    ("llama4-scout-17b-16e",        107_769_861_120,    17_172_894_720, From::Transformers),
    ("llama4-maverick-17b-128e",    400_711_848_960,    17_184_691_200, From::Transformers),
    ("phi4-14b",                     14_659_507_200,    14_659_507_200, From::Checkpoint),
    ("olmo2-32b",                    32_234_279_936,    32_234_279_936, From::Checkpoint),
    ("command-r-plus-104b",         103_810_674_688,   103_810_674_688, From::Checkpoint),
    ("minimax-m2",                  228_689_764_864,    11_030_553_088, From::Transformers),
];

#[test]
fn totals_are_exact_to_the_last_weight() {
    for (name, total, active, from) in TOTALS {
        let count = parameter_count(&model(name));
        assert_eq!((count.total, count.active), (*total, *active), "{name}: {from:?}");
    }
}

#[test]
fn every_shipped_model_has_a_total_here_and_in_its_header() {
    for file in shipped::models() {
        let (_, total, active, _) = TOTALS
            .iter()
            .find(|(name, ..)| *name == file.name)
            .unwrap_or_else(|| panic!("{} has no exact total", file.name));
        let header =
            file.text.lines().take_while(|line| line.starts_with("//")).collect::<Vec<_>>().join(" ");
        for number in [total, active] {
            assert!(header.contains(&grouped(*number)), "{}: the header does not say {number}", file.name);
        }
        let sources = ["arXiv:", "config.json", "github", "xai-org/"];
        assert!(sources.iter().any(|source| header.contains(source)), "{}: no source", file.name);
    }
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[test]
fn authors_who_leave_the_input_embedding_out_agree_too() {
    for (name, published) in
        [("gpt-oss-20b", 3_608_307_264), ("gpt-oss-120b", 5_132_849_472), ("deepseek-v3", 36_625_618_432)]
    {
        let count = parameter_count(&model(name));
        assert_eq!(count.active - count.embedding, published, "{name}");
    }
}

/// Released checkpoints store a copy of embedding and head with each prediction module.
#[test]
fn prediction_modules_complete_the_released_checkpoints() {
    for (name, own, checkpoint) in [
        ("deepseek-v3", 11_610_068_224, None),
        ("glm4.5", 3_988_069_792, Some(358_337_791_296)),
        ("glm4.5-air", 2_375_059_584, Some(110_468_824_832)),
    ] {
        let count = parameter_count(&model(name));
        assert_eq!(count.mtp, own, "{name}");
        if let Some(published) = checkpoint {
            assert_eq!(count.total + count.mtp + 2 * count.embedding, published, "{name}");
        }
    }
}

/// Falcon's checkpoint stores its tied matrix twice.
#[test]
fn falcons_checkpoint_counts_its_tied_matrix_twice() {
    let model = model("falcon-180b");
    let count = parameter_count(&model);
    assert_eq!(count.total + embedding_parameters(&model, model.vocabulary), 179_522_565_120);
}

#[test]
fn layer_orders_are_the_published_ones() {
    let letters = |name: &str, letter: fn(&str) -> char| -> String {
        let layers = Layers::new(&model(name));
        layers.order.iter().map(|&kind| letter(&layers.kinds[kind as usize].name)).collect()
    };
    let hybrid = |name: &str| match name {
        "mamba" => 'M',
        "attention" => '*',
        "moe" => 'E',
        _ => '-',
    };
    assert_eq!(letters("nemotron-h-8b", hybrid), "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-");
    assert_eq!(
        letters("nemotron3-nano-30b-a3b", hybrid),
        "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    );
    let local = |name: &str| if name.starts_with("local") { 'l' } else { 'g' };
    assert_eq!(letters("gemma3-27b", local), format!("{}ll", "lllllg".repeat(10)));
    assert_eq!(letters("gemma2-27b", local), "lg".repeat(23));
    assert_eq!(letters("llama4-maverick-17b-128e", local), "lllg".repeat(12));
    let dense = |name: &str| if name == "dense" { 'd' } else { 'e' };
    assert_eq!(letters("deepseek-v3", dense), format!("ddd{}", "e".repeat(58)));
    assert_eq!(letters("kimi-k2", dense), format!("d{}", "e".repeat(60)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Shipped files with junk in them give errors with a report, or models whose totals do not overflow.
    #[test]
    fn damaged_files_never_panic(
        file in prop::sample::select(shipped::models()), at in any::<prop::sample::Index>(),
        junk in "[-0-9a-zA-Z(){}\\[\\]:,. \"]{0,12}", cut in 0usize..30,
    ) {
        let text = file.text;
        let boundary = |at: usize| (0..=at.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
        let from = boundary(at.index(text.len()));
        let changed = format!("{}{junk}{}", &text[..from], &text[boundary(from + cut)..]);
        match model_from_text("damaged.ron", &changed) {
            Err(error) => prop_assert!(error.render(false).contains("error")),
            Ok(model) => {
                let count = parameter_count(&model);
                prop_assert!(count.active <= count.total && count.total + count.mtp < 1 << 60);
            }
        }
    }

    /// Every size at any value: refused, or counted without overflow.
    #[test]
    fn any_size_is_refused_or_counted(
        file in prop::sample::select(shipped::models()), at in any::<prop::sample::Index>(),
        size in prop_oneof![any::<u64>(), 0u64..1 << 27, (0u32..64).prop_map(|bits| 1 << bits)],
    ) {
        let body = file.text.find("\n(").map_or(0, |at| at + 1);
        let text = &file.text[body..];
        let places: Vec<usize> = text
            .match_indices(": ")
            .map(|(at, _)| at + 2)
            .filter(|&at| text[at..].starts_with(|c: char| c.is_ascii_digit()))
            .collect();
        let start = places[at.index(places.len())];
        let end = text[start..].find(|c: char| !c.is_ascii_digit()).map_or(text.len(), |n| start + n);
        let changed = format!("{}{size}{}", &text[..start], &text[end..]);
        if let Ok(model) = model_from_text("changed.ron", &changed) {
            let count = parameter_count(&model);
            prop_assert!(count.active <= count.total && count.total + count.mtp < 1 << 60, "{changed}");
        }
    }
}
