#!/usr/bin/env bash
# The cost of saving during training: step times with a checkpoint every 20 steps and without any. Both alternate, so that
# a busy machine slows them alike. For comparison, the speed at which dd writes and flushes as many bytes to the directory.
#
# usage: tools/bench/bench_save.sh [options]      defaults in brackets
#   --width N [384] --layers N [6] --heads N [6] --batch N [8] --seq N [256]
#   --steps N [100]       per run, the first two not counted
#   --every N [20]        steps between checkpoints
#   --rounds N [3]        each runs both once
#   --dir DIR [build]     where the checkpoints go
#   --bin DIR [build/bin] where eps, epsd and eps-worker are
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

width=384 layers=6 heads=6 batch=8 seq=256 steps=100 every=20 rounds=3 dir=build bin=build/bin
take_options "width layers heads batch seq steps every rounds dir bin" "$@"
need_programs "$bin"

make_work -p "$dir" save.XXXXXX
print_config 256 >"$work/config.json"
write_text $((batch * seq * 20 + 1))

# times SAVE_EVERY: milliseconds of each step but the first two, one per line
times() {
    run_training --model "$work/config.json" --data "$work/data.txt" --eval-data "$work/held_out.txt" \
        --steps "$steps" --batch "$batch" --seq "$seq" --save-every "$1" --eval-every 0
    step_times
}
longest() { sort -n "$1" | tail -n 1; }
mean() { awk '{ s += $1 } END { print s / NR }' "$1"; }

: >"$work/without"
: >"$work/saving"
for ((round = 1; round <= rounds; round++)); do
    times 0 >>"$work/without"
    times "$every" >>"$work/saving"
done
bytes=$(du -sbL "$work/run/latest" | cut -f 1)
rate=$({ dd if=/dev/zero of="$work/probe" bs=1M count=$(((bytes + 1048575) / 1048576)) conv=fsync; } 2>&1 |
    awk -F, '/copied/ { split($3, t, " "); split($1, b, " "); printf "%.0f", b[1] / t[1] / 1e6 }')

echo "width $width, $layers layers, $batch x $seq tokens, $steps steps, $rounds rounds, $(nproc) processors"
for kind in without saving; do
    printf '%-8s median %.1f ms, mean %.1f ms, longest %.1f ms\n' $kind "$(median <"$work/$kind")" \
        "$(mean "$work/$kind")" "$(longest "$work/$kind")"
done
awk -v a="$(mean "$work/without")" -v b="$(mean "$work/saving")" -v m="$(median <"$work/saving")" \
    -v longest="$(longest "$work/saving")" -v bytes="$bytes" -v rate="$rate" -v every="$every" 'BEGIN {
    printf "a checkpoint: %.1f MB; dd writes them to this directory at %.0f MB/s: %.0f ms\n", bytes / 1e6, rate,
        bytes / 1e3 / rate
    printf "saving costs %.1f ms a step, %.0f ms a checkpoint; the longest step is %.2f of the median\n", b - a,
        (b - a) * every, longest / m
}'
