//! Hugging Face configurations: totals to the last weight, and errors that point at the field.

use std::collections::BTreeSet;
use std::path::PathBuf;

use autoplan::layers::{Layers, parameter_count};
use autoplan::spec::hf::{import, import_with_notes, model_types};
use autoplan::spec::model::{Block, FeedForward, Model, Norm, Position, PositionScaling, RouterScore};
use autoplan::spec::{load_model, model_from_text, ron_options, shipped};
use proptest::prelude::*;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/hf")
}

fn released(name: &str) -> String {
    std::fs::read_to_string(folder().join(format!("{name}.json"))).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn imported(name: &str, text: &str) -> Model {
    import(text, name).unwrap_or_else(|error| panic!("{name}: {}", error.render(false)))
}

fn rows(file: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(folder().join(file)).unwrap();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

fn type_of(text: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(&text.replace("Infinity", "0")).unwrap();
    value["model_type"].as_str().unwrap().to_owned()
}

/// `released.tsv` holds what Hugging Face transformers 4.57.6 and 5.23.0 count for these files (Nemotron-H
/// and MiniMax-M2: 5.23.0 only), instantiated without memory: parameters and the stored balancing biases
/// of routers; per token with the experts that a token visits.
#[test]
fn released_configurations_are_exact() {
    let mut seen = BTreeSet::new();
    for row in rows("released.tsv") {
        let [name, total, active] = row.as_slice() else { panic!("{row:?}") };
        let count = parameter_count(&imported(name, &released(name)));
        assert_eq!(
            (count.total.to_string(), count.active.to_string()),
            (total.clone(), active.clone()),
            "{name}"
        );
        seen.insert(format!("{name}.json"));
    }
    for entry in std::fs::read_dir(folder()).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        assert!(!file.ends_with(".json") || seen.contains(&file), "{file} has no total");
    }
}

/// `small.tsv` holds random small configurations of every family, with fields missing, null or unusual,
/// and what transformers counts for each (both versions where both know the family).
#[test]
fn small_configurations_are_exact() {
    let rows = rows("small.tsv");
    assert!(rows.len() > 300);
    for row in rows {
        let [total, active, text] = row.as_slice() else { panic!("{row:?}") };
        let count = parameter_count(&imported(text, text));
        assert_eq!(
            (count.total.to_string(), count.active.to_string()),
            (total.clone(), active.clone()),
            "{text}"
        );
    }
}

#[test]
fn every_family_is_tested() {
    let mut tested: BTreeSet<String> = rows("small.tsv").iter().map(|row| type_of(&row[2])).collect();
    tested.extend(rows("released.tsv").iter().map(|row| type_of(&released(&row[0]))));
    // Language models inside wrappers are tested through them.
    tested.extend(["qwen3_vl_moe_text", "qwen3_vl_text", "qwen3_vl", "mistral3"].map(str::to_owned));
    let untested: Vec<_> = model_types().into_iter().filter(|family| !tested.contains(*family)).collect();
    assert_eq!(untested, Vec::<&str>::new());
}

/// A shipped model and the import of its configuration agree on everything that planning reads.
#[test]
fn imports_equal_the_shipped_models() {
    let flat = |model: &Model| -> Vec<Block> {
        let layers = Layers::new(model);
        layers.order.iter().map(|&kind| layers.kinds[kind as usize].block.clone()).collect()
    };
    let mut compared = 0;
    for file in shipped::models() {
        if !folder().join(format!("{}.json", file.name)).exists() {
            continue;
        }
        let (ours, theirs) = (load_model(file.name).unwrap(), imported(file.name, &released(file.name)));
        let name = file.name;
        assert_eq!((ours.hidden, ours.vocabulary), (theirs.hidden, theirs.vocabulary), "{name}");
        assert_eq!(ours.tied_embeddings, theirs.tied_embeddings, "{name}");
        assert_eq!(ours.position, theirs.position, "{name}");
        assert_eq!((ours.norm, ours.embedding_norm), (theirs.norm, theirs.embedding_norm), "{name}");
        assert_eq!(ours.norm_epsilon, theirs.norm_epsilon, "{name}");
        assert_eq!(ours.dropout, theirs.dropout, "{name}");
        assert_eq!(flat(&ours), flat(&theirs), "{name}");
        let prediction = |m: &Model| m.mtp.as_ref().map(|mtp| (mtp.modules, m.blocks[&mtp.block].clone()));
        assert_eq!(prediction(&ours), prediction(&theirs), "{name}");
        compared += 1;
    }
    assert!(compared >= 40, "{compared}");
}

/// The epsilon, how positions are scaled and how experts are weighed, in all spellings.
#[test]
fn numbers_that_change_no_time_are_read() {
    let llama = |more: &str| LLAMA.replacen('{', &format!("{{{more},"), 1);
    assert_eq!(imported("default", LLAMA).norm_epsilon, Some(1e-6));
    assert_eq!(imported("stated", &llama("\"rms_norm_eps\": 1e-5")).norm_epsilon, Some(1e-5));
    let scaled = |more: &str| imported(more, &llama(more)).position.scaling();
    let numbers = "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0";
    let llama3 = PositionScaling::Llama3 {
        factor: 8.0,
        low_frequency_factor: 1.0,
        high_frequency_factor: 4.0,
        original_length: 8192,
    };
    let length = "\"original_max_position_embeddings\": 8192";
    for said in [
        format!("\"rope_scaling\": {{\"rope_type\": \"llama3\", {numbers}, {length}}}"),
        format!("\"rope_scaling\": {{\"type\": \"llama3\", \"rope_type\": \"llama3\", {numbers}, {length}}}"),
        format!(
            "\"rope_parameters\": {{\"rope_theta\": 5e5, \"rope_type\": \"llama3\", {numbers}, {length}}}"
        ),
        // Without its own length, the model's longest.
        format!("\"max_position_embeddings\": 8192, \"rope_scaling\": {{\"type\": \"llama3\", {numbers}}}"),
    ] {
        assert_eq!(scaled(&said), llama3, "{said}");
    }
    let none =
        ["\"rope_scaling\": null", "\"rope_scaling\": {}", "\"rope_scaling\": {\"rope_type\": \"default\"}"];
    for said in none {
        assert_eq!(scaled(said), PositionScaling::None, "{said}");
    }
    assert_eq!(
        scaled("\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}"),
        PositionScaling::Linear { factor: 2.0 }
    );
    assert_eq!(
        scaled("\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}"),
        PositionScaling::Dynamic { factor: 2.0 }
    );
    let yarn = |more: &str| {
        let said = format!("\"rope_scaling\": {{\"type\": \"yarn\", \"factor\": 32, {length}{more}}}");
        match scaled(&said) {
            PositionScaling::Yarn(yarn) => yarn,
            other => panic!("{other}"),
        }
    };
    // 0.1 ln 32 + 1, and with both weights the quotient of two such sums.
    let size = |weight: f64| 0.1 * weight * 32f64.ln() + 1.0;
    for (more, factor) in [
        ("", size(1.0)),
        (", \"mscale\": 2.0", size(1.0)),
        (", \"mscale_all_dim\": 2.0", size(1.0)),
        (", \"mscale\": 2.0, \"mscale_all_dim\": 0.5", size(2.0) / size(0.5)),
        (", \"mscale\": 0.707, \"mscale_all_dim\": 0.707", 1.0),
        (", \"attention_factor\": 1.5", 1.5),
    ] {
        assert!((yarn(more).attention_factor() - factor).abs() < 1e-12, "{more}");
    }
    assert_eq!((yarn("").beta_fast, yarn("").beta_slow, yarn("").truncate), (32.0, 1.0, true));
    assert!(!yarn(", \"truncate\": false").truncate);
    let phi = import_with_notes(&released("phi4-mini"), "x").unwrap();
    assert_eq!(phi.model.position.scaling(), PositionScaling::Other);
    assert!(phi.notes.join("; ").contains("`longrope`"), "{:?}", phi.notes);
    let surplus = import_with_notes(
        &llama("\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"alpha\": 1}"),
        "x",
    );
    assert!(surplus.unwrap().notes.join("; ").contains("`alpha`"));
    for (said, title) in [
        ("\"rope_scaling\": {\"type\": \"yarm\", \"factor\": 2}", "`yarm` is no kind of scaling"),
        ("\"rope_scaling\": {\"type\": \"linear\"}", "field `factor` is missing"),
        ("\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0}", "expected a positive factor"),
        ("\"rope_scaling\": {\"type\": \"linear\", \"rope_type\": \"yarn\"}", "mean the same and disagree"),
        (
            "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 4}",
            "otherwise than `rope_parameters` says",
        ),
        ("\"rms_norm_eps\": 0", "expected a number between 0 and 1"),
    ] {
        let (found, place) = failure(&llama(said));
        assert!(found.contains(title) && place.is_some(), "{said}: {found}");
    }
    let router = |name: &str, text: &str| {
        let model = imported(name, text);
        let experts = model.blocks.into_values().find_map(|block| match block.feed_forward {
            FeedForward::Moe(moe) => Some(moe.router),
            _ => None,
        });
        experts.unwrap()
    };
    let deepseek = released("deepseek-v3");
    assert_eq!(router("stated", &deepseek).scaling_factor, 2.5);
    let silent =
        deepseek.replace("\"routed_scaling_factor\": 2.5,", "").replace("\"norm_topk_prob\": true,", "");
    assert_eq!(router("silent", &silent), router("stated", &deepseek));
    let raw = deepseek.replace("\"norm_topk_prob\": true", "\"norm_topk_prob\": false");
    assert_eq!(router("raw", &raw).score, RouterScore::SigmoidAlone);
}

#[test]
fn nemotron_predicts_with_an_attention_and_an_expert_layer() {
    let model = imported("super", &released("nemotron3-super-120b-a12b"));
    let mtp = model.mtp.as_ref().unwrap();
    let h = 4096;
    // The layer pair by hand: attention, 512 experts in a latent width of 1,024, one shared expert,
    // two norms; then the projection of [hidden; embedding] and three norms.
    let attention = h * 128 * (32 + 2 * 2) + 32 * 128 * h;
    let experts = 512 * 2 * 1024 * 2688 + 2 * h * 1024 + h * 512 + 512 + 2 * h * 5376;
    assert_eq!(parameter_count(&model).mtp, attention + experts + 2 * h + 2 * h * h + 3 * h);
    assert_eq!(model.blocks[&mtp.block].norms, 2);
}

#[test]
fn notes_say_what_was_assumed_or_left_out() {
    let notes = |name: &str| import_with_notes(&released(name), name).unwrap().notes.join("; ");
    assert!(notes("gemma3-4b").contains("`num_attention_heads` is missing"));
    assert!(notes("gemma3-4b").contains("towers for images"));
    assert!(notes("gpt-oss-20b").contains("quantised (mxfp4)"));
    assert!(notes("deepseek-v3").contains("multi-token-prediction"));
    assert_eq!(notes("llama3.1-8b"), "");
}

/// Fields that released files carry and that change nothing.
#[test]
fn fields_without_effect_are_accepted() {
    for (name, field) in [
        ("llama3.2-1b", "\"is_llama_config\": true, \"transformers.js_config\": {\"dtype\": \"q4\"}"),
        ("gpt2", "\"n_special\": 0, \"predict_special_tokens\": true, \"_num_labels\": 1"),
        ("pythia-6.9b", "\"custom_pipelines\": {\"text-generation\": {\"impl\": \"x.Y\"}}"),
        ("opt-66b", "\"learned_embeddings\": true, \"scale_embeddings\": false"),
        ("nemotron4-340b", "\"kv_channels\": 192"),
        ("command-r7b", "\"layer_norm_bias\": false"),
        ("glm4.5", "\"topk_method\": \"noaux_tc\", \"moe_router_dtype\": \"float32\""),
        ("qwen3-8b", "\"quantization\": {\"group_size\": 64, \"bits\": 4}"),
    ] {
        let text = released(name);
        let more = text.replacen('{', &format!("{{{field},"), 1);
        assert_eq!(imported(name, &more), imported(name, &text), "{name}");
    }
}

#[test]
fn a_wrapper_without_its_object_is_read_flat() {
    let text = released("gemma3-1b");
    let flat = text.replace("gemma3_text", "gemma3");
    assert_eq!(imported("x", &flat), imported("x", &text));
    assert!(import_with_notes(&flat, "x").unwrap().notes[0].contains("`text_config` is missing"));
}

/// EXAONE 4 writes its pattern as letters.
#[test]
fn patterns_may_be_letters() {
    let text =
        LLAMA.replace("llama", "exaone4").replace("32\n}", "32, \"sliding_window_pattern\": \"LLLG\"\n}");
    let model = imported("exaone", &text);
    assert_eq!((model.layers[0].repeat, model.layers[0].of.len()), (8, 4));
    assert_eq!(model.layers[0].of.iter().filter(|name| *name == "local").count(), 3);
    let (title, _) = failure(&text.replace("LLLG", "LLXG"));
    assert_eq!(title, "invalid `sliding_window_pattern`: expected letters out of LG, found \"LLXG\"");
}

#[test]
fn names_come_from_the_caller() {
    assert_eq!(import(&released("gpt2"), " My GPT ").unwrap().name, "My GPT");
    assert_eq!(import(&released("gpt2"), "").unwrap().name, "gpt2");
}

#[test]
fn models_are_loaded_from_config_files() {
    let path = folder().join("bloom-560m.json");
    let model = load_model(path.to_str().unwrap()).unwrap();
    assert_eq!((model.name.as_str(), model.layer_count()), ("bloom-560m", 24));
    assert_eq!((model.position, model.norm), (Position::Alibi, Norm::LayerNorm));

    let scratch = tempfile::tempdir().unwrap();
    let inside = scratch.path().join("my model");
    std::fs::create_dir(&inside).unwrap();
    let path = inside.join("config.json");
    std::fs::write(&path, released("gpt2").replace("\"n_layer\": 12", "\"n_layer\": 0")).unwrap();
    let error = load_model(path.to_str().unwrap()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}:", path.display())), "{error}");
    assert!(error.contains("n_layer"), "{error}");
    std::fs::write(&path, released("gpt2")).unwrap();
    assert_eq!(load_model(path.to_str().unwrap()).unwrap().name, "my model");
}

const LLAMA: &str = r#"{
  "model_type": "llama",
  "vocab_size": 32000,
  "hidden_size": 4096,
  "intermediate_size": 11008,
  "num_hidden_layers": 32,
  "num_attention_heads": 32
}"#;

