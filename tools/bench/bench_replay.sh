#!/usr/bin/env bash
# What replay costs a step: times of steps with the old weights kept and without, at the same microbatch. --host-mem, a byte
# below what the plan with replay takes, turns it off. Both alternate, so that a busy machine slows them alike.
#
# usage: tools/bench/bench_replay.sh [options]      defaults in brackets
#   --width N [768] --layers N [6] --heads N [12] --batch N [4] --seq N [128]
#   --precision fp32|bf16 [fp32]
#   --steps N [12]        per run, the first two not counted
#   --rounds N [5]        each runs both once
#   --dir DIR [build]     where the run's files go
#   --bin DIR [build/bin] where eps, epsd and eps-worker are
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

width=768 layers=6 heads=12 batch=4 seq=128 precision=fp32 steps=12 rounds=5 dir=build bin=build/bin
take_options "width layers heads batch seq precision steps rounds dir bin" "$@"
need_programs "$bin"

make_work -p "$dir" replay.XXXXXX
print_config 256 >"$work/config.json"
write_text $((batch * seq * 20 + 1))
options=(--model "$work/config.json" --batch "$batch" --seq "$seq" --precision "$precision" --microbatch "$batch")

plan=$("$bin/eps" plan "${options[@]}")
whole=$(awk '/^host/ { host = 1 } host && $1 == "total" { print $2; exit }' <<<"$plan")
grep -q 'replay on' <<<"$plan" || { echo "$script: there is no room for replay here" >&2; exit 1; }
"$bin/eps" plan "${options[@]}" --host-mem $((whole - 1)) | grep -q 'replay off' ||
    { echo "$script: a cap of $((whole - 1)) bytes does not turn replay off" >&2; exit 1; }

# times [OPTION...]: milliseconds of each step but the first two, one per line
times() {
    run_training "${options[@]}" --data "$work/data.txt" --eval-data "$work/held_out.txt" --steps "$steps" \
        --save-every 0 --eval-every 0 "$@"
    step_times
}

: >"$work/with"
: >"$work/without"
for ((round = 1; round <= rounds; round++)); do
    times >>"$work/with"
    times --host-mem $((whole - 1)) >>"$work/without"
done
echo "width $width, $layers layers, $batch x $seq tokens, $precision, $steps steps, $rounds rounds, $(nproc) processors"
awk -v a="$(median <"$work/with")" -v b="$(median <"$work/without")" 'BEGIN {
    printf "with replay %.1f ms a step, without %.1f ms: %.3f\n", a, b, a / b }'
