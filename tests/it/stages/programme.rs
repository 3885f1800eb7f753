//! The integer programme against the dynamic programme and against trying everything.

use std::sync::atomic::{AtomicU32, Ordering};

use autoplan::stages::chains::{Judged, Known, Proof};
use autoplan::stages::milp::{self, Limits, Outcome as Programme};
use autoplan::stages::{Assignment, Balancer, Choice, Objective, Outcome, Problem, evaluate};
use autoplan::units::Picos;
use rayon::prelude::*;

use super::oracle::{self, Random};
use super::{
    chunks_of_split_passes, one_chunk_per_rank, random_problem, realistic, roomy, roomy_of_split_passes,
    several_chunks, simulated, single_chunks, some_traffic, with_traffic,
};

/// What is proved in both steps, and what the first shows of problems of the same shape.
fn least_makespan(problem: &Problem, judged: Judged<'_>, known: Option<&Known>) -> (Picos, Known) {
    proved(problem, judged, judged, known)
}

/// The same where another split is judged closely than was judged first.
fn proved(problem: &Problem, first: Judged<'_>, then: Judged<'_>, known: Option<&Known>) -> (Picos, Known) {
    let mut proof = Proof::new(problem, first, known, &|| false);
    let (quick, mut shows) = proof.quickly();
    let least = proof.closely(then);
    assert!(least >= quick);
    proof.teach(&mut shows);
    // What is seen and faster fits and takes so long.
    if let Some(split) = proof.faster() {
        let time = taken(problem, then, &split);
        assert!(time < then.passes.0, "{time} {}", then.passes.0);
    }
    (least, shows)
}

/// What a split that fits takes, with the traffic that is judged.
fn taken(problem: &Problem, judged: Judged<'_>, split: &Assignment) -> u64 {
    let evaluation = evaluate(problem, split).unwrap();
    match judged.traffic {
        Some(traffic) => with_traffic(problem, judged.shape, (&split.layers, &evaluation), traffic),
        None => simulated(problem, judged.shape, &split.layers, &evaluation),
    }
}

/// Value by the integer programme; none if it proves that nothing fits.
fn by_programme(problem: &Problem, objective: Objective) -> Option<u64> {
    match milp::solve(problem, objective, Limits::default()) {
        Programme::Found(answer) => {
            assert_eq!(oracle::value(&answer.evaluation, objective), answer.value.0);
            assert!(answer.bound <= answer.value);
            // The closed form of several chunks rounds down.
            assert!(answer.value.0 - answer.bound.0 <= 1, "{answer:?}");
            Some(answer.value.0)
        }
        Programme::Infeasible => None,
        Programme::Unknown(_) => panic!("no limit is in reach of so small a problem"),
    }
}

#[test]
fn integer_programme_equals_dynamic_programme_and_brute_force() {
    let results: Vec<(bool, bool)> = (0..1_000_u64)
        .into_par_iter()
        .map_init(Balancer::new, |balancer, seed| {
            let problem = one_chunk_per_rank(seed);
            let objective = if seed % 4 == 3 { Objective::Closed } else { Objective::Chain };
            let expected = oracle::best(&problem, objective);
            let dynamic = match balancer.solve(&problem, objective, None) {
                Outcome::Found(value) => Some(value.0),
                _ => None,
            };
            assert_eq!(dynamic, expected.as_ref().map(|best| best.0), "seed {seed}");
            let programme = by_programme(&problem, objective);
            assert_eq!(programme, dynamic, "seed {seed} {objective:?}\n{problem:#?}");
            // With the answer known it is found again, and nothing below it is.
            if let Some(value) = dynamic {
                let known = |value| milp::solve_at_most(&problem, objective, Picos(value), Limits::default());
                let Programme::Found(answer) = known(value) else { panic!("seed {seed}") };
                assert!(answer.value.0 == value && answer.bound.0 + 1 >= value, "seed {seed}: {answer:?}");
                assert_eq!(known(value - 1), Programme::Infeasible, "seed {seed}");
            }
            (expected.is_none(), problem.min_layers == 0)
        })
        .collect();
    let infeasible = results.iter().filter(|found| found.0).count();
    let empty = results.iter().filter(|found| found.1).count();
    assert!(infeasible > 150 && empty > 300, "{infeasible} {empty}");
}

