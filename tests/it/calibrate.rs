//! Calibration recovers constants that runs were made with, and says which it cannot know.

use std::path::Path;

use autoplan::calibrate::{Constant, HeldBy, calibrate};
use autoplan::spec::cluster::Format;
use autoplan::spec::measured::MeasuredReader;
use autoplan::spec::{Machine, load_cluster};
use autoplan::units::Bandwidth;
use autoplan::validate::case::{Case, Shelf};
use autoplan::validate::predict_case;

use crate::cli::autoplan;

const CSV: &str = include_str!("../../results/published/measured.csv");

fn published_runs(machine: &Machine) -> Vec<Case> {
    let shelf = Shelf::shipped();
    MeasuredReader::new(CSV.as_bytes())
        .unwrap()
        .filter_map(Result::ok)
        .filter(|row| row.text("id").is_some_and(|id| id.starts_with("DGXC")))
        .filter_map(|row| Case::read_on(&row, machine, &shelf).ok())
        .filter(|case| !case.labels.experts)
        .take(10)
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
    let sustained = calibration.constants.iter().find(|c| c.constant == Constant::Sustained(Format::Bf16));
    assert!(sustained.is_some_and(|c| c.held_by == HeldBy::Runs && c.standard_error.is_some()));
    assert!(calibration.explains() && calibration.far_off() == 0);
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

/// Sites that differ from what ships as the prior says, with noise on their runs: the stated errors hold the truth about as
/// often as standard errors should, with quiet runs too, where the pull of the prior is all there is.
#[test]
fn stated_errors_hold_the_truth() {
    let machine = load_cluster("dgx-h100").unwrap();
    let runs = published_runs(&machine);
    // Pairs of normal numbers by Box and Muller, from a linear congruential generator.
    let mut state = 20_240_229_u64;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    let mut normal = move || (-2.0 * uniform().ln()).sqrt() * (2.0 * std::f64::consts::PI * uniform()).cos();
    for noise in [0.01, 0.03] {
        let (mut stated, mut inside) = (0u32, [0u32; 2]);
        for _ in 0..60 {
            let mut site = machine.clone();
            for rate in site.accelerator.rates.values_mut() {
                rate.sustained *= (0.15 * normal()).exp();
            }
            let mut cases = runs.clone();
            for case in &mut cases {
                let truth = Case { accelerator: site.accelerator.clone(), ..case.clone() };
                case.measured.step_s = Some(predict_case(&truth).step_s * (noise * normal()).exp());
            }
            for fitted in calibrate(&machine, &cases).unwrap().constants {
                let (Constant::Sustained(format), Some(error)) = (fitted.constant, fitted.standard_error)
                else {
                    continue;
                };
                let off = (fitted.after - site.accelerator.rates[&format].sustained).abs() / error;
                stated += 1;
                inside
                    .iter_mut()
                    .zip([1.0, 2.0])
                    .for_each(|(count, bound)| *count += u32::from(off <= bound));
            }
        }
        let [one, two] = inside.map(|count| f64::from(count) / f64::from(stated));
        assert!(stated >= 60 && (0.58..0.80).contains(&one) && two > 0.90, "{noise}: {stated} {one} {two}");
    }
}

#[test]
fn nothing_to_fit_is_an_error() {
    let machine = load_cluster("dgx-h100").unwrap();
    assert!(calibrate(&machine, &[]).is_err());
}

/// A published machine's runs, all of them slower (or faster) by one factor.
fn scaled(machine: &Machine, factor: f64) -> Vec<Case> {
    let mut cases = published_runs(machine);
    for case in &mut cases {
        case.measured.step_s = case.measured.step_s.map(|s| s * factor);
    }
    cases
}

#[test]
fn what_no_constant_explains_is_told_from_a_slow_machine() {
    let machine = load_cluster("dgx-h100").unwrap();
    for (factor, explains) in [(20.0, false), (0.2, false), (1.25, true), (1.0, true)] {
        let cases = scaled(&machine, factor);
        let calibration = calibrate(&machine, &cases).unwrap();
        assert_eq!(calibration.explains(), explains, "{factor}: {calibration:?}");
        assert_eq!(calibration.far_off(), if explains { 0 } else { cases.len() });
        assert!((calibration.slowness() / factor - 1.0).abs() < 0.05, "{}", calibration.slowness());
        let sustained = &calibration.constants[0];
        assert_eq!(sustained.constant, Constant::Sustained(Format::Bf16));
        assert_eq!(sustained.held_by, if explains { HeldBy::Runs } else { HeldBy::Bound });
        assert_eq!(sustained.standard_error.is_some(), explains);
    }
}

#[test]
fn a_network_that_the_runs_do_not_feel_is_held_by_its_prior() {
    let machine = load_cluster("dgx-h100").unwrap();
    let network = |machine: &Machine, cases: &[Case]| {
        let calibration = calibrate(machine, cases).unwrap();
        calibration.constants.into_iter().find(|c| c.constant == Constant::NetworkEfficiency).unwrap()
    };
    let unfelt = network(&machine, &published_runs(&machine));
    assert_eq!((unfelt.held_by, unfelt.standard_error), (HeldBy::Prior, None), "{unfelt:?}");
    assert!((unfelt.after / unfelt.before - 1.0).abs() < 0.01);
    // Through ports of a fortieth of the rate little else matters.
    let mut narrow = machine.clone();
    narrow.cluster.scale_out.nic = Bandwidth(narrow.cluster.scale_out.nic.0 / 40.0);
    let mut truth = narrow.clone();
    truth.cluster.scale_out.efficiency = 0.8;
    let mut cases = published_runs(&narrow);
    for case in &mut cases {
        let run = Case { cluster: truth.cluster.clone(), ..case.clone() };
        case.measured.step_s = Some(predict_case(&run).step_s);
    }
    let felt = network(&narrow, &cases);
    assert_eq!(felt.held_by, HeldBy::Runs, "{felt:?}");
    // The prior pulls it from the truth towards 0.9.
    assert!((0.8..0.84).contains(&felt.after), "{felt:?}");
}

#[test]
fn runs_on_another_accelerator_are_skipped_by_its_name() {
    let shelf = Shelf::shipped();
    let rows: Vec<_> = MeasuredReader::new(CSV.as_bytes()).unwrap().filter_map(Result::ok).collect();
    // How many rows of each GPU a machine takes, among those that can be read at all.
    let taken = |machine: &Machine, gpu: &str| {
        let of_gpu = rows.iter().filter(|row| row.text("gpu") == Some(gpu));
        let read: Vec<_> = of_gpu.filter(|row| Case::read(row, &shelf).is_ok()).collect();
        let taken = read.iter().filter(|row| Case::read_on(row, machine, &shelf).is_ok()).count();
        (taken, read.len())
    };
    let shipped = load_cluster("dgx-h100").unwrap();
    let (all, of) = taken(&shipped, "H100-SXM-80GB");
    assert!(all == of && of > 100);
    for other in ["A100-SXM-80GB", "H200", "H100-HBM2E-96GB-500W"] {
        let (none, of) = taken(&shipped, other);
        assert!(none == 0 && of > 0, "{other}");
    }
    // What calibration wrote is still that accelerator; what a site calls its own goes by that name.
    let mut calibrated = shipped.clone();
    calibrated.cluster.accelerator = "calibrated-accelerator.ron".into();
    assert_eq!(taken(&calibrated, "H100-SXM-80GB"), (of, of));
    let mut own = calibrated.clone();
    own.accelerator.name = "Our card".into();
    own.cluster.accelerator = "cards/our-card-2.ron".into();
    assert_eq!(taken(&own, "H100-SXM-80GB").0, 0);
    let header = "id,gpu,gpus,layers,hidden,heads,seq_len,global_batch,framework_family";
    for (gpu, expected) in [("our CARD", true), ("our-card-2", true), ("our-card", false)] {
        let text = format!("{header}\nx,{gpu},8,32,4096,32,4096,64,megatron-core\n");
        let row = MeasuredReader::new(text.as_bytes()).unwrap().next().unwrap().unwrap();
        let case = Case::read_on(&row, &own, &shelf);
        match expected {
            true => assert_eq!(case.unwrap().accelerator.name, "Our card"),
            false => assert_eq!(
                case.unwrap_err().to_string(),
                "gpu `our-card` is not the accelerator of DGX H100, NDR InfiniBand (Our card, our-card-2)"
            ),
        }
    }
}

/// Published runs as a site's own file, each row as `change` leaves it.
fn own_runs(path: &Path, change: impl Fn(usize, &str, &str) -> String) {
    let mut reader = csv::Reader::from_reader(CSV.as_bytes());
    let header = reader.headers().unwrap().clone();
    let runs = reader.records().map(Result::unwrap).filter(|row| {
        let cell = |name: &str| &row[header.iter().position(|column| column == name).unwrap()];
        cell("id").starts_with("DGXC") && cell("gpu") == "H100-SXM-80GB" && cell("experts").is_empty()
    });
    let mut writer = csv::Writer::from_path(path).unwrap();
    writer.write_record(&header).unwrap();
    for (at, row) in runs.take(10).enumerate() {
        writer.write_record(header.iter().zip(&row).map(|(column, cell)| change(at, column, cell))).unwrap();
    }
    writer.flush().unwrap();
}

#[test]
fn nothing_is_written_from_runs_that_make_no_sense() {
    let folder = tempfile::tempdir().unwrap();
    let (runs, out) = (folder.path().join("runs.csv"), folder.path().join("out"));
    std::fs::create_dir(&out).unwrap();
    let calibrate = |change: &dyn Fn(usize, &str, &str) -> String| {
        own_runs(&runs, change);
        let arguments = [runs.to_str().unwrap(), "--cluster", "dgx-h100", "-o", out.to_str().unwrap()];
        let output = autoplan(&[&["calibrate"], &arguments[..]].concat());
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let written = || std::fs::read_dir(&out).unwrap().count();
    let keep = |cell: &str| cell.to_owned();

    let slow = |_: usize, column: &str, cell: &str| match column {
        "step_time_s" => (cell.parse::<f64>().unwrap() * 20.0).to_string(),
        _ => keep(cell),
    };
    let (code, _, err) = calibrate(&slow);
    assert_eq!((code, written()), (Some(2), 0), "{err}");
    for said in [
        "sustained share of the Bf16 peak: 0.274 is the end of what is searched (0.274 to 1.000); the runs ask for less",
        "10 of 10 runs are off by more than 25%",
        "nothing is written",
        "step_time_s",
        "global_batch",
        "framework_family",
    ] {
        assert!(err.contains(said), "{said}: {err}");
    }

    for (column, text, said) in [
        ("framework_family", "", "and 7 more: framework_family is not stated"),
        ("framework_family", "my-own", "and 7 more: framework_family `my-own` is not known (one of "),
        (
            "gpu",
            "A100-SXM-80GB",
            "gpu `A100-SXM-80GB` is not the accelerator of DGX H100, NDR InfiniBand (H100-SXM-80GB, ",
        ),
        ("step_time_s", "", "step_time_s is not stated"),
        ("layers", "4000000000", "layers is 4000000000; at most 4096 is accepted"),
    ] {
        // Tokens a second would say the step time as well.
        let also = if column == "step_time_s" { "tokens_per_s_per_gpu" } else { column };
        let change = |_: usize, at: &str, cell: &str| {
            if at == column || at == also { text.to_owned() } else { keep(cell) }
        };
        let (code, _, err) = calibrate(&change);
        assert_eq!((code, written()), (Some(2), 0), "{err}");
        assert!(err.contains(said) && err.lines().count() == 2, "{said}: {err}");
    }

    let one_wrong = |at: usize, column: &str, cell: &str| match (at, column) {
        (3, "gpu") => "a100-80gb".to_owned(),
        (4, "step_time_s") => (cell.parse::<f64>().unwrap() * 10.0).to_string(),
        _ => keep(cell),
    };
    let (code, out, err) = calibrate(&one_wrong);
    assert_eq!((code, written()), (Some(0), 2), "{err}");
    assert!(err.contains("gpu `a100-80gb` is not the accelerator"), "{err}");
    assert!(out.contains("1 of 9 runs is off by more than 25%"), "{out}");
    assert!(
        out.contains(
            "share of the network's line rate: the runs are too few to move it, or their step times hardly"
        ),
        "{out}"
    );

    // What is there is told before anything is read.
    std::fs::write(&runs, "no,table\n").unwrap();
    let arguments = ["calibrate", runs.to_str().unwrap(), "--cluster", "dgx-h100", "-o"];
    let output = autoplan(&[&arguments[..], &[folder.path().join("out").to_str().unwrap()]].concat());
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && err.contains("exists; --force overwrites it"), "{err}");
}