/// The title and the place of the error that a change of [`LLAMA`] gives.
fn failing(from: &str, to: &str) -> (String, Option<(usize, usize)>) {
    assert!(LLAMA.contains(from), "{from}");
    failure(&LLAMA.replace(from, to))
}

fn failure(text: &str) -> (String, Option<(usize, usize)>) {
    let error = import(text, "x").expect_err(text);
    (error.title().to_owned(), error.place())
}

#[test]
fn wrong_values_are_named_with_their_place() {
    for (from, to, title, place) in [
        ("4096", "0", "invalid `hidden_size`: expected a whole number from 1 to 67108864, found 0", (4, 18)),
        (
            "4096",
            "-4096",
            "invalid `hidden_size`: expected a whole number from 1 to 67108864, found -4096",
            (4, 18),
        ),
        (
            "4096",
            "4096.5",
            "invalid `hidden_size`: expected a whole number from 1 to 67108864, found 4096.5",
            (4, 18),
        ),
        (
            "4096",
            "\"4096\"",
            "invalid `hidden_size`: expected a whole number from 1 to 67108864, found \"4096\"",
            (4, 18),
        ),
        (
            "4096",
            "null",
            "invalid `hidden_size`: expected a whole number from 1 to 67108864, found null",
            (4, 18),
        ),
        (
            "4096",
            "99999999999999999999",
            "invalid `hidden_size`: expected a whole number from 1 to 67108864, found 100000000000000000000",
            (4, 18),
        ),
        ("4096", "4097", "invalid `num_attention_heads`: 32 heads do not divide a width of 4097", (7, 26)),
        (
            "\"num_hidden_layers\": 32",
            "\"num_hidden_layers\": 5000",
            "invalid `num_hidden_layers`: at most 4096 layers are accepted, found 5000",
            (6, 24),
        ),
        (
            "32\n",
            "32, \"num_key_value_heads\": 5\n",
            "invalid `num_key_value_heads`: 32 query heads do not divide among 5 key/value heads",
            (7, 53),
        ),
        (
            "32\n",
            "32, \"tie_word_embeddings\": \"yes\"\n",
            "invalid `tie_word_embeddings`: expected true or false, found \"yes\"",
            (7, 53),
        ),
        (
            "32\n",
            "32, \"hidden_act\": \"xielu\"\n",
            "invalid `hidden_act`: activation `xielu` is not known here; silu, gelu and relu (and their variants) are",
            (7, 44),
        ),
        (
            "32\n",
            "32, \"sliding_window\": 4096\n",
            "invalid `sliding_window`: only null is understood, found 4096",
            (7, 48),
        ),
        (
            "32\n",
            "32, \"rope_theta\": -1\n",
            "invalid `rope_theta`: expected a positive number, found -1",
            (7, 44),
        ),
        (
            "32\n",
            "32, \"is_encoder_decoder\": true\n",
            "invalid `is_encoder_decoder`: only false is understood, found true",
            (7, 52),
        ),
        (
            "32\n",
            "32, \"pruned_heads\": {\"0\": [1]}\n",
            "invalid `pruned_heads`: only an empty object is understood, found an object",
            (7, 46),
        ),
        (
            "32\n",
            "32, \"architectures\": [\"LlamaForSequenceClassification\"]\n",
            "`ForSequenceClassification` is not a language model's head",
            (7, 48),
        ),
        ("32\n", "32, \"hidden_size\": 4096\n", "field `hidden_size` is given twice", (7, 30)),
    ] {
        assert_eq!(failing(from, to), (title.to_owned(), Some(place)), "{from} -> {to}");
    }
}

