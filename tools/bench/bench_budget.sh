#!/usr/bin/env bash
# Step time by device memory for one model, from the smallest sufficient budget to one that holds everything. Budgets
# alternate, so that a busy machine slows all alike. The microbatch is the same throughout; the script checks that the
# final weights are, too. Prints a table, and plots it if gnuplot is installed.
#
# usage: tools/bench/bench_budget.sh [options]      defaults in brackets
#   --width N [384] --layers N [6] --heads N [6] --vocabulary N [256] --batch N [8] --seq N [256] --microbatch N [2]
#   --precision fp32|bf16 [fp32]
#   --budgets N [8]       number of budgets, evenly spaced on a logarithmic scale
#   --steps N [8]         per run, the first two not counted
#   --rounds N [3]        each runs every budget once
#   --plot FILE           an SVG of step time over budget
#   --bin DIR [build/bin] where eps, epsd and eps-worker are
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

width=384 layers=6 heads=6 vocabulary=256 batch=8 seq=256 microbatch=2 precision=fp32
budgets=8 steps=8 rounds=3 plot='' bin=build/bin
take_options "width layers heads vocabulary batch seq microbatch precision budgets steps rounds plot bin" "$@"
need_programs "$bin"

make_work
print_config "$vocabulary" >"$work/config.json"
write_tokens $((batch * seq * steps + 1))
options=(--model "$work/config.json" --batch "$batch" --seq "$seq" --microbatch "$microbatch" --precision "$precision")

minimum=$("$bin/eps" plan "${options[@]}" --minimum)
everything=$(held_with_any_memory)
sizes=$(awk -v a="$minimum" -v b="$everything" -v n="$budgets" 'BEGIN {
    for (i = 0; i < n; i++) printf "%.0f\n", i == n - 1 ? b : a * exp(log(b / a) * i / (n - 1)) }')

# run BUDGET: appends the steps' milliseconds to its file; all runs must give the same weights
run() {
    run_training "${options[@]}" --data "$work/data.bin" --eval-data "$work/held_out.bin" --steps "$steps" \
        --save-every 0 --eval-every 0 --device-mem "$1"
    step_times >>"$work/ms.$1"
    sed -n 's/.*"device_peak_bytes": *\([0-9]*\).*/\1/p' "$work/run/metrics.jsonl" | tail -n 1 >"$work/peak.$1"
    sum=$(cksum <"$work/run/latest/model.safetensors")
    [ "${first:=$sum}" = "$sum" ] || { echo "bench_budget.sh: $1 bytes trained other weights" >&2; exit 1; }
}
for ((round = 1; round <= rounds; round++)); do
    for size in $sizes; do
        run "$size"
    done
done

echo "width $width, $layers layers, vocabulary $vocabulary, $batch x $seq tokens, microbatches of $microbatch, $precision," \
    "$(nproc) processors; all weights equal"
echo "budget_bytes peak_bytes median_step_ms"
for size in $sizes; do
    echo "$size $(cat "$work/peak.$size") $(median <"$work/ms.$size")"
done | tee "$work/table"
if [ -n "$plot" ]; then
    gnuplot -e "set terminal svg size 640,360; set output '$plot'; set logscale x; set xlabel 'device memory, MiB';
        set ylabel 'step, ms'; set yrange [0:*]; unset key; plot '$work/table' using (\$1/1048576):3 with linespoints"
fi
