//! Any text read as a Megatron-LM launch script gives a plan of its job, or an error that renders.
#![no_main]

use autoplan::frameworks::megatron::import::{Given, import};

libfuzzer_sys::fuzz_target!(|text: &str| {
    match import(text, Given { name: "fuzz", gpus: Some(64), vocabulary: None, architecture: None }) {
        Ok(imported) => assert!(!imported.plan.chunks().is_empty()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