/// The chain bound of several chunks per rank: nothing that fits has a smaller one.
#[test]
fn integer_programme_of_several_chunks_equals_brute_force() {
    let found: usize = (0..60_u64)
        .into_par_iter()
        .map(|seed| {
            let (problem, _) = several_chunks(seed);
            let objective = if seed % 3 == 2 { Objective::Closed } else { Objective::Chain };
            let expected = oracle::best(&problem, objective).map(|best| best.0);
            assert_eq!(by_programme(&problem, objective), expected, "seed {seed}\n{problem:#?}");
            usize::from(expected.is_some())
        })
        .sum();
    assert!(found > 20, "{found}");
}

/// What no split over several chunks per rank takes less than, against all of them as the event simulation has
/// them, whichever of them is judged; and how much it leaves open.
#[test]
fn nothing_is_faster_than_the_chains_say() {
    let gaps: Vec<[f64; 2]> = (0..240_u64)
        .into_par_iter()
        .filter_map(|seed| {
            let (mut problem, shape) =
                if seed % 3 == 2 { chunks_of_split_passes(seed) } else { several_chunks(seed) };
            problem.tail = None;
            let mut random = Random(seed);
            let (mut least, mut judged, mut fastest, mut seen) = (u64::MAX, None, None, 0);
            oracle::every_assignment(&problem, |assignment, evaluation| {
                let time = simulated(&problem, shape, &assignment.layers, evaluation);
                if time < least {
                    (least, fastest) = (time, Some(assignment.clone()));
                }
                seen += 1;
                if random.within(1, seen) == 1 {
                    judged = Some((assignment.clone(), time));
                }
            });
            let (assignment, passes) = judged?;
            // Without programmes over whole layers where nothing is intolerable.
            let judged = |passes: u64, enough: u64, tolerable: u64| Judged {
                shape,
                layers: &assignment.layers,
                recompute: assignment.recompute[0],
                traffic: None,
                passes: Picos(passes),
                enough: Picos(enough),
                tolerable: Picos(tolerable),
                asked: Picos(enough),
                effort: 1 + 3 * (seed % 2) as u32,
            };
            // What another problem of the shape shows: its layers take other times, in other proportions.
            let mut other = problem.clone();
            for (at, kind) in other.kinds.iter_mut().enumerate() {
                kind.forward = Picos(kind.forward.0 * (3 + at as u64));
                kind.backward = Picos(kind.backward.0 * 2);
            }
            other.hop = Picos(other.hop.0 * 5 + 1);
            let far = passes * 9;
            let (_, known) =
                least_makespan(&other, judged(far, far, if seed % 4 < 2 { 0 } else { far }), None);
            let bound = |passes: u64, enough: u64, tolerable: u64| {
                let judged = judged(passes, enough, tolerable);
                let bound = least_makespan(&problem, judged, None).0.0;
                let with_known = least_makespan(&problem, judged, Some(&known)).0.0;
                assert!(with_known <= least, "seed {seed}: {with_known} > {least}");
                bound
            };
            for enough in [passes / 2, passes] {
                for tolerable in [0, passes - passes / 20, passes] {
                    let bound = bound(passes, enough, tolerable);
                    assert!(bound <= least, "seed {seed}: {bound} > {least}");
                }
            }
            // A slower split is judged first, then the fastest.
            let fastest = fastest?;
            let then = Judged {
                layers: &fastest.layers,
                recompute: fastest.recompute[0],
                effort: 1 + (seed % 4) as u32,
                ..judged(least, least, least)
            };
            let moved = proved(&problem, judged(passes, passes, passes), then, Some(&known)).0.0;
            assert!(moved <= least, "seed {seed}: {moved} > {least}");
            let gap = |tolerable| least as f64 / bound(least, least, tolerable) as f64 - 1.0;
            Some([gap(0), gap(least)])
        })
        .collect();
    let mean = |at: usize| gaps.iter().map(|gap| gap[at]).sum::<f64>() / gaps.len() as f64;
    let (fractions, whole) = (mean(0), mean(1));
    let said = format!("{} problems, mean gap {fractions:.3}, of whole layers {whole:.3}", gaps.len());
    println!("{said}");
    assert!(gaps.len() > 150 && fractions < 0.1 && whole < 0.5 * fractions, "{said}");
}

