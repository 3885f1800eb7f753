//! Any text read as a Hugging Face configuration gives a model that passes its own checks and saves as
//! RON, or an error that renders.
#![no_main]

use autoplan::spec::{hf, model_from_text, ron_options};

libfuzzer_sys::fuzz_target!(|text: &str| {
    match hf::import(text, "fuzz") {
        Ok(model) => {
            let saved = ron_options().to_string(&model).unwrap();
            assert_eq!(model_from_text("saved.ron", &saved).map_err(|error| error.to_string()), Ok(model));
        }
        Err(error) => assert!(error.render(false).starts_with("error: ")),
    }
});
