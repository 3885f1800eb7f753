//! Any text read as a cluster gives a value or an error that renders.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Err(error) = autoplan::spec::cluster_from_text("fuzz.ron", text) {
        assert!(error.render(false).contains("fuzz.ron"));
    }
});
