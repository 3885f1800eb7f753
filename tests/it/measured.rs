//! Rows of measured tables: what no run can have is a reason to skip the row, found before anything is
//! counted or allocated by it.

use autoplan::spec::measured::{MeasuredRow, known_columns};
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
    let mut rows = validate(text.as_bytes(), |_| true, |_, _| {}).unwrap().rows;
    assert_eq!(rows.len(), 1);
    rows.remove(0)
}

fn reason(changes: &[(&str, &str)]) -> String {
    with(changes).skipped.unwrap_or_else(|| panic!("{changes:?} was predicted"))
}

/// By hand: 32 heads, 8 key/value heads, widths of 14,336, sequences of 8,192, a batch of 128.
#[test]
fn degrees_that_contradict_the_model_or_each_other_are_no_run() {
    let experts: &[_] = &[("experts", "8"), ("topk", "2"), ("moe_ffn", "14336"), ("pp", "1"), ("tp", "1")];
    let cases: [(&[(&str, &str)], &str); 13] = [
        (
            &[("tp", "3"), ("pp", "1"), ("gpus", "24"), ("global_batch", "24")],
            "32 heads do not divide among tp 3",
        ),
        (&[("tp", "48"), ("pp", "1"), ("gpus", "48")], "32 heads do not divide among tp 48"),
        (
            &[("hidden", "6144"), ("heads", "48"), ("kv_heads", "6"), ("tp", "4")],
            "6 key/value heads do not divide among tp 4",
        ),
        (&[("ffn_hidden", "14338"), ("tp", "4")], "width 14338 does not divide among tp 4"),
        (
            &[("seq_len", "8190"), ("cp", "8"), ("tp", "1"), ("pp", "1")],
            "8190 tokens is no multiple of 2 x cp 8",
        ),
        (
            &[("seq_len", "8188"), ("cp", "8"), ("tp", "1"), ("pp", "1"), ("overlap_notes", "ulysses")],
            "8188 tokens is no multiple of cp 8",
        ),
        (&[("seq_len", "8190"), ("tp", "4"), ("sp", "1")], "8190 tokens per context-parallel rank do not"),
        (&[("ep", "8")], "the model has no experts, but ep is 8"),
        (&[experts, &[("ep", "16")]].concat(), "8 experts do not divide among ep 16"),
        (
            &[experts, &[("moe_ffn", "14338"), ("ep", "2"), ("etp", "4")]].concat(),
            "width 14338 does not divide among etp 4",
        ),
        (&[("vpp", "8"), ("pp", "1")], "vpp is 8, pp 1"),
        (
            &[("pp", "8"), ("tp", "1"), ("vpp", "2"), ("global_batch", "8")],
            "pp 8 and there are 1 micro-batches",
        ),
        (&[("tp", "2"), ("pp", "4"), ("cp", "1"), ("dp", "4")], "dp is 4, but the other degrees leave 8"),
    ];
    for (changes, expected) in cases {
        let reason = reason(changes);
        assert!(reason.contains(expected), "{changes:?}: {reason}");
    }
}