/// The same where ranks gather before their passes and reduce behind them.
#[test]
fn nothing_is_faster_than_the_chains_and_the_traffic_say() {
    let gaps: Vec<[f64; 2]> = (0..360_u64)
        .into_par_iter()
        .filter_map(|seed| {
            let (mut problem, shape) = match seed % 3 {
                0 => several_chunks(seed),
                1 => chunks_of_split_passes(seed),
                _ => single_chunks(seed),
            };
            problem.tail = None;
            let mut random = Random(seed ^ 0x7a11);
            let (traffic, others) =
                (some_traffic(&mut random, &problem), some_traffic(&mut random, &problem));
            let (mut least, mut without, mut judged, mut seen) = (u64::MAX, u64::MAX, None, 0);
            oracle::every_assignment(&problem, |assignment, evaluation| {
                let layers = assignment.layers.as_slice();
                let time = with_traffic(&problem, shape, (layers, evaluation), &traffic);
                without = without.min(simulated(&problem, shape, layers, evaluation));
                least = least.min(time);
                seen += 1;
                if random.within(1, seen) == 1 {
                    judged = Some((assignment.clone(), time));
                }
            });
            let (assignment, passes) = judged?;
            let judged = |traffic, passes: u64, tolerable: u64| Judged {
                shape,
                layers: &assignment.layers,
                recompute: assignment.recompute[0],
                traffic,
                passes: Picos(passes),
                enough: Picos(passes),
                tolerable: Picos(tolerable),
                asked: Picos(passes),
                effort: 1 + 3 * (seed % 2) as u32,
            };
            let (_, known) = least_makespan(&problem, judged(Some(&others), passes * 9, 0), None);
            let (_, bare) = least_makespan(&problem, judged(None, passes * 9, 0), None);
            for tolerable in [0, passes - passes / 20, passes] {
                for known in [None, Some(&known), Some(&bare)] {
                    let bound =
                        least_makespan(&problem, judged(Some(&traffic), passes, tolerable), known).0.0;
                    assert!(bound <= least, "seed {seed}: {bound} > {least}");
                }
            }
            let bound = |traffic| least_makespan(&problem, judged(traffic, least, least), None).0.0;
            let gap = |bound: u64| least as f64 / bound.max(1) as f64 - 1.0;
            Some([gap(bound(None).min(without)), gap(bound(Some(&traffic)))])
        })
        .collect();
    let mean = |at: usize| gaps.iter().map(|gap| gap[at]).sum::<f64>() / gaps.len() as f64;
    let said =
        format!("{} problems, mean gap without traffic {:.3}, with it {:.3}", gaps.len(), mean(0), mean(1));
    println!("{said}");
    assert!(gaps.len() > 200 && mean(1) < 0.3 * mean(0), "{said}");
}

/// With one chunk per rank little is left open between the bound and the fastest of all splits, whatever ranks gather and
/// reduce: layers are whole, and every rank's traffic counts behind the passes that come before it.
#[test]
fn single_chunks_leave_little_open() {
    let gaps: Vec<[f64; 2]> = (0..600_u64)
        .into_par_iter()
        .filter_map(|seed| {
            let (mut problem, shape) = single_chunks(seed);
            problem.tail = None;
            let traffic = some_traffic(&mut Random(seed ^ 0x9a9), &problem);
            let (mut fastest, mut chain, mut first) = (u64::MAX, u64::MAX, None);
            oracle::every_assignment(&problem, |assignment, evaluation| {
                let layers = assignment.layers.as_slice();
                fastest = fastest.min(with_traffic(&problem, shape, (layers, evaluation), &traffic));
                chain = chain.min(evaluation.bound.0);
                first.get_or_insert_with(|| assignment.clone());
            });
            let first = first?;
            // Above all, so that a bound that is too high shows.
            let above = Picos(fastest + fastest / 12);
            let judged = Judged {
                shape,
                layers: &first.layers,
                recompute: first.recompute[0],
                traffic: Some(&traffic),
                passes: above,
                enough: above,
                tolerable: Picos::ZERO,
                asked: above,
                effort: 1,
            };
            let bound = least_makespan(&problem, judged, None).0.0;
            assert!(bound <= fastest, "seed {seed}: {bound} > {fastest}");
            Some([chain, bound].map(|bound| fastest as f64 / bound.max(1) as f64 - 1.0))
        })
        .collect();
    let mean = |at: usize| gaps.iter().map(|gap| gap[at]).sum::<f64>() / gaps.len() as f64;
    let said = format!(
        "{} problems, mean gap of passes alone {:.3}, with traffic {:.4}",
        gaps.len(),
        mean(0),
        mean(1)
    );
    println!("{said}");
    assert!(gaps.len() > 400 && mean(0) > 0.2 && mean(1) < 0.05, "{said}");
}

