#!/bin/sh
# How far a printed split is at most from the fastest: of jobs held to chunks that nobody would choose, or of any.
#
#   benches/held.sh           75 jobs held to chunks, five plans each (two minutes)
#   benches/held.sh drawn     jobs of shipped models on shipped clusters, of ordinary and odd sizes, drawn always alike, ten
#                             plans each: 300, less those that a framework cannot express (two to six minutes)
#
# Further words go to autoplan, such as --prove 10. A line is the seconds of a job, how many of its plans may be more than
# 5 % slower than with another split, by how much the worst may be, and the job. Needs the release build (./x build --release).
set -eu
cd "$(dirname "$0")/.."
autoplan=${AUTOPLAN:-target/release/autoplan}
what=held
if [ "${1:-}" = drawn ]; then
    what=drawn
    shift
fi

held() {
    jobs | while read -r of; do
        for chunks in 4,vpp=3 8,vpp=2 8,vpp=4 16,vpp=2 16,vpp=4; do
            echo "$of --top 5 --fix pp=$chunks"
        done
    done
}

# Numbers are Lehmer's: each is made of the one before, alike in every awk.
drawn() {
    names() { "$autoplan" "$1" | awk 'NR > 1 && NF { printf "%s ", $1 }'; }
    awk -v models="$(names models)" -v clusters="$(names clusters)" '
        function next_of(many) { state = state * 16807 % 2147483647; return state % many + 1 }
        BEGIN {
            state = 20261130
            m = split(models, model); c = split(clusters, cluster)
            n = split("1 1 2 3 4 5 6 7 8 12 16 20 24 32 48 64 96 100 128 192 256 384 512 640 1024 1536 2048", nodes)
            s = split("2048 4096 4096 8192 8192 16384 32768", length_of)
            f = split("megatron megatron megatron megatron bridge torchtitan deepspeed megatron-deepspeed", framework)
            while (drawn < 300) {
                gpus = 8 * nodes[next_of(n)]
                batches = sprintf("%d %d %d %d %d 512 960 1024 1536 2000", gpus / 8, gpus / 4, gpus / 2, gpus, gpus * 2)
                b = split(batches, batch)
                # One after the other: arguments of a call may be drawn in any order.
                job = model[next_of(m)]
                job = job " " cluster[next_of(c)] " --gpus " gpus
                job = job " --global-batch " batch[next_of(b)]
                job = job " --seq-len " length_of[next_of(s)]
                job = job " --framework " framework[next_of(f)]
                # The box has eight GPUs.
                if (job ~ /l40s/ && gpus > 8) continue
                print job
                drawn++
            }
        }'
}

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
    "$autoplan" plan $job --format json "$@" >"$scratch/plans" 2>"$scratch/notes" || status=$?
    ended=$(date +%s.%N)
    if [ "$what $status" = "drawn 2" ] && grep -q -e "cannot express" -e "no recipe of" "$scratch/notes"; then
        return 0
    fi
    if [ "$status" -gt 1 ]; then
        echo "held.sh: plan $job $*" >&2
        cat "$scratch/notes" >&2
        exit "$status"
    fi
    awk -v job="$job" -v s="$started" -v e="$ended" '
        /^      "split_gap"/ { gap = $2 + 0; plans++; if (gap > 0.05) open++; if (gap > worst) worst = gap }
        END { printf "%.1f s\t%d of %d\t%.1f %%\t%s\n", e - s, open, plans, 100 * worst, job }' "$scratch/plans"
}

$what | while read -r job; do
    measure "$@" >"$scratch/line"
    tee -a "$scratch/lines" <"$scratch/line"
done
awk '
    { open += $3; plans += $5 }
    END { printf "%d of %d plans may be more than 5 %% slower than with another split\n", open, plans }' "$scratch/lines"
