//! Any text read as a recompute mode gives an error, or a mode that reads back from what it prints.
#![no_main]

use autoplan::plan::Recompute;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(mode) = text.parse::<Recompute>() {
        assert_eq!(mode.to_string().parse(), Ok(mode));
    }
});