#[test]
fn unknown_fields_are_refused_with_the_nearest_known_one() {
    let text = LLAMA.replace("32\n", "32,\n  \"num_key_value_head\": 8\n");
    let error = import(&text, "x").unwrap_err();
    assert_eq!(error.title(), "field `num_key_value_head` of a `llama` configuration is not known");
    assert_eq!(error.place(), Some((8, 3)));
    assert!(error.render(false).contains("did you mean `num_key_value_heads`"), "{}", error.render(false));
    // A value that says nothing changes nothing.
    assert!(import(&text.replace(": 8", ": null"), "x").is_ok());
    // Known to the library, but to another family.
    assert!(failing("32\n", "32, \"num_experts\": 8\n").0.contains("`num_experts`"));
    // Off is fine where a family has no such thing, on is not.
    assert!(import(&released("mistral-7b").replacen('{', "{\"attention_bias\": false,", 1), "x").is_ok());
    let (title, _) = failure(&released("mistral-7b").replacen('{', "{\"attention_bias\": true,", 1));
    assert_eq!(title, "invalid `attention_bias`: only false is understood, found true");
}

#[test]
fn missing_fields_are_named() {
    for field in
        ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
    {
        let text: String = LLAMA.lines().filter(|line| !line.contains(field)).collect::<Vec<_>>().join("\n");
        let text = text.replace("32,\n}", "32\n}");
        let error = import(&text, "x").unwrap_err();
        assert_eq!(error.title(), format!("field `{field}` is missing"), "{text}");
        assert_eq!(error.place(), Some((1, 1)));
    }
    let error = import(&LLAMA.replace("\"hidden_size\"", "\"hiden_size\""), "x").unwrap_err();
    assert!(error.render(false).contains("is `hiden_size` meant for it?"), "{}", error.render(false));
}

