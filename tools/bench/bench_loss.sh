#!/usr/bin/env bash
# The effect of narrower number formats, and of AdamA instead of AdamW, on the loss. Trains one small model on real text
# from the same seeds, in fp32 and with each option that changes the arithmetic. Prints the held-out loss during training,
# as means over the seeds. At the end it prints each kind's difference from one, paired by seed, with its interval, and the
# spread (largest minus smallest) of a kind's seeds for comparison. Runs follow one another.
#
# usage: tools/bench/bench_loss.sh [options]      defaults in brackets
#   --width N [128] --layers N [4] --heads N [4] --batch N [16] --seq N [64] --lr X [1e-3]
#   --steps N [400]       per run --points N [5] evaluations per run
#   --seeds N [3]
#   --kinds LIST [all]    of fp32,bf16,moments,grad,sent16,all16,master,all6,sums,adama4
#   --against KIND [fp32] that the others are compared with; it always runs
#   --data FILE           text; its last twentieth is held out [README.md and the sources of this repository]
#   --plot FILE           an SVG of the curves
#   --bin DIR [build/bin] where eps, epsd and eps-worker are
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

width=128 layers=4 heads=4 batch=16 seq=64 lr=1e-3 steps=400 points=5 seeds=3 kinds=all against=fp32 data='' plot='' bin=build/bin
take_options "width layers heads batch seq lr steps points seeds kinds against data plot bin" "$@"
need_programs "$bin"

# The options of each kind. AdamA with one part is AdamW; with 4 it squares each part's gradient, not their sum.
declare -A how=([fp32]='' [bf16]='--precision bf16 --grad-dtype fp32' [moments]='--moments bf16' [grad]='--grad-dtype bf16'
    [sent16]='--precision bf16 --grad-dtype bf16'
    [all16]='--precision bf16 --moments bf16 --grad-dtype bf16'
    [master]='--precision bf16 --master none --grad-dtype fp32'
    [all6]='--precision bf16 --master none --moments bf16 --grad-dtype bf16'
    [sums]='--commit fenced --sums bf16 --parts 4 --optimizer adamw'
    [adama4]='--parts 4 --optimizer adama')
[ "$kinds" != all ] || kinds=fp32,bf16,moments,grad,sent16,all16,master,all6,sums,adama4
case ",$kinds," in *,"$against",*) ;; *) kinds=$against,$kinds ;; esac
for kind in ${kinds//,/ }; do
    [ -n "${how[$kind]+known}" ] || misuse "unknown kind $kind (see --help)"
done

make_work
if [ -n "$data" ]; then cat "$data"; else find README.md proto eps device client tools -name "*.[ch]" -print0 | sort -z | xargs -0 cat; fi >"$work/all.txt"
bytes=$(wc -c <"$work/all.txt")
head -c $((bytes - bytes / 20)) "$work/all.txt" >"$work/data.txt"
head -c 32768 < <(tail -c $((bytes / 20)) "$work/all.txt") >"$work/held_out.txt"
print_config 256 >"$work/config.json"

# run KIND SEED: "step eval_loss" lines to KIND.SEED
run() {
    # shellcheck disable=SC2086 # options are words
    run_training --model "$work/config.json" --data "$work/data.txt" --eval-data "$work/held_out.txt" \
        --steps "$steps" --batch "$batch" --seq "$seq" --lr "$lr" --betas 0.9,0.99 --seed "$2" \
        --save-every 0 --eval-every $(((steps + points - 1) / points)) ${how[$1]}
    sed -n 's/.*"step": *\([0-9]*\).*"eval_loss": *\([0-9.e+-]*\).*/\1 \2/p' "$work/run/metrics.jsonl" >"$work/$1.$2"
}
for ((seed = 1; seed <= seeds; seed++)); do
    for kind in ${kinds//,/ }; do
        run "$kind" "$seed"
    done
done

for kind in ${kinds//,/ }; do # "step mean": the curve
    cat "$work/$kind".[0-9]* | awk '{ s[$1] += $2; n[$1]++ } END { for (i in s) print i, s[i] / n[i] }' | sort -n >"$work/$kind"
done
echo "width $width, $layers layers, $batch x $seq tokens, rate $lr, $steps steps, $seeds seeds, $bytes bytes of text," \
    "held-out loss, nats per byte"
printf '%-8s' kind
cut -d ' ' -f 1 "$work/$against" | xargs printf ' %8s'
printf ' | %7s  %s\n' spread "last less $against, paired by seed"
for kind in ${kinds//,/ }; do
    printf '%-8s' "$kind"
    cut -d ' ' -f 2 "$work/$kind" | xargs printf ' %8.4f'
    : >"$work/pairs"
    for ((seed = 1; seed <= seeds; seed++)); do
        echo "$(tail -n 1 "$work/$kind.$seed") $(tail -n 1 "$work/$against.$seed")" >>"$work/pairs"
    done
    printf ' | %7.4f' "$(cut -d ' ' -f 2 "$work/pairs" | sort -g | sed -n '1p;$p' | awk '{ v[NR] = $1 } END { print v[NR] - v[1] }')"
    [ "$kind" = "$against" ] || printf '  %s' "$(difference 2 4 <"$work/pairs")"
    echo
done
if [ -n "$plot" ]; then
    curves=$(for kind in ${kinds//,/ }; do printf "'%s' with linespoints title '%s', " "$work/$kind" "$kind"; done)
    gnuplot -e "set terminal svg size 640,400; set output '$plot'; set xlabel 'step';
        set ylabel 'held-out loss, nats per byte'; plot ${curves%, }"
fi
