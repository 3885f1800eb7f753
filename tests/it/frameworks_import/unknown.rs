//! What a script leaves to its surroundings: named with how to give it, or left out where it cannot matter.

use super::{COMMAND, import_given};
use autoplan::frameworks::megatron::import::{Given, Imported};
use autoplan::frameworks::shell::{ImportError, no_files, read_launch};

const START: &str = "torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py";

fn import(text: &str) -> Result<Imported, ImportError> {
    import_given(text, Given { name: "x", gpus: Some(64), ..Given::default() })
}

#[test]
fn variables_that_nothing_sets_are_named_with_the_way_to_give_them() {
    let wanting = COMMAND.replace("--tensor-model-parallel-size 4", "--tensor-model-parallel-size VALUE");
    assert_ne!(wanting, COMMAND);
    let with = |before: &str, value: &str| format!("{before}\n{START} {}\n", wanting.replace("VALUE", value));
    for (text, line, word, remedy) in [
        (
            with("", "$TP"),
            2,
            "`$TP`",
            "nothing sets `TP`: write it out, or give it behind `--`, as in `-- TP=VALUE`",
        ),
        (with("", "${TP}"), 2, "`${TP}`", "nothing sets `TP`"),
        (with("A=${TP}", "\"$A\""), 2, "`$A`", "nothing sets `TP`"),
        (with("export A=$((TP * 2))", "$A"), 2, "`$A`", "nothing sets `TP`"),
        (with("", "$2"), 2, "`$2`", "nobody gives the script its argument 2"),
        (
            with("A=$(nproc)", "$A"),
            2,
            "`$A`",
            "; line 1 takes it from `nproc`, which is not followed: write it out",
        ),
        (with("export A=\"`jq .tp < conf.json`\"", "$A"), 2, "`$A`", "line 1 takes it from `jq`"),
        (with("", "$(awk 1 conf)"), 2, "`$(awk`", "line 2 takes it from `awk`"),
        // It is set, but on another way.
        (with("case $1 in a) A=4;; b) A=8;; esac", "$A"), 2, "`$A`", "line 1 sets `A`, but not on the way"),
        // What a file holds is not said by its name.
        (with("A=$(wc -l < $HOSTS)", "$A"), 2, "`$A`", "line 1 takes it from `wc`"),
        (with("", "$SHLVL"), 2, "`$SHLVL`", "`SHLVL` is set where the script runs: write it out, or give it"),
    ] {
        let error = import(&text).unwrap_err();
        let message = &error.message;
        assert!(error.line == line && message.contains(word) && message.contains(remedy), "{error}\n{text}");
    }
    let text = format!("torchrun --nnodes ${{NODES}} --nproc-per-node 8 pretrain_gpt.py {COMMAND}\n");
    let error = import_given(&text, Given { name: "x", ..Given::default() }).unwrap_err();
    assert!(error.message.contains("(--gpus); of `${NODES}` nothing sets `NODES`"), "{error}");
    let error = import(&format!("srun bash -c \"$CMD\" # {COMMAND}\n")).unwrap_err();
    assert!(error.line == 1 && error.message.contains("the commands that `-c` is given"), "{error}");
    // As the message says.
    let text = with("", "$TP");
    let words = ["TP=8".to_owned()];
    let given = Given { name: "x", gpus: Some(64), words: &words, ..Given::default() };
    assert_eq!(import_given(&text, given).unwrap().plan.layout().tensor_parallel, 8);
    let error = import(&format!("{START} $EVERYTHING --seed 1\n")).unwrap_err();
    assert!(error.message.contains("nothing sets `EVERYTHING`"), "{error}");
}