/// Where all splits can be walked through, the least time is that of the fastest: not less, whatever layers alternate and
/// whatever comes before and behind ranks' passes.
#[test]
fn walks_end_with_the_fastest_of_all_splits() {
    let seen = AtomicU32::new(0);
    (0..120_u64).into_par_iter().for_each(|seed| {
        let (problem, shape) = if seed % 4 == 3 { roomy_of_split_passes(seed) } else { roomy(seed, true) };
        let traffic = (seed % 2 == 0).then(|| some_traffic(&mut Random(seed), &problem));
        let mut fastest = u64::MAX;
        oracle::every_assignment(&problem, |assignment, evaluation| {
            let layers = assignment.layers.as_slice();
            fastest = fastest.min(match &traffic {
                Some(traffic) => with_traffic(&problem, shape, (layers, evaluation), traffic),
                None => simulated(&problem, shape, layers, evaluation),
            });
        });
        let above = Picos(fastest + fastest / 12);
        let judged = Judged {
            shape,
            layers: &problem.even_layers(),
            recompute: Choice::Mode(0),
            traffic: traffic.as_ref(),
            passes: above,
            enough: above,
            tolerable: above,
            asked: above,
            effort: 1,
        };
        let mut proof = Proof::new(&problem, judged, None, &|| false);
        proof.quickly();
        let least = proof.closely(judged).0;
        assert!(least <= fastest, "seed {seed}: {least} > {fastest}");
        assert!(least as f64 >= fastest as f64 * (1.0 - 1e-6), "seed {seed}: {least} < {fastest}");
        // It is seen on the way, unless programmes know as much without.
        if let Some(split) = proof.faster() {
            assert_eq!(taken(&problem, judged, &split), fastest, "seed {seed}");
            seen.fetch_add(1, Ordering::Relaxed);
        }
    });
    let seen = seen.into_inner();
    assert!(seen > 60, "{seen}");
}

/// Real proportions: the same optimum to the precision of floating point, and the closed form second.
#[test]
fn integer_programme_agrees_on_real_proportions() {
    (0..24_u64).into_par_iter().for_each_init(Balancer::new, |balancer, seed| {
        let mut random = Random(seed);
        let mut problem = realistic(&mut random, 61, 8, 1, 1 + seed as usize % 2);
        problem.freedom = autoplan::stages::Freedom::Global;
        let dynamic = match balancer.solve(&problem, Objective::Chain, None) {
            Outcome::Found(value) => Some(value.0 as f64),
            _ => None,
        };
        match (milp::solve_chain_then_closed(&problem, None, Limits::default()), dynamic) {
            (Programme::Found(answer), Some(value)) => {
                assert!((answer.value.0 as f64 / value - 1.0).abs() < 1e-6, "seed {seed}");
                assert!(answer.bound.0 as f64 <= value, "seed {seed}");
                let chain = balancer.assignment().clone();
                let other = evaluate(&problem, &chain).unwrap();
                assert!(answer.evaluation.closed.0 as f64 <= other.closed.0 as f64 * (1.0 + 1e-6));
            }
            (Programme::Infeasible, None) => {}
            (other, value) => panic!("seed {seed}: {other:?} {value:?}"),
        }
    });
}

/// Eight threads, thousands of solves: the answers of one thread, and no memory that grows with them.
#[test]
fn eight_threads_solve_thousands_of_programmes() {
    let problems: Vec<Problem> = (0..250_u64)
        .map(|seed| {
            let mut random = Random(seed ^ 0x517);
            let pipeline = autoplan::stages::Pipeline::one_f_one_b(2, 4);
            let layers = random.within(2, 6) as u32;
            random_problem(&mut random, pipeline, layers, 1)
        })
        .collect();
    let solve = |problem: &Problem| by_programme(problem, Objective::Chain);
    let alone: Vec<Option<u64>> = problems.iter().map(solve).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(8).build().unwrap();
    let round = || pool.install(|| problems.par_iter().map(solve).collect::<Vec<_>>());
    assert_eq!(round(), alone);
    let before = resident();
    for _ in 0..8 {
        assert_eq!(round(), alone);
    }
    // Two thousand solves: a leak of 32 kB each would show.
    if let (Some(before), Some(after)) = (before, resident()) {
        assert!(after < before + (64 << 20), "{before} bytes before, {after} after");
    }
}

/// Bytes of this process in memory, where the system tells.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(text.split_whitespace().nth(1)?.parse::<u64>().ok()? * 4096)
}