#[test]
fn unsupported_model_types_list_the_supported_ones() {
    let error = import(&LLAMA.replace("\"llama\"", "\"lama\""), "x").unwrap_err();
    assert_eq!(error.title(), "model type `lama` is not supported");
    assert_eq!(error.place(), Some((2, 17)));
    let report = error.render(false);
    assert!(report.contains("did you mean `llama`"), "{report}");
    for family in model_types() {
        assert!(report.contains(&format!("`{family}`")), "{family} is not listed: {report}");
    }
    for (text, title) in [
        ("{}", "field `model_type` is missing: this is not a model's config.json"),
        ("{\"peft_type\": \"LORA\"}", "field `model_type` is missing: this is not a model's config.json"),
        ("{\"model_type\": 3}", "invalid `model_type`: expected text, found 3"),
        ("[]", "expected a JSON object, found a list"),
        ("3", "expected a JSON object, found 3"),
        ("", "the file is empty; a JSON object was expected"),
        (
            "{\"model_type\": \"gemma3\"}",
            "invalid `text_config`: the language model's configuration is missing",
        ),
        (
            "{\"model_type\": \"gemma3\", \"text_config\": {\"model_type\": \"gemma3\"}}",
            "invalid `model_type`: `gemma3` is no language model",
        ),
        (
            "{\"model_type\": \"gemma3\", \"text_config\": {\"model_type\": \"bert\"}}",
            "model type `bert` is not supported",
        ),
    ] {
        assert_eq!(failure(text).0, title, "{text}");
    }
}

