#!/bin/sh
# The command line, cold: what each search takes by the clock and in processor time, and its peak memory.
#
#   benches/cold.sh           the searches of the table in benches/README.md
#   benches/cold.sh models    every shipped model on 2,048, 8,192 and 1,000,000 H100 (ten minutes)
#
# Needs the release build (./x build --release), or AUTOPLAN another to compare with, and GNU time (the package `time`).
# Further words go to autoplan.
set -eu
cd "$(dirname "$0")/.."
autoplan=${AUTOPLAN:-target/release/autoplan}
what=${1:-table}
[ $# -eq 0 ] || shift

timed() {
    # shellcheck disable=SC2086 # a job is several words
    command time -f '%e s\t%U s\t%M KB' "$autoplan" plan $job "$@" 2>&1 >/dev/null
}

measure() {
    job=$1
    shift
    status=0
    said=$(timed "$@") || status=$?
    # Some models take no sequences of 4,096 tokens.
    if [ "$status" -eq 2 ]; then
        job=$(printf '%s' "$job" | sed 's/--seq-len 4096/--seq-len 2048/')
        said=$(timed "$@") || true
    fi
    printf '%s\t%s\n' "$(printf '%s' "$said" | tail -n 1)" "$job"
}

jobs() {
    cat <<'JOBS'
llama3.1-8b dgx-h100 --gpus 8 --global-batch 128 --seq-len 8192
llama3.1-70b dgx-h100 --gpus 512 --global-batch 1024 --seq-len 8192
llama3.1-405b dgx-h100 --gpus 16384 --global-batch 2048 --seq-len 8192
mixtral-8x22b dgx-h100 --gpus 128 --global-batch 1024 --seq-len 4096
deepseek-v3 h800-ib --gpus 2048 --global-batch 15360 --seq-len 4096
deepseek-v3 dgx-h100 --gpus 2048 --global-batch 15360 --seq-len 4096
deepseek-v3 h800-ib --gpus 16384 --global-batch 15360 --seq-len 4096
glm4.5 dgx-h200 --gpus 512 --global-batch 2048 --seq-len 4096
glm4.5 dgx-a100 --gpus 2240 --global-batch 2240 --seq-len 4096
llama4-maverick-17b-128e dgx-h100 --gpus 768 --global-batch 768 --seq-len 8192
nemotron-h-56b dgx-h100 --gpus 256 --global-batch 1024 --seq-len 8192
nemotron3-nano-30b-a3b a800-ib --gpus 8192 --global-batch 8192 --seq-len 4096
llama3.1-405b dgx-h100 --gpus 1000000 --global-batch 16000 --seq-len 8192
llama3.1-8b dgx-h100 --gpus 64 --global-batch 512 --seq-len 8192 --framework torchtitan
deepseek-v3 h800-ib --gpus 2048 --global-batch 15360 --seq-len 4096 --framework torchtitan
JOBS
}

models() {
    for of in 2048:4096 8192:8192 1000000:1000000; do
        "$autoplan" models | awk 'NR > 1 && NF { print $1 }' |
            sed "s/\$/ dgx-h100 --gpus ${of%:*} --global-batch ${of#*:} --seq-len 4096/"
    done
}

case $what in
    table) jobs ;;
    models) models ;;
    *) echo "cold.sh: expected nothing or \`models\`, found $what" >&2; exit 2 ;;
esac | while read -r job; do measure "$job" "$@"; done