/// What nobody stated is chosen so that it contradicts nothing.
#[test]
fn defaults_do_not_contradict_what_is_stated() {
    let experts: &[_] = &[("experts", "8"), ("topk", "2"), ("moe_ffn", "14338"), ("tp", "4"), ("pp", "1")];
    for (changes, word) in [
        // Too few micro-batches for the chunks that NeMo's recipes have.
        (&[("framework_family", "nemo"), ("pp", "8"), ("tp", "1"), ("global_batch", "8")][..], "vp1"),
        (&[("framework_family", "nemo"), ("pp", "8"), ("tp", "1"), ("global_batch", "512")], "vp2"),
        (&[("seq_len", "8190"), ("tp", "4")], "no-sp"),
        (
            &[
                ("hidden", "3072"),
                ("heads", "24"),
                ("kv_heads", "24"),
                ("ffn_hidden", ""),
                ("tp", "6"),
                ("gpus", "48"),
                ("pp", "1"),
            ],
            "tp6",
        ),
        (experts, "ep8"),
        // Key/value heads are replicated, and an exchange of heads needs no two pieces.
        (&[("kv_heads", "2"), ("tp", "8"), ("pp", "1")], "tp8"),
        (
            &[("seq_len", "8184"), ("cp", "8"), ("tp", "1"), ("pp", "1"), ("overlap_notes", "ulysses")],
            "cp-a2a",
        ),
    ] {
        let row = with(changes);
        assert_eq!(row.skipped, None, "{changes:?}");
        let plan = row.plan.unwrap();
        assert!(plan.split(' ').any(|part| part == word), "{changes:?}: {plan}");
    }
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
        (&[("vpp", "8"), ("global_batch", "16777216")], "the number of passes is 67108864"),
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
        (&[("optimizer", "muno")], "optimizer `muno` is not known; did you mean muon? (one of adamw, "),
        (&[("precision", "fp9")], "precision `fp9` is not known; did you mean fp8? (one of bf16, fp16, fp8"),
        (&[("gpu", "Z900")], "gpu `Z900` is not known (one of A100-SXM-80GB, "),
        (&[("framework_family", "")], "framework_family is not stated"),
        (&[("framework_family", "own")], "framework_family `own` is not known (one of megatron-bridge, "),
        (&[("offload", "experts")], "offload `experts` is not known (one of activations, "),
        (&[("cp", "2"), ("overlap_notes", "cp_comm_type=a2a+p2p")], "of two levels is not supported"),
        (&[("recompute", "remat:minimal_offloaded")], "a rematerialisation policy that offloads"),
        (&[("recompute", "remat:custom")], "a rematerialisation policy of its own is not supported"),
        (&[("recompute", "remat:minmal")], "recompute remat `minmal` is not known; did you mean minimal?"),
        // Wherever layers differ, or nothing at all is stated.
        (&[("experts", "8"), ("topk", "2"), ("moe_every", "2")], "moe_ffn is not stated"),
        (&[("experts", "8"), ("topk", "2"), ("ffn_hidden", "")], "moe_ffn is not stated"),
        (&[("framework_family", "nanotrom")], "did you mean nanotron?"),
        (&[("recompute", "ful")], "`ful` is not a recompute mode"),
    ] {
        let reason = reason(changes);
        assert!(reason.contains(expected), "{changes:?}: {reason}");
    }
}

