//! Any text read as a stored result or as a list of scenarios is read, or gives an error that renders.
#![no_main]

use autoplan::results::{result_from_text, scenarios_from_text};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let result = result_from_text("fuzz.ron", "fuzz", text).map(|_| ());
    let scenarios = scenarios_from_text("fuzz.ron", text).map(|_| ());
    for error in [result.err(), scenarios.err()].into_iter().flatten() {
        assert!(error.render(false).contains("fuzz.ron"));
    }
});
