#!/bin/sh
# Jobs held to chunks that nobody would choose: how far a printed split is at most from the fastest.
#
#   benches/held.sh           75 jobs, five plans each (two minutes); further words go to autoplan, such as --prove 10
#
# A line is the seconds of a job, how many of its plans may be more than 5 % slower than with another split, by how much the
# worst may be, and the job. Needs the release build (./x build --release).
set -eu
cd "$(dirname "$0")/.."
autoplan=${AUTOPLAN:-target/release/autoplan}

jobs() {
    cat <<'JOBS'
deepseek-v3 h800-ib --gpus 2048 --global-batch 15360 --seq-len 4096
gemma3-27b dgx-h100 --gpus 64 --global-batch 512 --seq-len 8192
glm4.5 dgx-h200 --gpus 512 --global-batch 2048 --seq-len 4096
gpt-oss-120b dgx-h100 --gpus 128 --global-batch 1024 --seq-len 4096
llama3.1-405b dgx-h100 --gpus 1024 --global-batch 512 --seq-len 8192
llama3.1-70b dgx-h100 --gpus 512 --global-batch 1024 --seq-len 8192
llama4-maverick-17b-128e dgx-h100 --gpus 768 --global-batch 768 --seq-len 8192
llama4-scout-17b-16e dgx-h100 --gpus 256 --global-batch 1024 --seq-len 8192
mixtral-8x22b dgx-h100 --gpus 128 --global-batch 1024 --seq-len 4096
nemotron-h-56b dgx-h100 --gpus 256 --global-batch 1024 --seq-len 8192
nemotron-h-8b dgx-h100 --gpus 64 --global-batch 512 --seq-len 8192
nemotron3-nano-30b-a3b dgx-h100 --gpus 128 --global-batch 1024 --seq-len 8192
nemotron4-340b dgx-h100 --gpus 768 --global-batch 768 --seq-len 4096
qwen3-235b-a22b dgx-h100 --gpus 512 --global-batch 2048 --seq-len 4096
qwen3-30b-a3b dgx-h100 --gpus 64 --global-batch 1024 --seq-len 4096
JOBS
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The line of a job; where that fails for anything but that there is no plan (1), what autoplan says of it.
measure() {
    status=0
    started=$(date +%s.%N)
    # shellcheck disable=SC2086 # a job is several words
    "$autoplan" plan $job --top 5 --format json "$@" >"$scratch/plans" 2>"$scratch/notes" || status=$?
    ended=$(date +%s.%N)
    if [ "$status" -gt 1 ]; then
        echo "held.sh: plan $job $*" >&2
        cat "$scratch/notes" >&2
        exit "$status"
    fi
    awk -v job="$job" -v s="$started" -v e="$ended" '
        /^      "split_gap"/ { gap = $2 + 0; plans++; if (gap > 0.05) open++; if (gap > worst) worst = gap }
        END { printf "%.1f s\t%d of %d\t%.1f %%\t%s\n", e - s, open, plans, 100 * worst, job }' "$scratch/plans"
}

jobs | while read -r of; do
    for chunks in 4,vpp=3 8,vpp=2 8,vpp=4 16,vpp=2 16,vpp=4; do
        job="$of --fix pp=$chunks"
        measure "$@" >"$scratch/line"
        tee -a "$scratch/lines" <"$scratch/line"
    done
done
awk '
    { open += $3; plans += $5 }
    END { printf "%d of %d plans may be more than 5 %% slower than with another split\n", open, plans }' "$scratch/lines"
