//! How many entries the vocabulary of a launch has, which mostly only its tokenizer's files say.

use super::super::export::one_line;
use super::super::shell::{program, shown};
use super::flags::{Flags, Read};
use super::read_rules::ReadRule;

/// Entries of the vocabularies that published models with these names have (their config.json); the first part that
/// a tokenizer's name holds counts.
const TOKENIZERS: &[(&str, u64)] = &[
    ("distill-llama", 128_256),
    ("llama-3", 128_256),
    ("llama3", 128_256),
    ("llama-4", 202_048),
    ("codellama", 32_016),
    ("llama-2", 32_000),
    ("llama2", 32_000),
    ("llama-7b", 32_000),
    ("llava-1.5", 32_064),
    ("mixtral-8x22b", 32_768),
    ("mixtral", 32_000),
    ("mistral-nemo", 131_072),
    ("nemo-12b", 131_072),
    ("mistral-small", 131_072),
    ("magistral", 131_072),
    ("mistral-7b-v0.1", 32_000),
    ("mistral", 32_768),
    ("qwen", 151_936),
    ("deepseek-v3", 129_280),
    ("deepseek_v3", 129_280),
    ("deepseek-r1", 129_280),
    ("deepseek", 102_400),
    ("gpt-oss", 201_088),
    ("gpt_oss", 201_088),
    ("kimi", 163_840),
    ("moonlight", 163_840),
    ("gemma-3", 262_208),
    ("gemma", 256_000),
    ("nemotron-mini", 256_000),
    ("nemotron-4", 256_000),
    ("minitron", 256_000),
    ("_256k.", 256_000),
    ("nemotron", 131_072),
    ("glm-4", 151_552),
    ("yi-34b", 64_000),
    ("gpt2", 50_257),
];

/// The same of types of tokenizers, where no name says more.
const TYPES: &[(&str, u64)] = &[
    ("GPT2BPETokenizer", 50_257),
    ("Llama2Tokenizer", 32_000),
    ("Llama3Tokenizer", 128_256),
    ("QwenTokenizer", 151_936),
    ("Qwen2Tokenizer", 151_936),
    ("Qwen2VLTokenizer", 151_936),
    ("BertWordPieceLowerCase", 30_522),
    ("BertWordPieceCase", 28_996),
];

/// Assumed where nothing says how large the vocabulary is.
const USUAL_VOCABULARY: u64 = 128_256;

/// Entries of the vocabulary, unpadded; `given` stands above what the command says.
///
/// # Errors
/// A number that is none; a tokenizer that needs one and has none.
pub(super) fn read(f: &mut Flags, given: Option<u64>, assumed: &mut Vec<String>) -> Read<u64> {
    let padded = f.number("--padded-vocab-size")?;
    let to = f.number("--pad-vocab-size-to")?.or(padded);
    // The padded number counts for the model whatever the unpadded one is (training/arguments.py, training/training.py).
    let said = match (f.number("--vocab-size")?, padded) {
        (Some(said), Some(padded)) if said != padded => {
            assumed.push(format!("a vocabulary of {padded} entries, as --padded-vocab-size says"));
            Some(padded)
        }
        (said, _) => said.or(to),
    };
    if let Some(size) = given.or(said) {
        if let Some(said) = said.filter(|said| *said != size) {
            assumed.push(format!("a vocabulary of {size} entries as given, not the {said} of the command"));
        }
        return Ok(size);
    }
    let value =
        |name: &str| f.map.get(name).and_then(|(values, _)| values.first()).map_or("", String::as_str);
    let kind = value("--tokenizer-type");
    if kind == "NullTokenizer" {
        let line = f.line_of(&["--tokenizer-type"]);
        let text = "--tokenizer-type NullTokenizer needs --vocab-size";
        return Err(ReadRule::Vocabulary.broken_by(f, line, text));
    }
    let files = ["--tokenizer-model", "--tokenizer-name-or-path", "--tokenizer-name", "--vocab-file"];
    let named: Vec<&str> = files.into_iter().map(value).filter(|name| !name.is_empty()).collect();
    let known = named.iter().find_map(|&name| {
        let lower = name.to_lowercase();
        TOKENIZERS.iter().find(|(part, _)| lower.contains(part)).map(|(_, size)| (*size, name))
    });
    // Without a type the merges of byte pairs mean GPT-2's.
    let kind = if kind.is_empty() && f.map.contains_key("--merge-file") { "GPT2BPETokenizer" } else { kind };
    let of_type = TYPES.iter().find(|(name, _)| *name == kind).map(|(_, size)| (*size, kind));
    let file = named
        .first()
        .map_or("the tokenizer's file".into(), |name| shown(&one_line(program(name.trim_end_matches('/')))));
    let (size, why) = match (known, of_type) {
        (Some((size, name)), _) => (size, format!("usual for {}, which is not read", shown(&one_line(name)))),
        (None, Some((size, name))) => (size, format!("usual for {name}; {file} is not read")),
        (None, None) => (USUAL_VOCABULARY, format!("usual; {file} is not read")),
    };
    assumed.push(format!("a vocabulary of {size} entries ({why}); --vocab-size says another"));
    Ok(size)
}
