use autoplan::cost::model::CostModel;
use autoplan::cost::step;
use autoplan::spec::measured::MeasuredReader;
use autoplan::validate::case::{Case, Shelf};
fn main() {
    let shelf = Shelf::shipped();
    let file = std::fs::File::open("results/published/measured.csv").unwrap();
    let detail = std::env::args().nth(1);
    let mut skips = std::collections::BTreeMap::<String, u32>::new();
    if detail.is_none() {
        println!(
            "id\tq\tfam\tprofile\tgpu\tprec\tmoe\tgpus\tstep\tpred\tmem\tkind\talloc\tres\tdev\toom\tlimit\tgroup\tassumed\tsame\tplan\trel"
        );
    }
    for row in MeasuredReader::new(file).unwrap() {
        let row = row.unwrap();
        let case = match Case::read(&row, &shelf) {
            Ok(c) => c,
            Err(s) => {
                *skips
                    .entry(format!("{} {s}", row.text("id").unwrap().split('-').next().unwrap()))
                    .or_default() += 1;
                continue;
            }
        };
        if let Some(d) = &detail
            && case.id != *d
        {
            continue;
        }
        let cost = CostModel::new(
            &case.model,
            &case.layers,
            &case.cluster,
            &case.accelerator,
            case.profile,
            &case.job,
        );
        let p = step::predict(&cost, &case.layers, &case.plan);
        if detail.is_some() {
            println!("{} {} {:?}", case.id, case.plan, case.job);
            println!("measured {:?} predicted {}", case.measured, p.step());
            for (n, t) in p.times.iter() {
                println!("  {n:20} {:.4} {:.1}%", t.seconds().0, 100.0 * t.0 as f64 / p.step().0 as f64);
            }
            let tables = step::Tables::new(&cost, case.plan.layout());
            for l in &tables.cell.layers {
                println!(
                    "layer fwd {:?} = {}",
                    l.forward.0.map(|t| (t.0 as f64 / 1e6).round()),
                    l.forward.total()
                );
                println!(
                    "layer bwd {:?} = {}",
                    l.backward.0.map(|t| (t.0 as f64 / 1e6).round()),
                    l.backward.total()
                );
                println!(
                    "kept {:?} full {} params {:?} transient {:?}",
                    l.kept,
                    l.full_extra.total(),
                    l.parameters,
                    l.transient
                );
            }
            println!(
                "head {} {} emb {} {}",
                tables.cell.head.forward.total(),
                tables.cell.head.backward.total(),
                tables.cell.embedding.forward.total(),
                tables.cell.embedding.backward.total()
            );
            println!("hop {:?} sharding {:?}", tables.hop, tables.sharding);
            for m in &p.memory {
                println!("{m:?}");
            }
            println!("{:?}", case.plan.chunks().iter().map(|c| c.layers).collect::<Vec<_>>());
            continue;
        }
        let m = &case.measured;
        println!(
            "{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{:?}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{:?}",
            case.id,
            case.labels.quality,
            case.labels.framework,
            case.labels.profile,
            case.labels.gpu,
            case.job.precision.name(),
            case.labels.experts as u8,
            case.job.gpus,
            m.step_s.unwrap_or(0.0),
            p.step().seconds().0,
            m.memory.unwrap_or(0.0),
            m.memory_kind,
            p.allocated.0,
            p.reserved.0,
            p.device.0,
            m.out_of_memory.map_or(-1, |x| x as i32),
            cost.device_limit().0,
            case.labels.group,
            case.assumed.join("+"),
            case.labels.same_as.join(" "),
            case.plan,
            case.labels.release
        );
    }
    eprintln!("{skips:#?}");
}
