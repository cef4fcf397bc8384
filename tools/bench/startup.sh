#!/usr/bin/env bash
# How long `eps train` takes to its first step, from weights in a file that the page cache holds: daemon and worker
# started, weights loaded, memory claimed: the step begins; then the step itself. Prints the milliseconds from the
# program's start to both, the median of all rounds.
#
# usage: tools/bench/startup.sh [options]      defaults in brackets
#   --width N [512] --layers N [8] --heads N [8]     of the model; [25.4 million parameters, 102 MB]
#   --batch N [1] --seq N [64]    of the step; the held-out text is one row
#   --rounds N [9]
#   --bin DIR [build/bin]         where eps, epsd and eps-worker are
set -euo pipefail
cd "$(dirname "$0")/../.."

width=512 layers=8 heads=8 batch=1 seq=64 rounds=9 bin=build/bin
while [ $# -gt 0 ]; do
    case "$1" in
    --help | -h) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit ;;
    --width | --layers | --heads | --batch | --seq | --rounds | --bin)
        [ $# -ge 2 ] || { echo "startup.sh: $1 needs a value" >&2; exit 2; }
        declare "${1#--}=$2"
        shift 2 ;;
    *) echo "startup.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
    esac
done
[ -x "$bin/eps" ] || { echo "startup.sh: no $bin/eps: build the release preset first" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/config.json" <<JSON
{"model_type": "gpt2", "n_embd": $width, "n_layer": $layers, "n_head": $heads, "vocab_size": 256,
 "n_positions": $seq, "activation_function": "gelu_new", "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
JSON
head -c $(((batch * 4 + 1) * seq + 1)) < <(yes 'some text to train on' | tr '\n' ' ') >"$work/data.txt"
head -c $((seq + 1)) "$work/data.txt" >"$work/held_out.txt"

train() { # MODEL OUT
    "$bin/eps" train --model "$1" --data "$work/data.txt" --eval-data "$work/held_out.txt" --out "$2" --steps 1 \
        --batch "$batch" --seq "$seq" --warmup 0
}
if ! train "$work/config.json" "$work/first" >"$work/log" 2>&1; then
    cat "$work/log" >&2
    exit 1
fi
model=$work/first/latest
echo "model of $(stat -L -c %s "$model/model.safetensors") bytes, $batch x $seq tokens a step, $(nproc) processors"

# Milliseconds from start to the lines that tell: the first step begins, the first step is done.
measure() {
    local began=${EPOCHREALTIME/./} line started="" stepped=""
    while read -r line; do
        case $line in
        out\ *) started=${EPOCHREALTIME/./} ;;
        "step 1/1 "*) stepped=${EPOCHREALTIME/./} ;;
        esac
    done
    echo $(((started - began) / 1000)) $(((stepped - began) / 1000))
}
for ((round = 1; round <= rounds; round++)); do
    rm -rf "$work/run"
    train "$model" "$work/run" | measure
done >"$work/times"

median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
spread() { sort -n | sed -n '1p;$p' | paste -sd-; }
echo "to the first step     $(cut -d ' ' -f 1 "$work/times" | median) ms ($(cut -d ' ' -f 1 "$work/times" | spread) in $rounds rounds)"
echo "to its end            $(cut -d ' ' -f 2 "$work/times" | median) ms ($(cut -d ' ' -f 2 "$work/times" | spread))"
