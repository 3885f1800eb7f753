//! Any text read as a DeepSpeed configuration gives a plan of its job, or an error that renders.
#![no_main]

use autoplan::frameworks::deepspeed::import::{Given, import};
use autoplan::spec::load_model;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let model = load_model("llama3.2-1b").unwrap();
    let given = Given { model: &model, gpus: 8, sequence_length: None, pipeline_parallel: 1, trainer: Default::default() };
    match import(text, given) {
        Ok(imported) => assert!(!imported.plan.chunks().is_empty()),
        Err(error) => assert!(error.render(false).starts_with("error: ")),
    }
});