#[test]
fn flags_that_may_be_set_and_say_no_degrees_are_left_out() {
    let degrees = ["--tensor-model-parallel-size 4", "--pipeline-model-parallel-size 2"];
    let mut bare = COMMAND.to_owned();
    for degree in degrees {
        assert!(bare.contains(degree), "{bare}");
        bare = bare.replace(degree, "");
    }
    let bare = bare.replace("--sequence-parallel", "");
    let plain = import(&format!("{START} {bare}\n")).unwrap();
    for before in [
        "A=; if [ -d /data ]; then A=\"$A --wandb-project x\"; fi",
        "A=--finetune\nif [ -d /data ]; then A=\"$A --log-interval 5 --no-load-optim\"; fi",
        "[ -f ckpt/latest ] && A=--finetune",
        "A='--seed 1'; if [ -d /data ]; then A=\"$A --load /x\"; else A=\"$A --mock-data\"; fi",
        "if [ -d a ]; then A='--load a'; fi; if [ -d b ]; then A=\"$A --finetune\"; fi",
        "case $(hostname) in a*) A='--data-path 1 /a 1 /b';; *) A=--mock-data;; esac",
        "A=(--seed 1); if [ -d /data ]; then A+=(--tensorboard-dir \"$(pwd)/tb\"); fi; A=\"${A[@]}\"",
    ] {
        let text = format!("{before}\n{START} {bare} $A\n");
        let imported = import(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(imported.plan, plain.plan, "{text}");
        let said = |part: &str| imported.assumed.iter().any(|note| note.contains(part));
        assert!(said("flags that may or may not be set are left out"), "{:?}\n{text}", imported.assumed);
        assert!(said("is set is known only when the script runs"), "{:?}\n{text}", imported.assumed);
    }
    // Behind a switch they are no value of it.
    let text = format!("[ -d /data ] && A=--finetune\n{START} {bare} --bf16 $A --seed 1\n");
    assert_eq!(import(&text).unwrap().plan, plain.plan);
    for before in [
        "if [ -d /data ]; then A='--tensor-model-parallel-size 8'; fi",
        "if [ -d /data ]; then A=\"--load x $(nproc)\"; fi",
        "if [ -d /data ]; then A=\"$(nproc)\"; fi",
        "A='--seed 1'; if [ -d /data ]; then A='--seed 2'; fi",
        "if [ -d /data ]; then A='--num-layers 4 --finetune'; fi",
    ] {
        let text = format!("{before}\n{START} {bare} $A\n");
        let imported = import(&text);
        // A value that is one or another is left out by its flag; all else may hold degrees.
        let told = imported.as_ref().is_ok_and(|i| i.plan == plain.plan && before.contains("--seed"));
        assert!(
            told || imported.as_ref().is_err_and(|e| e.message.contains("degrees of parallelism")),
            "{text}"
        );
    }
}

/// A plan with another degree is another plan: what may or may not be there is refused, not left out.
#[test]
fn degrees_that_may_be_set_are_refused_beside_others() {
    let tensor = "--tensor-model-parallel-size 4";
    let stages = "--pipeline-model-parallel-size 2";
    let bare = COMMAND.replace(tensor, "").replace(stages, "").replace("--sequence-parallel", "");
    for (text, line, part) in [
        (
            format!("if nvidia-smi; then A='{stages}'; fi\n{START} {bare} {tensor} $A\n"),
            1,
            "whether --pipeline-model-parallel-size is set",
        ),
        (
            format!(
                "A=({tensor} {stages})\nif nvidia-smi\nthen A+=(--context-parallel-size 2)\nfi\n{START} {bare} \"${{A[@]}}\"\n"
            ),
            3,
            "whether --context-parallel-size is set",
        ),
        (
            format!("A='{tensor} {stages}'\n[ -d /x ] && A+=' --num-experts 8'\n{START} {bare} $A\n"),
            2,
            "whether --num-experts is set",
        ),
        (
            format!("A=$(python flags.py)\n{START} {bare} {tensor} $A\n"),
            2,
            "write out --pipeline-model-parallel-size",
        ),
        (
            format!("A=$(python flags.py)\n{START} {bare} {tensor} {stages} --num-experts 8 $A\n"),
            2,
            "write out --expert-model-parallel-size",
        ),
    ] {
        let error = import(&text).unwrap_err();
        assert!(error.line == line && error.message.contains(part), "{error}\n{text}");
        assert!(error.message.contains("degrees of parallelism"), "{error}");
        assert!(!error.message.contains("`--`"), "nothing that is given would count: {error}");
    }
    // With all degrees there, and where nothing sets what stands beside them.
    for (text, part) in [
        (format!("A=$(python flags.py)\n{START} {bare} {tensor} {stages} $A\n"), "are left out"),
        (format!("{START} {bare} {tensor} $EXTRA\n"), "nothing sets `EXTRA`"),
        (
            format!("if [ -d /x ]; then A='--vocab-file x'; fi\n{START} {bare} {tensor} {stages} $A\n"),
            "whether --vocab-file is set",
        ),
        (format!("if nvidia-smi; then python a.py --vocab-size 3; fi\n{START} {bare} {tensor} $B\n"), "`B`"),
    ] {
        let imported = import(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(imported.plan.layout().tensor_parallel, 4, "{text}");
        assert!(imported.assumed.iter().any(|note| note.contains(part)), "{:?}\n{text}", imported.assumed);
    }
}

/// What is given and counts for nothing, and defaults that may not count, are told.
#[test]
fn what_is_given_in_vain_is_told() {
    let wanting = COMMAND.replace("--tensor-model-parallel-size 4", "--tensor-model-parallel-size ${TP:-4}");
    for (before, words, note) in [
        ("TP=4", &["TP=8"][..], "`TP=8` is given, and the script itself sets TP to `4`"),
        ("TP=${TP:-2}", &["TP=4"], ""),
        ("export LIBS=$LIBS:/y", &["TP=4", "LIBS=/x"], ""),
        (
            "",
            &["TP=4", "--tensor-model-parallel-size", "8"],
            "of which the script takes none: `--tensor-model",
        ),
        ("A=$1", &["TP=4", "x"], ""),
        ("while getopts t: o; do :; done", &["TP=4", "-t", "8"], ""),
        ("source sizes.sh", &[], "may set what counts as its default here: TP=4"),
        ("source sizes.sh", &["TP=4"], "`sizes.sh` is not read"),
        ("TP=4\nsource sizes.sh", &[], "`sizes.sh` is not read"),
    ] {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let text = format!("{before}\n{START} {wanting}\n");
        let given = Given { name: "x", gpus: Some(64), words: &words, ..Given::default() };
        let imported = import_given(&text, given).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(imported.plan.layout().tensor_parallel, 4, "{text}");
        let told = |part: &str| imported.assumed.iter().any(|note| note.contains(part));
        assert!(told(note) || note.is_empty(), "{:?}\n{text}", imported.assumed);
        assert_eq!(told("is given, and"), note.contains("is given, and"), "{:?}\n{text}", imported.assumed);
        assert_eq!(told("takes none"), note.contains("takes none"), "{:?}\n{text}", imported.assumed);
        assert_eq!(told("its default"), note.contains("its default"), "{:?}\n{text}", imported.assumed);
    }
}

#[test]
fn texts_that_are_read_again_may_hold_several_unknown_words() {
    for text in [
        "eval set -- $(foo)\ntorchrun x.py --n ${2:-1}",
        "eval \"set -- $(foo)\"\ntorchrun x.py --n ${2:-1}",
        "eval \"A=(2 $(foo))\"\ntorchrun x.py --n ${A[1]:-1}",
        "bash -c \"set -- $(foo); torchrun x.py --n \\${2:-1}\"",
    ] {
        let launch = read_launch(text, &no_files).unwrap();
        let words: Vec<&str> = launch.arguments.iter().map(|word| word.text.as_str()).collect();
        assert_eq!(words, ["--n", "\u{fffc}"], "{text}");
    }
}
