//! Any text read as a quantity gives an error or a value that is finite and not negative.
#![no_main]

use autoplan::units::{Bandwidth, Bytes, Dollars, DollarsPerHour, FlopRate, Flops, Seconds, Tokens, Watts};

fn holds(value: f64) {
    assert!(value.is_finite() && value >= 0.0);
}

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = (Bytes::parse(text), Tokens::parse(text));
    let _ = Bandwidth::parse(text).map(|x| holds(x.0));
    let _ = Dollars::parse(text).map(|x| holds(x.0));
    let _ = DollarsPerHour::parse(text).map(|x| holds(x.0));
    let _ = FlopRate::parse(text).map(|x| holds(x.0));
    let _ = Flops::parse(text).map(|x| holds(x.0));
    let _ = Seconds::parse(text).map(|x| holds(x.picos().seconds().0));
    let _ = Watts::parse(text).map(|x| holds(x.0));
});
