//! Any text read as a saved plan gives a plan that can be predicted and saved again, or an error that
//! renders.
#![no_main]

use autoplan::cost::model::CostModel;
use autoplan::cost::step::predict;
use autoplan::frameworks::profile::Profile;
use autoplan::layers::Layers;
use autoplan::spec::saved::SavedPlan;

libfuzzer_sys::fuzz_target!(|text: &str| {
    match SavedPlan::from_text("fuzz.ron", text) {
        Ok((saved, plan)) => {
            let layers = Layers::new(&saved.model);
            let profile = Profile::find("megatron").unwrap();
            let cost =
                CostModel::new(&saved.model, &layers, &saved.cluster, &saved.accelerator, profile, &saved.job);
            assert!(predict(&cost, &layers, &plan).step().0 > 0);
            let again = SavedPlan::from_text("fuzz.ron", &saved.to_text().unwrap());
            assert_eq!(again.map_err(|error| error.to_string()), Ok((saved, plan)));
        }
        Err(error) => assert!(error.render(false).contains("fuzz.ron")),
    }
});
