//! Any text read as a phase or a histogram of packed lengths gives an error, or a value that prints as
//! one and obeys its rules.
#![no_main]

use autoplan::spec::job::{PackedLengths, Phase};

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(phase) = text.parse::<Phase>() {
        assert!(phase.to_string().parse::<Phase>().is_ok());
    }
    if let Ok(packed) = text.parse::<PackedLengths>() {
        assert_eq!(packed.validate(), Ok(()));
        assert!(packed.attention_length(8192) <= 8192.0);
    }
});
