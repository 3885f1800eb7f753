//! Calibration recovers constants that runs were made with, and says which it cannot know.

use std::path::Path;

use autoplan::calibrate::{Calibration, Constant, Fitted, HeldBy, calibrate};
use autoplan::frameworks::error_bars::{
    Class, ErrorBars, Interval, LEAST_SIGMA, Scale, own_runs as runs_like,
};
use autoplan::plan::Plan;
use autoplan::spec::cluster::{Architecture, Format, OwnRuns};
use autoplan::spec::job::{Job, Training};
use autoplan::spec::measured::MeasuredReader;
use autoplan::spec::special::Special;
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

/// The machine at a site whose cards run at another speed, as under a power cap, and some formats at their own beside it.
fn at_speed(machine: &Machine, speed: f64, beside: impl Fn(Format) -> f64) -> Machine {
    let mut site = machine.clone();
    for (&format, rate) in &mut site.accelerator.rates {
        rate.sustained *= speed * beside(format);
    }
    for rates in site.accelerator.attention.values_mut() {
        rates.forward.0 *= speed;
        rates.backward.0 *= speed;
    }
    site
}

/// The runs, each as long as it is predicted to take at a site, times some noise.
fn measured_at(site: &Machine, runs: &[Case], mut noise: impl FnMut() -> f64) -> Vec<Case> {
    let measured = |case: &Case| {
        let Machine { cluster, accelerator } = site.clone();
        let seconds = predict_case(&Case { cluster, accelerator, ..case.clone() }).step_s * noise();
        let mut case = case.clone();
        case.measured.step_s = Some(seconds);
        case
    };
    runs.iter().map(measured).collect()
}

fn of(calibration: &Calibration, constant: Constant) -> &Fitted {
    calibration.constants.iter().find(|c| c.constant == constant).unwrap()
}

#[test]
fn a_slower_machine_is_recognised() {
    let machine = load_cluster("dgx-h100").unwrap();
    let slow = at_speed(&machine, 0.85, |_| 1.0);
    let runs = published_runs(&machine);
    assert!(runs.len() >= 6);
    let cases = measured_at(&slow, &runs, || 1.0);
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
            let (speed, formats) = ((0.13 * normal()).exp(), [(); 2].map(|()| (0.07 * normal()).exp()));
            let site = at_speed(&machine, speed, |format| formats[usize::from(format != Format::Bf16)]);
            let cases = measured_at(&site, &runs, || (noise * normal()).exp());
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
        let sustained = of(&calibration, Constant::Sustained(Format::Bf16));
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
    assert_eq!(unfelt.after, unfelt.before);
    // Through ports of an eightieth of the rate little else matters.
    let mut narrow = machine.clone();
    narrow.cluster.scale_out.nic = Bandwidth(narrow.cluster.scale_out.nic.0 / 80.0);
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
    // Faster than any network was measured to be is not believed.
    let mut faster = narrow.clone();
    faster.cluster.scale_out.efficiency = 1.0;
    let fastest = network(&narrow, &measured_at(&faster, &published_runs(&narrow), || 0.9));
    assert_eq!((fastest.after, fastest.held_by, fastest.standard_error), (0.96, HeldBy::Bound, None));
}

/// Published dense runs of this machine in one format.
fn in_format(machine: &Machine, format: Format) -> Vec<Case> {
    let shelf = Shelf::shipped();
    let rows = MeasuredReader::new(CSV.as_bytes()).unwrap().filter_map(Result::ok);
    let dgxc = rows.filter(|row| row.text("id").is_some_and(|id| id.starts_with("DGXC")));
    let cases = dgxc.filter_map(|row| Case::read_on(&row, machine, &shelf).ok());
    cases.filter(|case| !case.labels.experts && case.job.precision.format() == format).take(4).collect()
}

