//! The predictions are as good as the repository says they are.

use std::path::Path;

use autoplan::frameworks::error_bars::ErrorBars;
use autoplan::validate::baseline::Baseline;
use autoplan::validate::sets::Noise;
use autoplan::validate::{Ranking, Report, error_bars, summarise, validate};

fn published() -> Report {
    let csv = include_str!("../../results/published/measured.csv");
    validate(csv.as_bytes(), |_| true, |_| {}).unwrap()
}

fn baseline() -> Baseline {
    Baseline::read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/results/accuracy.ron"))).unwrap()
}

#[test]
fn no_class_of_errors_got_worse() {
    let worse = baseline().worse(&published().summary);
    assert!(worse.is_empty(), "{worse:?}");
}

#[test]
fn a_class_that_gets_worse_is_found() {
    let mut report = published();
    for row in report.rows.iter_mut().filter(|row| row.labels.profile == "llm-foundry") {
        row.predicted_step_s = row.predicted_step_s.map(|s| s * 1.1);
    }
    let worse = baseline().worse(&summarise(&report.rows));
    assert!(worse.iter().any(|w| w.class == "step time: framework: llm-foundry"), "{worse:?}");
}

#[test]
fn the_readme_shows_the_errors_that_are_reached() {
    let readme = include_str!("../../README.md");
    let summary = published().summary;
    let percent = |share: f64| format!("{:.1}%", share * 100.0);
    let kinds = &summary.step_time.by["kind"];
    let grades = &summary.step_time.by["grade"];
    for (name, errors) in [
        ("all", &summary.step_time.all.unwrap()),
        ("dense, best-documented rows", &grades["A dense"]),
        ("dense", &kinds["dense"]),
        ("mixture of experts", &kinds["moe"]),
    ] {
        let line = format!(
            "| {name} | {} | {} | {} |",
            percent(errors.median),
            percent(errors.mean),
            percent(errors.p90)
        );
        assert!(readme.contains(&line), "expected in README.md: {line}");
    }
    let right = format!("{} of the out-of-memory verdicts", percent(summary.out_of_memory.right()));
    assert!(readme.contains(&right), "{right}");
}

#[test]
fn every_goal_is_looked_at_and_the_missed_are_known() {
    let goals = published().summary.goals;
    assert_eq!(goals.len(), 23, "a goal lost its class of rows: {goals:?}");
    let missed: Vec<&str> = goals.iter().filter(|goal| !goal.met()).map(|goal| goal.name.as_str()).collect();
    assert_eq!(missed, ["picks by time and memory that ran out of memory"]);
}

#[test]
fn rows_that_their_source_contradicts_neither_rank_nor_inform_constants() {
    let report = published();
    let aside: Vec<&str> = report
        .rows
        .iter()
        .filter(|row| {
            row.measured_step_s.is_some() && Noise::of(&row.labels).is_some_and(|noise| !noise.fitted)
        })
        .map(|row| row.id.as_str())
        .collect();
    assert_eq!(aside.len(), 16, "{aside:?}");
    assert!(aside.iter().all(|id| id.starts_with("aalpha-0")), "{aside:?}");
    let groups =
        |of: &Ranking| of.groups.iter().filter(|g| g.group.contains("13B|A100-SXM-80GB|64|")).count();
    assert!(groups(&report.summary.ranking) < groups(&report.summary.ranking_of_all));
    // Their errors count all the same.
    assert!(report.summary.step_time.by["profile"]["aa-scaling"].rows >= 97);
}

#[test]
fn error_bars_are_those_of_the_residuals() {
    let report = published();
    let (shipped, now) = (ErrorBars::shipped(), error_bars(&report.rows));
    assert_eq!(shipped.bars.len(), now.bars.len(), "write src/frameworks/error_bars.ron again");
    for (a, b) in shipped.bars.iter().zip(&now.bars) {
        assert!((a.sigma / b.sigma - 1.0).abs() < 0.05, "{a:?} {b:?}");
    }
    let coverage = report.summary.coverage;
    assert!((0.63..0.80).contains(&coverage.one_sigma), "{coverage:?}");
    assert!((0.85..1.0).contains(&coverage.two_sigma), "{coverage:?}");
}

#[test]
fn the_sets_of_other_planners_are_predicted_better_than_by_them() {
    let summary = published().summary;
    let mean = |name: &str| {
        let set = summary.named_sets.iter().find(|set| set.name.starts_with(name)).unwrap();
        set.step_time.unwrap().mean
    };
    assert!(mean("Korthikanti") < 0.03);
    assert!(mean("Narayanan") < 0.06);
    assert!(mean("vTrain") < 0.07);
    assert!(mean("SimuMax") < 0.04);
}
