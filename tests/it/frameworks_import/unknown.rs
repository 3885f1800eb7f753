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