#[test]
fn runs_in_one_format_say_something_of_the_others() {
    let machine = load_cluster("dgx-h100").unwrap();
    let site = at_speed(&machine, 0.8, |format| if format == Format::Fp8 { 0.93 } else { 1.0 });
    let [bf16, fp8] = [Format::Bf16, Format::Fp8].map(|format| {
        let runs = in_format(&machine, format);
        assert_eq!(runs.len(), 4);
        measured_at(&site, &runs, || 1.0)
    });
    let off = |machine: &Machine, format: Format| {
        (machine.accelerator.rates[&format].sustained / site.accelerator.rates[&format].sustained).ln().abs()
    };

    let of_bf16 = calibrate(&machine, &bf16).unwrap();
    assert!(off(&of_bf16.machine, Format::Bf16) < 0.03);
    assert!(off(&of_bf16.machine, Format::Fp8) < 0.5 * off(&machine, Format::Fp8));
    let unseen = of(&of_bf16, Constant::Sustained(Format::Fp8));
    assert_eq!((unseen.held_by, unseen.runs), (HeldBy::Speed, 0));
    let seen = of(&of_bf16, Constant::Sustained(Format::Bf16));
    let relative = |fitted: &Fitted| fitted.standard_error.unwrap() / fitted.after;
    // It is less certain than what runs were made in, and still holds the truth within two errors.
    assert!(relative(unseen) > 1.5 * relative(seen), "{unseen:?} {seen:?}");
    assert!(off(&of_bf16.machine, Format::Fp8) < 2.0 * relative(unseen));

    let of_both = calibrate(&machine, &[bf16, fp8].concat()).unwrap();
    for format in [Format::Bf16, Format::Fp8] {
        assert!(off(&of_both.machine, format) < 0.06, "{format:?}: {}", off(&of_both.machine, format));
        assert_eq!(of(&of_both, Constant::Sustained(format)).held_by, HeldBy::Runs);
    }
}

#[test]
fn what_is_said_of_a_constant_is_what_happens_to_it() {
    let machine = load_cluster("dgx-h100").unwrap();
    let shelf = Shelf::shipped();
    let rows: Vec<_> = MeasuredReader::new(CSV.as_bytes()).unwrap().filter_map(Result::ok).collect();
    let all: Vec<Case> = rows.iter().filter_map(|row| Case::read_on(row, &machine, &shelf).ok()).collect();
    let timed: Vec<Case> = all.into_iter().filter(|case| case.measured.step_s.is_some()).collect();
    let mut held = Vec::new();
    for some in timed.chunks(3).step_by(9) {
        for fitted in calibrate(&machine, some).unwrap().constants {
            let stays = fitted.after == fitted.before && fitted.standard_error.is_none();
            match fitted.held_by {
                HeldBy::Prior => assert!(stays, "{fitted:?}"),
                HeldBy::Bound => assert!(fitted.standard_error.is_none(), "{fitted:?}"),
                HeldBy::Runs | HeldBy::Both => assert!(fitted.standard_error.is_some(), "{fitted:?}"),
                HeldBy::Speed => assert_ne!(fitted.after, fitted.before, "{fitted:?}"),
            }
            assert!(fitted.constant != Constant::NetworkEfficiency || fitted.after <= 0.96, "{fitted:?}");
            held.push(fitted.held_by);
        }
    }
    for kind in [HeldBy::Runs, HeldBy::Both, HeldBy::Prior, HeldBy::Speed] {
        assert!(held.contains(&kind), "{kind:?}");
    }
}

/// The error that a calibration writes beside a kind of runs is what such runs are off by when they are left out one by one.
#[test]
fn the_error_of_own_runs_is_that_of_runs_left_out() {
    let machine = load_cluster("dgx-h100").unwrap();
    let mut runs = in_format(&machine, Format::Bf16);
    runs.extend(in_format(&machine, Format::Fp8));
    let mut factors = [0.96, 1.03, 1.05, 0.98, 1.02, 0.95, 1.04, 1.0].into_iter();
    let cases = measured_at(&at_speed(&machine, 0.85, |_| 1.0), &runs, || factors.next().unwrap());
    let told = calibrate(&machine, &cases).unwrap().machine.cluster.own_runs;
    assert_eq!(told.iter().map(|kind| kind.runs).sum::<usize>(), cases.len());
    for kind in told {
        let mut squares = Vec::new();
        for (i, case) in cases.iter().enumerate().filter(|(_, c)| c.job.precision.format() == kind.format) {
            let others: Vec<Case> = [&cases[..i], &cases[i + 1..]].concat();
            let Machine { cluster, accelerator } = calibrate(&machine, &others).unwrap().machine;
            let predicted = predict_case(&Case { cluster, accelerator, ..case.clone() }).step_s;
            squares.push((predicted / case.measured.step_s.unwrap()).ln().powi(2));
        }
        let left_out = (squares.iter().sum::<f64>() / squares.len() as f64).sqrt();
        assert!((kind.error / left_out - 1.0).abs() < 0.15, "{kind:?}: {left_out}");
    }
}