#[test]
fn names_that_mean_the_same_must_agree() {
    let text = released("gpt2").replacen('{', "{\"hidden_size\": 1024,", 1);
    assert_eq!(failure(&text).0, "`n_embd` and `hidden_size` mean the same and disagree");
    assert!(
        import(
            &text.replace("1024,\n", "768,\n").replace("\"hidden_size\": 1024", "\"hidden_size\": 768"),
            "x"
        )
        .is_ok()
    );
}

#[test]
fn patterns_must_fit_the_layers() {
    let text = released("gpt-oss-20b");
    let (title, place) = failure(&text.replacen("\"full_attention\"", "\"fuller_attention\"", 1));
    assert!(title.starts_with("invalid `layer_types`: expected `full_attention`"), "{title}");
    assert!(place.is_some());
    assert_eq!(
        failure(&text.replacen("    \"full_attention\",\n", "", 1)).0,
        "invalid `layer_types`: 23 words for 24 layers"
    );
    let text = released("nemotron-h-8b");
    assert!(
        failure(&text.replacen("M-M-", "M-X-", 1))
            .0
            .contains("expected the letters M, *, - and E, found `X`")
    );
    assert_eq!(
        failure(&text.replacen("M-M-", "M-M", 1)).0,
        "invalid `num_hidden_layers`: the order describes 51 layers"
    );
}