/// Since April 2026 torchtitan holds an eighth of the logits at a time: rows of older files, which their names date, hold all.
#[test]
fn names_of_files_date_a_release() {
    let memory = |source: &str| {
        let row = with(&[("framework_family", "torchtitan"), ("pp", "1"), ("source_where", source)]);
        row.predicted_allocated_gb.unwrap()
    };
    let today = memory("benchmarks/notes.md");
    for old in
        ["benchmarks/llama3_h100_202412_torchtitan.md", "benchmarks/asyncTP_h100_2025-06_torchtitan.md"]
    {
        assert!(memory(old) > 1.02 * today, "{old}: {} {today}", memory(old));
    }
    for other in
        ["benchmarks/llama3_h100_202606_torchtitan.md", "table_2025_06", "run_203512_x", "a_202413_b"]
    {
        assert!((memory(other) / today - 1.0).abs() < 1e-9, "{other}");
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

#[test]
fn other_spellings_mean_the_same() {
    let plain = with(&[]);
    let same = |changes: &[(&str, &str)], as_if: &[(&str, &str)]| {
        let (row, usual) = (with(changes), with(as_if));
        assert_eq!(row.skipped, None, "{changes:?}");
        assert_eq!(
            (row.predicted_step_s, row.predicted_allocated_gb, row.plan),
            (usual.predicted_step_s, usual.predicted_allocated_gb, usual.plan),
            "{changes:?}"
        );
    };
    for gpu in ["H100", "h100-sxm", "NVIDIA H100 80GB", "H100-SXM5-80GB", "H100_SXM"] {
        same(&[("gpu", gpu)], &[]);
    }
    for (gpu, usual) in [
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("A100-40GB", "A100-SXM-40GB"),
        ("A800-SXM4-80GB", "A800"),
        ("H800-80GB", "H800"),
        ("H20-96GB", "H20"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("l40s-pcie", "L40S"),
    ] {
        same(&[("gpu", gpu)], &[("gpu", usual)]);
    }
    for (family, usual) in [
        ("Megatron_Core", "megatron-core"),
        ("Primus", "megatron-core"),
        ("NeMo Framework", "nemo"),
        ("MaxText", "jax"),
        ("composer", "llm-foundry"),
        ("torchtune", "pytorch-fsdp"),
    ] {
        same(&[("framework_family", family), ("pp", "1")], &[("framework_family", usual), ("pp", "1")]);
    }
    for (precision, usual) in [("BF16", "bf16"), ("FP8_CS", "fp8"), ("fp8-sc", "fp8-blockwise")] {
        same(&[("precision", precision)], &[("precision", usual)]);
    }
    for (optimizer, usual) in [("adam", "adamw"), ("AdamW", ""), ("AdamW_BF16", "adamw-bf16")] {
        same(&[("optimizer", optimizer)], &[("optimizer", usual)]);
    }
    // Runs under another optimizer are no repetitions.
    assert_ne!(with(&[("optimizer", "muon")]).labels.group, plain.labels.group);
    assert_eq!(with(&[("optimizer", "adam")]).labels.group, plain.labels.group);
    for (recompute, usual) in [
        ("Full", "full"),
        ("remat:full", "full"),
        ("remat:save_out_proj", "full"),
        ("remat:none", "none"),
        ("selective:core_attention", "selective:core_attn"),
        ("remat:minimal_with_context", "selective:layernorm"),
        ("remat:minimal", "selective:core_attn+layernorm"),
        ("remat:minimal_flash", "selective:layernorm"),
        ("remat:save_dot_with_context_except_mlp", "selective:mlp+layernorm"),
        ("remat:save_dot_except_mlpwi", "selective:core_attn+mlp+layernorm"),
        ("remat:save_qkv_proj", "selective:core_attn+mlp+layernorm"),
    ] {
        same(&[("recompute", recompute)], &[("recompute", usual)]);
    }
    // What is taken for something near it is listed.
    for (change, near) in [
        (("framework_family", "axolotl"), "accelerate"),
        (("framework_family", "ColossalAI"), "deepspeed"),
        (("gpu", "A100"), "A100-SXM-80GB"),
        (("precision", "fp8-rowwise"), "fp8"),
    ] {
        let (row, usual) = (with(&[change, ("pp", "1")]), with(&[(change.0, near), ("pp", "1")]));
        assert!(row.assumed.contains(&change.0) && !usual.assumed.contains(&change.0), "{change:?}");
        assert_eq!((row.predicted_step_s, &row.labels.group), (usual.predicted_step_s, &usual.labels.group));
        let wider = row.predicted_step_sigma > usual.predicted_step_sigma;
        assert_eq!(wider, change.0 == "framework_family", "{change:?}");
    }
    // A format that the accelerator does not have is no slower kind of another.
    same(&[("gpu", "B200"), ("precision", "fp8-blockwise")], &[("gpu", "B200"), ("precision", "mxfp8")]);
    for (gpu, precision) in
        [("H100", "mxfp8"), ("A100", "fp8"), ("MI300X", "nvfp4"), ("A800", "fp8-blockwise")]
    {
        let reason = reason(&[("gpu", gpu), ("precision", precision)]);
        assert!(reason.contains(&format!("has no {precision} matrix products")), "{reason}");
    }
    assert!(plain.plan.unwrap().contains("tp2 pp4 vp1"));
}

/// Whatever takes a default and bears on the run is listed, and nothing else.
#[test]
fn what_is_filled_in_is_listed() {
    let assumed = |changes: &[(&str, &str)]| with(changes).assumed;
    let experts: &[_] = &[("experts", "8"), ("topk", "2"), ("moe_ffn", "1024")];
    let latent: &[_] = &[("mla_kv_lora", "512")];
    let hybrid: &[_] = &[("hybrid_layers", "attention:4 mlp:14 mamba2:14")];
    let memory: &[_] = &[("peak_mem_gb", "60")];
    for (column, text, run) in [
        ("dp_overlap", "0", &[][..]),
        ("head_dim", "128", &[]),
        ("training", "pretrain", &[]),
        ("pp_schedule", "1F1B", &[]),
        ("pp_layout", "even", &[]),
        ("gpus_per_node", "8", &[]),
        (
            "nvlink_domain",
            "72",
            &[("gpu", "GB200"), ("gpus", "72"), ("gpus_per_node", "4"), ("pp", "1"), ("global_batch", "144")],
        ),
        ("moe_routing", "forced", experts),
        ("shared_expert_ffn", "0", experts),
        ("first_k_dense", "0", experts),
        ("moe_every", "1", experts),
        ("token_drop", "0", experts),
        ("mla_q_lora", "1536", latent),
        ("mla_qk_nope", "128", latent),
        ("mla_qk_rope", "64", latent),
        ("mla_v_dim", "128", latent),
        ("ssm_state", "128", hybrid),
        ("mem_kind", "max_allocated", memory),
        ("mem_unit", "GB", memory),
        ("attn_kernel", "flash2", &[("framework_family", "megatron-lm")]),
        ("compiled", "1", &[("framework_family", "torchtitan")]),
    ] {
        let without = [run, &[(column, "")]].concat();
        assert!(assumed(&without).contains(&column), "{column}: {:?}", with(&without));
        let stated = [run, &[(column, text)]].concat();
        assert!(!assumed(&stated).contains(&column), "{column}: {:?}", with(&stated));
        // What the source did not say counts as well, once.
        let inferred = assumed(&[&stated[..], &[("inferred", column)]].concat());
        assert_eq!(inferred.iter().filter(|other| **other == column).count(), 1, "{column}");
    }
    // What does not bear on the run is not.
    let one = assumed(&[("pp", "1"), ("tp", "1"), ("inferred", "sp pp_layout dp notes nonsense")]);
    for column in
        ["sp", "pp_layout", "pp_schedule", "dp", "moe_routing", "mla_v_dim", "ssm_state", "mem_kind"]
    {
        assert!(!one.contains(&column), "{column}: {one:?}");
    }
    // A head of another size than the hidden size has heads for.
    assert_ne!(with(&[("head_dim", "64")]).predicted_step_s, with(&[]).predicted_step_s);
}

#[test]
fn schedules_and_exchanges_are_read() {
    let plan = |changes: &[(&str, &str)]| {
        let row = with(changes);
        row.plan.unwrap_or_else(|| panic!("{changes:?}: {:?}", row.skipped))
    };
    for (changes, expected) in [
        (&[("pp_schedule", "1f1b")][..], "pp4 vp1"),
        (&[("pp_schedule", "interleaved 1F1B")], "pp4 vp2"),
        (&[("pp_schedule", "1F1B"), ("vpp", "4")], "pp4 vp4"),
        (&[("pp_schedule", "GPipe")], " gpipe"),
        (&[("pp_schedule", "AFAB")], " gpipe"),
        (&[("pp_schedule", "zero-bubble")], " zb-h1"),
        (&[("pp_schedule", "ZB-H2")], " zb-h2"),
        (&[("pp_schedule", "ZBVZeroBubble")], " zb-v"),
        (&[("pp_schedule", "zbv"), ("vpp", "1")], " zb-v"),
        (&[("pp_schedule", "DualPipe")], " dualpipe"),
        (&[("cp", "2"), ("overlap_notes", "Ulysses")], " cp-a2a"),
        (&[("cp", "2"), ("overlap_notes", "cp_comm_type='all_gather'")], " cp-ag"),
        (&[("offload", "activations")], " off-act"),
        (&[("offload", "CPU optimizer"), ("zero_stage", "1")], " off-opt"),
    ] {
        assert!(plan(changes).contains(expected), "{changes:?}: {}", plan(changes));
    }
    assert!(!plan(&[("cp", "2"), ("overlap_notes", "no Ulysses")]).contains(" cp-a2a"));
    // Several chunks make a schedule of one an interleaved one; a single stage has none.
    assert!(plan(&[("pp", "1"), ("pp_schedule", "zero-bubble")]).contains("pp1 vp1"));
    for (schedule, expected) in [
        ("V-Half", "schedules of half and least memory are not supported"),
        ("LoopedBFS", "a pipeline schedule is not supported"),
        ("foo", "`foo` is not known"),
        ("1f1b + vocab parallel", "a vocabulary that is split over all pipeline stages is not supported"),
    ] {
        assert!(reason(&[("pp_schedule", schedule)]).contains(expected));
    }
    assert!(plan(&[("pp_schedule", "non-interleaved 1F1B")]).contains("pp4 vp1"));
    // Chunks that a schedule does not have would be left out, or waited for without end.
    for (schedule, vpp) in [("zero-bubble", "2"), ("gpipe", "4"), ("zbv", "4"), ("DualPipe", "8")] {
        assert!(reason(&[("pp_schedule", schedule), ("vpp", vpp)]).contains("vpp is"), "{schedule}");
    }
    let long = reason(&[("pp_schedule", "zb-h2"), ("global_batch", "16777216")]);
    assert!(long.contains("the number of passes is"), "{long}");
}

#[test]
fn layers_of_hybrid_models_are_read() {
    let experts = [("experts", "64"), ("topk", "4"), ("moe_ffn", "1024")];
    let hybrid = |kinds: &str| with(&[&experts[..], &[("hybrid_layers", kinds), ("ep", "4")]].concat());
    let alone = hybrid("attention:4 mamba2:14 moe:14");
    let beside = hybrid("attention:8 gated_delta_net:24");
    for row in [&alone, &beside, &hybrid("attention:4 mlp:14 mamba:14")] {
        assert_eq!(row.skipped, None);
    }
    // 84 heads are no multiple of eight groups.
    let odd = [("hidden", "2688"), ("hybrid_layers", "attention:4 mamba2:14 moe:14"), ("ep", "4")];
    assert_eq!(with(&[&experts[..], &odd].concat()).skipped, None);
    // Twice as many layers with experts.
    assert!(beside.predicted_allocated_gb > alone.predicted_allocated_gb);
    // Without a quadratic part, most of what attention takes at 8,192 tokens is saved.
    let all = hybrid("attention:32");
    assert!(all.predicted_step_s.is_some() && all.skipped.is_none());
    let missing = reason(&[("hybrid_layers", "attention:16 moe:16")]);
    assert!(missing.contains("experts is not stated"), "{missing}");
    assert!(reason(&[("hybrid_layers", "attention:16 rwkv:16")]).contains("hybrid layer is not supported"));
    // Experts without a width of their own are as wide as the feed-forward part.
    let row = with(&[("experts", "8"), ("topk", "2")]);
    assert!(row.skipped.is_none() && row.assumed.contains(&"moe_ffn"), "{row:?}");
}

#[test]
fn progress_counts_every_row_once() {
    let rows = "x,H100,8\n\"a\nb\",H100,8,9,9\n\n,,\n".repeat(1500);
    let text = format!("id,gpu,gpus\r\n{rows}last,H100,8");
    let mut told = Vec::new();
    let kept = |row: &MeasuredRow| row.text("id") == Some("x");
    validate(text.as_bytes(), kept, |done, of| told.push((done, of))).unwrap();
    // Lines without a cell are no rows; a cell may hold two lines.
    let of = 3 * 1500 + 1;
    assert!(told.len() > 2 && told.iter().all(|told| told.1 == of), "{told:?}");
    assert!(told.is_sorted() && told.last() == Some(&(of, of)), "{told:?}");
}

#[test]
fn tables_without_a_column_are_read() {
    let text =
        "gpu,gpus,layers,hidden,heads,seq_len,framework_family\nH100,8,32,4096,32,4096,megatron-core\n";
    let report = validate(text.as_bytes(), |_| true, |_, _| {}).unwrap();
    assert_eq!(report.rows[0].skipped.as_deref(), Some("global_batch is not stated"));
    assert_eq!(report.rows[0].id, "line 2");
    for (text, expected) in [
        ("a,b\n1,2\n", "which every prediction needs"),
        ("gpu;gpus\nH100;8\n", "separated by semicolons"),
        ("gpu\tgpus\nH100\t8\n", "separated by tabs"),
        ("gpu,gpus,GPUs\nH100,8,16\n", "names the column gpus twice"),
    ] {
        let error = validate(text.as_bytes(), |_| true, |_, _| {}).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let wide: Vec<u8> = "\u{feff}gpu,gpus\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert!(validate(&wide[..], |_| true, |_, _| {}).unwrap_err().to_string().contains("UTF-16"));
    // Lines are counted alike however they end.
    let windows = format!("\u{feff}{text}H100,8,32\n").replace('\n', "\r\n");
    let report = validate(windows.as_bytes(), |_| true, |_, _| {}).unwrap();
    let ids: Vec<&str> = report.rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(ids, ["line 2", "line 3"]);
    // Cells beyond the header are no run's, unless they are empty.
    let report = validate(format!("{text}H100,8,32,4096,32,4096,megatron-core,,\nH100,8,32\nH100,8,32,4096,32,4096,megatron-core,7\n").as_bytes(), |_| true, |_, _| {}).unwrap();
    let reasons: Vec<&str> = report.rows.iter().filter_map(|row| row.skipped.as_deref()).collect();
    assert_eq!(reasons[1], "global_batch is not stated");
    assert_eq!(reasons[3], "line 5: the row has more cells than the header has columns (7)");
}

/// Runs of one table without ids are ranked against each other; ids without dashes name one source.
#[test]
fn rows_without_ids_belong_together() {
    let group = |id: &str| with(&[("id", id)]).labels.group;
    assert_eq!(group(""), with(&[("id", ""), ("tp", "4")]).labels.group);
    assert_eq!(group("run1"), group("run27"));
    assert_eq!(group("ours-1"), group("ours-2"));
    assert_ne!(group("ours-1"), group("theirs-1"));
}

/// Tokens a second say what a step takes where nothing else does, unless the run is called doubtful.
#[test]
fn throughput_stands_in_for_a_step_time() {
    let rate = ("tokens_per_s_per_gpu", "500");
    let measured = |notes: &str| with(&[("step_time_s", ""), rate, ("notes", notes)]).measured_step_s;
    let (of_rate, row) = (measured("").unwrap(), with(&[]));
    let tokens = 8192.0 * 128.0 / 64.0;
    assert!((of_rate - tokens / 500.0).abs() < 1e-9, "{of_rate}");
    assert_eq!(measured("SUSPECT: 3x slower than others"), None);
    assert_eq!(with(&[rate]).measured_step_s, row.measured_step_s);
}

#[test]
fn columns_without_a_meaning_are_named() {
    let text = "gpu,gpus,layers,hidden,heads,seq_len,framework_family,global_bacth,\nH100,8,32,4096,32,4096,nemo,8,\n";
    let report = validate(text.as_bytes(), |_| true, |_, _| {}).unwrap();
    assert_eq!(report.unknown_columns, ["global_bacth"]);
    let published = include_str!("../../results/published/measured.csv");
    let report = validate(published.as_bytes(), |row| row.line() < 3, |_, _| {}).unwrap();
    assert_eq!(report.unknown_columns, Vec::<String>::new());
    let page = include_str!("../../docs/measured.md");
    for column in known_columns() {
        assert!(page.contains(&format!("`{column}`")), "docs/measured.md says nothing of {column}");
    }
}

#[test]
fn a_degree_follows_from_the_others() {
    let plan = |changes: &[(&str, &str)]| {
        let row = with(changes);
        (row.plan.unwrap_or_else(|| panic!("{changes:?}: {:?}", row.skipped)), row.assumed)
    };
    // 64 GPUs.
    let (of_tensor, assumed) = plan(&[("tp", ""), ("dp", "4"), ("cp", "1")]);
    assert!(of_tensor.starts_with("tp4 pp4 ") && assumed.contains(&"tp"), "{of_tensor}");
    assert!(plan(&[("pp", ""), ("dp", "16"), ("cp", "1")]).0.starts_with("tp2 pp2 "));
    assert!(plan(&[("dp", "4")]).0.starts_with("tp2 pp4 vp1 cp2 "));
    assert!(plan(&[("dp", "8")]).0.starts_with("tp2 pp4 vp1 cp1 "));
    // Nothing follows where two are left open, or where nothing divides.
    assert!(
        reason(&[("tp", ""), ("pp", ""), ("dp", "8"), ("cp", "1")]).contains("the other degrees leave 64")
    );
    assert!(reason(&[("dp", "3")]).contains("dp is 3, but the other degrees leave 8"));
    // Experts that are split as dense layers are where that divides, whole where it does not.
    let experts = [("experts", "8"), ("topk", "2"), ("moe_ffn", "14336"), ("ep", "8")];
    let (split, _) = plan(&[&experts[..], &[("tp", "4"), ("pp", "2")]].concat());
    assert!(split.contains(" ep8 etp4 "), "{split}");
    let (whole, _) = plan(&[&experts[..], &[("tp", "4"), ("pp", "4")]].concat());
    assert!(whole.contains(" ep8 dp"), "{whole}");
}

/// Attention does not cross packed documents. Fine-tuning recipes of NeMo pack short ones, others none.
#[test]
fn documents_are_packed_as_rows_say_or_as_recipes_do() {
    let step = |changes: &[(&str, &str)]| with(changes).predicted_step_s.unwrap();
    let nemo = |change| [("framework_family", "nemo"), ("training", "sft"), change];
    let (unstated, none) = (nemo(("packed", "")), nemo(("packed", "none")));
    assert!(step(&unstated) < step(&none));
    assert!(with(&unstated).assumed.contains(&"packed") && !with(&none).assumed.contains(&"packed"));
    assert_eq!(step(&unstated), step(&nemo(("packed", "200x1"))));
    // Documents of the length of a sequence are not packed.
    let relative = step(&nemo(("packed", "8192x1"))) / step(&none) - 1.0;
    assert!(relative.abs() < 1e-9, "{relative}");
    for training in ["pretrain", "Pretrain", ""] {
        let row = [("framework_family", "nemo"), ("training", training)];
        assert!(!with(&row).assumed.contains(&"packed"));
        assert_eq!(step(&row), step(&[row[0], row[1], ("packed", "none")]));
    }
    // Megatron-Bridge's run on whole sequences.
    for family in ["megatron-bridge", "megatron-core"] {
        let other = |packed| step(&[("framework_family", family), ("training", "sft"), ("packed", packed)]);
        assert_eq!(other(""), other("none"));
    }
    for text in ["short", "0x1", "200x0"] {
        let reason = reason(&[("packed", text)]);
        assert!(reason.contains("packed") || reason.contains("histogram"), "{reason}");
    }
}

/// nanotron's runs write down what their first rank holds; the fullest may be the last, with the logits.
#[test]
fn memory_is_that_of_the_rank_whose_peak_the_framework_reports() {
    let last_is_fullest =
        [("layers", "4"), ("pp", "2"), ("tp", "1"), ("micro_batch", "4"), ("peak_mem_gb", "60")];
    let row = |family| with(&[&last_is_fullest[..], &[("framework_family", family)]].concat());
    for (family, first) in [("nanotron", true), ("megatron-core", false)] {
        let row = row(family);
        assert_eq!(row.predicted_mem_gb < row.predicted_allocated_gb, first, "{row:?}");
    }
}

/// Memory has error bars like step times: factors, of which two hold more than one.
#[test]
fn memory_has_error_bars() {
    let row = with(&[("peak_mem_gb", "60"), ("mem_kind", "max_reserved")]);
    let gigabytes = row.predicted_mem_gb.unwrap();
    let (one, two) = (row.predicted_mem_sigma_gb.unwrap(), row.predicted_mem_two_sigma_gb.unwrap());
    assert!(0.0 < one && one <= two && two < gigabytes);
    let [low, high] = row.predicted_mem_range_gb.unwrap();
    assert!((low * high / (gigabytes * gigabytes) - 1.0).abs() < 1e-9);
    assert!(((high / gigabytes).ln() - two / gigabytes).abs() < 1e-9);
    let [low, high] = row.predicted_step_range_s.unwrap();
    let (step, two) = (row.predicted_step_s.unwrap(), row.predicted_step_two_sigma.unwrap());
    assert!(low < step && ((high / step).ln() - two / step).abs() < 1e-9);
    let stand_in = with(&[("framework_family", "axolotl"), ("pp", "1")]);
    let own = with(&[("framework_family", "pytorch-fsdp"), ("pp", "1")]);
    assert!(stand_in.predicted_mem_sigma_gb > own.predicted_mem_sigma_gb);
}

/// DeepSeek's MXFP8 recipes for Blackwell name scopes of graphs and then, from 26.06 on, capture the whole iteration with the
/// exchange overlapped; without a word on the dispatcher they run HybridEP inside a node too.
#[test]
fn recipes_of_a_release_say_how_experts_run() {
    let plan = |gpu, release, notes, experts| {
        let row = with(&[
            ("framework_family", "megatron-bridge"),
            ("source_where", release),
            ("gpu", gpu),
            ("precision", "mxfp8"),
            ("tp", "1"),
            ("experts", experts),
            ("topk", "8"),
            ("moe_ffn", "2048"),
            ("ep", "8"),
            ("mla_kv_lora", "512"),
            ("recompute", "selective:mla_up_proj"),
            ("overlap_notes", notes),
        ]);
        row.plan.unwrap_or_else(|| panic!("{:?}", row.skipped))
    };
    let scopes = "cuda_graph_impl='transformer_engine'; cuda_graph_scope=['attn' 'moe_router']";
    for (gpu, release, notes, experts, words, absent) in [
        ("GB200", "26.06", scopes, "256", &["graph-full", "ep-ov", "hybridep"][..], "graph-router"),
        ("GB200", "26.04", scopes, "256", &["graph-router", "hybridep"], "ep-ov"),
        // Routing that is not limited to groups.
        ("GB200", "26.06", scopes, "128", &["graph-router", "hybridep"], "ep-ov"),
        ("B200", "26.04", "", "256", &["hybridep"], "graph"),
        ("B200", "25.11", "", "256", &[], "hybridep"),
        ("B200", "26.04", "", "128", &[], "hybridep"),
    ] {
        let plan = plan(gpu, release, notes, experts);
        assert!(words.iter().all(|word| plan.contains(word)), "{gpu} {release} {experts}: {plan}");
        assert!(!plan.contains(absent), "{gpu} {release} {experts}: {plan}");
    }
}

/// A paper's run is no newer than the paper: before Transformer Engine 2.3 no dummy weight gradients are cached. Of every
/// shape on a rank of two: 3072 x 4096, 4096 x 2048, 14336 x 4096 and 4096 x 7168, two bytes each.
#[test]
fn the_pool_of_gradients_is_as_old_as_the_software() {
    let allocated = |source: &str| with(&[("source", source)]).predicted_allocated_gb.unwrap();
    let pool = 2.0 * (3072.0 * 4096.0 + 4096.0 * 2048.0 + 14336.0 * 4096.0 + 4096.0 * 7168.0) / 1e9;
    assert!((allocated("") - allocated("Somebody (arXiv 2411.05288)") - pool).abs() < 1e-6);
    for young in ["Somebody (arXiv 2505.00001)", "Somebody (arXiv:cs/0411)", "somebody"] {
        assert_eq!(allocated(""), allocated(young), "{young}");
    }
    // A stated release says more than the paper.
    let stated = [("source", "Somebody (arXiv 2512.00001)"), ("framework", "Megatron-Core of 25.02")];
    assert_eq!(
        with(&stated).predicted_allocated_gb,
        with(&[("source", "A (arXiv 2411.1)")]).predicted_allocated_gb
    );
}
