//! Calibration recovers constants that runs were made with.

use autoplan::calibrate::calibrate;
use autoplan::spec::cluster::Format;
use autoplan::spec::measured::MeasuredReader;
use autoplan::spec::{Machine, load_cluster};
use autoplan::validate::case::{Case, Shelf};
use autoplan::validate::predict_case;

fn published_runs(machine: &Machine) -> Vec<Case> {
    let csv = include_str!("../../results/published/measured.csv");
    let shelf = Shelf::shipped();
    MeasuredReader::new(csv.as_bytes())
        .unwrap()
        .filter_map(Result::ok)
        .filter(|row| row.text("id").is_some_and(|id| id.starts_with("DGXC")))
        .filter_map(|row| Case::read(&row, &shelf).ok())
        .filter(|case| case.labels.gpu.starts_with("H100") && !case.labels.experts)
        .take(10)
        .map(|case| Case {
            cluster: machine.cluster.clone(),
            accelerator: machine.accelerator.clone(),
            ..case
        })
        .collect()
}

#[test]
fn a_slower_machine_is_recognised() {
    let machine = load_cluster("dgx-h100").unwrap();
    let mut slow = machine.clone();
    for rate in slow.accelerator.rates.values_mut() {
        rate.sustained *= 0.85;
    }
    let mut cases = published_runs(&machine);
    assert!(cases.len() >= 6);
    for case in &mut cases {
        let truth = Case { accelerator: slow.accelerator.clone(), ..case.clone() };
        case.measured.step_s = Some(predict_case(&truth).step_s);
    }
    let calibration = calibrate(&machine, &cases).unwrap();
    let fitted = calibration.machine.accelerator.rates[&Format::Bf16].sustained;
    let truth = slow.accelerator.rates[&Format::Bf16].sustained;
    assert!((fitted / truth - 1.0).abs() < 0.02, "fitted {fitted}, truth {truth}");
    let before: f64 = calibration.residuals.iter().map(|r| r.before.abs()).sum();
    let after: f64 = calibration.residuals.iter().map(|r| r.after.abs()).sum();
    assert!(after < before * 0.2, "{before} before, {after} after");
}

#[test]
fn one_wild_run_does_not_move_the_rest() {
    let machine = load_cluster("dgx-h100").unwrap();
    let mut cases = published_runs(&machine);
    for (i, case) in cases.iter_mut().enumerate() {
        let truth = predict_case(case).step_s;
        case.measured.step_s = Some(if i == 0 { truth * 3.0 } else { truth });
    }
    let calibration = calibrate(&machine, &cases).unwrap();
    for fitted in &calibration.constants {
        assert!(
            (fitted.after / fitted.before - 1.0).abs() < 0.06,
            "{}: {} -> {}",
            fitted.constant,
            fitted.before,
            fitted.after
        );
    }
}

#[test]
fn nothing_to_fit_is_an_error() {
    let machine = load_cluster("dgx-h100").unwrap();
    assert!(calibrate(&machine, &[]).is_err());
}