#[test]
fn large_and_deep_texts_end_quickly() {
    let begin = std::time::Instant::now();
    for text in [
        "[".repeat(3_000_000),
        "{\"a\":".repeat(500_000),
        format!("{{\"model_type\": \"llama\", \"x\": \"{}\"}}", "y".repeat(3_000_000)),
        format!(
            "{{{}\"model_type\": \"llama\"}}",
            (0..100_000).map(|i| format!("\"f{i}\": {i},")).collect::<String>()
        ),
        format!(
            "{{\"model_type\": \"gpt_neo\", \"attention_types\": [{}[[\"global\"], 1]]}}",
            "[[\"global\"], 4096],".repeat(50_000)
        ),
    ] {
        assert!(import(&text, "x").is_err());
    }
    assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
}

/// Sizes at the limits neither overflow nor pass.
#[test]
fn enormous_models_are_refused_or_counted() {
    for row in rows("released.tsv") {
        let text = released(&row[0]);
        for size in [1u64 << 22, 1 << 26, 1 << 40, u64::MAX] {
            for (at, _) in text
                .match_indices(": ")
                .filter(|(at, _)| text[at + 2..].starts_with(|c: char| c.is_ascii_digit()))
            {
                let end = text[at + 2..].find([',', '\n', '.', 'e']).map_or(text.len(), |n| at + 2 + n);
                let changed = format!("{}{size}{}", &text[..at + 2], &text[end..]);
                if let Ok(model) = import(&changed, "x") {
                    let count = parameter_count(&model);
                    assert!(count.active <= count.total && count.total + count.mtp < 1 << 60, "{changed}");
                }
            }
        }
    }
}

fn any_released() -> impl Strategy<Value = String> {
    let all: Vec<String> = rows("released.tsv").iter().map(|row| released(&row[0])).collect();
    prop::sample::select(all)
}

