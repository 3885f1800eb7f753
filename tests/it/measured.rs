//! Rows of measured tables: what no run can have is a reason to skip the row, found before anything is
//! counted or allocated by it.

use autoplan::validate::{RowReport, validate};

/// A run as a user would write it down.
const RUN: [(&str, &str); 18] = [
    ("id", "run"),
    ("framework_family", "megatron-core"),
    ("gpu", "H100-SXM-80GB"),
    ("gpus", "64"),
    ("gpus_per_node", "8"),
    ("layers", "32"),
    ("hidden", "4096"),
    ("ffn_hidden", "14336"),
    ("heads", "32"),
    ("kv_heads", "8"),
    ("vocab", "128256"),
    ("seq_len", "8192"),
    ("global_batch", "128"),
    ("precision", "bf16"),
    ("tp", "2"),
    ("pp", "4"),
    ("micro_batch", "1"),
    ("step_time_s", "4.0"),
];

/// The run with some cells changed or added.
fn with(changes: &[(&str, &str)]) -> RowReport {
    let mut cells = RUN.to_vec();
    for change in changes {
        match cells.iter_mut().find(|cell| cell.0 == change.0) {
            Some(cell) => *cell = *change,
            None => cells.push(*change),
        }
    }
    let line = |of: fn(&(&str, &str)) -> String| cells.iter().map(of).collect::<Vec<_>>().join(",");
    let text = format!("{}\n{}\n", line(|cell| cell.0.to_owned()), line(|cell| cell.1.to_owned()));
    let mut rows = validate(text.as_bytes(), |_| true, |_| {}).unwrap().rows;
    assert_eq!(rows.len(), 1);
    rows.remove(0)
}

fn reason(changes: &[(&str, &str)]) -> String {
    with(changes).skipped.unwrap_or_else(|| panic!("{changes:?} was predicted"))
}

#[test]
fn a_run_is_predicted_with_all_that_it_may_state() {
    let plain = with(&[]);
    assert!(plain.predicted_step_s.is_some_and(|s| (1.0..10.0).contains(&s)), "{plain:?}");
    let experts: &[_] = &[("experts", "8"), ("topk", "2"), ("moe_ffn", "1024")];
    for changes in [
        &[("layers", "4096"), ("pp", "1")][..],
        &[("global_batch", "16777216")],
        &[("vpp", "2")],
        &[experts, &[("first_k_dense", "32"), ("moe_every", "2"), ("ep", "4")]].concat(),
    ] {
        assert_eq!(with(changes).skipped, None, "{changes:?}");
    }
}

#[test]
fn numbers_that_would_be_counted_up_to_are_checked_first() {
    let experts = [("experts", "8"), ("topk", "2"), ("moe_ffn", "1024")];
    let hybrid = ("hybrid_layers", "attention:4294967295 mlp:33");
    for (changes, expected) in [
        (&[("layers", "4000000000")][..], "layers is 4000000000; at most 4096 is accepted"),
        (&[("layers", "4097")], "layers is 4097; at most 4096 is accepted"),
        (&[("layers", "4000000000"), ("hybrid_layers", "mlp:4000000000")], "layers is 4000000000"),
        (&[("global_batch", "16777217")], "global_batch is 16777217; at most 16777216 is accepted"),
        (&[("global_batch", "18446744073709551615")], "global_batch is 18446744073709551615"),
        (&[("gpus", "4000000000")], "gpus is 4000000000"),
        (&[("seq_len", "4294967295")], "seq_len is 4294967295"),
        (
            &[experts[0], experts[1], experts[2], ("first_k_dense", "4000000000")],
            "first_k_dense is 4000000000",
        ),
        (&[experts[0], experts[1], experts[2], ("moe_every", "33")], "moe_every is 33; at most 32"),
        (&[("attn_window", "128"), ("attn_window_every", "4000000000")], "attn_window_every is 4000000000"),
        (&[("mtp_layers", "4000000000")], "expected 1 to 16 modules"),
        // Both sums are right in 32 bits.
        (&[hybrid], "do not sum to 32 layers"),
        (&[("hybrid_layers", "mlp:16 mlp:16")], "hybrid_layers `mlp:16 mlp:16` is not known"),
        (&[("vpp", "1073741824")], "4294967296 chunks for 32 layers"),
        (&[("vpp", "4294967295")], "chunks for 32 layers"),
        // 32 chunks of 2 million micro-batches each.
        (&[("vpp", "8"), ("global_batch", "16777216")], "the number of interleaved passes is 67108864"),
        (&[("gpus_per_node", "4000000000")], "gpus_per_node: expected 1 to 1024"),
        (&[("nvlink_domain", "4000000000")], "domain: expected 1 to 4096"),
        (&[("tp", "2147483648"), ("cp", "2147483648")], "does not divide 64 gpus"),
    ] {
        let reason = reason(changes);
        assert!(reason.contains(expected), "{changes:?}: {reason}");
    }
}
