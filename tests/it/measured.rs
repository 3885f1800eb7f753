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
        (&[("hybrid_layers", "mlp:16 mlp:16")], "hybrid_layers is `mlp:16 mlp:16`; expected every kind once"),
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

#[test]
fn cells_that_cannot_be_meant_are_named() {
    for (changes, expected) in [
        (&[("step_time_s", ""), ("oom", "2")][..], "oom is `2`; expected 1 or 0"),
        (&[("oom", "1")], "oom is 1, but step_time_s is stated"),
        (&[("oom", "Yes")], "oom is 1, but step_time_s is stated"),
        (&[("tokens_per_s_per_gpu", "abc")], "tokens_per_s_per_gpu is `abc`; expected a positive number"),
        (&[("mfu_pct", "-3")], "mfu_pct is `-3`; expected a positive number"),
        (&[("gpus_per_node", "0")], "gpus_per_node is 0"),
        (&[("nvlink_domain", "0")], "nvlink_domain is 0"),
        (&[("nvlink_domain", "3")], "a domain of 3 GPUs does not fit nodes of 8"),
        // 64 GPUs of tp 2 x pp 4 leave 8.
        (&[("shard_group", "0")], "shard_group is 0"),
        (&[("shard_group", "3")], "shard_group 3 does not divide the 8 ranks"),
        (&[("shard_group", "16")], "shard_group 16 does not divide the 8 ranks"),
        (&[("step_time_s", "1e-300")], "step_time_s is `1e-300`; expected a number from 1e-9 to 3.15576e7"),
        (&[("step_time_s", "1e300")], "step_time_s is `1e300`"),
        (&[("step_time_s", "NaN")], "step_time_s is `NaN`"),
        (&[("peak_mem_gb", "1e300")], "peak_mem_gb is `1e300`"),
        (&[("peak_mem_gb", "40000"), ("mem_unit", "MiB")], "mem_unit `MiB` is not known; did you mean GiB?"),
        (
            &[("mem_kind", "peak")],
            "mem_kind `peak` is not known (one of max_allocated, max_reserved, nvidia-smi)",
        ),
        (&[("sp", "on")], "sp is `on`; expected 1 or 0"),
        (&[("training", "dpo")], "training `dpo` is not known (one of pretrain, sft, lora)"),
        (&[("precision", "fp9")], "precision `fp9` is not known; did you mean fp8? (one of bf16, fp16, fp8"),
        (&[("gpu", "Z900")], "gpu `Z900` is not known (one of A100-SXM-80GB, "),
        (
            &[("framework_family", "")],
            "framework_family `` is not known (one of megatron-bridge, megatron-core",
        ),
        (&[("framework_family", "nanotrom")], "did you mean nanotron?"),
        (&[("recompute", "ful")], "`ful` is not a recompute mode"),
    ] {
        let reason = reason(changes);
        assert!(reason.contains(expected), "{changes:?}: {reason}");
    }
}

#[test]
fn cells_that_are_meant_are_read() {
    for changes in [
        &[("shard_group", "4"), ("zero_stage", "1")][..],
        &[("step_time_s", ""), ("oom", "1")],
        &[("step_time_s", "0.5"), ("oom", "0"), ("tokens_per_s_per_gpu", "9000"), ("mfu_pct", "40.5")],
        &[("peak_mem_gb", "60"), ("mem_unit", "GiB"), ("mem_kind", "max_reserved"), ("sp", "no")],
    ] {
        assert_eq!(with(changes).skipped, None, "{changes:?}");
    }
    assert_eq!(with(&[("step_time_s", ""), ("oom", "YES")]).out_of_memory, Some(true));
    assert_eq!(with(&[("step_time_s", ""), ("oom", "0")]).out_of_memory, None);
    let memory = with(&[("peak_mem_gb", "60"), ("mem_unit", "GiB"), ("mem_kind", "max_reserved")]);
    assert!((memory.measured_mem_gb.unwrap() - 64.42450944).abs() < 1e-9);
    assert_eq!(memory.predicted_mem_gb, memory.predicted_reserved_gb);
}