/// Values that replace one in a configuration.
fn any_value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        (0i64..40).prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| format!("{n:e}")),
        prop::sample::select(vec![
            "null",
            "true",
            "false",
            "[]",
            "{}",
            "NaN",
            "-Infinity",
            "[0, 1]",
            "\"gelu\"",
            "\"\""
        ])
        .prop_map(str::to_owned),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn random_text_never_panics(text in "\\PC{0,200}") {
        let _ = import(&text, "x").map_err(|error| error.render(true));
    }

    #[test]
    fn random_bytes_in_released_files_never_panic(
        text in any_released(), at in any::<prop::sample::Index>(), junk in "\\PC{0,8}", cut in 0usize..40,
    ) {
        let boundary = |at: usize| (0..=at.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
        let from = boundary(at.index(text.len()));
        let to = boundary(from + cut).max(from);
        let changed = format!("{}{junk}{}", &text[..from], &text[to..]);
        if let Err(error) = import(&changed, "x") {
            prop_assert!(error.render(false).starts_with("error: "));
        }
    }

    #[test]
    fn truncated_files_never_panic_and_never_pass(text in any_released(), at in any::<prop::sample::Index>()) {
        let at = at.index(text.trim_end().len());
        prop_assert!(import(&text[..at], "x").is_err());
    }

    /// Whatever the values are, what comes out is a valid model with consistent totals.
    #[test]
    fn changed_values_give_errors_or_valid_models(
        text in any_released(), changes in prop::collection::vec((any::<prop::sample::Index>(), any_value()), 1..4),
    ) {
        let mut text = text;
        for (at, value) in changes {
            let places: Vec<usize> = text.match_indices(": ").map(|(at, _)| at + 2).collect();
            let start = places[at.index(places.len())];
            let end = text[start..].find([',', '\n']).map_or(text.len(), |n| start + n);
            text.replace_range(start..end, &value);
        }
        match import(&text, "x") {
            Err(error) => prop_assert!(error.render(false).starts_with("error: ")),
            Ok(model) => {
                prop_assert_eq!(model.validate(), Ok(()));
                let count = parameter_count(&model);
                prop_assert!(count.active <= count.total);
                prop_assert_eq!(Layers::new(&model).count(), model.layer_count());
                // What is written as RON is read back the same.
                let style = ron::ser::PrettyConfig::new();
                let written = ron_options().to_string_pretty(&model, style).unwrap();
                prop_assert_eq!(model_from_text("x.ron", &written).map_err(|e| e.to_string()), Ok(model));
            }
        }
    }
}

/// What changes what a model computes and neither time nor memory is kept, and exports say that they leave it open.
#[test]
fn multipliers_are_kept_as_unstated() {
    let config = |more: &str| {
        format!(
            r#"{{"model_type": "granite", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
            "num_attention_heads": 8, "vocab_size": 1000{more}}}"#
        )
    };
    let unstated = |text: &str| autoplan::spec::hf::import(text, "x").unwrap().unstated;
    let none: Vec<String> = Vec::new();
    assert_eq!(unstated(&config(r#", "residual_multiplier": 1.0, "logits_scaling": 1"#)), none);
    let told = unstated(&config(r#", "residual_multiplier": 0.22, "attention_multiplier": 0.015625"#));
    assert_eq!(told, ["residual_multiplier 0.22", "attention_multiplier 0.015625"]);
    let smol = config("")
        .replace("granite", "smollm3")
        .replace("\"num_attention_heads\": 8", "\"num_attention_heads\": 8, \"num_key_value_heads\": 4");
    assert_eq!(unstated(&smol), ["no rotary positions on some layers"]);
    let gpt = r#"{"model_type": "gpt2", "n_embd": 512, "n_layer": 4, "n_head": 8, "vocab_size": 1000,
        "scale_attn_weights": false}"#;
    assert_eq!(unstated(gpt), ["scale_attn_weights false"]);
    let gpt = gpt.replace("false", "true");
    assert_eq!(unstated(&gpt), none);
    // Against the defaults of Transformers' classes: 1/16 of Cohere's logits, caps of 30 and 50 of Gemma 2, none of Gemma 3.
    for (name, expected) in [
        ("command-r-35b", &[][..]),
        ("command-r-plus-104b", &["logit_scale 0.8333333333333334"]),
        ("command-r7b", &["logit_scale 0.25"]),
        ("gemma2-27b", &[]),
        ("gemma3-1b", &[]),
    ] {
        let text = std::fs::read_to_string(format!("tests/hf/{name}.json")).unwrap();
        assert_eq!(unstated(&text), expected, "{name}");
    }
    let gemma = std::fs::read_to_string("tests/hf/gemma2-9b.json").unwrap().replace("50.0", "20.0");
    assert_eq!(unstated(&gemma), ["attn_logit_softcapping 20"]);
}
