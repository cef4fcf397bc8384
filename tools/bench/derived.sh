#!/usr/bin/env bash
# Residual nets whose blocks' inputs are derived again, elementwise, of what their convolutions gave (proto/plan/memory/chains.h):
# the bytes from forward to backward, as eps plan counts them, against what PyTorch saves of the same net (peer_saved.py); and a
# step's time, of the same microbatches with each budget its own, one beside the other in each round.
#   stored    the blocks' inputs, and signs of relus; all that is not expensive is made again in the backward pass
#   derived   of the blocks' inputs, those of a stage at a time
#
# usage: tools/bench/derived.sh [options]      defaults in brackets
#   --what bytes|time|all|planned [all]   planned: bytes of a worker alone, stored and derived, a line for each net
#   --nets "NAME:SIDE ..." ["resnet-18:32 resnet-18:224 resnet-50:224"]   presets, and pixels of an image's side
#   --batch N [32]        images of a step of 32 x 32 pixels; of larger ones a quarter
#   --rounds N [10]       of times; --steps N [4] of a run, of which the first two do not count
#   --python PATH [python3]   a Python with what tests/oracle/requirements.txt names, for PyTorch's bytes
#   --bin DIR [build/bin] where eps, epsd and eps-worker are
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

what=all nets='resnet-18:32 resnet-18:224 resnet-50:224' batch=32 rounds=10 steps=4 python=python3 bin=build/bin
take_options "what nets batch rounds steps python bin" "$@"
need_programs "$bin"
case $what in bytes | time | all | planned) ;; *) misuse "--what $what is none of bytes, time, all, planned" ;; esac
case $what in bytes | all) need_python "$python" torch torchvision ;; esac
make_work

# plan MEMORY: of the net, in JSON
plan() { "$bin/eps" plan --json --model "$net" --image "${side}x$side" --batch "$rows" --microbatch "$rows" --device cpu --host-mem 1TiB --device-mem "$1"; }

# saved N: PyTorch's bytes of N rows
saved() { "$python" tools/bench/peer_saved.py --net "$net-$side" --rows "$1" | sed 's/.*, \([0-9]*\) bytes.*/\1/'; }

stored_bytes() { awk -v a="$(planned stash <"$1")" -v b="$(planned kept <"$1")" 'BEGIN { printf "%d", a + b }'; }

worker_bytes() { sed -n 's/.*"workers": \[{"current": \([0-9]*\).*/\1/p' "$1"; }

# Sets $memory_stored and $memory_derived: what a step takes that keeps all signs and all weights, and stores, or derives. The
# second is the most in which the planner derives.
find_budgets() {
    local step
    plan 1TiB >"$work/stored"
    memory_stored=$(worker_bytes "$work/stored")
    step=$((memory_stored / 400)) memory_derived=$memory_stored
    until plan "$memory_derived" >"$work/derived" && grep -q '"derives_inputs": true' "$work/derived"; do
        memory_derived=$((memory_derived - step))
        [ "$memory_derived" -gt $((memory_stored / 2)) ] || { echo "$net, $side: nothing is derived" >&2; exit 1; }
    done
}

print_bytes() {
    local two all form
    two=$(saved 2)
    all=$((two + ($(saved 4) - two) / 2 * (rows - 2)))
    echo "$net, $rows images of $side x $side: PyTorch saves $all bytes"
    for form in stored derived; do
        awk -v form=$form -v n="$(stored_bytes "$work/$form")" -v s=$all -v signs="$(planned kept <"$work/$form")" -v t="$(
            worker_bytes "$work/$form")" 'BEGIN {
            printf "  %-8s %11d bytes, %d of them signs: %.1f %% less; a worker %d bytes\n", form, n, signs, 100 * (1 - n / s), t }'
    done
}

# time_of FORM MEMORY: milliseconds of a step
time_of() {
    run_training --model "$net" --image "${side}x$side" --data "$work/images.npy" --eval-data "$work/images.npy" --batch "$rows" \
        --microbatch "$rows" --steps "$steps" --device cpu --host-mem 1TiB --device-mem "$2" --no-save --eval-every 0
    step_times | median
}

# Ratios in order; of ten, the second and the ninth hold the median in 97.9 % of samples.
print_times() {
    local round a b
    write_images $((2 * rows)) "$side"
    : >"$work/ratios"
    for ((round = 0; round < rounds; round++)); do
        if ((round % 2)); then
            a=$(time_of stored "$memory_stored") b=$(time_of derived "$memory_derived")
        else
            b=$(time_of derived "$memory_derived") a=$(time_of stored "$memory_stored")
        fi
        awk -v a="$a" -v b="$b" 'BEGIN { printf "%.4f %.0f %.0f\n", a / b, a, b }' >>"$work/ratios"
    done
    sort -g "$work/ratios" | awk -v what="$net, $rows images of $side x $side" '{ r[NR] = $1; a += $2; b += $3 }
        END {
            middle = NR % 2 ? r[(NR + 1) / 2] : (r[NR / 2] + r[NR / 2 + 1]) / 2
            out = (NR > 2)
            printf "%s: a step derived has %.3f of the stored one'\''s speed, %.3f to %.3f in %d pairs but the outermost; ", what, middle, r[1 + out], r[NR - out], NR
            printf "%.0f and %.0f ms on average\n", b / NR, a / NR
        }'
}

for each in $nets; do
    net=${each%:*} side=${each#*:} rows=$batch
    [ "$side" -le 32 ] || rows=$(((batch + 3) / 4))
    find_budgets
    case $what in
    planned) echo "$memory_stored $(worker_bytes "$work/derived")" ;;
    bytes) print_bytes ;;
    time) print_times ;;
    all) print_bytes; print_times ;;
    esac
done
