//! Any bytes read as measured runs give cases with a reason for every row that is skipped, or an error.
#![no_main]

use autoplan::validate::cases;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    match cases(bytes) {
        Ok(cases) => drop(cases),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