/// Root mean square of what the runs of each plan are off by when all of them are left out of the fit.
fn refitted_without(machine: &Machine, cases: &[Case], plans: &[std::ops::Range<usize>]) -> f64 {
    let square = |plan: &std::ops::Range<usize>| {
        let others = [&cases[..plan.start], &cases[plan.end..]].concat();
        let without = calibrate(machine, &others).map_or_else(|_| machine.clone(), |fit| fit.machine);
        let off = |case: &Case| {
            let Machine { cluster, accelerator } = without.clone();
            let predicted = predict_case(&Case { cluster, accelerator, ..case.clone() }).step_s;
            (predicted / case.measured.step_s.unwrap()).ln().powi(2)
        };
        cases[plan.clone()].iter().map(off).sum::<f64>() / plan.len() as f64
    };
    (plans.iter().map(square).sum::<f64>() / plans.len() as f64).sqrt()
}

#[test]
fn repeats_say_as_much_as_one_run() {
    let machine = load_cluster("dgx-h100").unwrap();
    let runs = in_format(&machine, Format::Bf16);
    let factors = [1.25, 1.05, 1.1, 1.18];
    for count in [1, 2, 4] {
        let mut factor = factors.into_iter();
        let once = measured_at(&machine, &runs[..count], || factor.next().unwrap());
        let often: Vec<Case> = once.iter().flat_map(|case| std::iter::repeat_n(case.clone(), 10)).collect();
        let [one, ten] = [&once, &often].map(|cases| calibrate(&machine, cases).unwrap());
        for (one, ten) in one.constants.iter().zip(&ten.constants) {
            assert!((one.after / ten.after - 1.0).abs() < 1e-3, "{one:?} {ten:?}");
            let [a, b] = [one, ten].map(|fitted| fitted.standard_error.unwrap_or(1.0));
            assert!((a / b - 1.0).abs() < 0.01, "{one:?} {ten:?}");
        }
        let [one, ten] = [one, ten].map(|fit| fit.machine.cluster.own_runs);
        assert!(one.len() == 1 && ten.len() == 1 && one[0].runs == count && ten[0].runs == count, "{ten:?}");
        assert!((one[0].error / ten[0].error - 1.0).abs() < 0.01, "{one:?} {ten:?}");
        let plans: Vec<_> = (0..count).map(|plan| 10 * plan..10 * (plan + 1)).collect();
        let left_out = refitted_without(&machine, &often, &plans);
        assert!((ten[0].error / left_out - 1.0).abs() < 0.1, "{count}: {ten:?} {left_out}");
    }
    // Batches of one plan, each with noise of its own.
    let batches = |case: &Case| {
        (1..=6)
            .map(|times| {
                let mut layout = *case.plan.layout();
                layout.gradient_accumulation_steps *= times;
                let job = Job { global_batch_size: case.job.global_batch_size * times, ..case.job.clone() };
                let chunks = case.plan.chunks().to_vec();
                let layers = case.model.layer_count();
                let plan = Plan::new(layout, chunks, job.gpus, job.global_batch_size, layers).unwrap();
                Case { job, plan, ..case.clone() }
            })
            .collect::<Vec<Case>>()
    };
    let mut factor = [1.10, 1.14, 1.12, 1.08, 1.11, 1.13].into_iter().cycle();
    let cases = measured_at(&machine, &batches(&runs[0]), || factor.next().unwrap());
    let told = calibrate(&machine, &cases).unwrap().machine.cluster.own_runs;
    assert!(told.len() == 1 && told[0].runs == 1, "{told:?}");
    let all = 0..cases.len();
    let left_out = refitted_without(&machine, &cases, std::slice::from_ref(&all));
    assert!((told[0].error / left_out - 1.0).abs() < 0.1, "{told:?} {left_out}");
}

#[test]
fn runs_that_are_far_off_are_told_apart_only_where_they_are_few() {
    let machine = load_cluster("dgx-h100").unwrap();
    let run = in_format(&machine, Format::Bf16).remove(0);
    // Twelve plans: sequence lengths of one run.
    let lengths: Vec<Case> = (1..=12)
        .map(|at| Case { job: Job { sequence_length: 1024 * at, ..run.job.clone() }, ..run.clone() })
        .collect();
    for (wild, expected) in [(0, 0.0..0.01), (1, 0.07..0.09), (4, 0.4..0.7)] {
        let mut at = 0;
        let slow = || {
            at += 1;
            if at % 3 == 0 && at / 3 <= wild { 2.5 } else { 1.0 }
        };
        let cases = measured_at(&machine, &lengths, slow);
        let told = calibrate(&machine, &cases).unwrap().machine.cluster.own_runs;
        assert!(told.len() == 1 && (told[0].runs, told[0].far_off) == (12, wild), "{told:?}");
        assert!(expected.contains(&told[0].error), "{wild}: {told:?}");
    }
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

#[test]
fn a_site_s_bar_lies_between_its_runs_and_the_class() {
    let class = Interval { sigma: 0.06, two_sigma: 0.15, difference: 0.03 };
    assert_eq!(class.at_site(None), class);
    let at_site = |runs, error| {
        let (profile, format) = ("nemo".to_owned(), Format::Bf16);
        class.at_site(Some(&OwnRuns {
            profile,
            experts: false,
            special: Vec::new(),
            format,
            gpus: (8, 64),
            runs,
            far_off: 0,
            error,
        }))
    };
    for error in [0.0, 0.02, 0.06, 0.2] {
        let mut before = class.sigma;
        for runs in [1, 2, 4, 10, 100, 10_000] {
            let bar = at_site(runs, error);
            // With every run it comes nearer to what they are off by, and it keeps its shape.
            assert!((bar.sigma - error).abs() <= (before - error).abs() + 1e-12, "{runs} {error}: {bar:?}");
            assert!((bar.two_sigma / bar.sigma - 2.5).abs() < 1e-9 && bar.difference == class.difference);
            before = bar.sigma;
        }
        assert!((before - error.max(LEAST_SIGMA)).abs() < 0.002, "{error}: {before}");
    }
    // Four runs weigh as much as the class.
    assert!((at_site(4, 0.08).sigma.powi(2) - (0.06f64.powi(2) + 0.08f64.powi(2)) / 2.0).abs() < 1e-12);

    // Runs count for jobs of their kind on about as many GPUs.
    let mut machine = load_cluster("dgx-h100").unwrap();
    let case = in_format(&machine, Format::Bf16).remove(0);
    let (profile, format) = ("nemo".to_owned(), Format::Bf16);
    machine.cluster.own_runs = vec![OwnRuns {
        profile,
        experts: false,
        special: Vec::new(),
        format,
        gpus: (16, 256),
        runs: 3,
        far_off: 0,
        error: 0.01,
    }];
    let found = |profile: &str, experts, gpus| {
        let job = Job { gpus, ..case.job.clone() };
        runs_like(&machine.cluster, profile, experts, &job, false).is_some()
    };
    assert!(found("nemo", false, 64) && found("nemo", false, 128) && found("nemo", false, 16));
    assert!(!found("nemo", true, 64) && !found("megatron", false, 64));
    assert!(!found("nemo", false, 8) && !found("nemo", false, 1024));
    let adapters = Job { training: Training::Lora { rank: 16 }, gpus: 64, ..case.job.clone() };
    assert!(runs_like(&machine.cluster, "nemo", false, &adapters, false).is_none());
    assert!(runs_like(&machine.cluster, "nemo", false, &case.job, true).is_none());
    // Those that are special as the job is come before plain ones, and say nothing of plain jobs.
    let plain = machine.cluster.own_runs[0].clone();
    let special = OwnRuns { special: vec![Special::LongSequences], runs: 1, ..plain.clone() };
    machine.cluster.own_runs.push(special.clone());
    for (sequence_length, expected) in [(4096, &plain), (131_072, &special)] {
        let job = Job { sequence_length, gpus: 64, ..case.job.clone() };
        assert_eq!(runs_like(&machine.cluster, "nemo", false, &job, false), Some(expected));
    }
}

#[test]
fn a_site_s_plain_runs_say_nothing_of_what_is_special() {
    let table = ErrorBars::shipped();
    let own = |special: &[Special], runs| OwnRuns {
        profile: "nemo".to_owned(),
        experts: false,
        special: special.to_vec(),
        format: Format::Bf16,
        gpus: (8, 64),
        runs,
        far_off: 0,
        error: 0.0,
    };
    let class = |special: &[Special]| Class {
        profile: "nemo".to_owned(),
        experts: false,
        architecture: Architecture::Hopper,
        narrow: false,
        scale: Scale::Rack,
        crossing: false,
        special: special.to_vec(),
    };
    // However many runs a site has, and however quiet, nothing is known better than runs repeat.
    let plain = table.at_site(&class(&[]), Some(&own(&[], 1_000_000)));
    assert_eq!(plain.sigma, LEAST_SIGMA);
    for kind in [Special::LongSequences, Special::FineTuning, Special::NoFastDomain] {
        let of = |own: Option<&OwnRuns>| table.at_site(&class(&[kind]), own);
        let floor = table.special.iter().find(|bar| bar.kind == kind);
        let floor = floor.map_or(table.transfer, |bar| bar.sigma);
        let beside = of(Some(&own(&[], 16)));
        assert!(beside.sigma >= floor && beside.sigma <= of(None).sigma, "{kind:?}: {beside:?}");
        // Runs of that kind do, from what is known of the kind.
        let (few, many) = (of(Some(&own(&[kind], 1))), of(Some(&own(&[kind], 100))));
        assert!(few.sigma > 0.85 * of(None).sigma && many.sigma < 0.25 * of(None).sigma, "{kind:?}");
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
        "speed of the GPUs, all formats: 0.407 is the end of what is searched (0.407 to 1.822); the runs ask for less",
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
        out.contains("\nmemory: the peak of 1 of 9 runs is stated; predictions of it are off by "),
        "{out}"
    );
    assert!(
        out.contains(
            "share of the network's line rate: the runs' step times hardly depend on it, so that it stays as shipped"
        ),
        "{out}"
    );

    // Plans at the site have the bars of its runs where they are like them, and those that ship elsewhere.
    let site = folder.path().join("out/calibrated.ron");
    let plan = |framework: &str| {
        let job = ["--gpus", "16", "--global-batch", "128", "--seq-len", "8192", "--framework", framework];
        let output = autoplan(&[&["plan", "llama3.1-8b", site.to_str().unwrap()], &job[..]].concat());
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    };
    let own = plan("nemo");
    assert!(
        own.contains(
            "from 8 runs, 1 of them off by more than 25%, on DGX H100, NDR InfiniBand (`nemo` without experts, Bf16, 8 to "
        ),
        "{own}"
    );
    // One of eight that is ten times off makes them wide.
    assert!(own.contains("\n± : beyond 50% a prediction says little\n"), "{own}");
    // Of several clusters, each search tells whose runs its bars are from.
    let clusters = format!("dgx-a100,{}", site.display());
    let job = [
        "--gpus",
        "16",
        "--global-batch",
        "128",
        "--seq-len",
        "8192",
        "--framework",
        "nemo",
        "--format",
        "json",
    ];
    let output = autoplan(&[&["plan", "llama3.1-8b", &clusters], &job[..]].concat());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |at: usize| &json["searches"][at]["own_runs"];
    assert!(json["own_runs"].is_null() && of(0).is_null() && of(1)["runs"] == 8, "{}", json["searches"]);
    let other = plan("torchtitan");
    assert!(
        !other.contains("± : from") && other.contains("none of this site's own runs is like this job"),
        "{other}"
    );

    // Programs read the same.
    let json = autoplan(&["calibrate", runs.to_str().unwrap(), "--cluster", "dgx-h100", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["far_off"], json["residuals"].as_array().unwrap().len()), (&1.into(), 9));

    // Of peaks that are stated it is told how far predictions of them are off: those of 1 TB by nearly all of it.
    for (peak, said) in [
        ("1000", "\nmemory: the peak of 10 of 10 runs is stated; predictions of it are off by 9"),
        ("", "\nmemory: no run states its peak (peak_mem_gb), "),
    ] {
        let change = |_: usize, column: &str, cell: &str| match column {
            "peak_mem_gb" => peak.to_owned(),
            _ => keep(cell),
        };
        own_runs(&runs, change);
        let output = autoplan(&["calibrate", runs.to_str().unwrap(), "--cluster", "dgx-h100"]);
        let out = String::from_utf8(output.stdout).unwrap();
        assert!(out.contains(said), "{out}");
    }
    own_runs(&runs, one_wrong);

    // What is there is told before anything is read.
    std::fs::write(&runs, "no,table\n").unwrap();
    let arguments = ["calibrate", runs.to_str().unwrap(), "--cluster", "dgx-h100", "-o"];
    let output = autoplan(&[&arguments[..], &[folder.path().join("out").to_str().unwrap()]].concat());
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && err.contains("exists; --force overwrites it"), "{err}");
}
